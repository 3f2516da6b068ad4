"""Histograms against the sorted samples that they stand for."""

from fractions import Fraction
from math import ceil

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_cache.metrics.histogram import (
    BUCKETS,
    RELATIVE_ERROR,
    Histogram,
    Values,
    WindowValues,
    bucket_bounds,
    bucket_of,
    merged,
    supported,
)
from kv_cache.metrics.summary import PERCENTILES

LARGEST = 2**63 - 1

values = st.one_of(
    st.integers(0, 2000),
    st.integers(0, LARGEST),
    st.integers(0, 62).flatmap(lambda n: st.integers(max(0, 2**n - 2), 2**n + 2)),
)
percents = st.one_of(
    st.sampled_from(tuple(PERCENTILES.values())),
    st.integers(0, 10_000).map(lambda n: n / 100),
)


def of(samples: list[int]) -> Histogram:
    histogram = Histogram()
    for value in samples:
        histogram.add(value)
    return histogram


def at_rank(samples: list[int], percent: float) -> int:
    """The definition, with whole numbers: rank ceil(percent/100 * count), at least 1."""
    rank = max(1, ceil(Fraction(str(percent)) * len(samples) / 100))
    return sorted(samples)[rank - 1]


@given(samples=st.lists(values, min_size=1, max_size=300), percent=percents)
def test_a_percentile_is_the_sample_at_its_rank_within_the_bound(
    samples: list[int], percent: float
) -> None:
    found, exact = of(samples).at_rank(percent), at_rank(samples, percent)
    assert found is not None
    # A float holds 53 bits: its own rounding comes on top for the largest values.
    assert abs(Fraction(found) - exact) <= Fraction(RELATIVE_ERROR) * exact + Fraction(exact, 2**52)
    assert min(samples) <= exact <= max(samples)


@given(
    samples=st.lists(values, min_size=1, max_size=100),
    ages=st.lists(values, max_size=30),
    percent=percents,
)
def test_what_is_in_flight_never_makes_a_percentile_smaller_and_only_if_older_larger(
    samples: list[int], ages: list[int], percent: float
) -> None:
    without, histogram = of(samples).bounds((percent,))[0], of(samples)
    for age in ages:
        histogram.add_in_flight(age)
    (found,) = histogram.bounds((percent,))
    assert found.value >= without.value
    assert without.at_least is False
    if all(bucket_of(age) <= bucket_of(min(int(without.value), LARGEST)) for age in ages):
        assert found == without


small = st.integers(1, 511)  # with a bucket each


@given(
    samples=st.lists(small, min_size=1, max_size=60),
    waits=st.lists(st.tuples(small, st.integers(0, 511)), max_size=20),
    percent=percents,
)
def test_a_percentile_is_what_it_becomes_when_all_has_ended_unless_it_is_a_lower_bound(
    samples: list[int], waits: list[tuple[int, int]], percent: float
) -> None:
    """`waits` are (age, how much longer it takes); younger ones count as if they were not."""
    histogram, without = of(samples), at_rank(samples, percent)
    for age, _ in waits:
        histogram.add_in_flight(age)
    older = [age + more for age, more in waits if age > without]
    true = at_rank([*samples, *older], percent)
    (found,) = histogram.bounds((percent,))
    assert found.value <= true
    assert found.value == at_rank([*samples, *(a for a, _ in waits if a > without)], percent)
    if not found.at_least:
        assert found.value == true


