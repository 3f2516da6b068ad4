"""Laws that lengths and times are drawn from, and how each is fitted to samples.

A law is a distribution of numbers: tokens, turns or seconds. One number from the generator gives
one value (the inverse of the distribution function), so that what is drawn does not depend on how
often a law would have to try. `whole` makes tokens of it.

A fit says how far it is off: the Kolmogorov-Smirnov distance is the largest difference between
the share of samples up to a value and the share that the law gives it.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from random import Random
from statistics import NormalDist
from typing import Any, ClassVar

from msgspec import Struct

from kv_cache.core.errors import ConfigError

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Those that an empirical law is made of."""

MOST_RANKS = 1 << 17
"""Values that a Zipf law may have: a table of 1 MiB."""

_FIT_RANKS = 1 << 16
_MOST_EXPONENT = 20.0
_LEAST_MASS = 1e-6
_NORMAL = NormalDist()


class Law(Struct, frozen=True):
    """A distribution. `below` is the share under a value, `cdf` the share up to it."""

    NAME: ClassVar[str]
    KEYS: ClassVar[tuple[str, ...]] = ()

    def draw(self, rng: Random) -> float:
        return self.quantile(rng.random())

    def quantile(self, q: float) -> float:
        """Return the least value up to which the share is `q` (0 to 1)."""
        raise NotImplementedError

    def mean(self) -> float:
        raise NotImplementedError

    def cdf(self, value: float) -> float:
        raise NotImplementedError

    def below(self, value: float) -> float:
        """Return the same as `cdf` if no single value has a share of its own."""
        return self.cdf(value)

    def as_config(self) -> dict[str, Any]:
        """Return the keys of a law in section `lengths` of a configuration."""
        numbers = {key: _short(getattr(self, key)) for key in self.KEYS}
        return {"law": self.NAME, **numbers}


class Fixed(Law, frozen=True, kw_only=True):
    """Always the same value."""

    NAME: ClassVar[str] = "fixed"
    KEYS: ClassVar[tuple[str, ...]] = ("value",)

    value: float

    def quantile(self, q: float) -> float:
        return self.value

    def mean(self) -> float:
        return self.value

    def cdf(self, value: float) -> float:
        return float(value >= self.value)

    def below(self, value: float) -> float:
        return float(value > self.value)


class Uniform(Law, frozen=True, kw_only=True):
    """From `low` to `high`. `steps`: only whole numbers, both ends with the same share as the
    others; otherwise any number."""

    NAME: ClassVar[str] = "uniform"
    KEYS: ClassVar[tuple[str, ...]] = ("low", "high")

    low: float
    high: float
    steps: bool = False

    def __post_init__(self) -> None:
        _require_range(self.low, self.high)
        if self.steps:
            _require(self.low % 1 == 0 and self.high % 1 == 0, "low", self.low, "whole, as high is")

    def quantile(self, q: float) -> float:
        if not self.steps:
            return self.low + q * (self.high - self.low)
        return min(self.high, self.low + max(0, math.ceil(q * self._count) - 1))

    def mean(self) -> float:
        return (self.low + self.high) / 2

    def cdf(self, value: float) -> float:
        if self.steps:
            return _clamped((math.floor(value) - self.low + 1) / self._count)
        if value >= self.high:
            return 1.0
        return 0.0 if value < self.low else (value - self.low) / (self.high - self.low)

    def below(self, value: float) -> float:
        if self.steps:
            return self.cdf(math.ceil(value) - 1)
        return 0.0 if value <= self.low else self.cdf(value)

    @property
    def _count(self) -> float:
        return self.high - self.low + 1


