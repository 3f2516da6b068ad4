"""First in, first out: hits change nothing. The baseline that every policy has to beat. O(1)."""

from collections import OrderedDict
from collections.abc import Iterator

from kv_cache.policy.eviction.base import HoldsCopies, Item


class Fifo(HoldsCopies):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        # Not a plain dict: finding its first live entry scans over all that were removed.
        self._order: OrderedDict[int, None] = OrderedDict()
        super().__init__(self._order)

    def insert(self, item: Item) -> None:
        self._order[item.copy_id] = None

    def hit(self, copy_id: int) -> None:
        pass

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        del self._order[copy_id]

    def victims(self) -> Iterator[int]:
        return iter(self._order)
