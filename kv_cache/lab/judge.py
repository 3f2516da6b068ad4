"""Whether policies may be put in an order, and where a policy fails.

A difference is shown, or it is not. Seeds are repeated, and two policies are told apart only where
the intervals of their means do not overlap. One trace is one sample; its stretches, which every
policy saw, represent others like it (batch means: Conway, "Some tactical problems in digital
simulation", Management Science 10(1), 1963): two policies are told apart where the mean of their
differences has an interval that leaves out 0. Stretches that follow one another are alike, and so
count for fewer than they are.

Fifteen policies make a hundred pairs, some of which differ by chance alone. So all intervals of a
comparison hold together with `CONFIDENCE` (Bonferroni). What is shown but smaller than
`LEAST_DIFFERENCE` is too small to pick a policy by. And if nearly every miss is the first access of
its block, no policy could have done much: then there is no order, however small the intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import sqrt
from statistics import fmean, stdev

from kv_cache.core.bounded import Number
from kv_cache.metrics.intervals import CONFIDENCE, bounded_interval, t_quantile
from kv_cache.metrics.order import LEAST_SEEDS, MOST_COMPULSORY, compulsory_share

LEAST_DIFFERENCE = 0.001
"""Of the lookups: 0.1 points."""
_MOST_ALIKE = 0.9  # of neighbours; more can not be told from a trend


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOrder:
    """`beaten_by` has for each policy those that are shown to be better. None if none is shown to
    be better than any. It is not a ranking: of three, the first may be shown to beat the last, and
    the one between to be neither worse than the first nor better than the last. `why` says by what
    the order is, or why there is none."""

    beaten_by: Mapping[str, Sequence[str]] | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Hit ratios of one policy: over all, and of each seed (or stretch), in the same order for
    all."""

    policy: str
    mean: float
    values: Sequence[float]


Apart = Callable[[Shares, Shares], bool]
"""Whether the first is better than the second beyond doubt."""
MakeApart = Callable[[Sequence[Shares]], Apart]
"""Of all that are compared with one another."""


def dominated(compulsory: float, misses: float) -> str | None:
    """Return why there is no order if most misses of the worst policy are first accesses; None if
    there may be one."""
    if not misses:
        return "there are no misses"
    if compulsory_share(compulsory, misses) is None:
        return None
    return f"first accesses are {100 * MOST_COMPULSORY:.0f} % of the worst one's misses, or more"


def order_by_seeds(some: Sequence[Shares]) -> PolicyOrder:
    """Policies by the intervals of their means."""
    seeds = len(some[0].values) if some else 0
    if seeds < LEAST_SEEDS:
        return PolicyOrder(beaten_by=None, why=f"{seeds} seeds are fewer than {LEAST_SEEDS}")
    return _order(some, apart_by_seeds(some), f"intervals over {seeds} seeds")


def order_by_stretches(some: Sequence[Shares]) -> PolicyOrder:
    """Policies by their differences in each stretch of one trace."""
    return _order(some, apart_by_stretches(some), "differences in stretches of the trace")


def _order(some: Sequence[Shares], apart: Apart, by: str) -> PolicyOrder:
    if len(some) < 2:
        return PolicyOrder(beaten_by=None, why="there is one policy")
    beaten_by = {
        row.policy: [better.policy for better in some if better is not row and apart(better, row)]
        for row in some
    }
    if not any(beaten_by.values()):
        return PolicyOrder(beaten_by=None, why=f"the {by} show none to be better")
    return PolicyOrder(beaten_by=beaten_by, why=f"by {by}, {100 * CONFIDENCE:.0f} %")


def apart_by_seeds(some: Sequence[Shares]) -> Apart:
    """Tell two policies apart by intervals that do not overlap, and hold for all of these policies
    together."""
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(some))

    def apart(better: Shares, worse: Shares) -> bool:
        high = bounded_interval(better.values, confidence, 1.0)
        low = bounded_interval(worse.values, confidence, 1.0)
        return (
            high is not None and low is not None and high.low > low.high
            and better.mean - worse.mean >= LEAST_DIFFERENCE
        )  # fmt: skip

    return apart


