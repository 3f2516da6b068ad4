"""Trace files: finding them, opening them, telling their format, walking them as one trace.

Most formats are lines; those that are documents (`TraceFormat.document`) are given parts of text,
since a document may be one line of any length.

A trace is walked twice: once before the run by `surveying.read`, so that a file that cannot be used
is refused before anything is written, and once by whoever replays it. No walk keeps rows, and the
counters of a walk belong to the caller (`Tally`).

Whatever is wrong with a file is a `TraceError` that names the file, the line where there is one,
and what would help.
"""

import codecs
import glob
import gzip
import importlib
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kv_cache.core.errors import TraceError, did_you_mean
from kv_cache.installing import install_hint
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import (
    BrokenDocumentError,
    Note,
    Reading,
    Seen,
    TextFormat,
    TimeUnit,
    TraceFormat,
    UnitFormat,
    WrongHeaderError,
    shown,
)
from kv_cache.workload.formats.lmcache import HEAD_BYTES as LCT_HEAD_BYTES
from kv_cache.workload.formats.lmcache import FramesAsText, is_lct
from kv_cache.workload.formats.row import TraceRow

AUTO = "auto"
SUFFIXES = (".csv", ".jsonl", ".json", ".lct")
PACKED = (".gz", ".zst")
HEAD_BYTES = 64 << 10
# The longest row anybody has is a few hundred KiB; a file without line ends must not fill memory.
MAX_LINE_BYTES = 16 << 20
PART_BYTES = 256 << 10
FIRST_BAD = 5

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_STEP_BYTES = 16 << 10
_HASH_STEP_BYTES = 1 << 20
_LFS_POINTER = "version https://git-lfs"
_UNREADABLE = (OSError, EOFError, zlib.error)
_PROGRESS_ROWS = 4096


# --- which files ---


def find_files(path: str) -> tuple[Path, ...]:
    """The files that `path` names, in the order in which they are replayed.

    A file is itself. A directory is its own *.csv, *.jsonl and *.json files, packed (.gz, .zst)
    or not, by name; hidden ones and directories below are left out. Anything else with `*` or `?`
    is a pattern, also by name. Raises `TraceError` where that gives no file.
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
        raise TraceError(f"{path}: cannot be looked at: {problem.strerror}") from None
    if "*" in path or "?" in path:
        return _by_pattern(path)
    raise TraceError(
        f"{path}: there is no such trace; give a file, a directory with "
        f"{', '.join('*' + s for s in SUFFIXES)} files, or a quoted pattern with * or ?"
    )


def _in_directory(place: Path) -> tuple[Path, ...]:
    found = tuple(sorted(p for p in place.iterdir() if _is_trace_name(p.name) and p.is_file()))
    if not found:
        raise TraceError(
            f"{place}: the directory holds no trace: expected files named "
            f"{', '.join('*' + s for s in SUFFIXES)} (also with .gz or .zst); "
            "give the file itself if it has another name"
        )
    return found


def _is_trace_name(name: str) -> bool:
    plain = name.lower()
    for suffix in PACKED:
        plain = plain.removesuffix(suffix)
    return plain.endswith(SUFFIXES) and not name.startswith(".")


def _by_pattern(path: str) -> tuple[Path, ...]:
    # Brackets are part of the name: the rule knows * and ? only.
    found = sorted(glob.glob(path.replace("[", "[[]")))
    files = tuple(p for p in map(Path, found) if p.is_file())
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


# --- text from bytes ---


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of each line; gzip and zstd are unpacked.

    Raises `TraceError` naming the line where the file cannot be read or unpacked, is not UTF-8
    text, or has a line over 16 MiB. Packing is told by the first bytes, not by the name.
    """
    number = 0
    try:
        with _open_bytes(path) as stream:
            limited = partial(stream.readline, MAX_LINE_BYTES + 1)
            for number, raw in enumerate(iter(limited, b""), 1):
                yield number, _text(path, number, raw)
    except _UNREADABLE as problem:
        raise _unreadable(path, number, problem) from None


