"""The autoscaler on a queue whose limit can be computed: N users who think, c servers, and
everything exponential (the machine-repairman model, M/M/c//N). Time is virtual."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from statistics import median

import pytest

from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.units import NS_PER_S, s_to_ns
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import NO_LATENCY, ClassWindow, Gauges, Latency, Window
from kv_cache.schedule.autoscale.autoscaler import Autoscaler
from kv_cache.schedule.autoscale.rules import Action, AutoscaleRules, Decision, ScaleMode
from kv_cache.schedule.saturation import Saturation, SaturationRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """`servers` exponential servers, and users who think exponentially between requests."""

    servers: int
    service_s: float
    think_s: float

    def occupancy(self, users: int) -> list[float]:
        """The probability of 0..users requests at the station (a birth-death process)."""
        logs = [0.0]
        for n in range(users):
            arrivals, ends = (users - n) / self.think_s, min(n + 1, self.servers) / self.service_s
            logs.append(logs[-1] + log(arrivals / ends))
        weights = [exp(value - max(logs)) for value in logs]
        total = sum(weights)
        return [weight / total for weight in weights]

    def throughput(self, users: int) -> float:
        busy = sum(p * min(n, self.servers) for n, p in enumerate(self.occupancy(users)))
        return busy / self.service_s

    def share_over(self, users: int, limit_s: float) -> float:
        """The share of responses over a limit. Who arrives sees the station as it is with one user
        fewer (the arrival theorem; Sevcik and Mitrani, JACM 28, 1981)."""
        c, rate = self.servers, 1 / self.service_s
        seen = self.occupancy(users - 1)
        alone = exp(-rate * limit_s)
        over = alone * sum(seen[:c])
        waits = _erlang_tails(c * rate * limit_s, users)
        within = _erlang_tails((c - 1) * rate * limit_s, users)
        for n in range(c, users):
            k = n - c + 1  # departures that it waits for, each of rate c / service
            served = alone * exp(k * log(c / (c - 1))) * (1 - within[k])
            over += seen[n] * (waits[k] + served)
        return over

    def most_users(self, limit_s: float, allowed: float) -> int:
        """The most users of whose requests at most this share is over the limit."""
        most = 1
        while self.share_over(2 * most, limit_s) <= allowed:
            most *= 2
        few, many = most, 2 * most
        while many - few > 1:
            middle = (few + many) // 2
            inside = self.share_over(middle, limit_s) <= allowed
            few, many = (middle, many) if inside else (few, middle)
        return few


def _erlang_tails(x: float, most: int) -> list[float]:
    """P(a sum of k exponentials > t) for k = 0..most, where x is rate * t: P(Poisson(x) < k)."""
    tails, term = [0.0], exp(-x)
    for k in range(most):
        tails.append(min(1.0, tails[-1] + term))
        term *= x / (k + 1)
    return tails


class ClosedQueue:
    """The station in virtual time, first come first served. As nothing has a memory, only who is
    there matters: the next event comes after an exponential time, and chance says what it is."""

    def __init__(self, station: Station, users: int, seed: int) -> None:
        self.station = station
        self.users = users  # beyond these, users go when they are answered
        self._rng = Random(seed)
        self._now_s = 0.0
        self._submitted = 0
        self._waiting: deque[float] = deque()  # when they came
        self._served: list[float] = []

    def window(self) -> Window:
        """The next second."""
        start_s, self._now_s = self._now_s, self._now_s + 1
        before = self._submitted
        responses = sorted(self._responses(start_s))
        there = len(self._waiting) + len(self._served)
        oldest_s = self._now_s - self._waiting[0] if self._waiting else 0.0
        return Window(
            start_ns=s_to_ns(start_s),
            end_ns=s_to_ns(self._now_s),
            phase=Phase.MEASURE,
            gauges=Gauges(
                users=max(self.users, there),
                workers=self.station.servers,
                in_flight=len(self._served),
                queued=len(self._waiting),
                oldest_queued_ns=s_to_ns(oldest_s),
                behind=0,
                submitted=self._submitted,
            ),
            submitted=self._submitted - before,
            ops={},
            classes={Qos.INTERACTIVE: _answered(responses)},
        )

    def _responses(self, now_s: float) -> list[float]:
        station, dice, waiting, served = self.station, self._rng, self._waiting, self._served
        found: list[float] = []
        while True:
            thinking = max(0, self.users - len(waiting) - len(served))
            arrivals, ends = thinking / station.think_s, len(served) / station.service_s
            now_s += dice.expovariate(arrivals + ends)
            if now_s >= self._now_s:
                return found
            if dice.random() * (arrivals + ends) < arrivals:
                self._submitted += 1
                (served if len(served) < station.servers else waiting).append(now_s)
                continue
            which = dice.randrange(len(served))
            found.append(now_s - served[which])
            last = waiting.popleft() if waiting else served.pop()
            if which < len(served):
                served[which] = last


def _answered(responses: Sequence[float]) -> ClassWindow:
    count = len(responses)
    response = NO_LATENCY
    if count:
        p50, p95, p99 = (1e9 * responses[int(share * count)] for share in (0.5, 0.95, 0.99))
        highest = s_to_ns(responses[-1])
        response = Latency(count=count, p50_ns=p50, p95_ns=p95, p99_ns=p99, highest_ns=highest)
    return ClassWindow(
        completed=count,
        failed=0,
        rejected=0,
        prompt_tokens=100 * count,
        output_tokens=10 * count,
        response=response,
        ttft=NO_LATENCY,
        over=(count - bisect_right(responses, LIMIT_S),),
    )


STATION = Station(servers=4, service_s=0.04, think_s=1.0)
LIMIT_S = 0.2
ALLOWED = 0.05
SLO = Slo(qos=Qos.INTERACTIVE, percent=95, limit_ns=s_to_ns(LIMIT_S))
ALL = 1.0  # the target that uses all that is allowed


class Run:
    """An autoscaler and its queue: the users in each second, and every decision."""

    def __init__(
        self, seed: int, *, users: int, target: float = ALL, mode: ScaleMode = ScaleMode.QOS
    ) -> None:
        self.rules = AutoscaleRules(target_saturation=target)
        self.scaler = Autoscaler(self.rules, mode, [SLO], users)
        self.queue = ClosedQueue(STATION, users, seed)
        self.users: list[int] = []
        self.decisions: list[Decision] = []
        self.settled_at: int | None = None

    def drive(self, seconds: int) -> "Run":
        saturation = Saturation(SaturationRules())
        for _ in range(seconds):
            window = self.queue.window()
            decision = self.scaler.see(window, saturation.see(window))
            if decision is not None:
                self.decisions.append(decision)
                self.queue.users = decision.users
                saturation.reset()
            self.users.append(self.queue.users)
            if self.scaler.settled and self.settled_at is None:
                self.settled_at = len(self.users) - 1
            if self.scaler.stopped:
                break
        return self

    def fault(self, limit: int) -> str | None:
        """What is wrong, if the true limit is this."""
        if self.settled_at is None:
            return "never settled"
        held = self.users[self.settled_at :]
        middle = median(held)
        swing = max(middle - min(held), max(held) - middle) / middle
        if max(abs(held[0] / limit - 1), abs(middle / limit - 1)) > 0.1:
            return f"settled on {held[0]}, then {middle:g}"
        return f"swings by {swing:.3f}" if swing > 0.15 else None


def faults(seeds: int, seconds: int, *, users: int, target: float = ALL) -> dict[int, str]:
    """What went wrong, by seed."""
    limit = STATION.most_users(LIMIT_S, target * ALLOWED)
    found = {
        seed: Run(seed, users=users, target=target).drive(seconds).fault(limit)
        for seed in range(seeds)
    }
    return {seed: fault for seed, fault in found.items() if fault is not None}


# --- the oracle ------------------------------------------------------------------------------


@pytest.mark.parametrize("users", [20, 80, 100])
def test_the_simulated_queue_is_the_one_that_the_oracle_speaks_of(users: int) -> None:
    queue, seconds = ClosedQueue(STATION, users, seed=1), 3000
    windows = [queue.window().classes[Qos.INTERACTIVE] for _ in range(seconds)]
    ended, over = sum(w.ended for w in windows), sum(w.over[0] for w in windows)
    assert ended / seconds == pytest.approx(STATION.throughput(users), rel=0.02)
    assert over / ended == pytest.approx(STATION.share_over(users, LIMIT_S), rel=0.15)


def test_one_user_waits_for_nobody() -> None:
    assert STATION.share_over(1, LIMIT_S) == pytest.approx(exp(-LIMIT_S / STATION.service_s))
    assert STATION.throughput(1) == pytest.approx(1 / (STATION.think_s + STATION.service_s))


# --- qos -------------------------------------------------------------------------------------


SEEDS = pytest.mark.parametrize("seeds", [10, pytest.param(100, marks=pytest.mark.nightly)])


@SEEDS
def test_from_below_it_settles_at_the_limit_and_stays_there(seeds: int) -> None:
    assert faults(seeds, 600, users=10) == {}


@SEEDS
def test_from_above_it_settles_at_the_limit_and_stays_there(seeds: int) -> None:
    assert faults(seeds, 500, users=300) == {}


@pytest.mark.parametrize("target", [0.8, pytest.param(0.5, marks=pytest.mark.nightly)])
def test_a_target_of_four_fifths_uses_four_fifths_of_what_is_allowed(target: float) -> None:
    """The lower it is, the less there is to tell it by."""
    fewer = STATION.most_users(LIMIT_S, 0.5 * ALLOWED)
    assert fewer < STATION.most_users(LIMIT_S, 0.8 * ALLOWED) < STATION.most_users(LIMIT_S, ALLOWED)
    assert len(faults(20, 500, users=60, target=target)) <= 1


@pytest.mark.parametrize("service_s", [0.03, pytest.param(0.06, marks=pytest.mark.nightly)])
def test_when_storage_becomes_faster_or_slower_it_finds_the_new_limit(service_s: float) -> None:
    changed = replace(STATION, service_s=service_s)
    before, after = (s.most_users(LIMIT_S, ALLOWED) for s in (STATION, changed))
    assert not 0.75 < after / before < 1.25
    for seed in range(6):
        run = Run(seed, users=80).drive(400)
        assert run.users[-1] == pytest.approx(before, rel=0.15)
        run.queue.station = changed
        run.drive(900)
        assert median(run.users[-200:]) == pytest.approx(after, rel=0.1), seed


def test_decisions_are_within_bounds_after_a_cooldown_and_with_evidence() -> None:
    for seed in range(5):
        run = Run(seed, users=10).drive(500)
        rules, last_ns, users = run.rules, 0, 10
        for decision in run.decisions:
            cooled_ns = (rules.cooldown_windows + rules.least_windows) * NS_PER_S
            assert decision.at_ns - last_ns >= cooled_ns
            assert decision.users_before == users != decision.users
            assert rules.min_users <= decision.users <= rules.max_users
            assert (decision.action is Action.UP) == (decision.users > users)
            assert decision.evidence["slos"][0]["ended"] > 0
            assert str(users) in decision.reason
            last_ns, users = decision.at_ns, decision.users


def test_the_same_windows_lead_to_the_same_decisions() -> None:
    first, second = (Run(3, users=10).drive(400) for _ in range(2))
    assert first.decisions == second.decisions


# --- capacity --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "users", [10, *(pytest.param(users, marks=pytest.mark.nightly) for users in (100, 400))]
)
def test_capacity_stops_by_itself_within_a_tenth_of_the_most_throughput(users: int) -> None:
    most = STATION.servers / STATION.service_s
    for seed in range(20):
        run = Run(seed, users=users, mode=ScaleMode.CAPACITY).drive(1500)
        stop = run.decisions[-1]
        assert stop.action is Action.STOP, seed
        assert STATION.throughput(stop.users) >= 0.9 * most, seed
        assert stop.evidence["peak"]["unit"] == "output tokens/s"
        assert stop.evidence["peak"]["per_s"] == pytest.approx(10 * most, rel=0.15)
