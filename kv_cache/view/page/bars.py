"""Bars of a page, each in a table beside its numbers."""

from collections.abc import Sequence

from kv_cache.view.drawing import COLOURS
from kv_cache.view.page.parts import table
from kv_cache.view.page.safe_text import Html, tag
from kv_cache.view.parts import BarChart, BarRow

_LOOKS = len(COLOURS)
_WIDE, _HIGH = 300.0, 14.0


def bar_table(chart: BarChart) -> Html:
    """A row for each bar; where it has several parts, columns have the colours of theirs."""
    listed = chart.table()
    several = len(chart.parts) > 1
    heading = "parts in order" if several else "bar"
    heading += f"; mark {', '.join(chart.marks)}" if chart.marks else ""
    heading += "; line 95 % interval" if any(row.low is not None for row in chart.rows) else ""
    first, *heads = listed.headings
    keys = [_key(head, look) if several and look < len(chart.parts) else head
            for look, head in enumerate(heads)]  # fmt: skip
    rows = [
        (name, _bar(row, chart.reach), *texts)
        for (name, *texts), row in zip(listed.cells(), chart.rows, strict=True)
    ]
    return table(chart.title, (first, heading, *keys), rows, words=2)


def _key(name: str, look: int) -> Html:
    """A column's head with the colour of its part of the bar."""
    box = tag("svg", tag("rect", x=0, y=0, width=10, height=10, class_=f"f{look % _LOOKS}"),
              viewBox="0 0 10 10", class_="key", aria_hidden="true")  # fmt: skip
    return tag("span", box, " ", name)


def _bar(row: BarRow, reach: float) -> Html:
    """Parts behind one another, marks across, the interval along."""
    drawn = [tag("rect", x=0, y=2, width=_WIDE, height=10, class_="track")]
    begin = 0.0
    for look, part in enumerate(row.parts):
        if part > 0:
            width = part / reach * _WIDE
            drawn.append(tag("rect", x=f"{begin:.1f}", y=2, width=f"{width:.1f}", height=10,
                             class_=f"f{look % _LOOKS}"))  # fmt: skip
            begin += width
    if row.low is not None and row.high is not None:
        drawn.append(_stroke((row.low, row.high), reach, (7, 7), "interval"))
    drawn += [
        _stroke((mark, mark), reach, (0, _HIGH), "axis") for mark in row.marks if mark is not None
    ]
    return tag("svg", *drawn, viewBox=f"0 0 {_WIDE:g} {_HIGH:g}", class_="bar wide",
               aria_hidden="true")  # fmt: skip


def _stroke(ends: Sequence[float], reach: float, heights: Sequence[float], kind: str) -> Html:
    x1, x2 = (f"{_WIDE * min(1.0, max(0.0, end / reach)):.1f}" for end in ends)
    return tag("line", x1=x1, x2=x2, y1=heights[0], y2=heights[1], class_=kind)
