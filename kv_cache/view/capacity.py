"""What a capacity search shows: the largest load that kept the SLOs, how each load answered, and
what each probe was judged by."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from kv_cache.core.errors import UsageError
from kv_cache.core.format import figures
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.slo import parse_slos
from kv_cache.result.capacity import CapacityFacts, FoundCapacity, JudgedSlo, ProbeFacts
from kv_cache.result.metrics import Json
from kv_cache.result.run import MisshapenError, converted
from kv_cache.view.identity import origin_texts
from kv_cache.view.machine import machine_sections
from kv_cache.view.parts import (
    COUNT,
    GIB_PER_S,
    MS,
    PER_S,
    PERCENT,
    Band,
    Cell,
    DisplayUnit,
    FactList,
    Figure,
    KeyNumber,
    KeyNumbers,
    Level,
    Line,
    Part,
    Place,
    PlotPoint,
    S,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
)
from kv_cache.view.run import percentile_cell

_COMPLETED = ShownColumn("requests completed", PER_S)
_RESPONSE = ShownColumn("response", MS)
_PERCENTILES = ("p95", "p50", "p99")
_WIDE = 4.0  # times the least load: above, the axis of loads is logarithmic

Value = Callable[[ProbeFacts], float | None]


def capacity_view(section: Json) -> View:
    """The document of a search. Raises MisshapenError."""
    facts = converted(section, CapacityFacts, "")
    return View(
        title="Capacity search",
        status=facts.verdict,
        sentence=_sentence(facts),
        about=origin_texts(section),
        reasons=facts.reasons,
        sections=[
            ViewSection(title="Headline", parts=[_headline(facts)] if facts.probes else []),
            ViewSection(
                title="Over the load",
                parts=_figures(facts),
                absent="No probe came to its end.",
                terminal=False,
            ),
            ViewSection(
                title="What was searched for", parts=[FactList(rows=list(_search_facts(facts)))]
            ),
            ViewSection(title="Probes", parts=[_probes(facts)] if facts.probes else []),
            ViewSection(title="What each SLO was judged by", parts=_judged(facts), terminal=False),
            ViewSection(title="Passports", parts=_passports(facts), terminal=False),
            *machine_sections(section),
        ],
    )


def _sentence(facts: CapacityFacts) -> str:
    answer = facts.answer
    kept = f"{figures(answer.load)} {facts.unit} keep" if answer.load else "No load keeps"
    slos = " and ".join(facts.slo) or "the SLOs"
    measured = "" if facts.driver == "real-io" else " Virtual time: models say this, not a drive."
    sure = f" ({_interval(answer)})" if answer.load else ""
    return f"{kept} {slos}{sure}.{measured}"


def _interval(answer: FoundCapacity) -> str:
    if answer.confidence is None or (answer.low is None and answer.high is None):
        return "no interval"
    high = "more than was tried" if answer.high is None else figures(answer.high)
    return f"{figures(answer.low or 0.0)} to {high} with {PERCENT.measured(answer.confidence)}"


def _headline(facts: CapacityFacts) -> KeyNumbers:
    answer, knee = facts.answer, facts.knee
    load = ShownColumn("Capacity", DisplayUnit(facts.unit))
    sure = "confirmed" if answer.confirmed else "not confirmed"
    rates = [
        KeyNumber(column=ShownColumn(name, unit), value=value)
        for name, unit, value in (
            ("Requests", PER_S, answer.requests_per_s),
            ("Output tokens", PER_S, answer.output_tokens_per_s),
            ("Storage read", GIB_PER_S, answer.storage_read_bytes_per_s),
            ("Storage write", GIB_PER_S, answer.storage_write_bytes_per_s),
        )
        if value is not None
    ]
    bend = ShownColumn("Knee", DisplayUnit(facts.unit))
    note = "most throughput for its response time"
    knees = [] if knee is None else [KeyNumber(column=bend, value=knee.load, note=note)]
    return KeyNumbers(
        numbers=[KeyNumber(column=load, value=answer.load, note=sure), *rates, *knees]
    )


def _search_facts(facts: CapacityFacts) -> Iterator[tuple[str, str]]:
    answer, limit = facts.answer, facts.limited_by
    yield "SLO", ", ".join(facts.slo)
    preset = f", {facts.semantics_preset} semantics" if facts.semantics_preset else ""
    yield "model", f"{facts.model.name or 'unknown model'}{preset}, seed {figures(facts.seed)}"
    if answer.reason:
        yield "why not more", answer.reason
    if limit is not None:
        yield "limited by", f"{limit.what}: {limit.why}"
    for qos, rate in answer.goodput_per_s.items():
        yield f"goodput, {qos}", f"{figures(rate)} requests/s"


# --- tables ----------------------------------------------------------------------------------


def _ranked(facts: CapacityFacts) -> list[ProbeFacts]:
    return sorted(facts.probes, key=lambda probe: (probe.load, probe.probe or 0))


def _storage(probe: ProbeFacts) -> float | None:
    sides = (probe.storage_read_bytes_per_s, probe.storage_write_bytes_per_s)
    known = [side for side in sides if side is not None]
    return sum(known) if known else None


def _probes(facts: CapacityFacts) -> Table:
    rows: list[list[Cell]] = [
        [
            probe.load,
            probe.state,
            probe.offered_per_s,
            probe.completed_per_s,
            *(percentile_cell(probe.response_ms, name) for name in ("p50", "p95", "p99")),
            _storage(probe),
            probe.machine.device_utilisation,
            probe.reuse_hit_ratio,
            probe.seconds,
            probe.probe,
            probe.why,
        ]
        for probe in _ranked(facts)
    ]
    columns = [
        ShownColumn("load", DisplayUnit(facts.unit)),
        ShownColumn("found", status=True),
        ShownColumn("asked", PER_S),
        ShownColumn("completed", PER_S),
        *(ShownColumn(name, MS) for name in ("p50", "p95", "p99")),
        ShownColumn("storage", GIB_PER_S),
        ShownColumn("busy", PERCENT),
        ShownColumn("hit ratio", PERCENT),
        ShownColumn("window", S),
        ShownColumn("probe", COUNT),
        ShownColumn("why this load"),
    ]
    return Table(columns=columns, rows=rows)


def _judged(facts: CapacityFacts) -> list[Part]:
    judged = [(probe, at) for probe in _ranked(facts) for at in probe.slos]
    rows: list[list[Cell]] = [
        [at.slo, probe.load, probe.probe, at.ended, at.share, at.low, at.high, at.allowed]
        for probe, at in judged
    ]
    columns = [
        ShownColumn("SLO"),
        ShownColumn("load", DisplayUnit(facts.unit)),
        ShownColumn("probe", COUNT),
        ShownColumn("requests", COUNT),
        ShownColumn("over the limit", PERCENT),
        ShownColumn("from", PERCENT),
        ShownColumn("to", PERCENT),
        ShownColumn("allowed", PERCENT),
    ]
    caption = "From and to: the 95 % interval of the share."
    return [Table(columns=columns, rows=rows, caption=caption)] if rows else []


def _passports(facts: CapacityFacts) -> list[Part]:
    rows: list[list[Cell]] = [
        [probe.probe, probe.verdict, "; ".join(probe.reasons)] for probe in facts.probes
    ]
    columns = [
        ShownColumn("probe", COUNT),
        ShownColumn("verdict", status=True),
        ShownColumn("reasons"),
    ]
    return [Table(columns=columns, rows=rows)] if rows else []


# --- figures ---------------------------------------------------------------------------------


def _figures(facts: CapacityFacts) -> list[Part]:
    if not facts.probes:
        return []
    ranked = _ranked(facts)
    shares = [_shares(facts, slo) for slo in facts.slo]
    every = [
        _over_load(facts, "Response over load", _RESPONSE, _latencies(ranked, _load),
                   levels=_limits(facts), log_y=True,
                   caption="All requests. An SLO is of one class: a probe may miss it though this "
                   "line is below. The answer's interval is shaded."),
        over_throughput(facts),
        *(share for share in shares if share is not None),
        _over_load(facts, "Requests asked and completed", ShownColumn("requests", PER_S), [
            _line("completed", ranked, _load, _completed),
            _line("asked", ranked, _load, lambda probe: probe.offered_per_s, muted=True),
        ]),
        _over_load(facts, "Storage throughput", ShownColumn("throughput", GIB_PER_S), [
            _line("read", ranked, _load, lambda probe: probe.storage_read_bytes_per_s),
            _line("write", ranked, _load, lambda probe: probe.storage_write_bytes_per_s),
        ]),
    ]  # fmt: skip
    return [figure for figure in every if any(figure.points())]


def _load(probe: ProbeFacts) -> float:
    return probe.load


def _completed(probe: ProbeFacts) -> float:
    return probe.completed_per_s or 0.0


def over_throughput(facts: CapacityFacts) -> Figure:
    """Lines follow the load, which stands beside the points: beyond the knee they may turn back."""
    ranked = sorted(_ranked(facts), key=_completed)
    return Figure(
        title="Response over requests completed",
        x=_COMPLETED,
        y=_RESPONSE,
        lines=_latencies(ranked, _completed),
        log_y=True,
        caption=f"All requests. The numbers are the load, in {facts.unit}; lines go from load to "
        "load, through the mean of its probes.",
    )


def _latencies(ranked: Sequence[ProbeFacts], x: Value) -> list[Line]:
    return [_line(name, ranked, x, _response(name), labels=x is _completed)
            for name in _PERCENTILES]  # fmt: skip


def _response(name: str) -> Value:
    return lambda probe: getattr(probe.response_ms, name)


def _line(
    name: str,
    ranked: Sequence[ProbeFacts],
    x: Value,
    y: Value,
    *,
    muted: bool = False,
    labels: bool = False,
) -> Line:
    """A point for each probe, and a line through the means of each load."""
    points, places = [], dict[float, list[tuple[float, float]]]()
    for probe in ranked:
        at, value = x(probe), y(probe)
        if at is None or value is None:
            continue
        points.append(
            PlotPoint(
                x=at,
                y=value,
                mark="" if probe.inside else probe.state,
                label=figures(probe.load) if labels else "",
            )
        )
        places.setdefault(probe.load, []).append((at, value))
    path = [
        (fmean(at for at, _ in each), fmean(value for _, value in each))
        for _, each in sorted(places.items())
    ]
    return Line(name=name, points=points, muted=muted, path=path)


def _over_load(
    facts: CapacityFacts,
    title: str,
    y: ShownColumn,
    lines: Sequence[Line],
    *,
    levels: Sequence[Level] = (),
    log_y: bool = False,
    caption: str = "",
) -> Figure:
    """Over the load, with the answer, its interval and the knee."""
    answer, knee = facts.answer, facts.knee
    loads = [probe.load for probe in facts.probes]
    least, most = min(loads), max(loads)
    places = [Place(name=f"capacity {figures(answer.load)}", x=answer.load)] if answer.load else []
    if knee is not None and knee.load != answer.load:
        places.append(Place(name=f"knee {figures(knee.load)}", x=knee.load))
    end = most if answer.high is None else min(answer.high, most)
    low = answer.low or 0.0
    return Figure(
        title=title,
        x=ShownColumn("load", DisplayUnit(facts.unit)),
        y=y,
        lines=lines,
        scale=Scale.LOG if most > _WIDE * least else Scale.LINEAR,
        whole=facts.unit == "users",
        log_y=log_y,
        levels=levels,
        places=places,
        bands=[Band(name="interval", start=max(low, least), end=end)] if 0 < low < end else (),
        caption=caption,
    )


def _limits(facts: CapacityFacts) -> list[Level]:
    """Of SLOs on a percentile that is drawn, in ms."""
    try:
        slos = [slo for text in facts.slo for slo in parse_slos(text)]
    except UsageError as error:
        raise MisshapenError(f"slo: {error}") from None
    return [Level(name=str(slo), y=slo.limit_ns / NS_PER_MS) for slo in slos if slo.percent <= 99]


def _shares(facts: CapacityFacts, slo: str) -> Figure | None:
    """Requests over one limit in each probe."""
    judged = [
        (probe, slo_row)
        for probe in _ranked(facts)
        for slo_row in probe.slos
        if slo_row.slo == slo and slo_row.share is not None
    ]
    if not judged:
        return None
    allowed = judged[0][1].allowed
    return _over_load(
        facts,
        f"Requests over {slo}",
        ShownColumn("over the limit", PERCENT),
        [Line(name="", points=[_share_point(*each) for each in judged], path=())],
        levels=[] if allowed is None else [Level(name="allowed", y=allowed)],
    )


def _share_point(probe: ProbeFacts, slo: JudgedSlo) -> PlotPoint:
    mark = "" if probe.inside else probe.state
    return PlotPoint(x=probe.load, y=slo.share or 0.0, low=slo.low, high=slo.high, mark=mark)


# --- several searches ------------------------------------------------------------------------


def capacities_view(named: Sequence[tuple[str, Json]]) -> View:
    """Several searches: their answers, and their p95 over throughput. Raises MisshapenError."""
    searches = [(name, converted(section, CapacityFacts, "")) for name, section in named]
    rows: list[list[Cell]] = [
        [
            name,
            facts.verdict,
            facts.answer.load,
            facts.unit,
            _interval(facts.answer),
            facts.answer.requests_per_s,
            facts.answer.storage_read_bytes_per_s,
            facts.limited_by.what if facts.limited_by else "",
        ]
        for name, facts in searches
    ]
    columns = [
        ShownColumn("search"),
        ShownColumn("verdict", status=True),
        ShownColumn("capacity", COUNT),
        ShownColumn("unit"),
        ShownColumn("interval"),
        ShownColumn("requests", PER_S),
        ShownColumn("storage read", GIB_PER_S),
        ShownColumn("limited by"),
    ]
    lines = [
        _line(name, sorted(_ranked(facts), key=_completed), _completed, _response("p95"))
        for name, facts in searches
    ]
    over = Figure(title="Response p95 over requests completed", x=_COMPLETED, y=_RESPONSE,
                  lines=lines, log_y=True)  # fmt: skip
    answers = ", ".join(f"{name} {figures(f.answer.load)} {f.unit}" for name, f in searches)
    return View(
        title="Capacity searches",
        status="side by side",
        sentence=f"Capacities: {answers}.",
        about=[],
        sections=[
            ViewSection(title="Answers", parts=[Table(columns=columns, rows=rows)]),
            ViewSection(title="Over each other", parts=[over] if any(over.points()) else []),
        ],
    )
