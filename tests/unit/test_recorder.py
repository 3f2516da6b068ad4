"""What is counted when something ends, in which phase, and that every request ends once."""

from collections.abc import Iterable

import pytest

from kv_cache.core.block import content_key
from kv_cache.core.effect import (
    ABORTED,
    CopyRef,
    Delete,
    IoChunk,
    Leg,
    MetadataStep,
    Move,
    Op,
    OpDone,
    Read,
    Write,
)
from kv_cache.core.kinds import Cause, OpKind, Outcome, Phase, Qos, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.metrics.histogram import RELATIVE_ERROR, Histogram
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import (
    SAMPLE_LIMIT,
    Edges,
    Failure,
    FirstValues,
    Flow,
    OpStats,
    Recorder,
)
from kv_cache.metrics.summary import Flows, size_numbers

POPULATED, START, END = 100, 200, 300
ENGINE = "direct"


def edges() -> Edges:
    return Edges(populate_end_ns=POPULATED, measure_start_ns=START, measure_end_ns=END)


def copy(tier: Tier = Tier.NVME, nbytes: int = 8192, copy_id: int = 1) -> CopyRef:
    return CopyRef(copy_id, content_key("block", copy_id), tier, nbytes, copy_id)


def leg(tier: Tier, kind: OpKind, began: int, *chunks: tuple[int, int], device_ns: int = 1) -> Leg:
    """One side whose system calls ended at the instants of `chunks`, with their bytes."""
    parts = tuple(IoChunk(at, nbytes) for at, nbytes in chunks)
    nbytes = sum(part.nbytes for part in parts)
    end = parts[-1].finished_ns if parts else began
    return Leg(tier, kind, ENGINE, nbytes, began, end, device_ns, parts)


def done(op: Op, *legs: Leg, error: str | None = None, failed: OpKind | None = None) -> OpDone:
    ends = [each.finished_ns for each in legs] or [0]
    return OpDone(op, 0, max(ends), legs, error, failed)


def record(
    finished_ns: int | None,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    enqueued_ns: int = 150,
    qos: Qos = Qos.BATCH,
    error: str | None = None,
    hits: int = 0,
) -> RequestRecord:
    return RequestRecord(
        request_id=1,
        user="u",
        conversation="c",
        turn=1,
        qos=qos,
        prompt_tokens=10,
        output_tokens=5,
        outcome=outcome,
        error=error,
        intended_ns=enqueued_ns - 10,
        enqueued_ns=enqueued_ns,
        started_ns=None if finished_ns is None else enqueued_ns + 5,
        first_token_ns=None if finished_ns is None else finished_ns - 8,
        finished_ns=finished_ns,
        looked_up=hits,
        hits=hits,
        load_ns=3,
        store_ns=4,
        compute_ns=6,
        prefilled=True,
        decoded=True,
    )


def flow(
    recorder: Recorder,
    phase: Phase,
    kind: OpKind,
    tier: Tier = Tier.NVME,
    cause: Cause = Cause.REUSE,
) -> OpStats:
    return recorder.flows.get(Flow(phase, tier, kind, cause, ENGINE), OpStats())


# --- in flight when the window closes ------------------------------------------------------------


def ages(histogram: Histogram) -> list[int]:
    """Exact below 512."""
    older = histogram.in_flight
    return [] if older is None else [b for b, n in older.buckets().items() for _ in range(n)]


def test_an_operation_over_the_end_of_the_window_has_the_age_that_it_had_there() -> None:
    recorder = Recorder(edges())
    late = leg(Tier.NVME, OpKind.READ, 260, (END + 70, 8192), device_ns=100)
    recorder.op(done(Read(copy(), Cause.REUSE), late))
    stats = flow(recorder, Phase.MEASURE, OpKind.READ)
    assert (ages(stats.total), ages(stats.device)) == ([40], [30])
    assert stats.operations == stats.total.count == 0


def test_time_inside_the_device_after_the_window_is_no_age() -> None:
    recorder = Recorder(edges())
    late = leg(Tier.NVME, OpKind.READ, 260, (END + 70, 8192), device_ns=50)
    recorder.op(done(Read(copy(), Cause.REUSE), late))
    assert ages(flow(recorder, Phase.MEASURE, OpKind.READ).device) == []


