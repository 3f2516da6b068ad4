"""ARC (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003).

T1 holds copies that were asked for once, T2 those that were asked for again, each by recency; B1
and B2 remember the keys of what was evicted from either. Content that comes back from B1 says that
T1 is too small, and raises its target p; from B2, the reverse. All sizes are bytes (the paper's
pages are of one size): of content of n bytes, p moves by n times the larger of 1 and the ratio of
the lists. With c the capacity:

    |T1| + |B1| <= max(c, |T1|)      |T1| + |T2| + |B1| + |B2| <= max(2c, |T1| + |T2|)

p moves when content is expected, before room is made for it, as in the paper; the lists of ghosts
are cut when it has come. O(1) a call, on average."""

from collections import OrderedDict
from collections.abc import Iterator

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import Eviction, Item


class _Sized:
    """Ghosts by recency, and their bytes."""

    def __init__(self) -> None:
        self.order: OrderedDict[Key, int] = OrderedDict()
        self.nbytes = 0

    def add(self, key: Key, nbytes: int) -> None:
        self.take(key)
        self.order[key] = nbytes
        self.nbytes += nbytes

    def take(self, key: Key) -> bool:
        nbytes = self.order.pop(key, None)
        self.nbytes -= nbytes or 0
        return nbytes is not None

    def forget_oldest(self) -> None:
        self.nbytes -= self.order.popitem(last=False)[1]


class Arc(Eviction):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity = capacity_bytes
        self.p = 0.0  # the target of |T1|, in bytes
        self._t1: OrderedDict[int, Item] = OrderedDict()
        self._t2: OrderedDict[int, Item] = OrderedDict()
        self.t1_bytes = self.t2_bytes = 0
        self.b1, self.b2 = _Sized(), _Sized()
        self._adapted: dict[Key, None] = {}  # ghosts that have moved p already
        self._from_b2 = False  # what was expected last

    def expect(self, key: Key) -> None:
        self._from_b2 = key in self.b2.order
        if key in self._adapted:
            return
        if key in self.b1.order:
            step = self.b1.order[key] * max(1.0, self.b2.nbytes / self.b1.nbytes)
            self.p = self.p + step if self.capacity is None else min(self.capacity, self.p + step)
        elif key in self.b2.order:
            step = self.b2.order[key] * max(1.0, self.b1.nbytes / self.b2.nbytes)
            self.p = max(0.0, self.p - step)
        else:
            return
        self._adapted[key] = None

    def insert(self, item: Item) -> None:
        self.expect(item.key)  # if the caller has not
        self._adapted.pop(item.key, None)
        self._from_b2 = False
        if self.b1.take(item.key) or self.b2.take(item.key):
            self._t2[item.copy_id] = item
            self.t2_bytes += item.nbytes
        else:
            self._t1[item.copy_id] = item
            self.t1_bytes += item.nbytes
        self._cut()

    def hit(self, copy_id: int) -> None:
        item = self._t1.pop(copy_id, None)
        if item is None:
            self._t2.move_to_end(copy_id)
            return
        self._t2[copy_id] = item
        self.t1_bytes -= item.nbytes
        self.t2_bytes += item.nbytes

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        item = self._t1.pop(copy_id, None)
        if item is not None:
            self.t1_bytes -= item.nbytes
            ghosts = self.b1
        else:
            item = self._t2.pop(copy_id)
            self.t2_bytes -= item.nbytes
            ghosts = self.b2
        if evicted:
            ghosts.add(item.key, item.nbytes)

    def shrink(self, item: Item) -> None:
        if item.copy_id in self._t1:
            self.t1_bytes += item.nbytes - self._t1[item.copy_id].nbytes
            self._t1[item.copy_id] = item
        else:
            self.t2_bytes += item.nbytes - self._t2[item.copy_id].nbytes
            self._t2[item.copy_id] = item

    def victims(self) -> Iterator[int]:
        """Yield what the paper's REPLACE would evict, again and again."""
        t1, t2 = iter(self._t1.values()), iter(self._t2)
        t1_bytes = self.t1_bytes
        in_t1, in_t2 = len(self._t1), len(self._t2)
        while in_t1 or in_t2:
            over = t1_bytes > self.p or (self._from_b2 and t1_bytes == self.p)
            if in_t1 and (over or not in_t2):
                item = next(t1)
                in_t1 -= 1
                t1_bytes -= item.nbytes
                yield item.copy_id
            else:
                in_t2 -= 1
                yield next(t2)

    def __len__(self) -> int:
        return len(self._t1) + len(self._t2)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._t1 or copy_id in self._t2

    def _cut(self) -> None:
        if self.capacity is None:
            return
        while self.b1.order and self.t1_bytes + self.b1.nbytes > self.capacity:
            self._forget(self.b1)
        here = self.t1_bytes + self.t2_bytes
        while here + self.b1.nbytes + self.b2.nbytes > max(2 * self.capacity, here):
            self._forget(self.b2 if self.b2.order else self.b1)

    def _forget(self, ghosts: _Sized) -> None:
        self._adapted.pop(next(iter(ghosts.order)), None)
        ghosts.forget_oldest()
