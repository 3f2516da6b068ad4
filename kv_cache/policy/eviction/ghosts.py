"""What a policy remembers of content that it has evicted: keys, sizes and uses, the oldest first.

Content that is expected back is set aside until it comes, so that the evictions that make room for
it do not push it out. Bounded: either part forgets its oldest when it holds more than `limit`."""

from collections import OrderedDict

from kv_cache.core.block import Key


class Ghosts:
    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._gone: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self._awaited: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self.nbytes = 0  # without what is awaited
        self._awaited_bytes = 0

    def add(self, key: Key, nbytes: int, uses: int) -> None:
        self.take(key)
        self._gone[key] = nbytes, uses
        self.nbytes += nbytes
        while self._limit is not None and self.nbytes > self._limit:
            self.nbytes -= self._gone.popitem(last=False)[1][0]

    def expect(self, key: Key) -> None:
        if key not in self._gone:
            return
        ghost = self._awaited[key] = self._gone.pop(key)
        self.nbytes -= ghost[0]
        self._awaited_bytes += ghost[0]
        while self._limit is not None and self._awaited_bytes > self._limit:
            self._awaited_bytes -= self._awaited.popitem(last=False)[1][0]

    def take(self, key: Key) -> int | None:
        """Return the uses of `key`, which is remembered no more; None if it was not."""
        if key in self._awaited:
            nbytes, uses = self._awaited.pop(key)
            self._awaited_bytes -= nbytes
        elif key in self._gone:
            nbytes, uses = self._gone.pop(key)
            self.nbytes -= nbytes
        else:
            return None
        return uses

    @property
    def total_bytes(self) -> int:
        return self.nbytes + self._awaited_bytes

    def __len__(self) -> int:
        return len(self._gone) + len(self._awaited)
