"""Possession of a cache directory: locked while a run works there, left as it was found.

`CacheDir` must never delete what this program did not write: it deletes by name pattern, only below
a directory that carries our owner file, and never follows a symbolic link.

    <cache dir>/
      .kv-cache.lock                  flock'ed while a run works here; names the run
      kv-cache-run-<pid>-<hex>/       `CacheDir.objects`
        OWNER.json                    makes the directory ours; see `bench.owner`
        <2 hex digits>/<name>.kv      the objects
"""

import itertools
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from kv_cache.bench.device_mark import claim, devices_of, job_of, release
from kv_cache.bench.owner import (
    OWNER_NAME,
    RECORD_BYTES,
    Life,
    host_of,
    is_alive,
    life_of,
    may_be_removed,
    parse_record,
    process_of,
    run_identity,
)
from kv_cache.bench.path_checks import check_cache_dir, free_bytes, resolve
from kv_cache.bench.removal import Removal, Removed, is_at, open_directory
from kv_cache.config.storage_targets import temporary_place
from kv_cache.core.errors import PlaceError, os_reason

LOCK_NAME = ".kv-cache.lock"
RUN_PREFIX = "kv-cache-run-"
FILES_PATTERN = "[0-9a-f][0-9a-f]/*.kv"
"""The objects in a run's subdirectory, as a glob; everything else there is foreign."""

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own
_TEMPORARY = "kv_cache_"


def obtainable_bytes(path: Path, reclaim: str | None = None) -> int:
    """Return the free bytes and those of dead runs' objects in the cache directory `path`. The next
    run removes these before it begins, also those of the host `reclaim`."""
    real = resolve(path, str(path))
    if not real.is_dir():
        return free_bytes(path)
    dead = [real / name for name, _ in _leftovers(real, reclaim)]
    objects = itertools.chain.from_iterable(d.glob(FILES_PATTERN) for d in dead)
    return free_bytes(path) + sum(o.lstat().st_blocks * _BLOCK_BYTES for o in objects)


