"""Judging a probe and searching for the capacity, with devices whose answers are known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Phase
from kv_cache.metrics.slo import parse_slos
from kv_cache.metrics.window import Gauges, Meter
from kv_cache.result.capacity import findings_on_the_answer
from kv_cache.schedule.capacity import CapacitySearch, Ended, SearchRules
from kv_cache.schedule.probe import (
    LEAST_BATCHES,
    Judged,
    ProbeCount,
    ProbeStatus,
    ProbeVerdict,
    counts_of,
    decided,
    judge,
    pooled_inflation,
)

P95 = parse_slos("interactive:p95<50ms")
TWO = parse_slos("interactive:p95<50ms,batch:p90<5s")
LONGEST = 60


def even(over: int, ended: int, batches: int) -> list[tuple[ProbeCount, ...]]:
    return [(ProbeCount(over, ended),)] * batches


# --- one probe -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "status"),
    [(10, ProbeStatus.INSIDE), (49, ProbeStatus.OPEN), (51, ProbeStatus.OPEN), (90, "outside")],
)
def test_a_probe_is_decided_when_the_whole_interval_is_on_one_side(over: int, status: str) -> None:
    judged = judge(P95, even(over, 1000, 20), longest=20)
    assert judged.status == status
    low, high = judged.estimates[0].interval()
    assert low < over / 1000 < high
    assert (0.05 in (low, high) or low < 0.05 < high) is (status is ProbeStatus.OPEN)


def test_what_is_open_is_decided_by_the_share_at_the_end() -> None:
    assert decided(judge(P95, even(49, 1000, 20), longest=20)) is ProbeStatus.INSIDE
    assert decided(judge(P95, even(51, 1000, 20), longest=20)) is ProbeStatus.OUTSIDE


@pytest.mark.parametrize("over", [0, 1000])
def test_nothing_is_decided_on_few_batches(over: int) -> None:
    few = even(over, 1000, LEAST_BATCHES - 1)
    assert judge(P95, few, longest=LEAST_BATCHES - 1).status is ProbeStatus.OPEN
    assert judge(P95, [], longest=5).status is ProbeStatus.OPEN
    enough = even(over, 1000, LEAST_BATCHES)
    assert judge(P95, enough, longest=LEAST_BATCHES).status is not ProbeStatus.OPEN


def test_an_early_look_takes_more_than_a_late_one() -> None:
    batches = even(30, 1000, 10)
    assert judge(P95, batches, longest=10).status is ProbeStatus.INSIDE
    assert judge(P95, batches, longest=100).status is ProbeStatus.OPEN


def test_requests_that_are_alike_within_a_batch_count_for_less() -> None:
    alike = [(ProbeCount(300 if i % 10 == 0 else 0, 1000),) for i in range(20)]
    judged, calm = judge(P95, alike, longest=20), judge(P95, even(30, 1000, 20), longest=20)
    assert judged.estimates[0].share == calm.estimates[0].share == 0.03
    assert (calm.status, calm.estimates[0].inflation) == (ProbeStatus.INSIDE, 1)
    assert judged.status is ProbeStatus.OPEN
    assert judged.estimates[0].inflation > 100
    assert judged.estimates[0].interval().high > 2 * calm.estimates[0].interval().high


def test_what_is_alike_across_short_batches_is_seen_when_they_are_put_together() -> None:
    long = [(ProbeCount(200 if i % 4 == 0 else 0, 2000),) for i in range(20)]
    short = [(ProbeCount(10 if i % 80 < 20 else 0, 100),) for i in range(400)]
    estimates = [judge(P95, batches, longest=400).estimates[0] for batches in (long, short)]
    assert estimates[0].inflation == pytest.approx(estimates[1].inflation)


def test_independent_requests_of_several_probes_are_not_taken_for_alike() -> None:
    """By chance some probes vary less than independent requests would. Taken as 1 each, four
    together seemed inflated by 1.38 on average."""
    dice = np.random.default_rng(5)
    seen = []
    for _ in range(100):
        draws = dice.binomial(100, 0.05, size=(4, 20))
        probes = [[(ProbeCount(int(over), 100, float(over)),) for over in row] for row in draws]
        seen.append(pooled_inflation([judge(P95, p, longest=20).estimates[0] for p in probes]))
    assert np.mean(seen) < 1.25


@pytest.mark.parametrize("stickiness", [0.0, 0.9])
def test_all_looks_together_are_rarely_wrong_at_the_limit_itself(stickiness: float) -> None:
    """5 % is allowed and 5 % are over: both verdicts are wrong. With stickiness, a request mostly
    is as the one before it; looked at after each batch."""
    dice, wrong, probes = np.random.default_rng(11), 0, 150
    for _ in range(probes):
        fresh = dice.random(LONGEST * 200) >= stickiness
        source = np.maximum.accumulate(np.where(fresh, np.arange(fresh.size), 0))
        over = (dice.random(fresh.size) < 0.05)[source].reshape(LONGEST, 200).sum(axis=1)
        batches = [(ProbeCount(int(count), 200),) for count in over]
        estimates = (judge(P95, batches[:n], longest=LONGEST).status for n in range(5, LONGEST + 1))
        wrong += any(status is not ProbeStatus.OPEN for status in estimates)
    assert wrong <= 0.07 * probes


def test_every_promise_must_be_kept_and_one_is_enough_to_miss() -> None:
    good, bad = ProbeCount(10, 1000), ProbeCount(500, 1000)
    assert judge(TWO, [(good, good)] * 20, longest=20).status is ProbeStatus.INSIDE
    missed = judge(TWO, [(good, bad)] * 20, longest=20)
    assert missed.status is ProbeStatus.OUTSIDE
    assert [estimate.kept for estimate in missed.estimates] == [True, False]


def test_a_class_of_which_nothing_ended_shows_nothing_kept() -> None:
    batches = [(ProbeCount(10, 1000), ProbeCount(0, 0))] * 20
    judged = judge(TWO, batches, longest=20)
    assert judged.status is ProbeStatus.OPEN
    assert decided(judged) is ProbeStatus.OUTSIDE
    assert [estimate.kept for estimate in judged.estimates] == [True, None]


def test_a_probe_without_a_promise_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="without an SLO"):
        judge((), [()], longest=5)


def test_a_window_is_a_batch() -> None:
    meter = Meter(TWO)
    gauges = Gauges(
        users=1, workers=1, in_flight=0, queued=0, oldest_queued_ns=0, behind=0, submitted=0
    )
    window = meter.read(meter.take(10), Phase.MEASURE, gauges)
    assert counts_of(window, TWO) == (ProbeCount(0, 0), ProbeCount(0, 0))


# --- devices whose capacity is known ---------------------------------------------------------

Device = Callable[[float], ProbeVerdict]


def judged(share: float, slos: Any = P95, ended: int = 2000) -> Judged:
    counts = tuple(ProbeCount(round(share * ended), ended) for _ in slos)
    return judge(slos, [counts] * 20, longest=20)


def cliff(capacity: float) -> Device:
    """Nothing is over up to the capacity, all above, and no more than it is served."""
    return lambda load: ProbeVerdict(
        judged=judged(0.0 if load <= capacity else 1.0),
        overloaded=load > capacity,
        served_share=min(1.0, capacity / load),
    )


def slope(capacity: float, dice: np.random.Generator | None = None) -> Device:
    """5 % are over at the capacity, e times as many at a load 10 % higher; with chance, if any."""

    def probe(load: float) -> ProbeVerdict:
        share = min(1.0, 0.05 * float(np.exp(min(9, 10 * (load / capacity - 1)))))
        if dice is not None:
            share = float(np.clip(share * dice.lognormal(0, 0.2), 0, 1))
        return ProbeVerdict(judged=judged(share))

    return probe


def searched(device: Device, **rules: Any) -> CapacitySearch:
    search = CapacitySearch(SearchRules(**{"first": 10, "highest": 100_000, **rules}))
    while (load := search.next_load()) is not None:
        search.report(load, device(load))
    return search


@pytest.mark.parametrize("capacity", [1, 2, 7, 10, 11, 100, 999, 4321, 99_999])
@pytest.mark.parametrize("device", [cliff, slope])
def test_the_number_of_users_is_found_wherever_it_is(
    device: Callable[[float], Device], capacity: int
) -> None:
    search = searched(device(capacity + 0.5), highest=200_000)
    answer = search.answer
    assert answer.confirmed or "not confirmed" in answer.reason
    assert answer.confirmed or capacity > 640  # so far from the first load, few probes are left
    assert answer.load <= capacity + 0.5
    assert answer.load >= min(capacity, 0.95 * capacity) or capacity > 20_000
    assert answer.probes == len(search.steps) <= 12
    assert answer.low <= capacity + 0.5
    assert answer.high is None or answer.high >= capacity
    assert all(step.load % 1 == 0 for step in search.steps)


def test_each_step_says_why_and_the_answer_what_is_above_it() -> None:
    search = searched(slope(50))
    assert search.steps[0].why == "the first load"
    assert search.steps[1].why == "10 passed: widens upwards"
    assert any("where the limit may be" in step.why for step in search.steps)
    answer = search.answer
    assert answer.ended is Ended.LIMIT
    assert answer.limited == P95[0]
    assert "misses interactive:p95<50ms" in answer.reason
    assert answer.high is not None
    assert answer.low <= answer.load < answer.high
    estimate = search.steps[-1].verdict.judged.estimates[0]
    assert (str(estimate.slo), estimate.ended) == ("interactive:p95<50ms", 40_000)
    assert all(abs(search.steps[i].load / answer.load - 1) < 0.05 for i in answer.steps)


def test_where_even_one_user_misses_the_answer_is_0_with_the_reason() -> None:
    answer = searched(slope(0.5), first=64).answer
    assert (answer.load, answer.confirmed, answer.ended) == (0, False, Ended.LIMIT)
    assert answer.reason.startswith("even the lowest load misses: a load of 1 misses interactive")
    assert (answer.low, answer.high) == (0, 1)


def test_the_highest_load_is_a_lower_bound_of_the_capacity() -> None:
    answer = searched(slope(1000), highest=64).answer
    assert (answer.load, answer.confirmed, answer.high) == (64, True, None)
    assert answer.ended is Ended.HIGHEST
    assert answer.low == 64


def test_where_the_client_is_the_limit_a_lower_bound_is_given() -> None:
    def probe(load: float) -> ProbeVerdict:
        return ProbeVerdict(judged=judged(0.0), client_bound=load > 300, served_share=300 / load)

    answer = searched(probe).answer
    assert answer.ended is Ended.CLIENT
    assert (answer.confirmed, answer.high, answer.limited) == (True, None, None)
    assert 280 <= answer.load == answer.low <= 300
    assert "the client could not make a load of" in answer.reason


def test_a_client_that_cannot_make_the_lowest_load_shows_nothing() -> None:
    answer = searched(lambda _: ProbeVerdict(judged=judged(0.0), client_bound=True)).answer
    assert (answer.load, answer.low, answer.high) == (0, 0, None)
    assert answer.ended is Ended.CLIENT


def test_a_backlog_that_grows_is_outside_whatever_the_latencies() -> None:
    answer = searched(lambda load: ProbeVerdict(judged=judged(0.0), overloaded=load > 40)).answer
    assert 38 <= answer.load <= 40
    assert "the backlog grows" in answer.reason


def test_a_load_just_above_the_capacity_that_passes_by_chance_does_not_lead_far_away() -> None:
    """A device of 310 requests/s, of which a short probe at 320 once looks good; all that is above
    is overloaded, and serves 310."""
    lucky = [320.0]

    def device(load: float) -> ProbeVerdict:
        if load in lucky:
            lucky.remove(load)
            return ProbeVerdict(judged=judged(0.01), served_share=1.0)
        if load <= 310:
            return ProbeVerdict(judged=judged(0.01), served_share=1.0)
        return ProbeVerdict(judged=judged(0.9), overloaded=True, served_share=310 / load)

    search = searched(device, first=40, highest=10_000, whole=False)
    assert 0.95 * 310 <= search.answer.load <= 310, [step.load for step in search.steps]
    assert len(search.steps) <= 12


def test_a_load_that_passed_above_what_is_served_does_not_lead_away_either() -> None:
    """As above, on a device that serves less the more it is overloaded, as a real one did."""
    lucky = [320.0]

    def device(load: float) -> ProbeVerdict:
        if load in lucky:
            lucky.remove(load)
            return ProbeVerdict(judged=judged(0.01), served_share=1.0)
        if load <= 300:
            return ProbeVerdict(judged=judged(0.01), served_share=1.0)
        return ProbeVerdict(
            judged=judged(0.9), overloaded=load > 400, served_share=(318 - load / 130) / load
        )

    search = searched(device, first=40, highest=10_000, whole=False)
    loads = [step.load for step in search.steps]
    assert 0.95 * 300 <= search.answer.load <= 300, loads
    assert search.answer.confirmed, loads


def test_a_load_that_failed_once_by_chance_is_tried_again() -> None:
    """The first probe meets a bad moment at a load that the device carries easily."""
    unlucky = [40.0]

    def device(load: float) -> ProbeVerdict:
        if load in unlucky:
            unlucky.remove(load)
            return ProbeVerdict(judged=judged(0.4), served_share=1.0)
        return slope(70)(load)

    search = searched(device, first=40, highest=10_000, whole=False)
    assert 67 <= search.answer.load <= 72, [step.load for step in search.steps]
    assert any(step.why.startswith("again") for step in search.steps)


@pytest.mark.parametrize("first", [10, 20, 25, 30, 35])
def test_a_load_that_fails_its_confirmation_gives_way_to_a_lower_one(first: float) -> None:
    """Above 38, the first load alone passes, as on a drive whose cache is not full yet."""
    seen: list[float] = []

    def probe(load: float) -> ProbeVerdict:
        worn = load > 38 and any(before > 38 for before in seen)
        seen.append(load)
        return ProbeVerdict(judged=judged(0.0 if load <= 40 and not worn else 0.5))

    answer = searched(probe, first=first, most_probes=16).answer
    assert answer.confirmed
    assert 36 <= answer.load <= 38


def test_without_probes_to_confirm_it_the_answer_says_so() -> None:
    answer = searched(slope(5000), first=1, most_probes=5).answer
    assert not answer.confirmed or answer.ended is Ended.UNFINISHED
    assert "the search ended before" in answer.reason


def test_an_interrupted_search_has_an_answer_too() -> None:
    search = CapacitySearch(SearchRules(first=10, highest=100))
    assert (search.answer.load, search.answer.ended) == (0, Ended.UNFINISHED)
    assert search.answer.reason == "no load was tried"
    search.report(10, slope(50)(10))
    answer = search.answer
    assert (answer.load, answer.confirmed, answer.ended) == (10, False, Ended.UNFINISHED)
    assert "not confirmed: 1 of 3 probes were near 10" in answer.reason


def test_a_load_that_was_not_asked_for_is_refused() -> None:
    search = CapacitySearch(SearchRules(first=10, highest=100))
    assert search.next_load() == search.next_load() == 10
    with pytest.raises(ValueError, match="10"):
        search.report(11, slope(50)(11))


def test_a_class_without_requests_is_the_reason() -> None:
    def probe(_: float) -> ProbeVerdict:
        counts = (ProbeCount(0, 1000), ProbeCount(0, 0))
        return ProbeVerdict(judged=judge(TWO, [counts] * 20, longest=20))

    answer = searched(probe).answer
    assert answer.load == 0
    assert "shows nothing for batch:p90<5000ms: no request of the class ended" in answer.reason


@given(
    capacity=st.floats(0.3, 30_000),
    first=st.integers(1, 20_000),
    highest=st.integers(20_000, 100_000),
    whole=st.booleans(),
    noise=st.one_of(st.none(), st.integers(0, 2**32)),
    probes=st.integers(3, 16),
)
def test_every_search_ends_within_its_probes_and_loads(
    capacity: float, first: int, highest: int, whole: bool, noise: int | None, probes: int
) -> None:
    dice = None if noise is None else np.random.default_rng(noise)
    search = searched(
        slope(capacity, dice), first=first, highest=highest, whole=whole, most_probes=probes
    )
    answer = search.answer
    assert answer.probes <= probes
    assert all(1 <= step.load <= highest for step in search.steps)
    assert not whole or all(step.load % 1 == 0 for step in search.steps)
    assert answer.low >= 0
    assert answer.high is None or answer.low < answer.high
    if answer.load:
        passed = {step.load for step in search.steps if step.verdict.inside}
        assert answer.load in passed or min(passed) < answer.load == pytest.approx(
            answer.low, rel=1e-5
        )
    if answer.confirmed:
        assert len(answer.steps) >= 3
        assert (
            answer.high is None or answer.high <= 1.5 * answer.low or answer.high == answer.low + 1
        )


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"first": 0}, "in this order"),
        ({"first": 200_000}, "in this order"),
        ({"lowest": 11}, "in this order"),
        ({"highest": float("inf")}, "in this order"),
        ({"first": float("nan")}, "in this order"),
        ({"first": 1.5}, "a number of users is whole"),
        ({"confirmations": 0}, "probes cannot hold"),
        ({"most_probes": 2}, "2 probes cannot hold 3"),
    ],
)
def test_rules_that_contradict_one_another_are_refused(rules: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SearchRules(**{"first": 10, "highest": 100_000, **rules})


@pytest.mark.parametrize(("reads", "writes", "left"), [(17, 2000, 1), (17, 20, 2)])
def test_few_reads_beside_many_writes_are_no_fault_of_a_search(
    reads: int, writes: int, left: int
) -> None:
    """What a probe of few requests knows is the interval's matter."""
    rules = [{"rule": number, "status": "invalid"} for number in ("V30", "V6")]
    storage = {"read": {"operations": reads}, "write": {"operations": writes}}
    section = {"tiers": {"storage": storage}, "passport": {"rules": rules}}
    assert len(list(findings_on_the_answer(section))) == left
