"""Causal replay: who is sent when, and what becomes of a conversation's history."""

import gc
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kv_cache.core.kinds import Lookup
from kv_cache.core.model import MODELS
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import NS_PER_S
from kv_cache.workload import replay as replaying
from kv_cache.workload.conversation import Conversation
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.offered import Offered
from kv_cache.workload.qos import QosMix
from kv_cache.workload.replay import ReplayConfig, TraceReplay
from kv_cache.workload.row_requests import History, RowRequestsConfig
from kv_cache.workload.sessions import SessionReplay, SessionsConfig
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source

QOS = QosMix(interactive=0.2, responsive_below=0.6, priorities=(3, 2, 1))


def geometry(block_tokens: int) -> Geometry:
    return Geometry(model=MODELS["tiny-1b"], tensor_parallel=1, block_tokens=block_tokens)


def asking(
    block_tokens: int = 16, own: int = 0, history: History = History.FORMAT
) -> RowRequestsConfig:
    return RowRequestsConfig(
        geometry=geometry(block_tokens), qos=QOS, trace_block_tokens=own, history=history
    )


def replay(rows: list[TraceRow], **settings: object) -> TraceReplay:
    config = replace(ReplayConfig(requests=asking(), cycles=1), **settings)
    return TraceReplay(lambda: iter(rows), config, Seed(1), {})


def sessions(rows: list[TraceRow], **settings: object) -> SessionReplay:
    config = replace(SessionsConfig(requests=asking(), users=2, cycles=1), **settings)
    return SessionReplay(lambda: iter(rows), config, Seed(1), {})


def talk(
    line: int, at_s: float, session: str, tokens: int = 40, think_s: float | None = None
) -> TraceRow:
    think_ns = None if think_s is None else round(think_s * NS_PER_S)
    at_ns = round(at_s * NS_PER_S)
    return TraceRow(line, at_ns, tokens, 8, session=session, adds=True, think_ns=think_ns)


class Served:
    """Serves whatever is due, each request for a time drawn from a seed, up to `width` at once."""

    def __init__(self, source: Source, chance: int, longest_ns: int, width: int = 10**9) -> None:
        rng, now_ns = Random(chance), 0
        serving: list[tuple[int, int, Request]] = []
        self.sent: list[Request] = []
        self.answered_ns: dict[int, int] = {}
        while serving or not source.exhausted:
            due_ns = source.next_ns()
            may = due_ns is not None and len(serving) < width
            if may and (not serving or max(now_ns, due_ns or 0) <= serving[0][0]):
                now_ns = max(now_ns, due_ns or 0)
                request = source.pop(now_ns)
                self.sent.append(request)
                serving.append((now_ns + rng.randrange(longest_ns), request.request_id, request))
                serving.sort(key=lambda each: each[:2])
                continue
            assert serving, "nothing is due and nothing is served, but it has not ended"
            now_ns, _, request = serving.pop(0)
            self.answered_ns[request.request_id] = now_ns
            source.after(request, now_ns)


