"""What is told of simulations: facts, verdicts, tables, the event log, the page and the picture."""

import csv
import io
import json
import random
from array import array
from collections import Counter
from dataclasses import fields
from importlib.util import find_spec
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.queues import is_claimed, judged
from kv_cache.config.scenario import JUDGED_BY, Scenario
from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.files.cluster_events import LINES, EventLog
from kv_cache.files.cluster_tables import RUNS_MARK, ColumnsFile, runs_csv
from kv_cache.metrics.histogram import RELATIVE_ERROR, bucket_of
from kv_cache.metrics.intervals import interval_beside_mean
from kv_cache.result.chain import check
from kv_cache.result.metrics import ends
from kv_cache.result.simulation.document import variant_row
from kv_cache.result.simulation.facts import (
    RunFacts,
    SimRun,
    SimSeries,
    grid_of,
    means_on,
    peaks_on,
    rates_on,
)
from kv_cache.result.simulation.judge import verdict, warnings
from kv_cache.result.simulation.limits import NOT_MODELLED
from kv_cache.result.simulation.measures import (
    GOODPUT,
    HIT_RATIO,
    JUDGED,
    TTFT,
    TTFT_WITH_TRANSFER,
)
from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.facts import facts, instance_columns, series_columns, spread_ms
from kv_cache.sim.cluster.outcome import (
    Blocks,
    ClusterOutcome,
    ClusterSeries,
    ClusterTierFacts,
    Instances,
    LinkFacts,
    Requests,
)
from kv_cache.sim.cluster.stretches import stretch_values
from kv_cache.view.page import page
from kv_cache.view.parts import Figure, Scale, Table, View
from kv_cache.view.picture.plot import draw
from kv_cache.view.simulation import sim_view
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view
from tests.cli import ROOT
from tests.outcomes import MS, document, outcome

P95 = TTFT[1].path

# --- facts -----------------------------------------------------------------------------------


