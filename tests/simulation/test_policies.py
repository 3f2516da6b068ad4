"""Admission, write policies and prefetch in virtual time: what they move, when, and what for."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from msgspec import structs

from kv_cache.cache.counts import Prefetches
from kv_cache.cache.limits import CacheRules
from kv_cache.cache.manager import CacheManager
from kv_cache.core.block import Key
from kv_cache.core.effect import Delete, Move, Read, Write
from kv_cache.core.kinds import Cause, OpKind, Outcome, Tier
from kv_cache.core.signals import Signals
from kv_cache.lifecycle import Through, World
from kv_cache.policy.admission import ADMISSION, AdmissionRules
from kv_cache.policy.eviction import EVICTION
from kv_cache.policy.prefetch import PREFETCH, Prefetch, PrefetchRules
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.ahead import Ahead
from kv_cache.sim.models import TierModel
from tests.simulation.test_virtual_time import PAGE, SERVING, Run, simulated, trace

RAM = TierModel(read_latency_ns=1, write_latency_ns=1, servers=8)
DISK = TierModel(read_latency_ns=100, write_latency_ns=100, servers=4)
MODELS = {Tier.CPU: RAM, Tier.NVME: DISK}
COMPUTING = structs.replace(SERVING, prefill_ns_per_token=50, decode_ns_per_token=0)
FREE = TierModel(read_latency_ns=100, write_latency_ns=100, servers=64)
Arrange = Callable[[World, Signals], None]


def through(*, selective: bool = False, slots: int = 8) -> Arrange:
    def arrange(world: World, signals: Signals) -> None:
        world.through = Through(gate=Gate(2, signals, most=slots), selective=selective)

    return arrange


def admitting(name: str, *, first: int, **rules: int) -> Arrange:
    def arrange(world: World, signals: Signals) -> None:
        specs, made = world.cache.specs, AdmissionRules(**rules)
        policies = [ADMISSION[name](made) if i >= first else None for i in range(len(specs))]
        world.cache = CacheManager(specs, EVICTION["lru"], CacheRules(), signals, policies)

    return arrange


def prefetching(
    policy: str | Prefetch, *, slots: int = 4, most: int = 16, nearest: bool = False
) -> Arrange:
    def arrange(world: World, signals: Signals) -> None:
        made = PREFETCH[policy](PrefetchRules(most=most)) if isinstance(policy, str) else policy
        world.ahead = Ahead(made, slots=slots, most=most, nearest=nearest)

    return arrange


def counted(run: Run) -> Prefetches:
    assert run.world is not None
    return run.world.cache.prefetches


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
    arrange = admitting(name, first=first, max_bytes=PAGE - 1, max_depth=1, memory=16)
    run = simulated(
        trace(ROUNDS), MODELS, pages={Tier.CPU: 5, Tier.NVME: 7}, arrange=arrange, workers=3
    )
    assert set(run.column("outcome")) == {Outcome.COMPLETED}
    conserves_bytes(run)


def test_second_hit_stores_what_is_computed_twice() -> None:
    rows = spaced((1,), (2,), (1,), (1,), (2,), (3,), (2,))
    run = simulated(trace(rows), {Tier.NVME: DISK}, arrange=admitting("second-hit", first=0))
    assert run.column("hits") == [0, 0, 0, 1, 0, 0, 1]
    assert run.column("stored_bytes") == [0, 0, PAGE, 0, PAGE, 0, 0]
    assert run.world is not None
    (refused,) = run.world.cache.admission_gate.not_admitted
    assert {why: tally.blocks for why, tally in refused.items()} == {"first-time": 3}
    assert run.world.cache.admission_gate.not_stored.blocks == 3


def test_depth_keeps_the_beginning_of_sequences() -> None:
    rows = spaced((1, 2, 3, 4), (1, 2, 3, 4))
    arrange = admitting("depth", first=0, max_depth=3)
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
        arrange=admitting("frequency", first=0, memory=256),
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
    single = structs.replace(SERVING, batch_blocks=1)
    run = simulated(trace(rows), MODELS, pages=pages, semantics=single, arrange=through(slots=1))
    assert run.column("wait_ns")[0] > 100
    parts_ns = [run.column(name)[0] for name in ("load_ns", "store_ns", "wait_ns", "compute_ns")]
    assert sum(parts_ns) == run.column("finished_ns")[0] - run.column("started_ns")[0]
    dropping = structs.replace(single, write_behind_drop=True)
    run = simulated(trace(rows), MODELS, pages=pages, semantics=dropping, arrange=through(slots=1))
    assert run.column("wait_ns") == [0]
    assert run.world is not None
    assert run.world.through is not None
    assert (run.world.through.written.blocks, run.world.through.dropped_blocks) == (1, 2)


def test_written_behind_and_through_nothing_waits_and_all_is_below() -> None:
    behind = structs.replace(COMPUTING, write_behind=True)
    run = simulated(
        trace(ROUNDS), MODELS, pages={Tier.CPU: 5, Tier.NVME: 30}, semantics=behind,
        arrange=through(), workers=2,
    )  # fmt: skip
    assert moved(run, OpKind.WRITE, Tier.NVME)[Cause.WRITE_THROUGH] == 10
    conserves_bytes(run)


def test_selective_writes_through_what_is_used_again() -> None:
    """Second hit: offered as it is stored, and refused; used again, offered again, and taken."""
    rows = spaced((1,), (2,), (3,), (2,), (2,))
    arrange = both(admitting("second-hit", first=1), through(selective=True))
    pages = {Tier.CPU: 8, Tier.NVME: 30}
    run = simulated(trace(rows), MODELS, pages=pages, arrange=arrange)
    assert moved(run, OpKind.WRITE, Tier.NVME) == {Cause.WRITE_THROUGH: 1}
    assert run.world is not None
    refused = run.world.cache.admission_gate.not_admitted[1]
    assert {why: tally.blocks for why, tally in refused.items()} == {"first-time": 3}


def test_what_storage_refused_is_not_offered_again_as_it_leaves_unused() -> None:
    rows = spaced(*[(n,) for n in range(12)])
    arrange = both(admitting("second-hit", first=1), through(selective=True))
    run = simulated(trace(rows), MODELS, pages={Tier.CPU: 5, Tier.NVME: 30}, arrange=arrange)
    assert moved(run, OpKind.WRITE, Tier.NVME) == {}
    assert run.world is not None
    assert run.world.cache.admission_gate.not_admitted[1]["first-time"].blocks == 12
    assert run.world.cache.dropped_last_copies == 8


def test_written_through_into_a_full_tier_the_oldest_there_is_dropped() -> None:
    rows = spaced(*[(n,) for n in range(6)])
    run = simulated(
        trace(rows), MODELS, pages={Tier.CPU: 8, Tier.NVME: 1}, arrange=through(), workers=2
    )
    conserves_bytes(run)
    assert moved(run, OpKind.WRITE, Tier.NVME) == {Cause.WRITE_THROUGH: 6}
    assert moved(run, OpKind.DELETE, Tier.NVME).keys() <= {Cause.EVICTION}


# --- prefetch ------------------------------------------------------------------------------------

GENERATING = structs.replace(SERVING, decode_ns_per_token=10_000)  # one token a request: 10 us each
CYCLE = [(0, (10 * (n % 4), 10 * (n % 4) + 1)) for n in range(40)]
"""Four sequences of two blocks in turn, as fast as they are served; the upper tier has room for
two of them, so that the one asked for is always the one that has just gone."""
NARROW = {Tier.CPU: 5, Tier.NVME: 60}


class Oracle(Prefetch):
    """Knows the requests to come."""

    def __init__(self, sequences: Sequence[Sequence[Key]]) -> None:
        self._sequences = sequences
        self._next = 0

    def wanted_after(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
        self._next += 1
        return self._sequences[self._next] if self._next < len(self._sequences) else ()


def cycle(arrange: Arrange = lambda world, signals: None, *, promote: bool = True) -> Run:
    semantics = structs.replace(GENERATING, promote=promote)
    source = trace(CYCLE, speedup=0)
    return simulated(source, MODELS, pages=NARROW, semantics=semantics, arrange=arrange)


def test_a_prefetch_that_overlaps_with_compute_pays() -> None:
    """Once each successor has come twice, nothing is left of the loads from below (100 ns)."""
    plain, run = cycle(), cycle(prefetching("successor"))
    assert min(plain.column("load_ns")[4:]) == 101
    learned = 4 * 3
    assert max(run.column("load_ns")[learned:]) == 1
    assert run.column("wait_ns") == [0] * len(CYCLE)
    assert sum(run.column("response_ns")) < sum(plain.column("response_ns"))
    assert run.column("hits") == plain.column("hits")
    conserves_bytes(run)
    made = counted(run)
    assert made.useful.blocks > 50
    assert made.late.blocks == made.wasted.blocks == made.failed.blocks == 0
    assert made.started.blocks == made.useful.blocks + 2, "those for the request that never came"


def test_what_a_prefetch_moves_and_what_leaves_for_it_is_told_apart() -> None:
    """The victims go down, of which only the first time there is no copy below."""
    run = cycle(prefetching("successor"))
    up = moved(run, OpKind.WRITE, Tier.CPU)
    assert up[Cause.PREFETCH] == counted(run).started.blocks
    assert up[Cause.PROMOTION] + up[Cause.PREFETCH] + up[Cause.PREFILL] == sum(up.values())
    gone = Counter(done.op.cause for done in run.ops if isinstance(done.op, Delete))
    assert gone[Cause.PREFETCH] == counted(run).started.blocks, "each pushed one out"
    assert moved(run, OpKind.WRITE, Tier.NVME) == {Cause.DEMOTION: 8}
    unwritten = [(0, (90, 91)), (0, (80, 81)), (0, (70, 71)), (0, (90, 91)), (0, (60, 61))]
    sequences = [[b.key for b in r.blocks] for r in trace(unwritten, speedup=0).plan()]
    oracle = Oracle([[], [], [], sequences[1], []])  # wanted by nobody, at a bad time
    wrong = simulated(
        trace(unwritten, speedup=0), MODELS, pages={Tier.CPU: 7, Tier.NVME: 60},
        semantics=GENERATING, arrange=prefetching(oracle),
    )  # fmt: skip
    conserves_bytes(wrong)


@pytest.mark.parametrize("seed", range(8))
def test_with_perfect_knowledge_and_free_overlap_no_request_takes_longer(seed: int) -> None:
    """But for 1 ns: where a block was up when the next request was foreseen, and has been pushed
    out by the stores of this one, those above are read after it was loaded, and not with it."""
    rng = Random(seed)
    rows = []
    for _ in range(80):
        first = 10 * rng.randrange(6)
        rows.append((0, tuple(range(first, first + rng.randrange(1, 4)))))
    sequences = [[b.key for b in r.blocks] for r in trace(rows, speedup=0).plan()]
    models = {Tier.CPU: replace(RAM, servers=64), Tier.NVME: FREE}
    pages = {Tier.CPU: 9, Tier.NVME: 60}
    plain = simulated(trace(rows, speedup=0), models, pages=pages, semantics=GENERATING)
    run = simulated(
        trace(rows, speedup=0), models, pages=pages, semantics=GENERATING,
        arrange=prefetching(Oracle(sequences), slots=8),
    )  # fmt: skip
    for with_it, without in zip(run.column("service_ns"), plain.column("service_ns"), strict=True):
        assert with_it <= without + 1
    assert sum(run.column("load_ns")) < 0.2 * sum(plain.column("load_ns"))
    assert run.column("hits") == plain.column("hits")
    conserves_bytes(run)


def test_who_asks_for_what_is_on_its_way_waits_for_that_copy_alone() -> None:
    """No compute to hide behind: the request comes while its blocks are being copied. Of three
    wanted one is on its way at a time; the request waits for the first, and for those that are
    begun meanwhile, and never longer than its own loads would have taken."""
    hurried = structs.replace(GENERATING, decode_ns_per_token=50)
    source = trace(CYCLE, speedup=0)
    plain = simulated(source, MODELS, pages=NARROW, semantics=hurried)
    run = simulated(
        trace(CYCLE, speedup=0), MODELS, pages=NARROW, semantics=hurried,
        arrange=prefetching("successor", slots=4),
    )  # fmt: skip
    made = counted(run)
    assert made.late.blocks > 20
    waited = [ns for ns in run.column("wait_ns") if ns]
    assert waited
    assert max(waited) <= 51, "100 to read and 1 to write, of which 50 had passed"
    for with_it, without in zip(run.column("service_ns"), plain.column("service_ns"), strict=True):
        assert with_it <= without


def test_what_is_up_already_when_its_turn_comes_is_given_up_and_had_room() -> None:
    """With promotion each request has brought up its own blocks itself."""
    run = cycle(prefetching("next-in-session"))
    assert run.world is not None
    assert run.world.ahead is not None
    assert run.world.ahead.wanted_blocks == run.world.ahead.given_up_blocks > 0
    assert counted(run).no_room.blocks == counted(run).started.blocks == 0


def test_what_nobody_wants_is_wasted_and_costs_only_the_prefetcher() -> None:
    """A policy that wants the wrong blocks, with room to spare: no request is slower."""
    wide = {Tier.CPU: 20, Tier.NVME: 60}
    rows = [(0, (n % 7, 10 + n % 7)) for n in range(30)]
    sequences = [[b.key for b in r.blocks] for r in trace(rows, speedup=0).plan()]

    class Wrong(Prefetch):
        def wanted_after(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
            return [key for each in sequences for key in each if key not in keys]

    run = simulated(
        trace(rows, speedup=0), MODELS, pages=NARROW, semantics=GENERATING,
        arrange=prefetching(Wrong(), most=2),
    )  # fmt: skip
    conserves_bytes(run)
    assert counted(run).wasted.blocks > 10
    plain = simulated(trace(rows, speedup=0), MODELS, pages=wide, semantics=GENERATING)
    same = simulated(
        trace(rows, speedup=0), MODELS, pages=wide, semantics=GENERATING,
        arrange=prefetching(Wrong()),
    )  # fmt: skip
    assert same.column("service_ns") == plain.column("service_ns")
    assert counted(same).started.blocks == 0, "all is up already"


def test_next_in_session_brings_up_what_is_read_where_it_is() -> None:
    """Without promotion a conversation's blocks are read below for ever; its first turn after they
    were pushed down brings them up for the next."""
    rows = [(0, (1, 2)), (0, (30, 31)), (0, (40, 41)), *[(0, (1, 2))] * 3]
    still = structs.replace(GENERATING, promote=False)
    plain = simulated(trace(rows, speedup=0), MODELS, pages=NARROW, semantics=still)
    run = simulated(
        trace(rows, speedup=0), MODELS, pages=NARROW, semantics=still,
        arrange=prefetching("next-in-session"),
    )  # fmt: skip
    assert plain.column("load_ns")[3:] == [100, 100, 100]
    assert run.column("load_ns")[3:] == [100, 1, 1]
    assert counted(run).useful.blocks == counted(run).started.blocks == 2


def test_no_more_blocks_than_slots_are_on_their_way_and_no_more_wanted_than_may_be() -> None:
    run = cycle(prefetching("successor", slots=1, most=1))
    spans = [
        (done.started_ns, done.finished_ns)
        for done in run.ops
        if isinstance(done.op, Move) and done.op.cause is Cause.PREFETCH
    ]
    assert len(spans) > 20
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert run.world is not None
    assert run.world is not None
    assert run.world.ahead is not None
    assert run.world.ahead.wanted_blocks <= len(CYCLE)


def test_a_prefetch_evicts_nothing_that_is_being_read() -> None:
    """Two workers; while one reads slowly what is above, the other's prefetch finds no room."""
    slow = {Tier.CPU: replace(RAM, read_latency_ns=5_000), Tier.NVME: DISK}
    rows = [(0, (10 * (n % 4), 10 * (n % 4) + 1)) for n in range(60)]
    run = simulated(
        trace(rows, speedup=0), slow, pages=NARROW, workers=3, semantics=GENERATING,
        arrange=prefetching("successor"),
    )  # fmt: skip
    read: dict[int, list[tuple[int, int]]] = {}
    for done in run.ops:
        if isinstance(done.op, Read):
            read.setdefault(done.op.copy.copy_id, []).append((done.started_ns, done.finished_ns))
    for done in run.ops:
        if isinstance(done.op, Delete):
            for start, end in read.get(done.op.copy.copy_id, ()):
                assert not start < done.finished_ns < end
    conserves_bytes(run)


