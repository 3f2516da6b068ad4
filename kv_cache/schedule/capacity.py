"""The most load that keeps its SLOs: which load to try next, how long, and how well it is known.

Pure. A driver asks for `next_load`, runs it for at most `next_seconds` (a *probe*), shows `judge`
(`schedule/probe.py`) the batches of requests that have ended so far until it is sure or its time is
over, and reports the verdict.

Loads are widened until one fails and one passes, as MLPerf LoadGen's `FindPeakPerformance` does.
From then on all probes together say where the limit may be (`schedule/limit.py`), and the next one
goes to where that is in doubt: its middle, then its two ends. Time that early probes leave is spent
on later ones, and a probe that was too short for its queue makes the next ones longer.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import ceil, floor, inf, isfinite, log

from msgspec import Struct, field

from kv_cache.core.errors import ConfigError
from kv_cache.core.format import duration_text
from kv_cache.metrics.intervals import CONFIDENCE, Interval
from kv_cache.metrics.slo import Slo
from kv_cache.schedule.limit import (
    LimitDistribution,
    LimitEvidence,
    overload_bound,
    seconds_to_narrow,
)
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

    All probes together last for at most `most_probes` times `probe_s`. The search ends early where
    the interval is as narrow as `resolution`, relative to the load. An answer is confirmed by as
    many `confirmations`: probes in its interval. `whole` loads are numbers of users, others rates.
    """

    first: float
    highest: float
    lowest: float = 1
    resolution: float = 0.03
    most_probes: int = 12
    confirmations: int = 3
    confidence: float = CONFIDENCE
    whole: bool = True
    probe_s: float = 60.0
    least_s: float = 10.0

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

    @property
    def seconds(self) -> float:
        """Return how long all probes last together, at most."""
        return self.most_probes * self.probe_s


class SearchStep(Struct, frozen=True, kw_only=True):
    """One probe: its load, why this load, how long it took, and what came out."""

    load: float
    why: str
    verdict: ProbeVerdict
    seconds: float


class Ended(StrEnum):
    """What limits the answer from above."""

    LIMIT = "limit"  # a load that misses an SLO
    HIGHEST = "highest-load"  # no more was to be tried
    CLIENT = "client-bound"  # the client makes no more
    UNFINISHED = "unfinished"  # probes ran out, or the search was interrupted


class CapacityAnswer(Struct, frozen=True, kw_only=True):
    """`load` is the highest that kept its SLOs, up to the middle of where the limit may be as all
    probes together show it, or `low` where that is higher; 0 if none did.

    `low` and `high` hold the limit with the confidence of the rules. `high` is None where no load
    failed, or the client was the limit: then the capacity is at least `low`, which passed with
    confidence. `limited` is the SLO that the nearest load above the answer missed. `steps` are
    those whose probes are nearest to the answer, `seconds_to_narrow` how long the search would take
    in all until its interval is as narrow as the rules want; None where that is not known.
    """

    load: float
    confirmed: bool
    low: float
    high: float | None
    ended: Ended
    limited: Slo | None
    reason: str
    probes: int
    steps: tuple[int, ...] = ()
    seconds_to_narrow: float | None = None


UNCONFIRMED = "not confirmed"

_WIDEN = (2, 4, 8, 16)
"""Each step of the widening is larger: the first guess may be 1 for a capacity of 10 000."""
_MIDDLE = (0.15, 0.85)
"""The ends that are brought near: this much of the distribution is below each."""
_DOUBTFUL = 1.12
"""Ends that are this factor apart: the middle is tried, as there is no end to bring near yet."""
_NO_LESS = 0.5
"""Of the highest load that passed: as much is tried at least, however little is known of it."""
_DISOWNED = 1.3
"""A load that failed, and is this factor below where the limit may be, is tried again."""
_TRIES = 2
_LONGER = 2.0
"""By how much the next probe is longer than one that was too short for its queue."""
_NEXT_TO = 0.03
"""Probes as near to the answer's interval count as being at the answer."""
_CERTAIN = 1.5
"""Ends that are farther apart confirm nothing."""


class _Tried(Struct):
    """All probes at one load. Their requests are judged together: near the limit, one probe of
    three is over it by chance."""

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
    def tightest(self) -> SloEstimate | None:
        """The SLO that is missed, or nearest to it; None where the client was always the limit."""
        return max(
            self.estimates,
            key=lambda estimate: (estimate.share is None, estimate.excess),
            default=None,
        )

    @property
    def served(self) -> float:
        """The load that was served, where it was less: hardly more than this can be."""
        less = (v.served_share for v in self.verdicts if v.overloaded or v.client_bound)
        return self.load * min([1.0, *(share for share in less if share is not None)])