def test_an_operation_that_failed_later_or_is_never_waited_for_was_in_flight_too() -> None:
    recorder = Recorder(edges())
    late = leg(Tier.NVME, OpKind.READ, 250, (END + 5, 8192), device_ns=55)
    recorder.op(done(Read(copy(), Cause.REUSE), late, error="io-error", failed=OpKind.READ))
    recorder.cut_off(Cause.REUSE, leg(Tier.NVME, OpKind.READ, 210, (END + 9, 0), device_ns=99))
    assert ages(flow(recorder, Phase.MEASURE, OpKind.READ).device) == [50, 90]


def test_what_began_after_the_window_or_ended_in_it_was_not_in_flight() -> None:
    recorder = Recorder(edges())
    for began, ended in ((END + 1, END + 9), (250, END)):
        whole = leg(Tier.NVME, OpKind.READ, began, (ended, 8192), device_ns=5)
        recorder.op(done(Read(copy(), Cause.REUSE), whole))
        recorder.cut_off(Cause.REUSE, whole)
    assert ages(flow(recorder, Phase.MEASURE, OpKind.READ).total) == []


def test_a_request_over_the_end_of_the_window_has_waited_so_long_at_least() -> None:
    recorder = Recorder(edges())
    recorder.request(record(END + 4, enqueued_ns=220))  # the first token came in the window
    recorder.request(record(END + 40, enqueued_ns=230))
    recorder.request(record(None, Outcome.UNFINISHED, enqueued_ns=240, error="window-closed"))
    recorder.request(record(None, Outcome.REJECTED, enqueued_ns=250, error="queue-full"))
    for stats in (recorder.all, recorder.classes[Qos.BATCH]):
        assert ages(stats.response) == [70, 80, 90]
        assert ages(stats.end_to_end) == [60, 70, 80]
        assert ages(stats.ttft) == [70, 80]
        assert stats.completed == 0
    assert ages(recorder.classes[Qos.INTERACTIVE].response) == []


def test_while_the_window_has_no_end_nothing_is_in_flight_over_it() -> None:
    recorder = Recorder(Edges())
    recorder.request(record(None, Outcome.UNFINISHED, error="window-closed"))
    assert ages(recorder.all.response) == []


# --- phases --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_ns", "phase"),
    [
        (0, Phase.POPULATE),
        (POPULATED - 1, Phase.POPULATE),
        (POPULATED, Phase.WARMUP),
        (START - 1, Phase.WARMUP),
        (START, Phase.MEASURE),
        (END, Phase.MEASURE),
        (END + 1, Phase.DRAIN),
    ],
)
def test_a_phase_begins_with_its_first_instant_and_the_window_includes_its_last(
    at_ns: int, phase: Phase
) -> None:
    assert edges().phase_of(at_ns) is phase


def test_while_an_end_is_unknown_the_earlier_phase_is_still_running() -> None:
    running = Edges()
    assert running.phase_of(10**15) is Phase.POPULATE
    running.populate_end_ns, running.measure_start_ns = POPULATED, START
    assert running.phase_of(POPULATED) is Phase.WARMUP
    assert running.phase_of(10**15) is Phase.MEASURE


def test_what_is_stored_before_the_run_is_never_measured() -> None:
    recorder = Recorder(Edges())
    written = leg(Tier.NVME, OpKind.WRITE, 1, (50, 8192))
    recorder.op(done(Write(copy(), Cause.POPULATE), written))
    recorder.edges.populate_end_ns = recorder.edges.measure_start_ns = 60
    assert flow(recorder, Phase.POPULATE, OpKind.WRITE, cause=Cause.POPULATE).bytes == 8192
    assert not Flows(recorder.flows).measured(None, OpKind.WRITE)


# --- operations ----------------------------------------------------------------------------------


def test_bytes_count_where_each_system_call_ended_and_the_operation_where_it_ended() -> None:
    recorder = Recorder(edges())
    straddling = leg(Tier.NVME, OpKind.READ, 250, (280, 4096), (END, 4096), (310, 8192))
    recorder.op(done(Read(copy(), Cause.REUSE), straddling))
    window, drain = (flow(recorder, p, OpKind.READ) for p in (Phase.MEASURE, Phase.DRAIN))
    assert (window.bytes, window.operations, window.total.count) == (8192, 0, 0)
    assert (drain.bytes, drain.operations, drain.total.total) == (8192, 1, 60)


