"""The two drivers take the same decisions: one worker, stores that keep nothing, the same seed."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.cache.limits import TierSpec
from kv_cache.config.build import Load, build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.core.effect import Move, OpDone
from kv_cache.core.kinds import Cause, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed
from kv_cache.core.units import gib_to_bytes
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.policy.admission import ADMISSION
from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.run import simulate
from kv_cache.tiers.base import Store
from kv_cache.tiers.null import NullStore
from kv_cache.workload.formats.surveying import survey
from kv_cache.workload.formats.trace_files import open_trace
from tests.covering import by_day

SEED = 5
REQUESTS = 60
Decision = tuple[Any, ...]


class Watch:
    """What was decided, without the instants."""

    def __init__(self) -> None:
        self.ops: list[Decision] = []
        self.records: list[Decision] = []

    def op(self, done: OpDone) -> None:
        op = done.op
        refs = (op.source, op.target) if isinstance(op, Move) else (op.copy,)
        assert done.ok, done
        self.ops.append((type(op).__name__, op.cause, *refs))

    def record(self, record: RequestRecord) -> None:
        self.records.append(
            (
                record.request_id,
                record.conversation,
                record.outcome,
                record.looked_up,
                record.hits,
                record.decode_hits,
                record.loaded_bytes,
                record.stored_bytes,
            )
        )


def configured(preset: str, eviction: str, directory: Path, **more: Any) -> Config:
    return load_config(
        None,
        {
            "run.kv_bytes_per_token": 3072,  # little memory to have, and as many decisions
            "run.num_users": 1,
            "run.seed": SEED,
            "run.max_requests": REQUESTS,
            "run.generation_mode": "none",
            "semantics.preset": preset,
            "semantics.write_behind": False,
            "tiers.gpu_mem_gib": 1 / 64,
            "tiers.cpu_mem_gib": 1 / 32,
            "tiers.storage_capacity_gib": 1 / 8,
            "tiers.eviction": eviction,
            "tiers.cache_dir": str(directory),
            "io.buffer_mib": 16,
            "io.load_buffers": 2,
            "io.store_buffers": 2,
            "passport.settle_s": 0,  # no device will ever have moved these bytes
            "workload.trace": "datasets/mooncake_sample.jsonl",
            "workload.trace_speedup": 0,
            **more,
        },
    )


def prepared(config: Config) -> tuple[Load, tuple[TierSpec, ...]]:
    trace = open_trace(str(config.trace_path()))
    specs = tier_specs(config, gib_to_bytes(config.tiers.storage_capacity_gib))
    model = config.model_shape()
    capacity = fillable_bytes(config, specs)
    return build_load(config, model, Seed(SEED), trace, survey(trace), capacity), specs


def real(config: Config) -> tuple[Watch, RunOutcome]:
    def null(store: Store) -> Store:
        return NullStore(store.tier)

    watch = Watch()
    load, specs = prepared(config)
    hooks = RunHooks(on_record=watch.record, on_op=watch.op)
    plan = RunPlan(config, load, specs, SEED)
    with open_run(plan, threading.Event(), hooks, wrap=null) as run:
        outcome = run.execute(lambda _: None)
    assert outcome.death is None
    return watch, outcome


def virtual(config: Config) -> tuple[Watch, RunOutcome]:
    watch = Watch()
    load, specs = prepared(config)
    outcome = simulate(
        config,
        load,
        specs,
        SEED,
        progress=lambda _: None,
        on_record=watch.record,
        on_op=watch.op,
    )
    return watch, outcome


MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlperf": ("mlperf", {}),
    "prefill-only": ("mlperf", {"semantics.block_tokens": 0, "run.mode": "prefill-only"}),
    "decode-only": (
        "serving",
        {
            "run.mode": "decode-only",
            "semantics.block_tokens": 512,
            "semantics.gpu_in_place": False,
        },
    ),
}
"""`serving` is that of the test of all eviction policies."""


@pytest.mark.parametrize(
    ("preset", "more", "eviction"),
    by_day(
        {f"{n}-{e}": (*MODES[n], e) for n in MODES for e in ("lru", "fifo")},
        ["mlperf-lru", "prefill-only-fifo", "decode-only-lru"],
    ),
)
def test_both_drivers_take_the_same_decisions(
    preset: str, more: dict[str, Any], eviction: str, tmp_path: Path
) -> None:
    config = configured(preset, eviction, tmp_path, **more)
    decide_the_same(config)


def decide_the_same(config: Config) -> Watch:
    """Return what both drivers did."""
    measured, outcome = real(config)
    modelled, twin = virtual(config)
    if config.run.mode != "decode-only":  # populating has several threads in one driver
        # Operations of one transfer end in any order; copy ids and versions tell the decisions'.
        assert sorted(measured.ops, key=str) == sorted(modelled.ops, key=str)
    assert measured.records == modelled.records
    assert len(measured.records) == REQUESTS
    assert outcome.schedule_sha256 == twin.schedule_sha256
    assert outcome.accounting() == twin.accounting()
    return measured


@pytest.mark.parametrize(
    "eviction",
    by_day(
        {name: (name,) for name in EVICTION},
        ["lru", "arc", "s3-fifo", "leaf-first", "regret-aware", "learned"],
    ),
)
def test_every_eviction_policy_decides_the_same_in_both_drivers(
    eviction: str, tmp_path: Path
) -> None:
    measured = decide_the_same(configured("serving", eviction, tmp_path))
    assert any(cause is Cause.EVICTION for _, cause, *_ in measured.ops), "nothing was evicted"


def test_layer_by_layer_both_drivers_take_the_decisions_that_they_take_on_blocks(
    tmp_path: Path,
) -> None:
    """Blocks of 768 KiB are 12 layers of whole pages: room is the same, and so is what is found."""
    more = {"run.model": "tiny-1b", "semantics.object": "layer"}
    by_layer = decide_the_same(configured("serving", "lru", tmp_path, **more))
    by_block = decide_the_same(
        configured("serving", "lru", tmp_path, **{**more, "semantics.object": "block"})
    )
    assert by_layer.records == by_block.records
    assert len(by_layer.ops) == 12 * len(by_block.ops)


@pytest.mark.parametrize("write", ["through", "through-selective"])
def test_what_is_written_through_is_the_same_in_both_drivers(write: str, tmp_path: Path) -> None:
    """When it is written differs, so that what is evicted meanwhile does; with room below for all,
    what is found, loaded, stored and written through does not. A block that leaves before its copy
    is made is not asked about on its way down: that would let the race decide. How often a block is
    refused that is asked about again and again while it is there does depend on the race."""
    config = configured(
        "serving", "lru", tmp_path,
        **{
            "policies.write": write,
            "policies.admission": "depth",
            "policies.admission_max_depth": 8,
            "policies.admission_at": "storage",
            "semantics.gpu_in_place": False,
            "semantics.write_behind_queue": 1,  # no thread that is late falls further behind
            "tiers.gpu_mem_gib": 1 / 8 if write == "through-selective" else 1 / 32,
            "tiers.cpu_mem_gib": 1 / 16,
            "tiers.storage_capacity_gib": 64,
        },
    )  # fmt: skip
    measured, outcome = real(config)
    modelled, twin = virtual(config)
    assert measured.records == modelled.records

    def below(watch: Watch) -> list[Any]:
        ways = (Cause.WRITE_THROUGH, Cause.DEMOTION)
        moves = [op for op in watch.ops if op[0] == "Move" and op[1] in ways]
        return sorted(target.key for _, _, _, target in moves if target.tier is Tier.NVME)

    assert len(below(measured)) > 100
    assert below(measured) == below(modelled), "each block comes to storage once, either way"
    if write == "through-selective":
        refusals = [refused_for(policies) for policies in (outcome.policies, twin.policies)]
        assert refusals[0] == refusals[1] == {"too-deep"}
        # A block that has to go before its copy below is made is written on its way down instead.
        for policies in (outcome.policies, twin.policies):
            del policies["write"]["written"]
        assert outcome.policies == twin.policies


def refused_for(policies: Mapping[str, Any]) -> set[str]:
    """The reasons of storage for refusing a block, whose counts are taken away."""
    reasons = policies["admission"]["tiers"]["storage"].pop("not_admitted")
    return set(reasons)


@pytest.mark.parametrize("prefetch", ["next-in-session", "successor"])
def test_whatever_is_brought_up_ahead_both_drivers_find_the_same(
    prefetch: str, tmp_path: Path
) -> None:
    """Which blocks are up when they are asked for depends on time; what is found and loaded, with
    room for all below, does not."""
    config = configured(
        "serving", "lru", tmp_path,
        **{
            "policies.prefetch": prefetch,
            "policies.prefetch_confidence": 1,
            "semantics.promote": False,
            "semantics.gpu_in_place": False,
            "tiers.storage_capacity_gib": 64,
        },
    )  # fmt: skip
    measured, outcome = real(config)
    modelled, twin = virtual(config)
    assert measured.records == modelled.records
    for each in (outcome, twin):
        said = each.policies["prefetch"]
        ends = sum(said[name]["blocks"] for name in ("useful", "late", "wasted", "failed"))
        assert said["started"]["blocks"] == ends + said["unread_blocks"]
        assert prefetch == "successor" or said["started"]["blocks"] > 0


REFUSING = [name for name in ADMISSION if name != "always"]
AT = ("lower", "all")


@pytest.mark.parametrize(
    ("admission", "at"),
    by_day(
        {f"{name}-{at}": (name, at) for name in REFUSING for at in AT},
        [f"{name}-{AT[number % 2]}" for number, name in enumerate(REFUSING)],
    ),
)
def test_every_admission_policy_decides_the_same_in_both_drivers(
    admission: str, at: str, tmp_path: Path
) -> None:
    more = {"policies.admission_max_mib": 0.25, "policies.admission_max_depth": 8}
    policies = {"policies.admission": admission, "policies.admission_at": at, **more}
    config = configured("serving", "lru", tmp_path, **policies)
    measured, outcome = real(config)
    modelled, twin = virtual(config)
    assert sorted(measured.ops, key=str) == sorted(modelled.ops, key=str)
    assert measured.records == modelled.records
    assert outcome.policies == twin.policies
    rows = twin.policies["admission"]["tiers"].values()
    assert any(row["not_admitted"] for row in rows), "nothing was turned away"
