"""Remove our own files: those of a run's subdirectory of a cache directory, and nothing else.

It works on descriptors of directories, never on paths: a directory that is swapped for a symbolic
link or for another directory meanwhile does not lead to files of others. What could not be removed
is kept, with its reason.
"""

import errno
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.bench.owner import OWNER_NAME
from kv_cache.core.errors import os_reason

_MOST_LOGGED = 3  # in a line on stderr; the result names all
_SHARD = re.compile(r"[0-9a-f]{2}")

log = logging.getLogger("kv_cache")


def open_directory(name: str | Path, parent: int | None = None) -> int:
    """Open a directory that is not a symbolic link; return its descriptor. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent)


def is_at(fd: int, name: str | Path, parent: int | None = None) -> bool:
    """Whether the open file is still what the name means, without following a link."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(fd), status)


class Removed(Struct, frozen=True, kw_only=True):
    """Counts what was deleted, and lists what is left: foreign files, failures with reasons."""

    files: int = 0
    bytes: int = 0
    foreign: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[str, ...]:
        """What is still there, each with its reason."""
        return (*(f"{path} (not ours)" for path in self.foreign), *self.failed)

    def log_left(self) -> None:
        """Log what is still there, on one line."""
        if self.left:
            rest = len(self.left) - _MOST_LOGGED
            more = f" and {rest} more" if rest > 0 else ""
            log.error("not removed: %s%s", ", ".join(self.left[:_MOST_LOGGED]), more)

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "bytes": self.bytes, "left": list(self.left)}

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            foreign=self.foreign + other.foreign,
            failed=self.failed + other.failed,
        )


class Removal:
    """Deletes our files; `removed` counts them, and lists what it left."""

    def __init__(self) -> None:
        self.removed = Removed()

    def run_dir(self, fd: int, path: Path, parent: int) -> None:
        """Delete a run's objects, its owner file and, if nothing foreign is left, the directory.

        `fd` is of the directory that was created as `path`, `parent` of its parent.
        """
        before = self.removed
        moved = not is_at(fd, path.name, parent)
        path = _current_path(fd, path) if moved else path
        for entry in self._entries(fd, path):
            if _SHARD.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                self._shard(fd, path / entry.name)
            elif entry.name != OWNER_NAME:
                self._keep_foreign(path / entry.name)
        if self.removed.failed != before.failed:
            return  # still owned, so that a later run tries again
        with self.tolerated(path / OWNER_NAME):
            os.unlink(OWNER_NAME, dir_fd=fd)
        if moved:
            if os.fstat(fd).st_nlink:  # else it was removed
                self._fail(path, "it was moved away during the run")
        elif self.removed.foreign == before.foreign:
            self._rmdir(path, parent)

    def empty_dir(self, directory: Path) -> None:
        """Delete a directory that we created, unless others use it by now."""
        try:
            os.rmdir(directory)
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                self._fail(directory, os_reason(err))

    @contextmanager
    def tolerated(self, path: Path) -> Iterator[None]:
        """Note a failing deletion, and go on with the others."""
        try:
            yield
        except FileNotFoundError:
            pass  # another process was quicker: it is gone, as wished
        except OSError as err:
            self._fail(path, os_reason(err))

    def _shard(self, parent: int, path: Path) -> None:
        left = self.removed.left
        with self.tolerated(path):
            fd = open_directory(path.name, parent)
            try:
                for entry in self._entries(fd, path):
                    if entry.name.endswith(".kv") and entry.is_file(follow_symlinks=False):
                        self._unlink(entry, path, fd)
                    else:
                        self._keep_foreign(path / entry.name)
            finally:
                os.close(fd)
            if self.removed.left == left:
                self._rmdir(path, parent)

    def _unlink(self, entry: os.DirEntry[str], path: Path, fd: int) -> None:
        with self.tolerated(path / entry.name):
            nbytes = entry.stat(follow_symlinks=False).st_size
            os.unlink(entry.name, dir_fd=fd)
            self.removed += Removed(files=1, bytes=nbytes)

    def _rmdir(self, path: Path, parent: int) -> None:
        with self.tolerated(path):
            os.rmdir(path.name, dir_fd=parent)

    def _entries(self, fd: int, path: Path) -> list[os.DirEntry[str]]:
        with self.tolerated(path), os.scandir(fd) as entries:
            return list(entries)
        return []

    def _keep_foreign(self, path: Path) -> None:
        self.removed += Removed(foreign=(str(path),))

    def _fail(self, path: Path, reason: str | None) -> None:
        self.removed += Removed(failed=(f"{path} ({reason})",))


def _current_path(fd: int, path: Path) -> Path:
    """Resolve the directory's current path, if the kernel knows it."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return path
