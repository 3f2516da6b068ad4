"""BurstGPT: a CSV of conversations and API calls, read by the columns' names.

The header is `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`; the third
release has `Session ID,Elapsed time` after the timestamp. Times are seconds from the trace's
start, whole or with a fraction. Only the time, the two token counts and the session are read.

Rule for failed requests: a row with 0 response tokens (a few in a hundred) is a request that the
service did not answer. It is left out and counted, whatever its prompt; it is not a bad row.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.base import (
    Bad,
    Columns,
    Note,
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

REQUIRED = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Session ID",)

_Row = tuple[int, int, int, str | None]


class BurstGpt:
    name = "burstgpt"
    description = (
        "BurstGPT CSV: Timestamp (s), Request tokens, Response tokens, optional Session ID; "
        "rows with 0 response tokens are failed requests and are left out"
    )

    def matches(self, head: str) -> bool:
        return head_has_columns(head, REQUIRED)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        columns = read_columns(lines, REQUIRED, OPTIONAL)
        if columns is None:
            return
        clock = RowClock(note)
        for line, (time_ns, prompt, output, session) in parsed(lines, partial(_row, columns), bad):
            if output == 0:
                note(line, Note.FAILED)
                continue
            at_ns = clock.at(line, time_ns)
            yield TraceRow(line, at_ns, prompt, output, None, 0, session)


def _row(columns: Columns, text: str) -> _Row:
    time, prompt, response, session = columns.cells(text)
    time_ns = stated_ns("Timestamp", time, NS_PER_S, "seconds")
    output = tokens("Response tokens", response, 0)
    # A request that failed may have no prompt either.
    return (
        time_ns,
        tokens("Request tokens", prompt, min(output, 1)),
        output,
        session.strip() or None,
    )
