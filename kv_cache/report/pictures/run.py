"""A run over time: its load, what it moved, how long it took, and how full everything was."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from statistics import fmean, median
from typing import TYPE_CHECKING

from kv_cache.core.format import figures
from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.units import GIB, NS_PER_MS
from kv_cache.metrics.slo import Measure
from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SMALL,
    BadDocumentError,
    Json,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    ending,
    few_ticks,
    from_zero,
    highest,
    known,
    label_ends,
    last_level,
    logarithmic,
    needed,
    number,
    promises_at,
    rows_at,
    word,
)
from kv_cache.report.pictures.rounds import rounds_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TIME = "seconds since the run began"
_MOST_POINTS = 300
"""A line of more is a block of ink on a page: neighbouring windows become one point."""
_MOST_LABELS = 12
_FEW_POINTS = 90  # of a line whose every point is marked
_SCRAP = 0.25  # of the usual length

_TINTS: Mapping[str, str] = {
    Phase.POPULATE: "#dcdcdc",
    Phase.PRECONDITION: "#efe3cf",
    Phase.WARMUP: "#e6e6f2",
    Phase.MEASURE: "#ffffff",
    Phase.DRAIN: "#ececec",
}
_CLASS_STYLES: Mapping[str, tuple[str, str]] = {
    Qos.INTERACTIVE: (BLUE, "o"),
    Qos.RESPONSIVE: (RED, "s"),
    Qos.BATCH: (BLACK, "^"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One or several windows that follow each other in one phase."""

    start_s: float
    end_s: float
    phase: str
    rows: Sequence[Json]
    scrap: bool = False  # far shorter than the others: one request more or less is a high rate

    @property
    def middle_s(self) -> float:
        return (self.start_s + self.end_s) / 2

    def rate(self, path: str) -> float:
        """Each second of it; what a window does not name it had none of. NaN of a scrap."""
        if self.scrap:
            return nan
        amount = sum(known(number(row, path) for row in self.rows))
        return amount / (self.end_s - self.start_s)

    def level(self, path: str) -> float:
        """The mean of what the windows say; NaN where none says."""
        some = known(number(row, path) for row in self.rows)
        return fmean(some) if some else nan

    def middle(self, path: str) -> float:
        """The median of the windows' own percentiles."""
        some = known(number(row, path) for row in self.rows)
        return median(some) if some else nan


def run_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    windows = rows_at(own, "series.windows")
    points, together = points_of(windows, _MOST_POINTS)
    panels = [*_panels(own, points), *rounds_panels(own, wide=False)]
    if not panels:
        raise NothingToDrawError("kv_cache.series.windows has no window, and there was no fill")
    if points:
        panels = [_strip(points), *panels]
    return Picture(title=_title(own), lines=list(_lines(own, points, together)), panels=panels)


def _title(own: Json) -> str:
    model = word(own, "model.name") or "unknown model"
    return f"Run over time: {model}, {word(own, 'semantics_preset') or 'unknown'} semantics"


def _lines(own: Json, points: Sequence[Point], together: int) -> Iterator[str]:
    verdict = word(own, "passport.verdict") or "none"
    yield f"Verdict {verdict}, {word(own, 'status') or 'unknown end'}, {ending(own)}"
    if points:
        told = (f"{name} {_length(end - start)}" for name, start, end in phases_of(points))
        yield f"Phases: {', '.join(told)}."
    if together > 1:
        yield (
            f"Each point is {together} windows: the mean of rates and counts, the median of "
            "latencies."
        )


def _length(seconds: float) -> str:
    return "under 0.1 s" if seconds < 0.1 else f"{figures(seconds)} s"


# --- windows ---------------------------------------------------------------------------------


