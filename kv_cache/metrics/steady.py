"""Whether a device is in a steady state, and whether a measured run kept level.

Rounds before the measurement are judged by the rule of the SNIA Solid State Storage Performance
Test Specification: over the last five, the range is at most 20 % of the average and the best-fit
line changes by at most 10 % of it. A fresh drive is steady by that rule too, as long as it is
fresh. So the rule proves nothing by itself: rule V14 takes it only after a fill of `FILL_TIMES`
the capacity under test. A drive that becomes slower without end keeps it too, if only the rounds
are short: SNIA's last a minute, and all rounds together have to move the capacity under test.
Five rounds that keep it may lie on the slope of a longer series, so the whole series is looked at.

What is judged is the bandwidth of storage. p95 latencies of reads and writes are shown beside it;
in an open loop they are judged too, because bandwidth is then what the load asks for, however fast
the device is.

The measured window has no rounds: it is cut into ten segments, which are asked for a trend of
bandwidth and of the backlog.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import fsum, inf, isfinite, sqrt
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from kv_cache.core.units import MIB, human_bytes
from kv_cache.metrics.window import Window

ROUNDS = 5
MOST_RANGE = 0.2
MOST_CHANGE = 0.1
FILL_TIMES = 2
LEAST_ROUND_S = 60.0
"""SNIA SSS PTS: the window, its two limits, the workload-independent preconditioning, a round."""

LEAST_TURNOVER = 1.0
"""Bytes that all rounds move, over the capacity under test."""

_ROUNDING = 1e-9  # 1.1 - 0.9 is more than 0.2
_ABOUT_AS_WELL = 1.5  # squares of what a line misses, over those of the mean
_CUT_SHARE = 0.02  # of its length, that a round may be cut too early


# --- rounds ----------------------------------------------------------------------------------


class Steadiness(Struct, frozen=True, kw_only=True):
    """The last five values. The shares are of the average; None where that is 0 or no number.
    `slope_share` is what the least-squares line changes by from the first value to the last."""

    values: tuple[float, ...]
    average: float | None
    range_share: float | None
    slope_share: float | None
    steady: bool

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "values": [value if isfinite(value) else None for value in self.values],
        }


def steady_state(
    values: Sequence[float], *, most_range: float = MOST_RANGE, most_change: float = MOST_CHANGE
) -> Steadiness | None:
    """Return the rule on the last five of `values`, in the order of the rounds; None of fewer."""
    if len(values) < ROUNDS:
        return None
    window = tuple(float(value) for value in values[-ROUNDS:])
    average = sum(value / ROUNDS for value in window)
    if not (isfinite(average) and average > 0 and min(window) >= 0):
        return Steadiness(
            values=window, average=None, range_share=None, slope_share=None, steady=False
        )
    shares = [value / average for value in window]
    spread, change = (
        max(shares) - min(shares),
        abs(_line(range(ROUNDS), shares).slope) * (ROUNDS - 1),
    )
    return Steadiness(
        values=window,
        average=average,
        range_share=spread,
        slope_share=change,
        steady=spread <= most_range + _ROUNDING and change <= most_change + _ROUNDING,
    )


class Round(Struct, frozen=True, kw_only=True):
    """What one round of the workload did on storage; a p95 is None where nothing ended."""

    seconds: float
    read_bytes: int
    write_bytes: int
    read_p95_ms: float | None
    write_p95_ms: float | None
    completed: int

    @property
    def bytes_per_second(self) -> float:
        moved = self.read_bytes + self.write_bytes
        return moved / self.seconds if self.seconds > 0 else 0.0

    def row(self, number: int) -> dict[str, Any]:
        """Return a round as a result lists it; rounds are counted from 1."""
        return {
            "round": number,
            "seconds": self.seconds,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "bytes_per_second": self.bytes_per_second,
            "read_p95_ms": self.read_p95_ms,
            "write_p95_ms": self.write_p95_ms,
            "completed": self.completed,
        }


BANDWIDTH = "bytes_per_second"
LATENCIES = ("read_p95_ms", "write_p95_ms")
"""The variables that rounds are looked at for."""
_BYTES = dict(zip(LATENCIES, ("read_bytes", "write_bytes"), strict=True))


class RoundLimits(Struct, frozen=True, kw_only=True):
    """What the rounds are held to."""

    most_range: float = MOST_RANGE
    most_change: float = MOST_CHANGE
    least_s: float = LEAST_ROUND_S
    least_turnover: float = LEAST_TURNOVER


class AllRounds(Struct, frozen=True, kw_only=True):
    """All rounds together: their bandwidths, the shortest of the last five, and all bytes; None is
    not known."""

    values: tuple[float, ...]
    shortest_s: float | None
    moved_bytes: float | None


def all_rounds(rounds: Sequence[Round]) -> AllRounds:
    return AllRounds(
        values=tuple(each.bytes_per_second for each in rounds),
        shortest_s=min((each.seconds for each in rounds[-ROUNDS:]), default=None),
        moved_bytes=sum(each.read_bytes + each.write_bytes for each in rounds),
    )


def shortfalls(
    rounds: AllRounds, capacity_bytes: float | None, limits: RoundLimits
) -> Iterator[str]:
    """Yield why rounds whose last five keep the rule prove no steady state, with a way out."""
    change, count = _lasting_change(rounds.values)
    if change > limits.most_change + _ROUNDING:
        yield (
            f"the last {ROUNDS} lie on the best-fit line of the last {count}, which changes by "
            f"{100 * change:.1f} % of its mean (at most {100 * limits.most_change:.1f} % is "
            "wanted): the change goes on; raise --max-rounds"
        )
    if rounds.shortest_s is not None and rounds.shortest_s < limits.least_s * (1 - _CUT_SHARE):
        yield (
            f"a round of {rounds.shortest_s:.3g} s is too short to show a slow change (SNIA's have "
            f"{limits.least_s:g} s); use --round {limits.least_s:g}"
        )
    wanted = limits.least_turnover * (capacity_bytes or 0)
    if rounds.moved_bytes is not None and rounds.moved_bytes < wanted:
        yield (
            f"all rounds moved {human_bytes(round(rounds.moved_bytes))}, which is less than "
            f"{limits.least_turnover:g} times the capacity under test; raise --max-rounds or "
            "--round"
        )


def _lasting_change(values: Sequence[float]) -> tuple[float, int]:
    """Return the largest change, as a share of the mean, by the best-fit line of more than the last
    five values, of those lines that fit the last five about as well as their own mean does; and of
    how many values. Where a drive has settled, a line through what came before misses them."""
    last = values[-ROUNDS:]
    flat = fsum((value - fsum(last) / len(last)) ** 2 for value in last)
    changes = [(0.0, len(last))]
    for count in range(ROUNDS + 1, len(values) + 1):
        some = values[-count:]
        mean, slope = fsum(some) / count, _line(range(count), some).slope
        places = range(count - ROUNDS, count)
        missed = [
            value - mean - slope * (place - (count - 1) / 2)
            for place, value in zip(places, last, strict=True)
        ]
        if mean > 0 and fsum(each * each for each in missed) <= _ABOUT_AS_WELL * flat:
            changes.append((abs(slope) * (count - 1) / mean, count))
    return max(changes)


def proof(
    rounds: Sequence[Round],
    *,
    open_loop: bool = False,
    capacity_bytes: float | None = None,
    limits: RoundLimits = RoundLimits(),  # noqa: B008 - frozen
) -> dict[str, Any] | None:
    """Return what the rule finds in the last five rounds, as a result has it; None of fewer.

    `steady` is the finding on everything judged: bandwidth, and in an open loop the latencies, and
    `lacks`, see `shortfalls`. `since_round` (from 1) is the round with which that first held, and
    `unjudged` says what rounds that are steady do not prove.
    """
    looks = [_looks(rounds[:end], limits) for end in range(ROUNDS, len(rounds) + 1)]
    if not looks:
        return None
    judged = (BANDWIDTH, *LATENCIES) if open_loop else (BANDWIDTH,)
    lacks = [
        list(shortfalls(all_rounds(rounds[:end]), capacity_bytes, limits))
        for end in range(ROUNDS, len(rounds) + 1)
    ]
    held = [
        all(look[name].steady for name in judged if name in look) and not lacking
        for look, lacking in zip(looks, lacks, strict=True)
    ]
    return {
        "rule": f"SNIA PTS: of the last {ROUNDS} rounds the range is at most "
        f"{limits.most_range:.0%} of the average, and the best-fit line changes by at most "
        f"{limits.most_change:.0%} of it",
        **looks[-1][BANDWIDTH].to_json(),
        "steady": held[-1],
        "lacks": lacks[-1],
        "unjudged": list(_not_judged(rounds, looks[-1])) if open_loop else [],
        "since_round": held.index(True) + ROUNDS if True in held else None,
        "latencies": {
            name: _latency_json(rounds, name, looks[-1], judged=open_loop) for name in LATENCIES
        },
    }


def _looks(rounds: Sequence[Round], limits: RoundLimits) -> dict[str, Steadiness]:
    """Return the rule on each variable that every one of the last rounds has."""
    columns = {
        name: [getattr(each, name) for each in rounds[-ROUNDS:]] for name in (BANDWIDTH, *LATENCIES)
    }
    looks = {
        name: steady_state(values, most_range=limits.most_range, most_change=limits.most_change)
        for name, values in columns.items()
        if None not in values
    }
    return {name: look for name, look in looks.items() if look is not None}


def _latency_json(
    rounds: Sequence[Round], name: str, looks: Mapping[str, Steadiness], *, judged: bool
) -> dict[str, Any]:
    if name in looks:
        return {**looks[name].to_json(), "judged": judged}
    return {"values": [getattr(each, name) for each in rounds[-ROUNDS:]], "judged": False}


def _not_judged(rounds: Sequence[Round], looks: Mapping[str, Steadiness]) -> Iterator[str]:
    """Yield what rounds of an open loop do not prove, as one that moved bytes had too few
    operations for a p95."""
    kinds = [
        f"{name.partition('_')[0]}s"
        for name, nbytes in _BYTES.items()
        if name not in looks and any(getattr(each, nbytes) for each in rounds[-ROUNDS:])
    ]
    if kinds:
        yield (
            f"rounds had too few {' and '.join(kinds)} for a p95, and in an open loop the "
            "bandwidth is only what is asked for; use a longer --round"
        )


def fill_discarded(
    discarded_bytes: float | None, capacity_bytes: float | None, most_share: float
) -> Iterator[str]:
    """Yield why a fill did not last, of whose place so much was discarded after it."""
    if discarded_bytes and capacity_bytes and discarded_bytes > most_share * capacity_bytes:
        yield (
            f"{human_bytes(round(discarded_bytes))} were discarded on the device after the fill "
            "(fstrim, blkdiscard), so the drive may be fresh again; stop fstrim.timer meanwhile"
        )


# --- the measured window ---------------------------------------------------------------------

SEGMENTS = 10
LEAST_WINDOWS = 10
_LEAST_SEGMENTS = 8  # of ten, that have windows of their own
_LEAST_PART = 2  # segments: the first tenth alone may be a burst, as all users ask at once
ENOUGH_BYTES = 64 * MIB
_MOST_T = 1000.0  # where there is no noise at all

SIGNIFICANT_T = 5.0
"""|t| of a trend of bandwidth. With ten segments, and as many ways to place a step, noise is above
it in fewer than 1 % of runs, and exponentially distributed noise in fewer than 2 %."""

SIGNIFICANT_BACKLOG_T = 2.5
"""t of the backlog's growth, whose error already allows for a queue that only wanders."""


