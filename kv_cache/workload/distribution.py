"""Distributions that are counted while a stream goes by, in memory that the stream's length does
not change.

Token counts and stack distances are counted exactly, by value: there are few of them. Times have
buckets of 1/256 of their value, so that a percentile of them is within 0.2 %, which is its middle;
count, sum, least and most are exact. Percentiles are those of the whole program: the value at rank
ceil(percent / 100 * count).
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PERCENTS = (50, 90, 95, 99)
QUANTILES = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)

_BITS = 8
_PENDING = 4096


class Spread(Struct, frozen=True, kw_only=True):
    """A distribution in a few numbers; `quantiles` are the values at `QUANTILES`."""

    count: int
    total: float
    mean: float
    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float
    quantiles: Sequence[float]


def spread(values: Ints, counts: Ints) -> Spread | None:
    """Return the spread of `values` (rising, each once) that were seen `counts` times; None for no
    value."""
    if not counts.any():
        return None
    return _spread(values, counts, int((values * counts).sum()))


def _spread(values: Ints, counts: Ints, total: int, unit: float = 1) -> Spread:
    below = np.cumsum(counts)
    count = int(below[-1])

    def at(rank: int) -> float:
        value = int(values[np.searchsorted(below, rank)])
        return value if unit == 1 else value / unit

    marks = {f"p{percent}": at(-(-percent * count // 100)) for percent in PERCENTS}
    ranks = (max(1, -(-round(share * 1000) * count // 1000)) for share in QUANTILES)
    return Spread(
        count=count,
        total=total if unit == 1 else total / unit,
        mean=total / count / unit,
        least=at(1),
        most=at(count),
        quantiles=tuple(at(rank) for rank in ranks),
        **marks,
    )


def spread_of(counter: Mapping[int, int]) -> Spread | None:
    """Return the spread of values counted one by one."""
    pairs = np.array(sorted(counter.items()), np.int64).reshape(-1, 2)
    return spread(pairs[:, 0], pairs[:, 1])


class Times:
    """Times in ns, 0 or more, in buckets; only those that are not empty are held."""

    __slots__ = ("_counts", "_least", "_most", "_pending", "_total")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._pending = array("q")
        self._total = 0
        self._least: int | None = None
        self._most = 0

    def add(self, time_ns: int) -> None:
        self._pending.append(time_ns)
        if len(self._pending) >= _PENDING:
            self._flush()

    def add_all(self, times_ns: Ints) -> None:
        if not len(times_ns):
            return
        self._total += int(times_ns.sum(dtype=object)) if _large(times_ns) else int(times_ns.sum())
        least, most = int(times_ns.min()), int(times_ns.max())
        self._least = least if self._least is None else min(self._least, least)
        self._most = max(self._most, most)
        buckets, counts = np.unique(buckets_of(times_ns), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self._counts[bucket] += count

    def spread(self, unit: float) -> Spread | None:
        """Return the spread in units of `unit` ns; None for no time."""
        self._flush()
        if self._least is None:
            return None
        pairs = np.array(sorted(self._counts.items()), np.int64)
        middles = np.clip(_middles(pairs[:, 0]), self._least, self._most)
        bucketed = _spread(middles, pairs[:, 1], self._total, unit)
        return replace(bucketed, least=self._least / unit, most=self._most / unit)

    def counted(self) -> dict[int, int]:
        """Return each bucket's middle, in ns, with how many times are in it."""
        self._flush()
        buckets = np.array(sorted(self._counts), np.int64)
        middles = _middles(buckets).tolist()
        return {m: self._counts[b] for m, b in zip(middles, buckets.tolist(), strict=True)}

    def _flush(self) -> None:
        pending, self._pending = self._pending, array("q")
        self.add_all(np.frombuffer(pending, np.int64))


def _large(times_ns: Ints) -> bool:
    return int(times_ns.max()) > (2**62) // len(times_ns)


def buckets_of(values: Ints) -> Ints:
    """Return the bucket of each value of 0 or more: the layout of `metrics.histogram`."""
    shifts = np.maximum(0, np.frexp(values.astype(np.float64))[1].astype(np.int64) - _BITS - 1)
    return (shifts << _BITS) + (values >> shifts)


def _middles(buckets: Ints) -> Ints:
    shifts = np.maximum(0, (buckets >> _BITS) - 1)
    lows = (buckets - (shifts << _BITS)) << shifts
    middles: Ints = lows + ((np.int64(1) << shifts) - 1) // 2
    return middles