def points_of(windows: Sequence[Json], most: int) -> tuple[list[Point], int]:
    """At most about so many, and how many windows one is at most. Raises BadDocumentError."""
    together = -(-len(windows) // most) or 1
    found: list[Point] = []
    for row in windows:
        start, end, phase = needed(row, "start_s"), needed(row, "end_s"), word(row, "phase")
        if phase not in _TINTS:
            raise BadDocumentError(f"a window's phase is {phase!r}, which no run has")
        before = found[-1] if found else None
        if not start < end or (before and start < before.end_s - 1e-6):
            raise BadDocumentError("series.windows do not follow each other in time")
        if before and before.phase == phase and len(before.rows) < together:
            found[-1] = Point(
                start_s=before.start_s, end_s=end, phase=phase, rows=[*before.rows, row]
            )
        else:
            found.append(Point(start_s=start, end_s=end, phase=phase, rows=[row]))
    return _without_scraps(found), together


def _without_scraps(points: Sequence[Point]) -> list[Point]:
    usual = median(point.end_s - point.start_s for point in points) if points else 0.0
    return [replace(point, scrap=point.end_s - point.start_s < _SCRAP * usual) for point in points]


def phases_of(points: Sequence[Point]) -> list[tuple[str, float, float]]:
    """Each phase with its beginning and end."""
    found: list[tuple[str, float, float]] = []
    for point in points:
        if found and found[-1][0] == point.phase:
            found[-1] = (point.phase, found[-1][1], point.end_s)
        else:
            found.append((point.phase, point.start_s, point.end_s))
    return found


def _shade(axes: "Axes", points: Sequence[Point]) -> None:
    axes.set_xlim(points[0].start_s, points[-1].end_s)
    few_ticks(axes.xaxis, 7)
    for name, start, end in phases_of(points):
        if name != Phase.MEASURE:
            axes.axvspan(start, end, color=_TINTS[name], linewidth=0, zorder=0)


def _strip(points: Sequence[Point]) -> Panel:
    """The names of the phases, where they have room."""

    def draw(axes: "Axes") -> None:
        begin, end = points[0].start_s, points[-1].end_s
        for name, start, stop in phases_of(points):
            axes.axvspan(start, stop, facecolor=_TINTS[name], edgecolor=PALE, linewidth=0.6)
            if (stop - start) / (end - begin) > 0.022 * len(name):
                middle = (start + stop) / 2
                axes.text(middle, 0.45, name, size=SMALL, ha="center", va="center", color=BLACK)
        axes.set_ylim(0, 1)

    return Panel(x=_TIME, draw=draw, height=0.18, bare=True)


# --- panels ----------------------------------------------------------------------------------


def _panels(own: Json, points: Sequence[Point]) -> Iterator[Panel]:
    if not points:
        return
    makers: tuple[Callable[[Json, Sequence[Point]], Panel | None], ...] = (
        _users, _storage, _tokens, _reads, _writes, _response, _queue, _device, _saturation,
    )  # fmt: skip
    for make in makers:
        panel = make(own, points)
        if panel is not None:
            yield panel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    colour: str
    values: Sequence[float]
    style: str = "-"
    marker: str = "o"
    width: float = 1.2


def _over_time(
    title: str,
    unit: str,
    points: Sequence[Point],
    lines: Iterable[_Line],
    more: "Callable[[Axes], None] | None" = None,
    *,
    log: bool = False,
    also: Sequence[float] = (),
    at: Mapping[str, float] | None = None,
) -> Panel | None:
    """A panel of lines with their names at their ends; None where there is nothing in them.
    `also` are values that must be in sight, `at` are better places for names."""
    some = [line for line in lines if any(isfinite(v) and (v or not log) for v in line.values)]
    every = [value for line in some for value in line.values]
    if not some or not highest(every) > 0:
        return None

    def draw(axes: "Axes") -> None:
        _shade(axes, points)
        for line in some:
            _draw_line(axes, points, line, log=log)
        if log:
            logarithmic(axes, [*every, *also])
        else:
            from_zero(axes, [*every, *also])
        if more is not None:
            more(axes)
        places = {line.name: last_level(line.values) for line in some} | dict(at or {})
        label_ends(axes, [Label(places[line.name], line.name, line.colour) for line in some])

    return Panel(title=title, x=_TIME, y=unit, draw=draw)


def _draw_line(axes: "Axes", points: Sequence[Point], line: _Line, *, log: bool) -> None:
    values = [nan if log and not v > 0 else v for v in line.values]
    axes.plot(
        [point.middle_s for point in points], values, line.style, color=line.colour,
        linewidth=line.width, marker=line.marker, markersize=2.4, markeredgewidth=0,
        markevery=list(range(len(values))) if len(points) <= _FEW_POINTS else _alone(values),
    )  # fmt: skip


def _alone(values: Sequence[float]) -> list[int]:
    """Where a line would show nothing: a window beside windows that had nothing."""
    there = [False, *(isfinite(value) for value in values), False]
    triples = zip(there, there[1:], there[2:], strict=False)
    return [i for i, (before, here, after) in enumerate(triples) if here and not (before or after)]


def _users(own: Json, points: Sequence[Point]) -> Panel | None:
    """Only where they change: else the load is one number."""
    windows = [row for point in points for row in point.rows]
    users = [number(row, "users") for row in windows]
    decisions = [row for row in rows_at(own, "autoscaling") if _moves(row)]
    if len(set(known(users))) < 2 and not decisions:
        return None

    def draw(axes: "Axes") -> None:
        _shade(axes, points)
        edges = [*(needed(row, "start_s") for row in windows), points[-1].end_s]
        axes.step(edges, [*users, users[-1]], where="post", color=BLUE, linewidth=1.4)
        from_zero(axes, [*users, *(needed(row, "users") for row in decisions)], 1.3)
        few_ticks(axes.yaxis, whole=True)
        for row in decisions:
            _mark(axes, row, labelled=len(decisions) <= _MOST_LABELS)
        label_ends(axes, [Label(last_level(users), "users", BLUE)])

    title = "Users, with each decision to scale up \u25b2 or down \u25bc"
    return Panel(title=title if decisions else "Users", x=_TIME, y="users", draw=draw)


def _moves(row: Json) -> bool:
    return needed(row, "users") != needed(row, "users_before")


def _mark(axes: "Axes", row: Json, *, labelled: bool) -> None:
    at, before, users = (needed(row, name) for name in ("at_s", "users_before", "users"))
    up = users > before
    axes.plot(at, users, "^" if up else "v", color=GREEN if up else RED, markersize=6, zorder=4)
    if labelled:
        axes.annotate(
            f"{users:.0f}", (at, users), xytext=(0, 5 if up else -5), color=BLACK,
            textcoords="offset points", size=SMALL, ha="center", va="bottom" if up else "top",
        )  # fmt: skip


def _storage(_: Json, points: Sequence[Point]) -> Panel | None:
    rates = {
        kind: [point.rate(f"tiers.storage.{kind}.bytes") / GIB for point in points]
        for kind in ("read", "write")
    }
    lines = [_Line(name="read", colour=BLUE, values=rates["read"])]
    if highest(rates["write"]) > 0:
        lines.append(_Line(name="write", colour=RED, values=rates["write"], style="--"))
    return _over_time("Storage throughput", "GiB/s", points, lines)


def _tokens(_: Json, points: Sequence[Point]) -> Panel | None:
    values = [point.rate("output_tokens") for point in points]
    line = _Line(name="tokens", colour=GREEN, values=values)
    return _over_time("Output tokens", "tokens/s", points, [line])


def _reads(_: Json, points: Sequence[Point]) -> Panel | None:
    return _storage_latency("read", (BLUE, "#56B4E9", "#003f66"), points)


def _writes(_: Json, points: Sequence[Point]) -> Panel | None:
    return _storage_latency("write", (RED, ORANGE, "#7a3500"), points)


def _storage_latency(
    kind: str, colours: tuple[str, str, str], points: Sequence[Point]
) -> Panel | None:
    middle, light, dark = colours
    looks = {"p50": (light, "-", 1.2), "p95": (middle, "-", 1.5), "p99": (dark, ":", 1.2)}
    lines = [
        _Line(
            name=name, colour=colour, style=style, width=width,
            values=[point.middle(f"tiers.storage.{kind}.{name}_ms") for point in points],
        )
        for name, (colour, style, width) in looks.items()
    ]  # fmt: skip
    title = f"Time of one storage {kind} (percentiles of each window)"
    return _over_time(title, "ms, log", points, lines, log=True)


def _response(own: Json, points: Sequence[Point]) -> Panel | None:
    lines = [
        _Line(
            name=qos, colour=colour, marker=marker, width=1.0,
            values=[point.middle(f"classes.{qos}.response_ms.p95_ms") for point in points],
        )
        for qos, (colour, marker) in _CLASS_STYLES.items()
    ]  # fmt: skip
    there = {line.name for line in lines if known(line.values)}
    limits = {qos: ms for qos, ms in limits_of(own).items() if qos in there}

    def dashes(axes: "Axes") -> None:
        for qos, limit in limits.items():
            colour, _ = _CLASS_STYLES[qos]
            axes.axhline(limit, color=colour, linestyle="--", linewidth=1.0, zorder=1)

    # A class may be silent for long, but its limit always reaches the right end.
    title = "Response p95 of each class" + ("; dashed: its limit" if limits else "")
    return _over_time(
        title, "ms, log", points, lines, dashes, log=True, also=list(limits.values()), at=limits
    )


def limits_of(own: Json) -> dict[str, float]:
    """The p95 promised to each class, in ms: as the run looked at it, or of the class itself."""
    found = {
        qos.value: limit
        for qos in Qos
        if (limit := number(own, f"config.qos_profiles.{qos}.target_latency_p95_ms")) > 0
    }
    for promise in promises_at(own, "series.promises"):
        if promise.measure is Measure.RESPONSE and promise.percent == 95:
            found[promise.qos.value] = promise.limit_ns / NS_PER_MS
    return found


def _queue(_: Json, points: Sequence[Point]) -> Panel | None:
    lines = [
        _Line(
            name="in service", colour=BLUE, values=[point.level("in_flight") for point in points]
        ),
        _Line(
            name="waiting", colour=RED, style="--",
            values=[point.level("queued") for point in points],
        ),
    ]  # fmt: skip
    return _over_time("Requests in service and waiting in the queue", "requests", points, lines)


def _device(_: Json, points: Sequence[Point]) -> Panel | None:
    values = [100 * point.level("machine.device_utilisation") for point in points]
    line = _Line(name="busy", colour=PURPLE, values=values)
    return _over_time("Time in which the device had work", "%", points, [line], also=[100 / 1.12])


def _saturation(_: Json, points: Sequence[Point]) -> Panel | None:
    values = [point.level("saturation.level") for point in points]

    def limit(axes: "Axes") -> None:
        axes.axhline(1, color=GREY, linestyle="--", linewidth=1.0, zorder=1)

    line = _Line(name="level", colour=BLACK, values=values)
    title = "Saturation: above 1 (dashed) a signal is over its limit"
    return _over_time(title, "level", points, [line], limit, also=[1.2])