@pytest.mark.parametrize("speedup", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("scale", [1.0, 0.2, 5.0])
def test_a_follow_up_is_never_sent_before_its_predecessor_is_answered(
    speedup: float, scale: float
) -> None:
    rng, at_s, rows = Random(3), 0.0, []
    for line in range(1, 400):
        at_s += rng.expovariate(5.0)
        rows.append(talk(line, at_s, f"s{rng.randrange(12)}"))
    for chance in range(3):
        served = Served(
            replay(rows, speedup=speedup, arrival_scale=scale), chance, 4 * NS_PER_S, width=9
        )
        assert len(served.sent) == len(rows)
        last: dict[str, Request] = {}
        for request in served.sent:
            before = last.get(request.conversation)
            if before is not None:
                assert request.intended_ns >= served.answered_ns[before.request_id] or (
                    request.turn == before.turn + 1
                    and served.answered_ns[before.request_id] <= request.intended_ns
                )
                assert request.turn == before.turn + 1
            last[request.conversation] = request


def test_a_row_that_is_late_because_of_its_predecessor_thinks_after_the_answer() -> None:
    rows = [talk(1, 0, "a"), talk(2, 1, "a", think_s=0.5), talk(3, 1.1, "b")]
    source = replay(rows, speedup=2.0)
    first = source.pop(0)
    due_ns = source.next_ns()
    assert due_ns == round(0.55 * NS_PER_S), "the other session does not wait"
    source.pop(due_ns)
    assert source.next_ns() is None
    source.after(first, 9 * NS_PER_S)
    assert source.next_ns() == round(9.25 * NS_PER_S)


def test_a_row_whose_predecessor_was_answered_early_comes_at_its_own_time() -> None:
    source = replay([talk(1, 0, "a"), talk(2, 7, "a")])
    source.after(source.pop(0), NS_PER_S)
    assert source.next_ns() == 7 * NS_PER_S


def test_rows_wait_for_all_that_they_name() -> None:
    plain = TraceRow(1, 0, 10, 1)
    rows = [
        plain._replace(name="a"),
        plain._replace(name="b", after=("a",)),
        plain._replace(name="c", after=("a",)),
        plain._replace(name="d", after=("b", "c"), think_ns=5),
        plain._replace(name="e", after=("nobody",)),
    ]
    source = replay(rows)
    first = source.pop(0)
    alone = source.pop(0)
    assert alone.conversation == "e", "who names somebody unknown waits for nobody"
    assert source.next_ns() is None
    source.after(first, 100)
    b, c = source.pop(100), source.pop(100)
    assert (b.conversation, c.conversation) == ("b", "c")
    source.after(c, 200)
    assert source.next_ns() is None
    source.after(b, 300)
    assert source.next_ns() == 305


def test_a_session_of_ten_thousand_unanswered_rows_holds_no_more_than_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "MOST_HELD", 50)
    read = 0

    def rows() -> Iterator[TraceRow]:
        nonlocal read
        for line in range(1, 10_000):
            read += 1
            yield talk(line, 0, "a", tokens=1)

    source = TraceReplay(rows, ReplayConfig(requests=asking(), cycles=1), Seed(1), {})
    first = source.pop(0)
    assert source.next_ns() is None
    assert read <= 53
    source.after(first, 1)
    assert source.next_ns() == 1


@pytest.mark.parametrize(("scale", "gap_s"), [(4.0, 0.25), (0.5, 2.0), (1.0, 1.0)])
def test_arrival_scale_moves_the_beginnings_and_not_what_is_inside(
    scale: float, gap_s: float
) -> None:
    rows = sorted(
        (talk(0, start + turn * 0.3, f"s{start}") for start in range(20) for turn in range(5)),
        key=lambda row: row.at_ns,
    )
    at: dict[str, list[int]] = defaultdict(list)
    planned = list(replay(rows, arrival_scale=scale).plan())
    for request in planned:
        at[request.conversation].append(request.intended_ns)
    starts = sorted(times[0] for times in at.values())
    assert {later - earlier for earlier, later in pairwise(starts)} == {round(gap_s * NS_PER_S)}
    for times in at.values():
        assert {later - earlier for earlier, later in pairwise(times)} == {round(0.3 * NS_PER_S)}
    if scale >= 1:
        instants = [request.intended_ns for request in planned]
        assert instants == sorted(instants)


@given(st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 7.0]), st.integers(1, 4))
def test_sessions_are_causal_and_so_many_at_a_time(chance: int, speedup: float, users: int) -> None:
    rng = Random(chance)
    rows = [
        talk(1 + turn, 0, f"s{number}", think_s=rng.random() * 3)
        for number in range(8)
        for turn in range(rng.randrange(1, 5))
    ]
    served = Served(sessions(rows, speedup=speedup, users=users), chance, 2 * NS_PER_S)
    assert len(served.sent) == len(rows)
    think = iter_think(rows)
    last: dict[str, Request] = {}
    going: dict[str, tuple[int, int]] = {}
    for request in served.sent:
        before = last.get(request.conversation)
        if before is not None:
            think_ns = think[request.conversation][request.turn - 1]
            waited = round(think_ns / speedup) if speedup else 0
            assert request.intended_ns == served.answered_ns[before.request_id] + waited
        last[request.conversation] = request
        end_ns = served.answered_ns[request.request_id]
        begin_ns = going.get(request.conversation, (request.intended_ns, 0))[0]
        going[request.conversation] = (begin_ns, end_ns)
    for begin_ns, _ in going.values():
        at_once = sum(1 for b, e in going.values() if b <= begin_ns < e)
        assert at_once <= users


