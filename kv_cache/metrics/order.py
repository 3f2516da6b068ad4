"""Whether one thing is shown to be better than another, whatever is compared: results, policies,
simulated variants, cells of a sweep.

Sides are compared in pairs: two runs with one seed, two trials with one schedule, two policies in
one stretch of a trace. What moves both sides of a pair alike drops out of their difference.

Seeds are independent. Stretches of one trace are a sample of others like it (batch means: Conway,
"Some tactical problems in digital simulation", Management Science 10(1), 1963), and neighbours are
alike, so that they count for fewer than they are. How alike is known badly of one pair. So it is
drawn towards the mean of all pairs, the more the less they differ beyond chance (James and Stein,
Proc. 4th Berkeley Symposium, 1961). Few sides tell that mean badly, and too low a one claims what
is not there: so a part of its standard error is added, and where hardly anything independent is
left nothing is said.

Fifteen policies make a hundred pairs, some of which differ by chance alone. All pairs of one
question are one family, and a difference is claimed only if it remains after Holm's correction
(Scandinavian Journal of Statistics 6, 1979), which keeps the chance of even one false claim at 1 -
`CONFIDENCE`. The interval of a difference is of the level at which its family ended: one that holds
0 is of a difference that is not claimed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from math import isfinite, sqrt
from statistics import fmean, stdev, variance
from typing import NamedTuple

from msgspec import Struct

from kv_cache.core.bounded import Number
from kv_cache.metrics.intervals import CONFIDENCE, Interval, IntervalEnds, correlation, t_quantile

LEAST_SEEDS = 3
"""With fewer, nothing is known of chance."""

MOST_COMPULSORY = 0.9
"""Share of the misses of the one with most of them that are first accesses, which no cache has:
from here on caches have no order."""

_LEAST_INDEPENDENT = 4
"""Values in order that must be left of a series: with fewer, how alike they are is not known."""

_CAUTION = 0.7
"""Standard errors of the mean correlation that are added to it. Held to series of known order by
benchmarks/order.py."""

_MOST_ALIKE = 0.9  # of neighbours; more can not be told from a trend


def compulsory_share(compulsory: float, missed: float) -> float | None:
    """Return the share of misses that were first accesses, if it leaves no order; else None."""
    share = compulsory / missed
    return share if share >= MOST_COMPULSORY else None


# --- one difference --------------------------------------------------------------------------


class PairedDifference(Struct, frozen=True, kw_only=True):
    """The mean of differences in pairs, with its standard error and its degrees of freedom."""

    mean: float
    error: float
    dof: float

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Return where the true mean lies (Student, 1908)."""
        reach = self.error and self.error * _quantile((1 + confidence) / 2, self.dof)
        return Interval(self.mean - reach, self.mean + reach)

    def claimed(self, alpha: float, least: float = 0.0) -> bool:
        """Return whether it is not 0 at this level, and large enough to matter."""
        return abs(self.mean) >= least and 0.0 not in self.interval(1 - alpha)


def difference_of(
    differences: Sequence[float], alike: float | None = None
) -> PairedDifference | None:
    """Return what the differences of pairs show. Where they are in order, neighbours correlate by
    `alike`: they count for as many independent ones as have a mean that is as sure. None where that
    is fewer than 2, or 4 of those in order, or where one is not finite."""
    r = 0.0 if alike is None else min(_MOST_ALIKE, max(0.0, alike))
    count = len(differences) * (1 - r) / (1 + r)
    least = 2 if alike is None else _LEAST_INDEPENDENT
    if count < least or not all(map(isfinite, differences)):
        return None
    return PairedDifference(
        mean=fmean(differences), error=stdev(differences) / sqrt(count), dof=round(count - 1, 3)
    )


@lru_cache(maxsize=4096)
def _quantile(probability: float, dof: float) -> float:
    return t_quantile(probability, dof)


# --- a family --------------------------------------------------------------------------------


class Corrected(NamedTuple):
    """Which tests of a family reject, and the level at which the others were tried last."""

    rejected: set[int]
    level: float


