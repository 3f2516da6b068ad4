"""What was done before anything was measured: the fill, and the rounds that are to be steady."""

from collections.abc import Iterator, Mapping
from math import isfinite

from kv_cache.core.format import as_text, figures
from kv_cache.core.units import GIB
from kv_cache.report.html.charts import (
    LINEAR,
    TIME,
    Axis,
    Book,
    Chart,
    ChartLine,
    ChartTable,
    Limit,
)
from kv_cache.report.html.common import common_sections, machine
from kv_cache.report.html.parts import (
    Card,
    Doc,
    Json,
    Section,
    badge,
    cards,
    lead,
    percent,
    reasons,
    table,
)
from kv_cache.report.html.text import Html, tag
from kv_cache.report.pictures.base import needed, number, rows_at, value_at, word

_PLACE = "preconditioning"


def precondition_sections(doc: Doc, book: Book) -> Iterator[Section]:
    """The report of `precondition`."""
    yield Section(slug="verdict", title="Verdict and headline", content=list(_verdict(doc.own)))
    yield Section(
        slug="before", title="Preconditioning", content=rounds_content(doc, book),
        absent="Nothing was written.",
    )  # fmt: skip
    yield from common_sections(doc)


def _verdict(own: Json) -> Iterator[Html]:
    yield tag("p", badge(word(own, "verdict")), class_="verdict")
    yield from reasons(own, "reasons")
    yield lead(
        f"Preconditioning {word(own, 'status') or 'ended'}. Nothing was measured.",
        *(said.replace("Measured on", "Done on") for said in machine(own)),
    )
    yield cards(_cards(own))


def _cards(own: Json) -> Iterator[Card]:
    filled = number(own, f"{_PLACE}.fill.bytes")
    if isfinite(filled):
        yield Card(name="Filled", value=figures(filled / GIB), unit="GiB")
    rounds = rows_at(own, f"{_PLACE}.rounds")
    yield Card(name="Rounds", value=str(len(rounds)))
    if rounds:
        rate = number(rounds[-1], "bytes_per_second") / GIB
        yield Card(name="Last round", value=figures(rate), unit="GiB/s")


def rounds_content(doc: Doc, book: Book) -> list[Html]:
    """Raises BadDocumentError."""
    own = doc.own
    made = [*_fill(doc, own, book), *_rounds(doc, own, book)]
    return [*_proof(own), *([tag("div", *made, class_="charts")] if made else [])]


def _proof(own: Json) -> list[Html]:
    proof = value_at(own, f"{_PLACE}.proof")
    if not isinstance(proof, Mapping):
        return [tag("p", "There were too few rounds to say whether the drive was steady.")]
    steady = "steady" if proof.get("steady") is True else "not-steady"
    return [
        tag("p", badge(steady), " ", word(proof, "rule")),
        table(
            "The last five rounds", ("what", "value"),
            [
                ("average, GiB/s", figures(number(proof, "average") / GIB)),
                ("range, of the average", percent(number(proof, "range_share"))),
                ("trend, of the average", percent(number(proof, "slope_share"))),
                ("steady since round", as_text(proof.get("since_round"))),
            ],
        ),
    ]  # fmt: skip


def _fill(doc: Doc, own: Json, book: Book) -> list[Html]:
    rows = [
        r for r in rows_at(own, f"{_PLACE}.fill.rows") if needed(r, "end_s") > needed(r, "start_s")
    ]
    if not rows:
        return []
    places = [(needed(row, "start_s") + needed(row, "end_s")) / 2 for row in rows]
    rates = [number(row, "bytes_per_second") / GIB for row in rows]
    step = -(-len(rows) // 60)
    shown = [(figures(places[i]), figures(rates[i])) for i in range(0, len(rows), step)]
    said = "" if step == 1 else f"One row of {step} is shown."
    axis = Axis(key=doc.id("fill"), kind=TIME, label="time of the fill", places=places)
    return book.figure(
        Chart(
            title="The fill", unit="GiB/s", axis=axis,
            lines=[ChartLine(name="written", values=rates, look=1)],
            table=ChartTable(heads=("seconds", "GiB/s"), rows=shown, says=said),
        )
    )  # fmt: skip


def _rounds(doc: Doc, own: Json, book: Book) -> list[Html]:
    rows = rows_at(own, f"{_PLACE}.rounds")
    if not rows:
        return []
    rates = [number(row, "bytes_per_second") / GIB for row in rows]
    average = number(own, f"{_PLACE}.proof.average") / GIB
    limits = [Limit(name="average of the last five", value=average, look=4)]
    axis = Axis(
        key=doc.id("rounds"), kind=LINEAR, label="round",
        places=[needed(row, "round") for row in rows],
    )  # fmt: skip
    heads = ("round", "GiB/s", "read p95 ms", "write p95 ms")
    shown = [
        (
            as_text(row.get("round")),
            *(figures(n) for n in (rate, number(row, "read_p95_ms"), number(row, "write_p95_ms"))),
        )
        for row, rate in zip(rows, rates, strict=True)
    ]
    return book.figure(
        Chart(
            title="Storage throughput of each round", unit="GiB/s", axis=axis,
            lines=[ChartLine(name="read + write", values=rates, look=0)],
            limits=limits if isfinite(average) else (), table=ChartTable(heads=heads, rows=shown),
        )
    )  # fmt: skip