class LogNormal(Law, frozen=True, kw_only=True):
    """A normal distribution of the logarithm, with mean `mu` and standard deviation `sigma`, of
    which what lies outside `low` to `high` is not drawn (truncated, not moved to the ends)."""

    NAME: ClassVar[str] = "lognormal"

    mu: float
    sigma: float
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        _require(math.isfinite(self.mu) and abs(self.mu) <= 100, "mu", self.mu, "-100 to 100")
        _require_range(self.low, self.high, endless=True)
        if self._inside[1] - self._inside[0] < _LEAST_MASS:
            raise ConfigError(
                f"a lognormal law with median {math.exp(self.mu):g} and sigma {self.sigma:g} has "
                f"almost nothing between {self.low:g} and {self.high:g}; widen low and high"
            )

    @classmethod
    def of_median(cls, median: float, sigma: float, *, low: float = 0.0, high: float = math.inf
                  ) -> "LogNormal":  # fmt: skip
        """Make the law whose `median` is exp(mu), before anything is cut off."""
        return cls(mu=math.log(median), sigma=sigma, low=low, high=high)

    def quantile(self, q: float) -> float:
        first, last = self._inside
        share = first + q * (last - first)
        if not self.sigma:
            return math.exp(self.mu)
        if share <= 0 or q <= 0:
            return self.low
        if share >= 1 or q >= 1:
            return self.high
        value = math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(share))
        return min(max(value, self.low), self.high)

    def mean(self) -> float:
        """Return exp(mu + sigma^2/2) times the share that the law's own first moment has inside."""
        if not self.sigma:
            return math.exp(self.mu)
        first, last = self._inside
        moved = [_normal_cdf(z - self.sigma) for z in (self._z(self.low), self._z(self.high))]
        whole = math.exp(self.mu + self.sigma**2 / 2)
        return whole * (moved[1] - moved[0]) / (last - first)

    def cdf(self, value: float) -> float:
        if value < self.low or (not self.sigma and value < math.exp(self.mu)):
            return 0.0
        if value >= self.high or not self.sigma:
            return 1.0
        first, last = self._inside
        return _clamped((_normal_cdf(self._z(value)) - first) / (last - first))

    def below(self, value: float) -> float:
        if not self.sigma:
            return float(value > math.exp(self.mu))
        return self.cdf(value)

    @property
    def _inside(self) -> tuple[float, float]:
        """The untruncated law's share below `low` and up to `high`."""
        if not self.sigma:
            return (0.0, 1.0) if self.low <= math.exp(self.mu) <= self.high else (0.0, 0.0)
        return _normal_cdf(self._z(self.low)), _normal_cdf(self._z(self.high))

    def _z(self, value: float) -> float:
        if value <= 0:
            return -math.inf
        return math.inf if value == math.inf else (math.log(value) - self.mu) / self.sigma

    def as_config(self) -> dict[str, Any]:
        keys = {"median": math.exp(self.mu), "sigma": self.sigma}
        if self.low > 0:
            keys["low"] = self.low
        if self.high < math.inf:
            keys["high"] = self.high
        return {"law": self.NAME, **{name: _short(value) for name, value in keys.items()}}


class Zipf(Law, frozen=True, kw_only=True):
    """Values `low`, `low + step`, ... up to `high`; the k-th of them has a share in proportion to
    k^-exponent. An exponent of 0 gives all the same share."""

    NAME: ClassVar[str] = "zipf"
    KEYS: ClassVar[tuple[str, ...]] = ("exponent", "low", "high", "step")

    exponent: float
    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        _require_range(self.low, self.high)
        _require(
            self._ranks <= MOST_RANKS, "step", self.step,
            f"so large that there are at most {MOST_RANKS} values between low and high",
        )  # fmt: skip

    def quantile(self, q: float) -> float:
        return self._value(min(bisect_left(self._table, q), self._ranks - 1))

    def mean(self) -> float:
        shares = (last - first for first, last in pairwise((0.0, *self._table)))
        return math.fsum(self._value(rank) * share for rank, share in enumerate(shares))

    def cdf(self, value: float) -> float:
        rank = math.floor((value - self.low) / self.step)
        return 0.0 if rank < 0 else self._table[min(rank, self._ranks - 1)]

    def below(self, value: float) -> float:
        rank = math.ceil((value - self.low) / self.step) - 1
        return 0.0 if rank < 0 else self._table[min(rank, self._ranks - 1)]

    @property
    def _ranks(self) -> int:
        return (self.high - self.low) // self.step + 1

    @property
    def _table(self) -> "array[float]":
        return _zipf_shares(self.exponent, self._ranks)

    def _value(self, rank: int) -> int:
        return self.low + self.step * rank


