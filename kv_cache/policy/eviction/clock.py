"""CLOCK (Corbato, "A paging experiment with the Multics system", MIT Project MAC, 1968): a hand
goes round the copies; one that was hit since the hand's last visit loses its mark and stays, one
without a mark is evicted. O(1) a call, on average.

The ring is a queue whose front is where the hand stands: what the hand leaves behind goes to the
back. It passes a copy without a mark that is not evicted after all (it is pinned)."""

from collections import OrderedDict
from collections.abc import Iterator

from kv_cache.policy.eviction.base import HoldsCopies, Item


class Clock(HoldsCopies):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._ring: OrderedDict[int, bool] = OrderedDict()  # whether it is marked
        super().__init__(self._ring)

    def insert(self, item: Item) -> None:
        self._ring[item.copy_id] = False

    def hit(self, copy_id: int) -> None:
        self._ring[copy_id] = True

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        ring = self._ring
        while evicted:
            front = next(iter(ring))
            if front == copy_id and not ring[front]:
                break
            ring[front] = False
            ring.move_to_end(front)
        del ring[copy_id]

    def victims(self) -> Iterator[int]:
        marked = []
        for copy_id, mark in self._ring.items():
            if mark:
                marked.append(copy_id)
            else:
                yield copy_id
        yield from marked
