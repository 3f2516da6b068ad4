"""GDSF (Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
policy", HP Labs HPL-98-69R1, 1998): a copy is worth its uses times its cost by byte; the cost is
the tokens to compute again. With blocks of one kind it is LFU that ages. O(log n) a call, on
average."""

from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual


class Gdsf(GreedyDual):
    def worth(self, item: Item) -> float:
        return max(item.cost, 1) / max(item.nbytes, 1)

    def value(self, worth: float, uses: int) -> float:
        return uses * worth
