"""The directories and files of a run: checked before anything is written, left as they were found.

The `check_*` functions only look; they raise `PlaceError` and create nothing. `CacheDir` takes
possession of a cache directory and gives it back. It must never delete what this program did not
write: it deletes by name pattern, only below a directory that carries our owner file, and never
follows a symbolic link.

    <cache dir>/
      .kv-cache.lock                  flock'ed while a run works here; says who
      kv-cache-run-<pid>-<hex>/       `CacheDir.objects`
        OWNER.json                    makes the directory ours; see `bench.owner`
        <2 hex digits>/<name>.kv      the objects
"""

import errno
import fcntl
import itertools
import json
import os
import pwd
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from kv_cache.bench.sweep import Removed, Sweep, is_at, open_directory
from kv_cache.config.storage_targets import temporary_place
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, human_bytes

LOCK_NAME = ".kv-cache.lock"
RUN_PREFIX = "kv-cache-run-"
FILES_PATTERN = "[0-9a-f][0-9a-f]/*.kv"
"""The objects in a run's subdirectory, as a glob; everything else there is foreign."""

FOREIGN_RUN_MARKS = ("summary.json", "*_metadata.json")
"""MLPerf's report generator takes any directory that holds one of these for a run of its own."""

RUN_MARK = "config.yaml"
"""The first file of a run's directory of results; what holds one is a run of ours."""

SYSTEM_DIRS = tuple(
    Path(name)
    for name in (
        *("/etc", "/bin", "/sbin", "/usr", "/lib", "/lib64", "/boot"),
        *("/sys", "/proc", "/dev", "/root"),
    )
)

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_NEUTRAL = frozenset({"lost+found"})  # in every new ext4 file system
RESULT_NAMES = ("benchmark_results_", "precondition_")
"""Beginnings of the names that results have where none is given."""
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own
_TEMPORARY = "kv_cache_"
_STORAGE_SHARE = 0.95  # of the free space; the rest is for the file system's own data


def check_cache_dir(path: Path) -> None:
    """Refuse a cache directory that the run could not use or must not touch; creates nothing."""
    _check_directory(path, f"cache directory {path}")


def check_space(path: Path, wanted_bytes: int, reclaim: str | None = None) -> None:
    """Refuse a run that wants more than is free below `path`, or will be when it begins."""
    free = obtainable_bytes(path, reclaim)
    if wanted_bytes <= free:
        return
    fits_gib = int(free * _STORAGE_SHARE / GIB * 100) / 100
    # 0 is not offered: to the option it means "what is free", which would be next to nothing.
    fit = f"--storage-capacity-gb {fits_gib:g} would fit" if fits_gib else "nothing would fit"
    raise PlaceError(
        f"cache directory {path}: the run wants {human_bytes(wanted_bytes)} there, but "
        f"{human_bytes(free)} are free; {fit}, or name a larger place with --cache-dir"
    )


def check_output_file(
    path: Path, schema: str | None = None, *, makes_parents: bool = False
) -> None:
    """Refuse a result file that could not be written, or that holds something else; an older result
    may be overwritten, where `schema` is given one whose own begins so. `makes_parents`: its
    directory is made when it is written."""
    where = f"output file {path}"
    check_name(path, where)
    real = _resolve(path, where)
    status = _stat(real, where)
    if status is not None and not stat.S_ISREG(status.st_mode):
        # Replacing it would turn a device or a pipe into a plain file, or fail after the run.
        raise PlaceError(f"{where}: it is not a regular file; name a file with --output")
    with _nearest(real.parent) as (base, fd):
        if not _is_directory(fd) or (base != real.parent and not makes_parents):
            raise PlaceError(f"{where}: there is no directory {real.parent}; create it first")
        _refuse_unwritable(base, fd, where)
    if status is not None and not os.access(real, os.W_OK, effective_ids=True):
        raise PlaceError(f"{where}: it is write-protected; name another file with --output")
    if status is None or not status.st_size:
        return
    marks = _OURS if schema is None else (f'"schema": "{schema}'.encode(),)
    if not _begins_with(marks, real, where):
        which = "none of our results" if schema is None else f"no result of {schema[:-1]}"
        raise PlaceError(
            f"{where}: a file of that name is there which is {which}; name another "
            "file, or move that one away"
        )


