"""The reference's keys of a run that only wrote a trace of its operations (`--io-trace-log`).

No byte is moved then, so its result may not hold a bandwidth or a latency where the reference's
readers look for one.
"""

from typing import Any

from kv_cache.result.counted import LISTS
from kv_cache.result.reference import LATENCIES

_NUMBERS = (
    "total_storage_io_latency", "total_generation_latency", "avg_latency_ms", "p99_latency_ms",
    "throughput_req_per_sec", "storage_throughput_mbps",
)  # fmt: skip
_SUMMARY = (
    "avg_throughput_tokens_per_sec", "total_storage_io_time", "storage_throughput_tokens_per_sec",
    "requests_per_second", "slo_attainment",
)  # fmt: skip
_FIGURES = ("_ms", "_bandwidth_gbps", "_iops", "_per_sec")


def without_figures(document: dict[str, Any]) -> None:
    """Take every rate and latency out of the reference's keys: null, and empty lists."""
    document |= {name: [] for name in (*LISTS, "throughput_timeline")}
    document |= dict.fromkeys(_NUMBERS)
    if "summary" not in document:  # no request completed
        return
    summary = document["summary"]
    summary |= dict.fromkeys(_SUMMARY)
    for name in LATENCIES:
        summary[name] = dict.fromkeys(summary[name])
    decisions = [*summary["autoscaling_stats"], summary["autoscaling_summary"] or {}]
    for row in (summary["cache_stats"], *decisions):
        row |= {name: None for name in row if name.endswith(_FIGURES)}
    for numbers in summary["qos_metrics"].values():
        if "sla" in numbers:  # a class with requests
            numbers["latency_ms"] = dict.fromkeys(numbers["latency_ms"])
            numbers["sla"] |= dict.fromkeys(("actual_p95_ms", "compliance", "met"))
