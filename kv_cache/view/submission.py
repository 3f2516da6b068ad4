"""What a tree of MLPerf's sequence shows: what the rules report of each option, how far trials and
ranks agree, and what each rule found."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kv_cache.result.metrics import Json
from kv_cache.result.run import converted
from kv_cache.result.submission import (
    FALLS_SHORT,
    STATUSES,
    OptionSummary,
    PooledTimes,
    RuleFinding,
    TreeFacts,
)
from kv_cache.view import units
from kv_cache.view.latency import PERCENTILE_AXIS
from kv_cache.view.parts import (
    BarChart,
    BarRow,
    Figure,
    Line,
    Remarks,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    interval_columns,
    present,
)

_MOST = 8  # reasons of one option, or looks of one rule
_GIB = units.DisplayUnit("GiB/s")
"""Of the launcher's keys, which hold GiB/s and call them `_gbps`."""
_TOKENS = units.DisplayUnit("tok/s")

_RULES_COLUMNS = {
    "aggregated_read_bandwidth_gbps": ShownColumn("storage read", _GIB),
    "aggregated_write_bandwidth_gbps": ShownColumn("storage write", _GIB),
    "aggregated_storage_throughput_tokens_per_sec": ShownColumn("storage throughput", _TOKENS),
    "aggregated_device_read_p95_ms": ShownColumn("device read P95, worst rank", units.MS),
    "aggregated_device_write_p95_ms": ShownColumn("device write P95, worst rank", units.MS),
}
_SPREAD_COLUMNS = {
    "read_bandwidth_gbps": ShownColumn("storage read", _GIB),
    "write_bandwidth_gbps": ShownColumn("storage write", _GIB),
    "storage_throughput_tokens_per_sec": ShownColumn("storage throughput", _TOKENS),
    "avg_throughput_tokens_per_sec": ShownColumn("output", _TOKENS),
}
_POOLED_NAMES = {
    "device_read": "device read",
    "device_write": "device write",
    "total_read": "storage read",
    "total_write": "storage write",
    "response": "response",
}
_PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}


def submission_view(section: Json) -> View:
    """The summary of a tree, with what the rules found if that is in it. Raises MisshapenError."""
    facts = converted(section, TreeFacts, "")
    return View(
        title="MLPerf Storage KV cache",
        status="complete" if facts.complete else "invalid",
        sentence=_sentence(facts),
        about=list(_about(facts)),
        reasons=[*facts.not_submittable, *_reasons(facts)],
        sections=[
            hidden_section("Each option", _charts(facts)),
            ViewSection(title="By the rules", parts=[_by_the_rules(facts)]),
            _not_closed(facts),
            *_beside_the_rules(facts),
            _rules(facts),
        ],
    )


def check_view(section: Json) -> View:
    """What each rule found in a tree. Raises MisshapenError."""
    facts = converted(section, TreeFacts, "")
    counts = Counter(finding.status for finding in facts.rules)
    short = [finding for finding in facts.rules if finding.status == FALLS_SHORT]
    return View(
        title="MLPerf check",
        status=FALLS_SHORT if short else "nothing falls short",
        sentence=f"By {facts.edition}: "
        + ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s])
        + ".",
        about=list(_about(facts)),
        reasons=[*map(_short_text, short), *facts.not_submittable],
        sections=[_not_closed(facts), _rules(facts)],
    )


def _short_text(finding: RuleFinding) -> str:
    return f"{finding.rule} ({finding.section}): {finding.status}"


# --- the answer ------------------------------------------------------------------------------


def _options(facts: TreeFacts) -> list[OptionSummary]:
    return list(facts.options.values())


def _valid(facts: TreeFacts) -> list[OptionSummary]:
    return [option for option in _options(facts) if option.valid]


def _sentence(facts: TreeFacts) -> str:
    """What the rules report of each valid option, and which are invalid."""
    texts = [f"Option {option.option}: {', '.join(_headline(option))}." for option in _valid(facts)]
    invalid = [str(option.option) for option in _options(facts) if not option.valid]
    if invalid:
        them = "it" if len(invalid) == 1 else "them"
        texts.append(f"INVALID: option {', '.join(invalid)}: nothing is claimed of {them}.")
    return " ".join(texts)


