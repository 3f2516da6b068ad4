"""Each rule of the autoscaler, on windows that are written by hand."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kv_cache.core.kinds import OpKind, Phase, Qos, Tier
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import (
    NO_LATENCY,
    ClassWindow,
    Gauges,
    Latency,
    OpWindow,
    SaturationLevel,
    Window,
)
from kv_cache.schedule.autoscale.autoscaler import Autoscaler
from kv_cache.schedule.autoscale.qos_mode import Bracket, UsersVerdict
from kv_cache.schedule.autoscale.rules import (
    Action,
    AutoscaleRules,
    Decision,
    ScaleMode,
    decision_row,
)
from kv_cache.schedule.autoscale.window_pool import OverShare, Unit, WindowPool, ratio

IDLE = SaturationLevel(0.0, None, saturated=False)
LIMIT_NS = NS_PER_S // 2
SLO = Slo(qos=Qos.INTERACTIVE, percent=95, limit_ns=LIMIT_NS)
EVERY_CLASS = tuple(Slo(qos=qos, percent=95, limit_ns=LIMIT_NS) for qos in Qos)


def of_class(ended: int = 0, over: tuple[int, ...] = (0,), tokens: int = 10) -> ClassWindow:
    return ClassWindow(
        completed=ended,
        failed=0,
        rejected=0,
        prompt_tokens=0,
        output_tokens=tokens * ended,
        response=NO_LATENCY,
        ttft=NO_LATENCY,
        over=over,
    )


def reads(count: int, p95_ms: float = 1.0) -> dict[tuple[Tier, OpKind], OpWindow]:
    ns = p95_ms * NS_PER_MS
    latency = Latency(
        count=count, p50_ns=None, p95_ns=None, p99_ns=None, highest_ns=int(ns), rank95_ns=ns
    )
    moved = OpWindow(operations=count, failed=0, bytes=4096 * count, calls=count, latency=latency)
    return {(Tier.NVME, OpKind.READ): moved}


class Driver:
    """Shows windows of a second to an autoscaler, each 100 requests of which `over` miss."""

    def __init__(self, scaler: Autoscaler) -> None:
        self.scaler = scaler
        self.second = 0

    def show(self, *, seconds: int = 1, saturation: SaturationLevel = IDLE, **told: Any) -> Any:
        """The first decision within so many windows, or None."""
        for _ in range(seconds):
            window = self.window(**told)
            if (decision := self.scaler.see(window, saturation)) is not None:
                return decision
        return None

    def window(
        self,
        *,
        ended: int = 100,
        over: int = 0,
        users: int | None = -1,
        tokens: int = 10,
        in_flight: int = 1,
        queued: int = 0,
        oldest_s: float = 0,
        phase: Phase = Phase.MEASURE,
        classes: dict[Qos, ClassWindow] | None = None,
        ops: dict[tuple[Tier, OpKind], OpWindow] | None = None,
    ) -> Window:
        self.second += 1
        return Window(
            start_ns=(self.second - 1) * NS_PER_S,
            end_ns=self.second * NS_PER_S,
            phase=phase,
            gauges=Gauges(
                users=self.scaler.users if users == -1 else users,
                workers=1,
                in_flight=in_flight,
                queued=queued,
                oldest_queued_ns=int(oldest_s * NS_PER_S),
                behind=0,
                submitted=0,
            ),
            submitted=0,
            ops=ops or {},
            classes=classes or {Qos.INTERACTIVE: of_class(ended, (over,), tokens)},
        )


def qos(users: int = 10, slos: tuple[Slo, ...] = (SLO,), **rules: Any) -> Driver:
    made = AutoscaleRules(**{"target_saturation": 1.0, **rules})
    return Driver(Autoscaler(made, ScaleMode.QOS, slos, users))


def capacity(users: int = 10, **rules: Any) -> Driver:
    return Driver(Autoscaler(AutoscaleRules(**rules), ScaleMode.CAPACITY, (), users))


# --- rules -----------------------------------------------------------------------------------


def test_a_step_is_of_one_user_at_least_and_stays_within_bounds() -> None:
    rules = AutoscaleRules(min_users=2, max_users=50)
    assert [rules.more(n) for n in (2, 10, 45, 50)] == [3, 12, 50, 50]
    assert [rules.fewer(n) for n in (50, 10, 3, 2)] == [40, 8, 2, 2]
    assert (rules.more(20, 0.05), rules.fewer(20, 0.05)) == (21, 19)


# --- evidence --------------------------------------------------------------------------------


def share(over: int, ended: int, worth: float | None = None) -> OverShare:
    return OverShare(slo=SLO, ended=ended, over=over, worth=worth or ended)


def test_pressure_is_1_at_the_promise() -> None:
    assert share(5, 100).pressure == pytest.approx(1)
    assert share(4, 100).pressure == pytest.approx(0.8)


def test_the_interval_is_wilsons() -> None:
    low, high = share(10, 100).bounds(1.96)  # 0.0552 to 0.1744, of 0.05
    assert low == pytest.approx(1.105, abs=0.002)
    assert high == pytest.approx(3.487, abs=0.002)


def test_requests_that_share_their_fate_tell_less() -> None:
    low, high = share(10, 100).bounds(2)
    lower, higher = share(10, 100, worth=20).bounds(2)
    assert lower < low < high < higher


def test_enough_is_when_one_would_be_allowed_or_too_many_are_over() -> None:
    assert not share(0, 19).enough
    assert share(0, 20).enough
    assert not share(4, 6).enough
    assert share(5, 6).enough


def test_a_ratio_has_the_error_of_its_batches() -> None:
    assert ratio([(1, 10)]).error is None
    assert ratio([(1, 10)] * 5).error == pytest.approx(0)
    found = ratio([(0, 10), (2, 10)])
    assert found.value == pytest.approx(0.1)
    assert found.error == pytest.approx(0.1)


def pooled(overs: list[int]) -> WindowPool:
    driver, pool = qos(), WindowPool((SLO,))
    for over in overs:
        pool.add(driver.window(over=over))
    return pool


def test_bursts_are_worth_fewer_requests_than_the_same_spread_evenly() -> None:
    even, burst = pooled([5] * 20).shares()[0], pooled([0] * 19 + [100]).shares()[0]
    assert (even.over, even.ended) == (burst.over, burst.ended) == (100, 2000)
    assert even.worth == 2000
    assert burst.worth < 50


@given(st.lists(st.integers(0, 100), min_size=1, max_size=200))
def test_a_pool_counts_exactly_however_long_it_is(overs: list[int]) -> None:
    found = pooled(overs).shares()[0]
    assert (found.over, found.ended) == (sum(overs), 100 * len(overs))
    assert 1 <= found.worth <= found.ended


def test_a_pool_forgets_its_older_half() -> None:
    pool = pooled([100] * 10 + [0] * 10)
    pool.forget_half()
    assert (pool.windows, pool.shares()[0].over) == (10, 0)


def test_throughput_is_in_tokens_else_requests_else_bytes() -> None:
    driver = qos()
    for told, unit, per_s in (
        ({}, Unit.TOKENS, 1000),
        ({"tokens": 0}, Unit.REQUESTS, 100),
        ({"ended": 0, "ops": reads(3)}, Unit.BYTES, 3 * 4096),
    ):
        pool = WindowPool((SLO,))
        pool.add(driver.window(**told))
        assert pool.unit() is unit
        assert pool.rate(unit).value == per_s
    assert WindowPool((SLO,)).unit() is None


# --- the bracket -----------------------------------------------------------------------------


def search(limit: Callable[[], int], users: int, steps: int, **rules: Any) -> list[int]:
    """The numbers that are tried where the truth is known and plain."""
    bracket, tried = Bracket(AutoscaleRules(**rules)), [users]
    for _ in range(steps):
        inside = tried[-1] <= limit()
        tried.append(
            bracket.after(
                tried[-1], UsersVerdict.INSIDE if inside else UsersVerdict.OUTSIDE, plain=True
            )
        )
        if bracket.settled:
            break
    return tried


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_search_ends_on_the_limit_within_5_percent_or_a_user(limit: int, users: int) -> None:
    tried = search(lambda: limit, users, 200)
    assert limit - max(1, 0.05 * limit) <= tried[-1] <= limit
    assert len(tried) < 90


def test_it_grows_by_the_factor_then_bisects() -> None:
    assert search(lambda: 100, 50, 30) == [50, 60, 72, 86, 103, 94, 98, 100, 100]


def test_at_the_bounds_it_stays() -> None:
    assert search(lambda: 10**6, 90, 30, max_users=100) == [90, 100, 100]
    assert search(lambda: 0, 3, 30) == [3, 2, 1, 1]


def test_an_inside_that_was_taken_soon_is_looked_at_again_before_it_is_settled_on() -> None:
    bracket = Bracket(AutoscaleRules(scale_up_factor=1.05))
    assert bracket.after(100, UsersVerdict.INSIDE, plain=True) == 105
    assert bracket.after(105, UsersVerdict.OUTSIDE, plain=False) == 100
    assert not bracket.settled
    assert bracket.after(100, UsersVerdict.INSIDE, plain=False) == 100
    assert bracket.settled


def test_what_was_settled_on_is_left_in_small_steps_that_grow_where_it_is_plain() -> None:
    bracket = Bracket(AutoscaleRules())
    for users, verdict in (
        (120, UsersVerdict.OUTSIDE),
        (96, UsersVerdict.INSIDE),
        (108, UsersVerdict.OUTSIDE),
    ):
        bracket.after(users, verdict, plain=True)
    bracket.after(102, UsersVerdict.OUTSIDE, plain=True)
    assert bracket.after(99, UsersVerdict.INSIDE, plain=False) == 99
    assert bracket.settled
    assert bracket.after(99, UsersVerdict.OUTSIDE, plain=False) == 94
    assert bracket.after(94, UsersVerdict.OUTSIDE, plain=False) == 89
    assert bracket.after(89, UsersVerdict.OUTSIDE, plain=True) == 80
    assert bracket.after(80, UsersVerdict.OUTSIDE, plain=True) == 64


# --- qos -------------------------------------------------------------------------------------


def test_users_grow_after_the_cooldown_when_two_samples_are_inside() -> None:
    driver = qos(10)
    assert driver.show(seconds=9) is None
    decision = driver.show()
    assert (decision.action, decision.users_before, decision.users) == (Action.UP, 10, 20)
    assert decision.at_ns == 10 * NS_PER_S
    assert driver.scaler.users == 20


def test_each_number_of_the_rules_is_obeyed() -> None:
    driver = qos(
        10, cooldown_samples=2, windows_per_sample=5, consecutive_samples_required=3,
        scale_up_factor=3.0,
    )  # fmt: skip
    assert driver.show(seconds=24) is None
    assert driver.show().users == 30


def test_users_become_fewer_when_two_samples_are_plainly_outside() -> None:
    decision = qos(100).show(seconds=10, over=60)
    assert (decision.action, decision.users) == (Action.DOWN, 80)
    assert decision.reason.startswith(
        "100 users are outside: 240 of 400 requests missed interactive:p95<500ms, 12.00 of what "
        "is allowed (the goal is 1)"
    )


def test_the_target_is_the_share_of_what_is_allowed_that_is_used() -> None:
    for target, action in ((1.0, Action.UP), (0.8, Action.DOWN)):
        decision = qos(100, target_saturation=target).show(seconds=80, over=4, ended=90)
        assert decision.action is action


def test_users_double_while_nothing_misses_and_grow_by_the_factor_where_something_does() -> None:
    assert qos(10).show(seconds=10).users == 20
    assert qos(10).show(seconds=10, over=1).users == 12


def test_five_requests_far_from_their_limit_are_proof_enough_for_one_user() -> None:
    """No 96 of them, which would take a user minutes."""
    for highest_ms, users in ((LIMIT_NS // NS_PER_MS // 2, 2), (LIMIT_NS // NS_PER_MS, None)):
        latency = replace(NO_LATENCY, count=1, highest_ns=highest_ms * NS_PER_MS)
        seen = {Qos.INTERACTIVE: replace(of_class(1), response=latency)}
        decision = qos(1).show(seconds=10, classes=seen)
        assert (None if decision is None else decision.users) == users


def test_too_few_requests_decide_nothing() -> None:
    driver = qos(1)
    assert driver.show(seconds=16, ended=1) is None
    assert driver.show(seconds=70, ended=1) is not None


def test_the_sample_grows_until_it_is_sure() -> None:
    driver = qos(100)
    assert driver.show(seconds=6 + 58, over=5) is None
    decision = driver.show(seconds=4, over=5)
    assert decision.evidence["windows"] == 62
    assert decision.evidence["slos"][0]["pressure"] == pytest.approx(1)


def test_every_class_that_is_served_is_judged() -> None:
    seen = {
        Qos.INTERACTIVE: of_class(10, (9, 0, 0)),
        Qos.RESPONSIVE: of_class(100, (0, 0, 0)),
        Qos.BATCH: of_class(0, (0, 0, 0)),
    }
    decision = qos(100, EVERY_CLASS).show(seconds=10, classes=seen)
    assert decision.action is Action.DOWN
    assert "missed interactive:p95" in decision.reason
    assert [row["slo"][:5] for row in decision.evidence["slos"]] == ["inter", "respo"]


def test_a_class_with_few_requests_is_waited_for_but_not_for_ever() -> None:
    seen = {Qos.INTERACTIVE: of_class(100, (0, 0, 0)), Qos.RESPONSIVE: of_class(1, (0, 0, 0))}
    driver = qos(10, EVERY_CLASS)
    assert driver.show(seconds=6 + 14, classes=seen) is None
    driver = qos(10, EVERY_CLASS, longest_samples=5)
    assert driver.show(seconds=6 + 12, classes=seen).action is Action.UP


def test_a_rare_percentile_does_not_hold_up_growth() -> None:
    slos = (SLO, Slo(qos=Qos.INTERACTIVE, percent=99.99, limit_ns=NS_PER_S))
    seen = {Qos.INTERACTIVE: of_class(100, (0, 0))}
    assert qos(10, slos).show(seconds=10, classes=seen).action is Action.UP


def test_a_queue_that_is_stuck_is_outside_though_nothing_ends() -> None:
    driver = qos(100, EVERY_CLASS)
    classes = {kind: of_class(0, (0, 0, 0)) for kind in Qos}
    decision = driver.show(seconds=10, classes=classes, queued=90, oldest_s=4.0)
    assert (decision.action, decision.evidence["stuck"]) == (Action.DOWN, True)
    assert "no request ends" in decision.reason


def test_requests_in_service_that_never_end_are_outside_too() -> None:
    classes = {kind: of_class(0, (0, 0, 0)) for kind in Qos}
    assert qos(100, EVERY_CLASS).show(seconds=10, classes=classes).action is Action.DOWN


def test_users_who_think_for_long_are_not_stuck() -> None:
    classes = {kind: of_class(0, (0, 0, 0)) for kind in Qos}
    assert qos(100, EVERY_CLASS).show(seconds=500, classes=classes, in_flight=0) is None


def test_a_class_that_is_promised_nothing_may_take_for_ever() -> None:
    assert qos(100).show(seconds=500, ended=0) is None


def test_storage_that_is_saturated_does_not_stop_growth_but_is_told() -> None:
    full = SaturationLevel(level=2.0, by="read_latency_p95", saturated=True)
    decision = qos(10).show(seconds=10, saturation=full)
    assert decision.action is Action.UP
    assert decision.evidence["saturation"]["level"] == 2.0


def settled(inside_over: int = 0) -> Driver:
    """100 users are inside, 105 are not."""
    driver = qos(100, scale_up_factor=1.05)
    assert driver.show(seconds=10, over=1).users == 105
    assert driver.show(seconds=40, over=20).users == 100
    assert driver.show(seconds=70 if inside_over else 40, over=inside_over) is None
    assert driver.scaler.settled
    assert driver.scaler.standing() == {
        "users": 100, "settled": True, "inside": 100, "outside": 105
    }  # fmt: skip
    return driver


def test_settled_it_tries_again_after_a_long_quiet_time_and_then_less_often() -> None:
    driver, waits = settled(), []
    for _ in range(3):
        began = driver.second
        assert driver.show(seconds=2000).users == 105
        waits.append(driver.second - began)
        assert driver.show(seconds=100, over=20).users == 100
    assert waits[0] >= 20
    assert waits[1] > 1.5 * waits[0]
    assert waits[2] > 1.5 * waits[1]


def test_settled_and_outside_it_goes_down_at_once() -> None:
    driver = settled()
    decision = driver.show(seconds=30, over=30)
    assert (decision.action, driver.scaler.settled) == (Action.DOWN, False)
    assert 85 <= decision.users <= 95


def test_settled_and_uncertain_it_stays() -> None:
    assert settled(inside_over=5).show(seconds=500, over=5) is None


# --- the cooldown ----------------------------------------------------------------------------


def test_windows_of_other_phases_are_not_seen() -> None:
    driver = qos(10)
    for phase in (Phase.POPULATE, Phase.PRECONDITION, Phase.WARMUP, Phase.DRAIN):
        assert driver.show(seconds=50, phase=phase) is None
    assert driver.show(seconds=10, phase=Phase.MEASURE) is not None


def test_nothing_is_judged_while_users_who_are_to_go_are_still_there() -> None:
    driver = qos(100)
    driver.show(seconds=10, over=60)
    assert driver.show(seconds=50, users=100) is None
    assert driver.show(seconds=6) is None
    assert driver.show(seconds=20) is not None


def test_nothing_is_judged_while_somebody_waits_since_before_the_change() -> None:
    driver = qos(100)
    driver.show(seconds=10, over=60)
    for second in range(50):
        assert driver.show(over=60, oldest_s=second + 2) is None
    assert driver.show(seconds=5, over=60, oldest_s=1) is not None


def test_nothing_is_judged_before_as_many_requests_have_ended_as_there_are_users() -> None:
    driver = qos(1000)
    assert driver.show(seconds=99, ended=10, over=10) is None
    assert driver.show(seconds=5, ended=10, over=10) is not None


def test_a_cooldown_ends_even_if_users_never_arrive() -> None:
    driver = qos(10)
    assert driver.show(seconds=20 * 6 + 3, users=9) is None
    assert driver.show(users=9) is not None


# --- capacity --------------------------------------------------------------------------------


def carry(driver: Driver, most: int, seconds: int = 5000) -> list[Decision]:
    """Every user asks once a second, but no more than `most` requests end."""
    decisions = []
    for _ in range(seconds):
        ended = min(driver.scaler.users, most)
        if (decision := driver.show(ended=ended)) is not None:
            decisions.append(decision)
    return decisions


def test_capacity_doubles_to_the_peak_looks_beyond_it_and_stops_there() -> None:
    driver = capacity(100)
    decisions = carry(driver, 1000)
    assert [d.users for d in decisions[:-1]] == [200, 400, 800, 1600, 1000, 1200, 1440]
    stop = decisions[-1]
    assert (stop.action, driver.scaler.stopped) == (Action.STOP, True)
    assert stop.users == 1000
    assert stop.evidence["peak"] == {
        "users": stop.users, "per_s": pytest.approx(10_000), "unit": "output tokens/s"
    }  # fmt: skip
    assert driver.scaler.standing()["peak"] == stop.evidence["peak"]


def test_after_the_stop_nothing_is_decided() -> None:
    driver = capacity(100)
    carry(driver, 150)
    assert driver.show(seconds=100) is None


def test_at_the_most_users_capacity_stops() -> None:
    stop = carry(capacity(100, max_users=120), 10**6)[-1]
    assert (stop.action, stop.users) == (Action.STOP, 120)


def test_capacity_turns_round_where_more_users_cost_throughput() -> None:
    driver = capacity(1000)
    for _ in range(3000):
        users = driver.scaler.users
        if driver.show(ended=min(users, 500) - max(0, users - 500) // 4) and driver.scaler.stopped:
            break
    assert 400 <= driver.scaler.users <= 600


def test_nothing_at_all_is_no_throughput_to_compare() -> None:
    assert capacity(10).show(seconds=500, ended=0) is None


# --- every decision --------------------------------------------------------------------------


def test_a_decision_has_what_the_references_row_needs() -> None:
    decision = qos(10).show(seconds=10, ops=reads(5, 3.0))
    row = decision_row(decision)
    assert orjson.loads(orjson.dumps(row)) == row
    assert (row["mode"], row["action"], row["users"]) == ("qos", "scale_up", 20)
    evidence = row["evidence"]
    assert evidence["read_p95_ms"] == pytest.approx(3)
    assert evidence["write_p95_ms"] is None
    assert evidence["output_tokens_per_s"] == 1000
    assert evidence["samples"] == 2
    assert evidence["saturation"] == {"level": 0.0, "by": None, "saturated": False}
    assert evidence["bracket_before"] == {"inside": None, "outside": None}
    assert evidence["bracket"] == {"inside": 10, "outside": None}


told = st.fixed_dictionaries(
    {
        "ended": st.integers(0, 200),
        "share": st.floats(0, 1),
        "queued": st.integers(0, 50),
        "oldest_s": st.floats(0, 10),
        "tokens": st.integers(0, 3),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ScaleMode),
    st.integers(1, 20),
    st.lists(st.tuples(told, st.integers(1, 40)), max_size=30),
)
def test_whatever_is_shown_users_stay_within_bounds_and_no_decision_is_in_cooldown(
    mode: ScaleMode, users: int, shown: list[tuple[dict[str, Any], int]]
) -> None:
    rules = AutoscaleRules(min_users=1, max_users=20, longest_samples=6)
    driver, changed = Driver(Autoscaler(rules, mode, (SLO,), users)), 0
    for facts, seconds in shown:
        facts = dict(facts)
        facts["over"] = int(facts.pop("share") * facts["ended"])
        for _ in range(seconds):
            decision = driver.show(**facts)
            if decision is None:
                continue
            assert rules.min_users <= decision.users <= rules.max_users
            assert decision.users_before == users
            assert (decision.action is Action.STOP) or decision.users != users
            assert driver.second - changed > rules.cooldown_windows
            assert decision.evidence["windows"] >= 1
            orjson.dumps(decision_row(decision))
            users, changed = decision.users, driver.second
