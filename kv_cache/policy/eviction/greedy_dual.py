"""GreedyDual (Young, "The k-server dual and loose competitiveness for paging", Algorithmica 11,
1994): each copy has a height, its value above the height that the last victim had; the lowest
goes. The base of the policies that weigh what a copy is worth: since heights count from the last
victim's, a value that is not confirmed by hits sinks, and no time is looked at. O(log n) a call,
on average."""

from abc import abstractmethod
from collections.abc import Iterator

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Eviction, Item
from kv_cache.policy.eviction.ranked import Node, Ranked


class Held(Node):
    """A present copy, how often it was asked for since it came (which counts), and the part of its
    value that stays as it is."""

    __slots__ = ("key", "uses", "worth")

    def __init__(self, item: Item, worth: float) -> None:
        super().__init__(item.copy_id)
        self.key: Key = item.key
        self.uses = 1
        self.worth = worth


class GreedyDual(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._held: dict[int, Held] = {}
        self._ranked: Ranked[Held] = Ranked()
        self._floor = 0.0

    @abstractmethod
    def worth(self, item: Item) -> float:
        """What a new copy is worth, as far as it does not depend on its uses."""

    @abstractmethod
    def value(self, held: Held) -> float:
        """What the copy is worth; must not fall as `uses` grows."""

    def insert(self, item: Item) -> None:
        held = self._held[item.copy_id] = Held(item, self.worth(item))
        self._ranked.add(held, self._floor + self.value(held))

    def hit(self, copy_id: int) -> None:
        held = self._held[copy_id]
        held.uses += 1
        self._ranked.rise(held, self._floor + self.value(held))

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        held = self._held.pop(copy_id)
        if evicted and held.rank > self._floor:
            self._floor = held.rank
        self._ranked.discard(held)

    def victims(self) -> Iterator[int]:
        return (held.copy_id for held in self._ranked)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._held
