"""From counts to a table: shares of hits, means over seeds, the order of policies and their
failures.

A table is of one residency and has an entry for each bound and policy at each capacity. With
several seeds every figure is the mean of theirs, and each seed's is there too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from kv_cache.core.bounded import Number
from kv_cache.core.residency import Residency
from kv_cache.lab.accesses import BATCHES
from kv_cache.lab.bounds import HitLimit
from kv_cache.lab.judge import (
    PolicyFailure,
    PolicyOrder,
    Shares,
    dominated,
    failures,
    policy_order,
)
from kv_cache.lab.study import (
    LIMIT,
    MIN,
    MIN_REFUSING,
    UNLIMITED,
    Base,
    ReplayCounts,
    Study,
    StudyRow,
)
from kv_cache.metrics.intervals import IntervalEnds, interval_beside_mean

BOUNDS = (UNLIMITED, MIN, MIN_REFUSING, LIMIT)
Kind = Literal["bound", "policy", "rule"]
_KINDS: Mapping[str, Kind] = dict.fromkeys(BOUNDS, "bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShares:
    """By one of the two rules. `at_most`: no policy has more, and this one need not be reached.
    `ratios` are the hit ratios of each seed, where there are several; `dequant_s` is None where
    what widening costs was not given."""

    hits: Number
    hit_ratio: Number
    byte_hit_ratio: Number
    miss_ratio: Number
    byte_miss_ratio: Number
    evictions: Number
    refused: Number
    loaded_bytes: Number
    dequant_s: Number | None
    at_most: bool
    ratios: Sequence[Number] | None
    interval: IntervalEnds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabEntry:
    """`kind` is rule for MIN where blocks have different sizes, which then bounds nothing. `prefix`
    is None where each request asks for one block: then both rules are the same."""

    policy: str
    kind: Kind
    blocks: FoundShares
    prefix: FoundShares | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabColumn:
    """One capacity. `capacity` is what was asked for, in its own words."""

    capacity: str
    room_bytes: Number
    room_blocks: Number
    share: Number
    entries: Sequence[LabEntry]
    order: PolicyOrder
    prefix_order: PolicyOrder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabTable:
    """All capacities for blocks that are held in one type."""

    residency: str
    columns: Sequence[LabColumn]
    failures: Sequence[PolicyFailure]


def table_of(
    studies: Sequence[Study], capacities: Sequence[str], residency: Residency, *, seeds: bool
) -> LabTable:
    """Build the table of the studies of each seed, or of one trace."""
    cuts = [_Cut(studies, place, name, seeds=seeds) for place, name in enumerate(capacities)]
    return LabTable(
        residency=residency.name,
        columns=[cut.column(residency) for cut in cuts],
        failures=_failures(cuts, seeds=seeds),
    )


Rule = Callable[[StudyRow], ReplayCounts]


def _by_blocks(row: StudyRow) -> ReplayCounts:
    return row.blocks


def _by_prefix(row: StudyRow) -> ReplayCounts:
    return row.blocks if row.prefix is None else row.prefix


class _Cut:
    """One capacity of the studies of each seed, or of the one trace. `rows` are those of MIN, then
    those of each other bound and policy: one for each study."""

    def __init__(self, studies: Sequence[Study], place: int, capacity: str, *, seeds: bool) -> None:
        self.capacity = capacity
        self.rows = list(zip(*(_rows(study, place) for study in studies), strict=True))
        self._studies = studies
        self._bases = [study.base for study in studies]
        self._limits = [study.limits[place] for study in studies if study.limits is not None]
        self._policies = [rows for rows in self.rows if rows[0].policy not in BOUNDS]
        self._filling = studies[0].filling[place]
        self._seeds = seeds

    def column(self, residency: Residency) -> LabColumn:
        bases, rooms = self._bases, [row.room_bytes for row in self.rows[0]]
        unlimited = [study.unlimited for study in self._studies]
        uneven: dict[str, Kind] = {MIN: "rule", MIN_REFUSING: "rule"} if self._limits else {}
        entries = [
            _entry(rows, bases, residency, {**_KINDS, **uneven}) for rows in (unlimited, *self.rows)
        ]
        if self._limits:
            entries.insert(1, _limit(self._limits, bases))
        return LabColumn(
            capacity=self.capacity,
            room_bytes=fmean(rooms),
            room_blocks=fmean(
                room * base.unique / max(1, row.room_bytes)
                for room, base, row in zip(rooms, bases, unlimited, strict=True)
            ),
            share=fmean(
                room / max(1, base.working_set_bytes)
                for room, base in zip(rooms, bases, strict=True)
            ),
            entries=entries,
            order=self._order(_by_blocks),
            prefix_order=None if unlimited[0].prefix is None else self._order(_by_prefix),
        )

    def shares(self, rule: Rule) -> list[Shares]:
        """Compute the shares of each policy, without the bounds."""
        return [self._share(rows, rule) for rows in self._policies]

    def _share(self, rows: Sequence[StudyRow], rule: Rule) -> Shares:
        """Of each seed, or of each stretch of the one trace in which the cache is full; there as if
        each had an equal part of the lookups."""
        counts = [rule(row) for row in rows]
        values = _hit_ratios(counts, self._bases)
        mean = fmean(values)
        if not self._seeds:
            stretch = max(1, self._bases[0].lookups) / BATCHES
            values = [hits / stretch for hits in counts[0].batches[self._filling :]]
        return Shares(policy=rows[0].policy, mean=mean, values=values)

    def found_by_min(self) -> float:
        """Return the share of all lookups that MIN finds, by blocks."""
        return fmean(_hit_ratios([row.blocks for row in self.rows[0]], self._bases))

    def _order(self, rule: Rule) -> PolicyOrder:
        bases = self._bases
        compulsory = fmean(
            base.compulsory if rule is _by_blocks else base.prefix_compulsory for base in bases
        )
        misses = [
            fmean(base.lookups - rule(row).hits for row, base in zip(rows, bases, strict=True))
            for rows in self._policies
        ]
        why = dominated(compulsory, max(misses, default=0))
        if why is not None:
            return PolicyOrder(best=None, leads=None, why=why)
        shares = self.shares(rule)
        return policy_order(shares, seeds=self._seeds)


def _rows(study: Study, place: int) -> list[StudyRow]:
    """Collect the rows of one capacity."""
    rooms = list(dict.fromkeys(row.policy for row in study.rows))
    return list(study.rows[place * len(rooms) : (place + 1) * len(rooms)])


def _failures(cuts: Sequence[_Cut], *, seeds: bool) -> Sequence[PolicyFailure]:
    """By blocks; capacities by how large they are."""
    cuts = sorted(cuts, key=lambda cut: cut.rows[0][0].room_bytes)
    table = {cut.capacity: cut.shares(_by_blocks) for cut in cuts}
    bound = {cut.capacity: cut.found_by_min() for cut in cuts}
    return failures(table, bound, seeds=seeds)


# --- entries ---------------------------------------------------------------------------------


def _entry(
    rows: Sequence[StudyRow], bases: Sequence[Base], residency: Residency, kinds: Mapping[str, Kind]
) -> LabEntry:
    """Return the entry of one policy, of all seeds."""
    prefixes = [row.prefix for row in rows if row.prefix is not None]
    return LabEntry(
        policy=rows[0].policy,
        kind=kinds.get(rows[0].policy, "policy"),
        blocks=_shares_of([row.blocks for row in rows], bases, residency),
        prefix=_shares_of(prefixes, bases, residency) if len(prefixes) == len(rows) else None,
    )


def _shares_of(
    counts: Sequence[ReplayCounts], bases: Sequence[Base], residency: Residency
) -> FoundShares:
    hits = _hit_ratios(counts, bases)
    nbytes = [
        each.hit_bytes / max(1, base.nbytes) for each, base in zip(counts, bases, strict=True)
    ]
    loaded = fmean(each.stored_bytes for each in counts)
    interval = interval_beside_mean(hits, most=1.0)
    return FoundShares(
        hits=fmean(each.hits for each in counts),
        hit_ratio=fmean(hits),
        byte_hit_ratio=fmean(nbytes),
        miss_ratio=1 - fmean(hits),
        byte_miss_ratio=1 - fmean(nbytes),
        evictions=fmean(each.evictions for each in counts),
        refused=fmean(each.refused for each in counts),
        loaded_bytes=loaded,
        dequant_s=residency.seconds(round(loaded)),
        at_most=False,
        ratios=hits if len(hits) > 1 else None,
        interval=None if interval is None else IntervalEnds(**interval._asdict()),
    )


def _hit_ratios(counts: Sequence[ReplayCounts], bases: Sequence[Base]) -> list[float]:
    return [each.hits / max(1, base.lookups) for each, base in zip(counts, bases, strict=True)]


def _limit(limits: Sequence[HitLimit], bases: Sequence[Base]) -> LabEntry:
    """Build the entry of the bound that space and time allow."""
    counts = [
        ReplayCounts(hits=each.hits, hit_bytes=each.nbytes, stored_bytes=0, evictions=0, refused=0,
              batches=())
        for each in limits
    ]  # fmt: skip
    shares = _shares_of(counts, bases, Residency(name="fp16"))
    return LabEntry(policy=LIMIT, kind="bound", prefix=None, blocks=replace(shares, at_most=True))
