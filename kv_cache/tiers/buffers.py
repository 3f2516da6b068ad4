"""A fixed pool of page-aligned buffers: memory in flight is bounded by it, not by users.

Buffers are anonymous mappings (page aligned, as O_DIRECT needs), in huge pages where the kernel
gives them, which halves the number of device requests of a large transfer.
"""

import mmap
import queue
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kv_cache.core.units import PAGE_BYTES, round_up

_HUGE_PAGE = 2 << 20

Bytes = npt.NDArray[np.uint8]


def aligned_bytes(nbytes: int) -> Bytes:
    """`nbytes` of fresh zeroed memory on a page boundary (2 MiB pages where there are any).

    The array owns the mapping; it is given back when the last view of it is gone.
    """
    length = max(1, round_up(nbytes, PAGE_BYTES))
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if length >= _HUGE_PAGE:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)[:nbytes]


class Buffer:
    """One buffer: as bytes for system calls, as pages of 64-bit words for the payload."""

    __slots__ = ("array", "view", "words")

    def __init__(self, array: Bytes) -> None:
        self.array = array
        self.view = array.data
        self.words = array.view(np.uint64).reshape(-1, PAGE_BYTES // 8)


class BufferPool:
    """`count` buffers of `buffer_bytes`. `take` waits until one is free; who takes one gives it
    back before taking another, so the pool cannot be deadlocked."""

    def __init__(self, count: int, buffer_bytes: int, fill: Callable[[Buffer], None]) -> None:
        if buffer_bytes % PAGE_BYTES:
            raise AssertionError("buffers are whole pages")
        self.buffer_bytes = buffer_bytes
        self.count = count
        self._memory = aligned_bytes(count * buffer_bytes)
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for i in range(count):
            buffer = Buffer(self._memory[i * buffer_bytes : (i + 1) * buffer_bytes])
            fill(buffer)
            self._free.put(buffer)

    @property
    def memory(self) -> Bytes:
        """The whole pool, e.g. to pin it for a GPU."""
        return self._memory

    @property
    def available(self) -> int:
        return self._free.qsize()

    def take(self) -> Buffer:
        return self._free.get()

    def give(self, buffer: Buffer) -> None:
        self._free.put(buffer)
