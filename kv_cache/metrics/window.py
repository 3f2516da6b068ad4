"""What happened between two ticks, and the series of it: percentiles of that time alone, not of
the whole run so far.

The driver reports every operation and request to the meter under its lock, and takes what was
collected at each tick (`take`, under the lock too); what it means is worked out outside (`read`).
An operation counts where it ended, with all its bytes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from kv_cache.core.effect import ABORTED, OpDone
from kv_cache.core.kinds import OpKind, Outcome, Phase, Qos, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.units import NS_PER_S, ns_to_ms, ns_to_s
from kv_cache.metrics.histogram import Histogram, WindowValues, supported
from kv_cache.metrics.slo import Slo

_PERCENTS = (50, 95, 99)
_OUTCOMES = tuple(Outcome)
Count = TypeVar("Count", int, float)


class Latency(Struct, frozen=True, kw_only=True):
    """Percentiles in ns, None where too few ended for one; `highest_ns` is exact. `rank95_ns` is
    the value at the rank of the p95 however few ended: what the autoscaler follows, which takes
    the median of several windows. It is not shown."""

    count: int
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    highest_ns: int | None
    rank95_ns: float | None = None


NO_LATENCY = Latency(count=0, p50_ns=None, p95_ns=None, p99_ns=None, highest_ns=None)


class OpWindow(Struct, frozen=True, kw_only=True):
    """One tier's operations of one kind. `latency` is the device's for storage, and all of it for
    the memory tiers."""

    operations: int
    failed: int
    bytes: int
    calls: int
    latency: Latency


class ClassWindow(Struct, frozen=True, kw_only=True):
    """Requests of one class. `over[i]` of the `ended` were over the limit of the i-th SLO that the
    meter was made with (0 for SLOs of other classes); `used[i]` is the sum of their latencies as
    shares of it, each at most 1, and `used_squares[i]` that of its squares."""

    completed: int
    failed: int
    rejected: int
    prompt_tokens: int
    output_tokens: int
    response: Latency
    ttft: Latency
    over: tuple[int, ...] = ()
    used: tuple[float, ...] = ()
    used_squares: tuple[float, ...] = ()

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.rejected


class Gauges(Struct, frozen=True, kw_only=True):
    """The state at a tick. `submitted` counts from the beginning of the run. `users` is
    None where the load is not made by users (a trace)."""

    users: int | None
    workers: int
    in_flight: int
    queued: int
    oldest_queued_ns: int
    behind: int
    submitted: int


class SaturationLevel(NamedTuple):
    """How near the load is to what may be: 1.0 is at the limit of the signal `by` (None where no
    signal was seen). `saturated` has hysteresis."""

    level: float
    by: str | None
    saturated: bool


class Window(Struct, frozen=True, kw_only=True):
    """`machine` is what the machine said (`bench/monitor`); empty in virtual time. The level of
    saturation is filled in by what follows it (`schedule/saturation`)."""

    start_ns: int
    end_ns: int
    phase: Phase
    gauges: Gauges
    submitted: int  # in this window
    ops: Mapping[tuple[Tier, OpKind], OpWindow]
    classes: Mapping[Qos, ClassWindow]
    machine: Mapping[str, Any] = field(default_factory=dict)
    saturation: SaturationLevel | None = None

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def completed(self) -> int:
        return sum(c.completed for c in self.classes.values())

    @property
    def output_tokens(self) -> int:
        return sum(c.output_tokens for c in self.classes.values())

    def storage_bytes(self, *kinds: OpKind) -> int:
        """Return the bytes of these kinds, or of reads and writes."""
        wanted = kinds or (OpKind.READ, OpKind.WRITE)
        return sum(w.bytes for (t, k), w in self.ops.items() if t is Tier.NVME and k in wanted)

    def storage_p95_ns(self, kind: OpKind) -> float | None:
        """Device time; None where too few operations of the kind ended well."""
        ops = self.ops.get((Tier.NVME, kind))
        return None if ops is None else ops.latency.p95_ns


class _Ops:
    __slots__ = ("bytes", "calls", "failed", "latency", "operations")

    def __init__(self) -> None:
        self.latency = WindowValues()
        self.clear()

    def clear(self) -> None:
        self.latency.clear()
        self.operations = self.failed = self.bytes = self.calls = 0


class _Class:
    __slots__ = ("ends", "output", "over", "prompt", "response", "squares", "ttft", "used")

    def __init__(self, slos: int) -> None:
        self.response, self.ttft = WindowValues(), WindowValues()
        self.over = [0] * slos
        self.clear()

    def clear(self) -> None:
        self.response.clear()
        self.ttft.clear()
        self.ends = dict.fromkeys(_OUTCOMES, 0)
        self.over = [0] * len(self.over)
        self.used, self.squares = [0.0] * len(self.over), [0.0] * len(self.over)
        self.prompt = self.output = 0


class Bins:
    """What was collected since a tick. Only the meter looks inside."""

    def __init__(self, slos: int) -> None:
        self.start_ns = self.end_ns = 0
        self.ops: defaultdict[tuple[Tier, OpKind], _Ops] = defaultdict(_Ops)
        self.classes = {qos: _Class(slos) for qos in Qos}


class Totals:
    """Requests of the whole run by phase, class and outcome, and the tokens of those that
    completed, up to the last window. All keys are there from the start."""

    def __init__(self) -> None:
        keys = [(phase, qos) for phase in Phase for qos in Qos]
        self.ended = {(*key, outcome): 0 for key in keys for outcome in Outcome}
        self.prompt_tokens, self.output_tokens = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)

    def add(self, bins: Bins, phase: Phase) -> None:
        for qos, each in bins.classes.items():
            for outcome, count in each.ends.items():
                self.ended[phase, qos, outcome] += count
            self.prompt_tokens[phase, qos] += each.prompt
            self.output_tokens[phase, qos] += each.output

    def requests(self, outcome: Outcome) -> int:
        """Return how many requests ended so."""
        return sum(count for (_, _, how), count in self.ended.items() if how is outcome)


OnLatencies = Callable[[int, int, Phase, Mapping[str, Histogram]], None]
"""Called for each window with its begin and end (ns), its phase, and its histograms by tag
(`latency_tag`), which hold until it returns."""


def latency_tag(tier: str, kind: str) -> str:
    """`storage.read.device`, `cpu.write.total`: which time of a tier's operations is shown."""
    return f"{tier}.{kind}.{'device' if tier == Tier.NVME.label else 'total'}"