def open_parts(path: Path) -> Iterator[tuple[int, str]]:
    """(number of the line at which it begins, text) of each part; gzip and zstd are unpacked.

    A part is about 256 KiB and may begin and end anywhere, also within a line. Raises `TraceError`
    where the file cannot be read or unpacked or is not UTF-8 text.
    """
    line = 1
    try:
        with _open_bytes(path) as stream:
            decoder = codecs.getincrementaldecoder("utf-8")()
            while raw := stream.read(PART_BYTES):
                text = _part(path, line, decoder, raw)
                yield line, text.removeprefix("\ufeff") if line == 1 else text
                line += text.count("\n")
            _part(path, line, decoder, b"")
    except _UNREADABLE as problem:
        raise _unreadable(path, line - 1, problem) from None


def _part(path: Path, line: int, decoder: codecs.IncrementalDecoder, raw: bytes) -> str:
    """What `raw` adds to the text; without any, the text ends here."""
    try:
        text = decoder.decode(raw, final=not raw)
    except UnicodeDecodeError as problem:
        # The decoder puts what was left of the part before in front of this one.
        bad: bytes = problem.object
        at = line + bad.count(b"\n", 0, problem.start)
        raise _not_text(path, at, f"byte 0x{bad[problem.start]:02x}") from None
    nul = text.find("\0")
    if nul >= 0:
        raise _not_text(path, line + text.count("\n", 0, nul), "a NUL byte")
    return text


def _unreadable(path: Path, number: int, problem: Exception) -> TraceError:
    where = f"after line {number}: " if number else ""
    return TraceError(f"{path}: cannot be read: {where}{problem}")


def _open_bytes(path: Path) -> BinaryIO:
    """The unpacked bytes; those of LMCache's binary traces as lines of text."""
    stream = _unpacked(path)
    try:
        binary = is_lct(stream.peek(LCT_HEAD_BYTES))
    except BaseException:
        stream.close()
        raise
    return io.BufferedReader(FramesAsText(stream)) if binary else stream


def _unpacked(path: Path) -> io.BufferedReader:
    raw = path.open("rb")
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        raw.close()
        # gzip owns the file it opens by name, so that closing one closes both.
        return io.BufferedReader(gzip.open(path, "rb"))
    if magic == _ZSTD_MAGIC:
        return io.BufferedReader(_Unzstd(path, raw))
    return raw


class _Unzstd(io.RawIOBase):
    """The unpacked bytes of a zstd file, all its frames.

    The library's own reader stops without a word where the file is cut, which would make a
    shorter trace of a broken download; here that is an `OSError`, as is anything else it refuses.
    """

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        self._packed = packed
        try:
            self._zstd = importlib.import_module("zstandard")
        except ImportError:
            packed.close()
            raise TraceError(
                f"{path}: packed with zstd, which needs the package `zstandard`: "
                f"{install_hint('zstd')}, or unpack the file first with `zstd -d`"
            ) from None
        self._frame = self._new_frame()
        self._inside = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            step = self._frame.unused_data or self._packed.read(_ZSTD_STEP_BYTES)
            if not step:
                return self._end()
            self._ready = memoryview(self._unpacked(step))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._packed.close()
        super().close()

    def _new_frame(self) -> Any:
        # The largest window that the format's own tool writes (--long=31).
        return self._zstd.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def _unpacked(self, step: bytes) -> bytes:
        if self._frame.eof:
            self._frame = self._new_frame()
        try:
            unpacked: bytes = self._frame.decompress(step)
        except self._zstd.ZstdError as problem:
            raise OSError(f"not valid zstd: {problem}") from None
        self._inside = not self._frame.eof
        return unpacked

    def _end(self) -> int:
        if self._inside:
            raise OSError("the zstd file ends before its data does")
        return 0


