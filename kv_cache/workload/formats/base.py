"""The seam between a trace file's text and the rows that are replayed, and what its readers share.

A format knows text and nothing else: no path, no compression, no policy about bad rows. The laws:
 1. `rows` streams: it takes a line when it needs one, keeps none, and its memory does not grow
    with the trace. One call reads one file from its beginning. A format that is a `document` (one
    JSON value, which may be a single line of any length) is given parts of its text instead, and
    keeps no more than one item (one conversation, one session) of it.
 2. A line that is not a row is given to `bad(line_number, reason)`, the reason naming what was
    expected and what was found, and is skipped. No line makes `rows` fail, except by law 5.
 3. `at_ns` counts from the first good row and is never negative. It is exact for what the file
    says in steps of 1 ns; anything finer is cut off.
 4. Rows keep the file's order. A time that goes back is taken as the previous row's time (so
    `at_ns` never decreases), and is told to `note` as `Note.BACKWARD`.
 5. A header without the columns that are read is a `WrongHeaderError`: there is no row to skip,
    the whole file is something else.
 6. A row that is well formed but asks for nothing that can be replayed is left out by the format's
    stated rule and told to `note` as `Note.FAILED`; it is not bad and sets no time.
 7. Token counts are whole numbers; a prompt has at least 1, and neither exceeds `MAX_TOKENS`.
 8. A byte order mark, CRLF, blank lines and a missing last line end change nothing.
 9. `matches` says from the beginning of a file's text alone whether it looks like this format.
    No two formats of the table match the same text.
10. In a format that is `grouped` all rows of a session stand together, each behind those that it
    waits for, and `at_ns` counts from the session's first row. Sessions are told apart by
    `session`, which is never used twice in a file; the replayer decides when each begins.
11. Ids of a file are text of any kind, and only names: they are kept as they are (no path, no
    command is ever made of them), but one longer than `MAX_ID_CHARS` makes its row bad.
12. The rows of a `document` have as `line` the number of their item, from 1. A document that is
    not whole (its text ends before it does, or goes on behind its end) is a
    `BrokenDocumentError`, whatever its items are.
"""

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from operator import itemgetter
from typing import Protocol, TypeVar, runtime_checkable

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.tokens import Chars, Tokens

T = TypeVar("T")

MAX_TOKENS = 10_000_000
MAX_ID_CHARS = 1000
MAX_TIME_NS = 2**63 - 1  # a time fits a signed 64-bit integer, about 292 years

# Around a line: its end, and the byte order mark, also one in the middle of joined files.
_AROUND = " \t\r\n\ufeff"
# Digits are limited, so that no text can make a conversion slow or overflow.
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?")
_SHOWN_CHARS = 60


class Note(StrEnum):
    """What is worth counting about a row that is not bad."""

    FAILED = "failed"  # left out: the trace says that this request failed
    BACKWARD = "backward"  # kept, at the previous row's time
    DUPLICATE = "duplicate"  # kept, under a name of its own: the file has used this id before
    ORPHAN = "orphan"  # kept, waiting for nobody: what it follows is not there, or too far back
    EMPTY = "empty"  # a session of which no row is left
    UNANSWERED = "unanswered"  # left out: the last that a person said, which nobody answered
    TOO_LONG = "too_long"  # left out: a turn behind the context that a session may have
    CUT = "cut"  # kept, with as many output tokens as an answer may have
    NO_BLOCKS = "no_blocks"  # left out: a request without prefix information, which others have
    LEFT_OUT = "left_out"  # left out: a trim, an eviction or the like, no access of its own


