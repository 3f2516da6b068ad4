"""GDSF (Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
policy", HP Labs HPL-98-69R1, 1998): a copy is worth its uses times its cost by byte; the cost is
the tokens to compute again. With blocks of one kind it is LFU that ages. O(log n) a call, on
average."""

from kv_cache.policy.eviction.greedy_dual import GreedyDual, Held


class Gdsf(GreedyDual):
    def value(self, held: Held) -> float:
        return held.uses * max(held.item.cost, 1) / max(held.item.nbytes, 1)