class Empirical(Law, frozen=True, kw_only=True):
    """The samples' own law: `values[i]` at the share `quantiles[i]`, straight lines in between."""

    NAME: ClassVar[str] = "empirical"

    quantiles: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        points, values = self.quantiles, self.values
        if len(points) != len(values) or len(points) < 2:
            raise ConfigError(
                f"an empirical law has {len(points)} quantiles and {len(values)} values; give as "
                "many of both, at least 2"
            )
        if points[0] != 0 or points[-1] != 1 or any(a >= b for a, b in pairwise(points)):
            raise ConfigError(
                "the quantiles of an empirical law must grow from 0 to 1; the first and the last "
                "are the least and the greatest value"
            )
        if any(a > b for a, b in pairwise(values)) or values[0] < 0 or values[-1] == math.inf:
            raise ConfigError(
                "the values of an empirical law must not decrease, nor be negative or endless"
            )

    def quantile(self, q: float) -> float:
        after = min(max(1, bisect_left(self.quantiles, q)), len(self.values) - 1)
        return _between(q, self.quantiles, self.values, after)

    def mean(self) -> float:
        widths = (b - a for a, b in pairwise(self.quantiles))
        heights = ((a + b) / 2 for a, b in pairwise(self.values))
        return math.fsum(w * h for w, h in zip(widths, heights, strict=True))

    def cdf(self, value: float) -> float:
        return self._share(value, bisect_right(self.values, value))

    def below(self, value: float) -> float:
        return self._share(value, bisect_left(self.values, value))

    def _share(self, value: float, after: int) -> float:
        if after == 0:
            return 0.0
        if after == len(self.values):
            return 1.0
        return _between(value, self.values, self.quantiles, after)

    def as_config(self) -> dict[str, Any]:
        return {
            "law": self.NAME,
            "quantiles": list(self.quantiles),
            "values": [_short(value) for value in self.values],
        }


class Lengths(Struct, frozen=True, kw_only=True):
    """The laws that replace those of the personas; None = as the persona says.

    `prompt`: tokens that a request adds to its conversation; `first_prompt`: those of the first
    one, None = as of the others; `output`: tokens that it generates; `think_s`: seconds before it;
    `turns`: requests of one conversation. `correlation` is that of the normal scores of turns and
    first prompt (a Gaussian copula: Nelsen, "An Introduction to Copulas", 2006).
    """

    prompt: Law | None = None
    first_prompt: Law | None = None
    output: Law | None = None
    think_s: Law | None = None
    turns: Law | None = None
    correlation: float = 0.0

    def as_config(self) -> dict[str, Any]:
        laws = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: law.as_config() for name, law in laws.items() if isinstance(law, Law)}

    def first_share(self, turns_share: float, drawn: float) -> float:
        """Return the share at which a first prompt lies whose conversation has its turns at
        `turns_share`; `drawn` is a share of its own."""
        correlation = self.correlation
        if not correlation:
            return drawn
        turns, first = (_NORMAL.inv_cdf(_inside(share)) for share in (turns_share, drawn))
        return _NORMAL.cdf(correlation * turns + math.sqrt(1 - correlation**2) * first)


def whole(value: float) -> int:
    """Return tokens or turns: at least 1, halves upwards."""
    return max(1, math.floor(value + 0.5))


# --- fitting -------------------------------------------------------------------------------


class Fit(Struct, frozen=True, kw_only=True):
    """`ks`: Kolmogorov-Smirnov distance between `law` and the samples, 0 (the same) to 1."""

    law: Law
    ks: float


def fit_lognormal(samples: Sequence[float]) -> Fit:
    """Fit by maximum likelihood: the mean and the standard deviation of the logarithms. What is
    drawn is at most the greatest sample. Raises ConfigError for none, and for samples that are not
    above 0."""
    ordered = _ordered(samples)
    if ordered[0] <= 0:
        raise ConfigError(
            f"{bisect_right(ordered, 0.0)} of {len(ordered)} samples are 0 or less, and a "
            "lognormal law has none such; leave them out, or fit an empirical law"
        )
    logs = [math.log(value) for value in ordered]
    mu = math.fsum(logs) / len(logs)
    sigma = math.sqrt(math.fsum((x - mu) ** 2 for x in logs) / len(logs))
    if ordered[0] == ordered[-1]:  # the rounding of the logarithms is no spread
        return _fit(Fixed(value=ordered[0]), ordered)
    return _fit(LogNormal(mu=mu, sigma=min(sigma, 10.0), high=ordered[-1]), ordered)


