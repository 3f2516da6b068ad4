"""Importance (as in cklxx/kvcache-sim): a copy is worth more the nearer it is to the beginning of
its sequence, since all that follows needs it, and the more often it was asked for (up to 20 times).

That simulator adds a term for recency, 1 / (1 + time since the last use), so that the order changes
while nothing happens and every copy has to be looked at for each victim. Here the value sinks as
GreedyDual's does. O(log n) a call, on average."""

from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual
from kv_cache.policy.eviction.numbers import MOST, check

DEPTH_WEIGHT = 2.0
DEPTH_DECAY = 0.01
USE_WEIGHT = 1.0
MOST_USES = 20


class Importance(GreedyDual):
    NUMBERS = (
        ("depth_weight", DEPTH_WEIGHT),
        ("depth_decay", DEPTH_DECAY),
        ("use_weight", USE_WEIGHT),
        ("most_uses", MOST_USES),
    )

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        depth_weight: float = DEPTH_WEIGHT,
        depth_decay: float = DEPTH_DECAY,
        use_weight: float = USE_WEIGHT,
        most_uses: int = MOST_USES,
    ) -> None:
        check(
            depth_weight=(depth_weight, 0, MOST),
            depth_decay=(depth_decay, 0, MOST),
            use_weight=(use_weight, 0, MOST),
            most_uses=(most_uses, 1, MOST),
        )
        super().__init__(capacity_bytes, most_uses=most_uses)
        self._depth_weight, self._depth_decay = depth_weight, depth_decay
        self._use_weight, self._most = use_weight, most_uses

    def worth(self, item: Item) -> float:
        return self._depth_weight / (1 + self._depth_decay * item.depth)

    def value(self, worth: float, uses: int) -> float:
        return worth + self._use_weight * uses / self._most
