"""The instances of a cluster by number, each created when it is first used: a cluster of ten
thousand may use few."""

from array import array

from kv_cache.core.units import GIB
from kv_cache.sim.cluster.compute import ComputeModel, make_compute
from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.instance_events import InstanceEvents
from kv_cache.sim.cluster.scheduler_rules import rules_of


class Roster:
    def __init__(
        self, fabric: Fabric, counts: ClusterCounts, events: InstanceEvents[Instance]
    ) -> None:
        self._fabric = fabric
        self._counts = counts
        self._events = events
        self._computes: dict[str, ComputeModel] = {}
        self.used: dict[int, Instance] = {}
        """Those that were ever used, by number."""
        groups, topology = fabric.scenario.instances, fabric.topology
        self.roles = [groups[topology.group_of(i)].role for i in range(topology.instances)]
        self.rules = rules_of(fabric.scenario)
        self.gpus = fabric.hardware.gpus
        self._steps = fabric.hardware.steps
        self._capacities = array("q")  # of HBM, by instance
        for group in groups.values():
            blocks = int(group.hbm_gib * GIB) // fabric.block_bytes
            self._capacities.extend(array("q", (blocks,)) * group.count)
        self._most_of = dict.fromkeys(self.roles, 0)  # blocks of the largest of each role
        for role, blocks in zip(self.roles, self._capacities, strict=True):
            self._most_of[role] = max(self._most_of[role], blocks)
        self._most_mixed = self._most_of.get("mixed", 0)

    def is_too_large(self, flight: Flight) -> bool:
        """Return whether no instance can prefill it, or none can decode it; no mixed one can."""
        block, most = self.rules.block_tokens, self._most_of
        need = -(-flight.stored_tokens // block)
        if need <= self._most_mixed:
            return False
        prompt = -(-flight.request.prompt_tokens // block)
        return need > most.get("decode", 0) or prompt > most.get("prefill", 0)

    def capacity_of(self, number: int) -> int:
        """Return blocks of an instance's HBM."""
        return self._capacities[number]

    def compute_of(self, number: int) -> ComputeModel:
        """Return the compute model of an instance, shared by its group."""
        name = self._fabric.topology.group_of(number)
        compute = self._computes.get(name)
        if compute is None:
            scenario, most = self._fabric.scenario, self._most_seqs(name)
            group = scenario.instances[name]
            compute = self._computes[name] = make_compute(
                group, scenario.model, most, self.gpus.get(name), self._steps.get(name)
            )
        return compute

    def instance(self, number: int) -> Instance:
        instance = self.used.get(number)
        if instance is None:
            instance = self.used[number] = self._new_instance(number)
        return instance

    def _new_instance(self, number: int) -> Instance:
        fabric = self._fabric
        tiers = fabric.storage.reach(number, self._capacities[number])
        most = self._most_seqs(fabric.topology.group_of(number))
        return Instance(
            number, self.roles[number], self.compute_of(number), tiers, self.rules, most,
            fabric=fabric, counts=self._counts, events=self._events,
        )  # fmt: skip

    def _most_seqs(self, group: str) -> int:
        scenario = self._fabric.scenario
        return scenario.instances[group].max_num_seqs or scenario.scheduler.max_num_seqs
