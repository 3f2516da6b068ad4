"""Numbers of variants out of a document that anybody may have written."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan

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
    """The names right below a path among the numbers of all variants, in order."""
    start, found = f"{prefix}.", []
    for variant in variants:
        every = value_at(variant, "numbers")
        for path in every if isinstance(every, Mapping) else ():
            if isinstance(path, str) and path.startswith(start):
                found.append(path[len(start) :].partition(".")[0])
    return list(dict.fromkeys(found))


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


def rates_of(run: Json, name: str) -> list[float]:
    """A column that counts since the instant before, as a rate a second; the first point has no
    time before it."""
    at, counts = seconds_of(run), column_at(run, f"series.columns.{name}")
    rates = [nan]
    for place in range(1, min(len(at), len(counts))):
        span = at[place] - at[place - 1]
        rates.append(counts[place] / span if span > 0 else nan)
    return rates[: len(at)]