class TimeUnit(StrEnum):
    """What a number that is a time counts."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"

    @property
    def ns(self) -> int:
        return _UNIT_NS[self.value]


_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


Bad = Callable[[int, str], None]
Noted = Callable[[int, Note], None]


def ignore(line: int, note: Note) -> None:
    """For a caller who counts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What whoever reads a trace decides: what counts tokens, how long a context and an answer may
    be, and how many sessions of a grouped format are read (0 = all)."""

    tokens: Tokens = field(default_factory=Chars)
    max_context_tokens: int = MAX_TOKENS
    max_generation_tokens: int = MAX_TOKENS
    max_sessions: int = 0


class TraceFormat(Protocol):
    @property
    def name(self) -> str:
        """The word in options and results; its key in the table."""

    @property
    def description(self) -> str:
        """One line: whose format, what a row holds, in which units."""

    @property
    def document(self) -> bool:
        """`rows` is given (line at which it begins, part of the text), not whole lines."""

    @property
    def timed(self) -> bool:
        """Rows have instants. Without, they are sent as fast as they are served."""

    @property
    def grouped(self) -> bool:
        """See law 10."""

    def matches(self, head: str) -> bool:
        """Whether a file that begins with `head` (its first 64 KiB of text) is of this format."""

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        """The good rows of one file; `lines` are (number from 1, text). See the laws."""


@runtime_checkable
class TextFormat(TraceFormat, Protocol):
    """A format of texts, whose tokens have to be counted."""

    def configured(self, reading: Reading) -> TraceFormat:
        """The same format, read so."""


@runtime_checkable
class UnitFormat(TraceFormat, Protocol):
    """A format whose times are bare numbers, which a file may count in another unit than others."""

    @property
    def time_unit(self) -> TimeUnit:
        """That of the format, as its authors write it, or of this reading."""

    def in_unit(self, unit: TimeUnit) -> TraceFormat:
        """The same format, its times read in `unit`."""


class RowError(ValueError):
    """One line is not a row; the text says what was expected and what was found."""


class WrongHeaderError(TraceError):
    """The columns that a format reads are not there; the text names line and columns."""


class BrokenDocumentError(TraceError):
    """A document that is not whole; the text names the place."""


class Seen:
    """Which ids there were, in 8 bytes each: of a million, two are taken for one with a chance of
    3 in 10^8."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: set[int] = set()

    def before(self, text: str) -> bool:
        """Whether it was there before; now it is."""
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        known = digest in self._digests
        self._digests.add(digest)
        return known


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


def parsed(
    lines: Iterable[tuple[int, str]], parse: Callable[[str], T], bad: Bad
) -> Iterator[tuple[int, T]]:
    """`parse` of each line that is not blank; a line that it refuses goes to `bad`."""
    for line, text in lines:
        text = text.strip(_AROUND)
        if not text:
            continue
        try:
            value = parse(text)
        except RowError as problem:
            bad(line, str(problem))
            continue
        yield line, value


def shown(value: object) -> str:
    """`value` for a message, cut to a readable length."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]!r}..."
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def identifier(name: str, value: object) -> str:
    """An id from JSON: text, or a whole number as the text that it is written with (law 11)."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError(f"{name}: expected text or a whole number, found {shown(value)}")
    text = str(value)
    if len(text) > MAX_ID_CHARS:
        raise RowError(
            f"{name}: expected at most {MAX_ID_CHARS} characters, found {len(text)}: {shown(text)}"
        )
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise RowError(f"{name}: expected text, found half a surrogate pair in {shown(text)}")
    return text


# --- numbers ---


def exact_number(text: str) -> Decimal:
    """The number that a decimal text states, without a binary rounding.

    Raises `ValueError` for anything else: words, NaN, infinities, thousands separators.
    """
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"expected a number, found {shown(text)}")
    return Decimal(text)


def tokens(name: str, value: object, at_least: int) -> int:
    """A token count from a number of JSON or from a CSV cell. `472.0` is a whole number."""
    if type(value) is str and len(value) <= 8 and value.isdigit() and value.isascii():
        count = int(value)
        if at_least <= count <= MAX_TOKENS:
            return count
    number = _number(value)
    if number is not None and at_least <= number <= MAX_TOKENS and number == int(number):
        return int(number)
    raise RowError(
        f"{name}: expected a whole number from {at_least} to {MAX_TOKENS}, found {shown(value)}"
    )


