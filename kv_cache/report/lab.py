"""A study of policies: the document, its summary for people, and its rows as CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_cache import __version__
from kv_cache.core.units import MISSING, human_bytes
from kv_cache.result.chain import seal
from kv_cache.view.traced import trace_line

SCHEMA = "kv-cache-lab/1"
SECTION = "kv_cache"
TIB = 1 << 40
_MOST_TOLD = 2  # failures of a kind that are told to people
_BY = {"blocks": "order", "prefix": "prefix_order"}
_NAME = 20
_BESIDE = 5  # capacities that stand beside each other

RULES = {
    "blocks": "each block for itself: a block that is there is a hit",
    "prefix": "a block is a hit only while all blocks before it in its request are hits",
    "bounds": "unlimited finds all but first accesses; min (Belady) evicts what is used last, and "
    "with blocks of one size no policy that stores what it missed has more hits, by either rule; "
    "min-refusing may refuse a block; limit (of space and time) holds for unequal sizes, where min "
    "is a rule and bounds nothing",
    "order": "by blocks and by prefix each: none where first accesses are 90 % of the misses of "
    "the worst policy or more; of seeds (3 or more) where intervals of means do not overlap; of "
    "one trace where the mean difference in its 30 stretches, less what neighbours share, has an "
    "interval above 0; 95 % for all comparisons together, and 0.1 points of the lookups at least",
}


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
    """The sealed document. `engine` is what computed it, `source` says what was asked, a case is a
    trace or a pattern with its tables."""
    own = {
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
    return seal({SECTION: own}, {})


# --- for people ------------------------------------------------------------------------------


def lab_text(document: Mapping[str, Any]) -> str:
    """What a person reads in ten seconds: hits of each policy at each capacity, what no policy
    exceeds beside them, and whether there is an order."""
    own = document[SECTION]
    groups: list[Iterable[str]] = [_case(own, case) for case in own["cases"]]
    if own["source"].get("files"):
        groups[0] = [trace_line(own["source"]), *groups[0]]
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
    for at in range(0, len(columns), _BESIDE):
        yield from _columns(columns[at : at + _BESIDE])
    yield from _orders(columns)
    yield from _failures(table["failures"])
    yield from _widening(columns, residency)


def _columns(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Capacities beside each other."""
    both = columns[0]["prefix_order"] is not None
    yield ""
    head = "hits, % of lookups" + (": by blocks, by prefix" if both else "")
    names = [_name(entry) for entry in columns[0]["entries"]]
    width = max(_NAME, *(len(name) + 1 for name in names))
    yield head
    yield f"  {'':<{width}}" + "".join(f"{column['capacity']:>14} " for column in columns).rstrip()
    yield f"  {'':<{width}}" + "".join(f"{_bytes(c['room_bytes']):>14} " for c in columns).rstrip()
    for place, name in enumerate(names):
        cells = "".join(_cell(column, place, both=both) for column in columns)
        yield f"  {name:<{width}}{cells}".rstrip()


def _name(entry: Mapping[str, Any]) -> str:
    name: str = entry["policy"]
    return name if entry["kind"] == "policy" else f"{name} ({entry['kind']})"


def _cell(column: Mapping[str, Any], place: int, *, both: bool) -> str:
    entry = column["entries"][place]
    found = _rate(entry["blocks"])
    star = _star(column["order"], entry)
    if not both:
        return f"{found:>14}{star}"
    prefix = MISSING if entry["prefix"] is None else _rate(entry["prefix"])
    return f"{found:>7}{star}{prefix:>6}{_star(column['prefix_order'], entry)}"


