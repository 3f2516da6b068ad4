"""The figures of a view as a picture: a panel each, lines with the bars of their intervals."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kv_cache.view.drawing import COLOURS, LINE_COLOURS
from kv_cache.view.parts import (
    BarChart,
    Figure,
    IntervalChart,
    Line,
    Scale,
    ShownColumn,
    View,
)
from kv_cache.view.picture.bars import bar_panel, interval_panel
from kv_cache.view.picture.base import (
    BLACK,
    GREEN,
    GREY,
    PALE,
    PURPLE,
    SMALL,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    few_ticks,
    from_zero,
    label_ends,
    last_level,
    logarithmic,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawn = Figure | BarChart | IntervalChart

_COLOURS = COLOURS[:LINE_COLOURS]
_MARKS = "os^Dv*hd"
_STROKES = ("-", (0, (6, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
_MOST_LINES = len(_COLOURS) * len(_MARKS)
_MARKED = "XPs<>p"
"""Shapes of the points that are not like the others, in the order of their words."""
_FEW_POINTS = 40
"""Of a line whose every point has a mark."""
_HEIGHT = 1.5  # inches
_LABEL_HEIGHT = 0.15  # inches of a line's name
_MOST_PANELS = 40
_LEFT, _LEFT_OF_NAMES = 0.72, 2.0  # inches
_MOST_POINTS = 300
"""A line of more is a block of ink on a page."""
_LETTER, _MARGIN, _RIGHT, _MOST_RIGHT = 0.058, 0.25, 0.92, 2.6  # inches
_KEY = 3  # letters' room of the key before a part's name
_TINT = "#ececec"
_LETTER_SHARE = 0.02  # of a panel, for a letter of a label


def view_picture(view: View) -> Picture:
    """Raises NothingToDrawError."""
    pictures = view.pictures()
    if not pictures:
        raise NothingToDrawError("it has no numbers over an axis")
    figures = [part for part in pictures if isinstance(part, Figure)]
    bars = any(point.interval is not None for figure in figures for point in figure.points())
    lines = [
        view.sentence,
        ", ".join(view.about),
        view.note,
        *(["Bars: 95 % intervals."] if bars else []),
    ]
    notes = [f"! {text}" for text in (*view.reasons, *view.remarks())]
    shown = _with_shared_axes(pictures[:_MOST_PANELS])
    return Picture(
        title=plain(view.heading),
        lines=[plain(line) for line in (*lines, *notes) if line],
        panels=[panel for part in shown for panel in _panels_of(part)],
        right=_right(pictures),
        left=_LEFT if len(figures) == len(pictures) else _LEFT_OF_NAMES,
    )


def _with_shared_axes(parts: Sequence[Drawn]) -> Iterator[Drawn]:
    """Neighbours with the same horizontal axis share it, so each knows the ends of all."""
    for _, group in groupby(parts, key=_axis_of):
        several = list(group)
        figures = [part for part in several if isinstance(part, Figure)]
        places = [x for figure in figures for x in figure.places_drawn()]
        for part in several:
            if isinstance(part, Figure) and places:
                yield replace(part.thinned(_MOST_POINTS), axis=(min(places), max(places)))
            else:
                yield part


def _axis_of(part: Drawn) -> tuple[object, ...]:
    return (part.x, part.scale) if isinstance(part, Figure) else (id(part),)


def _panels_of(part: Drawn) -> list[Panel]:
    match part:
        case Figure():
            strip = [_strip(part)] if part.scale is Scale.TIME and part.bands else []
            return [*strip, _panel(part)]
        case BarChart():
            return [bar_panel(part)]
        case IntervalChart():
            return [interval_panel(part)]


def _right(parts: Sequence[Drawn]) -> float:
    """Inches for the longest name beside an axis, half of the picture at most."""
    figures = [part for part in parts if isinstance(part, Figure)]
    names = [len(line.name) for figure in figures for line in figure.lines]
    names += [len(level.name) for figure in figures for level in figure.levels]
    charts = [part for part in parts if isinstance(part, BarChart)]
    names += [len(name) + _KEY for chart in charts for name in (*chart.parts, *chart.marks)]
    return min(_MOST_RIGHT, max(_RIGHT, _MARGIN + _LETTER * max(names, default=0)))


def _panel(figure: Figure) -> Panel:
    left_out = len(figure.lines) - _MOST_LINES
    more = f" ({left_out} lines left out)" if left_out > 0 else ""
    heading = ShownColumn(figure.title, figure.y.unit).heading
    names = min(len(figure.lines), _MOST_LINES) + len(figure.levels)
    height = max(_HEIGHT, _LABEL_HEIGHT * (names + 1))
    return Panel(
        title=plain(f"{heading}{more}"),
        x=plain(figure.x.heading),
        height=height,
        draw=lambda axes: _draw(axes, figure, height),
    )


def _strip(figure: Figure) -> Panel:
    """The names of the bands, where they have room."""
    begin, end = _span(figure)

    def draw(axes: "Axes") -> None:
        for band in figure.bands:
            tint = _TINT if band.shaded else "#ffffff"
            axes.axvspan(band.start, band.end, facecolor=tint, edgecolor=PALE, linewidth=0.6)
            if (band.end - band.start) / (end - begin) > 0.022 * len(band.name):
                middle = (band.start + band.end) / 2
                axes.text(
                    middle, 0.45, plain(band.name), size=SMALL, ha="center", va="center",
                    color=BLACK,
                )  # fmt: skip
        axes.set_ylim(0, 1)
        axes.set_xlim(begin, end)

    return Panel(x=plain(figure.x.heading), draw=draw, height=0.18, bare=True)


def _span(figure: Figure) -> tuple[float, float]:
    xs = figure.places_drawn()
    ends = [end for band in figure.bands for end in (band.start, band.end)]
    return min(xs + ends), max(xs + ends)


# --- a panel ---------------------------------------------------------------------------------


def _draw(axes: "Axes", figure: Figure, height: float) -> None:
    lines = figure.lines[:_MOST_LINES]
    _draw_bands(axes, figure)
    words = sorted({point.mark for point in figure.points() if point.mark})
    labels, colours = [], 0
    for line in lines:
        colour = GREY if line.muted else _COLOURS[colours % len(_COLOURS)]
        look = _MUTED_LOOK if line.muted else _look(colours, len(line.points))
        _draw_line(axes, figure, line, {"color": colour, **look})
        _draw_marks(axes, figure, line, words, colour)
        level = last_level([_shown(figure.y, point.y) for point in line.points])
        labels.append(Label(level, plain(line.name), BLACK if line.muted else colour))
        colours += not line.muted
    _scale(axes, figure)
    levels = [Label(_shown(figure.y, each.y), plain(each.name), BLACK) for each in figure.levels]
    for label in levels:
        axes.axhline(label.y, color=BLACK, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
    _name_places(axes, figure)
    _name_points(axes, figure)
    if words:
        _key(axes, words)
    label_ends(axes, [*(label for label in labels if label.text), *levels], height)


_MUTED_LOOK = {"linestyle": "--", "linewidth": 1.1}


def _look(number: int, points: int) -> dict[str, Any]:
    """A line's mark and strokes: others for each line of the same colour."""
    again = number // len(_COLOURS)
    marker = _MARKS[(number + again) % len(_MARKS)]
    strokes = _STROKES[again % len(_STROKES)]
    look: dict[str, Any] = {"linestyle": strokes, "linewidth": 1.2, "marker": marker}
    return look | ({"markersize": 3.5} if points <= _FEW_POINTS else {"markersize": 0})


