"""Variants of a simulation beside each other by what varies: a column for each option, a pivot over
two, curves over one that is a number, and how far each is behind the best."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from kv_cache.config.scenarios import short_names
from kv_cache.core.format import as_text, with_half
from kv_cache.core.units import MISSING
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.metrics.order import Lead
from kv_cache.result.paths import as_number
from kv_cache.result.simulation.facts import SimFacts, SimVariant
from kv_cache.result.simulation.measures import (
    CEILING,
    FINISHED_RATE,
    GOODPUT,
    HIT_RATIO,
    JUDGED,
    TTFT,
    TTFT_WITH_TRANSFER,
    Measure,
)
from kv_cache.view import units
from kv_cache.view.parts import (
    BarChart,
    Cell,
    Figure,
    IntervalChart,
    IntervalRow,
    Line,
    Part,
    PlotPoint,
    ShownColumn,
    Table,
    ViewSection,
)

_MOST_LINES = 8


def label(variant: SimVariant) -> str:
    """Its number and its name."""
    return f"{variant.variant}  {variant.name}".rstrip()


def short_text(variant: SimVariant, measure: Measure) -> str:
    """The mean with half of its interval."""
    row = variant.numbers.get(measure.path)
    return MISSING if row is None else measure.with_reach(to_builtins(row))


OF_SEEDS = (
    "A mean over seeds with half of its 95 % interval, or where that is more than the mean the "
    "least and the most."
)


# --- columns of options ----------------------------------------------------------------------


class Options:
    """The options in which variants differ, by their short names. Of a scenario that labels its
    variants, the options that a label sets are told by the label."""

    def __init__(self, facts: SimFacts) -> None:
        self._short = short_names(facts.varied)
        words = {word.partition("=")[0] for v in facts.variants for word in v.name.split(", ")}
        labelled = any("=" not in v.name.split(", ")[0] for v in facts.variants)
        named = [path for path in facts.varied if self._short[path] in words]
        self.paths = named if labelled else list(facts.varied)

    def name(self, path: str) -> str:
        return self._short[path]

    def values(self, variant: SimVariant) -> list[str]:
        return [as_text(variant.values.get(path)) for path in self.paths]

    def key(self, variant: SimVariant) -> str:
        """Its number, and what else there is of its name."""
        first = variant.name.split(", ")[0]
        is_value = self.paths and "=" in first
        return f"{variant.variant}" if is_value else f"{variant.variant}  {first}"

    def row(self, variant: SimVariant) -> str:
        """Its key and its values, where the names of several options stand beside."""
        if len(self.paths) < 2:
            return label(variant)
        return f"{self.key(variant)}: {', '.join(self.values(variant))}"

    @property
    def caption(self) -> str:
        """What stands in `row`."""
        several = len(self.paths) > 1
        return f"Rows: {', '.join(map(self.name, self.paths))}." if several else ""

    def expanded(self, table: Table, variants: Sequence[SimVariant]) -> Table:
        """A table of which each row begins with the label of a variant, with a column for each
        option in its place; any other as it is."""
        by_label = {label(variant): variant for variant in variants}
        known = [by_label.get(str(row[0])) for row in table.rows]
        rows = [
            [self.key(variant), *self.values(variant), *row[1:]]
            for variant, row in zip(known, table.rows, strict=True)
            if variant is not None
        ]
        if not self.paths or len(rows) < len(table.rows) or not rows:
            return table
        options = [ShownColumn(self.name(path)) for path in self.paths]
        return replace(table, rows=rows, columns=[table.columns[0], *options, *table.columns[1:]])


def by_option(
    options: Options, variants: Sequence[SimVariant], sections: Sequence[ViewSection]
) -> list[ViewSection]:
    """Return sections whose tables have a column for each option, and whose bars are named by
    values."""
    return [
        replace(each, parts=[_by_option(part, options, variants) for part in each.parts])
        for each in sections
    ]


def _by_option(part: Part, options: Options, variants: Sequence[SimVariant]) -> Part:
    if isinstance(part, Table):
        return options.expanded(part, variants)
    if isinstance(part, BarChart):
        names = {label(variant): options.row(variant) for variant in variants}
        rows = [replace(row, name=names.get(row.name, row.name)) for row in part.rows]
        caption = f"{part.caption} {options.caption}".strip()
        return replace(part, rows=rows, caption=caption)
    return part


# --- a pivot, and curves ---------------------------------------------------------------------


def pivots(facts: SimFacts, variants: Sequence[SimVariant], options: Options) -> list[Table]:
    """Where two options vary: a row for each value of the first, a column for each of the second,
    by the measure of the verdict and by hits."""
    if len(options.paths) != 2 or len(options.paths) != len(facts.varied):
        return []
    down, across = options.paths
    every = _with_same(variants)
    rows = list(dict.fromkeys(as_text(values.get(down)) for values, _ in every))
    columns = list(dict.fromkeys(as_text(values.get(across)) for values, _ in every))
    cells = {
        (as_text(values.get(down)), as_text(values.get(across))): variant
        for values, variant in every
    }
    if len(columns) < 2 or len(rows) < 2 or len(cells) < len(rows) * len(columns):
        return []
    measures = dict.fromkeys((JUDGED[facts.verdict.by], HIT_RATIO))
    return [
        Table(
            title=f"{measure.label} by {options.name(down)} and {options.name(across)}",
            columns=[
                ShownColumn(f"{measure.label}, {measure.unit}; {options.name(down)}"),
                *(ShownColumn(f"{options.name(across)}={value}", units.COUNT) for value in columns),
            ],
            rows=[
                [row, *(short_text(cells[row, column], measure) for column in columns)]
                for row in rows
            ],
        )
        for measure in measures
        if any(variant.mean(measure.path) is not None for variant in variants)
    ]


Values = Mapping[str, object]


def _with_same(variants: Sequence[SimVariant]) -> list[tuple[Values, SimVariant]]:
    """The values of each variant, and of those that are the same as it."""
    return [
        (values, variant)
        for variant in variants
        for values in (variant.values, *(each.values for each in variant.same))
    ]


def axis_of(variants: Sequence[SimVariant], options: Options) -> str | None:
    """The option with the most values that are numbers, three at least."""
    counts = {
        path: len({as_number(values.get(path)) for values, _ in _with_same(variants)})
        for path in options.paths
        if all(as_number(values.get(path)) is not None for values, _ in _with_same(variants))
    }
    most = max(counts, key=lambda path: counts[path], default=None)
    return most if most is not None and counts[most] > 2 else None


_TOGETHER: tuple[tuple[str, units.DisplayUnit, tuple[Measure, ...], bool], ...] = (
    ("Time to first token", units.MS, TTFT, True),
    ("Block hits and their ceiling", units.PERCENT, (HIT_RATIO, CEILING), False),
    ("Requests a second", units.DisplayUnit("requests/s"), (FINISHED_RATE, GOODPUT), False),
)


def curves(variants: Sequence[SimVariant], options: Options) -> Iterator[Figure]:
    """Lines over the option that is a number: of one alone the measures that belong together, of
    several a line for each combination of the others."""
    axis = axis_of(variants, options)
    if axis is None:
        return
    x = ShownColumn(options.name(axis), units.COUNT)
    others, lines = _combinations(variants, options, axis)
    if len(lines) == 1:
        ((_, places),) = lines.items()
        for title, unit, measures, log in _TOGETHER:
            yield from _curve(title, x, unit, {m.label: (places, m) for m in measures}, log=log)
        return
    rate = GOODPUT if any(v.mean(GOODPUT.path) for v in variants) else FINISHED_RATE
    for measure in (TTFT[1], HIT_RATIO, rate):
        title = f"{measure.label} by {', '.join(map(options.name, others)) or 'variant'}"
        unit = units.DisplayUnit(measure.unit, 1 / measure.scale)
        named = {name: (places, measure) for name, places in lines.items()}
        yield from _curve(title, x, unit, named, log=False)


Places = Sequence[tuple[float, SimVariant]]


def _combinations(
    variants: Sequence[SimVariant], options: Options, axis: str
) -> tuple[list[str], dict[str, Places]]:
    """Return the other options and the places by their values; without those that follow from the
    axis or from one that is there (`zip`)."""
    every = _with_same(variants)
    others: list[str] = []
    for path in options.paths:
        if path != axis and not any(_follows(every, path, of) for of in (axis, *others)):
            others.append(path)
    lines: dict[str, list[tuple[float, SimVariant]]] = {}
    for values, variant in every:
        words = [as_text(values.get(path)) for path in others]
        if options.key(variant) != f"{variant.variant}":
            words.insert(0, variant.name.split(", ")[0])
        place = as_number(values.get(axis))
        if place is not None:
            lines.setdefault(", ".join(words), []).append((place, variant))
    return others, {name: sorted(some, key=lambda pair: pair[0]) for name, some in lines.items()}


def _follows(every: Sequence[tuple[Values, SimVariant]], path: str, of: str) -> bool:
    """Whether the value of one option says that of another."""
    pairs = {(as_text(values.get(of)), as_text(values.get(path))) for values, _ in every}
    return len(pairs) == len({first for first, _ in pairs})


def _curve(
    title: str,
    x: ShownColumn,
    unit: units.DisplayUnit,
    lines: Mapping[str, tuple[Places, Measure]],
    *,
    log: bool,
) -> Iterator[Figure]:
    left = len(lines) - _MOST_LINES
    figure = Figure(
        title=title,
        x=x,
        y=ShownColumn("mean", unit),
        lines=[
            Line(name=name, points=list(_points(places, measure)))
            for name, (places, measure) in list(lines.items())[:_MOST_LINES]
        ],
        log_y=log,
        caption=f"{left} more lines are not drawn." if left > 0 else "",
    )
    if any(figure.points()):
        yield figure


def _points(places: Places, measure: Measure) -> Iterator[PlotPoint]:
    for place, variant in places:
        row = variant.numbers.get(measure.path)
        if row is not None and row.mean is not None:
            yield PlotPoint(x=place, y=row.mean, interval=row.interval)


def sends(variants: Sequence[SimVariant]) -> bool:
    """Whether state was sent to another instance to decode."""
    return any(variant.mean("transfer_ms.full.mean") for variant in variants)


# --- how far behind --------------------------------------------------------------------------


def behind(facts: SimFacts, variants: Sequence[SimVariant]) -> list[Table]:
    """How far each variant is behind the best one, by the measure of the verdict, goodput, TTFT
    (with the transfer, where state was sent) and hits."""
    ttft = TTFT_WITH_TRANSFER if sends(variants) else TTFT
    paths = dict.fromkeys((facts.verdict.by, GOODPUT.path, ttft[1].path, HIT_RATIO.path))
    some = {p: v for p in paths if (v := facts.verdict.measures.get(p)) is not None and v.leads}
    if not some:
        return []
    columns = [
        ShownColumn(f"{m.label}, {'points' if m.unit == '%' else m.unit}".rstrip(", "))
        for m in (JUDGED[path] for path in some)
    ]
    rows: list[list[Cell]] = [
        [
            label(variant),
            *(
                "best" if verdict.first == variant.variant
                else _lead(JUDGED[path], (verdict.leads or {}).get(f"{variant.variant}"))
                for path, verdict in some.items()
            ),
        ]
        for variant in variants
    ]  # fmt: skip
    return [
        Table(
            title="Behind the best",
            columns=[ShownColumn("behind the best by"), *columns],
            rows=rows,
            caption="In brackets: not shown to be behind; 95 % holds for all pairs by a measure "
            "together.",
        )
    ]


def _lead(measure: Measure, lead: Lead | None) -> str:
    if lead is None:
        return "not judged"
    if lead.equal:
        return "best"
    text = with_half(measure.shown(lead.mean), lead.half * measure.scale)
    return text if lead.shown else f"({text})"


def lead_chart(
    facts: SimFacts, variants: Sequence[SimVariant], options: Options
) -> list[IntervalChart]:
    """The same of the measure of the verdict as a picture, as shares of what the best one has."""
    verdict = facts.verdict.measures.get(facts.verdict.by)
    best = next((v for v in variants if verdict is not None and v.variant == verdict.first), None)
    whole = None if best is None else best.mean(facts.verdict.by)
    if verdict is None or best is None or not whole:
        return []
    measure, rows = JUDGED[facts.verdict.by], []
    for variant in variants:
        lead = (verdict.leads or {}).get(f"{variant.variant}")
        if lead is not None:
            ends = IntervalEnds(low=lead.interval.low / whole, high=lead.interval.high / whole)
            rows.append(
                IntervalRow(
                    name=options.row(variant), text=short_text(variant, measure),
                    values=[lead.mean / whole], interval=ends,
                    mark="worse" if lead.shown else "not shown",
                )
            )  # fmt: skip
    return [
        IntervalChart(
            title=f"Worse than {options.row(best)} by {measure.label}",
            axis=f"of its {measure.shown(whole)} {measure.unit}".rstrip(),
            rows=rows,
            caption=options.caption,
        )
    ] * bool(rows)
