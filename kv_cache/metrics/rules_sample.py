"""The rule on how much was measured: next to no data is no result."""

from collections.abc import Iterator, Mapping

from kv_cache.core.kinds import RunMode
from kv_cache.metrics.evidence import (
    Evidence,
    Look,
    Thresholds,
    invalid,
    nothing,
    suspect,
    well,
)

_MEASURED: Mapping[str, tuple[str, ...]] = {
    RunMode.STANDARD: ("read", "write"),
    RunMode.PREFILL_ONLY: ("write",),
    RunMode.DECODE_ONLY: ("read",),
}
"""What each mode asks of storage."""

NO_MEASUREMENT = (
    "this run is declared to be no measurement (passport.measurement: false), and how much was "
    "measured is not judged"
)


def least_sample(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """V30: operations of storage that ended in the window. Ranks of one job share the sample."""
    if not t.measurement:
        yield nothing(NO_MEASUREMENT)
        return
    ranks = max(1.0, e.number("sample.ranks") or 1.0)
    sides = _MEASURED.get(e.text("sample.mode") or "", _MEASURED[RunMode.STANDARD])
    way = "raise --duration"
    if len(sides) > 1:
        way += " (--prefill-only measures writes alone, --decode-only reads alone)"
    for kind in sides:
        ended = e.number(f"sample.{kind}_operations")
        if ended is None:
            yield suspect(f"how many storage {kind}s ended in the window is not known; run again")
        else:
            yield _judged(kind, ended, ranks, way, t)


def _judged(kind: str, ended: float, ranks: float, way: str, t: Thresholds) -> Look:
    said = f"{ended:.0f} storage {kind}{'' if ended == 1 else 's'} ended in the window"
    of = "" if ranks == 1 else f" of all {ranks:.0f} ranks together"
    if ended * ranks < t.least_operations:
        return invalid(
            f"only {said}, where at least {t.least_operations:g}{of} are wanted: next to nothing "
            f"was measured; {way}"
        )
    if ended * ranks < t.enough_operations:
        return suspect(
            f"only {said}, under {t.enough_operations:g}{of}: too few for a p95, and a rate may be "
            f"chance; {way}"
        )
    return well(said)
