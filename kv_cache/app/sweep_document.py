"""The document of a sweep: what each cell of a grid measured, and how cells differ.

Each run of a cell is a whole run with a result of its own; here stand the numbers of `METRICS` from
each, their mean with its interval, and the ratio to the first cell. Run k of every cell has the
same seed, so ratios are taken in pairs; where the cells took eight turns or more on a device, as
turns (`metrics/turns.py`). Each interval holds on its own with 95 %. A cell is called better than
every other by a metric where that holds for all pairs of cells together.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from kv_cache import __version__
from kv_cache.core.text import printable
from kv_cache.files.reading import RESULT_FILE, SECTION
from kv_cache.metrics.intervals import CONFIDENCE, Interval
from kv_cache.metrics.order import LEAST_SEEDS, PairedDifference, difference_of, one_family
from kv_cache.metrics.passport import VALID, Status
from kv_cache.metrics.turns import LEAST_TURNS, difference_in_turns
from kv_cache.result.chain import fingerprint, seal
from kv_cache.result.metrics import HIGHER, METRICS, Json, over_runs
from kv_cache.result.sweep import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    PLANNED,
    SCHEMA,
    only_modelled,
)
from kv_cache.result.trials import place_of, precision_part
from kv_cache.result.verdicts import rule_of, worst
from kv_cache.result.verify import recheck, unlike_again
from kv_cache.view.sweep import sweep_view
from kv_cache.view.terminal import terminal

DOCUMENT, TABLE = "sweep.json", "sweep.csv"
MARK = f'{{\n  "{SECTION}": {{\n    "schema": "kv-cache-sweep/'
"""How the document of every sweep begins."""

UNFINISHED = "unfinished"  # the verdict of a cell that was not run to its end

_NUMBERS = (
    *("unit", "better", "values", "mean", "median", "interval", "coefficient_of_variation"),
    "at_least",
)
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
        "changed_thresholds": dict(passport.get("changed_thresholds") or {}),
        "sha256": sha256,
        "fingerprint": None if document is None else fingerprint(document),
        "message": message,
        "place": place_of(section) if section else None,
        **precision_part(section),
        "metrics": {name: m.value(section) for name, m in METRICS.items()} if finished else {},
        "at_least": [n for n, m in METRICS.items() if finished and m.at_least(section)],
    }


def cell_row(number: int, name: str, values: Json, runs: Sequence[Json]) -> dict[str, Any]:
    """A cell with what its runs have in common. Only finished runs give numbers."""
    counted = [run for run in runs if run["status"] == FINISHED]
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
    values = [run["metrics"][name] for run in counted]
    numbers = over_runs(METRICS[name], values, any(name in run["at_least"] for run in counted))
    return numbers and {part: numbers[part] for part in _NUMBERS if part in numbers}


# --- cells against each other ----------------------------------------------------------------


def against(cell: Json, base: Json, turns: int | None) -> dict[str, Any]:
    """By which factor each metric of a cell is larger than the base's: the geometric mean of the
    ratios of runs with the same seed, with its interval where there are two or more. `turns`: so
    many cells had run k before one had run k + 1; None where they did not take turns."""
    ratios = {}
    for name in METRICS:
        mine, theirs = _logs(name, cell), _logs(name, base)
        both = mine.keys() & theirs.keys()
        if not both:
            continue
        known = _difference(cell, mine, base, theirs, turns)
        mean = fmean(mine[k] - theirs[k] for k in both) if known is None else known.mean
        ratios[name] = {
            "ratio": exp(mean),
            "pairs": len(both),
            "interval": None if known is None else _exp(known.interval())._asdict(),
        }
    return ratios


def _logs(name: str, cell: Json) -> dict[int, float]:
    """Return the logarithm of a metric by run; without those that have none above 0. Nothing where
    a run's is a lower bound: without it, those that are left are the better ones."""
    if any(name in run["at_least"] for run in cell["runs"]):
        return {}
    values = {int(run["trial"]): run["metrics"].get(name) for run in cell["runs"]}
    return {trial: log(value) for trial, value in values.items() if value and value > 0}


def _difference(
    cell: Json, mine: dict[int, float], base: Json, theirs: dict[int, float], turns: int | None
) -> PairedDifference | None:
    """Return by how much a cell's logarithms are more than the base's, run by run."""
    both = sorted(mine.keys() & theirs.keys())
    ours, its = [mine[k] for k in both], [theirs[k] for k in both]
    known = None
    if turns is not None:
        at, its_at = ([turns * k + int(each["cell"]) for k in both] for each in (cell, base))
        known = difference_in_turns(its, ours, its_at, at)
    return known or difference_of([x - y for x, y in zip(ours, its, strict=True)])


def _exp(interval: Interval) -> Interval:
    return Interval(*(exp(min(end, 700.0)) for end in interval))


