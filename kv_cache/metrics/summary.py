"""Numbers out of histograms and flows. Every formula is defined in `docs/metrics.md`."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from kv_cache.core.kinds import Cause, OpKind, Phase, Tier
from kv_cache.core.units import GIB, NS_PER_MS, human_bytes, ns_to_ms
from kv_cache.metrics.evidence import OBJECT_ENGINES
from kv_cache.metrics.histogram import Histogram, supported
from kv_cache.metrics.intervals import share_interval
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import Flow, OpStats

PERCENTILES: Mapping[str, float] = {
    "p50": 50.0,
    "p95": 95.0,
    "p99": 99.0,
    "p999": 99.9,
    "p9999": 99.99,
}

NETWORK: Mapping[OpKind, str] = {
    OpKind.READ: "network_rx_bytes",
    OpKind.WRITE: "network_tx_bytes",
}
"""What counts the bytes of an object store on their way: all interfaces but the loopback."""

DRIVE_CACHE_BYTES = 64 * GIB
"""Below this much on storage a result says that a drive may have answered from its own cache:
drives have up to a few GiB of memory, and tens of GiB of flash that is written as SLC."""
HELD = "storage held at most "
"""How a result says so."""

DECISIVE_SHARE = 0.01
"""Of the requests; where fewer were served out of turn, a result says that priorities decided
nothing."""

_NOT_FAILURES = {"queue-full", "window-closed", "drain-ended"}


def latency_ms(histogram: Histogram, percentiles: Iterable[str] = PERCENTILES) -> dict[str, Any]:
    """Mean and percentiles in milliseconds; None where there are too few values for one. Those that
    are lower bounds are listed as `at_least`, where there are any."""
    names = tuple(percentiles)
    known = [name for name in names if supported(histogram.count, PERCENTILES[name])]
    bounds = histogram.bounds([PERCENTILES[name] for name in known]) if known else []
    values = dict(zip(known, bounds, strict=True))
    at_least = [name for name, bound in values.items() if bound.at_least]
    return {
        "mean": None if histogram.mean is None else ns_to_ms(histogram.mean),
        **{name: ns_to_ms(values[name].value) if name in values else None for name in names},
        **({"at_least": at_least} if at_least else {}),
    }


def reference_ms(histogram: Histogram, percentiles: Iterable[str] = PERCENTILES) -> dict[str, Any]:
    """Return the same as the reference's keys have it: the value at a percentile's rank however few
    values there are, and 0 throughout where there are none."""
    result = {"mean": ns_to_ms(histogram.mean or 0)}
    for name in percentiles:
        result[name] = ns_to_ms(histogram.at_rank(PERCENTILES[name]) or 0)
    return result


def size_numbers(sizes: Histogram) -> dict[str, Any]:
    """Sizes of objects in bytes: ends, mean and percentiles, and by powers of two. None where
    there are none, and of a percentile that too few support."""
    p50, p95 = sizes.percentiles((50, 95))
    return {
        "objects": sizes.count,
        "sum": sizes.total,
        "min": sizes.lowest,
        "mean": sizes.mean,
        "p50": p50,
        "p95": p95,
        "max": sizes.highest,
        "powers_of_two": [[2**exponent, count] for exponent, count in sizes.octaves().items()],
    }


class Flows:
    """The ledger of physical operations, asked by phase, tier, kind and cause."""

    def __init__(self, flows: Mapping[Flow, OpStats]) -> None:
        self._flows = flows

    def where(self, keep: Callable[[Flow], bool]) -> list[OpStats]:
        return [stats for flow, stats in self._flows.items() if keep(flow)]

    def measured(
        self, tier: Tier | None, kind: OpKind, causes: Collection[Cause] = tuple(Cause)
    ) -> list[OpStats]:
        """Return what ended inside the window; `tier` None is all tiers."""

        def counts(flow: Flow) -> bool:
            wanted = flow.phase is Phase.MEASURE and flow.kind is kind and flow.cause in causes
            return wanted and tier in (None, flow.tier)

        return self.where(counts)

    def all_bytes(self, tier: Tier, kind: OpKind) -> int:
        """Return the bytes of the whole run, all phases."""
        return sum(s.bytes for s in self.where(lambda f: f.tier is tier and f.kind is kind))


def total_bytes(stats: Iterable[OpStats]) -> int:
    return sum(s.bytes for s in stats)


def total_operations(stats: Iterable[OpStats]) -> int:
    return sum(s.operations for s in stats)


def call_ms(device: Histogram, calls: int, steps: Iterable[Histogram]) -> float | None:
    """Return how long the longest kind of system call typically takes: one of the `calls` that
    moved bytes by the median of the operations' times over the calls of an operation on average,
    one on metadata by the median of its kind. None where none ended."""
    median_ns = device.at_rank(50) or 0.0
    times_ns = [median_ns * device.count / calls if calls else 0.0]
    times_ns += [step.at_rank(50) or 0.0 for step in steps]
    return ns_to_ms(max(times_ns)) or None


def per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def slos_met(end_to_end: Histogram, slos_ms: Mapping[str, float]) -> dict[str, Any]:
    """Return each percentile of a class that has an SLO beside the actual one, where there are
    enough values for it, and beside the share of requests that kept to it. The share is what is
    judged: `met` is None where its interval holds the target, as there are too few requests to
    say."""
    actual = latency_ms(end_to_end)
    return {
        name: {
            "target_ms": target,
            "actual_ms": actual[name],
            **_kept(end_to_end, target, Fraction(str(PERCENTILES[name])) / 100),
        }
        for name, target in slos_ms.items()
    }


def _kept(end_to_end: Histogram, target_ms: float, wanted: Fraction) -> dict[str, Any]:
    target_ns = round(target_ms * NS_PER_MS)
    within, count = end_to_end.counts_at_most([target_ns])
    if end_to_end.in_flight is not None:  # who waits for longer has been let down already
        young, waiting = end_to_end.in_flight.counts_at_most([target_ns])
        count += waiting - young
    low, high = share_interval(within, count)
    return {
        "requests": count,
        "within": within,
        "share_low": low,
        "share_high": high,
        "met": True if low >= wanted else False if high < wanted else None,
    }


def notes(outcome: RunOutcome) -> list[str]:
    """Return what a reader of the numbers has to know first; empty if there is nothing."""
    notes: list[str] = []
    if outcome.death is not None:
        notes.append(f"the run broke: {outcome.death}")
    failed = sum(outcome.recorder.failures.values())
    if failed:
        reasons = sorted({failure.reason for failure in outcome.recorder.failures})
        notes.append(f"{failed} operations failed: {', '.join(reasons)}")
    for facts in outcome.tiers:
        store = facts.store
        if store.get("emulated"):
            notes.append(f"the {facts.tier.label} tier is emulated in host RAM")
        if store.get("engine_note"):
            notes.append(
                f"no direct I/O here ({store['engine_note']}): storage goes through the page cache"
            )
        elif facts.tier is Tier.NVME and store.get("engine") in ("buffered", "mmap"):
            notes.append(f"storage goes through the page cache ({store['engine']})")
    if outcome.tracing is not None:
        traced = outcome.tracing["section"]
        notes.append(
            "the block layer was traced, which slows small I/O down"
            if traced["traced"]
            else f"the block layer was not traced: {traced['reason']}"
        )
    books = outcome.accounting()
    if books["failed"]:
        reasons = sorted(outcome.recorder.request_errors.keys() - _NOT_FAILURES)
        notes.append(f"{books['failed']} requests failed: {', '.join(reasons)}")
    if books["rejected"]:
        notes.append(f"{books['rejected']} requests rejected")
    if not outcome.window_ns:
        notes.append("the run ended before its window began: nothing was measured")
    elif not books["completed_in_window"]:
        notes.append("no request completed inside the window")
    if outcome.kept_in is not None:
        notes.append(f"the cache files were kept in {outcome.kept_in}")
    notes.extend(_without_order(outcome))
    return [*notes, *outcome.warnings, *_within_drive_cache(outcome)]


def _without_order(outcome: RunOutcome) -> Iterator[str]:
    """Say that classes were served as they came, whatever their priorities."""
    count, whole = outcome.out_of_turn, outcome.submitted
    if count is None or count >= DECISIVE_SHARE * whole:
        return
    yield (
        f"QoS priorities decided {'next to nothing' if count else 'nothing'}: {count} of {whole} "
        "requests were served before one that had come earlier, as the others waited for no worker "
        "behind another class; classes wait for each other where schedule.workers is less than "
        "what is asked at once"
    )


def _within_drive_cache(outcome: RunOutcome) -> Iterator[str]:
    """Say that so few bytes may never have left the drive's own memory or SLC cache."""
    storage = [facts for facts in outcome.tiers if facts.tier is Tier.NVME]
    if outcome.driver != "real-io":
        return
    if not any(facts.store.get("engine") in OBJECT_ENGINES for facts in storage):
        held = sum(facts.peak_bytes for facts in storage)
        yield from within_drive_cache(held, preconditioned=outcome.preconditioning is not None)


def within_drive_cache(held: int, *, preconditioned: bool) -> Iterator[str]:
    """Say it of a drive that held so many bytes, where they are few, and what would measure it."""
    way = "" if preconditioned else "run --precondition "
    if 0 < held < DRIVE_CACHE_BYTES:
        yield (
            f"{HELD}{human_bytes(held)}, which may fit into the drive's own cache; to measure the "
            f"drive itself: {way}--storage-capacity-gb N, with N GiB beyond that cache"
        )
