"""The I/O trace of the MLPerf KV cache benchmark, which `--io-trace-log` writes too.

A CSV with the header `Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase`: when (s), `Read` or
`Write`, how many bytes, of or to which tier (`Tier-0` GPU, `Tier-1` CPU, `Tier-2` storage), which
object, and why.

Rule: what the application asked for is read, each operation as one object. That is a `Read` or
`Write` in one of the phases `Prefill`, `Decode`, `Reuse` and `Both`. Every other operation and
phase (`Evict`, `Promote`, `Discard`, `Delete` and the like) is what the recorded cache did with its
own room, which the cache that replays the trace decides for itself; such rows are left out and
counted, and so are objects of 0 bytes. The tier is not read for the same reason.
"""

import re
from collections.abc import Callable

from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.io_accesses import access
from kv_cache.workload.formats.line_formats import CsvFormat, Line, head_has_columns
from kv_cache.workload.formats.values import misfit, object_bytes, text, time_ns

COLUMNS = ("Timestamp", "Operation", "Object_Size_Bytes", "Tier", "Key", "Phase")

REQUESTED = frozenset({"prefill", "decode", "reuse", "both"})
"""The phases of what the application asked for, in lower case."""

_WORD = re.compile(r"[A-Za-z][A-Za-z _-]{0,40}")
_READS = {"read": True, "write": False}


class IoTrace(CsvFormat):
    name = "iotrace"
    columns = ("Timestamp", "Operation", "Object_Size_Bytes", "Key", "Phase")
    description = (
        "I/O trace CSV of the MLPerf KV cache benchmark: Timestamp (s), Operation (Read or "
        "Write), Object_Size_Bytes, Tier, Key, Phase"
    )

    def matches(self, head: str) -> bool:
        return head_has_columns(head, COLUMNS)

    def cell_reader(self) -> Callable[..., Line]:
        return _row


def _row(time: str, operation: str, size: str, key: str, phase: str) -> Line:
    reads = _READS.get(_word("Operation", operation, "Read or Write"))
    requested = _word("Phase", phase, "a word like Prefill or Decode") in REQUESTED
    at_ns = time_ns("Timestamp", time, TimeUnit.S)
    if not key:
        raise RowError("Key: expected an object's name, found nothing")
    nbytes = object_bytes("Object_Size_Bytes", size)
    return access(at_ns, text("Key", key), nbytes, reads if requested else None)


def _word(name: str, cell: str, expected: str) -> str:
    """Return the word of a cell in lower case."""
    cell = cell.strip()
    if _WORD.fullmatch(cell) is None:
        raise misfit(expected, cell, name)
    return cell.lower()
