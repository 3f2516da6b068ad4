"""Reads and writes through io_uring: one ring a thread, a chunk as a batch of requests.

The package `liburing` (an extra) is imported only here. Its wait holds the interpreter lock for as
long as the device takes, so the ring is only asked for completions after `poll` on its descriptor
(which releases the lock) has said that there are some.

Buffers are registered with each ring, so that the kernel need not find and pin their pages for
every request. Where that is refused (RLIMIT_MEMLOCK, an older kernel) requests go without, and
`registered` says so.
"""

import ctypes
import functools
import importlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from kv_cache.core.errors import StoreError
from kv_cache.core.units import MIB, PAGE_BYTES
from kv_cache.installing import install_hint
from kv_cache.tiers.base import Span
from kv_cache.tiers.buffers import Bytes

PIECE_BYTES = 2 * MIB  # of a request; a huge page
DEPTH = 64
_VECTORS = 8192

_lock = threading.Lock()
_memories: list[Bytes] = []
_generation = 0
_local = threading.local()


def uring_missing() -> str | None:
    """Return why io_uring cannot be used here; None if it can."""
    if importlib.util.find_spec("liburing") is None:
        return f"it needs the package liburing; {install_hint('uring')}, or use direct"
    died = _dies()
    if died is not None:
        return f"the package liburing dies on this processor ({died}); use direct"
    try:
        _Ring(()).close()
    except OSError as error:
        return f"the kernel refuses io_uring ({os.strerror(error.errno or 0)}); use direct"
    return None


@functools.cache
def _dies() -> str | None:
    """Return the signal by which a process that makes a ring dies, tried in another one: a wheel
    may hold instructions that this processor lacks, which no exception reports."""
    make = "import liburing as u; r = u.Ring(); u.io_uring_queue_init(8, r)"
    status = subprocess.run([sys.executable, "-c", make], capture_output=True).returncode
    return signal.Signals(-status).name if status < 0 else None


def register(memories: Sequence[Bytes]) -> None:
    """The memory of the buffer pools, for the rings of all threads from their next transfer on."""
    global _generation
    with _lock:
        _memories[:] = memories
        _generation += 1  # other memory may lie at the address of some that is gone
    ring = getattr(_local, "ring", None)
    if ring is not None:  # it would keep the memory of old until this thread ends
        ring.close()
        _local.ring = None


def prepare() -> None:
    """Make this thread's ring now; else its first operation would be timed with it."""
    _ring()


def registered() -> bool:
    """Return whether rings made here and now take the buffers."""
    ring = _Ring(_memories)
    try:
        return ring.registered
    finally:
        ring.close()


class UringRegion:
    """A span, by batches of positional requests."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def read(self, offset: int, into: memoryview) -> None:
        _ring().transfer(self._span, offset, into, write=False)

    def write(self, offset: int, data: memoryview) -> None:
        _ring().transfer(self._span, offset, data, write=True)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _ring() -> "_Ring":
    """This thread's ring; it goes with the thread."""
    ring: _Ring | None = getattr(_local, "ring", None)
    if ring is None or ring.in_flight or ring.generation != _generation:
        if ring is not None:
            ring.close()
        with _lock:
            memories, generation = tuple(_memories), _generation
        ring = _local.ring = _Ring(memories, generation)
    return ring