def _shown(column: ShownColumn, value: float | None) -> float:
    shown = column.shown(value)
    return nan if shown is None else shown


def _draw_line(axes: "Axes", figure: Figure, line: Line, look: dict[str, Any]) -> None:
    xs = [_shown(figure.x, point.x) for point in line.points]
    ys = [_shown(figure.y, point.y) for point in line.points]
    ys = [nan if figure.log_y and not y > 0 else y for y in ys]
    if figure.steps:
        axes.plot(xs, ys, drawstyle="steps-post", **{**look, "markersize": 0})
        return
    if line.path is None:
        axes.plot(xs, ys, **look)
    else:
        path = [(_shown(figure.x, x), _shown(figure.y, y)) for x, y in line.path]
        axes.plot(*zip(*path, strict=True), **{**look, "marker": ""}) if path else None
        usual = [(x, y) for x, y, p in zip(xs, ys, line.points, strict=True) if not p.mark]
        axes.plot(*zip(*usual, strict=True), **{**look, "linestyle": ""}) if usual else None
    for x, point in zip(xs, line.points, strict=True):
        if (span := point.interval) is not None:
            ends = [_shown(figure.y, max(0.0, span.low)), _shown(figure.y, span.high)]
            axes.plot([x, x], ends, color=GREY, linewidth=0.8, zorder=1.5)


