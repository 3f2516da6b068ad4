"""Log-linear histograms: bounded memory, bounded error, exact merging.

256 buckets for each power of two (the layout of HdrHistogram and of fio's `stat.h`): values below
512 have a bucket each; above, a bucket is at most 1/256 of its value wide and a percentile is
its middle. So a reported percentile differs from the sample at that rank by at most 1/512
(0.2 %). Count, sum, minimum and maximum are exact.

A percentile is given only where enough values lie beyond it (`supported`). Of fewer values it is
one of the largest, and says more of chance than of what was measured. Who needs the value at a rank
all the same asks for it by that name: the reference's keys, decisions with a statistic of their
own, and exports.

What had not ended when the measuring did has an age, which its value is at least. It counts for a
percentile if it is older than the percentile is without it: so a device that hangs does not look
better for what it never answers. Where a percentile would be larger had such a one lasted longer,
it is a lower bound (`bounds`). Ages are in no count, sum, minimum or maximum.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FEWEST_BEYOND = 10
"""Values beyond a percentile without which it is not given: how many lie beyond the true one then
varies by a third of what it should be (their square root), and by more with every value fewer."""

_FEW = 512
"""Values of a window that are kept as they are."""

_MANY, _EXACT = 512, 2**53
"""So many values are put into buckets by numpy, if a float has each of them exactly."""

_BITS = 8
RELATIVE_ERROR = 1 / 2 ** (_BITS + 1)


def bucket_of(value: int) -> int:
    """Return the bucket of a value of 0 or more."""
    shift = value.bit_length() - _BITS - 1
    return value if shift <= 0 else (shift << _BITS) + (value >> shift)


BUCKETS = bucket_of(2**63 - 1) + 1
_EMPTY = bytes(8 * BUCKETS)


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """Return the lowest and highest value of a bucket."""
    shift = max(0, (bucket >> _BITS) - 1)
    low = (bucket - (shift << _BITS)) << shift
    return low, low + (1 << shift) - 1


def _bucket(value: float) -> int:
    """Of a percentile: as a float the largest values are rounded up."""
    return min(bucket_of(int(value)), BUCKETS - 1)


def supported(count: int, percent: float) -> bool:
    """Return whether `count` values are enough for a percentile: p50 wants 20, p99.99 100,000.
    Exact, as 99.9 is not in binary."""
    beyond, of = _beyond(percent)
    return count * beyond >= FEWEST_BEYOND * of


@cache
def _part(percent: float) -> tuple[int, int]:
    """Return a percentage as a ratio of whole numbers: 99.9 is not a binary number."""
    return (Fraction(str(percent)) / 100).as_integer_ratio()


@cache
def _beyond(percent: float) -> tuple[int, int]:
    """Return the share of the values beyond a percentile, as a ratio of whole numbers."""
    return (1 - Fraction(str(percent)) / 100).as_integer_ratio()


def _rank(percent: float, count: int) -> int:
    part, of = _part(percent)
    return max(1, -(-part * count // of))


def _middle(bucket: int, lowest: int, highest: int) -> float:
    low, high = bucket_bounds(bucket)
    return float(min(max((low + high) / 2, lowest), highest))


class Bound(NamedTuple):
    """The value at a rank; with `at_least`, the true one may be larger."""

    value: float
    at_least: bool


class Values(NamedTuple):
    """Some values, for each histogram that they are added to."""

    buckets: Sequence[int] | npt.NDArray[np.int64]
    total: int
    lowest: int
    highest: int

    @classmethod
    def of(cls, values: Sequence[int]) -> "Values":
        lowest, highest = min(values), max(values)
        buckets: Sequence[int] | npt.NDArray[np.int64]
        if lowest == highest:
            buckets = [bucket_of(lowest)] * len(values)
        elif len(values) >= _MANY and highest < _EXACT:
            buckets = _buckets_of(np.fromiter(values, np.int64, len(values)))
        else:
            buckets = [  # `bucket_of`, without the call
                value
                if (shift := value.bit_length() - _BITS - 1) <= 0
                else (shift << _BITS) + (value >> shift)
                for value in values
            ]
        return cls(buckets, sum(values), lowest, highest)


def _buckets_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`bucket_of` each of values below `_EXACT`."""
    _, bits = np.frexp(values)
    shift = np.maximum(bits.astype(np.int64) - _BITS - 1, 0)
    return (shift << _BITS) + (values >> shift)


