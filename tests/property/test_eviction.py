"""The laws of `policy/eviction/base.py` over every policy of the table, and LRU and FIFO against
oracles that are too slow and too plain to be wrong."""

from collections.abc import Callable, Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.policy.eviction import EVICTION, Eviction

Call = tuple[str, int]


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """A history that keeps the caller's side of the contract: ids are new at `insert`, present at
    `hit` and `remove`, and never used again."""
    present: list[int] = []
    history: list[Call] = []
    for _ in range(draw(st.integers(0, 60))):
        what = draw(st.sampled_from(("insert", "insert", "hit", "hit", "remove")))
        if what == "insert" or not present:
            present.append(len(history) * 7 % 1009)  # ids need not come in order
            history.append(("insert", present[-1]))
            continue
        copy_id = draw(st.sampled_from(present))
        if what == "remove":
            present.remove(copy_id)
        history.append((what, copy_id))
    return history


def replay(policy: Eviction, history: Sequence[Call]) -> None:
    for what, copy_id in history:
        if what == "insert":
            policy.insert(copy_id, 4096 * (1 + copy_id % 5))
        elif what == "hit":
            policy.hit(copy_id)
        else:
            policy.remove(copy_id)


def present_after(history: Sequence[Call]) -> set[int]:
    there: set[int] = set()
    for what, copy_id in history:
        if what == "insert":
            there.add(copy_id)
        elif what == "remove":
            there.discard(copy_id)
    return there


every_policy = pytest.mark.parametrize("make", EVICTION.values(), ids=list(EVICTION))


@every_policy
@given(history=calls())
def test_victims_are_exactly_the_present_copies_each_once(
    make: Callable[[], Eviction], history: list[Call]
) -> None:
    policy = make()
    for end, call in enumerate(history, 1):
        replay(policy, [call])
        victims = list(policy.victims())
        assert len(victims) == len(set(victims))
        assert set(victims) == present_after(history[:end])


@every_policy
@given(history=calls(), stop=st.integers(0, 10))
def test_looking_for_victims_changes_nothing(
    make: Callable[[], Eviction], history: list[Call], stop: int
) -> None:
    looked, left_alone = make(), make()
    for call in history:
        replay(looked, [call])
        list(islice(looked.victims(), stop))  # given up half-way, as a plan does
        list(looked.victims())
        replay(left_alone, [call])
    assert list(looked.victims()) == list(left_alone.victims())


@every_policy
@given(history=calls())
def test_the_length_counts_what_is_present_and_membership_knows_it(
    make: Callable[[], Eviction], history: list[Call]
) -> None:
    policy = make()
    replay(policy, history)
    there = present_after(history)
    assert len(policy) == len(there)
    for _, copy_id in history:
        assert (copy_id in policy) == (copy_id in there)
    assert -1 not in policy


@every_policy
@given(history=calls())
def test_the_order_depends_on_the_calls_alone(
    make: Callable[[], Eviction], history: list[Call]
) -> None:
    first, second = make(), make()
    replay(first, history)
    replay(second, history)
    assert list(first.victims()) == list(second.victims())


@given(history=calls())
def test_lru_evicts_what_was_not_used_for_the_longest(history: list[Call]) -> None:
    last_use: dict[int, int] = {}
    for at, (what, copy_id) in enumerate(history):
        if what == "remove":
            del last_use[copy_id]
        else:
            last_use[copy_id] = at
    policy = EVICTION["lru"]()
    replay(policy, history)
    assert list(policy.victims()) == sorted(last_use, key=lambda copy_id: last_use[copy_id])


@given(history=calls())
def test_fifo_evicts_in_the_order_of_insertion_whatever_was_hit(history: list[Call]) -> None:
    there = present_after(history)
    policy = EVICTION["fifo"]()
    replay(policy, history)
    assert list(policy.victims()) == [c for what, c in history if what == "insert" and c in there]
