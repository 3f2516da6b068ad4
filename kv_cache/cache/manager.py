"""The cache: which copies exist, which may be read, and what must move to make room.

Pure and single-threaded: a driver calls it under its one lock. Nothing here waits. A decision
(`begin_…`) is taken in one step, with all the space that it needs claimed at once; the driver
carries it out, and the matching `end_…` says what happened. So no plan ever waits for another
plan, and there is no deadlock to avoid later.

The states of a copy:

    PLANNED ──begin──▶ WRITING ──ok──▶ RESIDENT ──drop──▶ LEAVING ──▶ (gone)
       └─────cancel──────┴──failed──────────────────────────────────▶ (gone)

Only RESIDENT copies are read. Readers pin; only unpinned copies become victims. A victim that is
being demoted stays readable until its lower copy is complete; then it leaves the index, and is
deleted once its last reader has gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from kv_cache.cache.admission_gate import AdmissionGate, Asked, Rivals
from kv_cache.cache.counts import Prefetches, Tally
from kv_cache.cache.ledger import Claim, Ledger
from kv_cache.core.block import Block, Key
from kv_cache.core.effect import CopyRef, Token
from kv_cache.core.kinds import Tier
from kv_cache.core.signals import Signals
from kv_cache.core.units import PAGE_BYTES, round_up
from kv_cache.policy.admission import Admission, Candidate
from kv_cache.policy.eviction import Eviction, Item, MakeEviction

ROOM: Token = ("room", 0)
"""Fired when space or victims may have become available, if somebody asked for it."""


class Place(NamedTuple):
    """Where a block stands in the sequence that it was made for, for policies that ask."""

    depth: int
    parent: Key | None


NO_PLACE = Place(0, None)
NO_PLACES: Mapping[Key, Place] = MappingProxyType({})


class State(Enum):
    PLANNED = "planned"
    WRITING = "writing"
    RESIDENT = "resident"
    LEAVING = "leaving"


@dataclass(slots=True, eq=False)
class Copy:
    ref: CopyRef
    state: State = State.PLANNED
    pins: int = 0
    moving: bool = False  # chosen for demotion: readable, but not a victim again
    derived: bool = False  # made from another copy, not from new data
    refused: bool = False  # by the last tier, which is not asked again before it is used again
    ahead: bool = False  # brought up before anybody asked,
    unread: bool = False  # and nobody has asked since
    tokens: int = 0
    place: Place = NO_PLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """One tier of the waterfall. `capacity_bytes` None is unlimited (virtual time only)."""

    tier: Tier
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """`target_usage_ratio` and `large_entry_limit_ratio` bind every tier but the last: such a
    tier makes room down to that share of its capacity, and objects above the second share skip
    it. One plan moves at most `max_victims(n)` of a tier's n copies."""

    target_usage_ratio: float = 0.8
    large_entry_limit_ratio: float = 0.95
    max_evictions_hard_cap: int = 5000
    max_evictions_min: int = 1000

    def max_victims(self, entries: int) -> int:
        return max(self.max_evictions_min, min(entries, self.max_evictions_hard_cap))


@dataclass(slots=True, eq=False)
class Demotion:
    source: CopyRef
    target: CopyRef
    claim: Claim


@dataclass(slots=True, eq=False)
class Level:
    """What one tier has to do before bytes can come in: delete `drops`, then `demotions`."""

    claim: Claim
    drops: tuple[CopyRef, ...]
    demotions: tuple[Demotion, ...]


@dataclass(slots=True, eq=False)
class Plan:
    """Room for `targets` in one tier: carry out `levels` in order (the lowest tier first)."""

    targets: tuple[CopyRef, ...]
    levels: tuple[Level, ...]
    claim: Claim


@dataclass(slots=True, eq=False)
class Placement:
    """The answer to `begin_stores`. Blocks that are present or being stored need nothing, nor do
    those that no tier admits: they are not stored."""

    plan: Plan | None = None
    present: list[Block] = field(default_factory=list)
    nowhere: list[Block] = field(default_factory=list)
    unwanted: list[Block] = field(default_factory=list)
    later: list[Block] = field(default_factory=list)
    wait: Token | None = None


