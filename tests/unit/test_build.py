"""From a configuration to the objects that both drivers are made of."""

from typing import Any

import pytest

from kv_cache.config.build import build_intake, build_load, fillable_bytes, tier_specs, workers
from kv_cache.config.load import load_config
from kv_cache.core.kinds import Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB


def load(**overrides: Any) -> Any:
    config = load_config(None, {key.replace("__", "."): v for key, v in overrides.items()})
    capacity = fillable_bytes(config, tier_specs(config, 2 * GIB))
    return config, build_load(config, config.model_shape(), Seed(1), None, None, capacity)


def test_users_who_wait_are_never_rejected_however_many_they_are() -> None:
    config, made = load(
        run__num_users=30,
        schedule__queue_limit=10,
        user_templates__chatbot__think_time_range=[0, 0],
    )
    intake = build_intake(config, made)
    intake.pump(10**12)
    assert (intake.queued, intake.rejected) == (30, [])


def test_users_who_do_not_wait_meet_the_limit() -> None:
    config, made = load(run__num_users=30, schedule__queue_limit=10, arrival__mode="open")
    intake = build_intake(config, made)
    intake.pump(2 * 10**9)
    assert intake.queued == 10
    assert intake.rejected


def test_a_tier_of_no_bytes_is_left_out_and_storage_is_always_there() -> None:
    config, _ = load(tiers__gpu_mem_gib=0, tiers__cpu_mem_gib=0)
    assert [spec.tier for spec in tier_specs(config, GIB)] == [Tier.NVME]
    config, _ = load(tiers__gpu_mem_gib=1, tiers__num_gpus=2, tiers__cpu_mem_gib=3)
    sizes = [spec.capacity_bytes for spec in tier_specs(config, GIB)]
    assert sizes == [2 * GIB, 3 * GIB, GIB]
    assert fillable_bytes(config, tier_specs(config, None)) is None


def test_requests_served_at_once_follow_the_users_up_to_a_limit() -> None:
    assert workers(load(run__num_users=7)[0]) == 7
    assert workers(load(run__num_users=20_000)[0]) == 500


@pytest.mark.parametrize("block_tokens", [0, 16, 256])
def test_decode_only_populates_what_fits(block_tokens: int) -> None:
    _, made = load(
        run__mode="decode-only",
        run__model="tiny-1b",
        run__num_users=10,
        tiers__gpu_mem_gib=0,
        tiers__cpu_mem_gib=0,
        semantics__block_tokens=block_tokens,
    )
    total = sum(block.nbytes for blocks in made.populate for block in blocks)
    assert 0.8 * 2 * GIB < total <= 0.9 * 2 * GIB
    assert len(made.populate) < 100, "ten for each user were wanted, and do not fit"
    asked = next(made.source.plan())
    assert asked.blocks in made.populate