def holm(tests: Sequence[Callable[[float], bool]], alpha: float) -> Corrected:
    """Return which of the tests (each: does it reject at this level?) reject at a chance of `alpha`
    that even one does so falsely.

    Holm steps down from the smallest p value: the k-th smallest is held against alpha / (m - k + 1)
    until one fails. The same without p values: all that reject at alpha / (m - rejected) are
    rejected, until no more come.
    """
    rejected: set[int] = set()
    level = alpha
    while len(rejected) < len(tests):
        level = alpha / (len(tests) - len(rejected))
        now = rejected | {index for index, test in enumerate(tests) if test(level)}
        if now == rejected:
            break
        rejected = now
    return Corrected(rejected, level)


class Lead(Struct, frozen=True, kw_only=True):
    """By how much one side has more than another. `shown`: beyond doubt, either way."""

    mean: Number
    interval: IntervalEnds
    shown: bool

    @property
    def half(self) -> float:
        """Half of the interval."""
        return (self.interval.high - self.interval.low) / 2

    @property
    def equal(self) -> bool:
        """Whether both have the same in every pair: neither leads."""
        return self.mean == self.interval.low == self.interval.high == 0


class ComparedSides(Struct, frozen=True, kw_only=True):
    """Sides that were compared, all with all, by their places; more is better. `pairs` have the
    smaller place first; `level` is what is left of 1 - `CONFIDENCE` for each interval."""

    level: float
    pairs: Mapping[tuple[int, int], PairedDifference | None]
    shown: frozenset[tuple[int, int]]

    def better(self, one: int, other: int) -> bool:
        """Return whether the first is shown to have more than the second."""
        return (one, other) in self.shown

    def lead(self, one: int, other: int) -> Lead | None:
        """Return the first one's lead over the second; None where their pairs show nothing."""
        turned = one > other
        pair = self.pairs[(other, one) if turned else (one, other)]
        if pair is None:
            return None
        low, high = pair.interval(1 - self.level)
        return Lead(
            mean=-pair.mean if turned else pair.mean,
            interval=IntervalEnds(low=-high, high=-low)
            if turned
            else IntervalEnds(low=low, high=high),
            shown=self.better(one, other) or self.better(other, one),
        )


def compared(
    sides: Sequence[Sequence[float]], *, in_order: bool, least: float = 0.0
) -> ComparedSides:
    """Compare sides that have a value each of the same pairs. `in_order`: these
    follow one another, so that neighbours are alike. A mean difference of less than `least` is too
    small to be claimed."""
    every = {
        (one, other): [x - y for x, y in zip(sides[one], sides[other], strict=True)]
        for one, other in combinations(range(len(sides)), 2)
    }
    alike: Sequence[float | None] = (
        _alike(list(every.values()), len(sides)) if in_order else [None] * len(every)
    )
    pairs = {
        pair: difference_of(differences, r)
        for (pair, differences), r in zip(every.items(), alike, strict=True)
    }
    return one_family(pairs, least=least)


def one_family(
    pairs: Mapping[tuple[int, int], PairedDifference | None], *, least: float = 0.0
) -> ComparedSides:
    """Judge the differences of all pairs of sides together, each the first side's over the second
    one's; None where nothing is known of one."""
    judged = {pair: each for pair, each in pairs.items() if each is not None}
    corrected = holm(
        [partial(each.claimed, least=least) for each in judged.values()], 1 - CONFIDENCE
    )
    shown = frozenset(
        pair if difference.mean > 0 else pair[::-1]
        for place, (pair, difference) in enumerate(judged.items())
        if place in corrected.rejected
    )
    return ComparedSides(level=corrected.level, pairs=pairs, shown=shown)


def _alike(series: Sequence[Sequence[float]], sides: int) -> list[float]:
    """Return how much neighbours correlate in each series of a family, with caution. Of n values a
    correlation is known within 1 / sqrt(n), so that series that differ by no more are taken to be
    alike, and their mean is known as of one series for each side but one."""
    if not series:
        return []
    alone = [correlation(values) for values in series]
    usual = fmean(alone)
    count = len(series[0])
    known = min(_MOST_ALIKE, max(0.0, usual))
    caution = _CAUTION * sqrt((1 - known**2) / (count * (sides - 1)))
    spread = variance(alone) if len(alone) > 1 else 0.0
    weight = max(0.0, 1 - 1 / (count * spread)) if spread else 0.0
    return [usual + weight * (each - usual) + caution for each in alone]
