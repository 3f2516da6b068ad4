"""GreedyDual (Young, "The k-server dual and loose competitiveness for paging", Algorithmica 11,
1994): each copy has a height, its value above the height that the last victim had; the lowest
goes; of equals, what was given its height first. The base of the policies that weigh what a copy is
worth: since heights count from the last victim's, a value that is not confirmed by hits sinks, and
no time is looked at.

Copies of one value stand in a line: as the last victim's height never falls, each that joins is at
least as high as those before it. So a victim is the first of a line, and a heap of the lines finds
the lowest. An entry of the heap may be of a first that has left its line; it is put right when it
comes to the top. A hit is O(1), a victim O(log n) on average, n being the number of values."""

from abc import abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import cast

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Eviction, Item
from kv_cache.policy.eviction.chain import Chain, Link, release


class Held(Link):
    """A present copy, how often it was asked for since it came (which counts), and the part of its
    value that stays as it is. `turn` is the number of the call that gave the height."""

    __slots__ = ("copy_id", "height", "key", "turn", "uses", "worth")

    def __init__(self, item: Item, worth: float) -> None:
        self.copy_id = item.copy_id
        self.key: Key = item.key
        self.uses = 1
        self.worth = worth
        self.height = 0.0
        self.turn = 0


class _Line(Chain):
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value


class GreedyDual(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._held: dict[int, Held] = {}
        self._lines: dict[float, _Line] = {}  # each has one entry in the heap
        self._heap: list[tuple[float, int, _Line]] = []
        self._floor = 0.0
        self._turns = 0

    @abstractmethod
    def worth(self, item: Item) -> float:
        """What a new copy is worth, as far as it does not depend on its uses."""

    @abstractmethod
    def value(self, held: Held) -> float:
        """What the copy is worth."""

    def insert(self, item: Item) -> None:
        held = self._held[item.copy_id] = Held(item, self.worth(item))
        self._join(held)

    def hit(self, copy_id: int) -> None:
        held = self._held[copy_id]
        held.uses += 1
        before, after = held.before, held.after  # take(held)
        before.after = after
        after.before = before
        self._join(held)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        held = self._held.pop(copy_id)
        if evicted and held.height > self._floor:
            self._floor = held.height
        release(held)
        if len(self._heap) > 2 * len(self._held) + 64:
            self._rebuild()

    def victims(self) -> Iterator[int]:
        """Walks down the heap from its top: k victims are O(k log k)."""
        self._settle()
        heap = self._heap
        edge: list[tuple[float, int, int, Link]] = []  # entries of the heap, and copies (-1)
        if heap:
            edge.append((*heap[0][:2], 0, heap[0][2]))
        while edge:
            _, turn, at, link = heappop(edge)
            held = cast(Held, link.after if at >= 0 else link)
            current = at < 0 or (held is not link and held.turn == turn)
            if current:
                yield held.copy_id
                held = cast(Held, held.after)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))) if at >= 0 else ():
                heappush(edge, (*heap[below][:2], below, heap[below][2]))
            if not isinstance(held, _Line):
                heappush(edge, (held.height, held.turn, -1, held))

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._held

    def _join(self, held: Held) -> None:
        """The end of the line of its value."""
        value = self.value(held)
        height = held.height = self._floor + value
        turn = held.turn = self._turns = self._turns + 1
        line = self._lines.get(value)
        if line is None:
            line = self._lines[value] = _Line(value)
            heappush(self._heap, (height, turn, line))
        last = line.before  # append(held, line)
        held.before, held.after = last, line
        last.after = line.before = held

    def _settle(self) -> None:
        """Put the top right. What the order is does not change."""
        heap = self._heap
        while heap:
            _, turn, line = heap[0]
            first = line.after
            if first is line:
                heappop(heap)
                del self._lines[line.value]
                continue
            held = cast(Held, first)
            if held.turn == turn:
                return
            heapreplace(heap, (held.height, held.turn, line))

    def _rebuild(self) -> None:
        """Without the lines that are empty."""
        lines = [line for line in self._lines.values() if not line.empty]
        firsts = [cast(Held, line.after) for line in lines]
        self._lines = {line.value: line for line in lines}
        self._heap = [(h.height, h.turn, line) for h, line in zip(firsts, lines, strict=True)]
        heapify(self._heap)
