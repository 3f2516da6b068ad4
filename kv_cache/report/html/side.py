"""Documents that `compare` does not compare: capacity searches, or different kinds."""

from collections.abc import Iterator, Sequence

from kv_cache.core.format import as_text
from kv_cache.report import capacity
from kv_cache.report.html.capacity import summary, together
from kv_cache.report.html.charts import Book
from kv_cache.report.html.parts import Doc, Section, badge, table, text_at
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.pictures.base import word


def side_sections(docs: Sequence[Doc], book: Book) -> Iterator[Section]:
    """What stands before the reports of each."""
    yield Section(slug="inputs", title="What is side by side", content=[_inputs(docs)])
    if not all(doc.schema == capacity.SCHEMA for doc in docs):
        text = "These are documents of different kinds: their numbers are not compared."
        yield Section(slug="compared", title="Comparison", content=[tag("p", text)])
        return
    rows = [(doc.label, *summary(doc.own).values()) for doc in docs]
    answers = table("Answers of the searches", ("", *summary(docs[0].own)), rows, words=2)
    yield Section(slug="compared", title="Comparison", content=[answers])
    charts = book.figure(together(docs))
    yield Section(
        slug="overlaid", title="Over each other",
        content=[tag("div", *charts, class_="charts")] if charts else [],
        absent="These documents have nothing that could be drawn over each other.",
    )  # fmt: skip


def _inputs(docs: Sequence[Doc]) -> Html:
    rows = [
        (
            doc.label,
            tag("a", doc.name, href=f"#{doc.id('report')}"),
            doc.schema.partition("/")[0].removeprefix("kv-cache-"),
            badge(word(doc.own, "passport.verdict") or word(doc.own, "verdict")),
            text_at(doc.own, "model.name") or NOTHING,
            as_text(doc.own.get("seed")),
        )
        for doc in docs
    ]
    heads = ("", "file", "what", "verdict", "model", "seed")
    return table("The first is the baseline", heads, rows, words=5)