def stated_in(name: str, value: object, unit: TimeUnit) -> int:
    """A time in ns from a number of JSON or a CSV cell, in a unit that a file may have its own of.
    Raises RowError."""
    word = "seconds" if unit is TimeUnit.S else unit.value
    try:
        return stated_ns(name, value, unit.ns, word)
    except RowError as problem:
        if (_number(value) or 0) <= 0:
            raise
        raise RowError(f"{problem}; --trace-time-unit reads another unit") from None


def stated_ns(name: str, value: object, unit_ns: int, unit: str) -> int:
    """A time in ns from a number of JSON or a CSV cell in units of `unit_ns`."""
    if type(value) is str and len(value) <= 9 and value.isdigit() and value.isascii():
        return int(value) * unit_ns
    number = _number(value)
    # The bound comes first: 28 digits then hold every ns, and no exponent is written out.
    if number is not None and 0 <= number <= MAX_TIME_NS // unit_ns:
        return int(number * unit_ns)
    raise RowError(
        f"{name}: expected a time in {unit} from 0 to {MAX_TIME_NS // unit_ns}, "
        f"found {shown(value)}"
    )


def _number(value: object) -> int | Decimal | None:
    if isinstance(value, str):
        try:
            return exact_number(value.strip())
        except ValueError:
            return None
    # A JSON true is a Python int: not a number here.
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    return None


# --- tables with a header ---


@dataclass(frozen=True, slots=True)
class Columns:
    """Which fields of a CSV line are read: by the header's names, not by position."""

    names: tuple[str, ...]
    width: int
    pick: Callable[[Sequence[str]], tuple[str, ...]]

    def cells(self, text: str) -> tuple[str, ...]:
        """The fields of one line in the order of `names`; '' for an optional absent column."""
        fields = split(text)
        if len(fields) != self.width:
            raise RowError(
                f"expected {self.width} fields as in the header, found {len(fields)} in "
                f"{shown(text)}"
            )
        fields.append("")
        return self.pick(fields)


def split(text: str) -> list[str]:
    """The fields of one CSV line.

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
    return [name.strip() for name in split(text.strip(_AROUND))]


def read_columns(
    lines: Iterator[tuple[int, str]], required: Sequence[str], optional: Sequence[str] = ()
) -> Columns | None:
    """Takes the header, the first line that is not blank; None where there is no line at all.

    Raises `WrongHeaderError` naming the columns that are missing or there twice.
    """
    for line, text in lines:
        if text.strip(_AROUND):
            return _columns(line, text, required, optional)
    return None


def _columns(line: int, text: str, required: Sequence[str], optional: Sequence[str]) -> Columns:
    try:
        found = header_names(text)
    except RowError as problem:
        raise WrongHeaderError(f"line {line} is not a header: {problem}") from None
    missing = [name for name in required if name not in found]
    if missing:
        raise WrongHeaderError(
            f"line {line} is not the header: missing {_quoted(missing)}, found "
            f"{shown(text.strip(_AROUND))}"
        )
    names = (*required, *optional)
    twice = [name for name in names if found.count(name) > 1]
    if twice:
        raise WrongHeaderError(f"line {line}: {_quoted(twice)} stands there more than once")
    # An absent optional column is read from the empty field behind the last.
    places = [found.index(name) if name in found else len(found) for name in names]
    return Columns(names, len(found), itemgetter(*places))


def _quoted(names: Sequence[str]) -> str:
    kind = "column" if len(names) == 1 else "columns"
    return f"{kind} {', '.join(repr(name) for name in names)}"


def head_has_columns(head: str, required: Sequence[str]) -> bool:
    """Whether the first line of `head` that is not blank names all of `required`."""
    first = next((text for text in head.splitlines() if text.strip(_AROUND)), "")
    try:
        return set(required) <= set(header_names(first))
    except RowError:
        return False
