"""Queues whose limit is known exactly, and a capacity search on them.

One server, first come first served, Poisson arrivals. Its response times come from Lindley's
recursion; a probe is made of windows of one second and ends as soon as it is judged.

    M/M/1   the response is exponential with rate mu - load, so the limit for a share p over T is
            mu - ln(1/p) / T
    M/D/1   the waiting time's distribution is Erlang's sum (1909); the limit is found by halving
"""

from decimal import Decimal, localcontext
from math import ceil, factorial, floor, inf, log, sqrt

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kv_cache.metrics.slo import parse_slos
from kv_cache.metrics.steady import LEAST_WINDOWS, WindowSample, backlog_grows, trends
from kv_cache.schedule.capacity import CapacityAnswer, CapacitySearch, SearchRules
from kv_cache.schedule.probe import LEAST_BATCHES, ProbeCount, ProbeStatus, ProbeVerdict, judge

SLOS = parse_slos("interactive:p95<20ms")
"""Of its limit only the percentile is used: responses are compared with the queue's own."""
ALLOWED = SLOS[0].allowed_share
_LOOKS = 120

Floats = NDArray[np.float64]


class Queue(Struct, frozen=True, kw_only=True):
    """`far` is the limit of the SLO in multiples of the unloaded p95 of the response."""

    service_s: float
    constant: bool
    far: float

    def __str__(self) -> str:
        kind = "M/D/1" if self.constant else "M/M/1"
        return f"{kind} of {1000 * self.service_s:g} ms, {self.far:g} times its unloaded p95"

    @property
    def limit_s(self) -> float:
        unloaded = self.service_s if self.constant else self.service_s * log(1 / ALLOWED)
        return self.far * unloaded

    @property
    def capacity(self) -> float:
        """Return the load at which just the allowed share is over."""
        if not self.constant:
            return 1 / self.service_s - log(1 / ALLOWED) / self.limit_s
        low, high = 1e-6 / self.service_s, 0.99999 / self.service_s
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.share_over(middle) < ALLOWED else (low, middle)
        return low

    def share_over(self, load: float) -> float:
        """Return P(wait > T - D) of M/D/1, whose sum has alternating signs and loses digits."""
        with localcontext(prec=60):
            rho = Decimal(load * self.service_s)
            wait = Decimal(self.limit_s / self.service_s) - 1
            total = sum(
                (-rho * (wait - k)) ** k / factorial(k) * (rho * (wait - k)).exp()
                for k in range(floor(wait) + 1)
            )
            return float(1 - (1 - rho) * total)

    @property
    def steepness(self) -> float:
        """Return by how much the logit of the share over the limit rises at it, for each 1/s."""
        if not self.constant:
            return self.limit_s / (1 - ALLOWED)
        step = 0.01 * min(self.capacity, 1 / self.service_s - self.capacity)
        below, above = (self.share_over(self.capacity + away) for away in (-step, step))
        return (log(above / (1 - above)) - log(below / (1 - below))) / (2 * step)

    def responses(
        self, load: float, dice: np.random.Generator, seconds: float, slow: "Slow | None" = None
    ) -> tuple[Floats, Floats]:
        """Return instants of arrival and of departure, in s."""
        count = round(seconds * load + 6 * sqrt(seconds * load)) + 50
        arrived = np.cumsum(dice.standard_exponential(count) / load)
        served = np.full(count, 1.0) if self.constant else dice.standard_exponential(count)
        served *= self.service_s
        if slow is not None:
            served[(slow.from_s <= arrived) & (arrived < slow.until_s)] *= slow.factor
        before = np.concatenate(([0.0], np.cumsum(served)[:-1]))
        left = np.maximum.accumulate(arrived - before) + np.cumsum(served)
        came = arrived < seconds
        return arrived[came], left[came]


class Slow(Struct, frozen=True, kw_only=True):
    """A time in which each request takes `factor` times as long, in seconds of its probe."""

    from_s: float
    until_s: float
    factor: float


def probe(
    queue: Queue,
    load: float,
    dice: np.random.Generator,
    warmup_s: int,
    longest_s: int,
    slow: Slow | None = None,
) -> tuple[ProbeVerdict, int]:
    """Return what a probe shows, and how many seconds it took."""
    arrived, left = queue.responses(load, dice, warmup_s + longest_s, slow)
    used = np.minimum((left - arrived) / queue.limit_s, 1 + 1e-9)
    window, asked = np.floor(left - warmup_s).astype(int), np.floor(arrived - warmup_s).astype(int)
    inside = (window >= 0) & (window < longest_s)

    def binned(values: Floats | None = None) -> Floats:
        return np.bincount(window[inside], values, minlength=longest_s).astype(float)

    overs = binned((used > 1)[inside].astype(float)).astype(int)
    ended, part = binned().astype(int), np.minimum(used, 1)[inside]
    counts = zip(overs, ended, binned(part), binned(part**2), strict=True)
    batches = [(ProbeCount(int(o), int(n), float(u), float(q)),) for o, n, u, q in counts]
    submitted = np.bincount(asked[(asked >= 0) & (asked < longest_s)], minlength=longest_s)
    for took in range(LEAST_BATCHES, longest_s + 1, max(1, longest_s // _LOOKS)):
        judged = judge(SLOS, batches[:took], longest=longest_s)
        sure = judged.status is ProbeStatus.INSIDE and took >= LEAST_WINDOWS
        if sure or judged.status is ProbeStatus.OUTSIDE:
            break
    asked_for, answered = int(submitted[:took].sum()), int(ended[:took].sum())
    backlog = np.searchsorted(arrived, warmup_s + 1 + np.arange(took)) - np.searchsorted(
        np.sort(left), warmup_s + 1 + np.arange(took)
    )
    trend = trends(
        [WindowSample(i, i + 1, 0, int(backlog[i]), int(submitted[i])) for i in range(took)]
    )
    unanswered = asked_for - answered
    return ProbeVerdict(
        judged=judged,
        overloaded=backlog_grows(trend["backlog_growth_share"], trend["backlog_t"], 0.05)
        or unanswered > max(0.1 * asked_for, 4 * sqrt(2 * asked_for)),
        served_share=min(1.0, answered / asked_for) if asked_for else None,
        offered=asked_for / took,
    ), took


def rules_of(
    queue: Queue, *, probe_s: float = 60, first: float = 10, resolution: float = 0.03
) -> SearchRules:
    """Return the rules as the command makes them: a probe lasts for five limits at least."""
    return SearchRules(
        first=first,
        highest=1e5,
        lowest=0.1,
        whole=False,
        probe_s=max(probe_s, 5 * queue.limit_s),
        resolution=resolution,
    )


def searched(
    queue: Queue,
    seed: int,
    *,
    probe_s: float = 60,
    first: float = 10,
    resolution: float = 0.03,
    slow_probe: int | None = None,
    slow: Slow | None = None,
) -> CapacityAnswer:
    """Search as the command does by default; the `slow_probe`-th meets a `slow` time."""
    dice = np.random.default_rng(seed)
    rules = rules_of(queue, probe_s=probe_s, first=first, resolution=resolution)
    search = CapacitySearch(rules)
    warmup_s = ceil(max(10, queue.limit_s))
    while (load := search.next_load()) is not None:
        met = slow if len(search.steps) + 1 == slow_probe else None
        search.report(load, *probe(queue, load, dice, warmup_s, int(search.next_seconds), met))
    return search.answer


def holds(answer: CapacityAnswer, limit: float) -> bool:
    return answer.low <= limit <= (inf if answer.high is None else answer.high)
