"""The shipped configuration `quick`, in virtual time on drives of several speeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.core.kinds import OpKind, Phase, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import gib_to_bytes
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.sim.run import simulate

MOST_SECONDS = 85  # of warm-up, window and drain, so that `make run` keeps its 90 s


def quick(gbytes_per_s: float) -> Config:
    config = load_config(Path("quick"), {})
    drive = replace(
        config.sim.nvme, read_gbytes_per_s=gbytes_per_s, write_gbytes_per_s=gbytes_per_s
    )
    return replace(config, sim=replace(config.sim, nvme=drive))


def ran(config: Config) -> RunOutcome:
    seed = config.run.seed
    assert seed is not None
    specs = tier_specs(config, gib_to_bytes(config.tiers.storage_capacity_gib))
    load = build_load(
        config, config.model_shape(), Seed(seed), None, None, fillable_bytes(config, specs)
    )
    return simulate(config, load, specs, seed, progress=ignore, on_record=ignore, on_op=ignore)


def ignore(_: object) -> None:
    pass


def operations(outcome: RunOutcome, kind: OpKind) -> int:
    return sum(
        stats.operations
        for flow, stats in outcome.recorder.flows.items()
        if (flow.phase, flow.tier, flow.kind) == (Phase.MEASURE, Tier.NVME, kind)
    )


@pytest.mark.parametrize("gbytes_per_s", [0.2, 0.3, 1.0, 3.0])
def test_the_first_run_reads_what_it_stored_and_does_not_fit_into_ram(gbytes_per_s: float) -> None:
    config = quick(gbytes_per_s)
    outcome = ran(config)

    reads, writes = (operations(outcome, kind) for kind in (OpKind.READ, OpKind.WRITE))
    asked = outcome.recorder.reuse
    held = {facts.tier: facts for facts in outcome.tiers}
    assert reads >= 4 * writes
    assert asked.hits >= 0.6 * asked.looked_up
    assert held[Tier.NVME].peak_bytes > 2 * gib_to_bytes(config.tiers.cpu_gib)
    assert asked.hits >= 0.99 * asked.offered_blocks, "storage holds what is asked for again"


def test_the_first_run_leaves_the_rest_five_of_its_ninety_seconds() -> None:
    run = quick(1.0).run
    assert run.warmup_s + (run.duration_s or 0) + run.drain_s <= MOST_SECONDS
