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
from heapq import heapify, heappop, heappush, heapreplace

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import HoldsCopies, Item

GONE = -1
"""The turn of a node that is no late leaf."""
Place = tuple[Key, int]
"""Key and depth of the last block of a copy."""


class TreeNode:
    """A present copy. Its rank is its last use, the number of an access, leaf or not."""

    __slots__ = (
        "children", "copy_id", "depth", "filed", "key", "last", "parent", "rank", "turn",
    )  # fmt: skip

    def __init__(self, item: Item) -> None:
        self.copy_id, self.key, _, _, self.depth, self.parent, span = item
        self.last = self.depth + span - 1  # whoever is one deeper has this copy as its parent
        self.rank = 0.0
        self.turn = GONE  # the number of the call that made it a late leaf, while it is one
        self.filed = False  # has an entry in the heap of late leaves, whether it is one or not
        self.children = 0


class LateLeaves:
    """Nodes by their rank, which only rises while a copy is here.

    A binary heap holds one entry a node, perhaps with a rank that it has outgrown: the entry is put
    right when it comes to the top. So to come, to go and to be the first are O(log n) on average.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TreeNode]] = []
        self._turns = 0
        self._here = 0

    def add(self, node: TreeNode) -> None:
        """Add a node, also one that was here before."""
        self._turns = node.turn = self._turns + 1
        self._here += 1
        if node.filed:
            return
        node.filed = True
        heap = self._heap
        if heap and heap[0][2].turn == GONE:  # it takes the place of what has just gone
            heapreplace(heap, (node.rank, node.turn, node))[2].filed = False
        else:
            heappush(heap, (node.rank, node.turn, node))

    def discard(self, node: TreeNode) -> None:
        node.turn = GONE
        self._here -= 1
        if len(self._heap) > 2 * self._here + 64:
            self._rebuild()

    def __iter__(self) -> Iterator[TreeNode]:
        """Yield the lowest rank first. Walks down the heap from its top: k nodes are O(k log k)."""
        self._settle()
        heap = self._heap
        if not heap:
            return
        yield heap[0][2]
        edge = [(heap[below], below) for below in range(1, min(3, len(heap)))]
        heapify(edge)
        while edge:
            (_, turn, node), at = heappop(edge)
            if at:
                for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                    heappush(edge, (heap[below], below))
            if node.turn == turn:
                yield node
            elif node.turn != GONE:
                heappush(edge, ((node.rank, node.turn, node), 0))

    def _settle(self) -> None:
        """Put the top right. What the order is does not change."""
        heap = self._heap
        while heap:
            _, turn, node = heap[0]
            if node.turn == turn:
                return
            if node.turn == GONE:
                heappop(heap)
                node.filed = False
            else:
                heapreplace(heap, (node.rank, node.turn, node))

    def _rebuild(self) -> None:
        kept = []
        for _, _, node in self._heap:
            if node.turn == GONE:
                node.filed = False
            else:
                kept.append((node.rank, node.turn, node))
        heapify(kept)
        self._heap = kept


class LeafFirst(HoldsCopies):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._links: dict[int, TreeNode] = {}
        super().__init__(self._links)
        self._at: dict[Key, TreeNode] = {}
        self._orphans: dict[Place, int] = {}  # how many, of what is not here
        self._leaves: OrderedDict[int, TreeNode] = OrderedDict()
        self._again = LateLeaves()  # leaves that were none at their last use
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
            self._again.add(link)
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
                self._again.add(parent)
            return
        place = (above, link.depth - 1)
        self._orphans[place] -= 1
        if not self._orphans[place]:
            del self._orphans[place]


def _older(one: TreeNode | None, other: TreeNode | None) -> TreeNode | None:
    if one is None or other is None:
        return other if one is None else one
    return one if one.rank < other.rank else other
