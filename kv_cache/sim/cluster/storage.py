"""Where the content of a cluster lies, and what moves while no request waits for it: what is
evicted goes down, what is new is written through, what will be asked for is fetched.

What a request waits for is moved in state_moves.py, and what a pool keeps is the pool's own
(segments.py). Sizes are blocks wherever a name does not say bytes.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kv_cache.config.scenario import Scenario, TierSection
from kv_cache.config.scenario_rules import TIERS as LOWER_TIERS
from kv_cache.config.scenario_rules import lower_tiers, tier_residency
from kv_cache.core.callbacks import ignore
from kv_cache.core.units import GIB
from kv_cache.policy.admission import ADMISSION, Admission
from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.cluster.event_loop import ENDS, Action, Loop
from kv_cache.sim.cluster.network import Network
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.prefix_match import PrefixPart, match
from kv_cache.sim.cluster.segments import (
    BlockExtent,
    BlockPool,
    Segment,
    TierWatch,
    become_ready,
    blocks_of,
)
from kv_cache.sim.cluster.topology import ClusterTopology, LinkPath

TIERS = ("hbm", *LOWER_TIERS)
_THROUGH = "write-through"


class ClusterStorage:
    """All pools of one run, by tier and index; each is made when it is first used."""

    def __init__(
        self,
        scenario: Scenario,
        chain: PrefixChain,
        loop: Loop,
        topology: ClusterTopology,
        network: Network,
        block_sizes: Mapping[str, int],
    ) -> None:
        self._section = scenario.tiers
        self._chain = chain
        self._loop, self._topology, self._network = loop, topology, network
        self._block_sizes = block_sizes
        self.tiers = lower_tiers(scenario)
        held = [tier_residency(scenario, tier) for tier in TIERS]
        self._widen_ns = [0.0 if each is None else each.cost_ns or 0.0 for each in held]
        self._lies_as = [None if each is None else (each.name, each.group) for each in held]
        self.pools: dict[tuple[str, int], BlockPool] = {}
        self.watches = {name: TierWatch(loop) for name in TIERS}
        self.prefetched: Counter[str] = Counter()
        self._below: dict[BlockPool, BlockPool | None] = {}
        self.sent_by: dict[int, int] = {}  # of each run of blocks, the last HBM to send any down
        self._notes = scenario.watch.min_bound
        self._counts = False  # whether any pool goes by uses
        self.on_moved: Callable[[str, BlockPool, int], None] | None = None
        """Hears what kind of thing happens to how many bytes of a place, if anybody listens."""
        self.into_hbm = self._section.prefetch_into == "hbm"
        self.on_fetched: Callable[[int], None] = ignore
        """Hears of which instance's HBM a prefetch no longer holds what it brings."""

    # --- pools ----------------------------------------------------------------------------

    def reach(self, instance: int, hbm_blocks: int) -> tuple[BlockPool, ...]:
        """Return the pools of an instance, its own memory first."""
        hbm = self._pool("hbm", instance, instance, hbm_blocks, None)
        reached = (hbm, *(self._tier_pool(tier, instance) for tier in self.tiers))
        for upper, lower in pairwise(reached):
            self._below.setdefault(upper, lower)
        return reached

    def _tier_pool(self, tier: str, instance: int) -> BlockPool:
        section: TierSection = getattr(self._section, tier)
        index, vertex = self._topology.pool_of(section.scope, instance)
        capacity = int(section.capacity_gib * GIB) // self._block_sizes[tier]
        return self._pool(tier, index, vertex, capacity, section)

    def _pool(
        self, tier: str, index: int, vertex: int, capacity: int, section: TierSection | None
    ) -> BlockPool:
        """Return a pool, made when it is first used; `section` is None for HBM."""
        pool = self.pools.get((tier, index))
        if pool is None:
            eviction = self._section.hbm_eviction if section is None else section.eviction
            pool = self.pools[tier, index] = BlockPool(
                TIERS.index(tier), index, vertex, capacity, self._block_sizes[tier], self._chain,
                EVICTION[eviction], self.watches[tier], self._admission(section),
            )  # fmt: skip
            if self._notes:
                pool.events = array("q")
        return pool

    def _admission(self, section: TierSection | None) -> Admission | None:
        """Build the admission policy of a tier; None admits everything."""
        if section is None or section.admission == "always" or self._section.write_policy != "back":
            return None
        admission = ADMISSION[section.admission](section.admission_rules())
        self._counts = self._counts or admission.counts
        return admission

    # --- ways ------------------------------------------------------------------------------

    def path_from(self, pool: BlockPool, instance: int) -> LinkPath:
        """Return links from a pool to an instance that loads from it."""
        device = self._topology.device(TIERS[pool.tier], pool.index, "read")
        return (device, *self._topology.path(pool.vertex, instance))

    def path_into(self, pool: BlockPool, vertex: int) -> LinkPath:
        """Return links from a vertex to a pool that is written."""
        device = self._topology.device(TIERS[pool.tier], pool.index, "write")
        return (*self._topology.path(vertex, pool.vertex), device)

    def read(
        self, pool: BlockPool, vertex: int, blocks: int, cause: str, action: Action, what: object
    ) -> None:
        """Call `action(what)` when blocks of a pool below HBM have come to a vertex, widened if
        they lie in fewer bits."""
        nbytes = blocks * pool.block_bytes
        widening_ns = round(nbytes * self._widen_ns[pool.tier])
        if widening_ns:
            action, what = self._widen, (widening_ns, action, what)
        self._network.send(self.path_from(pool, vertex), nbytes, cause, action, what)

    def _widen(self, what: tuple[int, Action, object]) -> None:
        widening_ns, action, argument = what
        self._loop.at(self._loop.now_ns + widening_ns, ENDS, action, argument)

    def read_ns(self, pool: BlockPool, vertex: int, blocks: int) -> int:
        """Return how long `read` would take, if nothing were sent after it and without jitter."""
        nbytes = blocks * pool.block_bytes
        path_ns = self._network.estimate_ns(self.path_from(pool, vertex), nbytes)
        return path_ns + round(nbytes * self._widen_ns[pool.tier])

    # --- room for running sequences ---------------------------------------------------------

    def take(self, pool: BlockPool, blocks: int) -> bool:
        """Take private blocks of a pool; what has to leave for them goes down. False: there can be
        no room, and nothing was done."""
        evicted = pool.make_room(blocks)
        if evicted is None:
            return False
        pool.take(blocks)
        if evicted:
            self.evicted(pool, evicted)
        return True

    # --- content going down ----------------------------------------------------------------

    def evicted(self, pool: BlockPool, extents: list[BlockExtent], cause: str = "offload") -> None:
        """Offer blocks that have left a pool to the one below, or drop them. `cause` of the bytes
        that go down."""
        if self.on_moved is not None:
            self.on_moved("evict", pool, blocks_of(extents) * pool.block_bytes)
        below = self._below.get(pool)
        if below is not None and self._section.write_policy == "back":
            self._copy_down(pool, below, extents, cause)
            return
        for node, start, end in extents:
            if below is None:
                pool.dropped += end - start
            else:
                pool.dropped += blocks_of(below.missing(node, start, end))

    def used(self, hbm: BlockPool, extents: Iterable[BlockExtent]) -> None:
        """Note that the owner of this HBM uses blocks, found anywhere or just computed, in the
        pools that count uses, whatever they hold."""
        if not self._counts:
            return
        extents, pool = list(extents), self._below.get(hbm)
        while pool is not None:
            for extent in extents:
                pool.note_use(extent)
            pool = self._below.get(pool)

    def stored(self, pool: BlockPool, extents: list[BlockExtent]) -> None:
        """Write new content of HBM through, if that is the policy: into the first tier below, and
        from there into the next as soon as it is there."""
        policy = self._section.write_policy
        below = self._below.get(pool)
        if below is None or policy in ("none", "back"):
            return
        if policy == "through-selective":
            extents = self._shallow(extents)
        self._copy_down(pool, below, extents, _THROUGH)

    def _shallow(self, extents: Sequence[BlockExtent]) -> list[BlockExtent]:
        most, depth = self._section.selective_depth_blocks, self._chain.depth
        cut = (
            BlockExtent(node, start, min(end, most - depth[node])) for node, start, end in extents
        )
        return [extent for extent in cut if extent.end > extent.start]

    def _copy_down(
        self, pool: BlockPool, below: BlockPool, extents: Sequence[BlockExtent], cause: str
    ) -> None:
        """Copy what `below` lacks; under way it can neither be read nor evicted there. What its
        admission policy refuses is offered to the next lower pool."""
        segments: list[Segment] = []
        onward: list[BlockExtent] = []
        for node, start, end in extents:
            for extent in below.missing(node, start, end):
                taken, others = below.offer(extent)
                onward += others
                if not taken:
                    continue
                came = below.take_in(taken)
                if came is None:
                    below.not_stored += blocks_of(taken)
                    if below.admission is not None or cause == _THROUGH:
                        onward += taken
                    else:
                        pool.dropped += blocks_of(taken)
                    continue
                new, evicted = came
                segments += new
                if not pool.tier:
                    self.sent_by[node] = pool.index
                if evicted:
                    self.evicted(below, evicted, cause)
        if segments:
            nbytes = sum(p.end - p.start for p in segments) * below.block_bytes
            if self.on_moved is not None:
                self.on_moved(cause, pool, nbytes)
            self._network.send(
                self.path_into(below, pool.vertex), nbytes, cause,
                self._written_through if cause == _THROUGH else self._copied, (below, segments),
            )  # fmt: skip
        if onward:
            lower = self._below.get(below)
            if lower is None and cause != _THROUGH:
                pool.dropped += blocks_of(onward)
            elif lower is not None:
                self._copy_down(pool, lower, onward, cause)

    def _written_through(self, what: tuple[BlockPool, list[Segment]]) -> None:
        pool, segments = what
        extents = [BlockExtent(s.node, s.start, s.end) for s in segments]
        self._copied(what)
        lower = self._below.get(pool)
        if lower is not None:
            self._copy_down(pool, lower, extents, _THROUGH)

    def _copied(self, what: tuple[BlockPool, list[Segment]]) -> None:
        pool, segments = what
        for segment in segments:
            become_ready(segment)
            pool.unpin(segment)

    # --- content fetched -------------------------------------------------------------------

    def prefetch(self, tiers: Sequence[BlockPool], path: Sequence[int], spare: int) -> None:
        """Bring a sequence from below up to the first tier below HBM, or to HBM, before it is asked
        for; in HBM `spare` blocks are left."""
        target = tiers[0 if self.into_hbm else 1]
        if tiers[-1] is target or not path:
            return
        parts = match(tiers, path, self._chain, self._chain.end(path[-1]))
        if not self.into_hbm:
            parts = [part for part in parts if part.tier]
        for part in parts:
            part.pool.pin(part.segment)  # also what is near already: it may not go to make room
        by_pool: dict[BlockPool, list[tuple[Segment, Segment]]] = {}
        for part, segment in self._bring(target, parts, spare):
            segment.fetched = True
            self.prefetched[TIERS[target.tier]] += segment.end - segment.start
            part.pool.pin(part.segment)  # until it is there
            by_pool.setdefault(part.pool, []).append((part.segment, segment))
        before = [part.segment for part in parts if self.into_hbm and not part.tier and by_pool]
        for segment in before:
            target.pin(segment)
        for part in parts:
            part.pool.unpin(part.segment)
        new = [segment for pairs in by_pool.values() for _, segment in pairs]
        together = _Fetch(target, [*before, *new], len(by_pool))
        for pool, pairs in by_pool.items():
            alone = _Fetch(target, [segment for _, segment in pairs], 1)
            self._send_up(pool, pairs, together if self.into_hbm else alone)

    def _send_up(
        self, pool: BlockPool, pairs: list[tuple[Segment, Segment]], fetch: "_Fetch"
    ) -> None:
        """What lies in the target in another type is written when it has come there whole."""
        target = fetch.target
        blocks = sum(new.end - new.start for _, new in pairs)
        if self.on_moved is not None:
            self.on_moved("prefetch", pool, blocks * pool.block_bytes)
        what, nbytes = (pool, pairs, fetch), blocks * target.block_bytes
        if not target.tier:
            self.read(pool, target.vertex, blocks, "prefetch", self._fetched, what)
            return
        into = (self._topology.device(TIERS[target.tier], target.index, "write"),)
        if self._lies_as[target.tier] == self._lies_as[pool.tier]:
            link_path = (*self.path_from(pool, target.vertex), *into)
            self._network.send(link_path, nbytes, "prefetch", self._fetched, what)
            return

        def write(_: object) -> None:
            self._network.send(into, nbytes, "prefetch", self._fetched, what)

        self.read(pool, target.vertex, blocks, "prefetch", write, None)

    def _bring(
        self, target: BlockPool, parts: Sequence[PrefixPart], spare: int
    ) -> Iterator[tuple[PrefixPart, Segment]]:
        """Yield what comes of each part: below HBM whatever finds room, in HBM the first blocks
        that leave `spare`, as a prefix has no gap."""
        for part in parts:
            if part.pool is target:
                continue
            for extent in target.missing(part.node, part.start, part.end):
                most = target.available - spare if self.into_hbm else extent.end
                if most <= 0:
                    return
                taken, _ = target.offer(extent._replace(end=min(extent.end, extent.start + most)))
                came = target.take_in(taken)
                for segment in () if came is None else came[0]:
                    yield part, segment
                if came is not None and came[1]:
                    self.evicted(target, came[1], "prefetch-offload")
                if self.into_hbm and most < extent.end - extent.start:
                    return

    def _fetched(self, what: tuple[BlockPool, list[tuple[Segment, Segment]], "_Fetch"]) -> None:
        pool, pairs, fetch = what
        for old, new in pairs:
            pool.unpin(old)
            become_ready(new)
        fetch.left -= 1
        if not fetch.left:
            for segment in fetch.held:
                fetch.target.unpin(segment)
            if self.into_hbm:
                self.on_fetched(fetch.target.index)


@dataclass(slots=True, eq=False)
class _Fetch:
    """Transfers of one prefetch. What they bring is held until the `left` ones are there, and in
    HBM all that is before it, as nothing may lie there without the block before."""

    target: BlockPool
    held: list[Segment]
    left: int
