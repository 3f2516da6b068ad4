"""The document of all ranks: counts added up, histograms merged, the ranks' own results inside.

A pure function of the ranks' results and of what the crew saw, whatever their order, so that
`verify` can do it again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

from kv_cache import __version__
from kv_cache.core.crew import Crew
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.passport import Status
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.metrics.summary import kept_promises, latency_ms, per_second, ratio, size_numbers
from kv_cache.report.chain import fingerprint, seal
from kv_cache.report.headline import headline_of_ranks
from kv_cache.report.iotrace import without_figures
from kv_cache.report.mlperf import unsupported
from kv_cache.report.node import MisshapenError, Node
from kv_cache.report.pooled import (
    CLASSES,
    DEVICE,
    SIZES,
    TOTAL,
    added,
    numbers_of,
    pooled_failures,
    pooled_histogram,
    pooled_measured,
    pooled_metadata,
    pooled_operations,
)
from kv_cache.report.ranks.keys import reference_keys
from kv_cache.report.ranks.part import FINISHED, SECTION, Part, counted_of, flawed, parts_of
from kv_cache.report.ranks.rules import judged
from kv_cache.report.result import SCHEMA as RESULT_SCHEMA
from kv_cache.report.trials import METRICS, number_at

SCHEMA = "kv-cache-ranks/1"

_KINDS = ("read", "write")
_TIERS = ("gpu", "cpu", "storage")

Rows = list[dict[str, Any]]


def merged_document(results: Mapping[int, Any], crew: Crew) -> dict[str, Any]:
    """The sealed document of all ranks, of what each has as its result (by its number, as plain
    JSON). Whatever is wrong with one is a reason of the verdict; what cannot be counted is kept,
    and in no sum."""
    crew = replace(crew, members=sorted(crew.members, key=lambda member: member.rank))
    parts, numbers = _merged(parts_of(results, crew))
    counted, body, together = counted_of(parts), numbers.body, numbers.together
    verdict = judged(parts, crew, body, together)
    own = {
        "schema": SCHEMA,
        "result_schema": RESULT_SCHEMA,
        "program_version": __version__,
        **_what(counted),
        "status": _status(parts),
        "notes": _notes(parts, crew),
        "passport": verdict.to_json(),
        "crew": crew.to_json(),
        "together": together,
        **body,
        "ranks": numbers.rows,
        **numbers.settings,
    }
    document = {**numbers.keys, SECTION: own}
    document["overall_passed"] = (
        verdict.verdict != Status.INVALID
        and len(counted) == len(parts) == crew.wanted
        and all(part.root["overall_passed"].value is True for part in counted)
    )
    if any(part.said("config.output.io_trace_log") is not None for part in counted):
        without_figures(document)
    return seal(document, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """All that is taken out of the ranks' results."""

    body: dict[str, Any]
    together: dict[str, Any]
    keys: dict[str, Any]
    rows: list[dict[str, Any]]
    settings: dict[str, Any]


def _merged(parts: Sequence[Part]) -> tuple[Sequence[Part], _Numbers]:
    """Each that counts must be mergeable by itself, which is looked at only if all together are
    not: then those that are not no longer count."""
    try:
        return parts, _numbers(parts)
    except MisshapenError:
        sound = [_alone(part) for part in parts]
        return sound, _numbers(sound)


def _alone(part: Part) -> Part:
    try:
        _numbers([part])
    except MisshapenError as error:
        return flawed(part, error)
    return part


def _numbers(parts: Sequence[Part]) -> _Numbers:
    """Raises MisshapenError if these cannot be merged."""
    counted = counted_of(parts)
    body = _body(counted)
    return _Numbers(
        body=body,
        together=_together(counted, body["tiers"]),
        keys=reference_keys(counted, body),
        rows=[_row(part) for part in parts],
        settings=_settings(counted),
    )


# --- what was measured -----------------------------------------------------------------------


