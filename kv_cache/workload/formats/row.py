"""The row that every trace format is read into."""

from typing import NamedTuple


class TraceRow(NamedTuple):
    """One request of a trace. `at_ns` is relative to the trace's first row and never decreases
    below 0; `hash_ids` (with their `block_tokens`) only where the trace has prefix information."""

    line: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None = None
    block_tokens: int = 0
    session: str | None = None
