"""What a finished command prints: the result as a view, or as one document for programs."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json, printable
from kv_cache.files.keep import Kept
from kv_cache.files.result import Result
from kv_cache.files.validation import validated_line
from kv_cache.result import trials
from kv_cache.result.brief import brief, brief_of_ranks, brief_of_trials
from kv_cache.result.chain import fingerprint
from kv_cache.result.gate import broken
from kv_cache.result.published import RANKS
from kv_cache.result.run import SECTION
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

_BESIDE = ("report", "plot", "fio_job", "hdr_log", "sheets")


def print_json(document: Mapping[str, Any]) -> None:
    """Print one document, as a file would have it."""
    print(as_json(document).decode(), end="")


def print_unwritten(kept: Kept | None) -> None:
    """Print what could be written nowhere."""
    if kept is not None and kept.path is None:
        print(kept.data.decode(), end="", flush=True)


def print_kept(what: str, kept: Kept) -> None:
    """Print where a file is, and its content if it could be written nowhere."""
    print_plain(f"{what}  {kept.shown}")
    print_unwritten(kept)


def print_planned(rows: Mapping[str, str]) -> None:
    """Print what a command with --dry-run would do."""
    width = max(map(len, rows))
    for name, text in rows.items():
        print_plain(f"{name:<{width}}  {text}")
    print("--dry-run: all is checked, and nothing was done")


def print_result(result: Result) -> None:
    """Print a document of any kind for a person, and where the files are."""
    print(terminal(made_view(result.document)))
    if (validation := result.document.get("validation")) is not None:
        print(validated_line(validation))
    print()
    if result.kept is not None:
        name = "trials" if result.schema == trials.SCHEMA else "result"
        print_plain(f"{name}  {result.kept.shown}")
    if (seal := fingerprint(result.document)) is not None:
        print(f"fingerprint  {seal}")
    for recording in result.recordings:
        print_plain(f"trace   {recording['path']} ({recording['rows']} {recording['what']})")
    for what in _BESIDE:
        if what in result.files:
            print_plain(f"{what.replace('_', ' '):<7} {result.files[what]}")
    print_unwritten(result.kept)


def print_study(result: Result, *more: str) -> None:
    """Print a document for which no file need be named: its view, `more` lines, and its files."""
    print(terminal(made_view(result.document)))
    lines = [*more, *(f"{name:<14}{path}" for name, path in result.files.items())]
    if lines:
        print()
        print_plain("\n".join(lines))
    print_unwritten(result.kept)


def reason_to_fail(result: Result, level: str | None) -> list[str]:
    """Return why a result does not hold what `--fail-on` demands, if so."""
    why = broken(result.document.get(SECTION, {}), level)
    return [] if why is None else [f"kv-cache: --fail-on {level}: {why}"]


def gated(end: Exit, reasons: Sequence[str]) -> Exit:
    """Return the exit code of a command that ended so, and say why where a reason makes it
    another."""
    if end is not Exit.DONE or not reasons:
        return end
    print(reasons[0], file=sys.stderr)
    return Exit.GATE


def summary(result: Result, of_trials: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The same for programs, with the result's file first, or with the whole result where it could
    be written nowhere: only one document goes to stdout. `of_trials`: the summary of each."""
    assert result.kept is not None
    if result.schema == trials.SCHEMA:
        short = brief_of_trials(result.document, of_trials, {})
    elif result.schema == RANKS:
        short = brief_of_ranks(result.document, {})
    else:
        short = brief(result.document, result.files)
    if result.path is None:
        return {**short, "document": result.document}
    return {**short, "files": {"result": str(result.path), **short["files"]}}


def print_plain(text: str) -> None:
    """Print text out of files that anybody may have written, such as a terminal can be shown."""
    for line in text.split("\n"):
        print(printable(line))