class CacheDir:
    """Possession of a cache directory, from the constructor to `close`.

    Creates the directory if it is absent, locks it and its device against a second run, removes
    what dead runs left and makes this run's own subdirectory. Raises PlaceError, having undone all
    that, when the directory cannot be had. As a context manager it removes its files at the end;
    call `close(keep=True)` inside to keep them. A created directory that others use at the end
    stays, also when it is a run that ends a moment later.
    """

    def __init__(self, path: Path, *, run: str, reclaim: str | None = None) -> None:
        """`reclaim`: a host known to be dead, whose runs' objects are leftovers like any."""
        check_cache_dir(path)
        self.path = resolve(path, f"cache directory {path}")
        """The cache directory, without symbolic links."""
        self.leftovers = Removed()
        """What the opening removed of dead runs."""
        self._run = run
        self._reclaim = reclaim
        self._created: list[Path] = []
        self._lock: int | None = None
        self._cache_fd: int | None = None
        self._marks: list[socket.socket] = []
        self._objects = self.path / f"{RUN_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._objects_fd: int | None = None  # from here on it is this directory, whatever the name
        self._closed = False
        self._open()

    @classmethod
    def temporary(cls, *, run: str) -> Self:
        """Return a fresh directory where the system keeps temporary files, removed at the end."""
        _remove_dead_temporary(run)
        with _as_place_error("a temporary cache directory"):
            directory = tempfile.mkdtemp(prefix=_TEMPORARY, dir=temporary_place())
            path = Path(os.path.realpath(directory))
        try:
            cache_dir = cls(path, run=run)
        except BaseException:
            Removal().empty_dir(path)
            raise
        cache_dir._created.append(path)
        return cache_dir

    @property
    def objects(self) -> Path:
        """The subdirectory of this run; whatever matches FILES_PATTERN in it is deleted by us."""
        return self._objects

    def close(self, *, keep: bool = False) -> Removed:
        """Give the directory back; `keep` leaves the objects, for good. Calling again is fine.

        The caller has stopped all who write there. Failed deletions are in the answer.
        """
        if self._closed:
            return Removed()
        self._closed = True
        removal = Removal()
        try:
            if keep:
                # Where this fails half-way the owner file is not valid: the objects stay as well.
                with removal.tolerated(self._objects / OWNER_NAME):
                    self._write_owner(kept=True)
            elif self._objects_fd is not None and self._cache_fd is not None:
                removal.run_dir(self._objects_fd, self._objects, self._cache_fd)
        finally:
            self._give_back(removal)
        return removal.removed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            with _as_place_error(f"cache directory {self.path}"):
                cache = self._take_lock()
                self._marks = claim(self.path, devices_of(self.path), job_of(os.environ))
                self._remove_leftovers(cache)
                self._make_objects(cache)
        except BaseException:
            self._closed = True
            self._give_back(Removal())
            raise

    def _take_lock(self) -> int:
        """Lock the cache directory; its descriptor."""
        # A run that ends here at the same time removes the directories that it created, maybe
        # between two steps of ours; the next try then creates them anew.
        for _ in range(100):
            try:
                self._make_dirs()
                cache = open_directory(self.path)
            except FileNotFoundError:
                continue
            try:
                self._lock = _lock(cache, self.path)
            except FileNotFoundError:
                os.close(cache)
                continue
            except BaseException:
                os.close(cache)
                raise
            self._cache_fd = cache
            _write_record(self._lock, run_identity(self._run))
            return cache
        raise PlaceError(
            f"cache directory {self.path}: another process keeps removing it; name another"
        )

    def _make_dirs(self) -> None:
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            try:
                os.mkdir(path)
            except FileExistsError:
                continue  # made by another process meanwhile, which also removes it
            if path not in self._created:
                self._created.append(path)

    def _remove_leftovers(self, cache: int) -> None:
        removal, device = Removal(), os.fstat(cache).st_dev
        for name, fd in _owned_dirs(cache):
            owner = _owner(fd)
            if owner is None or owner.get("kept"):
                continue
            if not may_be_removed(owner, device=device, reclaim=self._reclaim):
                # Its lock does not reach us, or was deleted by hand; its objects may be in use.
                if life_of(owner, device=device) is Life.ALIVE:
                    raise PlaceError(in_use(self.path, process_of(owner)))
                raise PlaceError(_in_use_elsewhere(self.path, owner))
            removal.run_dir(fd, self.path / name, cache)
        self.leftovers = removal.removed

    def _make_objects(self, cache: int) -> None:
        name = self._objects.name
        os.mkdir(name, 0o700, dir_fd=cache)
        self._objects_fd = open_directory(name, cache)
        if os.listdir(self._objects_fd):
            os.close(self._objects_fd)
            self._objects_fd = None
            raise PlaceError(
                f"cache directory {self.path}: another process replaces what is made there"
            )
        try:
            self._write_owner(kept=False)
        except BaseException:
            Removal().run_dir(self._objects_fd, self._objects, cache)
            raise

    def _write_owner(self, *, kept: bool) -> None:
        assert self._objects_fd is not None
        record = run_identity(self._run) | {
            "device": os.fstat(self._objects_fd).st_dev,
            "files_pattern": FILES_PATTERN,
            "kept": kept,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(OWNER_NAME, flags, 0o644, dir_fd=self._objects_fd)
        try:
            _write_record(fd, record)
        finally:
            os.close(fd)

    def _give_back(self, removal: Removal) -> None:
        if self._lock is not None and self._cache_fd is not None:
            with removal.tolerated(self.path / LOCK_NAME):
                _unlock(self._lock, self._cache_fd)
        fds = [fd for fd in (self._objects_fd, self._cache_fd) if fd is not None]
        self._lock = self._objects_fd = self._cache_fd = None
        release(self._marks)
        for fd in fds:
            os.close(fd)
        for directory in reversed(self._created):
            removal.empty_dir(directory)


@contextmanager
def _as_place_error(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        what = f"{os_reason(err)}: {err.filename}" if err.filename else os_reason(err)
        raise PlaceError(f"{where}: it cannot be used ({what}); name another one") from err


def _lock(cache: int, cache_dir: Path) -> int:
    """Lock the lock file; return its descriptor. Raises FileNotFoundError if its directory is
    gone."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(LOCK_NAME, flags, 0o644, dir_fd=cache)
        try:
            _flock(fd, cache_dir)
            # A run that ends removes its lock file. Who opened that file before now holds a lock
            # that no other run will ever see, and has to begin again with the new file.
            if is_at(fd, LOCK_NAME, cache):
                _refuse_foreign_lock(fd, cache_dir / LOCK_NAME)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _flock(fd: int, cache_dir: Path) -> None:
    import fcntl  # here: only Linux has it, and configurations are checked anywhere

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        record = _holder(fd)
        who = "another run" if record is None else process_of(record)
        raise PlaceError(in_use(cache_dir, who)) from None


def _unlock(fd: int, cache: int) -> None:
    """Remove the lock file while it is still locked, then let go."""
    try:
        if is_at(fd, LOCK_NAME, cache):
            os.unlink(LOCK_NAME, dir_fd=cache)
    finally:
        os.close(fd)


def _refuse_foreign_lock(fd: int, file: Path) -> None:
    """Refuse a lock file that is not ours. An empty one is left by a run that died before it
    wrote."""
    content = os.pread(fd, RECORD_BYTES, 0)
    if content.strip(b"\0") and parse_record(content) is None:
        raise PlaceError(f"{file}: it exists and is not a lock file of ours; move it away")


def _holder(fd: int) -> dict[str, Any] | None:
    """Read who holds the lock; waits up to half a second for a run that has only just taken it."""
    record = None
    for _ in range(25):
        record = parse_record(os.pread(fd, RECORD_BYTES, 0))
        if record is not None and is_alive(record):
            break
        time.sleep(0.02)
    return record


def in_use(cache_dir: Path, who: str) -> str:
    """Say that somebody else works there."""
    return (
        f"cache directory {cache_dir}: {who} is using it; "
        "wait for its end or give each run a --cache-dir of its own"
    )


def _in_use_elsewhere(cache_dir: Path, owner: dict[str, Any]) -> str:
    return (
        f"cache directory {cache_dir}: {process_of(owner)} is using it, or died without removing "
        "its files; wait for its end, give each host a --cache-dir of its own or, if you know that "
        f"it is dead, say so with --reclaim {host_of(owner)}"
    )


def _write_record(fd: int, record: dict[str, Any]) -> None:
    """Write the record at once: the next reader sees all of it or, after a kill, nothing."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(record).encode() + b"\n", 0)


def _owned_dirs(cache: int) -> Iterator[tuple[str, int]]:
    """Yield each run's subdirectory of an open cache directory: its name, and a descriptor that is
    open until the next."""
    with os.scandir(cache) as entries:
        runs = [e for e in entries if e.name.startswith(RUN_PREFIX)]
        names = sorted(entry.name for entry in runs if entry.is_dir(follow_symlinks=False))
    for name in names:
        try:
            fd = open_directory(name, cache)
        except OSError:
            continue  # gone by now, or nothing that we may read: no proof that it is ours
        try:
            yield name, fd
        finally:
            os.close(fd)


def _leftovers(cache_dir: Path, reclaim: str | None = None) -> Iterator[tuple[str, int]]:
    """List the subdirectories of dead runs, or of runs of the host `reclaim`."""
    cache = open_directory(cache_dir)
    try:
        device = os.fstat(cache).st_dev
        for name, fd in _owned_dirs(cache):
            if may_be_removed(_owner(fd), device=device, reclaim=reclaim):
                yield name, fd
    finally:
        os.close(cache)


def _owner(directory: int) -> dict[str, Any] | None:
    """Read the owner file; None if there is none that we wrote or may read."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(OWNER_NAME, flags, dir_fd=directory)
    except OSError:
        return None  # no proof that it is ours, so it is not touched
    try:
        return parse_record(os.read(fd, RECORD_BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)


def _remove_dead_temporary(run: str) -> None:
    """Remove the temporary cache directories of dead runs: those that hold a dead run's files and
    no run of ours that is alive."""
    for path in temporary_place().glob(f"{_TEMPORARY}*"):
        try:
            if not any(True for _ in _leftovers(path)):
                continue
            CacheDir(path, run=run).close()
        except (OSError, PlaceError):
            continue  # another's, or in use: not ours to remove
        Removal().empty_dir(path)