def fit_zipf(samples: Sequence[float]) -> Fit:
    """Fit the exponent by maximum likelihood, over the whole numbers from the least sample to the
    greatest: the exponent at which the law's mean logarithm of the rank is that of the samples,
    by bisection (0 to 20). Of more than 65,536 numbers, every n-th.
    Raises ConfigError for no samples."""
    ordered = _ordered(samples)
    low, high = math.floor(ordered[0]), math.ceil(ordered[-1])
    step = -(-(high - low + 1) // _FIT_RANKS)
    logs = [math.log(rank + 1) for rank in range((high - low) // step + 1)]
    wanted = math.fsum(logs[(round(x) - low) // step] for x in ordered) / len(ordered)
    return _fit(Zipf(exponent=_exponent(logs, wanted), low=low, high=high, step=step), ordered)


def fit_empirical(samples: Sequence[float], quantiles: Sequence[float] = QUANTILES) -> Fit:
    """Take the samples' own quantiles (type 7 of Hyndman and Fan: straight lines between samples).
    Raises ConfigError for no samples."""
    ordered = _ordered(samples)
    values = tuple(_quantile(ordered, q) for q in quantiles)
    return _fit(Empirical(quantiles=tuple(quantiles), values=values), ordered)


def ks_distance(law: Law, ordered: Sequence[float]) -> float:
    """Return the largest difference between the law's share and that of the samples (sorted), at
    and just below each of them."""
    worst, count, at = 0.0, len(ordered), 0
    while at < count:
        value, after = ordered[at], bisect_right(ordered, ordered[at], lo=at)
        worst = max(
            worst, abs(law.below(value) - at / count), abs(law.cdf(value) - after / count)
        )  # fmt: skip
        at = after
    return worst


def _fit(law: Law, ordered: Sequence[float]) -> Fit:
    return Fit(law=law, ks=ks_distance(law, ordered))


def _ordered(samples: Sequence[float]) -> list[float]:
    if not samples:
        raise ConfigError("there are no samples to fit a law to; give at least one")
    return sorted(samples)


def _quantile(ordered: Sequence[float], q: float) -> float:
    place = q * (len(ordered) - 1)
    before = min(math.floor(place), len(ordered) - 1)
    after = min(before + 1, len(ordered) - 1)
    return ordered[before] + (place - before) * (ordered[after] - ordered[before])


def _exponent(logs: Sequence[float], wanted: float) -> float:
    """Return the exponent with this mean logarithm of the rank, which falls as it grows."""
    low, high = 0.0, _MOST_EXPONENT
    if _mean_log(logs, low) <= wanted:
        return low
    for _ in range(40):
        middle = (low + high) / 2
        if _mean_log(logs, middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _mean_log(logs: Sequence[float], exponent: float) -> float:
    weights = [math.exp(-exponent * x) for x in logs]
    return math.fsum(w * x for w, x in zip(weights, logs, strict=True)) / math.fsum(weights)


# --- helpers -------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _zipf_shares(exponent: float, ranks: int) -> "array[float]":
    """Return the share of the first k ranks, for each k."""
    sums = list(accumulate(math.exp(-exponent * math.log(k)) for k in range(1, ranks + 1)))
    shares = array("d", (part / sums[-1] for part in sums))
    shares[-1] = 1.0
    return shares


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _between(x: float, xs: Sequence[float], ys: Sequence[float], after: int) -> float:
    """Return the y at `x` on the straight line that ends at the point `after`."""
    x0, x1, y0, y1 = xs[after - 1], xs[after], ys[after - 1], ys[after]
    return y1 if x >= x1 else max(y0, y0 + (x - x0) / (x1 - x0) * (y1 - y0))


def _clamped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _inside(share: float) -> float:
    """Return a share that has a normal score: not 0 or 1."""
    return min(1 - 2.0**-53, max(2.0**-53, share))


def _short(value: float) -> float | int:
    """Return six digits, more than any sample justifies; a whole number as an int."""
    if value == math.floor(value):
        return int(value)
    short = float(f"{value:.6g}")
    return int(short) if short == math.floor(short) else short


def _require(fine: bool, name: str, value: float, rule: str) -> None:
    if not fine:
        raise ConfigError(f"{name} of a law is {value:g}; it must be {rule}")


def _require_range(low: float, high: float, *, endless: bool = False) -> None:
    _require(math.isfinite(low) and low >= 0, "low", low, "at least 0")
    _require(low <= high and (endless or high < math.inf), "high", high, f"at least low, {low:g}")


LAWS: Mapping[str, type[Law]] = {
    law.NAME: law for law in (Fixed, Uniform, LogNormal, Zipf, Empirical)
}
"""By the name that a configuration gives them."""
