"""A fixed pool of page-aligned buffers: memory in flight is bounded by it, not by users.

Buffers are anonymous mappings (page aligned, as O_DIRECT needs), in huge pages where the kernel
gives them, which halves the number of device requests of a large transfer.
"""

import mmap
import threading

import numpy as np
import numpy.typing as npt

from kv_cache.core.units import PAGE_BYTES, round_up

_HUGE_PAGE = 2 << 20
_LEAST_HUGE = _HUGE_PAGE // 2

Bytes = npt.NDArray[np.uint8]


def aligned_bytes(nbytes: int) -> Bytes:
    """`nbytes` of fresh zeroed memory on a page boundary; from 1 MiB on whole huge pages, on the
    boundary of one, where there are any.

    The array owns the mapping; it is given back when the last view of it is gone.
    """
    huge = nbytes >= _LEAST_HUGE
    page = _HUGE_PAGE if huge else PAGE_BYTES
    length = max(page, round_up(nbytes, page))
    # A page more where a huge one may begin within the first: it is never touched.
    mapped = length + (_HUGE_PAGE if huge else 0)
    mapping = mmap.mmap(-1, mapped, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    begin = -whole.ctypes.data % page
    return whole[begin : begin + nbytes]


class Buffer:
    """One buffer: as bytes for system calls, as pages of 64-bit words for the payload. `tint` and
    `filled_pages` are the payload's notes of what the buffer holds; a fresh one holds nothing."""

    __slots__ = ("address", "array", "filled_pages", "tint", "view", "words")

    def __init__(self, array: Bytes) -> None:
        self.array = array
        self.address: int = array.ctypes.data
        self.view = array.data
        self.words = array.view(np.uint64).reshape(-1, PAGE_BYTES // 8)
        self.tint = 0
        self.filled_pages = 0


class BufferPool:
    """`count` buffers of `buffer_bytes`, touched at once. `take` waits until one is free; who takes
    one gives it back before taking another, so the pool cannot be deadlocked."""

    def __init__(self, count: int, buffer_bytes: int) -> None:
        if buffer_bytes % PAGE_BYTES:
            raise AssertionError("buffers are whole pages")
        self.buffer_bytes = buffer_bytes
        self.count = count
        self._memory = aligned_bytes(count * buffer_bytes)
        self._memory[::PAGE_BYTES] = 1
        self._ready = threading.Condition()
        self._free = [
            Buffer(self._memory[i * buffer_bytes : (i + 1) * buffer_bytes]) for i in range(count)
        ]

    @property
    def memory(self) -> Bytes:
        """The whole pool, e.g. to pin it for a GPU."""
        return self._memory

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, tint: int = 0) -> Buffer:
        """Return a free buffer; one with this tint, if there is one, or else the longest unused."""
        with self._ready:
            while not self._free:
                self._ready.wait()
            for i in range(len(self._free) - 1, -1, -1):  # the last used may be in the cache
                if self._free[i].tint == tint:
                    return self._free.pop(i)
            return self._free.pop(0)

    def give(self, buffer: Buffer) -> None:
        with self._ready:
            self._free.append(buffer)
            self._ready.notify()
