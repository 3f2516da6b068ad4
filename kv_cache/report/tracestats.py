"""What a trace, or the requests of synthetic users, look like: the document and its summary."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.model import ModelShape
from kv_cache.core.units import human_bytes
from kv_cache.result.chain import seal
from kv_cache.view.traced import unit_told
from kv_cache.workload.distribution import QUANTILES
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.surveying import Survey
from kv_cache.workload.reuse import LRU_SHARES
from kv_cache.workload.stats import SessionFigures, StreamFigures

SCHEMA = "kv-cache-trace-stats/1"
SECTION = "kv_cache"
TIB = 1 << 40

_PERCENTILES = ("p50", "p90", "p95", "p99")


def stats_document(
    config: Config,
    model: ModelShape,
    block_tokens: int,
    workload: Mapping[str, Any],
    found: Survey | None,
    stream: StreamFigures,
    sessions: SessionFigures | None,
) -> dict[str, Any]:
    """The sealed document. `workload` is what the source says of itself, `found` the survey of a
    trace (None: synthetic users)."""
    own = {
        "schema": SCHEMA,
        "program_version": __version__,
        "seed": config.run.seed,
        "workload": dict(workload),
        "rows": None if found is None else _rows(found, str(workload["format"])),
        "model": {
            "name": model.name,
            "bytes_per_token": model.object_bytes(1, config.tiers.tensor_parallel),
            "block_tokens": block_tokens,
        },
        "quantiles": list(QUANTILES),
        **asdict(stream),
        "sessions": None if sessions is None else asdict(sessions),
        "config": to_mapping(config),
    }
    own["models"] = [{"name": name, "requests": count} for name, count in stream.models]
    return seal({SECTION: own}, {})


def _rows(found: Survey, format_name: str) -> dict[str, Any]:
    return {
        "timed": TRACE_FORMATS[format_name].timed,
        "grouped": TRACE_FORMATS[format_name].grouped,
        "good": found.rows,
        "bad": found.bad_rows,
        "notes": dict(found.notes),
        "first_bad": [row._asdict() for row in found.first_bad],
    }


# --- for people ------------------------------------------------------------------------------


def stats_text(document: Mapping[str, Any]) -> str:
    """A summary that a person reads in ten seconds."""
    own = document[SECTION]
    groups = ((_head,), (_tokens,), (_arrivals, _sessions), (_blocks, _reuse, _working_sets))
    told = ([line for part in group for line in part(own)] for group in groups)
    return "\n\n".join("\n".join(lines) for lines in told if lines)


def _head(own: Mapping[str, Any]) -> Iterator[str]:
    said, rows, model = own["workload"], own["rows"], own["model"]
    retrieving = f", {own['retrieving']:,} of them of RAG" if own["retrieving"] else ""
    count = f"{own['requests']:,} requests{retrieving}"
    if rows is None:
        yield f"users     {said.get('users', '?')} synthetic users, {count}"
    else:
        files = [Path(name).name for name in said.get("files", ["?"])]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"trace     {_plain(files[0])}{more} ({said.get('format', '?')}), {count}"
        notes = (f"; {name.replace('_', ' ')} {count:,}" for name, count in rows["notes"].items())
        unit = "".join(f"; {told}" for told in unit_told(said))
        yield f"rows      {rows['good']:,} good, {rows['bad']:,} bad{''.join(notes)}{unit}"
    if own["models"]:
        told = ", ".join(f"{_plain(row['name'])} {row['requests']:,}" for row in own["models"][:3])
        yield f"models    {told}{', ...' if len(own['models']) > 3 else ''}"
    if own["operations"]:
        writes = own["operations"] - own["reads"]
        yield f"I/O       {own['reads']:,} reads, {writes:,} writes of objects of their own sizes"
    if own["operations"] == own["requests"]:
        return
    size = model["block_tokens"]
    what = f"blocks of {size} tokens" if size else "one object a turn"
    yield f"sizes     {model['name']}, {model['bytes_per_token'] / 1024:g} KiB a token, {what}"


def _tokens(own: Mapping[str, Any]) -> Iterator[str]:
    if own["operations"] == own["requests"]:
        return
    names = ("mean", *_PERCENTILES, "most")
    yield f"{'tokens':<10}{'total':>15}" + "".join(f"{name:>10}" for name in names)
    for name in ("prompt", "output"):
        row = own["tokens"][name]
        if row is not None:
            values = "".join(f"{row[each]:>10,.0f}" for each in names)
            yield f"  {name:<8}{row['total']:>15,}{values}"


def _arrivals(own: Mapping[str, Any]) -> Iterator[str]:
    row, said = own["arrivals"], own["workload"]
    if said.get("source") == "sessions":
        yield (
            f"planned   up to {said['users']:,} sessions at the same time (--trace-users), each "
            "request answered at once"
        )
    if row["per_s"] is None:
        timed = own["rows"] is None or own["rows"]["timed"]
        why = "all at one instant" if timed else "no instants: each as the one before is answered"
        yield f"arrivals  {why}"
        return
    cv = "" if row["gap_cv"] is None else f"; CV of gaps {_short(row['gap_cv'])} (Poisson: 1)"
    yield (
        f"arrivals  {_short(row['per_s'])} requests/s over {row['span_s']:,.1f} s{cv}, longest gap "
        f"{_seconds(row['longest_gap_s'])}"
    )
    told = ", ".join(
        f"{_short(each['index'])} in {_seconds(each['window_s'])}" for each in row["dispersion"]
    )
    if told:
        yield f"  bursts  variance/mean of counts: {told}"


def _sessions(own: Mapping[str, Any]) -> Iterator[str]:
    row = own["sessions"]
    if row is None:
        yield "sessions  none given"
        return
    turns = row["turns"]
    yield (
        f"sessions  {row['sessions']:,} ({row['one_turn']:,} of one turn); turns "
        f"{_spread(turns, _whole)}"
    )
    if row["think_s"] is not None:
        yield f"  thinks  {_spread(row['think_s'], _seconds)}"
    if row["step_s"] is not None and own["arrivals"]["per_s"] is not None:
        yield f"  steps   {_spread(row['step_s'], _seconds)} from turn to turn"


def _blocks(own: Mapping[str, Any]) -> Iterator[str]:
    row = own["reuse"]
    yield (
        f"blocks    {row['references']:,} asked for, {row['unique_blocks']:,} unique: "
        f"{_bytes(row['footprint_bytes'])}"
    )
    if row["never_again"]:
        yield (
            f"          {row['never_again']:,} of them in rows that name neither content nor "
            "session: nobody can ask again"
        )


def _reuse(own: Mapping[str, Any]) -> Iterator[str]:
    row = own["reuse"]
    if not row["hits"]:
        yield "reuse     none: nothing is known to have been asked for before"
        return
    yield (
        f"reuse     unlimited cache: {_percent(row['hit_ratio'])} of blocks, "
        f"{_percent(row['token_hit_ratio'])} of tokens"
    )
    if row["prefix_hits"] != row["hits"]:
        yield f"          leading blocks only: {_percent(row['prefix_hit_ratio'])} of blocks"
    if row["own_hits"] is not None and row["own_hits"] != row["hits"]:
        yield f"          each session for itself: {_percent(row['own_hit_ratio'])} of blocks"
    for share, room in zip(LRU_SHARES, row["lru"], strict=True):
        yield (
            f"  LRU     {100 * share:>2.0f} % of the unique blocks ({room['blocks']:,}, "
            f"{_bytes(room['nbytes'])}): {_percent(room['hit_ratio'])}"
        )
    if row["distance_blocks"] is not None:
        yield f"  distance {_spread(row['distance_blocks'], _whole)} other blocks in between"
    if row["time_s"] is not None and row["time_s"]["most"]:
        yield f"  time    {_spread(row['time_s'], _seconds)} since the block was asked for"


def _working_sets(own: Mapping[str, Any]) -> Iterator[str]:
    for row in own["reuse"]["working_sets"]:
        yield (
            f"working   set of the last {_seconds(row['window_s'])}: {row['blocks']:,.0f} blocks, "
            f"{_bytes(row['nbytes'])} (mean)"
        )


def _spread(row: Mapping[str, Any], told: Any) -> str:
    names = ("p50", "p90", "p99", "most")
    return ", ".join(f"{name} {told(row[name])}" for name in names)


def _plain(text: str) -> str:
    """Text out of files that anybody may have written, such as a terminal can be shown."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    """Three figures that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    for unit, seconds in (("h", 3600), ("min", 60), ("s", 1)):
        if value >= seconds * (1 if unit == "s" else 2) or (value == seconds and unit != "s"):
            return f"{_short(value / seconds)} {unit}"
    return f"{_short(value * 1000)} ms" if value else "0 s"


def _bytes(nbytes: float) -> str:
    return f"{nbytes / TIB:.2f} TiB" if nbytes >= TIB else human_bytes(nbytes)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
