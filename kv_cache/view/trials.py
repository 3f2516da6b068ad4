"""What trials of one configuration show: how far they agree, in every number."""

from collections.abc import Iterator, Mapping, Sequence

from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.metrics.passport import Status
from kv_cache.result.metrics import METRICS, Json, Metric
from kv_cache.result.paths import value_at
from kv_cache.result.run import converted
from kv_cache.result.trials import RunPrecision, TrialFacts, TrialNumbers, TrialRow
from kv_cache.result.verdicts import rule_of
from kv_cache.view import units
from kv_cache.view.identity import doubts, identity_facts, origin_texts
from kv_cache.view.latency import bounded
from kv_cache.view.machine import machine_sections
from kv_cache.view.parts import (
    Cell,
    FactList,
    IntervalChart,
    IntervalRow,
    KeyNumber,
    KeyNumbers,
    Remarks,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    interval_columns,
    present,
)
from kv_cache.view.run import CARDS, VIRTUAL, metric_column, reach_text, rule_table


def trials_view(section: Json) -> View:
    """All trials, from the section `kv_cache` of their document. Raises MisshapenError."""
    facts = converted(section, TrialFacts, "")
    return View(
        title="Trials",
        status=facts.passport.verdict,
        sentence=_sentence(facts, section),
        about=origin_texts(section),
        reasons=doubts(section, facts.passport.reasons),
        sections=list(_sections(facts, section)),
    )


def _sentence(facts: TrialFacts, section: Json) -> str:
    """The headline of all, and how many finished."""
    done = f"{facts.finished} of {facts.planned} trials finished.{_wanted(facts.trials)}"
    numbers = facts.metrics.get(facts.headline or "")
    metric = METRICS.get(facts.headline or "")
    if value_at(section, "driver") == "virtual-time":
        done += f" {VIRTUAL}"
    if numbers is None or metric is None:
        return done
    column = metric_column(metric)
    mean = column.measured(numbers.mean)
    text = f"{column.title} {mean} (mean{_between(metric, numbers)})"
    return f"{text}; {done}"


def _wanted(trials: Sequence[TrialRow]) -> str:
    """How many trials became as sure as --until wants them; empty where it was not asked."""
    precisions = [trial.precision for trial in trials if trial.precision is not None]
    if not precisions:
        return ""
    return f" Wanted was {wanted_text(precisions[0])} in each trial: {reached_text(precisions)}."


def wanted_text(precision: RunPrecision) -> str:
    return f"{reach_text(precision.share)} of the {precision.figure}"


def reached_text(precisions: Sequence[RunPrecision]) -> str:
    """How many of several runs became as sure as --until wants, and how sure each one is."""
    reached = sum(each.reached for each in precisions)
    widths = [
        "no interval" if each.half_width is None else reach_text(each.half_width)
        for each in precisions
    ]
    return f"{reached} of {len(precisions)} reached it ({', '.join(widths)})"


def _between(metric: Metric, numbers: TrialNumbers) -> str:
    if numbers.interval is None:
        return ""
    low, high = metric.shown(numbers.interval.low), metric.shown(numbers.interval.high)
    return f", {low} to {high} with 95 %"


def _sections(facts: TrialFacts, section: Json) -> Iterator[ViewSection]:
    shown = {name: facts.metrics[name] for name in CARDS if name in facts.metrics}
    unjudged = [
        f"{rule.rule} {rule.name}: {rule.message}"
        for rule in facts.passport.rules
        if rule.status == Status.NOT_JUDGED
    ]
    medians = KeyNumbers(numbers=[_key_number(name, row) for name, row in shown.items()])
    yield hidden_section("Headline", present(medians))
    yield hidden_section(
        "How far the trials agree",
        present(_agreement(shown)),
        "No trial finished, so there are no numbers.",
    )
    yield ViewSection(title="Within a run and between runs", parts=present(_variance(facts)))
    yield ViewSection(title="Not judged", parts=present(Remarks(texts=unjudged)))
    yield ViewSection(title="What ran", parts=[FactList(rows=identity_facts(section))])
    yield ViewSection(title="Every number", parts=present(_numbers(facts.metrics)))
    yield ViewSection(title="Each trial", parts=[_trials(facts)])
    rules = present(rule_table(facts.passport))
    yield hidden_section("Passport", rules)
    yield from machine_sections(section)


