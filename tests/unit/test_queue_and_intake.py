"""The order of service, and that every submitted request comes out exactly once."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.kinds import Qos
from kv_cache.core.model import MODELS
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.schedule.intake import Intake
from kv_cache.schedule.queue import QosQueue, Queued
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.paced import Pace, Paced
from kv_cache.workload.qos import QosMix
from kv_cache.workload.replay import ReplayConfig, TraceReplay
from kv_cache.workload.row_requests import RowRequestsConfig
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig

S = 10**9
AGEING = 10 * S
PRIORITY: Mapping[Qos, int] = {Qos.INTERACTIVE: 3, Qos.RESPONSIVE: 2, Qos.BATCH: 1}
MIX = QosMix(interactive=0.2, responsive_below=0.5, priorities=(3, 2, 1))
GEOMETRY = Geometry(model=MODELS["tiny-1b"], tensor_parallel=1, block_tokens=0)
NO_LIMIT = 10**6


def asked(number: int, qos: Qos = Qos.BATCH) -> Request:
    return Request(
        request_id=number,
        intended_ns=0,
        user="u",
        conversation="c",
        turn=1,
        qos=qos,
        priority=PRIORITY[qos],
        prompt_tokens=1,
        output_tokens=1,
        blocks=(),
    )


def users(
    count: int, *, think_s: float = 1.0, closed: bool = True, max_requests: int = 0
) -> SyntheticUsers:
    persona = Persona(
        name="p",
        context_range=(10, 20),
        generation_range=(1, 2),
        think_time_range=(think_s, think_s),
    )
    config = UsersConfig(
        num_users=count, personas=(persona,), qos=MIX, geometry=GEOMETRY, closed=closed
    )
    return SyntheticUsers(config, Seed(1), max_requests)


def trace(times_ns: Sequence[int], *, speedup: float = 1.0, cycles: int = 1) -> TraceReplay:
    rows = [TraceRow(i + 1, at_ns, 10, 1) for i, at_ns in enumerate(times_ns)]
    config = ReplayConfig(
        requests=RowRequestsConfig(geometry=GEOMETRY, qos=MIX), speedup=speedup, cycles=cycles
    )
    return TraceReplay(lambda: iter(rows), config, Seed(1), {})


def intake_of(
    source: Source, *, queue_limit: int = NO_LIMIT, max_requests: int = 0, ageing_ns: int = AGEING
) -> Intake:
    return Intake(source, queue_limit=queue_limit, ageing_ns=ageing_ns, max_requests=max_requests)


def popped(queue: QosQueue) -> list[int]:
    found = []
    while (queued := queue.pop()) is not None:
        found.append(queued.request.request_id)
    return found


@given(st.lists(st.tuples(st.sampled_from(Qos), st.booleans()), max_size=60))
def test_requests_that_are_served_before_one_that_came_earlier_are_counted(
    steps: list[tuple[Qos, bool]],
) -> None:
    queue, waiting, out_of_turn = QosQueue(AGEING), list[int](), 0
    for number, (qos, serves) in enumerate(steps):
        queue.push(asked(number, qos), number)
        waiting.append(number)
        if serves and (queued := queue.pop()) is not None:
            out_of_turn += queued.request.request_id != waiting[0]
            waiting.remove(queued.request.request_id)
        assert queue.oldest_ns() == (waiting[0] if waiting else None)
    assert queue.out_of_turn == out_of_turn
    assert queue.has_order == (len({qos for qos, _ in steps}) > 1)
    assert sorted(queued.request.request_id for queued in queue.drain()) == waiting
    assert (len(queue), queue.out_of_turn) == (0, out_of_turn)


# --- the queue -----------------------------------------------------------------------------------


def test_of_what_came_together_the_higher_class_goes_first() -> None:
    queue = QosQueue(AGEING)
    for number, qos in enumerate((Qos.BATCH, Qos.RESPONSIVE, Qos.INTERACTIVE, Qos.BATCH)):
        queue.push(asked(number, qos), 5)
    assert len(queue) == 4
    assert popped(queue) == [2, 1, 0, 3]
    assert len(queue) == 0
    assert queue.pop() is None


def test_within_a_class_the_first_to_come_is_the_first_to_go() -> None:
    queue = QosQueue(AGEING)
    for number in range(50):
        queue.push(asked(number), number // 10)
    assert popped(queue) == list(range(50))


def test_without_ageing_it_is_first_come_first_served() -> None:
    queue = QosQueue(0)
    for number, qos in enumerate((Qos.BATCH, Qos.INTERACTIVE, Qos.RESPONSIVE)):
        queue.push(asked(number, qos), number)
    assert popped(queue) == [0, 1, 2]


@pytest.mark.parametrize("qos", [Qos.RESPONSIVE, Qos.INTERACTIVE])
def test_batch_work_is_overtaken_only_by_what_comes_within_its_ageing(qos: Qos) -> None:
    gap = (PRIORITY[qos] - PRIORITY[Qos.BATCH]) * AGEING
    for late, order in ((gap - 1, [1, 0]), (gap, [0, 1]), (gap + 1, [0, 1])):
        queue = QosQueue(AGEING)
        queue.push(asked(0), 100)
        queue.push(asked(1, qos), 100 + late)
        assert popped(queue) == order


@given(
    arrivals=st.lists(st.tuples(st.sampled_from(Qos), st.integers(0, 3 * AGEING)), max_size=40),
    pops=st.lists(st.booleans(), max_size=40),
)
def test_nobody_is_overtaken_by_a_later_arrival_than_the_bound_allows(
    arrivals: list[tuple[Qos, int]], pops: list[bool]
) -> None:
    queue = QosQueue(AGEING)
    waiting: list[Queued] = []
    served = 0
    steps = iter(pops)
    now_ns = 0
    for number, (qos, gap_ns) in enumerate(arrivals):
        now_ns += gap_ns
        queue.push(asked(number, qos), now_ns)
        waiting.append(Queued(asked(number, qos), now_ns))
        if not next(steps, False):
            continue
        taken = queue.pop()
        assert taken is not None
        waiting.remove(taken)
        served += 1
        for other in waiting:
            lead = (taken.request.priority - other.request.priority) * AGEING
            assert taken.enqueued_ns - other.enqueued_ns <= lead
    assert len(queue) == len(arrivals) - served
    assert len(popped(queue)) == len(waiting)


# --- the intake ----------------------------------------------------------------------------------


def test_nothing_arrives_before_its_instant() -> None:
    intake = intake_of(trace([0, 5, 5, 9]))
    assert intake.wake_ns() == 0
    assert intake.take(0) is not None
    assert intake.take(0) is None
    assert intake.wake_ns() == 5
    intake.pump(8)
    assert (intake.queued, intake.submitted, intake.wake_ns()) == (2, 3, 9)
    queued = intake.take(8)
    assert queued is not None
    assert (queued.request.intended_ns, queued.enqueued_ns) == (5, 8)


def test_a_full_queue_rejects_and_counts_what_it_rejects() -> None:
    intake = intake_of(trace([0] * 10), queue_limit=3)
    intake.pump(0)
    assert (intake.queued, intake.submitted, intake.longest_queue) == (3, 10, 3)
    assert sorted(q.request.request_id for q in intake.rejected) == list(range(3, 10))
    assert not intake.finished
    for _ in range(3):
        queued = intake.take(1)
        assert queued is not None
        intake.finish(queued.request, 2)
    assert intake.finished


def test_a_rejected_user_thinks_and_asks_again() -> None:
    intake = intake_of(users(3), queue_limit=1)
    intake.pump(2 * S)
    assert len(intake.rejected) == 2
    intake.pump(4 * S)
    assert len(intake.rejected) >= 4


def test_users_who_never_think_are_not_rejected_for_ever_at_one_instant() -> None:
    intake = intake_of(users(5, think_s=0.0), queue_limit=2)
    intake.pump(0)
    assert (intake.queued, len(intake.rejected)) == (2, 3)
    queued = intake.take(0)
    assert queued is not None
    intake.rejected.clear()
    intake.finish(queued.request, 7)
    intake.pump(7)
    assert intake.queued == 2


@pytest.mark.parametrize("most", [1, 7, 20])
def test_max_requests_is_exact(most: int) -> None:
    for source in (users(4), users(4, closed=False), trace([0] * 30), trace([3], cycles=0)):
        intake = intake_of(source, max_requests=most)
        served = serve_all(intake)
        assert intake.submitted == len(served) == most
        assert intake.finished
        assert intake.wake_ns() is None


def serve_all(intake: Intake, workers: int = 2) -> list[Request]:
    """Serve with a fixed service time until nothing will come."""
    serving: list[Request] = []
    served: list[Request] = []
    now_ns = 0
    while not intake.finished:
        while len(serving) < workers and (queued := intake.take(now_ns)) is not None:
            serving.append(queued.request)
        if serving:
            now_ns += 1000
            served.append(serving.pop(0))
            intake.finish(served[-1], now_ns)
        else:
            wake_ns = intake.wake_ns()
            assert wake_ns is not None, "nothing is served and nothing will come"
            assert wake_ns > now_ns
            now_ns = wake_ns
    return served


def test_on_demand_a_request_comes_when_somebody_is_free_and_not_before() -> None:
    intake = intake_of(trace([0, 50, 90], speedup=0))
    intake.pump(10)
    assert (intake.queued, intake.submitted) == (0, 0)
    assert intake.demanded
    assert intake.wake_ns() is None
    for now_ns in (20, 30):
        taken = intake.take(now_ns)
        assert taken is not None
        assert (taken.request.intended_ns, taken.enqueued_ns) == (now_ns, now_ns)
    assert (intake.submitted, intake.longest_queue) == (2, 0)


def test_on_demand_a_full_pass_serves_every_row_in_order() -> None:
    intake = intake_of(trace(list(range(40)), speedup=0, cycles=2), ageing_ns=0)
    served = serve_all(intake)
    assert [r.request_id for r in served] == list(range(80))


def test_closing_returns_what_waited_and_ends_all_arrivals() -> None:
    intake = intake_of(trace([0, 0, 0, 100]))
    taken = intake.take(0)
    assert taken is not None
    waiting = intake.close()
    assert {q.request.request_id for q in waiting} == {0, 1, 2} - {taken.request.request_id}
    assert intake.close() == []
    assert intake.take(200) is None
    assert intake.wake_ns() is None
    assert (intake.no_more_arrivals, intake.finished) == (True, False)
    intake.finish(taken.request, 300)
    assert intake.finished
    assert intake.submitted == 3


def test_the_sources_time_begins_with_the_load_and_not_with_the_program() -> None:
    intake = intake_of(trace([0, 5], cycles=2))
    intake.begin(1000)
    assert intake.wake_ns() == 1000
    assert intake.take(999) is None
    taken = [intake.take(1000), intake.take(1005)]
    assert [q and q.request.intended_ns for q in taken] == [1000, 1005]
    for queued in taken:
        assert queued is not None
        intake.finish(queued.request, 1010)
    assert intake.wake_ns() == 1010, "the second cycle begins where the first has ended"


@given(
    kind=st.sampled_from(("closed", "open", "eager", "trace", "on-demand", "paced")),
    queue_limit=st.integers(1, 6),
    max_requests=st.sampled_from((0, 1, 9, 25)),
    origin_ns=st.sampled_from((0, 12_345)),
    chance=st.integers(0, 2**32),
)
def test_every_submitted_request_comes_out_exactly_once(
    kind: str, queue_limit: int, max_requests: int, origin_ns: int, chance: int
) -> None:
    rng = Random(chance)
    sources: dict[str, Source] = {
        "closed": users(4, max_requests=max_requests),
        "open": users(4, closed=False, max_requests=max_requests),
        "eager": users(4, think_s=0.0),
        "trace": trace([0, 0, 1, S, S, S, 2 * S] * 4, cycles=2),
        "on-demand": trace([0] * 20, speedup=0, cycles=2),
        "paced": Paced(users(4, think_s=0.0), Pace(rate=3), Seed(2)),
    }
    intake = intake_of(sources[kind], queue_limit=queue_limit, max_requests=max_requests)
    intake.begin(origin_ns)
    now_ns = origin_ns
    serving: list[Request] = []
    out: list[int] = []
    for _ in range(60):
        now_ns += rng.choice((0, 1, S // 2))
        match rng.randrange(3):
            case 0:
                intake.pump(now_ns)
            case 1:
                queued = intake.take(now_ns)
                if queued is not None:
                    assert origin_ns <= queued.request.intended_ns <= queued.enqueued_ns <= now_ns
                    serving.append(queued.request)
            case _ if serving:
                ended = serving.pop(rng.randrange(len(serving)))
                intake.finish(ended, now_ns)
                out.append(ended.request_id)
        assert not (sources[kind].on_demand and intake.rejected)
        out += [q.request.request_id for q in intake.rejected]
        intake.rejected.clear()
        assert intake.in_flight == len(serving)
        assert intake.queued <= queue_limit
        assert intake.longest_queue <= queue_limit
        assert intake.submitted == len(out) + len(serving) + intake.queued
        if max_requests:
            assert intake.submitted <= max_requests
        if sources[kind].on_demand:
            assert intake.queued <= 1
    out += [q.request.request_id for q in intake.close()]
    out += [request.request_id for request in serving]
    assert sorted(out) == list(range(intake.submitted))
