"""What turns of two sides show, of a device whose speed wanders."""

import math
import random

import pytest

from kv_cache.metrics.order import PairedDifference
from kv_cache.metrics.turns import difference_in_turns


def turns(logs: list[float]) -> PairedDifference | None:
    at = range(len(logs))
    return difference_in_turns(logs[::2], logs[1::2], at[::2], at[1::2])


def test_a_trend_and_a_slow_wave_are_no_difference() -> None:
    """Pairs say that the second side has 0.05 more of what grows by 0.05 a turn."""
    trend = turns([0.05 * k + 0.01 * (k % 2) for k in range(40)])
    assert trend is not None
    assert trend.mean == pytest.approx(0.01, abs=0.002)
    wave = turns([math.sin(k / 3) + 0.01 * (k % 2) for k in range(40)])
    assert wave is not None
    assert 0.01 in wave.interval()
    assert wave.error < 0.01


def test_the_interval_holds_the_difference_as_often_as_it_says() -> None:
    """Neighbours alike by 0.9; of 200 intervals of 95 %, 182 to 198 hold in all but 1 of 100."""
    held = 0
    for seed in range(200):
        rng, level, logs = random.Random(seed), 0.0, []
        for k in range(24):
            level = 0.9 * level + rng.gauss(0, 0.1)
            logs.append(level + rng.gauss(0, 0.04) - 0.05 * (k % 2))
        known = turns(logs)
        held += known is not None and -0.05 in known.interval()
    assert 182 <= held <= 198


def test_sides_that_took_no_turns_or_few_show_nothing() -> None:
    logs = [random.Random(3).gauss(0, 0.04) for _ in range(40)]
    assert difference_in_turns(logs[:20], logs[20:], range(20), range(20, 40)) is None
    assert turns(logs[:14]) is None
    assert turns(logs[:16]) is not None
    assert turns([*logs[:-1], math.inf]) is None
