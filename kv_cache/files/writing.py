"""Files that are either there whole or not there at all."""

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from kv_cache.core.errors import PlaceError, os_reason
from kv_cache.core.text import as_json

_OF_THE_SYSTEM = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OF_THE_SYSTEM
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that a reader, also after a crash, finds the old file or the new one.

    A symbolic link stays and its target is replaced. Mode 0644 less the umask. Raises OSError,
    after which the old file is as it was and no other is left.
    """
    with open_atomically(path) as file:
        file.write(data)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as JSON, and the directory that it belongs in. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_json(document))


def write_output(path: Path, data: bytes, name: str, advice: str = "name another file") -> None:
    """Write a file that was asked for; `name` is what it is called in errors, such as the flag.
    Raises PlaceError."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise cannot_write(path, error, name, advice) from None


def cannot_write(
    path: Path, error: OSError, name: str, advice: str = "name another file"
) -> PlaceError:
    """Return what is raised if a file that was asked for cannot be written."""
    return PlaceError(f"{name} {path}: it cannot be written ({os_reason(error)}); {advice}")


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Write a file in parts: it exists under its name once the block has ended, and not at all if
    the block raises."""
    target = Path(os.path.realpath(path))
    # A short name of its own: the target's may already be as long as the file system allows.
    temporary = target.parent / f".kv-cache-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:  # a signal may come as soon as there is the file
        fd = os.open(temporary, _NEW_FILE, 0o644)
        with open(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Make the rename last."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no directories
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as err:
        if err.errno not in _NO_DIRECTORY_SYNC:  # FUSE and the like: nothing to be made lasting
            raise
    finally:
        os.close(fd)
