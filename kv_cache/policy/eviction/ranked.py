"""Copies in the order of a rank that only rises while a copy is here.

A binary heap holds one entry a copy, perhaps with a rank that it has outgrown: a rise writes the
new rank beside the heap, and the entry is put right when it comes to the top. So a rise is O(1),
and to come, to go and to be the first are O(log n) on average. Equal ranks: the one given first."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

Entry = tuple[float, int, int]
"""Rank, number of the call that gave it, copy."""


class Ranked:
    def __init__(self) -> None:
        self._now: dict[int, Entry] = {}
        self._heap: list[Entry] = []
        self._filed: set[int] = set()  # has an entry in the heap, here or not
        self._calls = 0

    def add(self, copy_id: int, rank: float) -> None:
        """Also of a copy that was here before, with a rank not lower than its last."""
        self._calls += 1
        entry = self._now[copy_id] = (rank, self._calls, copy_id)
        if copy_id not in self._filed:
            self._filed.add(copy_id)
            heappush(self._heap, entry)

    def rise(self, copy_id: int, rank: float) -> None:
        self._calls += 1
        self._now[copy_id] = (rank, self._calls, copy_id)

    def rank(self, copy_id: int) -> float:
        return self._now[copy_id][0]

    def discard(self, copy_id: int) -> None:
        del self._now[copy_id]
        if len(self._heap) > 2 * len(self._now) + 64:
            self._heap = list(self._now.values())
            self._filed = set(self._now)
            heapify(self._heap)

    def entries(self) -> Iterator[Entry]:
        """The lowest first. Walks down the heap from its top: k entries are O(k log k)."""
        self._settle()
        heap, now = self._heap, self._now
        edge = [(heap[0], 0)] if heap else []
        while edge:
            entry, at = heappop(edge)
            if at >= 0:
                for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                    heappush(edge, (heap[below], below))
            current = now.get(entry[2])
            if current is entry:
                yield entry
            elif current is not None:
                heappush(edge, (current, -1))

    def __iter__(self) -> Iterator[int]:
        return (copy_id for _, _, copy_id in self.entries())

    def __len__(self) -> int:
        return len(self._now)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._now

    def _settle(self) -> None:
        """Put the top right. What the order is does not change."""
        heap, now = self._heap, self._now
        while heap:
            top = heap[0]
            current = now.get(top[2])
            if current is top:
                return
            if current is None:
                heappop(heap)
                self._filed.discard(top[2])
            else:
                heapreplace(heap, current)
