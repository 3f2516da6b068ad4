"""MQ (Zhou, Philbin and Li, "The Multi-Queue replacement algorithm for second level buffer caches",
USENIX 2001): copies stand in eight LRU queues by the logarithm of their uses, the least recent of
the lowest queue that holds any is evicted. A copy that is not asked for within its lifetime goes to
the back of the next lower queue. The uses of what was evicted are remembered (the paper's Qout), in
the order of eviction, for as many bytes as four times the capacity: content that comes back goes on
counting. Made for caches below another one, whose hits it does not see.

The lifetime is a number of accesses, as in libCacheSim; the paper finds it while it runs, as the
distance between accesses that is seen most often. O(1) a call, on average: heads are looked at only
once one of them can have expired."""

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import HoldsCopies, Item
from kv_cache.policy.eviction.chain import Chain, ChainLink, append, release, take
from kv_cache.policy.eviction.ghosts import Ghosts
from kv_cache.policy.eviction.numbers import MOST, check

QUEUES = 8
LIFETIME = 10_000
GHOST_SHARE = 4.0


class Expiring(ChainLink):
    """What stands in one of the queues until it `expires`."""

    __slots__ = ("expires",)
    expires: int


class _QueuedCopy(Expiring):
    __slots__ = ("copy_id", "item", "uses")

    def __init__(self, item: Item, uses: int) -> None:
        self.item = item
        self.copy_id = item.copy_id
        self.uses = uses
        self.expires = 0


class Mq(HoldsCopies):
    NUMBERS = (("queues", QUEUES), ("lifetime", LIFETIME), ("ghost_share", GHOST_SHARE))

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        queues: int = QUEUES,
        lifetime: int = LIFETIME,
        ghost_share: float = GHOST_SHARE,
    ) -> None:
        check(
            queues=(queues, 1, 64),
            lifetime=(lifetime, 1, MOST * MOST),
            ghost_share=(ghost_share, 0, 64),
        )
        self._queues = [Chain() for _ in range(queues)]
        self._lifetime = lifetime
        self._copies: dict[int, _QueuedCopy] = {}
        super().__init__(self._copies)
        self.ghosts = Ghosts(None if capacity_bytes is None else int(capacity_bytes * ghost_share))
        self._now = 0
        self._none_due_until = lifetime  # no head expires before it

    def expect(self, key: Key) -> None:
        self.ghosts.expect(key)

    def insert(self, item: Item) -> None:
        copy = _QueuedCopy(item, 1 + (self.ghosts.take(item.key) or 0))
        self._copies[item.copy_id] = copy
        self._accessed(copy)

    def hit(self, copy_id: int) -> None:
        copy = self._copies[copy_id]
        take(copy)
        copy.uses += 1
        self._accessed(copy)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        copy = self._copies.pop(copy_id)
        release(copy)
        if evicted:
            self.ghosts.add(copy.item.key, copy.item.nbytes, copy.uses)

    def shrink(self, item: Item) -> None:
        self._copies[item.copy_id].item = item

    def victims(self) -> Iterator[int]:
        for queue in self._queues:
            link = queue.after
            while link is not queue:
                yield cast(_QueuedCopy, link).copy_id
                link = link.after

    def _accessed(self, copy: _QueuedCopy) -> None:
        level = copy.uses.bit_length() - 1
        queues = self._queues
        append(copy, queues[level] if level < len(queues) else queues[-1])
        copy.expires = self._now + self._lifetime
        self._now += 1
        if self._now > self._none_due_until:
            self._none_due_until = lower_expired(self._queues, self._now, self._lifetime)


def lower_expired(queues: list[Chain], now: int, lifetime: int) -> int:
    """Lower the head of each queue that has expired; return when the next one does."""
    soonest = renewed = now + lifetime
    for lower, queue in pairwise(queues):
        if queue.empty:
            continue
        head = cast(Expiring, queue.after)
        if head.expires < now:
            take(head)
            append(head, lower)
            head.expires = renewed
            if queue.empty:
                continue
            head = cast(Expiring, queue.after)
        soonest = min(soonest, head.expires)
    return soonest
