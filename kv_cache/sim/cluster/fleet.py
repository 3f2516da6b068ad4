"""What routers may know of the instances, for each of the two choices that they make.

Work is estimated in ns: of prefill, what is left of it alone; of an answer, what its tokens add to
a full instance.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.prefix_match import match
from kv_cache.sim.cluster.roster import Roster
from kv_cache.sim.cluster.segments import Segment


class Loads:
    """Estimated work of each of a set of instances, `prefill` a part of it; finds the least loaded
    one."""

    __slots__ = ("_chosen", "_heap", "_turn", "members", "prefill", "work")

    def __init__(self, members: Sequence[int], instances: int) -> None:
        self.members = members
        self.work = [0] * instances
        self.prefill = [0] * instances
        self._chosen = [0] * instances
        self._turn = 0
        self._heap: list[tuple[int, int, int]] | None = None  # made when it is first asked for

    def add(self, instance: int, prefill: int, answers: int) -> None:
        self.prefill[instance] += prefill
        self.work[instance] += prefill + answers
        if self._heap is not None:
            self._push(self._heap, instance)

    def choose(self, instance: int) -> None:
        self._turn += 1
        self._chosen[instance] = self._turn
        if self._heap is not None:
            self._push(self._heap, instance)

    def key(self, instance: int) -> tuple[int, int, int]:
        return self.work[instance], self._chosen[instance], instance

    def least_of(self, instances: Sequence[int]) -> int:
        """Return the least loaded of some instances, without a key for each."""
        work, turns = self.work, self._chosen
        least = instances[0]
        for instance in instances:
            more, later = work[instance] - work[least], turns[instance] - turns[least]
            if more < 0 or (not more and (later < 0 or (not later and instance < least))):
                least = instance
        return least

    def least(self, count: int) -> list[int]:
        """Return the `count` least loaded, the least first."""
        heap = self._heap
        if heap is None:
            heap = self._heap = [self.key(i) for i in self.members]
            heapify(heap)
        chosen: list[int] = []
        taken: set[int] = set()
        kept = []
        while heap and len(chosen) < count:
            entry = heappop(heap)
            instance = entry[2]
            if instance in taken or entry != self.key(instance):
                continue
            taken.add(instance)
            chosen.append(instance)
            kept.append(entry)
        for entry in kept:
            heappush(heap, entry)
        return chosen

    def _push(self, heap: list[tuple[int, int, int]], instance: int) -> None:
        heappush(heap, (self.work[instance], self._chosen[instance], instance))
        if len(heap) > 64 + 8 * len(self.members):
            heap[:] = [self.key(i) for i in self.members]
            heapify(heap)


class Fleet(ABC):
    """View of the instances that a router chooses among."""

    def __init__(
        self, fabric: Fabric, roster: Roster, members: Sequence[int], loads: Loads | None = None
    ) -> None:
        self._fabric = fabric
        self._roster = roster
        self.members = members
        self.loads = loads or Loads(members, fabric.topology.instances)
        kinds = {(roster.capacity_of(number), roster.roles[number]) for number in members}
        self.equal = len(kinds) < 2  # in the memory that they have
        self.as_fast = len({roster.compute_of(number) for number in members}) < 2
        among = bytearray(fabric.topology.instances)
        for number in members:
            among[number] = 1
        self._among = bytes(among)
        self._reaching: dict[tuple[str, int], list[int]] = {}

    @abstractmethod
    def wait_ns(self, instance: int, flight: Flight) -> int:
        """Estimate how long the flight would wait there."""

    @abstractmethod
    def overlap_cost_ns(self, instance: int, flight: Flight) -> tuple[float, float, int]:
        """Return prefill of what is missing there, loading or sending of what is elsewhere, and the
        tokens that are missing."""

    def has(self, instance: int) -> bool:
        """Whether an instance is one of them."""
        return instance >= 0 and bool(self._among[instance])

    def fits(self, instance: int, flight: Flight) -> bool:
        roster = self._roster
        prompt_alone = roster.roles[instance] == "prefill"  # it never holds the answer
        tokens = flight.request.prompt_tokens if prompt_alone else flight.stored_tokens
        return -(-tokens // self._fabric.block_tokens) <= roster.capacity_of(instance)

    def holders(self, flight: Flight, most: int) -> list[int]:
        """Return members that have, or reach, the longest prefixes of it, the longest first."""
        nearest: dict[int, None] = {}
        watches, among = self._fabric.storage.watches, self._among
        hbm = watches["hbm"].holders
        for node in reversed(flight.path):
            able = (number for number in hbm.get(node, ()) if among[number])
            for number in islice(able, most - len(nearest)):
                nearest[number] = None
            for tier in self.below:
                pools = watches[tier].holders.get(node, ())
                for index in islice(pools, max(0, most - len(nearest))):
                    near = self._near(tier, index)
                    if near:
                        nearest[self.loads.least_of(near)] = None
            if len(nearest) >= most:
                break
        return list(nearest)

    @property
    def below(self) -> Sequence[str]:
        """Tiers below HBM whose content is of use."""
        return self._fabric.storage.tiers

    def _near(self, tier: str, index: int) -> list[int]:
        """List the instances that reach a pool; empty if all do."""
        near = self._reaching.get((tier, index))
        if near is None:
            fabric = self._fabric
            scope = getattr(fabric.scenario.tiers, tier).scope
            near = []
            if scope != "cluster":
                near = [i for i in self.members if fabric.topology.pool_of(scope, i)[0] == index]
            self._reaching[tier, index] = near
        return near


class PrefillSide(Fleet):
    """The instances that can compute a prompt."""

    def place_for(self, flight: Flight, chosen: int) -> int:
        """Return the `chosen` instance if it has a place, else the least loaded that has; where
        lower classes are paused, else one of those that run the lowest; or -1."""
        if self.has_place(chosen, flight):
            return chosen
        able = (other for other in self.members if self.has_place(other, flight))
        number = min(able, key=self.loads.key, default=-1)
        if number >= 0 or not self._roster.rules.pause_lower:
            return number
        able = (other for other in self.members if self.has_place(other, flight, pausing=True))
        return min(able, key=self._lowest_first, default=-1)

    def has_place(self, instance: int, flight: Flight, *, pausing: bool = False) -> bool:
        """Whether an instance has a place for a flight, `pausing` lower classes if need be."""
        if not self.has(instance) or not self.fits(instance, flight):
            return False
        there = self._roster.used.get(instance)
        return there is None or _has_place(there, flight, pausing=pausing)

    def _lowest_first(self, instance: int) -> tuple[int, ...]:
        priorities, batch = self._roster.rules.priorities, self._roster.instance(instance).members
        lowest = min((priorities[flight.kind] for flight in batch), default=-1)
        return lowest, *self.loads.key(instance)

    def wait_ns(self, instance: int, flight: Flight) -> int:
        """Estimate the wait of a new prompt for those before it; if all places are taken, or the
        memory, also for answers to end, one for each that waits."""
        there = self._roster.used.get(instance)
        if there is None:
            return 0
        need = -(-flight.target // self._fabric.block_tokens)
        full = there.waiting or len(there.members) >= there.max_seqs or need > there.pool.available
        ends = (1 + len(there.waiting)) * there.next_end_ns() if full else 0
        return self.loads.prefill[instance] + ends

    def overlap_cost_ns(self, instance: int, flight: Flight) -> tuple[float, float, int]:
        """Return the cost of computing what no pool that it reaches has, and of loading what HBM
        lacks."""
        fabric, roster = self._fabric, self._roster
        compute = roster.compute_of(instance)
        prompt = flight.request.prompt_tokens
        if instance not in roster.used and not fabric.storage.tiers:
            return compute.prefill_ns(prompt, 0), 0.0, prompt
        most = (prompt - 1) // fabric.block_tokens
        parts = match(roster.instance(instance).tiers, flight.path, fabric.chain, most)
        have = loading = 0
        for part in parts:
            blocks = part.end - part.start
            have += blocks
            if part.tier:
                loading += fabric.storage.read_ns(part.pool, instance, blocks)
        before = have * fabric.block_tokens
        missing = prompt - before
        return compute.prefill_ns(missing, before), loading, missing


def _has_place(there: Instance, flight: Flight, *, pausing: bool) -> bool:
    """Whether there is a place in the batch for a flight, and memory for all that it reserves, or
    for its whole prompt, beside those that wait there; if `pausing`, beside those of its class or a
    higher one alone."""
    priorities = there.rules.priorities
    least = priorities[flight.kind] if pausing else 0
    lower = [each for each in there.members if priorities[each.kind] < least] if least else []
    taking = [each for each in there.waiting.every() if priorities[each.kind] >= least]
    blocks = sum(map(there.reserved, (*taking, flight))) + there.decoding
    blocks -= sum(each.ticket != 0 for each in lower) + _blocks_of(there, lower)
    seqs = len(there.members) - len(lower) + len(taking)
    return seqs < there.max_seqs and blocks <= there.pool.available


def _blocks_of(there: Instance, flights: Sequence[Flight]) -> int:
    """Return the blocks of an instance that these flights alone use."""
    blocks, pins = 0, Counter[Segment]()
    for flight in flights:
        for hold in (flight.hold, flight.landing):
            if hold is not None and hold.pool is there.pool:
                pins.update(hold.pins)
                blocks += hold.private
                if flight.ticket:
                    kept = -(-there.kept(flight) // there.rules.block_tokens)
                    blocks += kept - hold.shared - hold.private
    return blocks + sum(s.end - s.start for s, count in pins.items() if s.pins == count)


class DecodeSide(Fleet):
    """The instances that can decode, once a prompt is computed elsewhere. `loads` are those of the
    prefill side if it is the same instances."""

    def __init__(
        self, fabric: Fabric, roster: Roster, members: Sequence[int], loads: Loads | None
    ) -> None:
        super().__init__(fabric, roster, members, loads)
        self._prompts_too = loads is not None

    @property
    def below(self) -> Sequence[str]:
        return ()

    def wait_ns(self, instance: int, flight: Flight) -> int:
        """Return the work of all answers there, this one's too: they share an instance. Where the
        same instances prefill, their prompts' as well, but for its own."""
        work = self.loads.work[instance] + self.answer_ns(instance, flight)
        if self._prompts_too and instance == flight.work_at:
            work -= flight.prefill_work
        return work

    def answer_ns(self, instance: int, flight: Flight) -> int:
        """Estimate the work of the flight's answer there."""
        return int(flight.expected * self._roster.compute_of(instance).token_ns)

    def overlap_cost_ns(self, instance: int, flight: Flight) -> tuple[float, float, int]:
        """Return the cost of sending what is missing there; nothing is computed."""
        if instance == flight.home:
            return 0.0, 0.0, 0
        fabric = self._fabric
        there = self._roster.used.get(instance)
        have = 0
        if there is not None and flight.path:
            most = flight.target // fabric.block_tokens
            parts = match((there.pool,), flight.path, fabric.chain, most)
            have = sum(part.end - part.start for part in parts) * fabric.block_tokens
        missing = flight.target - have
        link_path = fabric.topology.path(flight.home, instance)
        sending = fabric.network.estimate_ns(link_path, missing * fabric.token_bytes)
        return 0.0, sending, missing
