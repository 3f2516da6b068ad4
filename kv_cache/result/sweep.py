"""The document of a sweep as typed values; `app/sweep_document` makes it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from kv_cache.core.bounded import Count, Number
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.result import kinds
from kv_cache.result.trials import RunPrecision
from kv_cache.result.verdicts import rule_of

SCHEMA = kinds.SWEEP
FINISHED, PLANNED, FAILED, INTERRUPTED = "finished", "planned", "failed", "interrupted"


def only_modelled(runs: Iterable[tuple[str, Sequence[str]]]) -> bool:
    """Return whether runs, by status and reasons, finished and are invalid as runs in virtual time
    are, and for nothing else."""
    return all(
        status == FINISHED and {rule_of(reason) for reason in reasons} == {"V26"}
        for status, reasons in runs
    )


class CellNumbers(Struct, frozen=True, kw_only=True):
    """One metric of a cell, in its stored unit; the interval holds the mean with 95 %."""

    mean: Number
    interval: IntervalEnds | None
    at_least: bool = False


class SweepRun(Struct, frozen=True, kw_only=True):
    """One run of a cell."""

    trial: Count
    directory: str
    status: str
    exit_code: int | None
    message: str | None
    reasons: list[str] = []
    changed_thresholds: dict[str, tuple[float | bool, float | bool]] = {}
    precision: RunPrecision | None = None
    place: str | None = None


class SweepCell(Struct, frozen=True, kw_only=True):
    """One combination of the varied options; `best` are the metrics by which it is better than
    every other cell."""

    cell: Count
    values: dict[str, Any]
    verdict: str
    metrics: Mapping[str, CellNumbers]
    best: list[str]
    runs: list[SweepRun]


class SweepFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a sweep."""

    program_version: str
    grid_file: str
    configurations_sha256: str
    varied: list[str]
    seed: int
    repeat: Count
    status: Literal["finished", "interrupted"]
    interrupted: str | None
    runs: Count
    finished: Count
    failed: Count
    notes: list[str]
    cells: list[SweepCell]
