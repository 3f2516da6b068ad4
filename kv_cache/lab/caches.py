"""Caches that are told accesses and nothing else: LRU and FIFO over blocks of one size.

Two rules say what a hit is. *Blocks*: each block for itself; whatever is there is a hit. *Prefix*:
a request uses what is there up to its first miss, as attention needs all that stands before; behind
that it computes everything, and stores what is not there, and what is there is not touched. Both
store every block that they missed.

These two are what every other policy is held against, so they are short and fast; they must find
exactly what the policies of the same names in `policy/eviction` find.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from kv_cache.lab.accesses import AccessPart


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
        return part.begins


class Queue:
    """FIFO with `room` (1 or more) blocks; LRU where a hit goes `to_back`."""

    def __init__(self, room: int, *, to_back: bool) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()
        self._free = room
        self._to_back = to_back
        self.evicted = self.refused = 0

    def blocks(self, part: AccessPart) -> list[int]:
        order, free = self._order, self._free
        drop, touch = order.popitem, order.move_to_end if self._to_back else None
        missed: list[int] = []
        note = missed.append
        for at, block in enumerate(part.blocks):
            if block in order:
                if touch is not None:
                    touch(block)
                continue
            note(at)
            if free:
                free -= 1
            else:
                drop(False)
            order[block] = None
        self.evicted += len(missed) - (self._free - free)
        self._free = free
        return missed

    def prefix(self, part: AccessPart) -> list[int]:
        order, blocks = self._order, part.blocks
        touch = order.move_to_end if self._to_back else None
        gaps: list[int] = []
        for begin, end in zip(part.begins, part.ends, strict=True):
            at = begin
            while at < end and blocks[at] in order:
                if touch is not None:
                    touch(blocks[at])
                at += 1
            gaps.append(at)
            if at < end:
                self._store(blocks[at:end])
        return gaps

    def _store(self, blocks: list[int]) -> None:
        order = self._order
        for block in blocks:
            if block not in order:
                if self._free:
                    self._free -= 1
                else:
                    order.popitem(False)
                    self.evicted += 1
                order[block] = None
