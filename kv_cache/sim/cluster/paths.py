"""Cheapest paths through a graph in which some vertices relay nothing, except from wire to wire.

All pairs, each source when it is first needed (Dijkstra, with a heap). A path is the same in both
directions: of two ends the higher vertex is always the source. Equal costs: fewer links, then the
lower vertices.
"""

from array import array
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple

MOST_VERTICES = 2048
"""Two states of each must fit 16 bits, and a search touches all of them."""

_NONE = -1


class Edge(NamedTuple):
    end: int
    cost: float
    wire: bool


class CheapestPaths:
    """`edges(v, first)` are the links that leave a vertex; `first`: it is the one a path begins
    with. Vertices below `ends` do not relay."""

    def __init__(
        self, vertices: int, ends: int, edges: Callable[[int, bool], Iterable[Edge]]
    ) -> None:
        self._vertices = vertices
        self._ends = ends
        self._edges = edges
        self._trees: dict[int, tuple[array[int], array[int]]] = {}

    def between(self, src: int, dst: int) -> tuple[int, ...]:
        """List the vertices from `src` to `dst`; empty if there is no path."""
        before, last = self._tree(max(src, dst))
        state = last[min(src, dst)]
        vertices = []
        while state != _NONE:
            vertices.append(state >> 1)
            state = before[state]
        return tuple(reversed(vertices)) if src > dst else tuple(vertices)

    def _tree(self, source: int) -> "tuple[array[int], array[int]]":
        """For each state (a vertex twice, plus 1 where a wire leads an end there) the state before
        it; for each vertex its cheapest state."""
        tree = self._trees.get(source)
        if tree is None:
            tree = self._trees[source] = self._search(source)
        return tree

    def _search(self, source: int) -> "tuple[array[int], array[int]]":
        before = array("h", [_NONE]) * (2 * self._vertices)
        last = array("h", [_NONE]) * self._vertices
        done = bytearray(2 * self._vertices)
        heap = [(0.0, 0, 2 * source, _NONE)]
        while heap:
            cost, hops, state, previous = heappop(heap)
            if done[state]:
                continue
            done[state] = 1
            before[state] = previous
            vertex = state >> 1
            if last[vertex] == _NONE:
                last[vertex] = state
            first = vertex == source
            if vertex < self._ends and not first and not state & 1:
                continue
            for end, price, wire in self._edges(vertex, first):
                if first or wire or vertex >= self._ends:
                    after = 2 * end + (wire and end < self._ends)
                    if not done[after]:
                        heappush(heap, (cost + price, hops + 1, after, state))
        return before, last