# What results, rows of latencies and fits have at their beginning.
_OURS = (
    b'"requests_completed"',
    b'"schema": "kv-cache-',
    b'"schema":"kv-cache-',
    b'{"request_id"',
    b"fitted by kv-cache.py trace fit",
)
_LOOKED_AT = 1 << 16


def _begins_with(marks: Sequence[bytes], path: Path, where: str) -> bool:
    """Whether one of the marks stands near the beginning."""
    try:
        with path.open("rb") as file:
            begins = file.read(_LOOKED_AT)
    except OSError as error:
        raise PlaceError(f"{where}: it cannot be read ({error.strerror}); name another") from None
    return any(mark in begins for mark in marks)


def check_name(path: Path, where: str) -> None:
    """Refuse a name that makes MLPerf's report generator take the directory for a run of its."""
    if any(fnmatchcase(path.name, mark) for mark in FOREIGN_RUN_MARKS):
        raise PlaceError(
            f"{where}: MLPerf's report generator takes a directory with a file of this name for a "
            "run of its own; choose another name"
        )


def check_results_dir(path: Path) -> None:
    """Refuse a directory of results that holds anything but runs of ours; new or empty is fine."""
    where = f"results directory {path}"
    real = _check_directory(path, where)
    if real.is_dir() and (foreign := _first_foreign(real, where)):
        raise PlaceError(
            f"{where}: it holds {foreign!r}, which is not a run of ours; "
            "name a new or empty directory"
        )


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user may still write to the file system that `path` is or will be on.

    Raises PlaceError when the file system cannot say.
    """
    with _nearest(_resolve(path, str(path))) as (_, fd):
        try:
            status = os.statvfs(fd)
        except OSError as err:
            raise PlaceError(f"{path}: its free space cannot be read ({err.strerror})") from err
    return status.f_bavail * status.f_frsize


def obtainable_bytes(path: Path, reclaim: str | None = None) -> int:
    """Free bytes, and those of dead runs' objects in the cache directory `path`: the next run
    removes them before it begins, those of the host `reclaim` as well."""
    real = _resolve(path, str(path))
    if not real.is_dir():
        return free_bytes(path)
    dead = [real / name for name, _ in _leftovers(real, reclaim)]
    objects = itertools.chain.from_iterable(d.glob(FILES_PATTERN) for d in dead)
    return free_bytes(path) + sum(o.lstat().st_blocks * _BLOCK_BYTES for o in objects)


def nearest_existing(path: Path) -> Path:
    """`path` without symbolic links or, where it does not exist, its nearest ancestor that does.

    Raises PlaceError when a part of the path may not be looked at.
    """
    real = _resolve(path, str(path))
    while _stat(real, str(path)) is None:
        real = real.parent
    return real


def _check_directory(path: Path, where: str) -> Path:
    """The resolved path of a directory that is usable, or that can be created."""
    real = _resolve(path, where)
    _refuse_system_dir(real, where)
    with _nearest(real) as (base, fd):
        if not _is_directory(fd):
            what = "it is" if base == real else f"its parent {base} is"
            raise PlaceError(f"{where}: {what} not a directory; name another one")
        _refuse_unwritable(base, fd, where)
    return real


@contextmanager
def _nearest(real: Path) -> Iterator[tuple[Path, int]]:
    """`nearest_existing` and a descriptor of it, good for questions only.

    Questions by path would meet a directory that a run which ends just now is removing, and
    answer that it is not writable, or not a directory.
    """
    while True:
        base = nearest_existing(real)
        try:
            fd = os.open(base, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed since: the next look finds its parent
        break
    try:
        yield base, fd
    finally:
        os.close(fd)


def _is_directory(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def _resolve(path: Path, where: str) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as err:  # no working directory; a null byte
        raise PlaceError(f"{where}: the path cannot be resolved ({err}); name another one") from err


def _stat(path: Path, where: str) -> os.stat_result | None:
    """None where nothing is there."""
    try:
        return os.stat(path)
    except OSError as err:
        if err.errno in _NOT_THERE:
            return None
        raise PlaceError(
            f"{where}: {path} cannot be looked at ({err.strerror}); name another place"
        ) from err


def _refuse_system_dir(real: Path, where: str) -> None:
    system = _system_dir_of(real)
    if system is not None:
        raise PlaceError(
            f"{where}: it resolves to {real}, in the system directory {system}; "
            "name a directory on the storage to be measured"
        )


def _system_dir_of(real: Path) -> Path | None:
    """The system directory that holds `real`, by components: /devfoo is not in /dev."""
    if real == Path("/"):
        return real
    if real.is_relative_to("/dev/shm"):
        return None
    home = _home()
    # For root the home is a system directory itself: only what lies in it may be used.
    if home is not None and home in real.parents and home.is_relative_to("/root"):
        return None
    return next((system for system in SYSTEM_DIRS if real.is_relative_to(system)), None)


def _home() -> Path | None:
    try:
        return Path(os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir))
    except KeyError:  # a user without an account, as in many containers
        return None


def _refuse_unwritable(directory: Path, fd: int, where: str) -> None:
    """`fd` is of `directory`."""
    try:
        flags = os.statvfs(fd).f_flag
    except OSError as err:
        raise PlaceError(f"{where}: {directory} cannot be used ({err.strerror})") from err
    if flags & os.ST_RDONLY:  # access() says yes to root whatever the mount
        raise PlaceError(
            f"{where}: {directory} is on a file system mounted read-only; name a writable one"
        )
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
        raise PlaceError(
            f"{where}: {directory} is not writable for user {os.geteuid()}; "
            "change its permissions or name another one"
        )


def _is_ours(path: Path) -> bool:
    """Whether it is a run's directory, or a result (or its picture) under a name that we give."""
    return path.name.startswith(RESULT_NAMES) or (path / RUN_MARK).is_file()


