"""The most load that keeps its SLOs: which load to try next, and when it is known well enough.

Pure. A driver asks for `next_load`, runs it (a *probe*), shows `judge` (`schedule/probe.py`) the
batches of requests that have ended so far until it is sure or the probe has lasted its longest, and
reports the verdict.

The search is that of MLPerf LoadGen's `FindPeakPerformance`: check the first load, widen
exponentially until one load passes and one does not, close the bracket, confirm.

At last, probes that are left bring the ends of the answer's interval near, as a bracket of loads
that passed and failed narrowly says little with confidence.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import ceil, floor, inf, isfinite, log, sqrt

from msgspec import Struct, field

from kv_cache.core.errors import ConfigError
from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.slo import Slo
from kv_cache.schedule.probe import (
    ProbeStatus,
    ProbeVerdict,
    SloEstimate,
    pooled,
    strictness,
    together,
)


class SearchRules(Struct, frozen=True, kw_only=True):
    """Where to look and how long. Raises `ConfigError` for rules that contradict one another.

    `resolution` is the width of the bracket, relative to its upper end, at which it is narrow
    enough. `most_probes` counts all, confirmations included; of `confirmations` probes at the
    answer, the one that found it is the first. `whole` loads are numbers of users, others rates.
    """

    first: float
    highest: float
    lowest: float = 1
    resolution: float = 0.03
    most_probes: int = 12
    confirmations: int = 3
    confidence: float = CONFIDENCE
    whole: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.first <= self.highest or not isfinite(self.highest):
            raise ConfigError(
                f"the loads of a capacity search, lowest {self.lowest:g}, first {self.first:g} and "
                f"highest {self.highest:g}, must be above 0 and in this order; change one of them"
            )
        if self.whole and any(load % 1 for load in (self.lowest, self.first, self.highest)):
            raise ConfigError(
                f"a number of users is whole, and one of {self.lowest:g}, {self.first:g} and "
                f"{self.highest:g} is not; round it"
            )
        if not 1 <= self.confirmations <= self.most_probes:
            raise ConfigError(
                f"{self.most_probes} probes cannot hold {self.confirmations} at the answer; use at "
                "least 1 of these, and as many probes"
            )


class SearchStep(Struct, frozen=True, kw_only=True):
    """One probe: its load, why this load, and what came out."""

    load: float
    why: str
    verdict: ProbeVerdict


class Ended(StrEnum):
    """What limits the answer from above."""

    LIMIT = "limit"  # a load that misses an SLO
    HIGHEST = "highest-load"  # no more was to be tried
    CLIENT = "client-bound"  # the client makes no more
    UNFINISHED = "unfinished"  # probes ran out, or the search was interrupted


class CapacityAnswer(Struct, frozen=True, kw_only=True):
    """`load` is the highest that kept its SLOs, 0 if none did.

    The interval reaches from the highest load that passed with confidence, and below which none
    failed so (`low`, 0 if there is none), to the lowest that failed with confidence (`high`). It
    has no upper end where there is no such load, or the client was the limit: then the capacity is
    at least `low`. `limited` is the SLO that the load above the answer missed.
    """

    load: float
    confirmed: bool
    low: float
    high: float | None
    ended: Ended
    limited: Slo | None
    reason: str
    probes: int


_WIDEN = (2, 4, 8, 16)
"""Each step of the widening is larger: the first guess may be 1 for a capacity of 10 000."""
_EDGE = 0.1
"""A load inside a bracket keeps this part of the bracket's width from either end."""
_WIDE = 1.1
"""Ends that are this factor apart are brought nearer even where no probes are left to confirm."""
_OFF = (2, 4)
"""Resolutions from the answer at which its interval's ends are looked for."""
_STUCK = 0.6
"""A bracket that is still this part as wide as before is halved next."""
_FAR = 4.0
"""Ends that are this factor apart have a geometric middle; the straight line is for near ones."""


