"""Several ranks as one result: sums, merged percentiles, and what is wrong with a rank by name."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import permutations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as with_values

from kv_cache.cli.compare import main as compare_command
from kv_cache.cli.report import main as report_command
from kv_cache.cli.verify import main as verify_command
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import OpKind
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB, NS_PER_S, human_bytes, ns_to_ms
from kv_cache.metrics.histogram import RELATIVE_ERROR, Histogram, bucket_bounds
from kv_cache.metrics.histogram import merged as merged_histograms
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.result.brief import brief_of_ranks
from kv_cache.result.chain import check
from kv_cache.result.counted import MergeableCounts, OperationRow
from kv_cache.result.derive import derive
from kv_cache.result.merge import merged as merged_counts
from kv_cache.result.merge import nothing
from kv_cache.result.metrics import METRICS
from kv_cache.result.ranks import merged_document, recheck_ranks
from kv_cache.result.run import OperationLedger, converted, read_run, times
from kv_cache.result.sections import operation_row
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view
from tests.examples import examples
from tests.merged import RANKS, crew, member, merged, resealed, results
from tests.passports import names
from tests.results import row

Samples = Sequence[Sequence[int]]
RULES = ("R1", "R2", "R3", "R4", "R5", "R8")
"""Those that do not depend on what else the machine does."""

_SAMPLES = st.lists(
    st.lists(st.integers(1, 10**12), max_size=60), min_size=RANKS, max_size=RANKS
).filter(any)


def counts_of(samples: Samples) -> list[MergeableCounts]:
    """Of each rank, as far as its operations go."""
    rows = [[row("read", [4096] * len(times), times)] if times else [] for times in samples]
    operations = [converted(each, list[OperationRow], "") for each in rows]
    return [with_values(nothing(), operations=each) for each in operations]


def told(document: Any, rule: str) -> tuple[str, str]:
    """Status and sentence of a rule."""
    [found] = [r for r in document["kv_cache"]["passport"]["rules"] if r["rule"] == rule]
    return found["status"], found["message"]


# --- pooling ---------------------------------------------------------------------------------


@given(_SAMPLES, st.sampled_from([50, 95, 99, 99.9, 99.99]))
@settings(deadline=None)
def test_percentiles_of_four_ranks_are_those_of_their_pooled_samples(
    samples: Samples, percent: float
) -> None:
    ledger = OperationLedger(merged_counts(counts_of(samples)).operations)
    found = times(ledger.window("storage", OpKind.READ), "device")
    pool = sorted(value for values in samples for value in values)
    exact = np.percentile(pool, percent, method="inverted_cdf")
    assert found.count == len(pool)
    assert found.total == sum(pool)
    assert exact == pool[max(0, ceil(round(percent * len(pool), 6) / 100) - 1)]
    assert found.at_rank(percent) == pytest.approx(exact, rel=RELATIVE_ERROR, abs=0)


@given(_SAMPLES, st.permutations(range(RANKS)), st.integers(1, RANKS - 1))
@settings(max_examples=40, deadline=None)
def test_pooling_does_not_care_for_order_or_for_what_was_pooled_before(
    samples: Samples, order: Sequence[int], cut: int
) -> None:
    counts = counts_of(samples)
    whole = plain_rows(merged_counts(counts))
    assert plain_rows(merged_counts([counts[number] for number in order])) == whole
    parts = [merged_counts(counts[:cut]), merged_counts(counts[cut:])]
    assert plain_rows(merged_counts(parts)) == whole


def plain_rows(counts: MergeableCounts) -> list[dict[str, Any]]:
    return [operation_row(row) for row in counts.operations]


# --- real runs -------------------------------------------------------------------------------


def test_counts_bytes_and_rates_of_four_real_ranks_add_up() -> None:
    each = list(results().values())
    document = merged()
    own, parts = document["kv_cache"], [result["kv_cache"] for result in each]
    assert {rule: told(document, rule)[0] for rule in RULES} == dict.fromkeys(RULES, "pass")
    assert document["overall_passed"] is all(result["overall_passed"] for result in each)
    for name in ("requests_completed", "total_requests", "total_tokens_generated"):
        assert document[name] == sum(result[name] for result in each) > 0
    for name in ("throughput_req_per_sec", "storage_throughput_mbps", "total_storage_io_latency"):
        assert document[name] == pytest.approx(sum(result[name] for result in each))
    for key, value in document["summary"]["cache_stats"].items():
        if key.endswith(("_gb", "_gbps", "_iops", "_bytes", "_entries", "_reads", "_writes")):
            theirs = [result["summary"]["cache_stats"][key] for result in each]
            assert value == pytest.approx(sum(theirs)), key
    for name in ("submitted", "completed", "unfinished", "completed_in_window"):
        assert own["requests"][name] == sum(part["requests"][name] for part in parts)
    for tier in ("cpu", "storage"):
        for kind in ("read", "write"):
            rows = [part["tiers"][tier][kind] for part in parts]
            mine = own["tiers"][tier][kind]
            for name in ("bytes", "operations"):
                assert mine[name] == sum(row[name] for row in rows)
            rate = sum(row["bytes_per_second"] for row in rows)
            assert mine["bytes_per_second"] == pytest.approx(rate)
            assert mine["together_bytes_per_second"] == pytest.approx(mine["bytes"] / 1.0)
            assert (mine["host_ms"]["p50"] is None) == (mine["operations"] < 20)
            sizes, theirs = mine["object_bytes"], [row["object_bytes"] for row in rows]
            for name in ("objects", "sum"):
                assert sizes[name] == sum(each[name] for each in theirs)
            assert sizes["max"] == max(each["max"] or 0 for each in theirs)
            counts = [count for each in theirs for _, count in each["powers_of_two"]]
            assert sum(count for _, count in sizes["powers_of_two"]) == sum(counts)
    for what in ("bytes", "operations"):
        assert sum(row[what] for row in own["operations"]) == sum(
            row[what] for part in parts for row in part["operations"]
        )
    head, heads = own["headline"], [part["headline"] for part in parts]
    assert head["bytes"] == sum(each["bytes"] for each in heads) > 0
    rate = sum(each["bytes_per_second"] for each in heads)
    assert head["bytes_per_second"] == pytest.approx(rate)
    assert (head["within_run"], head["batches"]) == (None, [])  # of windows of 1 s
    said = own["policies"]
    assert (said["eviction"], said["admission"]["name"]) == ("lru", "always")
    assert said["admission"]["not_stored"] == {"blocks": 0, "bytes": 0}
    assert said["prefetch"]["useful"] is None
    hits, asked = (sum(part["reuse"][name] for part in parts) for name in ("hits", "looked_up"))
    assert own["reuse"]["reuse_hit_ratio"] == hits / asked
    assert [row["result"] for row in own["ranks"]] == each


def test_what_policies_of_several_ranks_did_is_added_up() -> None:
    documents = results()
    for rank, document in documents.items():
        said = document["kv_cache"]["policies"]
        said["eviction"] = "lru" if rank else "arc"
        said["admission"]["tiers"]["storage"]["not_admitted"] = {
            f"reason {rank % 2}": {"blocks": 1 + rank, "bytes": 10}
        }
        ends = {name: {"blocks": rank, "bytes": 5} for name in ("useful", "late", "wasted")}
        said["prefetch"] |= {**ends, "useful_ratio": 0.1 * rank}
        documents[rank] = resealed(document)
    own = merged(documents)["kv_cache"]["policies"]
    assert own["eviction"] is None, "not all had the same"
    assert own["admission"]["tiers"]["storage"]["not_admitted"] == {
        "reason 0": {"blocks": 1 + 3, "bytes": 20},
        "reason 1": {"blocks": 2 + 4, "bytes": 20},
    }
    assert own["prefetch"]["late"] == {"blocks": 6, "bytes": 20}
    assert own["prefetch"]["useful_ratio"] == pytest.approx(1 / 3)


def in_flight_ms(document: Any) -> list[float]:
    """What requests had waited for that the end of the window cut off."""
    end_to_end = document["kv_cache"]["measured"]["all"]["histogram_end_to_end"]
    ages = Histogram.from_json(end_to_end).in_flight
    counts = {} if ages is None else ages.buckets()
    return [sum(bucket_bounds(b)) / 2e6 for b, n in counts.items() for _ in range(n)]


def test_percentiles_of_real_ranks_are_those_of_all_their_requests() -> None:
    each = list(results().values())
    document = merged()
    pool = [value for result in each for value in result["end_to_end_latencies"]]
    assert document["end_to_end_latencies"] == pool
    shown = document["summary"]["end_to_end_latency_ms"]
    for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("p999", 99.9)):
        without = 1000 * np.percentile(pool, percent, method="inverted_cdf")
        older = [age_ms / 1000 for age_ms in in_flight_ms(document) if age_ms > without]
        exact = 1000 * np.percentile([*pool, *older], percent, method="inverted_cdf")
        assert shown[name] == pytest.approx(exact, rel=RELATIVE_ERROR)
    assert shown["mean"] == pytest.approx(1000 * np.mean(pool))
    assert document["p99_latency_ms"] == shown["p99"]
    assert document["summary"]["storage_io_latency_ms"]["p95"] is not None
    qos = document["summary"]["qos_metrics"]["batch"]
    kept = sum(
        round(r["summary"]["qos_metrics"]["batch"]["sla"]["compliance"] * n)
        for r in each
        if (n := r["summary"]["qos_metrics"]["batch"].get("total_requests"))
    )
    assert qos["sla"]["compliance"] == kept / qos["total_requests"]
    rows = [r["kv_cache"]["measured"]["batch"]["histogram_end_to_end"] for r in each]
    histogram = merged_histograms(Histogram.from_json(row) for row in rows)
    assert qos["latency_ms"]["p95"] == qos["sla"]["actual_p95_ms"]
    assert qos["latency_ms"]["p95"] == ns_to_ms(histogram.at_rank(95) or 0) > 0
    assert qos["latency_ms"]["max"] == max(
        r["summary"]["qos_metrics"]["batch"]["latency_ms"]["max"]
        for r in each
        if "latency_ms" in r["summary"]["qos_metrics"]["batch"]
    )
    promised = document["kv_cache"]["measured"]["batch"]["slos"]["p95"]
    assert promised["requests"] == histogram.count
    few = histogram.count < 200  # how many there are depends on the machine
    assert (promised["actual_ms"] is None) == few
    marked = document["kv_cache"]["reference_keys_unsupported"]
    assert ("summary.qos_metrics.batch.latency_ms.p95" in marked) == few


def test_the_latencies_of_the_requests_of_several_ranks_are_known_as_far_as_there_are_enough() -> (
    None
):
    for name, numbers in merged()["kv_cache"]["measured"].items():
        for key, value in numbers.items():
            if key.endswith("_ms"):
                count = numbers[f"histogram_{key.removesuffix('_ms')}"]["count"]
                assert (value["mean"] is None) is (count == 0), f"{name}.{key}"
                assert (value["p50"] is None) is (count < 20), f"{name}.{key}"
                assert (value["p95"] is None) is (count < 200), f"{name}.{key}"


def test_one_rank_alone_has_its_own_figures_exactly() -> None:
    [result] = results(1).values()
    document = merged({0: result}, crew(1))
    lacks = {"host_ms", "metadata", "devices", "together_bytes_per_second"}
    assert document["overall_passed"] is result["overall_passed"]

    def compare(mine: Any, theirs: Any, path: str) -> None:
        if isinstance(theirs, dict):
            for name in theirs.keys() - lacks:
                compare(mine[name], theirs[name], f"{path}.{name}")
        elif isinstance(theirs, list):
            assert len(mine) == len(theirs), path
            for number, pair in enumerate(zip(mine, theirs, strict=True)):
                compare(*pair, f"{path}[{number}]")
        else:
            assert mine == theirs, path

    compare(document, {k: v for k, v in result.items() if k != "kv_cache"}, "")
    own = result["kv_cache"]
    gone = ("chain", "passport", "notes", "schema", "rank", "schedule", "phases_ns", "series",
            "kernel_counters", "autoscaling", "autoscaler", "preconditioning", "latency_tracing",
            "recordings", "unanswered", "leftovers", "left_behind", "precision")  # fmt: skip
    compare(document["kv_cache"], {k: v for k, v in own.items() if k not in gone}, "kv_cache")
    for name, metric in METRICS.items():
        assert metric.value(document["kv_cache"]) == metric.value(own), name


def test_the_document_is_the_same_in_whatever_order_results_and_members_came() -> None:
    documents, of = results(3), crew(3, [0.1, 0.0, 0.3])
    first = as_json(merged(documents, of))
    for order in permutations(range(3)):
        given = {rank: documents[rank] for rank in order}
        members = [of.members[rank] for rank in order]
        assert as_json(merged(given, replace(of, members=members))) == first


def test_a_device_that_ranks_share_is_counted_once() -> None:
    documents = results(2)
    for result in documents.values():
        kernel = result["kv_cache"]["kernel_counters"]["run"]
        if kernel["device_read_bytes"] is None:
            pytest.skip("no device counts here")
        kernel["device_read_bytes"] = 10 * GIB
    own = merged({rank: resealed(result) for rank, result in documents.items()}, crew(2))[
        "kv_cache"
    ]
    assert own["reconciliation"]["read"]["device_bytes"] == 10 * GIB
    claimed = [d["kv_cache"]["reconciliation"]["read"]["claimed_bytes"] for d in documents.values()]
    assert own["reconciliation"]["read"]["claimed_bytes"] == sum(claimed)
    assert own["reconciliation"]["devices"][0]["ranks"] == [0, 1]
    assert told({"kv_cache": own}, "R7")[0] == "suspect"  # nobody of ours moved 10 GiB


def test_lists_that_are_too_long_together_are_cut_to_equal_shares() -> None:
    documents = results(2)
    long = [0.001] * SAMPLE_LIMIT
    for result in documents.values():
        result["decode_latencies"] = long
    document = merged({rank: resealed(result) for rank, result in documents.items()}, crew(2))
    assert len(document["decode_latencies"]) == SAMPLE_LIMIT


def test_percentiles_do_not_depend_on_lists_that_were_cut() -> None:
    whole, documents = merged(results(2), crew(2)), results(2)
    for name in ("end_to_end_latencies", "storage_latencies", "generation_latencies"):
        documents[1][name] = documents[1][name][:1]
    cut = merged({0: documents[0], 1: resealed(documents[1])}, crew(2))
    assert cut["p99_latency_ms"] == whole["p99_latency_ms"] > 0
    for name in ("end_to_end", "storage_io", "generation"):
        assert cut["summary"][f"{name}_latency_ms"] == whole["summary"][f"{name}_latency_ms"]


# --- what is wrong, by name ------------------------------------------------------------------

Change = Callable[[dict[int, Any]], Any]


def _missing(documents: dict[int, Any]) -> None:
    del documents[1]


def _cut(documents: dict[int, Any]) -> None:
    del documents[1]["kv_cache"]["operations"]


def _edited(documents: dict[int, Any]) -> None:
    documents[1]["requests_completed"] += 1


def _twice(documents: dict[int, Any]) -> None:
    documents[1] = documents[0]


def _twice_renamed(documents: dict[int, Any]) -> None:
    own = documents[0]["kv_cache"]
    again = {**documents[0], "kv_cache": {**own, "rank": {**own["rank"], "rank": 1}}}
    documents[1] = resealed(again)


def _swapped(documents: dict[int, Any]) -> None:
    documents[0], documents[1] = documents[1], documents[0]


def _foreign(documents: dict[int, Any]) -> None:
    documents[7] = documents[1]


def _of_other_job(documents: dict[int, Any]) -> None:
    documents[1]["kv_cache"]["rank"]["ranks"] = 8
    documents[1] = resealed(documents[1])


def _of_another_host(documents: dict[int, Any]) -> None:
    documents[1]["kv_cache"]["environment"]["hostname"] = "elsewhere"
    documents[1] = resealed(documents[1])


def _beside_others(documents: dict[int, Any]) -> None:
    """As a run that had the same options an hour ago."""
    foreign = documents[1]["kv_cache"]["passport"]["evidence"]["foreign"]
    foreign["siblings"] = {"pids": [100, 4711], "read_bytes": 0, "write_bytes": 0}
    documents[1] = resealed(documents[1])


def _other_schema(documents: dict[int, Any]) -> None:
    documents[1]["kv_cache"]["schema"] = "kv-cache-result/3"
    documents[1] = resealed(documents[1])


def _nonsense(documents: dict[int, Any]) -> None:
    documents[1] = [1, 2, 3]


def _misshapen(documents: dict[int, Any]) -> None:
    documents[1]["kv_cache"]["operations"][0]["bytes"] = "many"
    documents[1] = resealed(documents[1])


def _interrupted(documents: dict[int, Any]) -> None:
    documents[1]["kv_cache"]["status"] = "interrupted"
    documents[1] = resealed(documents[1])


@pytest.mark.parametrize(
    ("change", "says", "counted"),
    [
        (_missing, "rank 1 has no result", [0]),
        (_cut, "rank 1 has a result that was cut or changed after its run (measurements)", [0]),
        (_edited, "rank 1 has a result that was cut or changed after its run (reference", [0]),
        (_twice, "rank 1 has the result of rank 0", [0]),
        (_swapped, "rank 0 has the result of rank 1; rank 1 has the result of rank 0", []),
        (_foreign, "rank 7 is not one of the 2 that were started", [0, 1]),
        (_of_other_job, "rank 1 has a result of a job of 8 ranks, not of 2", [0]),
        (_of_another_host, "rank 1 has a result of host elsewhere, but ran on ", [0]),
        (
            _beside_others,
            "rank 1 has the result of another job, beside whose processes (4711)",
            [0],
        ),
        (_other_schema, "rank 1 has a result of schema kv-cache-result/3", [0]),
        (_nonsense, "rank 1 has something that is not a result of this program", [0]),
        (_misshapen, "kv_cache.operations[0].bytes: expected int, got str", [0]),
        (_interrupted, "rank 1 was interrupted", [0, 1]),
    ],
)
def test_a_rank_without_a_whole_result_of_its_own_makes_it_invalid(
    change: Change, says: str, counted: list[int]
) -> None:
    documents = results(2)
    change(documents)
    document = merged(documents, crew(2))
    own = document["kv_cache"]
    names(own, R1="invalid")
    assert says in told(document, "R1")[1]
    assert document["overall_passed"] is False
    assert [row["rank"] for row in own["ranks"] if row["counted"]] == counted
    kept = {row["rank"]: row["result"] for row in own["ranks"] if row["result"] is not None}
    assert kept == documents  # nothing that came is lost
    assert sum(kept[rank]["requests_completed"] for rank in counted) == document["total_requests"]
    again = recheck_ranks(orjson.loads(as_json(document)))
    assert not [said for said in again.deviations if "does not follow" in said]
    assert says in terminal(made_view(document))


def test_a_lost_rank_is_named_with_the_reason_whether_it_left_a_result_or_not() -> None:
    lost = [member(0), member(1, lost="it died of SIGKILL")]
    for documents in (results(2), {0: results(2)[0]}):
        document = merged(documents, crew(2, members=lost, ended_early="rank 1 died"))
        assert "rank 1" in told(document, "R1")[1]
        assert "it died of SIGKILL" in told(document, "R1")[1]
        assert document["kv_cache"]["status"] == "broken"
        assert document["kv_cache"]["notes"][0] == "ended early for all: rank 1 died"


def test_bytes_of_a_rank_that_left_no_result_are_not_called_those_of_others() -> None:
    document = merged({0: results(2)[0]}, crew(2, members=[member(0), member(1, lost="died")]))
    assert told(document, "R7")[0] == "not-judged"


def test_the_same_run_twice_under_another_number_is_found_by_its_seed() -> None:
    documents = results(2)
    _twice_renamed(documents)
    names(merged(documents, crew(2))["kv_cache"], R8="suspect")


def test_no_rank_at_all_is_a_document_too() -> None:
    document = merged({}, crew(3))
    assert document["total_requests"] == 0
    assert "summary" not in document
    assert document["kv_cache"]["passport"]["verdict"] == "invalid"
    assert "0 of 3" in terminal(made_view(document))
    assert brief_of_ranks(document, {})["metrics"] == {}
    assert recheck_ranks(orjson.loads(as_json(document))).deviations == ()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("config", "run", "num_users"), 5, "config.run.num_users (rank 1 against rank 0)"),
        (("config", "output", "io_trace_log"), "x.csv", "output.io_trace_log"),
        (("model", "num_layers"), 13, "model.num_layers"),
        (("program_version",), "9.9", "program_version"),
        (("driver",), "virtual-time", "driver"),
    ],
)
def test_ranks_that_were_not_given_the_same_are_named_with_what_differs(
    path: tuple[str, ...], value: Any, says: str
) -> None:
    documents = results(2)
    *way, last = path
    place = documents[1]["kv_cache"]
    for name in way:
        place = place[name]
    place[last] = value
    documents[1] = resealed(documents[1])
    status, found = told(merged(documents, crew(2)), "R2")
    assert (status, says in found) == ("invalid", True), found


def test_what_a_drive_held_at_most_is_of_all_ranks_on_it() -> None:
    """Each rank's note is of its own share of the drive."""
    documents = results(2)
    held = [d["kv_cache"]["tiers"]["storage"]["peak_bytes"] for d in documents.values()]
    together = f"all ranks: storage held at most {human_bytes(sum(held))}, which may fit"
    says = [n for n in merged()["kv_cache"]["notes"] if "storage held" in n]
    assert len(says) == 1
    says = [n for n in merged(documents, crew(2))["kv_cache"]["notes"] if "storage held" in n]
    assert len(says) == 1
    assert says[0].startswith(together), says
    elsewhere = documents[1]["kv_cache"]
    elsewhere["kernel_counters"]["run"]["device"] = "another"
    documents[1] = resealed(documents[1])
    says = [n for n in merged(documents, crew(2))["kv_cache"]["notes"] if "storage held" in n]
    assert [n.split(", which")[0] for n in says] == [
        f"rank {rank}: storage held at most {human_bytes(own)}" for rank, own in enumerate(held)
    ]
    assert "run --precondition --storage-capacity-gb N" in says[0]
    documents[1]["kv_cache"]["preconditioning"] = {"fill": None, "rounds": []}
    documents[1] = resealed(documents[1])
    says = [n for n in merged(documents, crew(2))["kv_cache"]["notes"] if "storage held" in n]
    assert ["run --precondition" in note for note in says] == [True, False]
    documents = results(2)
    documents[0]["kv_cache"]["tiers"]["storage"]["peak_bytes"] = 64 * GIB  # without the note
    documents[0]["kv_cache"]["notes"] = []
    documents[0] = resealed(documents[0])
    assert "storage held" not in " ".join(merged(documents, crew(2))["kv_cache"]["notes"])