class Meter:
    """Two sets of bins take turns, so that their memory stays the same and is cleared outside the
    driver's lock."""

    def __init__(self, slos: Sequence[Slo] = ()) -> None:
        self.on_latencies: OnLatencies | None = None
        self.slos = tuple(slos)
        self._of = {qos: [(i, p) for i, p in enumerate(self.slos) if p.qos is qos] for qos in Qos}
        self._live, self._spare = Bins(len(self.slos)), Bins(len(self.slos))
        self._submitted = 0
        self.totals = Totals()

    # --- under the driver's lock -----------------------------------------------------------

    def op(self, done: OpDone) -> None:
        for leg in done.legs:
            bins = self._live.ops[leg.tier, leg.kind]
            for chunk in leg.chunks:
                bins.bytes += chunk.nbytes
                bins.calls += 1
            if done.error is None:
                bins.operations += 1
                bins.latency.add(leg.device_ns if leg.tier is Tier.NVME else leg.total_ns)
        if done.failed is not None and done.error != ABORTED:
            self._live.ops[done.failed_tier, done.failed].failed += 1

    def legs(self, tier: Tier, kind: OpKind, latencies: Sequence[int], nbytes: int) -> None:
        """Count sides of operations that went well, by one call each."""
        bins, count = self._live.ops[tier, kind], len(latencies)
        bins.operations += count
        bins.latency.add_all(latencies)
        if kind is not OpKind.DELETE:
            bins.bytes += nbytes
            bins.calls += count

    def request(self, record: RequestRecord) -> None:
        bins = self._live.classes[record.qos]
        bins.ends[record.outcome] += 1
        if record.outcome is Outcome.UNFINISHED:
            return
        for index, slo in self._of[record.qos]:
            used = slo.used_by(record)
            bins.over[index] += used > 1
            bins.used[index] += min(used, 1.0)
            bins.squares[index] += min(used, 1.0) ** 2
        if record.outcome is not Outcome.COMPLETED:
            return
        bins.prompt += record.prompt_tokens
        bins.output += record.output_tokens
        if record.response_ns is not None:
            bins.response.add(record.response_ns)
        if record.ttft_ns is not None:
            bins.ttft.add(record.ttft_ns)

    @property
    def start_ns(self) -> int:
        """When the window began that is collected now."""
        return self._live.start_ns

    def take(self, now_ns: int) -> Bins:
        """Return what was collected until now; `read` must be called before the next `take`."""
        full, self._live = self._live, self._spare
        full.end_ns = self._live.start_ns = now_ns
        return full

    # --- outside ---------------------------------------------------------------------------

    def read(
        self, bins: Bins, phase: Phase, gauges: Gauges, machine: Mapping[str, Any] | None = None
    ) -> Window:
        """Return the window that `bins` are of; they are emptied for the one after the next."""
        window = Window(
            start_ns=bins.start_ns,
            end_ns=bins.end_ns,
            phase=phase,
            gauges=gauges,
            submitted=gauges.submitted - self._submitted,
            ops={
                key: _op_window(ops)
                for key, ops in bins.ops.items()
                if ops.operations or ops.failed or ops.bytes
            },
            classes={qos: _class_window(c) for qos, c in bins.classes.items()},
            machine=machine or {},
        )
        self._submitted = gauges.submitted
        self.totals.add(bins, phase)
        if self.on_latencies is not None:
            self.on_latencies(bins.start_ns, bins.end_ns, phase, _by_tag(bins))
        for ops in bins.ops.values():
            ops.clear()
        for each in bins.classes.values():
            each.clear()
        self._spare = bins
        return window


