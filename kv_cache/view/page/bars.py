"""Bars and intervals of a page, each in a table beside its numbers."""

from collections.abc import Sequence

from kv_cache.view.drawing import COLOURS
from kv_cache.view.page.parts import HIGH, NARROW, badge, table
from kv_cache.view.page.safe_text import Html, tag
from kv_cache.view.parts import BarChart, BarRow, IntervalChart, IntervalRow

_LOOKS = len(COLOURS)
_WIDE = 300.0


def bar_table(chart: BarChart) -> Html:
    """A row for each bar; where it has several parts, columns have the colours of theirs."""
    listed = chart.table()
    several = len(chart.parts) > 1
    heading = "parts in order" if several else "bar"
    heading += f"; mark {', '.join(chart.marks)}" if chart.marks else ""
    heading += "; line 95 % interval" if any(row.interval for row in chart.rows) else ""
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
    if row.interval is not None:
        ends = (row.interval.low, row.interval.high)
        drawn.append(_stroke([_along(end, reach) for end in ends], (7, 7), "interval"))
    marks = [_along(mark, reach) for mark in row.marks if mark is not None]
    drawn += [_stroke((mark, mark), (0, HIGH), "axis") for mark in marks]
    return tag("svg", *drawn, viewBox=f"0 0 {_WIDE:g} {HIGH:g}", class_="bar wide",
               aria_hidden="true")  # fmt: skip


def _along(end: float, reach: float) -> float:
    return _WIDE * _within(end / reach)


def _within(share: float) -> float:
    """A share of one; what lies outside is shown at its end."""
    return min(1.0, max(0.0, share))


def _stroke(ends: Sequence[float], heights: Sequence[float], kind: str) -> Html:
    x1, x2 = (f"{end:.1f}" for end in ends)
    return tag("line", x1=x1, x2=x2, y1=heights[0], y2=heights[1], class_=kind)


# --- intervals -------------------------------------------------------------------------------


def interval_table(title: str, chart: IntervalChart) -> Html:
    """A strip for each row: its values as dots, its interval as a bar."""
    marked = any(row.mark for row in chart.rows)
    rows = [
        (row.name, row.text, _strip(row, chart.reach), *((badge(row.mark),) if marked else ()))
        for row in chart.rows
    ]
    axis = f"{chart.axis}; ends {100 * chart.reach:.0f} % to each side"
    heads = ("", "value", axis, *(("finding",) if marked else ()))
    return table(title, heads, rows, words=len(heads))


def _strip(row: IntervalRow, reach: float) -> Html:
    """Differences on a line with its middle at 0."""

    def at(difference: float) -> float:
        return 4 + (NARROW - 8) * _within(0.5 + difference / (2 * reach))

    kind = row.mark.rstrip("?") if row.mark in ("better", "worse") else ""
    parts = [_stroke((at(0), at(0)), (1, HIGH - 1), "axis")]
    if row.interval is not None:
        ends = (at(row.interval.low), at(row.interval.high))
        parts.append(_stroke(ends, (7, 7), f"interval {kind}"))
    parts += [
        tag("circle", cx=f"{at(value):.1f}", cy=7, r=3, class_=f"dot {kind}")
        for value in row.values
    ]
    return tag("svg", *parts, viewBox=f"0 0 {NARROW:g} {HIGH:g}", class_="bar", aria_hidden="true")
