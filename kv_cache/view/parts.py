"""What can be shown, whatever the form: a kind of result yields these, and a renderer knows no
other. Numbers keep their unit until they are shown; `ShownColumn.text` is the one place that
converts and rounds, so no form can differ from another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_cache.core.format import figures
from kv_cache.core.units import GIB, MISSING

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class DisplayUnit:
    """A unit that people read, and how much of the stored unit is one of it."""

    name: str
    scale: float = 1.0


GIB_PER_S = DisplayUnit("GiB/s", GIB)
"""Of stored bytes/s: the unit of every rate of bytes that was measured (decision 0030)."""
MS = DisplayUnit("ms")
PER_S = DisplayUnit("1/s")
COUNT = DisplayUnit("")


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column of a table or an axis of a figure. Without a unit its cells are words."""

    title: str
    unit: DisplayUnit | None = None

    @property
    def heading(self) -> str:
        """The title with its unit, as in `read, GiB/s`."""
        return f"{self.title}, {self.unit.name}" if self.unit and self.unit.name else self.title

    def shown(self, value: float | None) -> float | None:
        """A value in the unit that is shown."""
        return None if value is None or self.unit is None else value / self.unit.scale

    def measured(self, value: float) -> str:
        """A value with its unit, for a sentence."""
        return f"{self.text(value)} {self.unit.name if self.unit else ''}".rstrip()

    def text(self, cell: Cell) -> str:
        """A cell as every form prints it."""
        if isinstance(cell, str):
            return cell or MISSING
        return figures(self.shown(cell))


@dataclass(frozen=True, slots=True, kw_only=True)
class FactList:
    """Names with a text each."""

    title: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells in the columns' stored units; `says` explains marks. `marked` are the places
    (row, column) that stand out with a `*`."""

    title: str
    columns: Sequence[ShownColumn]
    rows: Sequence[Sequence[Cell]]
    says: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotPoint:
    """A place of a line in stored units, with the ends of its interval, if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points in the order of x; a figure of one line may leave its name empty."""

    name: str
    points: Sequence[PlotPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Lines over an axis of numbers. The y axis begins at 0."""

    title: str
    x: ShownColumn
    y: ShownColumn
    lines: Sequence[Line]

    def table(self) -> Table:
        """The numbers that are drawn."""
        points = [(line.name, point) for line in self.lines for point in line.points]
        names = any(name for name, _ in points)
        spans = any(point.low is not None for _, point in points)
        first = [ShownColumn("line")] if names else []
        last = [ShownColumn("from", self.y.unit), ShownColumn("to", self.y.unit)] if spans else []
        rows = [
            [*([name] if names else []), p.x, p.y, *([p.low, p.high] if spans else [])]
            for name, p in points
        ]
        return Table(title=self.title, columns=[*first, self.x, self.y, *last], rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Sentences that a reader has to know."""

    title: str
    texts: Sequence[str]


Part = FactList | Table | Figure | Remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A result as it is shown: what it is, the answer as a sentence, then its parts. `status` is a
    verdict or another word for how it ended; `about` says where and when in a few words each."""

    title: str
    status: str
    sentence: str
    about: Sequence[str]
    parts: Sequence[Part]

    def tables(self) -> list[Table]:
        return [part for part in self.parts if isinstance(part, Table)]

    def figures(self) -> list[Figure]:
        return [part for part in self.parts if isinstance(part, Figure)]
