"""The line that says which trace was asked, in which unit its times are, and what was left out."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def trace_line(facts: Mapping[str, Any]) -> str:
    """One line for a terminal, of what a document says of its trace; the same everywhere."""
    files, rows = facts["files"], facts["rows"]
    name = PurePath(files[0]).name if len(files) == 1 else f"{len(files)} files"
    asked = facts.get("asked_rows", rows)
    told = [f"{rows:,} rows" if asked == rows else f"{asked:,} of {rows:,} rows"]
    told += unit_told(facts)
    if facts["skipped_bad_rows"]:
        told.append(f"{facts['skipped_bad_rows']:,} bad rows left out")
    told += [f"{count:,} {_NOTES.get(note, note)}" for note, count in facts["notes"].items()]
    return f"trace     {_plain(name)} ({facts['format']}): {', '.join(told)}"


def unit_told(facts: Mapping[str, Any]) -> list[str]:
    """In which unit the times were read and why; nothing where they are no bare numbers."""
    unit = facts.get("time_unit")
    return [] if unit is None else [f"times in {unit} ({_ORIGINS[facts['time_unit_from']]})"]


_ORIGINS = {"format": "as its format says", "detected": "detected", "option": "as asked for"}
_NOTES = {
    "failed": "failed requests left out",
    "backward": "rows whose time goes back",
    "unanswered": "unanswered turns left out",
    "too_long": "turns that are too long left out",
    "no_blocks": "requests without blocks left out",
    "left_out": "operations that are no access left out",
}


def _plain(text: str) -> str:
    """Text out of files that anybody may have written, such as a terminal can be shown."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