_WORDS = {
    "aggregated_read_bandwidth_gbps": "read",
    "aggregated_write_bandwidth_gbps": "written",
    "aggregated_storage_throughput_tokens_per_sec": "from storage",
}


def _headline(option: OptionSummary) -> Iterator[str]:
    for name, word in _WORDS.items():
        yield f"{_RULES_COLUMNS[name].measured(option.by_the_rules.get(name))} {word}"


def _about(facts: TreeFacts) -> Iterator[str]:
    yield facts.division or "division unknown"
    if facts.system:
        yield f"system {facts.system}"
    yield from facts.drives
    yield _many(facts.total_ranks, "rank")
    if facts.hosts:
        yield _many(len(facts.hosts), "host")
    yield f"{_many(facts.trials_per_option, 'trial')} each"
    if facts.started_utc:
        yield facts.started_utc[:10]
    yield from (f"kv-cache {version}" for version in facts.program_versions)
    yield facts.tree


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _reasons(facts: TreeFacts) -> Iterator[str]:
    """Why options are invalid, or why what they claim is doubted."""
    for option in _options(facts):
        where = f"option {option.option}"
        flaws = [f"{flaw.kind}: {flaw.where} {flaw.message}" for flaw in option.invalid_because]
        yield from (f"{where}: {flaw}" for flaw in _first(flaws))
        if option.not_valid:
            path, reasons = next(iter(option.not_valid.items()))
            count = _many(len(option.not_valid), "result")
            because = "; ".join(reasons)
            yield f"{where}: not valid by their passports: {count}; {path}: {because}"
        if option.cpu_tier_ranks:
            count = _many(len(option.cpu_tier_ranks), "rank")
            yield f"{where}: {count} served everything from RAM"


def _not_closed(facts: TreeFacts) -> ViewSection:
    return ViewSection(title="Not as in CLOSED", parts=present(Remarks(texts=facts.deviations)))


# --- tables ----------------------------------------------------------------------------------


def _named(option: OptionSummary) -> str:
    return f"{option.option} {option.name or 'of no known name'}"


def _by_rule(option: OptionSummary, name: str) -> float | None:
    return option.by_the_rules.get(name)


def _by_the_rules(facts: TreeFacts) -> Table:
    return Table.of(
        _options(facts),
        {
            ShownColumn("option"): _named,
            ShownColumn("found", status=True): lambda option: (
                "complete" if option.valid else "invalid"
            ),
            **{column: partial(_by_rule, name=name) for name, column in _RULES_COLUMNS.items()},
        },
        caption="Bandwidths and tokens/s: added over ranks, the mean of trials"
        f"{f', by {facts.edition}' if facts.edition else ''}.",
    )


def _beside_the_rules(facts: TreeFacts) -> Iterator[ViewSection]:
    """What the rules do not give."""
    valid = _valid(facts)
    if not valid:
        return
    spread = Table.of(
        [(option, name, row) for option in valid for name, row in option.spread.items()],
        {
            ShownColumn("option"): lambda each: str(each[0].option),
            ShownColumn("number"): lambda each: _SPREAD_COLUMNS[each[1]].heading,
            ShownColumn("median", units.COUNT): lambda each: each[2].median,
            **interval_columns(units.COUNT, lambda each: each[2].interval),
            ShownColumn("CV", units.PERCENT): lambda each: each[2].coefficient_of_variation,
        },
        caption="Of the trials' sums; from and to: the 95 % interval of their mean.",
    )
    yield ViewSection(title="How far the trials agree", parts=[spread])
    pooled = Table.of(
        [
            (option, name, times)
            for option in valid
            for name in _POOLED_NAMES
            if (times := option.pooled_ms.get(name)) is not None
        ],
        {
            ShownColumn("option"): lambda each: str(each[0].option),
            ShownColumn("time"): lambda each: _POOLED_NAMES[each[1]],
            ShownColumn("samples", units.COUNT): lambda each: each[2].count,
            **{
                ShownColumn(f"p{percent:g}", units.MS): _percentile(name)
                for name, percent in _PERCENTILES.items()
            },
            ShownColumn("max", units.MS): lambda each: each[2].max,
        },
    )
    curves = [_percentile_figure(valid, name) for name in _POOLED_NAMES]
    yield ViewSection(title="All samples of all ranks", parts=[pooled, *present(*curves)])


