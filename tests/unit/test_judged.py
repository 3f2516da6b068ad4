"""What is judged of a run's numbers: the reference's criteria, SLOs, and which latency is told."""

from math import log
from statistics import stdev
from typing import Any

import pytest

from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.intervals import series_inflation
from kv_cache.metrics.summary import slos_met
from kv_cache.result.comparison import widened
from kv_cache.result.published import published
from kv_cache.result.reference import health
from kv_cache.result.run import OperationLedger
from kv_cache.view.run import tier_table


@pytest.mark.parametrize(
    ("hit_rate", "real", "status"),
    [(0.5, True, "PASS"), (0.1, True, "FAIL"), (None, True, "FAIL"), (0.5, False, "FAIL")],
)
def test_the_references_criteria_pass_if_there_are_any_and_all_are_met(
    hit_rate: float | None, real: bool, status: str
) -> None:
    judged = health(OperationLedger([]), {}, hit_rate, "latency", real=real)
    assert judged["overall_status"] == status
    assert judged["total_count"] == len(judged["criteria"]) == (real and hit_rate is not None)


@pytest.mark.parametrize(
    ("fast", "slow", "met"), [(1000, 0, True), (0, 1000, False), (900, 100, False), (19, 1, None)]
)
def test_an_slo_is_met_or_missed_where_enough_requests_say_so(
    fast: int, slow: int, met: bool | None
) -> None:
    histogram = Histogram()
    for ms, count in ((1, fast), (100, slow)):
        for _ in range(count):
            histogram.add(ms * NS_PER_MS)
    kept = slos_met(histogram, {"p95": 10.0})["p95"]
    assert (kept["requests"], kept["within"]) == (fast + slow, fast)
    assert kept["met"] is met


def test_the_summary_has_device_times_of_storage_and_total_times_of_memory() -> None:
    def row(device: float, total: float) -> dict[str, Any]:
        times = (("device_ms", device), ("total_ms", total))
        return {
            "bytes_per_second": 0.0, "bytes": 0, "operations": 5,
            **{name: dict.fromkeys(("p50", "p95", "p99"), ms) for name, ms in times},
        }  # fmt: skip

    tier = {"store": {"engine": "x"}, "read": row(1.25, 7.75), "write": row(1.25, 7.75)}
    passport = {"verdict": "valid", "reasons": []}
    own = {"schema": "kv-cache-result/9", "passport": passport}
    memory = tier_table(published({**own, "tiers": {"cpu": tier}})).cells()
    storage = tier_table(published({**own, "tiers": {"storage": tier}})).cells()
    assert all("7.75" in row and "1.25" not in row for row in memory)
    assert all("1.25" in row and "7.75" not in row for row in storage)


def test_batches_of_a_comparison_are_as_far_apart_as_their_dependence_asks() -> None:
    known = [1.0, 1.1, 1.2, 1.25, 1.2, 1.05, 1.0, 0.95, 0.9, 1.0]
    factor = series_inflation(known)
    assert factor > 1.2
    spread = [stdev(map(log, values)) for values in (widened(known), known)]
    assert spread[0] == pytest.approx(factor * spread[1])
