"""Charts: what the script on the page draws, with the figure around it and a table of the same.

A chart is data: lines over an axis that they share. The page's script draws it with uPlot and makes
nothing up. Whoever cannot see it, or has no script, has the table.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite, log10, nan
from statistics import median
from typing import Any

from msgspec import Struct, field

from kv_cache.view.drawing import LADDERS, LINE_COLOURS
from kv_cache.view.page.parts import details, part_table
from kv_cache.view.page.safe_text import Html, plain, rounded, tag
from kv_cache.view.parts import Cell, Figure, Line, PlotPoint, Scale, ShownColumn, Table

_MUTED = LINE_COLOURS
_MUTED_DASHES = ("7 4", "2 4")
_DASHES = ("", "7 4", "2 3", "8 3 2 3")  # by which lines are told apart without colours
_PLACE_FIGURES = 7  # so that neighbours of an hour's ticks stay apart
_MOST_ROWS = 60
"""Of the table below a chart, in which neighbours become one row."""
_SMALL_TABLE = 12
"""Rows of a table of percentiles that is shown with its chart."""


class Book(Struct):
    """All charts of a page and the axes that they share, for the script."""

    axes: dict[str, dict[str, Any]] = field(default_factory=dict)
    charts: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, figure: Figure) -> list[Html]:
        """A figure as markup; nothing where no line has a value."""
        xs = _places_of(figure)
        lines = [line for line in _lines(figure, xs) if any(v is not None for v in line["values"])]
        if not lines:
            return []
        number = len(self.charts)
        self.charts.append(_drawing(figure, xs, lines, self._axis_key(figure, xs)))
        title = f"chart-{number}-title"
        numbers, note = _numbers(figure, xs)
        small = figure.scale is Scale.PERCENTILE and len(numbers.rows) <= _SMALL_TABLE
        caption = ShownColumn(figure.title, figure.y.unit).heading if small else figure.title
        return [
            tag(
                "figure",
                tag("figcaption", tag("h4", figure.title, id=title), *_paragraph(figure.caption)),
                tag("div", class_="keys", role="group", aria_label=f"Lines of {figure.title}"),
                tag("div", class_="plot", data_chart=number, tabindex=0, role="group",
                    aria_labelledby=title, aria_describedby="how-to-read"),
                tag("p", class_="readout", role="status"),
                details("Table", *_paragraph(note), part_table(caption, numbers), open_=small),
                class_="chart",
            )
        ]  # fmt: skip

    def _axis_key(self, figure: Figure, xs: Sequence[float]) -> str:
        """The name of the figure's axis: figures over the same places share it."""
        places = [_place(figure, x) for x in xs]
        digest = hash(tuple(places)) & 0xFFFFFFFF
        key = f"{figure.scale} {figure.x.heading}: {len(places)} {digest:08x}"
        self.axes.setdefault(key, _axis(figure, places))
        return key

    def data(self) -> dict[str, Any]:
        return {"axes": self.axes, "charts": self.charts, "ladders": LADDERS}


def _paragraph(text: str) -> list[Html]:
    return [tag("p", text)] if text else []


# --- what the script draws -------------------------------------------------------------------


def _axis(figure: Figure, places: Sequence[float]) -> dict[str, Any]:
    return {
        "kind": figure.scale,
        "label": figure.x.heading,
        "whole": figure.whole,
        "places": [rounded(place, _PLACE_FIGURES) for place in places],
        "bands": [
            [plain(band.name), *(rounded(_place(figure, x)) for x in (band.start, band.end)),
             band.shaded]
            for band in figure.bands
        ],
    }  # fmt: skip


def _drawing(
    figure: Figure, xs: Sequence[float], lines: Sequence[dict[str, Any]], axis: str
) -> dict[str, Any]:
    return {
        "title": plain(figure.title),
        "unit": plain(figure.y.unit.name if figure.y.unit else ""),
        "axis": axis,
        "log": figure.log_y,
        "steps": figure.steps,
        "zero": figure.zero,
        "marks": [
            [plain(p.name), rounded(_place(figure, p.x), _PLACE_FIGURES)] for p in figure.places
        ],
        "most": rounded(_y(figure, figure.reach)),
        "names": [plain(name) for name in _labels(figure, xs)],
        "lines": lines,
        "limits": [
            {"name": plain(level.name), "value": rounded(_y(figure, level.y)), "look": _MUTED}
            for level in figure.levels
        ],
    }


