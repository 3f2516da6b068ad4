"""The MSR Cambridge block I/O traces (SNIA IOTTA 388).

A CSV `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, published without that header;
with it the first line is passed over. `Timestamp` is a Windows filetime (100 ns since 1601), `Type`
is Read or Write, offset and size are bytes. The device is `HOST.DISK`. The response time is not
read. What an extent is: `io_accesses`.
"""

from collections.abc import Iterator

from kv_cache.workload.formats.base import MAX_TIME_NS, RowError
from kv_cache.workload.formats.io_accesses import MAX_OFFSET, extent_access
from kv_cache.workload.formats.line_formats import Line, LineFormat, LineReader, first_text, split
from kv_cache.workload.formats.values import digits, misfit, object_bytes, shown

COLUMNS = ("Timestamp", "Hostname", "DiskNumber", "Type", "Offset", "Size", "ResponseTime")

_FILETIME_NS = 100
_FILETIME_1970 = 116_444_736_000_000_000
_MAX_FILETIME = _FILETIME_1970 + MAX_TIME_NS // _FILETIME_NS
_READS = {"read": True, "write": False}


class Msr(LineFormat):
    name = "msr"
    description = (
        "MSR Cambridge block I/O CSV: Timestamp (Windows filetime, 100 ns), Hostname, DiskNumber, "
        "Type, Offset, Size (bytes), ResponseTime"
    )

    def matches(self, head: str) -> bool:
        first = first_text(head)
        try:
            if not _is_header(first):
                _row(first)
        except RowError:
            return False
        return True

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader:
        first = True

        def read(text: str) -> Line:
            nonlocal first
            is_header, first = first and _is_header(text), False
            return () if is_header else _row(text)

        return read


def _is_header(text: str) -> bool:
    return tuple(name.strip() for name in text.split(",")) == COLUMNS


def _row(text: str) -> Line:
    fields = split(text)
    if len(fields) != len(COLUMNS):
        raise RowError(f"expected {len(COLUMNS)} fields, found {len(fields)} in {shown(text)}")
    time, host, disk, kind, offset, size, _ = fields
    device = f"{host.strip()}.{digits('DiskNumber', disk, 10**6)}"
    return extent_access(
        _filetime_ns(time),
        device,
        digits("Offset", offset, MAX_OFFSET),
        object_bytes("Size", size),
        _reads(kind),
    )


def _filetime_ns(text: str) -> int:
    """Return ns since 1970 of a Windows filetime; the bounds are what fits `MAX_TIME_NS`."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 20:
        filetime = int(text)
        if _FILETIME_1970 <= filetime <= _MAX_FILETIME:
            return (filetime - _FILETIME_1970) * _FILETIME_NS
    wanted = f"a Windows filetime from {_FILETIME_1970} (1970) to {_MAX_FILETIME}"
    raise misfit(wanted, text, "Timestamp")


def _reads(kind: str) -> bool | None:
    word = kind.strip()
    if not word.isalpha():
        raise misfit("Read or Write", kind, "Type")
    return _READS.get(word.lower())
