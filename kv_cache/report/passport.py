"""The passport of a result: all evidence in one place, and the verdict on it.

What the machine said (`bench/witness`), what the recorder counted and what the configuration wanted
come together here as plain values, so that `verify` can judge again from the file alone. The keys
are defined in `docs/reference/passport.md`.
"""

from collections.abc import Mapping
from typing import Any

from kv_cache.config.root import Config
from kv_cache.core.kinds import OpKind, Outcome, Phase, Tier
from kv_cache.core.units import GIB, NS_PER_S, ns_to_ms
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.passport import judge
from kv_cache.metrics.slo import parse_promises
from kv_cache.metrics.steady import stationarity
from kv_cache.metrics.summary import (
    NETWORK,
    Flows,
    Targets,
    call_ms,
    per_second,
    ratio,
    total_bytes,
    total_operations,
)
from kv_cache.tiers.payload import MISMATCH


def passport(
    config: Config, outcome: RunOutcome, targets: Targets, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The section `passport`: verdict, reasons, rules, evidence."""
    evidence = gather(config, outcome, targets, environment)
    verdict = judge(evidence, config.passport.thresholds())
    return {**verdict.to_json(), "evidence": evidence}


def gather(
    config: Config, outcome: RunOutcome, targets: Targets, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The evidence; what is not known is None."""
    flows, said = Flows(outcome.recorder.flows), outcome.witness
    return {
        "driver": outcome.driver,
        "steady": _steady(outcome),
        "completeness": _completeness(outcome),
        "verification": _verification(config, outcome, flows),
        "ledger": _ledger(outcome, flows, environment),
        "engines": _engines(config, outcome),
        "stack": said.get("stack"),
        "page_cache": said.get("page_cache"),
        "link": _link(outcome, flows),
        "amplification": _amplification(outcome, flows),
        "payload": said.get("payload"),
        "interposed": said.get("interposed"),
        "throttles": said.get("throttles"),
        "foreign": _foreign(outcome),
        "client": _client(config, outcome, flows, targets),
        "clock": said.get("clock"),
        "gaps": _gaps(outcome, flows),
        "sample": _sample(config, outcome, flows),
    }


def _sample(config: Config, outcome: RunOutcome, flows: Flows) -> dict[str, Any]:
    return {
        "mode": config.run.mode,
        "ranks": outcome.rank.ranks,
        **{
            f"{kind.value}_operations": total_operations(flows.measured(Tier.NVME, kind))
            for kind in (OpKind.READ, OpKind.WRITE)
        },
    }


def _steady(outcome: RunOutcome) -> dict[str, Any]:
    """What was done before the measured window, and whether the window was level."""
    done = outcome.preconditioning or {}
    filled, rounds = done.get("fill") or {}, done.get("rounds") or ()
    storage = next((facts for facts in outcome.tiers if facts.tier is Tier.NVME), None)
    return {
        "preconditioned": bool(done),
        "filled_bytes": filled.get("bytes"),
        "capacity_bytes": None if storage is None else storage.capacity_bytes,
        "filesystem_bytes": filled.get("filesystem_bytes"),
        "discard": filled.get("discard"),
        "rounds": len(rounds),
        "proof": done.get("proof"),
        "stationarity": stationarity(outcome.series.of(Phase.MEASURE)),
    }


def _completeness(outcome: RunOutcome) -> dict[str, Any]:
    books, failures = outcome.accounting(), outcome.recorder.failures
    status = "interrupted" if outcome.interrupted is not None else "finished"
    return {
        "status": "broken" if outcome.death is not None else status,
        "interrupted": outcome.interrupted,
        "window_s": outcome.window_s,
        "completed": books["completed_in_window"],
        "failed_requests": outcome.recorder.outcomes[Phase.DRAIN][Outcome.FAILED] + books["failed"],
        "rejected": books["rejected"],
        "unfinished": books["unfinished"],
        "submitted": books["submitted"],
        "failed_operations": sum(failures.values()),
        "storage_failed_operations": sum(n for f, n in failures.items() if f.tier is Tier.NVME),
        "records_error": next((w for w in outcome.warnings if "incomplete" in w), None),
    }


def _verification(config: Config, outcome: RunOutcome, flows: Flows) -> dict[str, Any]:
    """Of storage only whole loads count: what the end of the run cut off was given to nobody."""
    recorder = outcome.recorder
    whole = flows.where(lambda f: f.tier is Tier.NVME and f.kind is OpKind.READ)
    return {
        "mode": config.io.verify if outcome.driver == "real-io" else "none",
        "objects": recorder.verified_objects,
        "bytes": recorder.verified_bytes,
        "errors": sum(n for f, n in recorder.failures.items() if f.reason == MISMATCH),
        "storage_bytes": recorder.verified_storage_bytes,
        "storage_read_bytes": sum(stats.sizes.total for stats in whole),
    }


def _ledger(outcome: RunOutcome, flows: Flows, environment: Mapping[str, Any]) -> dict[str, Any]:
    kernel = outcome.kernel.get("run", {})
    calls = {OpKind.READ: "rchar", OpKind.WRITE: "wchar"}
    sides: dict[str, Any] = {
        kind.value: {
            "claimed_bytes": flows.all_bytes(Tier.NVME, kind),
            "process_bytes": kernel.get(f"process_{kind.value}_bytes"),
            "device_bytes": kernel.get(f"device_{kind.value}_bytes"),
            "foot_bytes": kernel.get(f"foot_{kind.value}_bytes"),
            "calls_bytes": kernel.get(calls[kind]),
        }
        for kind in calls
    }
    server_here = outcome.witness.get("server_here")
    if server_here is not None:  # an object store: what the interfaces carried
        for kind, counter in NETWORK.items():
            sides[kind.value]["network_bytes"] = kernel.get(counter)
        sides["server_here"] = server_here
    return {
        **sides,
        "other_process_write_bytes": outcome.record_bytes,
        "settle_s": outcome.witness.get("settle_s"),
        "device": kernel.get("device"),
        "accounted": outcome.witness.get("accounted"),
        "filesystem": _filesystems(environment),
    }


def _engines(config: Config, outcome: RunOutcome) -> dict[str, Any]:
    """What really moved the bytes of storage, by direction."""
    rows: dict[tuple[str, str], list[int]] = {}
    for flow, stats in outcome.recorder.flows.items():
        if flow.tier is Tier.NVME and flow.kind is not OpKind.DELETE:
            row = rows.setdefault((flow.kind.value, flow.engine), [0, 0])
            row[0] += stats.operations
            row[1] += stats.bytes
    store = _storage(outcome)
    return {
        "wanted": config.io.engine,
        "write_wanted": config.io.write_engine,
        "fsync": config.fsync(),
        "note": store.get("engine_note"),
        "rows": [
            {"operation": kind, "engine": engine, "operations": n, "bytes": nbytes}
            for (kind, engine), (n, nbytes) in sorted(rows.items())
            if nbytes
        ],
    }


def _link(outcome: RunOutcome, flows: Flows) -> dict[str, Any]:
    rates = {
        f"{kind.value}_bytes_per_second": per_second(
            total_bytes(flows.measured(Tier.NVME, kind)), outcome.window_s
        )
        for kind in (OpKind.READ, OpKind.WRITE)
    }
    return {**(outcome.witness.get("link") or {}), **rates}


def _amplification(outcome: RunOutcome, flows: Flows) -> dict[str, Any]:
    """Over the whole run; `stored_bytes` are those of new blocks, wherever they were put first."""
    read, written = (flows.all_bytes(Tier.NVME, kind) for kind in (OpKind.READ, OpKind.WRITE))
    unique = outcome.recorder.distinct.bytes
    everything = total_bytes(flows.where(lambda f: f.kind is not OpKind.DELETE))
    stored = outcome.recorder.new_bytes
    return {
        "storage_read_bytes": read,
        "unique_read_bytes": unique,
        "read_amplification": ratio(read, unique),
        "storage_written_bytes": written,
        "stored_bytes": stored,
        "write_amplification": ratio(written, stored),
        "all_bytes": everything,
        "storage_share": ratio(read + written, everything),
    }


def _foreign(outcome: RunOutcome) -> dict[str, Any] | None:
    """What others moved; and how many ranks are among them and us, where there are several."""
    said, ranks = outcome.witness.get("foreign"), outcome.rank.on_machine or 1
    if said is None or ranks == 1 or _knows_all(said.get("siblings"), ranks):
        return said
    return {**said, "ranks_here": ranks}


def _knows_all(siblings: Mapping[str, Any] | None, ranks: int) -> bool:
    """Whether what the other ranks here moved is known, so that it is not among the foreign."""
    if siblings is None or siblings["read_bytes"] is None:
        return False
    return len(siblings["pids"]) == ranks - 1


def _client(config: Config, outcome: RunOutcome, flows: Flows, targets: Targets) -> dict[str, Any]:
    window, recorder = outcome.kernel.get("window", {}), outcome.recorder
    moved = sum(
        total_bytes(flows.measured(Tier.NVME, kind)) for kind in (OpKind.READ, OpKind.WRITE)
    )
    cpu_ns = window.get("process_cpu_ns")
    cpu_s = None if cpu_ns is None else cpu_ns / NS_PER_S
    scheduled = config.has_schedule(sessions=outcome.workload.get("source") == "sessions")
    loads = merged(stats.device for stats in flows.measured(Tier.NVME, OpKind.READ))
    promised = _promised_ms(outcome) or [
        ms for names in targets.ms.values() for ms in names.values()
    ]
    return {
        "cpu_s": cpu_s,
        "storage_gib": moved / GIB,
        "cpu_s_per_gib": cpu_s / (moved / GIB) if cpu_s is not None and moved else None,
        "cores_used": None if cpu_s is None else per_second(cpu_s, outcome.window_s),
        "cores": outcome.witness.get("cores"),
        "ceiling": None if outcome.ceiling is None else dict(outcome.ceiling),
        "schedule_lag_p99_ms": _ms(recorder.all.lateness, 99) if scheduled else None,
        "shortest_target_ms": min(promised, default=None),
        **(outcome.witness.get("lag") or {}),
        "storage_read_p50_ms": _ms(loads, 50),
        "storage_read_p99_ms": _ms(loads, 99),
    }


def _gaps(outcome: RunOutcome, flows: Flows) -> dict[str, Any] | None:
    """Where storage stood still in the window, and how long a system call takes by the median of
    the operations."""
    said = outcome.witness.get("gaps")
    if said is None:
        return None
    calls = {}
    for kind in (OpKind.READ, OpKind.WRITE):
        steps = [
            histogram
            for step, histogram in outcome.recorder.steps.items()
            if step[:3] == (Phase.MEASURE, Tier.NVME, kind)
        ]
        stats = flows.measured(Tier.NVME, kind)
        device, moved = merged(s.device for s in stats), sum(s.calls for s in stats)
        calls[f"{kind.value}_call_ms"] = call_ms(device, moved, steps)
    return {**said, **calls}


def _promised_ms(outcome: RunOutcome) -> list[float]:
    """The limits of classes that somebody is of."""
    promises = parse_promises(",".join(outcome.promises)) if outcome.promises else ()
    classes = outcome.recorder.classes
    return [ns_to_ms(p.limit_ns) for p in promises if classes[p.qos].completed]


def _ms(histogram: Histogram, percent: float) -> float | None:
    """For rules, which look at how many there were by themselves."""
    value = histogram.at_rank(percent)
    return None if value is None else ns_to_ms(value)


def _storage(outcome: RunOutcome) -> Mapping[str, Any]:
    return next((facts.store for facts in outcome.tiers if facts.tier is Tier.NVME), {})


def _filesystems(environment: Mapping[str, Any]) -> str | None:
    """The types of file system that the drives have, e.g. `ext4` or `ext4+tmpfs`."""
    kinds = {(drive["filesystem"] or {}).get("type") for drive in environment.get("drives", ())}
    return "+".join(sorted(kind for kind in kinds if kind)) or None