def _body(counted: Sequence[Part]) -> dict[str, Any]:
    """The measurements of all, under the names that a result of one run has."""
    documents = [part.document for part in counted]
    operations = pooled_operations(documents)
    body = {
        "window_s": max((part.own["window_s"].number() for part in counted), default=0.0),
        "headline": headline_of_ranks([part.own for part in counted]),
        "requests": _requests(counted),
        "measured": _measured(counted, documents),
        "reuse": _reuse(counted),
        "tiers": _tiers(counted, operations),
        "operations": operations,
        "metadata": pooled_metadata(documents),
        "failed_operations": pooled_failures(documents),
        "verification": _verification(counted),
        "evictions": added(dict(numbers_of(part.own["evictions"])) for part in counted),
        "policies": _policies(counted),
        "reconciliation": _reconciliation(counted),
    }
    return {**body, "reference_keys_unsupported": unsupported(Node(body, SECTION))}


def _policies(counted: Sequence[Part]) -> Any:
    found = _put_together([part.own.find("policies") for part in counted])
    told = Node(found, "policies").find("prefetch.useful")
    if told is not None:
        made = found["prefetch"]
        ended = sum(made[name]["blocks"] for name in ("useful", "late", "wasted"))
        made["useful_ratio"] = made["useful"]["blocks"] / ended if ended else None
    return found


def _put_together(nodes: Sequence[Node | None]) -> Any:
    """Mappings put together: counts added up, and what is no count where all ranks agree."""
    known = [node for node in nodes if node is not None]
    if not known:
        return None
    if any(isinstance(node.value, Mapping) for node in known):
        names = dict.fromkeys(name for node in known for name, _ in node.items())
        return {
            name: _put_together([node[name] for node in known if name in node.mapping()])
            for name in names
        }
    if all(type(node.value) is int for node in known):
        return sum(node.whole() for node in known)
    first = known[0].value
    return first if all(node.value == first for node in known) else None


def _requests(counted: Sequence[Part]) -> dict[str, Any]:
    """The accounting of all. The longest queue is the longest that one rank had."""
    books = [dict(numbers_of(part.own["requests"])) for part in counted]
    longest = max((row.pop("longest_queue", 0) for row in books), default=0)
    errors = added(dict(numbers_of(part.own["requests"]["errors"])) for part in counted)
    total = added(books)
    if not total:  # with no rank at all there is nothing under these names
        total = dict.fromkeys(("submitted", "completed", "failed", "rejected", "unfinished",
                               "completed_in_window"), 0)  # fmt: skip
    return {**total, "longest_queue": longest, "errors": dict(sorted(errors.items()))}


def _measured(counted: Sequence[Part], documents: Sequence[Any]) -> dict[str, Any]:
    made = pooled_measured(documents)
    for name in CLASSES:
        rates = {
            f"{count}_per_second": fsum(
                per_second(part.own["measured"][name][count].whole(), part.own["window_s"].number())
                for part in counted
            )
            for count in ("completed", "output_tokens")
        }
        made[name] |= rates
        if name != "all":
            made[name]["promises"] = _promises(counted, name, made[name])
    return made


def _promises(counted: Sequence[Part], name: str, pooled: Mapping[str, Any]) -> dict[str, Any]:
    """What all ranks promise to a class, beside what all of its requests got."""
    several = [part.own["measured"][name]["promises"] for part in counted]
    targets = common(
        [{key: row["target_ms"].number() for key, row in each.items()} for each in several]
    )
    end_to_end = Node(pooled, f"measured.{name}")["histogram_end_to_end"].histogram()
    return kept_promises(end_to_end, targets or {})


_RATIOS: Mapping[str, tuple[str, str]] = {
    "reuse_hit_ratio": ("hits", "looked_up"),
    "history_hit_ratio": ("history_hits", "history_looked_up"),
    "retrieved_hit_ratio": ("retrieved_hits", "retrieved_looked_up"),
    "offered_block_ratio": ("offered_blocks", "blocks"),
    "achieved_block_ratio": ("hits", "blocks"),
    "offered_token_ratio": ("offered_tokens", "context_tokens"),
    "achieved_token_ratio": ("hit_tokens", "context_tokens"),
}