@dataclass(slots=True, eq=False)
class Backup:
    """Copies in the last tier of what is above it: the plan's targets are of the pinned `sources`,
    in their order. What found no place in one plan is `later`."""

    plan: Plan | None = None
    sources: list[CopyRef] = field(default_factory=list)
    later: list[Key] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _DraftLevel:
    index: int
    need: int
    held: int
    victims: list[Copy]  # as the policy has offered them
    drops: list[Copy]
    demotions: list[tuple[Copy, "_DraftLevel"]]


@dataclass(slots=True, eq=False)
class _Draft:
    """A plan in the making: nothing is changed until it is complete (policies are told what may
    come, which they may be told in vain)."""

    levels: list[_DraftLevel] = field(default_factory=list)
    chosen: set[int] = field(default_factory=set)
    held: dict[int, int] = field(default_factory=dict)
    asked: Asked = field(default_factory=Asked)


class CacheManager:
    """Copies of blocks in the tiers given, the fastest first. `admission`: a policy for each tier,
    None where everything comes in; left out, that is so everywhere."""

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        eviction: MakeEviction,
        rules: CacheRules,
        signals: Signals,
        admission: Sequence[Admission | None] | None = None,
    ) -> None:
        if not tiers:
            raise AssertionError("a cache needs a tier")
        self.specs = tuple(tiers)
        self.rules = rules
        self.signals = signals
        self.ledgers = tuple(Ledger(spec.capacity_bytes) for spec in tiers)
        self._policies = tuple(eviction(self._limit(i, 0)) for i in range(len(self.specs)))
        self.admission_gate = AdmissionGate(admission or [None] * len(self.specs))
        self._index_of = {spec.tier: i for i, spec in enumerate(tiers)}
        self._copies: dict[int, Copy] = {}
        self._entries: dict[Key, list[Copy | None]] = {}
        self._next_copy_id = 0
        self._next_version = 0
        self._motion = 0  # reads, writes, demotions and deletes that have begun and not ended
        self._wanted_space = False
        self.dropped_last_copies = 0  # evictions after which a block is in no tier
        self.lost_bytes = 0  # bytes of last copies that failed verification or demotion
        self.prefetches = Prefetches()
        self.not_backed_up = Tally()  # for want of room in the last tier

    # --- looking ---------------------------------------------------------------------------

    def resident(self, key: Key) -> Copy | None:
        """The fastest copy of `key` that can be read now."""
        for copy in self._entries.get(key, ()):
            if copy is not None and copy.state is State.RESIDENT:
                return copy
        return None

    def incoming(self, key: Key) -> Token | None:
        """What to await when `key` is not resident but somebody is storing it."""
        for copy in self._entries.get(key, ()):
            if copy is not None and copy.state is not State.RESIDENT:
                return ("copy", copy.ref.copy_id)
        return None

    def backed_up(self, key: Key) -> bool:
        """Whether the last tier has a copy of `key`, or is getting one."""
        entry = self._entries.get(key)
        return entry is not None and entry[-1] is not None

    def can_rise(self, key: Key) -> bool:
        """Whether `key` could be read faster than it can now, and nobody brings it up yet."""
        copy = self.resident(key)
        if copy is None:
            return False
        above = self._index_of[copy.ref.tier]
        return above > 0 and not any(self._entries[key][:above])

    def arriving(self, key: Key) -> Token | None:
        """What to await where a prefetch is copying `key` up at this moment; None where it still
        makes room, for which nobody should wait. Tells that somebody has asked."""
        for copy in self._entries.get(key, ()):
            if copy is None or not copy.ahead:
                continue
            if copy.state is State.RESIDENT:
                return None
            if copy.unread:
                self._asked_for(copy, read=False)
            if copy.state is State.WRITING:
                return ("copy", copy.ref.copy_id)
        return None

    def entries(self, tier: Tier) -> int:
        """How many copies of `tier` can be read now."""
        index = self._index_of.get(tier)
        if index is None:
            return 0
        return sum(
            1
            for copy in self._copies.values()
            if copy.state is State.RESIDENT and copy.ref.tier is tier
        )

    def sample(self, tier: Tier, count: int) -> list[CopyRef]:
        """At most `count` copies of `tier` that can be read now, from all over the index."""
        refs = [
            copy.ref
            for copy in self._copies.values()
            if copy.state is State.RESIDENT and copy.ref.tier is tier
        ]
        step = max(1, len(refs) // count)
        return refs[::step][:count]

    def used(self, tier: Tier) -> int:
        index = self._index_of.get(tier)
        return 0 if index is None else self.ledgers[index].used

    def notes(self, tier: Tier) -> Mapping[str, int]:
        """What the policy of a tier says of itself."""
        return self._policies[self._index_of[tier]].notes()

    @property
    def fastest(self) -> Tier:
        return self.specs[0].tier

    # --- reading ---------------------------------------------------------------------------

    def begin_read(self, key: Key) -> CopyRef | None:
        """Pin and return the fastest readable copy, or None. Counts as a use of the block."""
        copy = self.resident(key)
        if copy is None:
            return None
        self._pin(copy)
        for each in self._entries[key]:
            if each is None:
                continue
            each.refused = False
            if each.unread:
                self._asked_for(each, read=each is copy)
            if each.state is State.RESIDENT and not each.moving:
                self._policy(each).hit(each.ref.copy_id)
        self.admission_gate.used(key)
        return copy.ref

    def end_read(self, ref: CopyRef, *, ok: bool) -> CopyRef | None:
        """Unpin. The answer is a copy that must be deleted now (and `end_drop`ped), or None.

        A copy that could not be read is worthless: it leaves the index at once, and whoever
        unpins it last deletes it.
        """
        copy = self._copies[ref.copy_id]
        self._unpin(copy)
        if not ok and copy.state is State.RESIDENT and not copy.moving:
            self._policy(copy).remove(ref.copy_id, evicted=False)
            self._leave(copy)
            self._count_loss(copy)
        self._changed(ref)
        if copy.state is State.LEAVING and copy.pins == 0 and not copy.moving:
            self._motion += 1
            return ref
        return None

    # --- storing ---------------------------------------------------------------------------

    def begin_stores(
        self, blocks: Sequence[Block], places: Mapping[Key, Place] = NO_PLACES
    ) -> Placement:
        """Room for as many of `blocks` as one plan can hold, in the fastest tier that can take
        them; the rest are `later`, or `wait` names what to await when nothing can be done yet.
        `places` tells where blocks stand in their sequence, of those that are part of one."""
        placement = Placement()
        todo: list[Block] = []
        seen: set[Key] = set()
        for block in blocks:
            if block.key in self._entries or block.key in seen:
                placement.present.append(block)
            elif not self._fits_somewhere(block):
                placement.nowhere.append(block)
            else:
                todo.append(block)
                seen.add(block.key)
        if not todo:
            return placement
        asked = Asked()
        for index in range(len(self.specs)):
            fitting = [b for b in todo if self._fits(index, self._size(b))]
            if self.admission_gate.guarded(index):
                fitting = self._admitted(index, fitting, places, asked)
            self._expect(index, (b.key for b in fitting))
            planned = self._plan_most(index, fitting)
            if planned is None:
                continue
            draft, count = planned
            taken = fitting[:count]
            targets = [self._new_target(b, index, places.get(b.key, NO_PLACE)) for b in taken]
            placement.plan = self._commit(draft, targets)
            keys = {b.key for b in taken}
            for block in taken:
                self.admission_gate.settle(asked, block.key, into=index)
                self.admission_gate.used(block.key)
            placement.later = [b for b in todo if b.key not in keys]
            return placement
        todo = self._turn_away(todo, asked, placement)
        placement.later = todo
        if not todo:
            return placement
        if self._motion:
            self._wanted_space = True
            placement.wait = ROOM
        else:  # nothing will change by waiting: what is left is stranded or bound by the rules
            placement.nowhere += self._turn_away(todo, asked, placement, waits=False)
            placement.later = []
        return placement

    def begin_promotions(self, refs: Sequence[CopyRef]) -> tuple[Plan | None, int]:
        """Room for copies of the pinned `refs` in the fastest tier that can take some of them.

        The answer's plan has targets for the first n of the refs that may be promoted, and n
        counts refs in the order given; a ref that cannot be promoted ends the series. Without a
        plan the first n refs stay where they are: all, or those that no tier above admits.
        """
        asked = Asked()
        unwanted = self._unwanted_above(refs, asked)
        if unwanted:
            return None, unwanted
        for index in range(len(self.specs)):
            series: list[CopyRef] = []
            keys: set[Key] = set()
            for ref in refs:
                entry = self._entries.get(ref.key)
                if (
                    self._index_of[ref.tier] <= index
                    or ref.key in keys
                    or entry is None
                    or entry[index] is not None
                    or not self._fits(index, ref.nbytes)
                    or not self._admits(index, self._candidate(ref), asked)
                ):
                    break
                series.append(ref)
                keys.add(ref.key)
            blocks = [Block(ref.key, 0, ref.nbytes) for ref in series]
            self._expect(index, (ref.key for ref in series))
            planned = self._plan_most(index, blocks)
            if planned is None:
                continue
            draft, count = planned
            targets = [self._new_copy_of(self._copies[r.copy_id], index) for r in series[:count]]
            for ref in series[:count]:
                self.admission_gate.settle(asked, ref.key, into=index)
            return self._commit(draft, targets), count
        return None, len(refs)

    def begin_prefetch(self, key: Key, *, nearest: bool) -> tuple[Plan, CopyRef] | None:
        """Room for a copy of `key` in the fastest tier that takes it, or in the `nearest` above
        where it is, and the pinned copy that it is made from. It never waits for room, and is no
        use of the block."""
        copy = self.resident(key)
        if copy is None or not self.can_rise(key):
            return None
        asked, nbytes = Asked(), copy.ref.nbytes
        above = range(self._index_of[copy.ref.tier])
        source = self._pin(copy)  # so that room is not made at its cost
        for index in reversed(above) if nearest else above:
            fits = self._fits(index, nbytes)
            if not fits or not self._admits(index, self._candidate(source), asked):
                continue
            self._expect(index, (key,))
            planned = self._plan_most(index, [Block(key, 0, nbytes)])
            if planned is None:
                continue
            self.admission_gate.settle(asked, key, into=index)
            target = self._new_copy_of(copy, index)
            made = self._copies[target.copy_id]
            made.ahead = made.unread = True
            self.prefetches.started.add(nbytes)
            return self._commit(planned[0], [target]), source
        self._unpin(copy)
        self.admission_gate.settle(asked, key, into=None)
        if not any(asked.refused(index, key) for index in above):
            self.prefetches.no_room.add(nbytes)
        return None

    def begin_backups(self, keys: Sequence[Key], *, selective: bool) -> Backup:
        """Room in the last tier for copies of those of `keys` that are only above it. It never
        waits for room. `selective`: only of those that the last tier admits."""
        last, asked, found = len(self.specs) - 1, Asked(), []
        for key in dict.fromkeys(keys):
            copy = self.resident(key)
            if copy is None or self.backed_up(key) or not self._fits(last, copy.ref.nbytes):
                continue
            if selective and not self._admits(last, self._candidate(copy.ref), asked):
                copy.refused = True
                self.admission_gate.settle(asked, key, into=None)
                continue
            found.append(copy)
        blocks = [Block(copy.ref.key, 0, copy.ref.nbytes) for copy in found]
        self._expect(last, (copy.ref.key for copy in found))
        planned = self._plan_most(last, blocks)
        if planned is None:
            for copy in found:
                self.not_backed_up.add(copy.ref.nbytes)
            return Backup()
        draft, count = planned
        taken = found[:count]
        for copy in taken:
            self.admission_gate.settle(asked, copy.ref.key, into=last)
        plan = self._commit(draft, [self._new_copy_of(copy, last) for copy in taken])
        sources = [self._pin(copy) for copy in taken]
        return Backup(plan, sources, [copy.ref.key for copy in found[count:]])

    def begin_writes(self, plan: Plan) -> bool:
        """The targets begin to exist. False (and the plan is cancelled) if a delete or demotion
        failed on the way, so that the room is not there."""
        ledger = self.ledgers[self._index_of[plan.targets[0].tier]]
        if not plan.claim.complete:
            for ref in plan.targets:
                self._forget(self._copies[ref.copy_id])
                self._motion -= 1
            ledger.release(plan.claim)
            self._changed(*plan.targets)
            return False
        for ref in plan.targets:
            self._copies[ref.copy_id].state = State.WRITING
            ledger.begin(ref.nbytes, plan.claim)
        ledger.release(plan.claim)
        return True

    def end_write(self, ref: CopyRef, *, ok: bool) -> None:
        """A target is complete and readable, or nothing of it is left behind."""
        copy = self._copies[ref.copy_id]
        assert copy.state is State.WRITING, f"end_write of a copy that is {copy.state.value}"
        self._motion -= 1
        if ok:
            copy.state = State.RESIDENT
            item = Item(ref.copy_id, ref.key, ref.nbytes, copy.tokens, *copy.place)
            self._policy(copy).insert(item)
        else:
            self._ledger(ref).end(ref.nbytes)
            self._forget(copy)
        self._changed(ref)

    # --- making room -----------------------------------------------------------------------

    def begin_demotions(self, level: Level) -> list[Demotion]:
        """The level's demotions that can begin; the others' sources are simply given up."""
        ready = []
        for demotion in level.demotions:
            target = self._copies[demotion.target.copy_id]
            if demotion.claim.held >= demotion.target.nbytes:
                self._ledger(demotion.target).begin(demotion.target.nbytes, demotion.claim)
                target.state = State.WRITING
                ready.append(demotion)
            else:
                self._forget(target)
                self._motion -= 1
                self._changed(demotion.target)
                self._finish_source(demotion.source)
        for demotion in level.demotions:
            self._ledger(demotion.target).release(demotion.claim)
        return ready

    def end_demotion(self, demotion: Demotion, *, ok: bool) -> None:
        """The lower copy is complete (or failed); the upper one leaves the index either way."""
        self.end_write(demotion.target, ok=ok)
        self._finish_source(demotion.source)

    def pinned(self, ref: CopyRef) -> bool:
        """Whether a reader still holds a source that has left the index; await its copy token."""
        return self._copies[ref.copy_id].pins > 0

    def end_drop(self, ref: CopyRef, *, ok: bool, claim: Claim | None = None) -> None:
        """A delete has ended. If it failed, the bytes may still be there and stay counted."""
        copy = self._copies.pop(ref.copy_id)
        assert copy.state is State.LEAVING, "only what has left the index may be deleted"
        assert copy.pins == 0, "a copy was deleted under a reader"
        self._motion -= 1
        ledger = self._ledger(ref)
        if ok:
            ledger.end(ref.nbytes, claim)
        else:
            ledger.strand(ref.nbytes)
        self._changed(ref)

    # --- laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything; called after every step in tests and at idle."""
        for index, (spec, ledger) in enumerate(zip(self.specs, self.ledgers, strict=True)):
            here = [c for c in self._copies.values() if c.ref.tier is spec.tier]
            physical = sum(c.ref.nbytes for c in here if c.state is not State.PLANNED)
            assert physical + ledger.stranded == ledger.used, "the ledger disagrees with the copies"
            assert ledger.held >= 0, "a claim holds less than nothing"
            if ledger.capacity is not None:
                assert ledger.used + ledger.held <= ledger.capacity, "a tier is over its capacity"
            candidates = {c.ref.copy_id for c in here if c.state is State.RESIDENT and not c.moving}
            assert candidates == set(self._policies[index].victims()), "the policy lost track"
        for key, entry in self._entries.items():
            assert any(c is not None for c in entry), "an empty entry was kept"
            for index, copy in enumerate(entry):
                if copy is not None:
                    assert copy.ref.key == key, "a copy stands under another key"
                    assert self._index_of[copy.ref.tier] == index, "a copy stands in another tier"
                    assert copy.state is not State.LEAVING, "a leaving copy can be found"
        started, unread = self.prefetches.started.blocks, self.unread_blocks
        assert started == self.prefetches.ended_blocks + unread, "a prefetch was lost"
        if self.idle:
            assert all(c.pins == 0 and not c.moving for c in self._copies.values())
            assert all(ledger.held == 0 for ledger in self.ledgers), "a claim was left behind"

    @property
    def unread_blocks(self) -> int:
        """Brought up before anybody asked, or on their way, and nobody has asked since."""
        return sum(copy.unread for copy in self._copies.values())

    @property
    def idle(self) -> bool:
        """Nothing that was begun is waiting for its end."""
        return self._motion == 0

    # --- inside ----------------------------------------------------------------------------

    def _pin(self, copy: Copy) -> CopyRef:
        copy.pins += 1
        self._motion += 1
        return copy.ref

    def _unpin(self, copy: Copy) -> None:
        copy.pins -= 1
        self._motion -= 1
        assert copy.pins >= 0, "a copy was unpinned more often than pinned"

    def _asked_for(self, copy: Copy, *, read: bool) -> None:
        """The first to ask for what a prefetch brings, or has brought, to where it is read."""
        if read:
            self.prefetches.useful.add(copy.ref.nbytes)
        elif copy.state is State.RESIDENT:
            return  # a faster copy was read
        else:
            self.prefetches.late.add(copy.ref.nbytes)
        copy.unread = False

    def _size(self, block: Block) -> int:
        return round_up(block.nbytes, PAGE_BYTES)

    def _ledger(self, ref: CopyRef) -> Ledger:
        return self.ledgers[self._index_of[ref.tier]]

    def _policy(self, copy: Copy) -> Eviction:
        return self._policies[self._index_of[copy.ref.tier]]

    def _expect(self, index: int, keys: Iterable[Key]) -> None:
        policy = self._policies[index]
        for key in keys:
            policy.expect(key)

    def _is_last(self, index: int) -> bool:
        return index == len(self.specs) - 1

    def _fits(self, index: int, nbytes: int) -> bool:
        """Whether an object may live in a tier at all, were it empty."""
        capacity = self.specs[index].capacity_bytes
        if capacity is None:
            return True
        share = 1.0 if self._is_last(index) else self.rules.large_entry_limit_ratio
        return nbytes <= capacity * share - self.ledgers[index].stranded

    def _fits_somewhere(self, block: Block) -> bool:
        return any(self._fits(i, self._size(block)) for i in range(len(self.specs)))

    def _limit(self, index: int, largest: int) -> int | None:
        """How full a tier may be made: a single large object may use more than the target."""
        capacity = self.specs[index].capacity_bytes
        if capacity is None or self._is_last(index):
            return capacity
        return max(int(capacity * self.rules.target_usage_ratio), largest)

    # --- who comes in ----------------------------------------------------------------------

    def _rivals(self, index: int, chosen: Iterable[int] = ()) -> Rivals | None:
        """What leaves a tier for what comes, where its admission compares them."""
        if not self.admission_gate.compares(index):
            return None
        room = self.ledgers[index].free(self._limit(index, 0))
        return Rivals(room, self._victims_of(index, set(chosen)))

    def _victims_of(self, index: int, chosen: set[int]) -> Iterator[tuple[Key, int]]:
        for copy_id in self._policies[index].victims():
            copy = self._copies[copy_id]
            if not copy.pins and copy_id not in chosen:
                yield copy.ref.key, copy.ref.nbytes

    def _admitted(
        self, index: int, blocks: Sequence[Block], places: Mapping[Key, Place], asked: Asked
    ) -> list[Block]:
        """Of new blocks, those that a tier admits."""
        rivals = self._rivals(index)

        def admits(block: Block) -> bool:
            depth = places.get(block.key, NO_PLACE).depth
            candidate = Candidate(block.key, self._size(block), depth, fresh=True)
            return self.admission_gate.ask(asked, index, candidate, rivals)

        return [block for block in blocks if admits(block)]

    def _turn_away(
        self, blocks: Sequence[Block], asked: Asked, placement: Placement, *, waits: bool = True
    ) -> list[Block]:
        """Those of `blocks` that some tier would take, if it had room. The others are not stored;
        where nothing `waits` for room, neither is what any tier has refused."""
        left = []
        for block in blocks:
            size, tiers = self._size(block), range(len(self.specs))
            refused = [i for i in tiers if asked.refused(i, block.key)]
            takes = any(i not in refused and self._fits(i, size) for i in tiers)
            if not refused or (takes and waits):
                left.append(block)
                continue
            placement.unwanted.append(block)
            self.admission_gate.settle(asked, block.key, into=None)
            self.admission_gate.used(block.key)
            self.admission_gate.not_stored.add(size)
        return left

    def _candidate(self, ref: CopyRef) -> Candidate:
        return Candidate(ref.key, ref.nbytes, self._copies[ref.copy_id].place.depth)

    def _admits(self, index: int, candidate: Candidate, asked: Asked) -> bool:
        if not self.admission_gate.guarded(index):
            return True
        return self.admission_gate.ask(asked, index, candidate, self._rivals(index))

    def _unwanted_above(self, refs: Sequence[CopyRef], asked: Asked) -> int:
        """How many of the first refs no tier above admits, which is decided and counted, or are
        on their way up already, brought by a prefetch."""
        for count, ref in enumerate(refs):
            above = range(self._index_of[ref.tier])
            entry = self._entries.get(ref.key, ())
            if any(c is not None and c.ahead for c in entry[: len(above)]):
                continue
            fitting = [i for i in above if self._fits(i, ref.nbytes)]
            candidate = self._candidate(ref)
            if not fitting or any(self._admits(i, candidate, asked) for i in fitting):
                return count
            self.admission_gate.settle(asked, ref.key, into=None)
        return len(refs)

    # --- making copies ---------------------------------------------------------------------

    def _new_target(self, block: Block, index: int, place: Place) -> CopyRef:
        version = self._next_version
        self._next_version += 1
        ref = self._new_ref(block.key, index, self._size(block), version)
        return self._new_copy(index, Copy(ref, tokens=block.tokens, place=place))

    def _new_copy_of(self, source: Copy, index: int) -> CopyRef:
        key, nbytes, version = source.ref.key, source.ref.nbytes, source.ref.version
        ref = self._new_ref(key, index, nbytes, version)
        copy = Copy(
            ref, derived=True, refused=source.refused, tokens=source.tokens, place=source.place
        )
        return self._new_copy(index, copy)

    def _new_ref(self, key: Key, index: int, nbytes: int, version: int) -> CopyRef:
        copy_id = self._next_copy_id
        self._next_copy_id += 1
        return CopyRef(copy_id, key, self.specs[index].tier, nbytes, version)

    def _new_copy(self, index: int, copy: Copy) -> CopyRef:
        ref = copy.ref
        self._copies[ref.copy_id] = copy
        entry = self._entries.setdefault(ref.key, [None] * len(self.specs))
        assert entry[index] is None, "a second copy of a key in one tier"
        entry[index] = copy
        self._motion += 1
        return ref

    def _unlist(self, copy: Copy) -> None:
        entry = self._entries[copy.ref.key]
        entry[self._index_of[copy.ref.tier]] = None
        if not any(entry):
            del self._entries[copy.ref.key]

    def _forget(self, copy: Copy) -> None:
        """A copy that never became readable is gone."""
        if copy.unread:
            self.prefetches.failed.add(copy.ref.nbytes)
        self._unlist(copy)
        del self._copies[copy.ref.copy_id]
        if copy.derived:  # its source may have failed meanwhile, when this one gave hope
            self._count_loss(copy)

    def _leave(self, copy: Copy) -> None:
        """Out of the index, having left the policy; the bytes are still there."""
        assert copy.state is State.RESIDENT, "only a resident copy can leave"
        copy.state = State.LEAVING
        if copy.unread:
            self.prefetches.wasted.add(copy.ref.nbytes)
            copy.unread = False
        self._unlist(copy)

    def _count_loss(self, copy: Copy) -> None:
        if copy.ref.key not in self._entries:
            self.lost_bytes += copy.ref.nbytes

    def _finish_source(self, ref: CopyRef) -> None:
        """A demotion's source leaves the index; its delete is now pending."""
        copy = self._copies[ref.copy_id]
        self._leave(copy)
        self._count_loss(copy)
        self._changed(ref)

    def _changed(self, *refs: CopyRef) -> None:
        for ref in refs:
            self.signals.fire(("copy", ref.copy_id))
        if self._wanted_space:
            self._wanted_space = False
            self.signals.fire(ROOM)

    def _plan_most(self, index: int, blocks: Sequence[Block]) -> tuple[_Draft, int] | None:
        """A draft for the longest of the prefixes n, n/2, n/4 … of `blocks` that has one."""
        count = len(blocks)
        while count:
            sizes = [self._size(b) for b in blocks[:count]]
            draft = _Draft()
            if self._draft(index, sum(sizes), max(sizes), draft) is not None:
                return draft, count
            count //= 2
        return None

    def _draft(self, index: int, need: int, largest: int, draft: _Draft) -> _DraftLevel | None:
        """Room for `need` bytes in a tier and, for the victims, in the tiers below it."""
        limit = self._limit(index, largest)
        free = self.ledgers[index].free(limit)
        held = need
        victims: list[Copy] = []
        drops: list[Copy] = []
        down: list[Copy] = []
        if free is not None and limit is not None:
            if need > limit:
                return None
            held = min(need, max(0, free - draft.held.get(index, 0)))
            chosen = self._choose(index, need - held, draft)
            if chosen is None:
                return None
            victims = chosen
            for victim in victims:
                lower = self._lower_copy(victim)
                if lower is None:
                    down.append(victim)
                else:
                    drops.append(victim)
                    draft.chosen.add(lower.ref.copy_id)  # the block's last one: not a victim too
        draft.held[index] = draft.held.get(index, 0) + held
        level = _DraftLevel(index, need, held, victims, drops, [])
        for target, group in self._distribute(index, down, drops, draft).items():
            sizes = [c.ref.nbytes for c in group]
            self._expect(target, (c.ref.key for c in group))
            below = self._draft(target, sum(sizes), max(sizes), draft)
            if below is None:
                return None
            level.demotions += [(copy, below) for copy in group]
        draft.levels.append(level)
        return level

    def _choose(self, index: int, short: int, draft: _Draft) -> list[Copy] | None:
        """The policy's best victims that free `short` bytes, or None if there are not enough."""
        victims: list[Copy] = []
        if short <= 0:
            return victims
        policy = self._policies[index]
        most = self.rules.max_victims(len(policy))
        for copy_id in policy.victims():
            copy = self._copies[copy_id]
            if copy.pins or copy_id in draft.chosen:
                continue
            if len(victims) == most:
                return None
            victims.append(copy)
            draft.chosen.add(copy_id)
            short -= copy.ref.nbytes
            if short <= 0:
                return victims
        return None

    def _lower_copy(self, copy: Copy) -> Copy | None:
        """The nearest readable copy of the same block further down."""
        below = self._entries[copy.ref.key][self._index_of[copy.ref.tier] + 1 :]
        readable = (c for c in below if c is not None and c.state is State.RESIDENT)
        return next(readable, None)

    def _distribute(
        self, index: int, down: Iterable[Copy], drops: list[Copy], draft: _Draft
    ) -> dict[int, list[Copy]]:
        """Victims by the tier that takes them; what no lower tier can take, or admits, is
        dropped."""
        groups: dict[int, list[Copy]] = {}
        loads: dict[int, int] = {}
        below = range(index + 1, len(self.specs))
        rivals = {target: self._rivals(target, draft.chosen) for target in below}
        for copy in down:
            nbytes = copy.ref.nbytes
            for target in below:
                limit = self._limit(target, nbytes)
                load = loads.get(target, 0) + nbytes
                if (
                    self._entries[copy.ref.key][target] is None  # else one is coming there
                    and self._fits(target, nbytes)
                    and (limit is None or load <= limit)
                    and self._takes(target, copy, draft, rivals[target])
                ):
                    groups.setdefault(target, []).append(copy)
                    loads[target] = load
                    break
            else:
                drops.append(copy)
        return groups

    def _takes(self, target: int, copy: Copy, draft: _Draft, rivals: Rivals | None) -> bool:
        if not self.admission_gate.guarded(target):
            return True
        if copy.refused and self._is_last(target):
            return False
        return self.admission_gate.ask(draft.asked, target, self._candidate(copy.ref), rivals)

    def _commit(self, draft: _Draft, targets: Sequence[CopyRef]) -> Plan:
        """Claim all space and mark all victims in one step."""
        self._settle_demotions(draft)
        made: dict[int, Level] = {}
        for level in draft.levels:
            claim = self.ledgers[level.index].claim(level.need, level.held)
            made[id(level)] = Level(claim, (), ())
            for copy in level.victims:
                self._policies[level.index].remove(copy.ref.copy_id, evicted=True)
        for level in draft.levels:
            real = made[id(level)]
            real.drops = tuple(self._drop(copy) for copy in level.drops)
            real.demotions = tuple(
                self._demote(copy, below.index, made[id(below)].claim)
                for copy, below in level.demotions
            )
        levels = tuple(made[id(level)] for level in draft.levels)
        return Plan(tuple(targets), levels, levels[-1].claim)

    def _settle_demotions(self, draft: _Draft) -> None:
        """What the tiers below have said of the victims is now decided."""
        if not draft.asked.answers:
            return
        into = {copy.ref.key: below.index for lv in draft.levels for copy, below in lv.demotions}
        for key in dict.fromkeys(key for _, key in draft.asked.answers):
            self.admission_gate.settle(draft.asked, key, into=into.get(key))

    def _drop(self, copy: Copy) -> CopyRef:
        self._leave(copy)
        self._motion += 1
        if copy.ref.key not in self._entries:
            self.dropped_last_copies += 1
        return copy.ref

    def _demote(self, copy: Copy, target_index: int, claim: Claim) -> Demotion:
        copy.moving = True
        self._motion += 1
        return Demotion(copy.ref, self._new_copy_of(copy, target_index), claim)
