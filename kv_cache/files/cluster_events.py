"""The event log of simulations as JSON lines, and its only cost: well under 1 us an event.

A line is {"at_ms", "event", "request", "instance"}; where several runs are in one file, "run" is
first, where a trace has ids of its own, "id" stands behind the request, and an event that moves or
frees bytes has "tier", "place" and "bytes" at the end. Events are kept in one
flat list and formatted many at a time, with one `%`. Kinds are our own words and need no escaping.
The file is never longer than what `begin` and the events since have made it, and `rewind` takes
back what a run wrote that did not end.
"""

import json
from collections import Counter
from typing import BinaryIO

import numpy as np

from kv_cache.sim.cluster.outcome import EventBytes, OnEvent

LINES = ('{"at_ms":', '{"run":')
"""How lines begin."""

_TOGETHER = 1024  # more cost a quarter more: they no longer fit into the processor's cache
_LINE = '"at_ms":%d.%06d,"event":"%s","request":%d,"instance":%s}\n'
_LINE_WITH_ID = '"at_ms":%d.%06d,"event":"%s","request":%s,"instance":%s}\n'
_ENDS = ("finish", "reject", "abort")
_NS_PER_MS = 1_000_000


class EventLog:
    """Writes to `file`, which is the caller's to close; without one it counts alone."""

    def __init__(self, file: BinaryIO | None, *, several: bool) -> None:
        self._file = file
        self._several = several
        self._flat: list[int | str] = []
        self._moved: dict[int, EventBytes] = {}  # by the place of the event in the list
        self._line = ""
        self._lines = ""
        self._line_with_id = ""
        self._ids: dict[int, str] = {}
        self._kept = 0
        self.kinds: Counter[str] = Counter()

    def begin(self, run: int, ids: dict[int, str] | None = None) -> OnEvent:
        """Return the function that a run calls for each of its events. The run before has ended.
        `ids`: what a trace calls its requests, by number, before their first event; the log takes
        out those of requests that have ended."""
        assert not self._flat, "the run before was neither ended nor taken back"
        begin = f'{{"run":{run},' if self._several else "{"
        self._line, self._line_with_id = f"{begin}{_LINE}", f"{begin}{_LINE_WITH_ID}"
        self._ids = {} if ids is None else ids
        self._lines = self._line * _TOGETHER
        self._keep()
        self.kinds = Counter()
        flat, extend, flush, most = self._flat, self._flat.extend, self._flush, 4 * _TOGETHER
        bytes_of = self._moved

        def on_event(
            at_ns: int, kind: str, number: int, instance: int, moved: EventBytes | None = None, /
        ) -> None:
            if moved is not None:
                bytes_of[len(flat) // 4] = moved
            extend((at_ns, kind, number, instance))
            if len(flat) >= most:
                flush()

        return on_event

    def end(self) -> Counter[str]:
        """Keep the events of the run, and return how many of each kind it had."""
        self._flush()
        self._keep()
        return self.kinds

    def _keep(self) -> None:
        self._kept = 0 if self._file is None else self._file.tell()

    def rewind(self) -> None:
        """Take back what the unfinished run wrote."""
        self._flat.clear()
        self._moved.clear()
        if self._file is not None:
            self._file.seek(self._kept)
            self._file.truncate()

    def _flush(self) -> None:
        """Count and write what is in the list, and empty it."""
        flat = self._flat
        if flat:
            self.kinds.update(flat[1::4])  # type: ignore[arg-type]  # every fourth is a text
            if self._file is not None:
                self._file.write(self._formatted(flat))
            flat.clear()
            self._moved.clear()

    def _with_id(self, number: int | str) -> str:
        name = self._ids.get(int(number))
        return f"{number}" if name is None else f'{number},"id":{json.dumps(name)}'

    def _formatted(self, flat: list[int | str]) -> bytes:
        count = len(flat) // 4
        whole, part = np.divmod(np.array(flat[0::4], np.int64), _NS_PER_MS)
        fields: list[int | str] = [0] * (5 * count)
        fields[0::5], fields[1::5] = whole.tolist(), part.tolist()
        fields[2::5], fields[3::5], fields[4::5] = flat[1::4], flat[2::4], flat[3::4]
        for at, (tier, place, nbytes) in self._moved.items():
            fields[5 * at + 4] = (
                f'{flat[4 * at + 3]},"tier":"{tier}","place":{place},"bytes":{nbytes}'
            )
        if self._ids:
            fields[3::5] = [self._with_id(number) for number in flat[2::4]]
            for kind, number in zip(flat[1::4], flat[2::4], strict=True):
                if kind in _ENDS:
                    self._ids.pop(int(number), None)
            return (self._line_with_id * count % tuple(fields)).encode()
        lines = self._lines if count == _TOGETHER else self._line * count
        return (lines % tuple(fields)).encode()
