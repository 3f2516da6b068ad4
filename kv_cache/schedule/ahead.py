"""What is to be brought up before a request asks for it: a short queue, and what is on its way.

No request ever waits for it. If more is wanted than the queue holds, the oldest wishes are given
up: they are the least likely to come in time.
"""

from collections.abc import Callable, Iterable

from kv_cache.core.block import Key
from kv_cache.policy.prefetch import Prefetch

QUEUE = 16
"""How many requests' wishes may wait."""


class Ahead:
    """At most `slots` blocks are on their way at once; a request adds `most` wishes at most.
    `nearest`: to the next tier above rather than to the fastest."""

    def __init__(self, policy: Prefetch, *, slots: int, most: int, nearest: bool = False) -> None:
        self.policy = policy
        self.nearest = nearest
        self._slots = slots
        self._most = most
        self._queue: dict[Key, None] = {}
        self.holders = 0
        self.wanted_blocks = 0
        self.given_up_blocks = 0

    def want(self, keys: Iterable[Key], rises: Callable[[Key], bool] = lambda _: True) -> None:
        """The most wanted first. What `rises` denies is up already: it is remembered too, as it
        may be gone when its turn comes, and takes no place of those that have to be brought."""
        places = {True: self._most, False: self._most}
        for key in keys:
            below = rises(key)
            if not places[below]:
                if below:
                    break
                continue
            places[below] -= 1
            self.wanted_blocks += 1
            if key in self._queue:
                self.given_up_blocks += 1
                continue
            self._queue[key] = None
            if len(self._queue) > QUEUE * self._most:
                del self._queue[next(iter(self._queue))]
                self.given_up_blocks += 1

    def try_enter(self) -> bool:
        """Return whether one more may be on its way, and there is something to bring."""
        if not self._queue or self.holders >= self._slots:
            return False
        self.holders += 1
        return True

    def take(self) -> Key | None:
        """Return the oldest wish."""
        if not self._queue:
            return None
        key = next(iter(self._queue))
        del self._queue[key]
        return key

    def rest(self) -> None:
        """Bring nothing more up once no request will ask any more; what is on its way arrives."""
        self.given_up_blocks += len(self._queue)
        self._queue.clear()

    def leave(self) -> None:
        self.holders -= 1
        assert self.holders >= 0, "more has arrived than was on its way"
