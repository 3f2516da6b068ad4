"""A percentile that is only a lower bound is listed beside the others, and shown with a sign."""

from typing import Any

from kv_cache.core.units import AT_LEAST, NS_PER_MS
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.summary import latency_ms, reference_ms, slos_met
from kv_cache.result.metrics import METRICS
from kv_cache.result.published import Percentiles
from kv_cache.result.run import converted
from kv_cache.view.latency import ms_text, percentile_cell, percentile_cells


def hung() -> Histogram:
    """A thousand reads of 1 to 1.5 ms, and sixty that the device had not answered for 5 s."""
    histogram = Histogram()
    for number in range(1000):
        histogram.add(NS_PER_MS + 500 * number)
    for _ in range(60):
        histogram.add_in_flight(5000 * NS_PER_MS)
    return histogram


def test_lower_bounds_are_listed_and_the_reference_has_the_same_numbers() -> None:
    told = latency_ms(hung())
    assert told["at_least"] == ["p95", "p99"]
    assert (told["p95"], told["p99"]) == (5000, 5000)
    assert told["p50"] < 1.5
    assert told["p999"] is None
    reference = reference_ms(hung())
    assert reference["p99"] == reference["p9999"] == 5000
    assert "at_least" not in reference
    young = hung()
    young.in_flight = None
    assert "at_least" not in latency_ms(young)


def test_people_see_a_sign_before_a_lower_bound() -> None:
    row: dict[str, Any] = {"device_ms": latency_ms(hung()), "operations": 1000}
    latency = converted(row["device_ms"], Percentiles, "")
    assert ms_text(latency, "p99") == percentile_cell(latency, "p99") == f"{AT_LEAST}5,000"
    assert not ms_text(latency, "p50").startswith(AT_LEAST)
    assert isinstance(percentile_cell(latency, "p50"), float)
    assert percentile_cells(hung(), (99, 99.99)) == [f"{AT_LEAST}5,000", None]
    own = {"tiers": {"storage": {"read": row}}}
    assert METRICS["storage.read.device_ms.p95"].shown_in(own) == f"{AT_LEAST}5,000"
    assert not METRICS["storage.read.device_ms.p50"].shown_in(own).startswith(AT_LEAST)


def test_who_waits_for_longer_than_was_promised_has_been_let_down() -> None:
    kept = slos_met(hung(), {"p95": 10.0})["p95"]
    assert (kept["within"], kept["requests"]) == (1000, 1060)
