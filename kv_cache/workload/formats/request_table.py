"""A CSV of requests by whoever wrote it, its columns known by their names (`request_columns`).

A session, a model and an id are read where they are there; a session's prompt is the whole of it,
history included. `requests` counts seconds; `requests-ms` is for a column whose name says ms, and
for Mooncake's names without hash ids. A table that is of a format of its own is not taken for one
of these.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar

from kv_cache.workload.formats.azure import Azure
from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.burstgpt import BurstGpt
from kv_cache.workload.formats.line_formats import (
    BareTimes,
    Line,
    LineFormat,
    LineReader,
    first_text,
    head_has_columns,
    header_names,
    picked_cells,
    take_header,
)
from kv_cache.workload.formats.mooncake import MooncakeCsv
from kv_cache.workload.formats.request_columns import NEEDED, OPTIONAL, arrival_ns, columns_of
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.splitwise import Splitwise
from kv_cache.workload.formats.values import text, tokens

_OF_THEIR_OWN = (Azure, BurstGpt, Splitwise, MooncakeCsv)
_NO_COLUMN = "\n"  # no header's line has it


class RequestTable(BareTimes, LineFormat):
    WRITTEN_IN = TimeUnit.S
    name: ClassVar[str] = "requests"
    description: ClassVar[str] = (
        "CSV of requests by the columns' names: an arrival (s, or a date and time), prompt tokens, "
        "output tokens, optional session and model, such as arrival_time, prompt_tokens, "
        "output_tokens, session_id"
    )

    def matches(self, head: str) -> bool:
        if any(head_has_columns(head, of.columns) for of in _OF_THEIR_OWN):
            return False
        try:
            return columns_of(header_names(first_text(head))).are_of(self.WRITTEN_IN)
        except RowError:
            return False

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader | None:
        cells = take_header(lines, self._cells)
        return None if cells is None else lambda line: self._row(*cells(line))

    def _cells(self, header: str) -> Callable[[str], tuple[str, ...]]:
        columns = columns_of(header_names(header))
        columns.require(self.name, self.WRITTEN_IN, self.time_unit)
        wanted = [columns.names[role] for role in NEEDED]
        return picked_cells(header, wanted, [columns.names.get(r, _NO_COLUMN) for r in OPTIONAL])

    def _row(
        self, arrival: str, prompt: str, output: str, session: str, model: str, name: str
    ) -> Line:
        return (
            TraceRow(
                0,
                arrival_ns(arrival, self.time_unit),
                tokens("prompt tokens", prompt, 1),
                tokens("output tokens", output, 0),
                session=text("session", session.strip()) or None,
                model=text("model", model.strip()) or None,
                request_id=text("id", name.strip()) or None,
            ),
        )


class RequestTableMs(RequestTable):
    WRITTEN_IN = TimeUnit.MS
    name = "requests-ms"
    description = (
        "CSV of requests by the columns' names, whose arrival counts ms: arrival_ms, "
        "prompt_tokens, output_tokens and the like, or timestamp, input_length, output_length"
    )
