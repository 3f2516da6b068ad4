"""The I/O trace of the MLPerf KV cache benchmark, which `--io-trace-log` writes too.

A CSV with the header `Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase`: when (s), `Read` or
`Write`, how many bytes, of or to which tier (`Tier-0` GPU, `Tier-1` CPU, `Tier-2` storage), which
object, and why.

Rule: what the application asked is read, each operation as one object. That is a `Read` or `Write`
in one of the phases `Prefill`, `Decode`, `Reuse` and `Both`. Every other operation and phase
(`Evict`, `Promote`, `Discard`, `Delete` and the like) is what the recorded cache did with its own
room, which the cache that replays the trace decides for itself; such rows are left out and counted,
and so are objects of 0 bytes. The tier is not read for the same reason.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.base import (
    Bad,
    Columns,
    Note,
    Noted,
    RowClock,
    RowError,
    exact_number,
    head_has_columns,
    ignore,
    parsed,
    read_columns,
    shown,
    stated_ns,
)
from kv_cache.workload.formats.names import ident
from kv_cache.workload.formats.row import TraceRow

COLUMNS = ("Timestamp", "Operation", "Object_Size_Bytes", "Tier", "Key", "Phase")
READ_COLUMNS = ("Timestamp", "Operation", "Object_Size_Bytes", "Key", "Phase")

ASKED = frozenset({"prefill", "decode", "reuse", "both"})
"""The phases of what the application asked, in small letters."""

MAX_OBJECT_BYTES = 1 << 50

_WORD = re.compile(r"[A-Za-z][A-Za-z _-]{0,40}")


class Access(NamedTuple):
    """One operation on one object. `reads` is None where it is none of the two."""

    time_ns: int
    key: str
    nbytes: int
    reads: bool | None

    @property
    def counts(self) -> bool:
        return self.reads is not None and self.nbytes > 0

    def row(self, line: int, at_ns: int) -> TraceRow:
        return TraceRow(line, at_ns, 1, 0, (self.key,), nbytes=self.nbytes, reads=bool(self.reads))


def access_rows(
    accesses: Iterable[tuple[int, Access]], clock: RowClock, note: Noted
) -> Iterator[TraceRow]:
    """The rows of those that count; the others are told to `note`."""
    for line, access in accesses:
        if access.counts:
            yield access.row(line, clock.at(line, access.time_ns))
        else:
            note(line, Note.LEFT_OUT)


def object_bytes(name: str, text: str, unit: int = 1) -> int:
    """A size in bytes from a text that counts units of `unit` bytes."""
    try:
        number = exact_number(text.strip())
    except ValueError:
        number = None
    if number is not None and 0 <= number <= MAX_OBJECT_BYTES // unit and number == int(number):
        return int(number) * unit
    raise RowError(
        f"{name}: expected a whole number from 0 to {MAX_OBJECT_BYTES // unit}, found {shown(text)}"
    )


class IoTrace:
    name = "iotrace"
    document = False
    timed = True
    grouped = False
    description = (
        "I/O trace CSV of the MLPerf KV cache benchmark: Timestamp (s), Operation (Read or "
        "Write), Object_Size_Bytes, Tier, Key, Phase"
    )

    def matches(self, head: str) -> bool:
        return head_has_columns(head, COLUMNS)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        columns = read_columns(lines, READ_COLUMNS)
        if columns is None:
            return
        accesses = parsed(lines, partial(_access, columns), bad)
        yield from access_rows(accesses, RowClock(note), note)


def _access(columns: Columns, text: str) -> Access:
    time, operation, size, key, phase = columns.cells(text)
    reads = _READS.get(_word("Operation", operation, "Read or Write"))
    asked = _word("Phase", phase, "a word like Prefill or Decode") in ASKED
    return Access(
        stated_ns("Timestamp", time, NS_PER_S, "seconds"),
        _key(key),
        object_bytes("Object_Size_Bytes", size),
        reads if asked else None,
    )


_READS = {"read": True, "write": False}


def _word(name: str, text: str, expected: str) -> str:
    """The word of a cell in small letters."""
    text = text.strip()
    if _WORD.fullmatch(text) is None:
        raise RowError(f"{name}: expected {expected}, found {shown(text)}")
    return text.lower()


def _key(text: str) -> str:
    if not text:
        raise RowError("Key: expected an object's name, found nothing")
    return ident("Key", text)