class _Tried(Struct):
    """All probes at one load. Their requests are judged together: near the limit, one probe of
    three is over it by chance, and a search for three that are not ends well below the limit. But
    no probe may have failed with confidence."""

    load: float
    verdicts: list[ProbeVerdict] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        failed = any(v.failed or v.client_bound for v in self.verdicts)
        return not failed and all(estimate.kept for estimate in self.estimates)

    @property
    def by_client(self) -> bool:
        return any(verdict.client_bound for verdict in self.verdicts)

    @property
    def estimates(self) -> list[SloEstimate]:
        """Estimates of all probes together that the client was not the limit of."""
        by_probe = [v.judged.estimates for v in self.verdicts if not v.client_bound]
        return [pooled(estimates) for estimates in zip(*by_probe, strict=True)]

    def status(self, confidence: float) -> ProbeStatus:
        """Return the status with confidence; what is overloaded has failed."""
        if any(verdict.failed for verdict in self.verdicts):
            return ProbeStatus.OUTSIDE
        estimates = self.estimates
        return together(estimates, strictness(confidence, 1, 1)) if estimates else ProbeStatus.OPEN

    @property
    def excess(self) -> float | None:
        return max((estimate.excess for estimate in self.estimates), default=None)

    @property
    def tightest(self) -> SloEstimate | None:
        """The SLO that is missed, or nearest to it; None where the client was always the limit."""
        return max(
            self.estimates,
            key=lambda estimate: (estimate.share is None, estimate.excess),
            default=None,
        )

    @property
    def served(self) -> float:
        """The load that was served, where it was less: hardly more than this can be. Of a load that
        is kept up with, what is missing was only under way when the probe ended."""
        less = (v.served_share for v in self.verdicts if v.overloaded or v.client_bound)
        return self.load * min([1.0, *(share for share in less if share is not None)])


