"""Copies by a count, and by when they came to it: lists in a list (Shah, Mitra and Matani, "An
O(1) algorithm for implementing the LFU cache eviction scheme", 2010). Up or down by one is O(1)."""

from collections import OrderedDict
from collections.abc import Iterator

_NO_COUNT = -2  # no neighbour of any


class _Bucket:
    __slots__ = ("after", "before", "copies", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self.copies: OrderedDict[int, None] = OrderedDict()
        self.before = self.after = self


class Counts:
    def __init__(self) -> None:
        self._ends = _Bucket(_NO_COUNT)  # before the lowest and after the highest
        self._of: dict[int, _Bucket] = {}

    def add(self, copy_id: int, count: int) -> None:
        """`count` is 0 or 1: where it belongs is found from below."""
        bucket = self._ends
        while bucket.after is not self._ends and bucket.after.count <= count:
            bucket = bucket.after
        self._put(copy_id, bucket if bucket.count == count else _link(_Bucket(count), bucket))

    def move(self, copy_id: int, by: int) -> None:
        """`by` is 1 or -1."""
        bucket = self._of[copy_id]
        count = bucket.count + by
        near = bucket.after if by > 0 else bucket.before
        if near.count != count:
            near = _link(_Bucket(count), bucket if by > 0 else bucket.before)
        near.copies[copy_id] = None
        self._of[copy_id] = near
        copies = bucket.copies
        del copies[copy_id]
        if not copies:
            bucket.before.after, bucket.after.before = bucket.after, bucket.before

    def count(self, copy_id: int) -> int:
        return self._of[copy_id].count

    def discard(self, copy_id: int) -> None:
        self._take(copy_id, self._of.pop(copy_id))

    def __iter__(self) -> Iterator[int]:
        """The lowest count first; of one count, what came to it first."""
        bucket = self._ends.after
        while bucket is not self._ends:
            yield from bucket.copies
            bucket = bucket.after

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._of

    def _put(self, copy_id: int, bucket: _Bucket) -> None:
        bucket.copies[copy_id] = None
        self._of[copy_id] = bucket

    def _take(self, copy_id: int, bucket: _Bucket) -> None:
        del bucket.copies[copy_id]
        if not bucket.copies:
            bucket.before.after, bucket.after.before = bucket.after, bucket.before


def _link(new: _Bucket, behind: _Bucket) -> _Bucket:
    new.before, new.after = behind, behind.after
    behind.after.before = new
    behind.after = new
    return new