def _by_tag(bins: Bins) -> dict[str, Histogram]:
    values = {latency_tag(t.label, k.value): ops.latency for (t, k), ops in bins.ops.items()}
    for qos, each in bins.classes.items():
        values |= {f"response.{qos.value}": each.response, f"ttft.{qos.value}": each.ttft}
    return {tag: some.histogram() for tag, some in sorted(values.items()) if some.count}


def _op_window(ops: _Ops) -> OpWindow:
    return OpWindow(
        operations=ops.operations,
        failed=ops.failed,
        bytes=ops.bytes,
        calls=ops.calls,
        latency=_latency(ops.latency),
    )


def _class_window(bins: _Class) -> ClassWindow:
    return ClassWindow(
        completed=bins.ends[Outcome.COMPLETED],
        failed=bins.ends[Outcome.FAILED],
        rejected=bins.ends[Outcome.REJECTED],
        prompt_tokens=bins.prompt,
        output_tokens=bins.output,
        response=_latency(bins.response),
        ttft=_latency(bins.ttft),
        over=tuple(bins.over),
        used=tuple(bins.used),
        used_squares=tuple(bins.squares),
    )


def _latency(values: WindowValues) -> Latency:
    count = values.count
    if not count:
        return NO_LATENCY
    highest, (p50, p95, p99) = values.read(_PERCENTS)
    return Latency(
        count=count,
        p50_ns=p50 if supported(count, 50) else None,
        p95_ns=p95 if supported(count, 95) else None,
        p99_ns=p99 if supported(count, 99) else None,
        highest_ns=highest,
        rank95_ns=p95,
    )


# --- the series ------------------------------------------------------------------------------

LONGEST = 4000
"""Windows that a result keeps; of a longer run, neighbours are put together two by two."""