@given(values=st.lists(st.integers(0, 10**15), min_size=1, max_size=300))
def test_percentiles_are_exact_by_nearest_rank(values: list[int]) -> None:
    found = spread_ms(array("q", values))
    ranked = sorted(values)
    for name, percent in (("p50", 500), ("p90", 900), ("p95", 950), ("p99", 990), ("p999", 999)):
        rank = max(1, -(-percent * len(values) // 1000))
        enough = len(values) * (1000 - percent) >= 10_000
        assert found[name] == (ranked[rank - 1] / MS if enough else None)
    assert found["max"] == ranked[-1] / MS
    assert found["count"] == len(values)


@given(gaps=st.lists(st.integers(1, 10**11), min_size=1, max_size=200))
def test_gaps_between_tokens_are_within_their_buckets(gaps: list[int]) -> None:
    made = outcome()
    made.itl_parts = [Counter(map(bucket_of, gaps))]
    found, ranked = facts(made)["itl_ms"], sorted(gaps)
    assert found["count"] == len(gaps)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        exact = ranked[ceil(share * len(gaps)) - 1] / MS
        enough = len(gaps) * round(100 * (1 - share)) >= 1000
        known = pytest.approx(exact, rel=2 * RELATIVE_ERROR) if enough else None
        assert found[name] == known
    assert found["mean"] == pytest.approx(sum(gaps) / len(gaps) / MS, rel=2 * RELATIVE_ERROR)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    found = facts(outcome(requests=40))
    assert found["ttft_ms"]["count"] == 40
    assert found["tpot_ms"]["count"] == 36
    assert found["tpot_ms"]["p50"] == 10.0


def test_hits_of_all_tiers_and_misses_are_what_was_looked_up() -> None:
    blocks = facts(outcome())["blocks"]
    assert sum(blocks["hits"].values()) == blocks["hit"] == 600
    assert blocks["hit"] + blocks["missed"] == blocks["looked_up"]
    assert blocks["ceiling"] + blocks["compulsory"] == blocks["looked_up"]
    assert blocks["hit_ratios"] == {"hbm": 0.5, "nvme": 0.1}
    assert (blocks["hit_ratio"], blocks["ceiling_ratio"]) == (0.6, 0.7)
    assert blocks["compulsory_of_missed"] == 0.75


def test_goodput_counts_what_was_lost_as_not_kept() -> None:
    found = facts(outcome(requests=40, slower=0.5))["goodput"]
    assert (found["good"], found["per_s"]) == (40, 40.0)
    assert found["share"] == 40 / 42
    assert found["slo"] == {"ttft_ms": 120.0}


def test_without_a_promise_there_is_no_goodput() -> None:
    found = facts(outcome(promised=False))["goodput"]
    assert found == {"slo": {}, "good": None, "per_s": None, "share": None}


def test_skew_and_activity_are_those_of_the_worst_role() -> None:
    made = outcome(instances=8)
    every = made.instances
    every.role = ["prefill"] * 4 + ["decode"] * 4
    every.requests = array("q", [10, 10, 10, 10, 40, 0, 0, 0])
    found = facts(made)["instances"]
    assert (found["skew"], found["active_share"]) == (4.0, 0.25)
    assert found["active"] == 5
    assert found["roles"]["prefill"]["skew"] == 1.0


def test_bytes_and_busy_time_are_told_by_kind_of_link_and_by_cause() -> None:
    found = facts(outcome())
    assert found["bytes_by_cause"] == {"load": 6 * 10**9, "offload": 10**9}
    pcie = found["links"]["pcie"]
    assert (pcie["bytes"], pcie["utilisation"], pcie["busiest_utilisation"]) == (4e9, 0.1, 0.3)


def test_a_simulation_of_nothing_has_no_numbers_and_is_strict_json() -> None:
    nothing = ClusterOutcome(
        scenario=Scenario(), requests=Requests(), blocks=Blocks(), tiers=[], links=[],
        instances=Instances(), series=ClusterSeries(),
    )  # fmt: skip
    found = facts(nothing)
    assert found["ttft_ms"]["p50"] is found["itl_ms"]["p50"] is found["blocks"]["hit_ratio"] is None
    assert found["rates"]["finished_per_s"] is found["instances"]["skew"] is None
    json.loads(orjson.dumps(found), parse_constant=_refuse)


def _refuse(text: str) -> None:
    raise AssertionError(text)


def test_every_counter_of_an_outcome_is_told() -> None:
    """A counter that is added to an outcome has to be told, or left out on purpose here."""
    made = outcome()
    found, samples = facts(made), {f.name for f in fields(Requests)}
    assert {f.name for f in fields(ClusterTierFacts)} - {"name"} == set(found["tiers"]["hbm"]) - {
        "not_admitted_why"
    }
    assert {f.name for f in fields(LinkFacts)} - {"kind"} - set(found["links"]["pcie"]) == {
        "busy_ns", "busiest_ns", "wait_buckets", "wait_ns", "longest_queue",  # as shares, spreads
    }  # fmt: skip
    assert {f.name for f in fields(Blocks)} <= set(found["blocks"])
    assert {f.name for f in fields(Instances)} == set(instance_columns(made))
    assert set(made.series.columns) == set(series_columns(made.series))
    with_reach = set(found["requests"]) | {"good"}
    assert {name for name in samples if isinstance(getattr(made.requests, name), int)} <= with_reach
    assert {f.name for f in fields(ClusterOutcome)} - set(found) == {
        "scenario", "itl_parts", "series",  # as itl_ms, levels, columns, or beside
    }  # fmt: skip


# --- the document ----------------------------------------------------------------------------


def test_the_document_is_strict_json_with_an_intact_chain() -> None:
    made = document()
    read = json.loads(as_json(made), parse_constant=_refuse)
    assert check(read, {}) == []
    own = read["kv_cache"]
    assert own["schema"] == "kv-cache-sim/2"
    assert (own["status"], own["seeds"], own["varied"]) == (
        "finished", [0, 1, 2], ["network.jitter_cv"],
    )  # fmt: skip
    assert own["not_modelled"] == list(NOT_MODELLED)
    assert [len(variant["runs"]) for variant in own["variants"]] == [3, 3]


def test_columns_stand_in_the_first_run_of_each_variant() -> None:
    for variant in document()["kv_cache"]["variants"]:
        assert [run["series"] is not None for run in variant["runs"]] == [True, False, False]
        assert len(variant["runs"][0]["instances"]["busy_ns"]) == 4


def test_a_counter_that_a_run_never_touched_is_0_and_what_it_cannot_tell_has_no_interval() -> None:
    runs: list[dict[str, Any]] = [
        {"facts": {"why": {"queue full": 3}, "p50": 1.0, "n": 1}},
        {"facts": {"why": {}, "p50": None, "n": 3}},
    ]
    numbers = variant_row(1, "", {}, {}, runs)["numbers"]
    assert numbers["why.queue full"]["values"] == [3, 0]
    assert numbers["p50"] == {"values": [1.0, None], "mean": 1.0, "interval": None}
    assert numbers["n"]["interval"]["low"] < 2 < numbers["n"]["interval"]["high"]


def test_the_reference_says_what_is_not_modelled_as_the_result_does() -> None:
    said = (ROOT / "docs" / "reference" / "sim.md").read_text()
    assert [line[2:] for line in said.splitlines() if line[2:] in NOT_MODELLED] == [*NOT_MODELLED]


# --- the verdict -----------------------------------------------------------------------------


def with_reach(**given: Any) -> Any:
    return document(**given)["kv_cache"]["verdict"]


def test_the_best_is_named_where_intervals_lie_apart() -> None:
    found = with_reach(slower=(2.0, 1.0, 3.0), promised=False, requests=2000)
    assert (found["by"], found["best"]) == (P95, 2)
    assert found["message"].startswith("best by TTFT p95 is variant 2 (slower=1.0): 118")
    assert found["measures"][HIT_RATIO.path]["best"] is None


def with_values(*variants: list[float], path: str = P95, stretches: bool = False) -> Any:
    """The verdict on variants with these values of one number in each seed, or in each stretch of a
    trace that all seeds ask."""
    made = document(slower=(2.0, 1.0, 3.0), promised=False, requests=2000)["kv_cache"]["variants"]
    for variant, values in zip(made, variants, strict=True):
        if stretches:
            variant["scenario"] = {"workload": {"source": "trace"}}
            variant["runs"] = [{**variant["runs"][0], "stretches": {path: values}}]
        variant["numbers"][path] |= {"values": values, "mean": fmean(values)}
    return verdict(made, ["slower"])


def test_what_chance_moves_alike_in_all_variants_hides_no_difference() -> None:
    """The means of the seeds are far apart; the variants differ by the same in each."""
    found = with_values([400.0, 700.0, 900.0], [390.1, 690.0, 889.9], [500.0, 800.1, 1000.0])
    assert found["best"] == 2
    assert "better than the next by 10±" in found["message"]
    lead = found["measures"][P95]["leads"]["1"]
    assert lead["mean"] == pytest.approx(10)
    assert 0 < lead["interval"]["low"] < 10 < lead["interval"]["high"]
    assert lead["shown"]


def test_nobody_is_best_where_a_difference_may_be_chance() -> None:
    found = with_values([400.0, 700.0, 900.0], [480.0, 650.0, 840.0], [1400.0, 1701.0, 1900.0])
    assert found["best"] is None
    assert "variant 1 is not shown to be worse; variant 3 is worse" in found["message"]
    assert found["measures"][P95]["first"] == 2


def test_one_and_two_seeds_are_too_few() -> None:
    assert "1 seed is fewer than 3" in with_reach(seeds=1)["message"]
    assert "2 seeds are fewer than 3" in with_reach(seeds=2)["message"]
    assert with_reach(seeds=2, requests=200)["measures"][P95]["best"] is None


def test_a_trace_is_judged_by_its_stretches_and_not_by_its_one_number() -> None:
    rng = random.Random(4)
    base = [rng.uniform(300, 900) for _ in range(20)]
    faster, chance = ([x - 50 + rng.uniform(-9, 9) for x in base], [*base[1:], base[0]])
    found = with_values(base, faster, [x + 200 for x in base], stretches=True)
    assert found["best"] == 2
    assert "in 20 stretches of the trace" in found["message"]
    found = with_values(base, chance, [x + 200 for x in base], stretches=True)
    assert found["best"] is None
    assert found["measures"][P95]["leads"]["3"]["shown"]


def test_stretches_that_drift_are_too_few_to_tell_anything() -> None:
    """Differences that climb, and times that climb themselves."""
    rng = random.Random(4)
    base = [rng.uniform(3000, 9000) for _ in range(20)]
    by_turns = [[x + each * n for n, x in enumerate(base)] for each in (0, 10, 20)]
    found = with_values(*by_turns, stretches=True)
    assert found["best"] is None
    assert "too few of the 20 are independent; ask more of it" in found["message"]
    climbing = [
        [400.0 + 10 * n + rng.uniform(-9, 9) + each for n in range(20)] for each in range(3)
    ]
    found = with_values(*climbing, stretches=True)
    assert found["best"] is None
    assert "of variants 1, 2 and 3 it follows one swing along the trace" in found["message"]


def test_equal_variants_of_which_more_is_asked_than_they_serve_are_not_told_apart() -> None:
    """What finishes a second had one number, the end, in each stretch alike; waits of a queue that
    only grows have the chance of its beginning in all of them."""
    for seed in range(3):
        found = judged(1.5, seed)
        assert not [name for name, each in found.items() if is_claimed(each)]
        assert found["rates.finished_per_s"]["leads"]
        assert "it follows one swing along the trace" in found["ttft_ms.p50"]["message"]


@pytest.mark.parametrize(
    ("of_each", "why"),
    [
        ([{"trace": "a.jsonl"}, {"trace": "b.jsonl"}], "the variants ask by different traces"),
        ([{"requests": 200}, {"requests": 400}], "the variants ask different parts of the trace"),
    ],
)
def test_stretches_of_different_rows_are_no_pairs(of_each: list[dict[str, Any]], why: str) -> None:
    made = document(slower=(1.0, 1.0), promised=False, requests=2000)["kv_cache"]["variants"]
    for least, variant, work in zip((100.0, 300.0), made, of_each, strict=True):
        variant["scenario"] = {"workload": {"source": "trace", **work}}
        for run in variant["runs"]:
            run["stretches"] = {P95: [least + number for number in range(20)]}
    found = verdict(made, ["workload"])
    assert found["best"] is None
    assert why in found["message"]


def test_a_trace_that_is_too_short_for_stretches_has_no_verdict() -> None:
    made = document(slower=(2.0, 1.0), promised=False, requests=2000)["kv_cache"]["variants"]
    for variant in made:
        variant["scenario"] = {"workload": {"source": "trace"}}
    found = verdict(made, ["slower"])
    assert found["best"] is None
    assert "variants 1 and 2 have too few values of it in each of 20 stretches" in found["message"]
    many = [{**made[n % 2], "variant": n + 1} for n in range(7)]
    assert ": 7 variants have too few values" in verdict(many, ["slower"])["message"]


def test_stretches_of_a_run_have_its_shares_and_rates_as_their_means() -> None:
    made = outcome(requests=600)
    every = made.requests
    rng = random.Random(6)
    every.arrival_ns = array("q", sorted(rng.randrange(made.ended_ns) for _ in every.number))
    made.began_ns = every.arrival_ns[0]
    known, numbers = stretch_values(made), facts(made)
    assert len(known["ttft_ms.p50"]) == 40
    assert len(known["ttft_ms.p95"]) == len(every.number) // 20
    assert "ttft_ms.p99" not in known
    for path in ("rates.output_tokens_per_s", "rates.finished_per_s"):
        name = path.partition(".")[2]
        assert fmean(known[path]) == pytest.approx(numbers["rates"][name])
    assert fmean(known["goodput.share"]) == pytest.approx(numbers["goodput"]["share"])


@pytest.mark.parametrize("arrivals", [3, 41, 100, 1000])
def test_times_between_tokens_have_parts_of_as_many_arrivals(arrivals: int) -> None:
    counts = ClusterCounts()
    for number in range(arrivals):
        counts.begin_part()
        counts.gaps[MS * (number + 1)] += 1
    counts.fold_gaps()
    sizes = [part.total() for part in counts.itl_parts]
    assert sum(sizes) == arrivals
    assert len(sizes) == arrivals if arrivals <= 40 else 20 < len(sizes) <= 40
    assert set(sizes[:-1]) == {max(sizes)}
    assert sizes[-1] <= sizes[0]
    firsts = [min(part) for part in counts.itl_parts]
    assert firsts == sorted(firsts)


def test_times_between_tokens_are_judged_on_a_trace() -> None:
    made = outcome(requests=600)
    made.requests.measured_arrived = 81
    parts = [Counter({bucket_of(MS * (n + 1)): 2000}) for n in range(20)]
    made.itl_parts = [*parts, Counter({bucket_of(20 * MS): 5})]
    known = stretch_values(made)
    assert known["itl_ms.p50"] == pytest.approx([n + 1 for n in range(20)], rel=0.002)
    assert len(known["itl_ms.p99"]) == 20
    made.itl_parts = parts[:10]
    assert "itl_ms.p50" not in stretch_values(made)


def test_one_variant_has_nothing_to_be_compared_with() -> None:
    assert (
        with_reach(slower=(1.0,))["message"] == "there is one variant: nothing to compare it with"
    )


def test_there_is_no_order_where_most_instances_were_idle() -> None:
    made = document(only=1, requests=2000)["kv_cache"]
    assert made["verdict"]["best"] is None
    assert "only 25 % of the instances" in made["verdict"]["message"]
    assert any("4.0 times the mean" in text for text in made["warnings"])


def test_caches_have_no_order_where_nearly_every_miss_is_a_first_access() -> None:
    given = {"slower": (1.0, 3.0), "requests": 2000, "promised": False, "hits": 600}
    of_caches = with_reach(varied="tiers.nvme.eviction", **given)
    assert of_caches["best"] is None
    assert "100.0 % of the worst one's misses are first accesses" in of_caches["message"]
    others = with_reach(varied="network.jitter_cv", **given)
    assert others["best"] == 1
    assert others["measures"][HIT_RATIO.path]["best"] is None


def test_latencies_have_no_order_where_requests_are_missing_among_them() -> None:
    """A fifth of the requests were rejected or aborted: who keeps them waits longer."""
    found = with_reach(slower=(1.0, 3.0), requests=200, lost=50, promised=False, seeds=5)
    assert found["by"] == "rates.finished_per_s"
    assert "20.0 % of the requests were rejected or aborted" in found["measures"][P95]["message"]
    assert found["measures"][P95]["best"] is None


def test_what_is_the_same_everywhere_is_said_to_be() -> None:
    assert with_reach(slower=(1.0, 1.0), requests=2000)["message"].startswith(
        "all variants have the same goodput: "
    )


def test_where_nothing_is_computed_hits_are_compared_and_latencies_are_not() -> None:
    """A miss takes no time there and a hit that is loaded does: who finds least is the fastest."""
    variants = document(slower=(1.0, 3.0), requests=2000, promised=False)["kv_cache"]["variants"]
    assert verdict(variants, [])["by"] == P95
    for variant in variants:
        variant["numbers"]["instances.utilisation"]["mean"] = 0.0
    assert verdict(variants, [])["by"] == P95, "they find the same"
    variants[0]["numbers"][HIT_RATIO.path]["mean"] += 0.02
    found = verdict(variants, [])
    assert found["by"] == HIT_RATIO.path
    for path in (P95, "rates.finished_per_s"):
        assert "a miss takes no time" in found["measures"][path]["message"]
        assert found["measures"][path]["best"] is None


def test_a_promise_is_no_measure_where_misses_take_no_time() -> None:
    variants = document(slower=(1.0, 3.0), requests=2000)["kv_cache"]["variants"]
    for number, variant in enumerate(variants):
        variant["numbers"]["instances.utilisation"]["mean"] = 0.0
        variant["numbers"][HIT_RATIO.path]["mean"] = 0.5 + 0.1 * number
    assert verdict(variants, [])["by"] == HIT_RATIO.path


def test_where_nothing_takes_time_hits_are_what_is_compared() -> None:
    assert with_reach(slower=(0.0, 0.0), requests=2000, promised=False)["by"] == HIT_RATIO.path


def test_a_verdict_goes_by_the_number_that_the_scenario_names() -> None:
    variants = document(slower=(2.0, 1.0, 3.0), requests=2000)["kv_cache"]["variants"]
    assert verdict(variants, [])["by"] == GOODPUT.path
    for variant in variants:
        variant["scenario"]["judged_by"] = TTFT_WITH_TRANSFER[0].path
    found = verdict(variants, [])
    assert (found["by"], found["best"]) == ("ttft_with_transfer_ms.p50", 2)
    assert found["message"].startswith("best by TTFT with transfer p50 is variant 2")
    assert GOODPUT.path in found["measures"]


def test_a_scenario_may_name_each_number_that_variants_are_judged_by() -> None:
    numbers = document(requests=2000)["kv_cache"]["variants"][0]["numbers"]
    assert set(JUDGED) == set(JUDGED_BY) <= set(numbers)


def test_a_variant_without_a_number_keeps_all_from_being_ranked() -> None:
    variants = document(requests=2000, promised=False)["kv_cache"]["variants"]
    variants[0]["numbers"][P95]["values"][1] = None
    assert "variant 1 has too few values of it" in verdict(variants, [])["message"]


def test_a_warning_names_the_variants_that_it_is_of() -> None:
    variants = document(requests=2000)["kv_cache"]["variants"]
    variants[1]["numbers"]["instances.skew"]["mean"] = 2.5
    assert warnings(variants) == [
        "the window is short",
        (
            "variant 2: requests are skewed: one instance had 2.5 times the mean of its role (a "
            "warning from 2 on)"
        ),
    ]


# --- text and tables -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(9.0, 11.0, "10±1"), (10.0, 10.0, "10"), (9.98, 10.02, "10±0.02"), (9.999, 10.001, "10"),
     (8.7654, 11.2346, "10±1.2")],
)  # fmt: skip
def test_an_interval_has_two_figures(low: float, high: float, shown: str) -> None:
    assert TTFT[0].with_reach({"mean": 10.0, "interval": {"low": low, "high": high}}) == shown