class WindowSample(NamedTuple):
    """What the trends are found from: one window. `backlog` is what waits or is in flight at its
    end."""

    start_s: float
    end_s: float
    nbytes: int
    backlog: int
    submitted: int

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def sample(window: Window) -> WindowSample:
    gauges = window.gauges
    return WindowSample(
        window.start_ns / 1e9,
        window.end_ns / 1e9,
        window.storage_bytes(),
        gauges.queued + gauges.in_flight,
        window.submitted,
    )


def stationarity(windows: Sequence[Window], enough_bytes: int = ENOUGH_BYTES) -> dict[str, Any]:
    """Return the trends over the windows of the measured phase, in order; see `trends`."""
    return trends([sample(window) for window in windows], enough_bytes)


def trends(samples: Sequence[WindowSample], enough_bytes: int = ENOUGH_BYTES) -> dict[str, Any]:
    """Return how bandwidth and backlog changed over the samples, and how sure that is.

    `bandwidth_trend` is the size of the change over the whole window as a share of the mean, by
    the least-squares line through the segments or by the one step (at `bandwidth_step_s` after the
    beginning; null of a line) that they fit better. `backlog_growth` is that of the line in
    requests, 0 where it shrinks, and its share is of those submitted. Both `_t` are the change
    over its standard error; that of the backlog allows for a queue that is just kept up with,
    which wanders by the square root of what comes and goes. Null is too little to tell: fewer
    than ten windows, hardly any bytes, nothing submitted.
    """
    some = [each for each in samples if each.seconds > 0]
    facts: dict[str, Any] = {
        "windows": len(some),
        "seconds": fsum(each.seconds for each in some),
        "bytes": sum(each.nbytes for each in some),
        "submitted": sum(each.submitted for each in some),
        **dict.fromkeys(("bandwidth_trend", "bandwidth_falls", "bandwidth_t", "bandwidth_step_s")),
        **dict.fromkeys(("backlog_growth", "backlog_growth_share", "backlog_t")),
    }
    segments = _segments(some) if len(some) >= LEAST_WINDOWS else {}
    if len(segments) >= _LEAST_SEGMENTS:
        if facts["bytes"] >= max(1, enough_bytes):
            facts |= _bandwidth(segments, some[-1].end_s - some[0].start_s)
        if facts["submitted"]:
            facts |= _backlog(segments, facts["submitted"])
    return facts


