"""fio's iolog, version 2 or 3 (fio(1), section "Trace file format").

Behind the line `fio version 2 iolog` come lines `FILE ACTION` (add, open, close: no row) and
`FILE ACTION OFFSET LENGTH` (read, write, sync, datasync, trim, wait). Version 3 has a time in front
of each line, in microseconds from the run's beginning, and no wait. Version 2 has no times: its
waits (in `OFFSET`, microseconds; shorter ones than 100 are none) are the next row's think time. A
file's name holds no space. What an extent is: `io_accesses`.
"""

from collections.abc import Iterator

from kv_cache.core.units import NS_PER_US
from kv_cache.workload.formats.base import MAX_TIME_NS, Note, RowError, TimeUnit
from kv_cache.workload.formats.io_accesses import MAX_OFFSET, extent_access
from kv_cache.workload.formats.line_formats import (
    Line,
    LineFormat,
    LineReader,
    first_text,
    take_header,
)
from kv_cache.workload.formats.values import digits, misfit, object_bytes, shown, time_ns

_READS = {"read": True, "write": False, "sync": None, "datasync": None, "trim": None}
_FILE_ACTIONS = ("add", "open", "close")
_SHORTEST_WAIT_NS = 100 * NS_PER_US


class FioLog(LineFormat):
    def __init__(self, version: int) -> None:
        self.name = f"fio-iolog{version}"
        self.timed = version == 3
        self._header = f"fio version {version} iolog"
        time = "time (us), " if self.timed else ""
        self.description = (
            f"fio's iolog, version {version}: behind the line '{self._header}' lines of {time}"
            "file, action, offset, length (bytes)"
        )

    def matches(self, head: str) -> bool:
        return first_text(head) == self._header

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader | None:
        if take_header(lines, self._check_header) is None:
            return None
        return _timed if self.timed else _Untimed().row

    def _check_header(self, text: str) -> str:
        if text != self._header:
            raise misfit(repr(self._header), text)
        return text


def _timed(text: str) -> Line:
    fields = text.split()
    if len(fields) not in (3, 5):
        raise misfit("TIME FILE ACTION, or TIME FILE ACTION OFFSET LENGTH", text)
    return _row(time_ns("time", fields[0], TimeUnit.US), fields[1:], text)


class _Untimed:
    """The rows of one file without times, each with the wait before it."""

    def __init__(self) -> None:
        self._wait_ns = 0

    def row(self, text: str) -> Line:
        fields = text.split()
        if len(fields) not in (2, 4):
            raise misfit("FILE ACTION, or FILE ACTION OFFSET LENGTH", text)
        if fields[1] == "wait" and len(fields) == 4:
            wait_ns = time_ns("wait", fields[2], TimeUnit.US)
            digits("length", fields[3], MAX_OFFSET)
            self._wait_ns += wait_ns if wait_ns >= _SHORTEST_WAIT_NS else 0
            return ()
        line = _row(0, fields, text)
        if isinstance(line, Note) or not line or not self._wait_ns:
            return line
        think_ns, self._wait_ns = min(self._wait_ns, MAX_TIME_NS), 0
        return (line[0]._replace(think_ns=think_ns),)


def _row(at_ns: int, fields: list[str], text: str) -> Line:
    file, action, *where = fields
    if not where and action in _FILE_ACTIONS:
        return ()
    if not where or action not in _READS:
        words = ", ".join(_READS if where else _FILE_ACTIONS)
        raise RowError(f"expected an action ({words}), found {shown(action)} in {shown(text)}")
    offset, nbytes = digits("offset", where[0], MAX_OFFSET), object_bytes("length", where[1])
    return extent_access(at_ns, file, offset, nbytes, _READS[action])