def iter_think(rows: list[TraceRow]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row.session or ""].append(row.think_ns or 0)
    return found


def test_a_session_with_sub_agents_joins_them_before_it_goes_on() -> None:
    plain = TraceRow(1, 0, 64, 1, (1,), 64, "s", scope="s")
    rows = [
        plain._replace(name="0"),
        plain._replace(name="0.1", after=("0",), think_ns=0),
        plain._replace(name="0.2", after=("0",), think_ns=0),
        plain._replace(name="1", after=("0.1", "0.2"), think_ns=10),
    ]
    source = sessions(rows, requests=asking(64, 64))
    source.after(source.pop(0), 100)
    one, two = source.pop(100), source.pop(100)
    assert source.next_ns() is None
    source.after(two, 150)
    source.after(one, 400)
    assert source.next_ns() == 410


def test_local_ids_are_the_sessions_own_and_of_one_cycle() -> None:
    plain = TraceRow(1, 0, 128, 1, (1, 2), 64)
    rows = [plain._replace(session=name, scope=name) for name in ("a", "b")]
    source = sessions(rows, requests=asking(64, 64), cycles=2)
    asked = [tuple(block.key for block in request.blocks) for request in source.plan()]
    assert len(asked) == 4
    assert len({key for keys in asked for key in keys}) == 8
    rows = [plain._replace(session=name) for name in ("a", "b")]
    source = sessions(rows, requests=asking(64, 64), cycles=2)
    assert len({block.key for request in source.plan() for block in request.blocks}) == 2 * 2


def test_blocks_hold_the_tokens_of_the_prompt_and_no_more() -> None:
    """What the ids do not cover is behind them, and what is behind the prompt's end is nothing."""
    for prompt, block_tokens, tokens, tail in (
        (100, 64, [64, 36], 0), (100, 16, [16] * 6 + [4], 0), (100, 0, [100], 0),
        (128, 64, [64, 64], 0), (140, 64, [64, 64], 12), (64, 64, [64], 0),
    ):  # fmt: skip
        row = TraceRow(1, 0, prompt, 1, (1, 2), 64)
        (request,) = replay([row], requests=asking(block_tokens, 64)).plan()
        assert request.tokens_in_blocks == tokens
        assert {block.tokens for block in request.blocks} == {block_tokens or prompt}
        assert (request.tail_tokens, request.context_tokens) == (tail, prompt)
        whole = geometry(block_tokens).nbytes(block_tokens or prompt)
        assert {block.nbytes for block in request.blocks} == {whole}


# --- history -----------------------------------------------------------------------------------


def test_a_turns_prompt_is_all_that_was_said_before_it() -> None:
    rows = [talk(1, 0, "a", 40), talk(2, 0, "a", 30), talk(3, 0, "a", 5)]
    first, second, third = sessions(rows).plan()
    assert [r.prompt_tokens for r in (first, second, third)] == [40, 40 + 8 + 30, 78 + 8 + 5]
    assert [len(r.blocks) for r in (first, second, third)] == [2, 4, 5]
    assert [r.new_from for r in (first, second, third)] == [0, 2, 4]
    assert third.blocks[:4] == second.blocks
    assert [r.tail_tokens for r in (first, second, third)] == [8, 14, 11]


def test_one_object_a_turn_holds_what_the_turn_added_and_the_answer_before_it() -> None:
    rows = [talk(1, 0, "a", 40), talk(2, 0, "a", 30)]
    first, second = sessions(rows, requests=asking(0)).plan()
    assert [b.tokens for b in first.blocks] == [40]
    assert [b.tokens for b in second.blocks] == [40, 38]
    assert second.new_from == 1