def test_seed_directory_and_files_of_a_rank_are_its_own() -> None:
    document = merged()
    assert told(document, "R2")[0] == "pass"
    config = document["kv_cache"]["config"]
    assert "seed" not in config["run"]
    assert "cache_dir" not in config["tiers"]
    assert config["run"]["num_users"] == 4
    assert document["seed"] == 3


@pytest.mark.parametrize(
    ("late_ms", "status", "share"),
    [(0.0, "pass", 1.0), (20.0, "pass", 0.98 / 1.02), (200.0, "suspect", 0.8 / 1.2),
     (500.0, "invalid", 0.5 / 1.5), (1500.0, "invalid", 0.0)],
)  # fmt: skip
def test_the_share_of_the_time_in_which_all_measured_is_told_and_judged(
    late_ms: float, status: str, share: float
) -> None:
    document = merged(results(2), crew(2, [0.0, late_ms]))
    span = document["kv_cache"]["together"]
    assert span["shared_share"] == pytest.approx(share)
    assert span["span_s"] == pytest.approx(1 + late_ms / 1000)
    skewed = {"R5": "suspect"} if late_ms > 10 else {}
    names(document["kv_cache"], **({"R3": status} if status != "pass" else {}), **skewed)
    read = document["kv_cache"]["tiers"]["storage"]["read"]
    assert read["together_bytes_per_second"] == pytest.approx(read["bytes"] / span["span_s"])


