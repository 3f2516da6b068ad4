"""A study of policies: the document, its summary for people, and its rows as CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_cache import __version__
from kv_cache.core.units import human_bytes
from kv_cache.report.chain import seal

SCHEMA = "kv-cache-lab/1"
SECTION = "kv_cache"
TIB = 1 << 40
_MOST_FAILURES = 8  # of a table that are told to people

RULES = {
    "blocks": "each block for itself: a block that is there is a hit",
    "prefix": "a block is a hit only while all blocks before it in its request are hits",
    "bounds": "unlimited finds all but first accesses; min (Belady) evicts what is used last, and "
    "with blocks of one size no policy that stores what it missed has more hits, by either rule; "
    "min-refusing may refuse a block; limit (of space and time) holds for unequal sizes",
    "order": "by blocks and by prefix each: none where first accesses are 90 % of the misses of "
    "the worst policy or more; of seeds (3 or more) where 95 % intervals of means do not overlap; "
    "of one trace where the mean difference in its tenths has a 95 % interval above 0",
}


def lab_document(
    *,
    seed: int,
    source: Mapping[str, Any],
    policies: Sequence[str],
    capacities: Sequence[str],
    residencies: Sequence[Mapping[str, Any]],
    cases: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The sealed document. `source` says what was asked, a case is a trace or a pattern with its
    tables."""
    own = {
        "schema": SCHEMA,
        "program_version": __version__,
        "seed": seed,
        "source": dict(source),
        "rules": RULES,
        "policies": list(policies),
        "capacities": list(capacities),
        "residencies": [dict(each) for each in residencies],
        "cases": [dict(each) for each in cases],
        "config": config,
    }
    return seal({SECTION: own}, {})


# --- for people ------------------------------------------------------------------------------


def lab_text(document: Mapping[str, Any]) -> str:
    """What a person reads in ten seconds: hits of each policy at each capacity, what no policy
    exceeds beside them, and whether there is an order."""
    own = document[SECTION]
    groups = [_case(own, case) for case in own["cases"]]
    return "\n\n".join("\n".join(group) for group in groups)


def _case(own: Mapping[str, Any], case: Mapping[str, Any]) -> Iterator[str]:
    base = case["base"]
    seeds = f", mean of {case['seeds']} seeds" if case["seeds"] > 1 else ""
    yield f"{'pattern' if case['pattern'] else 'asked':<10}{case['name']}{seeds}"
    size = f"of {_bytes(base['block_bytes'])}" if base["block_bytes"] else "of different sizes"
    yield (
        f"blocks    {base['lookups']:,.0f} looked up by {base['requests']:,.0f} requests, "
        f"{base['unique']:,.0f} unique {size}: {_bytes(base['working_set_bytes'])}"
    )
    share = 100 * base["compulsory"] / base["lookups"]
    yield f"first     {share:.1f} % of lookups are the first of their block: no cache finds them"
    for table, residency in zip(case["tables"], own["residencies"], strict=True):
        yield from _table(table, residency, alone=len(case["tables"]) == 1)


def _table(table: Mapping[str, Any], residency: Mapping[str, Any], *, alone: bool) -> Iterator[str]:
    if not alone or residency["name"] != "own":
        yield f"held as   {_residency(residency)}"
    columns = table["columns"]
    rules = [("blocks", "block hits, % of lookups")]
    if columns[0]["entries"][0]["prefix"] is not None:
        rules.append(("prefix", "prefix hits, % of lookups"))
    for rule, title in rules:
        yield ""
        yield f"{title:<26}" + "".join(f"{column['capacity']:>13}" for column in columns)
        if rule == "blocks":
            yield f"{'':<26}" + "".join(f"{_bytes(c['room_bytes']):>13}" for c in columns)
        yield from _rows(columns, rule)
        yield from _orders(columns, rule)
    yield from _failures(table["failures"])
    yield from _widening(columns, residency)


def _rows(columns: Sequence[Mapping[str, Any]], rule: str) -> Iterator[str]:
    for place, entry in enumerate(columns[0]["entries"]):
        rates = [column["entries"][place][rule] for column in columns]
        if any(rate is None for rate in rates):
            continue
        mark = " (bound)" if entry["bound"] else ""
        yield f"  {entry['policy'] + mark:<24}" + "".join(f"{_rate(rate):>13}" for rate in rates)


