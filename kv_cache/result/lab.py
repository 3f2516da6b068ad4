"""What policies find in a trace, or in patterns, at many capacities: the document of `lab`, as
typed values and as CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.core.bounded import Count, Number
from kv_cache.core.text import printable
from kv_cache.lab.judge import PolicyOrder
from kv_cache.lab.table import FoundShares, LabColumn, LabEntry, LabTable
from kv_cache.metrics.order import Lead
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.published import TraceNotes
from kv_cache.result.run import SECTION, converted

SCHEMA = kinds.LAB
OWN = "own"
"""How a table is named whose blocks are held as they are."""

RULES = {
    "blocks": "each block for itself: a block that is there is a hit",
    "prefix": "a block is a hit only while all blocks before it in its request are hits",
    "bounds": "unlimited finds all but first accesses; min (Belady) evicts what is used last, and "
    "with blocks of one size no policy that stores what it missed has more hits, by either rule; "
    "min-refusing may refuse a block; limit (of space and time) holds for unequal sizes, where min "
    "is a rule and bounds nothing",
    "order": "by blocks and by prefix each: none where first accesses are 90 % of the misses of "
    "the worst policy or more; else by the differences of each pair of policies, in each seed (3 "
    "or more) or each stretch of one trace behind those in which the cache fills, less what "
    "neighbours share; 95 % for all pairs of a capacity together (Holm), and 0.1 points of the "
    "lookups at least",
}


class HeldAs(Struct, frozen=True, kw_only=True):
    """The type in which blocks are held: `ratio` of stored to own bytes without scales, which
    `group` elements share (0: none), and ns for widening a stored byte (None: not counted)."""

    name: str
    ratio: Number
    group: Count
    cost_ns: Number | None
    cost_source: str | None


class LookedUp(Struct, frozen=True, kw_only=True):
    """What a case asks for; means over its seeds. Sizes differ where `block_bytes` is None."""

    lookups: Number
    unique: Number
    requests: Number
    working_set_bytes: Number
    compulsory: Number
    prefix_compulsory: Number
    block_bytes: Number | None


class LabCase(Struct, frozen=True, kw_only=True):
    """The trace, the users, or one pattern, with a table for each residency."""

    name: str
    pattern: str | None
    seeds: Count
    base: LookedUp
    tables: list[LabTable]


class LabFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a study."""

    seed: int
    engine: str
    source: TraceNotes
    residencies: list[HeldAs]
    cases: list[LabCase]


def lab_document(
    *,
    engine: str,
    seed: int,
    source: Mapping[str, Any],
    policies: Sequence[str],
    capacities: Sequence[str],
    residencies: Sequence[Mapping[str, Any]],
    cases: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build the sealed document. `engine` is what computed it, `source` says what was asked, a case
    is a trace or a pattern with its tables."""
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "engine": engine,
        "seed": seed,
        "source": dict(source),
        "rules": RULES,
        "policies": list(policies),
        "capacities": list(capacities),
        "residencies": [dict(each) for each in residencies],
        "cases": [dict(each) for each in cases],
        "config": config,
    }
    return seal({SECTION: section}, {})


def source_name(source: Mapping[str, Any]) -> str:
    """Return a trace by its file, users by their number."""
    files = source.get("files")
    if not files:
        return f"{source.get('users', '?')} synthetic users"
    shown = printable(PurePath(str(files[0])).name)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{shown}{more} ({source.get('format', '?')})"


# --- rules and rows --------------------------------------------------------------------------


class FoundBy(Struct, frozen=True, kw_only=True):
    """One rule at one capacity: each entry that has it with what it found, and their order."""

    entries: Sequence[tuple[LabEntry, FoundShares]]
    order: PolicyOrder | None


def by_blocks(column: LabColumn) -> FoundBy:
    """Return each block for itself."""
    entries = [(entry, entry.blocks) for entry in column.entries]
    return FoundBy(entries=entries, order=column.order)


def by_prefix(column: LabColumn) -> FoundBy:
    """Return only blocks whose predecessors in their request are hits."""
    entries = [(entry, entry.prefix) for entry in column.entries if entry.prefix is not None]
    return FoundBy(entries=entries, order=column.prefix_order)


_KEYS = ("case", "residency", "capacity", "room_bytes", "policy", "kind", "rule")
_FIGURES = (
    "hits", "hit_ratio", "byte_hit_ratio", "miss_ratio", "byte_miss_ratio", "evictions", "refused",
    "loaded_bytes", "dequant_s", "at_most",
)  # fmt: skip
CSV_HEAD = (
    *_KEYS, "lookups", "compulsory", *_FIGURES, "interval_low", "interval_high", "seeds",
    "behind_best", "behind_low", "behind_high", "shown_behind",
)  # fmt: skip


def lab_csv(document: Mapping[str, Any]) -> bytes:
    """Return a row for each policy and bound at each capacity by each rule."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for case in converted(document[SECTION], LabFacts, "").cases:
        for table in case.tables:
            for column in table.columns:
                writer.writerows(_csv_rows(case, table, column))
    return text.getvalue().encode()


def lead_cells(lead: Lead | None) -> list[Any]:
    """Return the best one's lead, the ends of its interval, and whether it is shown."""
    if lead is None:
        return [None] * 4
    return [lead.mean, lead.interval.low, lead.interval.high, lead.shown]


def _csv_rows(case: LabCase, table: LabTable, column: LabColumn) -> Iterator[list[Any]]:
    for rule, rule_shares, compulsory in (
        ("blocks", by_blocks(column), case.base.compulsory),
        ("prefix", by_prefix(column), case.base.prefix_compulsory),
    ):
        leads = (rule_shares.order and rule_shares.order.leads) or {}
        for entry, shares in rule_shares.entries:
            ends = shares.interval
            yield [
                case.name, table.residency, column.capacity, column.room_bytes, entry.policy,
                entry.kind, rule, case.base.lookups, compulsory,
                *(getattr(shares, name) for name in _FIGURES),
                *((None, None) if ends is None else (ends.low, ends.high)), case.seeds,
                *lead_cells(leads.get(entry.policy)),
            ]  # fmt: skip
