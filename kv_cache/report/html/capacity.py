"""The report of a capacity search: the answer, and latency over throughput."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from statistics import fmean

from kv_cache.core.format import as_text, figures
from kv_cache.core.kinds import Qos
from kv_cache.core.units import GIB, NS_PER_MS
from kv_cache.report.html.charts import LINEAR, Axis, Book, Chart, ChartLine, ChartTable, Limit
from kv_cache.report.html.common import common_sections, machine
from kv_cache.report.html.parts import (
    Card,
    Doc,
    Json,
    Section,
    badge,
    bullets,
    called,
    cards,
    lead,
    percent,
    reasons,
    reasons_at,
    table,
    text_at,
)
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.pictures.base import needed, number, promises_at, rows_at, value_at, word
from kv_cache.view.parts import Band

_PERCENTILES = (("p95", "", 0), ("p50", "dot", 2), ("p99", "dash", 1))

_CLASS_LOOKS = {qos.value: look for look, qos in enumerate(Qos)}


def capacity_sections(doc: Doc, book: Book) -> Iterator[Section]:
    own = doc.own
    probes = sorted(rows_at(own, "probes"), key=lambda row: needed(row, "load"))
    none = "No probe ended, so there is no curve."
    yield Section(slug="verdict", title="Verdict and headline", content=list(_verdict(own)))
    yield Section(slug="curve", title="Latency over throughput",
                  content=_curves(doc, probes, book), absent=none)  # fmt: skip
    yield Section(slug="probes", title="Probes", content=_probes(own), absent=none)
    yield Section(slug="reuse", title="Reuse", content=_reuse(probes), absent=none)
    yield Section(
        slug="passport", title="Passport", content=_passports(own),
        absent="No probe has a passport.",
    )  # fmt: skip
    yield Section(
        slug="apart", title="Not in this report", content=[],
        absent="Each probe was a run of its own, of which no windows, histograms and operations "
        "are kept: there is nothing over time, no percentiles of tiers and no tier flow.",
    )  # fmt: skip
    yield from common_sections(doc)


# --- headline --------------------------------------------------------------------------------


def _verdict(own: Json) -> Iterator[Html]:
    yield tag("p", badge(word(own, "verdict")), class_="verdict")
    yield from reasons(own, "reasons")
    yield lead(*_sentences(own))
    yield cards(_cards(own))
    promised = reasons_at(own, "slo")
    if promised:
        yield tag("h4", "What was promised")
        yield from bullets(promised)


def _sentences(own: Json) -> Iterator[str]:
    load, unit = number(own, "answer.load"), word(own, "unit")
    yield f"{text_at(own, 'model.name') or 'Unknown model'}, seed {as_text(own.get('seed'))}."
    if own.get("driver") != "real-io":
        yield "Virtual time: all figures come from a model, and nothing was measured."
    else:
        yield from machine(own)
    yield (
        f"{figures(load)} {unit} keep what was promised."
        if load > 0
        else "No load that was tried keeps what was promised."
    )
    if reason := text_at(own, "answer.reason"):
        yield f"Why not more: {reason}."
    if what := word(own, "limited_by.what"):
        yield f"Above that it is limited by {what}: {text_at(own, 'limited_by.why')}."


def _cards(own: Json) -> Iterator[Card]:
    confirmed = "confirmed" if value_at(own, "answer.confirmed") is True else "not confirmed"
    yield Card(name="Capacity", value=figures(number(own, "answer.load")), unit=word(own, "unit"),
               more=f"{answer_interval(own)}; {confirmed}")  # fmt: skip
    knee = number(own, "knee.load")
    if isfinite(knee):
        yield Card(name="Knee", value=figures(knee), unit=word(own, "unit"))
    for name, label, unit, scale in (
        ("requests_per_s", "Requests", "1/s", 1.0),
        ("output_tokens_per_s", "Output tokens", "1/s", 1.0),
        ("storage_read_bytes_per_s", "Storage read", "GiB/s", GIB),
        ("storage_write_bytes_per_s", "Storage write", "GiB/s", GIB),
    ):
        value = number(own, f"answer.{name}")
        if isfinite(value):
            yield Card(name=label, value=figures(value / scale), unit=unit)


def answer_interval(own: Json) -> str:
    """The interval of the answer, in words."""
    low, high = (number(own, f"answer.{name}") for name in ("low", "high"))
    share = number(own, "answer.confidence")
    if not isfinite(share) or not (isfinite(low) or isfinite(high)):
        return "no interval"
    above = figures(high) if isfinite(high) else "more than was tried"
    return f"{share:.0%} interval {figures(low) if isfinite(low) else '0'} to {above}"


# --- curves ----------------------------------------------------------------------------------


def _curves(doc: Doc, probes: Sequence[Json], book: Book) -> list[Html]:
    if not probes:
        return []
    made = [
        *book.figure(_latency_over_throughput(doc, probes)),
        *book.figure(_latency_over_load(doc, probes)),
        *book.figure(_throughput(doc, probes)),
        *book.figure(_storage(doc, probes)),
    ]
    return [
        tag(
            "p",
            "Each point is a probe. Open points did not keep what was promised. Over the load, the "
            "interval of the answer is shaded.",
        ),
        tag("div", *made, class_="charts"),
    ]


def _latency_over_throughput(doc: Doc, probes: Sequence[Json]) -> Chart:
    """Points stand by throughput and lines follow the load: beyond the knee they may turn back."""
    ranked = sorted(probes, key=_completed)
    axis = Axis(
        key=doc.id("throughput"), kind=LINEAR, label="requests completed/s",
        places=[_completed(row) for row in ranked],
    )  # fmt: skip
    unit = word(doc.own, "unit")
    return Chart(
        title="Response over requests completed", unit="ms", axis=axis, log=True,
        lines=_latencies(ranked, _completed),
        names=[figures(needed(row, "load")) for row in ranked],
        says=f"All requests. The numbers are the load, in {unit}; lines go from load to load, "
        "through the mean of its probes.",
        table=_table(doc.own, probes),
    )  # fmt: skip


def _completed(row: Json) -> float:
    return _or_zero(number(row, "completed_per_s"))


def _load(row: Json) -> float:
    return needed(row, "load")


def _or_zero(value: float) -> float:
    return value if isfinite(value) else 0.0


def _latencies(rows: Sequence[Json], x: Callable[[Json], float]) -> list[ChartLine]:
    return [_line(name, rows, x, _response(name), look, dash) for name, dash, look in _PERCENTILES]


def _response(name: str) -> Callable[[Json], float]:
    return lambda row: number(row, f"response_ms.{name}")


def _line(
    name: str,
    rows: Sequence[Json],
    x: Callable[[Json], float],
    y: Callable[[Json], float],
    look: int,
    dash: str = "",
) -> ChartLine:
    """A point for each probe, and a line through the means of each load."""
    places: dict[float, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=_load):
        if isfinite(value := y(row)) and value > 0:
            places.setdefault(_load(row), []).append((x(row), value))
    through = [(fmean(a for a, _ in each), fmean(b for _, b in each)) for each in places.values()]
    return ChartLine(
        name=name, look=look, dash=dash, hollow=_outside(rows), through=through,
        values=[y(row) for row in rows],
    )  # fmt: skip


def _outside(rows: Sequence[Json]) -> list[int]:
    return [place for place, row in enumerate(rows) if row.get("inside") is not True]


def _load_axis(doc: Doc, probes: Sequence[Json]) -> Axis:
    """With the interval of the answer, as far as loads were tried."""
    unit = word(doc.own, "unit")
    loads = [_load(row) for row in probes]
    low, high = (number(doc.own, f"answer.{end}") for end in ("low", "high"))
    end = min(high, loads[-1]) if isfinite(high) else loads[-1]
    band = [Band(name="interval", start=low, end=end)]
    return Axis(
        key=doc.id("load"), kind=LINEAR, places=loads, bands=band if low > 0 else (),
        label="users (open loop)" if unit == "users" else f"load, {unit}",
    )  # fmt: skip


def _latency_over_load(doc: Doc, probes: Sequence[Json]) -> Chart:
    limits = [
        Limit(name=str(promise), value=promise.limit_ns / NS_PER_MS,
              look=_CLASS_LOOKS[promise.qos.value])
        for promise in promises_at(doc.own, "slo")
        if promise.percent <= 99
    ]  # fmt: skip
    return Chart(
        title="Response over load", unit="ms", axis=_load_axis(doc, probes), log=True,
        lines=_latencies(probes, _load), limits=limits, table=_table(doc.own, probes),
        says="All requests. A limit is of one class: a probe may break it though this line is "
        "below.",
    )  # fmt: skip


def _throughput(doc: Doc, probes: Sequence[Json]) -> Chart:
    lines = [
        _line("completed", probes, _load, _completed, 0),
        _line("asked", probes, _load, lambda row: number(row, "offered_per_s"), 4, "dash"),
    ]
    return Chart(
        title="Requests asked and completed", unit="requests/s", axis=_load_axis(doc, probes),
        lines=lines, table=_table(doc.own, probes),
    )  # fmt: skip


def _storage(doc: Doc, probes: Sequence[Json]) -> Chart:
    lines = [
        _line("read", probes, _load, lambda row: _rate(row, "read"), 0),
        _line("write", probes, _load, lambda row: _rate(row, "write"), 1, "dash"),
    ]
    return Chart(
        title="Storage throughput", unit="GiB/s", axis=_load_axis(doc, probes), lines=lines,
        table=_table(doc.own, probes),
    )  # fmt: skip


def _rate(row: Json, kind: str) -> float:
    return number(row, f"storage_{kind}_bytes_per_s") / GIB


def _table(own: Json, probes: Sequence[Json]) -> ChartTable:
    heads = (word(own, "unit") or "load", "inside", "asked/s", "completed/s", "p50 ms", "p95 ms",
             "p99 ms", "read GiB/s", "write GiB/s")  # fmt: skip
    rows = [
        (
            figures(needed(row, "load")),
            "yes" if row.get("inside") is True else "no",
            figures(number(row, "offered_per_s")),
            figures(number(row, "completed_per_s")),
            *(figures(number(row, f"response_ms.{name}")) for name in ("p50", "p95", "p99")),
            *(figures(number(row, f"storage_{kind}_bytes_per_s") / GIB)
              for kind in ("read", "write")),
        )
        for row in probes
    ]  # fmt: skip
    return ChartTable(heads=heads, rows=rows, words=2)


# --- probes ----------------------------------------------------------------------------------


def _probes(own: Json) -> list[Html]:
    """In the order in which they ran."""
    rows = [
        (
            as_text(row.get("probe")),
            text_at(row, "why"),
            _state(row),
            figures(needed(row, "load")),
            figures(number(row, "seconds")),
        )
        for row in rows_at(own, "probes")
    ]
    if not rows:
        return []
    heads = ("probe", "why this load", "found", word(own, "unit") or "load", "seconds")
    return [table("Probes in the order in which they ran", heads, rows, words=3), *_looks(own)]


def _state(row: Json) -> str:
    if row.get("inside") is True:
        return "inside"
    if row.get("client_bound") is True:
        return "the client was the limit"
    return "overloaded" if row.get("overloaded") is True else "outside"


def _looks(own: Json) -> Iterator[Html]:
    rows = [
        (
            as_text(row.get("probe")),
            word(look, "promise"),
            figures(needed(row, "load")),
            figures(number(look, "ended")),
            percent(number(look, "share")),
            f"{percent(number(look, 'low'))} to {percent(number(look, 'high'))}"
            if isfinite(number(look, "low"))
            else NOTHING,
            percent(number(look, "allowed")),
        )
        for row in rows_at(own, "probes")
        for look in rows_at(row, "promises")
    ]
    if rows:
        heads = ("probe", "promise", "load", "requests", "over the limit", "95 % interval",
                 "allowed")  # fmt: skip
        yield table("What each promise was judged by", heads, rows, words=2)


def _reuse(probes: Sequence[Json]) -> list[Html]:
    rows = [
        (figures(needed(row, "load")), percent(number(row, "reuse_hit_ratio"))) for row in probes
    ]
    return [table("Hit ratio of each probe", ("load", "hit ratio"), rows)] if rows else []


def _passports(own: Json) -> list[Html]:
    rows = [
        (
            as_text(row.get("probe")),
            badge(word(row, "verdict")),
            "; ".join(reasons_at(row, "reasons")) or NOTHING,
        )
        for row in rows_at(own, "probes")
    ]
    return (
        [table("The verdict on each probe", ("probe", "verdict", "reasons"), rows, words=3)]
        if rows
        else []
    )


def summary(own: Json) -> Mapping[str, str]:
    """A line of the table that sets several searches side by side."""
    return {
        "verdict": word(own, "verdict"),
        "capacity": figures(number(own, "answer.load")),
        "unit": word(own, "unit"),
        "interval": answer_interval(own),
        "requests/s": figures(number(own, "answer.requests_per_s")),
        "read GiB/s": figures(number(own, "answer.storage_read_bytes_per_s") / GIB),
        "limited by": word(own, "limited_by.what") or NOTHING,
    }


def together(docs: Sequence[Doc]) -> Chart:
    """The p95 of all searches over throughput, on one axis."""
    points = sorted(
        ((_completed(row), index, row) for index, doc in enumerate(docs)
         for row in rows_at(doc.own, "probes")),
        key=lambda point: point[:2],
    )  # fmt: skip
    lines = [_of_search(doc, index, points) for index, doc in enumerate(docs)]
    axis = Axis(key="all-throughput", kind=LINEAR, label="requests completed/s",
                places=[x for x, _, _ in points])  # fmt: skip
    rows = [(docs[of].label, figures(x), figures(_p95(row))) for x, of, row in points]
    return Chart(
        title="Response p95 over requests completed", unit="ms", axis=axis, log=True, lines=lines,
        says="Open points did not keep what was promised.",
        table=ChartTable(heads=("", "requests/s", "p95 ms"), rows=rows),
    )  # fmt: skip


def _p95(row: Json) -> float:
    return number(row, "response_ms.p95")


def _of_search(doc: Doc, index: int, points: Sequence[tuple[float, int, Json]]) -> ChartLine:
    """One search among the points of all."""
    dash = ("", "dash", "dot", "chain")[index % 4]
    own = _line(called(doc), [row for _, of, row in points if of == index], _completed, _p95, 0)
    return replace(
        own, look=index % 9, dash=dash,
        values=[_p95(row) if of == index else nan for _, of, row in points],
        hollow=[place for place, (_, of, row) in enumerate(points)
                if of == index and row.get("inside") is not True],
    )  # fmt: skip
