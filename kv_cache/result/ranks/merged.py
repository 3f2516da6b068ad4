"""The document of all ranks: counts added up, histograms merged, the ranks' own results inside.

A pure function of the ranks' results and of what the crew saw, whatever their order, so that
`verify` can do it again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, structs, to_builtins
from msgspec.structs import replace

from kv_cache import __version__
from kv_cache.core.crew import Crew
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.passport import Status
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.metrics.summary import HELD, per_second, ratio, within_drive_cache
from kv_cache.result.chain import fingerprint, seal
from kv_cache.result.derive import SCHEMA as RESULT_SCHEMA
from kv_cache.result.merge import common, merged
from kv_cache.result.metrics import METRICS
from kv_cache.result.published import RANKS
from kv_cache.result.ranks.part import Part, counted_of, parts_of, runs_of
from kv_cache.result.ranks.rules import judged
from kv_cache.result.reference import reference_keys, unsupported
from kv_cache.result.run import SECTION, CountedRun, agreed, totals
from kv_cache.result.sections import KINDS, body, reconciled, reconciliation
from kv_cache.result.verdicts import BROKEN, FINISHED, INTERRUPTED
from kv_cache.result.without_figures import without_figures


def merged_document(results: Mapping[int, Any], crew: Crew) -> dict[str, Any]:
    """Build the sealed document of all ranks, of what each has as its result (by its number, as
    plain JSON). Whatever is wrong with one is a reason of the verdict; what cannot be counted is
    kept, and in no sum."""
    crew = replace(crew, members=sorted(crew.members, key=lambda member: member.rank))
    parts = parts_of(results, crew)
    counted, runs = counted_of(parts), runs_of(parts)
    numbers = _numbers(counted)
    together = _together(counted, numbers["tiers"])
    verdict = judged(parts, crew, numbers, together)
    section = {
        "schema": RANKS,
        "result_schema": RESULT_SCHEMA,
        "program_version": __version__,
        **_what(counted),
        "status": _status(parts),
        "notes": _notes(counted, crew),
        "passport": verdict.to_json(),
        "crew": crew.to_json(),
        "together": together,
        **numbers,
        "ranks": [_row(part) for part in parts],
        **_settings(counted),
    }
    document = {**reference_keys(runs), SECTION: section}
    document["overall_passed"] = (
        verdict.verdict != Status.INVALID
        and len(counted) == len(parts) == crew.expected
        and all(part.document["overall_passed"] is True for part in counted)
    )
    if any(run.config.output.io_trace_log is not None for run in runs):
        without_figures(document)
    return seal(document, {})


# --- what was measured -----------------------------------------------------------------------


def _numbers(counted: Sequence[Part]) -> dict[str, Any]:
    """Return the measurements of all, under the names that a result of one run has."""
    runs = runs_of(counted)
    counts = merged(totals(runs))
    return {
        **body(runs),
        "evictions": to_builtins(structs.replace(counts.evictions, policies=UNSET)),
        "policies": _policies(runs),
        "reconciliation": _reconciliation(counted),
        "reference_keys_unsupported": unsupported(counts),
    }


def _policies(runs: Sequence[CountedRun]) -> Any:
    policies = _put_together([run.facts.policies for run in runs])
    try:
        prefetch = policies["prefetch"]
        ended = sum(prefetch[name]["blocks"] for name in ("useful", "late", "wasted"))
        prefetch["useful_ratio"] = prefetch["useful"]["blocks"] / ended if ended else None
    except (KeyError, TypeError):  # nothing is prefetched, or not counted
        return policies
    return policies


def _put_together(values: Sequence[Any]) -> Any:
    """Put mappings together: counts are added, and other values are kept if all ranks agree."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if all(isinstance(value, Mapping) for value in known):
        names = dict.fromkeys(name for value in known for name in value)
        return {
            name: _put_together([value[name] for value in known if name in value]) for name in names
        }
    if all(type(value) is int for value in known):
        return sum(known)
    return agreed(known)


