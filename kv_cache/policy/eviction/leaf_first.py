"""Leaf-first LRU, aware of prefixes (RadixAttention: Zheng et al., "SGLang: efficient execution of
structured language model programs", NeurIPS 2024): only a block behind which nothing is left may
go, the least recently used of these first. A flat LRU evicts the beginning of a prompt before its
end, after which the end is of no use.

A copy is a leaf if no present copy has it as parent, one step deeper in its sequence. (Keys that
are not chained may stand in several places; depths can not go in circles.) O(log n) a call, on
average."""

from collections.abc import Iterator
from heapq import heappop, heappush

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Eviction, Item
from kv_cache.policy.eviction.ranked import Entry, Ranked

Place = tuple[Key, int]
"""Key and depth."""


class LeafFirst(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._items: dict[int, Item] = {}
        self._last_use: dict[int, int] = {}
        self._at: dict[Place, int] = {}
        self._children: dict[Place, int] = {}  # how many; also of what is not here
        self._leaves = Ranked()
        self._accesses = 0

    def insert(self, item: Item) -> None:
        place = _last(item)
        self._items[item.copy_id] = item
        self._at[place] = item.copy_id
        self._accesses += 1
        self._last_use[item.copy_id] = self._accesses
        above = _above(item)
        if above is not None:
            self._children[above] = self._children.get(above, 0) + 1
            parent = self._at.get(above)
            if parent is not None and parent in self._leaves:
                self._leaves.discard(parent)
        if place not in self._children:
            self._leaves.add(item.copy_id, self._accesses)

    def hit(self, copy_id: int) -> None:
        self._accesses += 1
        self._last_use[copy_id] = self._accesses
        if copy_id in self._leaves:
            self._leaves.rise(copy_id, self._accesses)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        item = self._items.pop(copy_id)
        del self._at[_last(item)]
        del self._last_use[copy_id]
        if copy_id in self._leaves:
            self._leaves.discard(copy_id)
        above = _above(item)
        if above is None:
            return
        self._children[above] -= 1
        if self._children[above]:
            return
        del self._children[above]
        parent = self._at.get(above)
        if parent is not None:
            self._leaves.add(parent, self._last_use[parent])

    def shrink(self, item: Item) -> None:
        copy_id = item.copy_id
        del self._at[_last(self._items[copy_id])]
        self._items[copy_id] = item
        self._at[_last(item)] = copy_id
        children = _last(item) in self._children
        if children and copy_id in self._leaves:
            self._leaves.discard(copy_id)
        elif not children and copy_id not in self._leaves:
            self._leaves.add(copy_id, self._last_use[copy_id])

    def victims(self) -> Iterator[int]:
        """Leaves, and what is one once those before it are gone."""
        leaves = self._leaves.entries()
        coming = next(leaves, None)
        new: list[Entry] = []
        gone: dict[Place, int] = {}
        while new or coming is not None:
            if coming is None or (new and new[0] < coming):
                copy_id = heappop(new)[2]
            else:
                copy_id, coming = coming[2], next(leaves, None)
            yield copy_id
            above = _above(self._items[copy_id])
            if above is None or above not in self._at:
                continue
            gone[above] = gone.get(above, 0) + 1
            if gone[above] == self._children[above]:
                parent = self._at[above]
                heappush(new, (self._last_use[parent], 0, parent))

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._items


def _last(item: Item) -> Place:
    """Where the copy's last block stands: what follows it has that as its parent."""
    return (item.key, item.depth + item.span - 1)


def _above(item: Item) -> Place | None:
    return None if item.parent is None else (item.parent, item.depth - 1)
