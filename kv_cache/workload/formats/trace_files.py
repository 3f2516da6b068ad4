"""Trace files: finding them, recognising their format, walking them as one trace.

Most formats are lines; those that are documents (`TraceFormat.document`) are given parts of text,
since a document may be one line of any length.

A trace is walked twice: once before the run by `surveying.read`, so that a file that cannot be used
is refused before anything is written, and once by the replay. No walk keeps rows, and the counters
of a walk belong to the caller (`Tally`).

What is wrong with a file is a `TraceError` that names the file, the line where there is one, and
what would help.
"""

import glob
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from kv_cache.core.errors import TraceError, did_you_mean, os_reason
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import (
    BlockFormat,
    BrokenDocumentError,
    FailureFormat,
    Note,
    Reading,
    TextFormat,
    TimeUnit,
    TraceFormat,
    UnitFormat,
    WrongHeaderError,
)
from kv_cache.workload.formats.ids import SeenIds
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.text_files import open_lines, open_parts
from kv_cache.workload.formats.values import shown

AUTO = "auto"
SUFFIXES = (".csv", ".jsonl", ".json", ".lct")
PACKED = (".gz", ".zst")
HEAD_BYTES = 64 << 10
FIRST_BAD = 5

WAY_OUT = "Correct the file, or leave such rows out with --skip-bad-rows"

_LFS_POINTER = "version https://git-lfs"


# --- which files ---


def find_files(path: str) -> tuple[Path, ...]:
    """Return the files that `path` names, in the order in which they are replayed.

    A file is itself. A directory is its own *.csv, *.jsonl and *.json files, packed (.gz, .zst)
    or not, by name; hidden ones and directories below are left out. Anything else with `*` or `?`
    is a pattern, also by name. Raises `TraceError` if that gives no file.
    """
    if not path:
        raise TraceError("a trace's path is empty; give a file, a directory or a pattern")
    place = Path(path)
    try:
        if place.is_dir():
            return _in_directory(place)
        if place.exists():
            return (_regular(place),)
    except OSError as problem:
        raise TraceError(f"{path}: cannot be looked at: {os_reason(problem)}") from None
    if "*" in path or "?" in path:
        return _by_pattern(path)
    raise TraceError(
        f"{path}: there is no such trace; give a file, a directory with "
        f"{', '.join('*' + s for s in SUFFIXES)} files, or a quoted pattern with * or ?"
    )


def _in_directory(place: Path) -> tuple[Path, ...]:
    files = tuple(sorted(p for p in place.iterdir() if _is_trace_name(p.name) and p.is_file()))
    if not files:
        raise TraceError(
            f"{place}: the directory holds no trace: expected files named "
            f"{', '.join('*' + s for s in SUFFIXES)} (also with .gz or .zst); "
            "give the file itself if it has another name"
        )
    return files


def _is_trace_name(name: str) -> bool:
    plain = name.lower()
    for suffix in PACKED:
        plain = plain.removesuffix(suffix)
    return plain.endswith(SUFFIXES) and not name.startswith(".")


def _by_pattern(path: str) -> tuple[Path, ...]:
    # Brackets are part of the name: the rule knows * and ? only.
    matches = sorted(glob.glob(path.replace("[", "[[]")))
    files = tuple(p for p in map(Path, matches) if p.is_file())
    if not files:
        raise TraceError(f"{path}: no file matches this pattern; check it with `ls`")
    return files


def _regular(place: Path) -> Path:
    if not place.is_file():
        raise TraceError(
            f"{place}: not a regular file; a trace is read twice, so a pipe or device has to be "
            "saved to a file first"
        )
    return place


# --- which format ---


def detect(path: Path, wanted: str = AUTO) -> TraceFormat:
    """Return the format named `wanted`, or with 'auto' the one that the file looks like.

    Raises `TraceError` for an unknown name, and with 'auto' for a file that is empty or looks
    like no format.
    """
    if wanted == AUTO:
        return _by_content(path)
    if wanted not in TRACE_FORMATS:
        raise TraceError(
            f"there is no trace format {wanted!r}.{did_you_mean(wanted, (AUTO, *TRACE_FORMATS))}"
        )
    return TRACE_FORMATS[wanted]