def _reuse(counted: Sequence[Part]) -> dict[str, Any]:
    """Counters added up, and the ratios of the sums; one that a rank has as null is null."""
    rows = [part.own["reuse"] for part in counted]
    names = {name for parts in _RATIOS.values() for name in parts}
    total = {**dict.fromkeys(sorted(names) if not rows else (), 0)}
    total |= added({name: n for name, n in numbers_of(row) if name not in _RATIOS} for row in rows)
    found: dict[str, Any] = {}
    for name, (part, whole) in _RATIOS.items():
        known = all(row[name].value is not None for row in rows)
        found[name] = ratio(total[part], total[whole]) if known else None
    exact = all(row["offered_is_exact"].value is True for row in rows)
    return {**total, **found, "offered_is_exact": exact}


# --- tiers -----------------------------------------------------------------------------------


def _tiers(counted: Sequence[Part], operations: Rows) -> dict[str, Any]:
    there = {label for part in counted for label, _ in part.own["tiers"].items()}
    return {label: _tier(counted, operations, label) for label in _TIERS if label in there}


def _tier(counted: Sequence[Part], operations: Rows, label: str) -> dict[str, Any]:
    having = [part for part in counted if label in part.own["tiers"].mapping()]
    rows = [part.own["tiers"][label] for part in having]
    limits = [row["capacity_bytes"].value for row in rows]
    levels = ("used_bytes", "peak_bytes", "stranded_bytes", "entries")
    return {
        "capacity_bytes": None
        if None in limits
        else sum(r["capacity_bytes"].whole() for r in rows),
        **{name: sum(row[name].whole() for row in rows) for name in levels},
        "store": _store([row["store"] for row in rows]),
        **{kind: _side(having, operations, label, kind) for kind in _KINDS},
    }


def _store(stores: Sequence[Node]) -> dict[str, Any]:
    """What all ranks' stores have in common; their engines joined by `+`."""
    shared = dict(common([store.mapping() for store in stores]))
    for name in ("engine", "write_engine"):
        engines = {part for store in stores if (node := store.find(name)) is not None
                   for part in node.text().split("+")}  # fmt: skip
        if engines:
            shared[name] = "+".join(sorted(engines))
    return shared


def _side(parts: Sequence[Part], operations: Rows, label: str, kind: str) -> dict[str, Any]:
    rows = [part.own["tiers"][label][kind] for part in parts]
    pool = [{SECTION: {"operations": operations}}]
    found = {name: latency_ms(pooled_histogram(pool, label, kind, name))
             for name in (TOTAL, DEVICE)}  # fmt: skip
    return {
        **{name: sum(row[name].whole() for row in rows) for name in ("operations", "bytes")},
        **{
            name: fsum(row[name].number() for row in rows)
            for name in ("bytes_per_second", "operations_per_second")
        },
        "total_ms": found[TOTAL],
        "device_ms": found[DEVICE],
        "host_ms": None,
        "object_bytes": size_numbers(pooled_histogram(pool, label, kind, SIZES)),
    }


def _together(counted: Sequence[Part], tiers: dict[str, Any]) -> dict[str, Any]:
    """From the first window's begin to the last one's end, where the crew's clocks tell: how long,
    how much of it all ranks measured, and what moved in it. Rates of tiers over it stand beside
    the sums."""
    begins = [begin for part in counted if (begin := part.begin_ns) is not None]
    ends = [end for part in counted if (end := part.end_ns) is not None]
    known = bool(counted) and len(begins) == len(counted)
    span_ns = max(ends) - min(begins) if known else 0
    shared_ns = max(0, min(ends) - max(begins)) if known else 0
    span_s = span_ns / NS_PER_S
    for tier in tiers.values():
        for kind in _KINDS:
            moved = tier[kind]["bytes"]
            tier[kind]["together_bytes_per_second"] = per_second(moved, span_s) if known else None
    return {
        "begin_ns": min(begins) if known else None,
        "end_ns": max(ends) if known else None,
        "span_s": span_s if known else None,
        "shared_s": shared_ns / NS_PER_S if known else None,
        "shared_share": ratio(shared_ns, span_ns) if known else None,
    }


