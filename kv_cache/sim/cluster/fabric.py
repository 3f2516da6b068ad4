"""What all instances of a cluster share: the clock, the links, the pools, and the size of state.

It is built first and knows none of its users: instances, routers and the cluster use it.
"""

from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_rules import block_sizes, kv_bytes_per_token
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.event_loop import Loop
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.hardware_models import HardwareModels
from kv_cache.sim.cluster.network import Network
from kv_cache.sim.cluster.outcome import EventBytes, OnEvent
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.segments import BlockPool
from kv_cache.sim.cluster.storage import TIERS, ClusterStorage
from kv_cache.sim.cluster.topology import ClusterTopology


class Fabric:
    __slots__ = (
        "_on_event", "block_bytes", "block_tokens", "chain", "hardware", "loop", "network",
        "scenario", "storage", "token_bytes", "topology",
    )  # fmt: skip

    def __init__(
        self,
        scenario: Scenario,
        chain: PrefixChain,
        hardware: HardwareModels,
        on_event: OnEvent | None = None,
    ) -> None:
        self._on_event = on_event
        self.scenario = scenario
        self.chain = chain
        self.hardware = hardware
        self.loop = Loop()
        self.block_tokens = scenario.model.block_tokens
        self.token_bytes = kv_bytes_per_token(scenario.model)
        sizes = block_sizes(scenario)
        self.block_bytes = sizes["hbm"]
        self.topology = ClusterTopology(scenario, hardware.devices, sizes)
        seed = Seed(scenario.seed).child("network")
        self.network = Network(self.loop, scenario.network, seed)
        self.storage = ClusterStorage(
            scenario, chain, self.loop, self.topology, self.network, sizes
        )
        if on_event is not None:
            self.storage.on_moved = self.say_moved

    # --- the event log ---------------------------------------------------------------------

    def say(
        self, event: str, flight: Flight | None, instance: int, moved: EventBytes | None = None
    ) -> None:
        """Tell what happens to a flight; None: in a place for no request alone."""
        if self._on_event is not None:
            number = -1 if flight is None else flight.request.number
            self._on_event(self.loop.now_ns, event, number, instance, moved)

    def say_moved(
        self, event: str, pool: BlockPool, nbytes: int, flight: Flight | None = None,
        instance: int = -1,
    ) -> None:  # fmt: skip
        """The same of bytes of a place."""
        self.say(event, flight, instance, EventBytes(TIERS[pool.tier], pool.index, nbytes))
