"""A view as Markdown, for pasting; a figure is the table of its points."""

from collections.abc import Iterator, Sequence

from kv_cache import __version__
from kv_cache.core.text import printable
from kv_cache.view import parts

MARK = "<!-- kv-cache report"
"""How such a file begins; one that begins so may be replaced."""


def markdown(view: parts.View) -> str:
    """The whole view but its details; texts are escaped."""
    blocks = [
        f"{MARK} {__version__} -->",
        f"# {safe(view.heading)}",
        f"**{safe(view.status)}** {safe(view.sentence)}",
    ]
    if view.reasons:
        blocks.append(_list(view.reasons))
    if view.about:
        blocks.append(safe(", ".join(view.about)))
    if view.note:
        blocks.append(safe(view.note))
    for section in view.sections:
        drawn = [(part, list(_blocks(part))) for part in section.parts]
        some = [(part, texts) for part, texts in drawn if texts]
        if some:
            blocks.append(f"## {safe(section.title)}")
        for part, texts in some:
            blocks += [f"### {safe(part.title)}", *texts] if part.title else texts
    return "\n\n".join(blocks) + "\n"


_MOST_POINTS = 60
"""A figure of more is a table that nobody reads: a page and a workbook have it."""


def _blocks(part: parts.Part) -> Iterator[str]:
    """None of a detail, or of a figure of too many points."""
    match part:
        case parts.Table() if not part.detail:
            numbers = [column.unit is not None for column in part.columns]
            yield _table(part.headings, part.cells(), numbers)
            if part.caption:
                yield safe(part.caption)
        case parts.KeyNumbers() | parts.BarChart() | parts.FlowDiagram() | parts.IntervalChart():
            yield from _blocks(part.table())
        case parts.FactList() if not part.detail:
            yield _table(("", ""), [[name, text] for name, text in part.rows], (False, False))
        case parts.Remarks() if not part.detail:
            yield _list(part.texts)
        case parts.Figure() if not part.detail and len(list(part.points())) <= _MOST_POINTS:
            yield from _blocks(part.table())


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {safe(text)}" for text in texts)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> str:
    rule = ["---:" if number else "---" for number in numbers]
    lines = [map(safe, headings), rule, *(map(safe, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"})
_LONGEST = 600


def safe(text: str) -> str:
    """Text out of a file that anybody may have written, such as stays in its cell."""
    return printable(text, longest=_LONGEST, instead=" ").translate(_SPECIAL)
