"""The laws of `workload/formats/base.py` that hold for any text of a format."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import MAX_TOKENS, Note, TraceFormat
from kv_cache.workload.formats.row import TraceRow

_MOST_AHEAD = 64  # lines that a reader may take beyond those of the rows that it gave


@dataclass
class Walked:
    """What a reader made of a text."""

    rows: list[TraceRow] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    notes: list[tuple[int, Note]] = field(default_factory=list)


def walk(trace_format: TraceFormat, texts: Iterable[str]) -> Walked:
    """Read lines, or the parts of a document, to their end."""
    walked = Walked()
    walked.rows = list(
        trace_format.rows(
            enumerate(texts, 1),
            lambda line, reason: walked.bad.append((line, reason)),
            lambda line, note: walked.notes.append((line, note)),
        )
    )
    return walked


def pieces(trace_format: TraceFormat, text: str) -> list[str]:
    """Return what the format is given: lines, or parts of a document that are cut anywhere."""
    if trace_format.document:
        return [text[at : at + 997] for at in range(0, len(text), 997)]
    return text.splitlines()


def without_lines(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Return the rows as they are compared, if lines were added."""
    return [row._replace(line=0) for row in rows]


def check_trace_format(trace_format: TraceFormat, text: str) -> None:
    """Hold a format against its laws, on a text of at least ten good rows. Raises AssertionError,
    which names the law."""
    walked = walk(trace_format, pieces(trace_format, text))
    assert not walked.bad, f"the text is to be good: {walked.bad[:3]}"
    assert len(walked.rows) >= 10, f"the text is to have ten rows, and has {len(walked.rows)}"
    assert trace_format.description, "a format has a description, which --trace-format errors show"
    assert "\n" not in trace_format.description, "the description is one line"
    assert trace_format.matches(text[: 64 << 10]), "law 9: it does not match its own text"
    others = [
        name
        for name, other in TRACE_FORMATS.ours.items()
        if other is not trace_format and other.matches(text[: 64 << 10])
    ]
    assert not others, f"law 9: {', '.join(others)} would take it too"
    _times_and_tokens(trace_format, walked.rows)
    if not trace_format.document:
        _lines(trace_format, text.splitlines(), walked)


def _times_and_tokens(trace_format: TraceFormat, rows: list[TraceRow]) -> None:
    assert all(row.at_ns >= 0 for row in rows), "law 3: a time is negative"
    assert all(type(row.at_ns) is int for row in rows), "law 3: a time is not whole nanoseconds"
    if not trace_format.grouped:
        times = [row.at_ns for row in rows]
        assert times[0] == 0, "law 3: times do not count from the first row"
        assert times == sorted(times), "law 4: a time goes back"
    for row in rows:
        assert 1 <= row.prompt_tokens <= MAX_TOKENS or row.nbytes, (
            f"law 7: row {row.line} has {row.prompt_tokens} prompt tokens"
        )
        assert 0 <= row.output_tokens <= MAX_TOKENS, (
            f"law 7: row {row.line} has {row.output_tokens} output tokens"
        )


def _lines(trace_format: TraceFormat, lines: list[str], walked: Walked) -> None:
    plain = without_lines(walked.rows)
    for what, changed in (
        ("a byte order mark", ["\ufeff" + lines[0], *lines[1:]]),
        ("CRLF", [f"{line}\r\n" for line in lines]),
        ("blank lines", [each for line in lines for each in (line, "")]),
    ):
        again = walk(trace_format, changed)
        assert without_lines(again.rows) == plain, f"law 8: {what} changes the rows"
    torn = walk(trace_format, [*lines, "\x00 not a row \x00"])
    assert without_lines(torn.rows) == plain, "law 2: a bad line changes other rows"
    assert [line for line, _ in torn.bad] == [len(lines) + 1], "law 2: a bad line is not named"
    taken = 0

    def counted() -> Iterator[tuple[int, str]]:
        nonlocal taken
        for number, line in enumerate(lines * 20, 1):
            taken = number
            yield number, line

    if not trace_format.grouped:
        rows = trace_format.rows(counted(), lambda line, why: None, lambda line, note: None)
        next(iter(rows))
        assert taken <= _MOST_AHEAD, f"law 1: {taken} lines are read for the first row"