def _by_content(path: Path) -> TraceFormat:
    head = _head(path)
    if not head.strip():
        raise _empty(path)
    formats = [of for of in TRACE_FORMATS.values() if of.matches(head)]
    if len(formats) == 1:
        return formats[0]
    if formats:
        raise TraceError(
            f"{path}: looks like {' and '.join(of.name for of in formats)}; say with "
            "--trace-format which it is"
        )
    begins = head.strip().splitlines()[0]
    if begins.startswith(_LFS_POINTER):
        raise TraceError(
            f"{path}: is a pointer of Git LFS and not the trace itself; fetch that with "
            "`git lfs pull`"
        )
    raise TraceError(
        f"{path}: looks like no known trace format; it begins with {shown(begins)}. Known are "
        f"{', '.join(TRACE_FORMATS)}; docs/reference/trace-formats.md says what each looks like"
    )


def _head(path: Path) -> str:
    """Return the first 64 KiB of text, which may end anywhere. Raises as `open_parts`."""
    parts: list[str] = []
    size = 0
    for _, text in open_parts(path):
        parts.append(text)
        size += len(text)
        if size >= HEAD_BYTES:
            break
    return "".join(parts)[:HEAD_BYTES]


def _empty(path: Path) -> TraceError:
    return TraceError(f"{path}: the file is empty; a trace has at least one row")


# --- the trace as one stream of rows ---


class BadRow(NamedTuple):
    """One line that is not a row, or one item of a document that holds one."""

    file: str
    line: int
    reason: str
    what: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.what} {self.line}: {self.reason}"


class Tally(Struct):
    """What one walk met that is not a good row; it belongs to the caller of the walk."""

    bad_rows: int = 0
    first_bad: list[BadRow] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # by the value of a `Note`

    def bad(self, row: BadRow) -> None:
        self.bad_rows += 1
        if len(self.first_bad) < FIRST_BAD:
            self.first_bad.append(row)

    def note(self, line: int, note: Note) -> None:
        self.notes[note.value] += 1


class Trace(Struct, frozen=True, kw_only=True):
    """Files of one format, replayed one after the other as one trace."""

    files: tuple[Path, ...]
    format_name: str
    skip_bad_rows: bool = False
    reading: Reading = field(default_factory=Reading)
    time_unit: TimeUnit | None = None
    """What its times count, if they are bare numbers in another unit than the format says."""
    block_tokens: int = 0
    """Tokens that a hash id stands for, if they are not those that the format says; 0: they are."""
    include_failed_rows: bool = False
    """Whether requests that its format marks as failed are rows too."""
    unfit: Callable[[TraceRow], str | None] | None = None
    """Returns why this run cannot replay a good row, which is then a bad one; None if it can."""

    @property
    def format(self) -> TraceFormat:
        """The table's format, configured by `time_unit`, `block_tokens`, `include_failed_rows` or
        `reading`."""
        of = TRACE_FORMATS[self.format_name]
        if self.include_failed_rows and isinstance(of, FailureFormat):
            of = of.with_failed()
        if self.block_tokens and isinstance(of, BlockFormat):
            of = of.in_blocks(self.block_tokens)
        if self.time_unit is not None and isinstance(of, UnitFormat):
            return of.in_unit(self.time_unit)
        return of.configured(self.reading) if isinstance(of, TextFormat) else of

    def reading_facts(self) -> dict[str, Any]:
        """Return for the result what counted the tokens and cut the sessions, if anything did."""
        facts: dict[str, Any] = {"includes_failed_rows": True} if self.include_failed_rows else {}
        if isinstance(TRACE_FORMATS[self.format_name], TextFormat):
            facts["tokens"] = dict(self.reading.tokens.facts)
            facts["max_context_tokens"] = self.reading.max_context_tokens
            facts["max_generation_tokens"] = self.reading.max_generation_tokens
        if self.format.grouped:
            facts["max_sessions"] = self.reading.max_sessions
        return facts

    def rows(self, tally: Tally | None = None) -> Iterator[TraceRow]:
        """Walk the good rows, streamed; counts into `tally`.

        The first row of a later file has the instant of the last row before it, since files do
        not say how far apart they are (sessions of a grouped format have their own times anyway).
        `line` counts within its own file. Raises `TraceError` at the first bad row unless
        `skip_bad_rows`, and for a file that is empty, unreadable, not whole or has another header,
        in any case.
        """
        counts = Tally() if tally is None else tally
        return self._walk(counts, counts.bad if self.skip_bad_rows else _refuse)

    def every_row(self, tally: Tally) -> Iterator[TraceRow]:
        """Walk as `rows`, but count and pass over bad rows whatever `skip_bad_rows` says."""
        return self._walk(tally, tally.bad)

    def _walk(self, tally: Tally, bad: Callable[[BadRow], None]) -> Iterator[TraceRow]:
        files = (self._file_rows(path, tally, bad) for path in self.files)
        return self._sessions(files, tally) if self.format.grouped else _one_after_the_other(files)

    def _file_rows(
        self, path: Path, tally: Tally, bad: Callable[[BadRow], None]
    ) -> Iterator[TraceRow]:
        of = self.format
        what, open_texts = ("item", open_parts) if of.document else ("line", open_lines)

        def report(line: int, reason: str) -> None:
            bad(BadRow(str(path), line, reason, what))

        try:
            rows = of.rows(_not_empty(path, open_texts(path)), report, tally.note)
            if self.unfit is None:
                yield from rows
                return
            for row in rows:
                reason = self.unfit(row)
                if reason is None:
                    yield row
                else:
                    report(row.line, reason)
        except (WrongHeaderError, BrokenDocumentError) as problem:
            raise TraceError(
                f"{path}: not a {of.name} trace: {problem}. Expected is {of.description}"
            ) from None

    def _sessions(self, files: Iterator[Iterator[TraceRow]], tally: Tally) -> Iterator[TraceRow]:
        """Yield the first `max_sessions` sessions. One with the name of a session of an earlier
        file gets a name of its own: it is another session, and its local ids are others."""
        most, begun = self.reading.max_sessions, 0
        seen = SeenIds() if len(self.files) > 1 else None
        for number, rows in enumerate(files, 1):
            stated: str | None = None
            name = ""
            for row in rows:
                if row.session != stated:
                    begun += 1
                    if most and begun > most:
                        return
                    stated = name = row.session or ""
                    if seen is not None and seen.before(name):
                        tally.note(row.line, Note.DUPLICATE)
                        name = seen.unused(name, f"@{number}")
                scope = name if row.scope == stated else row.scope
                yield row if name == stated else row._replace(session=name, scope=scope)