class Histogram:
    """Non-negative integers below 2^63 (nanoseconds, mostly). All buckets exist from the start
    (112 KiB), so that memory is the same after ten values and after ten billion."""

    __slots__ = ("_counts", "count", "highest", "in_flight", "lowest", "total")

    def __init__(self) -> None:
        self._counts = array("q", _EMPTY)
        self.count = 0
        self.total = 0
        self.lowest: int | None = None
        self.highest: int | None = None
        self.in_flight: Histogram | None = None  # ages of what had not ended

    def add(self, value: int, times: int = 1) -> None:
        shift = value.bit_length() - _BITS - 1  # `bucket_of`, without the call
        self._counts[value if shift <= 0 else (shift << _BITS) + (value >> shift)] += times
        self.count += times
        self.total += value * times
        if self.lowest is None or value < self.lowest:
            self.lowest = value
        if self.highest is None or value > self.highest:
            self.highest = value

    def add_all(self, values: "Values") -> None:
        """Add each of some values, of which there is at least one."""
        if values.lowest == values.highest:
            self.add(values.lowest, len(values.buckets))
            return
        if isinstance(values.buckets, np.ndarray):
            mine = self._array()
            mine += np.bincount(values.buckets, minlength=BUCKETS)
        else:
            counts = self._counts
            for bucket in values.buckets:
                counts[bucket] += 1
        self.count += len(values.buckets)
        self.total += values.total
        if self.lowest is None or values.lowest < self.lowest:
            self.lowest = values.lowest
        if self.highest is None or values.highest > self.highest:
            self.highest = values.highest

    def add_in_flight(self, age: int) -> None:
        """Something that had not ended, and was so old. An age of 0 says nothing."""
        if age > 0:
            self.in_flight = self.in_flight or Histogram()
            self.in_flight.add(age)

    def merge(self, other: "Histogram") -> None:
        """As if every value of `other` had been added here."""
        if other.in_flight is not None:
            self.in_flight = self.in_flight or Histogram()
            self.in_flight.merge(other.in_flight)
        mine = self._array()
        mine += other._array()
        self.count += other.count
        self.total += other.total
        for value in (other.lowest, other.highest):
            if value is not None:
                self.lowest = value if self.lowest is None else min(self.lowest, value)
                self.highest = value if self.highest is None else max(self.highest, value)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """Return the value at rank ceil(percent/100 * count), within `RELATIVE_ERROR`; None where
        too few values support it."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[float | None]:
        """Several at the price of one."""
        known = [percent for percent in percents if supported(self.count, percent)]
        values = dict(zip(known, self.at_ranks(known), strict=True)) if known else {}
        return [values.get(percent) for percent in percents]

    def at_rank(self, percent: float) -> float | None:
        """Return the value at rank ceil(percent/100 * count), however few lie beyond; None if
        empty."""
        return self.at_ranks((percent,))[0] if self.count else None

    def at_ranks(self, percents: Iterable[float]) -> list[float]:
        """Several at the price of one. There must be values."""
        return [bound.value for bound in self.bounds(percents)]

    def bounds(self, percents: Iterable[float]) -> list[Bound]:
        """Return the values of `at_ranks`, and which of them are lower bounds."""
        if self.in_flight is None:
            if self.lowest is not None and self.lowest == self.highest:
                return [Bound(float(self.lowest), False) for _ in percents]
            first, last = self._reach()
            below = self._array()[first:last].cumsum()
            count = self.count
            return [Bound(self._at(below, count, percent, first), False) for percent in percents]
        below = np.cumsum(self._array())
        return [self._bound(below, self.in_flight, percent) for percent in percents]

    def _bound(self, below: npt.NDArray[np.int64], older: "Histogram", percent: float) -> Bound:
        value = self._at(below, self.count, percent)
        aged = np.cumsum(older._array())
        aged = np.maximum(aged - aged[_bucket(value)], 0)  # those that are older, by age
        count = self.count + int(aged[-1])
        known = max(value, self._at(below + aged, count, percent))
        return Bound(known, at_least=bool(aged[_bucket(known)]))

    def _at(
        self, below: npt.NDArray[np.int64], count: int, percent: float, first: int = 0
    ) -> float:
        """Return the value at a rank of `count` values, of which `below` are in each bucket from
        the `first` on or under it.

        The rank is exact: a rounding would take the maximum for the P99.9 of 1000 values.
        """
        assert self.lowest is not None
        assert self.highest is not None
        highest = self.highest
        if count > self.count and self.in_flight is not None:
            highest = max(highest, self.in_flight.highest or 0)
        rank = _rank(percent, count)
        if rank >= count:
            return float(highest)
        return _middle(first + int(below.searchsorted(rank)), self.lowest, highest)

    def clear(self) -> None:
        """As new, in the same memory."""
        first, last = self._reach()
        self._array()[first:last].fill(0)
        self.count = self.total = 0
        self.lowest = self.highest = self.in_flight = None

    def share_at_most(self, limit: int) -> float | None:
        """Return the share of values of at most `limit`, counting the limit's own bucket as
        within."""
        if not self.count:
            return None
        return int(self._array()[: bucket_of(limit) + 1].sum()) / self.count

    def counts_at_most(self, limits: Iterable[int]) -> list[int]:
        """Return how many values are at most each limit (with the limit's own bucket), and then how
        many there are at all, as one look at the buckets says: also while values are added."""
        below = np.cumsum(self._array())
        return [*(int(below[bucket_of(limit)]) for limit in limits), int(below[-1])]

    def buckets(self) -> dict[int, int]:
        """Return the counts of the buckets that are not empty, in order."""
        counts = self._array()
        return {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}

    def octaves(self) -> dict[int, int]:
        """Return how many values lie from each power of two to below the next, by its exponent, in
        order; 0 is counted with 1. Exact: no bucket lies on both sides of a power."""
        counts: dict[int, int] = {}
        for bucket, count in self.buckets().items():
            exponent = max(0, bucket_bounds(bucket)[0].bit_length() - 1)
            counts[exponent] = counts.get(exponent, 0) + count
        return counts

    def to_json(self, unit: str = "ns") -> dict[str, Any]:
        """Everything, so that results can be merged later without loss."""
        return {
            "unit": unit,
            "sub_buckets_per_octave": 1 << _BITS,
            "count": self.count,
            "sum": self.total,
            "min": self.lowest,
            "max": self.highest,
            "buckets": [list(pair) for pair in self.buckets().items()],
            **({} if self.in_flight is None else {"in_flight": self.in_flight.to_json(unit)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Histogram":
        histogram = cls()
        for bucket, count in data["buckets"]:
            histogram._counts[int(bucket)] = int(count)
        histogram.count, histogram.total = int(data["count"]), int(data["sum"])
        histogram.lowest, histogram.highest = data["min"], data["max"]
        if (in_flight := data.get("in_flight")) is not None:
            histogram.in_flight = cls.from_json(in_flight)
        return histogram

    def _reach(self) -> tuple[int, int]:
        """Return from which bucket to below which one there are values."""
        if self.lowest is None or self.highest is None:
            return 0, 0
        return bucket_of(self.lowest), bucket_of(self.highest) + 1

    def _array(self) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._counts, np.int64)


class WindowValues:
    """The values of one window. A few are kept as they are, which is cheaper to add, to read and to
    clear; more are a histogram. What is read of either is the same."""

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few: list[int] = []
        self._many = Histogram()

    @property
    def count(self) -> int:
        return self._many.count + len(self._few)

    def add(self, value: int) -> None:
        self._few.append(value)
        if len(self._few) > _FEW:
            self.histogram()

    def add_all(self, values: Iterable[int]) -> None:
        self._few += values
        if len(self._few) > _FEW:
            self.histogram()

    def histogram(self) -> Histogram:
        """Return all of them as a histogram, until the next value or `clear`."""
        if self._few:
            self._many.add_all(Values.of(self._few))
            self._few.clear()
        return self._many

    def read(self, percents: Iterable[float]) -> tuple[int, list[float]]:
        """Return the highest, and the values at ranks as `Histogram.at_ranks` does. There must be
        values."""
        if self._many.count:
            many = self.histogram()
            return many.highest or 0, many.at_ranks(percents)
        values, count = sorted(self._few), len(self._few)
        lowest, highest = values[0], values[-1]
        ranks = [_rank(percent, count) for percent in percents]
        return highest, [
            float(highest) if rank >= count
            else _middle(bucket_of(values[rank - 1]), lowest, highest)
            for rank in ranks
        ]  # fmt: skip

    def clear(self) -> None:
        self._few.clear()
        if self._many.count:
            self._many.clear()


def merged(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.merge(histogram)
    return total
