"""A view as sections of a page: the answer, then its own sections."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import isfinite, log10, nan
from statistics import median

from kv_cache.report.html.charts import Axis, Book, Chart, Limit
from kv_cache.report.html.charts import ChartLine as Drawn
from kv_cache.report.html.charts import ChartTable as Numbers
from kv_cache.report.html.diagram import diagram
from kv_cache.report.html.parts import (
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
from kv_cache.report.html.text import Html, join, safe, tag
from kv_cache.view.parts import (
    Cell,
    FactList,
    Figure,
    FlowDiagram,
    IntervalChart,
    KeyNumbers,
    Line,
    Part,
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
    xs = figure.places_drawn()
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


def _lines(figure: Figure, xs: Sequence[float]) -> list[Drawn]:
    drawn = []
    colours = 0
    for line in figure.lines:
        values = {point.x: figure.y.shown(point.y) for point in line.points}
        shown = [nan if (value := values.get(x)) is None else value for x in xs]
        known = {x: y for x, y in values.items() if y is not None and isfinite(y)}
        drawn.append(
            Drawn(
                name=line.name or figure.title,
                values=shown,
                look=_MUTED if line.muted else colours % (_LOOKS - 1),
                dash="dash" if line.muted else _DASHES[colours % len(_DASHES)],
                hollow=_marked(line, xs),
                through=[(figure.x.shown(x) or 0.0, y) for x, y in known.items()]
                if figure.scale in (Scale.LINEAR, Scale.LOG) and not figure.steps
                else [],
            )
        )
        colours += not line.muted
    return drawn


def _marked(line: Line, xs: Sequence[float]) -> list[int]:
    marks = {point.x for point in line.points if point.mark}
    return [index for index, x in enumerate(xs) if x in marks]


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
