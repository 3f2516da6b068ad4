"""All values of a latency as a line of percentiles."""

from collections.abc import Callable, Sequence

from kv_cache.core.format import figures
from kv_cache.core.units import AT_LEAST
from kv_cache.metrics.histogram import Histogram, supported
from kv_cache.result.metrics import Metric
from kv_cache.result.published import Percentiles
from kv_cache.view import units
from kv_cache.view.parts import Cell, Figure, Line, Row, Scale, ShownColumn, Table

NAMED = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_FINEST = 16  # points for each factor of ten in the share above
_MOST_NINES = 4
_PERCENTS = [
    round(100 - 10 ** (2 - step / _FINEST), 6) for step in range(_MOST_NINES * _FINEST + 1)
]
PERCENTILE_AXIS = ShownColumn("percentile (share of values below)", units.COUNT)

Curve = tuple[str, Histogram]
"""A name and all values, in ns."""


def percentile_figure(title: str, curves: Sequence[Curve], caption: str = "") -> Figure | None:
    """Times over percentiles up to p99.99; None without a value."""
    some = [(name, histogram) for name, histogram in curves if histogram.count]
    if not some:
        return None
    lines = [_line(name, histogram) for name, histogram in some]
    part = any(len(line.points) < len(_PERCENTS) for line in lines)
    note = "A line leaves out what too few values show, and lower bounds." if part else ""
    return Figure(
        title=title,
        x=PERCENTILE_AXIS,
        y=ShownColumn("time", units.MS_OF_NS),
        lines=lines,
        scale=Scale.PERCENTILE,
        log_y=True,
        caption=" ".join(text for text in (caption, note) if text),
        detail=True,
        numbers=_numbers(title, some),
    )


def _line(name: str, histogram: Histogram) -> Line:
    """What enough values lie beyond, and is no lower bound."""
    known = [percent for percent in _PERCENTS if supported(histogram.count, percent)]
    bounds = zip(known, histogram.bounds(known) if known else [], strict=True)
    return Line.through(name, ((p, None if b.at_least else b.value) for p, b in bounds))


def _numbers(title: str, curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = [
        [name, histogram.count, *percentile_cells(histogram, NAMED), _ms(histogram.highest or 0)]
        for name, histogram in curves
    ]
    times = [ShownColumn(name, units.MS) for name in (*(f"p{p:g}" for p in NAMED), "max")]
    columns = [ShownColumn("line"), ShownColumn("values", units.COUNT), *times]
    return Table(title=title, columns=columns, rows=rows)


def percentile_columns(
    names: Sequence[str], times: Callable[[Row], Percentiles], what: str = ""
) -> dict[ShownColumn, Callable[[Row], Cell]]:
    """A column for each percentile of what a row took, for `Table.of`."""

    def cell(name: str) -> Callable[[Row], Cell]:
        return lambda row: percentile_cell(times(row), name)

    return {ShownColumn(f"{what} {name}".strip(), units.MS): cell(name) for name in names}


def percentile_cell(latency: Percentiles, name: str) -> Cell:
    """A percentile in ms: None where too few values support it, a text where it is a lower
    bound."""
    value: float | None = getattr(latency, name)
    if value is None or name not in latency.at_least:
        return value
    return f"{AT_LEAST}{figures(value)}"


def ms_text(latency: Percentiles, name: str) -> str:
    """The same as a text."""
    return ShownColumn(name, units.MS).text(percentile_cell(latency, name))


def bounded(metric: Metric, value: float | None, at_least: bool) -> Cell:
    """A metric's value in its stored unit, a text in that for people where it is a lower bound."""
    return metric.shown(value, at_least) if at_least else value


def percentile_cells(histogram: Histogram, percents: Sequence[float]) -> list[Cell]:
    """Percentiles in ms: None where too few values support one, a text where it is a lower
    bound."""
    known = [percent for percent in percents if supported(histogram.count, percent)]
    bounds = dict(zip(known, histogram.bounds(known), strict=True)) if known else {}
    return [
        None
        if percent not in bounds
        else f"{AT_LEAST}{units.MS_OF_NS.text(bounds[percent].value)}"
        if bounds[percent].at_least
        else _ms(bounds[percent].value)
        for percent in percents
    ]


def _ms(ns: float) -> float:
    return ns / 1e6
