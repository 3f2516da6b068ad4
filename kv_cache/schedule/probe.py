"""One probe of a capacity search: whether a load keeps its SLOs, as its batches of requests show.

A load is judged by the share of requests over the limit of an SLO, and a probe ends early, as in
MLPerf LoadGen's `early_stopping`, once that share's binomial interval is on one side of what is
allowed. Two things are added, without which such an interval is too narrow: latencies that follow
one another are alike (`SloEstimate.inflation`), and a probe that is looked at often crosses a bound
by chance once (`strictness`).
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from math import ceil, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

from msgspec import Struct

from kv_cache.metrics.intervals import (
    CONFIDENCE,
    Interval,
    share_at_least,
    share_at_most,
    share_interval,
    t_quantile,
)
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import Window


class ProbeCount(NamedTuple):
    """Of the requests of an SLO's class that ended in one batch, how many were over its limit.

    `used` is the sum of their latencies as shares of the limit, each at most 1, and `squares` that
    of its squares: how alike requests are shows in them also where none is over.
    """

    over: int
    ended: int
    used: float = 0.0
    squares: float = 0.0


Batch = Sequence[ProbeCount]
"""One count for each SLO, in their order."""


def counts_of(window: Window, slos: Sequence[Slo]) -> tuple[ProbeCount, ...]:
    """Return the batch that a window is; its meter was made with these SLOs."""
    classes = [window.classes[slo.qos] for slo in slos]
    return tuple(
        ProbeCount(c.over[i], c.ended, c.used[i], c.used_squares[i]) for i, c in enumerate(classes)
    )


class ProbeStatus(StrEnum):
    """What a probe says about its load."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    OPEN = "open"  # not known well enough


LEAST_BATCHES = 5
"""Fewer say nothing about how alike their requests are, so nothing is decided on them."""
MOST_BATCHES = 20
"""Neighbours are put together until at most this many are left: what is alike across two short
batches must lie within one (Schmeiser, "Batch size effects", Operations Research 30, 1982: 10 to
30 batches are enough, however long the run)."""
MOST_CORRELATION = 0.4
"""Of neighbouring batches. Above, a probe is not some ten times as long as its queue's memory: it
began empty, and has not seen yet what its load leads to. So it cannot say that an SLO is kept."""
_CORRELATED = 0.1
_SETTLING = 0.2
"""Part of a probe that is left out as its queue's beginning, where batches are correlated."""
_OVER_BATCHES = 8
"""Batches with a request over the limit that tell how these cluster; of fewer, all latencies do."""