def _together(counted: Sequence[Part], tiers: dict[str, Any]) -> dict[str, Any]:
    """Return the time from the first window's begin to the last one's end by the crew's clocks: how
    long it was, and how much of it all ranks measured. Adds the rates of tiers over it beside the
    sums."""
    begins = [begin for part in counted if (begin := part.begin_ns) is not None]
    ends = [end for part in counted if (end := part.end_ns) is not None]
    known = bool(counted) and len(begins) == len(counted)
    span_ns = max(ends) - min(begins) if known else 0
    shared_ns = max(0, min(ends) - max(begins)) if known else 0
    span_s = span_ns / NS_PER_S
    for tier in tiers.values():
        for kind in KINDS:
            moved = tier[kind]["bytes"]
            tier[kind]["together_bytes_per_second"] = per_second(moved, span_s) if known else None
    return {
        "begin_ns": min(begins) if known else None,
        "end_ns": max(ends) if known else None,
        "span_s": span_s if known else None,
        "shared_s": shared_ns / NS_PER_S if known else None,
        "shared_share": ratio(shared_ns, span_ns) if known else None,
    }


# --- beside the kernel -----------------------------------------------------------------------


Sides = Mapping[str, Mapping[str, Any]]
_OF_A_DEVICE: Mapping[str, Callable[[Sequence[int]], int]] = {
    "device": max,  # it counts all processes' bytes
    "claimed": sum,
    "process": sum,
}
"""What the ranks that share a device make of their counts of bytes."""


def _reconciliation(counted: Sequence[Part]) -> dict[str, Any] | None:
    """Return the bytes that all ranks claim, beside those that the kernel counted for their
    processes and once for each device of each machine. A device counts all processes', so of ranks
    that share one the largest count is taken."""
    known = [
        (part, row)
        for part in counted
        if part.run is not None and (row := reconciliation(part.run)) is not None
    ]
    if not known:
        return None
    devices = _devices(known)
    names = sorted({device["device"] for device in devices if device["device"] is not None})
    rows = [row for _, row in known]
    return {
        "device": "+".join(names) or None,
        **{
            kind.value: reconciled(
                sum(row[kind]["claimed_bytes"] for row in rows),
                _if_known(sum, [row[kind]["process_bytes"] for row in rows]),
                _if_known(sum, [device[f"device_{kind}_bytes"] for device in devices]),
            )
            for kind in KINDS
        },
        "devices": devices,
    }


def _devices(known: Sequence[tuple[Part, Sides]]) -> list[dict[str, Any]]:
    """Return one row for each device of each machine."""
    groups: dict[tuple[str, str], list[tuple[Part, Sides]]] = {}
    for part, row in known:
        groups.setdefault((part.host or "", str(row["device"] or "")), []).append((part, row))
    devices = []
    for (host, device), members in sorted(groups.items()):
        devices.append(
            {
                "host": host or None,
                "device": device or None,
                "ranks": [part.rank for part, _ in members],
                **{
                    f"{name}_{kind}_bytes": _if_known(
                        combined, [row[kind][f"{name}_bytes"] for _, row in members]
                    )
                    for name, combined in _OF_A_DEVICE.items()
                    for kind in KINDS
                },
            }
        )
    return devices


def _if_known(combined: Callable[[Sequence[int]], int], values: Sequence[Any]) -> int | None:
    return None if None in values else combined(values)


# --- who and how -----------------------------------------------------------------------------


def _what(counted: Sequence[Part]) -> dict[str, Any]:
    """Return what the results have of themselves; null if they do not agree."""
    instants = [part.value_at("started_utc") for part in counted]
    started = [instant for instant in instants if isinstance(instant, str)]
    return {
        **{
            name: agreed(part.value_at(name) for part in counted)
            for name in ("driver", "semantics_preset")
        },
        "contains_performance": bool(counted)
        and all(part.value_at("contains_performance") is True for part in counted),
        "started_utc": min(started, default=None),
        "seed": next((part.value_at("seed") for part in counted if part.rank == 0), None),
        "not_submittable": sorted(
            {reason for run in runs_of(counted) for reason in run.facts.not_submittable}
        ),
    }


def _status(parts: Sequence[Part]) -> str:
    """Return `broken` if a rank is missing or broke, `interrupted` if one was."""
    if any(not part.counted or part.lost is not None for part in parts):
        return BROKEN
    statuses = {part.value_at("status") for part in parts}
    if statuses <= {FINISHED}:
        return FINISHED if parts else BROKEN
    return INTERRUPTED if statuses <= {FINISHED, INTERRUPTED} else BROKEN


_ALONE = "this is rank "
"""How a rank's note begins that says that it is one: known here."""


