"""Eviction at random: what a policy has to beat to be worth its name.

Its order is chance's, so it keeps not all laws of `policy/eviction/base` and is none of the tiers'.
The same seed and the same calls give the same order. O(1) a call.
"""

from collections.abc import Iterator

from kv_cache.core.seed import Seed
from kv_cache.policy.eviction.base import HoldsCopies, Item


class AtRandom(HoldsCopies):
    def __init__(self, seed: Seed) -> None:
        self._chance = seed.rng().random
        self._copies: list[int] = []
        self._at: dict[int, int] = {}
        super().__init__(self._at)

    def insert(self, item: Item) -> None:
        self._at[item.copy_id] = len(self._copies)
        self._copies.append(item.copy_id)

    def hit(self, copy_id: int) -> None:
        pass

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        """The last copy takes its place."""
        at, last = self._at.pop(copy_id), self._copies.pop()
        if last != copy_id:
            self._copies[at] = last
            self._at[last] = at

    def victims(self) -> Iterator[int]:
        """Fisher and Yates, on places that only seem to be swapped."""
        swapped: dict[int, int] = {}
        for left in range(len(self._copies), 0, -1):
            at = int(self._chance() * left)
            chosen = swapped.get(at, at)
            swapped[at] = swapped.get(left - 1, left - 1)
            yield self._copies[chosen]