class SloEstimate(Struct, frozen=True, kw_only=True):
    """What the batches so far show of one SLO.

    `inflation` is how much more the share varies from batch to batch than it would with independent
    requests, at least 1; `dof` that estimate's degrees of freedom. It is of `effect`, the variance
    between batches over that of independent requests (the design effect), and of `correlation`,
    that of the latencies of neighbouring batches; both may by chance be less than they can be.
    """

    slo: Slo
    over: int
    ended: int
    inflation: float
    dof: int
    correlation: float = 0.0
    effect: float = 1.0

    @property
    def settled(self) -> bool:
        """Whether the probe was long against its queue's memory."""
        return self.correlation <= MOST_CORRELATION

    @property
    def share(self) -> float | None:
        """The share of requests over the limit; None when none ended."""
        return self.over / self.ended if self.ended else None

    @property
    def kept(self) -> bool | None:
        """Whether the SLO is kept, by the share alone; None when no request of the class ended."""
        return None if self.share is None else self.share <= self.slo.allowed_share

    def effective(self, confidence: float) -> tuple[float, float]:
        """(over, ended) as if of independent requests: fewer than there are, and fewer again as
        the inflation is itself estimated (Korn and Graubard, Survey Methodology 24, 1998)."""
        scale = known_variance(self.dof, confidence) / self.inflation
        return self.over * scale, self.ended * scale

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Return the interval of the share."""
        return share_interval(*self.effective(confidence), confidence)

    def status(self, confidence: float, of: int = 1) -> ProbeStatus:
        """Return on which side of what is allowed the whole interval is. With `of` SLOs, any of
        which may be missed by chance, being outside takes that much more."""
        if not self.ended:
            return ProbeStatus.OPEN
        over, ended = self.effective(confidence)
        tail, allowed = (1 - confidence) / 2, self.slo.allowed_share
        if self.settled and share_at_most(over, ended, allowed) <= tail:
            return ProbeStatus.INSIDE
        outside = share_at_least(over, ended, allowed) <= tail / of
        return ProbeStatus.OUTSIDE if outside else ProbeStatus.OPEN

    @property
    def excess(self) -> float:
        """The logarithm of the share over what is allowed: below 0 inside. Half a request is added,
        so that it is finite with none over.

        On this scale a queue's load is nearly a straight line: the chance to wait longer than T is
        about exp(-(capacity - load) T), exactly so for M/M/1.
        """
        return log((self.over + 0.5) / (self.ended + 1)) - log(self.slo.allowed_share)


class Judged(Struct, frozen=True, kw_only=True):
    """A probe so far. It is `INSIDE` when every SLO surely is kept, `OUTSIDE` when one surely is
    not."""

    estimates: tuple[SloEstimate, ...]
    status: ProbeStatus
    batches: int

    @property
    def leaning(self) -> ProbeStatus:
        """Status by the shares alone, never open. A class of which nothing ended shows nothing
        kept."""
        kept = all(estimate.kept for estimate in self.estimates)
        return ProbeStatus.INSIDE if kept else ProbeStatus.OUTSIDE


def judge(slos: Sequence[Slo], batches: Sequence[Batch], *, longest: int) -> Judged:
    """Judge a probe that lasts for `longest` batches unless it is sure before. It may be called
    after each batch: all looks together are wrong in no more than 1 - `CONFIDENCE` of probes."""
    if not slos:
        raise ValueError("a probe without an SLO cannot be judged")
    estimates = tuple(_estimate(p, [batch[i] for batch in batches]) for i, p in enumerate(slos))
    status = ProbeStatus.OPEN
    if len(batches) >= LEAST_BATCHES:
        looks = max(longest, len(batches))
        status = together(estimates, strictness(CONFIDENCE, len(batches), looks))
    return Judged(estimates=estimates, status=status, batches=len(batches))


def decided(judged: Judged) -> ProbeStatus:
    """Return the status at the end of the longest probe: by the shares, if they were not sure."""
    return judged.leaning if judged.status is ProbeStatus.OPEN else judged.status


def together(estimates: Sequence[SloEstimate], confidence: float) -> ProbeStatus:
    each = [estimate.status(confidence, of=len(estimates)) for estimate in estimates]
    if ProbeStatus.OUTSIDE in each:
        return ProbeStatus.OUTSIDE
    return ProbeStatus.OPEN if ProbeStatus.OPEN in each else ProbeStatus.INSIDE


@lru_cache(maxsize=4096)
def strictness(confidence: float, batches: int, longest: int) -> float:
    """Return the confidence of one look of many, after O'Brien and Fleming (Biometrics 35, 1979).

    The error of a running sum is a Brownian motion. By the reflection principle, the chance that it
    ever leaves [-c, c] in the time of the longest probe is at most twice that of being outside at
    its end. So c is taken at half the error that is allowed, and at the part t of the time it is
    c / sqrt(t) standard errors of what there is then.
    """
    normal = NormalDist()
    bound = normal.inv_cdf(1 - (1 - confidence) / 4) * sqrt(longest / batches)
    return 1 - max(2 * normal.cdf(-bound), 1e-12)


def _estimate(slo: Slo, counts: Sequence[ProbeCount]) -> SloEstimate:
    whole = _estimate_of(slo, counts)
    if whole.correlation <= _CORRELATED:
        return whole
    return _estimate_of(slo, counts[int(_SETTLING * len(counts)) :])


def _estimate_of(slo: Slo, counts: Sequence[ProbeCount]) -> SloEstimate:
    grouped = _grouped(counts)
    over, ended = sum(c.over for c in counts), sum(c.ended for c in counts)
    r, effect = _correlation(grouped), _effect(grouped)
    return SloEstimate(
        slo=slo,
        over=over,
        ended=ended,
        inflation=_inflation(effect, r),
        dof=max(1, len(grouped) - 1),
        correlation=r,
        effect=effect,
    )


def pooled(estimates: Sequence[SloEstimate]) -> SloEstimate:
    """Return the estimate of all probes at one load together."""
    return SloEstimate(
        slo=estimates[0].slo,
        over=sum(estimate.over for estimate in estimates),
        ended=sum(estimate.ended for estimate in estimates),
        inflation=pooled_inflation(estimates),
        dof=sum(estimate.dof for estimate in estimates),
        correlation=max(estimate.correlation for estimate in estimates),
    )


def pooled_inflation(estimates: Sequence[SloEstimate]) -> float:
    """Return the inflation of all together, weighted by the requests. What chance takes from one
    probe's variance it adds to another's, so the least is taken of their mean."""
    ended = sum(estimate.ended for estimate in estimates)
    if not ended:
        return 1.0
    effect = sum(estimate.effect * estimate.ended for estimate in estimates) / ended
    return _inflation(effect, sum(e.correlation * e.ended for e in estimates) / ended)


def _inflation(effect: float, correlation: float) -> float:
    r = max(0.0, correlation)
    return max(1.0, effect) * (1 + r) / (1 - r)


def _grouped(counts: Sequence[ProbeCount]) -> list[ProbeCount]:
    """Group batches into as few and long ones as `MOST_BATCHES` wants."""
    size = ceil(len(counts) / MOST_BATCHES)
    if size <= 1:
        return list(counts)
    groups = (counts[i : i + size] for i in range(0, len(counts), size))
    return [ProbeCount(*map(sum, zip(*group, strict=True))) for group in groups]


def _effect(batches: Sequence[ProbeCount]) -> float:
    """Return the variance from batch to batch over that of independent requests: of the share over
    the limit, and where that is of too few batches, of the part of the limit that was used too."""
    overs = _design_effect([(b.over, b.over, b.ended) for b in batches])
    if sum(b.over > 0 for b in batches) >= _OVER_BATCHES:
        return overs
    return max(overs, _design_effect([(b.used, b.squares, b.ended) for b in batches]))


def _design_effect(batches: Sequence[tuple[float, float, int]]) -> float:
    """Return the variance of a mean between batches (the ratio estimator's, as batches differ in
    size) over that of as many independent values. A batch is sum, sum of squares and number of its
    values; of values that are all alike nothing is seen."""
    ended = sum(n for _, _, n in batches)
    if len(batches) < 2 or not ended:
        return 1.0
    mean = sum(total for total, _, _ in batches) / ended
    variance = sum(squares for _, squares, _ in batches) / ended - mean * mean
    if variance <= _NO_VARIANCE:
        return 1.0
    between = sum((total - mean * n) ** 2 for total, _, n in batches)
    return between * len(batches) / (len(batches) - 1) / (ended * variance)


_NO_VARIANCE = 1e-12  # what rounding leaves


def _correlation(batches: Sequence[ProbeCount]) -> float:
    """Return the correlation of neighbouring batches' latencies, less what so few hide of it."""
    ended = sum(b.ended for b in batches)
    if len(batches) < _LEAST_CORRELATED or not ended:
        return 0.0
    mean = sum(b.used for b in batches) / ended
    away = [b.used - mean * b.ended for b in batches]
    whole = sum(x * x for x in away)
    if whole <= _NO_VARIANCE * ended:
        return 0.0
    r = sum(x * y for x, y in pairwise(away)) / whole + 1 / len(batches)
    return min(_MOST_R, r)


