"""Whether the level of a series changed once, and where.

The best place for a step is where the means before and after it differ most for their spread
(max-t). Among so many places one looks good by chance: what is claimed is above what that largest
t is, without any step, in 5 % of series. It is held against batches that hardly correlate once the
step is taken out; where they still do, far more is wanted. `tests/unit/test_change.py` has how
often it is right.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, fsum, sqrt
from typing import NamedTuple

from kv_cache.metrics.intervals import SETTLED_BATCHES, Batches, batch_means, correlation

CLAIMED_T = 3.2
_CLAIMED_T_UNSETTLED = 5.0
_LEAST_PART = 0.1  # of the series, on each side


class LevelChange(NamedTuple):
    """`at` is the share of the series before the step."""

    at: float
    before: float
    after: float
    t: float


def change(values: Sequence[float]) -> LevelChange | None:
    """Return the step of a series of equally long parts of a run; None of a level, or of fewer than
    24 of them."""
    size = 1
    while (count := len(values) // size) >= SETTLED_BATCHES:
        means = batch_means(values, size)
        cut, before, after, distance = _step(means)
        left = [mean - (before if i < cut else after) for i, mean in enumerate(means)]
        batches = Batches(left, size, correlation(left))
        if batches.settled or count // 2 < SETTLED_BATCHES:
            spread = batches.error * sqrt(count) * sqrt((count - 1) / (count - 2))
            t = distance / spread if spread else 0.0
            claimed = t >= (CLAIMED_T if batches.settled else _CLAIMED_T_UNSETTLED)
            return LevelChange(cut / count, before, after, t) if claimed else None
        size *= 2
    return None


def _step(means: Sequence[float]) -> tuple[int, float, float, float]:
    """Return where the series is cut best, the means on both sides, and how far they are apart in
    units of what one value's spread makes of it."""
    count, sums = len(means), list(accumulate(means))
    whole = fsum(means)
    least = max(2, ceil(_LEAST_PART * count))
    steps = []
    for cut in range(least, count - least + 1):
        before, after = sums[cut - 1] / cut, (whole - sums[cut - 1]) / (count - cut)
        steps.append((abs(after - before) * sqrt(cut * (count - cut) / count), cut, before, after))
    distance, cut, before, after = max(steps)
    return cut, before, after, distance
