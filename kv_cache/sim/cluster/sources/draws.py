"""Chance in bulk: what sources draw, feature by feature.

Each feature has a stream of its own, and each session its place in it, so that a feature that is
added, or an answer that comes later, changes no other draw. The bits are PCG64's, which are the
same in every version of numpy; what is made of them is made here.
"""

from collections.abc import Callable, Iterator
from itertools import repeat

import numpy as np
import numpy.typing as npt

from kv_cache.config.scenario import WorkloadSection
from kv_cache.core.seed import Seed
from kv_cache.core.units import NS_PER_S
from kv_cache.workload.lengths import Law, whole
from kv_cache.workload.paced import Pace, over_the_day

_LONGEST_NS = 1 << 62  # of one gap: two of them are more than there is

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Draw = Callable[[Floats], Ints]
"""Makes values of numbers from 0 to 1."""

_BULK = 1024


class DrawStream:
    """Numbers from 0 to 1 (excluded), the next ones at each call."""

    def __init__(self, seed: Seed) -> None:
        self._bits = np.random.PCG64(seed.integer())

    def take(self, count: int) -> Floats:
        raw: npt.NDArray[np.uint64] = self._bits.random_raw(count)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def lengths(shares: Floats, law: str, between: tuple[int, int]) -> Ints:
    """Draw whole numbers of a law; those of `exponential` are geometric, from 1, with the pair's
    middle as their mean."""
    low, high = between
    middle = (low + high) / 2
    if law == "fixed":
        return np.full(len(shares), round(middle), np.int64)
    if law == "uniform":
        return (shares * (high - low + 1)).astype(np.int64) + low
    if middle <= 1:
        return np.ones(len(shares), np.int64)
    steps: Floats = np.log1p(-shares) / np.log1p(-1 / middle)
    return steps.astype(np.int64) + 1


def spans_ns(shares: Floats, between_s: tuple[float, float]) -> Ints:
    """Draw times, uniform between two."""
    low, high = between_s
    return np.rint((low + shares * (high - low)) * NS_PER_S).astype(np.int64)


def gaps_ns(shares: Floats, rate_per_s: float) -> Ints:
    """Draw the gaps of a Poisson process."""
    mean_ns = min(NS_PER_S / rate_per_s, float(_LONGEST_NS))
    return np.rint(np.minimum(-np.log1p(-shares) * mean_ns, _LONGEST_NS)).astype(np.int64)


def token_draw(law: Law | None, plain: str, between: tuple[int, int]) -> Draw:
    """Return what draws tokens or turns: by `law`, or without one by the `plain` law of a pair."""
    if law is None:
        return lambda shares: lengths(shares, plain, between)
    quantile = law.quantile
    return lambda shares: np.array([whole(quantile(q)) for q in shares.tolist()], np.int64)


def span_draw(law: Law | None, between_s: tuple[float, float]) -> Draw:
    """Return what draws times in ns, of a law in seconds or uniform between two."""
    if law is None:
        return lambda shares: spans_ns(shares, between_s)
    quantile = law.quantile
    return lambda shares: np.array(
        [round(quantile(q) * NS_PER_S) for q in shares.tolist()], np.int64
    )


def arrival_gaps(work: WorkloadSection, seed: Seed) -> Iterator[int]:
    """Yield the gaps between arrivals at `rate_per_s` in ns, without end."""
    gaps: Iterator[int] = repeat(0)
    if work.rate_per_s:
        gaps = _steady_gaps(work, seed)
    return over_the_day(gaps, work.day_swing, work.day_s) if work.day_swing else gaps


def _steady_gaps(work: WorkloadSection, seed: Seed) -> Iterator[int]:
    if work.arrival_process == "poisson":
        stream = DrawStream(seed.child("gaps"))
        while True:
            yield from gaps_ns(stream.take(_BULK), work.rate_per_s).tolist()
    pace = Pace(rate=work.rate_per_s, process=work.arrival_process, cv=work.arrival_cv)
    yield from (min(gap, _LONGEST_NS) for gap in pace.gaps_ns(seed))


class ZipfDraws:
    """The i-th of `count` (from 0) with a chance proportional to 1 / (i + 1) ^ alpha."""

    def __init__(self, count: int, alpha: float) -> None:
        weights = np.arange(1, count + 1, dtype=np.float64) ** -alpha
        self._up_to = np.cumsum(weights)
        self._up_to /= self._up_to[-1]

    def pick(self, shares: Floats) -> Ints:
        return np.searchsorted(self._up_to, shares, side="right").astype(np.int64)
