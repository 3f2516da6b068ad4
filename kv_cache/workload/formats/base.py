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
    `at_ns` never decreases), and is given to `note` as `Note.BACKWARD`.
 5. A header without the columns that are read is a `WrongHeaderError`: there is no row to skip,
    the whole file is something else.
 6. A row that is well formed but asks for nothing that can be replayed is left out by the format's
    stated rule and given to `note` as `Note.FAILED`; it is not bad and sets no time.
 7. Token counts are whole numbers; a prompt has at least 1, and neither exceeds `MAX_TOKENS`.
 8. A byte order mark, CRLF, blank lines and a missing last line end change nothing.
 9. `matches` says from the beginning of a file's text alone whether it looks like this format.
    No two formats of the table match the same text.
10. In a format that is `grouped` all rows of a session are together, each behind those that it
    waits for, and `at_ns` counts from the session's first row. Sessions differ in
    `session`, which is never used twice in a file; the replayer decides when each begins.
11. Ids of a file are text of any kind, and only names: they are kept as they are (no path, no
    command is ever made of them), but one longer than `MAX_ID_CHARS` makes its row bad.
12. The rows of a `document` have as `line` the number of their item, from 1. A document that is
    not whole (its text ends before it does, or goes on behind its end) is a
    `BrokenDocumentError`, whatever its items are.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.tokens import Chars, Tokens

MAX_TOKENS = 10_000_000
MAX_ID_CHARS = 1000
MAX_TIME_NS = 2**63 - 1  # a time fits a signed 64-bit integer, about 292 years


class Note(StrEnum):
    """What is worth counting about a row that is not bad."""

    FAILED = "failed"  # left out: the trace says that this request failed
    BACKWARD = "backward"  # kept, at the previous row's time
    DUPLICATE = "duplicate"  # kept, under a name of its own: the file has used this id before
    ORPHAN = "orphan"  # kept, waiting for no answer: what it follows is not there, or too far back
    EMPTY = "empty"  # a session of which no row is left
    UNANSWERED = "unanswered"  # left out: the last message of a person, which has no answer
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
        return _UNIT_NS[self]


_UNIT_NS = {TimeUnit.S: 10**9, TimeUnit.MS: 10**6, TimeUnit.US: 10**3, TimeUnit.NS: 1}


Bad = Callable[[int, str], None]
Noted = Callable[[int, Note], None]


def ignore(line: int, note: Note) -> None:
    """Take a note and count nothing."""


class Reading(Struct, frozen=True, kw_only=True):
    """How a trace is read: what counts tokens, how long a context and an answer may be, and how
    many sessions of a grouped format are read (0 = all)."""

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
        """Return whether a file that begins with `head` (its first 64 KiB of text) is of this
        format."""

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        """Yield the good rows of one file; `lines` are (number from 1, text). See the laws."""


@runtime_checkable
class TextFormat(TraceFormat, Protocol):
    """A format of texts, whose tokens have to be counted."""

    def configured(self, reading: Reading) -> TraceFormat:
        """Return the same format with `reading`."""


@runtime_checkable
class UnitFormat(TraceFormat, Protocol):
    """A format whose times are bare numbers, which a file may count in another unit than others."""

    @property
    def time_unit(self) -> TimeUnit:
        """The unit that the authors of the format use, or that of this reading."""

    def in_unit(self, unit: TimeUnit) -> TraceFormat:
        """Return the same format, its times read in `unit`."""


@runtime_checkable
class BlockFormat(TraceFormat, Protocol):
    """A format of hash ids whose files do not say how many tokens an id stands for."""

    @property
    def block_tokens(self) -> int:
        """The tokens that the authors of the format use, or those of this reading."""

    def in_blocks(self, block_tokens: int) -> TraceFormat:
        """Return the same format, each of its ids standing for so many tokens."""


@runtime_checkable
class FailureFormat(TraceFormat, Protocol):
    """A format that marks requests which the service did not answer."""

    def with_failed(self) -> TraceFormat:
        """Return the same format, which yields them (with 0 output tokens) and leaves none out."""


class RowError(ValueError):
    """One line is not a row; the text says what was expected and what was found."""


class WrongHeaderError(TraceError):
    """The columns that a format reads are not there; the text names line and columns."""


class BrokenDocumentError(TraceError):
    """A document that is not whole; the text names the place."""
