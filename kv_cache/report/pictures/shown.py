"""The figures of a view as a picture: a panel each, lines with the bars of their intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    few_ticks,
    from_zero,
    label_ends,
    plain,
)
from kv_cache.view.parts import Figure, Line, Remarks, ShownColumn, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, BLACK)
_MARKS = "os^Dv*"
_MOST_LINES = len(_COLOURS)
_HEIGHT = 1.5  # inches


def view_picture(view: View) -> Picture:
    """Raises NothingToDrawError."""
    figures = view.figures()
    if not figures:
        raise NothingToDrawError("no option that varies has two numbers with a measurement")
    remarks = [text for part in view.parts if isinstance(part, Remarks) for text in part.texts]
    bars = any(p.low is not None for f in figures for line in f.lines for p in line.points)
    lines = [view.sentence, ", ".join(view.about), *(["Bars: 95 % intervals."] if bars else [])]
    return Picture(
        title=plain(view.title),
        lines=[plain(line) for line in (*lines, *(f"! {text}" for text in remarks)) if line],
        panels=[_panel(figure) for figure in figures],
    )


def _panel(figure: Figure) -> Panel:
    left_out = len(figure.lines) - _MOST_LINES
    more = f" ({left_out} lines left out)" if left_out > 0 else ""
    heading = ShownColumn(figure.title, figure.y.unit).heading
    return Panel(
        title=plain(f"{heading}{more}"), x=plain(figure.x.heading), height=_HEIGHT,
        draw=lambda axes: _draw(axes, figure.y, figure.lines[:_MOST_LINES]),
    )  # fmt: skip


def _draw(axes: "Axes", column: ShownColumn, lines: Sequence[Line]) -> None:
    def shown(value: float) -> float:
        return column.shown(value) or 0.0

    for line, colour, mark in zip(lines, _COLOURS, _MARKS, strict=False):
        values = [shown(point.y) for point in line.points]
        lows = [shown(max(0.0, p.y if p.low is None else p.low)) for p in line.points]
        highs = [shown(p.y if p.high is None else p.high) for p in line.points]
        below = [max(0.0, y - low) for y, low in zip(values, lows, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(values, highs, strict=True)]
        axes.errorbar(
            [point.x for point in line.points], values, yerr=[below, above], color=colour,
            marker=mark, markersize=3.5, linewidth=1.2, elinewidth=0.8, ecolor=GREY, capsize=1.5,
        )  # fmt: skip
    from_zero(axes, [shown(p.y) for line in lines for p in line.points], room=1.25)
    few_ticks(axes.xaxis, 6)
    if len(lines) > 1:
        ends = [
            Label(shown(line.points[-1].y), plain(line.name), colour)
            for line, colour in zip(lines, _COLOURS, strict=False)
        ]
        label_ends(axes, ends, _HEIGHT)