def test_where_the_interval_says_nothing_of_the_mean_the_seeds_stand_there() -> None:
    values = [0.01, 0.02, 7.077]  # of three seeds one met a queue
    interval = interval_beside_mean(values)
    assert interval is not None
    assert interval.high > 800
    row = {"values": values, "mean": fmean(values), "interval": ends(interval)}
    assert TTFT[0].with_reach(row) == "2.369 (0.01 to 7.077)"


def summary(made: dict[str, Any]) -> str:
    return terminal(made_view(made))


def test_the_summary_has_a_row_for_each_variant_in_each_table() -> None:
    lines = summary(document()).splitlines()
    # Of latencies, TTFT by parts, what was sent, requests, hits, and each of two kinds of links.
    # And how far each is behind the best.
    assert sum(line.split()[:2] == ["1", "1"] for line in lines) == 8
    assert sum(line.split()[:2] == ["2", "2"] for line in lines) == 8
    hits = next(n for n, line in enumerate(lines) if line.startswith("block hits, %"))
    assert lines[hits].split()[3:8] == ["jitter_cv", "hbm", "nvme", "all", "ceiling"]
    assert lines[hits + 1].split()[2:6] == ["50", "10", "60", "70"]
    assert lines[0].startswith("Simulation by hand: VIRTUAL TIME. Verdict: best by goodput")
    assert "  ! the window is short" in lines
    made = document()
    made["kv_cache"]["variants"][0]["numbers"]["requests.preemptions"] = {
        "values": [20, 30, 40], "mean": 30, "interval": {"low": 5, "high": 55}
    }  # fmt: skip
    assert " 30±25 " in summary(made), "counts of seeds have their interval too"
    assert "rejected in variant 1  1 queue full" in lines
    assert max(map(len, lines[1:])) < 180


