"""Several documents side by side: what differs, by how much, and how sure that is."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite, log, nan
from pathlib import Path

from kv_cache.core.errors import UsageError
from kv_cache.core.format import as_text, figures
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.report import capacity, precondition
from kv_cache.report.cluster.document import SCHEMA as SIM
from kv_cache.report.compare import (
    Comparison,
    Finding,
    Input,
    Row,
    compare,
    input_of,
    require_all_comparable,
)
from kv_cache.report.html.capacity import summary, together
from kv_cache.report.html.charts import (
    TIME,
    Axis,
    Book,
    Chart,
    ChartLine,
    ChartTable,
    Curve,
    percentile_chart,
)
from kv_cache.report.html.flow import flows
from kv_cache.report.html.parts import (
    Doc,
    Section,
    Strip,
    badge,
    bullets,
    called,
    dotted,
    table,
    text_at,
)
from kv_cache.report.html.ranks import SCHEMA as RANKS
from kv_cache.report.html.run import Run
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.html.times import bandwidth, storage_p95
from kv_cache.report.pictures.base import value_at, word
from kv_cache.report.pictures.run import Point
from kv_cache.report.reading import SECTION, histogram
from kv_cache.result import trials
from kv_cache.result.metrics import CONFIDENCE, METRICS, number_at

_DASHES = ("", "dash", "dot", "chain")
_NOT_COMPARED = (capacity.SCHEMA, precondition.SCHEMA, RANKS, SIM)


def side_sections(docs: Sequence[Doc], runs: Sequence[Run], book: Book) -> Iterator[Section]:
    """What stands before the reports of each. `runs` are those that are runs."""
    yield Section(slug="inputs", title="What is side by side", content=[_inputs(docs)])
    yield Section(slug="compared", title="Comparison", content=_compared(docs))
    charts = _charts(docs, runs, book)
    yield Section(
        slug="overlaid", title="Over each other",
        content=[tag("div", *charts, class_="charts")] if charts else [],
        absent="These documents have nothing that could be drawn over each other.",
    )  # fmt: skip


def _inputs(docs: Sequence[Doc]) -> Html:
    rows = [
        (
            doc.label,
            tag("a", doc.name, href=f"#{doc.id('verdict')}"),
            doc.schema.partition("/")[0].removeprefix("kv-cache-"),
            badge(word(doc.own, "passport.verdict") or word(doc.own, "verdict")),
            text_at(doc.own, "model.name") or NOTHING,
            as_text(doc.own.get("seed")),
        )
        for doc in docs
    ]
    heads = ("", "file", "what", "verdict", "model", "seed")
    return table("The first is the baseline", heads, rows, words=5)


# --- the comparison --------------------------------------------------------------------------


def _compared(docs: Sequence[Doc]) -> list[Html]:
    if all(doc.schema == capacity.SCHEMA for doc in docs):
        return [_searches(docs)]
    if all(doc.schema == RANKS for doc in docs):
        said = "Results of several ranks are set side by side, and no ratio is given."
        return [tag("p", said, class_="absent"), _values(docs)]
    if any(doc.schema in _NOT_COMPARED for doc in docs):
        return [tag("p", "These are documents of different kinds: their numbers are not compared.")]
    try:
        found = _comparison(docs)
    except UsageError as error:
        said = f"No ratio is given: {error}."
        return [tag("p", said, class_="absent"), _values(docs)]
    return [*_ratios(found), *_differences(found)]


def _comparison(docs: Sequence[Doc]) -> Comparison:
    """Raises UsageError if they were not asked for the same."""
    inputs = [input_of(doc.label, Path(doc.name), doc.document) for doc in docs]
    require_all_comparable(inputs)
    return compare(inputs)


def _searches(docs: Sequence[Doc]) -> Html:
    rows = [(doc.label, *summary(doc.own).values()) for doc in docs]
    return table("Answers of the searches", ("", *summary(docs[0].own)), rows, words=2)


def _values(docs: Sequence[Doc]) -> Html:
    """Side by side, for those who know what they do."""
    every = {name: [_value(doc, name) for doc in docs] for name in METRICS}
    rows = [
        (METRICS[name].label, METRICS[name].shown_unit, *map(METRICS[name].shown, values))
        for name, values in every.items()
        if any(value is not None for value in values)
    ]
    heads = ("", "unit", *(doc.label for doc in docs))
    return table("Numbers side by side", heads, rows, words=2)


_RATES = {
    "requests_per_second": "measured.all.completed_per_second",
    "output_tokens_per_second": "measured.all.output_tokens_per_second",
}


def _value(doc: Doc, name: str) -> float | None:
    if doc.schema == RANKS and name in _RATES:  # of which each rank's has its own window
        return number_at(doc.own, _RATES[name])
    if doc.schema != trials.SCHEMA:
        return METRICS[name].value(doc.own)
    metrics = value_at(doc.own, "metrics")
    row = metrics.get(name) if isinstance(metrics, dict) else None
    return number_at(row, "median") if isinstance(row, dict) else None


def _ratios(found: Comparison) -> Iterator[Html]:
    for other in found.inputs[1:]:
        yield from _ratio_table(found, other)
    judged = sum(row.interval is not None for row in found.rows)
    yield tag("p", *_how_sure(found, judged))


def _how_sure(found: Comparison, judged: int) -> Iterator[str]:
    if not judged:
        yield "No number has an interval: nothing is said about whether these results differ."
        return
    yield (
        f"Intervals ({CONFIDENCE:.0%}) come from the spread {found.spread}. Each stands alone; "
        f"better and worse hold for all {judged} together (Holm), and with ? only alone. "
    )
    if found.inputs[0].trials is None:
        yield (
            "Runs differ from each other by more than windows of one run do: whether a difference "
            "is larger than that cannot be told from one run each; give both --trials 5."
        )


def _ratio_table(found: Comparison, other: Input) -> Iterator[Html]:
    base, rows = found.inputs[0].label, found.against(other.label)
    reach = _reach(rows)
    heads = ("", "unit", "less or more", f"{other.label} is", base, other.label,
             f"{other.label}/{base}", "95 % interval")  # fmt: skip
    yield table(
        f"{other.label} against {base}", heads, [_ratio_row(row, reach) for row in rows], words=4
    )
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why_none is not None:
            reasons.setdefault(row.why_none, []).append(row.metric.label)
    yield from bullets(
        [f"No interval for {', '.join(names)}: {why}." for why, names in reasons.items()], "small"
    )


def _reach(rows: Sequence[Row]) -> float:
    """How far the pictures of ratios go to each side, as a logarithm: as far as the ratios."""
    every = [abs(log(row.ratio)) for row in rows if row.ratio and row.ratio > 0]
    return min(log(10), max(log(1.05), *every, 0.0) * 1.2)


def _ratio_row(row: Row, reach: float) -> tuple[object, ...]:
    metric, interval = row.metric, row.interval

    def at(ratio: float) -> float:
        return 0.5 + log(ratio) / (2 * reach) if ratio > 0 else 0.0

    kind = "" if row.better is None else "better" if row.better else "worse"
    strip = Strip(
        middle=0.5, kind=kind, dots=[] if row.ratio is None else [at(row.ratio)],
        low=None if interval is None else at(interval.low),
        high=None if interval is None else at(interval.high),
    )  # fmt: skip
    return (
        metric.label,
        metric.shown_unit,
        strip.drawn() if row.ratio is not None else "",
        _said(row),
        metric.shown(row.baseline),
        metric.shown(row.value),
        NOTHING if row.ratio is None else f"{row.ratio:.3f}",
        NOTHING if interval is None else f"{interval.low:.3f} to {interval.high:.3f}",
    )


def _said(row: Row) -> str:
    if row.better is None:
        return "not judged" if row.finding is Finding.NOT_JUDGED else "no difference found"
    word_ = "better" if row.better else "worse"
    return word_ if row.finding is Finding.DIFFERS else f"{word_}?"


def _differences(found: Comparison) -> list[Html]:
    rows = [
        (dotted(each.name), each.kind, *(as_text(value) for value in each.values))
        for each in found.differs
    ]
    if not rows:
        return [tag("p", "Program, machine, drives, places and configuration are the same.")]
    heads = ("what", "kind", *(given.label for given in found.inputs))
    made = table("What else differs", heads, rows, words=len(heads))
    if any(each.kind == "configuration" for each in found.differs):
        said = "Configurations differ: the ratios are of that as much as of the drives."
        return [tag("p", said), made]
    return [made]


# --- charts ----------------------------------------------------------------------------------


def _charts(docs: Sequence[Doc], runs: Sequence[Run], book: Book) -> list[Html]:
    if all(doc.schema == capacity.SCHEMA for doc in docs):
        return book.figure(together(docs))
    timed = [run for run in runs if not run.only_traced]
    if len(timed) < 2:
        return []
    made: list[Html] = []
    for title, unit, value, log_ in (
        ("Storage read", "GiB/s", bandwidth("storage", "read"), False),
        ("Storage write", "GiB/s", bandwidth("storage", "write"), False),
        ("Storage read p95", "ms", storage_p95("read"), True),
    ):
        chart = _over_time(timed, title, unit, value, log=log_)
        made += book.figure(chart) if chart is not None else []
    for title, found in (
        ("One storage read (whole)", _storage_reads),
        ("Response of all requests", _responses),
    ):
        chart = _curves(timed, title, found)
        made += book.figure(chart) if chart is not None else []
    return made


_MOST_POINTS = 300


def _over_time(
    runs: Sequence[Run], title: str, unit: str, value: Callable[[Point], float], *, log: bool
) -> Chart | None:
    """The measured windows of each run, all from 0 and in steps that are the same for all."""
    measured = [[p for p in run.time.points if p.phase == "measure"] if run.time else []
                for run in runs]  # fmt: skip
    step = _step(measured)
    series = [_stepped(points, step, value) for points in measured]
    steps = sorted({at for each in series for at in each})
    if not any(found > 0 for each in series for found in each.values()):
        return None
    lines = [
        ChartLine(name=called(run.doc), look=index % 9, dash=_DASHES[index % 4],
             values=[each.get(at, nan) for at in steps])
        for index, (run, each) in enumerate(zip(runs, series, strict=True))
    ]  # fmt: skip
    places = [(at + 0.5) * step for at in steps]
    axis = Axis(key="all-time", kind=TIME, label="time since measuring began", places=places)
    return Chart(
        title=f"{title} of each run", unit=unit, axis=axis, lines=lines, log=log,
        says=f"Each point is {figures(step)} s.", table=_time_table(runs, unit, places, lines),
    )  # fmt: skip


def _time_table(
    runs: Sequence[Run], unit: str, places: Sequence[float], lines: Sequence[ChartLine]
) -> ChartTable:
    every = -(-len(places) // 60)
    rows = [
        (figures(places[i]), *(figures(line.values[i]) for line in lines))
        for i in range(0, len(places), every)
    ]
    heads = ("seconds", *(f"{run.doc.label}, {unit}" for run in runs))
    return ChartTable(
        heads=heads, rows=rows, says="" if every == 1 else f"One row of {every} is shown."
    )


def _step(measured: Sequence[Sequence[Point]]) -> float:
    """Seconds: few enough points, and in each at least one window of every run."""
    spans = [points[-1].end_s - points[0].start_s for points in measured if points]
    windows = [point.end_s - point.start_s for points in measured for point in points]
    return max([span / _MOST_POINTS for span in spans] + [2 * each for each in windows] + [1e-3])


def _stepped(
    points: Sequence[Point], step: float, value: Callable[[Point], float]
) -> dict[int, float]:
    """The mean of what lies in each step that has something."""
    found: dict[int, list[float]] = {}
    for point in points:
        if isfinite(here := value(point)):
            found.setdefault(int((point.middle_s - points[0].start_s) // step), []).append(here)
    return {at: sum(each) / len(each) for at, each in found.items()}


def _curves(runs: Sequence[Run], title: str, found: Callable[[Run], Histogram]) -> Chart | None:
    curves = [
        Curve(name=called(run.doc), histogram=found(run), look=index % 9, dash=_DASHES[index % 4])
        for index, run in enumerate(runs)
    ]
    return percentile_chart(f"{title}, each run", curves)


def _storage_reads(run: Run) -> Histogram:
    some = [f for f in flows(run.doc) if (f.tier, f.operation) == ("storage", "read")]
    return merged(flow.total for flow in some)


def _responses(run: Run) -> Histogram:
    row = value_at(run.own, "measured.all")
    if not isinstance(row, dict):
        return Histogram()
    where = f"{SECTION}.measured.all"
    return histogram(row, "histogram_response", Path(run.doc.name), where)
