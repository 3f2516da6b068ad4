"""A study of policies: misses, and missed bytes, over the room of the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

from kv_cache.core.units import GIB
from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Json,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    label_ends,
    logarithmic,
    needed,
    rows_at,
    value_at,
    word,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE)
_MARKS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼"}
"""Of lines, and beside their names: those of one colour differ in these."""
_LABEL = 0.15  # inches of a line's name
_LEAST_HEIGHT = 1.3
_LETTER, _MARGIN, _MOST_RIGHT = 0.058, 0.25, 2.6  # inches right of the curves
_RULES = (
    ("blocks", "miss_ratio", "misses by blocks"),
    ("blocks", "byte_miss_ratio", "bytes missed by blocks"),
    ("prefix", "miss_ratio", "misses by prefix"),
)
_MOST_PANELS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    kind: str  # bound, rule or policy
    x: Sequence[float]
    y: Sequence[float]


def lab_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    cases = rows_at(own, "cases")
    panels = [panel for case in cases for panel in _case(case, alone=len(cases) == 1)]
    if not panels:
        raise NothingToDrawError("no case has a table")
    title = (
        "What policies miss" if len(cases) != 1 else f"What policies miss: {word(cases[0], 'name')}"
    )
    return Picture(
        title=title, lines=list(_head(own, cases)), panels=panels[:_MOST_PANELS],
        right=_right(cases),
    )  # fmt: skip


def _right(cases: Sequence[Json]) -> float:
    """Inches for the longest name of a line, half of the picture at most."""
    names = [
        len(word(entry, "policy"))
        for case in cases
        for table in rows_at(case, "tables")
        for column in rows_at(table, "columns")
        for entry in rows_at(column, "entries")
    ]
    return min(_MOST_RIGHT, _MARGIN + _LETTER * max(names, default=0))


def _head(own: Json, cases: Sequence[Json]) -> Iterator[str]:
    seeds = max((needed(case, "seeds") for case in cases), default=1)
    of = f"Means of {seeds:.0f} seeds. " if seeds > 1 else ""
    yield f"{of}Dashed: what no policy undercuts. Without time: nothing was measured."
    if len(cases) == 1:
        first = needed(cases[0], "base.compulsory") / max(1, needed(cases[0], "base.lookups"))
        yield f"{100 * first:.1f} % of lookups are the first of their block."


def _case(case: Json, *, alone: bool) -> Iterator[Panel]:
    """All curves of a case that stands alone, else one."""
    tables = rows_at(case, "tables")
    for table in tables:
        name = word(table, "residency")
        held = "" if name == "own" else f", held as {name}"
        for rule, figure, title in _RULES if alone else _RULES[:1]:
            lines = list(_lines(table, rule, figure))
            if lines:
                where = "" if alone else f"{word(case, 'name')}: "
                yield _panel(f"{where}{title}{held}", lines)


def _lines(table: Json, rule: str, figure: str) -> Iterator[_Line]:
    columns = sorted(rows_at(table, "columns"), key=lambda column: needed(column, "room_bytes"))
    rows = [rows_at(column, "entries") for column in columns]
    for place, entry in enumerate(rows[0] if rows else []):
        points = [
            (needed(column, "room_bytes") / GIB, 100 * needed(entries[place], f"{rule}.{figure}"))
            for column, entries in zip(columns, rows, strict=True)
            if place < len(entries) and value_at(entries[place], rule) is not None
        ]
        if points:
            yield _Line(
                name=word(entry, "policy"), kind=word(entry, "kind"),
                x=[x for x, _ in points], y=[y for _, y in points],
            )  # fmt: skip


def _panel(title: str, lines: Sequence[_Line]) -> Panel:
    height = max(_LEAST_HEIGHT, _LABEL * (len(lines) + 1))
    return Panel(
        title=title, x="room, GiB", y="%", height=height,
        draw=lambda axes: _draw(axes, lines, height),
    )  # fmt: skip


def _draw(axes: "Axes", lines: Sequence[_Line], height: float) -> None:
    labels, policies = [], 0
    for line in lines:
        if line.kind != "policy":
            style = "--" if line.kind == "bound" else ":"
            axes.plot(line.x, line.y, style, color=GREY, linewidth=1.1)
            labels.append(Label(line.y[-1], line.name, BLACK))
            continue
        colour = _COLOURS[policies % len(_COLOURS)]
        mark, shown = list(_MARKS.items())[policies // len(_COLOURS) % len(_MARKS)]
        axes.plot(line.x, line.y, "-", color=colour, marker=mark, markersize=3, linewidth=1.1)
        labels.append(Label(line.y[-1], f"{shown} {line.name}", colour))
        policies += 1
    logarithmic(axes, [x for line in lines for x in line.x], x=True)
    axes.set_ylim(*_around([y for line in lines for y in line.y]))
    label_ends(axes, labels, height)


def _around(shares: Sequence[float]) -> tuple[float, float]:
    """Whole tens of percent: from 0 there would be little to see above what nobody can avoid."""
    return max(0.0, 10 * floor(min(shares) / 10 - 0.1)), min(105.0, 10 * ceil(max(shares) / 10) + 5)
