"""Least frequently used, in the form that keeps heavy hitters: evict what was asked for the least
often since it came (coming counts as once); of these, what was not asked for the longest. Counts
never age: what was popular once stays. O(1) a call (see counts.py)."""

from collections.abc import Iterator

from kv_cache.policy.eviction.base import HoldsCopies, Item
from kv_cache.policy.eviction.counts import Counts


class Lfu(HoldsCopies):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._counts = Counts()
        super().__init__(self._counts)

    def insert(self, item: Item) -> None:
        self._counts.add(item.copy_id, 1)

    def hit(self, copy_id: int) -> None:
        self._counts.move(self._counts[copy_id], 1)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        self._counts.discard(copy_id)

    def victims(self) -> Iterator[int]:
        return iter(self._counts)
