"""A request a line in five columns: `id arrival_ms prompt_tokens gen_tokens streaming`.

The columns are separated by spaces or tabs; lines that begin with `#`, such as a header, are passed
over. `streaming` is 0 or 1 and not read: nothing is reused and nothing waits. Source:
the trace reader of a public cluster simulator in C++.
"""

from collections.abc import Iterator
from functools import partial

from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.line_formats import AROUND, BareTimes, Line, LineFormat, LineReader
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import identifier, misfit, time_of_unit_ns, tokens

_COMMENT = "#"


class FiveColumns(BareTimes, LineFormat):
    WRITTEN_IN = TimeUnit.MS
    name = "five-columns"
    description = (
        "lines of id, arrival (ms), prompt tokens, generated tokens, streaming (0 or 1), "
        "separated by spaces; lines with # in front are passed over"
    )

    def matches(self, head: str) -> bool:
        lines = (line.strip(AROUND) for line in head.splitlines())
        first = next((line for line in lines if line and not line.startswith(_COMMENT)), "")
        try:
            return bool(_row(TimeUnit.MS, first))
        except RowError:
            return False

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader:
        return partial(_row, self.time_unit)


def _row(unit: TimeUnit, text: str) -> Line:
    if text.startswith(_COMMENT):
        return ()
    fields = text.split()
    if len(fields) != 5:
        raise misfit("ID ARRIVAL PROMPT GENERATED STREAMING", text)
    name, time, prompt, output, streaming = fields
    if streaming not in ("0", "1"):
        raise misfit("0 or 1", streaming, "streaming")
    return (
        TraceRow(
            0,
            time_of_unit_ns("arrival", time, unit),
            tokens("prompt", prompt, 1),
            tokens("generated", output, 0),
            request_id=identifier("id", name),
        ),
    )
