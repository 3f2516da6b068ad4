"""What the runs of one configuration on one device say together: steps between any two of them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from kv_cache.app.compare import read_inputs
from kv_cache.core.errors import UsageError
from kv_cache.metrics.trend import LEAST_RUNS, Step, steps
from kv_cache.result.metrics import Json
from kv_cache.view.comparison import comparison_view

_NOT_IN_TREND = "invalid"


def trend_of(rows: Sequence[Json], folder: Path) -> Json:
    """Return a sentence on the runs, the steps of their storage bandwidth (`at` is the place of the
    first run after one), the level of each run, and the two runs that lie nearest the latest step,
    or else are first and latest. Runs whose verdict is invalid are in the list alone."""
    judged = [place for place, row in enumerate(rows) if row["verdict"] != _NOT_IN_TREND]
    values = [float(rows[place]["value"]) for place in judged]
    changes = steps(values)
    ends = [judged[0], judged[-1]] if len(judged) > 1 else []
    if changes:
        ends = [judged[changes[-1].at - 1], judged[changes[-1].at]]
    paths = [rows[place]["path"] for place in ends]
    return {
        "sentence": _sentence(rows, judged, changes, [folder / path for path in paths]),
        "steps": [
            {"at": judged[step.at], "ratio": step.ratio, "low": step.interval.low,
             "high": step.interval.high} for step in changes
        ],
        "levels": _levels(len(rows), judged, values, changes),
        "pair": paths,
    }  # fmt: skip


def _sentence(
    rows: Sequence[Json], judged: Sequence[int], changes: Sequence[Step], ends: Sequence[Path]
) -> str:
    if changes:
        return " ".join(_step(rows, judged, step) for step in changes)
    if len(judged) >= LEAST_RUNS:
        return (
            f"No step is shown between any two of {len(judged)} runs: what they differ by may be "
            "chance."
        )
    if len(judged) < 2:
        return "There are not two runs of this configuration on this device that are not invalid."
    try:
        return comparison_view(read_inputs(ends)).sentence
    except UsageError as error:
        return f"The first and the latest are not compared: {error}"


def _step(rows: Sequence[Json], judged: Sequence[int], step: Step) -> str:
    """Say by how much storage became faster or slower, and with which run."""
    fell = step.ratio < 1
    low, high = sorted(100 * abs(1 - end) for end in step.interval)
    place = judged[step.at]
    return (
        f"Storage became {'slower' if fell else 'faster'} by {100 * abs(1 - step.ratio):.1f} % "
        f"(95 %: {low:.1f} to {high:.1f}) with run {place + 1} of {len(rows)}, "
        f"of {str(rows[place]['started'])[:10]}."
    )


def _levels(
    count: int, judged: Sequence[int], values: Sequence[float], changes: Sequence[Step]
) -> list[float | None]:
    """Return of each run the mean of those between two steps, None of one that is not judged."""
    cuts = [0, *(step.at for step in changes), len(values)]
    levels: list[float | None] = [None] * count
    for start, end in pairwise(cuts):
        for place in judged[start:end]:
            levels[place] = sum(values[start:end]) / (end - start)
    return levels
