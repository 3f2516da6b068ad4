"""The control of a run in virtual time: when its windows are, what they hold, and what happens to
users and workers when it says so."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
import pytest

from kv_cache.cache.limits import CacheRules, TierSpec
from kv_cache.cache.manager import CacheManager
from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.core.effect import OpDone
from kv_cache.core.kinds import Phase, Qos, RunMode, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_S
from kv_cache.lifecycle import World
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.metrics.window import Meter, Window, window_row
from kv_cache.policy.eviction import EVICTION
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.control import Control, Orders
from kv_cache.schedule.intake import Intake
from kv_cache.schedule.saturation import Saturation, SaturationRules
from kv_cache.sim.drive import Simulation
from kv_cache.sim.models import Devices, TierModel
from kv_cache.sim.run import simulate
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig
from tests.simulation.test_virtual_time import GEOMETRY, ONE_CLASS, SERVING

DEVICE = TierModel(read_latency_ns=1_000_000, write_latency_ns=2_000_000, servers=8)

Schedule = dict[int, int]
"""Users from the end of the so-manieth window on."""


@dataclass(slots=True, eq=False)
class Run:
    """A simulation of users alike, whose number changes as `schedule` says."""

    users: int = 4
    schedule: Schedule = field(default_factory=dict)
    stop_after: int = 0  # windows measured
    seed: int = 1
    tick_ns: int = NS_PER_S
    think_s: float = 0.5
    controlled: bool = True
    max_requests: int = 0
    windows: list[Window] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    ops: list[OpDone] = field(default_factory=list)
    intake: Intake = field(init=False)
    recorder: Recorder = field(init=False)
    simulation: Simulation = field(init=False)

    def drive(self, start_s: float = 0, end_s: float | None = 10, drain_s: float = 5) -> "Run":
        signals = Signals()
        specs = (TierSpec(tier=Tier.NVME, capacity_bytes=1 << 30),)
        cache = CacheManager(specs, EVICTION["lru"], CacheRules(), signals)
        world = World(
            cache=cache,
            semantics=SERVING,
            mode=RunMode.STANDARD,
            stores=Gate(0, signals),
            behind=Gate(1, signals, most=8),
        )
        config = UsersConfig(
            num_users=self.users, personas=(self._alike(),), qos=ONE_CLASS, geometry=GEOMETRY
        )
        source = SyntheticUsers(config, Seed(self.seed))
        self.intake = Intake(
            source,
            queue_limit=10_000,
            ageing_ns=0,
            max_requests=self.max_requests,
            users_wait=True,
        )
        self.recorder = Recorder(Edges(), Meter())
        self.recorder.edges.populate_end_ns = 0
        self.simulation = Simulation(
            world,
            self.intake,
            self.recorder,
            Devices({Tier.NVME: DEVICE}),
            signals,
            workers=self.users,
            on_record=self.records.append,
            on_op=self.ops.append,
            control=_told(self) if self.controlled else None,
            tick_ns=self.tick_ns,
            workers_for=lambda users: users,
        )
        self.simulation.run(
            start_ns=round(start_s * NS_PER_S),
            end_ns=None if end_s is None else round(end_s * NS_PER_S),
            drain_ns=round(drain_s * NS_PER_S),
            progress=lambda _: None,
        )
        cache.check()
        assert not world.stores.holders
        return self

    def _alike(self) -> Persona:
        return Persona(
            name="alike",
            context_range=(64, 64),
            generation_range=(1, 1),
            think_time_range=(self.think_s, self.think_s),
        )

    def of(self, phase: Phase) -> list[Window]:
        return [window for window in self.windows if window.phase is phase]

    def rows(self) -> bytes:
        return orjson.dumps([window_row(window) for window in self.windows])

    def asked_by(self, begin_s: float, end_s: float) -> set[str]:
        """Who asked in that time."""
        begin_ns, end_ns = begin_s * NS_PER_S, end_s * NS_PER_S
        return {r.user for r in self.records if begin_ns <= r.intended_ns < end_ns}


class _Told(Control, eq=False):
    """A control whose decisions are the test's."""

    run: Run | None = None

    def see(self, window: Window, **more: Any) -> Orders:
        assert self.run is not None
        orders = super().see(window, **more)
        self.run.windows.append(self.series.windows[-1])
        users = self.run.schedule.get(len(self.run.windows))
        return orders if users is None else orders._replace(users=users)