def apart_by_stretches(some: Sequence[Shares]) -> Apart:
    """Tell two policies apart by a mean difference whose interval leaves out 0, and holds for all
    pairs of these policies together. How alike neighbours are is taken from the pair, or from the
    mean of all pairs if that is more: of one pair it is known too badly for so small a tail."""
    tail = (1 - CONFIDENCE) / max(1, len(some) * (len(some) - 1))
    pairs = [_alike(_differences(a, b)) for a, b in combinations(some, 2)]
    usual = fmean(pairs) if pairs else 0.0

    def apart(better: Shares, worse: Shares) -> bool:
        differences = _differences(better, worse)
        if len(differences) < 2 or better.mean - worse.mean < LEAST_DIFFERENCE:
            return False
        alike = min(max(0.0, usual, _alike(differences)), _MOST_ALIKE)
        count = len(differences) * (1 - alike) / (1 + alike)
        if count < 2:
            return False
        reach = _quantile(1 - tail, round(count - 1, 3)) * stdev(differences) / sqrt(count)
        return fmean(differences) > reach

    return apart


def _differences(better: Shares, worse: Shares) -> list[float]:
    return [a - b for a, b in zip(better.values, worse.values, strict=True)]


def _alike(values: Sequence[float]) -> float:
    """Return the correlation of neighbours, without the bias of a short series (Kendall, Biometrika
    41, 1954)."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    spread = sum((value - mean) ** 2 for value in values)
    if not spread:
        return 0.0
    shared = sum((a - mean) * (b - mean) for a, b in pairwise(values)) / spread
    return shared + (1 + 3 * shared) / len(values)


@lru_cache(maxsize=4096)
def _quantile(probability: float, dof: float) -> float:
    return t_quantile(probability, dof)


# --- where a policy fails --------------------------------------------------------------------

BASELINES = ("random", "fifo", "lru")
LEAST_TO_FIND = 0.01
"""Of the lookups: what MIN must find for a policy without any hit to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFailure:
    """`kind` is below-random, below-fifo, below-lru, no-hits (what MIN finds stands `against` it)
    or more-room-fewer-hits (what it found with less room does)."""

    policy: str
    capacity: str
    kind: str
    hit_ratio: Number
    against: Number


def failures(
    table: Mapping[str, Sequence[Shares]], bound: Mapping[str, float], make_apart: MakeApart
) -> list[PolicyFailure]:
    """Return the failures at each capacity (the smaller before the larger), beside what MIN finds
    there."""
    failed: list[PolicyFailure] = []
    for capacity, some in table.items():
        known, apart = {row.policy: row for row in some}, make_apart(some)
        for row in some:
            failed += _below(row, known, capacity, apart)
            if row.mean == 0 and bound[capacity] >= LEAST_TO_FIND:
                failed.append(_failure(row, capacity, "no-hits", bound[capacity]))
    return failed + _anomalies(table, make_apart)


def _below(
    row: Shares, known: Mapping[str, Shares], capacity: str, apart: Apart
) -> Sequence[PolicyFailure]:
    return [
        _failure(row, capacity, f"below-{name}", known[name].mean)
        for name in BASELINES
        if name in known and name != row.policy and apart(known[name], row)
    ]


def _anomalies(table: Mapping[str, Sequence[Shares]], make_apart: MakeApart) -> list[PolicyFailure]:
    """Belady's anomaly (CACM 12(6), 1969): more room, fewer hits."""
    failed: list[PolicyFailure] = []
    before: dict[str, Shares] = {}
    for capacity, some in table.items():
        apart = make_apart(some)
        for row in some:
            smaller = before.get(row.policy)
            if smaller is not None and apart(smaller, row):
                failed.append(_failure(row, capacity, "more-room-fewer-hits", smaller.mean))
            before[row.policy] = row
    return failed


def _failure(row: Shares, capacity: str, kind: str, against: float) -> PolicyFailure:
    return PolicyFailure(
        policy=row.policy, capacity=capacity, kind=kind, hit_ratio=row.mean, against=against
    )
