"""Steps between the runs of one configuration over time."""

from math import exp
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.metrics.trend import LEAST_RUNS, steps

_positive = st.floats(min_value=1e-3, max_value=1e12)


def runs(dice: Random, count: int, *, at: int = 0, fall: float = 0.0) -> list[float]:
    """Runs that spread by 1 %, from the place `at` on lower by `fall`."""
    return [exp(dice.gauss(0, 0.01)) * (1 - fall if i >= at else 1) for i in range(count)]


@pytest.mark.parametrize("count", [4, 6, 8, 12, 24])
def test_a_step_is_found_by_chance_in_one_of_twenty_series_at_most(count: int) -> None:
    dice = Random(7)
    falsely = sum(bool(steps(runs(dice, count))) for _ in range(600))
    assert falsely <= 0.05 * 600 + 11  # two standard errors


@pytest.mark.parametrize(("count", "at"), [(6, 5), (12, 6), (20, 15), (20, 1)])
def test_a_fall_by_a_tenth_is_found_where_it_is_and_within_its_interval(
    count: int, at: int
) -> None:
    dice = Random(11)
    within = 0
    for _ in range(100):
        found = steps(runs(dice, count, at=at, fall=0.1))
        here = [step for step in found if step.at == at]
        within += bool(here) and 0.9 in here[0].interval
    assert within >= 93


def test_two_steps_are_both_found() -> None:
    dice = Random(3)
    values = runs(dice, 10) + runs(dice, 10, fall=0.1) + runs(dice, 10, fall=0.3)
    assert [step.at for step in steps(values)] == [10, 20]


@given(st.lists(_positive, max_size=LEAST_RUNS - 1))
def test_fewer_than_four_runs_show_nothing(values: list[float]) -> None:
    assert steps(values) == []


@given(st.lists(_positive, min_size=4, max_size=20), st.floats(0.01, 100))
def test_the_unit_changes_nothing(values: list[float], unit: float) -> None:
    def places(found: Any) -> list[int]:
        return [step.at for step in found if not step.interval.low < 1.0000001 < step.interval.high]

    assert places(steps([value * unit for value in values])) == places(steps(values))


@given(_positive, st.integers(4, 20))
def test_equal_runs_have_no_step(value: float, count: int) -> None:
    assert steps([value] * count) == []


def test_runs_that_repeat_exactly_show_their_step() -> None:
    (step,) = steps([2.0, 2.0, 2.0, 1.0, 1.0])
    assert step.at == 3
    assert step.ratio == pytest.approx(0.5)


@pytest.mark.parametrize("odd", [0.0, -1.0, float("nan"), float("inf")])
def test_what_has_no_logarithm_has_no_trend(odd: float) -> None:
    assert steps([1.0, 2.0, odd, 4.0, 5.0]) == []
