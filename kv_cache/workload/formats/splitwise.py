"""SplitwiseSim's traces: a CSV of arrivals and token counts, read by the columns' names.

The simulator's generator writes `request_id,request_type,application_id,arrival_timestamp,
batch_size,prompt_size,token_size`; only the arrival (seconds from the trace's start) and the two
token counts are read. There is no session and no prefix information. Source: generate_trace.py of
Mutinifni/splitwise-sim.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.base import (
    Bad,
    Columns,
    Noted,
    RowClock,
    head_has_columns,
    ignore,
    parsed,
    read_columns,
    stated_ns,
    tokens,
)
from kv_cache.workload.formats.row import TraceRow

REQUIRED = ("arrival_timestamp", "prompt_size", "token_size")


class Splitwise:
    name = "splitwise"
    document = False
    timed = True
    grouped = False
    description = "SplitwiseSim CSV: arrival_timestamp (s), prompt_size, token_size (tokens)"

    def matches(self, head: str) -> bool:
        return head_has_columns(head, REQUIRED)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        columns = read_columns(lines, REQUIRED)
        if columns is None:
            return
        clock = RowClock(note)
        for line, (time_ns, prompt, output) in parsed(lines, partial(_row, columns), bad):
            yield TraceRow(line, clock.at(line, time_ns), prompt, output)


def _row(columns: Columns, text: str) -> tuple[int, int, int]:
    time, prompt, output = columns.cells(text)
    return (
        stated_ns("arrival_timestamp", time, NS_PER_S, "seconds"),
        tokens("prompt_size", prompt, 1),
        tokens("token_size", output, 0),
    )