def _notes(counted: Sequence[Part], crew: Crew) -> list[str]:
    """Return the ranks' notes, each once, with the ranks that have it. That a drive held few bytes
    is said of all that share it."""
    ranks: dict[str, list[int]] = {}
    for part in counted:
        for note in _notes_of(part):
            if not note.startswith((_ALONE, HELD)):
                ranks.setdefault(note, []).append(part.rank)
    for note, numbers in _held_by_drives(counted):
        ranks[note] = numbers
    ended = [] if crew.ended_early is None else [f"ended early for all: {crew.ended_early}"]
    return ended + [f"{_whose(numbers, len(counted))}: {note}" for note, numbers in ranks.items()]


def _notes_of(part: Part) -> Sequence[str]:
    return () if part.run is None else part.run.facts.notes


def _held_by_drives(counted: Sequence[Part]) -> Iterator[tuple[str, list[int]]]:
    drives: dict[tuple[str, str], list[Part]] = {}
    for part in counted:
        device = str(part.value_at("kernel_counters.run.device") or "")
        drives.setdefault((part.host or "", device), []).append(part)
    for parts in drives.values():
        tiers = [part.run.facts.tiers.get("storage") for part in parts if part.run is not None]
        held = sum(tier.peak_bytes for tier in tiers if tier is not None)
        if any(note.startswith(HELD) for part in parts for note in _notes_of(part)):
            filled = any(part.value_at("preconditioning") is not None for part in parts)
            for note in within_drive_cache(held, preconditioned=filled):
                yield note, [part.rank for part in parts]


def _whose(ranks: Sequence[int], several: int) -> str:
    if len(ranks) == several > 1:
        return "all ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _settings(counted: Sequence[Part]) -> dict[str, Any]:
    """Return what all ranks have in common; what differs is in their own results."""
    runs = runs_of(counted)
    names = ("workload", "model", "semantics", "buffers")
    shared = {name: common([part.value_at(name) for part in counted]) or {} for name in names}
    config = common([run.facts.config for run in runs]) or {}
    traced = [name for run in runs if (name := run.config.output.io_trace_log) is not None]
    if runs:  # each rank's own file, but that nothing was timed is all ranks'
        everywhere = len(traced) == len(runs)
        output = {**config.get("output", {}), "io_trace_log": traced[0] if everywhere else None}
        config = {**config, "output": output}
    listed = sum(len(run.counted.end_to_end_latencies) for run in runs)
    return {
        **shared,
        "histogram_relative_error": RELATIVE_ERROR,
        "latency_lists_limit": SAMPLE_LIMIT,
        "latency_lists_truncated": any(run.facts.latency_lists_truncated for run in runs)
        or listed > SAMPLE_LIMIT,
        "config": config,
        "environment": _environment(counted),
    }


def _environment(counted: Sequence[Part]) -> dict[str, Any]:
    """Return what all machines have in common, and each of them."""
    hosts: dict[str, list[Part]] = {}
    for part in counted:
        hosts.setdefault(part.host or "", []).append(part)
    shared = common([part.value_at("environment") for part in counted]) or {}
    return {
        **shared,
        "hosts": [
            {
                "hostname": host or None,
                "ranks": [part.rank for part in hosts[host]],
                "environment": common([part.value_at("environment") for part in hosts[host]]),
            }
            for host in sorted(hosts)
        ],
    }


def _row(part: Part) -> dict[str, Any]:
    """Return one rank, with its result as it came."""
    figures, at_least = {}, []
    if part.run is not None and part.run.config.output.io_trace_log is None:
        section = part.document[SECTION]
        values = {name: metric.value(section) for name, metric in METRICS.items()}
        figures = {name: value for name, value in values.items() if value is not None}
        at_least = [name for name, metric in METRICS.items() if metric.at_least(section)]
    reasons = part.value_at("passport.reasons") if part.counted else None
    return {
        "rank": part.rank,
        "host": part.host,
        "counted": part.counted,
        "why_not": part.flaw,
        "lost": part.lost,
        "seed": part.value_at("seed"),
        "status": part.value_at("status"),
        "verdict": part.value_at("passport.verdict") if part.counted else None,
        "reasons": reasons if isinstance(reasons, list) else [],
        "schedule_sha256": part.value_at("schedule.sha256"),
        "window_s": None if part.run is None else part.run.window_s,
        "begin_ns": part.begin_ns,
        "end_ns": part.end_ns,
        "figures": figures,
        "at_least": at_least,
        "fingerprint": fingerprint(part.document) if isinstance(part.document, Mapping) else None,
        "result": part.document,
    }
