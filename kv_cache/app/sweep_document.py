"""The document of a sweep: what each cell of a grid measured, and how cells differ.

Each run of a cell is a whole run with a result of its own; here stand the numbers of `METRICS` from
each, their mean with its interval, and the ratio to the first cell. Run k of every cell has the
same seed, so ratios are taken in pairs. Each interval holds on its own with 95 %. A cell is called
better than every other by a metric where that holds for all pairs of cells together.
"""

import csv
import io
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from kv_cache import __version__
from kv_cache.files.reading import SECTION
from kv_cache.metrics.intervals import CONFIDENCE, Interval, mean_interval
from kv_cache.metrics.order import LEAST_SEEDS, compared
from kv_cache.metrics.passport import VALID, Status
from kv_cache.result.chain import fingerprint, seal
from kv_cache.result.metrics import HIGHER, METRICS, Json, over_runs
from kv_cache.result.sweep import FAILED, FINISHED, INTERRUPTED, PLANNED, SCHEMA
from kv_cache.result.verdicts import worst
from kv_cache.view.sweep import sweep_view
from kv_cache.view.terminal import terminal

DOCUMENT, TABLE = "sweep.json", "sweep.csv"
MARK = f'{{\n  "{SECTION}": {{\n    "schema": "kv-cache-sweep/'
"""How the document of every sweep begins."""

UNFINISHED = "unfinished"  # the verdict of a cell that was not run to its end

_NUMBERS = ("unit", "better", "values", "mean", "median", "interval", "coefficient_of_variation")
"""What is told of a metric of a cell, in this order."""


def run_row(
    trial: int,
    seed: int,
    directory: str,
    *,
    exit_code: int | None = None,
    document: Json | None = None,
    sha256: str | None = None,
    message: str | None = None,
) -> dict[str, Any]:
    """One run of a cell. Without an exit code it was not run; `document` is its result, if it
    wrote one, and `message` the last thing it said, if it failed."""
    section = {} if document is None else document[SECTION]
    status = section.get("status", PLANNED if exit_code is None else FAILED)
    if exit_code not in (None, 0) and status == FINISHED:
        status = FAILED
    finished = status == FINISHED
    passport = section.get("passport") or {}
    return {
        "trial": trial,
        "seed": seed,
        "directory": directory,
        "status": status,
        "exit_code": exit_code,
        "verdict": passport.get("verdict"),
        "reasons": list(passport.get("reasons") or []),
        "sha256": sha256,
        "fingerprint": None if document is None else fingerprint(document),
        "message": message,
        "metrics": {name: m.value(section) for name, m in METRICS.items()} if finished else {},
    }


def cell_row(number: int, name: str, values: Json, runs: Sequence[Json]) -> dict[str, Any]:
    """A cell with what its runs have in common. Only finished runs give numbers."""
    counted = [run["metrics"] for run in runs if run["status"] == FINISHED]
    return {
        "cell": number,
        "name": name,
        "values": dict(values),
        "verdict": _verdict(runs),
        "finished": len(counted),
        "metrics": {
            metric: numbers for metric in METRICS if (numbers := _numbers(metric, counted))
        },
        "runs": list(runs),
    }


def _verdict(runs: Sequence[Json]) -> str:
    """The worst of its runs'; a run that failed makes the cell invalid."""
    statuses = {run["status"] for run in runs}
    if statuses - {FINISHED, PLANNED, INTERRUPTED}:
        return Status.INVALID.value
    if statuses != {FINISHED}:
        return UNFINISHED
    return worst({run["verdict"] for run in runs})


def _numbers(name: str, counted: Sequence[Json]) -> dict[str, Any] | None:
    numbers = over_runs(METRICS[name], [metrics[name] for metrics in counted])
    return None if numbers is None else {part: numbers[part] for part in _NUMBERS}


# --- cells against each other ----------------------------------------------------------------


def against(cell: Json, base: Json) -> dict[str, Any]:
    """By which factor each metric of a cell is larger than the base's: the geometric mean of the
    ratios of runs with the same seed, with its interval where there are two or more."""
    ratios = {}
    for name in METRICS:
        logs = _log_ratios(name, cell, base)
        if not logs:
            continue
        interval = mean_interval(logs, CONFIDENCE)
        ratios[name] = {
            "ratio": exp(fmean(logs)),
            "pairs": len(logs),
            "interval": None if interval is None else _exp(interval)._asdict(),
        }
    return ratios


def _log_ratios(name: str, cell: Json, base: Json) -> list[float]:
    theirs = {run["trial"]: run["metrics"].get(name) for run in base["runs"]}
    pairs = [(run["metrics"].get(name), theirs.get(run["trial"])) for run in cell["runs"]]
    return [log(mine / its) for mine, its in pairs if mine and its and mine > 0 and its > 0]