@pytest.mark.parametrize("hours", [0, 1])
def test_a_result_of_another_time_is_named(hours: int) -> None:
    """It has all that the rank's own has, and the hash chain holds."""
    documents = results(2)
    own = documents[1]["kv_cache"]
    began = datetime.fromisoformat(own["started_utc"]) - timedelta(hours=hours, microseconds=1)
    documents[1] = resealed(derive_again(documents[1], began.isoformat()))
    document = merged(documents, crew(2))
    names(document["kv_cache"], **({"R3": "suspect"} if hours else {}))
    assert ("3600.0 s further apart than the coordinator saw" in told(document, "R3")[1]) == hours
    assert recheck_ranks(orjson.loads(as_json(document))).deviations == ()


def derive_again(document: Any, started_utc: str) -> Any:
    document["kv_cache"]["started_utc"] = started_utc
    return derive(read_run(document))


def test_windows_of_unlike_length_are_suspect() -> None:
    documents = results(2)
    phases = documents[1]["kv_cache"]["phases_ns"]
    phases["measure_end"] = phases["measure_start"] + 1_200_000_000
    document = merged({0: documents[0], 1: resealed(documents[1])}, crew(2))
    names(document["kv_cache"], R4="suspect", also=("R3",))
    assert document["kv_cache"]["window_s"] == 1.2


