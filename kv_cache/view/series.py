"""A run over time: its windows as figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean, median

from kv_cache.core.errors import UsageError
from kv_cache.core.format import figures
from kv_cache.core.kinds import OpKind, Phase, Qos, Tier
from kv_cache.metrics.slo import Slo, SloMeasure, parse_slos
from kv_cache.result.paths import number_at
from kv_cache.result.published import PublishedRun, WindowFacts
from kv_cache.result.run import MisshapenError
from kv_cache.view import units
from kv_cache.view.parts import Band, Figure, Level, Line, PlotPoint, Scale, ShownColumn

TIME = ShownColumn("time since the run began", units.S)
SHORTEST = 0.25
"""Of the usual length: in a shorter window one request more or less is a high rate."""
_PERCENTILES = ("p95", "p50", "p99")
_SIDES = (OpKind.READ.value, OpKind.WRITE.value)

Value = Callable[[WindowFacts], float | None]


def series_figures(run: PublishedRun) -> list[Figure]:
    """Figures of all windows, those that matter most first; none without windows. Raises
    MisshapenError."""
    if run.series is None or not run.series.windows:
        return []
    every = Windows(run.series.windows)
    figures_ = [
        *_throughput(every),
        *_storage_latency(every),
        *_class_latency(run, every),
        *_load(run, every),
        *_machine(every),
    ]
    return [figure for figure in figures_ if figure is not None]


def phase_bands(windows: Sequence[WindowFacts]) -> list[Band]:
    """Each phase from its begin to its end; only the measured one counts."""
    bands: list[Band] = []
    for window in windows:
        if bands and bands[-1].name == window.phase:
            start = bands.pop().start
        else:
            start = window.start_s
        shaded = window.phase is not Phase.MEASURE
        bands.append(Band(name=window.phase, start=start, end=window.end_s, shaded=shaded))
    return bands


class Windows:
    """Windows in their order, for lines over time. Raises MisshapenError if they overlap."""

    def __init__(self, windows: Sequence[WindowFacts]) -> None:
        ends = [0.0, *(window.end_s for window in windows)]
        for window, before in zip(windows, ends, strict=False):
            if not window.start_s < window.end_s or window.start_s < before - 1e-6:
                raise MisshapenError("series.windows do not follow each other in time")
        self.rows = windows
        self.bands = phase_bands(windows)
        usual = median(window.end_s - window.start_s for window in windows)
        self._shortest = SHORTEST * usual

    def rate(self, amount: Callable[[WindowFacts], float]) -> Value:
        """What was counted, per second; None of a window that is far shorter than the others."""

        def value(window: WindowFacts) -> float | None:
            seconds = window.end_s - window.start_s
            return None if seconds < self._shortest else amount(window) / seconds

        return value

    def line(self, name: str, value: Value) -> Line:
        values = [((row.start_s + row.end_s) / 2, value(row)) for row in self.rows]
        return Line.through(name, [(x, y) for x, y in values if y is not None and isfinite(y)])

    def figure(
        self,
        title: str,
        y: ShownColumn,
        lines: Sequence[Line],
        *,
        log_y: bool = False,
        levels: Sequence[Level] = (),
        reach: float = 0.0,
        steps: bool = False,
        caption: str = "",
        detail: bool = False,
    ) -> Figure | None:
        """None if no line has a value above 0."""
        some = [line for line in lines if line.points]
        if not any(point.y > 0 for line in some for point in line.points):
            return None
        return Figure(
            title=title, x=TIME, y=y, lines=some, scale=Scale.TIME, log_y=log_y, levels=levels,
            reach=reach, steps=steps, bands=self.bands, caption=caption, detail=detail,
            axis=[(window.start_s + window.end_s) / 2 for window in self.rows],
        )  # fmt: skip


# --- what is drawn ---------------------------------------------------------------------------


def moved_bytes(tier: str, kind: str) -> Callable[[WindowFacts], float]:
    return lambda window: window.side(tier, kind).bytes


def _throughput(every: Windows) -> Iterator[Figure | None]:
    for tier in reversed(Tier):  # storage is what is measured
        lines = [every.line(kind, every.rate(moved_bytes(tier.label, kind))) for kind in _SIDES]
        yield every.figure(
            f"Throughput of the {tier.label} tier", ShownColumn("moved", units.GIB_PER_S), lines,
            detail=tier is not Tier.NVME,
        )  # fmt: skip


def side_percentile(kind: str, name: str) -> Value:
    return lambda window: getattr(window.side("storage", kind), f"{name}_ms")


def _storage_latency(every: Windows) -> Iterator[Figure | None]:
    for kind in _SIDES:
        lines = [every.line(name, side_percentile(kind, name)) for name in _PERCENTILES]
        yield every.figure(
            f"Time of one storage {kind}", ShownColumn("time", units.MS), lines, log_y=True,
            caption="Inside the storage's calls: percentiles of each window.",
        )  # fmt: skip


def _class_latency(run: PublishedRun, every: Windows) -> Iterator[Figure | None]:
    levels = slo_levels(run)
    for measure, title in (("response", "Response"), ("ttft", "Time to first token")):
        lines = [every.line(qos.value, _class_p95(qos.value, measure)) for qos in Qos]
        shown = {line.name for line in lines if line.points}
        limits = [level for qos, level in levels.items() if qos in shown]
        response = measure == "response"
        yield every.figure(
            f"{title} p95 of each class", ShownColumn("time", units.MS), lines, log_y=True,
            levels=limits if response else (), detail=not response,
            caption="Dashed: the p95 target of each class." if limits and response else "",
        )  # fmt: skip


def _class_p95(qos: str, measure: str) -> Value:
    def value(window: WindowFacts) -> float | None:
        row = window.classes.get(qos)
        return None if row is None else getattr(row, f"{measure}_ms").p95_ms

    return value


def slos_of(texts: Sequence[str], place: str) -> list[Slo]:
    """The SLOs as their document has them. Raises MisshapenError, which begins with the place."""
    try:
        return [slo for text in texts for slo in parse_slos(text)]
    except UsageError as error:
        raise MisshapenError(f"{place}: {error}") from None


def slo_levels(run: PublishedRun) -> dict[str, Level]:
    """The p95 response target of each class, in ms: that of the run, or of the class itself."""
    limits: dict[str, float] = {}
    for qos in Qos:
        target = number_at(run.config, f"qos_profiles.{qos}.target_latency_p95_ms")
        if target is not None and target > 0:
            limits[qos.value] = target
    texts = [] if run.series is None else run.series.slos
    for slo in slos_of(texts, "series.slos"):
        if slo.measure is SloMeasure.RESPONSE and slo.percent == 95:
            limits[slo.qos.value] = slo.limit_ns / 1e6
    return {qos: Level(name=f"{qos} limit", y=limit) for qos, limit in limits.items()}


def _load(run: PublishedRun, every: Windows) -> Iterator[Figure | None]:
    users = every.line("users", lambda window: window.users)
    moves = [row for row in run.autoscaling if row.users != row.users_before]
    changing = len({point.y for point in users.points}) > 1 or bool(moves)
    decisions = Line(
        name="decisions",
        points=[
            PlotPoint(
                x=row.at_s, y=row.users, mark="up" if row.users > row.users_before else "down"
            )
            for row in moves
        ],
    )
    yield every.figure(
        "Users",
        ShownColumn("users", units.COUNT),
        [users, decisions],
        steps=True,
        detail=not changing,
        caption=f"The autoscaler changed them {len(moves)} times." if moves else "",
    )
    yield every.figure(
        "Requests in service and waiting in the queue", ShownColumn("requests", units.COUNT),
        [
            every.line("in service", lambda window: window.in_flight),
            every.line("waiting", lambda window: window.queued),
        ],
    )  # fmt: skip
    completed = every.line("completed", every.rate(lambda window: window.completed))
    yield every.figure("Requests completed", ShownColumn("requests", units.PER_S), [completed],
                       detail=True)  # fmt: skip
    tokens = every.line("output tokens", every.rate(lambda window: window.output_tokens))
    yield every.figure(
        "Output tokens", ShownColumn("tokens", units.DisplayUnit("tokens/s")), [tokens]
    )


def _machine(every: Windows) -> Iterator[Figure | None]:
    busy = every.line("busy", lambda w: w.machine.device_utilisation if w.machine else None)
    share = ShownColumn("busy", units.PERCENT)
    yield every.figure("Time in which the device had work", share, [busy], reach=1.0)
    level = every.line("level", lambda w: w.saturation.level if w.saturation else None)
    yield every.figure(
        "Saturation: above 1 a signal is over its limit",
        ShownColumn("level", units.COUNT),
        [level],
        levels=[Level(name="limit", y=1.0)],
        reach=1.2,
    )


def windows_note(run: PublishedRun) -> str:
    """How the figures over time are to be read."""
    series = run.series
    if series is None or not series.windows:
        return ""
    tick = figures(series.tick_s)
    each = f"of up to {series.together:g} times {tick} s" if series.together > 1 else f"of {tick} s"
    phases = ", ".join(
        f"{band.name} {figures(band.end - band.start)} s" for band in phase_bands(series.windows)
    )
    text = f"{len(series.windows):,} windows {each} ({phases}); one far shorter than the others has"
    text += " no rates."
    if all(window.phase is not Phase.MEASURE for window in series.windows):
        return f"{text} All of it was before or after the measured window, and does not count."
    return f"{text} Shaded parts do not count: only the phase measure does."


# --- several results over each other ---------------------------------------------------------

_SINCE_MEASURED = ShownColumn("time since measuring began", units.S)
_MOST_STEPS = 600


def measured_windows(run: PublishedRun) -> list[WindowFacts]:
    windows = [] if run.series is None else run.series.windows
    return [window for window in windows if window.phase is Phase.MEASURE]


def side_rate(tier: str, kind: str) -> Value:
    """Bytes per second of one tier's reads or writes in a window."""
    moved = moved_bytes(tier, kind)
    return lambda window: moved(window) / (window.end_s - window.start_s)


