"""Regret-aware (as in manishklach/kv-hierarchy-lab): content that comes back soon after it was
evicted was evicted wrongly, and is worth more from then on: value = 1.5 uses + 6 regret.

Content that comes back `gap` accesses after its eviction, within a horizon of h, gets a regret of
(h - gap + 1) / h, and half of what it had before. There h is 24 accesses; here it is as many as the
most copies that were ever present, and at least 24. There uses and regret only grow, or all shrink
together; here the value sinks as GreedyDual's does. O(log n) a call, on average."""

from collections import OrderedDict

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual
from kv_cache.policy.eviction.numbers import MOST, check

USE_WEIGHT = 1.5
REGRET_WEIGHT = 6.0
KEPT = 0.5
LEAST_HORIZON = 24


class RegretAware(GreedyDual):
    NUMBERS = (
        ("use_weight", USE_WEIGHT),
        ("regret_weight", REGRET_WEIGHT),
        ("kept", KEPT),
        ("least_horizon", LEAST_HORIZON),
    )

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        use_weight: float = USE_WEIGHT,
        regret_weight: float = REGRET_WEIGHT,
        kept: float = KEPT,
        least_horizon: int = LEAST_HORIZON,
    ) -> None:
        check(
            use_weight=(use_weight, 0, MOST),
            regret_weight=(regret_weight, 0, MOST),
            kept=(kept, 0, 1),
            least_horizon=(least_horizon, 1, MOST),
        )
        super().__init__(capacity_bytes)
        self._use_weight, self._regret_weight, self._kept = use_weight, regret_weight, kept
        self.ghosts: OrderedDict[Key, tuple[int, float]] = OrderedDict()  # evicted when, its regret
        self._most = least_horizon  # copies that were present when one went

    @property
    def horizon(self) -> int:
        return max(self._most, len(self))

    def worth(self, item: Item) -> float:
        """Its regret. There is a turn for each access."""
        gone = self.ghosts.pop(item.key, None)
        if gone is None:
            return 0.0
        evicted_at, before = gone
        horizon, gap = self.horizon, self._turns + 1 - evicted_at
        return self._kept * before + max(0, horizon - gap + 1) / horizon

    def value(self, worth: float, uses: int) -> float:
        return self._use_weight * uses + self._regret_weight * worth

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        held = self._held[copy_id]
        if len(self._held) > self._most:
            self._most = len(self._held)
        super().remove(copy_id, evicted=evicted)
        if evicted:
            self.ghosts[held.key] = (self._turns, held.line.worth)
            if len(self.ghosts) > self._most:
                self.ghosts.popitem(last=False)
