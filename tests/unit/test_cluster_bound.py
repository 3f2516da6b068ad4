"""MIN on what a place was asked for: the most that could have been found there."""

from array import array
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.cluster.bound import most_hits
from kv_cache.sim.cluster.facts import facts
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from tests.cluster import Plain
from tests.unit.test_cluster_by_hand import S, ran, rates, request

EVENTS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=11)


def by_trying(events: list[tuple[int, bool]], capacity: int) -> int:
    """The most spans from an event of a block to its next one, which asks, that ever fit."""
    spans = []
    latest: dict[int, int] = {}
    for at, (block, asks) in enumerate(events):
        if asks and block in latest:
            spans.append((latest[block], at))
        latest[block] = at
    for count in range(len(spans), 0, -1):
        for some in combinations(spans, count):
            if all(sum(a <= at < b for a, b in some) <= capacity for at in range(len(events))):
                return count
    return 0


@given(events=EVENTS, capacity=st.integers(0, 4))
def test_it_is_the_most_that_any_choice_of_what_stays_would_find(
    events: list[tuple[int, bool]], capacity: int
) -> None:
    codes = array("q", [2 * block + asks for block, asks in events])
    assert most_hits(codes, capacity) == by_trying(events, capacity)


@pytest.mark.parametrize("eviction", ["lru", "fifo", "arc"])
def test_a_circle_that_does_not_fit_has_no_hits_by_recency_and_most_by_min(eviction: str) -> None:
    """Nine prompts of four blocks in turns, in a memory for 32 and the last token's block: MIN
    keeps 7 of 8 that come again, as one block has to lie there for each new one."""
    assert eviction in EVICTION
    chain = PrefixChain()
    leaves = [chain.fresh(ROOT, 4) for _ in range(9)]
    requests = [request(n, n * S, 65, 1, leaves[n % 9]) for n in range(90)]
    values: Plain = {
        "instances": {"gpu": rates(33)},
        "tiers": {"hbm_eviction": eviction},
        "watch": {"min_bound": True},
    }
    found = ran(values, requests, chain)
    told = facts(found)["blocks"]
    assert told["hits"]["hbm"] < 81 * 4 / 2
    most = found.tiers[0].most_hits
    assert most is not None
    assert 0.75 * 81 * 4 < most < 81 * 4
    assert told["most_ratios"]["hbm"] == most / (90 * 4)
    all_of_it = ran(values | {"instances": {"gpu": rates(100)}}, requests, chain)
    assert all_of_it.tiers[0].most_hits == all_of_it.blocks.hits["hbm"] == 81 * 4
