"""What a capacity search shows: the largest load that kept the SLOs, how each load answered, and
what each probe was judged by."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from kv_cache.core.format import figures
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.result.capacity import CapacityFacts, FoundCapacity, JudgedSlo, ProbeFacts
from kv_cache.result.metrics import Json
from kv_cache.result.run import converted
from kv_cache.view import units
from kv_cache.view.identity import doubts, origin_texts
from kv_cache.view.latency import percentile_columns
from kv_cache.view.machine import machine_sections
from kv_cache.view.parts import (
    Band,
    FactList,
    Figure,
    KeyNumber,
    KeyNumbers,
    Level,
    Line,
    Part,
    Place,
    PlotPoint,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    present,
)
from kv_cache.view.series import slos_of

_COMPLETED = ShownColumn("requests completed", units.PER_S)
_RESPONSE = ShownColumn("response", units.MS)
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
        reasons=doubts(section, facts.reasons),
        sections=[
            ViewSection(title="Headline", parts=[_headline(facts)] if facts.probes else []),
            hidden_section("Over the load", _figures(facts), "No probe came to its end."),
            ViewSection(
                title="What was searched for", parts=[FactList(rows=list(_search_facts(facts)))]
            ),
            ViewSection(title="Probes", parts=present(_probes(facts))),
            hidden_section("What each SLO was judged by", present(_judged(facts))),
            hidden_section("Passports", present(_passports(facts))),
            *machine_sections(section),
        ],
    )


def _sentence(facts: CapacityFacts) -> str:
    answer = facts.answer
    slos = " and ".join(facts.slo) or "the SLOs"
    if not facts.probes:
        return f"What keeps {slos} is not known: no probe came to its end."
    tried = f"that was tried, from {figures(min(p.load for p in facts.probes))} {facts.unit} on,"
    kept = f"{figures(answer.load)} {facts.unit} keep" if answer.load else f"No load {tried} keeps"
    measured = "" if facts.driver == "real-io" else " Virtual time: models say this, not a drive."
    sure = f" ({_interval(answer)})" if answer.load else ""
    return f"{kept} {slos}{sure}.{measured}"


def _interval(answer: FoundCapacity) -> str:
    if answer.confidence is None or (answer.low is None and answer.high is None):
        return "no interval"
    high = "more than was tried" if answer.high is None else figures(answer.high)
    return (
        f"{figures(answer.low or 0.0)} to {high} with {units.PERCENT.measured(answer.confidence)}"
    )


def _headline(facts: CapacityFacts) -> KeyNumbers:
    answer, knee = facts.answer, facts.knee
    load = ShownColumn("Capacity", units.DisplayUnit(facts.unit))
    sure = "confirmed" if answer.confirmed else "not confirmed"
    rates = [
        KeyNumber(column=ShownColumn(name, unit), value=value)
        for name, unit, value in (
            ("Requests", units.PER_S, answer.requests_per_s),
            ("Output tokens", units.PER_S, answer.output_tokens_per_s),
            ("Storage read", units.GIB_PER_S, answer.storage_read_bytes_per_s),
            ("Storage write", units.GIB_PER_S, answer.storage_write_bytes_per_s),
        )
        if value is not None
    ]
    bend = ShownColumn("Knee", units.DisplayUnit(facts.unit))
    note = "most throughput for its response time"
    knees = [] if knee is None else [KeyNumber(column=bend, value=knee.load, note=note)]
    return KeyNumbers(
        numbers=[KeyNumber(column=load, value=answer.load, note=sure), *rates, *knees]
    )


def _search_facts(facts: CapacityFacts) -> Iterator[tuple[str, str]]:
    answer, limit = facts.answer, facts.limited_by
    yield "SLO", ", ".join(facts.slo)
    preset = f", {facts.semantics_preset} semantics" if facts.semantics_preset else ""
    yield "model", f"{facts.model.name or 'unknown model'}{preset}, seed {facts.seed}"
    if answer.reason:
        yield "why not more", answer.reason
    if limit is not None:
        yield "limited by", f"{limit.what}: {limit.why}"
    before = [probe.cache_state for probe in facts.probes if probe.cache_state.rows_before]
    held = f"what {figures(before[0].rows_before)} rows before left" if before else "empty"
    if facts.probes:
        yield "cache at the beginning of each probe", held
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
    return Table.of(
        _ranked(facts),
        {
            ShownColumn("load", units.DisplayUnit(facts.unit)): _load,
            ShownColumn("found", status=True): lambda probe: probe.state,
            ShownColumn("asked", units.PER_S): lambda probe: probe.offered_per_s,
            ShownColumn("completed", units.PER_S): lambda probe: probe.completed_per_s,
            **percentile_columns(("p50", "p95", "p99"), lambda probe: probe.response_ms),
            ShownColumn("storage", units.GIB_PER_S): _storage,
            ShownColumn("busy", units.PERCENT): lambda probe: probe.machine.device_utilisation,
            ShownColumn("hit ratio", units.PERCENT): lambda probe: probe.reuse_hit_ratio,
            ShownColumn("window", units.S): lambda probe: probe.seconds,
            ShownColumn("probe", units.COUNT): lambda probe: probe.probe,
            ShownColumn("why this load"): lambda probe: probe.why,
        },
    )


def _judged(facts: CapacityFacts) -> Table:
    return Table.of(
        [(probe, slo) for probe in _ranked(facts) for slo in probe.slos],
        {
            ShownColumn("SLO"): lambda each: each[1].slo,
            ShownColumn("load", units.DisplayUnit(facts.unit)): lambda each: each[0].load,
            ShownColumn("probe", units.COUNT): lambda each: each[0].probe,
            ShownColumn("requests", units.COUNT): lambda each: each[1].ended,
            ShownColumn("over the limit", units.PERCENT): lambda each: each[1].share,
            ShownColumn("from", units.PERCENT): lambda each: each[1].low,
            ShownColumn("to", units.PERCENT): lambda each: each[1].high,
            ShownColumn("allowed", units.PERCENT): lambda each: each[1].allowed,
        },
        caption="From and to: the 95 % interval of the share.",
    )


def _passports(facts: CapacityFacts) -> Table:
    return Table.of(
        facts.probes,
        {
            ShownColumn("probe", units.COUNT): lambda probe: probe.probe,
            ShownColumn("verdict", status=True): lambda probe: probe.verdict,
            ShownColumn("reasons"): lambda probe: "; ".join(probe.reasons),
        },
    )


# --- figures ---------------------------------------------------------------------------------


_OPEN = "Open points did not pass; where the load is too much they are lower bounds."


def _figures(facts: CapacityFacts) -> list[Part]:
    if not facts.probes:
        return []
    ranked = _ranked(facts)
    shares = [_shares(facts, slo) for slo in facts.slo]
    every = [
        _over_load(facts, "Response over load", _RESPONSE, _latencies(ranked, _load),
                   levels=_limits(facts), log_y=True,
                   caption="All requests. An SLO is of one class: a probe may miss it though this "
                   f"line is below. The answer's interval is shaded. {_OPEN}"),
        over_throughput(facts),
        *shares,
        _over_load(facts, "Requests asked and completed", ShownColumn("requests", units.PER_S), [
            _line("completed", ranked, _load, _completed),
            _line("asked", ranked, _load, lambda probe: probe.offered_per_s, muted=True),
        ]),
        _over_load(facts, "Storage throughput", ShownColumn("throughput", units.GIB_PER_S), [
            _line("read", ranked, _load, lambda probe: probe.storage_read_bytes_per_s),
            _line("write", ranked, _load, lambda probe: probe.storage_write_bytes_per_s),
        ]),
    ]  # fmt: skip
    return present(*every)


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
        "load, through the mean of its probes. "
        f"{_OPEN}",
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
        x=ShownColumn("load", units.DisplayUnit(facts.unit)),
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
    slos = slos_of(facts.slo, "slo")
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
        ShownColumn("over the limit", units.PERCENT),
        [Line(name="", points=[_share_point(*each) for each in judged], path=())],
        levels=[] if allowed is None else [Level(name="allowed", y=allowed)],
    )


def _share_point(probe: ProbeFacts, slo: JudgedSlo) -> PlotPoint:
    ends = None
    if slo.low is not None and slo.high is not None:
        ends = IntervalEnds(low=slo.low, high=slo.high)
    mark = "" if probe.inside else probe.state
    return PlotPoint(x=probe.load, y=slo.share or 0.0, interval=ends, mark=mark)


# --- several searches ------------------------------------------------------------------------


def capacities_view(named: Sequence[tuple[str, Json]]) -> View:
    """Several searches: their answers, and their p95 over throughput. Raises MisshapenError."""
    searches = [(name, converted(section, CapacityFacts, "")) for name, section in named]
    answers = Table.of(
        searches,
        {
            ShownColumn("search"): lambda each: each[0],
            ShownColumn("verdict", status=True): lambda each: each[1].verdict,
            ShownColumn("capacity", units.COUNT): lambda each: each[1].answer.load,
            ShownColumn("unit"): lambda each: each[1].unit,
            ShownColumn("interval"): lambda each: _interval(each[1].answer),
            ShownColumn("requests", units.PER_S): lambda each: each[1].answer.requests_per_s,
            ShownColumn("storage read", units.GIB_PER_S): lambda each: (
                each[1].answer.storage_read_bytes_per_s
            ),
            ShownColumn("limited by"): lambda each: (
                each[1].limited_by.what if each[1].limited_by else ""
            ),
        },
    )
    lines = [
        _line(name, sorted(_ranked(facts), key=_completed), _completed, _response("p95"))
        for name, facts in searches
    ]
    over = Figure(title="Response p95 over requests completed", x=_COMPLETED, y=_RESPONSE,
                  lines=lines, log_y=True)  # fmt: skip
    loads = ", ".join(f"{name} {figures(f.answer.load)} {f.unit}" for name, f in searches)
    return View(
        title="Capacity searches",
        status="side by side",
        sentence=f"Capacities: {loads}.",
        about=[],
        sections=[
            ViewSection(title="Answers", parts=[answers]),
            ViewSection(title="Over each other", parts=present(over)),
        ],
    )
