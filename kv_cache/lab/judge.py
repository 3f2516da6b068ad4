"""Whether policies may be put in an order, and where a policy fails.

A difference is shown, or it is not: seeds are repeated, and two policies are told apart only where
the intervals of their means do not overlap. One trace is one sample; there, two policies are told
apart where the differences in each tenth of it, which both saw, have a mean whose interval leaves
out 0. And where nearly every miss is the first access of its block, no policy could have done much:
then there is no order, however small the intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kv_cache.metrics.intervals import Interval, mean_interval

CONFIDENCE = 0.95
LEAST_SEEDS = 3
MOST_COMPULSORY = 0.9
"""Of the misses of the worst policy: from here on there is no order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """`ranks` says which place each policy has, 1 the best; those that cannot be told apart share
    one. None where there is no order, and `why` says so."""

    ranks: Mapping[str, int] | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Hit ratios of one policy: over all, and of each seed (or tenth), in the same order for
    all."""

    policy: str
    mean: float
    values: Sequence[float]

    @property
    def interval(self) -> Interval | None:
        return mean_interval(self.values, CONFIDENCE)


Apart = Callable[[Shares, Shares], bool]
"""Whether the first is better than the second beyond doubt."""


def dominated(compulsory: float, misses: float) -> str | None:
    """Why there is no order where the worst policy has so many misses; None where there may be."""
    if not misses:
        return "nobody misses anything"
    share = compulsory / misses
    if share < MOST_COMPULSORY:
        return None
    return f"{100 * share:.1f} % of the worst one's misses are first accesses"


def ranked_by_seeds(some: Sequence[Shares]) -> Ranks:
    """Policies by the intervals of their means."""
    seeds = len(some[0].values) if some else 0
    if seeds < LEAST_SEEDS:
        return Ranks(ranks=None, why=f"{seeds} seeds are fewer than {LEAST_SEEDS}")
    return _ranked(some, intervals_apart, f"intervals of {seeds} seeds")


def ranked_by_tenths(some: Sequence[Shares]) -> Ranks:
    """Policies by the differences in each tenth of one trace."""
    return _ranked(some, differ, "differences by tenths")


def _ranked(some: Sequence[Shares], apart: Apart, by: str) -> Ranks:
    if len(some) < 2:
        return Ranks(ranks=None, why="there is one policy")
    rows = sorted(some, key=lambda row: (-row.mean, row.policy))
    ranks, group = {rows[0].policy: 1}, [rows[0]]
    for row in rows[1:]:
        if all(apart(better, row) for better in group):
            group = []
        group.append(row)
        ranks[row.policy] = ranks[group[0].policy] if len(group) > 1 else len(ranks) + 1
    if len(set(ranks.values())) == 1:
        return Ranks(ranks=None, why=f"the {by} tell none from the best")
    return Ranks(ranks=ranks, why=f"by the {by}, {100 * CONFIDENCE:.0f} %")


def intervals_apart(better: Shares, worse: Shares) -> bool:
    high, low = better.interval, worse.interval
    return high is not None and low is not None and high.low > low.high


def differ(better: Shares, worse: Shares) -> bool:
    differences = [a - b for a, b in zip(better.values, worse.values, strict=True)]
    interval = mean_interval(differences, CONFIDENCE)
    return interval is not None and interval.low > 0


# --- where a policy fails --------------------------------------------------------------------

BASELINES = ("fifo", "lru")
LEAST_TO_FIND = 0.01
"""Of the lookups: what MIN must find for a policy without any hit to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """`kind` is below-fifo, below-lru, no-hits or more-room-fewer-hits."""

    policy: str
    capacity: str
    kind: str
    says: str


def failures(
    table: Mapping[str, Sequence[Shares]], bound: Mapping[str, float], apart: Apart
) -> list[Failure]:
    """Of each capacity (the smaller before the larger) the policies, and what MIN finds there."""
    found: list[Failure] = []
    for capacity, some in table.items():
        known = {row.policy: row for row in some}
        for row in some:
            found += _below(row, known, capacity, apart)
            if row.mean == 0 and bound[capacity] >= LEAST_TO_FIND:
                says = f"finds nothing, MIN {100 * bound[capacity]:.1f} %"
                found.append(_failure(row, capacity, "no-hits", says))
    return found + _anomalies(table, apart)


def _below(
    row: Shares, known: Mapping[str, Shares], capacity: str, apart: Apart
) -> Sequence[Failure]:
    return [
        _failure(
            row, capacity, f"below-{name}",
            f"{100 * row.mean:.2f} %, {name} {100 * known[name].mean:.2f} %",
        )
        for name in BASELINES
        if name in known and name != row.policy and apart(known[name], row)
    ]  # fmt: skip


def _anomalies(table: Mapping[str, Sequence[Shares]], apart: Apart) -> list[Failure]:
    """Belady's anomaly (CACM 12(6), 1969): more room, fewer hits."""
    found: list[Failure] = []
    before: dict[str, tuple[str, Shares]] = {}
    for capacity, some in table.items():
        for row in some:
            smaller = before.get(row.policy)
            if smaller is not None and apart(smaller[1], row):
                says = f"{100 * row.mean:.2f} %, with {smaller[0]} {100 * smaller[1].mean:.2f} %"
                found.append(_failure(row, capacity, "more-room-fewer-hits", says))
            before[row.policy] = (capacity, row)
    return found


def _failure(row: Shares, capacity: str, kind: str, says: str) -> Failure:
    return Failure(policy=row.policy, capacity=capacity, kind=kind, says=says)