def test_a_document_of_nothing_is_told_too() -> None:
    made = document(slower=(1.0,), interrupted="SIGINT")["kv_cache"]
    assert (made["status"], made["interrupted"]) == ("interrupted", "SIGINT")
    assert "runs      3 of 4 ended, ended by SIGINT" in summary({"kv_cache": made})


def test_the_table_of_runs_has_every_number_of_every_run() -> None:
    made = document(seeds=2, requests=200)
    rows = list(csv.DictReader(io.StringIO(runs_csv(made).decode())))
    assert len(rows) == 4
    assert runs_csv(made).decode().startswith(RUNS_MARK)
    assert [(row["variant"], row["seed"], row["run"]) for row in rows] == [
        ("1", "0", "1"), ("1", "1", "2"), ("2", "0", "3"), ("2", "1", "4"),
    ]  # fmt: skip
    for row, variant in zip(rows, (0, 0, 1, 1), strict=True):
        run = made["kv_cache"]["variants"][variant]["runs"][int(row["seed"])]["facts"]
        assert float(row[P95]) == run["ttft_ms"]["p95"]
        assert float(row["links.pcie.bytes_by_cause.offload"]) == 1e9
        assert row["links.pcie.busiest"] == "pcie of instance 1"


def test_columns_of_runs_become_rows_under_one_head() -> None:
    file = io.BytesIO()
    table = ColumnsFile(file, "by hand", numbered="instance")
    made = outcome()
    for run in (1, 2):
        key = {"variant": run, "name": "a, b"}
        table.write(key, {"seed": 7, "run": run}, instance_columns(made))
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    assert [(row["run"], row["instance"]) for row in rows] == [
        (str(run), str(number)) for run in (1, 2) for number in range(4)
    ]
    assert rows[0]["name"] == "a, b"
    assert rows[0]["role"] == "mixed"


