"""Several tiers, the fastest first, with a block in one of them at a time: what an access finds,
how long it waits for it, and what is moved for it.

A block that is asked for is brought to the fastest tier that it fits into, as is one that is not
there and has to be computed; what has to leave for it goes one tier down, and is dropped from the
last. Each tier has a policy of its own. Whoever looks ahead (`Prefetch`) brings blocks to the first
tier between two requests.

There is no clock, so that two times bound what a deployment would see. *Wait*: an access waits for
its own block alone, and all else happens meanwhile. *Serial*: everything that moves, moves on the
one clock on which accesses wait (as in manishklach/kv-hierarchy-lab, where prefetch can therefore
only cost). What computing a block takes is in neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_cache.core.callbacks import ignore
from kv_cache.lab.accesses import Ints
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.variants import PolicyVariant
from kv_cache.policy.eviction import Eviction, Item
from kv_cache.policy.prefetch.base import Prefetch

_NOWHERE = -1
_FASTEST = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyTier:
    """`sizes` are the bytes of each block as it lies here; `widen_ns` is what widening a stored
    byte takes whoever reads it."""

    room_bytes: int
    latency_ns: float
    bytes_per_s: float
    sizes: Ints
    widen_ns: float = 0.0


@dataclass(slots=True, kw_only=True)
class TierUse:
    """What became of one tier: accesses that it served and how long they waited, bytes that it had
    at most, and bytes that left it for the next tier or for nowhere."""

    hits: int = 0
    wait_ns: float = 0.0
    used_bytes: int = 0
    peak_bytes: int = 0
    offloaded_bytes: int = 0
    dropped_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class HierarchyCounts:
    """`demand_bytes` and `prefetch_bytes` were moved for accesses and for prefetch, what had to
    make room among them. Of `prefetched` blocks those are useful that are asked for before they
    leave the fastest tier, and wasted that are not; the others are there at the end."""

    tiers: list[TierUse]
    lookups: int = 0
    computed: int = 0
    serial_ns: float = 0.0
    demand_bytes: int = 0
    prefetch_bytes: int = 0
    prefetched: int = 0
    useful: int = 0
    wasted: int = 0


@dataclass(slots=True)
class _Tier:
    spec: HierarchyTier
    policy: Eviction
    sizes: list[int]
    use: TierUse = field(default_factory=TierUse)

    def read_ns(self, nbytes: int) -> float:
        spec = self.spec
        return spec.latency_ns + nbytes * (1e9 / spec.bytes_per_s + spec.widen_ns)


def replay_hierarchy(
    shared: SharedState,
    tiers: Sequence[HierarchyTier],
    variant: PolicyVariant,
    prefetch: Prefetch | None,
    on_part: Callable[[], None] = ignore,
) -> HierarchyCounts:
    """Show all accesses to empty tiers with this policy. `on_part` is called on the way, and may
    raise."""
    hierarchy = _Hierarchy(shared, tiers, variant, prefetch)
    for part in shared.accesses.parts():
        on_part()
        for begin, end in part.requests():
            hierarchy.request(part.blocks[begin:end])
    return hierarchy.counts


class _Hierarchy:
    def __init__(
        self,
        shared: SharedState,
        tiers: Sequence[HierarchyTier],
        variant: PolicyVariant,
        prefetch: Prefetch | None,
    ) -> None:
        self._tiers = [
            _Tier(spec, variant.eviction(spec.room_bytes, shared.seed), spec.sizes.tolist())
            for spec in tiers
        ]
        self._contents = shared.contents
        self._prefetch = prefetch
        unique = shared.accesses.unique
        fits = [spec.sizes <= spec.room_bytes for spec in tiers]
        self._home: list[int] = np.argmax(fits, axis=0).tolist()  # the fastest tier for each block
        self._number_of = {key: number for number, key in enumerate(shared.contents.keys)}
        self._where = [_NOWHERE] * unique
        self._copy = [_NOWHERE] * unique
        self._blocks: list[int] = []  # of each copy
        self._pending: set[int] = set()  # brought ahead, and not asked for yet
        self.counts = HierarchyCounts(tiers=[tier.use for tier in self._tiers])

    def request(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._access(block)
        if self._prefetch is None or not blocks:
            return
        keys = self._contents.keys
        for key in self._prefetch.wanted_after("", [keys[block] for block in blocks]):
            self._bring_ahead(self._number_of[key])

    def _access(self, block: int) -> None:
        counts, where = self.counts, self._where[block]
        counts.lookups += 1
        if block in self._pending:
            self._pending.remove(block)
            counts.useful += 1
        if where == _NOWHERE:
            counts.computed += 1
            self._store(block, _FASTEST, ahead=False)
            return
        tier = self._tiers[where]
        wait_ns = tier.read_ns(tier.sizes[block])
        tier.use.hits += 1
        tier.use.wait_ns += wait_ns
        if where == self._home[block]:
            tier.policy.hit(self._copy[block])
            counts.serial_ns += wait_ns
        else:
            self._bring(block, ahead=False)

    def _bring_ahead(self, block: int) -> None:
        if self._where[block] <= _FASTEST:  # it is there, or nowhere
            return
        if self._home[block] == _FASTEST:
            self._bring(block, ahead=True)
            self.counts.prefetched += 1
            self._pending.add(block)

    def _bring(self, block: int, *, ahead: bool) -> None:
        """Move a block from the tier where it is to the fastest that it fits into."""
        where, home = self._where[block], self._home[block]
        self._leave(block, evicted=False)
        self._store(block, home, ahead=ahead)
        self._moved(block, where, home, ahead=ahead)

    def _store(self, block: int, at: int, *, ahead: bool) -> int | None:
        """Put a block into a tier, or the next one that is large enough. Return which one."""
        while at < len(self._tiers):
            tier = self._tiers[at]
            size = tier.sizes[block]
            if size > tier.spec.room_bytes:
                at += 1
                continue
            key = self._contents.keys[block]
            tier.policy.expect(key)
            while tier.use.used_bytes + size > tier.spec.room_bytes:
                self._offload(self._blocks[next(tier.policy.victims())], ahead=ahead)
            self._where[block], self._copy[block] = at, len(self._blocks)
            tier.policy.insert(self._item(block, key, size))
            self._blocks.append(block)
            tier.use.used_bytes += size
            tier.use.peak_bytes = max(tier.use.peak_bytes, tier.use.used_bytes)
            return at
        return None

    def _item(self, block: int, key: bytes, size: int) -> Item:
        contents = self._contents
        parent = contents.parents[block]
        before = contents.keys[parent] if parent >= 0 else None
        return Item(
            len(self._blocks), key, size, contents.tokens[block], contents.depths[block], before
        )

    def _offload(self, block: int, *, ahead: bool) -> None:
        """Let a victim go one tier down, or be dropped."""
        above = self._where[block]
        use, size = self._tiers[above].use, self._tiers[above].sizes[block]
        if block in self._pending:
            self._pending.remove(block)
            self.counts.wasted += 1
        self._leave(block, evicted=True)
        below = self._store(block, above + 1, ahead=ahead)
        if below is None:
            use.dropped_bytes += size
            return
        use.offloaded_bytes += size
        self._moved(block, above, below, ahead=ahead)

    def _leave(self, block: int, *, evicted: bool) -> None:
        tier = self._tiers[self._where[block]]
        tier.policy.remove(self._copy[block], evicted=evicted)
        tier.use.used_bytes -= tier.sizes[block]
        self._where[block] = _NOWHERE

    def _moved(self, block: int, source: int, target: int, *, ahead: bool) -> None:
        """Count a move: the larger of its sizes at the slower of both rates, after both latencies;
        what is widened is read from its source."""
        counts, one, other = self.counts, self._tiers[source], self._tiers[target]
        read = one.sizes[block]
        if ahead:
            counts.prefetch_bytes += read
        else:
            counts.demand_bytes += read
        rate = min(one.spec.bytes_per_s, other.spec.bytes_per_s)
        counts.serial_ns += (
            one.spec.latency_ns
            + other.spec.latency_ns
            + read * one.spec.widen_ns
            + max(read, other.sizes[block]) * 1e9 / rate
        )
