"""Block-level I/O traces: fio's iolog, blkparse's text, and the MSR Cambridge CSV of SNIA.

None of them knows objects, only extents. Rule for all: one object is one (device or file, offset,
size), named `DEVICE:OFFSET:SIZE`; two extents that overlap are two objects. An operation that is
neither a read nor a write (trim, flush, sync), or moves 0 bytes, is left out and counted.
"""

import re
from collections.abc import Iterable, Iterator

from kv_cache.core.units import NS_PER_S, NS_PER_US
from kv_cache.workload.formats.base import (
    MAX_TIME_NS,
    Bad,
    Note,
    Noted,
    RowClock,
    RowError,
    WrongHeaderError,
    ignore,
    parsed,
    shown,
    split,
    stated_ns,
)
from kv_cache.workload.formats.iotrace import Access, access_rows, object_bytes
from kv_cache.workload.formats.names import ident
from kv_cache.workload.formats.row import TraceRow

MAX_OFFSET = 2**63 - 1

_AROUND = " \t\r\n\ufeff"


def extent(device: str, offset: int, size: int) -> str:
    """The name of the object that an extent is."""
    return ident("device", f"{device}:{offset}:{size}")


def whole(name: str, text: str, most: int) -> int:
    """A whole number in digits."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= most:
        return int(text)
    raise RowError(f"{name}: expected a whole number from 0 to {most}, found {shown(text)}")


def _first_text(head: str) -> str:
    return next((text.strip(_AROUND) for text in head.splitlines() if text.strip(_AROUND)), "")


# --- fio ---

_FIO_IO = {"read": True, "write": False, "sync": None, "datasync": None, "trim": None}
_FIO_FILE = ("add", "open", "close")
_SHORTEST_WAIT_US = 100


class FioLog:
    """fio's iolog, version 2 or 3 (fio(1), section "Trace file format").

    Behind the line `fio version 2 iolog` come lines `FILE ACTION` (add, open, close: no row) and
    `FILE ACTION OFFSET LENGTH` (read, write, sync, datasync, trim, wait). Version 3 has a time in
    front of each line, in microseconds from the run's beginning, and no wait. Version 2 has no
    times: its waits (in `OFFSET`, microseconds; shorter ones than 100 are none) are the next
    row's think time. A file's name holds no space.
    """

    document = False
    grouped = False

    def __init__(self, version: int) -> None:
        self.name = f"fio-iolog{version}"
        self.timed = version == 3
        self._mark = f"fio version {version} iolog"
        time = "time (us), " if self.timed else ""
        self.description = (
            f"fio's iolog, version {version}: behind the line '{self._mark}' lines of {time}file, "
            "action, offset, length (bytes)"
        )

    def matches(self, head: str) -> bool:
        return _first_text(head) == self._mark

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        if not _took_mark(lines, self._mark):
            return
        if self.timed:
            accesses = _present(parsed(lines, _fio_timed, bad))
            yield from access_rows(accesses, RowClock(note), note)
        else:
            yield from _untimed(_present(parsed(lines, _fio_untimed, bad)), note)


def _present(found: Iterable[tuple[int, Access | None]]) -> Iterator[tuple[int, Access]]:
    return ((line, access) for line, access in found if access is not None)


def _took_mark(lines: Iterator[tuple[int, str]], mark: str) -> bool:
    """Takes the first line that is not blank, which is `mark`; False where there is no line."""
    for line, text in lines:
        text = text.strip(_AROUND)
        if not text:
            continue
        if text != mark:
            raise WrongHeaderError(f"line {line} is not {mark!r}, found {shown(text)}")
        return True
    return False


def _fio_timed(text: str) -> Access | None:
    fields = text.split()
    if len(fields) not in (3, 5):
        raise RowError(
            "expected TIME FILE ACTION, or TIME FILE ACTION OFFSET LENGTH, found " + shown(text)
        )
    time_ns = stated_ns("time", fields[0], NS_PER_US, "us")
    return _fio_action(time_ns, fields[1:], text)


def _fio_untimed(text: str) -> Access | None:
    """`time_ns` of the access is a wait's length, 0 for anything else."""
    fields = text.split()
    if len(fields) not in (2, 4):
        raise RowError("expected FILE ACTION, or FILE ACTION OFFSET LENGTH, found " + shown(text))
    if fields[1] == "wait" and len(fields) == 4:
        wait_ns = stated_ns("wait", fields[2], NS_PER_US, "us")
        whole("length", fields[3], MAX_OFFSET)
        return Access(wait_ns, "", 0, True)
    return _fio_action(0, fields, text)