class CapacitySearch:
    """Ask for `next_load`, run it, `report` it, until there is no next; `answer` is good at any
    time, for a search may be interrupted."""

    def __init__(self, rules: SearchRules) -> None:
        self._rules = rules
        self._tried: dict[float, _Tried] = {}
        self.steps: list[SearchStep] = []
        self._width = inf  # of the bracket when a load between its ends was last chosen
        self._next = self._choose()

    def next_load(self) -> float | None:
        return self._next[0] if self._next else None

    @property
    def why(self) -> str | None:
        """Why this load is the next."""
        return self._next[1] if self._next else None

    def report(self, load: float, verdict: ProbeVerdict) -> None:
        """What came out of `next_load`."""
        if self._next is None or load != self._next[0]:
            raise ValueError(f"the load {load:g} was reported, {self.next_load()} was asked for")
        self.steps.append(SearchStep(load=load, why=self._next[1], verdict=verdict))
        self._tried.setdefault(load, _Tried(load)).verdicts.append(verdict)
        self._next = self._choose()

    # --- the bracket -------------------------------------------------------------------------

    @property
    def _above(self) -> _Tried | None:
        """The lowest load that did not pass, unless a higher one passed with confidence."""
        low, _ = self._interval()
        failed = [
            tried
            for tried in self._tried.values()
            if not tried.passed and (tried.load >= low or tried.by_client)
        ]
        return min(failed, key=lambda tried: tried.load, default=None)

    @property
    def _below(self) -> _Tried | None:
        """The highest load that passed, below all that did not."""
        above = self._above
        passed = [
            tried
            for tried in self._tried.values()
            if tried.passed and (above is None or tried.load < above.load)
        ]
        return max(passed, key=lambda tried: tried.load, default=None)

    def _choose(self) -> tuple[float, str] | None:
        rules, below, above = self._rules, self._below, self._above
        left = rules.most_probes - len(self.steps)
        if not left:
            return None
        if below is None and above is None:
            return rules.first, "the first load"
        if below is None:
            assert above is not None
            return self._down(above, left)
        spare = left >= rules.confirmations  # a load that is new must be confirmed as well
        if above is None:
            return self._up(below) if spare and below.load < rules.highest else self._last(below)
        wide = above.load > _WIDE * below.load  # better near and not confirmed than far
        if (spare or wide) and not self._narrow(below.load, above.load):
            return self._between(below, above)
        return self._last(below)

    def _last(self, below: _Tried) -> tuple[float, str] | None:
        return self._confirm(below) or self._bound(below.load, self._above)

    def _confirm(self, below: _Tried) -> tuple[float, str] | None:
        done, wanted = len(below.verdicts), self._rules.confirmations
        if done >= wanted:
            return None
        return below.load, f"confirms the highest load that passed ({done + 1} of {wanted})"

    def _bound(self, answer: float, above: _Tried | None) -> tuple[float, str] | None:
        """Return a load a few resolutions from the answer, where that end of the interval is
        farther. None between the answer and the load that did not pass: it would have to be
        confirmed."""
        low, high = self._interval()
        failed = above.load if above else inf
        for off in _OFF:
            why = f"{off} resolutions from {answer:g}, for that end of its interval"
            more = self._rounded(answer * (1 + off * self._rules.resolution))
            if failed < more and (high is None or high > more) and self._can_try(more):
                return more, why
            less = self._rounded(answer * (1 - off * self._rules.resolution))
            if low < less and self._can_try(less):
                return less, why
        return None

    def _can_try(self, load: float) -> bool:
        """Within the rules, new, and no more than the client makes."""
        walls = [tried.load for tried in self._tried.values() if tried.by_client]
        within = self._rules.lowest <= load <= self._rules.highest
        return within and load not in self._tried and all(load < wall for wall in walls)

    def _up(self, below: _Tried) -> tuple[float, str]:
        load = self._rounded(below.load * self._factor())
        return min(load, self._rules.highest), f"{below.load:g} passed: widens upwards"

    def _down(self, above: _Tried, left: int) -> tuple[float, str] | None:
        """Choose a lower load, from what an overloaded load served, as the capacity is no more."""
        lowest = self._rules.lowest
        if above.load <= lowest:
            return None
        if left <= self._rules.confirmations:
            return lowest, "the lowest load, as few probes are left and none has passed"
        load = self._rounded(above.served / self._factor())
        return max(load, lowest), f"{above.load:g} did not pass: widens downwards"

    def _factor(self) -> float:
        return _WIDEN[min(len(self.steps), len(_WIDEN)) - 1]

    def _narrow(self, low: float, high: float) -> bool:
        one = self._rules.whole and high - low <= 1
        return one or high - low <= self._rules.resolution * high

    def _between(self, below: _Tried, above: _Tried) -> tuple[float, str]:
        """Choose where the share over the limit should be what is allowed, by a straight line in
        `excess` between the two ends; a little to the side of the farther end, so that both ends
        close in.

        A device whose latency breaks off is not on that line. So if it has not about halved the
        bracket, the next load is in the middle.
        """
        if self._was_lucky(below):
            return below.load, "again: it passed, though overloaded probes served less"
        near = self._near_what_was_served(below.load, above.load)
        if near is not None:
            return near, f"near what overloaded probes served, above {below.load:g}, which passed"
        low, high = below.load, self._served_at_most(below.load, above.load)
        step = self._rules.resolution
        why = f"between {low:g}, which passed, and {above.load:g}, which did not"
        if high < above.load and low * (1 + step) >= high:
            return self._within(low * (1 + step), low, above.load, edge=0), why
        stuck, self._width = high - low > _STUCK * self._width, high - low
        far = high == above.load > _FAR * low
        if stuck or far or below.excess is None:
            return self._within(sqrt(low * high), low, high), why
        inner, outer = -below.excess, self._excess_at(above, high)
        root = low + (high - low) * _share_of(inner, outer)
        side = 1 if root - low < high - root else -1
        aimed = root * (1 + side * step / 3)
        return self._within(aimed, low, high), why

    def _was_lucky(self, below: _Tried) -> bool:
        """Return whether a load passed once, with more load than an overloaded device serves: what
        is above it is not worth a probe before it has passed again."""
        served = self._least_served
        return len(below.verdicts) == 1 and below.load > served * (1 + self._rules.resolution)

    @property
    def _least_served(self) -> float:
        """The least that an overloaded device has served; endless if there was none."""
        step, tried = self._rules.resolution, self._tried.values()
        return min((t.served for t in tried if t.served * (1 + 4 * step) < t.load), default=inf)

    def _near_what_was_served(self, low: float, high: float) -> float | None:
        """Return a load near what an overloaded device serves, which is near its capacity, once a
        probe with as much load has passed: a little more before anything far above it, or a little
        less if that probe had been lucky."""
        step, served = self._rules.resolution, self._least_served
        as_much = [t for t in self._tried.values() if t.load >= served * (1 - 2 * step)]
        if not served or not any(v.inside for t in as_much for v in t.verdicts):
            return None
        more = low >= served * (1 - 2 * step)
        aims = [low * (1 + 4 * step)] if more else [served * (1 - n * step) for n in (1, 4, 8)]
        loads = [self._rounded(aim) for aim in aims]
        within = (n for n in loads if low * (1 + step) < n < high * (1 - step))
        return next((load for load in within if self._can_try(load)), None)

    def _served_at_most(self, low: float, high: float) -> float:
        """Return the lowest load above `low` that an overloaded probe served, if any is below
        `high`."""
        served = [tried.served for tried in self._tried.values()]
        most = high / (1 + 2 * self._rules.resolution)
        return min([high, *(load for load in served if low < load < most)])

    def _excess_at(self, above: _Tried, load: float) -> float:
        """Return the `excess` at a load; at what an overloaded load served, all requests wait for
        long."""
        excess = above.excess
        if excess is None or load < above.load:
            looks = self.steps[0].verdict.judged.estimates
            return max(-log(estimate.slo.allowed_share) for estimate in looks)
        return excess

    def _within(self, load: float, low: float, high: float, edge: float = _EDGE) -> float:
        kept = self._rounded(min(max(load, low + edge * (high - low)), high - edge * (high - low)))
        return max(low + 1, min(kept, ceil(high) - 1.0)) if self._rules.whole else kept

    def _rounded(self, load: float) -> float:
        """Round to whole users, or to a rate that can be read."""
        return float(floor(load)) if self._rules.whole else float(f"{load:.6g}")

    # --- the answer --------------------------------------------------------------------------

    @property
    def answer(self) -> CapacityAnswer:
        below, above = self._below, self._above
        passed = len(below.verdicts) if below else 0
        low, high = self._interval()
        ended = self._ended(below, above)
        tightest = above.tightest if above and not above.by_client else None
        return CapacityAnswer(
            load=below.load if below else 0.0,
            confirmed=passed >= self._rules.confirmations,
            low=low,
            high=None if ended is Ended.CLIENT else high,
            ended=ended,
            limited=tightest.slo if tightest else None,
            reason=self._reason(below, above, ended),
            probes=len(self.steps),
        )

    def _interval(self) -> tuple[float, float | None]:
        statuses: Mapping[float, ProbeStatus] = {
            load: tried.status(self._rules.confidence) for load, tried in self._tried.items()
        }
        failed = [load for load, status in statuses.items() if status is ProbeStatus.OUTSIDE]
        high = min(failed, default=None)
        passed = [
            load
            for load, status in statuses.items()
            if status is ProbeStatus.INSIDE and (high is None or load < high)
        ]
        return max(passed, default=0.0), high

    def _ended(self, below: _Tried | None, above: _Tried | None) -> Ended:
        if above is not None and above.by_client:
            return Ended.CLIENT
        if below is not None and below.load >= self._rules.highest:
            return Ended.HIGHEST
        low = below.load if below else 0.0
        if above is None or not (self._narrow(low, above.load) or above.load <= self._rules.lowest):
            return Ended.UNFINISHED
        return Ended.LIMIT

    def _reason(self, below: _Tried | None, above: _Tried | None, ended: Ended) -> str:
        if not self.steps:
            return "no load was tried"
        parts = [_why_not_more(below, above, ended)]
        if below is not None and len(below.verdicts) < self._rules.confirmations:
            parts.append(
                f"not confirmed: {len(below.verdicts)} of {self._rules.confirmations} probes "
                f"at {below.load:g} were run"
            )
        return "; ".join(parts)


