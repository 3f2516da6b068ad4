"""What policies find in several tiers: the document of `lab --tiers`, typed, and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.core.bounded import Count, Number
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.metrics.order import Lead
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.lab import lead_cells
from kv_cache.result.published import TraceNotes
from kv_cache.result.run import SECTION, converted

SCHEMA = kinds.LAB_TIERS

RULES = {
    "tiers": "a block is in one tier at a time; what is asked for comes to the fastest that it "
    "fits into, and what leaves for it goes one tier down, from the last to nowhere",
    "wait": "an access waits for its own block: latency + bytes / rate of the tier where it is, "
    "and for what widening its bytes takes; all else happens meanwhile",
    "serial": "every access and every move on one clock: both latencies, and the larger size at "
    "the slower rate",
    "computed": "what is in no tier is computed, which takes no time here",
    "best": "of a table the row whose accesses wait the least; where rows differ by more than 1 "
    "point in what is computed, the one with the least of that: those that lose more wait for less",
}

SAME_COMPUTED = 0.01
"""Of the accesses: up to here rows are compared by what accesses wait."""


class SeedMean(Struct, frozen=True, kw_only=True):
    """A mean over seeds with its 95 % interval; None where there is one seed, or no spread."""

    mean: Number
    interval: IntervalEnds | None


class TierServed(Struct, frozen=True, kw_only=True):
    """One tier: the share of accesses that it served, how long each waited there (None where there
    was none), and bytes. `room_bytes` is of the first seed."""

    name: str
    room_bytes: Number
    hit_ratio: Number
    wait_ns: Number | None
    peak_bytes: Number
    offloaded_bytes: Number
    dropped_bytes: Number


class TierRow(Struct, frozen=True, kw_only=True):
    """One policy with one prefetch; times are of an access, counts and bytes of all. `behind` is by
    how much the best row of its table is better; None of that, where all are the same, and where
    there are too few seeds to know."""

    residency: str
    scale: Number
    prefetch: str
    policy: str
    fastest: SeedMean
    wait_ns: SeedMean
    serial_ns: SeedMean
    computed: Number
    demand_bytes: Number
    prefetch_bytes: Number
    prefetched: Number
    useful: Number
    wasted: Number
    tiers: list[TierServed]
    behind: Lead | None = None


def is_by_computed(rows: Sequence[TierRow]) -> bool:
    """Return whether rows of one table are compared by what is computed, and not by waits."""
    shares = [row.computed for row in rows]
    return max(shares) - min(shares) > SAME_COMPUTED


def best_of(rows: Sequence[TierRow]) -> Sequence[TierRow]:
    """Return the best row of a table, and those that are as good in each pair of seeds."""
    if is_by_computed(rows):
        best = min(rows, key=lambda row: row.computed)
    else:
        best = min(rows, key=lambda row: row.wait_ns.mean)
    return [row for row in rows if row is best or _is_as_good(row, best)]


def _is_as_good(row: TierRow, best: TierRow) -> bool:
    if row.behind is not None:
        return row.behind.equal
    return (row.wait_ns, row.computed) == (best.wait_ns, best.computed)


class TierBase(Struct, frozen=True, kw_only=True):
    lookups: Number
    unique: Number
    working_set_bytes: Number


class TierCase(Struct, frozen=True, kw_only=True):
    """The trace, the users, or one pattern."""

    name: str
    pattern: str | None
    seeds: Count
    base: TierBase
    rows: list[TierRow]


class AskedTier(Struct, frozen=True, kw_only=True):
    name: str
    room: str
    latency_ns: Number
    bytes_per_s: Number
    residency: str | None


class TierStudyFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a study."""

    seed: int
    engine: str
    source: TraceNotes
    tiers: list[AskedTier]
    cases: list[TierCase]


def tiers_document(
    *, engine: str, seed: int, source: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]],
    cases: Sequence[Mapping[str, Any]], config: Mapping[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """Build the sealed document."""
    section = {
        "schema": SCHEMA, "program_version": __version__, "engine": engine, "seed": seed,
        "source": dict(source), "rules": RULES, "tiers": [dict(each) for each in tiers],
        "cases": [dict(each) for each in cases], "config": config,
    }  # fmt: skip
    return seal({SECTION: section}, {})


_KEYS = ("residency", "scale", "prefetch", "policy")
_SPREADS = ("fastest", "wait_ns", "serial_ns")
_FIGURES = ("computed", "demand_bytes", "prefetch_bytes", "prefetched", "useful", "wasted")
_OF_TIER = ("hit_ratio", "wait_ns", "peak_bytes", "offloaded_bytes", "dropped_bytes")
_BEHIND = ("behind_best", "behind_low", "behind_high", "shown_behind")
CSV_HEAD = ("case", "seeds", *_KEYS)


def tiers_csv(document: Mapping[str, Any]) -> bytes:
    """Return a row for each case, residency, scale, prefetch and policy."""
    facts = converted(document[SECTION], TierStudyFacts, "")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = [f"{name}{end}" for name in _SPREADS for end in ("", "_low", "_high")]
    of_tiers = [f"{tier.name}_{name}" for tier in facts.tiers for name in _OF_TIER]
    writer.writerow([*CSV_HEAD, *ends, *_FIGURES, *of_tiers, *_BEHIND])
    for case in facts.cases:
        for row in case.rows:
            spreads: list[SeedMean] = [getattr(row, name) for name in _SPREADS]
            writer.writerow(
                [
                    case.name, case.seeds, *(getattr(row, name) for name in _KEYS),
                    *(value for each in spreads for value in _with_ends(each)),
                    *(getattr(row, name) for name in _FIGURES),
                    *(getattr(tier, name) for tier in row.tiers for name in _OF_TIER),
                    *lead_cells(row.behind),
                ]
            )  # fmt: skip
    return text.getvalue().encode()


def _with_ends(spread: SeedMean) -> tuple[float, float | None, float | None]:
    ends = spread.interval
    return (spread.mean, *((None, None) if ends is None else (ends.low, ends.high)))