def test_a_transfer_that_began_in_the_warm_up_gives_its_early_bytes_to_the_warm_up() -> None:
    recorder = Recorder(edges())
    early = leg(Tier.NVME, OpKind.READ, 150, (START - 1, 1000), (START, 2000))
    recorder.op(done(Read(copy(), Cause.REUSE), early))
    assert flow(recorder, Phase.WARMUP, OpKind.READ).bytes == 1000
    window = flow(recorder, Phase.MEASURE, OpKind.READ)
    assert (window.bytes, window.operations) == (2000, 1)


def test_a_move_counts_once_for_each_of_its_tiers() -> None:
    recorder = Recorder(edges())
    move = Move(copy(Tier.NVME), copy(Tier.CPU, copy_id=2), Cause.PROMOTION)
    read = leg(Tier.NVME, OpKind.READ, 210, (220, 8192))
    written = leg(Tier.CPU, OpKind.WRITE, 220, (230, 8192))
    recorder.op(done(move, read, written), verified=True)
    down = flow(recorder, Phase.MEASURE, OpKind.READ, Tier.NVME, Cause.PROMOTION)
    up = flow(recorder, Phase.MEASURE, OpKind.WRITE, Tier.CPU, Cause.PROMOTION)
    assert (down.operations, down.bytes) == (up.operations, up.bytes) == (1, 8192)
    assert (recorder.verified_objects, recorder.verified_bytes) == (1, 8192)


def test_the_hosts_share_is_what_the_device_did_not_take_and_never_below_nothing() -> None:
    recorder = Recorder(edges())
    op = Read(copy(), Cause.REUSE)
    recorder.op(done(op, leg(Tier.NVME, OpKind.READ, 210, (230, 1), device_ns=15)))
    recorder.op(done(op, leg(Tier.NVME, OpKind.READ, 210, (230, 1), device_ns=25)))
    stats = flow(recorder, Phase.MEASURE, OpKind.READ)
    assert (stats.total.total, stats.device.total, stats.host.total) == (40, 40, 5)
    assert stats.host.lowest == 0


def test_a_failed_operation_counts_its_bytes_but_is_no_operation_and_no_latency() -> None:
    recorder = Recorder(edges())
    partial = leg(Tier.NVME, OpKind.WRITE, 210, (220, 4096))
    op = Write(copy(), Cause.PREFILL)
    recorder.op(done(op, partial, error="no-space", failed=OpKind.WRITE), verified=True)
    stats = flow(recorder, Phase.MEASURE, OpKind.WRITE, cause=Cause.PREFILL)
    assert (stats.operations, stats.bytes, stats.total.count) == (0, 4096, 0)
    assert recorder.failures == {Failure(Tier.NVME, OpKind.WRITE, Cause.PREFILL, "no-space"): 1}
    assert recorder.verified_objects == 0


@pytest.mark.parametrize(("side", "tier"), [(OpKind.READ, Tier.CPU), (OpKind.WRITE, Tier.NVME)])
def test_a_failed_move_is_told_of_the_side_that_failed(side: OpKind, tier: Tier) -> None:
    recorder = Recorder(edges())
    move = Move(copy(Tier.CPU), copy(Tier.NVME, copy_id=2), Cause.DEMOTION)
    recorder.op(done(move, error="io-error", failed=side))
    assert recorder.failures == {Failure(tier, side, Cause.DEMOTION, "io-error"): 1}


def test_a_failed_delete_is_told_of_its_tier() -> None:
    recorder = Recorder(edges())
    delete = Delete(copy(Tier.NVME), Cause.EVICTION)
    recorder.op(done(delete, error="io-error", failed=OpKind.DELETE))
    assert recorder.failures == {Failure(Tier.NVME, OpKind.DELETE, Cause.EVICTION, "io-error"): 1}


def test_an_aborted_operation_counts_its_bytes_and_is_nobodys_failure() -> None:
    recorder = Recorder(edges())
    cut = leg(Tier.NVME, OpKind.READ, 250, (290, 4096), (END + 5, 4096))
    recorder.op(done(Read(copy(), Cause.REUSE), cut, error=ABORTED, failed=OpKind.READ))
    assert not recorder.failures
    assert flow(recorder, Phase.MEASURE, OpKind.READ).bytes == 4096
    assert all(stats.operations == 0 for stats in recorder.flows.values())


# --- requests ------------------------------------------------------------------------------------


