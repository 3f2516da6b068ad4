"""A view as sections of a page: the answer, the pictures, then the rest."""

from collections.abc import Iterator, Sequence

from kv_cache.report.html.charts import LINEAR, Axis, Book, Chart
from kv_cache.report.html.charts import ChartLine as Drawn
from kv_cache.report.html.charts import ChartTable as Numbers
from kv_cache.report.html.common import origin
from kv_cache.report.html.parts import Doc, Section, badge, bullets, lead, table
from kv_cache.report.html.text import Html, tag
from kv_cache.view.parts import FactList, Figure, Remarks, Table, View

_LOOKS = 9
_DASHES = ("", "dash", "dot", "chain")


def view_sections(view: View, doc: Doc, book: Book) -> Iterator[Section]:
    """All parts in their order, but figures together as one section."""
    about = [tag("p", " · ".join(view.about), class_="origin")] if view.about else []
    yield Section(
        slug="answer",
        title="Answer",
        content=[tag("p", badge(view.status), class_="verdict"), lead(view.sentence), *about],
    )
    charts = [html for figure in view.figures() for html in book.figure(_chart(figure))]
    if charts:
        yield Section(
            slug="pictures", title="Pictures", content=[tag("div", *charts, class_="charts")]
        )
    for number, part in enumerate(view.parts):
        if not isinstance(part, Figure):
            yield Section(slug=f"part-{number}", title=part.title, content=_content(part))
    yield Section(slug="origin", title="Origin", content=origin(doc))


def _content(part: FactList | Table | Remarks) -> list[Html]:
    match part:
        case Table():
            words = next(
                (n for n, column in enumerate(part.columns) if column.unit is not None),
                len(part.columns),
            )
            says = [tag("p", part.says)] if part.says else []
            return [table(part.title, part.headings, part.cells(), words=words), *says]
        case FactList():
            return [table(part.title, ("what", "value"), part.rows, words=2)]
        case Remarks():
            return bullets(list(part.texts))


def _chart(figure: Figure) -> Chart:
    numbers = figure.table()
    places = sorted({point.x for line in figure.lines for point in line.points})
    return Chart(
        title=figure.title,
        unit=figure.y.unit.name if figure.y.unit else "",
        axis=Axis(
            key=f"{figure.x.heading}: {', '.join(map(str, places))}",
            kind=LINEAR,
            label=figure.x.heading,
            places=places,
        ),
        lines=_lines(figure, places),
        table=Numbers(
            heads=numbers.headings,
            rows=numbers.cells(),
            words=sum(column.unit is None for column in numbers.columns) or 1,
        ),
    )


def _lines(figure: Figure, places: Sequence[float]) -> list[Drawn]:
    drawn = []
    for number, line in enumerate(figure.lines):
        points = {point.x: figure.y.shown(point.y) for point in line.points}
        values = [points.get(place) for place in places]
        drawn.append(
            Drawn(
                name=line.name or figure.title,
                values=[float("nan") if value is None else value for value in values],
                look=number % _LOOKS,
                dash=_DASHES[number % len(_DASHES)],
                through=[(x, y) for x, y in points.items() if y is not None],
            )
        )
    return drawn
