"""What the I/O traces share: one operation on one object is one row.

Block-level traces know no objects, only extents. Rule: one object is one (device or file, offset,
size), named `DEVICE:OFFSET:SIZE`; two extents that overlap are two objects. An operation that is
neither a read nor a write (trim, flush, sync), or moves 0 bytes, is left out and counted.
"""

from kv_cache.workload.formats.base import Note
from kv_cache.workload.formats.line_formats import Line
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import text

MAX_OFFSET = 2**63 - 1


def access(at_ns: int, key: str, nbytes: int, reads: bool | None) -> Line:
    """Return the row of an operation; `reads` is None if it is neither a read nor a write."""
    if reads is None or not nbytes:
        return Note.LEFT_OUT
    return (TraceRow(0, at_ns, 1, 0, (key,), nbytes=nbytes, reads=reads),)


def extent_access(at_ns: int, device: str, offset: int, nbytes: int, reads: bool | None) -> Line:
    """Return the row of an operation on an extent of `device`."""
    return access(at_ns, text("device", f"{device}:{offset}:{nbytes}"), nbytes, reads)
