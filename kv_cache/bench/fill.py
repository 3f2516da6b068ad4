"""Fills the area under test before anything is measured: the workload-independent part of
preconditioning (SNIA SSS PTS: twice the capacity, sequentially).

A fresh drive has free blocks and caches that it will not have later. So as many bytes as the cache
may hold are written there twice, past the cache and its policies: in files of our own, in large
pieces, front to back, with data that does not compress or repeat, the second pass over the first.

    <directory>/00/fill-<number>.kv     matches `FILES_PATTERN`: what a kill leaves is removed by
                                        the owner of the directory

A raw device has no files: each thread has a part of it instead.

It must never leave a file behind that it made, nor remove one that it did not.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from kv_cache.bench.cache_dir import obtainable_bytes
from kv_cache.bench.counters import device_of, read_counters
from kv_cache.bench.linux import usable_cpus
from kv_cache.bench.path_checks import (
    device_bytes,
    device_number,
    is_block_device,
    nearest_existing,
)
from kv_cache.bench.procfs import text_of
from kv_cache.bench.stillness import ANSWER_S, IoThreads, answered
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import NoAnswerError, PlaceError, StoreError, os_reason
from kv_cache.core.kinds import Tier
from kv_cache.core.mounts import mount_of, parse_mounts
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, PAGE_BYTES, human_bytes, whole_pages
from kv_cache.metrics.steady import FILL_TIMES
from kv_cache.tiers.base import Span
from kv_cache.tiers.buffers import Buffer, aligned_bytes
from kv_cache.tiers.nvme.engines import Engine, choose_engine
from kv_cache.tiers.payload import TINTS, Payload

BLOCK_BYTES = MIB
"""Of one write. Large enough for a drive's full speed from a few threads."""

MOST_TIMES = 2
"""A fill may write this many times the size of the file system; more shows nothing more."""

LONGEST = 3600
"""Rows of bandwidth that are kept; of a longer fill, neighbours are put together two by two."""

_DIRTY_BYTES = 64 * MIB  # of a thread in the page cache, where the fill has to go through it
_ROW_S = 1.0
_TICK_S = 0.1
_GRACE_S = 2.0  # for writes in flight when the fill is given up: launchers kill 5 s after a signal
_FULL = (errno.ENOSPC, errno.EDQUOT)

Progress = Callable[[int], None]

log = logging.getLogger("kv_cache")


class FillInterval(Struct, frozen=True, kw_only=True):
    """One interval of a fill: bytes written between two instants, in seconds since it began."""

    start_s: float
    end_s: float
    bytes: int

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / (self.end_s - self.start_s) if self.end_s > self.start_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes_per_second": self.bytes_per_second}


class Filled(Struct, frozen=True, kw_only=True):
    """The result of a fill. `bytes` are fewer than `wanted_bytes` if it was stopped.

    `device_write_bytes` is the kernel's count for all drives; None if one of them has none.
    `discard`: whether the file system hands deleted blocks back to the drive, which undoes the
    fill when its files are removed; None if no mount holds it.
    """

    wanted_bytes: int
    bytes: int
    seconds: float
    passes: int
    area_bytes: int
    filesystem_bytes: int
    engine: str
    engine_note: str | None
    threads: int
    discard: bool | None
    device_write_bytes: int | None
    rows: tuple[FillInterval, ...]

    def to_json(self) -> dict[str, Any]:
        totals = {name: getattr(self, name) for name in self.__struct_fields__ if name != "rows"}
        return {**totals, "rows": [row.to_json() for row in self.rows]}


def check_fill(size_bytes: int, capacities: Sequence[int], directories: Sequence[Path]) -> None:
    """Refuse a fill that makes no sense, or has no room; creates nothing. `size_bytes` 0 is
    `FILL_TIMES` the capacity. The directories (one for each capacity) need not exist yet.

    Raises PlaceError.
    """
    wanted, areas = _plan(size_bytes, capacities)
    if not sum(areas):
        raise PlaceError(
            f"--precondition-size-gb: a fill of {human_bytes(wanted)} is less than a page for each "
            "directory; write at least 1 MiB, or leave it out for twice the capacity"
        )
    for total, free, share, directory in _file_systems(areas, directories):
        written = wanted * share // sum(areas)
        if written > MOST_TIMES * total:
            raise PlaceError(
                f"--precondition-size-gb: {human_bytes(written)} would be written to "
                f"the file system of {directory}, more than {MOST_TIMES} times its size of "
                f"{human_bytes(total)}; leave it out for twice the capacity under test"
            )
        if share > free:
            raise PlaceError(
                f"cache directory {directory}: the fill needs {human_bytes(share)} there, but "
                f"{human_bytes(free)} are free; lower --storage-capacity-gb, or make room"
            )


