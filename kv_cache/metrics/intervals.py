"""How sure a measured number is: intervals for shares, means and ratios.

All of them come from one function, the regularised incomplete beta function, which is the
distribution function of the beta, binomial and Student t distributions. It is computed here, to
eight digits for up to ten million observations, so that the program needs no statistics library.

Each interval holds what it says where the observations are independent. Latencies that follow one
another are not; give fewer, effective counts for those (`schedule/probe`).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import exp, inf, isfinite, lgamma, log, log1p, sqrt
from statistics import fmean, stdev, variance
from typing import NamedTuple

from msgspec import Struct

from kv_cache.core.bounded import Number

CONFIDENCE = 0.95
"""Of every interval that a result shows, and of every difference that it claims."""


class Interval(NamedTuple):
    """From `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        """Return whether a number lies within; a tuple would ask for one of its two ends."""
        return isinstance(value, int | float) and self.low <= value <= self.high


class IntervalEnds(Struct, frozen=True, kw_only=True):
    """The same as documents have it."""

    low: Number
    high: Number


def share_interval(hits: float, count: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the share that `hits` of `count` stand for (Clopper and Pearson, Biometrika 26, 1934).

    Its bounds are those shares at which so few, or so many, would be seen with a chance of
    (1 - confidence) / 2: never too narrow, and of use with 0 hits. Counts may be effective ones,
    which are not whole. Of nothing, all is possible: [0, 1].
    """
    tail = _tail(confidence)
    if not 0 <= hits <= count:
        raise ValueError(f"{hits} hits of {count}")
    misses = count - hits
    low = _beta_quantile(tail, hits, misses + 1)[0] if hits > 0 else 0.0
    high = _beta_quantile(1 - tail, hits + 1, misses)[0] if misses > 0 else 1.0
    return Interval(low, high)


def t_quantile(probability: float, dof: float) -> float:
    """Student's t below which `probability` (above 0, below 1) lies; `dof` above 0, any number.

    t²/(dof + t²) is Beta(1/2, dof/2), and its distribution function at |t| is 2 * probability - 1.
    """
    if not (0 < probability < 1 and dof > 0):
        raise ValueError(f"t of probability {probability} with {dof} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, dof)
    if probability == 0.5:
        return 0.0
    within, rest = _beta_quantile(2 * probability - 1, 0.5, dof / 2)
    return sqrt(dof * within / rest)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the mean that these values, each about normal, were drawn around (Student, 1908).

    None for fewer than 2 values, or where one is not finite. Values that are all equal show no
    spread, and the interval has no width: true of a simulation, and of a measurement whose clock
    is too coarse.
    """
    tail = _tail(confidence)
    if len(values) < 2 or not all(map(isfinite, values)):
        return None
    mean = fmean(values)
    reach = t_quantile(1 - tail, len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean - reach, mean + reach)


def autocorrelation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the one before; 0 if all are equal."""
    mean = fmean(values)
    away = [value - mean for value in values]
    whole = sum(x * x for x in away)
    return sum(x * y for x, y in pairwise(away)) / whole if whole else 0.0


def series_inflation(values: Sequence[float]) -> float:
    """By how much the standard error of a series' mean is larger than that of independent values.

    The variance of the mean of a series whose neighbours correlate by r is (1 + r) / (1 - r) times
    that of an independent one. So few values show about 1/n less of r than there is; r is taken as
    0.9 at most.
    """
    r = min(_MOST_R, max(0.0, autocorrelation(values) + 1 / len(values)))
    return sqrt((1 + r) / (1 - r))


_MOST_R = 0.9
LEAST_BATCHES = 8
_FEW_BATCHES = 16
SETTLED_BATCHES = 24
_LITTLE_R = 0.2


class Batches(NamedTuple):
    """A series in batches so long that neighbours hardly correlate: `r` is how much they still do,
    with what so few of them hide on average. `settled`: there are enough of them to know it."""

    values: Sequence[float]
    size: int
    r: float

    @property
    def settled(self) -> bool:
        return self.r <= _LITTLE_R and len(self.values) >= SETTLED_BATCHES

    @property
    def error(self) -> float:
        """The standard error of their mean, larger by what neighbours correlate, at half a standard
        error more than was seen (Tafazzoli and others, IIE Transactions 43, 2011, adjust it
        likewise)."""
        count = len(self.values)
        r = min(_MOST_R, max(0.0, self.r + 0.5 / sqrt(count)))
        return stdev(self.values) * sqrt((1 + r) / (1 - r) / count)

    def reach(self, confidence: float = CONFIDENCE) -> float:
        """How far to both sides of their mean the level lies that they were drawn around."""
        return t_quantile(1 - _tail(confidence), len(self.values) - 1) * self.error


def batch_means(values: Sequence[float], size: int) -> list[float]:
    """Return the means of so many neighbours each; those that are left over are left out."""
    if size == 1:
        return list(values)
    return [fmean(values[i : i + size]) for i in range(0, len(values) - size + 1, size)]


def correlation(values: Sequence[float]) -> float:
    """Return `autocorrelation` with what so few values hide of it on average."""
    seen = autocorrelation(values)
    return seen + (1 + 4 * max(0.0, seen)) / len(values)


def grown(values: Sequence[float]) -> Batches | None:
    """Return a series of equally long parts of a run, in their order, put together by twos, fours
    and so on until neighbours hardly correlate, or fewer than 16 would be left. None for fewer than
    8 values, or where one is not finite, and of a series that drifts: even then neighbours
    correlate by 0.9 or more, so that it shows next to nothing of its level."""
    if len(values) < LEAST_BATCHES or not all(map(isfinite, values)):
        return None
    size = 1
    while True:
        means = batch_means(values, size)
        batches = Batches(means, size, correlation(means))
        # One that evens itself out is put together as well, as long as there are enough left.
        least = _FEW_BATCHES if batches.r > _LITTLE_R else SETTLED_BATCHES
        if abs(batches.r) <= _LITTLE_R or len(means) < 2 * least:
            drifts = autocorrelation(means) + 1 / len(means) >= _MOST_R
            return None if drifts else batches
        size *= 2


def bounded_interval(
    values: Sequence[float], confidence: float = CONFIDENCE, most: float = inf
) -> Interval | None:
    """Return the middle of quantities that lie between 0 and `most`, as rates, times and sizes do,
    and shares with `most` 1. It never reaches beyond: Student's interval of their logarithms, or of
    their logits. A value at an end has neither: then that of the values, cut off at the ends.

    None as of `mean_interval`. Where it is of logarithms it is one of the `geometric_mean`.
    """
    if not all(0 < value < most for value in values):
        return _cut_off(values, confidence, most)
    if most == inf:
        interval = mean_interval([log(value) for value in values], confidence)
        return interval and Interval(_exp(interval.low), _exp(interval.high))
    odds = mean_interval([log(value) - log(most - value) for value in values], confidence)
    return odds and Interval(*(most / (1 + _exp(-end)) for end in odds))


def interval_beside_mean(
    values: Sequence[float], confidence: float = CONFIDENCE, most: float = inf
) -> Interval | None:
    """Return the `bounded_interval` of values that are shown by their arithmetic mean. Of skewed
    ones that may lie outside it, as one of ten that is a hundred times the others moves the mean
    alone: then that of the values, cut off at the ends."""
    bounded = bounded_interval(values, confidence, most)
    if bounded is None or fmean(values) in bounded:
        return bounded
    return _cut_off(values, confidence, most)


def _cut_off(values: Sequence[float], confidence: float, most: float) -> Interval | None:
    interval = mean_interval(values, confidence)
    low, high = min([0.0, *values]), max([most, *values])
    return interval and Interval(max(interval.low, low), min(interval.high, high))


def geometric_mean(values: Sequence[float]) -> float:
    """Of quantities that a ratio compares; the arithmetic one where a value is 0 or less, or not
    finite."""
    if not all(value > 0 and isfinite(value) for value in values):
        return fmean(values)
    return exp(fmean(map(log, values)))


def ratio_interval(
    a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, Interval] | None:
    """By which factor `b` is larger than `a`: the ratio of geometric means and its interval.

    Welch's t (Biometrika 34, 1947) on logarithms, so that b/a is the inverse of a/b, and neither
    side's spread is taken for the other's. None unless both sides have 2 values or more, all
    finite and above 0. If neither side has any spread, the interval has no width.
    """
    tail = _tail(confidence)
    if min(len(a), len(b)) < 2 or not all(isfinite(x) and x > 0 for x in (*a, *b)):
        return None
    logs = [[log(value) for value in side] for side in (a, b)]
    difference = fmean(logs[1]) - fmean(logs[0])
    errors = [variance(side) / len(side) for side in logs]  # squares of the standard errors
    reach = 0.0
    if total := sum(errors):
        # Welch and Satterthwaite, with shares of the sum: squares of tiny errors would be 0.
        parts = zip(errors, logs, strict=True)
        dof = 1 / sum((error / total) ** 2 / (len(side) - 1) for error, side in parts)
        reach = t_quantile(1 - tail, dof) * sqrt(total)
    return exp(difference), Interval(_exp(difference - reach), _exp(difference + reach))


def _exp(power: float) -> float:
    """Infinite where it is too large to tell: two values a side can leave a ratio that open."""
    return exp(power) if power < 709 else inf


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation over the size of its mean; None for fewer than 2
    values, a mean of 0, or where one is not finite."""
    if len(values) < 2 or not all(map(isfinite, values)):
        return None
    mean = fmean(values)
    return stdev(values) / abs(mean) if mean else None


def share_at_most(hits: float, count: float, share: float) -> float:
    """Return the chance to see `hits` or fewer of `count` where `share` (above 0, below 1) is true.

    At most (1 - confidence) / 2 exactly where `share_interval` ends at or below `share`, at the
    price of one step of its search. `share_at_least` is the other side.
    """
    return incomplete_beta(1 - share, count - hits, hits + 1) if hits < count else 1.0


def share_at_least(hits: float, count: float, share: float) -> float:
    """Return the chance to see `hits` or more of `count` where `share` (above 0, below 1) is
    true."""
    return incomplete_beta(share, hits, count - hits + 1) if hits > 0 else 1.0


def _tail(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not above 0 and below 1")
    return (1 - confidence) / 2


# --- the regularised incomplete beta function ------------------------------------------------

_SMALLEST = 1e-300  # keeps a fraction's denominators off 0
_CLOSE = 1e-15
_MOST_TERMS = 100_000  # about the square root of the larger of a and b is needed
_MOST_STEPS = 200  # Newton's method needs about 8, halving alone about 60


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the distribution function of Beta(a, b) with a and b above 0, for x in [0, 1]."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(1 - x, b, a)
    front = a * log(x) + b * log1p(-x) - _log_beta(a, b)
    return exp(front) / a * _continued_fraction(x, a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """NIST DLMF 8.17.22, evaluated by the method of Lentz (Applied Optics 15, 1976)."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _CLOSE:
            return value
    raise ArithmeticError(f"the incomplete beta function does not converge at {x}, {a}, {b}")


def _off_zero(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST


def _beta_quantile(probability: float, a: float, b: float) -> tuple[float, float]:
    """x with I_x(a, b) = probability, and 1 - x, which is exact even where x is nearly 1."""
    if probability > incomplete_beta(0.5, a, b):
        rest = _lower_quantile(1 - probability, b, a)
        return 1 - rest, rest
    x = _lower_quantile(probability, a, b)
    return x, 1 - x


def _lower_quantile(probability: float, a: float, b: float) -> float:
    """Return a quantile of at most 1/2: Newton's method, halving if it would leave the bracket. It
    starts from the first term of the series, I_x = x^a / (a B(a, b))."""
    low, high, log_beta = 0.0, 0.5, _log_beta(a, b)
    x = min(exp(min(0.0, (log(probability) + log(a) + log_beta) / a)), 0.25)
    for _ in range(_MOST_STEPS):
        if x < _SMALLEST:
            break  # 0 for all that anybody could want
        miss = incomplete_beta(x, a, b) - probability
        low, high = (x, high) if miss < 0 else (low, x)
        slope = exp((a - 1) * log(x) + (b - 1) * log1p(-x) - log_beta)
        following = x - miss / slope if slope > 0 else low
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - x) <= _CLOSE * x:
            break
        x = following
    return x