class _Ring:
    _ring: Any = None

    def __init__(self, memories: Sequence[Bytes], generation: int = 0) -> None:
        self._u: Any = importlib.import_module("liburing")
        self.generation = generation
        self.in_flight = 0  # other than 0 after a transfer that was broken off: of no use any more
        ring = self._u.Ring()
        self._exit = self._u.io_uring_queue_exit  # the module may be gone before this is
        self._u.io_uring_queue_init(DEPTH, ring)
        self._ring = ring
        self._places = [(m.ctypes.data, m.ctypes.data + m.nbytes) for m in memories]
        self._vectors: dict[tuple[int, int], Any] = {}
        self._poll = select.poll()
        self._poll.register(self._ring.ring_fd, select.POLLIN)
        self.registered = self._register(memories)

    def _register(self, memories: Sequence[Bytes]) -> bool:
        if not memories:
            return False
        vectors = self._u.Iovec([_memory_at(begin, end - begin) for begin, end in self._places])
        try:
            self._u.io_uring_register_buffers(self._ring, vectors)
        except OSError:
            return False
        return self._takes_vectors(self._places[0][0])

    def _vector(self, address: int, nbytes: int) -> Any:
        """Return a vector of these bytes, made once, and from something small that owns nothing:
        the package never lets go of what a vector was made from (2026.3)."""
        vector = self._vectors.get((address, nbytes))
        if vector is None:
            if len(self._vectors) >= _VECTORS:
                self._vectors.clear()
            vector = self._u.Iovec([_memory_at(address, nbytes)])
            self._vectors[address, nbytes] = vector
        return vector

    def _takes_vectors(self, page: int) -> bool:
        """Vectored requests from registered buffers came with Linux 6.15; nothing reads the page
        that is written here."""
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._prepare(0, fd, self._vector(page, PAGE_BYTES), 0, 0, write=True)
            self._submit(1)
            return not self._finish([(0, PAGE_BYTES)], write=True)
        except OSError:
            return False
        finally:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            self._exit(ring)

    def transfer(self, span: Span, offset: int, data: memoryview, *, write: bool) -> None:
        """All of `data`, in pieces that are in flight together; short ones are asked for again."""
        pieces = [(at, min(PIECE_BYTES, len(data) - at)) for at in range(0, len(data), PIECE_BYTES)]
        address = _address(data)
        index = self._index(address, len(data))
        while pieces:
            batch, pieces = pieces[:DEPTH], pieces[DEPTH:]
            vectors = [self._vector(address + at, length) for at, length in batch]
            for number, (at, _) in enumerate(batch):
                place = span.offset + offset + at
                self._prepare(number, span.fd, vectors[number], place, index, write)
            self._submit(len(batch))
            pieces = [*self._finish(batch, write), *pieces]  # `vectors` must live until here

    def _prepare(
        self, number: int, fd: int, vector: Any, at: int, index: int | None, write: bool
    ) -> None:
        u = self._u
        entry = u.io_uring_get_sqe(self._ring)
        if index is None:
            prepare = u.io_uring_prep_writev if write else u.io_uring_prep_readv
            prepare(entry, fd, vector, at)
        else:
            prepare = u.io_uring_prep_writev_fixed if write else u.io_uring_prep_readv_fixed
            prepare(entry, fd, vector, index, at)
        u.io_uring_sqe_set_data64(entry, number)

    def _submit(self, count: int) -> None:
        """The kernel stops at a request that it refuses to begin, and takes the rest when asked
        again."""
        began = 0
        try:
            while began < count:
                began += self._u.io_uring_submit(self._ring)
        except OSError:
            self._drain(began)  # the buffer is the kernel's until what has begun has ended
            self.in_flight = count  # the rest is still in the queue: of no use any more
            raise
        self.in_flight = count

    def _drain(self, count: int) -> None:
        entry = self._u.Cqe()
        for _ in range(count):
            self._poll_for_one()
            self._u.io_uring_wait_cqe(self._ring, entry)
            self._u.io_uring_cqe_seen(self._ring, entry[0])

    def _poll_for_one(self) -> None:
        """Wait without the interpreter lock, which the package's own wait holds."""
        if not self._u.io_uring_cq_ready(self._ring):
            self._poll.poll()

    def _finish(self, batch: list[tuple[int, int]], write: bool) -> list[tuple[int, int]]:
        """Wait for the whole batch, also if a part of it fails: the buffer is the kernel's until
        then. What is left of short transfers."""
        rest, failed, u = [], 0, self._u
        entry = u.Cqe()
        for _ in batch:
            self._poll_for_one()
            u.io_uring_wait_cqe(self._ring, entry)
            number = u.io_uring_cqe_get_data64(entry[0])
            try:
                done = entry[0].res
            except OSError as error:  # as the package reports a negative result
                done = -(error.errno or 0)
            u.io_uring_cqe_seen(self._ring, entry[0])
            self.in_flight -= 1
            at, length = batch[number]
            if done < 0:
                failed = -done
            elif done == 0:
                failed = failed or -1
            elif done < length:
                rest.append((at + done, length - done))
        if failed == -1:
            reason = "short-write" if write else "truncated"
            raise StoreError(reason, "the file ends before its object does")
        if failed:
            raise OSError(failed, os.strerror(failed))
        return rest

    def _index(self, address: int, nbytes: int) -> int | None:
        """Return which registered buffer holds these bytes."""
        if not self.registered:
            return None
        for index, (begin, end) in enumerate(self._places):
            if begin <= address and address + nbytes <= end:
                return index
        return None


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


def _memory_at(address: int, nbytes: int) -> memoryview:
    """Return bytes that something else keeps."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
