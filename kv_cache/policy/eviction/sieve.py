"""SIEVE (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024): a hand goes from the oldest copy
to the newest; one that was hit since its last visit loses its mark and keeps its place, one without
a mark is evicted. New copies come in at the far end, so that they are looked at late once, and soon
after that. O(1) a call, on average.

The queue is kept as what the hand has passed and what lies ahead of it; when nothing lies ahead the
hand is back at the oldest. It passes a copy without a mark that is not evicted after all."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from kv_cache.policy.eviction.base import HoldsCopies, Item


class Sieve(HoldsCopies):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._ahead: OrderedDict[int, None] = OrderedDict()  # where the hand stands, first
        self._passed: OrderedDict[int, None] = OrderedDict()  # the oldest first
        self._marked: dict[int, bool] = {}
        super().__init__(self._marked)

    def insert(self, item: Item) -> None:
        self._ahead[item.copy_id] = None
        self._marked[item.copy_id] = False

    def hit(self, copy_id: int) -> None:
        self._marked[copy_id] = True

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        while evicted and not self._pass(copy_id):
            pass
        del self._marked[copy_id]
        if copy_id in self._ahead:
            del self._ahead[copy_id]
        else:
            del self._passed[copy_id]
        self._turn()

    def victims(self) -> Iterator[int]:
        marked = self._marked
        spared = []
        for copy_id in chain(self._ahead, self._passed):
            if marked[copy_id]:
                spared.append(copy_id)
            else:
                yield copy_id
        yield from spared

    def _pass(self, copy_id: int) -> bool:
        """Move the hand by one, unless it stands at `copy_id` and that may be evicted."""
        here = next(iter(self._ahead))
        if here == copy_id and not self._marked[here]:
            return True
        self._marked[here] = False
        del self._ahead[here]
        self._passed[here] = None
        self._turn()
        return False

    def _turn(self) -> None:
        if not self._ahead:
            self._ahead, self._passed = self._passed, self._ahead
