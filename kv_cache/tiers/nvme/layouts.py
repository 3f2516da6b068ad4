"""What is a file: `file` (one for each object), `arena` (a few large ones, cut into extents),
`bucket` (objects appended to one of 256 MiB).

A layout opens files and says where in them an object is; it moves no bytes. Names come from ids
alone: no key, user or dataset text ever becomes part of a path. Every file is below `root` and
matches `??/*.kv`, which is what the owner of the directory removes. `root` is opened once, and all
names are relative to its descriptor: what its path means by then is nothing that a run writes to.
"""

import ctypes
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import orjson

from kv_cache.core.effect import VANISHED, CopyRef, MetadataStep
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.units import MIB, PAGE_BYTES
from kv_cache.tiers.base import FREE, NEW_MODE, Names, Place, Span, Steps, reason_of
from kv_cache.tiers.extents import Allocation, Extent, Extents
from kv_cache.tiers.nvme.engines import Engine, size_of

SHARDS = 256
BUCKET_BYTES = 256 * MIB
BUCKET_OBJECTS = 500
"""Mooncake's bucket_size_limit and bucket_keys_limit (BucketBackendConfig, storage_backend.h)."""

ARENA_FILES = 4

_NEW = os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)  # stores are opened on Linux alone
_OLD = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_DIRECT = getattr(os, "O_DIRECT", 0)

Spans = tuple[Span, ...]


