"""How bytes get to a place in a file and back: `direct`, `mmap`, `buffered`, `uring`.

An engine knows nothing of objects or names: a layout opens files and says where in them an object
is; the engine moves its bytes. Reads come from the device rather than from memory: `direct` and
`uring` go past the page cache, the others drop the object's pages before they read (which drops
only clean ones: they are clean where fsync is on).
"""

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.units import KIB, PAGE_BYTES, SECTOR_BYTES
from kv_cache.extensions import Catalogue, makes
from kv_cache.tiers.base import RINGS, Capability, Span, reason_of, store_error
from kv_cache.tiers.buffers import aligned_bytes
from kv_cache.tiers.nvme.uring import UringRegion, uring_missing

_DIRECT = getattr(os, "O_DIRECT", 0)  # stores are opened on Linux alone, which has it


class Region(Protocol):
    """The bytes of a span, open for reading or for writing; offsets count from its start."""

    def read(self, offset: int, into: memoryview) -> None: ...

    def write(self, offset: int, data: memoryview) -> None: ...

    def flush(self) -> None:
        """Hand everything to the file, so that an fsync of it is one of these bytes."""

    def close(self) -> None:
        """The file stays open: it is the layout's."""


class Engine(Protocol):
    name: str
    capabilities: Capability
    open_flags: int
    writes_need_space: bool  # a store into a hole of a full disk would be a SIGBUS, not an error

    def region(self, span: Span, *, writable: bool) -> Region: ...


def size_of(fd: int) -> int:
    """Return the size of an open file or block device, of which stat(2) says 0."""
    return os.lseek(fd, 0, os.SEEK_END)


class _PreadRegion:
    """Positional reads and writes by system call."""

    def __init__(self, span: Span) -> None:
        self._fd = span.fd
        self._base = span.offset

    def write(self, offset: int, data: memoryview) -> None:
        at, moved = self._base + offset, 0
        try:
            while moved < len(data):
                written = os.pwrite(self._fd, data[moved:], at + moved)
                if written == 0:
                    raise StoreError("short-write", "the file took no more bytes", moved)
                moved += written
        except OSError as error:
            raise store_error(error, moved) from error

    def read(self, offset: int, into: memoryview) -> None:
        at, moved = self._base + offset, 0
        try:
            while moved < len(into):
                got = os.preadv(self._fd, [into[moved:]], at + moved)
                moved += got
                # No direct read ends within a sector but at the end of its file.
                if got == 0 or (moved < len(into) and got % SECTOR_BYTES):
                    raise StoreError("truncated", "the file ends before its object does", moved)
        except OSError as error:
            raise store_error(error, moved) from error

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Direct:
    """O_DIRECT: the page cache is not involved."""

    name = "direct"
    capabilities = Capability.DIRECT | Capability.DATA | Capability.POSITIONAL
    open_flags = _DIRECT
    writes_need_space = False

    def region(self, span: Span, *, writable: bool) -> Region:
        return _PreadRegion(span)


class Buffered:
    """Through the page cache; an object's pages are dropped before it is read."""

    name = "buffered"
    capabilities = Capability.DATA
    open_flags = 0
    writes_need_space = False

    def region(self, span: Span, *, writable: bool) -> Region:
        if not writable:
            _drop(span)
        return _PreadRegion(span)


_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14
_ASKED_BYTES = 128 * KIB  # more than a device takes at a time is left out by WILLNEED
_libc = ctypes.CDLL(None, use_errno=True)


class _MmapRegion:
    """Loads and stores through a shared mapping, which begins where the kernel lets it.

    A load from a page that the kernel cannot provide (the device fails, the file was cut short)
    is a SIGBUS, which ends the process. So the kernel is first asked for the pages, which fails
    with an error instead; what is left is a file that is cut short between that and the copy.
    It is also what makes the read-ahead large (MADV_SEQUENTIAL makes it small: 30 MB/s).

    Read-ahead goes both ways from a page, and as far as the device is set to (8 MiB on some): of a
    file that others' bytes are in too it would bring in what they load next, and the device would
    not be asked. So of such a file just these pages are asked for.
    """

    def __init__(self, span: Span, *, writable: bool) -> None:
        self._fd = span.fd
        self._skip = span.offset % mmap.ALLOCATIONGRANULARITY
        self._end = span.offset + span.length
        begin = span.offset - self._skip
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        try:
            self._map = mmap.mmap(span.fd, self._end - begin, prot=access, offset=begin)
        except ValueError as error:  # Python's word for it
            raise StoreError("truncated", "the file ends before its object does") from error
        self._among_others = not writable and (span.offset, self._end) != (0, size_of(span.fd))
        if self._among_others:
            self._map.madvise(mmap.MADV_RANDOM)

    def write(self, offset: int, data: memoryview) -> None:
        self._populate(offset, len(data), _MADV_POPULATE_WRITE)
        at = self._skip + offset
        np.frombuffer(self._map, np.uint8)[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def read(self, offset: int, into: memoryview) -> None:
        at = self._skip + offset
        if self._among_others:
            begin = self._end - len(self._map) + at
            for start in range(begin, begin + len(into), _ASKED_BYTES):
                nbytes = min(_ASKED_BYTES, begin + len(into) - start)
                os.posix_fadvise(self._fd, start, nbytes, os.POSIX_FADV_WILLNEED)
        self._populate(offset, len(into), _MADV_POPULATE_READ)
        np.frombuffer(into, np.uint8)[:] = np.frombuffer(self._map, np.uint8)[at : at + len(into)]

    def _populate(self, offset: int, nbytes: int, advice: int) -> None:
        """Have these pages in memory, or an error."""
        if size_of(self._fd) < self._end:
            raise StoreError("truncated", "the file ends before its object does")
        at = self._skip + offset
        slack = at % mmap.PAGESIZE
        address = np.frombuffer(self._map, np.uint8).ctypes.data + at - slack
        if not _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes + slack), advice):
            return
        number = ctypes.get_errno()
        if number == errno.EFAULT:  # where a load would be a SIGBUS
            raise StoreError("io-error", "the kernel cannot provide the mapped pages")
        if number != errno.EINVAL:  # an older kernel: pages come with the copy, as ever
            raise OSError(number, os.strerror(number))

    def flush(self) -> None:
        self._map.flush()

    def close(self) -> None:
        self._map.close()


