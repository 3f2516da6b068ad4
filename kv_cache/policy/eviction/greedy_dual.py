"""GreedyDual (Young, "The k-server dual and loose competitiveness for paging", Algorithmica 11,
1994): each copy has a height, its value above the height that the last victim had; the lowest
goes. The base of the policies that weigh what a copy is worth: since heights count from the last
victim's, a value that is not confirmed by hits sinks, and no time is looked at. O(log n) a call,
on average."""

from abc import abstractmethod
from collections.abc import Iterator

from kv_cache.policy.eviction.base import Eviction, Item
from kv_cache.policy.eviction.ranked import Ranked


class Held:
    """A present copy, and how often it was asked for since it came (which counts)."""

    __slots__ = ("extra", "item", "uses")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.uses = 1
        self.extra = 0.0  # what the policy remembers of this copy


class GreedyDual(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._held: dict[int, Held] = {}
        self._ranked = Ranked()
        self._floor = 0.0

    @abstractmethod
    def value(self, held: Held) -> float:
        """What the copy is worth; must not fall as `uses` grows."""

    def insert(self, item: Item) -> None:
        self.hold(Held(item))

    def hold(self, held: Held) -> None:
        self._held[held.item.copy_id] = held
        self._ranked.add(held.item.copy_id, self._floor + self.value(held))

    def hit(self, copy_id: int) -> None:
        held = self._held[copy_id]
        held.uses += 1
        self._ranked.rise(copy_id, self._floor + self.value(held))

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        if evicted:
            self._floor = max(self._floor, self._ranked.rank(copy_id))
        self._ranked.discard(copy_id)
        del self._held[copy_id]

    def victims(self) -> Iterator[int]:
        return iter(self._ranked)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._held