def _dash(number: int) -> str:
    """Another one each time that a line's colour comes again."""
    return _DASHES[(number + number // LINE_COLOURS) % len(_DASHES)]


def _lines(figure: Figure, xs: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Each line's values at all places: `look` is its colour; `hollow` points are drawn open; with
    a path it goes `through` that, and not from point to point. `spans` are the ends of its points'
    intervals."""
    colours = muted = 0
    for line in figure.lines:
        points = list(_at_each(line, xs))
        yield {
            "name": plain(line.name or figure.title),
            "look": _MUTED if line.muted else colours % LINE_COLOURS,
            "dash": _MUTED_DASHES[muted % 2] if line.muted else _dash(colours),
            "hollow": [index for index, point in enumerate(points) if point and point.mark],
            "through": _through(figure, line),
            "values": [rounded(_drawn_y(figure, point)) for point in points],
            "spans": [_span(figure, point) for point in points]
            if any(point and point.interval for point in points)
            else None,
        }
        colours += not line.muted
        muted += line.muted


def _span(figure: Figure, point: PlotPoint | None) -> list[float | int | None] | None:
    """Both ends of a point's interval; None where one cannot be drawn."""
    if point is None or point.interval is None:
        return None
    ends = (_y(figure, point.interval.low), _y(figure, point.interval.high))
    if not all(isfinite(end) and (end > 0 or not figure.log_y) for end in ends):
        return None
    return [rounded(end) for end in ends]


def _drawn_y(figure: Figure, point: PlotPoint | None) -> float:
    """NaN where there is no point, and for 0 on a logarithmic axis, which has none."""
    y = nan if point is None else _y(figure, point.y)
    return nan if figure.log_y and not y > 0 else y


def _y(figure: Figure, y: float) -> float:
    shown = figure.y.shown(y)
    return nan if shown is None else shown


def _place(figure: Figure, x: float) -> float:
    """Where x is on the axis as the page's script draws it: percentiles by their nines."""
    if figure.scale is Scale.PERCENTILE:
        return 2 - log10(100 - x)
    return figure.x.shown(x) or 0.0


def _places_of(figure: Figure) -> list[float]:
    """All x in their order, each as often as the line has it that has it most often."""
    counted = Counter(dict.fromkeys(figure.axis, 1))
    for line in figure.lines:
        counted |= Counter(point.x for point in line.points)
    return sorted(counted.elements())


def _at_each(line: Line, xs: Sequence[float]) -> Iterator[PlotPoint | None]:
    """The line's point at each place; its last one again where others have more at one x."""
    left: dict[float, list[PlotPoint]] = {}
    for point in reversed(line.points):
        left.setdefault(point.x, []).append(point)
    for x in xs:
        there = left.get(x, [None])
        yield there.pop() if len(there) > 1 else there[0]


def _through(figure: Figure, line: Line) -> list[list[float | int | None]] | None:
    """The line's own path, or its points, as an axis of numbers may have gaps between them."""
    if line.path is None and (figure.scale not in (Scale.LINEAR, Scale.LOG) or figure.steps):
        return None
    path = [(point.x, point.y) for point in line.points] if line.path is None else line.path
    places = [(_place(figure, x), _y(figure, y)) for x, y in path]
    return [[rounded(x, _PLACE_FIGURES), rounded(y)] for x, y in places if isfinite(y)]


def _labels(figure: Figure, xs: Sequence[float]) -> list[str]:
    """Beside the first line's points; none if they have no labels."""
    labels = [point.label if point else "" for point in _at_each(figure.lines[0], xs)]
    return labels if any(labels) else []


# --- the table -------------------------------------------------------------------------------


def _numbers(figure: Figure, xs: Sequence[float]) -> tuple[Table, str]:
    """The points as rows; of many, a row for each x and neighbours together, which is said."""
    listed = figure.table()
    if len(listed.rows) <= _MOST_ROWS:
        return listed, ""
    lines = [{point.x: point.y for point in line.points} for line in figure.lines]
    xs = list(dict.fromkeys(xs))
    together = -(-len(xs) // _MOST_ROWS)
    groups = [xs[start : start + together] for start in range(0, len(xs), together)]
    rows: list[list[Cell]] = [
        [group[0], *(_middle([line[x] for x in group if x in line]) for line in lines)]
        for group in groups
    ]
    columns = [figure.x, *(ShownColumn(line.name, figure.y.unit) for line in figure.lines)]
    note = f"Each row is the median of up to {together} points." if together > 1 else ""
    return Table(columns=columns, rows=rows), note


def _middle(values: Sequence[float]) -> float | None:
    some = [value for value in values if isfinite(value)]
    return median(some) if some else None
