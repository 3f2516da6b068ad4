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

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

from kv_cache.cache.admission_gate import AdmissionAnswers, AdmissionGate
from kv_cache.cache.copies import (
    LEAVING,
    NO_POSITIONS,
    PLANNED,
    RESIDENT,
    WRITING,
    Copies,
    Copy,
    Position,
    nearest_readable,
)
from kv_cache.cache.counts import CopyTally, Prefetches
from kv_cache.cache.ledger import Claim, Ledger
from kv_cache.cache.limits import CacheRules, TierLimits, TierSpec
from kv_cache.cache.plans import Backup, Demotions, Placement, RoomLevel, RoomPlan
from kv_cache.cache.room import Draft, RoomPlanner
from kv_cache.core.block import Block, Key
from kv_cache.core.effect import CopyRef, Token
from kv_cache.core.kinds import Tier
from kv_cache.core.object_ops import objects_of
from kv_cache.core.signals import Signals
from kv_cache.policy.admission import Admission
from kv_cache.policy.eviction import Eviction, Item, MakeEviction

ROOM: Token = ("room", 0)
"""Fired when space or victims may have become available, if a store waits for them."""

_item: Callable[[tuple[int, Key, int, int, int, Key | None, int]], Item] = partial(
    tuple.__new__, Item
)
"""As the class, of all of its fields, without a frame of Python's."""