def _key_number(name: str, numbers: TrialNumbers) -> KeyNumber:
    metric, spread = METRICS[name], numbers.coefficient_of_variation
    return KeyNumber(
        column=metric_column(metric),
        value=bounded(metric, numbers.median, numbers.at_least),
        note=f"median; CV {units.PERCENT.measured(spread)}",
    )


def _agreement(shown: Mapping[str, TrialNumbers]) -> IntervalChart:
    """Each trial's difference from the median, of metrics that have one above 0."""
    return IntervalChart(
        axis="difference from the median",
        rows=[
            _row(name, numbers)
            for name, numbers in shown.items()
            if numbers.median > 0 and not numbers.at_least
        ],
        caption="Dots: trials. Bar: the 95 % interval of their mean.",
    )


def _variance(facts: TrialFacts) -> Remarks:
    """How much of the trials' spread is within a run, and how much between runs."""
    spread = facts.variance
    if spread is None:
        return Remarks(texts=[])
    parts = (spread.all, spread.within_run, spread.between_runs)
    whole, within, between = (units.PERCENT.measured(part) for part in parts)
    text = (
        f"The headlines of {spread.trials} trials spread by {whole} (standard deviation): {within} "
        f"is what one run's window leaves open, {between} is how runs differ. Longer runs make "
        "only the first smaller, more trials both."
    )
    return Remarks(texts=[text])


def _row(name: str, numbers: TrialNumbers) -> IntervalRow:
    column, median = metric_column(METRICS[name]), numbers.median
    spread, ends = numbers.coefficient_of_variation, numbers.interval
    return IntervalRow(
        name=column.title,
        text=column.measured(median),
        values=[value / median - 1 for value in numbers.values if value is not None],
        interval=ends and IntervalEnds(low=ends.low / median - 1, high=ends.high / median - 1),
        mark="" if spread is None else f"CV {units.PERCENT.measured(spread)}",
    )


def _numbers(metrics: Mapping[str, TrialNumbers]) -> Table:
    return Table.of(
        [(METRICS[name], metrics[name]) for name in METRICS if name in metrics],
        {
            ShownColumn("metric"): lambda each: _what(*each),
            ShownColumn("median", units.COUNT): lambda each: _number(*each, each[1].median),
            ShownColumn("mean", units.COUNT): lambda each: _number(*each, each[1].mean),
            **interval_columns(units.COUNT, lambda each: _scaled(each[1].interval, each[0])),
            ShownColumn("CV", units.PERCENT): lambda each: each[1].coefficient_of_variation,
        },
        caption="From and to: the 95 % interval of the mean.",
    )


def _what(metric: Metric, numbers: TrialNumbers) -> str:
    """A metric with its unit, and how many trials have it if not all do."""
    known = sum(value is not None for value in numbers.values)
    some = "" if known == len(numbers.values) else f" ({known} of {len(numbers.values)} trials)"
    return f"{metric.label}, {metric.shown_unit}{some}"


def _number(metric: Metric, numbers: TrialNumbers, value: float) -> Cell:
    return bounded(metric, value, True) if numbers.at_least else value / metric.scale


def _scaled(ends: IntervalEnds | None, metric: Metric) -> IntervalEnds | None:
    return ends and IntervalEnds(low=ends.low / metric.scale, high=ends.high / metric.scale)


def _trials(facts: TrialFacts) -> Table:
    return Table.of(
        facts.trials,
        {
            ShownColumn("trial"): lambda trial: str(trial.trial),
            ShownColumn("file"): lambda trial: trial.file,
            ShownColumn("verdict", status=True): lambda trial: trial.verdict,
            ShownColumn("counted"): lambda trial: "yes" if trial.counted else f"no, {trial.status}",
            ShownColumn("seed"): lambda trial: str(trial.seed),
            ShownColumn("measured", units.S): lambda trial: trial.window_s,
            ShownColumn("rules"): lambda trial: ", ".join(
                dict.fromkeys(map(rule_of, trial.reasons))
            ),
        },
        caption="Each trial has a result of its own, with what happened over time.",
    )
