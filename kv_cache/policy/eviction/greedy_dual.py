"""GreedyDual (Young, "The k-server dual and loose competitiveness for paging", Algorithmica 11,
1994): each copy has a height, its value above the height that the last victim had; the lowest
goes; of equals, what was given its height first. The base of the policies that weigh what a copy is
worth: since heights count from the last victim's, a value that is not confirmed by hits sinks, and
no time is looked at.

Copies of one worth that were asked for as often stand in a line: as the last victim's height never
falls, each that joins is at least as high as those before it. So a victim is the first of a line,
and a heap of the lines finds the lowest. An entry of the heap may be of a first that has left its
line; it is put right when it comes to the top. A line knows the one that a hit leads to, so that a
hit is O(1) and weighs nothing; a victim is O(log n) on average, n being the number of lines."""

from abc import abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import cast

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import HoldsCopies, Item
from kv_cache.policy.eviction.chain import Chain, ChainLink, release


class Held(ChainLink):
    """A present copy. `turn` is the number of the call that gave the height."""

    __slots__ = ("copy_id", "height", "key", "line", "turn")

    def __init__(self, item: Item, line: "WorthLine") -> None:
        self.copy_id = item.copy_id
        self.key: Key = item.key
        self.line = line
        self.height = 0.0
        self.turn = 0


class WorthLine(Chain):
    """Copies that are worth the same and were asked for as often since they came (which counts)."""

    __slots__ = ("filed", "higher", "uses", "value", "worth")

    def __init__(self, worth: float, uses: int, value: float) -> None:
        super().__init__()
        self.worth, self.uses, self.value = worth, uses, value
        self.higher: WorthLine | None = None  # where a hit leads to, once there was one
        self.filed = True  # has an entry in the heap


class GreedyDual(HoldsCopies):
    def __init__(self, capacity_bytes: int | None = None, most_uses: int | None = None) -> None:
        """More than `most_uses` do not count."""
        self._most_uses = most_uses
        self._held: dict[int, Held] = {}
        super().__init__(self._held)
        self._lines: dict[tuple[float, int], WorthLine] = {}  # those that are filed
        self._heap: list[tuple[float, int, WorthLine]] = []
        self._floor = 0.0
        self._turns = 0

    @abstractmethod
    def worth(self, item: Item) -> float:
        """Return what a new copy is worth, as far as it does not depend on its uses."""

    def uses_before(self, item: Item) -> int:
        """Return the uses of a new copy's content that are remembered."""
        return 0

    def worth_after_hit(self, worth: float) -> float:
        """Return what is left of a copy's worth when it is hit."""
        return worth

    @abstractmethod
    def value(self, worth: float, uses: int) -> float:
        """Return what a copy is worth."""

    def insert(self, item: Item) -> None:
        line = self._line(self.worth(item), 1 + self.uses_before(item))
        held = self._held[item.copy_id] = Held(item, line)
        self._join(held, line)

    def hit(self, copy_id: int) -> None:
        held = self._held[copy_id]
        before, after = held.before, held.after  # take(held)
        before.after = after
        after.before = before
        old = held.line
        line = old.higher
        if line is None or not line.filed:
            line = self._line(self.worth_after_hit(old.worth), old.uses + 1)
            if old.filed:
                old.higher = line
        held.line = line
        self._join(held, line)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        held = self._held.pop(copy_id)
        if evicted and held.height > self._floor:
            self._floor = held.height
        release(held)
        self._bound()

    def victims(self) -> Iterator[int]:
        """Walks down the heap from its top: k victims are O(k log k)."""
        self._settle()
        heap = self._heap
        if not heap:
            return
        link = heap[0][2].after
        yield cast(Held, link).copy_id  # mostly, no other is asked for
        edge: list[tuple[float, int, int, ChainLink]] = []  # entries of the heap, and copies (-1)
        _add_copy(edge, link.after)
        _add_entries(edge, heap, 0)
        while edge:
            _, turn, at, link = heappop(edge)
            if at >= 0:
                _add_entries(edge, heap, at)
                link = link.after
                # It has moved up since, or the line is empty.
                if not isinstance(link, Held) or link.turn != turn:
                    _add_copy(edge, link)
                    continue
            yield cast(Held, link).copy_id
            _add_copy(edge, link.after)

    def _line(self, worth: float, uses: int) -> WorthLine:
        """Return the line of this worth and uses, which the caller joins."""
        if self._most_uses is not None and uses > self._most_uses:
            uses = self._most_uses
        line = self._lines.get((worth, uses))
        if line is None:
            self._bound()  # hits alone leave a line behind for each number of uses
            line = self._lines[worth, uses] = WorthLine(worth, uses, self.value(worth, uses))
            heappush(self._heap, (self._floor + line.value, self._turns + 1, line))
        return line

    def _join(self, held: Held, line: WorthLine) -> None:
        held.height = self._floor + line.value
        held.turn = self._turns = self._turns + 1
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
                self._close(line)
                continue
            held = cast(Held, first)
            if held.turn == turn:
                return
            heapreplace(heap, (held.height, held.turn, line))

    def _close(self, empty: WorthLine) -> None:
        del self._lines[empty.worth, empty.uses]
        empty.filed = False
        empty.higher = None
        release(empty)

    def _bound(self) -> None:
        """Without the lines that are empty, once those are more than the copies: O(1) a call on
        average, and no more memory than the copies take."""
        if len(self._heap) <= 2 * len(self._held) + 64:
            return
        for line in [line for line in self._lines.values() if line.empty]:
            self._close(line)
        firsts = [cast(Held, line.after) for line in self._lines.values()]
        self._heap = [(held.height, held.turn, held.line) for held in firsts]
        heapify(self._heap)


def _add_copy(edge: list[tuple[float, int, int, ChainLink]], link: ChainLink) -> None:
    """Unless it is the end of its line."""
    if isinstance(link, Held):
        heappush(edge, (link.height, link.turn, -1, link))


def _add_entries(
    edge: list[tuple[float, int, int, ChainLink]], heap: list[tuple[float, int, WorthLine]], at: int
) -> None:
    """Those that are below the one at `at`."""
    for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
        height, turn, line = heap[below]
        heappush(edge, (height, turn, below, line))
