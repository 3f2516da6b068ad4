"""Intervals: against values that SciPy computed, SciPy itself where it is installed, and laws."""

from itertools import pairwise
from math import exp, inf, nan, sqrt
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kv_cache.metrics.intervals import (
    Interval,
    autocorrelation,
    bounded_interval,
    coefficient_of_variation,
    geometric_mean,
    grown,
    incomplete_beta,
    interval_beside_mean,
    mean_interval,
    ratio_interval,
    share_at_least,
    share_at_most,
    share_interval,
    t_quantile,
)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-8)


counts = st.tuples(st.floats(0, 1), st.floats(0.5, 1e5)).map(lambda p: (p[0] * p[1], p[1]))
whole_counts = st.integers(1, 5000).flatmap(
    lambda n: st.tuples(st.integers(0, n), st.just(n)).map(lambda p: (float(p[0]), float(p[1])))
)
confidences = st.sampled_from([0.5, 0.8, 0.95, 0.999])
positive = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("hits", "count", "confidence", "low", "high"),
    [
        (0, 30, 0.95, 0.0, 0.11570330822202778),
        (5, 100, 0.95, 0.016431879182052158, 0.11283491110546275),
        (50, 1000, 0.95, 0.03733539760466178, 0.06539048791549364),
        (100, 100, 0.95, 0.9637833073548235, 1.0),
        (3.5, 70.25, 0.99, 0.007143664829279557, 0.1582545780805585),
        (1, 1e6, 0.95, 2.53178076637942e-08, 5.571630655166939e-06),
    ],
)
def test_a_share_has_the_interval_of_clopper_and_pearson(
    hits: float, count: float, confidence: float, low: float, high: float
) -> None:
    assert share_interval(hits, count, confidence) == (near(low), near(high))


@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=8), confidence=confidences)
def test_an_interval_of_shares_stays_within_0_and_1(values: list[float], confidence: float) -> None:
    found = bounded_interval(values, confidence, most=1.0)
    assert found is not None
    assert 0 <= found.low <= found.high <= 1


@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=12), most=st.sampled_from([1.0, inf]))
@example([318.8, 4.27, 5.37, 5.44, 5.51, 4.77, 4.86, 4.2, 5.31, 5.58], inf)
@example([3.0, 3.0, 3.0], inf)
def test_a_mean_lies_in_the_interval_that_is_shown_beside_it(
    values: list[float], most: float
) -> None:
    """The first were p50 of ten seeds, one of which met a queue: 36 between 2.96 and 19.5."""
    found = interval_beside_mean(values, most=most)
    assert found is not None
    assert fmean(values) in found
    assert 0 <= found.low <= found.high <= max(most, *values)


@given(values=st.lists(st.floats(0, 1e12), min_size=2, max_size=8), confidence=confidences)
def test_an_interval_of_rates_times_and_sizes_never_goes_below_0(
    values: list[float], confidence: float
) -> None:
    found = bounded_interval(values, confidence)
    assert found is not None
    assert 0 <= found.low <= found.high


def test_an_interval_of_positive_values_is_that_of_their_logarithms() -> None:
    """What three short trials gave: the interval of the mean began at -0.03."""
    values = [0.0218, 0.0462, 0.0787]
    plain, found = mean_interval(values), bounded_interval(values)
    twice = bounded_interval([2.0 * value for value in values])
    assert plain is not None
    assert found is not None
    assert plain.low < 0
    assert found == (near(0.008653976237807802), near(0.21322253513420064))
    assert geometric_mean(values) in found
    assert twice == (near(2 * found.low), near(2 * found.high))


def test_an_interval_of_shares_is_the_same_from_either_side() -> None:
    hits = [0.12, 0.4, 0.82]
    found = bounded_interval(hits, most=1.0)
    misses = bounded_interval([1 - share for share in hits], most=1.0)
    assert found is not None
    assert misses == (near(1 - found.high), near(1 - found.low))
    assert bounded_interval([0.0, 0.4, 1.0], most=1.0) == (0.0, 1.0)
    some = mean_interval([0.0, 0.0, 1.0])
    assert some is not None
    assert bounded_interval([0.0, 0.0, 1.0]) == (0.0, near(some.high))


def test_an_interval_of_one_value_or_of_what_is_no_number_is_none() -> None:
    assert bounded_interval([1.0]) is None
    assert bounded_interval([1.0, nan]) is None
    assert bounded_interval([0.5, 0.5], most=1.0) == (near(0.5), near(0.5))


