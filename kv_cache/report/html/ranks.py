"""The report of several ranks that ran together: all of them as one, and each in a line.

Percentiles are those of merged histograms, as the document has them. What each rank saw over time
stands in its own result, which is inside the document; a report of it is made of its own file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan

from kv_cache.core.format import as_text, figures
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import GIB, NS_PER_MS
from kv_cache.report.html.charts import TIME, Axis, Book, Chart, ChartLine, ChartTable
from kv_cache.report.html.common import common_sections, machine
from kv_cache.report.html.flow import flow_content
from kv_cache.report.html.parts import (
    Card,
    Doc,
    Json,
    Section,
    badge,
    bullets,
    percent,
    reasons_at,
    table,
    text_at,
)
from kv_cache.report.html.run import (
    class_curves,
    ended,
    kept_card,
    not_timed,
    passport_section,
    read_run,
    reuse_content,
    tier_curves,
    verdict_content,
)
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.html.times import bandwidth, timeline
from kv_cache.report.pictures.base import number, rows_at, word
from kv_cache.report.pictures.run import Point
from kv_cache.report.reading import SECTION
from kv_cache.result.metrics import METRICS

SCHEMA = "kv-cache-ranks/1"


def ranks_sections(doc: Doc, book: Book) -> Iterator[Section]:
    """In the order in which they are read."""
    own, run = doc.own, read_run(doc, 1)
    timed = not_timed(run)
    nothing = "No operation ended in a measured window."
    yield Section(
        slug="verdict",
        title="Verdict and headline",
        content=list(verdict_content(run, _sentences(run.own), _headline)),
    )
    yield Section(slug="ranks", title="Ranks", content=_ranks(own), absent="There is none.")
    yield Section(
        slug="together", title="Together", content=_together(own),
        absent="Nothing is known of when each rank began.",
    )  # fmt: skip
    yield Section(
        slug="time", title="Over time", content=[] if timed else _over_time(doc, book),
        absent=timed or "No rank that counts has windows: nothing is known of how it went.",
    )  # fmt: skip
    yield Section(
        slug="tiers", title="Percentiles of each tier, all ranks",
        content=[] if timed else tier_curves(run, book), absent=timed or nothing,
    )  # fmt: skip
    yield Section(
        slug="classes", title="Percentiles of each QoS class, all ranks",
        content=[] if timed else class_curves(run, book),
        absent=timed or "No request completed in a measured window.",
    )  # fmt: skip
    yield Section(slug="flow", title="Tier flow, all ranks", content=flow_content(doc, run.flows),
                  absent=nothing)  # fmt: skip
    yield Section(
        slug="reuse", title="Reuse, all ranks", content=reuse_content(own),
        absent="Nothing is known of reuse: no request completed in a measured window.",
    )  # fmt: skip
    yield passport_section(own)
    yield Section(
        slug="apart", title="Not in this report", content=[],
        absent="Each rank has a result of its own, which is inside this document and in the "
        "rank's own file: give that file to report. Ranks are one load, and so one point of "
        "the curve of latency over throughput; capacity has all of it.",
    )  # fmt: skip
    yield from common_sections(doc)


# --- headline --------------------------------------------------------------------------------


def _sentences(own: Json) -> Iterator[str]:
    rows = rows_at(own, "ranks")
    counted = sum(row.get("counted") is True for row in rows)
    wanted = number(own, "crew.wanted")
    yield (
        f"{counted} of {figures(wanted if isfinite(wanted) else len(rows))} ranks count. "
        f"The run {ended(own)}."
    )
    if early := text_at(own, "crew.ended_early"):
        yield f"Ended early for all: {early}."
    yield (
        f"{text_at(own, 'model.name') or 'Unknown model'}, "
        f"{word(own, 'semantics_preset') or 'unknown'} semantics, seed {as_text(own.get('seed'))}."
    )
    names = ("completed_in_window", "failed", "rejected", "unfinished")
    done = [figures(number(own, f"requests.{name}")) for name in names]
    yield (
        f"{figures(number(own, 'window_s'))} s were measured. Requests of all: {done[0]} "
        f"completed, {done[1]} failed, {done[2]} rejected, {done[3]} unfinished."
    )
    if own.get("driver") == "real-io":
        yield from machine(own)
    elif own.get("driver") is not None:
        yield "Virtual time: all figures come from a model, and nothing was measured."


def _headline(own: Json) -> Iterator[Card]:
    for kind in (OpKind.READ.value, OpKind.WRITE.value):
        where = f"tiers.storage.{kind}"
        moved, rate = number(own, f"{where}.bytes"), number(own, f"{where}.bytes_per_second")
        if isfinite(rate):
            yield Card(name=f"Storage {kind}, sum", value=figures(rate / GIB), unit="GiB/s",
                       more=f"{figures(moved / GIB)} GiB" if isfinite(moved) else "")  # fmt: skip
    for count, label in (("completed", "Requests, sum"), ("output_tokens", "Output tokens, sum")):
        rate = number(own, f"measured.all.{count}_per_second")
        if isfinite(rate):
            yield Card(name=label, value=figures(rate), unit="1/s")
    for name, label in (
        ("storage.read.device_ms.p95", "Storage read p95"),
        ("storage.write.device_ms.p95", "Storage write p95"),
        ("ttft_ms.p95", "TTFT p95"),
        ("response_ms.p95", "Response p95"),
        ("hit_ratio", "Hit ratio"),
    ):
        value = METRICS[name].value(own)
        if value is not None:
            yield Card(name=label, value=METRICS[name].shown_in(own), more="of all ranks' values",
                       unit=METRICS[name].shown_unit)  # fmt: skip
    yield from kept_card(own)
    skew = number(own, "crew.start_skew_ns")
    if isfinite(skew):
        yield Card(name="Start skew", value=figures(skew / NS_PER_MS), unit="ms",
                   more=_sure(number(own, "crew.start_skew_error_ns")))  # fmt: skip


def _sure(error_ns: float) -> str:
    return f"± {figures(error_ns / NS_PER_MS)} ms" if isfinite(error_ns) else ""


# --- ranks -----------------------------------------------------------------------------------

_COLUMNS = (
    ("storage.read.bytes_per_second", "read GiB/s"),
    ("storage.write.bytes_per_second", "write GiB/s"),
    ("storage.read.device_ms.p95", "read p95 ms"),
    ("storage.write.device_ms.p95", "write p95 ms"),
    ("requests_per_second", "requests/s"),
    ("response_ms.p95", "response p95 ms"),
)


def _ranks(own: Json) -> list[Html]:
    rows = rows_at(own, "ranks")
    if not rows:
        return []
    heads = ("rank", "host", "verdict", "counted", *(head for _, head in _COLUMNS))
    made = [table("Each rank", heads, [_row(row) for row in rows], words=4)]
    said = [
        (as_text(row.get("rank")), as_text(row.get("seed")), figures(number(row, "window_s")),
         as_text(row.get("fingerprint")))
        for row in rows
    ]  # fmt: skip
    seeds = ("rank", "seed", "seconds", "fingerprint of its result")
    return [
        *made,
        *bullets([f"Rank {as_text(row.get('rank'))}: {why}" for row in rows for why in _why(row)]),
        table("What each rank ran", seeds, said, words=4),
    ]


def _row(row: Json) -> tuple[object, ...]:
    found = row.get("figures")
    numbers: Mapping[str, object] = found if isinstance(found, Mapping) else {}
    return (
        as_text(row.get("rank")),
        word(row, "host") or NOTHING,
        badge(word(row, "verdict")),
        "yes" if row.get("counted") is True else "no",
        *(_shown(name, numbers.get(name)) for name, _ in _COLUMNS),
    )


def _shown(name: str, value: object) -> str:
    """Names have dots, so they are no path."""
    known = number({"n": value}, "n")
    return METRICS[name].shown(known) if isfinite(known) else NOTHING


def _why(row: Json) -> Iterator[str]:
    for name in ("why_not", "lost"):
        if text := text_at(row, name):
            yield text
    yield from reasons_at(row, "reasons")


# --- together --------------------------------------------------------------------------------


def _together(own: Json) -> list[Html]:
    """How far they measured at the same time, and when each began."""
    shared, span = number(own, "together.shared_s"), number(own, "together.span_s")
    made: list[Html] = []
    if isfinite(shared) and isfinite(span):
        made.append(
            tag(
                "p",
                f"All ranks measured at the same time for {figures(shared)} s of {figures(span)} s "
                f"({percent(number(own, 'together.shared_share'))}), from the first one's begin to "
                "the last one's end.",
            )
        )
    members = rows_at(own, "crew.members")
    opened = [number(row, "opened_ns") for row in members]
    known = [instant for instant in opened if isfinite(instant)]
    if not known:
        return made
    rows = [
        (as_text(row.get("rank")), word(row, "host") or NOTHING,
         _ms(instant - min(known)), _ms(number(row, "offset_error_ns")),
         _ms(number(row, "offset_ns")))
        for row, instant in zip(members, opened, strict=True)
    ]  # fmt: skip
    heads = ("rank", "host", "began after the first, ms", "known to ± ms", "clock ahead by, ms")
    said = (
        "A rank begins when it lets its first request in. Instants of several machines are "
        "compared after their clocks' offsets were measured."
    )
    return [*made, tag("p", said), table("When each rank began", heads, rows, words=2)]


def _ms(ns: float) -> str:
    return figures(ns / NS_PER_MS)


# --- over time -------------------------------------------------------------------------------

_MOST_LINES = 8
_MOST_POINTS = 600


def _over_time(doc: Doc, book: Book) -> list[Html]:
    """The storage bandwidth of each rank, and of all, since each one's window opened."""
    measured = _measured(doc)
    if not any(measured.values()):
        return []
    step = _step(list(measured.values()))
    made: list[Html] = []
    for kind in (OpKind.READ.value, OpKind.WRITE.value):
        rates = {rank: _stepped(points, step, kind) for rank, points in measured.items()}
        made += book.figure(_chart(doc, f"Storage {kind}", step, rates))
    if not made:
        return []
    said = f"Each point is {figures(step)} s. Each rank's time begins with its measured window."
    if len(measured) > _MOST_LINES:
        said += f" {len(measured)} ranks are more than can be told apart, so only the sum is drawn."
    return [tag("p", said), tag("div", *made, class_="charts")]


