"""Numbers of variants out of a document that anybody may have written."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import isfinite, nan

from kv_cache.report.cluster.measures import in_order
from kv_cache.report.pictures.base import (
    LARGEST,
    BadDocumentError,
    Json,
    number,
    plain,
    rows_at,
    value_at,
)


def variants_of(own: Json) -> list[Json]:
    """Those with a run that ended. Raises BadDocumentError."""
    return [variant for variant in rows_at(own, "variants") if rows_at(variant, "runs")]


def row_at(variant: Json, path: str) -> Json:
    """A number of the variant over its seeds; its paths have dots, so they are no paths here."""
    every = value_at(variant, "numbers")
    row = every.get(path) if isinstance(every, Mapping) else None
    return row if isinstance(row, Mapping) else {}


def mean_at(variant: Json, path: str) -> float:
    """NaN where there is none. Raises BadDocumentError."""
    return number(row_at(variant, path), "mean")


def ends_at(variant: Json, path: str) -> tuple[float, float]:
    """The interval; its mean twice where there is none. Raises BadDocumentError."""
    row = row_at(variant, path)
    low, high = (number(row, f"interval.{end}") for end in ("low", "high"))
    if isfinite(low) and isfinite(high):
        return low, high
    mean = number(row, "mean")
    return mean, mean


def names_at(variants: Sequence[Json], prefix: str) -> list[str]:
    """The names right below a path among the numbers of all variants, each once."""
    start, found = f"{prefix}.", []
    for variant in variants:
        every = value_at(variant, "numbers")
        for path in every if isinstance(every, Mapping) else ():
            if isinstance(path, str) and path.startswith(start):
                found.append(path[len(start) :].partition(".")[0])
    return in_order(found)


def label_at(variant: Json, longest: int) -> str:
    """Its number and its name, as far as there is room."""
    name = value_at(variant, "name")
    said = plain(name) if isinstance(name, str) else ""
    text = f"{number(variant, 'variant'):.0f} {said}".strip()
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def column_at(row: Json, path: str) -> list[float]:
    """A column of numbers; empty where there is none. Raises BadDocumentError."""
    values = value_at(row, path)
    if values is None:
        return []
    if not isinstance(values, list) or not all(map(_is_number, values)):
        raise BadDocumentError(f"{path} is no list of numbers")
    return [float(value) for value in values]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def texts_in(row: Json, path: str) -> list[str]:
    """A column of texts. Raises BadDocumentError."""
    values = value_at(row, path)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadDocumentError(f"{path} is no list of texts")
    return [plain(value) for value in values]


def first_run(variant: Json) -> Json:
    """That with the columns. Raises BadDocumentError."""
    runs = rows_at(variant, "runs")
    return runs[0] if runs else {}


def seconds_of(run: Json) -> list[float]:
    """The instants of the series of a run."""
    return [ns / 1e9 for ns in column_at(run, "series.columns.at_ns")]


def grid_of(runs: Sequence[Json], most: int) -> list[float]:
    """At most `most` instants, evenly apart, from 0 to the end of the longest series; empty where
    no series has two points."""
    every = [seconds_of(run) for run in runs]
    end = max((at[-1] for at in every if len(at) > 1), default=0.0)
    points = min(most, max(map(len, every), default=0))
    return [end * place / (points - 1) for place in range(points)] if end > 0 else []


def levels_on(run: Json, name: str, grid: Sequence[float]) -> list[float]:
    """A column as it was last told at each instant; NaN behind the end of the run."""
    at, values = seconds_of(run), column_at(run, f"series.columns.{name}")
    at = at[: len(values)]
    found = []
    for instant in grid:
        place = bisect_right(at, instant) - 1
        found.append(nan if place < 0 or instant > at[-1] else values[place])
    return found


def rates_on(run: Json, name: str, grid: Sequence[float]) -> list[float]:
    """A column that counts since the point before, as a rate a second since the instant before."""
    at, counts = seconds_of(run), column_at(run, f"series.columns.{name}")
    sums = [0.0, *accumulate(counts[: len(at)])]
    found = [nan]
    for before, instant in pairwise(grid):
        if before >= at[-1]:
            found.append(nan)
            continue
        first, last = bisect_right(at, before), bisect_right(at, instant)
        found.append((sums[min(last, len(sums) - 1)] - sums[first]) / (instant - before))
    return found if grid else []
