"""A simulated cluster: its variants beside each other, the first run of each over time. Bars stand
beside their numbers, so that nothing is told by a length or a colour alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath

from kv_cache.config.scenario import Scenario
from kv_cache.core.format import as_text, figures
from kv_cache.core.units import MISSING
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.result.metrics import Json
from kv_cache.result.run import converted
from kv_cache.result.simulation.facts import (
    SimFacts,
    SimRun,
    SimVariant,
    grid_of,
    means_on,
    names_below,
    peaks_on,
    rates_on,
)
from kv_cache.result.simulation.judge import SKEWED
from kv_cache.result.simulation.measures import (
    ACTIVE,
    BUSY,
    CEILING,
    E2E,
    FINISHED_RATE,
    GOOD_SHARE,
    GOODPUT,
    HIT_RATIO,
    ITL,
    QUEUE,
    SKEW,
    TOKEN_RATE,
    TPOT,
    TTFT,
    TTFT_WITH_TRANSFER,
    Measure,
)
from kv_cache.view import units
from kv_cache.view.cluster_classes import class_table
from kv_cache.view.cluster_hardware import gpu_memory, hardware_text, link_waits
from kv_cache.view.identity import origin_texts, trace_text
from kv_cache.view.machine import option_parts
from kv_cache.view.parts import (
    BarChart,
    BarRow,
    Cell,
    FactList,
    Figure,
    KeyNumber,
    KeyNumbers,
    Line,
    Part,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    present,
)
from kv_cache.view.simulation_variants import (
    OF_SEEDS,
    Options,
    behind,
    by_option,
    curves,
    label,
    lead_chart,
    pivots,
    sends,
    short_text,
)

GIGABYTES = units.DisplayUnit("GB", 1e9)
"""Of links, whose rates are said in decimal units."""
_AMOUNT = units.DisplayUnit("", 1e9)  # of a column whose table says that it is in GB
_MOST_LINES = 8
_MOST_BARS = 12
"""Rows of a bar chart, where curves tell the same."""
_MOST_POINTS, _MOST_RATES = 300, 80
"""Of a line of levels, and of rates: tokens count when a run of steps ends, so that few instants
make a smooth line."""
_MOST_INSTANCES = 100
"""Of a table of instances: the busiest."""
_OF_REQUESTS = ("workload.", "tiers.prefetch")
"""Of options that are left out: those that yield to another source of requests."""

Fact = tuple[str, str]


def sim_view(section: Json) -> View:
    """The document of `sim`. Raises MisshapenError."""
    facts = converted(section, SimFacts, "")
    variants = facts.ended()
    options = Options(facts)
    none = "No run ended, so there are no numbers."
    return View(
        title=f"Simulation {facts.name}",
        status="virtual time",
        sentence=f"Verdict: {facts.verdict.message}. "
        "Everything is simulated: nothing was measured.",
        about=origin_texts(section),
        reasons=facts.warnings,
        sections=by_option(
            options,
            variants,
            [
                hidden_section("Headline", _headline(facts, variants)),
                hidden_section("Variants beside each other", _beside(facts, variants), none),
                ViewSection(
                    title="What was asked", parts=[FactList(rows=list(_asked_facts(facts)))]
                ),
                ViewSection(
                    title="Numbers",
                    parts=[
                        *behind(facts, variants),
                        *pivots(facts, variants, options),
                        *(_numbers(variants) if variants else []),
                    ],
                    absent=none,
                ),
                ViewSection(
                    title="Caches", parts=_caches(variants) if variants else [], absent=none
                ),
                ViewSection(
                    title="What was moved",
                    parts=_moved(variants),
                    absent="Nothing was moved between places.",
                ),
                hidden_section("By each measure", _by_measure(facts)),
                hidden_section(
                    "Over time", _over_time(variants), "The document holds no time series."
                ),
                hidden_section("Instances", _instances(variants) if variants else [], none),
                hidden_section("Events and checks", _events(variants) if variants else [], none),
                hidden_section("What this simulation does not model", _not_modelled(facts)),
                hidden_section(
                    "Scenario", [*_varied(facts), *option_parts(facts.config, Scenario)]
                ),
            ],
        ),
    )


# --- words -----------------------------------------------------------------------------------


def _asked_facts(facts: SimFacts) -> Iterator[Fact]:
    if facts.question != "none":
        yield "question", facts.question
    preset = f", preset {facts.preset}" if facts.preset else ""
    yield "scenario", f"{facts.name} ({facts.scenario_file}{preset})"
    first, more = facts.seeds[0] if facts.seeds else MISSING, len(facts.seeds) - 1
    yield "seeds", f"{first} and {more} more" if more > 0 else f"{first}"
    yield from (("trace", trace_text(trace)) for trace in facts.traces)
    if facts.hardware:
        yield "hardware", hardware_text(facts.hardware)
    requests = [name for name in facts.left_out if name.startswith(_OF_REQUESTS)]
    hardware = [name for name in facts.left_out if name not in requests]
    for names, why in ((requests, _why_left_out(facts)), (hardware, "as a profile describes it")):
        if names:
            yield "left out", f"of the scenario, {why}: {', '.join(names)}"
    for variant in facts.variants:
        same = ", ".join(each.name for each in variant.same)
        if same:
            yield "not run", f"{same}: nothing reads how it differs from variant {variant.variant}"
    ended = "" if facts.interrupted is None else f", ended by {facts.interrupted}"
    yield "runs", f"{facts.finished} of {facts.runs} ended{ended}"
    hits = facts.verdict.measures.get(HIT_RATIO.path)
    if (
        hits is not None
        and facts.verdict.no_order is None
        and hits.message != facts.verdict.message
    ):
        yield "hits", hits.message
    yield "command", " ".join(facts.argv)


def _why_left_out(facts: SimFacts) -> str:
    work = facts.config.get("workload", {})
    file = work.get("trace") or work.get("fitted")
    if file:
        return f"as {PurePath(file).name} stands in its place"
    users = f" with concurrency {work['concurrency']}" if work.get("concurrency") else ""
    return f"as source {work.get('source')}{users} does not read it"


def _by_measure(facts: SimFacts) -> list[Part]:
    """None where one reason holds for all of them."""
    if facts.verdict.no_order is not None:
        return []
    rows = [[each.message] for each in facts.verdict.measures.values()]
    return present(Table(columns=[ShownColumn("what the seeds say")], rows=rows, detail=True))


def _not_modelled(facts: SimFacts) -> list[Part]:
    rows = [[text] for text in facts.not_modelled]
    return present(Table(columns=[ShownColumn("what is left out")], rows=rows))


def _varied(facts: SimFacts) -> list[Part]:
    rows: list[list[Cell]] = [
        [name, *(as_text(values.get(path)) for path in facts.varied)]
        for variant in facts.variants
        for name, values in (
            (variant.name, variant.values),
            *((f"as variant {variant.variant}", each.values) for each in variant.same),
        )
    ]
    columns = [ShownColumn("variant"), *map(ShownColumn, facts.varied)]
    return [Table(title="What varies", columns=columns, rows=rows)] if facts.varied else []


# --- numbers of variants ---------------------------------------------------------------------


def _column(measure: Measure) -> ShownColumn:
    return ShownColumn(measure.label, units.DisplayUnit(measure.unit, 1 / measure.scale))


def _mean_of(path: str) -> Callable[[SimVariant], Cell]:
    return lambda variant: variant.mean(path)


def _counted(variant: SimVariant, path: str) -> float:
    """0 for a counter that nobody touched."""
    return variant.mean(path) or 0.0


def _interval(variant: SimVariant, path: str) -> IntervalEnds | None:
    row = variant.numbers.get(path)
    return None if row is None else row.interval


def _headline(facts: SimFacts, variants: Sequence[SimVariant]) -> list[Part]:
    """Of the best variant, or of the only one; where there are several and none is best, how far
    they reach."""
    best = [v for v in variants if v.variant == facts.verdict.best] or list(variants)
    note = f"of {label(best[0])}" if len(best) == 1 else "of all variants"
    cards = []
    for measure in (
        GOODPUT, TTFT[1], *_shown_with_transfer(variants), ITL[1], E2E[1], FINISHED_RATE,
        TOKEN_RATE, HIT_RATIO, CEILING, BUSY, ACTIVE, SKEW,
    ):  # fmt: skip
        values = [mean for v in best if (mean := v.mean(measure.path)) is not None]
        if values:
            column = _column(measure)
            low, high = column.text(min(values)), column.text(max(values))
            value = min(values) if low == high else f"{low} to {high}"
            cards.append(KeyNumber(column=column, value=value, note=note))
    return present(KeyNumbers(numbers=cards))


# --- beside each other -----------------------------------------------------------------------


def _beside(facts: SimFacts, variants: Sequence[SimVariant]) -> list[Part]:
    tiers = names_below(variants, "blocks.hit_ratios")
    causes = names_below(variants, "bytes_by_cause")
    first_token = names_below(variants, "ttft_parts_ms")
    charts = [
        _bars(variants, TTFT[1], (TTFT[0], TTFT[2])),
        BarChart(
            title="Time to the first decoded token, by its parts",
            x=ShownColumn("mean", units.MS),
            parts=[name.replace("_", " ") for name in first_token],
            rows=_rows(variants, [f"ttft_parts_ms.{name}.mean" for name in first_token]),
        ),
        _bars(variants, GOODPUT),
        _bars(variants, TOKEN_RATE),
        BarChart(
            title="Block hits by tier",
            x=ShownColumn("of blocks looked up", units.PERCENT),
            parts=tiers,
            marks=[CEILING.label],
            rows=_rows(variants, [f"blocks.hit_ratios.{tier}" for tier in tiers], [CEILING]),
            caption="The ceiling is what a cache without limits or delays would have: blocks that "
            "anyone asked for before, as a prefix.",
        ),
        BarChart(
            title="Bytes on all links by cause",
            x=ShownColumn("moved", GIGABYTES),
            parts=causes,
            rows=_rows(variants, [f"bytes_by_cause.{cause}" for cause in causes]),
        ),
    ]
    some = [chart for chart in charts if any(any(row.parts) for row in chart.rows)]
    options = Options(facts)
    figures_over = list(curves(variants, options))
    return [
        *lead_chart(facts, variants, options),
        *figures_over,
        *(chart for chart in some if len(variants) <= _MOST_BARS or not figures_over),
    ]


def _bars(
    variants: Sequence[SimVariant], measure: Measure, marks: Sequence[Measure] = ()
) -> BarChart:
    """A bar for each variant with its interval, and a mark at each of `marks`."""
    return BarChart(
        title=f"{measure.label[:1].upper()}{measure.label[1:]}",
        x=_column(measure),
        parts=[measure.label],
        marks=[mark.label for mark in marks],
        rows=_rows(variants, [measure.path], marks, spans=True),
    )


def _rows(
    variants: Sequence[SimVariant],
    paths: Sequence[str],
    marks: Sequence[Measure] = (),
    *,
    spans: bool = False,
) -> list[BarRow]:
    """Parts behind one another; `spans` are the intervals of a part that is alone."""
    return [
        BarRow(
            name=label(variant),
            parts=[_counted(variant, path) for path in paths],
            marks=[variant.mean(mark.path) for mark in marks],
            interval=_interval(variant, paths[0]) if spans else None,
        )
        for variant in variants
    ]


# --- tables ----------------------------------------------------------------------------------


def _numbers(variants: Sequence[SimVariant]) -> list[Part]:
    groups = {"TTFT": TTFT, "ITL": ITL, "TPOT": TPOT, "E2E": E2E, "queue": QUEUE}
    shown = [measure for measures in groups.values() for measure in measures]
    short = [
        f"{group} {percent}" if place == 0 else percent
        for group, measures in groups.items()
        for place, measure in enumerate(measures)
        for percent in [measure.path.rpartition(".")[2]]
    ]
    spans = any(row.interval is not None for v in variants for row in v.numbers.values())
    latencies = Table(
        title="Latency",
        columns=[ShownColumn("latency, ms"), *(ShownColumn(name, units.COUNT) for name in short)],
        rows=[[label(v), *(short_text(v, measure) for measure in shown)] for v in variants],
        caption=OF_SEEDS if spans else "",
    )
    every = dict.fromkeys(path for variant in variants for path in variant.numbers)
    all_numbers = Table.of(
        every,
        {
            ShownColumn("mean over seeds, in the unit that its name says"): lambda path: path,
            **{ShownColumn(label(variant), units.COUNT): variant.mean for variant in variants},
        },
        title="Every number of every variant",
        detail=True,
    )
    lost = FactList(rows=list(_lost(variants)))
    service = (_service(variants), gpu_memory(variants, label))
    classes = class_table(variants, label, short_text)
    return present(latencies, *_first_token(variants), classes, *service, lost, all_numbers)


def _shown_with_transfer(variants: Sequence[SimVariant]) -> list[Measure]:
    """The time to the first decoded token, where state was sent to another instance."""
    return [TTFT_WITH_TRANSFER[1]] if sends(variants) else []


def _first_token(variants: Sequence[SimVariant]) -> list[Table]:
    """The time to the first decoded token by its parts, and how long state was on its way."""
    parts = {
        **{name.replace("_", " "): f"ttft_parts_ms.{name}.mean"
           for name in names_below(variants, "ttft_parts_ms")},
        "all": "ttft_with_transfer_ms.mean",
        **{name: f"ttft_with_transfer_ms.{name}" for name in ("p50", "p95", "p99")},
    }  # fmt: skip
    sent = {
        f"{name} {percent}": f"transfer_ms.{path}.{percent}"
        for name, path in (("first chunk", "first_chunk"), ("all of it", "full"))
        for percent in ("p50", "p95", "p99")
    }
    return [
        Table.of(
            variants,
            {
                ShownColumn(title): label,
                **_measured({name: Measure(path=path, label=name) for name, path in times.items()}),
            },
            title=title,
            detail=not sends(variants),
            caption=caption,
        )
        for title, times, caption in (
            ("TTFT with transfer, ms", parts, "Parts, and all of them together, are means."),
            ("sent to decode, ms", sent, ""),
        )
    ]


def _service(variants: Sequence[SimVariant]) -> Table:
    """What became of requests, and how instances shared the work."""
    counts = ("arrived", "finished", "rejected", "aborted", "preemptions", "handoffs")
    rates = {
        "req/s": FINISHED_RATE, "tokens/s": TOKEN_RATE, "good/s": GOODPUT, "good %": GOOD_SHARE,
        "busy %": BUSY, "active %": ACTIVE, "skew": SKEW,
    }  # fmt: skip
    return Table.of(
        variants,
        {
            ShownColumn("requests"): label,
            **_measured({n: Measure(path=f"requests.{n}", label=n) for n in counts} | rates),
        },
        title="Requests and instances",
    )


Cells = dict[ShownColumn, Callable[[SimVariant], Cell]]
"""Columns with how their cells are read from a variant."""


def _measured(measures: Mapping[str, Measure]) -> Cells:
    return {
        ShownColumn(name, units.COUNT): partial(short_text, measure=measure)
        for name, measure in measures.items()
    }


def _counts(path: str, names: Iterable[str]) -> Cells:
    return {
        ShownColumn(name.replace("_", " "), units.COUNT): partial(_counted, path=f"{path}.{name}")
        for name in names
    }


def _lost(variants: Sequence[SimVariant]) -> Iterator[Fact]:
    """Why requests were rejected or aborted; means over seeds where there are several."""
    for variant in variants:
        for what in ("rejected", "aborted"):
            path = f"requests.{what}_why"
            reasons = names_below([variant], path)
            if reasons:
                texts = [f"{figures(_counted(variant, f'{path}.{why}'))} {why}" for why in reasons]
                yield f"{what} in variant {variant.variant}", ", ".join(texts)


_LOOKUPS = ("looked_up", "hit", "missed", "ceiling", "compulsory", "recomputed")
_OF_A_TIER = (
    "places", "capacity_blocks", "peak_blocks", "stored", "evicted", "dropped", "not_admitted",
    "not_stored", "prefetched", "prefetch_useful", "prefetch_late", "prefetch_wasted",
)  # fmt: skip


def _caches(variants: Sequence[SimVariant]) -> list[Part]:
    tiers = {
        tier: Measure(path=f"blocks.hit_ratios.{tier}", label=tier, unit="%", scale=100)
        for tier in names_below(variants, "blocks.hit_ratios")
    }
    bounds = {
        f"{tier} by MIN": Measure(
            path=f"blocks.most_ratios.{tier}", label=tier, unit="%", scale=100
        )
        for tier in names_below(variants, "blocks.most_ratios")
    }
    others = Measure(path="blocks.from_others_ratio", label="from others", unit="%", scale=100)
    hits = Table.of(
        variants,
        {
            ShownColumn("block hits, %"): label,
            **_measured(
                {**tiers, "all": HIT_RATIO, "ceiling": CEILING, **bounds, "from others": others}
            ),
            **_counts("blocks", ("looked_up", "recomputed")),
        },
        title="Block hits",
    )
    lookups = Table.of(
        variants,
        {
            ShownColumn("variant"): label,
            **{
                ShownColumn(name.replace("_", " "), units.COUNT): _mean_of(f"blocks.{name}")
                for name in _LOOKUPS
            },
        },
        title="Blocks of prompts, at the first admission",
        detail=True,
    )
    of_tiers = Table(
        title="Tiers, in blocks",
        columns=[ShownColumn("variant"), ShownColumn("tier"),
                 *(ShownColumn(name.replace("_", " "), units.COUNT) for name in _OF_A_TIER)],
        rows=[
            [label(v), tier, *(v.mean(f"tiers.{tier}.{name}") for name in _OF_A_TIER)]
            for v in variants
            for tier in names_below([v], "tiers")
        ],
        caption="All places together; but capacity and peak are of one.",
        detail=True,
    )  # fmt: skip
    return [hits, lookups, of_tiers]


def _moved(variants: Sequence[SimVariant]) -> list[Part]:
    """A row for each kind of link of each variant that carried anything."""
    causes = names_below(variants, "bytes_by_cause")
    rows: list[list[Cell]] = [
        [
            label(variant),
            kind,
            *(variant.mean(f"{link}.bytes_by_cause.{cause}") for cause in causes),
            variant.mean(f"{link}.bytes"),
            *(short_text(variant, use) for use in _uses_of(link)),
            *(variant.mean(f"{link}.{name}") for name in ("transfers", "links")),
        ]
        for variant in variants
        for kind in names_below([variant], "links")
        for link in [f"links.{kind}"]
        if variant.mean(f"{link}.bytes")
    ]
    columns = [
        ShownColumn("moved, GB"), ShownColumn("over"),
        *(ShownColumn(name, _AMOUNT) for name in (*causes, "all")),
        ShownColumn("busy %", units.COUNT), ShownColumn("busiest %", units.COUNT),
        ShownColumn("transfers", units.COUNT), ShownColumn("links", units.COUNT),
    ]  # fmt: skip
    caption = "GB are 10⁹ bytes. A byte that crosses three links is told at each of them."
    moved = Table(title="Bytes by cause", columns=columns, rows=rows, caption=caption)
    return present(moved, link_waits(variants, label, short_text))


def _uses_of(link: str) -> list[Measure]:
    """Of all links of a kind, and of the busiest one."""
    return [
        Measure(path=f"{link}.{name}", label=name, unit="%", scale=100)
        for name in ("utilisation", "busiest_utilisation")
    ]


# --- over time -------------------------------------------------------------------------------

_WHERE = ("waiting", "prefilling", "decode_queue", "transferring", "decoding")
_VIRTUAL = ShownColumn("virtual time", units.S)
OnGrid = Callable[[SimRun, str, Sequence[float]], list[float | None]]
"""How a column of a run is seen on a grid of instants."""


def _over_time(variants: Sequence[SimVariant]) -> list[Part]:
    """Where the requests of one variant are; of several, each thing with all of them."""
    some = variants[:_MOST_LINES]
    runs = [variant.runs[0] for variant in some]
    grid, coarse = grid_of(runs, _MOST_POINTS), grid_of(runs, _MOST_RATES)
    if not grid:
        return []
    left = len(variants) - len(some)
    note = "The first run of each variant; --series has more."
    note += f" {left} more variants are not drawn." if left else ""

    def each(title: str, unit: str, name: str, how: OnGrid, *, detail: bool = False) -> Figure:
        at = coarse if how is rates_on else grid
        tracks = {label(v): how(v.runs[0], name, at) for v in some}
        return _timed(title, unit, at, tracks, note, detail=detail)

    if len(some) == 1:
        where = {name: peaks_on(runs[0], name, grid) for name in _WHERE}
        levels = [_timed("Requests: where they are, at most", "requests", grid, where, note)]
    else:
        levels = [
            each("Requests that wait, at most", "requests", "waiting", peaks_on),
            each("Requests that wait, mean", "requests", "waiting", means_on, detail=True),
            each("Sequences that decode, mean", "sequences", "decoding", means_on, detail=True),
        ]
    return present(
        *levels,
        each("Output tokens", "tokens/s", "output_tokens", rates_on),
        each("Prefilled tokens", "tokens/s", "prefill_tokens", rates_on, detail=True),
        each("HBM in use, at most", "blocks", "hbm_blocks", peaks_on, detail=True),
    )


def _timed(
    title: str,
    unit: str,
    grid: Sequence[float],
    tracks: Mapping[str, Sequence[float | None]],
    caption: str,
    *,
    detail: bool = False,
) -> Figure:
    """All lines or none, so that each has the same colour in every figure."""
    lines = [Line.through(name, zip(grid, ys, strict=True)) for name, ys in tracks.items()]
    return Figure(
        title=title, x=_VIRTUAL, y=ShownColumn(title.lower(), units.DisplayUnit(unit)),
        lines=lines if any(any(ys) for ys in tracks.values()) else [],
        scale=Scale.TIME, caption=caption, axis=grid, detail=detail,
    )  # fmt: skip


# --- instances and events --------------------------------------------------------------------


def _instances(variants: Sequence[SimVariant]) -> list[Part]:
    names = ("count", "active", "requests", "skew", "utilisation", "busiest_utilisation")
    rows: list[list[Cell]] = [
        [label(v), role, *(v.mean(f"instances.roles.{role}.{name}") for name in names)]
        for v in variants
        for role in names_below([v], "instances.roles")
    ]
    heads = ("instances", "with a request", "requests", "skew")
    columns = [
        ShownColumn("variant"), ShownColumn("role"),
        *(ShownColumn(head, units.COUNT) for head in heads),
        ShownColumn("busy", units.PERCENT), ShownColumn("busiest", units.PERCENT),
    ]  # fmt: skip
    caption = (
        "Skew is the most requests of one instance over the mean of its role; from "
        f"{SKEWED:g} on it is a warning."
    )
    roles = Table(title="Instances by role", columns=columns, rows=rows, caption=caption)
    return [roles, *(table for variant in variants for table in _each_instance(variant))]


_OF_AN_INSTANCE = (
    "node", "rack", "requests", "finished", "prefill_tokens", "decode_tokens", "peak_blocks",
    "capacity_blocks", "preemptions", "longest_queue",
)  # fmt: skip


def _each_instance(variant: SimVariant) -> Iterator[Table]:
    """The busiest instances of the variant's first run."""
    run = variant.runs[0]
    columns = run.instances or {}
    busy = [ns if isinstance(ns, float) else 0.0 for ns in columns.get("busy_ns", ())]
    if not busy:
        return
    window = run.facts.window_s
    ranked = sorted(range(len(busy)), key=lambda place: (-busy[place], place))[:_MOST_INSTANCES]

    def cell(name: str, place: int) -> Cell:
        values = columns.get(name, [])
        return values[place] if place < len(values) else None

    rows: list[list[Cell]] = [
        [
            f"{place}",
            *(cell(name, place) for name in ("group", "role", *_OF_AN_INSTANCE)),
            busy[place] / 1e9 / window if window else None,
        ]
        for place in ranked
    ]
    which = f"the {len(ranked)} busiest of {len(busy)}" if len(ranked) < len(busy) else "all"
    yield Table(
        title=f"Instances of {label(variant)}: {which}",
        columns=[
            ShownColumn("instance"), ShownColumn("group"), ShownColumn("role"),
            *(ShownColumn(name.replace("_", " "), units.COUNT) for name in _OF_AN_INSTANCE),
            ShownColumn("busy", units.PERCENT),
        ],
        rows=rows,
        detail=True,
    )  # fmt: skip


def _events(variants: Sequence[SimVariant]) -> list[Part]:
    checks = names_below(variants, "checks")
    laws = Table.of(
        variants,
        {
            ShownColumn("variant"): label,
            ShownColumn("events", units.COUNT): _mean_of("events"),
            **{
                ShownColumn(f"checked: {law}", units.COUNT): _mean_of(f"checks.{law}")
                for law in checks
            },
        },
        title="Events of the loop, and how often each law was checked",
        detail=True,
    )
    logged = [(v, run.seed, run.event_log) for v in variants for run in v.runs if run.event_log]
    kinds = list(dict.fromkeys(kind for _, _, log in logged for kind in log))
    if not kinds:
        return [laws]
    log = Table(
        title="Events in the log by kind",
        columns=[ShownColumn("variant"), ShownColumn("seed"),
                 *(ShownColumn(kind, units.COUNT) for kind in kinds)],
        rows=[
            [label(v), f"{seed}", *(counts.get(kind) for kind in kinds)]
            for v, seed, counts in logged
        ],
        detail=True,
    )  # fmt: skip
    return [laws, log]
