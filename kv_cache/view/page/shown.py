"""A view as sections of a page: the answer, then its own sections."""

import re
from collections.abc import Iterator
from itertools import groupby

from kv_cache.view import parts
from kv_cache.view.page.bars import bar_table, interval_table
from kv_cache.view.page.charts import Book
from kv_cache.view.page.diagram import diagram
from kv_cache.view.page.parts import (
    Section,
    badge,
    bullets,
    cards,
    details,
    part_table,
    ruled,
    table,
)
from kv_cache.view.page.safe_text import Html, tag


def view_sections(view: parts.View, book: Book, most_points: int) -> Iterator[Section]:
    """The answer with what it rests on, and all sections. Lines of more points are thinned."""
    yield Section(
        slug="answer",
        title="Answer",
        content=[
            tag("p", badge(view.status), class_="verdict"),
            *ruled(view.reasons),
            tag("p", view.sentence, class_="lead"),
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


def _contents(section: parts.ViewSection, book: Book, most_points: int) -> Iterator[Html]:
    """Parts in their order; figures that follow each other stand together."""
    for drawn, group in groupby(section.parts, key=lambda part: isinstance(part, parts.Figure)):
        if drawn:
            charts = [
                html
                for part in group
                if isinstance(part, parts.Figure)
                for html in book.figure(part.thinned(most_points))
            ]
            if charts:
                yield tag("div", *charts, class_="charts")
        else:
            for part in group:
                yield from _content(part, section.title)


def _content(part: parts.Part, section_title: str) -> Iterator[Html]:
    title = part.title or section_title
    match part:
        case parts.KeyNumbers():
            yield cards(part.numbers)
        case parts.Table():
            drawn = _captioned(part_table(title, part), part.caption)
            yield from [details(title, *drawn)] if part.detail else drawn
        case parts.FactList():
            facts = table(title, ("what", "value"), part.rows, words=2)
            yield details(title, facts) if part.detail else facts
        case parts.Remarks():
            if part.title:
                yield tag("h4", part.title)
            rules = any(re.match(r"V\d+ ", text) for text in part.texts)
            yield from ruled(part.texts) if rules else bullets(part.texts)
        case parts.FlowDiagram():
            yield from _captioned(tag("div", diagram(part), class_="flow"), part.caption)
            moved = part.table()
            yield details(title, table(title, moved.headings, moved.cells(), words=3))
        case parts.BarChart():
            yield from _captioned(bar_table(part), part.caption)
        case parts.IntervalChart():
            yield from _captioned(interval_table(title, part), part.caption)
        case parts.Figure():
            raise AssertionError("figures are charts")


def _captioned(drawn: Html, caption: str) -> list[Html]:
    return [drawn, tag("p", caption)] if caption else [drawn]
