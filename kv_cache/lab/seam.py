"""Eviction policies of the real tiers as caches of the lab: the only file that knows their seam.

The manager of a real tier numbers copies, asks a policy for victims until there is room, and tells
it of each hit; so does this, one block at a time and with no bytes moved.
"""

from collections.abc import Callable, Sequence

from kv_cache.lab.accesses import AccessPart
from kv_cache.lab.caches import Cache, NoCache, Queue
from kv_cache.lab.one_size import ONE_SIZE
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.variants import PolicyVariant
from kv_cache.policy.admission import Admission, Candidate
from kv_cache.policy.eviction import Eviction, Item

_BY_COST = ("gdsf",)  # go a short way only where all blocks cost as much
_FAST = {"lru": True, "fifo": False}  # whether a hit goes to the back
_GONE = -1
_new = tuple.__new__  # of an Item, in half the time


def cache_of(variant: PolicyVariant, room_bytes: int, shared: SharedState) -> Cache:
    """Return an empty cache."""
    accesses = shared.accesses
    room = room_bytes // max(1, int(accesses.sizes.min(initial=room_bytes + 1)))
    if not room:
        return NoCache()
    size, plain = accesses.size, variant.plain
    if size and plain is not None:
        if plain in _FAST:
            return Queue(room, shared, to_back=_FAST[plain])
        if plain in ONE_SIZE and (plain not in _BY_COST or accesses.cost is not None):
            return ONE_SIZE[plain](room_bytes, size, shared)
    policy, admission = variant.eviction(room_bytes, shared.seed), variant.gate()
    if admission is None:
        return Seam(policy, room_bytes, shared)
    return Gated(policy, admission, room_bytes, shared)


class Seam:
    """A policy of `policy/eviction` with room for so many bytes. A block that is larger than all of
    it is refused. A copy has the number of the access that stored it: none is used again."""

    def __init__(self, policy: Eviction, room_bytes: int, shared: SharedState) -> None:
        self._policy = policy
        self._hit: Callable[[int], None] = policy.hit
        self._free = room_bytes
        self._room = room_bytes
        self._sequence = shared.sequence
        self._contents = shared.contents
        self._sizes = shared.sizes
        self._copies = [_GONE] * shared.accesses.unique
        self.evicted = self.refused = 0

    def blocks(self, part: AccessPart) -> list[int]:
        return [place - part.begin for place in self._ask(part.blocks, part.begin, self._hit)]

    def prefix(self, part: AccessPart) -> list[int]:
        gaps = []
        for begin, end in part.requests():
            gap = self._lead(part.blocks, begin, end)
            gaps.append(gap)
            if gap < end:
                self._ask(part.blocks[gap:end], part.begin + gap, None)
        return gaps

    def _lead(self, blocks: Sequence[int], begin: int, end: int) -> int:
        copies, hit = self._copies, self._hit
        for at in range(begin, end):
            copy = copies[blocks[at]]
            if copy < 0:
                return at
            hit(copy)
        return end

    def _ask(
        self, blocks: Sequence[int], first: int, hit: Callable[[int], None] | None
    ) -> list[int]:
        """Return the accesses, counted from `first`, that missed and were stored. Without `hit`
        what is there is passed over. One loop, since nearly all time of a study goes by in it."""
        copies, contents, room, missed = self._copies, self._contents, self._room, []
        keys, sizes, tokens = contents.keys, self._sizes, contents.tokens
        depths, parents = contents.depths, contents.parents
        expect, insert = self._policy.expect, self._policy.insert
        for place, block in enumerate(blocks, first):
            copy = copies[block]
            if copy >= 0:
                if hit is not None:
                    hit(copy)
                continue
            missed.append(place)
            size = sizes[block]
            if size > room:
                self.refused += 1
                continue
            key, parent = keys[block], parents[block]
            expect(key)
            if size > self._free:
                self._make_room(size)
            self._free -= size
            copies[block] = place
            before = keys[parent] if parent >= 0 else None
            insert(_new(Item, (place, key, size, tokens[block], depths[block], before, 1)))
        return missed

    def _make_room(self, size: int) -> None:
        """One victim at a time: the others stay in their order."""
        policy, sequence = self._policy, self._sequence
        while size > self._free:
            copy = next(policy.victims())
            policy.remove(copy, evicted=True)
            block = sequence[copy]
            self._copies[block] = _GONE
            self._free += self._sizes[block]
            self.evicted += 1


class Gated(Seam):
    """With a policy of `policy/admission` before it: what is not admitted is refused."""

    def __init__(
        self, policy: Eviction, admission: Admission, room_bytes: int, shared: SharedState
    ) -> None:
        super().__init__(policy, room_bytes, shared)
        self._admission = admission
        if admission.counts:
            self._hit = self._use

    def _use(self, copy: int) -> None:
        self._policy.hit(copy)
        self._admission.used(self._key_of(copy))

    def _key_of(self, copy: int) -> bytes:
        return self._contents.keys[self._sequence[copy]]

    def _ask(
        self, blocks: Sequence[int], first: int, hit: Callable[[int], None] | None
    ) -> list[int]:
        missed = []
        for place, block in enumerate(blocks, first):
            copy = self._copies[block]
            if copy < 0:
                missed.append(place)
                self._offer(block, place)
            elif hit is not None:
                hit(copy)
        return missed

    def _offer(self, block: int, place: int) -> None:
        contents, admission = self._contents, self._admission
        key, size = contents.keys[block], self._sizes[block]
        if size <= self._room:
            self._policy.expect(key)
        candidate = Candidate(key, size, contents.depths[block], fresh=True)
        admitted = size <= self._room and not admission.refusal(candidate, self._rivals(size))
        admission.offered(candidate, admitted=admitted)
        if admitted:
            super()._ask([block], place, None)
        else:
            self.refused += 1
        if admission.counts:
            admission.used(key)

    def _rivals(self, size: int) -> Sequence[bytes]:
        """List the blocks that would leave for so many bytes, if the admission policy compares."""
        rivals: list[bytes] = []
        if not self._admission.compares or size <= self._free:
            return rivals
        free = self._free
        for copy in self._policy.victims():
            rivals.append(self._key_of(copy))
            free += self._sizes[self._sequence[copy]]
            if free >= size:
                break
        return rivals
