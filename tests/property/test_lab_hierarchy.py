"""Laws of several tiers, over histories of a few blocks."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses, accesses_of
from kv_cache.lab.hierarchy import HierarchyCounts, HierarchyTier, replay_hierarchy
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.study import replay
from kv_cache.lab.variants import Named, PolicyVariant
from kv_cache.policy.prefetch.base import PrefetchRules
from kv_cache.policy.prefetch.successor import Successor
from tests.examples import examples

PAGE = 4096
POLICIES = ("lru", "fifo", "arc", "s3-fifo", "mq", "heavy-hitter", "leaf-first")
blocks = st.lists(st.integers(0, 15), min_size=1, max_size=80)
rooms = st.lists(st.integers(1, 8), min_size=1, max_size=4)


def of_pages(asked: Sequence[int]) -> Accesses:
    return accesses_of(asked, np.full(16, PAGE, np.int64))


def replayed(
    accesses: Accesses, rooms: Sequence[int], policy: str, *, ahead: bool = False
) -> HierarchyCounts:
    """Tiers of so many pages, each ten times as slow as the one above."""
    tiers = [
        HierarchyTier(
            room_bytes=room * PAGE, latency_ns=100.0 * 10**level, bytes_per_s=1e10 / 10**level,
            sizes=accesses.sizes,
        )
        for level, room in enumerate(rooms)
    ]  # fmt: skip
    look_ahead = Successor(PrefetchRules(most=2, confidence=1)) if ahead else None
    shared = SharedState(accesses, Seed(1))
    return replay_hierarchy(shared, tiers, PolicyVariant(Named(policy)), look_ahead)


@pytest.mark.parametrize("policy", POLICIES)
@examples(20)
@given(asked=blocks, rooms=rooms, ahead=st.booleans())
def test_every_access_is_served_once_and_no_tier_is_overfull(
    policy: str, asked: list[int], rooms: list[int], ahead: bool
) -> None:
    counts = replayed(of_pages(asked), rooms, policy, ahead=ahead)
    assert counts.computed + sum(use.hits for use in counts.tiers) == counts.lookups == len(asked)
    assert counts.computed >= len(set(asked))
    left = counts.prefetched - counts.useful - counts.wasted
    assert 0 <= left <= rooms[0]
    for use, room in zip(counts.tiers, rooms, strict=True):
        assert 0 <= use.used_bytes <= use.peak_bytes <= room * PAGE
    for above, below in zip(counts.tiers, counts.tiers[1:], strict=False):
        assert (above.offloaded_bytes > 0) >= (below.peak_bytes > 0)
    waited = sum(use.wait_ns for use in counts.tiers)
    assert counts.serial_ns >= counts.tiers[0].wait_ns
    assert waited == pytest.approx(
        sum(use.hits * (100 * 10**at + PAGE / (10 / 10**at)) for at, use in enumerate(counts.tiers))
    )


@pytest.mark.parametrize("policy", POLICIES)
@examples(20)
@given(asked=blocks, rooms=rooms)
def test_the_fastest_tier_hits_as_one_cache_does(
    policy: str, asked: list[int], rooms: list[int]
) -> None:
    """What is below changes where the others are, and not what is kept here."""
    accesses = of_pages(asked)
    alone = replay(accesses, PolicyVariant(Named(policy)), rooms[0] * PAGE, seed=Seed(1))
    assert replayed(accesses, rooms, policy).tiers[0].hits == alone.hits


@examples(20)
@given(asked=blocks, rooms=rooms)
def test_tiers_of_lru_together_are_one_lru(asked: list[int], rooms: list[int]) -> None:
    """The stack property: n tiers find what one of all their room finds."""
    accesses = of_pages(asked)
    one = replay(accesses, PolicyVariant(Named("lru")), sum(rooms) * PAGE, seed=Seed(1))
    assert sum(use.hits for use in replayed(accesses, rooms, "lru").tiers) == one.hits


def test_a_block_too_large_for_the_first_tier_comes_to_the_next_and_waits_there() -> None:
    """Two pages each: the second block drives the first one down, which comes up again."""
    accesses = accesses_of([0, 1, 0, 0, 0], np.full(2, 2 * PAGE, np.int64))
    counts = replayed(accesses, (1, 2, 8), "lru")
    assert [use.hits for use in counts.tiers] == [0, 2, 1]
    assert counts.demand_bytes == 2 * PAGE * 3, "one up, and each block down once"
    assert counts.serial_ns > sum(use.wait_ns for use in counts.tiers) > 0


@examples(20)
@given(asked=blocks, rooms=rooms)
def test_a_tier_without_room_for_any_block_changes_nothing(
    asked: list[int], rooms: list[int]
) -> None:
    accesses = of_pages(asked)
    without, beside = (replayed(accesses, some, "fifo").tiers for some in (rooms, [0, *rooms]))
    assert [use.hits for use in beside] == [0, *(use.hits for use in without)]


def test_who_looks_ahead_waits_less_and_moves_more() -> None:
    """16 pages in a circle over 4 and 12: LRU has always just let the next one go."""
    accesses = of_pages(list(range(16)) * 10)
    without, ahead = (replayed(accesses, (4, 12), "lru", ahead=each) for each in (False, True))
    assert [use.hits for use in without.tiers] == [0, 144]
    assert ahead.tiers[0].hits > 100
    assert ahead.useful == ahead.tiers[0].hits
    assert sum(use.wait_ns for use in ahead.tiers) < 0.5 * sum(u.wait_ns for u in without.tiers)
    assert ahead.serial_ns > without.serial_ns, "on one clock it can only cost"
    assert without.prefetch_bytes == 0 < ahead.prefetch_bytes
    assert without.demand_bytes == PAGE * (144 + 156), "up, and down to make room"
