"""Admission, write policies and prefetch in virtual time: what they move, when, and what for."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kv_cache.cache.doors import Doors
from kv_cache.core.effect import Delete, Move, Write
from kv_cache.core.kinds import Cause, OpKind, Outcome, Tier
from kv_cache.core.signals import Signals
from kv_cache.lifecycle import Through, World
from kv_cache.policy.admission import ADMISSION, AdmissionRules
from kv_cache.schedule.admission import Gate
from kv_cache.sim.models import TierModel
from tests.simulation.test_virtual_time import PAGE, SERVING, Run, simulated, trace

RAM = TierModel(read_latency_ns=1, write_latency_ns=1, servers=8)
DISK = TierModel(read_latency_ns=100, write_latency_ns=100, servers=4)
MODELS = {Tier.CPU: RAM, Tier.NVME: DISK}
COMPUTING = replace(SERVING, prefill_ns_per_token=50, decode_ns_per_token=0)
Arrange = Callable[[World, Signals], None]


def through(*, selective: bool = False, slots: int = 8) -> Arrange:
    def arrange(world: World, signals: Signals) -> None:
        world.through = Through(gate=Gate(2, signals, slots=slots), selective=selective)

    return arrange


def doors(name: str, *, first: int, **rules: int) -> Arrange:
    def arrange(world: World, signals: Signals) -> None:
        made = AdmissionRules(**rules)
        tiers = range(len(world.cache.specs))
        policies = [ADMISSION[name](made) if i >= first else None for i in tiers]
        world.cache.doors = Doors(policies)

    return arrange


def both(*several: Arrange) -> Arrange:
    def arrange(world: World, signals: Signals) -> None:
        for each in several:
            each(world, signals)

    return arrange


def moved(run: Run, kind: OpKind, tier: Tier) -> Counter[Cause]:
    """Pages by cause."""
    found: Counter[Cause] = Counter()
    for flow, stats in run.recorder.flows.items():
        if (flow.kind, flow.tier) == (kind, tier):
            found[flow.cause] += stats.bytes // PAGE
    return +found


def conserves_bytes(run: Run) -> None:
    """What came into a tier less what was deleted there is what is there."""
    assert run.world is not None
    there: Counter[Tier] = Counter()
    for done in run.ops:
        assert done.ok
        match done.op:
            case Write(copy=ref) | Move(target=ref):
                there[ref.tier] += ref.nbytes
            case Delete(copy=ref):
                there[ref.tier] -= ref.nbytes
    for tier in (Tier.CPU, Tier.NVME):
        assert there[tier] == run.world.cache.used(tier)


def spaced(*names: Sequence[int], gap_ns: int = 10_000) -> list[tuple[int, tuple[int, ...]]]:
    return [(gap_ns * number, tuple(ids)) for number, ids in enumerate(names)]


ROUNDS = spaced(*[(10 * (n % 5), 10 * (n % 5) + 1) for n in range(20)])
"""Five sequences of two blocks, each asked for four times in turn."""


# --- admission -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADMISSION)
@pytest.mark.parametrize("first", [0, 1])
def test_no_admission_policy_fails_a_request_or_loses_count_of_bytes(name: str, first: int) -> None:
    arrange = doors(name, first=first, max_bytes=PAGE - 1, max_depth=1, memory=16)
    run = simulated(
        trace(ROUNDS), MODELS, pages={Tier.CPU: 5, Tier.NVME: 7}, arrange=arrange, workers=3
    )
    assert set(run.column("outcome")) == {Outcome.COMPLETED}
    conserves_bytes(run)


def test_second_hit_stores_what_is_computed_twice() -> None:
    rows = spaced((1,), (2,), (1,), (1,), (2,), (3,), (2,))
    run = simulated(trace(rows), {Tier.NVME: DISK}, arrange=doors("second-hit", first=0))
    assert run.column("hits") == [0, 0, 0, 1, 0, 0, 1]
    assert run.column("stored_bytes") == [0, 0, PAGE, 0, PAGE, 0, 0]
    assert run.world is not None
    (refused,) = run.world.cache.doors.not_admitted
    assert {why: tally.blocks for why, tally in refused.items()} == {"first-time": 3}
    assert run.world.cache.doors.not_stored.blocks == 3


def test_depth_keeps_the_beginning_of_sequences() -> None:
    rows = spaced((1, 2, 3, 4), (1, 2, 3, 4))
    arrange = doors("depth", first=0, max_depth=3)
    run = simulated(trace(rows), {Tier.NVME: DISK}, arrange=arrange)
    assert run.column("hits") == [0, 3]


def test_frequency_keeps_what_is_asked_for_from_what_is_asked_for_once() -> None:
    """One sequence that is asked for every other time, and others that never come again, in room
    for three blocks: LRU alone loses it to them."""
    asked = [(1, 2) if n % 2 else (100 + 3 * n, 101 + 3 * n, 102 + 3 * n) for n in range(60)]
    rows = spaced(*asked)
    pages = {Tier.NVME: 3}
    plain = simulated(trace(rows), {Tier.NVME: DISK}, pages=pages)
    kept = simulated(
        trace(rows), {Tier.NVME: DISK}, pages=pages,
        arrange=doors("frequency", first=0, memory=256),
    )  # fmt: skip
    assert sum(plain.column("hits")) == 0
    assert sum(kept.column("hits")) > 50


# --- write policies ------------------------------------------------------------------------------


def test_written_through_a_block_leaves_its_tier_for_nothing() -> None:
    pages = {Tier.CPU: 5, Tier.NVME: 30}
    back = simulated(trace(ROUNDS), MODELS, pages=pages, semantics=COMPUTING)
    run = simulated(trace(ROUNDS), MODELS, pages=pages, semantics=COMPUTING, arrange=through())
    assert moved(back, OpKind.WRITE, Tier.NVME) == {Cause.DEMOTION: 10}
    assert moved(run, OpKind.WRITE, Tier.NVME) == {Cause.WRITE_THROUGH: 10}
    assert run.column("hits") == back.column("hits")
    assert sum(run.column("store_ns")) < sum(back.column("store_ns"))
    assert all(
        a <= b for a, b in zip(run.column("response_ns"), back.column("response_ns"), strict=True)
    )
    conserves_bytes(run)
    assert run.world is not None
    assert run.world.through is not None
    assert run.world.through.written.blocks == 10


def test_a_request_does_not_wait_for_what_is_written_through() -> None:
    rows = spaced((1, 2, 3))
    pages = {Tier.CPU: 8, Tier.NVME: 30}
    back = simulated(trace(rows), MODELS, pages=pages)
    run = simulated(trace(rows), MODELS, pages=pages, arrange=through())
    assert run.column("response_ns") == back.column("response_ns")
    assert run.recorder.edges.measure_end_ns is not None
    assert run.recorder.edges.measure_end_ns >= run.column("finished_ns")[0] + 100


def test_through_a_queue_of_one_the_request_waits_its_turn() -> None:
    """The queue is in groups: with one block a group and one place, the third waits for two."""
    rows = spaced((1, 2, 3))
    pages = {Tier.CPU: 8, Tier.NVME: 30}
    single = replace(SERVING, batch_blocks=1)
    run = simulated(trace(rows), MODELS, pages=pages, semantics=single, arrange=through(slots=1))
    assert run.column("wait_ns")[0] > 100
    dropping = replace(single, write_behind_drop=True)
    run = simulated(trace(rows), MODELS, pages=pages, semantics=dropping, arrange=through(slots=1))
    assert run.column("wait_ns") == [0]
    assert run.world is not None
    assert run.world.through is not None
    assert (run.world.through.written.blocks, run.world.through.dropped_blocks) == (1, 2)


def test_written_behind_and_through_nothing_waits_and_all_is_below() -> None:
    behind = replace(COMPUTING, write_behind=True)
    run = simulated(
        trace(ROUNDS), MODELS, pages={Tier.CPU: 5, Tier.NVME: 30}, semantics=behind,
        arrange=through(), workers=2,
    )  # fmt: skip
    assert moved(run, OpKind.WRITE, Tier.NVME)[Cause.WRITE_THROUGH] == 10
    conserves_bytes(run)


def test_selective_writes_through_what_is_used_again() -> None:
    """Second hit: offered as it is stored, and refused; used again, offered again, and taken."""
    rows = spaced((1,), (2,), (3,), (2,), (2,))
    arrange = both(doors("second-hit", first=1), through(selective=True))
    pages = {Tier.CPU: 8, Tier.NVME: 30}
    run = simulated(trace(rows), MODELS, pages=pages, arrange=arrange)
    assert moved(run, OpKind.WRITE, Tier.NVME) == {Cause.WRITE_THROUGH: 1}
    assert run.world is not None
    refused = run.world.cache.doors.not_admitted[1]
    assert {why: tally.blocks for why, tally in refused.items()} == {"first-time": 3}


def test_what_storage_refused_is_not_offered_again_as_it_leaves_unused() -> None:
    rows = spaced(*[(n,) for n in range(12)])
    arrange = both(doors("second-hit", first=1), through(selective=True))
    run = simulated(trace(rows), MODELS, pages={Tier.CPU: 5, Tier.NVME: 30}, arrange=arrange)
    assert moved(run, OpKind.WRITE, Tier.NVME) == {}
    assert run.world is not None
    assert run.world.cache.doors.not_admitted[1]["first-time"].blocks == 12
    assert run.world.cache.dropped_last_copies == 8


def test_written_through_into_a_full_tier_the_oldest_there_is_dropped() -> None:
    rows = spaced(*[(n,) for n in range(6)])
    run = simulated(
        trace(rows), MODELS, pages={Tier.CPU: 8, Tier.NVME: 1}, arrange=through(), workers=2
    )
    conserves_bytes(run)
    assert moved(run, OpKind.WRITE, Tier.NVME) == {Cause.WRITE_THROUGH: 6}
    assert moved(run, OpKind.DELETE, Tier.NVME).keys() <= {Cause.EVICTION}
