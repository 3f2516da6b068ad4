"""Regret-aware (as in manishklach/kv-hierarchy-lab): content that comes back soon after it was
evicted was evicted wrongly, and is worth more from then on: value = 1.5 uses + 6 regret.

Content that comes back `gap` accesses after its eviction, within a horizon of h, gets a regret of
(h - gap + 1) / h, and half of what it had before. There h is 24 accesses; here it is as many as the
most copies that were ever present, and at least 24. There uses and regret only grow, or all shrink
together; here the value sinks as GreedyDual's does. O(log n) a call, on average."""

from collections import OrderedDict

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual, Held

USE_WEIGHT = 1.5
REGRET_WEIGHT = 6.0
KEPT = 0.5
LEAST_HORIZON = 24


class RegretAware(GreedyDual):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes)
        self.ghosts: OrderedDict[Key, tuple[int, float]] = OrderedDict()  # evicted when, its regret
        self.horizon = LEAST_HORIZON
        self._accesses = 0

    def worth(self, item: Item) -> float:
        """Its regret."""
        evicted_at, before = self.ghosts.pop(item.key, (None, 0.0))
        if evicted_at is None:
            return 0.0
        gap = self._accesses - evicted_at
        return KEPT * before + max(0, self.horizon - gap + 1) / self.horizon

    def value(self, held: Held) -> float:
        return USE_WEIGHT * held.uses + REGRET_WEIGHT * held.worth

    def insert(self, item: Item) -> None:
        self._accesses += 1
        super().insert(item)
        self.horizon = max(self.horizon, len(self))

    def hit(self, copy_id: int) -> None:
        self._accesses += 1
        super().hit(copy_id)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        held = self._held[copy_id]
        super().remove(copy_id, evicted=evicted)
        if evicted:
            self.ghosts[held.key] = (self._accesses, held.worth)
            if len(self.ghosts) > self.horizon:
                self.ghosts.popitem(last=False)
