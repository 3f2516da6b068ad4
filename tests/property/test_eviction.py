"""The laws of `policy/eviction/base.py` over every policy of the table."""

import sys
import tracemalloc
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.block import content_key
from kv_cache.policy.eviction import EVICTION, Item, MakeEviction
from kv_cache.policy.eviction.arc import Arc
from kv_cache.policy.eviction.base import Eviction
from kv_cache.policy.eviction.heavy_hitter import HeavyHitter
from kv_cache.policy.eviction.importance import Importance
from kv_cache.policy.eviction.learned import MODEL, Learned
from kv_cache.policy.eviction.mq import Mq
from kv_cache.policy.eviction.regret_aware import RegretAware
from kv_cache.policy.eviction.s3fifo import S3Fifo
from kv_cache.policy.eviction.sliding_window import SlidingWindow
from kv_cache.policy.eviction.windowed import Windowed
from kv_cache.testing.eviction import (
    CAPACITY,
    CONTENTS,
    LAWS,
    PAGE,
    Call,
    item,
    replay,
)
from tests.examples import examples


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """A history that keeps the caller's side of laws 1 and 2, and not that of 4: anything may be
    evicted at any time."""
    present: dict[int, int] = {}
    history: list[Call] = []
    for _ in range(draw(st.integers(0, 60))):
        kinds = ("insert", "insert", "hit", "hit", "evict", "lose", "expect")
        what = draw(st.sampled_from(kinds))
        absent = sorted(set(range(CONTENTS)) - set(present.values()))
        if what == "expect" and absent:
            history.append(Call("expect", draw(st.sampled_from(absent))))
        elif (what == "insert" or not present) and absent:
            copy_id = len(history) * 7 % 1009  # ids need not come in order
            present[copy_id] = draw(st.sampled_from(absent))
            history.append(Call("insert", present[copy_id], copy_id))
        elif present:
            copy_id = draw(st.sampled_from(sorted(present)))
            if what in ("evict", "lose"):
                del present[copy_id]
            history.append(Call(what if what in ("evict", "lose") else "hit", copy_id, copy_id))
    return history


@lru_cache
def some_model() -> Any:
    """Of nothing in particular: what comes before what does not matter to the laws."""
    lightgbm = pytest.importorskip("lightgbm", reason="the extra `learned` is not installed")
    rng = np.random.default_rng(5)
    features = rng.random((300, 8)) * (5, 2, 3, 3, 3, 3, 0.1, 6)
    data = lightgbm.Dataset(features, label=rng.random(300), params=dict(MODEL))
    return lightgbm.train(dict(MODEL), data, num_boost_round=8)


def taught(capacity: int | None) -> Eviction:
    """The learned policy as it is once it has a model."""
    model = some_model()
    policy = Learned(capacity, sample=5)
    policy.model = model
    return policy


def make_learned(capacity: int | None) -> Eviction:
    pytest.importorskip("lightgbm", reason="the extra `learned` is not installed")
    return Learned(capacity)


CHANGED: dict[str, MakeEviction] = {
    "no-regret": partial(RegretAware, regret_weight=0.0, kept=0.0, least_horizon=1),
    "regret-alone": partial(RegretAware, use_weight=0.0),
    "short-window": partial(Windowed, window=1, least=1),
    "s3-all-main": partial(S3Fifo, small_share=0.0, ghost_share=0.0),
    "s3-all-small": partial(S3Fifo, small_share=1.0, ghost_share=1.0, most_hits=1, to_main=1),
    "depth-alone": partial(Importance, use_weight=0.0, depth_decay=1.0),
    "mq-short": partial(Mq, queues=2, lifetime=2, ghost_share=1.0),
    "mq-forgets": partial(Mq, queues=64, lifetime=1, ghost_share=0.0),
    "regret-stays": partial(HeavyHitter, use_weight=1.5, regret_weight=6.0, least_memory=0),
    "landmarks-alone": partial(SlidingWindow, landmarks=1, window=0),
}
"""Policies whose numbers somebody has changed, to the edges of what is allowed."""
MAKES: dict[str, MakeEviction] = {
    **EVICTION, **CHANGED, "learned": make_learned, "learned-taught": taught
}  # fmt: skip
every_policy = pytest.mark.parametrize("make", MAKES.values(), ids=list(MAKES))


@every_policy
@examples(20)
@given(history=calls())
def test_every_policy_keeps_every_law(make: MakeEviction, history: list[Call]) -> None:
    """What costs is to draw a history: all laws are held against the same ones."""
    for law in LAWS.values():
        law(make, history)


@given(history=calls())
def test_arc_keeps_the_bounds_of_its_paper(history: list[Call]) -> None:
    arc = Arc(CAPACITY)
    for call in history:
        replay(arc, [call])
        here = arc.t1_bytes + arc.t2_bytes
        ghosts = arc.b1.nbytes + arc.b2.nbytes
        if call.what == "insert":
            assert arc.t1_bytes + arc.b1.nbytes <= max(CAPACITY, arc.t1_bytes)
            assert here + ghosts <= max(2 * CAPACITY, here)
        assert 0 <= arc.p <= CAPACITY
        assert arc.b1.nbytes == sum(arc.b1.order.values())
        assert arc.b2.nbytes == sum(arc.b2.order.values())
        assert not arc.b1.order.keys() & arc.b2.order.keys()