@pytest.mark.parametrize(
    ("history", "prompts", "new_from"),
    [
        (History.INCLUDED, [40, 70, 75], [0, 2, 4]),
        (History.ADDED, [40, 118, 201], [0, 2, 7]),
        (History.NONE, [40, 70, 75], [0, 0, 0]),
    ],
)
def test_what_the_prompts_of_a_session_mean_can_be_said(
    history: History, prompts: list[int], new_from: list[int]
) -> None:
    rows = [talk(line, line, "a", tokens) for line, tokens in enumerate((40, 70, 75), 1)]
    asked = list(replay(rows, requests=asking(16, history=history)).plan())
    assert [r.prompt_tokens for r in asked] == prompts
    assert [r.new_from for r in asked] == new_from
    if history is History.NONE:
        assert len({b.key for r in asked for b in r.blocks}) == sum(len(r.blocks) for r in asked)


def test_a_prompt_that_is_shorter_than_the_last_begins_anew_and_is_counted() -> None:
    rows = [talk(1, 0, "a", 80), talk(2, 1, "a", 48), talk(3, 2, "a", 64)]
    source = replay(rows, requests=asking(16, history=History.INCLUDED))
    first, second, third = source.plan()
    assert second.new_from == 0
    assert not {b.key for b in first.blocks} & {b.key for b in second.blocks}
    assert third.blocks[:3] == second.blocks
    Served(source, 1, 10)
    assert source.describe()["history_restarts"] == 1


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 200), st.booleans()), max_size=20),
    st.sampled_from([0, 1, 16, 256]),
)
def test_every_turn_begins_with_the_blocks_of_the_one_before_it_or_anew(
    turns: list[tuple[int, int, bool]], block_tokens: int
) -> None:
    said = Conversation("c")
    before: tuple[object, ...] = ()
    for number, (tokens, answer, adds) in enumerate(turns, 1):
        restarts = said.restarts
        turn = said.ask(geometry(block_tokens), tokens, answer, adds=adds)
        assert turn.number == number
        if said.restarts == restarts:
            assert turn.blocks[: turn.new_from] == before
        else:
            assert not set(turn.blocks) & set(before)
        if block_tokens:
            covered = sum(block.tokens for block in turn.blocks) + turn.tail_tokens
            assert covered == turn.prompt_tokens
        before = turn.blocks


# --- rows without prefix information, operations, records ----------------------------------------


def test_rows_without_prefix_information_never_share() -> None:
    rows = [TraceRow(5, 0, 48, 3), TraceRow(5, 0, 48, 3)]  # as from two files: the same line
    asked = list(replay(rows, cycles=2).plan())
    keys = [block.key for request in asked for block in request.blocks]
    assert len(keys) == len(set(keys)) == 12
    assert all(request.once for request in asked)


def test_an_operation_of_an_io_trace_is_a_lookup_or_a_store_of_its_size() -> None:
    plain = TraceRow(1, 0, 1, 0, ("../key",), nbytes=12_345)
    write, read = replay([plain, plain._replace(reads=True)]).plan()
    assert write.blocks == read.blocks
    assert write.blocks[0].nbytes == 12_345
    assert (write.new_from, read.new_from) == (0, 1)
    assert write.lookup is read.lookup is Lookup.OPERATION


def test_a_recorded_request_is_asked_as_it_was() -> None:
    (made,) = replay([talk(1, 0, "a")]).plan()
    (again,) = replay([TraceRow(1, 7, 1, 1, request=made)]).plan()
    assert again == replace(made, intended_ns=0 if again.intended_ns == 0 else 7)


def test_more_cycles_of_a_trace_take_no_more_memory() -> None:
    def rows() -> Iterator[TraceRow]:
        for line in range(1, 401):
            yield talk(line, line / 10, f"s{line % 120}", tokens=3)

    config = ReplayConfig(requests=asking(), cycles=14)
    source = TraceReplay(rows, config, Seed(1), {})
    held: list[int] = []
    tracemalloc.start()
    for count in range(1, 13 * 400 + 1):
        due_ns = source.next_ns()
        assert due_ns is not None
        source.after(source.pop(due_ns), due_ns)
        if count % (400 * 3) == 0:  # always at the same place of a cycle
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    rows_more = 6 * 400
    assert held[-1] - held[1] < rows_more, held  # a row that is kept takes 100 bytes


