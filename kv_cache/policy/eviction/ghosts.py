"""What a policy remembers of content that it has evicted: keys and sizes, the oldest first.

Content that is expected back is set aside until it comes, so that the evictions that make room for
it do not push it out. Bounded: either part forgets its oldest when it holds more than `limit`."""

from collections import OrderedDict

from kv_cache.core.block import Key


class Ghosts:
    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._gone: OrderedDict[Key, int] = OrderedDict()
        self._awaited: OrderedDict[Key, int] = OrderedDict()
        self.nbytes = 0  # without what is awaited
        self._awaited_bytes = 0

    def add(self, key: Key, nbytes: int) -> None:
        self.take(key)
        self._gone[key] = nbytes
        self.nbytes += nbytes
        while self._limit is not None and self.nbytes > self._limit:
            self.nbytes -= self._gone.popitem(last=False)[1]

    def expect(self, key: Key) -> None:
        if key not in self._gone:
            return
        nbytes = self._gone.pop(key)
        self.nbytes -= nbytes
        self._awaited[key] = nbytes
        self._awaited_bytes += nbytes
        while self._limit is not None and self._awaited_bytes > self._limit:
            self._awaited_bytes -= self._awaited.popitem(last=False)[1]

    def take(self, key: Key) -> bool:
        """Return whether `key` was remembered; it is no more."""
        if key in self._awaited:
            self._awaited_bytes -= self._awaited.pop(key)
        elif key in self._gone:
            self.nbytes -= self._gone.pop(key)
        else:
            return False
        return True

    @property
    def total_bytes(self) -> int:
        return self.nbytes + self._awaited_bytes

    def __len__(self) -> int:
        return len(self._gone) + len(self._awaited)
