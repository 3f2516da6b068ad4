"""The report as one HTML page that needs nothing else: no network, no other file.

A page has a report of each document and, of several, a comparison before them. Charts are drawn by
uPlot (MIT licence, `assets/`), which stands in the page with our own script and style. A policy in
the page forbids everything else: any request, and any script or style whose hash it does not name,
so that a text which got past the escaping would still do nothing. The same documents give the same
bytes.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files

from msgspec.structs import replace

from kv_cache import __version__
from kv_cache.core.errors import UsageError
from kv_cache.files.reading import SECTION
from kv_cache.result.comparison import LABELS
from kv_cache.result.metrics import Json
from kv_cache.result.run import MisshapenError, not_as_written
from kv_cache.view.origin import origin_section
from kv_cache.view.page.charts import Book
from kv_cache.view.page.parts import Doc, Section, drawn_section
from kv_cache.view.page.safe_text import Html, embedded, tag, verbatim
from kv_cache.view.page.shown import view_sections
from kv_cache.view.together import together_view
from kv_cache.view.views import view_of

MARK = "<!doctype html>\n<!-- kv-cache report"
"""How every page begins; a file that begins so may be replaced."""


def page(documents: Sequence[Json], names: Sequence[str]) -> str:
    """The page of documents as they were read, the baseline first. `names` say where each comes
    from. Raises UsageError for a document that has no report, or is not as it should be."""
    docs = _docs(documents, names)
    book = Book()
    most = max(FEWEST_POINTS, MOST_POINTS // len(docs))
    articles = []
    for doc in docs:
        try:
            articles.append(_article(doc, book, most, alone=len(docs) == 1))
        except MisshapenError as error:
            raise not_as_written(doc.name, f"{SECTION}: {error}") from None
    if len(docs) > 1:  # read first, but made last: now each document is known to be good
        articles.insert(0, _comparison(docs, book, most))
    return _whole(docs, articles, book)


MOST_POINTS, FEWEST_POINTS = 4000, 240
"""Of a line on a page of one result, and on that of many; neighbours become one point."""


def _docs(documents: Sequence[Json], names: Sequence[str]) -> list[Doc]:
    if not 1 <= len(documents) <= len(LABELS):
        raise UsageError(
            f"a report is of 1 to {len(LABELS)} results, and {len(documents)} were given; name "
            "more or fewer files"
        )
    docs = [
        Doc(label=label, name=name, document=document)
        for label, name, document in zip(LABELS, names, documents, strict=False)
    ]
    for doc in docs:
        if not isinstance(doc.document.get(SECTION), Mapping) or view_of(doc.schema) is None:
            raise UsageError(
                f"{doc.name}: there is no report of it, as it is not a result of run, run "
                "--trials, capacity, precondition, sweep, sim, lab or trace stats, nor of several "
                "ranks, a profile of probe or a tree of mlperf; give one of those"
            )
    return docs


# --- articles --------------------------------------------------------------------------------


def _article(doc: Doc, book: Book, most_points: int, *, alone: bool) -> Html:
    make = view_of(doc.schema)
    assert make is not None, doc.schema
    view = make(doc.section)
    whole = replace(view, sections=[*view.sections, origin_section(doc.name, doc.document)])
    sections = list(view_sections(whole, book, most_points))
    title = view.title if alone else f"{doc.label}: {view.title}"
    heading = view.heading if alone else f"{doc.label}: {view.heading}"
    header = [
        tag("h2", heading),
        tag("p", " · ".join([doc.name, *view.about]), class_="origin"),
        *([tag("p", view.note)] if view.note else []),
    ]
    return _drawn(doc, sections, title, header)


def _comparison(docs: Sequence[Doc], book: Book, most_points: int) -> Html:
    every = Doc(label="all", name="", document={})
    view = together_view([(doc.label, doc.name, doc.document) for doc in docs])
    sections = list(view_sections(view, book, most_points))
    each = [
        tag("li", tag("a", f"{doc.label}: {doc.name}", href=f"#{doc.id('report')}")) for doc in docs
    ]
    reports = tag("nav", tag("ul", *each), aria_label="Reports of each")
    return _drawn(every, sections, "Side by side", [tag("h2", "Side by side")], reports)


def _drawn(
    doc: Doc, sections: Sequence[Section], title: str, header: Sequence[Html], *more: Html
) -> Html:
    links = [
        tag("li", tag("a", section.title, href=f"#{doc.id(section.slug)}")) for section in sections
    ]
    return tag(
        "article",
        tag("header", *header),
        tag("nav", tag("ul", *links), aria_label=f"Sections of {title}"),
        *more,
        *(drawn_section(doc, section) for section in sections),
        id=doc.id("report"),
    )


# --- the page --------------------------------------------------------------------------------


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _whole(docs: Sequence[Doc], articles: Sequence[Html], book: Book) -> str:
    style = "\n".join(_asset(name) for name in ("uPlot.min.css", "report.css"))
    script = "\n".join(_asset(name) for name in ("uPlot.iife.min.js", "report.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    names = ", ".join(doc.name for doc in docs)
    parts = [
        f"{MARK} {__version__} -->",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        tag("title", f"KV-cache report: {names}"),
        tag("style", verbatim(style)),
        "</head>",
        "<body>",
        *_body(articles),
        tag("script", embedded(book.data()), type="application/json", id="data"),
        tag("script", verbatim(script)),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _body(articles: Sequence[Html]) -> Iterator[Html]:
    yield tag("a", "Skip to the report", href="#report", class_="skip")
    yield tag(
        "header",
        tag("h1", "KV-cache storage benchmark"),
        tag("noscript", tag("p", "Charts need a script; each has a table with its numbers.")),
    )  # fmt: skip
    yield tag("main", *articles, id="report")
    yield tag(
        "footer",
        tag(
            "p",
            "Keys on a chart: ← → read values, + and - zoom, 0 shows everything again. Dragging "
            "over a part zooms into it. Each chart has its numbers in a table below.",
            id="how-to-read",
        ),
        tag("p", f"kv-cache {__version__}. GiB is 2³⁰ bytes. The page asks for nothing from the "
            "network. Charts: uPlot 1.6.32, © 2022 Leon Sorokin, MIT licence."),
    )  # fmt: skip
