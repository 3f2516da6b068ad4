"""The autoscaler on users who ask and do not wait, in the whole driver of virtual time: a device of
one server, whose limit is known and whose rate may change while the run goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from math import factorial, floor, log
from statistics import median

import pytest

from kv_cache.cache.limits import CacheRules, TierSpec
from kv_cache.cache.manager import CacheManager
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import OpKind, Phase, RunMode, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_S, s_to_ns
from kv_cache.lifecycle import World
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.metrics.slo import parse_slos
from kv_cache.metrics.window import Meter, Window
from kv_cache.policy.eviction import EVICTION
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.autoscale.autoscaler import Autoscaler
from kv_cache.schedule.autoscale.rules import Action, AutoscaleRules, Decision, ScaleMode
from kv_cache.schedule.control import Control
from kv_cache.schedule.intake import Intake
from kv_cache.schedule.saturation import Saturation, SaturationRules
from kv_cache.sim.drive import Simulation
from kv_cache.sim.models import Devices, TierModel
from kv_cache.workload.lengths import Lengths, LogNormal
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig
from tests.simulation.test_virtual_time import MODEL, ONE_CLASS, SERVING

SERVICE_S = 0.0307
THINK_S = 4.0
LIMIT_S = 1.0
WORKERS = 2  # what waits at the device keeps the time that it had when it was asked for
SLOS = parse_slos("interactive:p95<1s")
EVEN = Lengths()
"""Each user asks every 4 s, give or take a fifth: the device serves 130 such users at once without
a wait, and of 131 the queue grows for ever."""
CHANCE = Lengths(think_s=LogNormal(mu=log(THINK_S) - log(2) / 2, sigma=log(2) ** 0.5))
"""As irregular as Poisson's arrivals: a coefficient of variation of 1."""


def over_share_of_md1(load: float, service_s: float = SERVICE_S) -> float:
    """P(wait > limit − service) by Erlang (1909); its alternating terms need many digits."""
    rho, wait = Decimal(load * service_s), Decimal((LIMIT_S - service_s) / service_s)
    with localcontext(prec=120):
        terms = (
            (-rho * (wait - k)) ** k / factorial(k) * (rho * (wait - k)).exp()
            for k in range(floor(wait) + 1)
        )
        return float(1 - (1 - rho) * sum(terms, Decimal(0)))


def most_users(lengths: Lengths, factor: float = 1.0) -> float:
    """The users that just keep the SLO, where the device is `factor` times as fast."""
    low, high = 0.0, factor / SERVICE_S
    while lengths is CHANCE and high - low > 0.01:
        middle = (low + high) / 2
        inside = over_share_of_md1(middle, SERVICE_S / factor) <= 0.05
        low, high = (middle, high) if inside else (low, middle)
    return high * THINK_S


class Changing(Devices):
    """A device that serves `factor` times as fast."""

    factor = 1.0

    def ends_ns(
        self, refs: Sequence[CopyRef], kind: OpKind, asked_ns: Sequence[int]
    ) -> Sequence[int]:
        service_ns = round(s_to_ns(SERVICE_S) / self.factor)
        self._models = {Tier.NVME: TierModel(write_latency_ns=service_ns)}
        self._takes_ns.clear()
        return super().ends_ns(refs, kind, asked_ns)