def test_only_what_completed_inside_the_window_is_measured() -> None:
    recorder = Recorder(edges())
    for at in (START - 1, START, END, END + 1):
        recorder.request(record(at, hits=2, qos=Qos.INTERACTIVE))
    recorder.request(record(250, Outcome.FAILED, error="io-error", hits=1))
    assert recorder.all.completed == recorder.classes[Qos.INTERACTIVE].completed == 2
    assert recorder.classes[Qos.BATCH].completed == 0
    assert recorder.all.response.count == recorder.all.queue.count == 2
    assert recorder.all.output_tokens == 10
    assert (recorder.reuse.requests, recorder.reuse.hits) == (3, 5)
    assert recorder.request_errors == {"io-error": 1}
    for samples in (recorder.end_to_end_s, recorder.storage_s, recorder.prefill_s):
        assert samples.seen == 2


def test_latencies_follow_the_formulas_of_the_record() -> None:
    recorder = Recorder(edges())
    one = record(260)
    recorder.request(one)
    stats = recorder.all
    assert stats.response.total == 260 - 140
    assert stats.end_to_end.total == 260 - 150
    assert stats.lateness.total == 10
    assert stats.queue.total == 5
    assert stats.service.total == 260 - 155
    assert stats.ttft.total == 252 - 140
    assert stats.tpot.total == 2
    assert stats.storage.total == 7
    assert stats.compute.total == 6


def test_a_request_that_never_began_is_counted_where_it_was_enqueued() -> None:
    recorder = Recorder(edges())
    recorder.request(record(None, Outcome.REJECTED, enqueued_ns=250, error="queue-full"))
    recorder.request(record(None, Outcome.UNFINISHED, enqueued_ns=150, error="drain-ended"))
    assert recorder.outcomes[Phase.MEASURE] == {Outcome.REJECTED: 1}
    assert recorder.outcomes[Phase.WARMUP] == {Outcome.UNFINISHED: 1}
    assert recorder.all.completed == recorder.reuse.requests == 0


def outcome_of(recorder: Recorder, submitted: int) -> RunOutcome:
    return RunOutcome(
        driver="virtual-time",
        recorder=recorder,
        submitted=submitted,
        longest_queue=0,
        tiers=(),
        dropped_last_copies=0,
        dropped_stores=0,
        lost_bytes=0,
        schedule_sha256="",
        schedule_requests=0,
        workload={},
    )


def test_every_submitted_request_is_completed_failed_rejected_or_unfinished() -> None:
    recorder = Recorder(edges())
    endings: Iterable[RequestRecord] = (
        record(POPULATED),
        record(START - 1, Outcome.FAILED, error="io-error"),
        record(250),
        record(END),
        record(260, Outcome.FAILED, error="io-error"),
        record(END + 1),
        record(END + 9, Outcome.FAILED, error="io-error"),
        record(None, Outcome.REJECTED, enqueued_ns=120, error="queue-full"),
        record(None, Outcome.REJECTED, enqueued_ns=END + 1, error="queue-full"),
        record(None, Outcome.UNFINISHED, enqueued_ns=130, error="window-closed"),
        record(None, Outcome.UNFINISHED, enqueued_ns=290, error="drain-ended"),
    )
    for submitted, one in enumerate(endings, 1):
        recorder.request(one)
        books = outcome_of(recorder, submitted).accounting()
        parts = ("completed", "failed", "rejected", "unfinished")
        assert books["submitted"] == sum(books[part] for part in parts), one
    assert books == {
        "submitted": 11,
        "completed": 3,
        "failed": 2,
        "rejected": 2,
        "unfinished": 4,
        "completed_in_warmup": 1,
        "completed_in_window": 2,
        "unfinished_completed_in_drain": 1,
        "unfinished_failed_in_drain": 1,
        "unfinished_abandoned": 2,
    }


def test_a_window_that_never_began_or_never_ended_has_no_length() -> None:
    assert outcome_of(Recorder(edges()), 0).window_ns == END - START
    assert outcome_of(Recorder(Edges()), 0).window_ns == 0
    before = Edges(populate_end_ns=0, measure_start_ns=START, measure_end_ns=START - 50)
    assert outcome_of(Recorder(before), 0).window_ns == 0


def test_single_values_are_kept_up_to_a_bound_and_counted_beyond_it() -> None:
    samples = FirstValues()
    for value in range(SAMPLE_LIMIT + 10):
        samples.add(value * 10**9)
    assert samples.kept() == [float(value) for value in range(SAMPLE_LIMIT)]
    assert samples.seen == SAMPLE_LIMIT + 10