def _verification(counted: Sequence[Part]) -> dict[str, Any]:
    rows = [part.own["verification"] for part in counted]
    return {
        "mode": "+".join(sorted({row["mode"].text() for row in rows})) or "none",
        **{name: sum(row[name].whole() for row in rows) for name in ("objects", "bytes")},
    }


# --- beside the kernel -----------------------------------------------------------------------


def _reconciliation(counted: Sequence[Part]) -> dict[str, Any] | None:
    """Bytes that all ranks claim, beside what the kernel counted for their processes and for each
    device of each machine, once. A device counts everybody's, so of ranks that share one the
    largest count is taken."""
    known = [part for part in counted if part.said("reconciliation") is not None]
    if not known:
        return None
    devices = _devices(known)
    names = sorted({device["device"] for device in devices if device["device"] is not None})
    made: dict[str, Any] = {"device": "+".join(names) or None}
    for kind in _KINDS:
        rows = [part.own["reconciliation"][kind] for part in known]
        claimed = sum(row["claimed_bytes"].whole() for row in rows)
        process = _sum_or_none(row["process_bytes"] for row in rows)
        each = [device[f"device_{kind}_bytes"] for device in devices]
        device = None if None in each else sum(each)
        made[kind] = {
            "claimed_bytes": claimed,
            "process_bytes": process,
            "device_bytes": device,
            "process_to_claimed": None if process is None else ratio(process, claimed),
            "device_to_claimed": None if device is None else ratio(device, claimed),
        }
    return {**made, "devices": devices}


def _devices(known: Sequence[Part]) -> list[dict[str, Any]]:
    """One row for each device of each machine."""
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in known:
        name = part.own["reconciliation"]["device"].value
        groups.setdefault((part.host or "", str(name or "")), []).append(part)
    return [
        {
            "host": host or None,
            "device": device or None,
            "ranks": [part.rank for part in groups[host, device]],
            **{
                f"device_{kind}_bytes": _most([p.own["reconciliation"][kind]["device_bytes"]
                                        for p in groups[host, device]])
                for kind in _KINDS
            },
            **{
                f"claimed_{kind}_bytes": sum(
                    p.own["reconciliation"][kind]["claimed_bytes"].whole()
                    for p in groups[host, device]
                )
                for kind in _KINDS
            },
            **{
                f"process_{kind}_bytes": _sum_or_none(
                    p.own["reconciliation"][kind]["process_bytes"] for p in groups[host, device]
                )
                for kind in _KINDS
            },
        }
        for host, device in sorted(groups)
    ]  # fmt: skip


def _sum_or_none(nodes: Iterable[Node]) -> int | None:
    several = list(nodes)
    return None if any(n.value is None for n in several) else sum(n.whole() for n in several)


def _most(nodes: Sequence[Node]) -> int | None:
    return None if any(n.value is None for n in nodes) else max(n.whole() for n in nodes)


# --- who and how -----------------------------------------------------------------------------


def _what(counted: Sequence[Part]) -> dict[str, Any]:
    """What the results say of themselves; null where they do not agree."""
    started = [said for part in counted if isinstance(said := part.said("started_utc"), str)]
    return {
        **{name: _agreed(counted, name) for name in ("driver", "semantics_preset")},
        "contains_performance": bool(counted)
        and all(part.said("contains_performance") is True for part in counted),
        "started_utc": min(started, default=None),
        "seed": next((part.said("seed") for part in counted if part.rank == 0), None),
        "not_submittable": sorted(
            {row.text() for part in counted for row in part.own["not_submittable"].rows()}
        ),
    }


def _agreed(counted: Sequence[Part], name: str) -> Any:
    values = [part.said(name) for part in counted]
    return values[0] if values and all(value == values[0] for value in values) else None


def _status(parts: Sequence[Part]) -> str:
    """`broken` where a rank is missing or broke, `interrupted` where one was."""
    if any(not part.counted or part.lost is not None for part in parts):
        return "broken"
    said = {part.said("status") for part in parts}
    if said <= {FINISHED}:
        return FINISHED if parts else "broken"
    return "interrupted" if said <= {FINISHED, "interrupted"} else "broken"


_ALONE = "this is rank "
"""How a rank's note begins that says that it is one: known here."""


