"""V29: whether storage stood still for too much of the window (`metrics/gaps` finds the gaps)."""

from collections.abc import Iterator, Sequence

from kv_cache.core.units import ns_to_s
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.gaps import LEAST_NS
from kv_cache.metrics.judging import Look, Status, nothing, suspect, unknown, well

_CALLS = {True: 2.0, False: 20.0}
"""How many times as long as a system call a gap is at least, with a counter of the device and
without. Where a device serves steadily, a call ends at least once in a call's time: after twice
that, and no byte moved, one is missing. Where calls alone tell, it may be the next one's size."""


def gaps(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """V29: storage stood still for too much of the window."""
    rows, window_s = e.rows("gaps.found"), e.number("completeness.window_s")
    if rows is None:
        yield unknown("whether storage stood still was not looked at")
        return
    if not window_s:
        yield nothing("nothing was measured")
        return
    judged = _judged(e, rows)
    total_s, limit_s = sum(seconds for _, seconds in judged), t.most_gap_share * window_s
    seen = "and the device moved nothing" if e.flag("gaps.counted") else (
        "as far as system calls tell: no counter of the device can be read"
    )  # fmt: skip
    share = f"{100 * t.most_gap_share:g} % of {window_s:.0f} s"
    if total_s <= limit_s:
        yield well(f"storage stood still for {total_s:.1f} s, at most {share} are wanted; {seen}")
        return
    places = ", ".join(f"{seconds:.1f} s from {at_s:.1f} s on" for at_s, seconds in judged[:3])
    more = f" and {len(judged) - 3} more" if len(judged) > 3 else ""
    yield suspect(
        f"storage stood still for {total_s:.1f} s ({100 * total_s / window_s:.1f} % of the window, "
        f"at most {share} are wanted): {places}{more}; no system call ended while some were in "
        f"flight, {seen}. The device stalls: look at the kernel's log, its temperature and its "
        "firmware, and at what it shares a link, a limit or a server with"
    )


def _judged(e: Evidence, rows: Sequence[Evidence]) -> list[tuple[float, float]]:
    """(instant, length) of the gaps that count, the longest first: on a slow device calls end so
    far apart."""
    times = _CALLS[e.flag("gaps.counted") is True]
    calls = [e.number(f"gaps.{kind}_call_ms") or 0.0 for kind in ("read", "write")]
    least_s = max(ns_to_s(LEAST_NS), times * max(calls) / 1e3)
    spans = [(row.number("at_s"), row.number("seconds")) for row in rows]
    return sorted(
        ((at or 0.0, length) for at, length in spans if length is not None and length >= least_s),
        key=lambda gap: -gap[1],
    )


def stood_still(e: Evidence, t: Thresholds) -> bool:
    """Whether V29 names gaps, so that other rules don't give advice for another illness."""
    return any(look.status is Status.SUSPECT for look in gaps(e, t))