def _text(path: Path, number: int, raw: bytes) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise TraceError(
            f"{path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MiB: this is not a "
            "file with one row a line"
        )
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as problem:
        raise _not_text(path, number, f"byte 0x{raw[problem.start]:02x}") from None
    if "\0" in text:
        raise _not_text(path, number, "a NUL byte")
    return text.rstrip("\r\n")


def _not_text(path: Path, number: int, found: str) -> TraceError:
    return TraceError(
        f"{path}: line {number} is not UTF-8 text (found {found}); give the CSV, JSON or JSONL "
        "file itself, plain, .gz or .zst"
    )


# --- which format ---


def detect(path: Path, wanted: str = AUTO) -> TraceFormat:
    """The format named `wanted`, or with 'auto' the one that the file's beginning looks like.

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
    found = [of for of in TRACE_FORMATS.values() if of.matches(head)]
    if len(found) == 1:
        return found[0]
    if found:
        raise TraceError(
            f"{path}: looks like {' and '.join(of.name for of in found)}; say with --trace-format "
            "which it is"
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
    """The first 64 KiB of text, which may end anywhere; a file is refused as by `open_parts`."""
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
    """One line (or item of a document) that is not a row, or has one that is none."""

    file: str
    line: int
    reason: str
    what: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.what} {self.line}: {self.reason}"


@dataclass(slots=True)
class Tally:
    """What one walk met that is not a good row; it belongs to whoever walks."""

    bad_rows: int = 0
    first_bad: list[BadRow] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # by what a `Note` is called

    def bad(self, row: BadRow) -> None:
        self.bad_rows += 1
        if len(self.first_bad) < FIRST_BAD:
            self.first_bad.append(row)

    def note(self, line: int, note: Note) -> None:
        self.notes[note.value] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Files of one format, replayed one after the other as one trace."""

    files: tuple[Path, ...]
    format_name: str
    skip_bad_rows: bool = False
    reading: Reading = field(default_factory=Reading)
    time_unit: TimeUnit | None = None
    """What its times count, where they are bare numbers and not what the format says."""
    unfit: Callable[[TraceRow], str | None] | None = None
    """Why a good row cannot be asked of this run, where it cannot: then it is a bad one."""

    @property
    def format(self) -> TraceFormat:
        """How the files are read: the table's format, told what `reading` says."""
        of = TRACE_FORMATS[self.format_name]
        if self.time_unit is not None and isinstance(of, UnitFormat):
            return of.in_unit(self.time_unit)
        return of.configured(self.reading) if isinstance(of, TextFormat) else of

    def reading_facts(self) -> dict[str, Any]:
        """For the result: what counted the tokens and cut the sessions, where something did."""
        facts: dict[str, Any] = {}
        if isinstance(TRACE_FORMATS[self.format_name], TextFormat):
            facts["tokens"] = dict(self.reading.tokens.facts)
            facts["max_context_tokens"] = self.reading.max_context_tokens
            facts["max_generation_tokens"] = self.reading.max_generation_tokens
        if self.format.grouped:
            facts["max_sessions"] = self.reading.max_sessions
        return facts

    def rows(self, tally: Tally | None = None) -> Iterator[TraceRow]:
        """A fresh walk over the good rows, streamed; counts into `tally`.

        The first row of a later file has the instant of the last row before it, since files do
        not say how far apart they are (sessions of a grouped format have their own times anyway).
        `line` counts within its own file. Raises `TraceError` at the first bad row unless
        `skip_bad_rows`, and for a file that is empty, unreadable, not whole or has another header,
        in any case.
        """
        counts = Tally() if tally is None else tally
        return self._walk(counts, counts.bad if self.skip_bad_rows else _refuse)

    def every_row(self, tally: Tally) -> Iterator[TraceRow]:
        """The same walk, but bad rows are counted and passed over whatever `skip_bad_rows` says."""
        return self._walk(tally, tally.bad)

    def _walk(self, tally: Tally, bad: Callable[[BadRow], None]) -> Iterator[TraceRow]:
        of = self.format
        files = (self._fit(path, _file_rows(path, of, tally, bad), bad) for path in self.files)
        return self._sessions(files, tally) if of.grouped else _one_after_the_other(files)

    def _fit(
        self, path: Path, rows: Iterator[TraceRow], bad: Callable[[BadRow], None]
    ) -> Iterator[TraceRow]:
        if self.unfit is None:
            yield from rows
            return
        what = "item" if self.format.document else "line"
        for row in rows:
            reason = self.unfit(row)
            if reason is None:
                yield row
            else:
                bad(BadRow(str(path), row.line, reason, what))

    def _sessions(self, files: Iterator[Iterator[TraceRow]], tally: Tally) -> Iterator[TraceRow]:
        """As many sessions as are wanted. One that is called as one of an earlier file gets a name
        of its own: it is another session, and its local ids are others."""
        most, begun = self.reading.max_sessions, 0
        seen = Seen() if len(self.files) > 1 else None
        for number, rows in enumerate(files, 1):
            given: str | None = None
            name = ""
            for row in rows:
                if row.session != given:
                    begun += 1
                    if most and begun > most:
                        return
                    given = name = row.session or ""
                    if seen is not None and seen.before(name):
                        tally.note(row.line, Note.DUPLICATE)
                        name = _unused(seen, name, number)
                scope = name if row.scope == given else row.scope
                yield row if name == given else row._replace(session=name, scope=scope)


