"""What all instances of a cluster share: the clock, the links, the pools, and the size of state.

It is built first and knows none of its users: instances, routers and the cluster use it.
"""

from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_rules import block_sizes, kv_bytes_per_token
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.event_loop import Loop
from kv_cache.sim.cluster.hardware_models import HardwareModels
from kv_cache.sim.cluster.network import Network
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.storage import ClusterStorage
from kv_cache.sim.cluster.topology import ClusterTopology


class Fabric:
    __slots__ = (
        "block_bytes", "block_tokens", "chain", "hardware", "loop", "network", "scenario",
        "storage", "token_bytes", "topology",
    )  # fmt: skip

    def __init__(self, scenario: Scenario, chain: PrefixChain, hardware: HardwareModels) -> None:
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
