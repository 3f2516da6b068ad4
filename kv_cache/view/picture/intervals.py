"""Intervals as a picture: a row for each name, with dots, a bar, and the reference as a line."""

from typing import TYPE_CHECKING

from kv_cache.view.parts import IntervalChart, IntervalRow
from kv_cache.view.picture.base import (
    BLACK,
    BLUE,
    GREY,
    PALE,
    RED,
    SMALL,
    Panel,
    few_ticks,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.32  # inches


def interval_panel(chart: IntervalChart) -> Panel:
    """The axis goes as far as the values; what goes further is cut with an arrow."""
    return Panel(
        title=plain(chart.title),
        x=plain(f"{chart.axis}, %"),
        height=_ROW * len(chart.rows),
        draw=lambda axes: _draw(axes, chart),
    )


def _draw(axes: "Axes", chart: IntervalChart) -> None:
    from matplotlib.ticker import NullLocator

    reach = 100 * chart.reach
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.6)
    axes.spines["left"].set_visible(False)
    few_ticks(axes.xaxis, 6)
    axes.axvline(0, color=GREY, linewidth=1.0, zorder=1)
    for place, row in enumerate(chart.rows):
        _draw_row(axes, place, row, reach)


def _draw_row(axes: "Axes", place: int, row: IntervalRow, reach: float) -> None:
    if row.interval is not None:
        begin, end = 100 * row.interval.low, 100 * row.interval.high
        low, high = max(begin, -reach), min(end, reach)
        axes.plot([low, high], [place, place], color=PALE, linewidth=7, solid_capstyle="butt",
                  zorder=2)  # fmt: skip
        for at, cut, mark in ((low, begin < -reach, "<"), (high, end > reach, ">")):
            if cut:
                axes.plot(at, place, mark, color=GREY, markersize=5, clip_on=False, zorder=3)
    values = [100 * value for value in row.values]
    axes.plot(values, [place] * len(values), "o", color=BLUE, markersize=5, alpha=0.85,
              markeredgecolor="white", markeredgewidth=0.6, zorder=4)  # fmt: skip
    for value in values:
        if abs(value) > reach:
            mark, at = (">", reach) if value > 0 else ("<", -reach)
            axes.plot(at, place, mark, color=RED, markersize=6, clip_on=False, zorder=5)
    _beside(axes, place, (0, -6), "right", f"{plain(row.name)}\n{plain(row.text)}")
    if row.mark:
        _beside(axes, place, (1, 12), "left", plain(row.mark))


def _beside(axes: "Axes", place: int, at: tuple[int, int], side: str, text: str) -> None:
    axes.annotate(
        text, (at[0], place), xycoords=("axes fraction", "data"), xytext=(at[1], 0),
        textcoords="offset points", size=SMALL, ha=side, va="center", color=BLACK,
        linespacing=1.05, annotation_clip=False,
    )  # fmt: skip
