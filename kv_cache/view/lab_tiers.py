"""What policies find in several tiers, with and without prefetch. Nothing was measured."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from kv_cache.core.format import figures
from kv_cache.result.lab import OWN
from kv_cache.result.lab_tiers import (
    SeedMean,
    TierCase,
    TierRow,
    TierStudyFacts,
    best_of,
    is_by_computed,
)
from kv_cache.result.metrics import Json
from kv_cache.result.run import MisshapenError, converted
from kv_cache.view import units
from kv_cache.view.identity import origin_texts, trace_text
from kv_cache.view.lab import lead_text, shown_better
from kv_cache.view.parts import (
    BarChart,
    BarRow,
    Cell,
    FactList,
    Figure,
    Line,
    PlotPoint,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
)

_SHARE = units.DisplayUnit("", 0.01)
_US = units.DisplayUnit("us", 1e3)
_MIB = units.MEBIBYTES
_NONE = "none"


def tiers_view(section: Json) -> View:
    """The document of `lab --tiers`. Raises MisshapenError."""
    facts = converted(section, TierStudyFacts, "")
    for case in facts.cases:
        if not case.rows or any(len(row.tiers) != len(facts.tiers) for row in case.rows):
            raise MisshapenError(f"case {case.name} has a row without one of its tiers")
    names = ", ".join(case.name for case in facts.cases)
    studied = names if len(facts.cases) == 1 else f"{len(facts.cases)} patterns"
    several = "1 tier" if len(facts.tiers) == 1 else f"{len(facts.tiers)} tiers"
    return View(
        title=f"Policies over {several}, {studied}",
        status="counted, not timed",
        sentence=_sentence(facts),
        about=[*origin_texts(section), f"{facts.engine} engine"],
        sections=[
            ViewSection(title="What was asked", parts=[FactList(rows=list(_asked(facts)))]),
            *(each for case in facts.cases for each in _case(case)),
        ],
    )


def _sentence(facts: TierStudyFacts) -> str:
    """Of one table the best row; of several the most frequent one. None is said to be better that
    is not shown to be."""
    tables = [rows for case in facts.cases for rows in _tables(case)]
    if len(tables) > 1:
        counts = Counter(arm for rows in tables for arm in map(_arm, best_of(rows)))
        count = max(counts.values())
        arms = _either([arm for arm, several in counts.items() if several == count])
        computed = any(map(is_by_computed, tables))
        least = ", or least is computed where that differs" if computed else ""
        return (
            f"With {arms}, accesses wait the least{least}, on average, in {count} of "
            f"{len(tables)} tables."
        )
    (rows,) = tables
    equals = best_of(rows)
    best, arms = equals[0], _either([_arm(row) for row in equals])
    if all(row.computed == 1 for row in rows):
        return "No tier has any block that is asked for: all are computed, and no access waits."
    shown = _shown(rows, facts.cases[0], len(rows) - len(equals))
    wait = f"an access waits {_us(best.wait_ns)}"
    if is_by_computed(rows):
        share = units.PERCENT.measured(best.computed)
        return (
            f"With {arms}, the least is computed, {share} of the accesses{shown}; "
            f"{wait}, and who finds less waits for less."
        )
    return (
        f"With {arms}, {wait}, the least{shown}; with every move on one clock it is "
        f"{_us(best.serial_ns)}."
    )


def _either(arms: Sequence[str]) -> str:
    return " or ".join([", ".join(arms[:-1]), arms[-1]] if len(arms) > 1 else arms)


def _shown(rows: Sequence[TierRow], case: TierCase, others: int) -> str:
    leads = [row.behind for row in rows if row.behind is not None]
    if len(rows) < 2:
        return ""
    if not others:
        return ", as all policies here do"
    if not leads:
        few = "one trace" if case.pattern is None else f"{case.seeds} seeds"
        return f" (of {few} nothing is known of chance)"
    count = sum(lead.shown for lead in leads)
    return f", and {shown_better(count, others)}"


def _us(spread: SeedMean) -> str:
    ends = spread.interval
    between = f" ({_US.text(ends.low)} to {_US.text(ends.high)})" if ends else ""
    return f"{_US.measured(spread.mean)}{between}"


def _arm(row: TierRow) -> str:
    return row.policy if row.prefetch == _NONE else f"{row.policy}, prefetch {row.prefetch}"


def _asked(facts: TierStudyFacts) -> Iterator[tuple[str, str]]:
    if trace := trace_text(facts.source):
        yield "trace", trace
    for tier in facts.tiers:
        held = f", held as {tier.residency}" if tier.residency else ""
        rate = f"{figures(tier.bytes_per_s / 1e9)} GB/s"
        yield tier.name, f"{tier.room}, {_US.measured(tier.latency_ns)}, {rate}{held}"


def _tables(case: TierCase) -> list[list[TierRow]]:
    """The rows of each residency and scale."""
    groups = groupby(case.rows, key=lambda row: (row.residency, row.scale))
    return [list(rows) for _, rows in groups]


def _case(case: TierCase) -> Iterator[ViewSection]:
    base = case.base
    about = f": {case.pattern}, mean of {case.seeds} seeds" if case.pattern else ""
    text = (
        f"{base.lookups:,.0f} looked up, {base.unique:,.0f} unique: "
        f"{units.bytes_text(base.working_set_bytes)}"
    )
    yield ViewSection(
        title=case.name,
        parts=[
            *_figures(case),
            FactList(rows=[("case", f"{case.name}{about}"), ("blocks", text)]),
            *(_table(rows, case.name) for rows in _tables(case)),
        ],
    )


def _table(rows: Sequence[TierRow], case: str) -> Table:
    first, best = rows[0], best_of(rows)[0]
    by_computed = is_by_computed(rows)
    unit = _SHARE if by_computed else _US
    behind = ShownColumn("behind, points" if by_computed else "behind, us")
    judged = [behind] if any(row.behind for row in rows) else []
    held = "" if first.residency == OWN else f", {first.residency}"
    scale = "" if first.scale == 1 else f", rooms x {figures(first.scale)}"
    rooms = ", ".join(f"{t.name} {units.bytes_text(t.room_bytes)}" for t in first.tiers)
    cells: list[list[Cell]] = [
        [
            _arm(row),
            row.wait_ns.mean,
            row.serial_ns.mean,
            *(tier.hit_ratio for tier in row.tiers),
            row.computed,
            row.demand_bytes,
            row.prefetch_bytes,
            row.useful / row.prefetched if row.prefetched else None,
            *("best" if row is best else lead_text(row.behind, unit) for _ in judged),
        ]
        for row in rows
    ]
    reach = [
        (each.interval.high - each.interval.low) / 2
        for row in rows
        for each in (row.wait_ns, row.serial_ns)
        if each.interval
    ]
    within = f" 95 % intervals of times are within ±{_US.measured(max(reach))}." if reach else ""
    brackets = " In brackets: not shown to be behind." if judged else ""
    return Table(
        title=f"{case}{scale}{held}",
        columns=[
            ShownColumn(f"found in{scale}{held}, %"),
            ShownColumn("wait", _US),
            ShownColumn("serial", _US),
            *(ShownColumn(tier.name, _SHARE) for tier in first.tiers),
            ShownColumn("computed", _SHARE),
            ShownColumn("demand", _MIB),
            ShownColumn("prefetch", _MIB),
            ShownColumn("useful", _SHARE),
            *judged,
        ],
        rows=cells,
        caption=f"Rooms: {rooms}.{within}{brackets}",
    )


def _figures(case: TierCase) -> Iterator[Figure | BarChart]:
    """Waits and hits of the fastest tier over its room, where rooms are scaled; else the waits."""
    by_type = groupby(case.rows, key=lambda row: row.residency)
    for residency, group in by_type:
        rows = list(group)
        held = "" if residency == OWN else f", {residency}"
        if len({row.scale for row in rows}) < 2:
            bars = [
                BarRow(name=_arm(row), parts=[row.wait_ns.mean], interval=row.wait_ns.interval)
                for row in rows
            ]
            title = f"{case.name}: wait of an access{held}"
            yield BarChart(title=title, x=ShownColumn("wait", _US), parts=["wait"], rows=bars)
            continue
        for name, column, of in (
            ("wait", ShownColumn("wait", _US), "wait_ns"),
            ("hits of the fastest tier", ShownColumn("hits", units.PERCENT), "fastest"),
        ):
            arms: dict[str, list[PlotPoint]] = {}
            for row in sorted(rows, key=lambda row: row.scale):
                spread: SeedMean = getattr(row, of)
                point = PlotPoint(
                    x=row.tiers[0].room_bytes, y=spread.mean, interval=spread.interval
                )
                arms.setdefault(_arm(row), []).append(point)
            yield Figure(
                title=f"{case.name}: {name}{held}",
                x=ShownColumn("room of the fastest tier", _MIB),
                y=column,
                lines=[Line(name=arm, points=points) for arm, points in arms.items()],
                scale=Scale.LOG,
            )
