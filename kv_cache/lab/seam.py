"""Eviction policies of the real tiers as caches of the lab: the only file that knows their seam.

The manager of a real tier numbers copies, asks a policy for victims until there is room, and tells
it of each hit; so does this, one block at a time and with no bytes moved.
"""

from collections.abc import Iterable, Sequence

from kv_cache.lab.accesses import NOBODY, Part
from kv_cache.lab.caches import Cache, Nothing, Queue
from kv_cache.lab.chance import AtRandom
from kv_cache.lab.ground import Ground
from kv_cache.policy.eviction import EVICTION, Eviction, Item

RANDOM = "random"
POLICIES: Sequence[str] = (*EVICTION, RANDOM)
"""Those of the tiers, and one that no tier has: any block may go."""
_FAST = {"lru": True, "fifo": False}  # whether a hit goes to the back
_GONE = -1


def cache_of(policy: str, room_bytes: int, ground: Ground) -> Cache:
    """An empty cache with a policy of POLICIES."""
    accesses = ground.accesses
    room = room_bytes // max(1, int(accesses.sizes.min(initial=room_bytes + 1)))
    if not room:
        return Nothing()
    if policy in _FAST and accesses.size is not None:
        return Queue(room, to_back=_FAST[policy])
    return Seam(_policy(policy, room_bytes, ground), room_bytes, ground)


def _policy(policy: str, room_bytes: int, ground: Ground) -> Eviction:
    if policy == RANDOM:
        return AtRandom(ground.seed.child("evictions"))
    return EVICTION[policy](room_bytes)


class Seam:
    """A policy of `policy/eviction` with room for so many bytes. A block that is larger than all of
    it is refused. A copy has the number of the access that stored it: none is used again."""

    def __init__(self, policy: Eviction, room_bytes: int, ground: Ground) -> None:
        self._policy = policy
        self._free = room_bytes
        self._room = room_bytes
        self._sequence = ground.sequence
        self._contents = ground.contents
        self._sizes = ground.sizes
        self._copies = [_GONE] * ground.accesses.unique
        self.evicted = self.refused = 0

    def blocks(self, part: Part) -> list[int]:
        copies, hit, store = self._copies, self._policy.hit, self._store
        missed: list[int] = []
        for place, block in enumerate(part.blocks, part.begin):
            copy = copies[block]
            if copy >= 0:
                hit(copy)
            else:
                missed.append(place - part.begin)
                store(block, place)
        return missed

    def prefix(self, part: Part) -> list[int]:
        gaps = []
        for begin, end in zip(part.begins, part.ends, strict=True):
            gap = self._lead(part.blocks, begin, end)
            gaps.append(gap)
            self._store_missing(enumerate(part.blocks[gap:end], part.begin + gap))
        return gaps

    def _lead(self, blocks: Sequence[int], begin: int, end: int) -> int:
        copies, hit = self._copies, self._policy.hit
        for at in range(begin, end):
            copy = copies[blocks[at]]
            if copy < 0:
                return at
            hit(copy)
        return end

    def _store_missing(self, blocks: Iterable[tuple[int, int]]) -> None:
        copies = self._copies
        for place, block in blocks:
            if copies[block] < 0:
                self._store(block, place)

    def _store(self, block: int, place: int) -> None:
        size = self._sizes[block]
        if size > self._room:
            self.refused += 1
            return
        told = self._contents
        key, parent = told.keys[block], told.parents[block]
        self._policy.expect(key)
        if size > self._free:
            self._make_room(size)
        self._free -= size
        self._copies[block] = place
        before = None if parent == NOBODY else told.keys[parent]
        self._policy.insert(Item(place, key, size, told.tokens[block], told.depths[block], before))

    def _make_room(self, size: int) -> None:
        free, victims = self._free, []
        for copy in self._policy.victims():
            victims.append(copy)
            free += self._sizes[self._sequence[copy]]
            if free >= size:
                break
        for copy in victims:
            self._policy.remove(copy, evicted=True)
            self._copies[self._sequence[copy]] = _GONE
        self.evicted += len(victims)
        self._free = free
