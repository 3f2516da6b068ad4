"""Histograms in documents: read strictly, as a document may come from anywhere."""

from itertools import pairwise
from typing import Any

from kv_cache.metrics.histogram import BUCKETS, Histogram, bucket_of

_LARGEST = 2**63 - 1
_MOST_IN_A_BUCKET = 2**48


def decode(kind: type, value: Any) -> Any:
    """Convert a histogram, as msgspec's hook for types that it does not know. Raises ValueError."""
    if kind is not Histogram:
        raise NotImplementedError(kind)
    return read_histogram(value)


def encode(value: Any) -> Any:
    """Return the same in the other direction; sizes have another unit, which their writer sets."""
    if not isinstance(value, Histogram):
        raise NotImplementedError(type(value))
    return value.to_json()


def read_histogram(value: Any) -> Histogram:
    """Return a histogram whose buckets fit its other numbers. Raises ValueError."""
    if not isinstance(value, dict) or not _sound(value):
        raise ValueError("is not a histogram whose buckets fit its other numbers")
    ages = value.get("in_flight")
    if ages is not None and (not isinstance(ages, dict) or ages.get("in_flight") is not None
                             or not read_histogram(ages).count):  # fmt: skip
        raise ValueError("has in_flight, which is not a histogram of ages")
    return Histogram.from_json(value)


def _sound(value: dict[str, Any]) -> bool:
    pairs = value.get("buckets")
    if not isinstance(pairs, list) or not all(type(p) is list and len(p) == 2 for p in pairs):
        return False
    numbers = [number for pair in pairs for number in pair]
    count, total = value.get("count"), value.get("sum")
    ends = [value.get("min"), value.get("max")] if pairs else [0, 0]
    if not all(type(n) is int and 0 <= n <= _LARGEST for n in (*numbers, count, total, *ends)):
        return False
    if not pairs:
        return count == total == 0 and value.get("min") is None and value.get("max") is None
    low, high = value["min"], value["max"]
    return (
        all(first[0] < second[0] for first, second in pairwise(pairs))
        and all(bucket < BUCKETS and 0 < n < _MOST_IN_A_BUCKET for bucket, n in pairs)
        and sum(n for _, n in pairs) == count
        and count * low <= total <= count * high
        and [bucket_of(low), bucket_of(high)] == [pairs[0][0], pairs[-1][0]]
    )