def _first_foreign(directory: Path, where: str) -> str | None:
    try:
        names = sorted(set(os.listdir(directory)) - _NEUTRAL)
        return next((name for name in names if not _is_ours(directory / name)), None)
    except OSError as err:
        raise PlaceError(f"{where}: it cannot be listed ({err.strerror})") from err


class CacheDir:
    """Possession of a cache directory, from the constructor to `close`.

    Creates the directory where it is absent, locks it against a second run, removes what dead
    runs left and makes this run's own subdirectory. Raises PlaceError, having undone all that,
    when the directory cannot be had. As a context manager it removes its files at the end; call
    `close(keep=True)` inside to keep them. A created directory that others use at the end stays,
    also when it is a run that ends a moment later.
    """

    def __init__(self, path: Path, *, run: str, reclaim: str | None = None) -> None:
        """`reclaim`: a host known to be dead, whose runs' objects are leftovers like any."""
        check_cache_dir(path)
        self.path = _resolve(path, f"cache directory {path}")
        """The cache directory, without symbolic links."""
        self.leftovers = Removed()
        """What the opening removed of dead runs."""
        self._run = run
        self._reclaim = reclaim
        self._created: list[Path] = []
        self._lock: int | None = None
        self._cache_fd: int | None = None
        self._objects = self.path / f"{RUN_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._objects_fd: int | None = None  # from here on it is this directory, whatever the name
        self._closed = False
        self._open()

    @classmethod
    def temporary(cls, *, run: str) -> Self:
        """A fresh directory where the system keeps temporary files, removed at the end."""
        _sweep_temporary(run)
        with _as_place_error("a temporary cache directory"):
            directory = tempfile.mkdtemp(prefix=_TEMPORARY, dir=temporary_place())
            path = Path(os.path.realpath(directory))
        try:
            cache_dir = cls(path, run=run)
        except BaseException:
            Sweep().empty_dir(path)
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
        sweep = Sweep()
        try:
            if keep:
                # Where this fails half-way the owner file is not valid: the objects stay as well.
                with sweep.tolerated(self._objects / OWNER_NAME):
                    self._write_owner(kept=True)
            elif self._objects_fd is not None and self._cache_fd is not None:
                sweep.run_dir(self._objects_fd, self._objects, self._cache_fd)
        finally:
            self._give_back(sweep)
        return sweep.removed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> None:
        try:
            with _as_place_error(f"cache directory {self.path}"):
                cache = self._take_lock()
                self._remove_leftovers(cache)
                self._make_objects(cache)
        except BaseException:
            self._closed = True
            self._give_back(Sweep())
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
        raise PlaceError(f"cache directory {self.path}: somebody keeps removing it; name another")

    def _make_dirs(self) -> None:
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            try:
                os.mkdir(path)
            except FileExistsError:
                continue  # made by somebody else meanwhile, who also removes it
            if path not in self._created:
                self._created.append(path)

    def _remove_leftovers(self, cache: int) -> None:
        sweep, device = Sweep(), os.fstat(cache).st_dev
        for name, fd in _owned_dirs(cache):
            owner = _owner(fd)
            if owner is None or owner.get("kept"):
                continue
            if not may_be_removed(owner, device=device, reclaim=self._reclaim):
                # Its lock does not reach us, or was deleted by hand; its objects may be in use.
                here = life_of(owner, device=device) is Life.ALIVE
                raise PlaceError((_in_use if here else _in_use_elsewhere)(self.path, owner))
            sweep.run_dir(fd, self.path / name, cache)
        self.leftovers = sweep.removed

    def _make_objects(self, cache: int) -> None:
        name = self._objects.name
        os.mkdir(name, 0o700, dir_fd=cache)
        self._objects_fd = open_directory(name, cache)
        if os.listdir(self._objects_fd):
            os.close(self._objects_fd)
            self._objects_fd = None
            raise PlaceError(f"cache directory {self.path}: somebody replaces what is made there")
        try:
            self._write_owner(kept=False)
        except BaseException:
            Sweep().run_dir(self._objects_fd, self._objects, cache)
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

    def _give_back(self, sweep: Sweep) -> None:
        if self._lock is not None and self._cache_fd is not None:
            with sweep.tolerated(self.path / LOCK_NAME):
                _unlock(self._lock, self._cache_fd)
        fds = [fd for fd in (self._objects_fd, self._cache_fd) if fd is not None]
        self._lock = self._objects_fd = self._cache_fd = None
        for fd in fds:
            os.close(fd)
        for directory in reversed(self._created):
            sweep.empty_dir(directory)


