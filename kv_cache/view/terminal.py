"""A view as lines of text, for a terminal; figures are pictures and pages alone."""

from collections.abc import Iterator

from kv_cache.view.parts import FactList, Figure, Remarks, Table, View


def terminal(view: View) -> str:
    """The answer first; tables with aligned columns."""
    lines = [f"{view.title}: {view.sentence}", *([", ".join(view.about)] if view.about else [])]
    for part in view.parts:
        match part:
            case Table():
                lines += ["", *table_lines(part)]
            case FactList():
                width = max((len(name) for name, _ in part.rows), default=0)
                lines += ["", *(f"{name:<{width}}  {text}" for name, text in part.rows)]
            case Remarks():
                lines += [f"  ! {text}" for text in part.texts]
            case Figure():
                pass
    return "\n".join(lines)


def table_lines(table: Table) -> Iterator[str]:
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
    if table.says:
        yield table.says
