"""What the formats with one row a line share: the header, a line's checks, the clock of a file.

A format says how a line is read (`LineFormat.reader`); which lines are blank or bad, and when a
row is due, is decided here alone.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import ClassVar, Self, TypeVar

from kv_cache.workload.formats.base import (
    Bad,
    Note,
    Noted,
    RowError,
    TimeUnit,
    WrongHeaderError,
    ignore,
)
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import shown

T = TypeVar("T")

AROUND = " \t\r\n\ufeff"
"""What is around a line: its end, and the byte order mark, also one in the middle of joined
files."""

Line = tuple[TraceRow, ...] | Note
"""What a line is: its rows, at the times that they state (none for a line that only frames
others), or why it is left out."""
LineReader = Callable[[str], Line]
"""Raises `RowError` for a line that is not a row."""


class RowClock:
    """Turns the times that one file's rows state into `at_ns` (laws 3 and 4)."""

    __slots__ = ("_first_ns", "_last_ns", "_note")

    def __init__(self, note: Noted) -> None:
        self._note = note
        self._first_ns: int | None = None
        self._last_ns = 0

    def at(self, line: int, stated_ns: int) -> int:
        if self._first_ns is None:
            self._first_ns = stated_ns
        at_ns = stated_ns - self._first_ns
        if at_ns < self._last_ns:
            self._note(line, Note.BACKWARD)
            return self._last_ns
        self._last_ns = at_ns
        return at_ns


class LineFormat:
    """A trace format with one row a line."""

    document = False
    timed = True
    grouped = False

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader | None:
        """Take the header, where the format has one, and return what reads each line behind it;
        None for a file of blank lines."""
        raise NotImplementedError

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        read = self.reader(lines)
        if read is None:
            return
        clock = RowClock(note)
        for line, value in parsed(lines, read, bad):
            if isinstance(value, Note):
                note(line, value)
                continue
            for row in value:
                yield row.placed(line, clock.at(line, row.at_ns))


class BareTimes:
    """A `UnitFormat`: its times count `WRITTEN_IN`, unless a file is read in another unit."""

    WRITTEN_IN: ClassVar[TimeUnit]

    def __init__(self, time_unit: TimeUnit | None = None) -> None:
        self.time_unit = time_unit or self.WRITTEN_IN

    def in_unit(self, unit: TimeUnit) -> Self:
        return type(self)(unit)


class HashedRows(BareTimes):
    """A `UnitFormat` that is a `BlockFormat` too: ids stand for `BLOCK_TOKENS`, unless a file is
    read otherwise."""

    BLOCK_TOKENS: ClassVar[int]

    def __init__(self, time_unit: TimeUnit | None = None, block_tokens: int = 0) -> None:
        super().__init__(time_unit)
        self.block_tokens = block_tokens or self.BLOCK_TOKENS

    def in_unit(self, unit: TimeUnit) -> Self:
        return type(self)(unit, self.block_tokens)

    def in_blocks(self, block_tokens: int) -> Self:
        return type(self)(self.time_unit, block_tokens)


# --- lines and headers ---


def parsed(
    lines: Iterable[tuple[int, str]], parse: Callable[[str], T], bad: Bad
) -> Iterator[tuple[int, T]]:
    """Yield `parse` of each line that is not blank; a line that it refuses goes to `bad`."""
    for line, text in lines:
        text = text.strip(AROUND)
        if not text:
            continue
        try:
            value = parse(text)
        except RowError as problem:
            bad(line, str(problem))
            continue
        yield line, value


def take_header(lines: Iterator[tuple[int, str]], parse: Callable[[str], T]) -> T | None:
    """Take the first line that is not blank and return `parse` of it; None if there is no line.

    Raises `WrongHeaderError` naming the line that `parse` refuses.
    """
    for line, text in lines:
        if text := text.strip(AROUND):
            try:
                return parse(text)
            except RowError as problem:
                raise WrongHeaderError(f"line {line} is not the header: {problem}") from None
    return None


def first_text(head: str) -> str:
    """Return the first line of `head` that is not blank; "" if there is none."""
    return next((text for line in head.splitlines() if (text := line.strip(AROUND))), "")


# --- CSV with a header ---


class CsvFormat(LineFormat):
    """A CSV whose columns are found by the header's names, not by position."""

    columns: ClassVar[tuple[str, ...]]
    optional_columns: ClassVar[tuple[str, ...]] = ()

    def matches(self, head: str) -> bool:
        return head_has_columns(head, self.columns)

    def cell_reader(self) -> Callable[..., Line]:
        """Return what makes a row of a line's cells, in the order of `columns` and then
        `optional_columns`; '' for an optional column that is absent."""
        raise NotImplementedError

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader | None:
        columns, optional = self.columns, self.optional_columns
        cells = take_header(lines, lambda text: picked_cells(text, columns, optional))
        if cells is None:
            return None
        read = self.cell_reader()
        return lambda text: read(*cells(text))


def picked_cells(
    text: str, required: Sequence[str], optional: Sequence[str]
) -> Callable[[str], tuple[str, ...]]:
    """Return what takes the cells of these columns from a line behind the header `text`."""
    header = header_names(text)
    missing = [name for name in required if name not in header]
    if missing:
        raise RowError(f"missing {_quoted(missing)}, found {shown(text)}")
    names = (*required, *optional)
    repeated = [name for name in names if header.count(name) > 1]
    if repeated:
        raise RowError(f"{_quoted(repeated)} is there more than once")
    width = len(header)
    # An absent optional column is read from the empty field behind the last.
    pick = itemgetter(*(header.index(name) if name in header else width for name in names))

    def cells(line: str) -> tuple[str, ...]:
        fields = split(line)
        if len(fields) != width:
            raise RowError(
                f"expected {width} fields as in the header, found {len(fields)} in {shown(line)}"
            )
        fields.append("")
        picked: tuple[str, ...] = pick(fields)
        return picked

    return cells


def _quoted(names: Sequence[str]) -> str:
    kind = "column" if len(names) == 1 else "columns"
    return f"{kind} {', '.join(repr(name) for name in names)}"


def split(text: str) -> list[str]:
    """Return the fields of one CSV line.

    Each line is read on its own, since no format has a line end inside a field: a quote that is
    never closed spoils one row and not the rest of the file.
    """
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as problem:
        raise RowError(f"expected comma-separated fields, found {shown(text)}: {problem}") from None


def header_names(text: str) -> list[str]:
    return [name.strip() for name in split(text)]


def head_has_columns(head: str, columns: Sequence[str]) -> bool:
    """Return whether the first line of `head` that is not blank names all of `columns`."""
    try:
        return set(columns) <= set(header_names(first_text(head)))
    except RowError:
        return False
