"""How room is found: what a tier admits, and what leaves it, and the tiers below, for that.

Nothing is changed here. A draft is complete or it is not made; the manager carries it out in one
step. Only policies hear of keys that may come (`expect`), which then may not come.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from kv_cache.cache.admission_gate import AdmissionAnswers, AdmissionGate, Rivals
from kv_cache.cache.copies import NO_POSITION, Copies, Copy, Position, nearest_readable
from kv_cache.cache.limits import TierLimits
from kv_cache.core.block import Block, Key
from kv_cache.core.effect import CopyRef
from kv_cache.policy.admission import Candidate
from kv_cache.policy.eviction import Eviction


class DraftLevel(Struct, eq=False):
    index: int
    need: int
    held: int
    victims: list[Copy]  # as the policy has offered them
    drops: list[Copy]
    demotions: list[tuple[Sequence[Copy], "DraftLevel"]]  # by the tier that they go to


class Draft(Struct, eq=False):
    """A plan in the making. `chosen` are ids of copies, `held` is free space by tier."""

    levels: list[DraftLevel] = field(default_factory=list)
    chosen: set[int] = field(default_factory=set)
    held: dict[int, int] = field(default_factory=dict)
    answers: AdmissionAnswers = field(default_factory=AdmissionAnswers)


class RoomPlanner:
    """Tiers are numbered, the fastest is 0."""

    def __init__(
        self,
        limits: TierLimits,
        copies: Copies,
        policies: Sequence[Eviction],
        admission_gate: AdmissionGate,
    ) -> None:
        self._limits = limits
        self._copies = copies
        self._policies = policies
        self._gate = admission_gate

    # --- what comes in -----------------------------------------------------------------------

    def candidate(self, ref: CopyRef) -> Candidate:
        return Candidate(ref.key, ref.nbytes, self._copies.by_id[ref.copy_id].position.depth)

    def admits(self, index: int, candidate: Candidate, answers: AdmissionAnswers) -> bool:
        if not self._gate.guarded(index):
            return True
        return self._gate.ask(answers, index, candidate, self._rivals(index))

    def admitted(
        self,
        index: int,
        blocks: Sequence[Block],
        positions: Mapping[Key, Position],
        answers: AdmissionAnswers,
    ) -> list[Block]:
        """Return those of new blocks that a tier admits."""
        rivals = self._rivals(index)

        def admits(block: Block) -> bool:
            depth = positions.get(block.key, NO_POSITION).depth
            candidate = Candidate(block.key, block.stored_bytes, depth, fresh=True)
            return self._gate.ask(answers, index, candidate, rivals)

        return [block for block in blocks if admits(block)]

    def _rivals(self, index: int, chosen: Iterable[int] = ()) -> Rivals | None:
        """Return what leaves a tier for what comes, if its admission compares them."""
        if not self._gate.compares(index):
            return None
        room = self._limits.free(index, self._limits.limit(index, 0))
        return Rivals(room, self._victims_of(index, set(chosen)))

    def _victims_of(self, index: int, chosen: set[int]) -> Iterator[tuple[Key, int]]:
        for copy_id in self._policies[index].victims():
            copy = self._copies.by_id[copy_id]
            if not copy.pins and copy_id not in chosen:
                yield copy.ref.key, copy.ref.nbytes

    # --- what leaves -------------------------------------------------------------------------

    def plan_most(self, index: int, coming: Sequence[tuple[Key, int]]) -> tuple[Draft, int] | None:
        """Return a draft for the longest of the prefixes n, n/2, n/4 … of the keys and sizes that
        are to come that has one, and how many that are."""
        self._expect(index, (key for key, _ in coming))
        sizes = [nbytes for _, nbytes in coming]
        count = len(sizes)
        while count:
            draft = Draft()
            if self._draft(index, sum(sizes[:count]), max(sizes[:count]), draft) is not None:
                return draft, count
            count //= 2
        return None

    def _expect(self, index: int, keys: Iterable[Key]) -> None:
        policy = self._policies[index]
        if type(policy).expect is not Eviction.expect:
            for key in keys:
                policy.expect(key)

    def _draft(self, index: int, need: int, largest: int, draft: Draft) -> DraftLevel | None:
        """Plan room for `need` bytes in a tier and, for the victims, in the tiers below it."""
        limit = self._limits.limit(index, largest)
        free = self._limits.free(index, limit)
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
            by_key, beneath = self._copies.by_key, slice(index + 1, None)
            for victim in victims:
                _, key, _, _, _, _ = victim.ref
                entry = by_key[key]
                alone = entry.count(None) == len(entry) - 1
                lower = None if alone else nearest_readable(entry[beneath])
                if lower is None:
                    down.append(victim)
                else:
                    drops.append(victim)
                    draft.chosen.add(lower.ref.copy_id)  # the block's last one: not a victim too
        draft.held[index] = draft.held.get(index, 0) + held
        level = DraftLevel(index, need, held, victims, drops, [])
        for target, group in self._distribute(index, down, drops, draft).items():
            sizes = [c.ref.nbytes for c in group]
            self._expect(target, (c.ref.key for c in group))
            below = self._draft(target, sum(sizes), max(sizes), draft)
            if below is None:
                return None
            level.demotions.append((group, below))
        draft.levels.append(level)
        return level

    def _choose(self, index: int, short: int, draft: Draft) -> list[Copy] | None:
        """Return the policy's best victims that free `short` bytes, or None if there are not
        enough."""
        victims: list[Copy] = []
        if short <= 0:
            return victims
        policy, by_id, chosen = self._policies[index], self._copies.by_id, draft.chosen
        most = self._limits.rules.max_victims(len(policy))
        for copy_id in policy.victims():
            copy = by_id[copy_id]
            if copy.pins or copy_id in chosen:
                continue
            if len(victims) == most:
                return None
            victims.append(copy)
            chosen.add(copy_id)
            _, _, _, nbytes, _, _ = copy.ref
            short -= nbytes
            if short <= 0:
                return victims
        return None

    def _distribute(
        self, index: int, down: Sequence[Copy], drops: list[Copy], draft: Draft
    ) -> dict[int, list[Copy]]:
        """Return victims by the tier that takes them; what no lower tier can take, or admits, is
        dropped."""
        groups: dict[int, list[Copy]] = {}
        loads: dict[int, int] = {}
        below = range(index + 1, self._limits.last + 1)
        if not below or not down:
            drops += down
            return groups
        rivals = {target: self._rivals(target, draft.chosen) for target in below}
        guarded = any(map(self._gate.guarded, below))
        homes: dict[int, list[tuple[int, int | None]]] = {}  # by size: tiers and their limits
        for copy in down:
            _, key, _, nbytes, _, _ = copy.ref
            if nbytes not in homes:
                fitting = (target for target in below if self._limits.fits(target, nbytes))
                homes[nbytes] = [(target, self._limits.limit(target, nbytes)) for target in fitting]
            entry = self._copies.by_key[key]
            for target, limit in homes[nbytes]:
                load = loads.get(target, 0) + nbytes
                if (
                    entry[target] is None  # else one is coming there
                    and (limit is None or load <= limit)
                    and (not guarded or self._takes(target, copy, draft, rivals[target]))
                ):
                    groups.setdefault(target, []).append(copy)
                    loads[target] = load
                    break
            else:
                drops.append(copy)
        return groups

    def _takes(self, target: int, copy: Copy, draft: Draft, rivals: Rivals | None) -> bool:
        if not self._gate.guarded(target):
            return True
        if copy.refused and target == self._limits.last:
            return False
        return self._gate.ask(draft.answers, target, self.candidate(copy.ref), rivals)