def test_fewer_values_than_the_bound_are_kept_as_they_are() -> None:
    samples = FirstValues()
    assert samples.kept() == []
    samples.add(2_500_000_000)
    assert samples.kept() == [2.5]


# --- metadata, distinct bytes, new bytes -----------------------------------------------------


def test_operations_on_metadata_are_counted_apart_also_of_an_operation_that_fails() -> None:
    recorder = Recorder(edges())
    ref = copy()
    good = leg(Tier.NVME, OpKind.WRITE, 205, (210, 8192))._replace(
        steps=(MetadataStep("create", 3), MetadataStep("rename", 5))
    )
    bad = leg(Tier.NVME, OpKind.WRITE, 215)._replace(steps=(MetadataStep("create", 7),))
    recorder.op(done(Write(ref, Cause.PREFILL), good))
    recorder.op(done(Write(ref, Cause.PREFILL), bad, error="io-error", failed=OpKind.WRITE))
    steps = {(flow.phase, flow.step): histogram for flow, histogram in recorder.steps.items()}
    assert steps.keys() == {(Phase.MEASURE, "create"), (Phase.MEASURE, "rename")}
    assert steps[Phase.MEASURE, "create"].count == 2
    assert steps[Phase.MEASURE, "create"].total == 10


def test_bytes_read_twice_from_storage_are_one_copy_s_until_it_is_deleted() -> None:
    recorder = Recorder(edges())
    ref = copy()
    loaded = leg(Tier.NVME, OpKind.READ, 205, (210, 8192))
    for _ in range(3):
        recorder.op(done(Read(ref, Cause.REUSE), loaded))
    recorder.op(
        done(
            Move(ref, copy(Tier.CPU, copy_id=2), Cause.PROMOTION),
            loaded,
            leg(Tier.CPU, OpKind.WRITE, 205, (212, 8192)),
        )
    )
    assert recorder.distinct.bytes == 8192
    recorder.op(done(Delete(ref, Cause.EVICTION), leg(Tier.NVME, OpKind.DELETE, 220)))
    recorder.op(done(Read(ref, Cause.REUSE), loaded))
    assert recorder.distinct.bytes == 2 * 8192


def test_only_stores_of_new_blocks_are_new_bytes() -> None:
    recorder = Recorder(edges())
    up, down = copy(Tier.CPU), copy(copy_id=2)
    recorder.op(done(Write(up, Cause.PREFILL), leg(Tier.CPU, OpKind.WRITE, 205, (210, 8192))))
    recorder.op(
        done(
            Move(up, down, Cause.DEMOTION),
            leg(Tier.CPU, OpKind.READ, 205, (210, 8192)),
            leg(Tier.NVME, OpKind.WRITE, 205, (212, 8192)),
        )
    )
    assert recorder.new_bytes == 8192


def test_system_calls_and_object_sizes_are_in_the_flow() -> None:
    recorder = Recorder(edges())
    pieces = leg(Tier.NVME, OpKind.READ, 205, (210, 4096), (212, 4096))
    recorder.op(done(Read(copy(), Cause.REUSE), pieces))
    (stats,) = recorder.flows.values()
    assert (stats.calls, stats.operations, stats.sizes.total) == (2, 1, 8192)


def test_sizes_of_objects_are_told_exactly_and_by_powers_of_two() -> None:
    sizes = Histogram()
    for nbytes in [4096] * 150 + [65536] * 40 + [69632] * 10:
        sizes.add(nbytes)
    found = size_numbers(sizes)
    total = 150 * 4096 + 40 * 65536 + 10 * 69632
    assert found["objects"] == 200
    assert (found["sum"], found["mean"]) == (total, total / 200)
    assert (found["min"], found["max"]) == (4096, 69632)
    assert found["p50"] == pytest.approx(4096, rel=RELATIVE_ERROR)
    assert found["p95"] == pytest.approx(65536, rel=RELATIVE_ERROR)
    assert found["powers_of_two"] == [[4096, 150], [65536, 50]]


def test_sizes_of_nothing_are_not_there() -> None:
    found = size_numbers(Histogram())
    assert found.pop("objects") == found.pop("sum") == 0
    assert found.pop("powers_of_two") == []
    assert set(found.values()) == {None}
