"""The report of a simulated cluster: its variants beside each other, the first runs over time.

Bars stand in tables, each beside its numbers, so that nothing is told by a length or a colour
alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import Any

from kv_cache.config.scenario import Scenario
from kv_cache.config.schema import to_mapping
from kv_cache.core.format import as_text, figures
from kv_cache.report.cluster.judge import SKEWED
from kv_cache.report.cluster.measures import (
    ACTIVE,
    BUSY,
    CEILING,
    E2E,
    FINISHED_RATE,
    GOOD_SHARE,
    GOODPUT,
    HIT_RATIO,
    ITL,
    LATENCIES,
    SKEW,
    TOKEN_RATE,
    TTFT,
    Measure,
)
from kv_cache.report.cluster.reading import (
    column_at,
    ends_at,
    first_run,
    grid_of,
    label_at,
    levels_on,
    mean_at,
    names_at,
    rates_on,
    texts_in,
    variants_of,
)
from kv_cache.report.html.charts import LINEAR, TIME, Axis, Book, Chart, ChartLine, ChartTable
from kv_cache.report.html.parts import (
    Card,
    Doc,
    Json,
    Section,
    badge,
    bullets,
    cards,
    details,
    dotted,
    flat,
    headed,
    lead,
    reasons_at,
    table,
    text_at,
)
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.pictures.base import known, number, rows_at, value_at
from kv_cache.result.chain import fingerprint

_LONGEST = 60
_GB = 1e9
_DASHES = ("", "dash", "dot", "chain")
_MOST_LINES = 8
_MOST_POINTS, _MOST_RATES = 400, 80
"""Of a line of levels, and of rates: tokens count when a run of steps ends, so that few instants
make a smooth line."""
_MOST_ROWS = 100
"""Of the table of instances: the busiest."""


def sim_sections(doc: Doc, book: Book) -> Iterator[Section]:
    own = doc.own
    variants = variants_of(own)
    none = "No run ended, so there are no numbers."
    yield Section(slug="verdict", title="Verdict and headline",
                  content=list(_verdict(own, variants)))  # fmt: skip
    yield Section(slug="variants", title="Variants beside each other",
                  content=_beside(doc, variants, book), absent=none)  # fmt: skip
    yield Section(slug="numbers", title="Numbers", content=_numbers(variants), absent=none)
    yield Section(slug="caches", title="Caches", content=_caches(variants), absent=none)
    yield Section(slug="moved", title="What was moved", content=_moved(variants),
                  absent="Nothing was moved between places.")  # fmt: skip
    yield Section(slug="time", title="Over time", content=_over_time(doc, variants, book),
                  absent="The document holds no time series.")  # fmt: skip
    yield Section(slug="instances", title="Instances", content=_instances(variants), absent=none)
    yield Section(slug="events", title="Events and checks", content=_events(variants), absent=none)
    yield Section(slug="limits", title="What this simulation does not model",
                  content=bullets(reasons_at(own, "not_modelled")),
                  absent="The document does not say.")  # fmt: skip
    yield Section(slug="config", title="Scenario", content=_scenario(own),
                  absent="The document holds no scenario.")  # fmt: skip
    yield Section(slug="origin", title="Origin", content=_origin(doc))


# --- headline --------------------------------------------------------------------------------


def _verdict(own: Json, variants: Sequence[Json]) -> Iterator[Html]:
    yield tag("p", badge("virtual time"), class_="verdict")
    yield lead(
        *([text_at(own, "question")] if text_at(own, "question") not in ("", "none") else []),
        "All figures come from a simulation: nothing was measured.",
        f"{figures(number(own, 'finished'))} of {figures(number(own, 'runs'))} runs ended"
        + (f", stopped by {text_at(own, 'interrupted')}." if text_at(own, "interrupted") else "."),
    )
    yield tag("p", tag("strong", "Verdict: "), text_at(own, "verdict.says"))
    yield from _by_other_measures(own)
    yield from bullets(reasons_at(own, "warnings"), "reasons")
    if variants:
        yield cards(_cards(own, variants))


def _by_other_measures(own: Json) -> Iterator[Html]:
    """Folded, and not where one reason holds for all of them."""
    found = value_at(own, "verdict.measures")
    if not isinstance(found, Mapping) or value_at(own, "verdict.no_order") is not None:
        return
    said = [text_at(row, "says") for row in found.values() if isinstance(row, Mapping)]
    yield details("By each measure", *bullets([text for text in said if text]))


def _cards(own: Json, variants: Sequence[Json]) -> Iterator[Card]:
    """Of the best variant, or of the only one; where there are several and none is best, how far
    they reach."""
    best = number(own, "verdict.best")
    chosen = [v for v in variants if number(v, "variant") == best] or list(variants)
    for measure in (GOODPUT, TTFT[1], ITL[1], E2E[1], FINISHED_RATE, TOKEN_RATE, HIT_RATIO, CEILING,
                    BUSY, ACTIVE, SKEW):  # fmt: skip
        values = known(mean_at(variant, measure.path) for variant in chosen)
        if not values:
            continue
        low, high = measure.shown(min(values)), measure.shown(max(values))
        yield Card(
            name=headed(measure.label), unit=measure.unit,
            value=low if low == high else f"{low} to {high}",
            more=f"of {label_at(chosen[0], _LONGEST)}" if len(chosen) == 1 else "of all variants",
        )  # fmt: skip


# --- beside each other -----------------------------------------------------------------------


def _beside(doc: Doc, variants: Sequence[Json], book: Book) -> list[Html]:
    if not variants:
        return []
    made = [*_barred(variants, TTFT[1], (TTFT[0], TTFT[2])), *_barred(variants, GOODPUT)]
    made += [*_barred(variants, TOKEN_RATE), *_hits(variants), *_causes(variants)]
    charts = _over_option(doc, variants, book)
    return [*made, *([tag("div", *charts, class_="charts")] if charts else [])]


def _told(variant: Json, measure: Measure) -> str:
    """The mean with its interval, in the measure's unit."""
    mean = mean_at(variant, measure.path)
    if not isfinite(mean):
        return NOTHING
    low, high = ends_at(variant, measure.path)
    row = {"mean": mean, "interval": {"low": low, "high": high}}
    return measure.told(row)