def test_a_trace_of_operations_offers_what_was_written_before_it_is_read() -> None:
    plain = TraceRow(1, 0, 1, 0, ("a",), nbytes=4096)
    reads = plain._replace(reads=True)
    rows = [reads, reads, plain, plain, reads, reads._replace(hash_ids=("b",))]
    offered = Offered()
    told = [offered.see(request).offered_blocks for request in replay(rows).plan()]
    assert told == [0, 0, 0, 0, 1, 0]


def test_what_is_forgotten_is_counted_and_what_is_asked_for_is_kept() -> None:
    offered = Offered(most=3)

    def ask(*ids: int) -> int:
        row = TraceRow(1, 0, 16 * len(ids), 1, ids, 16)
        (request,) = replay([row], requests=asking(16, 16)).plan()
        return offered.see(request).offered_blocks

    assert [ask(1, 2, 3), ask(1), ask(4), ask(1), ask(2)] == [0, 1, 0, 1, 0]
    assert offered.forgotten == 2


def test_a_pass_over_a_trace_offers_what_the_trace_offers_and_no_more() -> None:
    plain = TraceRow(1, 0, 32, 1, (1, 2), 16)
    rows = [plain, plain._replace(hash_ids=(1, 3)), plain._replace(hash_ids=(4,), nbytes=8)]
    for cycles in (1, 3):
        offered = Offered()
        requests = list(replay(rows, requests=asking(16, 16), cycles=cycles).plan())
        told = [offered.see(request).offered_blocks for request in requests]
        assert told == [0, 1, 0] * cycles
        assert len({b.key for r in requests for b in r.blocks}) == 4 * cycles


def test_what_stays_over_all_passes_is_remembered_over_all_of_them() -> None:
    offered = Offered()
    (made,) = replay([TraceRow(1, 0, 32, 1, (1, 2), 16)], requests=asking(16, 16)).plan()
    offered.add([made.blocks[1]])
    shared = replace(made, shared=1)
    assert offered.see(shared).offered_blocks == 1, "what is there before anybody asks"
    for cycle in range(1, 5):
        assert offered.see(replace(shared, cycle=cycle)).offered_blocks == 2


def test_a_cycle_that_a_limit_cut_short_has_not_ended() -> None:
    rows = [talk(1 + turn, 0, f"s{n}") for n in range(4) for turn in range(2)]
    config = SessionsConfig(requests=asking(), users=2, cycles=0)
    for most, ended in ((5, 0), (8, 1), (13, 1)):
        for source in (
            SessionReplay(lambda: iter(rows), config, Seed(1), {}, most),
            TraceReplay(
                lambda: iter(rows), ReplayConfig(requests=asking(), cycles=0), Seed(1), {}, most
            ),
        ):
            assert len(Served(source, 1, 10).sent) == most
            assert source.describe()["cycles_ended"] == ended, (most, source)


def test_a_branch_of_a_session_has_no_history_that_nobody_states() -> None:
    plain = TraceRow(1, 0, 64, 8, session="s", adds=True)
    rows = [
        plain._replace(name="a"),
        plain._replace(name="b", after=("a",)),
        plain._replace(name="c", after=("a",)),
        plain._replace(name="d", after=("b",)),
    ]
    for make in (replay, sessions):
        source = make(rows)
        a, b, *branches = source.plan()
        assert b.new_from == len(a.blocks)
        assert all(each.new_from == 0 and each.prompt_tokens == 64 for each in branches)
        Served(source, 1, 10)
        assert source.describe()["history_branches"] == 2


def test_what_was_read_too_late_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "MOST_HELD", 4)
    rows = sorted(
        (talk(0, start + turn * 0.3, f"s{start}") for start in range(30) for turn in range(3)),
        key=lambda row: row.at_ns,
    )
    source = replay(rows, arrival_scale=1000.0)
    Served(source, 1, 10)
    assert source.describe()["arrivals_read_late"] > 0
    assert replay(rows).describe()["arrivals_read_late"] == 0
