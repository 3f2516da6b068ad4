"""Cost-aware: GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS
1997) with the tokens to compute again as the cost: a copy is worth its cost by byte, however often
it was asked for. With blocks of one kind it is LRU. O(log n) a call, on average."""

from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual


class CostAware(GreedyDual):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes, most_uses=1)

    def worth(self, item: Item) -> float:
        return max(item.cost, 1) / max(item.nbytes, 1)

    def value(self, worth: float, uses: int) -> float:
        return worth
