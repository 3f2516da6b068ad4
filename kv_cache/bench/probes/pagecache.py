"""What of a file is in the page cache, and whether a descriptor goes past it.

Looking must not change the answer: the file is mapped without any access right, so that nothing
can be faulted in, and only asked about. Works for descriptors opened with O_DIRECT as well.
"""

import ctypes
import itertools
import mmap
import os
import platform
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from kv_cache.tiers.base import Span

_PROT_NONE = 0
_MAP_FAILED = ctypes.c_void_p(-1).value
_CACHESTAT = {"x86_64": 451, "aarch64": 451}.get(platform.machine())
_OWN_PAGES = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
"""ext2 to ext4, XFS, btrfs, F2FS and tmpfs: file systems whose files hold their own pages. On a
stacked one (overlay, FUSE passthrough) cachestat sees an empty file while its pages are
cached one floor below; mincore follows them there."""

_Extent, _Counts = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5
_Statfs = ctypes.c_ulong * 32  # of at most 120 bytes
"""Made once: to make such a type takes as long as to ask."""


class PageStates(Struct, frozen=True, kw_only=True):
    """Pages of a range of a file that are cached, of those dirty, and being written back."""

    cached: int
    dirty: int
    writeback: int


@cache
def libc() -> ctypes.CDLL:
    """Return the C library as the program sees it, interposed functions included. Calls release the
    interpreter lock. Raises OSError in a statically linked Python."""
    library = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    library.mmap.restype = address
    library.mmap.argtypes = [address, size, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [address, size]
    library.mincore.argtypes = [address, size, address]
    library.fstatfs.argtypes = [ctypes.c_int, address]
    library.syscall.restype = ctypes.c_long
    return library


def is_direct(fd: int) -> bool:
    """Whether the descriptor is in O_DIRECT mode now (it can be set and cleared while open)."""
    import fcntl  # here: only Linux has it

    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def resident_pages(fd: int, offset: int, nbytes: int) -> int | None:
    """Count the pages (of `mmap.PAGESIZE`) of a file's range that are in the page cache.

    `fd` must be open for reading and the file our own or writable for us: of others the kernel
    says nothing, or that all pages are there. None if it cannot be learned. 5 µs where
    cachestat(2) can be trusted, else mincore(2): 45 ns a page, 0.4 ms for 32 MiB.
    """
    states = page_states(fd, offset, nbytes)
    return _mincore(fd, offset, nbytes) if states is None else states.cached


def page_states(fd: int, offset: int, nbytes: int) -> PageStates | None:
    """Ask cachestat(2) (Linux 6.5) for a file's range; None if its answer cannot be trusted."""
    if nbytes <= 0:  # to the kernel, 0 is "up to the end"
        return PageStates(cached=0, dirty=0, writeback=0)
    if _CACHESTAT is None or _file_system(fd) not in _OWN_PAGES:
        return None
    extent, counts, flags = _Extent(offset, nbytes), _Counts(), ctypes.c_long(0)
    if libc().syscall(ctypes.c_long(_CACHESTAT), ctypes.c_long(fd), extent, counts, flags) != 0:
        return None  # an older kernel, a sandbox, or a file of another user
    return PageStates(cached=counts[0], dirty=counts[1], writeback=counts[2])


def _file_system(fd: int) -> int | None:
    """Return the file system's magic number, the first word of a `struct statfs`."""
    status = _Statfs()
    return None if libc().fstatfs(fd, ctypes.byref(status)) else status[0] & 0xFFFFFFFF


def _mincore(fd: int, offset: int, nbytes: int) -> int | None:
    if nbytes <= 0:
        return 0
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    length = offset + nbytes - start
    address = libc().mmap(None, length, _PROT_NONE, mmap.MAP_SHARED, fd, start)
    if address == _MAP_FAILED:
        return None  # open for writing only, or a file system without mappings
    try:
        pages = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
        if libc().mincore(address, length, pages.ctypes.data) != 0:
            return None
    finally:
        libc().munmap(address, length)
    return int(np.count_nonzero(pages & 1))  # the other bits are reserved


class SampledPages(NamedTuple):
    """What one load found: pages of the object, those in the page cache before it, and whether
    each of its files was open for direct I/O."""

    pages: int
    resident: int
    direct: bool


class PageCacheSampler:
    """Looks at every N-th load: were their pages in the page cache before, are they after?

    Costs a system call or two for each file of the object, beside the load and not within it.
    """

    def __init__(self, every: int) -> None:
        self._turn = itertools.count()
        self._every = every
        self._lock = threading.Lock()
        self._objects = self._pages = self._before = self._after = 0
        self._descriptors = {True: 0, False: 0}

    def is_turn(self) -> bool:
        """Return whether the next load is one to look at."""
        return not next(self._turn) % self._every

    def before(self, spans: Sequence[Span]) -> SampledPages | None:
        """Look before a load; None if the kernel does not say."""
        resident = _resident(spans)
        if resident is None:
            return None
        pages = sum(-(-span.length // mmap.PAGESIZE) for span in spans)
        return SampledPages(pages, resident, all(is_direct(span.fd) for span in spans))

    def after(self, sampled: SampledPages, spans: Sequence[Span]) -> None:
        """Look after the same load, which has ended well."""
        resident = _resident(spans)
        if resident is None:
            return
        with self._lock:
            self._objects += 1
            self._pages += sampled.pages
            self._before += sampled.resident
            self._after += resident
            self._descriptors[sampled.direct] += 1

    def section(self) -> dict[str, Any]:
        """Return the section `page_cache` of the evidence."""
        with self._lock:
            return {
                "sampled_objects": self._objects,
                "pages": self._pages,
                "resident_before": self._before,
                "resident_after": self._after,
                "descriptors": {
                    "direct": self._descriptors[True],
                    "buffered": self._descriptors[False],
                },
            }


def _resident(spans: Sequence[Span]) -> int | None:
    counts = [resident_pages(span.fd, span.offset, span.length) for span in spans]
    return None if None in counts else sum(n for n in counts if n is not None)