def test_when_the_last_request_has_ended_only_what_is_on_its_way_arrives() -> None:
    """It wanted two blocks that nobody asks for: one was on its way, the other is given up."""
    rows = [(0, (1, 2)), (0, (30, 31)), (0, (40, 41)), (0, (40, 41))]
    sequences = [[b.key for b in r.blocks] for r in trace(rows, speedup=0).plan()]
    oracle = Oracle([[], [], [], [], sequences[0]])
    short = structs.replace(GENERATING, decode_ns_per_token=20)
    run = simulated(
        trace(rows, speedup=0), MODELS, pages=NARROW, semantics=short,
        arrange=prefetching(oracle, slots=1),
    )  # fmt: skip
    assert counted(run).started.blocks == 1
    assert run.world is not None
    assert run.world.ahead is not None
    assert (run.world.ahead.wanted_blocks, run.world.ahead.given_up_blocks) == (2, 1)


def test_to_the_next_tier_above_and_no_further() -> None:
    three = {Tier.GPU: RAM, Tier.CPU: RAM, Tier.NVME: DISK}
    pages = {Tier.GPU: 3, Tier.CPU: 4, Tier.NVME: 60}
    still = structs.replace(GENERATING, promote=False)
    for nearest, tier in ((True, Tier.CPU), (False, Tier.GPU)):
        run = simulated(
            trace(CYCLE, speedup=0), three, pages=pages, semantics=still,
            arrange=prefetching("successor", nearest=nearest),
        )  # fmt: skip
        lifted = [
            done.op.target.tier
            for done in run.ops
            if isinstance(done.op, Move)
            and done.op.cause is Cause.PREFETCH
            and done.op.source.tier is Tier.NVME
            and done.op.target.tier < done.op.source.tier
        ]
        assert set(lifted) == {tier}


def test_the_same_settings_give_the_same_operations() -> None:
    arrange = both(
        admitting("frequency", first=1), through(selective=True), prefetching("successor")
    )  # fmt: skip
    rng = Random(5)
    rows = [(0, tuple(range(s := 5 * rng.randrange(6), s + 3))) for _ in range(80)]
    first, second = (
        simulated(
            trace(rows, speedup=0), MODELS, pages={Tier.CPU: 7, Tier.NVME: 12}, workers=3,
            semantics=GENERATING, arrange=arrange,
        )
        for _ in range(2)
    )  # fmt: skip
    assert [repr(done) for done in first.ops] == [repr(done) for done in second.ops]
    assert first.records == second.records
    conserves_bytes(first)