@dataclass(slots=True, eq=False)
class Run:
    """One autoscaled run of an open loop, from `users` on. The device has the next of the `factors`
    when a number has been settled on and looked at for 20 windows, hardly anybody waits, and the
    last has been there for 200; 200 after the last of them it ends."""

    users: int
    seed: int = 1
    lengths: Lengths = EVEN
    mode: ScaleMode = ScaleMode.QOS
    factors: Sequence[float] = ()
    at_s: Sequence[float] = ()  # when it has them, if not when a number has been settled on
    changed_s: list[float] = field(default_factory=list)
    decisions: list[Decision] = field(init=False)
    windows: list[Window] = field(init=False)

    def drive(self, seconds: int) -> "Run":
        signals = Signals()
        specs = (TierSpec(tier=Tier.NVME, capacity_bytes=1 << 20),)
        cache = CacheManager(specs, EVICTION["lru"], CacheRules(), signals)
        world = World(
            cache=cache,
            semantics=SERVING,
            mode=RunMode.PREFILL_ONLY,
            stores=Gate(0, signals),
            behind=Gate(1, signals, most=8),
        )
        persona = Persona(
            name="alike",
            context_range=(4, 4),
            generation_range=(1, 1),
            think_time_range=(THINK_S, THINK_S),
        )
        source = SyntheticUsers(
            UsersConfig(
                num_users=self.users,
                personas=(persona,),
                qos=ONE_CLASS,
                geometry=Geometry(model=MODEL, tensor_parallel=1, block_tokens=0),
                closed=False,
                multi_turn=False,
                lengths=self.lengths,
            ),
            Seed(self.seed),
        )
        rules = AutoscaleRules(target_saturation=1.0)
        scaler = Autoscaler(rules, self.mode, SLOS, self.users, users_wait=False)
        devices = Changing({Tier.NVME: TierModel()})

        def changes(window: Window) -> bool:
            now_s, due = window.end_ns / NS_PER_S, len(self.changed_s)
            since_s = now_s - max([0.0, *(d.at_ns / NS_PER_S for d in control.decisions)])
            lasted = not self.changed_s or now_s - self.changed_s[-1] >= 200
            there = window.gauges.in_flight + window.gauges.queued
            is_time = scaler.settled and since_s >= 20 and lasted and there <= 3
            if self.at_s and due < len(self.factors):
                is_time = now_s >= self.at_s[due]
            if due < len(self.factors) and is_time:
                devices.factor = self.factors[due]
                self.changed_s.append(now_s)
            return bool(self.factors) and due == len(self.factors) and lasted and not self.at_s

        control = Control(Saturation(SaturationRules()), scaler, changes)
        simulation = Simulation(
            world,
            Intake(source, queue_limit=10_000, ageing_ns=0, max_requests=0),
            Recorder(Edges(populate_end_ns=0), Meter(SLOS)),
            devices,
            signals,
            workers=WORKERS,
            control=control,
            workers_for=lambda users: WORKERS,
        )
        simulation.run(start_ns=0, end_ns=seconds * NS_PER_S, drain_ns=0, progress=lambda _: None)
        self.decisions = control.decisions
        self.windows = control.series.of(Phase.MEASURE)
        return self

    def between(self, begin_s: float, end_s: float) -> list[int]:
        """The users in each second."""
        seconds = [(w.end_ns / NS_PER_S, w.gauges.users or 0) for w in self.windows]
        return [users for second, users in seconds if begin_s < second <= end_s]

    def answered_s(self, action: Action, since_s: float) -> float:
        """How long after an instant the first such decision was."""
        instants = [d.at_ns / NS_PER_S for d in self.decisions if d.action is action]
        return next(at_s - since_s for at_s in instants if at_s > since_s)

    def fault(self) -> str | None:
        """What is wrong with its number once it has settled."""
        settled = [d.at_ns / NS_PER_S for d in self.decisions if d.evidence["settled"]]
        if not settled or settled[0] > 400:
            return f"not settled in 400 s: {self.path}"
        limit, held = most_users(self.lengths), self.between(settled[0] + 1, 600)
        swing = max(limit - min(held), max(held) - limit) / limit
        return f"swings by {swing:.3f}: {self.path}" if swing > 0.15 else None

    @property
    def path(self) -> str:
        steps = (f" > {d.users} ({d.at_ns / NS_PER_S:.0f} s)" for d in self.decisions)
        return f"{self.users}{''.join(steps)}"


SEEDS = pytest.mark.parametrize("seeds", [1, pytest.param(20, marks=pytest.mark.nightly)])
LOADS = pytest.mark.parametrize(
    "lengths", [pytest.param(EVEN, id="even"), pytest.param(CHANCE, id="chance")]
)