def _notes(parts: Sequence[Part], crew: Crew) -> list[str]:
    """The ranks' notes, each once, with the ranks that have it."""
    found: dict[str, list[int]] = {}
    for part in counted_of(parts):
        for note in part.own["notes"].rows():
            if not note.text().startswith(_ALONE):
                found.setdefault(note.text(), []).append(part.rank)
    ended = [] if crew.ended_early is None else [f"ended early for all: {crew.ended_early}"]
    several = len(counted_of(parts))
    return ended + [f"{_whose(ranks, several)}: {note}" for note, ranks in found.items()]


def _whose(ranks: Sequence[int], several: int) -> str:
    if len(ranks) == several > 1:
        return "all ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _settings(counted: Sequence[Part]) -> dict[str, Any]:
    """What all ranks have in common; what differs is in their own results."""
    names = ("workload", "model", "semantics", "buffers")
    shared = {name: common([part.own[name].mapping() for part in counted]) or {} for name in names}
    config = common([part.own["config"].mapping() for part in counted]) or {}
    traced = [name for part in counted
              if (name := part.said("config.output.io_trace_log")) is not None]  # fmt: skip
    if counted:  # each rank's own file, but that nothing was timed is all ranks'
        everywhere = len(traced) == len(counted)
        output = {**config.get("output", {}), "io_trace_log": traced[0] if everywhere else None}
        config = {**config, "output": output}
    truncated = any(part.said("latency_lists_truncated") is True for part in counted)
    listed = sum(len(part.root["end_to_end_latencies"].rows()) for part in counted)
    return {
        **shared,
        "histogram_relative_error": RELATIVE_ERROR,
        "latency_lists_limit": SAMPLE_LIMIT,
        "latency_lists_truncated": truncated or listed > SAMPLE_LIMIT,
        "config": config,
        "environment": _environment(counted),
    }


def _environment(counted: Sequence[Part]) -> dict[str, Any]:
    """What all machines have in common, and each of them."""
    hosts: dict[str, list[Part]] = {}
    for part in counted:
        hosts.setdefault(part.host or "", []).append(part)
    shared = common([part.own["environment"].mapping() for part in counted]) or {}
    return {
        **shared,
        "hosts": [
            {
                "hostname": host or None,
                "ranks": [part.rank for part in hosts[host]],
                "environment": common([part.own["environment"].mapping() for part in hosts[host]]),
            }
            for host in sorted(hosts)
        ],
    }


class _Differs:
    """Instead of a value on which several do not agree."""


_DIFFERS = _Differs()


def common(values: Sequence[Any]) -> Any:
    """What several plain values have in common: a mapping without the keys on which they do not
    agree; None where they agree on nothing."""
    found = _common(values) if values else None
    return None if isinstance(found, _Differs) else found


def _common(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values[1:]):
        return first
    if not all(isinstance(value, Mapping) for value in values):
        return _DIFFERS
    shared = {name: _common([value[name] for value in values])
              for name in first if all(name in value for value in values)}  # fmt: skip
    return {name: value for name, value in shared.items() if not isinstance(value, _Differs)}


def _row(part: Part) -> dict[str, Any]:
    """One rank, with its result as it came."""
    passport = part.own["passport"] if part.counted else None
    figures = {}
    if part.counted and part.said("config.output.io_trace_log") is None:
        found = {name: metric.value(part.own.value) for name, metric in METRICS.items()}
        figures = {name: value for name, value in found.items() if value is not None}
    return {
        "rank": part.rank,
        "host": part.host,
        "counted": part.counted,
        "why_not": part.flaw,
        "lost": part.lost,
        "seed": part.said("seed"),
        "status": part.said("status"),
        "verdict": None if passport is None else passport["verdict"].text(),
        "reasons": [] if passport is None else [r.text() for r in passport["reasons"].rows()],
        "schedule_sha256": part.said("schedule.sha256"),
        "window_s": number_at({"s": part.said("window_s")}, "s"),
        "begin_ns": part.begin_ns,
        "end_ns": part.end_ns,
        "figures": figures,
        "fingerprint": fingerprint(part.document) if isinstance(part.document, Mapping) else None,
        "result": part.document,
    }
