"""What can be shown, whatever the form: a kind of result yields these, and a renderer knows no
other. Numbers keep their unit until they are shown; `ShownColumn.text` is the one place that
converts and rounds, so no form can differ from another.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from statistics import fmean, median
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.format import figures
from kv_cache.core.units import MISSING
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.view import units

Cell = str | float | None
Row = TypeVar("Row")


class ShownColumn(Struct, frozen=True):
    """A column of a table or an axis of a figure. Without a unit its cells are words; those of a
    `status` column are verdicts and the like, which a page draws as badges; beside the shares of a
    `bar` column it draws how long they are."""

    title: str
    unit: units.DisplayUnit | None = None
    status: bool = False
    bar: bool = False

    @property
    def heading(self) -> str:
        """The title with its unit, as in `read, GiB/s`."""
        return f"{self.title}, {self.unit.name}" if self.unit and self.unit.name else self.title

    def shown(self, value: float | None) -> float | None:
        """A value in the unit that is shown."""
        return None if value is None or self.unit is None else value / self.unit.scale

    def measured(self, value: Cell) -> str:
        """A value with its unit, for a sentence."""
        if value is None or isinstance(value, str) or self.unit is None:
            return self.text(value)
        return self.unit.measured(value)

    def text(self, cell: Cell) -> str:
        """A cell as every form prints it."""
        if isinstance(cell, str):
            return cell or MISSING
        return figures(cell) if self.unit is None else self.unit.text(cell)


class FactList(Struct, frozen=True, kw_only=True):
    """Names with a text each."""

    title: str = ""
    rows: Sequence[tuple[str, str]]
    detail: bool = False


class KeyNumber(Struct, frozen=True, kw_only=True):
    """One of the few numbers that a reader looks for first; `note` says how sure or of what."""

    column: ShownColumn
    value: Cell
    note: str = ""


class KeyNumbers(Struct, frozen=True, kw_only=True):
    """The headline of a result: cards on a page, rows elsewhere."""

    title: str = ""
    numbers: Sequence[KeyNumber]

    def table(self) -> "FactList":
        return FactList(
            title=self.title,
            rows=[
                (
                    number.column.title,
                    number.column.measured(number.value)
                    + (f" ({number.note})" if number.note else ""),
                )
                for number in self.numbers
            ],
        )


class Table(Struct, frozen=True, kw_only=True):
    """Rows of cells in the columns' stored units; `marked` are the places
    (row, column) that stand out with a `*`. A `detail` is folded on a page and is in no short
    form."""

    title: str = ""
    columns: Sequence[ShownColumn]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()
    detail: bool = False

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        columns: Mapping[ShownColumn, Callable[[Row], Cell]],
        *,
        title: str = "",
        caption: str = "",
        detail: bool = False,
    ) -> "Table":
        """A row for each thing; a column says how its cell is read from the thing."""
        cells = [[cell(row) for cell in columns.values()] for row in rows]
        return cls(title=title, columns=list(columns), rows=cells, caption=caption, detail=detail)

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    def cells(self) -> list[list[str]]:
        """The texts of all rows: what every form prints."""
        return [
            [
                column.text(cell) + ("*" if (number, place) in self.marked else "")
                for place, (column, cell) in enumerate(zip(self.columns, row, strict=True))
            ]
            for number, row in enumerate(self.rows)
        ]


class Scale(StrEnum):
    """What a horizontal axis is: numbers, their logarithms, seconds of a run, or the nines of a
    percentile (0, 1, 2 are p0, p90, p99)."""

    LINEAR = "linear"
    LOG = "log"
    TIME = "time"
    PERCENTILE = "percentile"


class PlotPoint(Struct, frozen=True, kw_only=True):
    """A place of a line in stored units, with its interval, if it has one. `mark` is a word for
    points that are not like the others, such as `outside`; `label` stands beside it."""

    x: float
    y: float
    interval: IntervalEnds | None = None
    mark: str = ""
    label: str = ""


class Line(Struct, frozen=True, kw_only=True):
    """Points that a line joins in their order; a figure of one line may leave its name empty. It
    may take another `path`, such as through the mean of several points, or none: () leaves dots. A
    `muted` line is what others are compared with: a bound, or what was offered."""

    name: str
    points: Sequence[PlotPoint]
    muted: bool = False
    path: Sequence[tuple[float, float]] | None = None

    @classmethod
    def through(
        cls, name: str, places: Iterable[tuple[float, float | None]], *, muted: bool = False
    ) -> "Line":
        """A line through places of which the heights are known."""
        points = [PlotPoint(x=x, y=y) for x, y in places if y is not None]
        return cls(name=name, points=points, muted=muted)


class Level(Struct, frozen=True, kw_only=True):
    """A named height that lines are compared with, such as an SLO, in the y axis' stored unit."""

    name: str
    y: float


class Place(Struct, frozen=True, kw_only=True):
    """A named place on the horizontal axis, such as the answer of a search."""

    name: str
    x: float


