"""Copies in the order of a rank that only rises while a copy is here.

A binary heap holds one entry a copy, perhaps with a rank that it has outgrown: a rise writes the
new rank into the copy's node, and the entry is put right when it comes to the top. So a rise is
O(1), and to come, to go and to be the first are O(log n) on average. Equal ranks: the one given
first."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

GONE = -1
"""The turn of a node that has no place in the order."""


class Node:
    """A copy with a rank. Whoever ranks copies adds what else it has to know of one."""

    __slots__ = ("copy_id", "filed", "rank", "turn")

    def __init__(self, copy_id: int) -> None:
        self.copy_id = copy_id
        self.rank = 0.0
        self.turn = GONE  # the number of the call that gave the rank, while it is here
        self.filed = False  # has an entry in the heap, here or not


N = TypeVar("N", bound=Node)


class RankedQueue(Generic[N]):
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, N]] = []
        self._turns = 0
        self._here = 0

    def add(self, node: N, rank: float) -> None:
        """Add a node, also one that was here before, with a rank not lower than its last."""
        self._turns = node.turn = self._turns + 1
        node.rank = rank
        self._here += 1
        if node.filed:
            return
        node.filed = True
        heap = self._heap
        if heap and heap[0][2].turn == GONE:  # it takes the place of what has just gone
            heapreplace(heap, (rank, node.turn, node))[2].filed = False
        else:
            heappush(heap, (rank, node.turn, node))

    def rise(self, node: N, rank: float) -> None:
        self._turns = node.turn = self._turns + 1
        node.rank = rank

    def discard(self, node: N) -> None:
        node.turn = GONE
        self._here -= 1
        if len(self._heap) > 2 * self._here + 64:
            self._rebuild()

    def __iter__(self) -> Iterator[N]:
        """Yield the lowest rank first. Walks down the heap from its top: k nodes are O(k log k)."""
        self._settle()
        heap = self._heap
        if not heap:
            return
        yield heap[0][2]
        edge = [(heap[below], below) for below in range(1, min(3, len(heap)))]
        heapify(edge)
        while edge:
            (_, turn, node), at = heappop(edge)
            if at:
                for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                    heappush(edge, (heap[below], below))
            if node.turn == turn:
                yield node
            elif node.turn != GONE:
                heappush(edge, ((node.rank, node.turn, node), 0))

    def __len__(self) -> int:
        return self._here

    def _settle(self) -> None:
        """Put the top right. What the order is does not change."""
        heap = self._heap
        while heap:
            _, turn, node = heap[0]
            if node.turn == turn:
                return
            if node.turn == GONE:
                heappop(heap)
                node.filed = False
            else:
                heapreplace(heap, (node.rank, node.turn, node))

    def _rebuild(self) -> None:
        kept = []
        for _, _, node in self._heap:
            if node.turn == GONE:
                node.filed = False
            else:
                kept.append((node.rank, node.turn, node))
        heapify(kept)
        self._heap = kept