def test_the_skew_is_told_with_its_error_and_a_large_one_is_suspect() -> None:
    document = merged(results(2), crew(2, [0.0, 3.0]))
    status, says = told(document, "R5")
    assert (status, "3.000 ms (± 0.040 ms" in says) == ("pass", True)
    assert "skew 3 ms ± 0.04 ms" in terminal(made_view(document))
    names(merged(results(2), crew(2, [0.0, 30.0]))["kv_cache"], R3="suspect", R5="suspect")


def test_without_the_instants_nothing_says_that_they_ran_together() -> None:
    members = [member(rank, opened_ns=None) for rank in range(2)]
    document = merged(results(2), crew(2, members=members))
    names(document["kv_cache"], R3="suspect")
    assert told(document, "R5")[0] == "not-judged"
    assert document["kv_cache"]["together"]["span_s"] is None
    assert document["kv_cache"]["tiers"]["storage"]["read"]["together_bytes_per_second"] is None


def test_the_worst_verdict_of_a_rank_is_that_of_all_with_its_reasons() -> None:
    documents = results(2)
    documents[1]["kv_cache"]["passport"] |= {"verdict": "suspect", "reasons": ["V9 clock: jumped"]}
    document = merged({0: documents[0], 1: resealed(documents[1])}, crew(2))
    assert document["kv_cache"]["passport"]["verdict"] == "suspect"
    status, says = told(document, "R6")
    assert (status, "rank 1 is suspect (V9 clock: jumped)" in says) == ("suspect", True)
    assert f"R6 ranks: {says}" in document["kv_cache"]["passport"]["reasons"]


