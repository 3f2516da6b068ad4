"""Space inside one large buffer: an object is a list of extents, so that nothing is ever lost to
fragmentation and the capacity that the ledger claims is the capacity that there is."""

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple


class Extent(NamedTuple):
    offset: int
    length: int


_extent: Callable[[tuple[int, int]], Extent] = partial(tuple.__new__, Extent)
"""As the class, of all of its fields, without a frame of Python's."""


class Allocation:
    """Where an object lies. Most objects of a run are as large as the one before, so what is given
    back is taken again as it is."""

    __slots__ = ("extents", "nbytes", "seen_as")

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.extents = extents
        self.nbytes = sum([length for _, length in extents])
        self.seen_as: Any = None
        """What the store has worked out of the extents, once and for all objects that lie here."""


class Extents:
    """Free space as sorted extents; `take` uses the first that are free. Thread-safe.

    `regions` are the lengths of separate memories (one for each GPU) laid end to end; an extent
    never crosses from one into the next.
    """

    def __init__(self, regions: list[int]) -> None:
        self._lock = threading.Lock()
        self._latest_nbytes = 0
        self._spare: deque[Allocation] = deque()
        """Of so many bytes each and in one piece: the free space that is not in `_starts`."""
        self._borders: set[int] = set()
        self._starts: list[int] = []
        self._lengths: dict[int, int] = {}
        at = 0
        for length in regions:
            self._starts.append(at)
            self._lengths[at] = length
            at += length
            self._borders.add(at)
        self.free_bytes = at

    def take(self, nbytes: int) -> Allocation | None:
        """Return room for so many bytes; None if there is not as much."""
        with self._lock:
            if nbytes > self.free_bytes:
                return None
            self.free_bytes -= nbytes
            if nbytes == self._latest_nbytes:
                if self._spare:
                    return self._spare.popleft()
            else:
                self._latest_nbytes = nbytes
                self._join_the_spare()
            taken: list[Extent] = []
            used_up = 0
            while nbytes:
                start = self._starts[used_up]
                length = self._lengths.pop(start)
                part = min(length, nbytes)
                taken.append(_extent((start, part)))
                nbytes -= part
                if part < length:
                    self._starts[used_up] = start + part
                    self._lengths[start + part] = length - part
                else:
                    used_up += 1
            del self._starts[:used_up]
            return Allocation(taken)

    def give(self, room: Allocation) -> None:
        with self._lock:
            self.free_bytes += room.nbytes
            if room.nbytes == self._latest_nbytes and len(room.extents) == 1:
                self._spare.append(room)
                return
            for start, length in room.extents:
                self._insert(start, length)

    def _join_the_spare(self) -> None:
        for room in self._spare:
            self._insert(*room.extents[0])
        self._spare.clear()

    def _insert(self, start: int, length: int) -> None:
        at = bisect_left(self._starts, start)
        end = start + length
        if end not in self._borders and at < len(self._starts) and self._starts[at] == end:
            length += self._lengths.pop(end)
            del self._starts[at]
        before = self._starts[at - 1] if at else -1
        if at and start not in self._borders and before + self._lengths[before] == start:
            self._lengths[before] += length
        else:
            self._starts.insert(at, start)
            self._lengths[start] = length