def _draw_marks(
    axes: "Axes", figure: Figure, line: Line, words: Sequence[str], colour: str
) -> None:
    for point in line.points:
        if point.mark:
            shape = _MARKED[words.index(point.mark) % len(_MARKED)]
            axes.plot(
                _shown(figure.x, point.x), _shown(figure.y, point.y), shape, color=colour,
                markersize=7, markeredgecolor="white", markeredgewidth=0.6, zorder=4,
                clip_on=False,
            )  # fmt: skip


def _key(axes: "Axes", words: Sequence[str]) -> None:
    """What the shapes of points mean."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=BLACK, marker=_MARKED[n % len(_MARKED)], linestyle="", label=plain(w))
        for n, w in enumerate(words)
    ]
    axes.legend(handles=handles, fontsize=SMALL, frameon=False, loc="best", handletextpad=0.1)


def _draw_bands(axes: "Axes", figure: Figure) -> None:
    for band in figure.bands:
        if band.shaded:
            ends = (_shown(figure.x, band.start), _shown(figure.x, band.end))
            axes.axvspan(*ends, color=_TINT, linewidth=0, zorder=0)


def _scale(axes: "Axes", figure: Figure) -> None:
    ys = [_shown(figure.y, point.y) for point in figure.points()]
    ends = [point.interval.high for point in figure.points() if point.interval is not None]
    ys += [_shown(figure.y, end) for end in ends if isfinite(end)]
    ys += [_shown(figure.y, level.y) for level in figure.levels]
    if figure.log_y:
        logarithmic(axes, ys)
    elif figure.zero:
        from_zero(axes, [*ys, _shown(figure.y, figure.reach)])
    else:
        few_ticks(axes.yaxis)
    xs = [_shown(figure.x, x) for x in figure.places_drawn()]
    if figure.scale is Scale.LOG:
        logarithmic(axes, xs, x=True)
    else:
        few_ticks(axes.xaxis, 7, whole=figure.whole)
    if figure.scale is Scale.TIME:
        axes.set_xlim(*_span(figure))


def _name_places(axes: "Axes", figure: Figure) -> None:
    """Names at the foot of their lines, at heights of their own; the lower one's left of it."""
    for number, place in enumerate(sorted(figure.places, key=lambda place: place.x)):
        x = _shown(figure.x, place.x)
        axes.axvline(x, color=GREEN if number == 0 else PURPLE, linewidth=1.4, zorder=1)
        share = axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))[0]
        left = share > (0.25 if number == 0 else 0.75)
        axes.annotate(
            plain(place.name), (x, 0.03 + 0.1 * number), xycoords=("data", "axes fraction"),
            xytext=(-3 if left else 3, 0), textcoords="offset points", size=SMALL,
            ha="right" if left else "left", va="bottom", color=BLACK, weight="bold",
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip


def _name_points(axes: "Axes", figure: Figure) -> None:
    """Labels above the first line's points, as far as they have room."""
    free = -1.0
    for point in sorted(figure.lines[0].points, key=lambda point: point.x):
        x, y = _shown(figure.x, point.x), _shown(figure.y, point.y)
        share = axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))[0]
        half = _LETTER_SHARE * len(point.label) / 2
        if point.label and share - half > free:
            free = share + half
            axes.annotate(
                plain(point.label), (x, y), xytext=(0, 5), textcoords="offset points", size=SMALL,
                ha="center", color=BLACK,
            )  # fmt: skip
