"""The report of several trials of one configuration: how far they agree."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from kv_cache.core.format import as_text, figures
from kv_cache.report.html.common import common_sections, machine
from kv_cache.report.html.parts import (
    Card,
    Doc,
    Json,
    Section,
    Strip,
    badge,
    cards,
    headed,
    lead,
    percent,
    reasons,
    reasons_at,
    rule_table,
    table,
    text_at,
)
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.pictures.base import known, number, rows_at, value_at, word
from kv_cache.report.pictures.trials import SHOWN
from kv_cache.result.metrics import METRICS, Metric


def trials_sections(doc: Doc) -> Iterator[Section]:
    own = doc.own
    yield Section(slug="verdict", title="Verdict and headline", content=list(_verdict(own)))
    yield Section(slug="agree", title="How far the trials agree", content=_metrics(own),
                  absent="No trial finished, so there are no numbers.")  # fmt: skip
    yield Section(slug="trials", title="Trials", content=_trials(own), absent="There is none.")
    yield Section(slug="passport", title="Passport", content=rule_table(own),
                  absent="The document has no passport.")  # fmt: skip
    yield Section(
        slug="apart", title="Not in this report", content=[],
        absent="Each trial has a result of its own, with what happened over time, percentiles, "
        "tier flow and reuse: give those files to report too. One load is one point of the "
        "curve of latency over throughput; capacity has all of it.",
    )  # fmt: skip
    yield from common_sections(doc)


def _verdict(own: Json) -> Iterator[Html]:
    yield tag("p", badge(word(own, "passport.verdict")), class_="verdict")
    yield from reasons(own, "passport.reasons")
    virtual = own.get("driver") != "real-io"
    yield lead(
        f"{figures(number(own, 'finished'))} of {figures(number(own, 'planned'))} trials finished.",
        f"{text_at(own, 'model.name') or 'Unknown model'}, "
        f"{word(own, 'semantics_preset') or 'unknown'} semantics, "
        f"master seed {as_text(own.get('seed'))}.",
        "Virtual time: all figures come from a model, and nothing was measured." if virtual else "",
        *(() if virtual else machine(own)),
    )
    yield cards(_cards(own))


def _metric_row(own: Json, name: str) -> Json:
    """Names have dots, so it is no path."""
    metrics = own.get("metrics")
    row = metrics.get(name) if isinstance(metrics, Mapping) else None
    return row if isinstance(row, Mapping) else {}


def _cards(own: Json) -> Iterator[Card]:
    for name in SHOWN:
        metric, row = METRICS[name], _metric_row(own, name)
        if isfinite(median := number(row, "median")):
            yield Card(
                name=headed(metric.label), value=metric.shown(median), unit=metric.shown_unit,
                more=f"median; CV {percent(number(row, 'coefficient_of_variation'))}",
            )  # fmt: skip


def _metrics(own: Json) -> list[Html]:
    there = [(m, row) for name, m in METRICS.items() if (row := _metric_row(own, name))]
    if not there:
        return []
    reach = _reach([row for _, row in there])
    rows = [_row(metric, row, reach) for metric, row in there]
    heads = ("", "unit", "each trial, and the interval", "median", "mean", "95 % interval of mean",
             "CV")  # fmt: skip
    said = (
        "Dots are trials, the bar is the 95 % interval of their mean, the line their median. A "
        f"picture ends {100 * reach:.0f} % of the median to each side."
    )
    return [tag("p", said), table("Every number of the trials", heads, rows, words=3)]


_LEAST, _MOST = 0.1, 1.5


def _reach(rows: Sequence[Json]) -> float:
    """As far as the dots go, as a share of the median; a bar may go further."""
    far = [
        abs(value / median - 1)
        for row in rows
        if (median := number(row, "median")) > 0
        for value in _values(row)
    ]
    return min(_MOST, max([_LEAST, *(1.1 * each for each in far)]))


def _values(row: Json) -> list[float]:
    values = value_at(row, "values")
    return known(number({"v": v}, "v") for v in values) if isinstance(values, list) else []


def _row(metric: Metric, row: Json, reach: float) -> tuple[object, ...]:
    median = number(row, "median")
    low, high = (number(row, f"interval.{end}") for end in ("low", "high"))

    def at(value: float) -> float:
        return 0.5 + (value / median - 1) / (2 * reach) if median > 0 else 0.5

    there = isfinite(low) and isfinite(high)
    strip = Strip(
        middle=0.5, dots=[at(value) for value in _values(row)],
        low=at(low) if there else None, high=at(high) if there else None,
    )  # fmt: skip
    return (
        metric.label,
        metric.shown_unit,
        strip.drawn() if median > 0 else "",
        _shown(metric, median),
        _shown(metric, number(row, "mean")),
        f"{_shown(metric, low)} to {_shown(metric, high)}" if there else NOTHING,
        percent(number(row, "coefficient_of_variation")),
    )


def _shown(metric: Metric, value: float) -> str:
    return metric.shown(value if isfinite(value) else None)


def _trials(own: Json) -> list[Html]:
    rows = [
        (
            as_text(row.get("trial")),
            text_at(row, "file"),
            badge(word(row, "verdict")),
            "yes" if row.get("counted") is True else f"no, {word(row, 'status')}",
            "; ".join(reasons_at(row, "reasons")) or NOTHING,
            as_text(row.get("seed")),
            figures(number(row, "window_s")),
        )
        for row in rows_at(own, "trials")
    ]
    heads = ("trial", "file", "verdict", "counted", "reasons", "seed", "seconds")
    return [table("Each trial", heads, rows, words=5)] if rows else []
