"""What a trace holds, read once before it is replayed: how much, in which unit its times are, and
whether it can be used at all.

A survey is a whole walk that keeps no row. It must never change what a walk yields but for the unit
of its times, which `read` decides for formats whose times are bare numbers (`units`).
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.errors import TraceError
from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import BlockFormat, Note, UnitFormat
from kv_cache.workload.formats.block_lengths import BlockFit
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.time_units import TracePace, UnitChoice, chosen_unit
from kv_cache.workload.formats.trace_files import WAY_OUT, BadRow, Tally, Trace

MOST_BACKWARD = 0.01
"""Share of the rows that may go back in time without a warning."""
LONGEST_GAP_NS = 86_400 * NS_PER_S
"""That is no surprise: a day, as no measured window is longer (`run.duration_s`)."""
_PROGRESS_ROWS = 4096


class Survey(Struct, frozen=True, kw_only=True):
    """What one whole walk surveyed. Times in ns, sizes in tokens; `rows` are the good ones."""

    rows: int
    bad_rows: int
    first_bad: tuple[BadRow, ...]
    notes: Mapping[str, int]
    """What was counted beside good and bad rows, by the value of its `Note`."""
    sessions: int
    """Of a grouped format; else 0."""
    span_ns: int
    """Of a grouped format: of its longest session."""
    longest_gap_ns: int = 0
    """Between two rows that follow each other; of a grouped format, in a session."""
    prompt_tokens: int
    output_tokens: int
    has_hash_ids: bool
    block_tokens: int
    most_tokens: int
    """Of a row: its prompt, or its blocks, whole."""
    most_bytes: int
    """Of an object that a row names, where rows do."""
    follows: bool
    """A row may wait for the answer to another one: it is of a session, or names it."""
    unidentified_rows: int
    """Rows that name no content and no session, so that no other row can share theirs."""
    blocks_problem: str | None = None
    """Why its hash ids cannot stand for as many tokens as they were read with; None if they can."""
    taken: UnitChoice | None = None
    """The unit of its times; None if they are not bare numbers."""
    sha256: str
    """Of the files' bytes as they lie on disk, one after the other: `cat files | sha256sum`."""

    @property
    def failed_rows(self) -> int:
        return self.notes.get(Note.FAILED.value, 0)

    @property
    def backward_rows(self) -> int:
        return self.notes.get(Note.BACKWARD.value, 0)


def read(trace: Trace, progress: Callable[[int], None] | None = None) -> tuple[Trace, Survey]:
    """Return the trace as it is replayed, its times in their unit, and what it holds.

    The unit is that of the option, else what `units.chosen_unit` takes; where that is not the
    format's, the trace is walked again. Raises `TraceError` as `survey` does.
    """
    trace_format, surveyed = TRACE_FORMATS[trace.format_name], survey(trace, progress=progress)
    if not isinstance(trace_format, UnitFormat):
        return trace, surveyed
    if trace.time_unit is not None:
        taken = UnitChoice(unit=trace.time_unit, origin="option")
    else:
        tokens = surveyed.prompt_tokens + surveyed.output_tokens
        pace = TracePace(rows=surveyed.rows, tokens=tokens, span_s=surveyed.span_ns / NS_PER_S)
        taken = chosen_unit(trace_format.time_unit, pace)
        if taken.unit is not trace_format.time_unit:
            trace = replace(trace, time_unit=taken.unit)
            surveyed = survey(trace, progress=progress)
    return trace, replace(surveyed, taken=taken)


def facts(trace: Trace, surveyed: Survey) -> dict[str, Any]:
    """Return for every document which trace it was, what was read of it and what left out."""
    taken = surveyed.taken
    return {
        "files": [str(path) for path in trace.files],
        "format": trace.format_name,
        "time_unit": None if taken is None else taken.unit.value,
        "time_unit_from": None if taken is None else taken.origin,
        "time_unit_why": None if taken is None else taken.why or taken.doubt or None,
        "sha256": surveyed.sha256,
        "rows": surveyed.rows,
        "skipped_bad_rows": surveyed.bad_rows,
        "dropped_failed_rows": surveyed.failed_rows,
        "backward_rows": surveyed.backward_rows,
        "unidentified_rows": surveyed.unidentified_rows,
        "trace_block_tokens": surveyed.block_tokens,
        "sessions": surveyed.sessions if trace.format.grouped else None,
        "notes": dict(surveyed.notes),
        **trace.reading_facts(),
    }