def bandwidth_drifts(share: float | None, t: float | None, most_share: float) -> bool:
    return share is not None and t is not None and share > most_share and t >= SIGNIFICANT_T


def backlog_grows(share: float | None, t: float | None, most_share: float) -> bool:
    return share is not None and t is not None and share > most_share and t >= SIGNIFICANT_BACKLOG_T


def _segments(samples: Sequence[WindowSample]) -> dict[int, list[WindowSample]]:
    """Ten parts of equal length in time; a window belongs where its middle is."""
    begin, end = samples[0].start_s, samples[-1].end_s
    parts: dict[int, list[WindowSample]] = {}
    for each in samples:
        middle = (each.start_s + each.end_s) / 2
        number = int((middle - begin) / (end - begin) * SEGMENTS) if end > begin else 0
        parts.setdefault(min(max(number, 0), SEGMENTS - 1), []).append(each)
    return dict(sorted(parts.items()))


def _bandwidth(segments: Mapping[int, Sequence[WindowSample]], length_s: float) -> dict[str, Any]:
    rates = [
        sum(each.nbytes for each in part) / fsum(each.seconds for each in part)
        for part in segments.values()
    ]
    change, at = max(_changes(list(segments), rates), key=lambda each: each[0].t)
    return {
        "bandwidth_trend": abs(change.size) * len(rates) / fsum(rates),
        "bandwidth_falls": change.size < 0,
        "bandwidth_t": change.t,
        "bandwidth_step_s": None if at is None else at / SEGMENTS * length_s,
    }


