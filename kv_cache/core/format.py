"""Numbers as people read them; files hold the numbers themselves (decision 0030)."""

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


def gib_per_s(bytes_per_s: float) -> str:
    """A rate of bytes in GiB/s, the unit of every rate that was measured."""
    return f"{figures(bytes_per_s / GIB)} GiB/s"
