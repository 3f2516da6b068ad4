"""The text that blkparse(1) prints by default.

A line is `DEVICE CPU SEQUENCE SECONDS.NANOSECONDS PID ACTION RWBS SECTOR + SECTORS [COMMAND]`. One
I/O has a line for each of its stages. Rule: read is the action `Q`, what was asked of the device
before merging (as fio's own replay of block traces does); the other stages, messages and the
summary are no rows and are passed over. `R` in RWBS is a read, `W` a write; `D` is a discard. A
sector is 512 bytes. What an extent is: `io_accesses`.
"""

import re
from collections.abc import Iterator

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.io_accesses import MAX_OFFSET, access, extent_access
from kv_cache.workload.formats.line_formats import AROUND, Line, LineFormat, LineReader
from kv_cache.workload.formats.values import digits, misfit, object_bytes

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


class Blkparse(LineFormat):
    name = "blkparse"
    description = (
        "blkparse's default text: device, CPU, sequence, time (s), PID, action, RWBS, sector + "
        "sectors; the queued I/Os (action Q)"
    )

    def matches(self, head: str) -> bool:
        texts = (text.strip(AROUND) for text in head.splitlines())
        first = next((text for text in texts if text and not _FRAME.match(text)), "")
        return _EVENT.fullmatch(first) is not None

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader:
        return _queued


def _queued(text: str) -> Line:
    """Return the I/O that a line says was queued; nothing for another event or the summary."""
    event = _EVENT.fullmatch(text)
    if event is None:
        if _FRAME.match(text):
            return ()
        raise misfit("an event like '8,0 3 1 0.000000000 697 Q R 223490 + 8 [cat]'", text)
    if event["action"] != _QUEUED:
        return ()
    at_ns = int(event["s"]) * NS_PER_S + int(event["ns"])
    where = _EXTENT.fullmatch(event["what"] or "")
    if where is None:  # a flush, or a command with a payload
        return access(at_ns, event["device"], 0, None)
    offset = digits("sector", where[1], MAX_OFFSET // _SECTOR_BYTES) * _SECTOR_BYTES
    nbytes = object_bytes("sectors", where[2], _SECTOR_BYTES)
    return extent_access(at_ns, event["device"], offset, nbytes, _reads(event["rwbs"]))


def _reads(rwbs: str) -> bool | None:
    if "D" in rwbs:
        return None
    return "R" in rwbs if "R" in rwbs or "W" in rwbs else None
