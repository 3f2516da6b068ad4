"""All evidence in one place: where each number of the passport comes from, and what is unknown."""

from collections.abc import Mapping
from itertools import count
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from kv_cache.config.load import load_config
from kv_cache.core.block import content_key
from kv_cache.core.effect import ABORTED, CopyRef, IoChunk, Leg, Move, Op, OpDone, Read, Write
from kv_cache.core.kinds import Cause, OpKind, Outcome, Tier
from kv_cache.core.units import GIB, KIB, MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES
from kv_cache.metrics.ceiling import CeilingPoint
from kv_cache.metrics.outcome import RunOutcome, TierFacts
from kv_cache.metrics.passport import RULES
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.result.collect import collect
from kv_cache.result.evidence import gather, passport
from kv_cache.result.run import CountedRun
from kv_cache.tiers.payload import MISMATCH
from tests.unit.test_recorder import outcome_of, record

START_NS, END_NS = 2 * NS_PER_S, 12 * NS_PER_S
"""A window of 10 s."""
BEFORE_NS, IN_NS, AFTER_NS = NS_PER_S, 5 * NS_PER_S, 13 * NS_PER_S

COPIES = count(1)
TARGETS = {
    "qos_profiles.interactive.target_latency_p95_ms": 50.0,
    "qos_profiles.responsive.target_latency_p95_ms": 30.0,
}
ENVIRONMENT: Mapping[str, Any] = {
    "drives": [{"filesystem": {"type": "xfs"}}, {"filesystem": {"type": "ext4"}}]
}


def recorded() -> Recorder:
    return Recorder(Edges(populate_end_ns=0, measure_start_ns=START_NS, measure_end_ns=END_NS))


def copy(tier: Tier = Tier.NVME, nbytes: int = MIB) -> CopyRef:
    number = next(COPIES)
    return CopyRef(number, content_key(number), tier, nbytes, number)


def leg(
    ref: CopyRef, kind: OpKind, at_ns: int, *, engine: str = "direct", device_ns: int = NS_PER_MS
) -> Leg:
    chunk = IoChunk(at_ns, ref.nbytes)
    return Leg(ref.tier, kind, engine, ref.nbytes, at_ns - 1, at_ns, device_ns, (chunk,))


def ended(op: Op, *legs: Leg, error: str | None = None, side: OpKind | None = None) -> OpDone:
    return OpDone(op, 0, legs[-1].finished_ns, legs, error, side)


def reading(ref: CopyRef, at_ns: int = IN_NS, **more: Any) -> OpDone:
    return ended(Read(ref, Cause.REUSE), leg(ref, OpKind.READ, at_ns, **more))


def writing(ref: CopyRef, at_ns: int = IN_NS, **more: Any) -> OpDone:
    return ended(Write(ref, Cause.PREFILL), leg(ref, OpKind.WRITE, at_ns, **more))


def outcome(recorder: Recorder, **more: Any) -> RunOutcome:
    return replace(outcome_of(recorder, 0), **{"driver": "real-io", **more})


def evidence(recorder: Recorder, **more: Any) -> Any:
    """Of a run with the configuration `options` (by dotted path) and this outcome."""
    return gather(facts_of(recorder, **more))


def facts_of(recorder: Recorder, **more: Any) -> CountedRun:
    config = load_config(None, {**TARGETS, **more.pop("options", {})})
    return collect(config, outcome(recorder, **more), model={}, environment=ENVIRONMENT)


# --- others on the same disks -----------------------------------------------------------------


def foreign_of(
    recorder: Recorder,
    window: Mapping[str, Any],
    *,
    stack: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **said: Any,
) -> Any:
    """The evidence `foreign` of a run whose counters and witness say so."""
    kernel = {"run": {}, "window": {"device": "vda1", **window}}
    own = {"own_read_bytes": 100 * MIB, "own_write_bytes": 50 * MIB, "processes": [], **said}
    feet = {"feet": [{"name": "vda", "kind": "disk"}], "not_compared": [], "no_barrier": []}
    witness = {"foreign": own, "stack": {**feet, **(stack or {})}}
    made = evidence(recorder, kernel=kernel, witness=witness, options=options or {})
    return made["foreign"]


OF_THE_PARTITION = {"device_read_bytes": 100 * MIB, "device_write_bytes": 50 * MIB}
OF_THE_DISK = {"foot_read_bytes": 600 * MIB, "foot_write_bytes": 60 * MIB}


