"""The trials of a configuration as text for a terminal; `result.trials` makes the document."""

from collections.abc import Iterator, Sequence

from kv_cache.core.units import MISSING
from kv_cache.metrics.passport import Status
from kv_cache.result.metrics import METRICS, Json, Metric
from kv_cache.result.run import SECTION

_TOLD = (
    *("storage.read.bytes_per_second", "storage.write.bytes_per_second"),
    *("storage.read.device_ms.p95", "storage.write.device_ms.p95"),
    *("requests_per_second", "output_tokens_per_second"),
    *("ttft_ms.p95", "response_ms.p95", "hit_ratio"),
)


def trials_text(document: Json, path: str) -> str:
    """What a person reads in ten seconds; all numbers are in the document."""
    own = document[SECTION]
    verdict = own["passport"]
    lines = [f"verdict   {verdict['verdict'].upper()}"]
    lines += [f"  ! {reason}" for reason in verdict["reasons"]]
    unjudged = [r for r in verdict["rules"] if r["status"] == Status.NOT_JUDGED]
    lines += [f"  ? {rule['rule']} {rule['name']}: {rule['says']}" for rule in unjudged]
    lines += ["", *_head(own), "", *_table(own["metrics"]), "", *_trial_lines(own["trials"])]
    return "\n".join([*lines, "", f"trials  {path}"])


def _head(own: Json) -> list[str]:
    time = "" if own["contains_performance"] else ", virtual time"
    done = f"{own['finished']} of {own['planned']} finished{time}"
    what = f"{own['model']['name']}, {own['semantics_preset']} semantics, seed {own['seed']}"
    return [f"trials    {done}: {what}"]


def _table(metrics: Json) -> list[str]:
    if not metrics:
        return ["no trial finished: there are no numbers"]
    heading = f"{'':<34}{'median':>10}{'mean':>10}{'95 % interval of mean':>25}{'CV':>8}"
    return [heading, *(_row(METRICS[name], metrics[name]) for name in _TOLD if name in metrics)]


def _row(metric: Metric, numbers: Json) -> str:
    interval, spread = numbers["interval"], numbers["coefficient_of_variation"]
    between = MISSING
    if interval is not None:
        between = f"{metric.shown(interval['low'])} to {metric.shown(interval['high'])}"
    return (
        f"{metric.label:<28}{metric.shown_unit:<6}{metric.shown(numbers['median']):>10}"
        f"{metric.shown(numbers['mean']):>10}{between:>25}"
        f"{MISSING if spread is None else f'{100 * spread:.1f} %':>8}"
    )


def _trial_lines(rows: Sequence[Json]) -> Iterator[str]:
    for row in rows:
        said = row["verdict"] if row["counted"] else f"{row['status']}, not counted"
        yield f"trial {row['trial']:<3} seed {row['seed']:<11} {said:<8} {row['file']}"