def test_the_oracle_is_that_of_a_queue_without_chance_in_its_service() -> None:
    """At a tenth of the load nobody waits; at the limit the wait is nearly exponential."""
    assert over_share_of_md1(0.1 / SERVICE_S) < 1e-9
    assert over_share_of_md1(31.07) == pytest.approx(0.05, abs=0.001)
    assert most_users(CHANCE) == pytest.approx(124.3, abs=0.1)
    assert most_users(EVEN) == pytest.approx(130.3, abs=0.1)


@SEEDS
@LOADS
@pytest.mark.parametrize("users", [10, 300])
def test_in_an_open_loop_it_settles_and_then_swings_by_no_more_than_15_percent_around_the_limit(
    users: int, lengths: Lengths, seeds: int
) -> None:
    runs = {seed: Run(users, seed=seed, lengths=lengths).drive(600) for seed in range(seeds)}
    faults = {seed: fault for seed, run in runs.items() if (fault := run.fault()) is not None}
    assert len(faults) <= seeds // 10, faults


@SEEDS
@LOADS
def test_a_device_that_becomes_slower_or_faster_is_answered_within_three_windows(
    lengths: Lengths, seeds: int
) -> None:
    """To a third, then to eight times that. Later the number is where the new limit is."""
    for seed in range(seeds):
        run = Run(100, seed=seed, lengths=lengths, factors=(1 / 3, 8 / 3)).drive(2000)
        slower_s, faster_s = run.changed_s
        assert run.answered_s(Action.DOWN, slower_s) <= 3, run.path
        assert run.answered_s(Action.UP, faster_s) <= 3, run.path
        slow, fast = run.between(slower_s + 100, faster_s), run.between(faster_s + 100, 2000)
        assert median(slow) == pytest.approx(most_users(lengths, 1 / 3), rel=0.15), run.path
        assert median(fast) == pytest.approx(most_users(lengths, 8 / 3), rel=0.15), run.path


def test_a_window_in_which_few_ask_does_not_hide_that_a_device_became_faster() -> None:
    """Of four requests, where a look takes five: the answer came after four windows."""
    run = Run(100, seed=2, lengths=CHANCE, factors=(1 / 3, 8 / 3)).drive(500)
    assert run.answered_s(Action.UP, run.changed_s[1]) <= 3, run.path


def test_more_requests_than_usual_in_a_few_windows_drain_no_deeper_than_15_percent() -> None:
    """39 a second came for 5 s from users who ask 33: they were taken for users who ask as many,
    and 134 > 102 where 124 are served."""
    assert Run(10, seed=7, lengths=CHANCE).drive(600).fault() is None


def test_no_user_is_judged_by_a_backlog_that_was_left_before() -> None:
    """From twice what is served the queue holds a minute's work. Once fewer users are there,
    nobody goes below what is served but to drain it, and each number is judged once it is gone."""
    run = Run(260, seed=1).drive(120)
    first, drained = run.decisions[:2]
    assert (first.action, drained.action) == (Action.DOWN, Action.UP), run.path
    assert first.users >= 0.4 * most_users(EVEN)
    assert first.evidence["backlog"] > 100
    assert drained.reason.startswith(f"the backlog is drained to {drained.evidence['backlog']}; ")
    later = [d for d in run.decisions[2:] if d.action is Action.DOWN]
    assert all(d.users_before > 0.95 * most_users(EVEN) for d in later), run.path


@LOADS
def test_capacity_in_an_open_loop_finds_the_peak_in_a_few_minutes(lengths: Lengths) -> None:
    """Its factor alone took more than 600 s to 105 users."""
    run = Run(10, lengths=lengths, mode=ScaleMode.CAPACITY).drive(600)
    stop = run.decisions[-1]
    assert stop.action is Action.STOP, run.path
    assert stop.at_ns < 400 * NS_PER_S, run.path
    assert stop.users == pytest.approx(most_users(EVEN), rel=0.15), run.path
    assert stop.evidence["peak"]["per_s"] == pytest.approx(1 / SERVICE_S, rel=0.1)
