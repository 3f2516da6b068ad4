"""A change of level within a series: named where there is one, and seldom where there is none."""

from math import sqrt

import numpy as np
import pytest

from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.change import change
from kv_cache.metrics.intervals import grown
from tests.unit.test_until import LEVEL, Rows, pace_of, processes

SERIES = [(0.0, 80), (0.0, 512), (0.5, 512), (0.9, 4096)]
"""Correlation of neighbours, and how many there are: of a run, slots of 0.25 s."""


def batches(row: Rows, count: int = 128) -> list[float]:
    cuts = np.round(np.linspace(0, len(row), min(count, len(row)) + 1)).astype(int)
    return [float(part.mean()) for part in np.split(row, cuts[1:-1])]


@pytest.mark.parametrize(("phi", "slots"), [*SERIES, (0.5, 128), (0.9, 256)])
def test_a_series_without_a_change_is_said_to_have_one_in_at_most_5_percent(
    phi: float, slots: int
) -> None:
    claimed = sum(change(batches(row)) is not None for row in processes(phi, 400, slots, seed=3))
    assert claimed <= 20


@pytest.mark.parametrize(("phi", "slots"), SERIES)
def test_a_change_larger_than_two_widths_of_the_interval_is_named_with_its_instant(
    phi: float, slots: int
) -> None:
    """Two to four widths, up or down, anywhere but in the outer fifths of the series."""
    rng, named, near, runs = np.random.default_rng(11), 0, 0, 400
    for row in processes(phi, runs, slots, seed=4):
        level = grown(batches(row))
        assert level is not None
        size = rng.uniform(2, 4) * 2 * level.reach() * rng.choice([-1, 1])
        at = rng.uniform(0.2, 0.8)
        stepped = row + size * (np.arange(slots) >= at * slots)
        found = change(batches(stepped))
        if found is not None and (found.after > found.before) == (size > 0):
            named += 1
            near += abs(found.at - at) <= 0.1
    assert named >= 0.95 * runs
    assert near >= 0.9 * runs


def test_few_values_and_a_constant_series_have_no_change() -> None:
    assert change([1.0] * 11 + [2.0] * 12) is None
    assert change([1.0] * 100) is None


def test_a_step_without_noise_is_named_and_a_run_tells_it_in_seconds() -> None:
    noise = 1e-3 * processes(0.0, 1, 240, seed=1)[0]
    paced = pace_of(noise - 0.25 * (np.arange(240) >= 136), 1.0)(60 * NS_PER_S)
    found = paced.change()
    assert found is not None
    assert found.at * 60 == pytest.approx(34, abs=1)
    assert found.before == pytest.approx(LEVEL, rel=0.01)
    assert found.after == pytest.approx(0.75 * LEVEL, rel=0.01)
    assert found.t > sqrt(1000)
