"""Which of several is drawn: by weight, or by rank where some are more popular than others."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random


def weighted_place(sums: Sequence[float], share: float) -> int:
    """Return the place whose weight holds `share` (0 to 1) of all; `sums` are weights added up."""
    return min(bisect_right(sums, share * sums[-1]), len(sums) - 1)


class Popularity:
    """`count` ranks, the most popular first. With an exponent `zipf_s` the chance of the i-th
    (from 1) is proportional to 1 / i^zipf_s; without, all are alike."""

    __slots__ = ("_count", "_sums")

    def __init__(self, count: int, zipf_s: float | None) -> None:
        self._count = count
        ranks = range(1, count + 1) if zipf_s is not None else ()
        self._sums = tuple(accumulate(1 / rank ** (zipf_s or 0.0) for rank in ranks))

    def draw(self, rng: Random) -> int:
        """Return a rank from 0."""
        if not self._sums:
            return rng.randrange(self._count)
        return weighted_place(self._sums, rng.random())
