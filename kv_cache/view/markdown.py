"""A view as Markdown, for pasting; a figure is the table of its points."""

from collections.abc import Iterator, Sequence

from kv_cache.view.parts import FactList, Figure, Remarks, Table, View

MARK = "<!-- kv-cache report -->"
"""How such a file begins; one that begins so may be replaced."""


def markdown(view: View) -> str:
    """The whole view, whose texts are escaped."""
    blocks = [MARK, f"# {_safe(view.title)}", f"**{_safe(view.status)}** {_safe(view.sentence)}"]
    if view.about:
        blocks.append(_safe(", ".join(view.about)))
    for part in view.parts:
        blocks += [f"## {_safe(part.title)}", *_blocks(part)]
    return "\n\n".join(blocks) + "\n"


def _blocks(part: Table | FactList | Figure | Remarks) -> Iterator[str]:
    match part:
        case Table():
            numbers = [column.unit is not None for column in part.columns]
            yield _table(part.headings, part.cells(), numbers)
            if part.says:
                yield _safe(part.says)
        case FactList():
            yield _table(("", ""), [[name, text] for name, text in part.rows], (False, False))
        case Remarks():
            yield "\n".join(f"- {_safe(text)}" for text in part.texts)
        case Figure():
            yield from _blocks(part.table())


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> str:
    rule = ["---:" if number else "---" for number in numbers]
    lines = [map(_safe, headings), rule, *(map(_safe, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"} | {"\n": " ", "\r": " "})


def _safe(text: str) -> str:
    """Text out of a file that anybody may have written."""
    return "".join(c if c.isprintable() else " " for c in text).translate(_SPECIAL)
