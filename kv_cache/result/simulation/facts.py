"""The document of `sim` as typed values, and the columns of a run on evenly spaced instants."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf
from statistics import fmean
from typing import Any

from msgspec import Struct, field

from kv_cache.config.scenario_hardware import HardwareUsed
from kv_cache.core.bounded import Count, Number
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.metrics.order import Lead
from kv_cache.result.published import TraceNotes
from kv_cache.result.simulation.measures import in_order


class SeedNumber(Struct, frozen=True, kw_only=True):
    """A number over the seeds of a variant."""

    values: list[Number | None]
    mean: Number | None
    interval: IntervalEnds | None


class RunFacts(Struct, frozen=True, kw_only=True):
    window_s: Number | None = None


class SimSeries(Struct, frozen=True, kw_only=True):
    """Columns over the instants of `at_ns`."""

    columns: dict[str, list[Number]]


class SimRun(Struct, frozen=True, kw_only=True):
    """One seed of a variant; the first one of each has the columns."""

    seed: int
    facts: RunFacts
    event_log: dict[str, Count] | None = None
    series: SimSeries | None = None
    instances: dict[str, list[Number | str]] | None = None

    def column(self, name: str) -> list[float]:
        """Return a column of the series; empty if there is none."""
        return [] if self.series is None else list(self.series.columns.get(name, ()))

    def seconds(self) -> list[float]:
        """Return the instants of the series."""
        return [ns / NS_PER_S for ns in self.column("at_ns")]


class SameVariant(Struct, frozen=True, kw_only=True):
    """One that differs only in options that nothing reads, and was not run."""

    name: str
    values: dict[str, Any]


class SimVariant(Struct, frozen=True, kw_only=True):
    """One setting of the options that vary; its `numbers` are named by their paths."""

    variant: Count
    name: str
    values: dict[str, Any]
    same: list[SameVariant] = field(default_factory=list)
    numbers: dict[str, SeedNumber]
    runs: list[SimRun]

    def mean(self, path: str) -> float | None:
        row = self.numbers.get(path)
        return None if row is None else row.mean


class MeasureVerdict(Struct, frozen=True, kw_only=True):
    """`first` has the best mean, `leads` by how much it is better than each other."""

    message: str
    first: Count | None = None
    leads: dict[str, Lead | None] | None = None


class SimVerdict(Struct, frozen=True, kw_only=True):
    """Which variant is best, or why none can be called best."""

    by: str
    best: int | None
    message: str
    no_order: str | None
    measures: dict[str, MeasureVerdict]


class SimFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a simulation."""

    name: str
    question: str
    scenario_file: str
    preset: str | None
    argv: list[str]
    interrupted: str | None
    runs: Count
    finished: Count
    seeds: list[int]
    varied: list[str]
    traces: list[TraceNotes]
    hardware: list[HardwareUsed] = []
    left_out: list[str]
    verdict: SimVerdict
    warnings: list[str]
    not_modelled: list[str]
    config: dict[str, Any]
    variants: list[SimVariant]

    def ended(self) -> list[SimVariant]:
        """Return the variants of which a run ended."""
        return [variant for variant in self.variants if variant.runs]


def names_below(variants: Sequence[SimVariant], prefix: str) -> list[str]:
    """Return the names right below a path among the numbers of all variants, each once."""
    start = f"{prefix}."
    return in_order(
        [
            path[len(start) :].partition(".")[0]
            for variant in variants
            for path in variant.numbers
            if path.startswith(start)
        ]
    )


# --- columns on a grid -----------------------------------------------------------------------


def grid_of(runs: Sequence[SimRun], most: int) -> list[float]:
    """Return at most `most` instants, evenly apart, from 0 to the end of the longest series; empty
    if no series has two points."""
    every = [run.seconds() for run in runs]
    end = max((at[-1] for at in every if len(at) > 1), default=0.0)
    points = min(most, max(map(len, every), default=0))
    return [end * place / (points - 1) for place in range(points)] if end > 0 else []


def peaks_on(run: SimRun, name: str, grid: Sequence[float]) -> list[float | None]:
    """Return the largest value of a column from each instant before the next one."""
    return _levels_on(run, name, grid, max)


def means_on(run: SimRun, name: str, grid: Sequence[float]) -> list[float | None]:
    """Return the mean of a column from each instant before the next one."""
    return _levels_on(run, name, grid, fmean)


def _levels_on(
    run: SimRun, name: str, grid: Sequence[float], of: Callable[[Sequence[float]], float]
) -> list[float | None]:
    """The last value goes on until the next; None behind the end of the run."""
    at, values = run.seconds(), run.column(name)
    at = at[: len(values)]
    levels: list[float | None] = []
    for instant, after in pairwise([*grid, inf]):
        first, behind = bisect_right(at, instant) - 1, bisect_left(at, after)
        if first < 0 or instant > at[-1]:
            levels.append(None)
        else:
            levels.append(of(values[first : max(behind, first + 1)]))
    return levels


def rates_on(run: SimRun, name: str, grid: Sequence[float]) -> list[float | None]:
    """Return a column of counts as a rate a second since the instant before."""
    at, counts = run.seconds(), run.column(name)
    sums = [0.0, *accumulate(counts[: len(at)])]
    rates: list[float | None] = [None]
    for before, instant in pairwise(grid):
        if not at or before >= at[-1]:
            rates.append(None)
            continue
        first, last = bisect_right(at, before), bisect_right(at, instant)
        rates.append((sums[min(last, len(sums) - 1)] - sums[first]) / (instant - before))
    return rates if grid else []
