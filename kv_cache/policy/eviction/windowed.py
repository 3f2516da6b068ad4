"""Windowed recency: evict what was asked for the least often among the last accesses of the tier;
of these, what came to its count first (Karakostas and Serpanos, "Exploitation of different types
of locality for web caches", ISCC 2002, call it Window-LFU). What was popular once is forgotten when
the window has passed on. O(1) a call, on average.

The window is as long as `WINDOW` accesses for each copy, and never shorter than `LEAST`: a window
of fixed length below the number of copies is LRU, since all outside it counts nothing. An access
that leaves the window takes its copy to the back of those with one less, so that copies outside
the window are in the order of their last use."""

from collections import deque

from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.counts import CountedLink
from kv_cache.policy.eviction.lfu import Lfu
from kv_cache.policy.eviction.numbers import MOST, check

WINDOW = 2
LEAST = 32


class Windowed(Lfu):
    NUMBERS = (("window", WINDOW), ("least", LEAST))

    def __init__(
        self, capacity_bytes: int | None = None, *, window: int = WINDOW, least: int = LEAST
    ) -> None:
        check(window=(window, 1, MOST), least=(least, 1, MOST))
        super().__init__(capacity_bytes)
        self._for_each, self._least = window, least
        self._window: deque[CountedLink] = deque()

    def insert(self, item: Item) -> None:
        self._accessed(self._counts.add(item.copy_id, 1))

    def hit(self, copy_id: int) -> None:
        counted = self._counts[copy_id]
        self._counts.move(counted, 1)
        self._accessed(counted)

    def _accessed(self, counted: CountedLink) -> None:
        window = self._window
        window.append(counted)
        length = max(self._least, self._for_each * len(self._counts))
        while len(window) > length:
            gone = window.popleft()
            if gone.bucket is not None:
                self._counts.move(gone, -1)
