"""What a comparison shows: what is compared, each metric's ratio with its interval and whether that
is better or worse, what else differs, and the results over each other."""

from collections.abc import Iterator, Sequence

from kv_cache.core.errors import UsageError
from kv_cache.core.format import as_text, figures
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import AT_LEAST, AT_MOST, MISSING
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.passport import VALID
from kv_cache.result.comparison import (
    Comparison,
    Finding,
    Input,
    Row,
    compare,
    count_text,
    digest_text,
    is_lower_bound,
    require_all_comparable,
)
from kv_cache.result.metrics import METRICS, Metric
from kv_cache.result.paths import number_at, value_at
from kv_cache.result.published import PublishedRun
from kv_cache.view import series, units
from kv_cache.view.identity import doubts, drive_texts, headline_text, identity_facts
from kv_cache.view.latency import bounded, percentile_figure
from kv_cache.view.moves import side_times
from kv_cache.view.parts import (
    Cell,
    Figure,
    Part,
    Remarks,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    present,
)
from kv_cache.view.run import tier_table, traced_only

_MOST_NAMED = 6


def comparison_view(inputs: Sequence[Input]) -> View:
    """The first result against each other one; the numbers side by side if they may not be
    compared. Raises MisshapenError."""
    try:
        require_all_comparable(inputs)
        comparison, why_not = compare(inputs), ""
    except UsageError as error:
        comparison, why_not = None, str(error)
    return View(
        title="Comparison",
        status="compared" if comparison is not None else "not compared",
        sentence=_sentence(comparison, why_not),
        about=[],
        reasons=[*_the_same(inputs), *(text for each in inputs for text in _doubts(each))],
        sections=[
            _inputs(inputs),
            *_numbers(inputs, comparison),
            *_differences(comparison),
            hidden_section("Over each other", _overlaid(inputs)),
            hidden_section("Tiers", _tiers(inputs)),
        ],
    )


def _the_same(inputs: Sequence[Input]) -> Iterator[str]:
    """Say it of each result that one before it is: no number between them says anything."""
    for number, each in enumerate(inputs):
        for other in inputs[:number]:
            if each.fingerprint is not None and each.fingerprint == other.fingerprint:
                yield f"{each.label} is the very result that {other.label} is (same fingerprint)"
                break


def _doubts(each: Input) -> list[str]:
    reasons = [] if each.verdict == VALID else each.reasons or ["no reason"]
    return [f"{each.label} is {each.verdict}: {text}" for text in doubts(each.section, reasons)]


def _sentence(comparison: Comparison | None, why_not: str) -> str:
    """What became of the headline, and behind it how many of the others differ."""
    if comparison is None:
        return f"No ratio is given: {why_not}."
    others = [row for row in comparison.rows if row.metric is not comparison.headline]
    counts = {finding: sum(row.finding is finding for row in others) for finding in Finding}
    differ = counts[Finding.DIFFERS]
    better = sum(row.better is True for row in others if row.finding is Finding.DIFFERS)
    base = comparison.inputs[0].label
    answers = [_answer(row, base) for row in comparison.rows if row.metric is comparison.headline]
    return (
        f"{' '.join(answers)} Of {len(others)} other numbers {differ} differ ({better} better, "
        f"{differ - better} worse), {counts[Finding.UNCERTAIN]} may, in "
        f"{counts[Finding.NONE_FOUND]} no difference was found, {counts[Finding.NOT_JUDGED]} have "
        "no interval."
    )


def _answer(row: Row, base: str) -> str:
    """The headline of one result against the baseline's."""
    what, ratio = f"{row.metric.label} of {row.label}", f"{figures(row.ratio)} of {base}'s"
    if row.interval is None:
        return f"Whether {what} differs is not known: {ratio}, without interval."
    ratio += f" ({figures(row.interval.low)} to {figures(row.interval.high)})"
    if row.better is None:
        return f"No difference was found in {what}: {ratio}."
    return f"{what[0].upper()}{what[1:]} is {_word(row)}: {ratio}."


# --- what is compared ------------------------------------------------------------------------


