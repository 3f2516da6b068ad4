"""First in, first out: hits change nothing. The baseline that every policy has to beat. O(1)."""

from collections import OrderedDict
from collections.abc import Iterator

from kv_cache.policy.eviction.base import Eviction, Item


class Fifo(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        # Not a plain dict: finding its first live entry scans over all that were removed.
        self._order: OrderedDict[int, None] = OrderedDict()

    def insert(self, item: Item) -> None:
        self._order[item.copy_id] = None

    def hit(self, copy_id: int) -> None:
        pass

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        del self._order[copy_id]

    def victims(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._order