class Band(Struct, frozen=True, kw_only=True):
    """A named part of the horizontal axis: a phase of a run, or an interval. What does not count
    is `shaded`."""

    name: str
    start: float
    end: float
    shaded: bool = True


class Figure(Struct, frozen=True, kw_only=True):
    """Lines over an axis of numbers. The y axis begins at 0, unless it is logarithmic (`log_y`) or
    `zero` is False, and reaches `reach` at least. `whole` x are counted. With `steps` a line stays
    level until the next point. A `detail` is on pages and in workbooks only. `numbers` are a better
    table than that of the points. `axis` are places that figures share, whether or not a line has
    a point there: those that share them are zoomed together."""

    title: str
    x: ShownColumn
    y: ShownColumn
    lines: Sequence[Line]
    scale: Scale = Scale.LINEAR
    whole: bool = False
    log_y: bool = False
    zero: bool = True
    reach: float = 0.0
    steps: bool = False
    levels: Sequence[Level] = ()
    places: Sequence[Place] = ()
    bands: Sequence[Band] = ()
    caption: str = ""
    detail: bool = False
    numbers: Table | None = None
    axis: Sequence[float] = ()

    def points(self) -> Iterator[PlotPoint]:
        return (point for line in self.lines for point in line.points)

    def thinned(self, most: int) -> "Figure":
        """The same with about `most` places: neighbours in one band become their mean, or their
        median on a logarithmic axis."""
        places = self.places_drawn()
        together = -(-len(places) // most)
        if together <= 1:
            return self
        ends = [band.end for band in self.bands]
        several = [list(each) for _, each in groupby(places, lambda x: bisect_left(ends, x))]
        groups = [run[at : at + together] for run in several for at in range(0, len(run), together)]
        middles = {x: fmean(group) for group in groups for x in group}
        what = "median" if self.log_y else "mean"
        return replace(
            self,
            lines=[replace(line, points=self._merged(line, middles)) for line in self.lines],
            axis=[fmean(group) for group in groups],
            caption=f"{self.caption} Each point is the {what} of up to {together}.".strip(),
        )

    def _merged(self, line: Line, middles: Mapping[float, float]) -> list[PlotPoint]:
        groups: dict[float, list[PlotPoint]] = {}
        for point in line.points:
            groups.setdefault(middles[point.x], []).append(point)
        middle = median if self.log_y else fmean
        return [
            PlotPoint(x=x, y=middle([p.y for p in group]), mark=group[-1].mark)
            for x, group in groups.items()
        ]

    def places_drawn(self) -> list[float]:
        """All x, in their order."""
        return sorted({*self.axis, *(point.x for point in self.points())})

    def table(self) -> Table:
        """The numbers that are drawn."""
        if self.numbers is not None:
            return self.numbers
        rows = [(line.name, point) for line in self.lines for point in line.points]
        names = any(name for name, _ in rows)
        spans = any(point.interval is not None for point in self.points())
        marks = any(point.mark for point in self.points())
        first = [ShownColumn("line")] if names else []
        ends = [ShownColumn("from", self.y.unit), ShownColumn("to", self.y.unit)] if spans else []
        last = [*ends, *([ShownColumn("mark")] if marks else [])]
        return Table(
            title=self.title,
            columns=[*first, self.x, self.y, *last],
            rows=[
                [
                    *([name] if names else []),
                    p.x,
                    p.y,
                    *(_ends(p.interval) if spans else []),
                    *([p.mark or MISSING] if marks else []),
                ]
                for name, p in rows
            ],
        )


def _ends(interval: IntervalEnds | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def interval_columns(
    unit: units.DisplayUnit, interval: Callable[[Row], IntervalEnds | None]
) -> dict[ShownColumn, Callable[[Row], Cell]]:
    """Columns of both ends of an interval, for `Table.of`."""
    return {
        ShownColumn("from", unit): lambda row: _ends(interval(row))[0],
        ShownColumn("to", unit): lambda row: _ends(interval(row))[1],
    }


class IntervalRow(Struct, frozen=True, kw_only=True):
    """Something named, with what was measured of it and an interval, as shares of a reference
    above or below it; `text` is its value, `mark` a word for what the interval says."""

    name: str
    text: str
    values: Sequence[float]
    interval: IntervalEnds | None = None
    mark: str = ""


class IntervalChart(Struct, frozen=True, kw_only=True):
    """Rows that share one axis of differences from a reference, which is at 0."""

    title: str = ""
    axis: str
    rows: Sequence[IntervalRow]
    caption: str = ""

    @property
    def reach(self) -> float:
        """How far the axis goes to each side: as far as the values, within bounds; an interval may
        go further."""
        far = [abs(value) for row in self.rows for value in row.values]
        return min(1.5, max([0.1, *(1.2 * each for each in far)]))

    def table(self) -> Table:
        marks = any(row.mark for row in self.rows)
        last = [ShownColumn("finding", status=True)] if marks else []
        return Table(
            title=self.title,
            columns=[ShownColumn(""), ShownColumn("value"), ShownColumn("from", units.PERCENT),
                     ShownColumn("to", units.PERCENT), *last],
            rows=[
                [row.name, row.text, *_ends(row.interval), *([row.mark] if marks else [])]
                for row in self.rows
            ],
            caption=self.caption,
        )  # fmt: skip


class BarRow(Struct, frozen=True, kw_only=True):
    """Something named, with its parts behind one another in the chart's stored unit, values at
    which it is marked, and the interval of a bar of one part."""

    name: str
    parts: Sequence[float]
    marks: Sequence[float | None] = ()
    interval: IntervalEnds | None = None


class BarChart(Struct, frozen=True, kw_only=True):
    """Rows that are compared by how long they are. `parts` and `marks` are named once for all."""

    title: str
    x: ShownColumn
    parts: Sequence[str]
    marks: Sequence[str] = ()
    rows: Sequence[BarRow]
    caption: str = ""

    @property
    def reach(self) -> float:
        """The longest bar, or what lies beyond it."""
        marks = [mark for row in self.rows for mark in row.marks if mark is not None]
        ends = [row.interval.high for row in self.rows if row.interval is not None]
        return max([*(sum(row.parts) for row in self.rows), *marks, *ends], default=0.0)

    def table(self) -> Table:
        several = len(self.parts) > 1
        spans = any(row.interval is not None for row in self.rows)
        names = [*self.parts, *(["all"] if several else []), *self.marks,
                 *(["from", "to"] if spans else [])]  # fmt: skip
        return Table(
            title=self.title,
            columns=[ShownColumn(""), *(ShownColumn(name, self.x.unit) for name in names)],
            rows=[
                [
                    row.name,
                    *row.parts,
                    *([sum(row.parts)] if several else []),
                    *row.marks,
                    *(_ends(row.interval) if spans else []),
                ]
                for row in self.rows
            ],
            caption=self.caption,
        )


class FlowArrow(Struct, frozen=True, kw_only=True):
    """Bytes that went from one node to another; None is outside. `name` says why."""

    start: str | None
    end: str | None
    name: str
    bytes: float


class FlowDiagram(Struct, frozen=True, kw_only=True):
    """What moved between places that stand in a column, and into and out of them; each node has a
    note, which may be empty."""

    title: str = ""
    nodes: Sequence[tuple[str, str]]
    arrows: Sequence[FlowArrow]
    caption: str = ""

    def table(self) -> Table:
        """A row for each arrow."""
        return Table(
            title=self.title,
            columns=[ShownColumn("from"), ShownColumn("to"), ShownColumn("cause"),
                     ShownColumn("moved", units.GIBIBYTES)],
            rows=[[a.start or "new", a.end or "requests", a.name, a.bytes] for a in self.arrows],
        )  # fmt: skip


class Remarks(Struct, frozen=True, kw_only=True):
    """Sentences that a reader has to know. What stands before a colon is a rule's name."""

    title: str = ""
    texts: Sequence[str]
    detail: bool = False


Part = KeyNumbers | FactList | Table | Figure | BarChart | IntervalChart | FlowDiagram | Remarks


def present(*parts: Part | None) -> list[Part]:
    """The parts that have anything to show."""
    return [part for part in parts if part is not None and not _is_empty(part)]


def _is_empty(part: Part) -> bool:
    match part:
        case KeyNumbers():
            return not part.numbers
        case Figure():
            return part.numbers is None and not any(part.points())
        case FlowDiagram():
            return not part.arrows
        case Remarks():
            return not part.texts
        case FactList() | Table() | BarChart() | IntervalChart():
            return not part.rows


class ViewSection(Struct, frozen=True, kw_only=True):
    """Parts under a heading. A part without a title of its own has the section's. Where there are
    no parts, `absent` says why; without it the section is left out. A terminal shows those alone
    that are `terminal`."""

    title: str
    parts: Sequence[Part]
    absent: str = ""
    terminal: bool = True


def hidden_section(title: str, parts: Sequence[Part], absent: str = "") -> ViewSection:
    """A section that no terminal shows."""
    return ViewSection(title=title, parts=parts, absent=absent, terminal=False)


class View(Struct, frozen=True, kw_only=True):
    """A result as it is shown: what it is, the answer as a sentence, then its sections. `status` is
    a verdict or another word for how it ended, `reasons` what that rests on; `about` says where and
    when in a few words each; `label` and `note` are the user's own words."""

    title: str
    status: str
    sentence: str
    about: Sequence[str]
    sections: Sequence[ViewSection]
    reasons: Sequence[str] = ()
    label: str = ""
    note: str = ""

    @property
    def heading(self) -> str:
        return f"{self.title}: {self.label}" if self.label else self.title

    def parts(self) -> Iterator[Part]:
        return (part for section in self.sections for part in section.parts)

    def pictures(self) -> list[Figure | BarChart | IntervalChart]:
        """What a picture shows: no details."""
        every = [
            part for part in self.parts() if isinstance(part, Figure | BarChart | IntervalChart)
        ]
        return [part for part in every if not (isinstance(part, Figure) and part.detail)]

    def remarks(self) -> list[str]:
        return [text for part in self.parts() if isinstance(part, Remarks) for text in part.texts]