def best(cells: Sequence[Json], turns: int | None) -> dict[str, int]:
    """Of each metric the cell that is shown to be better than all others: all pairs of cells are
    one family (`metrics/order.py`). Invalid and unfinished cells have no rank, nor has a metric
    that a run lacks; where nothing was measured, what models say has."""
    ranked = [c for c in cells if c["verdict"] in (VALID, Status.SUSPECT.value)] or [
        c for c in cells if only_modelled((run["status"], run["reasons"]) for run in c["runs"])
    ]
    winners = {}
    for name, metric in METRICS.items():
        sides = [_logs(name, cell) for cell in ranked]
        least = min((len(side) for side in sides), default=0)
        whole = all(len(side) == len(c["runs"]) for side, c in zip(sides, ranked, strict=True))
        if len(sides) < 2 or least < LEAST_SEEDS or not whole:
            continue
        family = one_family(
            {
                (i, j): _difference(ranked[i], sides[i], ranked[j], sides[j], turns)
                for i, j in combinations(range(len(ranked)), 2)
            }
        )
        for place, cell in enumerate(ranked):
            others = [other for other in range(len(ranked)) if other != place]
            if metric.better == HIGHER:
                shown = all(family.better(place, other) for other in others)
            else:
                shown = all(family.better(other, place) for other in others)
            if shown:
                winners[name] = cell["cell"]
    return winners


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
    real: bool,
    interrupted: str | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The sealed document of the cells in order. `digest` stands for all configurations, `real`
    says that any cell does real I/O."""
    turns = len(cells) if real and workers == 1 and repeat >= LEAST_TURNS else None
    runs = [run for cell in cells for run in cell["runs"]]
    done = all(run["status"] not in (PLANNED, INTERRUPTED) for run in runs)
    winners = best(cells, turns)
    rows = [
        {
            **cell,
            "best": [name for name, number in winners.items() if number == cell["cell"]],
            "against_first": against(cell, cells[0], turns),
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
        f"{run['directory']}/{RESULT_FILE}": run["sha256"]
        for run in runs
        if run["sha256"] is not None
    }
    return seal({SECTION: section}, files)


def recheck_sweep(
    document: Json, read: Callable[[str], Json], digests: Mapping[str, str]
) -> list[str]:
    """Return what in a sweep does not follow from its runs, and of these from the results that
    `read` gives by the names in `digests`: one sentence each. Never fails."""
    section = document[SECTION]
    deviations: list[str] = []
    try:
        cells = [
            cell_row(
                cell["cell"], cell["name"], cell["values"],
                [_run_again(run, read, digests, deviations) for run in cell["runs"]],
            )
            for cell in section["cells"]
        ]  # fmt: skip
        finished = [run for cell in cells for run in cell["runs"] if run["status"] == FINISHED]
        again = sweep_document(
            section["grid"], cells, source=section["grid_file"], paths=section["varied"],
            seed=section["seed"], repeat=section["repeat"], workers=section["workers"],
            digest=section["configurations_sha256"], interrupted=section["interrupted"],
            real=not only_modelled((run["status"], run["reasons"]) for run in finished),
            notes=section["notes"],
        )  # fmt: skip
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return [*deviations, f"these are no cells of one sweep: {printable(str(error))}"]
    return deviations + unlike_again(section, again[SECTION], "the runs")


def _run_again(
    run: Json, read: Callable[[str], Json], digests: Mapping[str, str], deviations: list[str]
) -> Json:
    name = f"{run['directory']}/{RESULT_FILE}"
    if run["sha256"] is None or name not in digests:
        return run
    document = read(name)
    deviations += [f"{name}: {sentence}" for sentence in recheck(document)]
    return run_row(
        run["trial"], document[SECTION]["seed"], run["directory"], exit_code=run["exit_code"],
        document=document, sha256=digests[name], message=run["message"],
    )  # fmt: skip


def sweep_csv(document: Json) -> bytes:
    """One row a cell: its values, how many runs finished, its verdict with the rules that it is of,
    how many runs became as sure as --until wants, and of each metric that any cell has mean,
    interval and ratio to the first cell."""
    section = document[SECTION]
    names = [n for n in METRICS if any(n in cell["metrics"] for cell in section["cells"])]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    heads = [
        f"{name} [{METRICS[name].unit}]{part}"
        for name in names
        for part in ("", " low", " high", " / first", " / first low", " / first high")
    ]
    heads = ["runs", "finished", "verdict", "rules", "changed thresholds", "as sure as wanted",
             *heads]  # fmt: skip
    out.writerow(["cell", *section["varied"], *heads])
    for cell in section["cells"]:
        values = [_plain(cell["values"][path]) for path in section["varied"]]
        columns = [value for name in names for value in _columns(cell, name)]
        rules = [rule_of(text) for run in cell["runs"] for text in run.get("reasons", [])]
        moved = [name for run in cell["runs"] for name in run.get("changed_thresholds", {})]
        verdict = [cell["verdict"], *(" ".join(dict.fromkeys(each)) for each in (rules, moved))]
        sure = [run["precision"]["reached"] for run in cell["runs"] if "precision" in run]
        counts = [len(cell["runs"]), cell["finished"]]
        reached = sum(sure) if sure else None
        out.writerow([cell["cell"], *values, *counts, *verdict, reached, *columns])
    return text.getvalue().encode()


def _columns(cell: Json, name: str) -> list[float | None]:
    return [
        *_with_ends(_exact(cell["metrics"].get(name, {})), "mean"),
        *_with_ends(cell["against_first"].get(name, {}), "ratio"),
    ]


def _exact(row: Json) -> Json:
    """Return a number, or nothing in the place of a lower bound, which a table cannot mark."""
    return {} if row.get("at_least") else row


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