_LEAST_CORRELATED, _MOST_R = 4, 0.95


@lru_cache(maxsize=4096)
def known_variance(dof: int, confidence: float) -> float:
    """Return by how much fewer counts an interval needs when the variance is known: (z / t)²."""
    probability = 1 - (1 - confidence) / 2
    return float((NormalDist().inv_cdf(probability) / t_quantile(probability, dof)) ** 2)


class ProbeVerdict(Struct, frozen=True, kw_only=True):
    """What is reported of a probe.

    `overloaded`: the backlog grew throughout, so that no steady state was there to be judged.
    `client_bound`: the client did not make the load, so that nothing is known of it.
    `served_share`: how much of what was offered was served in the probe's time; None if not known.
    `offered` is the load that came, where it is one of chance; None where it is the nominal one.
    """

    judged: Judged
    overloaded: bool = False
    client_bound: bool = False
    served_share: float | None = None
    offered: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the load failed with confidence, and not because of the client."""
        sure = self.overloaded or self.judged.status is ProbeStatus.OUTSIDE
        return sure and not self.client_bound

    @property
    def too_short(self) -> bool:
        """Whether it decided nothing, as it was short against its queue's memory."""
        unsettled = not all(estimate.settled for estimate in self.judged.estimates)
        return self.judged.status is ProbeStatus.OPEN and not self.overloaded and unsettled

    @property
    def inside(self) -> bool:
        kept = decided(self.judged) is ProbeStatus.INSIDE
        return kept and not self.overloaded and not self.client_bound
