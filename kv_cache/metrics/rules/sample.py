"""V30: how much was measured. Next to no data is no result."""

from collections.abc import Iterator, Mapping

from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, nothing, suspect, well
from kv_cache.metrics.pace import KINDS, MEASURED

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
    sides = MEASURED.get(e.text("sample.mode") or "", KINDS)
    counts = {kind: e.number(f"sample.{kind}_operations") for kind in sides}
    for kind in (kind for kind, ended in counts.items() if ended is None):
        yield suspect(f"how many storage {kind}s ended in the window is not known; run again")
    yield from _judged({k: n for k, n in counts.items() if n is not None}, ranks, t)


def _judged(ended: Mapping[str, float], ranks: float, t: Thresholds) -> Iterator[Look]:
    of = "" if ranks == 1 else f" of all {ranks:.0f} ranks together"
    way = "raise --duration"
    if len(ended) > 1:
        way += ", or measure one side alone with --prefill-only or --decode-only"
    few, some = (
        {kind: n for kind, n in ended.items() if n * ranks < limit}
        for limit in (t.least_operations, t.enough_operations)
    )
    if few:
        yield invalid(
            f"only {_operations(few)} ended in the window, where at least "
            f"{t.least_operations:g}{of} are wanted: next to nothing was measured; {way}"
        )
    elif some:
        yield suspect(
            f"only {_operations(some)} ended in the window, under {t.enough_operations:g}{of}: "
            f"too few for a p95, and a rate may be chance; {way}"
        )
    elif ended:
        yield well(f"{_operations(ended)} ended in the window")


def _operations(counts: Mapping[str, float]) -> str:
    return " and ".join(
        f"{count:.0f} storage {kind}{'' if count == 1 else 's'}" for kind, count in counts.items()
    )
