"""Where a capacity's limit lies, as all probes of a search show it together.

A limit is the load at which just the allowed share of requests is over an SLO. Around it the
share's logit is taken to be a straight line in a power of the load, both unknown. What
lies farther from the limit counts for less, as the line is no line over a wide range, and a single
probe, however long, moves the odds of a place by `_SURPRISE` at most: one bad moment is outvoted.

The result is a distribution of the limit: the search goes where it is in doubt, and the answer's
interval holds 95 % of it. That the interval holds the truth as often is no matter of this model but
of tests against queues whose limit is known (tests/simulation/test_capacity_search.py).
"""

from collections.abc import Sequence
from math import exp, inf, log, sqrt

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kv_cache.metrics.intervals import CONFIDENCE, Interval
from kv_cache.schedule.probe import ProbeStatus, SloEstimate, known_variance, pooled_inflation

_BENDS, _SLOPES = (
    grid.reshape(-1, 1) for grid in np.meshgrid([1e-6, 0.5, 1.0, 1.5], np.geomspace(0.35, 8192, 28))
)
"""Curves: logits that go with this power of the load (0 is the logarithm: an SLO that is missed by
meeting one other request; 1 is M/M/1), and their slope at the limit: from two requests that hardly
ever meet, over an SLO of some hundred service times (`_STEEP`), to a device that breaks off."""
_STEEP = 128
_SURPRISE = 0.01
"""Chance that a probe met something that is not its load's doing."""
_FAR_ABOVE, _FAR_BELOW, _BLUR = 6, 4, 0.5
"""So many times the allowed share, or so many times less: how far beyond says nothing, as the curve
is no line there. Where that begins is blurred by so much, in logits."""
_BEND = 0.15
"""How far, at a distance of 1 in logits, the curve may be off the line."""
_SERVED = 1.1
"""An overloaded device serves about its most; what it served once may be as much less."""
_EDGE = 0.02
"""Relative width of the edge that a side has; what was served has the error of its count too."""
_NEIGHBOURS, _NEAR = 4, 0.5
"""So many probes, of loads at most so far apart (logarithm), share one inflation."""
_PLACES, _ENOUGH, _ZOOMS = 400, 50, 8
"""The interval holds so many places at least: a step as wide as where the limit lies hides it."""
_TAIL, _SAME = 2.5e-3, 0.9
"""What is left out at each end for that: places far away, that bad moments alone leave possible.
Not where as much as the whole range remains: then more than that lies there."""
_SURE_DOF = 200

Floats = NDArray[np.float64]


class LimitEvidence(Struct, frozen=True, kw_only=True):
    """What one probe shows of one SLO's limit.

    `load` is the one that came. `bound` is what an overloaded device served, which the limit is
    below; None of a probe that was not overloaded.
    """

    load: float
    estimate: SloEstimate
    bound: float | None = None

    @property
    def far(self) -> float:
        """Return the share that this probe's is beyond, and the curve is no line: of a queue
        without end where it is large, of what happens at any load where it is small; else 0."""
        estimate = self.estimate
        share, allowed = estimate.share or 0.0, estimate.slo.allowed_share
        status = estimate.status(CONFIDENCE)
        if status is ProbeStatus.OUTSIDE and share > _FAR_ABOVE * allowed:
            return min(0.5, _FAR_ABOVE * allowed)
        inside = status is ProbeStatus.INSIDE and self.bound is None
        far_below = inside and share * _FAR_BELOW < allowed
        return allowed / _FAR_BELOW if far_below else 0.0

    @property
    def counts(self) -> bool:
        """Whether its shares tell of a steady state. A probe that is short against its queue's own
        memory has not seen how bad it may become, but what it saw already is bad."""
        estimate = self.estimate
        return bool(estimate.ended) and (estimate.settled or not estimate.kept)


def overload_bound(load: float, served_share: float | None) -> float:
    """Return what the limit is below, where so much of a load was served."""
    return load if served_share is None else load * min(1.0, _SERVED * served_share)


