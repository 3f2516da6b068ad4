"""What watchers of a run are shown: from the text of two scrapes."""

from kv_cache.core.kinds import OpKind, Phase, Qos
from kv_cache.core.units import GIB
from kv_cache.metrics.exposition import about, exposition, kept, measured, planned
from kv_cache.metrics.slo import Slo
from kv_cache.web.live import Scrape, numbers, parse
from tests.unit.test_endpoint import recorded

SLO = Slo(qos=Qos.BATCH, percent=95, limit_ns=10_000_000)


def scrape(at_s: float, more: str = "") -> Scrape:
    recorder, meter = recorded()
    lengths = {Phase.MEASURE: 60.0, Phase.WARMUP: None}
    text = exposition([
        *about({"model": 'a "quoted" \\ name'}, "measure"), *planned(lengths, [SLO]),
        kept(recorder, [SLO]), *measured(recorder, meter.totals, None),
    ])  # fmt: skip
    return Scrape(at_s, {**parse(text), **parse(more)})


def test_a_second_is_the_difference_of_two_looks() -> None:
    labels = '{tier="storage",operation="read",cause="reuse",phase="measure"}'
    before = scrape(10.0)
    later = scrape(12.0, f"kv_cache_bytes_total{labels} {4 * GIB}\n")
    now = numbers(later, before, phase_s=20.0)
    assert now["tiers"]["storage"][f"{OpKind.READ}_gib_s"] == 2.0
    assert (now["phase"], now["planned_s"], now["left_s"]) == ("measure", 60.0, 40.0)


def test_the_first_look_has_no_rates() -> None:
    assert numbers(scrape(1.0), None, 0.0)["tiers"] == {}


def test_an_slo_is_judged_once_enough_have_answered() -> None:
    (slo,) = numbers(scrape(1.0), None, 0.0)["slos"]
    assert (slo["name"], slo["limit_ms"], slo["answers"]) == ("batch response p95", 10.0, 1)
    assert (slo["share"], slo["kept"]) == (1.0, None)
    labels = '{class="batch",measure="response",quantile="0.95"}'
    more = (
        f'kv_cache_response_seconds_count{{class="batch"}} 40\nkv_cache_slo_within_total{labels} 30'
    )
    now = numbers(scrape(1.0, more), None, 0.0)
    assert now["slos"][0]["kept"] is False
    assert "SLO batch response p95 missed: 75.0 % within the limit" in now["so_far"]


def test_what_failed_counts_against_the_run() -> None:
    more = 'kv_cache_requests_total{class="batch",outcome="failed",phase="measure"} 2\n'
    assert "2 requests failed" in numbers(scrape(1.0, more), None, 0.0)["so_far"]


def test_labels_with_quotes_are_read() -> None:
    assert scrape(0.0).word("run_info", "model") == 'a \\"quoted\\" \\\\ name'
