"""Charts: what the script on the page draws, with the figure around it and a table of the same.

A chart is data: lines over an axis that they share. The page's script draws it with uPlot and makes
nothing up. Whoever cannot see it, or has no script, has the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from kv_cache.view.page.parts import details, table
from kv_cache.view.page.safe_text import Html, plain, rounded, tag
from kv_cache.view.parts import Band

TIME, LINEAR, PERCENTILE, LOG = "time", "linear", "percentile", "log"
"""What the horizontal axis is."""

DASHES: Mapping[str, str] = {"": "", "dash": "7 4", "dot": "2 3", "chain": "8 3 2 3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """`look` is one of nine colours; `dash` tells lines apart without them. `hollow` are the points
    that are drawn open. Where there is a `through`, the line goes through those places (x, y) and
    not from point to point."""

    name: str
    values: Sequence[float]
    look: int
    dash: str = ""
    hollow: Sequence[int] = ()
    through: Sequence[tuple[float, float]] | None = None

    @property
    def there(self) -> bool:
        return any(isfinite(value) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A level with a name, such as what was promised."""

    name: str
    value: float
    look: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What lines share: `key` names it on the page, `places` are its points, and `bands` are named
    parts of it."""

    key: str
    kind: str
    label: str
    places: Sequence[float]
    bands: Sequence[Band] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartTable:
    """The numbers behind a chart. A `small` one is shown with it."""

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    says: str = ""
    small: bool = False
    words: int = 1  # columns of text


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`most` is a value that the vertical axis reaches at least, and it begins at 0 unless `zero`
    is False; `names` stand beside the first line's points, as far as they have room, and `marks`
    are named places of the axis."""

    title: str
    unit: str
    axis: Axis
    lines: Sequence[ChartLine]
    table: ChartTable
    log: bool = False
    limits: Sequence[Limit] = ()
    says: str = ""
    most: float = 0.0
    names: Sequence[str] = ()
    steps: bool = False
    zero: bool = True
    marks: Sequence[tuple[str, float]] = ()


@dataclass(slots=True)
class Book:
    """All charts of a page and the axes that they share, for the script."""

    axes: dict[str, dict[str, Any]] = field(default_factory=dict)
    charts: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, chart: Chart) -> list[Html]:
        """The chart as markup; nothing where no line has a value."""
        lines = [line for line in chart.lines if line.there]
        if not lines:
            return []
        number = len(self.charts)
        self.axes.setdefault(chart.axis.key, _axis(chart.axis))
        self.charts.append(_drawing(chart, lines))
        title = f"chart-{number}-title"
        return [
            tag(
                "figure",
                tag("figcaption", tag("h4", chart.title, id=title), *_said(chart)),
                tag("div", class_="keys", role="group", aria_label=f"Lines of {chart.title}"),
                tag("div", class_="plot", data_chart=number, tabindex=0, role="group",
                    aria_labelledby=title, aria_describedby="how-to-read"),
                tag("p", class_="readout", role="status"),
                details("Table", *_table(chart), open_=chart.table.small),
                class_="chart",
            )
        ]  # fmt: skip

    def data(self) -> dict[str, Any]:
        return {"axes": self.axes, "charts": self.charts}


def _said(chart: Chart) -> list[Html]:
    return [tag("p", chart.says)] if chart.says else []


def _table(chart: Chart) -> list[Html]:
    said = [tag("p", chart.table.says)] if chart.table.says else []
    caption = f"{chart.title}, {chart.unit}" if chart.table.small else chart.title
    return [*said, table(caption, chart.table.heads, chart.table.rows, words=chart.table.words)]


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "kind": axis.kind,
        "label": axis.label,
        "places": [rounded_place(place) for place in axis.places],
        "bands": [
            [plain(band.name), rounded(band.start), rounded(band.end), band.shaded]
            for band in axis.bands
        ],
    }


def rounded_place(place: float) -> float | int:
    """Seven figures: neighbours of an hour's ticks stay apart."""
    short = float(f"{place:.7g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def _drawing(chart: Chart, lines: Sequence[ChartLine]) -> dict[str, Any]:
    return {
        "title": plain(chart.title),
        "unit": plain(chart.unit),
        "axis": chart.axis.key,
        "log": chart.log,
        "steps": chart.steps,
        "zero": chart.zero,
        "marks": [[plain(name), rounded_place(x)] for name, x in chart.marks],
        "most": rounded(chart.most),
        "names": [plain(name) for name in chart.names],
        "lines": [
            {
                "name": plain(line.name),
                "look": line.look,
                "dash": DASHES[line.dash],
                "hollow": list(line.hollow),
                "through": None
                if line.through is None
                else [[rounded_place(x), rounded(y)] for x, y in line.through],
                "values": [rounded(_shown(value, log=chart.log)) for value in line.values],
            }
            for line in lines
        ],
        "limits": [
            {"name": plain(limit.name), "value": rounded(limit.value), "look": limit.look}
            for limit in chart.limits
        ],
    }


def _shown(value: float, *, log: bool) -> float:
    """On a logarithmic axis there is no 0."""
    return nan if log and not value > 0 else value


# --- percentiles -----------------------------------------------------------------------------