def _measured(doc: Doc) -> dict[str, list[Point]]:
    """The measured windows of each rank that counts."""
    found: dict[str, list[Point]] = {}
    for row in rows_at(doc.own, "ranks"):
        result = row.get("result")
        if row.get("counted") is not True or not isinstance(result, Mapping):
            continue
        if not isinstance(result.get(SECTION), Mapping):
            continue
        time = timeline(replace(doc, document=result))
        points = [point for point in time.points if point.phase == "measure"] if time else []
        found[as_text(row.get("rank"))] = points
    return found


def _step(measured: Sequence[Sequence[Point]]) -> float:
    """Seconds: a window of every rank is in each."""
    spans = [points[-1].end_s - points[0].start_s for points in measured if points]
    windows = [point.end_s - point.start_s for points in measured for point in points]
    return max([span / _MOST_POINTS for span in spans] + [1.001 * each for each in windows])


def _stepped(points: Sequence[Point], step: float, kind: str) -> dict[int, float]:
    """GiB/s in each step, the mean of the windows in it."""
    rate = bandwidth("storage", kind)
    found: dict[int, list[float]] = {}
    for point in points:
        if isfinite(here := rate(point)):
            found.setdefault(int((point.middle_s - points[0].start_s) // step), []).append(here)
    return {at: sum(each) / len(each) for at, each in found.items()}


def _chart(doc: Doc, title: str, step: float, rates: Mapping[str, Mapping[int, float]]) -> Chart:
    steps = sorted({at for each in rates.values() for at in each})
    places = [(at + 0.5) * step for at in steps]
    total = [sum(each.get(at, nan) for each in rates.values()) for at in steps]  # or unknown
    lines = [ChartLine(name="all ranks", values=total, look=0)]
    if len(rates) <= _MOST_LINES:
        lines += [
            ChartLine(name=f"rank {rank}", look=1 + index, dash=("dash", "dot", "chain")[index % 3],
                 values=[each.get(at, nan) for at in steps])
            for index, (rank, each) in enumerate(rates.items())
        ]  # fmt: skip
    every = max(1, -(-len(places) // 60))
    rows = [
        (figures(places[i]), *(figures(line.values[i]) for line in lines))
        for i in range(0, len(places), every)
    ]
    return Chart(
        title=title, unit="GiB/s", lines=lines,
        axis=Axis(key=doc.id("ranks-time"), kind=TIME, label="time since measuring began",
                  places=places),
        table=ChartTable(heads=("seconds", *(line.name for line in lines)), rows=rows,
                    says="" if every == 1 else f"One row of {every} is shown."),
    )  # fmt: skip