@pytest.mark.parametrize(
    ("probability", "dof", "quantile"),
    [
        (0.975, 1, 12.706204736174694),
        (0.975, 4, 2.7764451051977934),
        (0.995, 2.5, 7.163728138948783),
        (0.6, 30, 0.2556053649519128),
        (0.999, 1e4, 3.091047516030612),
        (0.025, 7, -2.3646242515927844),
        (0.5, 3, 0.0),
    ],
)
def test_the_quantiles_of_student_are_those_of_the_tables(
    probability: float, dof: float, quantile: float
) -> None:
    assert t_quantile(probability, dof) == near(quantile)


def test_means_and_ratios_have_the_intervals_that_other_programs_compute() -> None:
    values = [9.8, 10.1, 10.4, 9.9, 10.3]
    assert mean_interval(values) == (near(9.783436552191668), near(10.41656344780833))
    assert coefficient_of_variation(values) == near(0.02524267085937022)
    found = ratio_interval([100, 110, 95, 105], [200, 260, 190])
    assert found is not None
    assert found[0] == near(2.0965694384068034)
    assert found[1] == (near(1.4435922021488634), near(3.0449065903226207))


@settings(deadline=None)  # the first import of SciPy is slow
@given(st.one_of(counts, whole_counts), confidences)
def test_shares_agree_with_scipy(pair: tuple[float, float], confidence: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    (hits, count), tail = pair, (1 - confidence) / 2
    assume(hits == 0 or hits > 1e-3)  # below, SciPy itself is not sure
    found = share_interval(hits, count, confidence)
    if hits:
        expected = stats.beta.ppf(tail, hits, count - hits + 1)
        assert found.low == pytest.approx(expected, rel=1e-7, abs=1e-12)
    if count - hits > 1e-3:
        expected = stats.beta.ppf(1 - tail, hits + 1, count - hits)
        assert found.high == pytest.approx(expected, rel=1e-7)


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0.5, 1e6))
def test_quantiles_agree_with_scipy(probability: float, dof: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.t.ppf(probability, dof)
    assert t_quantile(probability, dof) == pytest.approx(expected, rel=1e-6, abs=1e-7)


@given(st.one_of(counts, whole_counts), confidences)
@example((0.0, 1e5), 0.95)
def test_at_its_ends_a_shares_interval_leaves_the_chance_that_is_allowed(
    pair: tuple[float, float], confidence: float
) -> None:
    (hits, count), tail = pair, (1 - confidence) / 2
    low, high = share_interval(hits, count, confidence)
    assert 0 <= low <= hits / count <= high <= 1
    if 1e-9 < low < 1:
        assert share_at_least(hits, count, low) == pytest.approx(tail, rel=1e-6)
    if 0 < high < 1 - 1e-6:  # nearer to 1, its own digits end
        assert share_at_most(hits, count, high) == pytest.approx(tail, rel=1e-6)


@given(st.floats(0.001, 0.999), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_the_beta_function_is_one_with_its_mirror_image(x: float, a: float, b: float) -> None:
    assert incomplete_beta(x, a, b) + incomplete_beta(1 - x, b, a) == pytest.approx(1, abs=1e-9)


@given(whole_counts, st.floats(1.5, 50))
def test_more_of_the_same_makes_a_share_surer(pair: tuple[float, float], times: float) -> None:
    hits, count = pair
    once, more = share_interval(hits, count), share_interval(times * hits, times * count)
    assert once.low <= more.low + 1e-12
    assert more.high <= once.high + 1e-12


@given(positive, positive)
def test_a_ratio_turned_round_is_its_inverse(a: list[float], b: list[float]) -> None:
    forth, back = ratio_interval(a, b), ratio_interval(b, a)
    assert forth is not None
    assert back is not None
    assert forth[0] in forth[1]
    assert forth[0] * back[0] == pytest.approx(1)
    if forth[1].low > 1e-100 and forth[1].high < 1e100:
        assert forth[1].low * back[1].high == pytest.approx(1)


def test_of_nothing_every_share_is_possible() -> None:
    assert share_interval(0, 0) == (0, 1)


def test_values_without_spread_have_an_interval_without_width() -> None:
    assert mean_interval([5.0, 5.0, 5.0]) == (5.0, 5.0)
    assert coefficient_of_variation([5.0, 5.0]) == 0
    found = ratio_interval([2.0, 2.0], [4.0, 4.0])
    assert found is not None
    assert found[0] == pytest.approx(2)
    assert found[1] == (found[0], found[0])


def test_two_values_far_apart_leave_a_ratio_open() -> None:
    found = ratio_interval([1.0, 100.0], [1.0, 200.0], confidence=0.999999)
    assert found is not None
    assert found[1] == (0, inf)


def test_a_side_without_spread_leaves_that_of_the_other() -> None:
    found = ratio_interval([2.0, 2.0, 2.0], [3.9, 4.0, 4.1])
    assert found is not None
    low, high = found[1]
    assert 1.8 < low < found[0] < high < 2.2


@pytest.mark.parametrize("values", [[], [1.0], [1.0, inf], [1.0, nan]])
def test_too_few_values_or_one_that_is_none_have_no_interval(values: list[float]) -> None:
    assert mean_interval(values) is None
    assert coefficient_of_variation(values) is None
    assert ratio_interval(values, [1.0, 2.0]) is None
    assert ratio_interval([1.0, 2.0], values) is None


@pytest.mark.parametrize("values", [[0.0, 1.0], [-1.0, 1.0]])
def test_a_ratio_is_of_values_above_0(values: list[float]) -> None:
    assert ratio_interval(values, [1.0, 2.0]) is None
    assert ratio_interval([1.0, 2.0], values) is None


def test_around_0_values_have_no_coefficient_of_variation() -> None:
    assert coefficient_of_variation([-1.0, 1.0]) is None
    assert coefficient_of_variation([-1.0, -3.0]) == pytest.approx(2**0.5 / 2)


def test_a_number_is_in_an_interval_between_its_ends() -> None:
    assert 1.5 in Interval(1, 2)
    assert 2 in Interval(1, 2)
    assert 2.5 not in Interval(1, 2)


@pytest.mark.parametrize(("hits", "count"), [(-1, 10), (11, 10), (nan, 10)])
def test_counts_that_cannot_be_are_refused(hits: float, count: float) -> None:
    with pytest.raises(ValueError, match="hits"):
        share_interval(hits, count)


def test_a_certainty_is_no_confidence() -> None:
    for confidence in (0.0, 1.0, 95.0):
        with pytest.raises(ValueError, match="confidence"):
            share_interval(1, 2, confidence)
    with pytest.raises(ValueError, match="degrees of freedom"):
        t_quantile(0.9, 0)


def test_autocorrelation_is_none_of_constants_high_of_a_trend_and_low_of_a_zigzag() -> None:
    assert autocorrelation([3.0] * 10) == 0
    assert autocorrelation(list(range(10))) == pytest.approx(0.7)
    assert autocorrelation([1, 2] * 5) == pytest.approx(-0.9)


def _reach(values: list[float]) -> float:
    batches = grown(values)
    assert batches is not None
    return batches.reach()


def test_a_series_that_hangs_together_has_a_wider_interval_than_the_same_values_mixed() -> None:
    slow, mixed = [1.0, 1.1, 1.2, 1.3, 1.2, 1.1] * 3, [1.0, 1.3, 1.1, 1.2, 1.1, 1.2] * 3
    assert _reach(slow) > 1.3 * _reach(mixed)


def test_a_series_that_evens_itself_out_is_narrower_in_longer_batches_and_holds_its_level() -> None:
    """What one value is too high, the next is too low, nearly."""
    rng, held = Random(7), 0
    for _ in range(200):
        noise = [rng.gauss(0, 1) for _ in range(129)]
        values = [100 + now - 0.8 * before for before, now in pairwise(noise)]
        batches = grown(values)
        assert batches is not None
        assert batches.settled
        assert batches.size > 1
        assert batches.reach() < 0.8 * 1.98 * stdev(values) / sqrt(len(values))
        held += abs(fmean(values) - 100) <= batches.reach()
    assert held >= 190


def test_a_series_that_only_drifts_and_one_of_less_than_eight_values_have_no_interval() -> None:
    assert grown([float(n) for n in range(20)]) is None
    assert grown([1.0]) is None
    assert grown([1.0, inf, *[2.0] * 8]) is None


@pytest.mark.parametrize(("lasts", "least"), [(0.0, 0.93), (0.5, 0.92), (1.0, 0.89)])
def test_the_interval_of_a_series_holds_its_level_while_states_last_a_twentieth_of_it(
    lasts: float, least: float
) -> None:
    """Twenty batches of a process whose neighbours resemble each other (autoregressive, of order
    one): how often does the interval hold the level? `lasts` is in batches, e-folding."""
    rng, held, runs = Random(23), 0, 1000
    phi = exp(-1 / lasts) if lasts else 0.0
    for _ in range(runs):
        value, values = rng.gauss(0, 1), []
        for _ in range(20):
            value = phi * value + sqrt(1 - phi * phi) * rng.gauss(0, 1)
            values.append(100 + value)
        batches = grown(values)
        held += batches is None or abs(sum(values) / 20 - 100) <= batches.reach()
    assert held / runs >= least
