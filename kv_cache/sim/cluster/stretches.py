"""What each stretch of a run's requests found: the same ranges of request numbers in every variant,
so that variants can be compared on one trace, of which all seeds are one run.

Shares are of sums, and a stretch contributes to them by what it has beyond its part of both (the
linear part of a ratio's error: Cochran, Sampling Techniques, 1977, 6.3), so that the mean of all
stretches is the run's. Percentiles are those of the stretch, and of times between tokens those that
ended while its requests arrived. Rates are of as many equal parts of the window: where more is
asked than served, how long the rest takes is one number, and no sample of many.
"""

from collections.abc import Iterator
from math import ceil

import numpy as np
import numpy.typing as npt

from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.sim.cluster.facts import gaps_ms
from kv_cache.sim.cluster.outcome import ClusterOutcome

MOST_STRETCHES, LEAST_STRETCHES = 40, 20
"""More tell better how alike neighbours are; of fewer nothing is told (benchmarks/order.py)."""
_LEAST_REQUESTS = 5  # of a stretch, for a share or a rate
_PERCENTS = {"p50": 50, "p95": 95, "p99": 99}

Numbers = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def stretch_values(outcome: ClusterOutcome) -> dict[str, list[float]]:
    """Return the values of the stretches behind the warm-up, by the paths of the facts. A number is
    left out where there are too few requests for 20 stretches, or a stretch has none of it."""
    values = dict(_percentiles(outcome)) | dict(_ratios(outcome)) | dict(_gaps(outcome))
    return {path: each.tolist() for path, each in values.items() if np.isfinite(each).all()}


def _stretches(outcome: ClusterOutcome, least: int) -> tuple[int, Ints]:
    """Return how many stretches of `least` requests there are (0: too few), and of which each
    finished request is."""
    every = outcome.requests
    count = min(MOST_STRETCHES, every.measured_arrived // least)
    if count < LEAST_STRETCHES:
        return 0, np.empty(0, np.int64)
    behind = _ints(every.number) - outcome.scenario.workload.warmup_requests
    return count, behind * count // every.measured_arrived


def _percentiles(outcome: ClusterOutcome) -> Iterator[tuple[str, Numbers]]:
    """Yield percentiles by nearest rank, of which a stretch has one value at least beyond."""
    every = outcome.requests
    times = {
        "ttft_ms": every.ttft_ns, "ttft_with_transfer_ms": every.ttft_with_transfer_ns,
        "tpot_ms": every.tpot_ns, "e2e_ms": every.e2e_ns, "queue_ms": every.queue_ns,
    }  # fmt: skip
    for percent, number in _PERCENTS.items():
        count, stretches = _stretches(outcome, ceil(100 / (100 - number)))
        for name, values in times.items() if count else ():
            some = _ints(values)
            ranked = [np.sort(some[(stretches == each) & (some >= 0)]) for each in range(count)]
            yield f"{name}.{percent}", np.array([_at(part, number) for part in ranked])


def _gaps(outcome: ClusterOutcome) -> Iterator[tuple[str, Numbers]]:
    """Yield percentiles of the times between tokens that ended while each part of the requests
    arrived: a last part that is less than half of the others belongs to the one before."""
    parts, arrived = list(outcome.itl_parts), outcome.requests.measured_arrived
    each = 1
    while each * len(parts) < arrived:
        each *= 2
    if arrived - each * (len(parts) - 1) < each / 2:
        last = parts.pop()
        parts[-1] = parts[-1] + last
    if len(parts) < LEAST_STRETCHES:
        return
    spreads = [gaps_ms(part) for part in parts]
    for percent in ("p50", "p99"):
        known = [spread[percent] for spread in spreads]
        yield f"itl_ms.{percent}", np.array([np.nan if ms is None else ms for ms in known])


def _at(ranked: Ints, percent: int) -> float:
    if not len(ranked):
        return np.nan
    return float(ranked[-(-percent * len(ranked) // 100) - 1]) / NS_PER_MS


def _ratios(outcome: ClusterOutcome) -> Iterator[tuple[str, Numbers]]:
    count, stretches = _stretches(outcome, _LEAST_REQUESTS)
    if not count:
        return
    every, block = outcome.requests, outcome.scenario.model.block_tokens
    good, window_ns = _good(outcome), outcome.ended_ns - outcome.began_ns

    def sums(weights: Numbers | Ints) -> Numbers:
        return np.bincount(stretches, weights=weights, minlength=count).astype(np.float64)

    places = np.arange(every.measured_arrived) * count // every.measured_arrived
    arrived = np.bincount(places, minlength=count).astype(np.float64)
    looked_up = sums(_ints(every.prompt_tokens) // block)
    yield "blocks.hit_ratio", _parts(sums(_ints(every.hit_tokens) // block), looked_up)
    if good is not None:
        yield "goodput.share", _parts(sums(good), arrived)
    if window_ns <= 0:
        return
    ends = _ints(every.arrival_ns) + _ints(every.e2e_ns) - outcome.began_ns
    parts = np.minimum(ends // -(-window_ns // count), count - 1)

    def per_s(weights: Numbers | Ints) -> Numbers:
        each = np.bincount(parts, weights=weights, minlength=count)
        return np.asarray(each * (count / window_ns * NS_PER_S))

    yield "rates.finished_per_s", per_s(np.ones(len(parts)))
    yield "rates.output_tokens_per_s", per_s(_ints(every.output_tokens))
    if good is not None:
        yield "goodput.per_s", per_s(good)


def _parts(numerators: Numbers, denominators: Numbers) -> Numbers:
    """Return each stretch's part of a ratio of sums: their mean is the ratio."""
    if not denominators.sum():
        return np.full(len(numerators), np.nan)
    ratio = numerators.sum() / denominators.sum()
    return np.asarray(ratio + (numerators - ratio * denominators) / denominators.mean())


def _good(outcome: ClusterOutcome) -> Numbers | None:
    """Return 1 of each finished request that kept every limit; None without limits."""
    slo, every = outcome.scenario.slo, outcome.requests
    kept: Numbers | None = None
    for limit_ms, values in (
        (slo.ttft_ms, every.ttft_ns), (slo.ttft_with_transfer_ms, every.ttft_with_transfer_ns),
        (slo.tpot_ms, every.tpot_ns), (slo.e2e_ms, every.e2e_ns),
    ):  # fmt: skip
        if limit_ms:
            within = (_ints(values) <= limit_ms * NS_PER_MS).astype(np.float64)
            kept = within if kept is None else kept * within
    return kept


def _ints(values: object) -> Ints:
    return np.asarray(values, np.int64)
