"""How much a tier may hold, and what may live there."""

from collections.abc import Sequence

from msgspec import Struct

from kv_cache.cache.ledger import Ledger
from kv_cache.core.kinds import Tier


class TierSpec(Struct, frozen=True, kw_only=True):
    """One tier of the waterfall. `capacity_bytes` None is unlimited (virtual time only)."""

    tier: Tier
    capacity_bytes: int | None


class CacheRules(Struct, frozen=True, kw_only=True):
    """`target_usage_ratio` and `large_entry_limit_ratio` bind every tier but the last: such a
    tier makes room down to that share of its capacity, and objects above the second share skip
    it. One plan moves at most `max_victims(n)` of a tier's n copies."""

    target_usage_ratio: float = 0.8
    large_entry_limit_ratio: float = 0.95
    max_evictions_hard_cap: int = 5000
    max_evictions_min: int = 1000

    def max_victims(self, entries: int) -> int:
        return max(self.max_evictions_min, min(entries, self.max_evictions_hard_cap))


class TierLimits:
    """The limits of all tiers, the fastest first, beside what their ledgers have."""

    def __init__(self, rules: CacheRules, ledgers: Sequence[Ledger]) -> None:
        self._ledgers = tuple(ledgers)
        self.rules = rules
        self.last = len(self._ledgers) - 1

    def fits(self, index: int, nbytes: int) -> bool:
        """Return whether an object may live in a tier at all, were it empty."""
        capacity = self._ledgers[index].capacity
        if capacity is None:
            return True
        share = 1.0 if index == self.last else self.rules.large_entry_limit_ratio
        return nbytes <= capacity * share - self._ledgers[index].stranded

    def homes(self, nbytes: int) -> list[int]:
        """Return the tiers in which an object may live."""
        return [index for index in range(len(self._ledgers)) if self.fits(index, nbytes)]

    def limit(self, index: int, largest: int) -> int | None:
        """Return how full a tier may be made: a single large object may use more than the
        target."""
        capacity = self._ledgers[index].capacity
        if capacity is None or index == self.last:
            return capacity
        return max(int(capacity * self.rules.target_usage_ratio), largest)

    def free(self, index: int, limit: int | None) -> int | None:
        """Return the bytes of a tier that can be claimed now; None = no limit."""
        return self._ledgers[index].free(limit)
