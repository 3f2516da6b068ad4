"""What watchers of a run are shown: from the text of two scrapes."""

import pytest

from kv_cache.core.kinds import OpKind, Phase, Qos
from kv_cache.core.units import GIB
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.exposition import (
    about,
    exposition,
    kept,
    measured,
    planned,
    speaking_against,
)
from kv_cache.metrics.passport import RULES, SO_FAR, reasons_so_far
from kv_cache.metrics.slo import Slo
from kv_cache.web.live import Scrape, findings, numbers, parse, probes
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


def test_what_the_passport_finds_is_said_in_comments_and_counted_by_rule() -> None:
    """The sentence changes with its figures, and a series with its labels would begin anew."""
    stack = {"feet": [{"name": "zram0", "kind": "ram", "reason": "two\nlines",
                       "path": ["ext4 /m", "zram0"]}]}  # fmt: skip
    against = reasons_so_far(Evidence({"driver": "real-io", "stack": stack}), Thresholds())
    assert {finding.rule for finding in against} >= {"V27"}
    text = speaking_against(against)
    assert 'kv_cache_passport_finding{rule="V27",status="invalid"} 1\n' in text
    samples = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families(text)
    assert [family.name for family in samples] == ["kv_cache_passport_finding"]
    look = Scrape(1.0, parse(text), findings(text))
    so_far = numbers(look, None, 0.0)["so_far"]
    assert [line for line in so_far if line.startswith("invalid: V27 memory under the storage:")]
    assert all("\n" not in line for line in so_far)


def test_rules_that_wait_for_the_end_are_named_and_all_others_are_looked_at() -> None:
    waiting = numbers(scrape(1.0), None, 0.0)["waiting"]
    assert {line.partition(" ")[0] for line in waiting} == RULES.keys() - set(SO_FAR)


def test_loads_that_a_search_tried_are_read_out_of_its_log() -> None:
    lines = ["INFO probe 1/12: 10 users: inside", "INFO probe 2/12: 0.1 requests/s: outside",
             "probe 3/12: 20 users: 40 %", "WARNING others"]  # fmt: skip
    first, second = probes(lines)
    assert first == {"number": 1, "most": 12, "load": 10.0, "unit": "users", "inside": True}
    assert (second["load"], second["unit"], second["inside"]) == (0.1, "requests/s", False)


def test_a_run_without_findings_says_nothing() -> None:
    assert speaking_against([]) == ""


def test_labels_with_quotes_are_read() -> None:
    assert scrape(0.0).word("run_info", "model") == 'a \\"quoted\\" \\\\ name'