class Layout(Protocol):
    """`flags` are the engine's for open(2). What `create` and `open` answer is the caller's until
    `commit`, `abort` or `release`."""

    name: str
    removal: str
    whole: bool  # no call of the system is needed to find, make or close an object

    def create(self, ref: CopyRef, flags: int, steps: Steps, *, allocate: bool) -> Spans: ...

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None: ...

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        """Commit those that take no steps; return the others."""

    def abort(self, ref: CopyRef, spans: Spans) -> None: ...

    def names(
        self, ref: CopyRef, engine: str, flags: int, *, writes: bool, fsync: str
    ) -> Names | None:
        """Return how whoever opens the file himself writes or reads a copy; None: by `create` or
        `open`."""

    def open(self, ref: CopyRef, flags: int, steps: Steps) -> Spans: ...

    def release(self, spans: Spans, steps: Steps) -> None: ...

    def delete(self, ref: CopyRef) -> None: ...

    def describe(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


class Root:
    """The open directory that all files of a layout lie below."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, also where the path is a symbolic link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags)
        self.path = path

    @classmethod
    def with_shards(cls, path: Path) -> Self:
        """Add a subdirectory for each shard."""
        root = cls(path)
        try:
            for shard in range(SHARDS):
                with suppress(FileExistsError):
                    os.mkdir(f"{shard:02x}", dir_fd=root._fd)
        except BaseException:
            root.close()
            raise
        return root

    def open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._fd)

    def create(self, name: str, flags: int) -> int:
        """Return a descriptor of a new file. Where O_DIRECT is refused, Linux has made it
        already."""
        try:
            return os.open(name, flags | _NEW, NEW_MODE, dir_fd=self._fd)
        except FileExistsError:
            raise
        except OSError:
            with suppress(FileNotFoundError):
                self.unlink(name)
            raise

    @property
    def fd(self) -> int:
        return self._fd

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        """Names mean nothing from now on. Calling again is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def arena_files(capacity: int) -> int:
    """Return how many files of its own an arena is made of."""
    return max(1, min(ARENA_FILES, capacity // BUCKET_BYTES))


def _name(number: int, kind: str) -> str:
    return f"{number % SHARDS:02x}/{number:016x}{kind}.kv"


class FilePerObject:
    """A file an object. With `rename` it is written under a temporary name and renamed when it is
    complete, as vLLM, HiCache and llm-d do; a reader never meets half an object."""

    name = "file"
    removal = "unlink"
    whole = False

    def __init__(self, root: Path, *, rename: bool = True) -> None:
        self._rename = rename
        self._writing: dict[int, int] = {}  # open descriptors, by copy
        self._root = Root.with_shards(root)

    def create(self, ref: CopyRef, flags: int, steps: Steps, *, allocate: bool) -> Spans:
        name = self._written(ref)
        with steps.timed("create"):
            fd = self._root.create(name, flags | (os.O_RDWR if allocate else os.O_WRONLY))
        self._writing[ref.copy_id] = fd
        spans = (Span(fd, 0, ref.nbytes),)
        return _allocated(self, ref, spans, steps) if allocate else spans

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        with steps.timed("close"):
            os.close(self._writing.pop(ref.copy_id))  # gone even where it reports an error
        if self._rename:
            with steps.timed("rename"):
                self._root.rename(self._written(ref), self._complete(ref))

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        return refs

    def abort(self, ref: CopyRef, spans: Spans) -> None:
        fd = self._writing.pop(ref.copy_id, None)
        try:
            if fd is not None:
                os.close(fd)
        finally:  # an error of close is no reason to leave the file
            try:
                self._root.unlink(self._written(ref))
            except FileNotFoundError:
                self._root.unlink(self._complete(ref))

    def names(self, ref: CopyRef, engine: str, flags: int, *, writes: bool, fsync: str) -> Names:
        complete = self._complete(ref).encode()
        if not writes:
            return Names(self._root.fd, complete, flags | _OLD, False, None, engine)
        return Names(
            self._root.fd,
            self._written(ref).encode(),
            flags | os.O_WRONLY | _NEW,
            fsync == "object",
            complete if self._rename else None,
            engine,
            keep=fsync == "batch",
        )

    def open(self, ref: CopyRef, flags: int, steps: Steps) -> Spans:
        with steps.timed("open"):
            fd = self._root.open(self._complete(ref), flags | os.O_RDONLY)
        return (_checked(Span(fd, 0, ref.nbytes)),)

    def release(self, spans: Spans, steps: Steps) -> None:
        with steps.timed("close"):
            os.close(spans[0].fd)

    def delete(self, ref: CopyRef) -> None:
        self._root.unlink(self._complete(ref))

    def describe(self) -> Mapping[str, Any]:
        return {"layout": self.name, "rename": self._rename}

    def close(self) -> None:
        self._root.close()

    def _complete(self, ref: CopyRef) -> str:
        return _name(ref.copy_id, "")

    def _written(self, ref: CopyRef) -> str:
        return _name(ref.copy_id, ".tmp" if self._rename else "")


_step: Callable[[tuple[str, int]], MetadataStep] = partial(tuple.__new__, MetadataStep)
_span: Callable[[tuple[int, int, int]], Span] = partial(tuple.__new__, Span)
_place: Callable[[tuple[Any, ...]], Place] = partial(tuple.__new__, Place)
"""As the classes, of all of their fields, without a frame of Python's."""


_ARENA_FULL = ("no-space", "the arena is full")


class Arena:
    """A few large preallocated files, cut into extents: no metadata is touched while it runs.

    Space is never lost to fragmentation: an object may lie in several extents. The files stay open.
    """

    name = "arena"
    removal = FREE
    whole = True

    def __init__(
        self, root: Path, capacity: int, flags: Iterable[int], files: Sequence[Path] | None = None
    ) -> None:
        """`flags` are those of all engines that will use it: each moves its bytes through
        descriptors of its own. `files` (or block devices), which exist and are large enough
        together, take the place of new ones."""
        if files is None:
            names = [_name(i, ".arena") for i in range(arena_files(capacity))]
            below = Root.with_shards(root)
        else:
            names = [os.path.abspath(file) for file in files]
            below = Root(Path("/"))  # of no meaning: each name is a whole path
        sizes = _shares(capacity, len(names))
        self._fds: dict[int, list[int]] = {flag: [] for flag in flags}
        try:
            if files is None:
                _allocate(below, names, sizes)
            for flag, fds in self._fds.items():
                for name in names:
                    fds.append(below.open(name, flag | os.O_RDWR))
        except BaseException:
            self.close()
            raise
        finally:
            below.close()
        self._count = len(names)
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._extents = Extents(sizes)
        self._objects: dict[int, Allocation] = {}

    def places(
        self, refs: Sequence[CopyRef], engine: Engine, *, writes: bool, sync: bool
    ) -> list[Place | StoreError]:
        """Return where each copy is, or is to be written, for this engine, and synced then."""
        fds = self._fds[engine.open_flags]
        if writes:
            return [self._new(ref, fds, engine.name, sync) for ref in refs]
        return [self._old(ref, fds, engine.name) for ref in refs]

    def _new(self, ref: CopyRef, fds: list[int], engine: str, sync: bool) -> Place | StoreError:
        began_ns = time.monotonic_ns()
        room = self._take(ref)
        if room is None:
            return StoreError(*_ARENA_FULL)
        step = _step(("allocate", time.monotonic_ns() - began_ns))
        spans = self._spans(room, fds)
        return _place((spans, (step,), engine, files_of(spans) if sync else (), False, False, None))

    def _old(self, ref: CopyRef, fds: list[int], engine: str) -> Place | StoreError:
        room = self._objects.get(ref.copy_id)
        if room is None:
            return _not_here(ref)
        return _place((self._spans(room, fds), (), engine, (), False, False, None))

    def names(self, ref: CopyRef, engine: str, flags: int, *, writes: bool, fsync: str) -> None:
        return None

    def create(self, ref: CopyRef, flags: int, steps: Steps, *, allocate: bool) -> Spans:
        began_ns = time.monotonic_ns()
        room = self._take(ref)
        if room is None:
            raise StoreError(*_ARENA_FULL)
        steps.append(MetadataStep("allocate", time.monotonic_ns() - began_ns))
        return self._spans(room, self._fds[flags])

    def _take(self, ref: CopyRef) -> Allocation | None:
        room = self._extents.take(ref.nbytes)
        if room is not None:
            self._objects[ref.copy_id] = room
        return room

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        pass

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        return ()

    def abort(self, ref: CopyRef, spans: Spans) -> None:
        self.delete(ref)

    def open(self, ref: CopyRef, flags: int, steps: Steps) -> Spans:
        room = self._objects.get(ref.copy_id)
        if room is None:
            raise _not_here(ref)
        spans = self._spans(room, self._fds[flags])
        for span in spans:
            if not flags & _DIRECT:  # which finds it itself, and a call would cost a tenth of it
                require_size(span)
        return spans

    def release(self, spans: Spans, steps: Steps) -> None:
        pass

    def delete(self, ref: CopyRef) -> None:
        room = self._objects.pop(ref.copy_id, None)
        if room is None:
            raise _not_here(ref)
        self._extents.give(room)

    def describe(self) -> Mapping[str, Any]:
        return {"layout": self.name, "arena_files": self._count}

    def close(self) -> None:
        fds = [fd for each in self._fds.values() for fd in each]
        self._fds = {}
        close_all(fds)

    def _spans(self, room: Allocation, fds: list[int]) -> Spans:
        """Return the spans of room by these descriptors, which are worked out once: it is mostly
        asked for by one engine."""
        if room.seen_as is None or room.seen_as[0] is not fds:
            room.seen_as = fds, tuple([self._span(extent, fds) for extent in room.extents])
        spans: Spans = room.seen_as[1]
        return spans

    def _span(self, extent: Extent, fds: list[int]) -> Span:
        offset, length = extent
        number = bisect_right(self._starts, offset) - 1
        return _span((fds[number], offset - self._starts[number], length))


def _not_here(ref: CopyRef) -> StoreError:
    return StoreError(VANISHED, f"copy {ref.copy_id} is not in the arena")


class _BucketFile:
    """One file of many objects, open for appending until it is full."""

    def __init__(self, number: int, name: str, fd: int) -> None:
        self.number = number
        self.name = name
        self.fd = fd
        self.end = 0
        self.writers = 0
        self.punching = 0  # deletes at work: they need the file
        self.sealed = False
        self.objects: dict[int, tuple[CopyRef, int]] = {}  # the live ones, with their offsets
        self.appended = 0

    @property
    def over(self) -> bool:
        """Whether it holds no objects, and never will again."""
        return self.sealed and not (self.objects or self.writers or self.punching)


class Buckets:
    """Objects appended to files of 256 MiB or 500 objects, each with an index file beside it once
    it is full, as in Mooncake's bucket backend.

    Mooncake drops whole buckets. Here the cache decides object by object and its capacity is a
    promise, so a deleted object's space is punched out of its bucket, and an empty one is removed.
    """

    name = "bucket"
    removal = "punch"
    whole = False

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._current: _BucketFile | None = None
        self._of: dict[int, _BucketFile] = {}
        self._writing: set[int] = set()
        self._root = Root.with_shards(root)
        try:
            self._require_punching()
        except BaseException:
            self._root.close()
            raise

    def create(self, ref: CopyRef, flags: int, steps: Steps, *, allocate: bool) -> Spans:
        began_ns = time.monotonic_ns()
        with self._lock:
            bucket = self._with_room(ref.nbytes, flags, steps)
            offset = bucket.end
            bucket.end += ref.nbytes
            bucket.appended += 1
            bucket.writers += 1
            bucket.objects[ref.copy_id] = (ref, offset)
            self._of[ref.copy_id] = bucket
            self._writing.add(ref.copy_id)
        spans = (Span(bucket.fd, offset, ref.nbytes),)
        if allocate:
            return _allocated(self, ref, spans, steps)
        others_ns = sum([step.duration_ns for step in steps])
        steps.append(_step(("allocate", time.monotonic_ns() - began_ns - others_ns)))
        return spans

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        self._written(ref, steps, keep=True)

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        left: list[CopyRef] = []
        with self._lock:
            for ref in refs:
                bucket = self._of[ref.copy_id]
                if bucket.sealed and bucket.writers == 1:  # the last one, who completes it
                    left.append(ref)
                else:
                    self._writing.remove(ref.copy_id)
                    bucket.writers -= 1
        return left

    def abort(self, ref: CopyRef, spans: Spans) -> None:
        if ref.copy_id not in self._writing:
            self.delete(ref)
            return
        try:
            _punch(*spans[0])
        finally:
            self._written(ref, Steps(), keep=False)

    def names(
        self, ref: CopyRef, engine: str, flags: int, *, writes: bool, fsync: str
    ) -> Names | None:
        if writes:
            return None
        name, offset = self._find(ref)
        return Names(self._root.fd, name.encode(), flags | _OLD, False, None, engine, offset)

    def open(self, ref: CopyRef, flags: int, steps: Steps) -> Spans:
        name, offset = self._find(ref)
        with steps.timed("open"):
            fd = self._root.open(name, flags | os.O_RDONLY)
        return (_checked(Span(fd, offset, ref.nbytes)),)

    def _find(self, ref: CopyRef) -> tuple[str, int]:
        """Return the name of the file that a copy is in, and where in it."""
        with self._lock:
            bucket = self._of.get(ref.copy_id)
            if bucket is None:
                raise StoreError(VANISHED, f"copy {ref.copy_id} is in no bucket")
            return bucket.name, bucket.objects[ref.copy_id][1]

    def release(self, spans: Spans, steps: Steps) -> None:
        with steps.timed("close"):
            os.close(spans[0].fd)

    def delete(self, ref: CopyRef) -> None:
        with self._lock:
            bucket = self._of.pop(ref.copy_id, None)
            if bucket is None:
                raise StoreError("vanished", f"copy {ref.copy_id} is in no bucket")
            _, offset = bucket.objects.pop(ref.copy_id)
            over = bucket.over
            bucket.punching += 1
        try:
            if not over:
                _punch_by_name(self._root, bucket.name, offset, ref.nbytes)
        finally:
            with self._lock:
                bucket.punching -= 1
                over = bucket.over
            if over:
                self._remove(bucket)

    def describe(self) -> Mapping[str, Any]:
        return {
            "layout": self.name,
            "bucket_bytes": BUCKET_BYTES,
            "bucket_objects": BUCKET_OBJECTS,
            "buckets": self._next,
        }

    def close(self) -> None:
        current, self._current = self._current, None
        try:
            if current is not None:
                os.close(current.fd)
        finally:
            self._root.close()

    def _with_room(self, nbytes: int, flags: int, steps: Steps) -> _BucketFile:
        """Under the lock: the current bucket, or a new one."""
        bucket = self._current
        if bucket is not None and (
            bucket.appended >= BUCKET_OBJECTS or (bucket.end and bucket.end + nbytes > BUCKET_BYTES)
        ):
            bucket.sealed = True
            self._current = None
            if not bucket.writers:
                self._seal(bucket, steps)
            bucket = None
        if bucket is None:
            number, self._next = self._next, self._next + 1
            name = _name(number, ".bucket")
            with steps.timed("create"):
                fd = self._root.create(name, flags | os.O_RDWR)
            bucket = self._current = _BucketFile(number, name, fd)
        return bucket

    def _written(self, ref: CopyRef, steps: Steps, *, keep: bool) -> None:
        """End one writer; the last one of a full bucket completes it."""
        with self._lock:
            if ref.copy_id not in self._writing:
                return  # with others
            self._writing.remove(ref.copy_id)
            bucket = self._of[ref.copy_id]
            bucket.writers -= 1
            if not keep:
                del self._of[ref.copy_id], bucket.objects[ref.copy_id]
            if bucket.sealed and not bucket.writers:
                self._seal(bucket, steps)

    def _seal(self, bucket: _BucketFile, steps: Steps) -> None:
        """Under the lock: the bucket takes no more; its index is written."""
        try:
            with steps.timed("close"):
                os.close(bucket.fd)
        finally:
            if bucket.over:
                self._root.unlink(bucket.name)
        if not bucket.objects:
            return
        index = [
            {"key": ref.key.hex(), "copy_id": ref.copy_id, "offset": offset, "bytes": ref.nbytes}
            for ref, offset in bucket.objects.values()
        ]
        with steps.timed("index"):
            self._write_new(self._index(bucket), orjson.dumps(index))

    def _remove(self, bucket: _BucketFile) -> None:
        try:
            self._root.unlink(bucket.name)
        finally:
            with suppress(FileNotFoundError):  # where writing it failed
                self._root.unlink(self._index(bucket))

    def _index(self, bucket: _BucketFile) -> str:
        return _name(bucket.number, ".meta")

    def _write_new(self, name: str, data: bytes) -> None:
        """All of it in a new file, or no file."""
        fd = self._root.create(name, os.O_WRONLY)
        try:
            with open(fd, "wb", buffering=0) as file:
                while data:
                    data = data[file.write(data) :]
        except BaseException:
            self._root.unlink(name)
            raise

    def _require_punching(self) -> None:
        """A file system that cannot punch holes would never give a deleted object's space back."""
        name = _name(0, ".probe")
        os.close(self._root.create(name, os.O_WRONLY))
        try:
            _punch_by_name(self._root, name, 0, PAGE_BYTES)
        except OSError as error:
            raise PlaceError(
                f"--layout bucket: the file system of {self._root.path} cannot give back a part "
                f"of a file ({reason_of(error)}); use --layout file or arena"
            ) from error
        finally:
            self._root.unlink(name)


def _allocated(layout: Layout, ref: CopyRef, spans: Spans, steps: Steps) -> Spans:
    """Return the one span of a new object, whose space is allocated, or the object is gone."""
    try:
        with steps.timed("allocate"):
            os.posix_fallocate(*spans[0])
    except BaseException:
        layout.abort(ref, spans)
        raise
    return spans


def files_of(spans: Iterable[Span]) -> list[int]:
    """Return a descriptor of each file that spans are in."""
    return list(dict.fromkeys(span.fd for span in spans))


def require_size(span: Span) -> None:
    size = size_of(span.fd)
    if size < span.offset + span.length:
        raise StoreError(
            "truncated", f"{size} bytes are there of {span.offset + span.length}"
        )  # and a load beyond the end of a mapping would be a SIGBUS


def _checked(span: Span) -> Span:
    """Return a fresh span whose file is long enough, or it is closed."""
    try:
        require_size(span)
    except BaseException:
        os.close(span.fd)
        raise
    return span


def close_all(fds: Iterable[int]) -> None:
    """Every one, whatever happens to the others."""
    with ExitStack() as closing:
        for fd in fds:
            closing.callback(os.close, fd)


def _shares(total: int, count: int) -> list[int]:
    """`total` in `count` parts of whole pages; the last takes what is left."""
    part = total // count // PAGE_BYTES * PAGE_BYTES
    return [*[part] * (count - 1), total - part * (count - 1)]


def _allocate(root: Root, names: Sequence[str], sizes: Sequence[int]) -> None:
    """New files of these sizes, or none."""
    created: list[str] = []
    try:
        for name, size in zip(names, sizes, strict=True):
            fd = root.create(name, os.O_RDWR)
            created.append(name)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
    except OSError as error:
        for name in created:
            root.unlink(name)
        raise PlaceError(
            f"--layout arena: {sum(sizes)} bytes could not be allocated at once in "
            f"{root.path} ({reason_of(error)}); lower --storage-capacity-gb, or use "
            "--layout file"
        ) from error


_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_libc = ctypes.CDLL(None, use_errno=True)


def _punch(fd: int, offset: int, nbytes: int) -> None:
    """Give the blocks back; Python's os module has only the POSIX half of fallocate."""
    place = (ctypes.c_int64(offset), ctypes.c_int64(nbytes))
    if _libc.fallocate64(fd, _PUNCH_HOLE_KEEP_SIZE, *place):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _punch_by_name(root: Root, name: str, offset: int, nbytes: int) -> None:
    fd = root.open(name, os.O_WRONLY)
    try:
        _punch(fd, offset, nbytes)
    finally:
        os.close(fd)