def test_the_whole_disk_counts_and_not_the_partition_alone() -> None:
    made = foreign_of(recorded(), {**OF_THE_PARTITION, **OF_THE_DISK})
    assert (made["read_bytes"], made["write_bytes"]) == (500 * MIB, 10 * MIB)
    assert made["counted"] == "vda"


def test_what_is_submitted_and_not_done_at_an_edge_is_nobodys() -> None:
    """The figures of a run beside which nobody was: 85 MiB written by the process's count at
    submission, 162 by the device's at completion, where our calls ended with 160."""
    window = {"process_write_bytes": 85 * MIB, "foot_write_bytes": 162 * MIB, "foot_read_bytes": 0}
    made = foreign_of(recorded(), window, own_read_bytes=0, own_write_bytes=160 * MIB)
    assert (made["read_bytes"], made["write_bytes"]) == (0, 2 * MIB)


@pytest.mark.parametrize(
    ("stack", "window"),
    [
        ({"not_compared": ["md0 is md raid1"]}, OF_THE_DISK),
        ({"feet": [], "uncounted": ["vda"]}, {"foot_read_bytes": None, "foot_write_bytes": None}),
    ],
)
def test_a_disk_whose_bytes_say_nothing_leaves_it_to_the_device_above(
    stack: Mapping[str, Any], window: Mapping[str, Any]
) -> None:
    counts = {**window, "device_read_bytes": 130 * MIB, "device_write_bytes": 50 * MIB}
    made = foreign_of(recorded(), counts, stack=stack)
    assert (made["read_bytes"], made["write_bytes"], made["counted"]) == (30 * MIB, 0, "vda1")


def test_what_ranks_here_moved_and_what_was_read_ahead_is_ours() -> None:
    cached = recorded()
    cached.op(reading(copy(), engine="mmap"))
    window = {**OF_THE_DISK, "process_read_bytes": 480 * MIB, "process_write_bytes": 0}
    siblings = {"pids": [7], "read_bytes": 20 * MIB, "write_bytes": 4 * MIB}
    made = foreign_of(cached, window, siblings=siblings)
    assert (made["read_bytes"], made["write_bytes"]) == (100 * MIB, 6 * MIB)


def test_ranks_here_make_requests_of_the_size_that_ours_have() -> None:
    """Not judged beside ranks, a neighbour of many small requests was seen by none of them."""
    recorder = recorded()
    recorder.op(reading(copy()))
    own: dict[str, Any] = {
        "own_read_bytes": MIB, "own_write_bytes": 0, "largest_request_bytes": MIB // 2
    }  # fmt: skip
    counts = {**OF_THE_DISK, "foot_reads": 900, "foot_writes": 9}
    alone = foreign_of(recorder, counts, **own)
    assert (alone["read_requests"], alone["most_own_read_requests"]) == (900, 2 + 2 * 1)
    siblings = {"pids": [7], "read_bytes": 3 * MIB, "write_bytes": 0}
    beside = foreign_of(recorder, counts, **own, siblings=siblings)
    assert (beside["most_own_read_requests"], beside["most_own_write_requests"]) == (4 * 4, 0)
    unknown = {"pids": [7], "read_bytes": None, "write_bytes": None}
    assert foreign_of(recorder, counts, **own, siblings=unknown)["most_own_read_requests"] is None


def test_the_journal_of_what_we_sync_is_nobody_elses_but_only_so_much_of_it() -> None:
    """A neighbour that syncs on the same file system has the same journal."""
    recorder = recorded()
    recorder.op(writing(copy()))
    window = {**OF_THE_DISK, "foot_write_bytes": 51 * MIB}
    synced = {"io.fsync": "object"}
    made = foreign_of(recorder, window, options=synced, journal_bytes=40 * KIB)
    assert (made["write_bytes"], made["journal_bytes"]) == (MIB - 40 * KIB, 40 * KIB)
    made = foreign_of(recorder, window, options=synced, journal_bytes=MIB)
    assert (made["write_bytes"], made["journal_bytes"]) == (MIB - 64 * KIB, 64 * KIB)
    made = foreign_of(recorder, window, options={"io.fsync": "never"}, journal_bytes=MIB)
    assert (made["write_bytes"], made["journal_bytes"]) == (MIB, 0)


# --- the shape -------------------------------------------------------------------------------


