"""Copies by a count, and by when they came to it: lists in a list (Shah, Mitra and Matani, "An
O(1) algorithm for implementing the LFU cache eviction scheme", 2010). Up or down by one is O(1),
and looks nothing up."""

from collections.abc import Iterator
from typing import cast

from kv_cache.policy.eviction.chain import Chain, ChainLink, append, release

_NO_COUNT = -2  # no neighbour of any


class CountedLink(ChainLink):
    """A copy in the chain of its count."""

    __slots__ = ("bucket", "copy_id")

    def __init__(self, copy_id: int) -> None:
        self.copy_id = copy_id
        self.bucket: CountBucket | None = None  # None: it is gone


class CountBucket(Chain):
    """What has one count, between the next lower count and the next higher."""

    __slots__ = ("count", "higher", "lower")

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.higher = self.lower = self


class Counts:
    def __init__(self) -> None:
        self._ends = CountBucket(_NO_COUNT)  # before the lowest and after the highest
        self._of: dict[int, CountedLink] = {}

    def add(self, copy_id: int, count: int) -> CountedLink:
        """`count` is 0 or 1: where it belongs is found from below."""
        bucket = self._ends
        while bucket.higher is not self._ends and bucket.higher.count <= count:
            bucket = bucket.higher
        counted = self._of[copy_id] = CountedLink(copy_id)
        if bucket.count != count:
            bucket = insert_above(CountBucket(count), bucket)
        counted.bucket = bucket
        append(counted, bucket)
        return counted

    def move(self, counted: CountedLink, by: int) -> None:
        """`by` is 1 or -1."""
        bucket = counted.bucket
        assert bucket is not None, "only what is here can be counted"
        count = bucket.count + by
        near = bucket.higher if by > 0 else bucket.lower
        if near.count != count:
            near = insert_above(CountBucket(count), bucket if by > 0 else bucket.lower)
        before, after = counted.before, counted.after  # take(counted)
        before.after = after
        after.before = before
        last = near.before  # append(counted, near)
        counted.bucket, counted.before, counted.after = near, last, near
        last.after = near.before = counted
        if bucket.after is bucket:
            close(bucket)

    def discard(self, copy_id: int) -> None:
        counted = self._of.pop(copy_id)
        bucket, counted.bucket = counted.bucket, None
        assert bucket is not None, "only what is here can go"
        release(counted)
        if bucket.empty:
            close(bucket)

    def __getitem__(self, copy_id: int) -> CountedLink:
        return self._of[copy_id]

    def __iter__(self) -> Iterator[int]:
        """Return the lowest count first; of one count, what came to it first."""
        bucket = self._ends.higher
        while bucket is not self._ends:
            link = bucket.after
            while link is not bucket:
                yield cast(CountedLink, link).copy_id
                link = link.after
            bucket = bucket.higher

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._of


def insert_above(new: CountBucket, below: CountBucket) -> CountBucket:
    """Put a new bucket after the one `below`, and return it."""
    new.lower, new.higher = below, below.higher
    below.higher.lower = new
    below.higher = new
    return new


def close(empty: CountBucket) -> None:
    """Take a bucket out that nothing is in any more."""
    empty.lower.higher, empty.higher.lower = empty.higher, empty.lower
    release(empty)
