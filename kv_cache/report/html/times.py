"""A run over time: its windows as points, and the charts of what happened in them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, nan

from kv_cache.core.format import figures
from kv_cache.core.kinds import Phase, Qos, Tier
from kv_cache.core.units import GIB
from kv_cache.report.html.charts import TIME, Axis, Chart, ChartLine, ChartTable, Limit
from kv_cache.report.html.parts import Doc, Json
from kv_cache.report.pictures.base import highest, needed, number, rows_at
from kv_cache.report.pictures.run import Point, limits_of, phases_of, points_of
from kv_cache.view.parts import Band

MOST_POINTS = 4000
"""A chart has no more, as a result has no more windows; of several results on one page neighbours
become one point, the mean of rates and levels and the median of percentiles."""
FEWEST_POINTS = 240
DENSE = 400
"""More than these are drawn faintly behind their medians; the page's script has the same number."""
_TABLE_ROWS = 60

TIERS = tuple(tier.label for tier in Tier)
CLASSES = tuple(qos.value for qos in Qos)
LOOK_OF_CLASS = {Qos.INTERACTIVE.value: 0, Qos.RESPONSIVE.value: 1, Qos.BATCH.value: 2}
_PERCENTILES = (("p50", "dot", 2), ("p95", "", 0), ("p99", "dash", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The windows of a run as points of the same axis. `coarse` are the same for tables."""

    axis: Axis
    points: Sequence[Point]
    coarse: Sequence[Point]
    together: int  # windows in a point, at most

    def chart(
        self,
        title: str,
        unit: str,
        lines: Sequence["Series"],
        *,
        log: bool = False,
        limits: Sequence[Limit] = (),
        most: float = 0.0,
        says: str = "",
        steps: bool = False,
    ) -> Chart | None:
        """None where nothing is there to be seen."""
        every = [(line, [line.value(point) for point in self.points]) for line in lines]
        some = [(line, values) for line, values in every if _seen(values, log=log)]
        if not some:
            return None
        return Chart(
            title=title, unit=unit, axis=self.axis, log=log, limits=limits, most=most, says=says,
            steps=steps, table=self._table([line for line, _ in some], unit),
            lines=[
                ChartLine(name=line.name, values=values, look=line.look, dash=line.dash)
                for line, values in some
            ],
        )  # fmt: skip

    def _table(self, lines: Sequence["Series"], unit: str) -> ChartTable:
        rows = [
            (
                f"{point.start_s:,.1f} to {point.end_s:,.1f}",
                point.phase,
                *(figures(line.value(point)) for line in lines),
            )
            for point in self.coarse
        ]
        several = max((len(point.rows) for point in self.coarse), default=1)
        said = f"Each row is up to {several} windows." if several > 1 else ""
        heads = ("seconds", "phase", *(f"{line.name}, {unit}" for line in lines))
        return ChartTable(heads=heads, rows=rows, says=said, words=2)


def _seen(values: Sequence[float], *, log: bool) -> bool:
    return any(isfinite(value) and (value > 0 or not log) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line over time: what it is of each point."""

    name: str
    value: Callable[[Point], float]
    look: int
    dash: str = ""


def timeline(doc: Doc, most: int = MOST_POINTS) -> Timeline | None:
    """None where the document has no windows. Raises BadDocumentError."""
    windows = rows_at(doc.own, "series.windows")
    if not windows:
        return None
    points, together = points_of(windows, most)
    coarse, _ = points_of(windows, _TABLE_ROWS)
    axis = Axis(
        key=doc.id("time"), kind=TIME, label="time since the run began",
        places=[point.middle_s for point in points],
        bands=[
            Band(name=name, start=start, end=end, shaded=name != Phase.MEASURE)
            for name, start, end in phases_of(points)
        ],
    )  # fmt: skip
    return Timeline(axis=axis, points=points, coarse=coarse, together=together)


# --- what is drawn ---------------------------------------------------------------------------


def time_charts(own: Json, time: Timeline) -> Iterator[Chart]:
    makers: tuple[Callable[[Json, Timeline], Iterator[Chart | None]], ...] = (
        _bandwidth, _storage_latency, _class_latency, _users, _requests, _machine,
    )  # fmt: skip
    for make in makers:
        yield from (chart for chart in make(own, time) if chart is not None)


def _rate(path: str, scale: float) -> Callable[[Point], float]:
    return lambda point: point.rate(path) / scale


def _level(path: str, scale: float = 1.0) -> Callable[[Point], float]:
    return lambda point: point.level(path) / scale


def _middle(path: str) -> Callable[[Point], float]:
    return lambda point: point.middle(path)


def bandwidth(tier: str, kind: str) -> Callable[[Point], float]:
    """GiB/s."""
    return _rate(f"tiers.{tier}.{kind}.bytes", GIB)


def storage_p95(kind: str) -> Callable[[Point], float]:
    return _middle(f"tiers.storage.{kind}.p95_ms")


def _bandwidth(own: Json, time: Timeline) -> Iterator[Chart | None]:
    there = own.get("tiers")
    for tier in reversed(TIERS):  # storage is what is measured
        if isinstance(there, dict) and tier in there:
            lines = [
                Series(name="read", value=bandwidth(tier, "read"), look=0),
                Series(name="write", value=bandwidth(tier, "write"), look=1, dash="dash"),
            ]
            yield _if_any(time.chart(f"Bandwidth of the {tier} tier", "GiB/s", lines))


def _if_any(chart: Chart | None) -> Chart | None:
    """A tier that moved nothing has no chart."""
    if chart is None or not any(highest(line.values) > 0 for line in chart.lines):
        return None
    return chart


def _storage_latency(_: Json, time: Timeline) -> Iterator[Chart | None]:
    for kind in ("read", "write"):
        lines = [
            Series(name=name, value=_middle(f"tiers.storage.{kind}.{name}_ms"), look=look,
                   dash=dash)
            for name, dash, look in _PERCENTILES
        ]  # fmt: skip
        yield time.chart(
            f"Time of one storage {kind}", "ms", lines, log=True,
            says="Inside the storage's calls: percentiles of each window.",
        )  # fmt: skip


def _class_latency(own: Json, time: Timeline) -> Iterator[Chart | None]:
    promised = limits_of(own)
    for measure, title in (("response", "Response"), ("ttft", "Time to first token")):
        lines = [
            Series(name=qos, value=_middle(f"classes.{qos}.{measure}_ms.p95_ms"),
                   look=LOOK_OF_CLASS[qos], dash=dash)
            for qos, dash in zip(CLASSES, ("", "dash", "dot"), strict=True)
        ]  # fmt: skip
        limits = [
            Limit(name=f"{qos} limit", value=promised[qos], look=LOOK_OF_CLASS[qos])
            for qos in CLASSES
            if measure == "response"
            and qos in promised
            and any(isfinite(lines[CLASSES.index(qos)].value(point)) for point in time.points)
        ]
        says = "Horizontal lines: the p95 target of each class." if limits else ""
        yield time.chart(f"{title} p95 of each class", "ms", lines, log=True, limits=limits,
                         says=says)  # fmt: skip


def _users(own: Json, time: Timeline) -> Iterator[Chart | None]:
    decisions = len([row for row in rows_at(own, "autoscaling") if _moves(row)])
    says = f"The autoscaler changed them {decisions} times." if decisions else ""
    lines = [Series(name="users", value=_level("users"), look=0)]
    yield time.chart("Users", "users", lines, says=says, steps=True)


def _moves(row: Json) -> bool:
    return needed(row, "users") != needed(row, "users_before")


def _requests(_: Json, time: Timeline) -> Iterator[Chart | None]:
    waiting = [
        Series(name="in service", value=_level("in_flight"), look=0),
        Series(name="waiting", value=_level("queued"), look=1, dash="dash"),
    ]
    yield time.chart("Requests in service and waiting", "requests", waiting)
    done = [Series(name="completed", value=_rate("completed", 1), look=2)]
    yield time.chart("Requests completed", "requests/s", done)
    tokens = [Series(name="output tokens", value=_rate("output_tokens", 1), look=2)]
    yield time.chart("Output tokens", "tokens/s", tokens)


def _machine(_: Json, time: Timeline) -> Iterator[Chart | None]:
    busy = [Series(name="busy", value=_level("machine.device_utilisation", 0.01), look=3)]
    yield time.chart("Time in which the device had work", "%", busy, most=100)
    level = [Series(name="level", value=_level("saturation.level"), look=4)]
    limit = [Limit(name="limit", value=1.0, look=1)]
    yield time.chart("Saturation: above 1 a signal is over its limit", "level", level, most=1.2,
                     limits=limit)  # fmt: skip


def last_users(own: Json) -> float:
    """How many there were when the measured window ended; NaN without any."""
    windows = [row for row in rows_at(own, "series.windows") if row.get("phase") == "measure"]
    return number(windows[-1], "users") if windows else nan
