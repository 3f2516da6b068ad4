"""A view as sections of a page: the answer, then its own sections."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import isfinite, log10, nan
from statistics import median

from kv_cache.view.page.bars import bar_table
from kv_cache.view.page.charts import Axis, Book, Chart, Limit
from kv_cache.view.page.charts import ChartLine as Drawn
from kv_cache.view.page.charts import ChartTable as Numbers
from kv_cache.view.page.diagram import diagram
from kv_cache.view.page.parts import (
    Card,
    Section,
    Strip,
    badge,
    bullets,
    cards,
    details,
    lead,
    ruled,
    share_bar,
    table,
)
from kv_cache.view.page.safe_text import Html, join, safe, tag
from kv_cache.view.parts import (
    BarChart,
    Cell,
    FactList,
    Figure,
    FlowDiagram,
    IntervalChart,
    KeyNumbers,
    Line,
    Part,
    PlotPoint,
    Remarks,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
)

_LOOKS = 9
_MUTED = 8
_DASHES = ("", "dash", "dot", "chain")
_MOST_ROWS = 60
"""Of the table below a chart, in which neighbours become one row."""
_SMALL_TABLE = 12


def view_sections(view: View, book: Book, most_points: int) -> Iterator[Section]:
    """The answer with what it rests on, and all sections. Lines of more points are thinned."""
    yield Section(
        slug="answer",
        title="Answer",
        content=[
            tag("p", badge(view.status), class_="verdict"),
            *ruled(view.reasons),
            lead(view.sentence),
        ],
    )
    for section in view.sections:
        content = list(_contents(section, book, most_points))
        if content or section.absent:
            yield Section(
                slug=re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-"),
                title=section.title,
                content=content,
                absent=section.absent,
            )


def _contents(section: ViewSection, book: Book, most_points: int) -> Iterator[Html]:
    """Parts in their order; figures that follow each other stand together."""
    for drawn, parts in groupby(section.parts, key=lambda part: isinstance(part, Figure)):
        if drawn:
            charts = [
                html
                for part in parts
                if isinstance(part, Figure)
                for html in book.figure(_chart(part.thinned(most_points)))
            ]
            if charts:
                yield tag("div", *charts, class_="charts")
        else:
            for part in parts:
                yield from _content(part, section.title)


def _content(part: Part, section_title: str) -> Iterator[Html]:
    title = part.title or section_title
    match part:
        case KeyNumbers():
            yield cards(
                Card(
                    name=number.column.title,
                    value=number.column.text(number.value),
                    unit=number.column.unit.name if number.column.unit else "",
                    more=number.note,
                )
                for number in part.numbers
            )
        case Table():
            drawn = [_table(title, part), *([tag("p", part.says)] if part.says else [])]
            yield from [details(title, *drawn)] if part.detail else drawn
        case FactList():
            facts = table(title, ("what", "value"), part.rows, words=2)
            yield details(title, facts) if part.detail else facts
        case Remarks():
            if part.title:
                yield tag("h4", part.title)
            yield from ruled(part.texts) if _has_rules(part.texts) else bullets(list(part.texts))
        case FlowDiagram():
            yield tag("div", diagram(part), class_="flow")
            if part.says:
                yield tag("p", part.says)
            moved = part.table()
            yield details(title, table(title, moved.headings, moved.cells(), words=3))
        case BarChart():
            yield bar_table(part)
            if part.says:
                yield tag("p", part.says)
        case IntervalChart():
            yield _intervals(title, part)
            if part.says:
                yield tag("p", part.says)
        case Figure():
            raise AssertionError("figures are charts")


def _has_rules(texts: Sequence[str]) -> bool:
    return any(re.match(r"V\d+ ", text) for text in texts)


def _table(title: str, part: Table) -> Html:
    words = next(
        (n for n, column in enumerate(part.columns) if column.unit is not None), len(part.columns)
    )
    cells = [
        [
            _cell(column, text, cell)
            for column, text, cell in zip(part.columns, texts, row, strict=True)
        ]
        for texts, row in zip(part.cells(), part.rows, strict=True)
    ]
    return table(title, part.headings, cells, words=words)


def _intervals(title: str, part: IntervalChart) -> Html:
    """A strip for each row: its values as dots, its interval as a bar."""
    reach = part.reach

    def at(difference: float) -> float:
        return 0.5 + difference / (2 * reach)

    rows = [
        (
            row.name,
            row.text,
            Strip(
                middle=0.5,
                kind=row.mark.rstrip("?") if row.mark in ("better", "worse") else "",
                dots=[at(value) for value in row.values],
                low=None if row.low is None else at(row.low),
                high=None if row.high is None else at(row.high),
            ).drawn(),
            *((badge(row.mark),) if any(each.mark for each in part.rows) else ()),
        )
        for row in part.rows
    ]
    axis = f"{part.axis}; ends {100 * reach:.0f} % to each side"
    heads = ("", "value", axis, *(("finding",) if len(rows[0]) > 3 else ()))
    return table(title, heads, rows, words=len(heads))


def _cell(column: ShownColumn, text: str, cell: Cell) -> object:
    if column.status:
        return badge(text)
    if column.bar and isinstance(cell, float | int):
        return join((safe(text), share_bar(cell)), " ")
    return text


# --- charts ----------------------------------------------------------------------------------


def _chart(figure: Figure) -> Chart:
    xs = _places_of(figure)
    shown = [_place(figure, x) for x in xs]
    return Chart(
        title=figure.title,
        unit=figure.y.unit.name if figure.y.unit else "",
        axis=Axis(
            key=f"{figure.scale} {figure.x.heading}: {_hash_of(shown)}",
            kind=figure.scale,
            label=figure.x.heading,
            places=shown,
            bands=[
                replace(
                    band,
                    start=figure.x.shown(band.start) or 0.0,
                    end=figure.x.shown(band.end) or 0.0,
                )
                for band in figure.bands
            ],
        ),
        lines=_lines(figure, xs),
        table=_numbers(figure, xs),
        log=figure.log_y,
        zero=figure.zero,
        steps=figure.steps,
        most=figure.y.shown(figure.reach) or 0.0,
        limits=[
            Limit(name=level.name, value=figure.y.shown(level.y) or 0.0, look=_MUTED)
            for level in figure.levels
        ],
        names=_labels(figure, xs),
        marks=[(place.name, figure.x.shown(place.x) or 0.0) for place in figure.places],
        says=figure.says,
    )


def _place(figure: Figure, x: float) -> float:
    """Where x stands on the axis as the page's script draws it: percentiles by their nines."""
    if figure.scale is Scale.PERCENTILE:
        return 2 - log10(100 - x)
    return figure.x.shown(x) or 0.0