def _inputs(inputs: Sequence[Input]) -> ViewSection:
    base = inputs[0]
    facts = [dict(_facts(each)) for each in inputs]
    names = dict.fromkeys(name for row in facts for name in row)
    about = Table(
        columns=[ShownColumn(""), *(ShownColumn(each.label) for each in inputs)],
        rows=[
            cells
            for name in names
            if set(cells := [name, *(row.get(name, "") for row in facts)]) - {name, "", MISSING}
        ],
        caption=f"{base.label} is the baseline.",
    )
    return ViewSection(title="What is side by side", parts=[about])


def _facts(each: Input) -> Iterator[tuple[str, str]]:
    yield "file", str(each.path)
    yield "verdict", each.verdict
    yield "of", count_text(each)
    yield from dict(identity_facts(each.section)).items()
    if drives := drive_texts(each.section):
        yield "drive", "; ".join(drives)
    yield "headline", headline_text(each.section)
    yield "schedule", digest_text(each, each.schedules[0])
    yield "program", as_text(each.section.get("program_version"))
    yield "started", as_text(each.section.get("started_utc"))
    yield "fingerprint", (each.fingerprint or "")[:16]


# --- the numbers -----------------------------------------------------------------------------


def _numbers(inputs: Sequence[Input], comparison: Comparison | None) -> Iterator[ViewSection]:
    if comparison is None:
        yield ViewSection(title="Numbers side by side", parts=[_side_by_side(inputs)])
        return
    base = inputs[0]
    for other in inputs[1:]:
        rows = comparison.against(other.label)
        unjudged = Remarks(texts=list(_without_interval(rows)))
        parts = [_ratios(base, other, rows), *present(unjudged)]
        yield ViewSection(title=f"{other.label} against {base.label}", parts=parts)
    yield ViewSection(title="How sure", parts=[Remarks(texts=[_how_sure(comparison)])])


def _in_unit(metric: Metric, value: float | None, at_least: bool) -> Cell:
    return bounded(metric, value, True) if at_least else value and value / metric.scale


def _label(metric: Metric) -> str:
    return f"{metric.label}, {metric.shown_unit}"


def _ratios(base: Input, other: Input, rows: Sequence[Row]) -> Table:
    return Table.of(
        rows,
        {
            ShownColumn("metric"): lambda row: _label(row.metric),
            ShownColumn(f"{other.label} is", status=True): _word,
            ShownColumn(base.label, units.COUNT): lambda row: _in_unit(
                row.metric, row.baseline, row.at_least[0]
            ),
            ShownColumn(other.label, units.COUNT): lambda row: _in_unit(
                row.metric, row.value, row.at_least[1]
            ),
            ShownColumn(f"{other.label}/{base.label}", units.COUNT): _ratio,
            ShownColumn("from", units.COUNT): lambda row: row.interval and row.interval.low,
            ShownColumn("to", units.COUNT): lambda row: row.interval and row.interval.high,
        },
    )


def _ratio(row: Row) -> Cell:
    """A ratio, with a sign where of one value no more than a lower bound is known."""
    if row.ratio is None or not any(row.at_least):
        return row.ratio
    return f"{AT_LEAST if row.at_least[1] else AT_MOST}{figures(row.ratio)}"


def _word(row: Row) -> str:
    if row.better is None:
        return "not judged" if row.finding is Finding.NOT_JUDGED else "no difference found"
    word = "better" if row.better else "worse"
    return word if row.finding is Finding.DIFFERS else f"{word}?"


def _without_interval(rows: Sequence[Row]) -> Iterator[str]:
    for reason in dict.fromkeys(row.why_none for row in rows if row.why_none is not None):
        labels = [row.metric.label for row in rows if row.why_none == reason]
        few = len(labels) <= _MOST_NAMED
        names = ", ".join(labels) if few else f"{len(labels)} of the above"
        yield f"No interval for {names}: {reason}."


def _how_sure(comparison: Comparison) -> str:
    if all(row.interval is None for row in comparison.rows):
        return "No number has an interval: nothing is said about whether these results differ."
    text = (
        f"From and to are the {CONFIDENCE:.0%} interval of the ratio, which comes from the spread "
        f"{comparison.spread}. Each stands alone. {comparison.headline.label.capitalize()} is the "
        "headline: it is judged first and alone. Better and worse of the others hold for all "
        f"{comparison.family} that are not the same thing twice together (Holm), with ? only alone."
    )
    if comparison.inputs[0].trials is not None:
        return f"{text} Values are geometric means."
    return (
        f"{text} Runs differ from each other by more than windows of one run do: whether a "
        "difference is larger than that cannot be told from one run each; give both --trials 5."
    )


