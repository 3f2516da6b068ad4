"""S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): new content
goes through a small queue of a tenth of the capacity; what was hit more than once on the way goes
on to the main queue, the rest is evicted and remembered as a ghost. Content that comes back as a
ghost goes to the main queue at once. There a copy that was hit is put back, with one hit (of at
most three) less. Sizes are bytes. O(1) a call, on average.

As in the authors' libCacheSim, and unlike the paper: until something is evicted, what no longer
finds room in the small queue goes to the main queue; and whether content is a ghost is asked before
room is made for it (the paper: after), if the caller says what it expects.

A pinned copy that is passed over goes to the back of its queue."""

from collections import OrderedDict, deque
from collections.abc import Iterator

from kv_cache.core.block import Key
from kv_cache.policy.eviction.base import HoldsCopies, Item
from kv_cache.policy.eviction.ghosts import Ghosts
from kv_cache.policy.eviction.numbers import check

SMALL_SHARE = 0.1
GHOST_SHARE = 0.9
MOST_HITS = 3
TO_MAIN = 2  # hits in the small queue


class S3Fifo(HoldsCopies):
    NUMBERS = (
        ("small_share", SMALL_SHARE),
        ("ghost_share", GHOST_SHARE),
        ("most_hits", MOST_HITS),
        ("to_main", TO_MAIN),
    )

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        small_share: float = SMALL_SHARE,
        ghost_share: float = GHOST_SHARE,
        most_hits: int = MOST_HITS,
        to_main: int = TO_MAIN,
    ) -> None:
        check(
            small_share=(small_share, 0, 1),
            ghost_share=(ghost_share, 0, 1),
            most_hits=(most_hits, 1, 15),
            to_main=(to_main, 1, most_hits),
        )
        self._most_hits, self._to_main = most_hits, to_main
        self._small: OrderedDict[int, int] = OrderedDict()  # hits
        self._main: OrderedDict[int, int] = OrderedDict()
        self._items: dict[int, Item] = {}
        super().__init__(self._items)
        self._small_bytes = 0
        unlimited = capacity_bytes is None
        self._small_target = None if unlimited else int((capacity_bytes or 0) * small_share)
        self.ghosts = Ghosts(None if unlimited else int((capacity_bytes or 0) * ghost_share))
        self._has_evicted = False

    def expect(self, key: Key) -> None:
        self.ghosts.expect(key)

    def insert(self, item: Item) -> None:
        self._items[item.copy_id] = item
        known = self.ghosts.take(item.key) is not None
        if known or (not self._has_evicted and self._small_is_full(self._small_bytes)):
            self._main[item.copy_id] = 0
        else:
            self._small[item.copy_id] = 0
            self._small_bytes += item.nbytes

    def hit(self, copy_id: int) -> None:
        queue = self._small if copy_id in self._small else self._main
        queue[copy_id] = min(queue[copy_id] + 1, self._most_hits)

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        if evicted:
            self._has_evicted = True
            self._reach(copy_id)
        item = self._items.pop(copy_id)
        if copy_id not in self._small:
            del self._main[copy_id]
            return
        hits = self._small.pop(copy_id)
        self._small_bytes -= item.nbytes
        if evicted:
            self.ghosts.add(item.key, item.nbytes, 1 + hits)

    def shrink(self, item: Item) -> None:
        if item.copy_id in self._small:
            self._small_bytes += item.nbytes - self._items[item.copy_id].nbytes
        self._items[item.copy_id] = item

    def victims(self) -> Iterator[int]:
        """Run the algorithm on queues that only seem to change."""
        small, small_bytes = iter(self._small.items()), self._small_bytes
        main: Iterator[tuple[int, int]] = iter(self._main.items())
        back: deque[tuple[int, int]] = deque()  # what the main queue gets meanwhile
        in_small, in_main = len(self._small), len(self._main)
        while in_small or in_main:
            if in_small and (self._small_is_full(small_bytes) or not in_main):
                copy_id, hits = next(small)
                in_small -= 1
                small_bytes -= self._items[copy_id].nbytes
                if hits < self._to_main:
                    yield copy_id
                else:
                    back.append((copy_id, 0))
                    in_main += 1
                continue
            copy_id, hits = next(main, None) or back.popleft()
            if hits:
                back.append((copy_id, hits - 1))
            else:
                in_main -= 1
                yield copy_id

    def _small_is_full(self, nbytes: int) -> bool:
        return self._small_target is not None and nbytes >= self._small_target

    def _reach(self, copy_id: int) -> None:
        """What happens to the copies before the victim."""
        while copy_id in self._small:
            front, hits = next(iter(self._small.items()))
            if front == copy_id:
                return
            if hits < self._to_main:
                self._small.move_to_end(front)
            else:
                self._promote(front)
        while self._small and (self._small_is_full(self._small_bytes)):
            front, hits = next(iter(self._small.items()))
            if hits < self._to_main:
                break
            self._promote(front)
        while True:
            front, hits = next(iter(self._main.items()))
            if front == copy_id and not hits:
                return
            self._main[front] = max(0, hits - 1)
            self._main.move_to_end(front)

    def _promote(self, copy_id: int) -> None:
        del self._small[copy_id]
        self._small_bytes -= self._items[copy_id].nbytes
        self._main[copy_id] = 0
