"""Which trace was asked, in which unit its times are, and what of it was left out."""

from pathlib import PurePath

from kv_cache.core.text import printable
from kv_cache.result.published import TraceNotes

_ORIGINS = {"format": "as its format says", "detected": "detected", "option": "as asked for"}
_NOTES = {
    "failed": "failed requests left out",
    "backward": "rows whose time goes back",
    "unanswered": "unanswered turns left out",
    "too_long": "turns that are too long left out",
    "no_blocks": "requests without blocks left out",
    "left_out": "operations that are no access left out",
}


_LONGEST_NAME = 57


def trace_text(trace: TraceNotes) -> str:
    """The trace with its rows; empty for synthetic users."""
    if not trace.files:
        return ""
    several = len(trace.files) > 1
    name = f"{len(trace.files)} files" if several else PurePath(trace.files[0]).name
    rows = trace.rows or 0
    taken = rows if trace.asked_rows is None else trace.asked_rows
    texts = [f"{rows:,} rows" if taken == rows else f"{taken:,} of {rows:,} rows"]
    texts += _unit_texts(trace.time_unit, trace.time_unit_from)
    if trace.skipped_bad_rows:
        texts.append(f"{trace.skipped_bad_rows:,} bad rows left out")
    texts += [f"{count:,} {_NOTES.get(note, note)}" for note, count in trace.notes.items()]
    shown = printable(name, longest=_LONGEST_NAME)
    return f"{shown} ({trace.format or 'unknown format'}): {', '.join(texts)}"


def _unit_texts(unit: str | None, origin: str | None) -> list[str]:
    return [] if unit is None else [f"times in {unit} ({_ORIGINS.get(str(origin), origin)})"]