def test_a_run_of_which_nothing_is_known_can_be_judged_and_written() -> None:
    nothing = outcome(Recorder(Edges()))
    made = passport(collect(load_config(None), nothing, model={}, environment={}))
    assert made["verdict"] == "invalid"  # there was no window
    assert {row["rule"] for row in made["rules"]} == set(RULES)
    for number in ("V1", "V4", "V6", "V19", "V21", "V23", "V24"):
        (row,) = (row for row in made["rules"] if row["rule"] == number)
        assert row["status"] in ("not-judged", "not-applicable"), row
    assert orjson.loads(orjson.dumps(made)) == made


def test_what_the_machine_said_is_passed_on() -> None:
    said = {
        "page_cache": {"pages": 5}, "payload": {"pages": 6}, "interposed": {"preload": None},
        "throttles": {"io_limits": []}, "foreign": {"read_bytes": 7}, "clock": {"wall_s": 8.0},
        "settle_s": 0.25, "accounted": True, "cores": 3.5, "link": {"bytes_per_second": 9.0},
        "lag": {"harness_lag_p99_ms": 1.5},
    }  # fmt: skip
    made = evidence(recorded(), witness=said)
    for name in ("page_cache", "payload", "interposed", "throttles", "foreign", "clock"):
        assert made[name] == made[name] | said[name]
    assert (made["ledger"]["settle_s"], made["ledger"]["accounted"]) == (0.25, True)
    assert (made["client"]["cores"], made["client"]["harness_lag_p99_ms"]) == (3.5, 1.5)
    assert made["link"]["bytes_per_second"] == 9.0


# --- completeness ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status", "by"),
    [
        ({}, "finished", None),
        ({"interrupted": "SIGINT"}, "interrupted", "SIGINT"),
        ({"death": "MemoryError: "}, "broken", None),
        ({"death": "MemoryError: ", "interrupted": "SIGTERM"}, "broken", "SIGTERM"),
    ],
)
def test_how_a_run_ended_is_told(how: Mapping[str, str], status: str, by: str | None) -> None:
    made = evidence(recorded(), **how)["completeness"]
    assert (made["status"], made["interrupted"]) == (status, by)
    assert made["window_s"] == 10.0


def test_requests_are_counted_by_their_end_and_late_failures_too() -> None:
    recorder = recorded()
    for made in (
        record(BEFORE_NS),
        record(IN_NS),
        record(IN_NS),
        record(IN_NS, Outcome.FAILED, error="io-error"),
        record(AFTER_NS),
        record(AFTER_NS, Outcome.FAILED, error="io-error"),
        record(IN_NS, Outcome.REJECTED, error="queue-full"),
    ):
        recorder.request(made)
    books = evidence(recorder, submitted=7)["completeness"]
    assert (books["completed"], books["submitted"], books["rejected"]) == (2, 7, 1)
    assert books["failed_requests"] == 2
    assert books["unfinished"] == 2  # the two that ended after the window


def test_operations_that_failed_are_counted_with_their_tier_and_aborted_ones_are_not() -> None:
    recorder = recorded()
    for tier, error in ((Tier.NVME, "io-error"), (Tier.CPU, MISMATCH), (Tier.NVME, ABORTED)):
        ref = copy(tier)
        done = ended(Read(ref, Cause.REUSE), leg(ref, OpKind.READ, IN_NS), error=error,
                     side=OpKind.READ)  # fmt: skip
        recorder.op(done)
    made = evidence(recorder)
    assert made["completeness"]["failed_operations"] == 2
    assert made["completeness"]["storage_failed_operations"] == 1
    assert made["verification"]["errors"] == 1


def test_only_incomplete_records_are_an_error_of_the_records() -> None:
    lost = "records are incomplete: no space left on device"
    made = evidence(recorded(), warnings=("--fsync: ignored", lost))
    assert made["completeness"]["records_error"] == lost
    assert evidence(recorded(), warnings=("ignored",))["completeness"]["records_error"] is None


# --- bytes -----------------------------------------------------------------------------------


def busy() -> Recorder:
    """A copy read twice within the window and once after it, one written before it; and memory."""
    recorder = recorded()
    ref, new, cached = copy(), copy(nbytes=4 * MIB), copy(Tier.CPU, 2 * MIB)
    recorder.op(writing(ref, BEFORE_NS))
    for at_ns in (IN_NS, IN_NS, AFTER_NS):
        recorder.op(reading(ref, at_ns, device_ns=8 * NS_PER_MS), verified=True)
    recorder.op(writing(new, IN_NS, engine="buffered"))
    recorder.op(writing(cached))
    return recorder