def _backlog(segments: Mapping[int, Sequence[WindowSample]], submitted: int) -> dict[str, Any]:
    levels = [sum(each.backlog for each in part) / len(part) for part in segments.values()]
    line = _line(list(segments), levels)
    growth = max(0.0, line.slope * SEGMENTS)
    # Poisson arrivals and as irregular service, at a load of exactly 1: each adds its count.
    error = sqrt((line.error * SEGMENTS) ** 2 + 2 * submitted)
    return {
        "backlog_growth": growth,
        "backlog_growth_share": growth / submitted,
        "backlog_t": min(_MOST_T, growth / error),
    }


class _Change(NamedTuple):
    """Of the whole window, and its standard error."""

    size: float
    error: float

    @property
    def t(self) -> float:
        if not self.size:
            return 0.0
        return min(_MOST_T, abs(self.size) / self.error if self.error else inf)


def _changes(
    places: Sequence[int], values: Sequence[float]
) -> Iterator[tuple[_Change, int | None]]:
    """As a line, and as a step at each place that leaves enough on both sides of it."""
    line = _line(places, values)
    yield _Change(line.slope * SEGMENTS, line.error * SEGMENTS), None
    for cut in range(_LEAST_PART, len(values) - _LEAST_PART + 1):
        yield _step(values[:cut], values[cut:]), places[cut]


def _step(before: Sequence[float], after: Sequence[float]) -> _Change:
    """Return the difference of two means, with the spread that both parts have in common."""
    means = [fsum(part) / len(part) for part in (before, after)]
    squares = fsum(
        (value - mean) ** 2
        for part, mean in zip((before, after), means, strict=True)
        for value in part
    )
    spread = squares / (len(before) + len(after) - 2)
    return _Change(means[1] - means[0], sqrt(spread * (1 / len(before) + 1 / len(after))))


class _Trend(NamedTuple):
    """A least-squares line's slope and its standard error."""

    slope: float
    error: float


def _line(places: Sequence[int], values: Sequence[float]) -> _Trend:
    count = len(values)
    middle, mean = sum(places) / count, fsum(values) / count
    spread = fsum((place - middle) ** 2 for place in places)
    slope = fsum((p - middle) * (v - mean) for p, v in zip(places, values, strict=True)) / spread
    left = [v - mean - slope * (p - middle) for p, v in zip(places, values, strict=True)]
    return _Trend(slope, sqrt(fsum(each * each for each in left) / (count - 2) / spread))