def fill(
    directories: Sequence[Path],
    capacities: Sequence[int],
    *,
    seed: Seed,
    stop: threading.Event,
    size_bytes: int = 0,
    threads: int = 0,
    progress: Progress = lambda done: None,
    answer_s: float = ANSWER_S,
) -> Filled:
    """Write `size_bytes` (0 = twice the capacity) to files in existing directories that are ours,
    at most `capacities[i]` of each at a time; remove the files, however it ends.

    `threads` 0 is one for each core. `progress` gets the bytes written so far, a few times a
    second. `stop` ends it early, without an error. Raises PlaceError when the disk is full or
    fails, and NoAnswerError, with nothing removed, once all writes have stood still for `answer_s`.
    """
    check_fill(size_bytes, capacities, directories)
    wanted, areas = _plan(size_bytes, capacities)
    existed = [(directory / "00").exists() for directory in directories]
    writing = _Fill(directories, areas, wanted, seed, stop, threads, answer_s)

    def remove() -> None:
        writing.remove()
        for directory, there in zip(directories, existed, strict=True):
            if not there:
                with suppress(OSError):  # another's file is in it by now
                    os.rmdir(directory / "00")

    silent = False
    try:
        return writing.run(progress)
    except NoAnswerError:
        silent = True
        raise
    finally:
        if not silent:
            answered(f"removing the files of the fill in {writing.where}", remove, answer_s)


