"""Who asks a simulated cluster: drawn sessions, agents and single requests, and traces.

The laws are in `kv_cache/sim/cluster/asks.py`.
"""

from kv_cache.config.scenario import Scenario
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.asks import AskSource
from kv_cache.sim.cluster.chain import Chain
from kv_cache.sim.cluster.sources.singles import Singles
from kv_cache.sim.cluster.sources.talks import Talks


def build_source(scenario: Scenario, chain: Chain) -> AskSource:
    """The source that a scenario names; what it shares is in `chain`."""
    work, size = scenario.workload, scenario.model.block_tokens
    seed = Seed(scenario.seed).child("cluster", "asks")
    if work.source == "poisson":
        return Singles(work, seed)
    reasoning = work.reasoning_tokens if work.source == "agents" else 0
    return Talks(work, size, chain, seed, reasoning)
