"""Cost-aware: GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS
1997) with the tokens to compute again as the cost: a copy is worth its cost by byte, however often
it was asked for. With blocks of one kind it is LRU. O(log n) a call, on average."""

from kv_cache.policy.eviction.gdsf import Gdsf


class CostAware(Gdsf):
    """GDSF in which only one use counts."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes, most_uses=1)
