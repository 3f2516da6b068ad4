"""The summary of several ranks that a person reads in ten seconds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kv_cache.core.units import MISSING, NS_PER_MS
from kv_cache.metrics.passport import Status
from kv_cache.report.identity import identity_lines
from kv_cache.report.sizes import size_lines
from kv_cache.report.table import headline_lines, ms_shown, tier_lines, verdict_lines
from kv_cache.result.metrics import METRICS

SECTION = "kv_cache"
_COLUMNS: Mapping[str, str] = {
    "read GiB/s": "storage.read.bytes_per_second",
    "write GiB/s": "storage.write.bytes_per_second",
    "read p95 ms": "storage.read.device_ms.p95",
    "write p95 ms": "storage.write.device_ms.p95",
    "requests/s": "requests_per_second",
}
_LONGEST_HOST = 20

Json = Mapping[str, Any]


def ranks_text(document: Json, path: str) -> str:
    """A few lines: what to know first, all ranks' sums, each rank, when they ran. All numbers are
    in the document."""
    own = document[SECTION]
    unjudged = [r for r in own["passport"]["rules"] if r["status"] == Status.NOT_JUDGED]
    lines = [*verdict_lines(own["passport"])]
    lines += [f"  ? {rule['rule']} {rule['name']}: {rule['says']}" for rule in unjudged]
    lines += [f"  ! {note}" for note in own["notes"]]
    lines += [
        "",
        *_head(own),
        *identity_lines(own),
        *headline_lines(own),
        "",
        *_numbers(own),
        "",
        *_table(own),
        "",
        *_when(own),
    ]
    return "\n".join([*lines, "", f"result  {path}"])


def _head(own: Json) -> list[str]:
    counted = sum(row["counted"] for row in own["ranks"])
    books = own["requests"]
    time = "" if own["contains_performance"] or not counted else ", virtual time"
    what = f"{own['model'].get('name', MISSING)}, {own['semantics_preset']} semantics"
    done = (
        f"{own['status']}{time} after {own['window_s']:.1f} s: {books['completed_in_window']} "
        f"requests completed, {books['failed']} failed, {books['rejected']} rejected, "
        f"{books['unfinished']} unfinished"
    )
    return [f"ranks     {counted} of {own['crew']['wanted']}: {what}, seed {own['seed']}", done]


def _numbers(own: Json) -> list[str]:
    """All ranks: bandwidths are sums, percentiles are of all operations together."""
    if not any(row["counted"] for row in own["ranks"]):
        return ["no rank has a result that counts: there are no numbers"]
    done, reuse = own["measured"]["all"], own["reuse"]
    if own["config"]["output"]["io_trace_log"] is not None:
        return tier_lines(own)
    ttft, response = done["ttft_ms"], done["response_ms"]
    return [
        *tier_lines(own),
        "",
        *size_lines(own),
        (
            f"requests  {done['completed_per_second']:.2f}/s, "
            f"{done['output_tokens_per_second']:,.0f} tokens/s; TTFT p50 {ms_shown(ttft, 'p50')} "
            f"p95 {ms_shown(ttft, 'p95')} ms; response p50 {ms_shown(response, 'p50')} p95 "
            f"{ms_shown(response, 'p95')} ms"
        ),
        (
            f"reuse     {reuse['hits']} of {reuse['looked_up']} blocks looked up were hits "
            f"({100 * reuse['reuse_hit_ratio']:.1f} %)"
        ),
    ]


def _table(own: Json) -> Iterator[str]:
    """A line for each rank."""
    rows = own["ranks"]
    widths = [max(len(name), 11) for name in _COLUMNS]
    longest = max((len(_host(row)) for row in rows), default=4)
    heads = "".join(f"{name:>{w + 2}}" for name, w in zip(_COLUMNS, widths, strict=True))
    yield f"{'rank':<6}{'host':<{longest}}{heads}  verdict"
    for row in rows:
        cells = "".join(
            f"{_shown(row, name):>{w + 2}}"
            for name, w in zip(_COLUMNS.values(), widths, strict=True)
        )
        yield f"{row['rank']:<6}{_host(row):<{longest}}{cells}  {_said(row)}"


def _host(row: Json) -> str:
    return str(row["host"] or MISSING)[:_LONGEST_HOST]


def _shown(row: Json, name: str) -> str:
    return METRICS[name].shown(row["figures"].get(name))


def _said(row: Json) -> str:
    if not row["counted"]:
        return "NOT COUNTED"
    unfinished = "" if row["status"] == "finished" else f", {row['status']}"
    return f"{row['verdict']}{unfinished}{', lost' if row['lost'] is not None else ''}"


def _when(own: Json) -> Iterator[str]:
    """How far apart they began, and how much of the time they shared."""
    crew, span = own["crew"], own["together"]
    if own["driver"] == "virtual-time":  # each on a clock of its own
        return
    if crew["start_skew_ns"] is None:
        yield "start     skew not known: not every rank has opened its window"
    else:
        yield (
            f"start     skew {crew['start_skew_ns'] / NS_PER_MS:.3f} ms "
            f"± {crew['start_skew_error_ns'] / NS_PER_MS:.3f} ms"
        )
    if span["shared_share"] is not None:
        rates = [_together(own, kind) for kind in ("read", "write")]
        yield (
            f"together  {span['shared_s']:.2f} of {span['span_s']:.2f} s "
            f"({100 * span['shared_share']:.1f} %); over all of it {_listed(rates)}"
        )


def _together(own: Json, kind: str) -> str:
    rate = own["tiers"].get("storage", {}).get(kind, {}).get("together_bytes_per_second")
    return f"{METRICS[f'storage.{kind}.bytes_per_second'].shown(rate)} GiB/s {kind}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(parts)
