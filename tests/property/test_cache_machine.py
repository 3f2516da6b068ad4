"""The cache as a state machine: reads, stores, promotions and demotions that are carried out step
by step in any order, each step well or badly.

Beside the cache's own `check`, a second book is kept of what physically exists. It knows nothing
of claims, plans or policies: only which bytes appeared and disappeared.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_cache.cache.copies import Position, State
from kv_cache.cache.ledger import Claim
from kv_cache.cache.limits import CacheRules, TierSpec
from kv_cache.cache.manager import ROOM, CacheManager
from kv_cache.cache.plans import RoomPlan
from kv_cache.core.block import Block, content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import Tier
from kv_cache.core.signals import Signals
from kv_cache.policy.admission import ADMISSION, AdmissionRules
from kv_cache.policy.eviction import EVICTION
from tests.examples import examples

PAGE = 4096
DOOR = AdmissionRules(max_bytes=2 * PAGE, max_depth=2, memory=16, floor=2)
KEYS = 8

Ending = Callable[[bool], None]
Batch = list[Ending]
"""Operations in flight, each to be ended well or badly, in any order."""


def block(number: int) -> Block:
    """Sizes of 1 to 4 pages, some of them not whole pages."""
    pages = 1 + number % 4
    return Block(content_key("block", number), 4 * pages, pages * PAGE - (number % 3) * 100)


class Disk:
    """What physically exists in each tier, and who reads it."""

    def __init__(self, capacities: dict[Tier, int]) -> None:
        self.capacities = capacities
        self.bytes: dict[Tier, dict[int, int]] = {tier: {} for tier in capacities}
        self.complete: set[int] = set()
        self.readers: dict[int, int] = {}

    def grow(self, ref: CopyRef) -> None:
        assert ref.copy_id not in self.bytes[ref.tier], "a copy id was used again"
        self.bytes[ref.tier][ref.copy_id] = -(-ref.nbytes // PAGE) * PAGE  # as a disk has it

    def written(self, ref: CopyRef, ok: bool) -> None:
        if ok:
            self.complete.add(ref.copy_id)
        else:
            del self.bytes[ref.tier][ref.copy_id]

    def open(self, ref: CopyRef) -> None:
        assert ref.copy_id in self.complete, "a read of what is not there"
        self.readers[ref.copy_id] = self.readers.get(ref.copy_id, 0) + 1

    def close(self, ref: CopyRef) -> None:
        assert ref.copy_id in self.complete, "deleted under a reader"
        self.readers[ref.copy_id] -= 1

    def delete(self, ref: CopyRef, ok: bool) -> None:
        assert ref.copy_id in self.complete, "a delete of what is not there"
        assert not self.readers.get(ref.copy_id), "a delete under a reader"
        self.complete.discard(ref.copy_id)
        if ok:  # otherwise the bytes may still be there, for ever
            del self.bytes[ref.tier][ref.copy_id]

    def used(self, tier: Tier) -> int:
        return sum(self.bytes[tier].values())


class Job:
    """Something begun: batches of operations, each beginning when the one before has ended."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self.pending: Batch = []
        self.ended = False
        self.go_on()

    def go_on(self) -> None:
        while not self.pending and not self.ended:
            batch = next(self._batches, None)
            if batch is None:
                self.ended = True
            elif not batch:
                return  # it waits for a reader
            else:
                self.pending = batch

    def end(self, which: int, ok: bool) -> None:
        self.pending.pop(which % len(self.pending))(ok)
        self.go_on()


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        sizes=st.tuples(st.integers(2, 8), st.integers(2, 10), st.integers(3, 14)),
        upper=st.sampled_from(((Tier.CPU,), (Tier.GPU,), (Tier.GPU, Tier.CPU), ())),
        share=st.sampled_from((0.5, 0.8, 1.0)),
        large=st.sampled_from((0.6, 0.95, 1.0)),
        most=st.sampled_from((1, 3, 1000)),
        eviction=st.sampled_from(sorted(EVICTION)),
        admission=st.sampled_from((None, None, *ADMISSION)),
        guarded=st.sampled_from((0, 1)),
    )
    def build(
        self,
        sizes: tuple[int, int, int],
        upper: tuple[Tier, ...],
        share: float,
        large: float,
        most: int,
        eviction: str,
        admission: str | None,
        guarded: int,
    ) -> None:
        capacities = {
            tier: pages * PAGE
            for tier, pages in zip(Tier, sizes, strict=True)
            if tier in upper or tier is Tier.NVME
        }
        rules = CacheRules(
            target_usage_ratio=share,
            large_entry_limit_ratio=large,
            max_evictions_min=most,
            max_evictions_hard_cap=most,
        )
        self.signals = Signals()
        self.cache = CacheManager(
            [TierSpec(tier=t, capacity_bytes=n) for t, n in capacities.items()],
            EVICTION[eviction],
            rules,
            self.signals,
            [None if admission is None or index < guarded else ADMISSION[admission](DOOR)
             for index in range(len(capacities))],
        )  # fmt: skip
        self.disk = Disk(capacities)
        self.jobs: list[Job] = []
        self.waits_for_room = False

    # --- what can begin --------------------------------------------------------------------

    @rule(key=st.integers(0, KEYS - 1))
    def read(self, key: int) -> None:
        ref = self.cache.begin_read(block(key).key)
        if ref is not None:
            self.disk.open(ref)
            self._start(iter([[partial(self._end_read, ref)]]))

    @rule(keys=st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4))
    def store(self, keys: list[int]) -> None:
        blocks = [block(key) for key in keys]
        places = {
            each.key: Position(number % 5, None) for number, each in zip(keys, blocks, strict=True)
        }
        placement = self.cache.begin_stores(blocks, places)
        planned = len(placement.plan.targets) if placement.plan else 0
        told = len(placement.present) + len(placement.nowhere) + len(placement.later)
        told += len(placement.unwanted)
        for each in placement.unwanted:
            assert self.cache.resident(each.key) is None
        assert planned + told == len(blocks), "a block was lost, or answered twice"
        if placement.wait is not None:
            assert placement.wait == ROOM
            assert not self.cache.idle, "waiting for what nobody will bring"
            self.waits_for_room = True
        if placement.plan is not None:
            self._start(self._store(placement.plan))

    @rule(keys=st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4))
    def promote(self, keys: list[int]) -> None:
        found = [self.cache.begin_read(block(key).key) for key in keys]
        refs = [ref for ref in found if ref is not None]
        for ref in refs:
            self.disk.open(ref)
        plan, count = self.cache.begin_promotions(refs)
        if plan is not None:
            for ref, target in zip(refs[:count], plan.targets, strict=True):
                assert (target.key, target.nbytes) == (ref.key, ref.nbytes)
                assert target.version == ref.version, "a promotion changed what the bytes are"
                assert target.tier < ref.tier, "a promotion did not go up"
            self._start(self._promote(plan, refs[:count]))
        for ref in refs[count if plan is not None else 0 :]:
            self._start(iter([[partial(self._end_read, ref)]]))

    @rule(keys=st.lists(st.integers(0, KEYS - 1), max_size=4), selective=st.booleans())
    def back_up(self, keys: list[int], selective: bool) -> None:
        backup = self.cache.begin_backups([block(k).key for k in keys], selective=selective)
        if backup.plan is None:
            assert not backup.sources
            assert not backup.later
            return
        for ref, target in zip(backup.sources, backup.plan.targets, strict=True):
            assert (target.key, target.nbytes, target.version) == (ref.key, ref.nbytes, ref.version)
            assert target.tier is Tier.NVME
            assert ref.tier is not Tier.NVME
            assert self.cache.backed_up(ref.key)
            self.disk.open(ref)
        self._start(self._promote(backup.plan, backup.sources))

    @rule(key=st.integers(0, KEYS - 1), nearest=st.booleans())
    def prefetch(self, key: int, nearest: bool) -> None:
        begun = self.cache.begin_prefetch(block(key).key, nearest=nearest)
        if begun is not None:
            plan, source = begun
            (target,) = plan.targets
            assert (target.key, target.nbytes, target.version) == (
                source.key, source.nbytes, source.version,
            )  # fmt: skip
            assert target.tier < source.tier
            assert not self.cache.can_rise(source.key)
            self.disk.open(source)
            self._start(self._promote(plan, [source]))

    @rule(key=st.integers(0, KEYS - 1))
    def ask_whether_it_arrives(self, key: int) -> None:
        before = self.cache.prefetches.late.blocks
        token = self.cache.arriving(block(key).key)
        assert token is None or token[0] == "copy"
        self.cache.arriving(block(key).key)
        assert self.cache.prefetches.late.blocks <= before + len(self.disk.capacities)

    # --- what can end ----------------------------------------------------------------------

    @precondition(lambda self: any(job.pending for job in self.jobs))
    @rule(job=st.integers(0, 50), which=st.integers(0, 5), ok=st.sampled_from((True, True, False)))
    def end_one(self, job: int, which: int, ok: bool) -> None:
        busy = [each for each in self.jobs if each.pending]
        busy[job % len(busy)].end(which, ok)
        self._tidy()

    # --- laws ------------------------------------------------------------------------------

    @invariant()
    def the_cache_agrees_with_itself_and_with_the_disk(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        for tier, capacity in self.disk.capacities.items():
            assert self.disk.used(tier) <= capacity
            assert self.disk.used(tier) == self.cache.used(tier)
            assert self.cache.entries(tier) <= len(self.disk.bytes[tier])
        for key in map(block, range(KEYS)):
            copy = self.cache.resident(key.key)
            assert copy is None or copy.ref.copy_id in self.disk.complete
        assert self.cache.idle == (not self.jobs), "motion was begun and not ended, or the reverse"
        if ROOM in self.signals.drain():
            self.waits_for_room = False
        assert not (self.cache.idle and self.waits_for_room), "room came and nobody was told"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        while self.jobs:
            before = len(self.jobs), sum(len(job.pending) for job in self.jobs)
            for job in list(self.jobs):
                if job.pending:
                    job.end(0, True)
            self._tidy()
            after = len(self.jobs), sum(len(job.pending) for job in self.jobs)
            assert before != after or any(job.pending for job in self.jobs), "deadlock"
        self.the_cache_agrees_with_itself_and_with_the_disk()
        assert self.cache.idle
        assert all(ledger.held == 0 for ledger in self.cache.ledgers)
        assert all(ledger.peak <= (ledger.capacity or 0) for ledger in self.cache.ledgers)

    # --- how it is carried out -------------------------------------------------------------

    def _start(self, batches: Iterator[Batch]) -> None:
        self.jobs.append(Job(batches))
        self._tidy()

    def _tidy(self) -> None:
        """Jobs that waited for a reader may go on; what has ended is forgotten."""
        for job in self.jobs:
            job.go_on()
        self.jobs = [job for job in self.jobs if not job.ended]

    def _store(self, plan: RoomPlan) -> Iterator[Batch]:
        yield from self._room(plan)
        if self.cache.begin_writes(plan):
            for ref in plan.targets:
                self.disk.grow(ref)
            yield [partial(self._end_write, ref) for ref in plan.targets]

    def _promote(self, plan: RoomPlan, refs: Sequence[CopyRef]) -> Iterator[Batch]:
        yield from self._room(plan)
        if not self.cache.begin_writes(plan):
            yield [partial(self._end_read, ref) for ref in refs]
            return
        for target in plan.targets:
            self.disk.grow(target)
        pairs = zip(refs, plan.targets, strict=True)
        yield [partial(self._end_promotion, ref, target) for ref, target in pairs]

    def _room(self, plan: RoomPlan) -> Iterator[Batch]:
        for level in plan.levels:
            if level.drops:
                yield [partial(self._end_drop, level.claim, ref) for ref in level.drops]
            ready = list(zip(*self.cache.begin_demotions(level), strict=True))
            for source, target in ready:
                assert target.version == source.version, "a demotion changed what the bytes are"
                assert target.tier > source.tier, "a demotion did not go down"
                self.disk.open(source)
                self.disk.grow(target)
            if ready:
                yield [partial(self._end_demotion, *demotion) for demotion in ready]
            sources = level.leaving
            while self.cache.pinned(sources) is not None:
                yield []
            if sources:
                yield [partial(self._end_drop, level.claim, ref) for ref in sources]

    def _end_read(self, ref: CopyRef, ok: bool) -> None:
        self.disk.close(ref)
        left = self.cache.end_read(ref, ok=ok)
        if left is not None:
            self.jobs.append(Job(iter([[partial(self._end_drop, None, left)]])))

    def _end_write(self, ref: CopyRef, ok: bool) -> None:
        self.disk.written(ref, ok)
        self.cache.end_writes([ref], failed=() if ok else [0])

    def _end_promotion(self, ref: CopyRef, target: CopyRef, ok: bool) -> None:
        self._end_write(target, ok)
        self._end_read(ref, ok)

    def _end_demotion(self, source: CopyRef, target: CopyRef, ok: bool) -> None:
        self.disk.close(source)
        self.disk.written(target, ok)
        self.cache.end_demotions([source], [target], failed=() if ok else [0])

    def _end_drop(self, claim: Claim | None, ref: CopyRef, ok: bool) -> None:
        self.disk.delete(ref, ok)
        self.cache.end_drops([ref], stay=() if ok else (0,), claim=claim)


CacheMachine.TestCase.settings = settings(
    examples(200),
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCacheMachine = CacheMachine.TestCase


# --- single decisions that the machine meets rarely ----------------------------------------------


def cache_of(**pages: int) -> CacheManager:
    specs = [TierSpec(tier=Tier[name], capacity_bytes=n * PAGE) for name, n in pages.items()]
    return CacheManager(specs, EVICTION["lru"], CacheRules(), Signals())


def make_room(cache: CacheManager, plan: RoomPlan) -> None:
    for level in plan.levels:
        for ref in level.drops:
            cache.end_drops([ref], claim=level.claim)
        for source, target in zip(*cache.begin_demotions(level), strict=True):
            cache.end_demotions([source], [target])
            cache.end_drops([source], claim=level.claim)


def stored(cache: CacheManager, *blocks: Block) -> None:
    plan = cache.begin_stores(blocks).plan
    assert plan is not None
    make_room(cache, plan)
    assert cache.begin_writes(plan)
    for ref in plan.targets:
        cache.end_writes([ref])


def page(number: int, pages: int = 1) -> Block:
    return Block(content_key("page", number), 4, pages * PAGE)


def test_a_copy_takes_whole_pages() -> None:
    """A byte more than a page takes two: a tier of five pages holds two such copies."""
    cache = cache_of(NVME=5)
    for number in range(4):
        stored(cache, Block(content_key("odd", number), 4, PAGE + 1))
        cache.check()
    assert cache.used(Tier.NVME) == 4 * PAGE
    assert cache.entries(Tier.NVME) == 2


def test_a_loss_is_counted_when_the_promotion_that_gave_hope_fails_too() -> None:
    cache = cache_of(CPU=10, NVME=20)
    for number in range(3):
        stored(cache, page(number, pages=4))  # the third sends the first down
    moved, read = cache.begin_read(page(0).key), cache.begin_read(page(0).key)
    assert moved is not None
    assert moved == read
    assert moved.tier is Tier.NVME
    plan, _ = cache.begin_promotions([moved])
    assert plan is not None
    make_room(cache, plan)
    assert cache.begin_writes(plan)
    assert cache.end_read(moved, ok=False) is None  # one reader finds that it is bad,
    assert cache.lost_bytes == 0
    cache.end_writes([plan.targets[0]], failed=[0])  # and so does the other
    assert cache.lost_bytes == 4 * PAGE
    assert cache.end_read(moved, ok=False) == moved
    cache.end_drops([moved])
    assert cache.lost_bytes == 4 * PAGE
    cache.check()
    assert cache.idle


def test_a_failed_store_loses_nothing_that_was_there() -> None:
    cache = cache_of(NVME=4)
    plan = cache.begin_stores([page(0)]).plan
    assert plan is not None
    assert cache.begin_writes(plan)
    cache.end_writes([plan.targets[0]], failed=[0])
    assert cache.lost_bytes == 0
    assert cache.idle


@pytest.mark.parametrize("storage_pages", [8, 9, 10])
def test_two_demotions_into_one_tier_take_neither_the_same_victim_nor_the_same_space(
    storage_pages: int,
) -> None:
    """F sends A (too large for the CPU tier) to storage and B to the CPU tier, from where C has
    to go to storage as well."""
    cache = cache_of(GPU=8, CPU=3, NVME=storage_pages)
    a, b, c, d, e, f = (page(i, pages=n) for i, n in enumerate((4, 2, 2, 4, 4, 6)))
    for each in (d, e, c, a, b):
        stored(cache, each)
    where = [cache.resident(each.key) for each in (a, b, c, d, e)]
    assert [copy and copy.ref.tier.label for copy in where] == (
        ["gpu", "gpu", "cpu", "storage", "storage"]
    )
    plan = cache.begin_stores([f]).plan
    assert plan is not None
    cache.check()
    make_room(cache, plan)
    cache.check()
    assert cache.begin_writes(plan)
    cache.end_writes([plan.targets[0]])
    where = [cache.resident(each.key) for each in (f, b, a, c)]
    assert [copy and copy.ref.tier.label for copy in where] == ["gpu", "cpu", "storage", "storage"]
    assert cache.dropped_last_copies == 2
    cache.check()
    assert cache.idle


def test_a_demotion_without_its_room_is_given_up_and_the_store_above_goes_on() -> None:
    cache = cache_of(CPU=2, NVME=1)
    for number in range(2):
        stored(cache, page(number))
    plan = cache.begin_stores([page(2)]).plan
    assert plan is not None
    below, above = plan.levels
    cache.end_drops(below.drops, stay=[0], claim=below.claim)  # its bytes may still be there
    assert cache.begin_demotions(above) == ([], [])
    assert cache.lost_bytes == PAGE
    cache.end_drops(above.leaving, claim=above.claim)
    assert cache.begin_writes(plan)
    cache.end_writes([plan.targets[0]])
    assert [cache.resident(page(n).key) is not None for n in range(3)] == [False, False, True]
    cache.check()
    assert cache.idle


def test_a_backup_does_not_wait_for_room() -> None:
    cache = cache_of(CPU=9, NVME=1)
    for number in range(2):
        stored(cache, page(number))
    assert cache.begin_backups([page(0).key], selective=False).plan is not None
    backup = cache.begin_backups([page(1).key], selective=False)
    assert (backup.plan, backup.sources, backup.later) == (None, [], [])
    assert cache.not_backed_up.blocks == 1
    cache.check()


def test_a_victim_whose_lower_copy_is_on_its_way_is_not_copied_again() -> None:
    """A block in GPU and CPU memory is backed up from the GPU's; meanwhile the CPU's has to go."""
    cache = cache_of(GPU=5, CPU=5, NVME=20)
    for number in range(5):
        stored(cache, page(number))
    ref = cache.begin_read(page(0).key)
    assert ref is not None
    assert ref.tier is Tier.CPU
    plan, _ = cache.begin_promotions([ref])
    assert plan is not None
    make_room(cache, plan)
    assert cache.begin_writes(plan)
    cache.end_writes([plan.targets[0]])
    assert cache.end_read(ref, ok=True) is None
    backup = cache.begin_backups([page(0).key], selective=False)
    assert backup.plan is not None
    assert [source.tier for source in backup.sources] == [Tier.GPU]
    assert cache.begin_writes(backup.plan)
    for number in range(5, 9):
        stored(cache, page(number))
        cache.check()
    assert ref.copy_id not in cache._copies.by_id, "the CPU's copy was not evicted"
    cache.end_writes([backup.plan.targets[0]])
    assert cache.end_read(backup.sources[0], ok=True) is None
    cache.check()
    assert cache.idle


def test_the_same_copy_twice_is_promoted_once() -> None:
    cache = cache_of(CPU=4, NVME=9)
    for number in range(4):
        stored(cache, page(number))
    refs = [cache.begin_read(page(n).key) for n in (0, 0)]
    pinned = [ref for ref in refs if ref is not None]
    assert [ref.tier for ref in pinned] == [Tier.NVME, Tier.NVME]
    plan, count = cache.begin_promotions(pinned)
    assert plan is not None
    assert (len(plan.targets), count) == (1, 1)


def test_what_the_rules_forbid_is_not_waited_for_when_nothing_moves() -> None:
    rules = CacheRules(max_evictions_min=1, max_evictions_hard_cap=1)
    spec = TierSpec(tier=Tier.NVME, capacity_bytes=2 * PAGE)
    cache = CacheManager([spec], EVICTION["lru"], rules, Signals())
    for number in range(2):
        stored(cache, page(number))
    wide = page(2, pages=2)  # needs two victims where a plan may take one
    reader = cache.begin_read(page(0).key)
    assert reader is not None
    assert cache.begin_stores([wide]).wait == ROOM
    cache.end_read(reader, ok=True)
    placement = cache.begin_stores([wide])
    assert placement.nowhere == [wide]
    assert placement.wait is None


def test_nothing_is_promised_where_nothing_moves_and_nothing_fits() -> None:
    cache = cache_of(NVME=2)
    placement = cache.begin_stores([page(1, pages=3)])
    assert placement.nowhere
    assert placement.plan is None
    assert placement.wait is None


def test_a_reader_keeps_its_victim_and_a_store_waits_for_him() -> None:
    cache = cache_of(NVME=2)
    stored(cache, page(1, pages=2))
    ref = cache.begin_read(page(1).key)
    assert ref is not None
    placement = cache.begin_stores([page(2)])
    assert placement.plan is None
    assert placement.wait == ROOM
    assert placement.later == [page(2)]
    assert ROOM not in cache.signals.drain()
    cache.end_read(ref, ok=True)
    assert ROOM in cache.signals.drain()
    assert cache.begin_stores([page(2)]).plan is not None


def test_states_of_a_copy_are_seen_from_outside() -> None:
    cache = cache_of(NVME=4)
    plan = cache.begin_stores([page(1)]).plan
    assert plan is not None
    key, target = page(1).key, plan.targets[0]
    assert cache.resident(key) is None
    assert cache.incoming(key) == ("copy", target.copy_id)
    assert cache.begin_writes(plan)
    assert cache.resident(key) is None
    cache.end_writes([target])
    copy = cache.resident(key)
    assert copy is not None
    assert copy.state is State.RESIDENT
    assert cache.incoming(key) is None
    assert ("copy", target.copy_id) in cache.signals.drain()


def test_one_plan_does_not_drop_both_copies_of_a_block() -> None:
    """D needs the whole CPU tier: C must go down, and A's copy here is given up because storage
    has another, which must then not make room for C."""
    cache = cache_of(CPU=5, NVME=4)
    a, b, c, d = (page(i, pages=n) for i, n in enumerate((2, 2, 2, 4)))
    for each in (a, b, c):
        stored(cache, each)
    below = cache.begin_read(a.key)
    assert below is not None
    plan, _ = cache.begin_promotions([below])
    assert plan is not None
    make_room(cache, plan)
    assert cache.begin_writes(plan)
    cache.end_writes([plan.targets[0]])
    cache.end_read(below, ok=True)
    stored(cache, d)
    where = {name: cache.resident(e.key) for name, e in zip("abcd", (a, b, c, d), strict=True)}
    found = {name: copy.ref.tier.label for name, copy in where.items() if copy is not None}
    assert found == {"a": "storage", "c": "storage", "d": "cpu"}
    cache.check()
    assert cache.idle
