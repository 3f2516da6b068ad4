"""The laws of `policy/eviction/base.py`, over histories of calls."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from random import Random
from typing import NamedTuple

from kv_cache.core.block import content_key
from kv_cache.policy.eviction import Eviction, Item, MakeEviction

PAGE = 4096
CAPACITY = 12 * PAGE
CONTENTS = 24
KEYS = [content_key("content", number) for number in range(CONTENTS)]
ABSENT = -1
"""A copy that no history has."""


class Call(NamedTuple):
    """One call of a policy: `number` is the content for `expect` and `insert`, else the copy."""

    what: str
    number: int
    copy_id: int = ABSENT


def item(copy_id: int, content: int) -> Item:
    """Return a copy of content n, which is at depth n % 6 of line n // 6."""
    depth = content % 6
    parent = KEYS[content - 1] if depth else None
    return Item(copy_id, KEYS[content], PAGE * (1 + content % 3), 16 * depth, depth, parent)


def replay(policy: Eviction, history: Sequence[Call]) -> None:
    """Make the calls of a history."""
    for what, number, copy_id in history:
        if what == "expect":
            policy.expect(KEYS[number])
        elif what == "insert":
            policy.insert(item(copy_id, number))
        elif what == "hit":
            policy.hit(copy_id)
        else:
            policy.remove(copy_id, evicted=what == "evict")


def present_after(history: Sequence[Call]) -> set[int]:
    """Return the copies that are present after a history."""
    present: set[int] = set()
    for what, _, copy_id in history:
        if what == "insert":
            present.add(copy_id)
        elif what in ("evict", "lose"):
            present.discard(copy_id)
    return present


# --- the laws --------------------------------------------------------------------------------


def victims_are_the_present_copies(make: MakeEviction, history: Sequence[Call]) -> None:
    """Law 5: each present copy exactly once, after every call."""
    policy = make(CAPACITY)
    for end, call in enumerate(history, 1):
        replay(policy, [call])
        victims = list(policy.victims())
        assert len(victims) == len(set(victims))
        assert set(victims) == present_after(history[:end])


def looking_changes_nothing(make: MakeEviction, history: Sequence[Call]) -> None:
    """Law 5: `victims` changes nothing, also if it is given up half-way."""
    looked_at, left_alone = make(CAPACITY), make(CAPACITY)
    for stop, call in enumerate(history):
        replay(looked_at, [call])
        list(islice(looked_at.victims(), stop % 11))
        list(looked_at.victims())
        replay(left_alone, [call])
    assert list(looked_at.victims()) == list(left_alone.victims())


def evicting_keeps_the_order(make: MakeEviction, history: Sequence[Call]) -> None:
    """Law 6: evicting the first victims leaves the order of the others."""
    policy = make(CAPACITY)
    replay(policy, history)
    order = list(policy.victims())
    while order:
        policy.remove(order.pop(0), evicted=True)
        assert list(policy.victims()) == order


def pinned_copies_stay(make: MakeEviction, history: Sequence[Call]) -> None:
    """Laws 4 and 5: victims may be left out."""
    policy = make(CAPACITY)
    replay(policy, history)
    order = list(policy.victims())
    kept = {copy_id for place, copy_id in enumerate(order) if place % 3 == 1}
    for copy_id in order:
        if copy_id not in kept:
            policy.remove(copy_id, evicted=True)
    assert set(policy.victims()) == kept


def length_counts_the_present(make: MakeEviction, history: Sequence[Call]) -> None:
    """Law 7: `len`, and membership."""
    policy = make(CAPACITY)
    replay(policy, history)
    present = present_after(history)
    assert len(policy) == len(present)
    for call in history:
        assert (call.copy_id in policy) == (call.copy_id in present)
    assert ABSENT not in policy


def order_depends_on_the_calls_alone(make: MakeEviction, history: Sequence[Call]) -> None:
    """Law 8: the same calls give the same order."""
    first, second = make(CAPACITY), make(CAPACITY)
    replay(first, history)
    replay(second, history)
    assert list(first.victims()) == list(second.victims())


def a_tier_without_limit_has_an_order(make: MakeEviction, history: Sequence[Call]) -> None:
    """A policy is also made with None, for a tier without limit."""
    policy = make(None)
    replay(policy, history)
    assert set(policy.victims()) == present_after(history)


LAWS: Mapping[str, Callable[[MakeEviction, Sequence[Call]], None]] = {
    law.__name__: law
    for law in (
        victims_are_the_present_copies,
        looking_changes_nothing,
        evicting_keeps_the_order,
        pinned_copies_stay,
        length_counts_the_present,
        order_depends_on_the_calls_alone,
        a_tier_without_limit_has_an_order,
    )
}


# --- histories -------------------------------------------------------------------------------


def history_of(seed: int, calls: int = 60) -> list[Call]:
    """Return a history that keeps the caller's side of laws 1 and 2, and not that of 4: anything
    may be evicted at any time."""
    rng = Random(seed)
    present: dict[int, int] = {}
    history: list[Call] = []
    for _ in range(rng.randrange(calls)):
        what = rng.choice(("insert", "insert", "hit", "hit", "evict", "lose", "expect"))
        absent = sorted(set(range(CONTENTS)) - set(present.values()))
        if what == "expect" and absent:
            history.append(Call("expect", rng.choice(absent)))
        elif (what == "insert" or not present) and absent:
            copy_id = len(history) * 7 % 1009  # ids need not come in order
            present[copy_id] = rng.choice(absent)
            history.append(Call("insert", present[copy_id], copy_id))
        elif present:
            copy_id = rng.choice(sorted(present))
            if what in ("evict", "lose"):
                del present[copy_id]
            history.append(Call(what if what in ("evict", "lose") else "hit", copy_id, copy_id))
    return history


def check_eviction(make: MakeEviction, *, histories: int = 200) -> None:
    """Hold a policy against every law, over seeded histories. Raises AssertionError, which names
    the law and the seed."""
    for seed in range(histories):
        history = history_of(seed)
        for law in LAWS.values():
            try:
                law(make, history)
            except Exception as error:
                raise AssertionError(f"{law.__doc__} broken by history_of({seed})") from error