def _rate(rate: Mapping[str, Any]) -> str:
    """The mean and half of its interval."""
    limit, interval = "<= " if rate["at_most"] else "", rate["interval"]
    reach = "" if interval is None else f" ±{50 * (interval['high'] - interval['low']):.1f}"
    return f"{limit}{100 * rate['hit_ratio']:.2f}{reach}"


def _orders(columns: Sequence[Mapping[str, Any]], rule: str) -> Iterator[str]:
    """Capacities with the same answer together."""
    told: dict[str, list[str]] = {}
    for column in columns:
        order = column["order" if rule == "blocks" else "prefix_order"]
        told.setdefault(_order(order), []).append(column["capacity"])
    for text, names in told.items():
        yield f"  order at {', '.join(names)}: {text}"


def _order(order: Mapping[str, Any]) -> str:
    if order["ranks"] is None:
        return f"none, as {order['why']}"
    places: dict[int, list[str]] = {}
    for policy, rank in order["ranks"].items():
        places.setdefault(rank, []).append(policy)
    ranked = "; ".join(f"{rank}. {', '.join(names)}" for rank, names in sorted(places.items()))
    return f"{ranked} ({order['why']})"


def _failures(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if found:
        yield ""
    for each in found[:_MOST_FAILURES]:
        kind = each["kind"].replace("-", " ")
        yield f"  fails   {each['policy']} at {each['capacity']}, {kind}: {each['says']}"
    if len(found) > _MOST_FAILURES:
        yield f"          and {len(found) - _MOST_FAILURES} more, in the document"


def _residency(residency: Mapping[str, Any]) -> str:
    if residency["name"] == "own":
        return "they are"
    scales = f", scales for each {residency['group']} elements" if residency["group"] else ""
    return f"{residency['name']}, {100 * residency['ratio']:.1f} % of their bytes{scales}"


def _widening(columns: Sequence[Mapping[str, Any]], residency: Mapping[str, Any]) -> Iterator[str]:
    """What widening takes, at the largest capacity."""
    if residency["cost_ns"] is None:
        return
    entries = [entry for entry in columns[-1]["entries"] if not entry["bound"]]
    told = ", ".join(f"{each['policy']} {each['blocks']['dequant_s']:,.3g} s" for each in entries)
    yield f"  widening {told}"
    yield f"          at {residency['cost_ns']:g} ns a stored byte: {residency['cost_source']}"


def _bytes(nbytes: float) -> str:
    return f"{nbytes / TIB:.2f} TiB" if nbytes >= TIB else human_bytes(nbytes)


def source_name(source: Mapping[str, Any]) -> str:
    """A trace by its file, users by their number."""
    files = source.get("files")
    if not files:
        return f"{source.get('users', '?')} synthetic users"
    name = Path(str(files[0])).name
    shown = "".join(c if c.isprintable() else "?" for c in name)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{shown}{more} ({source.get('format', '?')})"


# --- rows ------------------------------------------------------------------------------------

_KEYS = ("case", "residency", "capacity", "room_bytes", "policy", "bound", "rule")
_FIGURES = (
    "hits", "hit_ratio", "byte_hit_ratio", "miss_ratio", "byte_miss_ratio", "evictions", "refused",
    "loaded_bytes", "dequant_s", "at_most",
)  # fmt: skip
CSV_HEAD = (
    *_KEYS, "lookups", "compulsory", *_FIGURES, "interval_low", "interval_high", "seeds", "rank",
)  # fmt: skip


def lab_csv(document: Mapping[str, Any]) -> bytes:
    """A row for each policy and bound at each capacity by each rule."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for case in document[SECTION]["cases"]:
        for table in case["tables"]:
            for column in table["columns"]:
                writer.writerows(_csv_rows(case, table, column))
    return text.getvalue().encode()


def _csv_rows(
    case: Mapping[str, Any], table: Mapping[str, Any], column: Mapping[str, Any]
) -> Iterator[list[Any]]:
    for rule, order, compulsory in (
        ("blocks", "order", "compulsory"),
        ("prefix", "prefix_order", "prefix_compulsory"),
    ):
        ranks = (column[order] or {}).get("ranks") or {}
        for entry in column["entries"]:
            rate = entry[rule]
            if rate is None:
                continue
            interval = rate["interval"] or {}
            yield [
                case["name"], table["residency"], column["capacity"], column["room_bytes"],
                entry["policy"], entry["bound"], rule, case["base"]["lookups"],
                case["base"][compulsory], *(rate[name] for name in _FIGURES), interval.get("low"),
                interval.get("high"), case["seeds"], ranks.get(entry["policy"]),
            ]  # fmt: skip
