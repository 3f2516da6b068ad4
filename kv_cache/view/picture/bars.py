"""Bars and intervals as pictures: a row for each name, with parts behind one another and marks, or
dots around a reference."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from kv_cache.core.format import figures
from kv_cache.view.drawing import COLOURS
from kv_cache.view.parts import BarChart, BarRow, IntervalChart, IntervalRow
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

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "++", "ooo")  # parts are not told by colour alone
_MARKS = ("o", "x", "|", "d")
_ROW, _LINE, _KEY, _INTERVAL_ROW = 0.24, 0.13, 0.15, 0.32  # inches
_LONGEST_LINE = 27  # letters of a name, which goes on in another line
_MOST_ROWS = 30


def bar_panel(chart: BarChart) -> Panel:
    """The first rows; how many are left out is in the title."""
    left = len(chart.rows) - _MOST_ROWS
    more = f" ({figures(left)} rows left out)" if left > 0 else ""
    rows = chart.rows[:_MOST_ROWS]
    keys = len(chart.parts) + len(chart.marks)
    return Panel(
        title=plain(f"{chart.title}{more}"),
        x=plain(chart.x.heading),
        height=max(
            max(_ROW, _LINE * max((len(_lines(row)) for row in rows), default=1) + 0.06)
            * (len(rows) + 0.6),
            _KEY * keys if keys > 1 else 0.0,
        ),
        draw=lambda axes: _draw(axes, chart, rows),
    )


def _lines(row: BarRow) -> list[str]:
    return wrap(plain(row.name), _LONGEST_LINE)


def _draw(axes: "Axes", chart: BarChart, rows: Sequence[BarRow]) -> None:
    places = range(len(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(places, ["\n".join(_lines(row)) for row in rows], linespacing=1.0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.6)
    begins = [0.0] * len(rows)
    for place, name in enumerate(chart.parts):
        lengths = [chart.x.shown(row.parts[place]) or 0.0 for row in rows]
        axes.barh(
            places, lengths, left=begins, height=0.6, edgecolor="white", linewidth=0.4,
            color=COLOURS[place % len(COLOURS)], hatch=_HATCHES[place % len(_HATCHES)],
            label=plain(name),
        )  # fmt: skip
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    for place, row in enumerate(rows):
        if row.interval is not None:
            ends = [chart.x.shown(end) or 0.0 for end in (row.interval.low, row.interval.high)]
            axes.plot(ends, [place, place], "|-", color=BLACK, linewidth=1.2, zorder=4)
    for number, name in enumerate(chart.marks):
        marks = [(chart.x.shown(row.marks[number]), place) for place, row in enumerate(rows)]
        known = [(x, place) for x, place in marks if x is not None]
        shape = _MARKS[number % len(_MARKS)]
        axes.plot(
            [x for x, _ in known], [place for _, place in known], shape, color=BLACK, markersize=4,
            zorder=5, label=plain(name),
        )  # fmt: skip
    if len(chart.parts) + len(chart.marks) > 1:
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.01, 1.05), fontsize=SMALL - 1, frameon=False,
            borderaxespad=0, handlelength=1.0, labelspacing=0.2,
        )  # fmt: skip
    axes.set_xlim(0, (chart.x.shown(chart.reach) or 1.0) * 1.02)
    few_ticks(axes.xaxis, 5)


# --- intervals -------------------------------------------------------------------------------


def interval_panel(chart: IntervalChart) -> Panel:
    """The axis goes as far as the values; what goes further is cut with an arrow."""
    return Panel(
        title=plain(chart.title),
        x=plain(f"{chart.axis}, %"),
        height=_INTERVAL_ROW * len(chart.rows),
        draw=lambda axes: _draw_intervals(axes, chart),
    )


def _draw_intervals(axes: "Axes", chart: IntervalChart) -> None:
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
        _draw_interval(axes, place, row, reach)


def _draw_interval(axes: "Axes", place: int, row: IntervalRow, reach: float) -> None:
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