class Series:
    """The windows of a run in order, of bounded number."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self.windows: list[Window] = []
        self.together = 1  # how many ticks one window is, at most
        self._last = 0  # how many ticks the last one is so far

    def add(self, window: Window) -> None:
        goes_on = bool(self.windows) and self.windows[-1].phase is window.phase
        if goes_on and self._last < self.together:
            self.windows[-1] = joined(self.windows[-1], window)
            self._last += 1
            return
        self.windows.append(window)
        self._last = 1
        if len(self.windows) > self._longest:
            self.windows = _in_pairs(self.windows)
            self.together *= 2
            self._last = self.together  # whatever it is, the next one begins anew

    def of(self, phase: Phase) -> list[Window]:
        return [window for window in self.windows if window.phase is phase]


def _in_pairs(windows: Sequence[Window]) -> list[Window]:
    """Neighbours of one phase put together, two by two."""
    kept: list[Window] = []
    single = False  # whether the last one waits for its neighbour
    for window in windows:
        if single and kept[-1].phase is window.phase:
            kept[-1], single = joined(kept[-1], window), False
        else:
            kept.append(window)
            single = True
    return kept


def joined(first: Window, second: Window) -> Window:
    """Return two neighbours as one: counts add up, levels are the second's, and a percentile is the
    larger of the two, as nothing better can be known."""
    return replace(
        second,
        start_ns=first.start_ns,
        submitted=first.submitted + second.submitted,
        ops={
            key: _joined_ops([w.ops[key] for w in (first, second) if key in w.ops])
            for key in {**first.ops, **second.ops}
        },
        classes={qos: _joined_class(first.classes[qos], second.classes[qos]) for qos in Qos},
        saturation=max(
            (w.saturation for w in (first, second) if w.saturation is not None),
            key=lambda level: level.level,
            default=None,
        ),
    )


def _joined_ops(parts: Sequence[OpWindow]) -> OpWindow:
    if len(parts) == 1:
        return parts[0]
    return OpWindow(
        operations=sum(p.operations for p in parts),
        failed=sum(p.failed for p in parts),
        bytes=sum(p.bytes for p in parts),
        calls=sum(p.calls for p in parts),
        latency=_larger(p.latency for p in parts),
    )


def _joined_class(first: ClassWindow, second: ClassWindow) -> ClassWindow:
    if not first.ended or not second.ended:
        return first if first.ended else second
    names = ("completed", "failed", "rejected", "prompt_tokens", "output_tokens")
    return ClassWindow(
        **{name: getattr(first, name) + getattr(second, name) for name in names},
        response=_larger((first.response, second.response)),
        ttft=_larger((first.ttft, second.ttft)),
        over=_added(first.over, second.over),
        used=_added(first.used, second.used),
        used_squares=_added(first.used_squares, second.used_squares),
    )


def _added(first: Sequence[Count], second: Sequence[Count]) -> tuple[Count, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _larger(parts: Iterable[Latency]) -> Latency:
    some = [part for part in parts if part.count]
    if len(some) < 2:
        return some[0] if some else NO_LATENCY
    return Latency(
        count=sum(p.count for p in some),
        p50_ns=_most(p.p50_ns for p in some),
        p95_ns=_most(p.p95_ns for p in some),
        p99_ns=_most(p.p99_ns for p in some),
        highest_ns=max(p.highest_ns or 0 for p in some),
        rank95_ns=_most(p.rank95_ns for p in some),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


# --- as a result has it ----------------------------------------------------------------------


def window_row(window: Window) -> dict[str, Any]:
    """Return one row of `kv_cache.series.windows`. Instants are seconds since the run's origin."""
    gauges = window.gauges
    tiers: dict[str, dict[str, Any]] = {}
    for (tier, kind), ops in sorted(window.ops.items()):
        tiers.setdefault(tier.label, {})[kind.value] = {
            "operations": ops.operations,
            "failed": ops.failed,
            "bytes": ops.bytes,
            "system_calls": ops.calls,
            **_ms(ops.latency),
        }
    return {
        "start_s": ns_to_s(window.start_ns),
        "end_s": ns_to_s(window.end_ns),
        "phase": window.phase.value,
        "users": gauges.users,
        "workers": gauges.workers,
        "in_flight": gauges.in_flight,
        "queued": gauges.queued,
        "oldest_queued_s": ns_to_s(gauges.oldest_queued_ns),
        "behind": gauges.behind,
        "submitted": window.submitted,
        "completed": window.completed,
        "output_tokens": window.output_tokens,
        "tiers": tiers,
        "classes": {qos.value: _class_row(c) for qos, c in window.classes.items() if c.ended},
        "saturation": None if window.saturation is None else window.saturation._asdict(),
        "machine": dict(window.machine),
    }


def _class_row(window: ClassWindow) -> dict[str, Any]:
    return {
        "completed": window.completed,
        "failed": window.failed,
        "rejected": window.rejected,
        "output_tokens": window.output_tokens,
        "response_ms": _ms(window.response),
        "ttft_ms": _ms(window.ttft),
        "over": list(window.over),
    }


def _ms(latency: Latency) -> dict[str, float | None]:
    values = {
        "p50_ms": latency.p50_ns,
        "p95_ms": latency.p95_ns,
        "p99_ms": latency.p99_ns,
        "max_ms": latency.highest_ns,
    }
    return {name: None if ns is None else ns_to_ms(ns) for name, ns in values.items()}