def common_step(measured: Sequence[Sequence[WindowFacts]]) -> float:
    """Seconds: a window of every result is in each."""
    spans = [windows[-1].end_s - windows[0].start_s for windows in measured]
    lengths = [window.end_s - window.start_s for windows in measured for window in windows]
    return max([span / _MOST_STEPS for span in spans] + [1.001 * each for each in lengths])


def stepped(windows: Sequence[WindowFacts], step: float, value: Value) -> dict[int, float]:
    """The mean of the windows in each step since the first one began."""
    groups: dict[int, list[float]] = {}
    for window in windows:
        middle = (window.start_s + window.end_s) / 2 - windows[0].start_s
        if (known := value(window)) is not None:
            groups.setdefault(int(middle // step), []).append(known)
    return {at: fmean(each) for at, each in groups.items()}


def stepped_figure(
    title: str,
    y: ShownColumn,
    lines: Mapping[str, Mapping[int, float]],
    step: float,
    *,
    log_y: bool = False,
) -> Figure:
    """Values by their step as lines over seconds."""
    return Figure(
        title=title,
        x=_SINCE_MEASURED,
        y=y,
        lines=[
            Line.through(name, [((at + 0.5) * step, values[at]) for at in sorted(values)])
            for name, values in lines.items()
        ],
        scale=Scale.TIME,
        log_y=log_y,
    )
