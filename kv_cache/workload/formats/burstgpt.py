"""BurstGPT: a CSV of conversations and API calls, read by the columns' names.

The header of the first two releases is `Timestamp,Model,Request tokens,Response tokens,
Total tokens,Log Type`; the third has `Session ID,Elapsed time` after the timestamp. Times are
seconds from the first day's 0:00, whole or with a fraction. Source: the dataset's README
(HPMLL/BurstGPT), which says of the third release: rows with the same `Session ID` are one
conversation, rows of the API have none, and `Elapsed time` is from submission to response, in s.

Rule for failed requests: a row with 0 response tokens (a few in a hundred) is a request that the
service did not answer. It is left out and counted, whatever its prompt; it is not a bad row. With
`with_failed` it is a row without an answer, unless it has no prompt either.

Rule for history: `Request tokens` are the whole prompt, history included (`adds` is false). The
README does not say so; the rows do: 906 + 446 tokens are followed by a prompt of 1631, then 15 +
118 by 147, 147 + 125 by 291, 12 + 87 by 151. A follow-up whose prompt is shorter than what was said
before it is one whose context the service had cut.

Rule for think time: where a session's row says how long its answer took, the next one's think time
is its timestamp less that instant, and 0 where the two overlap. It is not known for a session that
was silent for the last `ids.KEPT` rows with a session, nor where the column holds no number.
"""

from collections.abc import Callable

from kv_cache.workload.formats.base import Note, RowError, TimeUnit
from kv_cache.workload.formats.ids import Recent
from kv_cache.workload.formats.line_formats import BareTimes, CsvFormat, Line
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import text, time_of_unit_ns, tokens


class BurstGpt(BareTimes, CsvFormat):
    WRITTEN_IN = TimeUnit.S
    name = "burstgpt"
    columns = ("Timestamp", "Request tokens", "Response tokens")
    optional_columns = ("Session ID", "Elapsed time", "Model")
    description = (
        "BurstGPT CSV: Timestamp (s), Request tokens, Response tokens, optional Session ID, "
        "Elapsed time (s), Model; rows with 0 response tokens are failed requests and are left out"
    )

    def __init__(self, time_unit: TimeUnit | None = None, *, failed: bool = False) -> None:
        super().__init__(time_unit)
        self._failed = failed

    def in_unit(self, unit: TimeUnit) -> "BurstGpt":
        return BurstGpt(unit, failed=self._failed)

    def with_failed(self) -> "BurstGpt":
        return BurstGpt(self.time_unit, failed=True)

    def cell_reader(self) -> Callable[..., Line]:
        return _Conversations(self.time_unit, failed=self._failed).row


class _Conversations:
    """Rows of one file, with when each conversation was answered last."""

    def __init__(self, unit: TimeUnit, *, failed: bool) -> None:
        self._unit = unit
        self._failed = failed
        self._answered: Recent[int | None] = Recent()

    def row(
        self, time: str, prompt: str, response: str, session_id: str, elapsed: str, model: str
    ) -> Line:
        time_ns = time_of_unit_ns("Timestamp", time, self._unit)
        output = tokens("Response tokens", response, 0)
        # A request that failed may have no prompt either.
        prompt_tokens = tokens("Request tokens", prompt, min(output, 1))
        session = text("Session ID", session_id.strip()) or None
        model_name = text("Model", model.strip()) or None
        if output == 0 and not (self._failed and prompt_tokens):
            return Note.FAILED
        think_ns = None if session is None else self._think_ns(session, time_ns, elapsed)
        return (
            TraceRow(
                0,
                time_ns,
                prompt_tokens,
                output,
                session=session,
                think_ns=think_ns,
                model=model_name,
            ),
        )

    def _think_ns(self, session: str, time_ns: int, elapsed: str) -> int | None:
        """Return how long the session's user thought before this row; None if not known."""
        answered_ns = self._answered.get(session)
        self._answered.put(session, self._answered_ns(time_ns, elapsed))
        return None if answered_ns is None else max(0, time_ns - answered_ns)

    def _answered_ns(self, time_ns: int, elapsed: str) -> int | None:
        try:
            return time_ns + time_of_unit_ns("Elapsed time", elapsed, self._unit)
        except RowError:
            return None