def _told(run: Run) -> _Told:
    def enough(window: Window) -> bool:
        measured = len(run.of(Phase.MEASURE)) + 1
        return bool(run.stop_after) and measured >= run.stop_after

    return _Told(Saturation(SaturationRules()), watch=enough, run=run)


# --- windows -----------------------------------------------------------------------------------


def test_ticks_come_at_whole_ticks_and_at_the_edges_of_the_phases() -> None:
    run = Run().drive(start_s=2.5, end_s=7.25)
    ends = [window.end_ns / NS_PER_S for window in run.windows]
    assert ends[:8] == [1, 2, 2.5, 3.5, 4.5, 5.5, 6.5, 7.25]
    assert [w.phase for w in run.windows[:8]] == [Phase.WARMUP] * 3 + [Phase.MEASURE] * 5
    assert {w.phase for w in run.windows[8:]} <= {Phase.DRAIN}
    assert run.windows[0].start_ns == 0
    assert all(a.end_ns == b.start_ns for a, b in pairwise(run.windows))


def test_a_window_without_any_event_is_a_window() -> None:
    """Nobody asks, as all users think for longer."""
    run = Run(think_s=30).drive(end_s=20)
    assert not run.records
    assert [w.end_ns // NS_PER_S for w in run.of(Phase.MEASURE)] == list(range(1, 21))


def test_windows_hold_what_records_and_operations_tell() -> None:
    run = Run(users=6).drive(start_s=1, end_s=9)
    for window in run.windows:
        inside = [
            r for r in run.records
            if r.finished_ns is not None and window.start_ns < r.finished_ns <= window.end_ns
        ]  # fmt: skip
        assert abs(window.completed - len(inside)) <= 1  # who ends at the very tick
    assert sum(w.completed for w in run.windows) == len(run.records)
    assert sum(w.submitted for w in run.windows) == run.intake.submitted == len(run.records)
    moved = sum(leg.nbytes for op in run.ops for leg in op.legs)
    told = sum(ops.bytes for w in run.windows for ops in w.ops.values())
    assert told == moved > 0
    assert all(w.classes[Qos.INTERACTIVE].completed == w.completed for w in run.windows)


def test_looking_changes_nothing() -> None:
    """With and without windows, and with others, the same happens at the same instants."""
    plain = Run(controlled=False).drive()
    assert plain.records
    for tick_ns in (NS_PER_S, NS_PER_S // 7, 3 * NS_PER_S):
        seen = Run(tick_ns=tick_ns).drive()
        assert seen.records == plain.records
        assert seen.ops == plain.ops
        edges, other = seen.recorder.edges, plain.recorder.edges
        assert (edges.measure_start_ns, edges.measure_end_ns) == (
            other.measure_start_ns,
            other.measure_end_ns,
        )


# --- users who come and go ---------------------------------------------------------------------


def test_users_come_and_go_at_the_tick_that_says_so() -> None:
    run = Run(users=4, schedule={3: 12, 6: 2}).drive(end_s=12)
    gauges = [(w.gauges.users, w.gauges.workers) for w in run.of(Phase.MEASURE)]
    assert gauges == [(4, 4)] * 3 + [(12, 12)] * 3 + [(2, 2)] * 6
    assert len(run.asked_by(0, 3)) == 4
    assert len(run.asked_by(3, 6)) == 12
    assert run.asked_by(7, 12) == {"user_0000", "user_0001"}
    completed = [w.completed for w in run.of(Phase.MEASURE)]
    assert sum(completed[4:6]) > 2 * sum(completed[1:3])
    assert sum(completed[8:]) < 2 * sum(completed[1:3])


def test_who_comes_back_is_somebody_else() -> None:
    run = Run(users=3, schedule={2: 1, 5: 3}).drive(end_s=9)
    before, after = run.asked_by(0, 2), run.asked_by(6, 9)
    assert before == {"user_0000", "user_0001", "user_0002"}
    assert len(after) == 3
    assert before & after == {"user_0000"}


def test_every_request_ends_once_however_often_users_change() -> None:
    schedule = {n: 1 + (n * 7) % 19 for n in range(1, 40)}
    run = Run(users=5, schedule=schedule, tick_ns=NS_PER_S // 4).drive(end_s=11)
    ids = [record.request_id for record in run.records]
    assert len(ids) == len(set(ids)) == run.intake.submitted
    assert run.intake.in_flight == run.intake.queued == 0
    assert [w.gauges.users for w in run.of(Phase.MEASURE)][1:40] == [
        schedule[n] for n in range(1, 40)
    ]


def test_requests_that_are_in_flight_when_users_go_are_answered() -> None:
    """Workers who leave answer first: nothing is unfinished long before the end."""
    run = Run(users=16, schedule={2: 1}).drive(end_s=8)
    assert all(r.finished_ns is not None for r in run.records if r.intended_ns < 7 * NS_PER_S)


def test_requests_are_as_many_as_were_wanted_while_users_change() -> None:
    run = Run(users=2, schedule={1: 9, 3: 4}, max_requests=77).drive(end_s=None)
    assert run.intake.submitted == len(run.records) == 77
    assert sum(w.submitted for w in run.windows) == 77


def test_the_same_seed_gives_the_same_bytes_twice_and_another_does_not() -> None:
    schedule = {2: 9, 4: 3, 6: 14}
    first, second, other = (Run(schedule=schedule, seed=seed).drive() for seed in (1, 1, 2))
    assert first.rows() == second.rows()
    assert first.records == second.records
    assert first.rows() != other.rows()


# --- the end -----------------------------------------------------------------------------------


def test_who_has_seen_enough_ends_the_measured_window() -> None:
    run = Run(stop_after=4).drive(start_s=1, end_s=3600)
    edges = run.recorder.edges
    assert (edges.measure_start_ns, edges.measure_end_ns) == (NS_PER_S, 5 * NS_PER_S)
    assert len(run.of(Phase.MEASURE)) == 4
    assert run.simulation.now_ns < 10 * NS_PER_S
    assert run.intake.in_flight == 0


def test_a_run_that_ends_by_itself_has_no_windows_after() -> None:
    run = Run(max_requests=20).drive(end_s=3600)
    assert run.windows[-1].end_ns < 60 * NS_PER_S
    assert run.recorder.edges.measure_end_ns == run.of(Phase.MEASURE)[-1].end_ns


# --- a whole configuration ---------------------------------------------------------------------

OVERRIDES = {
    "run.model": "tiny-1b",
    "run.virtual_time": True,
    "run.generation_mode": "none",
    "run.num_users": 6,
    "run.duration_s": 8.0,
    "tiers.gpu_mem_gib": 0.0,
    "tiers.cpu_mem_gib": 0.0625,
    "tiers.storage_capacity_gib": 0.5,
}


def simulated(seed: int = 5, **more: Any) -> tuple[list[RequestRecord], RunOutcome]:
    overrides = {**OVERRIDES, **{name.replace("__", "."): value for name, value in more.items()}}
    config = load_config(None, overrides)
    specs = tier_specs(config, 1 << 29)
    load = build_load(
        config, config.model_shape(), Seed(seed), None, None, fillable_bytes(config, specs)
    )
    records: list[RequestRecord] = []
    outcome = simulate(
        config, load, specs, seed,
        progress=_ignore, on_record=records.append, on_op=_ignore,
    )  # fmt: skip
    return records, outcome


def _ignore(_: object) -> None:
    """Nobody watches."""


@pytest.mark.parametrize("tick_s", [0.05, 0.5, 3600.0])
def test_the_tick_does_not_change_what_a_run_without_autoscaler_does(tick_s: float) -> None:
    plain, _ = simulated()
    ticked, outcome = simulated(monitor__tick_s=tick_s)
    assert plain
    assert ticked == plain
    assert not outcome.decisions


def test_an_autoscaled_run_is_the_same_twice_and_has_changed_its_users() -> None:
    scaled: dict[str, Any] = {
        "autoscaler__enabled": True,
        "monitor__tick_s": 0.2,
        "run__duration_s": 30.0,
    }
    first, one = simulated(**scaled)
    second, two = simulated(**scaled)
    assert first == second
    assert rows_of(one) == rows_of(two)
    assert one.decisions
    assert one.decisions == two.decisions
    users = [window.gauges.users for window in one.series.windows]
    assert set(users) >= {6, *(row["users"] for row in one.decisions[:-1])}


def rows_of(outcome: RunOutcome) -> bytes:
    return orjson.dumps([window_row(window) for window in outcome.series.windows])