def _exp(interval: Interval) -> Interval:
    return Interval(*(exp(min(end, 700.0)) for end in interval))


def best(cells: Sequence[Json]) -> dict[str, int]:
    """Of each metric the cell that is shown to be better than all others, in pairs of runs with the
    same seed: all pairs of cells are one family (`metrics/order.py`). Invalid and unfinished cells
    have no rank, nor has a metric that a run lacks."""
    ranked = [c for c in cells if c["verdict"] in (VALID, Status.SUSPECT.value)]
    winners = {}
    for name, metric in METRICS.items():
        sides = [_side(name, cell) for cell in ranked]
        count = min(map(len, sides), default=0)
        if len(sides) < 2 or count < LEAST_SEEDS:
            continue
        sign = 1.0 if metric.better == HIGHER else -1.0
        family = compared([[sign * x for x in side[:count]] for side in sides], in_order=False)
        for place, cell in enumerate(ranked):
            if all(family.better(place, other) for other in range(len(ranked)) if other != place):
                winners[name] = cell["cell"]
    return winners


def _side(name: str, cell: Json) -> list[float]:
    """Return the logarithm of a metric in each run of a cell, in the order of the seeds; none where
    a run has none above 0."""
    runs = sorted(cell["runs"], key=lambda run: int(run["trial"]))
    values = [run["metrics"].get(name) for run in runs]
    return [log(value) for value in values] if all(v and v > 0 for v in values) else []


# --- the document ----------------------------------------------------------------------------


def sweep_document(
    grid: Json,
    cells: Sequence[dict[str, Any]],
    *,
    source: str,
    paths: Sequence[str],
    seed: int,
    repeat: int,
    digest: str,
    workers: int,
    interrupted: str | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The sealed document of the cells in order. `digest` stands for all configurations."""
    runs = [run for cell in cells for run in cell["runs"]]
    done = all(run["status"] not in (PLANNED, INTERRUPTED) for run in runs)
    winners = best(cells)
    rows = [
        {
            **cell,
            "best": [name for name, number in winners.items() if number == cell["cell"]],
            "against_first": against(cell, cells[0]),
        }
        for cell in cells
    ]
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "grid_file": source,
        "grid": dict(grid),
        "configurations_sha256": digest,
        "varied": list(paths),
        "seed": seed,
        "repeat": repeat,
        "workers": workers,
        "confidence": CONFIDENCE,
        "status": FINISHED if done else INTERRUPTED,
        "interrupted": interrupted,
        "runs": len(runs),
        "finished": sum(run["status"] == FINISHED for run in runs),
        "failed": sum(run["status"] not in (FINISHED, PLANNED, INTERRUPTED) for run in runs),
        "notes": list(notes),
        "cells": rows,
    }
    files = {
        f"{run['directory']}/result.json": run["sha256"]
        for run in runs
        if run["sha256"] is not None
    }
    return seal({SECTION: section}, files)


def sweep_csv(document: Json) -> bytes:
    """One row a cell: its values, how many runs finished, its verdict, and of each metric that any
    cell has mean, interval and ratio to the first cell."""
    section = document[SECTION]
    names = [n for n in METRICS if any(n in cell["metrics"] for cell in section["cells"])]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    heads = [
        f"{name} [{METRICS[name].unit}]{part}"
        for name in names
        for part in ("", " low", " high", " / first", " / first low", " / first high")
    ]
    out.writerow(["cell", *section["varied"], "runs", "finished", "verdict", *heads])
    for cell in section["cells"]:
        values = [_plain(cell["values"][path]) for path in section["varied"]]
        columns = [value for name in names for value in _columns(cell, name)]
        out.writerow(
            [cell["cell"], *values, len(cell["runs"]), cell["finished"], cell["verdict"], *columns]
        )
    return text.getvalue().encode()


def _columns(cell: Json, name: str) -> list[float | None]:
    return [
        *_with_ends(cell["metrics"].get(name, {}), "mean"),
        *_with_ends(cell["against_first"].get(name, {}), "ratio"),
    ]


def _with_ends(row: Json, name: str) -> tuple[float | None, float | None, float | None]:
    """Return a number with its interval; a row without it is empty."""
    interval = row.get("interval") or {}
    return row.get(name), interval.get("low"), interval.get("high")


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def sweep_text(document: Json, directory: Path, instead: str | None = None) -> str:
    """What a person reads: the answer, every cell in a line, what failed, where everything is.
    `instead`: where the document is that `directory` could not take."""
    view = sweep_view(document[SECTION])
    files = [f"sweep   {instead or directory / DOCUMENT}"]
    if not instead:
        files.append(f"table   {directory / TABLE}")
    return "\n".join([terminal(view), "", *files])