class CapacitySearch:
    """Ask for `next_load`, run it, `report` it, until there is no next; `answer` is good at any
    time, for a search may be interrupted."""

    def __init__(self, rules: SearchRules) -> None:
        self._rules = rules
        self._tried: dict[float, _Tried] = {}
        self.steps: list[SearchStep] = []
        self._unit_s = rules.probe_s
        self._limit: LimitDistribution | None = None
        self._next = self._choose()

    def next_load(self) -> float | None:
        return self._next[0] if self._next else None

    @property
    def why(self) -> str | None:
        """Why this load is the next."""
        return self._next[1] if self._next else None

    @property
    def next_seconds(self) -> float:
        """The longest that the next probe may be: an equal part of the time that is left."""
        even = self._left_s / (self._rules.most_probes - len(self.steps))
        return max(self._rules.least_s, min(self._left_s, max(even, self._unit_s)))

    def report(self, load: float, verdict: ProbeVerdict, seconds: float | None = None) -> None:
        """What came out of `next_load`, in so many seconds (the longest, if not given)."""
        if self._next is None or load != self._next[0]:
            raise ValueError(f"the load {load:g} was reported, {self.next_load()} was asked for")
        took = self.next_seconds if seconds is None else seconds
        self.steps.append(SearchStep(load=load, why=self._next[1], verdict=verdict, seconds=took))
        self._tried.setdefault(load, _Tried(load)).verdicts.append(verdict)
        if verdict.too_short:
            self._unit_s *= _LONGER
        self._limit = self._distribution()
        self._next = self._choose()

    # --- which load --------------------------------------------------------------------------

    @property
    def _left_s(self) -> float:
        return self._rules.seconds - sum(step.seconds for step in self.steps)

    @property
    def _failed(self) -> list[_Tried]:
        """Loads that failed with confidence; while there are none, those that did not pass."""
        tried = [each for each in self._tried.values() if not each.by_client]
        sure = [each for each in tried if any(v.failed for v in each.verdicts)]
        return sure or [each for each in tried if not each.passed]

    @property
    def _passed(self) -> list[_Tried]:
        return [each for each in self._tried.values() if each.passed]

    @property
    def _wall(self) -> float:
        """The least load that the client did not make."""
        return min((each.load for each in self._tried.values() if each.by_client), default=inf)

    def _choose(self) -> tuple[float, str] | None:
        rules = self._rules
        if len(self.steps) >= rules.most_probes or self._left_s < rules.least_s:
            return None
        if not self.steps:
            return rules.first, "the first load"
        passed, failed = self._passed, self._failed
        if not passed:
            return self._down()
        if not failed and self._wall == inf:
            return self._up(max(each.load for each in passed))
        if not failed:
            return self._below_wall(max(each.load for each in passed))
        return self._in_doubt(failed)

    def _up(self, highest: float) -> tuple[float, str] | None:
        if highest < self._rules.highest:
            load = min(self._rounded(highest * self._factor()), self._rules.highest)
            return load, f"{highest:g} passed: widens upwards"
        return self._confirm(highest)

    def _down(self) -> tuple[float, str] | None:
        """Choose a lower load, from what an overloaded load served, as the limit is no more."""
        lowest, least = self._rules.lowest, min(self._tried.values(), key=lambda t: t.load)
        if least.load <= lowest:
            return None if least.by_client else self._again(least, "the lowest load failed")
        few = self._rules.most_probes - len(self.steps) <= self._rules.confirmations
        load = lowest if few else max(self._rounded(least.served / self._factor()), lowest)
        return load, f"{least.load:g} did not pass: widens downwards"

    def _below_wall(self, highest: float) -> tuple[float, str] | None:
        wall = self._wall
        if not self._narrow(highest, wall):
            return self._rounded((highest + wall) / 2), f"nearer to {wall:g}, which was not made"
        return self._confirm(highest)

    def _confirm(self, load: float) -> tuple[float, str] | None:
        done, wanted = len(self._tried[load].verdicts), self._rules.confirmations
        if done >= wanted:
            return None
        return load, f"confirms the highest load that passed ({done + 1} of {wanted})"

    def _again(self, tried: _Tried, why: str) -> tuple[float, str] | None:
        if len(tried.verdicts) >= _TRIES:
            return None
        return tried.load, f"again: {why}"

    def _in_doubt(self, failed: Sequence[_Tried]) -> tuple[float, str] | None:
        assert self._limit is not None
        answer = self.answer
        if answer.high is not None and self._narrow(answer.low, answer.high):
            return None if answer.confirmed else (answer.load, "confirms the answer")
        lowest_failed = min(failed, key=lambda tried: tried.load)
        low, near, middle, far, high = (
            self._limit.quantile(q) for q in (0.025, _MIDDLE[0], 0.5, _MIDDLE[1], 0.975)
        )
        if high > _DISOWNED * lowest_failed.load:
            again = self._again(lowest_failed, "alone it would bound the limit")
            if again:
                return again
        if far > _DOUBTFUL * near:
            below = [each.load for each in self._passed if each.load < lowest_failed.load]
            least = max(below, default=0.0) * _NO_LESS  # farther below, fewer requests tell less
            return self._within(max(middle, least)), "the middle of where the limit may be"
        if middle / low > high / middle:
            return self._within(near), "the lower end of where the limit may be"
        return self._within(far, up=True), "the upper end of where the limit may be"

    def _within(self, load: float, up: bool = False) -> float:
        rules = self._rules
        rounded = self._rounded(load)
        if rules.whole:  # one of the whole numbers beside it, that which was tried less
            beside = [float(ceil(load)), float(floor(load))]
            sides = sorted(beside, key=beside.index, reverse=not up)
            rounded = min(sides, key=lambda each: len(self._verdicts_at(each)) // _TRIES)
        return min(max(rounded, rules.lowest), rules.highest, self._below_the_wall)

    def _verdicts_at(self, load: float) -> Sequence[ProbeVerdict]:
        return self._tried[load].verdicts if load in self._tried else ()

    @property
    def _below_the_wall(self) -> float:
        below = (each.load for each in self._tried.values() if each.load < self._wall)
        return inf if self._wall == inf else max(below, default=self._rules.lowest)

    def _factor(self) -> float:
        return _WIDEN[min(len(self.steps), len(_WIDEN)) - 1]

    def _narrow(self, low: float, high: float) -> bool:
        neighbours = self._rules.whole and high - low <= 1
        return neighbours or high - low <= self._rules.resolution * high

    def _rounded(self, load: float) -> float:
        """Round to whole users, or to a rate that can be read."""
        return float(floor(load)) if self._rules.whole else float(f"{load:.6g}")

    # --- the answer --------------------------------------------------------------------------

    def _distribution(self) -> LimitDistribution | None:
        """Return where the limit may be, once a load passed and one failed."""
        if not (self._passed and self._failed):
            return None
        steps = [step for step in self.steps if not step.verdict.client_bound]
        slos = dict.fromkeys(e.slo for step in steps for e in step.verdict.judged.estimates)
        evidence = [[e for step in steps for e in self._evidence(step, slo)] for slo in slos]
        return LimitDistribution(evidence, self._rules.lowest, self._rules.highest)

    def _evidence(self, step: SearchStep, slo: Slo) -> list[LimitEvidence]:
        verdict = step.verdict
        load = step.load if verdict.offered is None else verdict.offered
        bound = overload_bound(load, verdict.served_share) if verdict.overloaded else None
        estimates = [e for e in verdict.judged.estimates if e.slo == slo]
        return [LimitEvidence(load=load, estimate=e, bound=bound) for e in estimates if load]

    @property
    def answer(self) -> CapacityAnswer:
        load, interval, ended = self._answered()
        near = self._nearest(load, interval) if load else ()
        above = self._above(load)
        tightest = above.tightest if above and not above.by_client else None
        doubt = self._doubt(load, interval, near) if load else ""
        seconds = self._to_narrow(interval)
        reason = self._reason(load, above, ended)
        longer = "" if seconds is None else self._longer(seconds, interval)
        return CapacityAnswer(
            load=load,
            confirmed=bool(load) and not doubt,
            low=interval.low,
            high=None if interval.high == inf else interval.high,
            ended=ended,
            limited=tightest.slo if tightest else None,
            reason="; ".join(filter(None, (reason, doubt, longer))),
            probes=len(self.steps),
            steps=near,
            seconds_to_narrow=seconds,
        )

    def _answered(self) -> tuple[float, Interval, Ended]:
        sure = [t.load for t in self._passed if self._surely(t) is ProbeStatus.INSIDE]
        low = max(sure, default=0.0)
        passed = max((tried.load for tried in self._passed), default=0.0)
        if self._limit is None:
            failed = [t.load for t in self._failed if self._surely(t) is ProbeStatus.OUTSIDE]
            return passed, Interval(low, min(failed, default=inf)), self._one_sided(passed)
        low, high = self._limit.interval(self._rules.confidence)
        middle = self._limit.quantile(0.5)
        if self._rules.whole:
            low, high = float(floor(low)), float(ceil(high))
        loads = [tried.load for tried in self._passed]
        load = max((each for each in loads if each <= middle), default=min(loads))
        if self._wall <= middle:
            return passed, Interval(min(low, passed), inf), Ended.CLIENT
        if passed >= self._rules.highest <= middle:
            return passed, Interval(min(low, passed), inf), Ended.HIGHEST
        load = max(load, self._rounded(low))  # what passed with confidence lies below the interval
        return load, Interval(min(low, load), high), Ended.LIMIT

    def _one_sided(self, passed: float) -> Ended:
        if self._wall < inf:
            return Ended.CLIENT
        if passed >= self._rules.highest:
            return Ended.HIGHEST
        at_lowest = any(tried.load <= self._rules.lowest for tried in self._failed)
        return Ended.LIMIT if at_lowest else Ended.UNFINISHED

    def _surely(self, tried: _Tried) -> ProbeStatus:
        return tried.status(self._rules.confidence)

    def _nearest(self, load: float, interval: Interval) -> tuple[int, ...]:
        """Return the steps whose loads are nearest to the answer: at most `confirmations`, of
        probes that were not overloaded where there are such."""

        def far(index: int) -> tuple[bool, float]:
            step = self.steps[index]
            return not step.verdict.inside, abs(log(step.load / load))

        low, high = interval.low / (1 + _NEXT_TO), interval.high * (1 + _NEXT_TO)
        within = [i for i, step in enumerate(self.steps) if low <= step.load <= high]
        chosen = sorted(within or range(len(self.steps)), key=far)
        return tuple(sorted(chosen[: self._rules.confirmations if within else 1]))

    def _doubt(self, load: float, interval: Interval, near: Sequence[int]) -> str:
        """Return why the answer is not confirmed; nothing where it is."""
        wanted = self._rules.confirmations
        if len(near) < wanted:
            return f"{UNCONFIRMED}: {len(near)} of {wanted} probes were near {load:g}"
        if not interval.low:
            return f"{UNCONFIRMED}: no load passed with confidence"
        far = inf > interval.high > _CERTAIN * interval.low
        if not far or self._narrow(interval.low, interval.high):
            return ""
        return f"{UNCONFIRMED}: it may be {interval.low:.4g} or {interval.high:.4g}"

    def _above(self, load: float) -> _Tried | None:
        """Return the lowest load above the answer that did not pass."""
        some = [tried for tried in self._tried.values() if tried.load > load and not tried.passed]
        return min(some, key=lambda tried: tried.load, default=None)

    def _to_narrow(self, interval: Interval) -> float | None:
        spent = self._rules.seconds - self._left_s
        seconds = seconds_to_narrow(spent, interval, self._narrowest(interval))
        return seconds if spent < seconds < inf else None

    def _narrowest(self, interval: Interval) -> float:
        """Return how wide an interval is wanted, as a share: of users no less than one."""
        one = 1 / interval.high if self._rules.whole else 0.0
        return max(self._rules.resolution, one)

    def _longer(self, seconds: float, interval: Interval) -> str:
        share = self._narrowest(interval)
        narrow = "one user" if share > self._rules.resolution else f"{100 * share:g} %"
        return f"probes of {duration_text(seconds)} in all would make its interval {narrow} wide"

    def _reason(self, load: float, above: _Tried | None, ended: Ended) -> str:
        if not self.steps:
            return "no load was tried"
        if ended is Ended.CLIENT:
            return f"the client could not make a load of {self._wall:g}: the storage may carry more"
        if ended is Ended.HIGHEST:
            return f"{load:g} is the highest load that was to be tried, and it passed"
        if above is None:
            return f"every load passed up to {load:g}, and the search ended before one did not"
        broken = f"a load of {above.load:g} {_broken(above)}"
        if not load and ended is Ended.LIMIT:
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
