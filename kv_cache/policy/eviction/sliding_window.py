"""Sliding window with landmarks (Xiao et al., "Efficient streaming language models with attention
sinks", ICLR 2024, kept for a cache of blocks): the first blocks of a sequence and its last ones are
kept, those in the middle go first, by recency; when only kept ones are left, by recency too.

A line is a series of blocks each of which came right behind the one before it; its window is its
last `WINDOW` blocks. A block that leaves the window, as the line grows, joins the middle as if it
had been used then. A second continuation of the same block is a line of its own. O(1) a call."""

from collections import OrderedDict, deque
from collections.abc import Iterator

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import HoldsCopies, Item
from kv_cache.policy.eviction.numbers import MOST, check

LANDMARKS = 8  # blocks
WINDOW = 32


class SlidingWindow(HoldsCopies):
    NUMBERS = (("landmarks", LANDMARKS), ("window", WINDOW))

    def __init__(
        self, capacity_bytes: int | None = None, *, landmarks: int = LANDMARKS, window: int = WINDOW
    ) -> None:
        check(landmarks=(landmarks, 0, MOST), window=(window, 0, MOST))
        self._landmarks, self._window = landmarks, window
        self._middle: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._items: dict[int, Item] = {}
        super().__init__(self._items)
        self._lines: dict[Key, deque[int]] = {}  # by the key of the last block

    def insert(self, item: Item) -> None:
        line = self._lines.pop(item.parent, None) if item.parent is not None else None
        if line is None:
            line = deque()
        line.append(item.copy_id)
        self._lines[item.key] = line
        self._items[item.copy_id] = item
        self._kept[item.copy_id] = None
        if len(line) > self._window:
            self._leave_window(line.popleft())

    def hit(self, copy_id: int) -> None:
        queue = self._middle if copy_id in self._middle else self._kept
        queue.move_to_end(copy_id)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        item = self._items.pop(copy_id)
        self._lines.pop(item.key, None)
        queue = self._middle if copy_id in self._middle else self._kept
        del queue[copy_id]

    def shrink(self, item: Item) -> None:
        line = self._lines.pop(self._items[item.copy_id].key, None)
        if line is not None:
            self._lines[item.key] = line
        self._items[item.copy_id] = item

    def victims(self) -> Iterator[int]:
        yield from self._middle
        yield from self._kept

    def _leave_window(self, copy_id: int) -> None:
        if copy_id in self._kept and self._items[copy_id].depth >= self._landmarks:
            del self._kept[copy_id]
            self._middle[copy_id] = None
