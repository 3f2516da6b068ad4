"""The virtual-time driver: reproducible to the byte, and right where the right answer is known."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import asdict, replace

from kv_cache.cache.limits import CacheRules, TierSpec
from kv_cache.cache.manager import CacheManager
from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.core.callbacks import ignore
from kv_cache.core.effect import OpDone
from kv_cache.core.kinds import Cause, OpKind, Outcome, Phase, Qos, RunMode, Tier
from kv_cache.core.model import ModelShape
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.lifecycle import Semantics, World, populate
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.policy.eviction import EVICTION
from kv_cache.result.document import build_result
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.intake import Intake
from kv_cache.sim.drive import Simulation
from kv_cache.sim.models import Devices, TierModel
from kv_cache.sim.run import simulate
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import survey
from kv_cache.workload.formats.trace_files import open_trace
from kv_cache.workload.qos import QosMix
from kv_cache.workload.replay import ReplayConfig, TraceReplay
from kv_cache.workload.row_requests import RowRequestsConfig
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import SourceWrapper
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig
from tests.traces import ROOT, real_trace

PAGE = 4096
# 1024 bytes a token, so that a block of 4 tokens is one page.
MODEL = ModelShape(
    name="page", num_layers=1, num_heads=1, kv_heads=1, kv_dim_per_head=512, dtype="fp8"
)
GEOMETRY = Geometry(model=MODEL, tensor_parallel=1, block_tokens=4)
ONE_CLASS = QosMix(interactive=1.0, responsive_below=1.0, priorities=(3, 2, 1))
SERVING = Semantics(
    reuse_prefix=True,
    decode_rereads=False,
    decode_batch_tokens=32,
    promote=True,
    write_behind=False,
    write_behind_drop=False,
    gpu_in_place=False,
    prefill_only_from_tokens=0,
    prefill_ns_per_token=0,
    decode_ns_per_token=0,
    batch_blocks=8,
)
FAST = TierModel()


def trace(rows: Sequence[tuple[int, tuple[int, ...]]], *, speedup: float = 1.0) -> TraceReplay:
    """Requests at given instants for given hash ids, each a block of one page."""
    made = [TraceRow(i + 1, at_ns, 4 * len(ids), 1, ids, 4) for i, (at_ns, ids) in enumerate(rows)]
    config = ReplayConfig(
        requests=RowRequestsConfig(geometry=GEOMETRY, qos=ONE_CLASS, trace_block_tokens=4),
        speedup=speedup,
        cycles=1,
    )
    return TraceReplay(lambda: iter(made), config, Seed(1), {})


@dataclass(slots=True, eq=False)
class Run:
    """What a simulation left behind."""

    recorder: Recorder = field(default_factory=lambda: Recorder(Edges()))
    records: list[RequestRecord] = field(default_factory=list)
    ops: list[OpDone] = field(default_factory=list)
    world: World | None = None

    def column(self, name: str) -> list[Any]:
        return [getattr(r, name) for r in sorted(self.records, key=lambda r: r.request_id)]

    def busy_ns(self, tier: Tier) -> int:
        """How long the tier had something to do."""
        spans = sorted(
            (leg.started_ns, leg.finished_ns)
            for o in self.ops
            for leg in o.legs
            if leg.tier is tier
        )
        busy = until = 0
        for start, end in spans:
            busy += max(0, end - max(start, until))
            until = max(until, end)
        return busy


def simulated(
    source: Source,
    models: dict[Tier, TierModel],
    *,
    pages: dict[Tier, int] | None = None,
    semantics: Semantics = SERVING,
    mode: RunMode = RunMode.STANDARD,
    workers: int = 1,
    queue_limit: int = 10**6,
    end_ns: int | None = None,
    drain_ns: int = 0,
    before: Sequence[Request] = (),
    arrange: Callable[[World, Signals], None] = lambda world, signals: None,
) -> Run:
    signals = Signals()
    specs = [
        TierSpec(tier=t, capacity_bytes=None if pages is None else pages[t] * PAGE) for t in models
    ]
    world = World(
        cache=CacheManager(specs, EVICTION["lru"], CacheRules(), signals),
        semantics=semantics,
        mode=mode,
        stores=Gate(0, signals),
        behind=Gate(1, signals, most=8),
    )
    arrange(world, signals)
    run = Run()
    simulation = Simulation(
        world,
        Intake(source, queue_limit=queue_limit, ageing_ns=0, max_requests=0),
        run.recorder,
        Devices(models),
        signals,
        workers=workers,
        on_record=run.records.append,
        on_op=run.ops.append,
    )
    simulation.populate(populate(r.blocks, world) for r in before)
    start_ns = run.recorder.edges.populate_end_ns = simulation.now_ns
    simulation.run(
        start_ns=start_ns,
        end_ns=None if end_ns is None else start_ns + end_ns,
        drain_ns=drain_ns,
        progress=lambda _: None,
    )
    world.cache.check()
    run.world = world
    return run


# --- known answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "servers", "started", "finished", "busy"),
    [
        (1, 1, [0, 20, 100], [20, 40, 120], 60),
        (2, 1, [0, 5, 100], [20, 40, 120], 60),
        (2, 2, [0, 5, 100], [20, 25, 120], 45),
    ],
)
def test_a_small_queue_is_served_as_worked_out_by_hand(
    workers: int, servers: int, started: list[int], finished: list[int], busy: int
) -> None:
    model = TierModel(write_latency_ns=20, servers=servers)
    source = trace([(0, (1,)), (5, (2,)), (100, (3,))])
    run = simulated(source, {Tier.NVME: model}, workers=workers)
    assert run.column("started_ns") == started
    assert run.column("finished_ns") == finished
    assert run.column("intended_ns") == run.column("enqueued_ns") == [0, 5, 100]
    assert run.busy_ns(Tier.NVME) == busy
    assert run.recorder.edges.measure_end_ns == 120


def test_a_transfer_takes_its_latency_and_its_share_of_the_bandwidth() -> None:
    for servers in (1, 4):
        model = TierModel(write_latency_ns=7, write_bytes_per_s=4.096e9, servers=servers)
        run = simulated(trace([(0, (1,))]), {Tier.NVME: model})
        assert run.column("finished_ns") == [7 + 1000 * servers]


@pytest.mark.parametrize("seed", range(5))
def test_one_server_follows_lindleys_recursion_and_littles_law(seed: int) -> None:
    """W(k+1) = max(0, W(k) + S - gap), and the sum of responses is the area under the number of
    requests in the system."""
    rng, service_ns = Random(seed), 100
    at_ns, rows = 0, []
    for number in range(300):
        rows.append((at_ns, (number,)))
        at_ns += rng.randrange(2 * service_ns + 30)
    run = simulated(trace(rows), {Tier.NVME: TierModel(write_latency_ns=service_ns)})
    end, ends = 0, []
    for at_ns, _ in rows:
        end = max(at_ns, end) + service_ns
        ends.append(end)
    assert run.column("finished_ns") == ends
    assert run.busy_ns(Tier.NVME) == service_ns * len(rows)
    changes = sorted([(at_ns, 1) for at_ns, _ in rows] + [(end, -1) for end in ends])
    area = inside = last_ns = 0
    for now_ns, change in changes:
        area += inside * (now_ns - last_ns)
        inside, last_ns = inside + change, now_ns
    assert sum(run.column("response_ns")) == area
    assert run.recorder.all.response.total == area


def test_where_nothing_takes_time_everything_ends_when_it_comes() -> None:
    rows = [(10 * (n // 3), (n % 7, n)) for n in range(60)]
    run = simulated(
        trace(rows), {Tier.CPU: FAST, Tier.NVME: FAST}, pages={Tier.CPU: 5, Tier.NVME: 30}
    )
    assert run.column("finished_ns") == [at_ns for at_ns, _ in rows]
    assert set(run.column("outcome")) == {Outcome.COMPLETED}
    on_demand = simulated(trace(rows, speedup=0), {Tier.NVME: FAST})
    assert set(on_demand.column("finished_ns")) == {0}
    assert len(on_demand.records) == len(rows)


def test_hits_are_what_one_pass_over_the_rows_finds() -> None:
    rng = Random(3)
    rows = [(0, (*range(rng.randrange(1, 6)), 10 + rng.randrange(20))) for _ in range(200)]
    seen: set[int] = set()
    hits = []
    for _, ids in rows:
        new = [i in seen for i in ids].index(False) if not seen.issuperset(ids) else len(ids)
        hits.append(new)
        seen.update(ids)
    run = simulated(trace(rows, speedup=0), {Tier.NVME: TierModel(read_latency_ns=9)})
    assert run.column("hits") == hits


def test_a_move_does_not_hold_its_target_before_it_has_read() -> None:
    """A is below; to come up it sends B down (20 ns), is read for 100 ns and written for 10. The
    request for D, in between, finds the upper tier idle."""
    source = trace([(0, (1,)), (50, (4,))])
    before = list(trace([(0, (1,)), (0, (2,)), (0, (3,)), (0, (4,))]).plan())
    models = {
        Tier.CPU: TierModel(read_latency_ns=10, write_latency_ns=10),
        Tier.NVME: TierModel(read_latency_ns=100, write_latency_ns=10),
    }
    run = simulated(source, models, pages={Tier.CPU: 4, Tier.NVME: 50}, workers=2, before=before)
    assert run.column("service_ns") == [20 + 100 + 10, 10]


# --- phases --------------------------------------------------------------------------------------


def test_time_begins_with_the_load_and_populating_is_neither_late_nor_measured() -> None:
    source = trace([(0, (1,)), (30, (2,))])
    before = list(source.plan())
    run = simulated(
        source,
        {Tier.NVME: TierModel(read_latency_ns=10, write_latency_ns=1000)},
        mode=RunMode.DECODE_ONLY,
        before=before,
    )
    assert run.column("intended_ns") == [2000, 2030]
    assert run.column("lateness_ns") == [0, 0]
    assert run.column("response_ns") == [10, 10]
    measured = {flow.cause for flow in run.recorder.flows if flow.phase is Phase.MEASURE}
    assert measured == {Cause.DECODE}
    populated = [f for f in run.recorder.flows if f.cause is Cause.POPULATE]
    assert [f.phase for f in populated] == [Phase.POPULATE]


def measured_bytes(run: Run, phase: Phase) -> int:
    return sum(s.bytes for f, s in run.recorder.flows.items() if f.phase is phase)


@pytest.mark.parametrize("drain_ns", [0, 1000])
def test_operations_that_ended_inside_the_window_count_though_their_request_did_not(
    drain_ns: int,
) -> None:
    source = trace([(0, (1, 2, 3, 4))])
    models = {Tier.NVME: TierModel(write_latency_ns=100)}
    run = simulated(source, models, end_ns=250, drain_ns=drain_ns)
    assert measured_bytes(run, Phase.MEASURE) == 2 * PAGE
    assert measured_bytes(run, Phase.DRAIN) == (2 * PAGE if drain_ns else 0)
    assert run.column("outcome") == [Outcome.COMPLETED if drain_ns else Outcome.UNFINISHED]
    assert run.recorder.all.completed == 0


def test_what_is_in_flight_at_the_end_is_as_old_whether_or_not_it_is_waited_for() -> None:
    def ages(drain_ns: int) -> list[tuple[int | None, ...]]:
        source = trace([(0, (1,)), (60, (2,)), (200, (3,))])
        models = {Tier.NVME: TierModel(write_latency_ns=150)}
        run = simulated(source, models, workers=3, end_ns=250, drain_ns=drain_ns)
        (stats,) = (s for f, s in run.recorder.flows.items() if f.phase is Phase.MEASURE)
        assert run.recorder.all.completed == stats.operations == 1
        found = (stats.device, stats.total, run.recorder.all.response, run.recorder.all.ttft)
        older = [histogram.in_flight for histogram in found]
        return [(h.lowest, h.highest) if h is not None else () for h in older]

    assert ages(0) == ages(100) == ages(1000) == [(50, 190)] * 4


def test_what_waits_when_the_window_closes_is_unfinished_and_nothing_more_comes() -> None:
    source = trace([(0, (1,)), (10, (2,)), (20, (3,)), (500, (4,))])
    models = {Tier.NVME: TierModel(write_latency_ns=100)}
    run = simulated(source, models, end_ns=110, drain_ns=1000)
    assert run.column("outcome") == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.UNFINISHED]
    assert run.column("error") == [None, None, "window-closed"]
    assert run.recorder.outcomes[Phase.MEASURE][Outcome.COMPLETED] == 1
    assert run.recorder.outcomes[Phase.DRAIN][Outcome.COMPLETED] == 1


def test_a_full_queue_rejects_in_virtual_time_too() -> None:
    source = trace([(0, (n,)) for n in range(6)])
    models = {Tier.NVME: TierModel(write_latency_ns=100)}
    run = simulated(source, models, queue_limit=2)
    outcomes = run.column("outcome")
    assert outcomes.count(Outcome.REJECTED) == 4
    assert outcomes.count(Outcome.COMPLETED) == 2


class Asked(SourceWrapper):
    """Counts how often a source is asked for its next instant."""

    times = 0

    def next_ns(self) -> int | None:
        self.times += 1
        return super().next_ns()


def test_a_long_run_does_not_wake_up_more_and_more_often() -> None:
    """A user who thinks shortly is due before the wake-up that is set for the others, again and
    again: that one must not be set once more each time."""
    personas = tuple(
        Persona(
            name=str(think),
            context_range=(4, 8),
            generation_range=(1, 1),
            think_time_range=(think, think),
        )
        for think in (0.01, 1.0)
    )
    config = UsersConfig(num_users=8, personas=personas, qos=ONE_CLASS, geometry=GEOMETRY)
    source = Asked(SyntheticUsers(config, Seed(1)))
    models = {Tier.NVME: TierModel(write_latency_ns=1000)}
    run = simulated(source, models, workers=8, end_ns=5_000_000_000)
    assert len(run.records) > 1000
    assert source.times < 10 * len(run.records)


# --- whole configurations ------------------------------------------------------------------------


SMALL = {
    "run.model": "tiny-1b",
    "run.num_users": 12,
    "run.duration_s": 8,
    "run.virtual_time": True,
    "tiers.gpu_mem_gib": 0.25,
    "tiers.cpu_mem_gib": 0.5,
    "tiers.storage_capacity_gib": 2,
    "sim.nvme.read_gbytes_per_s": 0.5,
    "sim.nvme.write_gbytes_per_s": 0.3,
}
TRACE = {"workload.trace": "datasets/mooncake_sample.jsonl", "workload.trace_speedup": 20}
CASES: dict[str, dict[str, Any]] = {
    "closed": {},
    "open": {"arrival.mode": "open"},
    "serving": {"semantics.preset": "serving"},
    "trace": TRACE,
    "trace-serving": TRACE | {"semantics.preset": "serving"},
    "paced": {"arrival.request_rate": 9, "arrival.process": "gamma"},
    "crowded": {
        "arrival.mode": "open",
        "schedule.queue_limit": 2,
        "schedule.max_workers": 2,
    },
    "decode-only": {"run.mode": "decode-only"},
    "layers": {"semantics.preset": "serving", "semantics.object": "layer"},
    "no-drain": {"run.drain_s": 0, "run.warmup_s": 3, "run.duration_s": 5},
}


def configured(case: str, seed: int) -> tuple[RunOutcome, list[RequestRecord], int]:
    """The outcome of a whole configuration, its records, and the number of operations."""
    ops: list[OpDone] = []
    outcome, records, _ = simulated_config(case, seed, ops.append)
    return outcome, records, len(ops)


def simulated_config(
    case: str, seed: int, on_op: Callable[[OpDone], None]
) -> tuple[RunOutcome, list[RequestRecord], Config]:
    config = load_config(None, SMALL | CASES[case])
    trace = open_trace(str(ROOT / str(config.workload.trace))) if config.replays else None
    specs = tier_specs(config, 2 << 30)
    load = build_load(
        config,
        config.model_shape(),
        Seed(seed),
        trace,
        survey(trace) if trace else None,
        fillable_bytes(config, specs),
    )
    records: list[RequestRecord] = []
    outcome = simulate(
        config,
        load,
        specs,
        seed,
        progress=lambda _: None,
        on_record=records.append,
        on_op=on_op,
    )
    return outcome, records, config


def written(records: Sequence[RequestRecord]) -> bytes:
    return orjson.dumps([asdict(record) for record in records])


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_records_to_the_byte(case: str) -> None:
    first, again, other = (configured(case, seed) for seed in (1, 1, 2))
    assert first[1]
    assert written(first[1]) == written(again[1])
    assert first[0].schedule_sha256 == again[0].schedule_sha256
    assert first[2] == again[2]
    assert written(first[1]) != written(other[1])
    assert first[0].schedule_sha256 != other[0].schedule_sha256


@pytest.mark.parametrize("case", CASES)
def test_operations_that_nobody_watches_are_counted_the_same(case: str) -> None:
    """They are counted many at a time, not each by an event of its own."""
    watched, unwatched = (simulated_config(case, 1, on_op) for on_op in (lambda _: None, ignore))
    assert written(watched[1]) == written(unwatched[1])
    documents = [
        build_result(config, config.model_shape(), outcome, {}, {})
        for outcome, _, config in (watched, unwatched)
    ]
    assert orjson.dumps(documents[0]) == orjson.dumps(documents[1])


@pytest.mark.parametrize("case", CASES)
def test_every_request_is_accounted_for_and_every_latency_makes_sense(case: str) -> None:
    outcome, records, _ = configured(case, 3)
    books = outcome.accounting()
    assert books["submitted"] == len(records)
    assert books["submitted"] == sum(
        books[part] for part in ("completed", "failed", "rejected", "unfinished")
    )
    assert sorted(r.request_id for r in records) == list(range(len(records)))
    assert books["failed"] == 0
    assert (books["rejected"] > 0) == (case == "crowded")
    for record in records:
        assert record.lateness_ns >= 0
        if record.outcome is Outcome.COMPLETED:
            assert record.enqueued_ns <= (record.started_ns or 0) <= (record.finished_ns or 0)
            assert record.storage_ns + record.compute_ns <= (record.service_ns or 0)
            assert (record.ttft_ns or 0) <= (record.response_ns or 0)
    in_window = [
        r
        for r in records
        if r.outcome is Outcome.COMPLETED
        and outcome.recorder.edges.phase_of(r.finished_ns or 0) is Phase.MEASURE
    ]
    assert outcome.recorder.all.completed == books["completed_in_window"] == len(in_window)
    assert sum(stats.completed for stats in outcome.recorder.classes.values()) == len(in_window)
    assert {r.qos for r in records} == set(Qos) or len(records) < 50


@pytest.mark.parametrize("case", ["closed", "trace-serving", "decode-only"])
def test_tiers_stay_within_their_capacity_and_bytes_read_were_written(case: str) -> None:
    outcome, records, ops = configured(case, 4)
    counted: dict[tuple[Tier, OpKind], int] = {}
    for flow, stats in outcome.recorder.flows.items():
        where = flow.tier, flow.kind
        counted[where] = counted.get(where, 0) + stats.bytes
    for facts in outcome.tiers:
        assert facts.peak_bytes <= (facts.capacity_bytes or 0)
        assert facts.used_bytes <= counted.get((facts.tier, OpKind.WRITE), 0)
    moved = sum(r.loaded_bytes for r in records if r.outcome is Outcome.COMPLETED)
    assert moved <= sum(n for (_, kind), n in counted.items() if kind is OpKind.READ)
    legs = sum(s.operations for s in outcome.recorder.flows.values())
    assert ops <= legs <= 2 * ops


def test_another_process_with_other_hashes_gives_the_same_records() -> None:
    """Nothing may hang on the order of a set."""
    code = (
        "from tests.simulation.test_virtual_time import *\n"
        "print(sha256(written(configured('trace-serving', 1)[1])).hexdigest())"
    )
    _, records, _ = configured("trace-serving", 1)
    hash_seed = next(seed for seed in "12" if os.environ.get("PYTHONHASHSEED") != seed)
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
    )
    assert found.stdout.decode().strip() == sha256(written(records)).hexdigest()


@pytest.mark.parametrize(
    ("rows", "hits", "blocks"),
    [(1000, 5_791, 27_305), pytest.param(6000, 52_821, 152_537, marks=pytest.mark.nightly)],
)
def test_the_mooncake_trace_has_its_known_share_of_reused_blocks(
    rows: int, hits: int, blocks: int
) -> None:
    """So many of the blocks of its first requests lie in a prefix that came before."""
    opened = open_trace(str(real_trace("mooncake_conversation_6000.jsonl")))
    config = ReplayConfig(
        requests=RowRequestsConfig(
            geometry=replace(GEOMETRY, block_tokens=512),
            qos=ONE_CLASS,
            trace_block_tokens=survey(opened).block_tokens,
        ),
        speedup=0,
        cycles=1,
    )
    source = TraceReplay(lambda: islice(opened.rows(), rows), config, Seed(1), {})
    run = simulated(source, {Tier.NVME: TierModel(read_latency_ns=10, write_latency_ns=10)})
    assert (run.recorder.reuse.hits, run.recorder.reuse.looked_up) == (hits, blocks)
    assert run.recorder.all.completed == rows
