"""The row that every trace format is read into."""

from typing import NamedTuple

from kv_cache.core.request import Request


class TraceRow(NamedTuple):
    """One request of a trace.

    `at_ns` counts from the trace's first row and never decreases (in a format that is `grouped`:
    from its session's first row); 0 throughout where the format has no times.

    What is reused: `hash_ids` (with their `block_tokens`, and a `scope` where the same id means
    another content in another scope) only where the trace has prefix information. Rows without
    belong to a `session` or stand alone. `adds`: `prompt_tokens` are only what this row adds to
    its session's history; otherwise they are the whole prompt, history included.

    When it is sent: not before the rows named in `after` are answered, and `think_ns` after the
    last of these answers where the trace says so. A row of a session without `after` waits for
    the session's row before it. `name` is what later rows call this one.

    `nbytes` is the size of the one object that a row of an I/O trace moves, `reads` whether it
    was read; such a row has one hash id. `request` is that of a recorded run, to be sent again as
    it is. `request_id` is what the file calls the row where no other row names it: for logs.
    """

    line: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int | str, ...] | None = None
    block_tokens: int = 0
    session: str | None = None
    name: str | None = None
    after: tuple[str, ...] = ()
    think_ns: int | None = None
    adds: bool = False
    scope: str = ""
    model: str | None = None
    nbytes: int = 0
    reads: bool = False
    request: Request | None = None
    request_id: str | None = None

    def placed(self, line: int, at_ns: int) -> "TraceRow":
        """Return the row as that of `line`, at `at_ns`."""
        return TraceRow._make((line, at_ns, *self[2:]))