def test_a_rank_that_did_not_pass_keeps_all_from_passing() -> None:
    documents = results(2)
    documents[1]["overall_passed"] = False
    assert merged({0: documents[0], 1: resealed(documents[1])}, crew(2))["overall_passed"] is False


# --- verified --------------------------------------------------------------------------------


def test_a_merged_document_verifies_and_a_changed_figure_in_it_is_named() -> None:
    document = orjson.loads(as_json(merged(results(2), crew(2))))
    assert check(document, {}) == []
    assert recheck_ranks(document).deviations == ()
    document["kv_cache"]["tiers"]["storage"]["read"]["bytes_per_second"] *= 1.01
    document["summary"]["total_requests"] += 1
    document = resealed(document)
    found = recheck_ranks(document).deviations
    assert "summary.total_requests does not follow from the ranks' results" in found
    assert any("kv_cache.tiers.storage.read.bytes_per_second does not" in said for said in found)


def test_a_changed_figure_in_a_rank_is_found_though_all_chains_were_made_anew() -> None:
    documents = results(2)
    documents[1]["kv_cache"]["tiers"]["storage"]["read"]["bytes_per_second"] *= 2
    documents[1] = resealed(documents[1])
    document = orjson.loads(as_json(merged(documents, crew(2))))
    assert check(document, {}) == []
    found = recheck_ranks(document).deviations
    assert any(said.startswith("rank 1: ") and "bytes_per_second" in said for said in found)


