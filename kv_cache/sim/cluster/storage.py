"""Where the content of a cluster lies, and what moves while no request waits for it: what is
evicted goes down, what is new is written through, what will be asked for is fetched.

What a request waits for is the cluster's (cluster.py), and what a place keeps the place's own
(pieces.py). Sizes are blocks wherever a name does not say bytes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from kv_cache.config.scenario import Scenario, TierSection
from kv_cache.core.units import GIB
from kv_cache.policy.admission import ADMISSION, Admission
from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.cluster.chain import Chain
from kv_cache.sim.cluster.network import Network
from kv_cache.sim.cluster.pieces import Piece, Place, Run, Watch, become_ready, blocks_of
from kv_cache.sim.cluster.stack import match
from kv_cache.sim.cluster.topology import Topology, Way

TIERS = ("hbm", "dram", "rack_pool", "nvme", "remote")


class Storage:
    """All places of one run, by tier and index; each is made when it is first used."""

    def __init__(
        self,
        scenario: Scenario,
        chain: Chain,
        topology: Topology,
        network: Network,
        block_bytes: int,
    ) -> None:
        self._section = scenario.tiers
        self._chain = chain
        self._topology, self._network = topology, network
        self._block_bytes = block_bytes
        self.tiers = tuple(t for t in TIERS[1:] if getattr(scenario.tiers, t).capacity_gib > 0)
        self.places: dict[tuple[str, int], Place] = {}
        self.watches = {name: Watch() for name in TIERS}
        self.prefetched: Counter[str] = Counter()
        self._below: dict[Place, Place | None] = {}
        self._counts = False  # whether any place goes by uses

    # --- places ----------------------------------------------------------------------------

    def reach(self, instance: int, hbm_blocks: int) -> tuple[Place, ...]:
        """The places of an instance, its own memory first."""
        hbm = self._place("hbm", instance, instance, hbm_blocks, None)
        reached = (hbm, *(self._tier_place(tier, instance) for tier in self.tiers))
        for upper, lower in pairwise(reached):
            self._below.setdefault(upper, lower)
        return reached

    def _tier_place(self, tier: str, instance: int) -> Place:
        section: TierSection = getattr(self._section, tier)
        index, vertex = self.where(section.scope, instance)
        capacity = int(section.capacity_gib * GIB) // self._block_bytes
        return self._place(tier, index, vertex, capacity, section)

    def where(self, scope: str, instance: int) -> tuple[int, int]:
        """Index and vertex of the place of that scope which an instance reaches."""
        topology = self._topology
        node, rack = topology.place_of(instance)
        if scope == "device":
            return instance, instance
        if scope == "node":
            return node, topology.node(node)
        if scope == "rack":
            return rack, topology.rack(rack)
        return 0, topology.core

    def _place(
        self, tier: str, index: int, vertex: int, capacity: int, section: TierSection | None
    ) -> Place:
        """`section` is None for HBM."""
        place = self.places.get((tier, index))
        if place is None:
            eviction = self._section.hbm_eviction if section is None else section.eviction
            place = self.places[tier, index] = Place(
                TIERS.index(tier), index, vertex, capacity, self._block_bytes, self._chain,
                EVICTION[eviction], self.watches[tier], self._admission(section),
            )  # fmt: skip
        return place

    def _admission(self, section: TierSection | None) -> Admission | None:
        """None: everything is admitted, and nobody is asked."""
        if section is None or section.admission == "always" or self._section.write_policy != "back":
            return None
        admission = ADMISSION[section.admission](section.admission_rules())
        self._counts = self._counts or admission.counts
        return admission

    # --- ways ------------------------------------------------------------------------------

    def way_from(self, place: Place, instance: int) -> Way:
        """Of what an instance loads."""
        device = self._topology.device(TIERS[place.tier], place.index, "read")
        return (device, *self._topology.path(place.vertex, instance))

    def way_into(self, place: Place, vertex: int) -> Way:
        """Of what is written."""
        device = self._topology.device(TIERS[place.tier], place.index, "write")
        return (*self._topology.path(vertex, place.vertex), device)

    # --- content going down ----------------------------------------------------------------

    def evicted(self, place: Place, runs: list[Run], cause: str = "offload") -> None:
        """Blocks have left a place: what is below takes them, or they are dropped. `cause` of the
        bytes that go down."""
        below = self._below.get(place)
        if below is not None and self._section.write_policy == "back":
            self._copy_down(place, below, runs, cause)
            return
        for node, start, end in runs:
            if below is None:
                place.dropped += end - start
            else:
                place.dropped += blocks_of(below.missing(node, start, end))

    def used(self, hbm: Place, runs: Iterable[Run]) -> None:
        """Blocks are used by who owns this HBM: found anywhere, or just computed. Places that go
        by it are told, whatever they have."""
        if not self._counts:
            return
        runs, place = list(runs), self._below.get(hbm)
        while place is not None:
            for run in runs:
                place.note_use(run)
            place = self._below.get(place)

    def stored(self, place: Place, runs: list[Run]) -> None:
        """New content is in HBM: write it through, if that is the policy."""
        policy = self._section.write_policy
        below = self._below.get(place)
        if below is None or policy in ("none", "back"):
            return
        if policy == "through-selective":
            runs = self._shallow(runs)
        self._copy_down(place, below, runs, "write-through")

    def _shallow(self, runs: Sequence[Run]) -> list[Run]:
        most, depth = self._section.selective_depth_blocks, self._chain.depth
        cut = (Run(node, start, min(end, most - depth[node])) for node, start, end in runs)
        return [run for run in cut if run.end > run.start]

    def _copy_down(self, place: Place, below: Place, runs: Sequence[Run], cause: str) -> None:
        """What `below` has not; under way it can neither be read nor evicted there. What it has an
        admission policy for and does not take is offered to the place below it."""
        pieces: list[Piece] = []
        onward: list[Run] = []
        for node, start, end in runs:
            for run in below.missing(node, start, end):
                taken, others = below.offer(run)
                onward += others
                if not taken:
                    continue
                came = below.take_in(taken)
                if came is None:
                    below.not_stored += blocks_of(taken)
                    if below.admission is not None:
                        onward += taken
                    elif cause != "write-through":
                        place.dropped += blocks_of(taken)
                    continue
                new, evicted = came
                pieces += new
                if evicted:
                    self.evicted(below, evicted, cause)
        if pieces:
            nbytes = sum(p.end - p.start for p in pieces) * self._block_bytes
            self._network.send(
                self.way_into(below, place.vertex), nbytes, cause, self._copied, (below, pieces)
            )
        if onward:
            lower = self._below.get(below)
            if lower is None:
                place.dropped += blocks_of(onward)
            else:
                self._copy_down(place, lower, onward, cause)

    def _copied(self, what: tuple[Place, list[Piece]]) -> None:
        place, pieces = what
        for piece in pieces:
            become_ready(piece)
            place.unpin(piece)

    # --- content fetched -------------------------------------------------------------------

    def prefetch(self, tiers: Sequence[Place], path: Sequence[int]) -> None:
        """Bring a sequence from far below up to the first tier below HBM, before it is asked
        for."""
        if len(tiers) < 3 or not path:
            return
        target = tiers[1]
        parts = match(tiers, path, self._chain, self._chain.end(path[-1]))
        by_place: dict[Place, list[tuple[Piece, Piece]]] = {}
        name = TIERS[target.tier]
        parts = [part for part in parts if part.tier]
        for part in parts:
            part.place.pin(part.piece)  # also what is near already: it may not go to make room
        for part in parts:
            if part.place is target:
                continue
            for run in target.missing(part.node, part.start, part.end):
                taken, _ = target.offer(run)
                came = target.take_in(taken)
                if came is None:
                    continue
                new, evicted = came
                for piece in new:
                    piece.fetched = True
                    self.prefetched[name] += piece.end - piece.start
                    part.place.pin(part.piece)  # until it is there
                    by_place.setdefault(part.place, []).append((part.piece, piece))
                if evicted:
                    self.evicted(target, evicted, "prefetch-offload")
        for part in parts:
            part.place.unpin(part.piece)
        for place, pairs in by_place.items():
            write = self._topology.device(name, target.index, "write")
            read = self._topology.device(TIERS[place.tier], place.index, "read")
            way = (read, *self._topology.path(place.vertex, target.vertex), write)
            nbytes = sum(new.end - new.start for _, new in pairs) * self._block_bytes
            self._network.send(way, nbytes, "prefetch", self._fetched, (place, target, pairs))

    def _fetched(self, what: tuple[Place, Place, list[tuple[Piece, Piece]]]) -> None:
        place, target, pairs = what
        for old, new in pairs:
            place.unpin(old)
            become_ready(new)
            target.unpin(new)