def _star(order: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    beaten_by = order["beaten_by"] or {}
    return "*" if beaten_by.get(entry["policy"]) == [] else " "


def _rate(rate: Mapping[str, Any]) -> str:
    """The mean and half of its interval."""
    limit, interval = "<=" if rate["at_most"] else "", rate["interval"]
    reach = "" if interval is None else f" ±{50 * (interval['high'] - interval['low']):.1f}"
    return f"{limit}{100 * rate['hit_ratio']:.2f}{reach}"


def _orders(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the stars mean; capacities without an order, those for the same reason together."""
    orders = [
        (rule, column["capacity"], column[name])
        for rule, name in _BY.items()
        for column in columns
        if column[name] is not None
    ]
    for why in dict.fromkeys(order["why"] for _, _, order in orders if order["beaten_by"]):
        yield f"  * none is shown to be better: {why}"
    told: dict[tuple[str, str], list[str]] = {}
    for rule, capacity, order in orders:
        if not order["beaten_by"]:
            told.setdefault((rule, order["why"]), []).append(capacity)
    for why in dict.fromkeys(why for _, why in told):
        where = {rule: ", ".join(told[rule, why]) for rule in _BY if (rule, why) in told}
        if len(set(where.values())) == 1 and len(where) == len({rule for rule, _, _ in orders}):
            where = {"": where.popitem()[1]}
        told_of = "; ".join(f"at {at}{f' by {rule}' if rule else ''}" for rule, at in where.items())
        yield f"  no order {told_of},"
        yield f"    as {why}"


def _failures(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """By kind; of each policy where it loses the most, and those that lose the most first."""
    kinds: dict[str, dict[str, Mapping[str, Any]]] = {}
    for each in sorted(found, key=_lost, reverse=True):
        kinds.setdefault(each["kind"], {}).setdefault(each["policy"], each)
    if kinds:
        yield ""
    for place, (kind, worst) in enumerate(kinds.items()):
        told = [_failure(kind, each) for each in worst.values()]
        more = len(told) - _MOST_TOLD
        others = f", and {more} more" if more > 0 else ""
        head = "" if place else "fails"
        yield f"{head:<10}{kind.replace('-', ' ')}: {', '.join(told[:_MOST_TOLD])}{others}"


def _lost(failure: Mapping[str, Any]) -> float:
    lost: float = failure["against"] - failure["hit_ratio"]
    return lost


def _failure(kind: str, failure: Mapping[str, Any]) -> str:
    """Against what, where the kind does not say it."""
    found, against = 100 * failure["hit_ratio"], 100 * failure["against"]
    than = {"no-hits": "min ", "more-room-fewer-hits": "before "}.get(kind, "")
    ratios = f"{than}{against:.2f}" if kind == "no-hits" else f"{found:.2f} < {than}{against:.2f}"
    return f"{failure['policy']} at {failure['capacity']} ({ratios})"


def _residency(residency: Mapping[str, Any]) -> str:
    if residency["name"] == "own":
        return "they are"
    scales = f", scales for each {residency['group']} elements" if residency["group"] else ""
    return f"{residency['name']}, {100 * residency['ratio']:.1f} % of their bytes{scales}"


def _widening(columns: Sequence[Mapping[str, Any]], residency: Mapping[str, Any]) -> Iterator[str]:
    """What widening takes, at the largest capacity."""
    if residency["cost_ns"] is None:
        return
    took = [
        entry["blocks"]["dequant_s"]
        for entry in columns[-1]["entries"]
        if entry["kind"] == "policy"
    ]
    yield (
        f"widening  {min(took):,.3g} to {max(took):,.3g} s at {columns[-1]['capacity']}, with "
        f"{residency['cost_ns']:g} ns a stored byte: {residency['cost_source']}"
    )


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

_KEYS = ("case", "residency", "capacity", "room_bytes", "policy", "kind", "rule")
_FIGURES = (
    "hits", "hit_ratio", "byte_hit_ratio", "miss_ratio", "byte_miss_ratio", "evictions", "refused",
    "loaded_bytes", "dequant_s", "at_most",
)  # fmt: skip
CSV_HEAD = (
    *_KEYS, "lookups", "compulsory", *_FIGURES, "interval_low", "interval_high", "seeds",
    "beaten_by",
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
        beaten_by = (column[order] or {}).get("beaten_by")
        for entry in column["entries"]:
            rate = entry[rule]
            if rate is None:
                continue
            interval = rate["interval"] or {}
            yield [
                case["name"], table["residency"], column["capacity"], column["room_bytes"],
                entry["policy"], entry["kind"], rule, case["base"]["lookups"],
                case["base"][compulsory], *(rate[name] for name in _FIGURES), interval.get("low"),
                interval.get("high"), case["seeds"], _count(beaten_by, entry["policy"]),
            ]  # fmt: skip


def _count(beaten_by: Mapping[str, Any] | None, policy: str) -> int | None:
    """How many are shown to be better; None where there is no order, and of bounds."""
    better = None if beaten_by is None else beaten_by.get(policy)
    return None if better is None else len(better)
