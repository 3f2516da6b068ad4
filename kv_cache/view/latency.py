"""All values of a latency as a line of percentiles."""

from collections.abc import Sequence

from kv_cache.core.units import AT_LEAST
from kv_cache.metrics.histogram import Histogram, supported
from kv_cache.view.parts import (
    COUNT,
    MS,
    MS_OF_NS,
    Cell,
    Figure,
    Line,
    PlotPoint,
    Scale,
    ShownColumn,
    Table,
)

NAMED = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_FINEST = 16  # points for each factor of ten in the share above
_MOST_NINES = 4
_PERCENTS = [
    round(100 - 10 ** (2 - step / _FINEST), 6) for step in range(_MOST_NINES * _FINEST + 1)
]
_AXIS = ShownColumn("percentile (share of values below)", COUNT)

Curve = tuple[str, Histogram]
"""A name and all values, in ns."""


def percentile_figure(title: str, curves: Sequence[Curve], caption: str = "") -> Figure | None:
    """Times over percentiles up to p99.99; None without a value."""
    some = [(name, histogram) for name, histogram in curves if histogram.count]
    if not some:
        return None
    ends = any(not supported(histogram.count, NAMED[-1]) for _, histogram in some)
    note = "A line ends where there are too few values to know more." if ends else ""
    return Figure(
        title=title,
        x=_AXIS,
        y=ShownColumn("time", MS_OF_NS),
        lines=[Line(name=name, points=_points(histogram)) for name, histogram in some],
        scale=Scale.PERCENTILE,
        log_y=True,
        caption=" ".join(text for text in (caption, note) if text),
        detail=True,
        numbers=_numbers(title, some),
    )


def _points(histogram: Histogram) -> list[PlotPoint]:
    """As far as enough values lie beyond."""
    values = zip(_PERCENTS, histogram.percentiles(_PERCENTS), strict=True)
    return [PlotPoint(x=percent, y=ns) for percent, ns in values if ns is not None]


def _numbers(title: str, curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = [
        [name, histogram.count, *percentile_cells(histogram, NAMED), _ms(histogram.highest or 0)]
        for name, histogram in curves
    ]
    columns = [ShownColumn(f"p{percent:g}", MS) for percent in NAMED]
    return Table(
        title=title,
        columns=[ShownColumn("line"), ShownColumn("values", COUNT), *columns,
                 ShownColumn("max", MS)],
        rows=rows,
    )  # fmt: skip


def percentile_cells(histogram: Histogram, percents: Sequence[float]) -> list[Cell]:
    """Percentiles in ms: None where too few values support one, a text where it is a lower
    bound."""
    known = [percent for percent in percents if supported(histogram.count, percent)]
    bounds = dict(zip(known, histogram.bounds(known), strict=True)) if known else {}
    return [
        None
        if percent not in bounds
        else f"{AT_LEAST}{ShownColumn('', MS_OF_NS).text(bounds[percent].value)}"
        if bounds[percent].at_least
        else _ms(bounds[percent].value)
        for percent in percents
    ]


def _ms(ns: float) -> float:
    return ns / 1e6
