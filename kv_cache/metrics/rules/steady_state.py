"""V14: whether the device had come to a steady state and stayed there."""

from collections.abc import Iterator, Mapping, Sequence

from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, nothing, suspect, unknown, well
from kv_cache.metrics.rules.gaps import stood_still
from kv_cache.metrics.rules.readings import LEAST_TREND_S, on_objects, percent
from kv_cache.metrics.steady import (
    LEAST_WINDOWS,
    ROUNDS,
    AllRounds,
    Steadiness,
    backlog_grows,
    bandwidth_drifts,
    fill_discarded,
    shortfalls,
    steady_state,
)

_FILL_ROUNDING = 0.001  # files are whole pages


def proven_steady(e: Evidence, t: Thresholds) -> Iterator[Look]:
    yield from _drifts(e, t)
    if on_objects(e):
        yield nothing("object storage: there is no drive of which a fill could take the freshness")
    elif e.flag("steady.preconditioned") or e.flag("preconditioned"):
        yield _rounds(e, t)
    else:
        yield unknown(
            "the device was not preconditioned and no steady state was looked for: a fresh drive "
            "may be faster than it stays; use --precondition before you compare drives"
        )


def _drifts(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """Trends of the measured window, where it is long enough to have any."""
    trends = "steady.stationarity"
    seconds, windows = e.numbers(trends, "seconds", "windows")
    if seconds is None or seconds < LEAST_TREND_S:
        return
    if windows is not None and windows < LEAST_WINDOWS:
        yield suspect(
            f"the {seconds:.0f} s that were measured have {windows:.0f} windows, and in fewer than "
            f"{LEAST_WINDOWS} neither a trend of the bandwidth nor a growing backlog shows; lower "
            "monitor.tick_s"
        )
    trend, trend_t, growth, growth_t = e.numbers(
        trends, "bandwidth_trend", "bandwidth_t", "backlog_growth_share", "backlog_t"
    )
    if bandwidth_drifts(trend, trend_t, t.most_bandwidth_trend):
        way = {True: "fell", False: "rose", None: "changed"}[e.flag(f"{trends}.bandwidth_falls")]
        step_s = e.number(f"{trends}.bandwidth_step_s")
        when = "steadily" if step_s is None else f"after about {step_s:.0f} s"
        yield suspect(
            f"the bandwidth of storage {way} by {percent(trend or 0)} of its mean, {when}, in the "
            f"{seconds:.0f} s that were measured (at most {percent(t.most_bandwidth_trend)} is "
            f"wanted), so its mean depends on when it was taken; {_way_to_level(e, t)}"
        )
    if backlog_grows(growth, growth_t, t.most_backlog_growth):
        yield suspect(
            f"the backlog grew by {percent(growth or 0)} of the requests that came while measured "
            f"(at most {percent(t.most_backlog_growth)} is wanted), so latencies depend on how "
            "long it is measured; lower the rate, or ask with fewer users"
        )


def _way_to_level(e: Evidence, t: Thresholds) -> str:
    if stood_still(e, t):
        return "storage stood still meanwhile, so see V29 first"
    return "use --precondition and a longer --warmup"


def _rounds(e: Evidence, t: Thresholds) -> Look:
    """What the rounds before the measurement show, whatever is printed beside them."""
    values = _values(e, "steady.proof.values")
    rounds = e.number("steady.rounds")
    if not rounds and not values:
        return unknown("the device was preconditioned, but nothing proves a steady state")
    count = f"{rounds or len(values):.0f} rounds"
    bandwidth = _judged_again(values, t)
    if bandwidth is None:
        return suspect(
            f"not steady: {count} are too few, as the rule looks at the last {ROUNDS}; raise "
            "--max-rounds"
        )
    unsteady = [
        f"{name} {_spread(each, t)}"
        for name, each in {"the bandwidth": bandwidth, **_latencies(e, t)}.items()
        if not each.steady
    ]
    if unsteady:
        return suspect(
            f"not steady after {count}: {'; '.join(unsteady)}; raise --max-rounds or --round, or "
            "keep others off the device"
        )
    short = list(shortfalls(_series(e), e.number("steady.capacity_bytes"), t.rounds))
    if short:
        return suspect(
            f"not steady after {count}: the last {ROUNDS} keep the rule, but {'; '.join(short)}"
        )
    lacking = next(_lacking(e, t), None)
    fact = f"after {count} the bandwidth of the last {ROUNDS} {_spread(bandwidth, t)}"
    if lacking is not None:
        return unknown(f"{fact}, but {lacking}")
    filled = human_bytes(e.number("steady.filled_bytes") or 0)
    return well(f"{fact}, a fill of {filled} came before, and it stayed level while measured")


def _latencies(e: Evidence, t: Thresholds) -> Mapping[str, Steadiness]:
    """In an open loop bandwidth is what is asked for; there latencies are judged as well."""
    if e.number("client.schedule_lag_p99_ms") is None:
        return {}
    words = {"read_p95_ms": "p95 of reads", "write_p95_ms": "p95 of writes"}
    judged = {
        word: _judged_again(_values(e, f"steady.proof.latencies.{name}.values"), t)
        for name, word in words.items()
    }
    return {word: each for word, each in judged.items() if each is not None}


def _lacking(e: Evidence, t: Thresholds) -> Iterator[str]:
    """Why rounds that are steady prove no steady state."""
    filled, capacity = e.numbers("steady", "filled_bytes", "capacity_bytes")
    if filled is None or not capacity:
        yield (
            "how much the fill wrote is not known, and a fresh drive is steady too as long as it "
            "is fresh; run again with --precondition"
        )
    elif filled < t.least_fill_times * capacity * (1 - _FILL_ROUNDING):
        yield (
            f"the fill wrote only {filled / capacity:.2f} times the capacity under test "
            f"({t.least_fill_times:g} times is wanted), and a fresh drive is steady too as long as "
            "it is fresh; leave out --precondition-size-gb"
        )
    if e.flag("steady.discard"):
        yield (
            "the file system hands deleted blocks back to the drive, so the fill did not last "
            "(mount option discard); mount it without"
        )
    yield from fill_discarded(e.number("steady.discarded_bytes"), capacity, t.counter_tolerance)
    yield from e.words("steady.proof.unjudged") or ()
    seconds = e.number("steady.stationarity.seconds") or 0
    if seconds < LEAST_TREND_S or e.number("steady.stationarity.bandwidth_trend") is None:
        yield (
            f"what was measured is too little to tell whether it stayed so; measure for at least "
            f"{LEAST_TREND_S:.0f} s"
        )


def _series(e: Evidence) -> AllRounds:
    """Return all rounds; of a result of an older version nothing is known of them."""
    shortest_s, moved_bytes = e.numbers("steady.series", "shortest_s", "moved_bytes")
    values = tuple(_values(e, "steady.series.values", None))
    return AllRounds(values=values, shortest_s=shortest_s, moved_bytes=moved_bytes)


def _values(e: Evidence, path: str, most: int | None = ROUNDS) -> list[float]:
    """Return the last values; empty where one of them is no number."""
    listed = e.at(path)
    if not isinstance(listed, list | tuple):
        return []
    numbers = [Evidence({"value": value}).number("value") for value in listed[-(most or 0) :]]
    return [] if None in numbers else [value for value in numbers if value is not None]


def _judged_again(values: Sequence[float], t: Thresholds) -> Steadiness | None:
    return steady_state(values, most_range=t.most_round_range, most_change=t.most_round_change)


def _spread(shown: Steadiness, t: Thresholds) -> str:
    if shown.range_share is None or shown.slope_share is None:
        return "has no average that is above 0"
    return (
        f"ranges over {100 * shown.range_share:.2f} % of its average (at most "
        f"{percent(t.most_round_range)} is wanted) and its best-fit line changes by "
        f"{100 * shown.slope_share:.2f} % of it (at most {percent(t.most_round_change)})"
    )
