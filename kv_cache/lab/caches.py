"""Caches that are told accesses and nothing else: LRU and FIFO over blocks of one size.

Two rules say what a hit is. *Blocks*: each block for itself; whatever is there is a hit. *Prefix*:
a request uses what is there up to its first miss, as attention needs all that stands before; behind
that it computes everything, and stores what is not there, and what is there is not touched. Both
store every block that they missed.

These two are what every other policy is held against, so they are short and fast; they must find
exactly what the policies of the same names in `policy/eviction` find.
"""

from collections.abc import Sequence
from typing import Protocol

from kv_cache.lab.accesses import AccessPart
from kv_cache.lab.shared_state import SharedState

_GONE = -1


class Cache(Protocol):
    """One cache with one policy, told by one of the two rules from its first part on."""

    evicted: int
    refused: int
    """Blocks that were missed and not stored: larger than the cache, or of no use."""

    def blocks(self, part: AccessPart) -> Sequence[int]:
        """Return the places of the misses."""
        ...

    def prefix(self, part: AccessPart) -> Sequence[int]:
        """Return the place of each request's first miss; its end where there is none."""
        ...


class NoCache:
    """A cache without room for any block."""

    def __init__(self) -> None:
        self.evicted = self.refused = 0

    def blocks(self, part: AccessPart) -> Sequence[int]:
        self.refused += len(part.blocks)
        return range(len(part.blocks))

    def prefix(self, part: AccessPart) -> Sequence[int]:
        self.refused += len(part.blocks)
        return list(part.begins.tolist())


class Queue:
    """FIFO with `room` (1 or more) blocks; LRU where a hit goes `to_back`.

    Each block that is here knows the access that put it where it is in the queue. So the queue is
    the accesses themselves: its front is the first of them that a block still stands by, and goes
    on over the others once and for all.
    """

    def __init__(self, room: int, shared: SharedState, *, to_back: bool) -> None:
        self._sequence = shared.sequence
        self._place = [_GONE] * shared.accesses.unique
        self._front = 0
        self._free = room
        self._to_back = to_back
        self.evicted = self.refused = 0

    def blocks(self, part: AccessPart) -> list[int]:
        place, to_back, begin = self._place, self._to_back, part.begin
        missed: list[int] = []
        for at, block in enumerate(part.blocks, begin):
            if place[block] >= 0:
                if to_back:
                    place[block] = at
                continue
            missed.append(at - begin)
            if self._free:
                self._free -= 1
            else:
                self._evict()
            place[block] = at
        return missed

    def prefix(self, part: AccessPart) -> list[int]:
        place, blocks, begin = self._place, part.blocks, part.begin
        gaps: list[int] = []
        for at, end in part.requests():
            while at < end and place[blocks[at]] >= 0:
                if self._to_back:
                    place[blocks[at]] = begin + at
                at += 1
            gaps.append(at)
            for behind in range(at, end):
                block = blocks[behind]
                if place[block] < 0:
                    if self._free:
                        self._free -= 1
                    else:
                        self._evict()
                    place[block] = begin + behind
        return gaps

    def _evict(self) -> None:
        """Let the front of the queue go."""
        place, sequence, front = self._place, self._sequence, self._front
        block = sequence[front]
        while place[block] != front:
            front += 1
            block = sequence[front]
        place[block] = _GONE
        self._front = front + 1
        self.evicted += 1
