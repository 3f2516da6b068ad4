"""The result of `kv-cache.py sim`, schema kv-cache-sim/2: each variant with its runs, the numbers
over their seeds, and the verdict.

A run is one variant with one seed. Run k of every variant has the same seed. The columns of
instances and of the series are in the first run of each variant; `--per-instance` and `--series`
write those of all.
"""

import platform
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
import orjson
from msgspec import to_builtins

from kv_cache import __version__
from kv_cache.config.scenario_hardware import HardwareUsed
from kv_cache.metrics.intervals import CONFIDENCE, interval_beside_mean
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.metrics import Json, ends
from kv_cache.result.run import SECTION
from kv_cache.result.simulation.judge import verdict, warnings
from kv_cache.result.simulation.limits import NOT_MODELLED
from kv_cache.result.simulation.measures import numbers

SCHEMA = kinds.SIM
MARK = f'{{\n  "{SECTION}": {{\n    "schema": "kv-cache-sim/'
"""How the document of every simulation begins."""

FINISHED, INTERRUPTED = "finished", "interrupted"


def run_row(
    run: int,
    seed: int,
    facts: Json,
    *,
    log: Json | None = None,
    stretches: Json | None = None,
    columns: Json | None = None,
) -> dict[str, Any]:
    """Return one run that ended. `log`: how many events of each kind went to the event log;
    `stretches`: some numbers of each stretch of its requests; `columns`: its `series` and
    `instances`."""
    return {
        "run": run,
        "seed": seed,
        "facts": dict(facts),
        "stretches": dict(stretches or {}),
        "event_log": None if log is None else dict(sorted(log.items())),
        "series": None if columns is None else dict(columns["series"]),
        "instances": None if columns is None else dict(columns["instances"]),
    }


def variant_row(
    number: int,
    name: str,
    values: Json,
    scenario: Json,
    runs: Sequence[Json],
    *,
    same: Sequence[Json] = (),
) -> dict[str, Any]:
    """Return a variant with the numbers that its runs have in common. `name` is short and for
    people, `scenario` the effective one; `same` are variants that differ from it only in options
    that nothing reads, and were not run."""
    return {
        "variant": number,
        "name": name,
        "values": dict(values),
        "same": [dict(each) for each in same],
        "numbers": dict(_numbers([numbers(run["facts"]) for run in runs])),
        "runs": list(runs),
        "scenario": dict(scenario),
    }


_SHARES = ("ratio", "share", "utilisation", "compulsory_of_missed")
"""In the paths of numbers that are at most 1."""


def _numbers(runs: Sequence[Mapping[str, float | None]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for every number the value of each run, their mean and its interval. A counter that a
    run does not have was never touched there, and is 0; a number that one run does not know has no
    interval."""
    for path in dict.fromkeys(path for run in runs for path in run):
        values = [run.get(path, 0) for run in runs]
        known = [value for value in values if value is not None]
        most = 1.0 if any(word in path for word in _SHARES) else inf
        whole = len(known) == len(values)
        interval = interval_beside_mean(known, CONFIDENCE, most) if whole else None
        yield (
            path,
            {
                "values": values,
                "mean": fmean(known) if known else None,
                "interval": ends(interval),
            },
        )


def sim_document(
    *,
    source: str,
    argv: Sequence[str],
    scenario: Json,
    varied: Sequence[str],
    seeds: Sequence[int],
    planned: int,
    variants: Sequence[Json],
    traces: Sequence[Json],
    doubts: Sequence[str],
    hardware: Sequence[HardwareUsed],
    left_out: Sequence[str],
    interrupted: str | None,
    preset: str | None,
    engine: str,
) -> dict[str, Any]:
    """Build the sealed document. `scenario` is what all variants begin with, `planned` how many
    runs were wanted, `traces` what was read and asked of each, `doubts` warnings about them,
    `hardware` the described parts that stand in place of the scenario's own numbers, `left_out`
    options of the file that do not go with the source that was set, `interrupted` the signal that
    ended it before, `engine` the name of what computed them."""
    finished = sum(len(variant["runs"]) for variant in variants)
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "versions": {
            "python": platform.python_version(), "numpy": np.__version__,
            "orjson": orjson.__version__,
        },
        "driver": "virtual-time",
        "engine": engine,
        "contains_performance": False,
        "name": scenario["name"],
        "question": scenario["question"],
        "scenario_file": source,
        "preset": preset,
        "argv": list(argv),
        "status": FINISHED if finished == planned else INTERRUPTED,
        "interrupted": interrupted,
        "runs": planned,
        "finished": finished,
        "seed": seeds[0],
        "seeds": list(seeds),
        "confidence": CONFIDENCE,
        "varied": list(varied),
        "traces": [dict(trace) for trace in traces],
        "hardware": to_builtins(list(hardware)),
        "left_out": list(left_out),
        "verdict": verdict(variants, varied),
        "warnings": [*doubts, *warnings(variants)],
        "not_modelled": list(NOT_MODELLED),
        "config": dict(scenario),
        "variants": list(variants),
    }  # fmt: skip
    return seal({SECTION: section}, {})