_AGES = st.lists(st.integers(1, LARGEST // 9), max_size=9)  # whose sum fits 64 bits


_SUMMED = st.integers(0, LARGEST // 20)  # likewise


@given(samples=st.lists(_SUMMED, max_size=20), ages=_AGES)
def test_ages_are_merged_and_kept_and_are_in_no_count(samples: list[int], ages: list[int]) -> None:
    whole, parts = of(samples), [of(samples[:7]), of(samples[7:])]
    for number, age in enumerate(ages):
        whole.add_in_flight(age)
        parts[number % 2].add_in_flight(age)
    back = Histogram.from_json(orjson.loads(orjson.dumps(whole.to_json())))
    assert merged(parts).to_json() == whole.to_json() == back.to_json()
    assert whole.count == len(samples)
    assert ("in_flight" in whole.to_json()) is bool(ages)
    whole.clear()
    assert whole.in_flight is None


@given(samples=st.lists(st.integers(0, 511), min_size=1, max_size=300), percent=percents)
def test_percentiles_of_small_values_are_exact(samples: list[int], percent: float) -> None:
    assert of(samples).at_rank(percent) == at_rank(samples, percent)


@given(samples=st.lists(st.integers(0, 511), max_size=400), percent=percents)
def test_a_percentile_is_given_where_ten_values_lie_beyond_it(
    samples: list[int], percent: float
) -> None:
    enough = len(samples) * (100 - Fraction(str(percent))) >= 1000
    exact = at_rank(samples, percent) if enough else None
    histogram = of(samples)
    assert histogram.percentile(percent) == exact
    assert histogram.percentiles((percent, 99.99)) == [exact, None]


@pytest.mark.parametrize(
    ("percent", "fewest"),
    [(50, 20), (90, 100), (95, 200), (99, 1000), (99.9, 10_000), (99.99, 100_000)],
)
def test_how_many_values_each_percentile_wants_is_exact(percent: float, fewest: int) -> None:
    assert supported(fewest, percent)
    assert not supported(fewest - 1, percent)


@pytest.mark.parametrize(("percent", "count"), [(99.9, 1000), (99.9, 7000), (99.99, 10_000)])
def test_the_largest_of_many_is_not_taken_for_the_percentile_below_it(
    percent: float, count: int
) -> None:
    """99.9 / 100 * 1000 is above 999 in binary: a rounding would report the maximum."""
    outlier = 10**12
    found = of([*range(100, 100 + count - 1), outlier]).at_rank(percent)
    assert found is not None
    assert found < 10**5


@given(samples=st.lists(values, max_size=300))
def test_count_sum_minimum_maximum_and_mean_are_exact(samples: list[int]) -> None:
    histogram = of(samples)
    assert histogram.count == len(samples)
    assert histogram.total == sum(samples)
    assert histogram.lowest == min(samples, default=None)
    assert histogram.highest == max(samples, default=None)
    assert histogram.mean == (sum(samples) / len(samples) if samples else None)
    assert sum(histogram.buckets().values()) == len(samples)


@given(samples=st.lists(values, min_size=1))
def test_the_hundredth_percentile_is_the_maximum_and_all_stay_within_the_extremes(
    samples: list[int],
) -> None:
    histogram = of(samples)
    assert histogram.at_rank(100) == float(max(samples))
    found = histogram.at_ranks(range(101))
    assert found == sorted(found)
    assert float(min(samples)) <= found[0]


def test_an_empty_histogram_has_no_percentile_mean_or_share() -> None:
    empty = Histogram()
    assert empty.percentile(50) is None
    assert empty.at_rank(50) is None
    assert empty.mean is None
    assert empty.share_at_most(10) is None


@given(parts=st.lists(st.lists(values, max_size=60), max_size=5))
def test_merging_is_the_same_as_pooling_the_samples(parts: list[list[int]]) -> None:
    pooled = of([value for part in parts for value in part])
    one = merged(of(part) for part in parts)
    other = merged(of(part) for part in reversed(parts))
    assert one.to_json() == other.to_json() == pooled.to_json()


@given(first=st.lists(values), second=st.lists(values))
def test_merging_leaves_the_merged_histogram_alone(first: list[int], second: list[int]) -> None:
    total, part = of(first), of(second)
    total.merge(part)
    part.add(5)
    assert total.to_json() == of(first + second).to_json()
    assert part.to_json() == of([*second, 5]).to_json()


@given(samples=st.lists(values, max_size=100))
def test_a_histogram_survives_json(samples: list[int]) -> None:
    histogram = of(samples)
    text = orjson.dumps(histogram.to_json()) if histogram.total <= LARGEST else None
    data = orjson.loads(text) if text is not None else histogram.to_json()
    back = Histogram.from_json(data)
    assert back.to_json() == histogram.to_json()
    back.add(7)
    assert back.to_json() == of([*samples, 7]).to_json()
    assert back.at_rank(50) == of([*samples, 7]).at_rank(50)


@given(value=values)
@example(511)
@example(512)
@example(LARGEST)
def test_a_value_lies_in_its_bucket_and_adding_uses_that_bucket(value: int) -> None:
    low, high = bucket_bounds(bucket_of(value))
    assert low <= value <= high
    assert bucket_of(low) == bucket_of(high) == bucket_of(value)
    assert of([value]).buckets() == {bucket_of(value): 1}
    assert (high - low) * 256 <= low


@given(bucket=st.integers(0, bucket_of(LARGEST) - 1))
@example(511)
def test_buckets_touch_and_neither_overlap_nor_leave_a_gap(bucket: int) -> None:
    assert bucket_bounds(bucket)[1] + 1 == bucket_bounds(bucket + 1)[0]
    assert bucket_of(bucket_bounds(bucket)[0]) == bucket


def test_all_times_of_63_bits_fit_a_bounded_number_of_buckets() -> None:
    assert bucket_bounds(0) == (0, 0)
    assert bucket_of(LARGEST) + 1 == BUCKETS <= 256 * 56
    assert bucket_bounds(bucket_of(LARGEST))[1] == LARGEST


@given(samples=st.lists(values, min_size=1), limit=values)
def test_the_share_at_most_a_limit_counts_no_sample_wrong_that_is_far_from_it(
    samples: list[int], limit: int
) -> None:
    _, high = bucket_bounds(bucket_of(limit))
    share = of(samples).share_at_most(limit)
    assert share == sum(value <= high for value in samples) / len(samples)


@given(samples=st.lists(values, max_size=300))
def test_counts_by_powers_of_two_are_exact(samples: list[int]) -> None:
    counted: dict[int, int] = {}
    for value in sorted(samples):
        exponent = max(1, value).bit_length() - 1
        counted[exponent] = counted.get(exponent, 0) + 1
    assert of(samples).octaves() == counted


@given(samples=st.lists(values, min_size=1, max_size=100), times=st.sampled_from([1, 3, 40]))
def test_many_values_at_once_are_in_the_buckets_of_each(samples: list[int], times: int) -> None:
    """A thousand are put there by numpy, where a float has each of them exactly."""
    together = Histogram()
    together.add_all(Values.of(samples * times))
    assert together.to_json() == of(samples * times).to_json()


@given(samples=st.lists(values, min_size=1, max_size=100), times=st.sampled_from([1, 3, 40]))
def test_what_is_read_of_a_window_is_what_a_histogram_says(samples: list[int], times: int) -> None:
    """Few are kept as they are, one after the other or all at once; more are a histogram."""
    expected, window = of(samples * times), WindowValues()
    for _ in range(2):
        for value in samples:
            window.add(value)
        if times > 1:
            window.add_all(samples * (times - 1))
        assert window.count == expected.count
        assert window.read((50, 95, 99.9)) == (
            expected.highest, expected.at_ranks((50, 95, 99.9))
        )  # fmt: skip
        assert window.histogram().to_json() == expected.to_json()
        window.clear()
        assert not window.count
