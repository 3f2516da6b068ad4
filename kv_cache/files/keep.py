"""Writes the output of a command, to another place if its file cannot be written.

A measurement can have taken a day: it is never given up because a disk is full at its end. Where
its file cannot be written it goes into the current directory, else into one for temporary files,
and where nothing can be written at all it is the caller's to print.
"""

import errno
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from kv_cache.bench.stillness import ANSWER_S, answered
from kv_cache.core.errors import NoAnswerError, os_reason
from kv_cache.core.exits import Exit
from kv_cache.files.writing import write_atomically

log = logging.getLogger("kv_cache")

_SILENT = "the device did not answer"
_MOST_NAMES = 1000  # of the same stem that are looked at in one directory


RESULTS = Path("results")
"""Where results go that are given no place, below the working directory; made on demand."""


class Kept(Struct, frozen=True, kw_only=True):
    """What was to be written, and where it is now."""

    data: bytes
    path: Path | None  # None: nowhere
    problem: str | None = None  # why it is not where it was to be
    no_answer: bool = False  # a device did not answer: a thread is still at it

    @property
    def in_place(self) -> bool:
        return self.problem is None

    @property
    def code(self) -> Exit:
        """What it means for the exit code."""
        if self.no_answer:
            return Exit.NO_ANSWER
        return Exit.DONE if self.in_place else Exit.EARLY

    @property
    def shown(self) -> str:
        """Where it is, for a person."""
        return "on stdout, below" if self.path is None else str(self.path)


def keep(
    path: Path,
    data: bytes,
    what: str = "result",
    others: Sequence[Path] = (),
    answer_s: float = ANSWER_S,
) -> Kept:
    """Write `data` to `path`, else to the first of `others`, the current directory and one for
    temporary files that takes it. A file that is there already is replaced only at `path` and
    `others`. A device that does not answer for `answer_s` is given up. Logs an error that says
    where it went."""
    why = _failure(lambda: path, data, answer_s)
    if why is None:
        return Kept(data=data, path=path)
    problem = f"the {what} could not be written to {path} ({why})"
    silent = why == _SILENT
    for name in _elsewhere(path.name, others):
        written: list[Path] = []
        why = _failure(name, data, answer_s, written)
        silent = silent or why == _SILENT
        if why is None:
            log.error("%s; it is in %s", problem, written[0])
            return Kept(data=data, path=written[0], problem=problem, no_answer=silent)
    log.error("%s, nor anywhere else; it goes to stdout", problem)
    return Kept(data=data, path=None, problem=problem, no_answer=silent)


def _failure(
    name: Callable[[], Path], data: bytes, answer_s: float, written: list[Path] | None = None
) -> str | None:
    """Write `data` to the file that `name` returns; the answer is why it failed, or None, and then
    `written` has the path."""

    def write() -> None:
        path = name()
        if path.parent == RESULTS:
            RESULTS.mkdir(exist_ok=True)
        write_atomically(path, data)
        if written is not None:
            written.append(path)

    try:
        answered(f"writing {name}", write, answer_s)
    except NoAnswerError:
        return _SILENT
    except OSError as error:
        return os_reason(error)
    return None


def _elsewhere(name: str, others: Sequence[Path]) -> Iterator[Callable[[], Path]]:
    """Yield other places, each looked for when its turn comes. Each raises OSError."""
    yield from ((lambda other=other: other) for other in others)
    yield lambda: _unused(Path.cwd(), name)
    yield lambda: Path(tempfile.mkdtemp(prefix="kv-cache-result-")) / name  # ours alone


def _unused(directory: Path, name: str) -> Path:
    """Return a path in `directory` that does not exist yet."""
    wanted = directory / name
    for number in range(1, _MOST_NAMES):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        try:
            path.lstat()
        except FileNotFoundError:
            return path
    raise FileExistsError(errno.EEXIST, "all names are taken", str(wanted))