def _barred(
    variants: Sequence[Json], measure: Measure, marks: Sequence[Measure] = ()
) -> Iterator[Html]:
    """A bar for each variant with its interval, and a mark at each of `marks`."""
    every = [mean_at(v, m.path) for v in variants for m in (measure, *marks)]
    most = max(known([*every, *(ends_at(v, measure.path)[1] for v in variants)]), default=0.0)
    if most <= 0:
        return
    rows = [
        (
            label_at(variant, _LONGEST),
            _bar(
                [(mean_at(variant, measure.path) / most, 0)],
                [mean_at(variant, mark.path) / most for mark in marks],
                [end / most for end in ends_at(variant, measure.path)],
            ),
            _told(variant, measure),
            *(_told(variant, mark) for mark in marks),
        )
        for variant in variants
    ]
    said = "".join(f", mark {mark.label}" for mark in marks)
    heads = ("variant", f"bar {measure.label}{said}; line 95 % interval", measure.label,
             *(mark.label for mark in marks))  # fmt: skip
    yield table(headed(f"{measure.label}, {measure.unit}"), heads, rows, words=2)


def _hits(variants: Sequence[Json]) -> Iterator[Html]:
    """Shares of the blocks looked up, by tier, with a line at what an unlimited cache has."""
    tiers = names_at(variants, "blocks.hit_ratios")
    rows = []
    for variant in variants:
        shares = [mean_at(variant, f"blocks.hit_ratios.{tier}") for tier in tiers]
        ceiling = mean_at(variant, CEILING.path)
        rows.append((
            label_at(variant, _LONGEST),
            _bar([(share, look) for look, share in enumerate(shares)], [ceiling]),
            *(_percent(share) for share in shares),
            _told(variant, HIT_RATIO),
            _percent(ceiling),
        ))  # fmt: skip
    if tiers:
        keys = [_key(tier, look) for look, tier in enumerate(tiers)]
        heads = ("variant", "by tier, in order; mark: ceiling", *keys, "all", "ceiling")
        yield table("Block hits, % of blocks looked up", heads, rows, words=2)
        yield tag("p", "The ceiling is what a cache without limits or delays would have: blocks "
                  "that anyone asked for before, as a prefix.", class_="small")  # fmt: skip


