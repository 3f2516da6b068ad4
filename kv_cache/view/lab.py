"""What policies find at many capacities, beside what no policy exceeds, and whether there is an
order among them. Nothing was measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from kv_cache.core.format import figures, with_half
from kv_cache.lab.judge import PolicyFailure, PolicyOrder
from kv_cache.lab.table import FoundShares, LabColumn, LabEntry, LabTable
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.metrics.order import Lead
from kv_cache.result.lab import OWN, FoundBy, HeldAs, LabCase, LabFacts, by_blocks, by_prefix
from kv_cache.result.metrics import Json
from kv_cache.result.run import MisshapenError, converted
from kv_cache.view import units
from kv_cache.view.identity import origin_texts, trace_text
from kv_cache.view.parts import (
    FactList,
    Figure,
    Line,
    PlotPoint,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
    present,
)

_MOST_TOLD = 2  # failures of a kind that are told in a line
_SHARE = units.DisplayUnit("", 0.01)  # of a column whose table says that it is in percent
_ROOM = ShownColumn("room", units.GIBIBYTES)
_MISSED = ShownColumn("missed", units.PERCENT)

Rule = Callable[[LabColumn], FoundBy]
_RULES: Mapping[str, Rule] = {"by blocks": by_blocks, "by prefix": by_prefix}


def lab_view(section: Json) -> View:
    """The document of `lab`. Raises MisshapenError."""
    facts = converted(section, LabFacts, "")
    for case in facts.cases:
        _require_whole(case, len(facts.residencies))
    several = len(facts.cases) > 1
    return View(
        title=f"Policy study of {_studied(facts)}",
        status="counted, not timed",
        sentence=_sentence(facts),
        about=[*origin_texts(section), f"{facts.engine} engine"],
        sections=[
            each
            for number, case in enumerate(facts.cases)
            for each in _case(facts, case, several=several, first=number == 0)
        ],
    )


def _require_whole(case: LabCase, residencies: int) -> None:
    """Raises MisshapenError for a case of which a part was cut out."""
    if len(case.tables) != residencies:
        raise MisshapenError(f"case {case.name} has not as many tables as there are residencies")
    for table in case.tables:
        kinds = {
            tuple((e.policy, e.kind, e.prefix is None) for e in column.entries)
            for column in table.columns
        }
        if len(kinds) != 1 or not any(kinds.pop()):
            raise MisshapenError(f"a table of {table.residency} has columns of different entries")


def _studied(facts: LabFacts) -> str:
    if len(facts.cases) != 1:
        return f"{len(facts.cases)} patterns"
    case = facts.cases[0]
    return f"pattern {case.name}" if case.pattern else case.name


def _sentence(facts: LabFacts) -> str:
    """Of one table the policy that by_rule most at each capacity; none is said to be better that is
    not shown to be."""
    tables = [table for case in facts.cases for table in case.tables]
    columns = tables[0].columns
    policies = {e.policy for c in columns for e in c.entries if e.kind == "policy"}
    if len(tables) != 1 or not policies:
        patterns = f" on {len(facts.cases)} patterns" if len(facts.cases) > 1 else ""
        types = f", held in {len(facts.residencies)} types" if len(facts.residencies) > 1 else ""
        capacities = ", ".join(column.capacity for column in columns)
        several = f"{len(policies)} {'policy' if len(policies) == 1 else 'policies'}"
        return f"{several}{patterns} at {capacities}{types}."
    column = columns[len(columns) // 2]
    prefix = column.prefix_order is not None
    by_rule = by_prefix(column) if prefix else by_blocks(column)
    hit_ratio_of = {e.policy: each.hit_ratio for e, each in by_rule.entries if e.kind == "policy"}
    most = max(hit_ratio_of.values())
    best = [policy for policy, ratio in hit_ratio_of.items() if ratio == most]
    bound = max(each.hit_ratio for entry, each in by_rule.entries if entry.kind == "bound")
    share = f"{units.PERCENT.measured(most)} of the blocks looked up{' by prefix' * prefix}"
    if len(best) == len(hit_ratio_of):
        several = "" if len(best) == 1 else ", as each policy here"
        finds = f"{best[0]} finds {share}{several}"
    else:
        names = f"{', '.join(best)} {'finds' if len(best) == 1 else 'find'}"
        better = _shown_better(by_rule.order, "is" if len(best) == 1 else "are")
        finds = f"{names} most of the {len(hit_ratio_of)} policies, {share}, {better}"
    return (
        f"With {column.capacity} ({units.bytes_text(column.room_bytes)}) {finds}; without limits "
        f"it is {units.PERCENT.measured(bound)}."
    )


def _shown_better(order: PolicyOrder | None, verb: str) -> str:
    """Of the best one; by prefix it is another than by blocks."""
    leads = {} if order is None or order.leads is None else order.leads
    others = [lead for lead in leads.values() if lead is None or not lead.equal]
    count = sum(lead is not None and lead.shown for lead in others)
    return f"and {verb} {shown_better(count, len(others))}"


def shown_better(count: int, others: int) -> str:
    """Say than how many of the others somebody is shown to be better."""
    if not count:
        return "not shown to be better than any"
    if count < others:
        return f"shown to be better than {count} of {others} others"
    return f"shown to be better than {'the other one' if others == 1 else 'all others'}"


# --- sections --------------------------------------------------------------------------------


def _case(facts: LabFacts, case: LabCase, *, several: bool, first: bool) -> Iterator[ViewSection]:
    """What a case asks for, then a section for each residency."""
    trace = trace_text(facts.source) if first else ""
    rows = [*([("trace", trace)] if trace else []), *_case_facts(case)]
    yield ViewSection(
        title=f"Pattern {case.name}" if case.pattern else "What was asked",
        parts=[FactList(rows=rows)],
    )
    for table, held in zip(case.tables, facts.residencies, strict=True):
        where = f"{case.name}: " if several else ""
        as_held = "" if held.name == OWN else f", held as {held.name}"
        yield ViewSection(
            title=f"{where}hits{as_held}" if several else f"Hits{as_held}",
            parts=[
                *_figures(table, where, as_held, several=several),
                FactList(rows=list(_table_facts(table, held))),
                *_tables(table),
                *present(_failures(table)),
            ],
        )


def _case_facts(case: LabCase) -> Iterator[tuple[str, str]]:
    base = case.base
    seeds = f", mean of {case.seeds} seeds" if case.seeds > 1 else ""
    if case.pattern:
        yield "pattern", f"{case.name}{seeds}: {case.pattern}"
    size = f"of {units.bytes_text(base.block_bytes)}" if base.block_bytes else "of different sizes"
    lookups = f"{base.lookups:,.0f} looked up by {base.requests:,.0f} requests"
    unique = f"{base.unique:,.0f} unique {size}: {units.bytes_text(base.working_set_bytes)}"
    yield "blocks", f"{lookups}, {unique}"
    share = units.PERCENT.measured(base.compulsory / base.lookups if base.lookups else None)
    yield "first", f"{share} of lookups are the first of their block: no cache finds them"


def _table_facts(table: LabTable, held: HeldAs) -> Iterator[tuple[str, str]]:
    if held.name != OWN:
        scales = f", scales for each {held.group} elements" if held.group else ""
        yield "held as", f"{held.name}, {units.PERCENT.measured(held.ratio)} of their bytes{scales}"
    rooms = (f"{column.capacity} {units.bytes_text(column.room_bytes)}" for column in table.columns)
    yield "room", ", ".join(rooms)
    largest = table.columns[-1]
    took = [
        entry.blocks.dequant_s
        for entry in largest.entries
        if entry.kind == "policy" and entry.blocks.dequant_s is not None
    ]
    if held.cost_ns is not None and took:
        span = f"{figures(min(took))} to {figures(max(took))} s at {largest.capacity}"
        cost = f"{figures(held.cost_ns)} ns a stored byte: {held.cost_source}"
        yield "widening", f"{span}, with {cost}"
    if table.failures:
        yield from (("fails", text) for text in _failure_texts(table.failures))


# --- tables ----------------------------------------------------------------------------------


def _rules(table: LabTable) -> dict[str, Rule]:
    """By prefix where requests ask for more than one block."""
    both = any(column.prefix_order is not None for column in table.columns)
    return {name: rule for name, rule in _RULES.items() if both or rule is by_blocks}


def _tables(table: LabTable) -> Iterator[Table]:
    """Hits by each rule: a row for each bound and policy, a column for each capacity; then how far
    policies are behind the best one of the capacity. In short forms that is by the last rule alone,
    which is by prefix where there are two."""
    rules = _rules(table)
    for name, rule in rules.items():
        by_capacity = [rule(column) for column in table.columns]
        rows = by_capacity[0].entries
        yield Table(
            title=f"Hits {name}",
            columns=[
                ShownColumn(f"hits {name}, %"),
                *(ShownColumn(column.capacity, _SHARE) for column in table.columns),
            ],
            rows=[
                [_name(entry, shares), *(each.entries[place][1].hit_ratio for each in by_capacity)]
                for place, (entry, shares) in enumerate(rows)
            ],
            caption=_reach_text(by_capacity),
        )
        policies = [entry.policy for entry, _ in rows if entry.kind == "policy"]
        if len(policies) > 1:
            behind = _behind(name, policies, table.columns, by_capacity)
            yield replace(behind, detail=rule is not list(rules.values())[-1])


def _behind(
    name: str,
    policies: Sequence[str],
    columns: Sequence[LabColumn],
    by_rule: Sequence[FoundBy],
) -> Table:
    orders = [(c.capacity, each.order) for c, each in zip(columns, by_rule, strict=True)]
    some = [(capacity, order) for capacity, order in orders if order and order.leads is not None]
    return Table(
        title=f"Behind the best {name}",
        columns=[
            ShownColumn(f"behind the best {name}, points"),
            *(ShownColumn(capacity) for capacity, _ in some),
        ],
        rows=[[policy, *(_lead(order, policy) for _, order in some)] for policy in policies]
        if some
        else [],
        caption=" ".join(_order_texts(orders)),
    )


def _lead(order: PolicyOrder, policy: str) -> str:
    if order.leads is None or policy == order.best:
        return "best"
    return lead_text(order.leads[policy], _SHARE)


def lead_text(lead: Lead | None, unit: units.DisplayUnit) -> str:
    """The lead of the best one with half of its interval; in brackets what is not shown to be one.
    Who has the same is as good."""
    if lead is None:
        return "not judged"
    if lead.equal:
        return "best"
    text = with_half(unit.text(lead.mean), lead.half / unit.scale)
    return text if lead.shown else f"({text})"


def _name(entry: LabEntry, shares: FoundShares) -> str:
    kind = f"{entry.kind}, not to be reached" if shares.at_most else entry.kind
    return entry.policy if entry.kind == "policy" else f"{entry.policy} ({kind})"


def _order_texts(orders: Sequence[tuple[str, PolicyOrder | None]]) -> Iterator[str]:
    """What the numbers mean, and which capacities have no order; those for the same reason
    together."""
    known: dict[str, list[str]] = {}
    without: dict[str, list[str]] = {}
    for capacity, order in orders:
        if order is not None:
            (without if order.leads is None else known).setdefault(order.why, []).append(capacity)
    if known:
        yield "In brackets: not shown to be behind."
    for why, where in known.items():
        yield f"At {', '.join(where)}: {why}." if len(known) > 1 else f"{why.capitalize()}."
    for why, where in without.items():
        yield f"No order at {', '.join(where)}, as {why}."


def _reach_text(by_rule: Sequence[FoundBy]) -> str:
    reach = [s.interval.high - s.interval.low for f in by_rule for _, s in f.entries if s.interval]
    return f"95 % intervals are within ±{figures(50 * max(reach))} points." if reach else ""


# --- figures ---------------------------------------------------------------------------------


def _figures(table: LabTable, where: str, as_held: str, *, several: bool) -> Iterator[Figure]:
    """What is missed over the room; of several cases blocks alone are in the short forms."""
    drawn: list[tuple[str, Rule, str]] = [
        (f"misses {name}", rule, "miss_ratio") for name, rule in _rules(table).items()
    ]
    shares = [entry.blocks for column in table.columns for entry in column.entries]
    if any(each.byte_miss_ratio != each.miss_ratio for each in shares):
        drawn.insert(1, ("bytes missed by blocks", by_blocks, "byte_miss_ratio"))
    for number, (title, rule, ratio) in enumerate(drawn):
        lines = _lines(table, rule, ratio)
        if lines:
            yield Figure(
                title=f"{where}{title}{as_held}",
                x=_ROOM,
                y=_MISSED,
                lines=lines,
                scale=Scale.LOG,
                zero=False,
                caption="Dashed: what no policy undercuts, and rules that are no policy. Bars: "
                "95 % intervals over seeds, or on one trace of the difference to the best one.",
                detail=several and number > 0,
            )


def _lines(table: LabTable, rule: Rule, ratio: str) -> list[Line]:
    columns = sorted(table.columns, key=lambda column: column.room_bytes)
    points: dict[str, list[PlotPoint]] = {}
    kinds: dict[str, str] = {}
    for column in columns:
        for entry, shares in rule(column).entries:
            kinds[entry.policy] = entry.kind
            missed = _missed(rule(column), entry, shares) if ratio == "miss_ratio" else None
            points.setdefault(entry.policy, []).append(
                PlotPoint(x=column.room_bytes, y=getattr(shares, ratio), interval=missed)
            )
    return [
        Line(name=name, points=each, muted=kinds[name] != "policy") for name, each in points.items()
    ]


def _missed(by_rule: FoundBy, entry: LabEntry, shares: FoundShares) -> IntervalEnds | None:
    """The interval of a miss ratio: that of seeds, or as far around it as the difference to the
    best one may be another."""
    if (ends := shares.interval) is not None:
        return IntervalEnds(low=1 - ends.high, high=1 - ends.low)
    leads = (by_rule.order and by_rule.order.leads) or {}
    lead = leads.get(entry.policy)
    if lead is None:
        return None
    return IntervalEnds(
        low=max(0.0, shares.miss_ratio - lead.half), high=min(1.0, shares.miss_ratio + lead.half)
    )


# --- failures --------------------------------------------------------------------------------


def _failures(table: LabTable) -> Table:
    return Table.of(
        sorted(table.failures, key=_lost, reverse=True),
        {
            ShownColumn("policy"): lambda failure: failure.policy,
            ShownColumn("capacity"): lambda failure: failure.capacity,
            ShownColumn("fails by"): lambda failure: failure.kind.replace("-", " "),
            ShownColumn("hits by blocks", units.PERCENT): lambda failure: failure.hit_ratio,
            ShownColumn("against", units.PERCENT): lambda failure: failure.against,
        },
        title="Failures",
        detail=True,
    )


def _failure_texts(failures: Sequence[PolicyFailure]) -> Iterator[str]:
    """By kind; of each policy where it loses the most, and those that lose the most first."""
    kinds: dict[str, dict[str, PolicyFailure]] = {}
    for each in sorted(failures, key=_lost, reverse=True):
        kinds.setdefault(each.kind, {}).setdefault(each.policy, each)
    for kind, worst in kinds.items():
        losses = [_failure(each) for each in worst.values()]
        more = len(losses) - _MOST_TOLD
        others = f", and {more} more" if more > 0 else ""
        yield f"{kind.replace('-', ' ')}: {', '.join(losses[:_MOST_TOLD])}{others}"


def _lost(failure: PolicyFailure) -> float:
    return failure.against - failure.hit_ratio


def _failure(failure: PolicyFailure) -> str:
    """Against what, where the kind does not say it."""
    than = {"no-hits": "min ", "more-room-fewer-hits": "before "}.get(failure.kind, "")
    against = f"{than}{figures(100 * failure.against)}"
    ratio = "" if failure.kind == "no-hits" else f"{figures(100 * failure.hit_ratio)} < "
    return f"{failure.policy} at {failure.capacity} ({ratio}{against} %)"
