"""What routers may know of the instances, for each of the two choices that they make.

Work is estimated in ns: of prefill, what is left of it alone; of an answer, what its tokens add to
a full instance.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kv_cache.sim.cluster.inflight import Flight
from kv_cache.sim.cluster.router import Loads
from kv_cache.sim.cluster.stack import held, match

if TYPE_CHECKING:
    from kv_cache.sim.cluster.cluster import Cluster


class _RouterView:
    """The instances that one choice is among."""

    def __init__(self, cluster: "Cluster", members: Sequence[int]) -> None:
        self._cluster = cluster
        self.members = members
        self.loads = Loads(members, cluster.topology.instances)
        kinds = {(cluster.capacity_of(number), cluster.roles[number]) for number in members}
        self.equal = len(kinds) < 2
        among = bytearray(cluster.topology.instances)
        for number in members:
            among[number] = 1
        self._among = bytes(among)
        self._reaching: dict[tuple[str, int], list[int]] = {}

    def fits(self, instance: int, flight: Flight) -> bool:
        cluster = self._cluster
        prompt_alone = cluster.roles[instance] == "prefill"  # it never holds the answer
        tokens = flight.request.prompt_tokens if prompt_alone else flight.stored_tokens
        return -(-tokens // cluster.block_tokens) <= cluster.capacity_of(instance)

    def holders(self, flight: Flight, most: int) -> list[int]:
        """See `router.Fleet`."""
        found: dict[int, None] = {}
        watches, among = self._cluster.storage.watches, self._among
        hbm = watches["hbm"].holders
        for node in reversed(flight.path):
            able = (number for number in hbm.get(node, ()) if among[number])
            for number in islice(able, most - len(found)):
                found[number] = None
            for tier in self.below:
                pools = watches[tier].holders.get(node, ())
                for index in islice(pools, max(0, most - len(found))):
                    near = self._near(tier, index)
                    if near:
                        found[min(near, key=self.loads.key)] = None
            if len(found) >= most:
                break
        return list(found)

    @property
    def below(self) -> Sequence[str]:
        """Tiers below HBM whose content is of use."""
        return self._cluster.storage.tiers

    def _near(self, tier: str, index: int) -> list[int]:
        """Who reaches a pool; nobody in particular where all do."""
        near = self._reaching.get((tier, index))
        if near is None:
            cluster = self._cluster
            scope = getattr(cluster.scenario.tiers, tier).scope
            near = []
            if scope != "cluster":
                near = [i for i in self.members if cluster.storage.where(scope, i)[0] == index]
            self._reaching[tier, index] = near
        return near


class PrefillSide(_RouterView):
    """Who computes a prompt."""

    def wait_ns(self, instance: int, flight: Flight) -> int:
        """A new prompt waits for those before it; where all places are taken, or the memory, also
        for answers to end, one for each that waits."""
        cluster = self._cluster
        found = cluster.instances.get(instance)
        if found is None:
            return 0
        need = -(-flight.target // cluster.block_tokens)
        full = found.waiting or len(found.members) >= found.max_seqs or need > found.pool.available
        ends = (1 + len(found.waiting)) * found.next_end_ns() if full else 0
        return self.loads.prefill[instance] + ends

    def overlap_cost_ns(self, instance: int, flight: Flight) -> tuple[float, float, int]:
        """See `router.Fleet`."""
        cluster = self._cluster
        compute = cluster.compute_of(instance)
        prompt = flight.request.prompt_tokens
        if instance not in cluster.instances and not cluster.storage.tiers:
            return compute.prefill_ns(prompt, 0), 0.0, prompt
        most = (prompt - 1) // cluster.block_tokens
        parts = match(cluster.instance(instance).tiers, flight.path, cluster.chain, most)
        have = loading = 0
        for part in parts:
            blocks = part.end - part.start
            have += blocks
            if part.tier:
                link_path = cluster.storage.path_from(part.pool, instance)
                loading += cluster.network.estimate_ns(link_path, blocks * cluster.block_bytes)
        before = have * cluster.block_tokens
        missing = prompt - before
        return compute.prefill_ns(missing, before), loading, missing


class DecodeSide(_RouterView):
    """Who gives the answer, once a prompt is computed elsewhere."""

    @property
    def below(self) -> Sequence[str]:
        return ()

    def wait_ns(self, instance: int, flight: Flight) -> int:
        """Answers share an instance: all that are there count."""
        return self.loads.work[instance]

    def overlap_cost_ns(self, instance: int, flight: Flight) -> tuple[float, float, int]:
        """Nothing is computed; what is missing there is sent."""
        cluster = self._cluster
        found = cluster.instances.get(instance)
        have = 0
        if found is not None and flight.path:
            most = flight.target // cluster.block_tokens
            have = held(found.pool, flight.path, cluster.chain, most) * cluster.block_tokens
        missing = flight.target - have
        if instance == flight.home:
            return 0.0, 0.0, 0
        link_path = cluster.topology.path(flight.home, instance)
        sending = cluster.network.estimate_ns(link_path, missing * cluster.token_bytes)
        return 0.0, sending, missing
