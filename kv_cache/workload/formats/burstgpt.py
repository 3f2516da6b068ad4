"""BurstGPT: a CSV of conversations and API calls, read by the columns' names.

The header of the first two releases is `Timestamp,Model,Request tokens,Response tokens,
Total tokens,Log Type`; the third has `Session ID,Elapsed time` after the timestamp. Times are
seconds from the first day's 0:00, whole or with a fraction. Source: the dataset's README
(HPMLL/BurstGPT), which says of the third release: rows with the same `Session ID` are one
conversation, rows of the API have none, and `Elapsed time` is from submission to response, in s.

Rule for failed requests: a row with 0 response tokens (a few in a hundred) is a request that the
service did not answer. It is left out and counted, whatever its prompt; it is not a bad row.

Rule for history: `Request tokens` are the whole prompt, history included (`adds` is false). The
README does not say so; the rows do: 906 + 446 tokens are followed by a prompt of 1631, then 15 +
118 by 147, 147 + 125 by 291, 12 + 87 by 151. A follow-up whose prompt is shorter than what was said
before it is one whose context the service had cut.

Rule for think time: where a session's row says how long its answer took, the next one's think time
is its timestamp less that instant, and 0 where the two overlap. It is not known for a session that
was silent for the last `names.KEPT` rows with a session, nor where the column holds no number.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kv_cache.workload.formats.base import (
    Bad,
    Columns,
    Note,
    Noted,
    RowClock,
    RowError,
    TimeUnit,
    head_has_columns,
    ignore,
    parsed,
    read_columns,
    stated_in,
    tokens,
)
from kv_cache.workload.formats.names import Recent, ident
from kv_cache.workload.formats.row import TraceRow

REQUIRED = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Session ID", "Elapsed time", "Model")


class _Row(NamedTuple):
    time_ns: int
    prompt: int
    output: int
    session: str | None
    elapsed_ns: int | None
    model: str | None


@dataclass(frozen=True, slots=True)
class BurstGpt:
    time_unit: TimeUnit = TimeUnit.S
    name = "burstgpt"
    document = False
    timed = True
    grouped = False
    description = (
        "BurstGPT CSV: Timestamp (s), Request tokens, Response tokens, optional Session ID, "
        "Elapsed time (s), Model; rows with 0 response tokens are failed requests and are left out"
    )

    def in_unit(self, unit: TimeUnit) -> "BurstGpt":
        return BurstGpt(unit)

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
        answers = _Answers()
        for line, row in parsed(lines, partial(_row, columns, self.time_unit), bad):
            if row.output == 0:
                note(line, Note.FAILED)
                continue
            at_ns = clock.at(line, row.time_ns)
            yield TraceRow(
                line,
                at_ns,
                row.prompt,
                row.output,
                session=row.session,
                think_ns=answers.think_ns(row),
                model=row.model,
            )


class _Answers:
    """When each session was answered last."""

    def __init__(self) -> None:
        self._ended: Recent[int | None] = Recent()

    def think_ns(self, row: _Row) -> int | None:
        """How long the session's user thought before this row; None where nobody knows."""
        if row.session is None:
            return None
        before = self._ended.get(row.session)
        ended = None if row.elapsed_ns is None else row.time_ns + row.elapsed_ns
        self._ended.put(row.session, ended)
        return None if before is None else max(0, row.time_ns - before)


def _row(columns: Columns, unit: TimeUnit, text: str) -> _Row:
    time, prompt, response, session, elapsed, model = columns.cells(text)
    time_ns = stated_in("Timestamp", time, unit)
    output = tokens("Response tokens", response, 0)
    return _Row(
        time_ns,
        # A request that failed may have no prompt either.
        tokens("Request tokens", prompt, min(output, 1)),
        output,
        ident("Session ID", session.strip()) or None,
        _elapsed_ns(elapsed, unit),
        ident("Model", model.strip()) or None,
    )


def _elapsed_ns(text: str, unit: TimeUnit) -> int | None:
    try:
        return stated_in("Elapsed time", text, unit)
    except RowError:
        return None
