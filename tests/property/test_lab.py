"""The laws of the lab: bounds are bounds, the fast caches are the policies of the real tiers, and
what a cache finds by the two rules."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses, next_uses
from kv_cache.lab.bounds import Min, SpaceTime
from kv_cache.lab.caches import Cache
from kv_cache.lab.one_size import ONE_SIZE
from kv_cache.lab.patterns import PATTERNS, drawn
from kv_cache.lab.seam import Seam, cache_of
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.study import StudyRow, study
from kv_cache.lab.variants import ADMISSIONS, USUAL, Named, PolicyVariant
from kv_cache.policy.eviction import EVICTION
from kv_cache.workload.reuse import StackDistances

SIZE = 64
of_all = settings(max_examples=40, deadline=None)  # laws of all policies
SEED = Seed(5)
LRU = PolicyVariant(Named("lru"))
ARMS = [PolicyVariant(Named(name)) for name in USUAL]


def accesses(
    blocks: Sequence[int], begins: Sequence[int] | None = None, sizes: int | Sequence[int] = SIZE
) -> Accesses:
    """Of blocks by any names; without `begins` each is a request of its own."""
    numbers: dict[int, int] = {}
    named = [numbers.setdefault(block, len(numbers)) for block in blocks]
    widths = [sizes if isinstance(sizes, int) else sizes[block] for block in numbers]
    return Accesses(
        blocks=np.array(named, np.int64),
        begins=np.array(range(len(blocks)) if begins is None else begins, np.int64),
        sizes=np.array(widths, np.int64),
    )


@st.composite
def asked(draw: st.DrawFn, unequal: bool = False) -> Accesses:
    """Requests of a few blocks, no block twice in one of them."""
    requests = draw(
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True), max_size=14)
    )
    begins = np.cumsum([0, *(len(each) for each in requests)])[:-1].tolist()
    sizes = draw(st.lists(st.integers(1, 40), min_size=10, max_size=10)) if unequal else SIZE
    return accesses([block for each in requests for block in each], begins, sizes)


def best(blocks: Sequence[int], room: int, *, refusing: bool) -> int:
    """The most hits of all ways to evict, tried one by one."""

    @cache
    def most(at: int, there: frozenset[int]) -> int:
        if at == len(blocks):
            return 0
        block = blocks[at]
        if block in there:
            return 1 + most(at + 1, there)
        ways = [there] if refusing else []
        if len(there) < room:
            ways.append(there | {block})
        else:
            ways += [there - {old} | {block} for old in there]
        return max((most(at + 1, way) for way in ways), default=0)

    return most(0, frozenset())


def hits(cache: Cache | Min, asked: Accesses) -> int:
    return sum(len(part.blocks) - len(cache.blocks(part)) for part in asked.parts())


def leading_hits(cache: Cache, asked: Accesses) -> int:
    return sum(
        gap - begin
        for part in asked.parts()
        for gap, begin in zip(cache.prefix(part), part.begins, strict=True)
    )


rooms = st.integers(1, 6)


@given(st.lists(st.integers(0, 5), max_size=11), st.integers(1, 4), st.booleans())
def test_min_finds_what_the_best_of_all_ways_finds(
    blocks: list[int], room: int, refusing: bool
) -> None:
    given = accesses(blocks)
    rule = Min(SharedState(given, SEED), room * SIZE, refusing=refusing)
    assert hits(rule, given) == best(blocks, room, refusing=refusing)


@of_all
@given(asked(), st.lists(rooms, min_size=1, max_size=3))
def test_no_policy_is_above_min_and_min_not_above_no_limit(
    given: Accesses, some: list[int]
) -> None:
    found = study(given, ARMS, [room * SIZE for room in some], refusing=True, seed=SEED)
    per = len(ARMS) + 2
    for place in range(len(some)):
        least, may, *rows = found.rows[place * per : (place + 1) * per]
        assert (least.policy, may.policy) == ("min", "min-refusing")
        for row in rows:
            assert row.blocks.hits <= least.blocks.hits <= may.blocks.hits
            assert row.prefix is None or row.prefix.hits <= least.blocks.hits
            assert row.prefix is None or row.prefix.hits <= by_prefix(found.unlimited)
        assert may.blocks.hits <= found.unlimited.blocks.hits
        assert found.unlimited.blocks.hits == given.lookups - given.unique


@of_all
@given(asked(), st.lists(rooms, min_size=1, max_size=2))
def test_the_prefix_hits_of_a_study_are_those_of_a_cache_that_is_told_by_prefix(
    given: Accesses, some: list[int]
) -> None:
    """Also where the study saw that it need not tell one."""
    found = study(given, ARMS, [room * SIZE for room in some], seed=SEED)
    for row in found.rows:
        if row.prefix is not None:
            variant = ARMS[USUAL.index(row.policy)]
            cache = cache_of(variant, row.room_bytes, SharedState(given, SEED))
            assert row.prefix.hits == leading_hits(cache, given)
            assert row.prefix.evictions == cache.evicted


@of_all
@given(asked(), rooms, st.sampled_from(ADMISSIONS))
def test_no_policy_behind_an_admission_policy_is_above_min_that_may_refuse(
    given: Accesses, room: int, admission: str
) -> None:
    variants = [PolicyVariant(Named(name), Named(admission)) for name in USUAL]
    found = study(given, variants, [room * SIZE], seed=SEED, refusing=True)
    for row in found.rows[2:]:
        assert row.blocks.hits <= found.rows[1].blocks.hits
        held = given.lookups - row.blocks.hits - row.blocks.evictions - row.blocks.refused
        assert 0 <= held <= room


@given(asked(), rooms)
def test_lru_behind_second_hit_finds_what_the_rule_says(given: Accesses, room: int) -> None:
    order: list[int] = []
    seen: set[int] = set()
    found = 0
    for block in given.blocks.tolist():
        if block in order:
            order.append(order.pop(order.index(block)))
            found += 1
        elif block in seen:
            seen.remove(block)
            order = [*order, block][-room:]
        else:
            seen.add(block)
    variant = PolicyVariant(Named("lru"), Named("second-hit"))
    assert hits(cache_of(variant, room * SIZE, SharedState(given, SEED)), given) == found


def by_prefix(row: StudyRow) -> int:
    return (row.prefix or row.blocks).hits


@of_all
@given(asked(unequal=True), st.integers(1, 120))
def test_no_policy_and_no_min_is_above_the_limit_of_space_and_time(
    given: Accesses, room: int
) -> None:
    uses = next_uses(given.blocks)
    limit = SpaceTime(given, uses).limit(room)
    found = study(given, ARMS, [room], refusing=True, seed=SEED)
    for row in found.rows:
        assert row.blocks.hits <= limit.hits
        assert row.blocks.hit_bytes <= limit.nbytes
    assert limit.hits <= found.unlimited.blocks.hits


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
    st.integers(1, 20),
)
def test_the_limit_of_space_and_time_is_above_every_choice_of_what_to_keep(
    blocks: list[int], sizes: list[int], room: int
) -> None:
    given = accesses(blocks, sizes=sizes)
    uses = next_uses(given.blocks).tolist()
    again = [(at, use) for at, use in enumerate(uses) if use < len(blocks)]
    limit = SpaceTime(given, next_uses(given.blocks)).limit(room)
    width = given.sizes[given.blocks].tolist()
    for count in range(len(again) + 1):
        for kept in combinations(again, count):
            fits = all(
                sum(width[at] for at, use in kept if at <= now < use) <= room
                for now in range(len(blocks))
            )
            if fits:
                assert count <= limit.hits
                assert sum(width[at] for at, _ in kept) <= limit.nbytes


@pytest.mark.parametrize("policy", ["lru", "fifo", *ONE_SIZE])
@given(asked(), rooms)
def test_the_fast_caches_find_what_the_policies_of_the_tiers_find(
    policy: str, given: Accesses, room: int
) -> None:
    for tell in (hits, leading_hits):
        fast = cache_of(PolicyVariant(Named(policy)), room * SIZE, SharedState(given, SEED))
        slow = Seam(EVICTION[policy](room * SIZE), room * SIZE, SharedState(given, SEED))
        assert not isinstance(fast, Seam)
        assert tell(fast, given) == tell(slow, given)
        assert (fast.evicted, fast.refused) == (slow.evicted, slow.refused)


@pytest.mark.parametrize("policy", ONE_SIZE)
def test_the_fast_caches_find_the_same_once_lifetimes_end_and_ghosts_are_forgotten(
    policy: str,
) -> None:
    names = SEED.rng().choices(range(200), [1 / (1 + name) for name in range(200)], k=40_000)
    given = accesses(names)
    for room_bytes in (3 * SIZE + 1, 20 * SIZE, 90 * SIZE + SIZE // 2):
        fast = cache_of(PolicyVariant(Named(policy)), room_bytes, SharedState(given, SEED))
        slow = Seam(EVICTION[policy](room_bytes), room_bytes, SharedState(given, SEED))
        assert hits(fast, given) == hits(slow, given)


@pytest.mark.parametrize(("tokens", "short"), [([7] * 200, True), ([7] * 199 + [8], False)])
def test_a_policy_that_goes_by_cost_is_short_where_all_blocks_cost_as_much(
    tokens: list[int], short: bool
) -> None:
    names = SEED.rng().choices(range(200), [1 / (1 + name) for name in range(200)], k=5_000)
    given = replace(accesses([*range(200), *names]), tokens=np.array(tokens, np.int64))
    fast = cache_of(PolicyVariant(Named("gdsf")), 20 * SIZE, SharedState(given, SEED))
    slow = Seam(EVICTION["gdsf"](20 * SIZE), 20 * SIZE, SharedState(given, SEED))
    assert isinstance(fast, Seam) != short
    assert hits(fast, given) == hits(slow, given)


def test_nodes_of_what_is_forgotten_stand_for_other_blocks() -> None:
    """A cache of 20 blocks has a hundred at most, with what it remembers, of 3,000."""
    given = accesses([*range(1000), *range(20), *range(1000, 3000)])
    for policy, make in ONE_SIZE.items():
        cache = make(20 * SIZE, SIZE, SharedState(given, SEED))
        hits(cache, given)
        assert sum(node is not None for node in cache._nodes) <= 101, policy


@given(asked(), rooms)
def test_lru_finds_all_that_a_smaller_one_finds(given: Accesses, room: int) -> None:
    """The inclusion property (Mattson et al.), place by place."""
    small, large = (
        cache_of(LRU, some * SIZE, SharedState(given, SEED)) for some in (room, room + 1)
    )
    for part in given.parts():
        assert set(large.blocks(part)) <= set(small.blocks(part))


@given(asked(), rooms)
def test_lru_finds_what_stack_distances_say(given: Accesses, room: int) -> None:
    stack = StackDistances()
    stack.add(given.blocks)
    assert hits(cache_of(LRU, room * SIZE, SharedState(given, SEED)), given) == stack.hits(room)


@given(asked(), rooms)
def test_a_hit_by_prefix_has_no_miss_before_it(given: Accesses, room: int) -> None:
    """LRU by the words of the rule, on a plain list."""
    order: list[int] = []
    found = 0
    ends = [*given.begins.tolist(), given.lookups][1:]
    for begin, end in zip(given.begins.tolist(), ends, strict=True):
        blocks = given.blocks[begin:end].tolist()
        gap = next((at for at, block in enumerate(blocks) if block not in order), len(blocks))
        for block in blocks[:gap]:
            order.append(order.pop(order.index(block)))
        for block in blocks[gap:]:
            if block not in order:
                order = [*order, block][-room:]
        found += gap
    assert leading_hits(cache_of(LRU, room * SIZE, SharedState(given, SEED)), given) == found


@of_all
@given(asked(unequal=True), st.integers(0, 120))
def test_what_was_stored_was_evicted_or_is_there(given: Accesses, room: int) -> None:
    for variant in ARMS:
        kept = cache_of(variant, room, SharedState(given, SEED))
        misses = given.lookups - hits(kept, given)
        held = misses - kept.evicted - kept.refused
        assert 0 <= held * int(given.sizes.min(initial=1)) <= room


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_the_same_for_a_seed_and_has_the_length_and_pages_asked_for(name: str) -> None:
    pattern = PATTERNS[name]
    first, again, other = (
        drawn(
            pattern, Seed(seed), pages=pattern.pages, length=pattern.length, nbytes=4096, spread=0.1
        )
        for seed in (1, 1, 2)
    )
    assert first.blocks.tolist() == again.blocks.tolist()
    assert first.sizes.tolist() == again.sizes.tolist()
    assert first.lookups == pattern.length
    assert first.unique <= pattern.pages
    assert first.sizes.tolist() != other.sizes.tolist()
    assert 3686 <= first.sizes.min() <= first.sizes.max() <= 4506


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_goes_on_with_as_few_pages_as_it_allows(name: str) -> None:
    pattern = PATTERNS[name]
    least = drawn(pattern, Seed(1), pages=pattern.least, length=500, nbytes=1)
    assert (least.lookups, least.unique <= pattern.least) == (500, True)
