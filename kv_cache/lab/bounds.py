"""What no policy exceeds: the cache without limits, Belady's MIN, and a limit for unequal sizes.

MIN (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
5(2), 1966; proof: Mattson et al. 1970) evicts the block whose next use is farthest ahead. With
blocks of one size no policy that stores each block it missed has more hits; one that may refuse a
block is bounded by MIN that may refuse one too.

With unequal sizes the farthest next use is a good rule and no bound. There the limit is that of
space and time (Berger, Beckmann and Harchol-Balter, "Practical bounds on optimal caching with
variable object sizes", POMACS 2(2), 2018, PFOO-L): to hit, a block must lie in the cache from one
use to the next, and all blocks together have no more room than capacity x length. Filling that with
the cheapest is more than any policy can do.

A next use is the place of an access, and each access is of one block. So the farthest of all is the
top of a heap of places; entries of blocks that were used meanwhile lie behind the present and never
come to the top. O(log n) an access.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil

import numpy as np
import numpy.typing as npt

from kv_cache.lab.accesses import Accesses, AccessPart, Flags, Ints
from kv_cache.lab.shared_state import SharedState

Floats = npt.NDArray[np.float64]

_FEW = 1024  # old entries that are not worth sweeping away
_ROUNDED = 1 + 1e-9  # areas are summed in floating point; a limit may only be too high


def leading(accesses: Accesses, missed: Flags) -> Flags:
    """Return which accesses are before the first miss of their request."""
    before: Ints = np.cumsum(missed) - missed
    counts = np.diff(np.append(accesses.begins, accesses.lookups))
    clean: Flags = before == np.repeat(before[accesses.begins], counts)
    return clean & ~missed


class Min:
    """Belady's rule with `room_bytes`, by blocks. `refusing`: a missed block is stored only where
    it is of more use than one that would have to go."""

    def __init__(self, shared: SharedState, room_bytes: int, *, refusing: bool = False) -> None:
        self._uses = shared.uses
        self._sequence = shared.sequence
        self._sizes = shared.sizes
        self._room = self._free = room_bytes
        self._refusing = refusing
        self._there: set[int] = set()
        self._ahead: list[int] = []  # next uses, negative: the farthest is on top
        self._done: list[int] = []  # blocks that are there and are never used again
        self.evicted = self.refused = 0

    def blocks(self, part: AccessPart) -> list[int]:
        there, never = self._there, len(self._sequence)
        uses: list[int] = self._uses[part.begin : part.begin + len(part.blocks)].tolist()
        missed: list[int] = []
        for at, (block, use) in enumerate(zip(part.blocks, uses, strict=True)):
            if block not in there:
                missed.append(at)
                if not self._make_room(self._sizes[block], use):
                    self.refused += 1
                    continue
                there.add(block)
            if use == never:
                self._done.append(block)
            else:
                heappush(self._ahead, -use)
        self._forget(part.begin + len(part.blocks))
        return missed

    def _forget(self, now: int) -> None:
        """Entries that lie behind the present."""
        if len(self._ahead) > 2 * len(self._there) + _FEW:
            self._ahead = [use for use in self._ahead if -use >= now]
            heapify(self._ahead)

    def _make_room(self, size: int, use: int) -> bool:
        """Return whether the block of this size and next use is to be stored, and has room now."""
        if size > self._room or (self._refusing and use == len(self._sequence)):
            return False
        while size > self._free:
            if self._done:
                block = self._done.pop()
            elif self._refusing and -self._ahead[0] < use:
                return False
            else:
                block = self._sequence[-heappop(self._ahead)]
            self._there.remove(block)
            self._free += self._sizes[block]
            self.evicted += 1
        self._free -= size
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HitLimit:
    """More hits, or hit bytes, than any policy can have; each for itself."""

    hits: int
    nbytes: int


class SpaceTime:
    """The limit of space and time for every capacity: sorted once, in O(n log n)."""

    def __init__(self, accesses: Accesses, uses: Ints) -> None:
        again = np.flatnonzero(uses < accesses.lookups)
        self._length = accesses.lookups
        self._sizes = accesses.sizes[accesses.blocks[again]]
        self._spans = (uses[again] - again).astype(np.float64)

    def limit(self, room_bytes: int) -> HitLimit:
        fits = self._sizes <= room_bytes
        sizes, spans = self._sizes[fits], self._spans[fits]
        room = room_bytes * self._length * _ROUNDED
        return HitLimit(
            hits=_most_hits(sizes * spans, room), nbytes=_most_bytes(sizes, spans, room)
        )


def _most_hits(areas: Floats, room: float) -> int:
    return int(np.searchsorted(np.cumsum(np.sort(areas)), room, side="right"))


def _most_bytes(sizes: Ints, spans: Floats, room: float) -> int:
    """Return the most bytes that can be stored: those that lie for the shortest time first, and a
    part of the one that no longer fits."""
    order = np.argsort(spans, kind="stable")
    sizes, spans = sizes[order], spans[order]
    filled = np.cumsum(sizes * spans)
    count = int(np.searchsorted(filled, room, side="right"))
    whole = int(sizes[:count].sum())
    if count == len(sizes):
        return whole
    left = room - (float(filled[count - 1]) if count else 0.0)
    return whole + min(int(sizes[count]), ceil(left / float(spans[count])))
