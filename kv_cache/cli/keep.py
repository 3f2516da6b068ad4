"""Writes what a command found out, and finds another place for it where its file cannot be written.

A measurement can have taken a day: it is never given up because a disk is full at its end. Where
its file cannot be written it goes into the current directory, else into one for temporary files,
and where nothing can be written at all it is the caller's to print.
"""

import errno
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_cache.report.writing import write_atomically

log = logging.getLogger("kv_cache")

_MOST_NAMES = 1000  # of the same stem that are looked at in one directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was to be written, and where it is now."""

    data: bytes
    path: Path | None  # None: nowhere
    problem: str | None = None  # why it is not where it was to be

    @property
    def in_place(self) -> bool:
        return self.problem is None

    @property
    def shown(self) -> str:
        """Where it is, for a person."""
        return "on stdout, below" if self.path is None else str(self.path)

    def print_unwritten(self) -> None:
        """Print what could be written nowhere."""
        if self.path is None:
            print(self.data.decode(), end="", flush=True)


def keep(path: Path, data: bytes, what: str = "result", others: Sequence[Path] = ()) -> Kept:
    """Write `data` to `path`, else to the first of `others`, the current directory and one for
    temporary files that takes it. A file that is there already is replaced only at `path` and
    `others`. Logs an error that says where it went."""
    why = _failure(path, data)
    if why is None:
        return Kept(data=data, path=path)
    problem = f"the {what} could not be written to {path} ({why})"
    for candidate in _elsewhere(path.name, others):
        place = candidate()
        if place is not None and _failure(place, data) is None:
            log.error("%s; it is in %s", problem, place)
            return Kept(data=data, path=place, problem=problem)
    log.error("%s, nor anywhere else; it goes to stdout", problem)
    return Kept(data=data, path=None, problem=problem)


def with_result(told: dict[str, Any], kept: Kept, document: Mapping[str, Any]) -> dict[str, Any]:
    """A summary for programs, with the result's file first, or with the whole result where it could
    be written nowhere: only one document goes to stdout."""
    if kept.path is None:
        return {**told, "document": document}
    return {**told, "files": {"result": str(kept.path), **told["files"]}}


def _failure(path: Path, data: bytes) -> str | None:
    try:
        write_atomically(path, data)
    except OSError as error:
        return _reason(error)
    return None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _elsewhere(name: str, others: Sequence[Path]) -> Iterator[Callable[[], Path | None]]:
    """Other places, each made when its turn comes."""
    yield from ((lambda other=other: other) for other in others)
    yield lambda: _unused(Path.cwd(), name)
    yield lambda: _temporary(name)


def _unused(directory: Path, name: str) -> Path | None:
    """A name in `directory` that nothing has yet."""
    wanted = directory / name
    for number in range(1, _MOST_NAMES):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        try:
            path.lstat()
        except OSError as error:
            return path if error.errno == errno.ENOENT else None
    return None


def _temporary(name: str) -> Path | None:
    """A file in a new directory that is ours alone: others may write beside it."""
    try:
        return Path(tempfile.mkdtemp(prefix="kv-cache-result-")) / name
    except OSError:
        return None