@contextmanager
def _as_place_error(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        what = f"{err.strerror}: {err.filename}" if err.filename else f"{err.strerror}"
        raise PlaceError(f"{where}: it cannot be used ({what}); name another one") from err


def _lock(cache: int, cache_dir: Path) -> int:
    """The descriptor of the lock file, locked. FileNotFoundError when its directory is gone."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(LOCK_NAME, flags, 0o644, dir_fd=cache)
        try:
            _flock(fd, cache_dir)
            # A run that ends removes its lock file. Who opened that file before now holds a lock
            # that nobody else will ever see, and has to begin again with the new file.
            if is_at(fd, LOCK_NAME, cache):
                _refuse_foreign_lock(fd, cache_dir / LOCK_NAME)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _flock(fd: int, cache_dir: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PlaceError(_in_use(cache_dir, _holder(fd))) from None


def _unlock(fd: int, cache: int) -> None:
    """Remove the lock file while it is still locked, then let go."""
    try:
        if is_at(fd, LOCK_NAME, cache):
            os.unlink(LOCK_NAME, dir_fd=cache)
    finally:
        os.close(fd)


def _refuse_foreign_lock(fd: int, file: Path) -> None:
    """An empty one is a run's that died before it wrote; one with other content is not ours."""
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


def _in_use(cache_dir: Path, record: dict[str, Any] | None) -> str:
    who = "another run"
    if record is not None:
        who = process_of(record)
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
    """One write that the next reader sees whole or, after a kill between the calls, not at all."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(record).encode() + b"\n", 0)


def _owned_dirs(cache: int) -> Iterator[tuple[str, int]]:
    """The subdirectories of runs in an open cache directory: name, and a descriptor until the
    next."""
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


def _sweep_temporary(run: str) -> None:
    """Remove the temporary cache directories of dead runs: those that hold nothing alive of ours
    and something dead."""
    for path in temporary_place().glob(f"{_TEMPORARY}*"):
        try:
            if not any(True for _ in _leftovers(path)):
                continue
            CacheDir(path, run=run).close()
        except (OSError, PlaceError):
            continue  # somebody else's, or in use: not ours to remove
        Sweep().empty_dir(path)
