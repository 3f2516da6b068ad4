"""Numbers as people read them; files hold the numbers themselves (decision 0030)."""

from collections.abc import Mapping
from math import isfinite

from kv_cache.core.units import GIB, MISSING

_LARGEST = 1e12  # where an interval of two trials may end


def figures(value: float | None) -> str:
    """Four significant figures, and all digits of a whole part: 0.01234, 1.2, 12.35, 1,235. What is
    not a number is MISSING."""
    if value is None or not isfinite(value):
        return MISSING
    if abs(value) >= _LARGEST:
        return f"{value:.4g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{float(f'{value:.4g}'):.6f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def with_half(mean: str, half: float) -> str:
    """Return a mean with half of its interval, of which two figures are told: 12.3±0.4."""
    return f"{mean}±{figures(float(f'{half:.2g}'))}"


def gib_per_s(bytes_per_s: float) -> str:
    """Return a rate of bytes in GiB/s, the unit of every rate that was measured."""
    return f"{figures(bytes_per_s / GIB)} GiB/s"


def duration_text(seconds: float) -> str:
    """Return a time in the unit that fits it."""
    if seconds <= 90:
        return f"{seconds:.0f} s"
    return (
        f"{seconds / 60:.0f} min" if seconds <= 5400 else f"{figures(round(seconds / 3600, 1))} h"
    )


def as_text(value: object) -> str:
    """Return a value of JSON as people write it."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ", ".join(as_text(each) for each in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {as_text(each)}" for key, each in value.items()) or "none"
    return str(value)