def _percentile(name: str) -> Callable[[tuple[object, object, PooledTimes]], float | None]:
    return lambda each: getattr(each[2], name)


def _rules(facts: TreeFacts) -> ViewSection:
    """The gravest first; a row for each thing that a rule saw."""
    ranked = sorted(facts.rules, key=lambda finding: _rank(finding.status))
    table = Table.of(
        [(finding, text) for finding in ranked for text in _look_texts(finding)],
        {
            ShownColumn("rule"): lambda each: each[0].rule,
            ShownColumn("section"): lambda each: each[0].section,
            ShownColumn("status", status=True): lambda each: each[0].status,
            ShownColumn("finding"): lambda each: each[1],
        },
    )
    return ViewSection(title="Rules", parts=present(table))


def _rank(status: str) -> int:
    return STATUSES.index(status) if status in STATUSES else len(STATUSES)


def _look_texts(finding: RuleFinding) -> list[str]:
    looks = finding.looks
    return _first([f"{x.where}: {x.message}" if x.where else x.message for x in looks]) or [""]


def _first(texts: Sequence[str]) -> list[str]:
    """As many as are read, and how many more there are."""
    more = len(texts) - _MOST
    return [*texts[:_MOST], *([f"and {more} more"] if more > 0 else [])]


# --- pictures --------------------------------------------------------------------------------


def _charts(facts: TreeFacts) -> list[BarChart | Figure]:
    """Bandwidth and throughput of each option, and how they go from trial to trial."""
    valid = _valid(facts)
    if not valid:
        return []
    bars = [
        _bars(valid, "Storage bandwidth", ("read_bandwidth_gbps", "write_bandwidth_gbps")),
        _bars(valid, "Storage throughput", ("storage_throughput_tokens_per_sec",)),
    ]
    several = facts.trials_per_option > 1
    return [*bars, *(_over_trials(valid, name) for name in _SPREAD_COLUMNS if several)]


def _bars(valid: Sequence[OptionSummary], title: str, names: Sequence[str]) -> BarChart:
    """The mean of the trials with its interval."""
    return BarChart(
        title=title,
        x=ShownColumn(title.lower(), _SPREAD_COLUMNS[names[0]].unit),
        parts=("mean of trials",),
        rows=[
            BarRow(
                name=f"option {option.option}{what}",
                parts=(option.spread[name].mean,),
                interval=option.spread[name].interval,
            )
            for option in valid
            for name in names
            for what in [f", {_SPREAD_COLUMNS[name].title}" if len(names) > 1 else ""]
            if name in option.spread
        ],
    )


def _over_trials(valid: Sequence[OptionSummary], name: str) -> Figure:
    column = _SPREAD_COLUMNS[name]
    return Figure(
        title=f"{column.title.capitalize()} of each trial",
        x=ShownColumn("trial", units.COUNT),
        y=column,
        whole=True,
        lines=[
            Line.through(f"option {option.option}", enumerate(option.spread[name].values))
            for option in valid
            if name in option.spread
        ],
    )


def _percentile_figure(valid: Sequence[OptionSummary], name: str) -> Figure:
    pooled = [(option, option.pooled_ms.get(name)) for option in valid]
    lines = [
        Line.through(
            f"option {option.option}",
            [(percent, getattr(times, each)) for each, percent in _PERCENTILES.items()],
        )
        for option, times in pooled
        if times is not None
    ]
    return Figure(
        title=f"{_POOLED_NAMES[name].capitalize()}, all samples",
        x=PERCENTILE_AXIS,
        y=ShownColumn("time", units.MS),
        lines=lines,
        scale=Scale.PERCENTILE,
        log_y=True,
        detail=True,
    )