def _fio_action(time_ns: int, fields: list[str], text: str) -> Access | None:
    file, action, *where = fields
    if not where and action in _FIO_FILE:
        return None
    if not where or action not in _FIO_IO:
        words = ", ".join(_FIO_IO if where else _FIO_FILE)
        raise RowError(f"expected an action ({words}), found {shown(action)} in {shown(text)}")
    offset, size = whole("offset", where[0], MAX_OFFSET), object_bytes("length", where[1])
    return Access(time_ns, extent(file, offset, size), size, _FIO_IO[action])


def _untimed(logged: Iterable[tuple[int, Access]], note: Noted) -> Iterator[TraceRow]:
    wait_ns = 0
    for line, access in logged:
        if not access.key:
            waits = access.time_ns >= _SHORTEST_WAIT_US * NS_PER_US
            wait_ns += access.time_ns if waits else 0
        elif access.counts:
            yield access.row(line, 0)._replace(think_ns=min(wait_ns, MAX_TIME_NS) or None)
            wait_ns = 0
        else:
            note(line, Note.LEFT_OUT)


# --- blkparse ---

_SECTOR_BYTES = 512
_EVENT = re.compile(
    r"(?P<device>\d{1,7},\d{1,7})\s+\d+\s+\d+\s+(?P<s>\d{1,10})\.(?P<ns>\d{9})\s+\d+\s+"
    r"(?P<action>[A-Za-z]{1,2})\s+(?P<rwbs>[A-Z]{1,8})(?:\s+(?P<what>.*))?",
    re.ASCII,
)
_EXTENT = re.compile(r"(\d{1,19}) \+ (\d{1,12})(?:\s.*)?", re.ASCII)
# What blkparse prints in front of the events and, as a summary, behind them.
_FRAME = re.compile(
    r"Input file |CPU\d+ \(|Total \(|Throughput \(|Events \(|Skips: |(?:PC )?(?:Reads?|Writes?) "
    r"|IO unplugs: |Timer unplugs: "
)
_QUEUED = "Q"


class Blkparse:
    """The text that blkparse(1) prints by default.

    A line is `DEVICE CPU SEQUENCE SECONDS.NANOSECONDS PID ACTION RWBS SECTOR + SECTORS [COMMAND]`.
    One I/O has a line for each of its stages. Rule: read is the action `Q`, what was asked of the
    device before merging (as fio's own replay of block traces does); the other stages, messages
    and the summary are no rows and are passed over. `R` in RWBS is a read, `W` a write; `D` is a
    discard. A sector is 512 bytes.
    """

    name = "blkparse"
    document = False
    timed = True
    grouped = False
    description = (
        "blkparse's default text: device, CPU, sequence, time (s), PID, action, RWBS, sector + "
        "sectors; the queued I/Os (action Q)"
    )

    def matches(self, head: str) -> bool:
        texts = (text.strip(_AROUND) for text in head.splitlines())
        first = next((text for text in texts if text and not _FRAME.match(text)), "")
        return _EVENT.fullmatch(first) is not None

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        accesses = _present(parsed(lines, _queued, bad))
        yield from access_rows(accesses, RowClock(note), note)


