"""Space inside one large buffer: an object is a list of extents, so that nothing is ever lost to
fragmentation and the capacity that the ledger claims is the capacity that there is."""

import threading
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Extent(NamedTuple):
    offset: int
    length: int


_extent: Callable[[tuple[int, int]], Extent] = partial(tuple.__new__, Extent)
"""As the class, of all of its fields, without a frame of Python's."""


class Extents:
    """Free space as sorted extents; `take` uses the first that are free. Thread-safe.

    `regions` are the lengths of separate memories (one for each GPU) laid end to end; an extent
    never crosses from one into the next.
    """

    def __init__(self, regions: list[int]) -> None:
        self._lock = threading.Lock()
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

    def take(self, nbytes: int) -> list[Extent]:
        """Extents of `nbytes` together; the caller has made sure that there is as much."""
        with self._lock:
            assert nbytes <= self.free_bytes, "more was taken than the ledger can have promised"
            self.free_bytes -= nbytes
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
            return taken

    def give(self, extents: list[Extent]) -> None:
        with self._lock:
            for start, length in extents:
                self.free_bytes += length
                self._insert(start, length)

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