def doubts(trace: Trace, surveyed: Survey, *, shares: bool = False) -> tuple[str, ...]:
    """Return warnings about the unit of the times, rows that are not sorted, and rows that share
    nothing, in whole sentences. `shares`: prompts are added that rows have in common."""
    warnings = []
    taken = surveyed.taken
    decides = "workload.trace_time_unit (--trace-time-unit) decides"
    if taken is not None and taken.doubt:
        warnings.append(f"the times may be in another unit: {taken.doubt}; {decides}")
    elif taken is not None and taken.why:
        warnings.append(f"its times are taken for {taken.unit}: {taken.why}; {decides}")
    if surveyed.backward_rows > MOST_BACKWARD * surveyed.rows:
        warnings.append(
            f"{surveyed.backward_rows:,} of {surveyed.rows:,} rows are earlier than one before "
            "them and are asked at its time, which changes the gaps; sort the rows by their time"
        )
    if surveyed.longest_gap_ns > LONGEST_GAP_NS:
        warnings.append(
            f"{surveyed.longest_gap_ns / LONGEST_GAP_NS:,.1f} days lie between two of its rows, "
            "which a replay waits for; a time may be missing or in another unit; --trace-window "
            "takes a part of it, and --duration ends the run"
        )
    if surveyed.unidentified_rows == surveyed.rows and not shares:
        warnings.append(
            "no row names its content (hash ids) or a session, so that nothing can be found again: "
            "0 % hits say nothing of a cache"
        )
    return tuple(
        f"workload.trace {_names(trace)} ({trace.format_name}): {warning}" for warning in warnings
    )


def refuse_doubts(trace: Trace, surveyed: Survey, *, shares: bool = False) -> None:
    """Raise `TraceError` where there is any warning about the trace."""
    warnings = doubts(trace, surveyed, shares=shares)
    if warnings:
        raise TraceError(
            f"{'; '.join(warnings)}. workload.strict_trace refuses what would be a warning: "
            "correct the trace, or leave it out"
        )


def survey(trace: Trace, progress: Callable[[int], None] | None = None) -> Survey:
    """Walk the trace and count; keeps no row.

    `progress` gets the number of good rows so far, now and then and at the end. Raises `TraceError`
    for a file that is empty, unreadable or has another header.
    """
    tally, of = Tally(), trace.format
    grouped, fit = of.grouped, BlockFit(of.block_tokens) if isinstance(of, BlockFormat) else None
    rows = prompt = output = sessions = span_ns = block_tokens = most_tokens = most_bytes = 0
    session: str | None = None
    before_ns = longest_gap_ns = 0
    follows = False
    unidentified = 0
    for row in trace.every_row(tally):
        rows += 1
        follows = follows or row.session is not None or bool(row.after)
        if row.hash_ids is None and row.session is None and row.request is None:
            unidentified += 1
        prompt += row.prompt_tokens
        output += row.output_tokens
        span_ns = max(span_ns, row.at_ns)
        if rows > 1 and (not grouped or row.session == session):
            longest_gap_ns = max(longest_gap_ns, row.at_ns - before_ns)
        before_ns = row.at_ns
        whole = row.block_tokens * len(row.hash_ids or ())
        most_tokens = max(most_tokens, row.prompt_tokens, whole)
        most_bytes = max(most_bytes, row.nbytes)
        if row.request is not None:
            most_bytes = max(most_bytes, *(block.nbytes for block in row.request.blocks), 0)
        if row.block_tokens != block_tokens and row.hash_ids is not None:
            block_tokens = _one_size(trace, block_tokens, row)
        if fit is not None:
            fit.see(row)
        if grouped and row.session != session:
            sessions, session = sessions + 1, row.session
        if progress is not None and rows % _PROGRESS_ROWS == 0:
            progress(rows)
    if progress is not None:
        progress(rows)
    return Survey(
        rows=rows,
        bad_rows=tally.bad_rows,
        first_bad=tuple(tally.first_bad),
        notes=dict(tally.notes),
        sessions=sessions,
        span_ns=span_ns,
        longest_gap_ns=longest_gap_ns,
        prompt_tokens=prompt,
        output_tokens=output,
        has_hash_ids=block_tokens > 0,
        block_tokens=block_tokens,
        most_tokens=most_tokens,
        most_bytes=most_bytes,
        follows=follows,
        blocks_problem=None if fit is None else fit.problem(),
        unidentified_rows=unidentified,
        sha256=_sha256(trace.files),
    )


