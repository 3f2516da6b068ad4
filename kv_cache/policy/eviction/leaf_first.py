"""Leaf-first LRU, aware of prefixes (RadixAttention: Zheng et al., "SGLang: efficient execution of
structured language model programs", NeurIPS 2024): only a block behind which nothing is left may
go, the least recently used of these first. A flat LRU evicts the beginning of a prompt before its
end, after which the end is of no use.

A copy is a leaf if no present copy has it as parent, one step deeper in its sequence. (Keys that
are not chained may stand in several places; depths can not go in circles.)

Leaves that were leaves at their last use stand in a queue. One that became a leaf when those behind
it had gone has its place among them by its last use, and waits for its turn in a heap. O(1) a call
for the first kind, O(log n) on average for the others."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Eviction, Item
from kv_cache.policy.eviction.ranked import GONE, Node, RankedQueue

Place = tuple[Key, int]
"""Key and depth of the last block of a copy."""


class TreeNode(Node):
    """A present copy. Its rank is its last use, the number of an access, leaf or not."""

    __slots__ = ("children", "depth", "key", "last", "parent")

    def __init__(self, item: Item) -> None:
        self.copy_id, self.key, _, _, self.depth, self.parent, span = item
        self.last = self.depth + span - 1  # whoever is one deeper has this copy as its parent
        self.rank, self.turn, self.filed = 0.0, GONE, False
        self.children = 0


class LeafFirst(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._links: dict[int, TreeNode] = {}
        self._at: dict[Key, TreeNode] = {}
        self._orphans: dict[Place, int] = {}  # how many, of what is not here
        self._leaves: OrderedDict[int, TreeNode] = OrderedDict()
        self._again: RankedQueue[TreeNode] = (
            RankedQueue()
        )  # leaves that were none at their last use
        self._accesses = 0

    def insert(self, item: Item) -> None:
        self._accesses += 1
        link = self._links[item.copy_id] = TreeNode(item)
        if item.parent is not None:
            self._join(link, item.parent)
        self._at[item.key] = link
        if self._orphans:
            link.children = self._orphans.pop((link.key, link.last), 0)
        link.rank = float(self._accesses)
        if not link.children:
            self._leaves[item.copy_id] = link

    def hit(self, copy_id: int) -> None:
        self._accesses += 1
        link = self._links[copy_id]
        link.rank = float(self._accesses)
        if link.turn != GONE:
            self._again.discard(link)
            self._leaves[copy_id] = link
        elif not link.children:
            self._leaves.move_to_end(copy_id)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        link = self._links.pop(copy_id)
        del self._at[link.key]
        if link.children:
            self._orphans[link.key, link.last] = link.children
        else:
            self._no_leaf(link)
        if link.parent is not None:
            self._part(link, link.parent)

    def shrink(self, item: Item) -> None:
        link = self._links[item.copy_id]
        del self._at[link.key]
        had = link.children
        if had:
            self._orphans[link.key, link.last] = had
        link.key, link.last = item.key, item.depth + item.span - 1
        self._at[link.key] = link
        link.children = self._orphans.pop((link.key, link.last), 0)
        if had and not link.children:
            self._again.add(link, link.rank)
        elif link.children and not had:
            self._no_leaf(link)

    def victims(self) -> Iterator[int]:
        """Leaves, and what is one once those before it are gone."""
        queue, again = iter(self._leaves.values()), iter(self._again)
        one, other = next(queue, None), next(again, None)
        new: list[tuple[float, int]] = []
        gone: dict[int, int] = {}
        while True:
            link = _older(one, other)
            if new and (link is None or new[0][0] < link.rank):
                link = self._links[heappop(new)[1]]
            if link is None:
                return
            yield link.copy_id
            if link is one:
                one = next(queue, None)
            elif link is other:
                other = next(again, None)
            parent = self._above(link)
            if parent is not None:
                left = gone[parent.copy_id] = gone.get(parent.copy_id, parent.children) - 1
                if not left:
                    heappush(new, (parent.rank, parent.copy_id))

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._links

    def _above(self, link: TreeNode) -> TreeNode | None:
        if link.parent is None:
            return None
        parent = self._at.get(link.parent)
        return parent if parent is not None and parent.last == link.depth - 1 else None

    def _no_leaf(self, link: TreeNode) -> None:
        if link.turn != GONE:
            self._again.discard(link)
        else:
            del self._leaves[link.copy_id]

    def _join(self, link: TreeNode, above: Key) -> None:
        parent = self._above(link)
        if parent is None:
            place = (above, link.depth - 1)
            self._orphans[place] = self._orphans.get(place, 0) + 1
            return
        if not parent.children:
            self._no_leaf(parent)
        parent.children += 1

    def _part(self, link: TreeNode, above: Key) -> None:
        parent = self._above(link)
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                self._again.add(parent, parent.rank)
            return
        place = (above, link.depth - 1)
        self._orphans[place] -= 1
        if not self._orphans[place]:
            del self._orphans[place]


def _older(one: TreeNode | None, other: TreeNode | None) -> TreeNode | None:
    if one is None or other is None:
        return other if one is None else one
    return one if one.rank < other.rank else other
