"""JSON of requests by whoever wrote it: one list of objects, or an object a line.

Their keys are known by their names as the columns of a table are (`request_columns`), so that the
rows of benchmark clients without hash ids are read too. `requests-json` counts seconds;
`requests-json-ms` is for a key that says ms, and for Mooncake's keys without hash ids.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import ClassVar

from kv_cache.workload.formats.base import Bad, Noted, RowError, TimeUnit, ignore
from kv_cache.workload.formats.json_items import Cursor, items, key_paths
from kv_cache.workload.formats.jsonlines import read_object
from kv_cache.workload.formats.line_formats import BareTimes, RowClock
from kv_cache.workload.formats.request_columns import NEEDED, OPTIONAL, arrival_ns, columns_of
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import identifier, number, tokens


class RequestObjects(BareTimes):
    WRITTEN_IN = TimeUnit.S
    name: ClassVar[str] = "requests-json"
    description: ClassVar[str] = (
        "JSON list or lines of requests by the keys' names: an arrival (s, or a date and time), "
        "prompt tokens, output tokens, optional session and model"
    )
    document = True
    timed = True
    grouped = False

    def matches(self, head: str) -> bool:
        keys = [path[0] for path in key_paths(head) if len(path) == 1]
        try:
            columns = columns_of(sorted(keys))
        except RowError:
            return False
        return columns.are_of(self.WRITTEN_IN) and "hash ids" not in columns.names

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        clock = RowClock(note)
        names_of = lru_cache(maxsize=64)(self._names)
        for item, text in items(Cursor(lines)):
            try:
                fields = read_object(text)
                row = self._row(fields, names_of(tuple(fields)))
            except RowError as problem:
                bad(item, str(problem))
                continue
            yield row.placed(item, clock.at(item, row.at_ns))

    def _names(self, keys: tuple[str, ...]) -> Mapping[str, str]:
        columns = columns_of(keys)
        columns.require(self.name, self.WRITTEN_IN, self.time_unit)
        return columns.names

    def _row(self, fields: Mapping[str, object], names: Mapping[str, str]) -> TraceRow:
        arrival, prompt, output = (fields[names[role]] for role in NEEDED)
        stated = ((role, fields.get(names.get(role, ""))) for role in OPTIONAL)
        session, model, name = (
            None if value is None else identifier(role, value) or None for role, value in stated
        )
        return TraceRow(
            0,
            arrival_ns(arrival, self.time_unit),
            tokens("prompt tokens", number("prompt tokens", prompt), 1),
            tokens("output tokens", number("output tokens", output), 0),
            session=session,
            model=model,
            request_id=name,
        )


class RequestObjectsMs(RequestObjects):
    WRITTEN_IN = TimeUnit.MS
    name = "requests-json-ms"
    description = (
        "JSON list or lines of requests by the keys' names, whose arrival counts ms: arrival_ms "
        "and the like, or timestamp, input_length, output_length without hash_ids"
    )