def _one_after_the_other(files: Iterator[Iterator[TraceRow]]) -> Iterator[TraceRow]:
    at_ns = 0
    for rows in files:
        begin_ns = at_ns
        for row in rows:
            at_ns = begin_ns + row.at_ns
            yield row._replace(at_ns=at_ns) if begin_ns else row


def _unused(seen: Seen, name: str, file: int) -> str:
    while seen.before(name := f"{name}@{file}"):
        pass
    return name


def open_trace(
    path: str,
    wanted: str = AUTO,
    *,
    skip_bad_rows: bool = False,
    reading: Reading | None = None,
    time_unit: str = AUTO,
) -> Trace:
    """The trace that `path` names (`find_files`), in the format `wanted` (`detect`), its times in
    `time_unit` (auto: see `surveying.read`).

    Raises `TraceError` where there is no file, no format, or files of several formats, and for a
    unit that the format has no use for.
    """
    files = find_files(path)
    first = detect(files[0], wanted)
    for other in files[1:]:
        found = detect(other, wanted)
        if found.name != first.name:
            raise TraceError(
                f"{path}: holds traces of several formats ({files[0].name}: {first.name}, "
                f"{other.name}: {found.name}); give files of one format"
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
    return Trace(
        files=files,
        format_name=first.name,
        skip_bad_rows=skip_bad_rows,
        reading=Reading() if reading is None else reading,
        time_unit=None if time_unit == AUTO else TimeUnit(time_unit),
    )


def _file_rows(
    path: Path, trace_format: TraceFormat, tally: Tally, bad: Callable[[BadRow], None]
) -> Iterator[TraceRow]:
    what = "item" if trace_format.document else "line"
    texts = open_parts(path) if trace_format.document else open_lines(path)

    def report(line: int, reason: str) -> None:
        bad(BadRow(str(path), line, reason, what))

    try:
        yield from trace_format.rows(_not_empty(path, texts), report, tally.note)
    except (WrongHeaderError, BrokenDocumentError) as problem:
        raise TraceError(
            f"{path}: not a {trace_format.name} trace: {problem}. Expected is "
            f"{trace_format.description}"
        ) from None


def _not_empty(path: Path, texts: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines or parts of a file; one that has nothing but space is refused."""
    for text in texts:
        if text[1].strip():
            # What is blank before it is dropped here: no format reads it.
            return chain((text,), texts)
    raise _empty(path)


def _refuse(row: BadRow) -> None:
    raise TraceError(f"{row}. {WAY_OUT}")


WAY_OUT = "Correct the file, or leave such rows out with --skip-bad-rows"