def test_rows_of_a_run_that_goes_on_are_shown_and_taken_back() -> None:
    file = io.BytesIO()
    table = ColumnsFile(file, "by hand")

    def values() -> list[str]:
        return [row["at_ns"] for row in csv.DictReader(io.StringIO(file.getvalue().decode()))]

    first, second = ({"variant": 1, "name": name} for name in ("a", "b"))
    table.show(first, {"seed": 7, "run": 1}, {"at_ns": [0, 1, 2]})
    table.show(first, {"seed": 7, "run": 1}, {"at_ns": [0, 2]})  # joined
    assert values() == ["0", "2"]
    table.write(first, {"seed": 7, "run": 1}, {"at_ns": [0, 4]})
    table.show(second, {"seed": 7, "run": 2}, {"at_ns": [9]})
    assert values() == ["0", "4", "9"]
    table.rewind()
    assert values() == ["0", "4"]


# --- the event log ---------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2**62), st.sampled_from(["arrival", "first-token", "finish"]),
        st.integers(0, 2**40), st.integers(-1, 10_240),
    ),
    max_size=30,
)  # fmt: skip


def lines_of(file: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def logged(events: list[tuple[int, str, int, int]]) -> list[dict[str, Any]]:
    """What stands in the log of these events, times as they are spelled."""
    file = io.BytesIO()
    log = EventLog(file, several=False)
    on_event = log.begin(1)
    for event in events:
        on_event(*event)
    assert log.end() == Counter(kind for _, kind, _, _ in events)
    assert all(line.startswith(LINES[0]) for line in file.getvalue().decode().splitlines())
    return [json.loads(line, parse_float=str) for line in file.getvalue().splitlines()]


def spelled(events: list[tuple[int, str, int, int]]) -> list[dict[str, Any]]:
    return [
        {"at_ms": f"{at // MS}.{at % MS:06}", "event": kind, "request": request, "instance": where}
        for at, kind, request, where in events
    ]


@given(events=EVENTS)
def test_the_log_has_every_event_in_order_with_its_whole_time(
    events: list[tuple[int, str, int, int]],
) -> None:
    assert logged(events) == spelled(events)


@pytest.mark.parametrize("count", [1023, 1024, 1025, 3000])
def test_events_are_neither_lost_nor_doubled_where_they_are_written_together(count: int) -> None:
    events = [(at * 1_234_567, "decode", at, at % 8) for at in range(count)]
    assert logged(events) == spelled(events)


def test_what_a_run_wrote_that_did_not_end_is_taken_back() -> None:
    file = io.BytesIO()
    log = EventLog(file, several=True)
    on_event = log.begin(1)
    on_event(1, "arrival", 0, -1)
    log.end()
    kept = file.getvalue()
    log.rewind()  # a signal between two runs
    assert file.getvalue() == kept
    on_event = log.begin(2)
    for at in range(10_000):
        on_event(at, "decode", 0, 0)
    log.rewind()
    assert file.getvalue() == kept
    assert lines_of(file) == [
        {"run": 1, "at_ms": 1e-6, "event": "arrival", "request": 0, "instance": -1}
    ]


def test_a_request_is_called_as_its_trace_calls_it_until_it_has_ended() -> None:
    file = io.BytesIO()
    log = EventLog(file, several=True)
    ids = {0: 'a "b"\n', 2: "7"}
    on_event = log.begin(3, ids)
    for event in ((5, "arrival", 0, -1), (6, "arrival", 1, -1), (7, "finish", 0, 4),
                  (8, "reject", 1, -1), (9, "decode", 2, 4)):  # fmt: skip
        on_event(*event)
    log.end()
    named = [(line["request"], line.get("id")) for line in lines_of(file)]
    assert named == [(0, 'a "b"\n'), (1, None), (0, 'a "b"\n'), (1, None), (2, "7")]
    assert ids == {2: "7"}
    assert lines_of(file)[2] == {
        "run": 3, "at_ms": 7e-6, "event": "finish", "request": 0, "id": 'a "b"\n', "instance": 4,
    }  # fmt: skip


def test_without_a_file_events_are_counted_alone() -> None:
    log = EventLog(None, several=False)
    on_event = log.begin(1)
    for at in range(5000):
        on_event(at, "decode", 0, 0)
    assert log.end() == {"decode": 5000}
    log.rewind()


# --- the page and the picture ----------------------------------------------------------------


def read_back(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(as_json(made))
    return found


def test_the_page_tells_all_and_is_the_same_every_time() -> None:
    made = read_back(document(slower=(1.0, 1.5, 2.0)))
    text = page([made], ["hand.json"])
    assert text == page([made], ["hand.json"])
    for title in (
        "Answer", "Headline", "Variants beside each other", "Numbers", "Caches",
        "What was moved", "Over time", "Instances", "Events and checks",
        "What this simulation does not model", "Scenario", "Origin",
    ):  # fmt: skip
        assert f">{title}</h3>" in text
    assert "best by goodput is variant 1" in text
    assert "device:nvme:read" in text
    assert text.count('class="chart"') == 9  # three over the option, six over time


def test_a_page_of_one_run_and_one_of_none_are_pages_too() -> None:
    assert "nothing to compare it with" in page([read_back(document((1.0,), seeds=1))], ["a"])
    none = document((1.0,), seeds=1)
    none["kv_cache"]["variants"] = []
    assert "No run ended" in page([none], ["a"])


def test_two_simulations_stand_side_by_side_without_ratios() -> None:
    made = read_back(document())
    assert "their numbers are not compared" in page([made, made], ["a.json", "b.json"])


def test_names_out_of_a_document_cannot_become_markup() -> None:
    made = read_back(document(name="<script>alert(1)</script>"))
    made["kv_cache"]["warnings"] = ["<img src=x>"]
    text = page([made], ["a.json"])
    assert "<script>alert" not in text
    assert "<img" not in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("variants",), "none"),
        (("variants", 0, "numbers", P95, "mean"), "soon"),
        (("variants", 0, "runs", 0, "series", "columns", "at_ns"), [1, "two"]),
        (("variants", 0, "runs", 0, "instances", "busy_ns"), {"a": 1}),
        (("warnings",), [1]),
    ],
)
def test_a_document_that_was_changed_is_refused_in_a_sentence(
    path: tuple[Any, ...], value: Any
) -> None:
    made = read_back(document())
    place = made["kv_cache"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(UsageError, match="untouched result"):
        page([made], ["cut.json"])


def a_run(at: list[int], **columns: list[float]) -> SimRun:
    series = SimSeries(columns={"at_ns": [s * 1e9 for s in at], **columns})
    return SimRun(seed=1, facts=RunFacts(), series=series)


def test_levels_are_held_and_rates_keep_their_sum_on_any_grid() -> None:
    run = a_run([0, 1, 2, 4], waiting=[0, 5, 3, 0], output_tokens=[0, 10, 20, 30])
    grid = [0.0, 0.5, 1.0, 3.0, 4.0, 8.0]
    assert grid_of([run], 5) == [0.0, 4 / 3, 8 / 3, 4.0]
    assert peaks_on(run, "waiting", grid)[:5] == [0, 0, 5, 3, 0]
    assert peaks_on(run, "waiting", [0.0, 3.0, 4.0]) == [5, 3, 0], "between two instants too"
    assert means_on(run, "waiting", [0.0, 3.0, 4.0]) == [pytest.approx(8 / 3), 3, 0]
    rates = rates_on(run, "output_tokens", grid)
    spans = [b - a for a, b in pairwise(grid[:-1])]
    assert sum((r or 0) * s for r, s in zip(rates[1:5], spans, strict=True)) == 60
    assert [rates[0], rates[5], peaks_on(run, "waiting", grid)[5]] == [None] * 3


def crossed(*names: tuple[int, str]) -> View:
    """The view of variants of these values of a capacity and of a policy."""
    own = document(tuple(1.0 + place / 10 for place in range(len(names))))["kv_cache"]
    own["varied"] = ["tiers.nvme.capacity_gib", "tiers.nvme.eviction"]
    for variant, values in zip(own["variants"], names, strict=True):
        variant["values"] = dict(zip(own["varied"], values, strict=True))
        variant["name"] = "nvme.capacity_gib={}, nvme.eviction={}".format(*values)
    own["variants"][0]["same"] = [
        {"name": "x", "values": {"tiers.nvme.capacity_gib": 0, "tiers.nvme.eviction": "arc"}}
    ]
    return sim_view(read_back({"kv_cache": own})["kv_cache"])


GRID = [(0, "lru"), (50, "lru"), (50, "arc"), (90, "lru"), (90, "arc")]


def test_each_option_that_varies_has_a_column_and_no_name_is_cut() -> None:
    tables = [part for each in crossed(*GRID).sections for part in each.parts
              if isinstance(part, Table)]  # fmt: skip
    latency = next(table for table in tables if table.title == "Latency")
    assert latency.headings[:3] == ["latency, ms", "nvme.capacity_gib", "nvme.eviction"]
    assert [row[:3] for row in latency.rows] == [
        [f"{number}", f"{room}", policy] for number, (room, policy) in enumerate(GRID, 1)
    ]


def test_two_options_make_a_pivot_in_which_what_was_run_once_stands_twice() -> None:
    parts = [part for each in crossed(*GRID).sections for part in each.parts]
    tables = {part.title: part for part in parts if isinstance(part, Table)}
    pivot = tables["goodput by nvme.capacity_gib and nvme.eviction"]
    assert pivot.headings[1:] == ["nvme.eviction=lru", "nvme.eviction=arc"]
    assert [row[0] for row in pivot.rows] == ["0", "50", "90"]
    assert pivot.rows[0][1] == pivot.rows[0][2]
    curve = next(part for part in parts if isinstance(part, Figure) and "hits" in part.title)
    assert [line.name for line in curve.lines] == ["lru", "arc"]
    assert [[point.x for point in line.points] for line in curve.lines] == [[0, 50, 90]] * 2


def test_a_variant_has_its_line_in_every_figure_over_time() -> None:
    made = document((1.0, 2.0))["kv_cache"]
    columns = made["variants"][0]["runs"][0]["series"]["columns"]
    columns["waiting"] = [0] * len(columns["waiting"])
    view = sim_view(read_back({"kv_cache": made})["kv_cache"])
    figures = [
        part for each in view.sections for part in each.parts
        if isinstance(part, Figure) and part.scale is Scale.TIME
    ]  # fmt: skip
    assert {tuple(line.name for line in figure.lines) for figure in figures} == {
        ("1  slower=1.0", "2  slower=2.0")
    }


@pytest.fixture
def matplotlib() -> None:
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed (the extra plot)")


@pytest.mark.usefixtures("matplotlib")
def test_the_picture_is_the_same_every_time() -> None:
    made = read_back(document((1.0, 2.0)))
    drawn = draw(made, Path("hand.json"), "svg")
    assert drawn == draw(made, Path("hand.json"), "svg")


@pytest.mark.usefixtures("matplotlib")
def test_a_picture_of_one_run_is_drawn() -> None:
    made = read_back(document((1.0,), seeds=1, promised=False))
    assert draw(made, Path("hand.json"), "png").startswith(b"\x89PNG")


@pytest.mark.usefixtures("matplotlib")
def test_there_is_no_picture_of_nothing() -> None:
    made = read_back(document((1.0,)))
    made["kv_cache"]["variants"] = []
    with pytest.raises(UsageError, match="it has no numbers over an axis"):
        draw(made, Path("hand.json"), "svg")


def test_waits_for_links_are_exact_in_their_mean_and_keep_littles_law() -> None:
    made = outcome()
    pcie = next(link for link in made.links if link.kind == "pcie")
    pcie.wait_buckets = {0: 30, bucket_of(10 * MS): 10}
    pcie.wait_ns, pcie.longest_queue = 10 * 10 * MS, 3
    found = facts(made)["links"]
    moving_ms = facts(made)["window_s"] * 1000
    assert found["pcie"]["wait_ms"]["mean"] == 2.5
    assert found["pcie"]["wait_ms"]["p50"] == 0
    assert found["pcie"]["wait_ms"]["max"] == pytest.approx(10, rel=0.004)
    assert found["pcie"]["queue"] == {"mean": 100 / (pcie.links * moving_ms), "longest": 3}
    shared = found["device:nvme:read"]
    assert (shared["wait_ms"]["mean"], shared["queue"]) == (None, {"mean": None, "longest": None})
