"""Look at the directories and files that a command will use, before anything is written.

The `check_*` functions create nothing; they raise `PlaceError`. They work on every operating
system, as `lab`, `sim` and `trace` write files wherever they run.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from kv_cache.bench.linux import require_linux
from kv_cache.bench.procfs import text_of
from kv_cache.core.errors import PlaceError, os_reason

FOREIGN_RUN_MARKS = ("summary.json", "*_metadata.json")
"""MLPerf's report generator takes any directory that holds one of these for a run of its own."""

RUN_MARK = "config.yaml"
"""The first file of a run's directory of results; what holds one is a run of ours."""

RESULT_NAMES = ("benchmark_results_", "precondition_")
"""Beginnings of the names that results have if none is given."""

SYSTEM_DIRS = tuple(
    Path(name)
    for name in (
        *("/etc", "/bin", "/sbin", "/usr", "/lib", "/lib64", "/boot"),
        *("/sys", "/proc", "/dev", "/root"),
    )
)

_SECTOR_BYTES = 512  # the unit of sysfs `size`, whatever the device's own
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_NEUTRAL = frozenset({"lost+found"})  # in every new ext4 file system
_RESULT_STARTS = (
    b'"requests_completed"',
    b'"schema": "kv-cache-',
    b'"schema":"kv-cache-',
    b'{"request_id"',
    b"fitted by kv-cache.py trace fit",
)
"""What results, rows of latencies and fits have at their beginning."""
_START_BYTES = 1 << 16

Directory = int | Path
"""A directory to ask about: a descriptor on Linux, its path elsewhere."""


def check_cache_dir(path: Path) -> None:
    """Refuse a cache directory that the run could not use or must not touch."""
    require_linux()
    if is_block_device(path):
        raise PlaceError(
            f"cache directory {path}: it is a block device; run, capacity, sweep and precondition "
            "take one with --layout arena, if it is named a second time with --erase-device and "
            "nothing on it is needed; else name a directory on it"
        )
    _check_directory(path, f"cache directory {path}")


def check_results_dir(path: Path) -> None:
    """Refuse a directory of results that holds anything but runs of ours; new or empty is fine."""
    where = f"results directory {path}"
    real = _check_directory(path, where)
    if real.is_dir() and (foreign := _first_foreign(real, where)):
        raise PlaceError(
            f"{where}: it holds {foreign!r}, which is not a run of ours; "
            "name a new or empty directory"
        )


def check_name(path: Path, where: str) -> None:
    """Refuse a name that makes MLPerf's report generator take the directory for one of its runs."""
    if any(fnmatchcase(path.name, mark) for mark in FOREIGN_RUN_MARKS):
        raise PlaceError(
            f"{where}: MLPerf's report generator takes a directory with a file of this name for a "
            "run of its own; choose another name"
        )


def check_output_file(
    path: Path, schema: str | None = None, *, makes_parents: bool = False
) -> None:
    """Refuse a result file that could not be written, or that holds something else.

    An older result may be overwritten; with `schema`, only one whose schema begins so.
    `makes_parents`: its directory is created when it is written.
    """
    where = f"output file {path}"
    check_name(path, where)
    real = resolve(path, where)
    status = _stat(path, where)  # /dev/stdout of a pipe resolves to a name that is not there
    if status is not None and not stat.S_ISREG(status.st_mode):
        # Replacing it would turn a device or a pipe into a plain file, or fail after the run.
        raise PlaceError(f"{where}: it is not a regular file; name a file with --output")
    with _nearest(real.parent) as (base, directory):
        if not _is_directory(directory) or (base != real.parent and not makes_parents):
            raise PlaceError(f"{where}: there is no directory {real.parent}; create it first")
        _refuse_unwritable(base, directory, where)
    if status is None:
        return
    if not _accessible(real, os.W_OK):
        raise PlaceError(f"{where}: it is write-protected; name another file with --output")
    if status.st_size:
        _refuse_foreign_content(real, schema, where)


def nearest_existing(path: Path) -> Path:
    """Return `path` without symbolic links or, if it does not exist, its nearest ancestor that
    does. Raises PlaceError if a part of the path may not be looked at."""
    real = resolve(path, str(path))
    while _stat(real, str(path)) is None:
        real = real.parent
    return real


def free_bytes(path: Path) -> int:
    """Return the bytes that an ordinary user may still write to the file system that `path` is or
    will be on, or to a raw device. Raises PlaceError if the file system cannot say."""
    real = resolve(path, str(path))
    if is_block_device(real):
        return device_bytes(real)
    with _nearest(real) as (_, directory):
        try:
            status = os.statvfs(directory)
        except OSError as err:
            raise PlaceError(f"{path}: its free space cannot be read ({os_reason(err)})") from err
    return status.f_bavail * status.f_frsize


def is_block_device(path: Path) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def device_number(path: Path) -> int:
    """Return the number of the device that `path` is or will be on; of a block device its own.
    Raises PlaceError if a part of the path may not be looked at."""
    status = os.stat(nearest_existing(path))
    return status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev


