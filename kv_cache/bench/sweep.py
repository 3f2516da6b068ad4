"""Removal of our own files: of a run's subdirectory of a cache directory, and of nothing else.

It works on descriptors of directories, never on paths: a directory that is swapped for a symbolic
link or for another directory meanwhile leads to nobody else's files. What could not be removed is
kept, with its reason.
"""

import errno
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_cache.bench.owner import OWNER_NAME

_MOST_TOLD = 3  # in a line on stderr; the result names all
_SHARD = re.compile(r"[0-9a-f]{2}")

log = logging.getLogger("kv_cache")


def open_directory(name: str | Path, parent: int | None = None) -> int:
    """A descriptor of a directory that is no symbolic link. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent)


def is_at(fd: int, name: str | Path, parent: int | None = None) -> bool:
    """Whether the open file is still what the name means, without following a link."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(fd), status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Counts what was deleted, and lists what was left: foreign files, failures with reasons."""

    files: int = 0
    bytes: int = 0
    foreign: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[str, ...]:
        """What is still there, each with its reason."""
        return (*(f"{path} (not ours)" for path in self.foreign), *self.failed)

    def told(self) -> "Removed":
        """Itself, after a line on stderr of what is still there."""
        if self.left:
            more = f" and {len(self.left) - _MOST_TOLD} more" if len(self.left) > _MOST_TOLD else ""
            log.error("not removed: %s%s", ", ".join(self.left[:_MOST_TOLD]), more)
        return self

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "bytes": self.bytes, "left": list(self.left)}

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            foreign=self.foreign + other.foreign,
            failed=self.failed + other.failed,
        )


class Sweep:
    """Deletes our files, counts them, and remembers what it left."""

    def __init__(self) -> None:
        self._files = 0
        self._bytes = 0
        self._foreign: list[str] = []
        self._failed: list[str] = []

    @property
    def removed(self) -> Removed:
        return Removed(
            files=self._files,
            bytes=self._bytes,
            foreign=tuple(self._foreign),
            failed=tuple(self._failed),
        )

    def run_dir(self, fd: int, path: Path, parent: int) -> None:
        """The objects of a run, its owner file and, where nothing foreign is left, itself. `fd` is
        of the directory that was made as `path`, `parent` of what it was made in."""
        failed_before, foreign_before = len(self._failed), len(self._foreign)
        moved = not is_at(fd, path.name, parent)
        path = _where(fd, path) if moved else path
        for entry in self._entries(fd, path):
            if _SHARD.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                self._shard(fd, path / entry.name)
            elif entry.name != OWNER_NAME:
                self._foreign.append(str(path / entry.name))
        if len(self._failed) > failed_before:
            return  # still owned, so that a later run tries again
        with self.tolerated(path / OWNER_NAME):
            os.unlink(OWNER_NAME, dir_fd=fd)
        if moved:
            if os.fstat(fd).st_nlink:  # else it was removed
                self._failed.append(f"{path} (it was moved away during the run)")
        elif len(self._foreign) == foreign_before:
            self._rmdir(path, parent)

    def empty_dir(self, directory: Path) -> None:
        """A directory that we created: goes unless somebody else uses it by now."""
        try:
            os.rmdir(directory)
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                self._failed.append(f"{directory} ({err.strerror})")

    def _shard(self, parent: int, path: Path) -> None:
        left_before = len(self._failed) + len(self._foreign)
        with self.tolerated(path):
            fd = open_directory(path.name, parent)
            try:
                for entry in self._entries(fd, path):
                    if entry.name.endswith(".kv") and entry.is_file(follow_symlinks=False):
                        self._unlink(entry, path, fd)
                    else:
                        self._foreign.append(str(path / entry.name))
            finally:
                os.close(fd)
            if len(self._failed) + len(self._foreign) == left_before:
                self._rmdir(path, parent)

    def _unlink(self, entry: os.DirEntry[str], path: Path, fd: int) -> None:
        with self.tolerated(path / entry.name):
            nbytes = entry.stat(follow_symlinks=False).st_size
            os.unlink(entry.name, dir_fd=fd)
            self._files += 1
            self._bytes += nbytes

    def _rmdir(self, path: Path, parent: int) -> None:
        with self.tolerated(path):
            os.rmdir(path.name, dir_fd=parent)

    def _entries(self, fd: int, path: Path) -> list[os.DirEntry[str]]:
        with self.tolerated(path), os.scandir(fd) as entries:
            return list(entries)
        return []

    @contextmanager
    def tolerated(self, path: Path) -> Iterator[None]:
        """One failing deletion is noted and does not keep the others from being made."""
        try:
            yield
        except FileNotFoundError:
            pass  # somebody else was quicker: it is gone, as wished
        except OSError as err:
            self._failed.append(f"{path} ({err.strerror})")


def _where(fd: int, path: Path) -> Path:
    """Resolve the directory's current path, if the kernel knows it."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return path
