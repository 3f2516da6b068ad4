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
from kv_cache.policy.eviction.ranked import Node, Ranked

Place = tuple[Key, int]
"""Key and depth."""


class Link(Node):
    """A present copy. Its rank is its last use, the number of an access, leaf or not."""

    __slots__ = ("children", "depth", "key", "parent")

    def __init__(self, item: Item) -> None:
        super().__init__(item.copy_id)
        self.key, self.depth, self.parent = item.key, item.depth, item.parent
        self.children = 0


class LeafFirst(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._links: dict[int, Link] = {}
        self._at: dict[Key, Link] = {}
        self._orphans: dict[Place, int] = {}  # how many, of what is not here
        self._leaves: Ranked[Link] = Ranked()
        self._accesses = 0

    def insert(self, item: Item) -> None:
        self._accesses += 1
        link = self._links[item.copy_id] = Link(item)
        if item.parent is not None:
            self._join(link, item.parent)
        self._at[item.key] = link
        if self._orphans:
            link.children = self._orphans.pop((item.key, item.depth), 0)
        if link.children:
            link.rank = self._accesses
        else:
            self._leaves.add(link, self._accesses)

    def hit(self, copy_id: int) -> None:
        self._accesses += 1
        link = self._links[copy_id]
        if link.children:
            link.rank = self._accesses
        else:
            self._leaves.rise(link, self._accesses)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        link = self._links.pop(copy_id)
        del self._at[link.key]
        if link.children:
            self._orphans[link.key, link.depth] = link.children
        else:
            self._leaves.discard(link)
        if link.parent is not None:
            self._part(link, link.parent)

    def victims(self) -> Iterator[int]:
        """Leaves, and what is one once those before it are gone."""
        leaves = iter(self._leaves)
        coming = next(leaves, None)
        new: list[tuple[float, int]] = []
        gone: dict[int, int] = {}
        while new or coming is not None:
            if coming is None or (new and new[0][0] < coming.rank):
                link = self._links[heappop(new)[1]]
            else:
                link, coming = coming, next(leaves, None)
            yield link.copy_id
            parent = self._above(link)
            if parent is not None:
                left = gone[parent.copy_id] = gone.get(parent.copy_id, parent.children) - 1
                if not left:
                    heappush(new, (parent.rank, parent.copy_id))

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._links

    def _above(self, link: Link) -> Link | None:
        if link.parent is None:
            return None
        parent = self._at.get(link.parent)
        return parent if parent is not None and parent.depth == link.depth - 1 else None

    def _join(self, link: Link, above: Key) -> None:
        parent = self._above(link)
        if parent is None:
            place = (above, link.depth - 1)
            self._orphans[place] = self._orphans.get(place, 0) + 1
            return
        if not parent.children:
            self._leaves.discard(parent)
        parent.children += 1

    def _part(self, link: Link, above: Key) -> None:
        parent = self._above(link)
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                self._leaves.add(parent, parent.rank)
            return
        place = (above, link.depth - 1)
        self._orphans[place] -= 1
        if not self._orphans[place]:
            del self._orphans[place]
