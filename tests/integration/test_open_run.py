"""A run is open as a whole or not at all, and gives back what it took."""

import gc
import sys
import threading
import weakref
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from kv_cache.bench.drive import Drive
from kv_cache.bench.run import RealRun, open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.core.effect import Await, Compute, Life, OpDone, Spawn
from kv_cache.core.kinds import Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed
from kv_cache.core.units import NS_PER_S, gib_to_bytes
from kv_cache.tiers.base import Store

SEED = 5


def plan_in(directory: Path, think_s: float | None = None, **other: object) -> RunPlan:
    think = {} if think_s is None else {"lengths.think_s": {"law": "fixed", "value": think_s}}
    config = load_config(
        None,
        {
            "run.model": "tiny-1b", "run.num_users": 2, "run.max_requests": 20,
            "run.generation_mode": "none", "tiers.gpu_mem_gib": 0.0, "tiers.cpu_mem_gib": 0.01,
            "tiers.storage_capacity_gib": 0.5, "tiers.cache_dir": (str(directory),),
            "io.buffer_mib": 1,
            **think, **other,
        },
    )  # fmt: skip
    specs = tier_specs(config, gib_to_bytes(config.tiers.storage_capacity_gib))
    room = fillable_bytes(config, specs)
    load = build_load(config, config.model_shape(), Seed(SEED), None, None, room)
    return RunPlan(config, load, specs, SEED)


def test_a_users_next_request_counts_from_the_instant_of_the_answer(tmp_path: Path) -> None:
    """What this program did since (its locks, its books) is no thinking of the user's."""
    records: dict[str, list[RequestRecord]] = defaultdict(list)
    hooks = RunHooks(on_record=lambda record: records[record.user].append(record))
    with open_run(plan_in(tmp_path, think_s=0.0), threading.Event(), hooks) as run:
        run.execute(lambda _: None)
    pairs = [pair for each in records.values() for pair in pairwise(each)]
    assert len(pairs) == 18
    assert {later.intended_ns - (sooner.finished_ns or 0) for sooner, later in pairs} == {0}


def test_a_request_has_ended_when_the_last_that_it_asked_for_has(tmp_path: Path) -> None:
    """One user, whose requests wait for their own stores, and end with generating."""
    records: list[RequestRecord] = []
    ops: list[OpDone] = []
    hooks = RunHooks(on_record=records.append, on_op=ops.append)
    one = {"run.num_users": 1, "run.max_requests": 5, "run.generation_mode": "fast"}
    with open_run(plan_in(tmp_path, think_s=0.01, **one), threading.Event(), hooks) as run:
        run.execute(lambda _: None)
    assert len(records) == 5
    ends_ns = []
    for record in records:
        begin_ns, end_ns = record.started_ns or 0, record.finished_ns or 0
        ends_ns.append(max(op.finished_ns for op in ops if begin_ns <= op.started_ns < end_ns))
        last_tokens = (record.output_tokens - 1) % 32 + 1
        assert end_ns >= ends_ns[-1] + 2_000_000 * last_tokens
        parts = record.load_ns + record.store_ns + record.wait_ns + record.compute_ns
        assert parts <= end_ns - begin_ns
    assert ends_ns[-1] == max(op.finished_ns for op in ops)


def test_a_life_is_told_the_instant_at_which_its_effect_had_ended(tmp_path: Path) -> None:
    took_ns: list[int] = []

    def life() -> Life:
        begun = yield Compute(0)
        done = yield Compute(NS_PER_S // 20)
        took_ns.append(done.at_ns - begun.at_ns)

    with open_run(plan_in(tmp_path), threading.Event()) as run:
        let_live(run, life())
    assert took_ns[0] >= NS_PER_S // 20


@pytest.mark.parametrize("tier", [Tier.CPU, Tier.NVME])
def test_a_run_of_which_a_tier_cannot_be_opened_leaves_nothing(tier: Tier, tmp_path: Path) -> None:
    closed: list[Tier] = []

    def broken(store: Store) -> Store:
        close = store.close

        def watched() -> None:
            closed.append(store.tier)
            close()

        store.close = watched  # type: ignore[method-assign]
        if store.tier is tier:
            raise RuntimeError("a defect")
        return store

    plan = plan_in(tmp_path)
    with (
        pytest.raises(RuntimeError, match="a defect"),
        open_run(plan, threading.Event(), wrap=broken),
    ):
        raise AssertionError("it was opened")
    before = [spec.tier for spec in plan.specs]
    assert closed == before[: before.index(tier)][::-1]
    assert not list(tmp_path.glob("kv-cache-run-*"))


def test_a_closed_run_can_be_read_and_its_buffers_are_gone(tmp_path: Path) -> None:
    buffers: list[weakref.ref[object]] = []

    def tick(run: RealRun) -> None:
        if not buffers:
            buffers.append(weakref.ref(run._machine.stores.load_buffers))

    interval_s = sys.getswitchinterval()
    with open_run(plan_in(tmp_path), threading.Event()) as run:
        outcome = run.execute(tick)
    gc.collect()
    assert outcome.death is None
    assert run.recorder.all.completed == 20
    assert run.phase == "done"
    assert not run.left_behind
    assert buffers[0]() is None
    assert sys.getswitchinterval() == interval_s
    assert gc.get_freeze_count() == 0
    assert not list(tmp_path.glob("kv-cache-run-*"))


def let_live(run: RealRun, *lives: Life) -> None:
    drive = run._machine.drive
    drive.start()
    drive.populate(iter(lives), threading.Event(), lambda: None)
    drive.stop()
    assert not drive.left


def test_a_life_that_waits_is_taken_on_by_who_ends_that_until_it_needs_its_thread(
    tmp_path: Path,
) -> None:
    threads: list[str] = []

    def here() -> None:
        threads.append(threading.current_thread().name)

    def child() -> Life:
        yield Compute(0)
        here()

    def waits() -> Life:
        yield Await(("first", 0))
        here()
        yield Spawn(child())
        yield Await(("second", 0))
        here()
        yield Compute(0)
        here()

    def fires(drive: Drive) -> Life:
        yield Compute(NS_PER_S // 5)  # until the other waits
        here()
        drive._signals.fire(("first", 0))
        yield Compute(0)
        drive._signals.fire(("second", 0))

    with open_run(plan_in(tmp_path), threading.Event()) as run:
        let_live(run, waits(), fires(run._machine.drive))
        assert run._machine.drive.death is None
    assert len(threads) == 5
    firing, first, *_ = threads
    assert first == firing
    assert threads.count(firing) >= 3, "the second wait was ended by it too"
    assert len(set(threads)) > 1, "what needs a thread is done by its own"


def test_a_life_that_fails_after_its_wait_ends_the_run(tmp_path: Path) -> None:
    """By whomever it was taken on: its own thread does not wait for ever."""

    def waits() -> Life:
        yield Await(("never", 0))
        raise RuntimeError("a defect")

    def fires(drive: Drive) -> Life:
        yield Compute(NS_PER_S // 5)
        drive._signals.fire(("never", 0))
        yield Compute(0)

    with open_run(plan_in(tmp_path), threading.Event()) as run:
        let_live(run, waits(), fires(run._machine.drive))
        assert str(run._machine.drive.death) == "a defect"
