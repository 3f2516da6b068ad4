"""Importance (as in cklxx/kvcache-sim): a copy is worth more the nearer it is to the beginning of
its sequence, since all that follows needs it, and the more often it was asked for (up to 20 times).

That simulator adds a term for recency, 1 / (1 + time since the last use), so that the order changes
while nothing happens and every copy has to be looked at for each victim. Here the value sinks as
GreedyDual's does. O(log n) a call, on average."""

from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual, Held

DEPTH_WEIGHT = 2.0
DEPTH_DECAY = 0.01
USE_WEIGHT = 1.0
MOST_USES = 20


class Importance(GreedyDual):
    def worth(self, item: Item) -> float:
        return DEPTH_WEIGHT / (1 + DEPTH_DECAY * item.depth)

    def value(self, held: Held) -> float:
        uses = held.uses if held.uses < MOST_USES else MOST_USES
        return held.worth + USE_WEIGHT * uses / MOST_USES
