"""A view as lines of text, for a terminal; figures are for pictures and pages."""

from collections.abc import Iterator

from kv_cache.core.text import printable
from kv_cache.view import parts


def terminal(view: parts.View) -> str:
    """The answer first; tables with aligned columns."""
    lines = [f"{view.title}: {view.status.upper()}. {view.sentence}"]
    lines += [f"  ! {text}" for text in view.reasons]
    lines += [", ".join(view.about)] if view.about else []
    for section in view.sections:
        for part in section.parts if section.terminal else ():
            lines += _lines(part)
    return "\n".join(printable(line, longest=_LONGEST_LINE) for line in lines)


_LONGEST_LINE = 500


def _lines(part: parts.Part) -> Iterator[str]:
    """None of a detail, or of what is drawn."""
    match part:
        case parts.KeyNumbers():
            yield from _lines(part.table())
        case parts.Table() if not part.detail:
            yield ""
            yield from table_lines(part)
        case parts.FactList() if not part.detail:
            width = max((len(name) for name, _ in part.rows), default=0)
            yield ""
            yield from (f"{name:<{width}}  {text}" for name, text in part.rows)
        case parts.Remarks() if not part.detail:
            yield from (f"  ! {text}" for text in part.texts)


def table_lines(table: parts.Table) -> Iterator[str]:
    """Numbers stand right, words left."""
    rows = [table.headings, *table.cells()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = [column.unit is None for column in table.columns]
    for row in rows:
        texts = [
            f"{text:<{width}}" if word else f"{text:>{width}}"
            for text, width, word in zip(row, widths, words, strict=True)
        ]
        yield "  ".join(texts).rstrip()
    if table.caption:
        yield table.caption