class LimitDistribution:
    """The distribution of the least of several SLOs' limits, each shown by its own evidence."""

    def __init__(
        self, evidence: Sequence[Sequence[LimitEvidence]], lowest: float, highest: float
    ) -> None:
        ends = log(lowest / 2), log(highest * 2)
        for _ in range(_ZOOMS):
            self._places = np.linspace(*ends, _PLACES)
            self._below = _least([_distribution(each, self._places) for each in evidence])
            tails = [_TAIL, (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2, 1 - _TAIL]
            first, low, high, last = (int(at) for at in np.searchsorted(self._below, tails))
            first, last = max(0, first - 2), min(_PLACES - 1, last + 2)
            if high - low >= _ENOUGH or last - first > _SAME * _PLACES:
                break
            ends = float(self._places[first]), float(self._places[last])

    def quantile(self, share: float) -> float:
        return exp(float(np.interp(share, self._below, self._places)))

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        tail = (1 - confidence) / 2
        return Interval(self.quantile(tail), self.quantile(1 - tail))


def _least(each: Sequence[Floats]) -> Floats:
    """Return the distribution function of the least of independent numbers."""
    above = np.ones(_PLACES)
    for below in each:
        above *= 1 - below
    return 1 - above


def _distribution(evidence: Sequence[LimitEvidence], places: Floats) -> Floats:
    odds = np.zeros((len(_SLOPES), _PLACES)) - np.log(np.maximum(_SLOPES / _STEEP, 1))
    for each in evidence:
        odds += np.logaddexp(log(1 - _SURPRISE) + _log_fit(each, evidence, places), log(_SURPRISE))
    weight = np.exp(odds - odds.max()).sum(axis=0)
    below = np.cumsum(weight)
    return np.asarray(below / below[-1], dtype=np.float64)


def _log_fit(each: LimitEvidence, evidence: Sequence[LimitEvidence], places: Floats) -> Floats:
    """Return how well each curve and place of the limit explain what a probe met; 0 is best."""
    fit = np.zeros((len(_SLOPES), _PLACES))
    if each.bound is not None:
        edge = sqrt(_EDGE**2 + 1 / max(1, each.estimate.ended))  # and a count's own error
        fit += _log_logistic(1.7 / edge * (log(each.bound) - places))
    if each.far:
        return fit + _log_beyond(each, places)
    if each.bound is None and each.counts:
        fit += _log_likelihood(each, _inflation_near(each, evidence), places)
    return fit


def _inflation_near(each: LimitEvidence, evidence: Sequence[LimitEvidence]) -> tuple[float, int]:
    """Return inflation and its degrees of freedom, of a probe and its nearest neighbours together.

    A probe's own would not do: where by chance many requests are over, they are over in clusters,
    and the inflation is large too. Weighing by it favours the probes that were lucky.
    """

    def distance(other: LimitEvidence) -> float:
        return abs(log(other.load / each.load))

    some = [o for o in evidence if o.bound is None and o.estimate.ended and distance(o) < _NEAR]
    near = [o.estimate for o in sorted(some, key=distance)[:_NEIGHBOURS]]
    return pooled_inflation(near), min(_SURE_DOF, sum(o.dof for o in near))


def _logits(each: LimitEvidence, places: Floats) -> Floats:
    """Return what each curve and place of the limit make of the share at the load of a probe."""
    allowed = each.estimate.slo.allowed_share
    return _logit(allowed) + _apart(each, places)


def _apart(each: LimitEvidence, places: Floats) -> Floats:
    """Return how far a probe's load is from each place of the limit, in logits of the share."""
    apart = _SLOPES * np.expm1(_BENDS * (log(each.load) - places)) / _BENDS
    return np.asarray(apart, dtype=np.float64)


def _logit(share: float) -> float:
    return log(share / (1 - share))


def _log_beyond(each: LimitEvidence, places: Floats) -> Floats:
    """Return how well each curve and place of the limit explain that the share is so far away."""
    side = 1 if each.far > each.estimate.slo.allowed_share else -1
    return _log_logistic(side * (_logits(each, places) - _logit(each.far)) / _BLUR)


def _log_likelihood(each: LimitEvidence, inflation: tuple[float, int], places: Floats) -> Floats:
    """Return, for each curve and place of the limit, how well it explains the requests that were
    over; 0 is the best explanation there is."""
    estimate = each.estimate
    worth = known_variance(inflation[1], CONFIDENCE) / inflation[0]
    over, ended = estimate.over * worth, estimate.ended * worth
    apart, logit = _apart(each, places), _logits(each, places)
    log_over, log_within = _log_logistic(logit), _log_logistic(-logit)
    best = sum(n * log(n / ended) for n in (over, ended - over) if n > 0)
    bent = ended * np.exp(log_over + log_within) * (_BEND * apart) ** 2
    fit = (over * log_over + (ended - over) * log_within - best) / (1 + bent) - np.log1p(bent) / 2
    return np.asarray(fit - fit.max(), dtype=np.float64)


def _log_logistic(x: Floats) -> Floats:
    return -np.logaddexp(0.0, -x)


def seconds_to_narrow(seconds: float, interval: Interval, target: float) -> float:
    """Return how long a search takes in all until its interval is `target` wide, as a share of its
    middle: an interval's width falls with the square root of the time. Endless if it has no end."""
    if not 0 < interval.low < interval.high < inf:
        return inf
    return seconds * (log(interval.high / interval.low) / target) ** 2