def _one_after_the_other(files: Iterator[Iterator[TraceRow]]) -> Iterator[TraceRow]:
    at_ns = 0
    for rows in files:
        begin_ns = at_ns
        for row in rows:
            at_ns = begin_ns + row.at_ns
            yield row._replace(at_ns=at_ns) if begin_ns else row


def open_trace(
    path: str,
    wanted: str = AUTO,
    *,
    skip_bad_rows: bool = False,
    reading: Reading | None = None,
    time_unit: str = AUTO,
    block_tokens: int = 0,
    include_failed_rows: bool = False,
) -> Trace:
    """Return the trace that `path` names (`find_files`), in the format `wanted` (`detect`), its
    times in `time_unit` (auto: see `surveying.read`).

    Raises `TraceError` for no file, no format, or files of several formats, and for a unit,
    blocks or failed rows that the format does not have.
    """
    files = find_files(path)
    first = detect(files[0], wanted)
    for other in files[1:]:
        other_format = detect(other, wanted)
        if other_format.name != first.name:
            raise TraceError(
                f"{path}: holds traces of several formats ({files[0].name}: {first.name}, "
                f"{other.name}: {other_format.name}); give files of one format"
            )
    if reading is not None and reading.max_sessions and not first.grouped:
        raise TraceError(
            f"--max-conversations: the rows of {path} ({first.name}) do not stand session by "
            "session; leave it out, or bound the run with --max-requests"
        )
    if time_unit != AUTO and not isinstance(TRACE_FORMATS[first.name], UnitFormat):
        raise TraceError(
            f"workload.trace_time_unit (--trace-time-unit) is {time_unit}, but {path} "
            f"({first.name}) has no times that are bare numbers; leave it out"
        )
    if block_tokens and not isinstance(TRACE_FORMATS[first.name], BlockFormat):
        raise TraceError(
            f"workload.trace_block_tokens (--trace-block-tokens) is {block_tokens}, but {path} "
            f"({first.name}) has no hash ids, or says itself how many tokens one stands for; leave "
            "it out"
        )
    if include_failed_rows and not isinstance(TRACE_FORMATS[first.name], FailureFormat):
        raise TraceError(
            f"workload.include_failed_rows (--include-failed-rows) is on, but {path} "
            f"({first.name}) marks no request as failed; leave it out"
        )
    return Trace(
        files=files,
        format_name=first.name,
        skip_bad_rows=skip_bad_rows,
        reading=Reading() if reading is None else reading,
        time_unit=None if time_unit == AUTO else TimeUnit(time_unit),
        block_tokens=block_tokens,
        include_failed_rows=include_failed_rows,
    )


def _not_empty(path: Path, texts: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines or parts of a file; one that has nothing but space is refused."""
    for text in texts:
        if text[1].strip():
            # What is blank before it is dropped here: no format reads it.
            return chain((text,), texts)
    raise _empty(path)


def _refuse(row: BadRow) -> None:
    raise TraceError(f"{row}. {WAY_OUT}")
