"""Heavy hitters: LFU whose counts outlast eviction, called perfect LFU (Breslau et al., "Web
caching and Zipf-like distributions: evidence and implications", INFOCOM 1999): evict what was asked
for the least often, whether it was here or not; of these, what was not asked for the longest.
Counts never age. The uses of evicted content are remembered for `memory` contents a copy (of the
most that were ever present), and for `least_memory`; what was evicted first is forgotten first.

With `regret_weight` it is the regret-aware policy of manishklach/kv-hierarchy-lab, whose uses and
regret never sink (ours of that name ages): content that comes back `gap` accesses after its
eviction, within `horizon`, gets a regret of (horizon - gap + 1) / horizon; `kept` of its regret
stays at each access to it. There a use counts 1.5 and regret 6, and a recency of at most 1 is
added, which is the order of equals here. O(log n) a call, on average."""

from collections import OrderedDict

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Item
from kv_cache.policy.eviction.greedy_dual import GreedyDual
from kv_cache.policy.eviction.numbers import MOST, check

MEMORY = 4
LEAST_MEMORY = 65_536
HORIZON = 24
KEPT = 0.98


class HeavyHitter(GreedyDual):
    """GreedyDual whose heights count from nothing, as no victim raises them."""

    NUMBERS = (
        ("use_weight", 1.0),
        ("regret_weight", 0.0),
        ("horizon", HORIZON),
        ("kept", KEPT),
        ("memory", MEMORY),
        ("least_memory", LEAST_MEMORY),
    )

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        use_weight: float = 1.0,
        regret_weight: float = 0.0,
        horizon: int = HORIZON,
        kept: float = KEPT,
        memory: int = MEMORY,
        least_memory: int = LEAST_MEMORY,
    ) -> None:
        check(
            use_weight=(use_weight, 0, MOST),
            regret_weight=(regret_weight, 0, MOST),
            horizon=(horizon, 1, MOST),
            kept=(kept, 0, 1),
            memory=(memory, 0, 64),
            least_memory=(least_memory, 0, MOST),
        )
        super().__init__(capacity_bytes)
        self._use_weight, self._regret_weight = use_weight, regret_weight
        self._horizon, self._kept = horizon, kept
        self._memory, self._least_memory = memory, least_memory
        self._most = 0  # copies that were present when one went
        self.past: OrderedDict[Key, tuple[int, float, int]] = OrderedDict()
        """Of evicted content: its uses, its regret, the access that evicted it."""

    def expect(self, key: Key) -> None:
        if key in self.past:
            self.past.move_to_end(key)  # what makes room for it does not push it out

    def uses_before(self, item: Item) -> int:
        past = self.past.get(item.key)
        return 0 if past is None else past[0]

    def worth(self, item: Item) -> float:
        past = self.past.get(item.key)
        if past is None:
            return 0.0
        _, regret, evicted_at = past
        gap = self._turns + 1 - evicted_at
        return self.worth_after_hit(regret) + max(0, self._horizon - gap + 1) / self._horizon

    def worth_after_hit(self, worth: float) -> float:
        return self._kept * worth

    def value(self, worth: float, uses: int) -> float:
        return self._use_weight * uses + self._regret_weight * worth

    def insert(self, item: Item) -> None:
        super().insert(item)
        self.past.pop(item.key, None)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        held = self._held[copy_id]
        self._most = max(self._most, len(self._held))
        super().remove(copy_id, evicted=False)  # the floor stays where it is
        if evicted:
            self.past[held.key] = (held.line.uses, held.line.worth, self._turns + 1)
            if len(self.past) > max(self._least_memory, self._memory * self._most):
                self.past.popitem(last=False)