def test_a_rank_changed_inside_the_document_no_longer_counts() -> None:
    document = orjson.loads(as_json(merged(results(2), crew(2))))
    document["kv_cache"]["ranks"][1]["result"]["kv_cache"]["seed"] += 1
    found = recheck_ranks(resealed(document))
    assert any("rank 1: measurements was changed after the run" in s for s in found.deviations)
    assert found.again is not None
    assert found.again["kv_cache"]["passport"]["verdict"] == "invalid"


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


@cache
def _two_ranks() -> bytes:
    return as_json(merged(results(2), crew(2)))


@given(st.data())
@examples(8)
def test_whatever_stands_in_a_document_the_check_says_so_and_never_fails(data: Any) -> None:
    document = orjson.loads(_two_ranks())
    junk: list[Any] = [None, "x", -1, 2**63, 1e308, True, [], {}, [[]], {"a": 1}]
    holder: Any = document
    for _ in range(data.draw(st.integers(0, 7))):
        below = [key for key in _keys(holder) if isinstance(holder[key], dict | list)]
        if not (below := [key for key in below if holder[key]]):
            break
        holder = holder[data.draw(st.sampled_from(below))]
    holder[data.draw(st.sampled_from(_keys(holder)))] = data.draw(st.sampled_from(junk))
    recheck_ranks(document)


