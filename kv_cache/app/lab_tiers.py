"""What `lab --tiers` compares: each policy, with and without prefetch, over several tiers, whose
rooms are scaled and whose blocks are held in each type."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from kv_cache.app.compiled import engine_name
from kv_cache.app.lab_replays import Drawn, Found, Row
from kv_cache.app.study_files import Document
from kv_cache.core.errors import ConfigError
from kv_cache.core.residency import Residency
from kv_cache.lab.accesses import Accesses, held_sizes
from kv_cache.lab.capacity import Capacity, capacities_of
from kv_cache.lab.hierarchy import HierarchyCounts, HierarchyTier, TierUse, replay_hierarchy
from kv_cache.lab.patterns import Pattern
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.variants import PolicyVariant
from kv_cache.metrics.intervals import IntervalEnds, interval_beside_mean
from kv_cache.metrics.order import LEAST_SEEDS, compared
from kv_cache.policy.prefetch import PREFETCH, PrefetchRules
from kv_cache.result.lab import OWN
from kv_cache.result.lab_tiers import (
    SeedMean,
    TierRow,
    TierServed,
    best_of,
    is_by_computed,
    tiers_document,
)

NONE = "none"
PREFETCHES = (NONE, "successor")
"""Those that know single blocks; the others know conversations, which a pattern has not."""
_MOST_AHEAD = 2
_FORM = "NAME=ROOM:LATENCY:RATE, as dram=64GiB:1us:80GB/s, and :TYPE where blocks are held so"
_LATENCY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms)")
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6}
_MOST_LATENCY_NS = 3.6e12


class PlannedTier(Struct, frozen=True, kw_only=True):
    """One tier as it was asked for; `residency` is None where blocks lie as in the others."""

    name: str
    room: Capacity
    latency_ns: float
    bytes_per_s: float
    residency: Residency | None

    def row(self) -> Row:
        return {
            "name": self.name, "room": self.room.text, "latency_ns": self.latency_ns,
            "bytes_per_s": self.bytes_per_s,
            "residency": None if self.residency is None else self.residency.name,
        }  # fmt: skip


def tiers_of(text: str, flag: str, held_as: Callable[[str], Residency]) -> list[PlannedTier]:
    """Parse tiers with commas, the fastest first. Raises ConfigError that names the flag."""
    tiers: list[PlannedTier] = []
    for part in text.split(","):
        name, _, rest = part.strip().partition("=")
        words = rest.split(":")
        if not name or len(words) not in (3, 4):
            raise ConfigError(f"{flag}: {part.strip()!r} is not a tier; give {_FORM}")
        if name in [tier.name for tier in tiers]:
            raise ConfigError(f"{flag}: duplicate {name}; keep one")
        latency = _LATENCY.fullmatch(words[1])
        if latency is None:
            raise ConfigError(f"{flag}: {name} has latency {words[1]!r}; give it as 20us")
        latency_ns = float(latency[1]) * _NS[latency[2]]
        if latency_ns > _MOST_LATENCY_NS:
            raise ConfigError(f"{flag}: {name} has a latency of over an hour; give it as 20us")
        tiers.append(
            PlannedTier(
                name=name,
                room=capacities_of(words[0], flag)[0],
                latency_ns=latency_ns,
                bytes_per_s=_rate(words[2], name, flag),
                residency=held_as(words[3]) if words[3:] else None,
            )
        )
    return tiers


def _rate(text: str, name: str, flag: str) -> float:
    nbytes, per, second = text.partition("/")
    try:
        rate = capacities_of(nbytes, flag)[0].nbytes if per and second == "s" else None
    except ConfigError:  # its sentence is of a capacity
        rate = None
    if not rate:
        raise ConfigError(f"{flag}: {name} has rate {text!r}; give one above 0, as 80GB/s")
    return float(rate)


class TierComparison(Struct, frozen=True, kw_only=True):
    """`scales` are factors of all rooms; `residencies` has None for blocks as they are."""

    tiers: Sequence[PlannedTier]
    variants: Sequence[PolicyVariant]
    prefetches: Sequence[str]
    scales: Sequence[float]
    residencies: Sequence[Residency | None]

    @property
    def replays(self) -> int:
        """How often each sequence is replayed."""
        lists = (self.variants, self.prefetches, self.scales, self.residencies)
        count = 1
        for each in lists:
            count *= len(each)
        return count

    @property
    def parts(self) -> int:
        """What every cache is asked, and each replay."""
        return 1 + self.replays

    def of_sequence(
        self, drawn: Drawn, element_bits: int, on_part: Callable[[], None]
    ) -> "_TierReplays":
        return _TierReplays(self, drawn, element_bits, on_part)

    def combinations(self) -> list[tuple[Residency | None, float, PolicyVariant, str]]:
        """Return what each replay is of, in their order."""
        return list(product(self.residencies, self.scales, self.variants, self.prefetches))

    def case(self, name: str, found: Sequence[Found], pattern: Pattern | None) -> Row:
        """Return a row of one trace, or of all seeds of a pattern, for each combination."""
        bases, *replayed = zip(*found, strict=True)
        rows: list[TierRow] = []
        counted = [[one.counts for one in each] for each in replayed]
        for combination, counts, each in zip(self.combinations(), counted, replayed, strict=True):
            residency, scale, variant, prefetch = combination
            key = (OWN if residency is None else residency.name, scale, prefetch, str(variant))
            rows.append(self._row(key, counts, each[0].rooms_bytes))
        size = len(self.variants) * len(self.prefetches)  # of a table
        tables = [slice(at, at + size) for at in range(0, len(rows), size)]
        return {
            "name": name,
            "pattern": None if pattern is None else pattern.about,
            "seeds": len(found),
            "base": {key: fmean(base[key] for base in bases) for key in bases[0]},
            "rows": to_builtins([row for of in tables for row in _judged(rows[of], counted[of])]),
        }

    def tiers_for(
        self, accesses: Accesses, residency: Residency | None, scale: float, element_bits: int
    ) -> list[HierarchyTier]:
        tiers = []
        for tier in self.tiers:
            held = tier.residency or residency
            sizes = accesses.sizes
            if held is not None:
                sizes = held_sizes(sizes, held, element_bits)
            tiers.append(
                HierarchyTier(
                    room_bytes=int(tier.room.room_bytes(accesses) * scale),
                    latency_ns=tier.latency_ns,
                    bytes_per_s=tier.bytes_per_s,
                    sizes=sizes,
                    widen_ns=0.0 if held is None else held.cost_ns or 0.0,
                )
            )
        return tiers

    def _row(
        self,
        key: tuple[str, float, str, str],
        counts: Sequence[HierarchyCounts],
        rooms_bytes: Sequence[int],
    ) -> TierRow:
        residency, scale, prefetch, policy = key

        def mean(value: Callable[[HierarchyCounts], float]) -> float:
            return fmean(map(value, counts))

        def spread(value: Callable[[HierarchyCounts], float]) -> SeedMean:
            return _spread([value(each) / each.lookups for each in counts])

        return TierRow(
            residency=residency, scale=scale, prefetch=prefetch, policy=policy,
            fastest=spread(lambda each: each.tiers[0].hits),
            wait_ns=spread(_waited_ns),
            serial_ns=spread(lambda each: each.serial_ns),
            computed=mean(lambda each: each.computed / each.lookups),
            demand_bytes=mean(lambda each: each.demand_bytes),
            prefetch_bytes=mean(lambda each: each.prefetch_bytes),
            prefetched=mean(lambda each: each.prefetched),
            useful=mean(lambda each: each.useful),
            wasted=mean(lambda each: each.wasted),
            tiers=[
                _served(self.tiers[at].name, room, [each.tiers[at] for each in counts], counts)
                for at, room in enumerate(rooms_bytes)
            ],
        )  # fmt: skip

    def document(
        self, cases: Sequence[Row], *, seed: int, source: Row, element_bits: int,
        config: Row | None,
    ) -> Document:  # fmt: skip
        """Return the document of these cases; blocks have elements of `element_bits` bits."""
        return tiers_document(
            engine=engine_name(), seed=seed, source=source, cases=cases, config=config,
            tiers=[tier.row() for tier in self.tiers],
        )  # fmt: skip


class _TierReplay(NamedTuple):
    counts: HierarchyCounts
    rooms_bytes: list[int]


class _TierReplays:
    """What every cache is asked, and each combination, in the order of the comparison."""

    def __init__(
        self,
        comparison: TierComparison,
        drawn: Drawn,
        element_bits: int,
        on_part: Callable[[], None],
    ) -> None:
        self._comparison, self._bits, self._on_part = comparison, element_bits, on_part
        self._shared = SharedState(drawn.accesses, drawn.seed)
        self._combinations = comparison.combinations()

    def part(self, number: int) -> "Row | _TierReplay":
        accesses = self._shared.accesses
        if not number:
            return {
                "lookups": accesses.lookups, "unique": accesses.unique,
                "working_set_bytes": accesses.working_set_bytes,
            }  # fmt: skip
        residency, scale, variant, prefetch = self._combinations[number - 1]
        tiers = self._comparison.tiers_for(accesses, residency, scale, self._bits)
        counts = replay_hierarchy(self._shared, tiers, variant, _prefetch(prefetch), self._on_part)
        return _TierReplay(counts, [tier.room_bytes for tier in tiers])


def _prefetch(name: str) -> Any:
    rules = PrefetchRules(most=_MOST_AHEAD)
    return None if name == NONE else PREFETCH[name](rules)


def _waited_ns(counts: HierarchyCounts) -> float:
    return sum(use.wait_ns for use in counts.tiers)


def _judged(rows: Sequence[TierRow], counted: Sequence[Sequence[HierarchyCounts]]) -> list[TierRow]:
    """Note how far each row of a table is behind the best one, in pairs of its seeds; where all
    are the same none is."""
    by_computed, best = is_by_computed(rows), rows.index(best_of(rows)[0])
    values = [
        [-(each.computed if by_computed else _waited_ns(each)) / each.lookups for each in some]
        for some in counted
    ]
    if len(counted[0]) < LEAST_SEEDS or all(some == values[0] for some in values):
        return list(rows)
    family = compared(values, in_order=False)
    return [
        row if place == best else replace(row, behind=family.lead(best, place))
        for place, row in enumerate(rows)
    ]


def _spread(values: Sequence[float]) -> SeedMean:
    interval = interval_beside_mean(values)
    ends = None if interval is None else IntervalEnds(low=interval.low, high=interval.high)
    return SeedMean(mean=fmean(values), interval=ends)


def _served(
    name: str, room_bytes: int, uses: Sequence[TierUse], counts: Sequence[HierarchyCounts]
) -> TierServed:
    hits = sum(use.hits for use in uses)
    return TierServed(
        name=name,
        room_bytes=room_bytes,
        hit_ratio=fmean(use.hits / each.lookups for use, each in zip(uses, counts, strict=True)),
        wait_ns=sum(use.wait_ns for use in uses) / hits if hits else None,
        peak_bytes=fmean(use.peak_bytes for use in uses),
        offloaded_bytes=fmean(use.offloaded_bytes for use in uses),
        dropped_bytes=fmean(use.dropped_bytes for use in uses),
    )