@given(history=calls())
def test_ghosts_are_bounded(history: list[Call]) -> None:
    s3, regret, mq = S3Fifo(CAPACITY), RegretAware(CAPACITY), Mq(CAPACITY, ghost_share=1.0)
    hitter, most = HeavyHitter(CAPACITY, memory=1, least_memory=2), 0
    for call in history:
        most = max(most, len(hitter))
        for policy in (s3, regret, mq, hitter):
            replay(policy, [call])
        assert mq.ghosts.total_bytes <= 2 * CAPACITY
        assert len(hitter.past) <= max(2, most)
        assert s3.ghosts.total_bytes <= 2 * 0.9 * CAPACITY
        assert len(regret.ghosts) <= regret.horizon


# --- cost: instructions, not time ---------------------------------------------------------------


def lines_run(work: Callable[[], None]) -> int:
    """How many lines of Python `work` runs: the same on every machine."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def churn(policy: Eviction, copies: int, accesses: int) -> None:
    """A cache of `copies` that is full: two hits to a miss, some copies hit much more often."""
    where: dict[bytes, int] = {}
    next_id = 0
    state = 1
    for _ in range(copies + accesses):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        content = (state >> 8) % (copies * 2 if state & 0x30 else max(1, copies // 8))
        key = content.to_bytes(16, "little")
        if key in where and where[key] in policy:
            policy.hit(where[key])
            continue
        policy.expect(key)
        while len(policy) >= copies:
            policy.remove(next(policy.victims()), evicted=True)
        depth = content % 16
        parent = (content - 1).to_bytes(16, "little") if depth else None
        policy.insert(Item(next_id, key, PAGE, 16, depth, parent))
        where[key] = next_id
        next_id += 1


@every_policy
def test_the_cost_of_an_access_does_not_grow_with_the_copies(make: MakeEviction) -> None:
    per_access = []
    for copies in (64, 1024):
        policy = make(copies * PAGE)
        churn(policy, copies, copies)
        per_access.append(lines_run(lambda: churn_on(policy, copies)) / copies)  # noqa: B023
    few, many = per_access
    assert many < 2.0 * few, "sixteen times the copies: a logarithm grows by 1.6 at most"


def churn_on(policy: Eviction, copies: int) -> None:
    """More of the same, by contents that are new: each evicts, and is hit once."""
    for number in range(copies):
        key = (1 << 40 | number).to_bytes(16, "little")
        policy.expect(key)
        while len(policy) >= copies:
            policy.remove(next(policy.victims()), evicted=True)
        policy.insert(Item(1 << 40 | number, key, PAGE, 16))
        if number % 2:
            policy.hit(1 << 40 | number)


def spanning(copy_id: int, line: int, depth: int, end: int) -> Item:
    """Blocks [depth, end) of a line, known by the last one."""
    parent = content_key("block", line, depth - 1) if depth else None
    key = content_key("block", line, end - 1)
    return Item(copy_id, key, PAGE * (end - depth), 16, depth, parent, end - depth)


@every_policy
def test_hits_alone_take_no_memory(make: MakeEviction) -> None:
    """A system prompt is asked for by every request, in a tier from which nothing has to leave."""
    policy = make(None)
    for number in range(CONTENTS):
        policy.insert(item(number, number))

    def hit(times: int) -> None:
        for at in range(times):
            policy.hit(0 if at % 2 else at % CONTENTS)

    tracemalloc.start()
    try:
        hit(60_000)  # `learned` has what it learns from
        before = tracemalloc.get_traced_memory()[0]
        hit(20_000)
        grown = tracemalloc.get_traced_memory()[0] - before
        assert grown < 200_000, "a hit leaves something behind"
    finally:
        tracemalloc.stop()


@every_policy
@examples(12)
@given(
    ends=st.lists(st.integers(2, 5), min_size=1, max_size=6),
    hits=st.lists(st.integers(0, 5), max_size=8),
    shrunk=st.integers(0, 5),
)
def test_a_copy_that_loses_its_end_keeps_its_turn(
    make: MakeEviction, ends: list[int], hits: list[int], shrunk: int
) -> None:
    policy = make(CAPACITY)
    for copy_id, end in enumerate(ends):
        policy.insert(spanning(copy_id, copy_id, 0, end))
    for copy_id in hits:
        if copy_id < len(ends):
            policy.hit(copy_id)
    before = list(policy.victims())
    number = shrunk % len(ends)
    policy.shrink(spanning(number, number, 0, ends[number] - 1))
    after = list(policy.victims())
    assert sorted(after) == sorted(before)
    if not isinstance(policy, Arc | S3Fifo):  # whose turns depend on sizes
        assert after == before
    policy.remove(number, evicted=True)
    assert number not in policy


def test_leaf_first_knows_what_follows_a_copy_of_several_blocks_and_what_is_left_of_it() -> None:
    policy = EVICTION["leaf-first"](None)
    policy.insert(spanning(1, 0, 0, 4))
    policy.insert(spanning(2, 0, 4, 6))
    policy.hit(2)
    assert list(policy.victims()) == [2, 1]
    policy.remove(2, evicted=True)
    policy.shrink(spanning(1, 0, 0, 2))
    policy.insert(spanning(3, 0, 2, 5))
    assert list(policy.victims()) == [3, 1]
    policy.shrink(spanning(1, 0, 0, 1))  # what follows has lost the block before it
    assert list(policy.victims()) == [1, 3]
    policy.remove(1, evicted=True)
    policy.remove(3, evicted=True)
    assert len(policy) == 0