def _causes(variants: Sequence[Json]) -> Iterator[Html]:
    causes = names_at(variants, "bytes_by_cause")
    amounts = [[mean_at(v, f"bytes_by_cause.{cause}") for cause in causes] for v in variants]
    most = max((sum(known(row)) for row in amounts), default=0.0)
    if most <= 0:
        return
    rows = [
        (
            label_at(variant, _LONGEST),
            _bar([(amount / most, look) for look, amount in enumerate(row)]),
            *(figures(amount / _GB) for amount in row),
            figures(sum(known(row)) / _GB),
        )
        for variant, row in zip(variants, amounts, strict=True)
    ]
    keys = [_key(cause, look) for look, cause in enumerate(causes)]
    heads = ("variant", "by cause, in order", *keys, "all")
    yield table("Bytes on all links by cause, GB", heads, rows, words=2)


def _percent(share: float) -> str:
    return figures(100 * share)


def _key(name: str, look: int) -> Html:
    """A column's head with the colour of its part of the bar."""
    box = tag("svg", tag("rect", x=0, y=0, width=10, height=10, class_=f"f{look % 9}"),
              viewBox="0 0 10 10", class_="key", aria_hidden="true")  # fmt: skip
    return tag("span", box, " ", name)


_WIDE, _HIGH = 300.0, 14.0


def _bar(
    parts: Sequence[tuple[float, int]],
    marks: Sequence[float] = (),
    interval: Sequence[float] = (),
) -> Html:
    """Parts (share of the width, colour) behind one another, marks across, an interval along."""
    drawn = [tag("rect", x=0, y=2, width=_WIDE, height=10, class_="track")]
    at = 0.0
    for share, look in parts:
        if isfinite(share) and share > 0:
            width = min(share, 1 - at) * _WIDE
            drawn.append(tag("rect", x=f"{at * _WIDE:.1f}", y=2, width=f"{width:.1f}", height=10,
                             class_=f"f{look % 9}"))  # fmt: skip
            at = min(1.0, at + share)
    if len(interval) == 2 and known(interval) and interval[0] < interval[1]:
        drawn.append(_stroke(interval[0], interval[1], 7, 7, "interval"))
    drawn += [_stroke(mark, mark, 0, _HIGH, "axis") for mark in marks if isfinite(mark)]
    return tag("svg", *drawn, viewBox=f"0 0 {_WIDE:g} {_HIGH:g}", class_="bar wide",
               aria_hidden="true")  # fmt: skip


def _stroke(start: float, end: float, y1: float, y2: float, kind: str) -> Html:
    x1, x2 = (f"{_WIDE * min(1.0, max(0.0, x)):.1f}" for x in (start, end))
    return tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=kind)


# --- over an option --------------------------------------------------------------------------


def _over_option(doc: Doc, variants: Sequence[Json], book: Book) -> list[Html]:
    """Lines over the option that varies, where there is one alone and it has numbers."""
    varied = reasons_at(doc.own, "varied")
    if len(varied) != 1 or len(variants) < 3:
        return []
    places = [_option(variant, varied[0]) for variant in variants]
    if not all(map(isfinite, places)) or len(set(places)) != len(places):
        return []
    ranked = sorted(zip(places, variants, strict=True), key=lambda pair: pair[0])
    axis = Axis(key=doc.id("option"), kind=LINEAR, label=varied[0], places=[x for x, _ in ranked])
    rows = [variant for _, variant in ranked]
    charts = (
        _measures(axis, rows, "Time to first token", "ms", TTFT, log=True),
        _measures(axis, rows, "Block hits and their ceiling", "%", (HIT_RATIO, CEILING)),
        _measures(axis, rows, "Requests a second", "requests/s", (FINISHED_RATE, GOODPUT)),
    )
    return [part for chart in charts for part in book.figure(chart)]


