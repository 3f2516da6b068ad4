"""What several rules read of the evidence, and words that several use."""

from collections.abc import Sequence

from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import OBJECT_ENGINES, Evidence
from kv_cache.metrics.judging import Look, unknown

CACHED_ENGINES = frozenset({"buffered", "mmap"})
"""Engines whose bytes go through the page cache; those of all others are direct."""
DIRECTIONS = (("read", "read"), ("write", "written"))
SHORT_WINDOW_S = 1.0  # in which a rate is mostly what began before it
LEAST_TREND_S = 30.0  # in less, a cache that fills and users that think look like a trend


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def first_few(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def too_few(nbytes: float, past: str) -> Look:
    return unknown(
        f"only {human_bytes(nbytes)} were {past}, too few to tell from the program's own I/O"
    )


def moved(e: Evidence, operation: str | None, *, cached: bool) -> float:
    """Bytes that went through the page cache, or did not, by the engines' own word."""
    return sum(
        row.number("bytes") or 0
        for row in e.rows("engines.rows") or []
        if operation in (None, row.text("operation"))
        and (row.text("engine") in CACHED_ENGINES) is cached
    )


def on_objects(e: Evidence) -> bool:
    """Whether all that storage moved went to an object store, by the engines' own word."""
    rows = e.rows("engines.rows") or []
    return bool(rows) and all(row.text("engine") in OBJECT_ENGINES for row in rows)


def ever(e: Evidence, name: str) -> list[str] | None:
    """Return what the stack had as the run began, or at a look since; None if it is not known."""
    first, later = (e.words(f"{where}.{name}") for where in ("stack", "stack.later"))
    return None if first is None else [*first, *(later or ())]