def device_bytes(path: Path) -> int:
    """Return the size of a block device; 0 if the kernel does not say."""
    number = os.stat(path).st_rdev
    sectors = text_of(Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size"))
    return int(sectors or 0) * _SECTOR_BYTES


def resolve(path: Path, where: str) -> Path:
    """Return `path` without symbolic links. Raises PlaceError."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as err:  # no working directory; a null byte
        raise PlaceError(f"{where}: the path cannot be resolved ({err}); name another one") from err


# --- directories -----------------------------------------------------------------------------


def _check_directory(path: Path, where: str) -> Path:
    """Return the resolved path of a directory that is usable, or that can be created."""
    real = resolve(path, where)
    _refuse_system_dir(real, where)
    with _nearest(real) as (base, directory):
        if not _is_directory(directory):
            what = "it is" if base == real else f"its parent {base} is"
            raise PlaceError(f"{where}: {what} not a directory; name another one")
        _refuse_unwritable(base, directory, where)
    return real


@contextmanager
def _nearest(real: Path) -> Iterator[tuple[Path, Directory]]:
    """Find `nearest_existing`, and a handle that is good for questions only.

    Questions by path would meet a directory that a run which ends just now is removing, and
    answer that it is not writable, or not a directory.
    """
    if not hasattr(os, "O_PATH"):  # not Linux, where no run of ours removes anything
        base = nearest_existing(real)
        yield base, base
        return
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


def _is_directory(directory: Directory) -> bool:
    return stat.S_ISDIR(os.stat(directory).st_mode)


def _refuse_unwritable(path: Path, directory: Directory, where: str) -> None:
    """Refuse a directory that this user cannot write to; `directory` is a handle of `path`."""
    if _is_mounted_read_only(path, directory, where):
        raise PlaceError(
            f"{where}: {path} is on a file system mounted read-only; name a writable one"
        )
    if not _accessible(directory, os.W_OK | os.X_OK):
        user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "")
        raise PlaceError(
            f"{where}: {path} is not writable for user {user}; "
            "change its permissions or name another one"
        )


def _is_mounted_read_only(path: Path, directory: Directory, where: str) -> bool:
    """Ask the mount: access() grants root everything, whatever the mount."""
    if not hasattr(os, "statvfs"):
        return False
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError as err:
        raise PlaceError(f"{where}: {path} cannot be used ({os_reason(err)})") from err


def _accessible(place: Directory, mode: int) -> bool:
    effective = os.access in os.supports_effective_ids
    if isinstance(place, int):
        return os.access(".", mode, dir_fd=place, effective_ids=effective)
    return os.access(place, mode, effective_ids=effective)


def _refuse_system_dir(real: Path, where: str) -> None:
    system = _system_dir_of(real)
    if system is not None:
        raise PlaceError(
            f"{where}: it resolves to {real}, in the system directory {system}; "
            "name a directory on the storage to be measured"
        )


def _system_dir_of(real: Path) -> Path | None:
    """Find the system directory that holds `real`, by components: /devfoo is not in /dev."""
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
    import pwd  # here: there is no such module where only lab and sim run

    try:
        return Path(os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir))
    except KeyError:  # a user without an account, as in many containers
        return None


# --- content ---------------------------------------------------------------------------------


def _stat(path: Path, where: str) -> os.stat_result | None:
    """Return the status of what is at `path`; None if nothing is."""
    try:
        return os.stat(path)
    except OSError as err:
        if err.errno in _NOT_THERE:
            return None
        raise PlaceError(
            f"{where}: {path} cannot be looked at ({os_reason(err)}); name another place"
        ) from err


def _refuse_foreign_content(path: Path, schema: str | None, where: str) -> None:
    marks = _RESULT_STARTS if schema is None else (f'"schema": "{schema}'.encode(),)
    if not _begins_with(marks, path, where):
        which = "none of our results" if schema is None else f"no result of {schema[:-1]}"
        raise PlaceError(
            f"{where}: a file of that name is there which is {which}; name another "
            "file, or move that one away"
        )


def _begins_with(marks: Sequence[bytes], path: Path, where: str) -> bool:
    """Whether one of the marks is near the beginning of a file."""
    try:
        with path.open("rb") as file:
            begins = file.read(_START_BYTES)
    except OSError as error:
        raise PlaceError(f"{where}: it cannot be read ({os_reason(error)}); name another") from None
    return any(mark in begins for mark in marks)


def _is_ours(path: Path) -> bool:
    """Whether it is a run's directory, or a result (or its picture) under a name that we give."""
    return path.name.startswith(RESULT_NAMES) or (path / RUN_MARK).is_file()


def _first_foreign(directory: Path, where: str) -> str | None:
    """Find the first name in a directory of results that is not ours."""
    try:
        names = sorted(set(os.listdir(directory)) - _NEUTRAL)
        return next((name for name in names if not _is_ours(directory / name)), None)
    except OSError as err:
        raise PlaceError(f"{where}: it cannot be listed ({os_reason(err)})") from err