class Mmap:
    """Memory-mapped files with msync; pages are dropped before reading."""

    name = "mmap"
    capabilities = Capability.DATA
    open_flags = 0
    writes_need_space = True

    def region(self, span: Span, *, writable: bool) -> Region:
        if not writable:
            _drop(span)
        return _MmapRegion(span, writable=writable)


class Uring:
    """O_DIRECT through an io_uring of each thread, in batches."""

    name = "uring"
    capabilities = Direct.capabilities | Capability.AT_ONCE | RINGS
    open_flags = _DIRECT
    writes_need_space = False

    def region(self, span: Span, *, writable: bool) -> Region:
        return UringRegion(span)


ENGINES: Catalogue[Callable[[], Engine]] = Catalogue(
    "kv_cache.engines",
    {"direct": Direct, "mmap": Mmap, "buffered": Buffered, "uring": Uring},
    makes("region"),
)


def choose_engine(wanted: str, directory: Path) -> tuple[Engine, str | None]:
    """Return the engine for `auto` or a name, and why it is not direct where `auto` had to give
    way.

    O_DIRECT may be refused at open (EINVAL on some FUSE and network mounts) or only at the
    transfer, so a page is really written and read back. Raises PlaceError.
    """
    if wanted == "uring" and (missing := uring_missing()) is not None:
        raise PlaceError(f"--io-engine uring: {missing}")
    if wanted != "auto" and not ENGINES[wanted]().open_flags & os.O_DIRECT:
        return ENGINES[wanted](), None
    refused = _direct_refused(directory)
    if refused is None:
        return ENGINES["direct" if wanted == "auto" else wanted](), None
    if wanted != "auto":
        raise PlaceError(
            f"--io-engine {wanted}: {directory} cannot do direct I/O ({refused}); use --io-engine "
            "auto or buffered, or another --cache-dir"
        )
    return Buffered(), refused


def direct_block_bytes(span: Span, directory: Path) -> int:
    """Return the least that direct I/O moves at a time in a file of a directory, by trying, of a
    span of two pages at least that is open for it; what is there is lost. Raises PlaceError."""
    page = aligned_bytes(2 * PAGE_BYTES)
    try:
        os.pwrite(span.fd, page.data, span.offset)  # a hole would be read at any alignment
        sizes = (SECTOR_BYTES, 2 * SECTOR_BYTES, 4 * SECTOR_BYTES)
        return next((size for size in sizes if _moves_alone(span, size, page.data)), PAGE_BYTES)
    except OSError as error:
        raise PlaceError(
            f"cache directory {directory}: sectors could not be written there and read back "
            f"({reason_of(error)}); name another --cache-dir"
        ) from error


def _moves_alone(span: Span, nbytes: int, memory: memoryview) -> bool:
    part = memory[nbytes : 2 * nbytes]
    try:
        os.pwrite(span.fd, part, span.offset + nbytes)
        os.preadv(span.fd, [part], span.offset + nbytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    return True


def _drop(span: Span) -> None:
    os.posix_fadvise(span.fd, span.offset, span.length, os.POSIX_FADV_DONTNEED)


def _direct_refused(directory: Path) -> str | None:
    """Try a page in a new file, or at the beginning of a block device."""
    raw, path = stat.S_ISBLK(os.stat(directory).st_mode), directory
    if not raw:
        shard = directory / "00"  # where objects are, so that a kill here leaves nothing foreign
        shard.mkdir(exist_ok=True)
        path = shard / "direct-probe.kv"
    page, back = aligned_bytes(PAGE_BYTES), aligned_bytes(PAGE_BYTES)
    page[:] = 0x5A
    try:
        new = 0 if raw else os.O_CREAT | os.O_EXCL
        fd = os.open(path, new | os.O_RDWR | _DIRECT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, page.data, 0)
            os.preadv(fd, [back.data], 0)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise PlaceError(
                f"cache directory {directory}: a page could not be written there and read back "
                f"({reason_of(error)}); name another --cache-dir"
            ) from error
        return "O_DIRECT is refused"
    finally:
        if not raw:  # where O_DIRECT is refused, Linux has made the file already
            path.unlink(missing_ok=True)
    return None if np.array_equal(page, back) else "wrong data came back"
