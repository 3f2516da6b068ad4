"""Who asks a simulated cluster: drawn sessions, agents and single requests, and traces.

The laws are in `kv_cache/sim/cluster/requests.py`.
"""

from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_trace import TraceWork
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.requests import RequestSource
from kv_cache.sim.cluster.sources.content import Content
from kv_cache.sim.cluster.sources.dialogues import Dialogues
from kv_cache.sim.cluster.sources.singles import Singles
from kv_cache.sim.cluster.sources.traced import RequestIds, TracedRows, TracedSessions


def build_source(
    scenario: Scenario,
    chain: PrefixChain,
    opened: TraceWork | None = None,
    ids: RequestIds | None = None,
) -> RequestSource:
    """Return the source that a scenario names; what it shares is in `chain`. `opened` is the
    scenario's trace, where it asks by one, which then notes in `ids` what its file calls the
    requests."""
    work, size = scenario.workload, scenario.model.block_tokens
    seed = Seed(scenario.seed).child("cluster", "asks")
    if work.source == "trace":
        assert opened is not None, "the trace was not opened"
        return _traced(scenario, chain, seed, opened, ids)
    if work.source == "poisson":
        return Singles(work, seed)
    reasoning = work.reasoning_tokens if work.source == "agents" else 0
    return Dialogues(work, size, chain, seed, reasoning)


def _traced(
    scenario: Scenario,
    chain: PrefixChain,
    seed: Seed,
    opened: TraceWork,
    ids: RequestIds | None,
) -> RequestSource:
    work, trace = scenario.workload, opened.trace
    content = Content(chain, scenario.model.block_tokens, opened.survey.block_tokens)
    if trace.format.grouped:
        return TracedSessions(trace.rows(), work, content, seed, ids=ids)
    return TracedRows(trace.rows(), work, content, seed, timed=trace.format.timed, ids=ids)
