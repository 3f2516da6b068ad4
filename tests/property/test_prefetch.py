"""The laws of `policy/prefetch/base.py` over every policy of the table, and what each is for."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.block import content_key
from kv_cache.policy.prefetch import PREFETCH, MakePrefetch, Prefetch, PrefetchRules
from kv_cache.policy.prefetch.successor import SUCCESSORS, Successor
from kv_cache.schedule.ahead import QUEUE, Ahead
from tests.property.test_eviction import lines_run

KEYS = [content_key("content", number) for number in range(30)]
RULES = PrefetchRules(most=5, confidence=2, memory=4)


class Call(NamedTuple):
    conversation: str
    contents: tuple[int, ...]


histories = st.lists(
    st.builds(
        Call,
        st.sampled_from("abcdefg"),
        st.lists(st.integers(0, len(KEYS) - 1), max_size=9).map(tuple),
    ),
    max_size=50,
)


def ask(policy: Prefetch, call: Call) -> list[int]:
    answer = policy.wanted_after(call.conversation, [KEYS[n] for n in call.contents])
    return [KEYS.index(key) for key in answer]


def replay(policy: Prefetch, history: Sequence[Call]) -> list[list[int]]:
    return [ask(policy, call) for call in history]


every_policy = pytest.mark.parametrize("make", PREFETCH.values(), ids=list(PREFETCH))
a_few = settings(max_examples=60, deadline=None)


@every_policy
@a_few
@given(history=histories)
def test_only_what_was_asked_for_is_wanted_each_once_and_no_more_than_may_be(
    make: MakePrefetch, history: list[Call]
) -> None:
    policy, seen = make(RULES), set[int]()
    for call in history:
        seen.update(call.contents)
        answer = ask(policy, call)
        assert len(answer) == len(set(answer))
        assert set(answer) <= seen, "it has seen the future"
        assert len(set(answer) - set(call.contents)) <= RULES.most


@every_policy
@a_few
@given(history=histories, futures=st.tuples(histories, histories))
def test_what_is_answered_does_not_depend_on_what_comes_later(
    make: MakePrefetch, history: list[Call], futures: tuple[list[Call], list[Call]]
) -> None:
    one, other = (replay(make(RULES), [*history, *future]) for future in futures)
    assert one[: len(history)] == other[: len(history)]


@every_policy
def test_memory_is_bounded_whatever_comes(make: MakePrefetch) -> None:
    policy = make(RULES)
    for number in range(2000):
        key = number.to_bytes(16, "little")
        policy.wanted_after(f"c{number % 97}", [key] * 3)
    if isinstance(policy, Successor):
        assert len(policy.conversations) == len(policy.sequences) == RULES.memory


# --- what each is for ---------------------------------------------------------------------------


def test_none_wants_nothing_and_next_in_session_what_its_next_turn_begins_with() -> None:
    call = Call("a", (3, 1, 3, 2))
    assert ask(PREFETCH["none"](RULES), call) == []
    assert ask(PREFETCH["next-in-session"](RULES), call) == [3, 1, 2]


def test_a_successor_is_believed_once_it_has_come_twice() -> None:
    policy = Successor(RULES)
    cycle = [Call("x", (0, 1)), Call("y", (2, 3)), Call("z", (4,))]
    answers = replay(policy, cycle * 4)
    assert answers[:6] == [[]] * 6
    assert answers[6:9] == [[2, 3], [4], [0, 1]]


def test_sequences_are_known_by_their_last_block_whoever_asks() -> None:
    policy = Successor(PrefetchRules(most=5, memory=100))
    answers = [ask(policy, Call(f"row {n}", (0, 1) if n % 2 else (2, 3, 4))) for n in range(8)]
    assert answers[-2:] == [[0, 1], [2, 3, 4]]


def test_of_a_conversation_that_grew_the_latest_blocks_are_wanted() -> None:
    policy = Successor(RULES)
    for length in range(1, 5):
        ask(policy, Call("a", (9,)))
        ask(policy, Call("b", tuple(range(length))))
    assert ask(policy, Call("a", (9,))) == [0, 1, 2, 3]


def test_the_most_frequent_come_first_and_the_rare_are_not_remembered() -> None:
    policy = Successor(PrefetchRules(most=3, confidence=1, memory=100))
    order = [1, 2, 2, 3, 3, 3, *range(10, 10 + SUCCESSORS)]
    for content in order:
        ask(policy, Call("a", (0,)))
        ask(policy, Call(f"c{content}", (content,)))
    assert ask(policy, Call("a", (0,)))[:2] == [3, 2]


# --- the queue before it ------------------------------------------------------------------------


def test_what_is_up_already_takes_no_place_of_what_has_to_be_brought() -> None:
    ahead = Ahead(PREFETCH["none"](RULES), slots=2, most=2)
    keys = [bytes([number]) * 16 for number in range(8)]
    ahead.want(keys, lambda key: key in keys[3:])
    assert [ahead.take() for _ in range(5)] == [*keys[:2], *keys[3:5], None]


def test_a_full_queue_gives_up_the_oldest_wishes_and_no_more_than_slots_go_at_once() -> None:
    ahead = Ahead(PREFETCH["none"](RULES), slots=2, most=3)
    keys = [number.to_bytes(16, "little") for number in range(4 * QUEUE)]
    for start in range(0, len(keys), 4):
        ahead.want(keys[start : start + 4])  # the fourth of each is one too many
    assert ahead.wanted_blocks == 3 * QUEUE
    assert ahead.given_up_blocks == 0
    ahead.want(keys[3::4][:2])
    ahead.want(keys[:1])
    assert ahead.given_up_blocks == 3, "two of the oldest, and the oldest of these again"
    assert [ahead.try_enter() for _ in range(3)] == [True, True, False]
    assert ahead.take() not in keys[:2]
    ahead.leave()
    assert ahead.try_enter()
    while ahead.take() is not None:
        pass
    ahead.leave()
    assert not ahead.try_enter(), "there is nothing to bring"
    ahead.want(keys[:3])
    ahead.rest()
    assert not ahead.try_enter()
    assert ahead.given_up_blocks == 6


# --- cost: instructions, not time ---------------------------------------------------------------


@every_policy
def test_the_cost_of_a_call_does_not_grow_with_what_is_remembered(make: MakePrefetch) -> None:
    per_call = []
    for memory in (64, 2048):
        policy = make(PrefetchRules(memory=memory))

        def calls(policy: Prefetch = policy, memory: int = memory) -> None:
            for number in range(2 * memory):
                name = number % (memory - 9)
                policy.wanted_after(
                    f"c{name}", [content_key("cost", name, block) for block in range(3)]
                )

        calls()
        per_call.append(lines_run(calls) / memory)
    few, many = per_call
    assert many < 1.3 * few
