"""A run as it goes on, in Prometheus' text format 0.0.4.

Counters only grow: they are of the whole run, and carry the phase where it matters. Gauges are of
the latest window. What grows is read as it is, without the driver's lock: each number is right,
but one look may have an operation in its bytes that is not in its histogram yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from kv_cache.core.kinds import OpKind, Phase, Qos, Tier
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.passport import Finding
from kv_cache.metrics.recorder import Flow, OpStats, Recorder
from kv_cache.metrics.slo import Slo, SloMeasure
from kv_cache.metrics.window import Gauges, Totals, Window

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "kv_cache_"

EDGES_NS = tuple(digit * 10**power for power in range(4, 11) for digit in (1, 2, 5))
"""Upper ends of the buckets that are exported, 10 us to 50 s; a value up to 0.4 % above counts."""

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


class Family(Struct, frozen=True):
    """One metric, left out where it has no samples. Those of a histogram are whole histograms in
    ns, exported in seconds."""

    name: str
    kind: str
    help_text: str
    samples: tuple[Sample, ...] = ()
    histograms: tuple[tuple[Labels, Histogram], ...] = ()

    def lines(self) -> Iterator[str]:
        if not self.samples and not self.histograms:
            return
        name = PREFIX + self.name
        yield f"# HELP {name} {_escaped(self.help_text)}"
        yield f"# TYPE {name} {self.kind}"
        for labels, value in self.samples:
            yield _line(name, labels, value)
        for labels, histogram in self.histograms:
            yield from _histogram_lines(name, labels, histogram)


def _histogram_lines(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    total = histogram.total  # before the counts: never more time than values
    *below, count = histogram.counts_at_most(EDGES_NS)
    for edge, so_many in zip(EDGES_NS, below, strict=True):
        yield _line(f"{name}_bucket", {**labels, "le": f"{edge / NS_PER_S:g}"}, so_many)
    yield _line(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
    yield _line(f"{name}_sum", labels, total / NS_PER_S)
    yield _line(f"{name}_count", labels, count)


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
    number = int(value) if isinstance(value, int) else float(value)
    return f"{name}{{{inner}}} {number!r}" if inner else f"{name} {number!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def exposition(families: Iterable[Family]) -> str:
    """Return the text of a scrape."""
    return "".join(f"{line}\n" for family in families for line in family.lines())


# --- what is exported ------------------------------------------------------------------------


def about(info: Labels, doing: str) -> list[Family]:
    """Return the families that say what runs, and what it does at the moment."""
    return [
        _gauge("run_info", "What is run", 1, **info),
        _gauge("doing", "What the run does now: 1 for one word", 1, what=doing),
    ]


def planned(seconds: Mapping[Phase, float | None], slos: Sequence[Slo]) -> list[Family]:
    """Return what a run is to keep: the length of its phases, left out where nothing says it, and
    its SLOs."""
    lengths = tuple(({"phase": phase.value}, s) for phase, s in seconds.items() if s is not None)
    limits = tuple((_slo_labels(slo), slo.limit_ns / NS_PER_S) for slo in slos)
    return [
        Family("planned_seconds", "gauge", "Length of a phase, as configured", lengths),
        Family("slo_seconds", "gauge", "Latency that an SLO allows at its quantile", limits),
    ]


FINDING = "# FINDING "
"""Begins the comment with which a scrape says why; a series of its own would begin anew with each
figure in the sentence."""


def speaking_against(findings: Iterable[Finding]) -> str:
    """Return the text of what already speaks against the run: a metric for alarms, sentences."""
    rows = list(findings)
    gauge = Family(
        "passport_finding", "gauge", "1 for each rule of the passport that is not kept so far",
        tuple(({"rule": f.rule, "status": f.status.value}, 1) for f in rows),
    )  # fmt: skip
    says = "".join(f"{FINDING}{f.status.value}: {_escaped(str(f))}\n" for f in rows)
    return exposition([gauge]) + says


def kept(recorder: Recorder, slos: Sequence[Slo]) -> Family:
    """Return of each SLO how many measured requests answered within its limit."""
    within = ((_slo_labels(slo), _within(recorder, slo)) for slo in slos)
    return _counter("slo_within_total", "Measured requests that answered within the SLO", within)


def _slo_labels(slo: Slo) -> Labels:
    quantile = f"{slo.percent / 100:g}"
    return {"class": slo.qos.value, "measure": slo.measure.value, "quantile": quantile}


def _within(recorder: Recorder, slo: Slo) -> int:
    stats = recorder.classes[slo.qos]
    latencies = stats.ttft if slo.measure is SloMeasure.TTFT else stats.response
    return latencies.counts_at_most([slo.limit_ns])[0]


def measured(recorder: Recorder, totals: Totals, window: Window | None) -> Iterator[Family]:
    """Yield all numbers of a run."""
    yield from _requests(recorder, totals)
    reuse = recorder.reuse
    for name, what, tokens in (
        ("context", "that measured requests had as context", reuse.context_tokens),
        ("hit", "of these that were resident", reuse.hit_tokens),
    ):
        yield _counter(f"{name}_tokens_total", f"Tokens {what}", [({}, tokens)])
    yield from _operations(recorder)
    if window is not None:
        yield from _now(window)
        yield from _machine(window)


def _requests(recorder: Recorder, totals: Totals) -> Iterator[Family]:
    ended = (
        ({"class": qos.value, "outcome": outcome.value, "phase": phase.value}, count)
        for (phase, qos, outcome), count in totals.ended.items()
        if count or phase is Phase.MEASURE
    )
    yield _counter("requests_total", "Requests that ended, up to the latest window", ended)
    for name, counts in (("prompt", totals.prompt_tokens), ("output", totals.output_tokens)):
        yield _counter(
            f"{name}_tokens_total",
            f"{name.title()} tokens of requests that completed, up to the latest window",
            (
                ({"class": qos.value, "phase": phase.value}, count)
                for (phase, qos), count in counts.items()
                if count or phase is Phase.MEASURE
            ),
        )
    for name, what in (("response", "Answered after it was meant to be asked"), ("ttft", "TTFT")):
        yield _histogram(
            f"{name}_seconds",
            f"{what}: requests that completed in the measured window",
            (({"class": qos.value}, getattr(recorder.classes[qos], name)) for qos in Qos),
        )


def _operations(recorder: Recorder) -> Iterator[Family]:
    flows = dict(recorder.flows)
    counted: dict[tuple[Phase, Tier, OpKind, str], list[OpStats]] = {}
    for flow, stats in flows.items():
        key = flow.phase, flow.tier, flow.kind, str(flow.cause)
        counted.setdefault(key, []).append(stats)
    labelled = [
        ({**_side(tier, kind), "cause": cause, "phase": phase.value}, stats)
        for (phase, tier, kind, cause), stats in sorted(counted.items())
    ]
    for name, help_text, value in (
        ("operations_total", "Operations that ended well", lambda s: s.operations),
        ("bytes_total", "Bytes that system calls moved", lambda s: s.bytes),
        ("system_calls_total", "System calls that moved them", lambda s: s.calls),
    ):
        sums = ((labels, sum(map(value, stats))) for labels, stats in labelled)
        yield _counter(name, help_text, sums)
    failed = (
        ({**_side(f.tier, f.kind), "cause": str(f.cause), "reason": f.reason}, count)
        for f, count in dict(recorder.failures).items()
    )
    yield _counter("failed_operations_total", "Operations that failed", failed)
    yield _histogram(
        "operation_seconds",
        "Time of operations in all phases: device time for storage, all of it for memory",
        _latencies(flows),
    )


def _side(tier: Tier, kind: OpKind) -> dict[str, str]:
    return {"tier": tier.label, "operation": kind.value}


def _latencies(flows: Mapping[Flow, OpStats]) -> Iterator[tuple[Labels, Histogram]]:
    sides: dict[tuple[Tier, OpKind], list[Histogram]] = {}
    for flow, stats in flows.items():
        side = stats.device if flow.tier is Tier.NVME else stats.total
        sides.setdefault((flow.tier, flow.kind), []).append(side)
    for (tier, kind), histograms in sorted(sides.items()):
        yield _side(tier, kind), merged(histograms)


_GAUGES: Mapping[str, str] = {
    "users": "Synthetic users",
    "workers": "Requests that may be served at once",
    "in_flight": "Requests that are served",
    "queued": "Requests that wait",
    "behind": "Places of the write-behind queue that are taken",
}


def _now(window: Window) -> Iterator[Family]:
    """Return the latest window."""
    gauges = window.gauges
    yield _gauge("window_seconds", "Length of the latest window", window.seconds)
    yield _counter("requests_submitted_total", "Requests that came", [({}, gauges.submitted)])
    yield from _levels(gauges)
    if (level := window.saturation) is not None:
        yield _gauge(
            "saturation",
            "Load over what may be, by the signal that is nearest its limit; 1 is at the limit",
            level.level,
            by=level.by or "nothing",
        )
        yield _gauge("saturated", "Whether storage is saturated", int(level.saturated))
    percentiles = (
        ({**_side(tier, kind), "quantile": quantile}, ns / NS_PER_S)
        for (tier, kind), ops in sorted(window.ops.items())
        for quantile, ns in (
            ("0.5", ops.latency.p50_ns),
            ("0.95", ops.latency.p95_ns),
            ("0.99", ops.latency.p99_ns),
        )
        if ns is not None
    )
    help_text = "Percentiles of the latest window; device time for storage"
    yield Family("window_operation_seconds", "gauge", help_text, tuple(percentiles))


def _levels(gauges: Gauges) -> Iterator[Family]:
    for name, help_text in _GAUGES.items():
        value = getattr(gauges, name)
        if value is not None:
            yield _gauge(name, help_text, value)
    oldest_s = gauges.oldest_queued_ns / NS_PER_S
    yield _gauge("oldest_queued_seconds", "Age of the request that has waited longest", oldest_s)


def _machine(window: Window) -> Iterator[Family]:
    """Return what the kernel says of the time of the window; unknown ones are left out."""
    for name, value in window.machine.items():
        if isinstance(value, int | float):
            yield _gauge(f"machine_{name}", f"{name} of the window, see docs/metrics.md", value)


def _gauge(name: str, help_text: str, value: float, /, **labels: str) -> Family:
    return Family(name, "gauge", help_text, ((labels, value),))


def _counter(name: str, help_text: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "counter", help_text, tuple(samples))


def _histogram(name: str, help_text: str, histograms: Iterable[tuple[Labels, Histogram]]) -> Family:
    return Family(name, "histogram", help_text, histograms=tuple(histograms))
