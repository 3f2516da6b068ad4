"""Eviction policies of the real tiers as caches of the lab: the only file that knows their seam.

The manager of a real tier numbers copies, asks a policy for victims until there is room, and tells
it of each hit; so does this, one block at a time and with no bytes moved.
"""

from collections.abc import Iterable, Sequence

from kv_cache.lab.accesses import Accesses, Part
from kv_cache.lab.caches import Cache, Nothing, Queue
from kv_cache.policy.eviction import EVICTION, Eviction

POLICIES: Sequence[str] = tuple(EVICTION)
_FAST = {"lru": True, "fifo": False}  # whether a hit goes to the back


def cache_of(
    policy: str, room_bytes: int, accesses: Accesses, sizes: Sequence[int] | None = None
) -> Cache:
    """An empty cache with a policy of EVICTION, for these accesses. `sizes` are theirs, where
    several caches share the list."""
    room = _room(room_bytes, accesses)
    if not room:
        return Nothing()
    if policy in _FAST and accesses.size is not None:
        return Queue(room, to_back=_FAST[policy])
    return Seam(EVICTION[policy](), room_bytes, accesses.sizes.tolist() if sizes is None else sizes)


def _room(room_bytes: int, accesses: Accesses) -> int:
    """How many of the smallest blocks fit."""
    return room_bytes // max(1, int(accesses.sizes.min(initial=room_bytes + 1)))


class Seam:
    """A policy of `policy/eviction` with room for so many bytes; `sizes` are those of the blocks.
    A block that is larger than all of it is refused."""

    def __init__(self, policy: Eviction, room_bytes: int, sizes: Sequence[int]) -> None:
        self._policy = policy
        self._free = room_bytes
        self._room = room_bytes
        self._sizes = sizes
        self._copies: dict[int, int] = {}  # of each block that is there
        self._held: dict[int, int] = {}  # and back
        self._next = 0  # copy ids are not used again
        self.evicted = self.refused = 0

    def blocks(self, part: Part) -> list[int]:
        copies, hit = self._copies, self._policy.hit
        missed: list[int] = []
        for at, block in enumerate(part.blocks):
            copy = copies.get(block)
            if copy is not None:
                hit(copy)
            else:
                missed.append(at)
                self._store(block)
        return missed

    def prefix(self, part: Part) -> list[int]:
        gaps = []
        for begin, end in zip(part.begins, part.ends, strict=True):
            gap = self._lead(part.blocks, begin, end)
            gaps.append(gap)
            self._store_missing(part.blocks[gap:end])
        return gaps

    def _lead(self, blocks: Sequence[int], begin: int, end: int) -> int:
        for at in range(begin, end):
            copy = self._copies.get(blocks[at])
            if copy is None:
                return at
            self._policy.hit(copy)
        return end

    def _store_missing(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block not in self._copies:
                self._store(block)

    def _store(self, block: int) -> None:
        size = self._sizes[block]
        if size > self._room:
            self.refused += 1
            return
        if size > self._free:
            self._make_room(size)
        copy = self._next
        self._next += 1
        self._copies[block], self._held[copy] = copy, block
        self._free -= size
        self._policy.insert(copy, size)

    def _make_room(self, size: int) -> None:
        free, victims = self._free, []
        for copy in self._policy.victims():
            victims.append(copy)
            free += self._sizes[self._held[copy]]
            if free >= size:
                break
        for copy in victims:
            self._policy.remove(copy)
            del self._copies[self._held.pop(copy)]
        self.evicted += len(victims)
        self._free = free
