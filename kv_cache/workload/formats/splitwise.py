"""SplitwiseSim's traces: a CSV of arrivals and token counts, read by the columns' names.

The simulator's generator writes `request_id,request_type,application_id,arrival_timestamp,
batch_size,prompt_size,token_size`; only the arrival (seconds from the trace's start) and the two
token counts are read. There is no session and no prefix information. Source: generate_trace.py of
Mutinifni/splitwise-sim.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kv_cache.workload.formats.base import (
    Bad,
    Columns,
    Noted,
    RowClock,
    TimeUnit,
    head_has_columns,
    ignore,
    parsed,
    read_columns,
    stated_in,
    tokens,
)
from kv_cache.workload.formats.row import TraceRow

REQUIRED = ("arrival_timestamp", "prompt_size", "token_size")


@dataclass(frozen=True, slots=True)
class Splitwise:
    time_unit: TimeUnit = TimeUnit.S
    name = "splitwise"
    document = False
    timed = True
    grouped = False
    description = "SplitwiseSim CSV: arrival_timestamp (s), prompt_size, token_size (tokens)"

    def in_unit(self, unit: TimeUnit) -> "Splitwise":
        return Splitwise(unit)

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
        for line, (time_ns, prompt, output) in parsed(
            lines, partial(_row, columns, self.time_unit), bad
        ):
            yield TraceRow(line, clock.at(line, time_ns), prompt, output)


def _row(columns: Columns, unit: TimeUnit, text: str) -> tuple[int, int, int]:
    time, prompt, output = columns.cells(text)
    return (
        stated_in("arrival_timestamp", time, unit),
        tokens("prompt_size", prompt, 1),
        tokens("token_size", output, 0),
    )
