"""What a person reads in ten seconds: the verdict, then a row for each variant in a few tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kv_cache.report.cluster.measures import (
    ACTIVE,
    BUSY,
    CEILING,
    E2E,
    FINISHED_RATE,
    GOOD_SHARE,
    GOODPUT,
    HIT_RATIO,
    ITL,
    LATENCIES,
    QUEUE,
    SKEW,
    TOKEN_RATE,
    TPOT,
    TTFT,
    Measure,
    below,
    named_below,
    number_of,
    three,
)
from kv_cache.report.reading import SECTION
from kv_cache.view.traced import trace_line

Json = Mapping[str, Any]
Cells = list[str]

GB = 1e9
_LONGEST_NAME = 34
_MANY = 1000


def sim_text(document: Json) -> str:
    own = document[SECTION]
    lines = [*_head(own), *_said(own)]
    if own["variants"]:
        for table in (_latencies(own), _service(own), _caches(own), _bytes(own)):
            lines += ["", *table]
    return "\n".join(lines)


def _head(own: Json) -> Iterator[str]:
    seeds = own["seeds"]
    many = f"seeds {seeds[0]} and {len(seeds) - 1} more" if len(seeds) > 1 else f"seed {seeds[0]}"
    preset = f", preset {own['preset']}" if own["preset"] else ""
    yield f"sim       {own['name']} ({own['scenario_file']}{preset}), {many}, virtual time"
    if own["question"] != "none":
        yield f"question  {own['question']}"
    yield from map(trace_line, own["traces"])
    if own["left_out"]:
        source = own["config"]["workload"]["source"]
        names = ", ".join(own["left_out"])
        yield f"left out  of the scenario, as source {source} does not read it: {names}"
    ended = "" if own["interrupted"] is None else f", ended by {own['interrupted']}"
    yield f"runs      {own['finished']} of {own['runs']} ended{ended}"


def _said(own: Json) -> Iterator[str]:
    verdict = own["verdict"]
    yield f"verdict   {verdict['says']}"
    hits = verdict["measures"].get(HIT_RATIO.path)
    if hits is not None and verdict["no_order"] is None and hits["says"] != verdict["says"]:
        yield f"          {hits['says']}"
    yield from (f"  ! {warning}" for warning in own["warnings"])


# --- tables ----------------------------------------------------------------------------------


def _table(title: str, heads: Cells, rows: Sequence[Cells], above: Cells | None = None) -> Cells:
    """The first column left, numbers right; `above` are groups over the heads."""
    every = [[title, *heads], *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(heads) + 1)]
    lines = [_line(row, widths) for row in every]
    if above is not None:
        lines.insert(0, _line(["", *above], widths))
    return lines


def _line(cells: Cells, widths: Sequence[int]) -> str:
    rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join((f"{cells[0]:<{widths[0]}}", *rest)).rstrip()


def label(variant: Json) -> str:
    name = variant["name"]
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
    return f"{variant['variant']}  {short}".rstrip()


def _cell(variant: Json, measure: Measure) -> str:
    return measure.told(variant["numbers"].get(measure.path))


def _count(variant: Json, path: str) -> str:
    value = number_of(variant, path) or 0
    return f"{value:,.0f}" if value == int(value) or value >= _MANY else three(value)


def _latencies(own: Json) -> Cells:
    groups = {"TTFT": TTFT, "ITL": ITL, "TPOT": TPOT, "E2E": E2E, "queue": QUEUE}
    above = [name if n == 0 else "" for name, some in groups.items() for n in range(len(some))]
    heads = [measure.path.rpartition(".")[2] for measure in LATENCIES]
    rows = [[label(v), *(_cell(v, measure) for measure in LATENCIES)] for v in own["variants"]]
    return _table("latency, ms", heads, rows, above)


def _service(own: Json) -> Cells:
    """What became of requests, and how instances shared the work."""
    heads = [
        "finished", "rejected", "aborted", "preempted", "req/s", "tokens/s", "good/s", "good %",
        "busy %", "active %", "skew",
    ]  # fmt: skip
    rows = [
        [
            label(v),
            *(_count(v, f"requests.{name}")
              for name in ("finished", "rejected", "aborted", "preemptions")),
            *(_cell(v, measure)
              for measure in (FINISHED_RATE, TOKEN_RATE, GOODPUT, GOOD_SHARE, BUSY, ACTIVE, SKEW)),
        ]
        for v in own["variants"]
    ]  # fmt: skip
    return [*_table("requests", heads, rows), *_lost(own)]


def _lost(own: Json) -> Iterator[str]:
    """Why requests were rejected or aborted; means over seeds where there are several."""
    for variant in own["variants"]:
        for what in ("rejected", "aborted"):
            path = f"requests.{what}_why"
            reasons = below(variant, path)
            if reasons:
                told = ", ".join(f"{_count(variant, f'{path}.{why}')} {why}" for why in reasons)
                yield f"  {what} in variant {variant['variant']}: {told}"


def tier_hits(tier: str) -> Measure:
    return Measure(path=f"blocks.hit_ratios.{tier}", label=tier, unit="%", scale=100)


def _caches(own: Json) -> Cells:
    tiers = named_below(own["variants"], "blocks.hit_ratios")
    heads = [*tiers, "all", "ceiling", "looked up", "recomputed"]
    rows = [
        [
            label(v),
            *(_cell(v, tier_hits(tier)) for tier in tiers),
            *(_cell(v, measure) for measure in (HIT_RATIO, CEILING)),
            *(_count(v, f"blocks.{name}") for name in ("looked_up", "recomputed")),
        ]
        for v in own["variants"]
    ]
    return _table("block hits, %", heads, rows)


def causes_of(variants: Sequence[Json]) -> list[str]:
    """All causes of bytes on any link, in order."""
    return sorted(set(named_below(variants, "bytes_by_cause")))


def _bytes(own: Json) -> Cells:
    """A row for each kind of link of each variant that carried anything."""
    causes = causes_of(own["variants"])
    rows = [row for variant in own["variants"] for row in _links(variant, causes)]
    if not rows:
        return ["nothing was moved between places"]
    return _table("moved, GB", ["over", *causes, "all", "busy %", "busiest %"], rows)


def _links(variant: Json, causes: Sequence[str]) -> Iterator[Cells]:
    name = label(variant)
    for kind in below(variant, "links"):
        total = number_of(variant, f"links.{kind}.bytes")
        if not total:
            continue
        moved = [number_of(variant, f"links.{kind}.bytes_by_cause.{cause}") for cause in causes]
        used = [
            Measure(path=f"links.{kind}.{which}utilisation", label="", scale=100).told(
                variant["numbers"].get(f"links.{kind}.{which}utilisation")
            )
            for which in ("", "busiest_")
        ]
        yield [
            name, kind, *(three(value / GB) if value else "" for value in moved),
            three(total / GB), *used,
        ]  # fmt: skip
        name = ""
