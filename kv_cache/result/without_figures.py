"""The reference's keys of a run that only wrote a trace of its operations (`--io-trace-log`).

No byte is moved then, so its result may not hold a bandwidth or a latency where the reference's
readers look for one.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

_LISTS = (
    "end_to_end_latencies", "storage_latencies", "generation_latencies", "throughput_timeline",
    "prefill_latencies", "decode_latencies",
)  # fmt: skip
_NUMBERS = (
    "total_storage_io_latency", "total_generation_latency", "avg_latency_ms", "p99_latency_ms",
    "throughput_req_per_sec", "storage_throughput_mbps",
)  # fmt: skip
_SUMMARY = (
    "avg_throughput_tokens_per_sec", "total_storage_io_time", "storage_throughput_tokens_per_sec",
    "requests_per_second", "slo_attainment",
)  # fmt: skip
_FIGURES = ("_ms", "_bandwidth_gbps", "_iops", "_per_sec")
_LATENCIES = ("end_to_end_latency_ms", "storage_io_latency_ms", "generation_latency_ms")


def without_figures(document: MutableMapping[str, Any]) -> None:
    """Take every rate and latency out of the reference's keys: null, and empty lists."""
    for name in _LISTS:
        document[name] = []
    for holder, name in _places(document):
        holder[name] = None


def _places(document: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield (mapping, key) of each number that would be performance."""
    yield from _present(document, _NUMBERS)
    summary = document.get("summary")
    if not isinstance(summary, Mapping):
        return
    yield from _present(summary, _SUMMARY)
    for name in _LATENCIES:
        yield from _all(summary.get(name))
    stats = summary.get("cache_stats")
    if isinstance(stats, Mapping):
        for name in stats:
            if name.endswith(_FIGURES):
                yield stats, name
    for decision in _decisions(summary):
        for name in decision:
            if name.endswith(_FIGURES):
                yield decision, name
    classes = summary.get("qos_metrics")
    for numbers in classes.values() if isinstance(classes, Mapping) else ():
        if isinstance(numbers, Mapping):
            yield from _all(numbers.get("latency_ms"))
            sla = numbers.get("sla")
            if isinstance(sla, Mapping):
                yield from _present(sla, ("actual_p95_ms", "compliance", "met"))


def _present(holder: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    return ((holder, name) for name in names if name in holder)


def _all(holder: object) -> Iterator[tuple[Any, str]]:
    return ((holder, name) for name in (holder if isinstance(holder, Mapping) else ()))


def _decisions(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the autoscaler's decisions and their summary."""
    rows = summary.get("autoscaling_stats")
    decisions = [*(rows if isinstance(rows, list) else ()), summary.get("autoscaling_summary")]
    return [row for row in decisions if isinstance(row, Mapping)]