def _queued(text: str) -> Access | None:
    """The I/O that a line says was queued; None for any other event and the summary."""
    event = _EVENT.fullmatch(text)
    if event is None:
        if _FRAME.match(text):
            return None
        raise RowError(
            "expected an event like '8,0 3 1 0.000000000 697 Q R 223490 + 8 [cat]', found "
            + shown(text)
        )
    if event["action"] != _QUEUED:
        return None
    where = _EXTENT.fullmatch(event["what"] or "")
    time_ns = int(event["s"]) * NS_PER_S + int(event["ns"])
    if where is None:  # a flush, or a command with a payload
        return Access(time_ns, event["device"], 0, None)
    offset = whole("sector", where[1], MAX_OFFSET // _SECTOR_BYTES) * _SECTOR_BYTES
    size = object_bytes("sectors", where[2], _SECTOR_BYTES)
    return Access(time_ns, extent(event["device"], offset, size), size, _direction(event["rwbs"]))


def _direction(rwbs: str) -> bool | None:
    if "D" in rwbs:
        return None
    return "R" in rwbs if "R" in rwbs or "W" in rwbs else None


# --- MSR Cambridge ---

MSR_COLUMNS = ("Timestamp", "Hostname", "DiskNumber", "Type", "Offset", "Size", "ResponseTime")

_FILETIME_NS = 100
_FILETIME_1970 = 116_444_736_000_000_000
_MOST_FILETIME = _FILETIME_1970 + MAX_TIME_NS // _FILETIME_NS
_MSR_TYPES = {"read": True, "write": False}


class Msr:
    """The MSR Cambridge block I/O traces (SNIA IOTTA 388).

    A CSV `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, published without that
    header; with it the first line is passed over. `Timestamp` is a Windows filetime (100 ns since
    1601), `Type` is Read or Write, offset and size are bytes. The device is `HOST.DISK`. The
    response time is not read.
    """

    name = "msr"
    document = False
    timed = True
    grouped = False
    description = (
        "MSR Cambridge block I/O CSV: Timestamp (Windows filetime, 100 ns), Hostname, DiskNumber, "
        "Type, Offset, Size (bytes), ResponseTime"
    )

    def matches(self, head: str) -> bool:
        first = _first_text(head)
        if _is_msr_header(first):
            return True
        try:
            _msr(first)
        except RowError:
            return False
        return True

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        yield from access_rows(parsed(_without_header(lines), _msr, bad), RowClock(note), note)


def _is_msr_header(text: str) -> bool:
    return tuple(name.strip() for name in text.split(",")) == MSR_COLUMNS


def _without_header(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    begun = False
    for line, text in lines:
        if not begun and text.strip(_AROUND):
            begun = True
            if _is_msr_header(text.strip(_AROUND)):
                continue
        yield line, text


def _msr(text: str) -> Access:
    fields = split(text)
    if len(fields) != len(MSR_COLUMNS):
        raise RowError(f"expected {len(MSR_COLUMNS)} fields, found {len(fields)} in {shown(text)}")
    time, host, disk, kind, offset_text, size_text, _ = fields
    offset, size = whole("Offset", offset_text, MAX_OFFSET), object_bytes("Size", size_text)
    device = f"{host.strip()}.{whole('DiskNumber', disk, 10**6)}"
    return Access(_filetime_ns(time), extent(device, offset, size), size, _msr_type(kind))


def _filetime_ns(text: str) -> int:
    """ns since 1970 of a Windows filetime; the bounds are what fits `MAX_TIME_NS`."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 20:
        filetime = int(text)
        if _FILETIME_1970 <= filetime <= _MOST_FILETIME:
            return (filetime - _FILETIME_1970) * _FILETIME_NS
    raise RowError(
        f"Timestamp: expected a Windows filetime from {_FILETIME_1970} (1970) to "
        f"{_MOST_FILETIME}, found {shown(text)}"
    )


def _msr_type(text: str) -> bool | None:
    word = text.strip()
    if not word.isalpha():
        raise RowError(f"Type: expected Read or Write, found {shown(text)}")
    return _MSR_TYPES.get(word.lower())
