"""Where the level of a few runs of one thing changed, run after run over months.

Each place between two runs may be a step. The means of both sides differ by Student's t, with the
spread that both have around their own mean, so that one side may be a single run: the latest. All
places are one family (Bonferroni), so that in 5 % of series without a step one is found by chance;
neighbours that are alike widen the error as in `compare`. What lies before and after a step is
looked at in the same way (binary segmentation: Scott and Knott, Biometrics 30, 1974). A fall that
was made good again hides behind its recovery, as one step explains neither.
`metrics/change` is for the hundreds of parts of one run.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import exp, fsum, isfinite, log, sqrt
from typing import NamedTuple

from kv_cache.metrics.intervals import CONFIDENCE, Interval, series_inflation, t_quantile

LEAST_RUNS = 4
"""With fewer, nothing is known of the spread on both sides."""
_ENOUGH_NEIGHBOURS = 8  # to say how alike they are
_ROUNDING = 1e-12  # of logarithms


class Step(NamedTuple):
    """`at` runs were before it; from then on there is `ratio` times as much."""

    at: int
    ratio: float
    interval: Interval


def steps(values: Sequence[float], confidence: float = CONFIDENCE) -> list[Step]:
    """Return the steps of a series of runs in their order; none where values are not above 0."""
    if not all(isfinite(value) and value > 0 for value in values):
        return []
    return _steps([log(value) for value in values], 0, confidence)


def _steps(logs: Sequence[float], start: int, confidence: float) -> list[Step]:
    step = _step(logs, confidence)
    if step is None:
        return []
    before, after = logs[: step.at], logs[step.at :]
    return [
        *_steps(before, start, confidence),
        step._replace(at=start + step.at),
        *_steps(after, start + step.at, confidence),
    ]


def _step(logs: Sequence[float], confidence: float) -> Step | None:
    count = len(logs)
    if count < LEAST_RUNS:
        return None
    sums, whole = list(accumulate(logs)), fsum(logs)
    _, at, before, after = max(
        (_between(count, cut, sums[cut - 1] / cut, (whole - sums[cut - 1]) / (count - cut)))
        for cut in range(1, count)
    )
    left = [value - (before if place < at else after) for place, value in enumerate(logs)]
    error = sqrt(fsum(x * x for x in left) / (count - 2) * (1 / at + 1 / (count - at)))
    if count >= _ENOUGH_NEIGHBOURS:
        error *= series_inflation(left)
    tail = (1 - confidence) / (count - 1) / 2
    reach, change = error and error * t_quantile(1 - tail, count - 2), after - before
    if abs(change) <= max(reach, _ROUNDING):
        return None
    return Step(at, exp(change), Interval(exp(change - reach), exp(change + reach)))


def _between(count: int, cut: int, before: float, after: float) -> tuple[float, int, float, float]:
    """Return how much of the spread a cut explains, and the cut with the means on both sides."""
    return (after - before) ** 2 * cut * (count - cut) / count, cut, before, after