def _one_size(trace: Trace, known: int, row: TraceRow) -> int:
    """Return the blocks' size, which is one for the whole trace. Raises `TraceError`."""
    if known:
        what = "item" if trace.format.document else "line"
        raise TraceError(
            f"{_names(trace)}: {what} {row.line} has blocks of {row.block_tokens} tokens, those "
            f"before it had {known}; give a trace whose blocks are all of one size"
        )
    return row.block_tokens


def _sha256(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)
        except OSError as problem:
            raise TraceError(f"{path}: cannot be read: {problem}") from None
    return digest.hexdigest()


def require_usable(trace: Trace, surveyed: Survey, way_out: str = WAY_OUT) -> None:
    """Raise `TraceError` unless there is a good row and every bad one may be left out; `way_out`
    says what to do about one that may not.

    (An empty file and another header do not come so far: `survey` raises for them.)
    """
    if surveyed.bad_rows and not trace.skip_bad_rows:
        raise TraceError(f"{_bad_rows(trace, surveyed)}. {way_out}")
    if surveyed.rows:
        if surveyed.blocks_problem is not None:
            raise TraceError(f"{_names(trace)} ({trace.format_name}): {surveyed.blocks_problem}")
        return
    if surveyed.bad_rows:
        raise TraceError(
            f"{_bad_rows(trace, surveyed)}, and there is no good one; is it a {trace.format_name} "
            "trace at all? Name its format, or correct the file"
        )
    if surveyed.notes.keys() == {Note.FAILED.value}:
        raise TraceError(
            f"{_names(trace)}: all {surveyed.failed_rows} rows are failed requests, which are left "
            "out; give a trace with at least one that was answered"
        )
    if surveyed.notes:
        counted = ", ".join(f"{note}: {count}" for note, count in sorted(surveyed.notes.items()))
        raise TraceError(
            f"{_names(trace)}: no request is left to replay (counted were {counted}; what each "
            "means is said in docs/reference/trace-formats.md); give another trace, or other limits"
        )
    if trace.format.document:
        raise TraceError(f"{_names(trace)}: no item in it; a trace has at least one")
    raise TraceError(f"{_names(trace)}: no rows behind the header; a trace has at least one row")


def _bad_rows(trace: Trace, surveyed: Survey) -> str:
    """Say how many there are, where the first are and what is wrong with them."""
    listed = "; ".join(str(row) for row in surveyed.first_bad)
    more = surveyed.bad_rows - len(surveyed.first_bad)
    tail = f"; and {more} more" if more else ""
    total = surveyed.rows + surveyed.bad_rows + surveyed.failed_rows
    # The rows of a document are not its items, whose number is not known.
    of = "items or parts of them" if trace.format.document else f"of {total} rows"
    return (
        f"{_names(trace)}: {surveyed.bad_rows} {of} cannot be read as {trace.format_name} "
        f"({listed}{tail})"
    )


def _names(trace: Trace) -> str:
    first, others = trace.files[0], len(trace.files) - 1
    return f"{first} and {others} more" if others else str(first)