def _plan(size_bytes: int, capacities: Sequence[int]) -> tuple[int, list[int]]:
    """Return the bytes to write in all, and the area in each directory: its capacity, or its share
    of a smaller size. Whole pages."""
    whole = sum(capacities)
    size = min(size_bytes or whole, whole)
    areas = [whole_pages(size * each // max(1, whole)) for each in capacities]
    return whole_pages(size_bytes or FILL_TIMES * sum(areas)), areas


def _file_systems(
    areas: Sequence[int], directories: Sequence[Path]
) -> Iterator[tuple[int, int, int, Path]]:
    """Yield for each file system: its size, its free bytes, the bytes of the area on it, a
    directory."""
    shares: dict[int, int] = {}
    for directory, area in zip(directories, areas, strict=True):
        place = device_number(directory)
        shares[place] = shares.get(place, 0) + area
    for directory in directories:
        base = nearest_existing(directory)
        share = shares.pop(device_number(directory), None)
        if share is not None:
            yield _size_of(base), obtainable_bytes(directory), share, directory


def _size_of(path: Path) -> int:
    """Return the size of the file system, or of a raw device."""
    if is_block_device(path):
        return device_bytes(path)
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


class _DriveFill(Struct, kw_only=True):
    """One thread's file, or part of a raw device that begins at `offset`: its length, and the bytes
    to write to it. `written` is the thread's."""

    number: int
    directory: Path
    raw: bool
    engine: Engine
    offset: int
    length: int
    quota: int
    written: int = 0
    created: tuple[int, int] | None = None  # device and number of the file that was made

    @property
    def path(self) -> Path:
        return self.directory if self.raw else self.directory / "00" / f"fill-{self.number:04d}.kv"


class _Rows(Struct):
    """Bandwidth over time, of bounded number."""

    rows: list[FillInterval] = field(default_factory=list)
    every_s: float = _ROW_S
    _start_s: float = 0.0
    _bytes: int = 0

    def see(self, now_s: float, nbytes: int, *, last: bool = False) -> None:
        if now_s - self._start_s < self.every_s and not (last and nbytes > self._bytes):
            return
        row = FillInterval(start_s=self._start_s, end_s=now_s, bytes=nbytes - self._bytes)
        if self.rows and now_s - self._start_s < self.every_s / 2:  # a scrap at the end
            row = _joined([self.rows.pop(), row])
        self.rows.append(row)
        self._start_s, self._bytes = now_s, nbytes
        if len(self.rows) > LONGEST:
            self.rows = [_joined(self.rows[i : i + 2]) for i in range(0, len(self.rows), 2)]
            self.every_s *= 2


def _joined(rows: Sequence[FillInterval]) -> FillInterval:
    nbytes = sum(row.bytes for row in rows)
    return FillInterval(start_s=rows[0].start_s, end_s=rows[-1].end_s, bytes=nbytes)


class _Fill:
    """The threads of one fill and their files."""

    def __init__(
        self,
        directories: Sequence[Path],
        areas: Sequence[int],
        wanted: int,
        seed: Seed,
        stop: threading.Event,
        threads: int,
        answer_s: float,
    ) -> None:
        self._answer_s = answer_s
        self.where = ", ".join(map(str, directories))
        chosen = [choose_engine("auto", directory) for directory in directories]
        self._directories = directories
        self._payload = Payload(seed.child("fill"), BLOCK_BYTES)
        self._stop = stop
        self._abort = threading.Event()
        self._ended = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._wanted = wanted
        self._area = sum(areas)
        self._engines = "+".join(sorted({engine.name for engine, _ in chosen}))
        self._note = next((note for _, note in chosen if note), None)
        each = -(-(threads or usable_cpus()) // len(directories))
        self._parts: list[_DriveFill] = []
        for directory, (engine, _), area in zip(directories, chosen, areas, strict=True):
            raw, end = is_block_device(directory), 0
            for length in _cut(area, each):
                part = _DriveFill(
                    number=len(self._parts),
                    directory=directory,
                    raw=raw,
                    engine=engine,
                    offset=end if raw else 0,
                    length=length,
                    quota=whole_pages(wanted * length // self._area),
                )
                self._parts.append(part)
                end += length
        self._parts[0].quota += wanted - sum(part.quota for part in self._parts)

    # --- the whole of it ---------------------------------------------------------------------

    def run(self, progress: Progress) -> Filled:
        names = [device_of(directory) for directory in self._directories]
        devices = tuple(dict.fromkeys(name for name in names if name is not None))
        before = read_counters(devices)
        rows, began_s = _Rows(), time.monotonic()
        self._write_all(rows, began_s, progress)
        seconds = time.monotonic() - began_s
        moved = read_counters(devices) - before
        counted = None if None in names else moved.device_write_bytes
        return self._filled(seconds, tuple(rows.rows), counted)

    def _filled(
        self, seconds: float, rows: tuple[FillInterval, ...], counted: int | None
    ) -> Filled:
        known = [discards(directory) for directory in self._directories]
        places = {device_number(each): _size_of(each) for each in self._directories}
        return Filled(
            wanted_bytes=self._wanted,
            bytes=self._written(),
            seconds=seconds,
            passes=max(-(-part.written // part.length) for part in self._parts),
            area_bytes=self._area,
            filesystem_bytes=sum(places.values()),
            engine=self._engines,
            engine_note=self._note,
            threads=len(self._parts),
            discard=True if True in known else None if None in known else False,
            device_write_bytes=counted,
            rows=rows,
        )

    def _written(self) -> int:
        return sum(part.written for part in self._parts)

    def _write_all(self, rows: _Rows, began_s: float, progress: Progress) -> None:
        workers = [
            threading.Thread(target=self._work, args=(part,), name="fill", daemon=True)
            for part in self._parts
        ]
        try:
            for worker in workers:
                worker.start()
            threads, left = IoThreads(workers, self._answer_s), len(workers)
            while left and not self._over():
                left -= self._ended.acquire(timeout=_TICK_S)
                done = self._written()
                rows.see(time.monotonic() - began_s, done)
                progress(done)
                threads.require_answer(f"writes of the fill in {self.where}")
        finally:
            self._abort.set()
            deadline = time.monotonic() + _GRACE_S
            for worker in workers:
                if worker.ident is not None:
                    # A device may hold a write for good: its file goes all the same.
                    worker.join(max(0.0, deadline - time.monotonic()))
        rows.see(time.monotonic() - began_s, self._written(), last=True)
        if self._errors:
            raise self._errors[0]
        progress(self._written())

    def _over(self) -> bool:
        return self._stop.is_set() or self._abort.is_set()

    def remove(self) -> None:
        for part in self._parts:
            if part.created is not None:
                try:
                    status = os.lstat(part.path)
                    if (status.st_dev, status.st_ino) == part.created:  # else it is not ours
                        os.unlink(part.path)
                except FileNotFoundError:
                    pass  # another process was quicker: it is gone, as wished
                except OSError as error:  # its directory's owner tries again
                    log.warning("%s could not be removed: %s", part.path, os_reason(error))

    # --- one thread ----------------------------------------------------------------------------

    def _work(self, part: _DriveFill) -> None:
        try:
            self._write(part)
        except (OSError, StoreError) as error:
            self._fail(_place_error(part.directory, self._written(), error))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for us
            self._fail(error)
        finally:
            self._ended.release()

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self._abort.set()

    def _write(self, part: _DriveFill) -> None:
        if self._over():
            return
        if not part.raw:
            _allocate(part)
        fd = os.open(part.path, os.O_RDWR | os.O_CLOEXEC | part.engine.open_flags)
        try:
            self._write_to(fd, part)
        finally:
            os.close(fd)

    def _write_to(self, fd: int, part: _DriveFill) -> None:
        region = part.engine.region(Span(fd, part.offset, part.length), writable=True)
        buffers = [Buffer(aligned_bytes(BLOCK_BYTES)) for _ in range(TINTS)]
        dirty = 0
        try:
            while part.written < part.quota and not self._over():
                turn, offset = divmod(part.written, part.length)
                nbytes = min(BLOCK_BYTES, part.length - offset, part.quota - part.written)
                ref = _ref(part, turn)
                buffer = buffers[self._payload.tint(ref, offset)]
                region.write(offset, self._payload.stamp(buffer, ref, offset, nbytes))
                part.written += nbytes
                dirty += nbytes
                if dirty >= _DIRTY_BYTES and not part.engine.open_flags & os.O_DIRECT:
                    # Else the second pass would meet the first in memory, and both be written once.
                    os.fdatasync(fd)
                    dirty = 0
            if not self._over():
                region.flush()
                os.fsync(fd)
        finally:
            region.close()


def _allocate(part: _DriveFill) -> None:
    """Allocate the file, so that a full disk is known before the first byte. Without O_DIRECT: if a
    file system cannot allocate, the C library writes a byte to each block instead."""
    part.path.parent.mkdir(exist_ok=True)
    fd = os.open(part.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    status = os.fstat(fd)
    part.created = (status.st_dev, status.st_ino)
    try:
        os.posix_fallocate(fd, 0, part.length)
    finally:
        os.close(fd)


def _cut(area: int, most: int) -> list[int]:
    """Return the lengths of an area's files: all about one size, none below a block."""
    pages, count = area // PAGE_BYTES, max(1, min(most, area // BLOCK_BYTES))
    ends = [pages * part // count * PAGE_BYTES for part in range(count + 1)]
    return [end - begin for begin, end in pairwise(ends) if end > begin]


def _ref(part: _DriveFill, turn: int) -> CopyRef:
    """Build the reference written in one pass: no pass repeats a page of another."""
    return CopyRef(part.number, content_key("fill", part.number), Tier.NVME, part.length, turn)


def _place_error(directory: Path, written: int, error: OSError | StoreError) -> PlaceError:
    if isinstance(error, OSError) and error.errno in _FULL:
        return PlaceError(
            f"cache directory {directory}: the disk is full after {human_bytes(written)} of the "
            "fill; make room, or lower --storage-capacity-gb"
        )
    why = os_reason(error) if isinstance(error, OSError) else str(error)
    return PlaceError(
        f"cache directory {directory}: the fill failed after {human_bytes(written)} ({why}); check "
        "the device, or name another --cache-dir"
    )


# --- what becomes of deleted blocks ----------------------------------------------------------


def discards(directory: Path) -> bool | None:
    """Whether deleting files there tells the drive that their blocks are free (mount option
    `discard`); None if no mount holds it. On a raw device nothing is deleted."""
    if is_block_device(directory):
        return False
    mounts = parse_mounts(text_of(Path("/proc/self/mountinfo")) or "")
    mount = mount_of(os.path.realpath(directory), "", mounts)
    if mount is None:
        return None
    return any(o == "discard" or o.startswith("discard=") for o in mount.all_options)