def test_the_brief_has_each_metric_once_and_no_whole_result() -> None:
    document = merged(results(2), crew(2))
    told_ = brief_of_ranks(document, {"result": "R.json"})
    read = told_["metrics"]["storage.read.bytes_per_second"]["value"]
    assert read == document["kv_cache"]["tiers"]["storage"]["read"]["bytes_per_second"]
    rates = [row["figures"]["requests_per_second"] for row in told_["ranks"]]
    assert told_["metrics"]["requests_per_second"]["value"] == pytest.approx(sum(rates))
    assert all("result" not in row for row in told_["ranks"])
    assert told_["start_skew_ns"] == 0
    assert len(orjson.dumps(told_)) < 64 << 10


def test_the_text_has_a_line_for_each_rank_and_what_is_missing() -> None:
    documents = results(3)
    del documents[2]
    text = terminal(made_view(merged_document(documents, crew(3))))
    lines = text.splitlines()
    assert lines[0].startswith("Run of several ranks: INVALID. ")
    assert "2 of 3 ranks count." in lines[0]
    heads = ("  valid  ", "  suspect  ", "  not counted  ")
    rows = [line for line in lines if any(head in line for head in heads)]
    assert [line.split()[0] for line in rows] == ["0", "1", "2"]
    assert any("rank 2 has no result" in line for line in lines)
    load = "4 synthetic users, 50 requests/s (fixed), multi-turn on, RAG off"
    load = f"each rank: standard mode, {load}"
    assert any(line.startswith("run ") and line.endswith(load) for line in lines)
    assert any(line.startswith("drive ") for line in lines)


