"""SplitwiseSim's traces: a CSV of arrivals and token counts, read by the columns' names.

The simulator's generator writes `request_id,request_type,application_id,arrival_timestamp,
batch_size,prompt_size,token_size`; the arrival (seconds from the trace's start), the two token
counts and the id are read. There is no session and no prefix information. Source:
generate_trace.py of Mutinifni/splitwise-sim.
"""

from collections.abc import Callable
from functools import partial

from kv_cache.workload.formats.base import TimeUnit
from kv_cache.workload.formats.line_formats import BareTimes, CsvFormat, Line
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import identifier, time_of_unit_ns, tokens


class Splitwise(BareTimes, CsvFormat):
    WRITTEN_IN = TimeUnit.S
    name = "splitwise"
    columns = ("arrival_timestamp", "prompt_size", "token_size")
    optional_columns = ("request_id",)
    description = "SplitwiseSim CSV: arrival_timestamp (s), prompt_size, token_size (tokens)"

    def cell_reader(self) -> Callable[..., Line]:
        return partial(_row, self.time_unit)


def _row(unit: TimeUnit, time: str, prompt: str, output: str, name: str) -> Line:
    return (
        TraceRow(
            0,
            time_of_unit_ns("arrival_timestamp", time, unit),
            tokens("prompt_size", prompt, 1),
            tokens("token_size", output, 0),
            request_id=identifier("request_id", name.strip()) or None,
        ),
    )
