"""The cells of a sweep: each metric over one axis, a line for each combination of the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from kv_cache.core.format import figures
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
    few_ticks,
    from_zero,
    label_ends,
    needed,
    number,
    plain,
    rows_at,
    short,
    texts_at,
    value_at,
    word,
)
from kv_cache.report.sweep import SHOWN
from kv_cache.report.trials import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, BLACK)
_MARKS = "os^Dv*"
_MOST_LINES = len(_COLOURS)
_HEIGHT = 1.5  # inches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    points: Sequence[_Point]


def sweep_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    cells = rows_at(own, "cells")
    axis = _axis(own, cells)
    panels = []
    for name in SHOWN:
        lines = _lines(cells, axis, name)
        if lines:
            panels.append(_panel(name, axis, lines))
    if not panels:
        raise NothingToDrawError("no cell has a number")
    return Picture(title=f"A sweep over {axis}", lines=list(_head(own, cells)), panels=panels)


def _head(own: Json, cells: Sequence[Json]) -> Iterator[str]:
    said = f"{number(own, 'finished'):.0f} of {number(own, 'runs'):.0f} runs finished"
    yield f"{len(cells)} cells, {said}, seed {short(value_at(own, 'seed'))}. Bars: 95 % intervals."
    names = sorted({word(cell, "verdict") for cell in cells})
    yield f"Verdicts: {', '.join(filter(None, names)) or 'none'}."
    yield from (f"! {note}" for note in texts_at(own, "notes"))


def _axis(own: Json, cells: Sequence[Json]) -> str:
    """The varied option with the most numbers. Raises NothingToDrawError."""
    counts = {
        path: len({v for cell in cells if (v := _value(cell, path)) is not None})
        for path in texts_at(own, "varied")
        if all(_value(cell, path) is not None for cell in cells)
    }
    best = max(counts, key=lambda path: counts[path], default=None)
    if best is None or counts[best] < 2:
        raise NothingToDrawError("no option that varies has two numbers")
    return best


def _value(cell: Json, path: str) -> float | None:
    values = cell.get("values")
    found = values.get(path) if isinstance(values, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return number({"value": found}, "value")


def _lines(cells: Sequence[Json], axis: str, name: str) -> list[_Line]:
    points: dict[str, list[_Point]] = {}
    for cell in cells:
        metrics = cell.get("metrics")
        found = metrics.get(name) if isinstance(metrics, dict) else None
        if found is None:
            continue
        scale = METRICS[name].scale
        mean = needed(found, "mean")
        low, high = (number(found, f"interval.{end}") for end in ("low", "high"))
        point = _Point(
            x=_value(cell, axis) or 0.0,
            y=mean / scale,
            low=max(0.0, low if isfinite(low) else mean) / scale,
            high=(high if isfinite(high) else mean) / scale,
        )
        points.setdefault(_name(cell, axis), []).append(point)
    return [
        _Line(name=name, points=sorted(some, key=lambda point: point.x))
        for name, some in points.items()
    ]


def _name(cell: Json, axis: str) -> str:
    values: Any = cell.get("values")
    others = {path: value for path, value in values.items() if path != axis}
    return plain(", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in others.items()))


def _panel(name: str, axis: str, lines: Sequence[_Line]) -> Panel:
    left_out = len(lines) - _MOST_LINES
    more = f" ({left_out} lines left out)" if left_out > 0 else ""
    return Panel(
        title=f"{SHOWN[name]}{more}", x=axis, height=_HEIGHT,
        draw=lambda axes: _draw(axes, lines[:_MOST_LINES]),
    )  # fmt: skip


def _draw(axes: "Axes", lines: Sequence[_Line]) -> None:
    for line, colour, mark in zip(lines, _COLOURS, _MARKS, strict=False):
        x, y = [p.x for p in line.points], [p.y for p in line.points]
        bars = [[p.y - p.low for p in line.points], [p.high - p.y for p in line.points]]
        axes.errorbar(
            x, y, yerr=[[max(0.0, side) for side in sides] for sides in bars], color=colour,
            marker=mark, markersize=3.5, linewidth=1.2, elinewidth=0.8, ecolor=GREY, capsize=1.5,
        )  # fmt: skip
    from_zero(axes, [point.y for line in lines for point in line.points], room=1.25)
    few_ticks(axes.xaxis, 6)
    if len(lines) > 1:
        ends = [
            Label(line.points[-1].y, line.name or figures(line.points[-1].y), colour)
            for line, colour in zip(lines, _COLOURS, strict=False)
        ]
        label_ends(axes, ends, _HEIGHT)