def _side_by_side(inputs: Sequence[Input]) -> Table:
    def cell(each: Input, metric: Metric) -> Cell:
        return _in_unit(metric, _value(each, metric), is_lower_bound(each, metric))

    rows = [(metric, [cell(each, metric) for each in inputs]) for metric in METRICS.values()]
    return Table(
        columns=[ShownColumn("metric"), *(ShownColumn(each.label, units.COUNT) for each in inputs)],
        rows=[
            [_label(metric), *cells]
            for metric, cells in rows
            if any(cell is not None for cell in cells)
        ],
    )


def _value(each: Input, metric: Metric) -> float | None:
    """Of trials the median."""
    if each.trials is None:
        return metric.value(each.section)
    rows = value_at(each.section, "metrics")
    return number_at(rows.get(metric.name) if isinstance(rows, dict) else None, "median")


# --- what else differs -----------------------------------------------------------------------


def _differences(comparison: Comparison | None) -> Iterator[ViewSection]:
    if comparison is None:
        return
    labels = [each.label for each in comparison.inputs]
    same = "Program, machine, drives, places and configuration are the same."
    warning = "Configurations differ: the ratios are of that as much as of the drives."
    configured = any(each.kind == "configuration" for each in comparison.differs)
    table = Table(
        columns=[ShownColumn("what"), ShownColumn("kind"), *map(ShownColumn, labels)],
        rows=[[d.name, d.kind, *map(as_text, d.values)] for d in comparison.differs],
        caption=warning if configured else "",
    )
    parts: list[Part] = [table] if table.rows else [Remarks(texts=[same])]
    yield ViewSection(title="What else differs", parts=parts)


# --- over each other -------------------------------------------------------------------------


def _runs(inputs: Sequence[Input]) -> dict[str, PublishedRun]:
    """The single runs among the results, that timed anything."""
    runs = {
        _line_name(each): each.run for each in inputs if each.run is not None and each.ranks is None
    }
    return {label: run for label, run in runs.items() if not traced_only(run)}


_LONGEST_NAME = 28


def _line_name(each: Input) -> str:
    """The label and the end of the file's name."""
    name = each.path.name.removesuffix(".json")
    short = name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
    return f"{each.label} {short}"


def _overlaid(inputs: Sequence[Input]) -> list[Part]:
    runs = _runs(inputs)
    if len(runs) < 2:
        return []
    reads = [
        (label, side_times(run, "storage", OpKind.READ, "total")) for label, run in runs.items()
    ]
    responses = [(label, _responses(run)) for label, run in runs.items()]
    return present(
        *_over_time(runs),
        percentile_figure("One storage read (whole), each result", reads),
        percentile_figure("Response of all requests, each result", responses),
    )


def _responses(run: PublishedRun) -> Histogram:
    every = run.measured.get("all")
    return Histogram() if every is None else every.histogram_response


def _over_time(runs: dict[str, PublishedRun]) -> Iterator[Figure]:
    measured = {label: series.measured_windows(run) for label, run in runs.items()}
    known = {label: windows for label, windows in measured.items() if windows}
    if len(known) < 2:
        return
    step = series.common_step(list(known.values()))
    moved, time = ShownColumn("moved", units.GIB_PER_S), ShownColumn("time", units.MS)
    for title, column, value in (
        ("Storage read", moved, series.side_rate("storage", "read")),
        ("Storage write", moved, series.side_rate("storage", "write")),
        ("Storage read p95", time, series.side_percentile("read", "p95")),
    ):
        lines = {label: series.stepped(windows, step, value) for label, windows in known.items()}
        some = {label: line for label, line in lines.items() if line}
        if any(height > 0 for line in some.values() for height in line.values()):
            yield series.stepped_figure(title, column, some, step, log_y=column is time)


def _tiers(inputs: Sequence[Input]) -> list[Part]:
    """What each tier of each run moved."""
    tables = [
        (each.label, tier_table(each.run))
        for each in inputs
        if each.run is not None and not traced_only(each.run)
    ]
    if not tables:
        return []
    rows = [[label, *row] for label, table in tables for row in table.rows]
    return [Table(columns=[ShownColumn("of"), *tables[0][1].columns], rows=rows)]