def test_instants_of_the_windows_are_on_the_coordinators_clock() -> None:
    row_ = merged(results(2), crew(2, [0.0, 5.0]))["kv_cache"]["ranks"][1]
    assert row_["begin_ns"] == 2 * NS_PER_S + 5_000_000  # no warm-up
    assert row_["end_ns"] == row_["begin_ns"] + NS_PER_S


def test_a_single_byte_too_many_is_told_though_the_hashes_fit() -> None:
    documents = results(2)
    for result in documents.values():  # so many that one byte is a trifle
        for row_ in result["kv_cache"]["operations"]:
            row_["bytes"] += 2**40
    document = merged({rank: resealed(each) for rank, each in documents.items()}, crew(2))
    document["kv_cache"]["operations"][0]["bytes"] += 1
    found = recheck_ranks(resealed(document)).deviations
    assert "kv_cache.operations[0].bytes does not follow from the ranks' results" in found


# --- commands --------------------------------------------------------------------------------


def written(path: Path, document: Any) -> str:
    path.write_bytes(as_json(document))
    return str(path)


def test_verify_says_intact_with_each_ranks_fingerprint_or_what_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = merged(results(2), crew(2))
    file = written(tmp_path / "R.json", document)
    assert verify_command([file]) == 0
    said = capsys.readouterr().out
    assert "Nothing was changed; each of 2 results follows from what it counted" in said
    for row_ in document["kv_cache"]["ranks"]:
        assert row_["fingerprint"] in said
    document["kv_cache"]["requests"]["completed"] += 1
    assert verify_command([written(tmp_path / "R.json", document), "--json"]) == 2
    found = orjson.loads(capsys.readouterr().out)
    assert [change["link"] for change in found["changed"]] == ["measurements"]
    assert found["deviations"] == [
        "kv_cache.requests.completed does not follow from the ranks' results"
    ]


def test_compare_takes_runs_of_as_many_ranks_and_claims_nothing_from_one_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = written(tmp_path / "A.json", merged(results(2), crew(2)))
    two = written(tmp_path / "B.json", merged(results(2), crew(2, [0.0, 1.0])))
    assert compare_command([one, two]) == 0
    said = capsys.readouterr().out
    assert "one run of 2 ranks" in said
    assert "ranks are parts of one run and no repetitions of it" in said
    assert "No number has an interval" in said
    alone = written(tmp_path / "C.json", results(2)[0])
    with pytest.raises(UsageError, match="it is of a single run, not of one run of 2 ranks"):
        compare_command([one, alone])
    with pytest.raises(UsageError, match="none of its ranks counts"):
        compare_command([one, written(tmp_path / "D.json", merged({}, crew(2)))])


def test_report_tells_ranks_in_the_forms_that_can_and_refuses_in_the_one_that_cannot(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = written(tmp_path / "R.json", merged(results(2), crew(2)))
    assert report_command([file, "--format", "markdown", "-o", "-"]) == 0
    assert b"| 1 | " in capsysbinary.readouterr().out
    assert report_command([file, "--format", "csv", "-o", "-"]) == 0
    assert b"cache/rank_0, cache/rank_1" in capsysbinary.readouterr().out
    with pytest.raises(UsageError, match="give the ranks' own results to hdr"):
        report_command([file, "--format", "hdr", "-o", "-"])