def _share_of(inner: float, outer: float) -> float:
    """Return where a line from -inner to outer crosses 0, as a part of the way. An end that is on
    the wrong side, as chance has it, is taken to be at the limit itself."""
    inner, outer = max(inner, 0.0), max(outer, 0.0)
    return inner / (inner + outer) if inner + outer > 0 else 0.5


def _why_not_more(below: _Tried | None, above: _Tried | None, ended: Ended) -> str:
    if above is None:
        assert below is not None
        if ended is Ended.HIGHEST:
            return f"{below.load:g} is the highest load that was to be tried, and it passed"
        return f"every load passed up to {below.load:g}, and the search ended before one did not"
    if ended is Ended.CLIENT:
        return f"the client could not make a load of {above.load:g}: the storage may carry more"
    broken = f"a load of {above.load:g} {_broken(above)}"
    if below is None and ended is Ended.LIMIT:
        return f"even the lowest load misses: {broken}"
    if ended is Ended.UNFINISHED:
        return f"{broken}, and the search ended before it came nearer"
    return broken


def _broken(above: _Tried) -> str:
    estimate = above.tightest
    if estimate is not None and estimate.kept is False:
        return f"misses {estimate.slo}: {estimate.share:.2%} are over"
    if any(verdict.overloaded for verdict in above.verdicts):
        return "is more than can be served: the backlog grows"
    if estimate is not None and estimate.kept is None:
        return f"shows nothing for {estimate.slo}: no request of the class ended"
    return "passed and missed in turn"