class CacheManager:
    """Copies of blocks in tiers, the fastest first. `admission`: a policy for each tier, None if it
    admits everything; left out, every tier does."""

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
        self.signals = signals
        self.ledgers = tuple(Ledger(spec.capacity_bytes) for spec in tiers)
        self.admission_gate = AdmissionGate(admission or [None] * len(self.specs))
        self._limits = TierLimits(rules, self.ledgers)
        self._policies = tuple(eviction(self._limits.limit(i, 0)) for i in range(len(tiers)))
        self._copies = Copies([spec.tier for spec in tiers])
        self._room = RoomPlanner(self._limits, self._copies, self._policies, self.admission_gate)
        self._motion = 0  # reads, writes, demotions and deletes that have begun and not ended
        self._wanted_space = False
        self.dropped_last_copies = 0  # evictions after which a block is in no tier
        self.lost_bytes = 0  # bytes of last copies that failed verification or demotion
        self.prefetches = Prefetches()
        self.not_backed_up = CopyTally()  # for want of room in the last tier

    # --- looking ---------------------------------------------------------------------------

    def resident(self, key: Key) -> Copy | None:
        """Return the fastest copy of `key` that can be read now."""
        return nearest_readable(self._copies.by_key.get(key, ()))

    def incoming(self, key: Key) -> Token | None:
        """Return what to await if `key` is not resident but is being stored."""
        for copy in self._copies.by_key.get(key, ()):
            if copy is not None and copy.state is not RESIDENT:
                return copy.await_change()
        return None

    def backed_up(self, key: Key) -> bool:
        """Return whether the last tier has a copy of `key`, or is getting one."""
        entry = self._copies.by_key.get(key)
        return entry is not None and entry[-1] is not None

    def can_rise(self, key: Key) -> bool:
        """Return whether `key` could be read faster than it can now, and is not on its way up
        yet."""
        copy = self.resident(key)
        if copy is None:
            return False
        above = self._copies.index_of[copy.ref.tier]
        return above > 0 and not any(self._copies.by_key[key][:above])

    def arriving(self, key: Key) -> Token | None:
        """Return what to await if a prefetch is copying `key` up at this moment; None if it still
        makes room, for which no request should wait. Counts that a request has asked for it."""
        for copy in self._copies.by_key.get(key, ()):
            if copy is None or not copy.ahead:
                continue
            if copy.state is RESIDENT:
                return None
            if copy.unread:
                self._count_first_ask(copy, read=False)
            if copy.state is WRITING:
                return copy.await_change()
        return None

    def entries(self, tier: Tier) -> int:
        """Return how many objects of `tier` can be read now."""
        return sum(copy.ref.objects for copy in self._copies.readable(tier))

    def sample(self, tier: Tier, count: int) -> list[CopyRef]:
        """Return at most `count` objects of `tier` that can be read now, from all over the
        index."""
        refs = [ref for copy in self._copies.readable(tier) for ref in objects_of(copy.ref)]
        step = max(1, len(refs) // count)
        return refs[::step][:count]

    def used(self, tier: Tier) -> int:
        index = self._copies.index_of.get(tier)
        return 0 if index is None else self.ledgers[index].used

    def notes(self, tier: Tier) -> Mapping[str, int]:
        """Return what the policy of a tier adds to a result."""
        return self._policies[self._copies.index_of[tier]].notes()

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
        for each in self._copies.by_key[key]:
            if each is None:
                continue
            each.refused = False
            if each.unread:
                self._count_first_ask(each, read=each is copy)
            if each.state is RESIDENT and not each.moving:
                self._policy(each).hit(each.ref.copy_id)
        self.admission_gate.used(key)
        return copy.ref

    def end_read(self, ref: CopyRef, *, ok: bool) -> CopyRef | None:
        """Unpin. The answer is a copy that must be deleted now (and `end_drop`ped), or None.

        A copy that could not be read is worthless: it leaves the index at once, and the
        last to unpin it deletes it.
        """
        copy = self._copies.by_id[ref.copy_id]
        self._unpin(copy)
        if not ok and copy.state is RESIDENT and not copy.moving:
            self._policy(copy).remove(ref.copy_id, evicted=False)
            self._lose([copy])
        self._changed(copy)
        if copy.state is LEAVING and copy.pins == 0 and not copy.moving:
            self._motion += 1
            return ref
        return None

    # --- storing ---------------------------------------------------------------------------

    def begin_stores(
        self, blocks: Sequence[Block], positions: Mapping[Key, Position] = NO_POSITIONS
    ) -> Placement:
        """Plan room for as many of `blocks` as one plan can hold, in the fastest tier that can take
        them; the rest are `later`, or `wait` names what to await when nothing can be done yet.
        `positions` says where blocks are in their sequence, of those that are part of one."""
        placement = Placement()
        todo: list[Block] = []
        sizes: dict[Key, int] = {}
        homes: dict[int, list[int]] = {}  # by size
        by_key = self._copies.by_key
        for block in blocks:
            key = block.key
            if key in by_key or key in sizes:
                placement.present.append(block)
                continue
            nbytes = block.stored_bytes
            if nbytes not in homes:
                homes[nbytes] = self._limits.homes(nbytes)
            if not homes[nbytes]:
                placement.nowhere.append(block)
            else:
                todo.append(block)
                sizes[key] = nbytes
        if not todo:
            return placement
        answers = AdmissionAnswers()
        for index in range(len(self.specs)):
            fitting = [b for b in todo if index in homes[sizes[b.key]]]
            if self.admission_gate.guarded(index):
                fitting = self._room.admitted(index, fitting, positions, answers)
            planned = self._room.plan_most(index, [(b.key, sizes[b.key]) for b in fitting])
            if planned is None:
                continue
            draft, count = planned
            taken = fitting[:count]
            self._motion += count
            targets = self._copies.new(taken, index, positions)
            placement.plan = self._commit(draft, targets)
            keys = dict.fromkeys(b.key for b in taken)
            self.admission_gate.took(answers, keys, index)
            placement.later = [b for b in todo if b.key not in keys]
            return placement
        todo = self._turn_away(todo, answers, placement)
        placement.later = todo
        if not todo:
            return placement
        if self._motion:
            self._wanted_space = True
            placement.wait = ROOM
        else:  # nothing will change by waiting: what is left is stranded or bound by the rules
            placement.nowhere += self._turn_away(todo, answers, placement, waits=False)
            placement.later = []
        return placement

    def begin_promotions(self, refs: Sequence[CopyRef]) -> tuple[RoomPlan | None, int]:
        """Plan room for copies of the pinned `refs` in the fastest tier that can take some of them.

        The answer's plan has targets for the first n of the refs that may be promoted, and n
        counts refs in the order given; a ref that cannot be promoted ends the series. Without a
        plan the first n refs stay where they are: all, or those that no tier above admits.
        """
        answers = AdmissionAnswers()
        unwanted = self._unwanted_above(refs, answers)
        if unwanted:
            return None, unwanted
        for index in range(len(self.specs)):
            series: list[CopyRef] = []
            keys: set[Key] = set()
            for ref in refs:
                entry = self._copies.by_key.get(ref.key)
                if (
                    self._copies.index_of[ref.tier] <= index
                    or ref.key in keys
                    or entry is None
                    or entry[index] is not None
                    or not self._limits.fits(index, ref.nbytes)
                    or not self._room.admits(index, self._room.candidate(ref), answers)
                ):
                    break
                series.append(ref)
                keys.add(ref.key)
            planned = self._room.plan_most(index, [(ref.key, ref.nbytes) for ref in series])
            if planned is None:
                continue
            draft, count = planned
            targets = self._new_from([self._copies.by_id[r.copy_id] for r in series[:count]], index)
            for ref in series[:count]:
                self.admission_gate.settle(answers, ref.key, into=index)
            return self._commit(draft, targets), count
        return None, len(refs)

    def begin_prefetch(self, key: Key, *, nearest: bool) -> tuple[RoomPlan, CopyRef] | None:
        """Plan room for a copy of `key` in the fastest tier that takes it, or in the `nearest`
        above where it is, and the pinned copy that it is made from. It never waits for room, and is
        no use of the block."""
        copy = self.resident(key)
        if copy is None or not self.can_rise(key):
            return None
        answers, nbytes = AdmissionAnswers(), copy.ref.nbytes
        above = range(self._copies.index_of[copy.ref.tier])
        source = self._pin(copy)  # so that room is not made at its cost
        for index in reversed(above) if nearest else above:
            fits = self._limits.fits(index, nbytes)
            if not fits or not self._room.admits(index, self._room.candidate(source), answers):
                continue
            planned = self._room.plan_most(index, [(key, nbytes)])
            if planned is None:
                continue
            self.admission_gate.settle(answers, key, into=index)
            targets = self._new_from([copy], index)
            prefetched = self._copies.by_id[targets[0].copy_id]
            prefetched.ahead = prefetched.unread = True
            self.prefetches.started.add(nbytes)
            return self._commit(planned[0], targets), source
        self._unpin(copy)
        self.admission_gate.settle(answers, key, into=None)
        if not any(answers.refused(index, key) for index in above):
            self.prefetches.no_room.add(nbytes)
        return None

    def begin_backups(self, keys: Sequence[Key], *, selective: bool) -> Backup:
        """Plan room in the last tier for copies of those of `keys` that are only above it. It never
        waits for room. `selective`: only of those that the last tier admits."""
        last, answers = self._limits.last, AdmissionAnswers()
        wanted: list[Copy] = []
        for key in dict.fromkeys(keys):
            copy = self.resident(key)
            if copy is None or self.backed_up(key) or not self._limits.fits(last, copy.ref.nbytes):
                continue
            if selective and not self._room.admits(last, self._room.candidate(copy.ref), answers):
                copy.refused = True
                self.admission_gate.settle(answers, key, into=None)
                continue
            wanted.append(copy)
        refs = [copy.ref for copy in wanted]
        planned = self._room.plan_most(last, [(ref.key, ref.nbytes) for ref in refs])
        if planned is None:
            for copy in wanted:
                self.not_backed_up.add(copy.ref.nbytes)
            return Backup()
        draft, count = planned
        taken = wanted[:count]
        for copy in taken:
            self.admission_gate.settle(answers, copy.ref.key, into=last)
        plan = self._commit(draft, self._new_from(taken, last))
        sources = [self._pin(copy) for copy in taken]
        return Backup(plan, sources, [ref.key for ref in refs[count:]])

    def begin_writes(self, plan: RoomPlan) -> bool:
        """Let the targets begin to exist. False (and the plan is cancelled) if a delete or demotion
        failed on the way, so that the room is not there."""
        ledger = self.ledgers[self._copies.index_of[plan.targets[0].tier]]
        if not plan.claim.complete:
            targets = [self._copies.by_id[ref.copy_id] for ref in plan.targets]
            for copy in targets:
                self._forget(copy)
                self._motion -= 1
            ledger.release(plan.claim)
            self._changed(*targets)
            return False
        nbytes, by_id = 0, self._copies.by_id
        for ref in plan.targets:
            by_id[ref.copy_id].state = WRITING
            nbytes += ref.nbytes
        ledger.begin(nbytes, plan.claim)
        ledger.release(plan.claim)
        return True

    def end_writes(self, refs: Sequence[CopyRef], *, failed: Container[int] = ()) -> None:
        """Make targets readable, or leave nothing behind of those whose numbers have `failed`."""
        by_id, index_of, policies = self._copies.by_id, self._copies.index_of, self._policies
        self._motion -= len(refs)
        for number, ref in enumerate(refs):
            copy_id, key, tier, nbytes, _, _ = ref
            copy = by_id[copy_id]
            assert copy.state is WRITING, f"a write ended of a copy that is {copy.state}"
            if number in failed:
                self._ledger(ref).end(nbytes)
                self._forget(copy)
            else:
                copy.state = RESIDENT
                depth, parent = copy.position
                item = _item((copy_id, key, nbytes, copy.tokens, depth, parent, 1))
                policies[index_of[tier]].insert(item)
            if copy.awaited or self._wanted_space:
                self._changed(copy)

    # --- making room -----------------------------------------------------------------------

    def begin_demotions(self, level: RoomLevel) -> tuple[list[CopyRef], list[CopyRef]]:
        """Return the sources and targets of the level's demotions that can begin; the other sources
        are simply given up."""
        sources, targets, by_id = list[CopyRef](), list[CopyRef](), self._copies.by_id
        for group in level.demotions:
            ledger, begun = self._ledger(group.targets[0]), 0
            for source, target in zip(group.sources, group.targets, strict=True):
                copy_id, _, _, nbytes, _, _ = target
                copy = by_id[copy_id]
                if group.claim.held < begun + nbytes:
                    self._forget(copy)
                    self._motion -= 1
                    self._changed(copy)
                    self._finish_sources([source])
                    continue
                begun += nbytes
                copy.state = WRITING
                sources.append(source)
                targets.append(target)
            ledger.begin(begun, group.claim)
            ledger.release(group.claim)
        return sources, targets

    def end_demotions(
        self,
        sources: Sequence[CopyRef],
        targets: Sequence[CopyRef],
        *,
        failed: Container[int] = (),
    ) -> None:
        """Make the lower copies readable, but for those whose numbers have `failed`; the upper ones
        leave the index either way."""
        self.end_writes(targets, failed=failed)
        self._finish_sources(sources)

    def pinned(self, refs: Sequence[CopyRef]) -> Token | None:
        """Return what to await while a reader still holds one of the sources, which have left the
        index."""
        by_id = self._copies.by_id
        for ref in refs:
            copy = by_id[ref.copy_id]
            if copy.pins:
                return copy.await_change()
        return None

    def end_drops(
        self, refs: Sequence[CopyRef], *, stay: Container[int] = (), claim: Claim | None = None
    ) -> None:
        """End deletes. The bytes of those that failed, whose numbers are in `stay`, may still be
        there and stay counted."""
        by_id, ended = self._copies.by_id, dict[Tier, int]()
        self._motion -= len(refs)
        for number, (copy_id, _, tier, nbytes, _, _) in enumerate(refs):
            copy = by_id.pop(copy_id)
            assert copy.state is LEAVING, "only what has left the index may be deleted"
            assert copy.pins == 0, "a copy was deleted under a reader"
            if number in stay:
                self.ledgers[self._copies.index_of[tier]].strand(nbytes)
            else:
                ended[tier] = ended.get(tier, 0) + nbytes
            if copy.awaited or self._wanted_space:
                self._changed(copy)
        for tier, nbytes in ended.items():
            self.ledgers[self._copies.index_of[tier]].end(nbytes, claim)

    # --- laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything; called after every step in tests and at idle."""
        for index, (spec, ledger) in enumerate(zip(self.specs, self.ledgers, strict=True)):
            here = [c for c in self._copies.by_id.values() if c.ref.tier is spec.tier]
            physical = sum(c.ref.nbytes for c in here if c.state is not PLANNED)
            assert physical + ledger.stranded == ledger.used, "the ledger disagrees with the copies"
            assert ledger.held >= 0, "a claim holds less than nothing"
            if ledger.capacity is not None:
                assert ledger.used + ledger.held <= ledger.capacity, "a tier is over its capacity"
            candidates = {c.ref.copy_id for c in here if c.state is RESIDENT and not c.moving}
            assert candidates == set(self._policies[index].victims()), "the policy lost track"
        self._copies.check()
        started, unread = self.prefetches.started.blocks, self.unread_blocks
        assert started == self.prefetches.ended_blocks + unread, "a prefetch was lost"
        if self.idle:
            assert all(c.pins == 0 and not c.moving for c in self._copies.by_id.values())
            assert all(ledger.held == 0 for ledger in self.ledgers), "a claim was left behind"

    @property
    def unread_blocks(self) -> int:
        """Copies brought up ahead, or on their way up, that no request has asked for since."""
        return sum(copy.unread for copy in self._copies.by_id.values())

    @property
    def idle(self) -> bool:
        """Whether nothing that was begun is waiting for its end."""
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

    def _count_first_ask(self, copy: Copy, *, read: bool) -> None:
        """Count the first request for what a prefetch brings, or has brought, by where it is
        read."""
        if read:
            self.prefetches.useful.add(copy.ref.nbytes)
        elif copy.state is RESIDENT:
            return  # a faster copy was read
        else:
            self.prefetches.late.add(copy.ref.nbytes)
        copy.unread = False

    def _ledger(self, ref: CopyRef) -> Ledger:
        return self.ledgers[self._copies.index_of[ref.tier]]

    def _policy(self, copy: Copy) -> Eviction:
        return self._policies[self._copies.index_of[copy.ref.tier]]

    # --- who comes in ----------------------------------------------------------------------

    def _turn_away(
        self,
        blocks: Sequence[Block],
        answers: AdmissionAnswers,
        placement: Placement,
        *,
        waits: bool = True,
    ) -> list[Block]:
        """Return those of `blocks` that some tier would take, if it had room. The others are not
        stored; where nothing `waits` for room, neither is what any tier has refused."""
        left = []
        for block in blocks:
            size, tiers = block.stored_bytes, range(len(self.specs))
            refused = [i for i in tiers if answers.refused(i, block.key)]
            takes = any(i not in refused and self._limits.fits(i, size) for i in tiers)
            if not refused or (takes and waits):
                left.append(block)
                continue
            placement.unwanted.append(block)
            self.admission_gate.settle(answers, block.key, into=None)
            self.admission_gate.used(block.key)
            self.admission_gate.not_stored.add(size)
        return left

    def _unwanted_above(self, refs: Sequence[CopyRef], answers: AdmissionAnswers) -> int:
        """Return how many of the first refs no tier above admits, which is decided and counted, or
        are on their way up already, brought by a prefetch."""
        for count, ref in enumerate(refs):
            above = range(self._copies.index_of[ref.tier])
            entry = self._copies.by_key.get(ref.key, ())
            if any(c is not None and c.ahead for c in entry[: len(above)]):
                continue
            fitting = [i for i in above if self._limits.fits(i, ref.nbytes)]
            candidate = self._room.candidate(ref)
            if not fitting or any(self._room.admits(i, candidate, answers) for i in fitting):
                return count
            self.admission_gate.settle(answers, ref.key, into=None)
        return len(refs)

    # --- making copies ---------------------------------------------------------------------

    def _new_from(self, sources: Sequence[Copy], index: int) -> list[CopyRef]:
        self._motion += len(sources)
        return self._copies.new_from(sources, index)

    def _forget(self, copy: Copy) -> None:
        """Remove a copy that never became readable."""
        if copy.unread:
            self.prefetches.failed.add(copy.ref.nbytes)
        last = self._copies.unlist((copy,))
        del self._copies.by_id[copy.ref.copy_id]
        if last and copy.derived:  # its source may have failed meanwhile, when this one gave hope
            self.lost_bytes += copy.ref.nbytes

    def _leave(self, copies: Sequence[Copy]) -> list[Copy]:
        """Take copies out of the index, after they have left the policy; their bytes are still
        there. Return those that were the last of their blocks."""
        for copy in copies:
            assert copy.state is RESIDENT, "only a resident copy can leave"
            copy.state = LEAVING
            if copy.unread:
                self.prefetches.wasted.add(copy.ref.nbytes)
                copy.unread = False
        return self._copies.unlist(copies)

    def _lose(self, copies: Sequence[Copy]) -> None:
        """Take copies out of the index that should not have been the last of their blocks."""
        for copy in self._leave(copies):
            self.lost_bytes += copy.ref.nbytes

    def _finish_sources(self, refs: Sequence[CopyRef]) -> None:
        """Take sources of demotions out of the index; their deletes are now pending."""
        by_id = self._copies.by_id
        copies = [by_id[copy_id] for copy_id, _, _, _, _, _ in refs]
        self._lose(copies)
        self._changed(*copies)

    def _changed(self, *copies: Copy) -> None:
        for copy in copies:
            if copy.awaited:
                self.signals.fire(copy.await_change())
        if self._wanted_space:
            self._wanted_space = False
            self.signals.fire(ROOM)

    def _commit(self, draft: Draft, targets: Sequence[CopyRef]) -> RoomPlan:
        """Claim all space and mark all victims in one step."""
        self._settle_demotions(draft)
        levels: dict[int, RoomLevel] = {}
        for level in draft.levels:
            claim = self.ledgers[level.index].claim(level.need, level.held)
            levels[id(level)] = RoomLevel(claim, [], [], [])
            remove = self._policies[level.index].remove
            for copy in level.victims:
                remove(copy.ref.copy_id, evicted=True)
        for level in draft.levels:
            real = levels[id(level)]
            real.drops = self._drop(level.drops)
            for group, below in level.demotions:
                demotions = self._demote(group, below.index, levels[id(below)].claim)
                real.demotions.append(demotions)
                real.leaving += demotions.sources
        ordered = tuple(levels[id(level)] for level in draft.levels)
        return RoomPlan(tuple(targets), ordered, ordered[-1].claim)

    def _settle_demotions(self, draft: Draft) -> None:
        """Make decisions of what the tiers below have answered about the victims."""
        if not draft.answers.by_tier_and_key:
            return
        into = {
            copy.ref.key: below.index
            for level in draft.levels
            for group, below in level.demotions
            for copy in group
        }
        for key in dict.fromkeys(key for _, key in draft.answers.by_tier_and_key):
            self.admission_gate.settle(draft.answers, key, into=into.get(key))

    def _drop(self, copies: Sequence[Copy]) -> list[CopyRef]:
        if not copies:
            return []
        self._motion += len(copies)
        self.dropped_last_copies += len(self._leave(copies))
        return [copy.ref for copy in copies]

    def _demote(self, copies: Sequence[Copy], target_index: int, claim: Claim) -> Demotions:
        self._motion += len(copies)
        for copy in copies:
            copy.moving = True
        return Demotions([copy.ref for copy in copies], self._new_from(copies, target_index), claim)