def _hash_of(places: Sequence[float]) -> str:
    """A name of an axis: charts over the same places share it."""
    return f"{len(places)} {hash(tuple(places)) & 0xFFFFFFFF:08x}"


def _places_of(figure: Figure) -> list[float]:
    """All x in their order, each as often as the line has it that has it most often."""
    counted = Counter(dict.fromkeys(figure.axis, 1))
    for line in figure.lines:
        counted |= Counter(point.x for point in line.points)
    return sorted(counted.elements())


def _lines(figure: Figure, xs: Sequence[float]) -> list[Drawn]:
    drawn = []
    colours = 0
    for line in figure.lines:
        points = list(_at_each(line, xs))
        drawn.append(
            Drawn(
                name=line.name or figure.title,
                values=[_y(figure, point.y) if point else nan for point in points],
                look=_MUTED if line.muted else colours % (_LOOKS - 1),
                dash="dash" if line.muted else _DASHES[colours % len(_DASHES)],
                hollow=[index for index, point in enumerate(points) if point and point.mark],
                through=_through(figure, line),
            )
        )
        colours += not line.muted
    return drawn


def _y(figure: Figure, y: float) -> float:
    shown = figure.y.shown(y)
    return nan if shown is None else shown


def _at_each(line: Line, xs: Sequence[float]) -> Iterator[PlotPoint | None]:
    """The line's point at each place; its last one again where others have more at one x."""
    left: dict[float, list[PlotPoint]] = {}
    for point in reversed(line.points):
        left.setdefault(point.x, []).append(point)
    for x in xs:
        there = left.get(x, [None])
        yield there.pop() if len(there) > 1 else there[0]


def _through(figure: Figure, line: Line) -> list[tuple[float, float]] | None:
    """The line's own path, or its points, as an axis of numbers may have gaps between them."""
    if line.path is None and (figure.scale not in (Scale.LINEAR, Scale.LOG) or figure.steps):
        return None
    path = [(point.x, point.y) for point in line.points] if line.path is None else line.path
    places = [(_place(figure, x), _y(figure, y)) for x, y in path]
    return [(x, y) for x, y in places if isfinite(y)]


def _labels(figure: Figure, xs: Sequence[float]) -> list[str]:
    """Beside the first line's points; none if they have no labels."""
    first = figure.lines[0] if figure.lines else Line(name="", points=())
    labels = [point.label if point else "" for point in _at_each(first, xs)]
    return labels if any(labels) else []


def _numbers(figure: Figure, xs: Sequence[float]) -> Numbers:
    """The points as rows; of many, a row for each x and neighbours together."""
    listed = figure.table()
    if len(listed.rows) <= _MOST_ROWS:
        return Numbers(
            heads=listed.headings,
            rows=listed.cells(),
            words=sum(column.unit is None for column in listed.columns) or 1,
            small=len(listed.rows) <= _SMALL_TABLE and figure.scale is Scale.PERCENTILE,
        )
    lines = [{point.x: point.y for point in line.points} for line in figure.lines]
    xs = list(dict.fromkeys(xs))
    together = -(-len(xs) // _MOST_ROWS)
    groups = [xs[start : start + together] for start in range(0, len(xs), together)]
    columns = [figure.x, *(ShownColumn(line.name, figure.y.unit) for line in figure.lines)]
    rows: list[list[Cell]] = [
        [group[0], *(_middle([line[x] for x in group if x in line]) for line in lines)]
        for group in groups
    ]
    wide = Table(columns=columns, rows=rows)
    says = f"Each row is the median of up to {together} points." if together > 1 else ""
    return Numbers(heads=wide.headings, rows=wide.cells(), says=says)


def _middle(values: Sequence[float]) -> float | None:
    some = [value for value in values if isfinite(value)]
    return median(some) if some else None
