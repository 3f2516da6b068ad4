"""How bytes get to a file and back: `direct`, `mmap`, `buffered`.

Every engine writes an object that no reader can see before `commit`, and reads from the device
rather than from memory: `direct` by going past the page cache, the others by dropping the file's
pages first (which drops only clean ones: they are clean where fsync is on).
"""

import errno
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.base import Capability, Sink, Tap, reason_of
from kv_cache.tiers.buffers import aligned_bytes

_CREATE = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MODE = 0o600


class Engine(Protocol):
    name: str
    capabilities: Capability

    def create(self, path: str, nbytes: int, *, fsync: bool) -> Sink: ...

    def open(self, path: str, nbytes: int) -> Tap: ...


class _FdSink:
    """Positional writes to a new file."""

    def __init__(self, engine: str, path: str, flags: int, *, fsync: bool) -> None:
        self.engine = engine
        self._path = path
        self._fsync = fsync
        self._fd = _create_file(path, flags | os.O_WRONLY)

    def write(self, offset: int, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._fd, data, offset)
            if written == 0:
                raise StoreError("short-write", "the file took no more bytes")
            offset += written
            data = data[written:]

    def commit(self) -> None:
        if self._fsync:
            os.fsync(self._fd)
        self._close()

    def abort(self) -> None:
        try:
            if self._fd >= 0:
                self._close()
        finally:
            os.unlink(self._path)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # it is gone even where closing it reports an error
        os.close(fd)


class _FdTap:
    """Positional reads from a complete file."""

    def __init__(self, engine: str, path: str, flags: int, nbytes: int, *, drop: bool) -> None:
        self.engine = engine
        self._fd = os.open(path, flags | os.O_RDONLY | os.O_CLOEXEC)
        try:
            require_size(self._fd, nbytes)
            if drop:
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            os.close(self._fd)
            raise

    def read(self, offset: int, into: memoryview) -> None:
        while into:
            got = os.preadv(self._fd, [into], offset)
            if got == 0:
                raise StoreError("truncated", "the file ends before its object does")
            offset += got
            into = into[got:]

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # never the descriptor that somebody else got since
        os.close(fd)


def _create_file(path: str, flags: int) -> int:
    """A descriptor of a new file. Where O_DIRECT is refused, Linux has made the file already."""
    try:
        return os.open(path, flags | _CREATE, _MODE)
    except OSError as error:
        if error.errno == errno.EINVAL:
            with suppress(FileNotFoundError):
                os.unlink(path)
        raise


def require_size(fd: int, nbytes: int) -> None:
    size = os.fstat(fd).st_size
    if size < nbytes:
        raise StoreError("truncated", f"{size} bytes are there of {nbytes}")


class Direct:
    """O_DIRECT: the page cache is not involved."""

    name = "direct"
    capabilities = Capability.DIRECT | Capability.DATA

    def create(self, path: str, nbytes: int, *, fsync: bool) -> Sink:
        return _FdSink(self.name, path, os.O_DIRECT, fsync=fsync)

    def open(self, path: str, nbytes: int) -> Tap:
        return _FdTap(self.name, path, os.O_DIRECT, nbytes, drop=False)


class Buffered:
    """Through the page cache; a file's pages are dropped before it is read."""

    name = "buffered"
    capabilities = Capability.DATA

    def create(self, path: str, nbytes: int, *, fsync: bool) -> Sink:
        return _FdSink(self.name, path, 0, fsync=fsync)

    def open(self, path: str, nbytes: int) -> Tap:
        return _FdTap(self.name, path, 0, nbytes, drop=True)


class _MmapSink:
    """Stores through a shared mapping. The space is allocated first: a store into a hole of a
    full disk would be a SIGBUS and end the process, not an error."""

    def __init__(self, path: str, nbytes: int, *, fsync: bool) -> None:
        self.engine = Mmap.name
        self._path = path
        self._fsync = fsync
        fd = _create_file(path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            self._map = mmap.mmap(fd, nbytes)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def write(self, offset: int, data: memoryview) -> None:
        np.frombuffer(self._map, np.uint8)[offset : offset + len(data)] = np.frombuffer(
            data, np.uint8
        )

    def commit(self) -> None:
        if self._fsync:
            self._map.flush()
        self._map.close()

    def abort(self) -> None:
        self._map.close()
        os.unlink(self._path)


class _MmapTap:
    def __init__(self, path: str, nbytes: int) -> None:
        self.engine = Mmap.name
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            require_size(fd, nbytes)  # a load beyond the end would be a SIGBUS
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._map = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._map.madvise(mmap.MADV_SEQUENTIAL)

    def read(self, offset: int, into: memoryview) -> None:
        end = offset + len(into)
        if self._map.size() < end:  # the file's size now; one cut short would be a SIGBUS
            raise StoreError("truncated", "the file ends before its object does")
        np.frombuffer(into, np.uint8)[:] = np.frombuffer(self._map, np.uint8)[offset:end]

    def close(self) -> None:
        self._map.close()


class Mmap:
    """Memory-mapped files with msync; pages are dropped before reading."""

    name = "mmap"
    capabilities = Capability.DATA

    def create(self, path: str, nbytes: int, *, fsync: bool) -> Sink:
        return _MmapSink(path, nbytes, fsync=fsync)

    def open(self, path: str, nbytes: int) -> Tap:
        return _MmapTap(path, nbytes)


ENGINES: Mapping[str, type[Direct] | type[Buffered] | type[Mmap]] = {
    "direct": Direct,
    "mmap": Mmap,
    "buffered": Buffered,
}


def choose_engine(wanted: str, directory: Path) -> tuple[Engine, str | None]:
    """The engine for `auto` or a name, and why it is not direct where `auto` had to give way.

    O_DIRECT may be refused at open (EINVAL on some FUSE and network mounts) or only at the
    transfer, so a page is really written and read back.
    """
    if wanted not in ("auto", "direct"):
        return ENGINES[wanted](), None
    reason = _direct_refused(directory)
    if reason is None:
        return Direct(), None
    if wanted == "direct":
        raise PlaceError(
            f"--io-engine direct: {directory} cannot do direct I/O ({reason}); use --io-engine "
            "auto or buffered, or another --cache-dir"
        )
    return Buffered(), reason


def _direct_refused(directory: Path) -> str | None:
    shard = directory / "00"  # where objects are, so that a kill here leaves nothing foreign
    shard.mkdir(exist_ok=True)
    path = str(shard / "direct-probe.kv")
    page = aligned_bytes(PAGE_BYTES)
    page[:] = 0x5A
    back = aligned_bytes(PAGE_BYTES)
    try:
        sink = Direct().create(path, PAGE_BYTES, fsync=False)
        try:
            sink.write(0, page.data)
            sink.commit()
            tap = Direct().open(path, PAGE_BYTES)
            try:
                tap.read(0, back.data)
            finally:
                tap.close()
        finally:
            sink.abort()  # also takes a committed file away
    except OSError as error:
        return reason_of(error)
    except StoreError as error:
        return error.reason
    return None if np.array_equal(page, back) else "wrong data came back"