KERNEL: Mapping[str, Any] = {
    "run": {
        "device": "vda", "process_read_bytes": 1, "device_read_bytes": 2, "rchar": 3,
        "foot_read_bytes": 7, "foot_write_bytes": 8,
        "process_write_bytes": 4, "device_write_bytes": 5, "wchar": 6,
    },
    "window": {"process_cpu_ns": NS_PER_S // 2, "process_read_bytes": 9},
}  # fmt: skip


def test_the_ledger_claims_the_bytes_of_the_whole_run_on_storage() -> None:
    made = evidence(busy(), kernel=KERNEL)["ledger"]
    assert made["read"] == {
        "claimed_bytes": 3 * MIB, "process_bytes": 1, "device_bytes": 2, "calls_bytes": 3,
        "foot_bytes": 7, "window_claimed_bytes": None, "window_process_bytes": 9,
    }  # fmt: skip
    assert made["write"] == {
        "claimed_bytes": 5 * MIB, "process_bytes": 4, "device_bytes": 5, "calls_bytes": 6,
        "foot_bytes": 8, "window_claimed_bytes": None, "window_process_bytes": None,
    }  # fmt: skip
    assert (made["device"], made["filesystem"]) == ("vda", "ext4+xfs")


def test_both_sides_of_a_demotion_are_in_their_own_place() -> None:
    recorder = recorded()
    above, below = copy(Tier.CPU), copy(Tier.NVME)
    op = Move(above, below, Cause.DEMOTION)
    recorder.op(ended(op, leg(above, OpKind.READ, IN_NS), leg(below, OpKind.WRITE, IN_NS)))
    made = evidence(recorder)
    assert made["ledger"]["read"]["claimed_bytes"] == 0
    assert made["ledger"]["write"]["claimed_bytes"] == MIB
    assert made["amplification"]["stored_bytes"] == 0  # it was stored as new before
    assert made["amplification"]["storage_share"] == 0.5


def test_engines_are_told_by_direction() -> None:
    rows = evidence(busy(), options={"io.write_engine": "buffered"})["engines"]
    assert rows["rows"] == [
        {"operation": "read", "engine": "direct", "operations": 3, "bytes": 3 * MIB},
        {"operation": "write", "engine": "buffered", "operations": 1, "bytes": 4 * MIB},
        {"operation": "write", "engine": "direct", "operations": 1, "bytes": MIB},
    ]
    assert (rows["requested"], rows["write_requested"], rows["note"]) == ("auto", "buffered", None)


def test_why_auto_fell_back_is_what_the_store_said() -> None:
    facts = TierFacts(
        tier=Tier.NVME, capacity_bytes=None, used_bytes=0, peak_bytes=0, stranded_bytes=0,
        entries=0, store={"engine_note": "O_DIRECT is refused"},
    )  # fmt: skip
    assert evidence(recorded(), tiers=(facts,))["engines"]["note"] == "O_DIRECT is refused"


def test_amplification_and_the_share_of_storage_are_of_the_whole_run() -> None:
    made = evidence(busy())["amplification"]
    assert (made["storage_read_bytes"], made["unique_read_bytes"]) == (3 * MIB, MIB)
    assert made["read_amplification"] == 3.0
    assert (made["storage_written_bytes"], made["stored_bytes"]) == (5 * MIB, 7 * MIB)
    assert made["write_amplification"] == pytest.approx(5 / 7)
    assert made["all_bytes"] == 10 * MIB
    assert made["storage_share"] == pytest.approx(0.8)


def test_rates_are_those_of_the_window() -> None:
    made = evidence(busy())["link"]
    assert made["read_bytes_per_second"] == pytest.approx(2 * MIB / 10)
    assert made["write_bytes_per_second"] == pytest.approx(4 * MIB / 10)


def test_what_was_verified_stands_beside_what_was_read() -> None:
    made = evidence(busy(), options={"io.verify": "full"})["verification"]
    assert made["mode"] == "full"
    assert made["objects"] == 3
    assert made["bytes"] == made["storage_read_bytes"] == 3 * MIB
    assert evidence(busy(), driver="virtual-time")["verification"]["mode"] == "none"


# --- the client ------------------------------------------------------------------------------


def test_the_client_is_told_in_cpu_seconds_for_each_gib_of_the_window() -> None:
    recorder = recorded()
    recorder.op(reading(copy(nbytes=GIB), IN_NS))
    recorder.op(writing(copy(nbytes=GIB), IN_NS))
    recorder.op(reading(copy(nbytes=GIB), AFTER_NS))
    made = evidence(recorder, kernel=KERNEL)["client"]
    assert (made["cpu_s"], made["storage_gib"], made["cpu_s_per_gib"]) == (0.5, 2.0, 0.25)
    assert made["cpu_us_per_operation"] == 250_000
    assert made["cores_used"] == pytest.approx(0.05)


def test_without_bytes_there_is_no_cpu_time_for_each_of_them() -> None:
    made = evidence(recorded(), kernel=KERNEL)["client"]
    assert (made["cpu_s"], made["cpu_s_per_gib"]) == (0.5, None)
    unknown = evidence(busy())["client"]
    assert (unknown["cpu_s"], unknown["cpu_s_per_gib"], unknown["cores_used"]) == (None,) * 3


def test_the_latency_of_loads_is_the_device_time_within_the_window() -> None:
    made = evidence(busy())["client"]
    assert made["storage_read_p50_ms"] == pytest.approx(8, rel=0.02)
    assert made["storage_read_p99_ms"] == pytest.approx(8, rel=0.02)
    assert evidence(recorded())["client"]["storage_read_p50_ms"] is None


def test_the_ceiling_is_its_points_beside_what_the_run_did() -> None:
    big = CeilingPoint(seconds=2.0, operations=200, bytes=200 * MIB, cpu_s=1.0)
    small = CeilingPoint(seconds=1.0, operations=200, bytes=200 * PAGE_BYTES, cpu_s=1.5)
    made = evidence(busy(), ceiling=[big, small])["client"]["ceiling"]
    window_s = (END_NS - START_NS) / NS_PER_S
    reached = 6 * MIB / window_s  # three operations
    assert made.pop("points") == [
        {
            "object_bytes": point.object_bytes, "operations_per_second": ops,
            "bytes_per_second": point.bytes / point.seconds, "cores_used": cores,
            "seconds": point.seconds, "operations": 200, "bytes": point.bytes,
            "cpu_s": point.cpu_s,
        }
        for point, ops, cores in ((big, 100, 0.5), (small, 200, 1.5))
    ]  # fmt: skip
    assert made == {
        "bytes_per_second": 100 * MIB,
        "operations_per_second": 100,
        "measured_bytes_per_second": reached,
        "measured_operations_per_second": 3 / window_s,
        "ratio": 100 * MIB / reached,
        "limit_object_bytes": None,  # the small objects are faster, too
    }
    assert evidence(recorded())["client"]["ceiling"] is None
    unused = evidence(recorded(), ceiling=[big])["client"]["ceiling"]
    assert (unused["ratio"], unused["limit_object_bytes"]) == (None, None)


def test_the_ceiling_of_an_older_document_stays() -> None:
    facts = facts_of(recorded())
    older = {"bytes_per_second": 5.0, "ratio": 2.0}
    facts.facts.passport.evidence.client["ceiling"] = older
    assert gather(facts)["client"]["ceiling"] == older


def test_the_shortest_promise_of_all_classes_is_the_measure_of_lag() -> None:
    assert evidence(recorded())["client"]["shortest_target_ms"] == 30.0


SAMPLE = "datasets/mooncake_sample.jsonl"


@pytest.mark.parametrize(
    ("options", "scheduled"),
    [
        ({}, False),
        ({"arrival.mode": "open"}, True),
        ({"arrival.request_rate": 5}, True),
        ({"workload.trace": SAMPLE}, True),
        ({"workload.trace": SAMPLE, "workload.trace_speedup": 0}, False),
        ({"workload.trace": SAMPLE, "workload.trace_speedup": 0, "arrival.mode": "open"}, False),
        ({"workload.trace": SAMPLE, "workload.trace_speedup": 0, "arrival.request_rate": 5}, True),
    ],
)
def test_only_requests_with_instants_of_their_own_can_be_late(
    options: Mapping[str, Any], scheduled: bool
) -> None:
    recorder = recorded()
    recorder.request(record(IN_NS, enqueued_ns=IN_NS - 1))
    lag = evidence(recorder, options=options)["client"]["schedule_lag_p99_ms"]
    assert (lag is not None) is scheduled