def _option(variant: Json, path: str) -> float:
    """The value of an option as a number, NaN where it is none."""
    values = value_at(variant, "values")
    value = values.get(path) if isinstance(values, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return nan
    return number({"value": value}, "value")


def _measures(
    axis: Axis, rows: Sequence[Json], title: str, unit: str, some: Sequence[Measure],
    *, log: bool = False,
) -> Chart:  # fmt: skip
    lines = [
        ChartLine(name=measure.label, look=look, dash=_DASHES[look % 4],
             values=[measure.scale * mean_at(row, measure.path) for row in rows])
        for look, measure in enumerate(some)
    ]  # fmt: skip
    heads = (axis.label, *(measure.label for measure in some))
    told = [
        (figures(place), *(_told(row, measure) for measure in some))
        for place, row in zip(axis.places, rows, strict=True)
    ]
    return Chart(title=title, unit=unit, axis=axis, lines=lines, log=log,
                 table=ChartTable(heads=heads, rows=told))  # fmt: skip


# --- numbers ---------------------------------------------------------------------------------


def _numbers(variants: Sequence[Json]) -> list[Html]:
    if not variants:
        return []
    return [
        _measured("Latency, ms", variants, LATENCIES),
        _measured("Requests and instances", variants,
                  (FINISHED_RATE, TOKEN_RATE, GOODPUT, GOOD_SHARE, BUSY, ACTIVE, SKEW)),
        _ended(variants),
        details("Every number of every variant", _every(variants)),
    ]  # fmt: skip


def _measured(title: str, variants: Sequence[Json], measures: Sequence[Measure]) -> Html:
    some = [m for m in measures if any(isfinite(mean_at(v, m.path)) for v in variants)]
    units = [m.unit if m.unit not in ("", "ms") else "" for m in some]
    heads = ("variant", *(f"{m.label} {unit}".strip() for m, unit in zip(some, units, strict=True)))
    rows = [(label_at(v, _LONGEST), *(_told(v, measure) for measure in some)) for v in variants]
    return table(title, heads, rows)


def _ended(variants: Sequence[Json]) -> Html:
    """What became of the requests, means over seeds."""
    reasons = [
        (f"{what}: {why}", f"requests.{what}_why.{why}")
        for what in ("rejected", "aborted")
        for why in names_at(variants, f"requests.{what}_why")
    ]
    columns = [
        *((name, f"requests.{name}") for name in ("arrived", "finished", "rejected", "aborted")),
        ("preempted", "requests.preemptions"), *reasons,
    ]  # fmt: skip
    rows = [
        (label_at(v, _LONGEST), *(figures(_counted(v, path)) for _, path in columns))
        for v in variants
    ]
    return table("What became of requests", ("variant", *(name for name, _ in columns)), rows)


def _counted(variant: Json, path: str) -> float:
    """0 for a counter that nobody touched."""
    value = mean_at(variant, path)
    return value if isfinite(value) else 0.0


def _every(variants: Sequence[Json]) -> Html:
    first = value_at(variants[0], "numbers")
    paths = list(first) if isinstance(first, Mapping) else []
    rows = [
        (dotted(path), *(figures(mean_at(variant, path)) for variant in variants)) for path in paths
    ]
    heads = ("number", *(label_at(variant, 24) for variant in variants))
    return table("Means over seeds, in the units that their names say", heads, rows)


# --- places ----------------------------------------------------------------------------------

_OF_A_TIER = (
    "places", "capacity_blocks", "peak_blocks", "stored", "evicted", "dropped", "not_admitted",
    "not_stored", "prefetched", "prefetch_useful", "prefetch_late", "prefetch_wasted",
)  # fmt: skip


def _caches(variants: Sequence[Json]) -> list[Html]:
    if not variants:
        return []
    rows = [
        (label_at(variant, _LONGEST), tier,
         *(figures(mean_at(variant, f"tiers.{tier}.{name}")) for name in _OF_A_TIER))
        for variant in variants
        for tier in names_at([variant], "tiers")
    ]  # fmt: skip
    lookups = ("looked_up", "hit", "missed", "ceiling", "compulsory", "recomputed")
    found = [
        (label_at(v, _LONGEST), *(figures(mean_at(v, f"blocks.{name}")) for name in lookups))
        for v in variants
    ]
    heads = ("variant", *(name.replace("_", " ") for name in lookups))
    return [
        table("Blocks of prompts, at the first admission", heads, found),
        table("Tiers, in blocks; all places together but capacity and peak, which are of one",
              ("variant", "tier", *(name.replace("_", " ") for name in _OF_A_TIER)), rows, words=2),
    ]  # fmt: skip


def _moved(variants: Sequence[Json]) -> list[Html]:
    causes = names_at(variants, "bytes_by_cause")
    rows = [
        (
            label_at(variant, _LONGEST),
            kind,
            *(figures(mean_at(variant, f"links.{kind}.bytes_by_cause.{cause}") / _GB)
              for cause in causes),
            figures(mean_at(variant, f"links.{kind}.bytes") / _GB),
            *(figures(mean_at(variant, f"links.{kind}.{name}")) for name in ("transfers", "links")),
            *(_percent(mean_at(variant, f"links.{kind}.{name}"))
              for name in ("utilisation", "busiest_utilisation")),
        )
        for variant in variants
        for kind in names_at([variant], "links")
    ]  # fmt: skip
    if not rows:
        return []
    heads = ("variant", "over", *causes, "all", "transfers", "links used", "busy %", "busiest %")
    said = "GB are 10⁹ bytes. A byte that crosses three links is told at each of them."
    return [tag("p", said, class_="small"), table("Bytes by cause, GB", heads, rows, words=2)]


# --- over time -------------------------------------------------------------------------------

_WHERE = ("waiting", "prefilling", "transferring", "decoding")


def _over_time(doc: Doc, variants: Sequence[Json], book: Book) -> list[Html]:
    """Where the requests of one variant are; of several, each thing with all of them."""
    some = variants[:_MOST_LINES]
    runs = [first_run(variant) for variant in some]
    grid = grid_of(runs, _MOST_POINTS)
    if not grid:
        return []
    charts = []
    if len(some) == 1:
        lines = [(name, levels_on(runs[0], name, grid)) for name in _WHERE]
        charts += _timed(doc, book, "Requests: where they are", "requests", grid, lines)
    names = [label_at(variant, 28) for variant in some]
    for title, unit, name, on_grid in _OVERLAID[2 if len(some) == 1 else 0 :]:
        at = grid_of(runs, _MOST_RATES) if on_grid is rates_on else grid
        lines = [(said, on_grid(run, name, at)) for said, run in zip(names, runs, strict=True)]
        charts += _timed(doc, book, title, unit, at, lines)
    left = len(variants) - len(some)
    said = f"The first run of each variant, at up to {len(grid)} instants; --series has more."
    more = f" {left} more variants are not drawn." if left else ""
    return [tag("p", said + more, class_="small"), tag("div", *charts, class_="charts")]


_OVERLAID = (
    ("Requests that wait", "requests", "waiting", levels_on),
    ("Sequences that decode", "sequences", "decoding", levels_on),
    ("HBM in use", "blocks", "hbm_blocks", levels_on),
    ("Output tokens", "tokens/s", "output_tokens", rates_on),
    ("Prefilled tokens", "tokens/s", "prefill_tokens", rates_on),
)
_TABLE_ROWS = 60


def _timed(
    doc: Doc, book: Book, title: str, unit: str, grid: Sequence[float],
    every: Sequence[tuple[str, Sequence[float]]],
) -> list[Html]:  # fmt: skip
    """Nothing where nothing is above 0."""
    lines = [
        ChartLine(name=name, values=values, look=look % 9, dash=_DASHES[look % 4])
        for look, (name, values) in enumerate(every)
        if any(value > 0 for value in known(values))
    ]
    each = -(-len(grid) // _TABLE_ROWS)
    rows = [
        (figures(grid[at]), *(figures(line.values[at]) for line in lines))
        for at in range(0, len(grid), each)
    ]
    axis = Axis(key=doc.id(f"time-{len(grid)}"), kind=TIME, label="virtual time", places=grid)
    heads = ("seconds", *(f"{line.name}, {unit}" for line in lines))
    said = "" if each == 1 else f"One row of {each} is shown."
    told = ChartTable(heads=heads, rows=rows, says=said)
    return book.figure(Chart(title=title, unit=unit, axis=axis, lines=lines, table=told))


# --- instances -------------------------------------------------------------------------------


def _instances(variants: Sequence[Json]) -> list[Html]:
    if not variants:
        return []
    rows = [
        (label_at(variant, _LONGEST), role,
         *(figures(mean_at(variant, f"instances.roles.{role}.{name}"))
           for name in ("count", "active", "requests", "skew")),
         *(_percent(mean_at(variant, f"instances.roles.{role}.{name}"))
           for name in ("utilisation", "busiest_utilisation")))
        for variant in variants
        for role in names_at([variant], "instances.roles")
    ]  # fmt: skip
    heads = ("variant", "role", "instances", "with a request", "requests", "skew", "busy %",
             "busiest %")  # fmt: skip
    said = (
        f"Skew is the most requests of one instance over the mean of its role; from {SKEWED:g} on "
        "it is a warning."
    )
    return [
        tag("p", said, class_="small"),
        table("Instances by role", heads, rows, words=2),
        *(each for variant in variants for each in _each_instance(variant)),
    ]


_OF_AN_INSTANCE = (
    "node", "rack", "requests", "finished", "prefill_tokens", "decode_tokens", "peak_blocks",
    "capacity_blocks", "preemptions", "longest_queue",
)  # fmt: skip


def _each_instance(variant: Json) -> Iterator[Html]:
    """The busiest instances of the variant's first run, folded."""
    run = first_run(variant)
    busy = column_at(run, "instances.busy_ns")
    if not busy:
        return
    columns = {name: column_at(run, f"instances.{name}") for name in _OF_AN_INSTANCE}
    words = [texts_in(run, f"instances.{name}") for name in ("group", "role")]
    window = number(run, "facts.window_s")
    ranked = sorted(range(len(busy)), key=lambda place: (-busy[place], place))[:_MOST_ROWS]
    rows = [
        (
            str(place),
            *(_at(column, place) for column in words),
            *(_at(column, place) for column in columns.values()),
            _percent(busy[place] / 1e9 / window if window > 0 else nan),
        )
        for place in ranked
    ]
    heads = ("instance", "group", "role", *(n.replace("_", " ") for n in _OF_AN_INSTANCE), "busy %")
    name = label_at(variant, _LONGEST)
    said = f"the {len(ranked)} busiest of {len(busy)}" if len(ranked) < len(busy) else "all"
    made = table(f"Instances of {name}: {said}", heads, rows, words=3)
    yield details(f"Instances of {name}", made)


def _at(column: Sequence[Any], place: int) -> str:
    if place >= len(column):
        return NOTHING
    value = column[place]
    return value if isinstance(value, str) else figures(value)


# --- events ----------------------------------------------------------------------------------


def _events(variants: Sequence[Json]) -> list[Html]:
    if not variants:
        return []
    checks = names_at(variants, "checks")
    rows = [
        (label_at(variant, _LONGEST), figures(mean_at(variant, "events")),
         *(figures(mean_at(variant, f"checks.{law}")) for law in checks))
        for variant in variants
    ]  # fmt: skip
    heads = ("variant", "events", *(f"checked: {law}" for law in checks))
    made = [table("Events of the loop, and how often each law was checked", heads, rows)]
    logged = [(v, run) for v in variants for run in rows_at(v, "runs") if run.get("event_log")]
    kinds = list(dict.fromkeys(kind for _, run in logged for kind in _log(run)))
    if kinds:
        log = [
            (label_at(variant, _LONGEST), as_text(run.get("seed")),
             *(figures(number(_log(run), kind)) for kind in kinds))
            for variant, run in logged
        ]  # fmt: skip
        made.append(table("Events in the log by kind", ("variant", "seed", *kinds), log, words=2))
    return made


def _log(run: Json) -> Json:
    found = run.get("event_log")
    return found if isinstance(found, Mapping) else {}


# --- the scenario ----------------------------------------------------------------------------


def _scenario(own: Json) -> list[Html]:
    given = value_at(own, "config")
    if not isinstance(given, dict) or not given:
        return []
    options, defaults = flat(given), dict(flat(to_mapping(Scenario())))
    changed = [
        (dotted(name), as_text(value), as_text(defaults.get(name)))
        for name, value in options
        if name not in defaults or value != defaults[name]
    ]
    every = [(dotted(name), as_text(value)) for name, value in options]
    return [
        *_varied(own),
        table("Options that are not at their default", ("option", "value", "default"), changed,
              words=3),
        details(f"All {len(every)} options",
                table("The effective scenario", ("option", "value"), every, words=2)),
    ]  # fmt: skip


def _varied(own: Json) -> Iterator[Html]:
    paths = reasons_at(own, "varied")
    rows = [
        (label_at(variant, _LONGEST), *(as_text(_value(variant, path)) for path in paths))
        for variant in rows_at(own, "variants")
    ]
    if paths and rows:
        yield table("What varies", ("variant", *map(dotted, paths)), rows, words=len(paths) + 1)


def _value(variant: Json, path: str) -> Any:
    values = value_at(variant, "values")
    return values.get(path) if isinstance(values, Mapping) else None


def _origin(doc: Doc) -> list[Html]:
    own = doc.own
    rows = [
        ("file", doc.name),
        ("schema", doc.schema),
        ("program", as_text(own.get("program_version"))),
        ("scenario", as_text(own.get("scenario_file"))),
        ("preset", as_text(own.get("preset"))),
        ("command", " ".join(reasons_at(own, "argv"))),
        ("seeds", as_text(own.get("seeds"))),
        ("fingerprint", as_text(fingerprint(doc.document))),
    ]
    versions = value_at(own, "versions")
    if isinstance(versions, Mapping):
        rows += [(name, as_text(version)) for name, version in versions.items()]
    return [table("Where this is from", ("what", "value"), rows, words=2)]
