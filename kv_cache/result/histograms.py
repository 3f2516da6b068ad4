"""Histograms in documents: read strictly, as a document may come from anywhere."""

from itertools import pairwise
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from kv_cache.metrics.histogram import BUCKETS, Histogram, bucket_of

_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Bucket = Annotated[int, Meta(ge=0, lt=BUCKETS)]
_InIt = Annotated[int, Meta(gt=0, lt=2**48)]


class _Written(Struct):
    buckets: list[tuple[_Bucket, _InIt]]
    count: _Natural
    sum: _Natural
    min: _Natural | None = None
    max: _Natural | None = None


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
    try:
        fits = _fits(convert(value, _Written))
    except ValidationError:
        fits = False
    if not fits:
        raise ValueError("is not a histogram whose buckets fit its other numbers")
    ages = value.get("in_flight")
    if ages is not None and (not isinstance(ages, dict) or ages.get("in_flight") is not None
                             or not read_histogram(ages).count):  # fmt: skip
        raise ValueError("has in_flight, which is not a histogram of ages")
    return Histogram.from_json(value)


def _fits(written: _Written) -> bool:
    pairs = written.buckets
    low, high, count = written.min, written.max, written.count
    if not pairs or low is None or high is None:
        return not pairs and low is high is None and count == written.sum == 0
    return (
        all(first[0] < second[0] for first, second in pairwise(pairs))
        and sum(n for _, n in pairs) == count
        and count * low <= written.sum <= count * high
        and [bucket_of(low), bucket_of(high)] == [pairs[0][0], pairs[-1][0]]
    )
