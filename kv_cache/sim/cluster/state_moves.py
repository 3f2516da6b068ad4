"""State that a request waits for: its stored prefix on the way to HBM, and what was swapped out.

It counts what is found and what a prefetch was good for. What moves while nobody waits for it is
the storage's (storage.py).
"""

from collections.abc import Callable, Sequence

from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.event_loop import Action
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.flight import TRANSFER, Flight, Hold
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.prefix_match import PrefixPart
from kv_cache.sim.cluster.routing import Routing
from kv_cache.sim.cluster.segments import BlockExtent, BlockPool, Segment, become_ready
from kv_cache.sim.cluster.storage import TIERS


class StateMoves:
    """`loaded` hears of flights whose prefix has come, at their homes."""

    def __init__(
        self, fabric: Fabric, counts: ClusterCounts, routing: Routing,
        loaded: Callable[[Flight], None],
    ) -> None:  # fmt: skip
        self._fabric, self._counts, self._storage = fabric, counts, fabric.storage
        self._routing, self._loaded = routing, loaded
        prefetches = fabric.scenario.tiers.prefetch != "none"
        self._notes_late = prefetches and not fabric.storage.into_hbm

    # --- prefixes --------------------------------------------------------------------------

    def found(self, instance: Instance, flight: Flight, parts: Sequence[PrefixPart]) -> None:
        """Count a prefix that is found and pinned, and bring up what is below HBM."""
        hold, tokens = flight.hold, self._fabric.block_tokens
        assert hold is not None
        if flight.hit_tokens < 0:
            flight.hit_tokens = matched = hold.shared * tokens
            if matched:
                left = instance.compute.prefill_ns(flight.target - matched, matched)
                self._routing.prefill_left(flight, left)
            self._count_hits(instance, flight, parts)
        else:
            self._counts.blocks.recomputed += flight.target // tokens - hold.shared
        if parts:
            for part in reversed(parts):
                part.pool.hit(part.segment)
                self._note_use(part)
                if part.tier > 1 and self._notes_late:
                    self.note_late(instance, part)
            self._load(instance, flight, hold, parts)

    def _count_hits(self, instance: Instance, flight: Flight, parts: Sequence[PrefixPart]) -> None:
        storage, blocks = self._storage, self._counts.blocks
        storage.used(instance.pool, (BlockExtent(p.node, p.start, p.end) for p in parts))
        for part in parts if flight.measured else ():
            blocks.hits[TIERS[part.pool.tier]] += part.end - part.start
            if part.tier and storage.sent_by.get(part.node) != instance.number:
                blocks.from_others += part.end - part.start

    def _note_use(self, part: PrefixPart) -> None:
        segment, counts = part.segment, self._counts
        if segment.fetched:
            segment.fetched = False
            count = counts.prefetch_useful if segment.ready else counts.prefetch_late
            count[TIERS[part.pool.tier]] += segment.end - segment.start

    def note_late(self, instance: Instance, part: PrefixPart) -> None:
        """A prefetch of it that has begun is not there yet, so it is loaded from afar."""
        target = instance.tiers[1]
        for coming in target.segments_of(part.node):
            if coming.fetched and coming.start < part.end and part.start < coming.end:
                coming.fetched = False  # it has been asked for: late, and nothing else besides
                self._counts.prefetch_late[TIERS[target.tier]] += coming.end - coming.start

    def _load(
        self, instance: Instance, flight: Flight, hold: Hold, parts: Sequence[PrefixPart]
    ) -> None:
        flight.loads_since_ns = self._fabric.loop.now_ns
        below: dict[BlockPool, list[tuple[Segment, Segment]]] = {}
        for part in parts:
            if not part.tier:
                hold.pins.append(part.segment)
                if not part.segment.ready:
                    self._await(flight, part.segment)
                continue
            run = BlockExtent(part.node, part.start, part.end)
            segment = instance.pool.add(run, ready=False, pinned=True)
            hold.pins.append(segment)
            below.setdefault(part.pool, []).append((part.segment, segment))
        for pool, pairs in below.items():
            flight.loads += 1
            blocks = sum(new.end - new.start for _, new in pairs)
            what = (flight, pool, pairs)
            self._read("load", instance, flight, pool, blocks, self._come, what)

    def _await(self, flight: Flight, segment: Segment) -> None:
        """Wait for a segment that another flight is loading here."""
        flight.loads += 1
        if segment.waiters is None:
            segment.waiters = []
        segment.waiters.append(lambda: self._load_ended(flight))

    def _come(self, what: tuple[Flight, BlockPool, list[tuple[Segment, Segment]]]) -> None:
        flight, pool, pairs = what
        for old, new in pairs:
            pool.unpin(old)
            become_ready(new)
        self._load_ended(flight)

    def _load_ended(self, flight: Flight) -> None:
        flight.loads -= 1
        if not flight.loads:
            self._loaded(flight)

    # --- what is swapped -------------------------------------------------------------------

    def swap_out(self, instance: Instance, flight: Flight, tokens: int) -> bool:
        """Move state to host memory, if there is room; the HBM is free at once (staging)."""
        if len(instance.tiers) < 2:
            return False
        fabric, storage, host = self._fabric, self._storage, instance.tiers[1]
        blocks = -(-tokens // fabric.block_tokens)
        if not storage.take(host, blocks):
            return False
        flight.swapped = blocks
        flight.loads += 1
        nbytes, link_path = blocks * host.block_bytes, storage.path_into(host, instance.number)
        fabric.say_moved("swap-out", host, nbytes, flight, instance.number)
        fabric.network.send(link_path, nbytes, "swap-out", self._swapped_out, (instance, flight))
        return True

    def _swapped_out(self, what: tuple[Instance, Flight]) -> None:
        instance, flight = what
        flight.loads -= 1
        instance.nudge()

    def swap_in(self, instance: Instance, flight: Flight) -> None:
        """Memory is there again: bring the state back."""
        self._counts.turn(flight, TRANSFER, self._fabric.loop.now_ns)
        host, what = instance.tiers[1], (instance, flight)
        self._read("swap-in", instance, flight, host, flight.swapped, self._swapped_in, what)

    def _swapped_in(self, what: tuple[Instance, Flight]) -> None:
        instance, flight = what
        flight.loads -= 1
        instance.tiers[1].give(flight.swapped)
        flight.swapped = 0
        instance.join(flight)
        instance.nudge()

    def _read(
        self, cause: str, instance: Instance, flight: Flight, pool: BlockPool, blocks: int,
        action: Action, what: object,
    ) -> None:  # fmt: skip
        nbytes = blocks * pool.block_bytes
        self._fabric.say_moved(cause, pool, nbytes, flight, instance.number)
        self._storage.read(pool, instance.number, blocks, cause, action, what)
