"""Whether policies may be put in an order, and where a policy fails.

Policies are compared in pairs (`metrics/order.py`): those of a pattern by their seeds, those of one
trace by its stretches, which every policy saw. Stretches in which a cache that stores all it missed
is not yet full are left out: there, policies do the same. All policies of one capacity are one
family. What is shown but smaller than `LEAST_DIFFERENCE` is too small to pick a policy by. And if
nearly every miss is the first access of its block, no policy could have done much: then there is no
order, however small the intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kv_cache.core.bounded import Number
from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.order import (
    LEAST_SEEDS,
    MOST_COMPULSORY,
    ComparedSides,
    Lead,
    compared,
    compulsory_share,
)

LEAST_DIFFERENCE = 0.001
"""Of the lookups: 0.1 points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOrder:
    """`best` finds most, and `leads` has by how much more than each of the others (None where that
    cannot be judged). Both are None where there is no order. `why` says by what the order is, or
    why there is none."""

    best: str | None
    leads: Mapping[str, Lead | None] | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Hit ratios of one policy: over all, and of each seed (or stretch), in the same order for
    all."""

    policy: str
    mean: float
    values: Sequence[float]


def dominated(compulsory: float, misses: float) -> str | None:
    """Return why there is no order if most misses of the worst policy are first accesses; None if
    there may be one."""
    if not misses:
        return "there are no misses"
    if compulsory_share(compulsory, misses) is None:
        return None
    return f"first accesses are {100 * MOST_COMPULSORY:.0f} % of the worst one's misses, or more"


def policy_order(some: Sequence[Shares], *, seeds: bool) -> PolicyOrder:
    """Return the lead of the best one over each other: by seeds, or by stretches of one trace."""
    count = len(some[0].values) if some else 0
    if len(some) < 2:
        return _no_order("there is one policy")
    if seeds and count < LEAST_SEEDS:
        few = "1 seed is" if count == 1 else f"{count} seeds are"
        return _no_order(f"{few} fewer than {LEAST_SEEDS}")
    if all(row.values == some[0].values for row in some):
        return _no_order("all find the same")
    best = max(range(len(some)), key=lambda place: some[place].mean)
    family = family_of(some, seeds=seeds)
    return PolicyOrder(
        best=some[best].policy,
        leads={
            row.policy: family.lead(best, place) for place, row in enumerate(some) if place != best
        },
        why=f"differences in {f'{count} seeds' if seeds else 'stretches of the trace'}, "
        f"{100 * CONFIDENCE:.0f} % for all pairs together",
    )


def _no_order(why: str) -> PolicyOrder:
    return PolicyOrder(best=None, leads=None, why=why)


def family_of(some: Sequence[Shares], *, seeds: bool) -> ComparedSides:
    """Compare all policies with all."""
    return compared([row.values for row in some], in_order=not seeds, least=LEAST_DIFFERENCE)


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
    table: Mapping[str, Sequence[Shares]], bound: Mapping[str, float], *, seeds: bool
) -> list[PolicyFailure]:
    """Return the failures at each capacity (the smaller before the larger), beside what MIN finds
    there."""
    failed: list[PolicyFailure] = []
    for capacity, some in table.items():
        family = family_of(some, seeds=seeds)
        for place, row in enumerate(some):
            failed += _below(some, place, capacity, family)
            if row.mean == 0 and bound[capacity] >= LEAST_TO_FIND:
                failed.append(_failure(row, capacity, "no-hits", bound[capacity]))
    return failed + _anomalies(table, seeds=seeds)


def _below(
    some: Sequence[Shares], place: int, capacity: str, family: ComparedSides
) -> Sequence[PolicyFailure]:
    places = {row.policy: at for at, row in enumerate(some)}
    return [
        _failure(some[place], capacity, f"below-{name}", some[places[name]].mean)
        for name in BASELINES
        if name in places and family.better(places[name], place)
    ]


def _anomalies(table: Mapping[str, Sequence[Shares]], *, seeds: bool) -> list[PolicyFailure]:
    """Belady's anomaly (CACM 12(6), 1969): more room, fewer hits. The capacities of one policy are
    one family."""
    failed: list[PolicyFailure] = []
    by_policy: dict[str, dict[str, Shares]] = {}
    for capacity, some in table.items():
        for row in some:
            by_policy.setdefault(row.policy, {})[capacity] = row
    for rooms in by_policy.values():
        rows, names = _behind_fill(list(rooms.values())), list(rooms)
        family = family_of(rows, seeds=seeds)
        failed += [
            _failure(rows[place], names[place], "more-room-fewer-hits", rows[place - 1].mean)
            for place in range(1, len(rows))
            if family.better(place - 1, place)
        ]
    return failed


def _behind_fill(rows: Sequence[Shares]) -> list[Shares]:
    """Leave out of all rows the stretches in which the largest cache fills."""
    count = min(len(row.values) for row in rows)
    return [replace(row, values=row.values[len(row.values) - count :]) for row in rows]


def _failure(row: Shares, capacity: str, kind: str, against: float) -> PolicyFailure:
    return PolicyFailure(
        policy=row.policy, capacity=capacity, kind=kind, hit_ratio=row.mean, against=against
    )
