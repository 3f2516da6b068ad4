"""The reference benchmark's result keys, with right values.

Names and places of the keys are the MLPerf Storage KV-cache benchmark's, so that its launcher and
everybody's scripts go on working; where the reference's value was wrong in meaning, the right one
is under the same key, and `docs/metrics.md` says what changed. Of several ranks, counts, bytes,
rates and bandwidths are sums, as the submission rules require, and percentiles come from merged
histograms.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import fsum
from typing import Any

from msgspec import UNSET

from kv_cache.core.kinds import TIER_LABELS, Cause, OpKind, Qos
from kv_cache.core.units import GIB, NS_PER_MS, NS_PER_S, ns_to_ms, ns_to_s
from kv_cache.metrics.histogram import supported
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.metrics.summary import PERCENTILES, per_second, ratio, reference_ms
from kv_cache.result.counted import LISTS, MergeableCounts
from kv_cache.result.merge import merged
from kv_cache.result.model import stored_bytes_per_token
from kv_cache.result.run import (
    CountedRun,
    MisshapenError,
    OperationLedger,
    agreed,
    number,
    rate,
    shape_of,
    times,
    total_bytes,
    total_operations,
    totals,
)
from kv_cache.result.sections import (
    KINDS,
    bytes_per_second,
    measured_windows,
    operations_per_second,
    targets_ms,
)
from kv_cache.schedule.autoscale.window_pool import Unit

HIT_RATE_FLOOR = 0.30
SLA_COMPLIANCE = 0.95
LATENCIES = {
    "end_to_end_latency_ms": "end_to_end",
    "storage_io_latency_ms": "storage",
    "generation_latency_ms": "compute",
}
"""Latencies of all requests in the summary, and our name of each."""


def reference_keys(runs: Sequence[CountedRun]) -> dict[str, Any]:
    """Return the reference's document. Whether the runs are sound is only a part of
    `overall_passed`: the verdict is the other."""
    counts = merged(totals(runs))
    done, reuse = counts.measured.together, counts.reuse
    stats = _cache_stats(runs, counts)
    end_to_end = reference_ms(done.histogram_end_to_end)
    moved = fsum(bytes_per_second(runs, "storage", kind) for kind in KINDS)
    document: dict[str, Any] = {
        "requests_completed": done.completed,
        "total_tokens_generated": done.output_tokens,
        "total_storage_io_latency": ns_to_s(done.histogram_storage.total),
        "total_generation_latency": ns_to_s(done.histogram_compute.total),
        **{name: _listed(runs, name) for name in LISTS},
        "throughput_timeline": _timeline(runs[0]) if len(runs) == 1 else [],
        "multi_turn_cache_hits": reuse.history_hits,
        "multi_turn_cache_misses": reuse.history_looked_up - reuse.history_hits,
        "seed": next((run.facts.seed for run in runs if run.facts.rank.rank == 0), None)
        if len(runs) != 1
        else runs[0].facts.seed,
        "overall_passed": bool(runs)
        and all(map(_sound, runs))
        and stats["storage_health"]["overall_status"] == "PASS",
        "total_requests": done.completed,
        "avg_latency_ms": end_to_end["mean"],
        "p99_latency_ms": end_to_end["p99"],
        "throughput_req_per_sec": rate(runs, _completed),
        "storage_throughput_mbps": moved / 1e6,
        "cache_hit_rate": stats["cache_hit_rate"],
        "metadata": {"nvme_backend": "file"},
        "host_cpu_percent_avg": _host_percent(runs),
        "fabric_rx_bytes": _of_hosts(runs, "network_rx_bytes"),
        "fabric_tx_bytes": _of_hosts(runs, "network_tx_bytes"),
    }
    if done.completed:
        document["summary"] = _summary(runs, counts, stats)
    return document


def _completed(run: CountedRun) -> int:
    return run.facts.requests.completed_in_window


def _sound(run: CountedRun) -> bool:
    return (
        run.measured
        and _completed(run) > 0
        and run.facts.status == "finished"
        and not run.facts.failed_operations
        and not run.facts.requests.failed
    )


def _listed(runs: Sequence[CountedRun], name: str) -> list[float]:
    """Return the runs' lists one after the other; if they are too long together, as many from each
    one's beginning."""
    lists: list[list[float]] = [getattr(run.counted, name) for run in runs]
    if sum(map(len, lists)) > SAMPLE_LIMIT:
        lists = [values[: SAMPLE_LIMIT // len(lists)] for values in lists]
    return [value for values in lists for value in values]


# --- the autoscaler --------------------------------------------------------------------------


def _timeline(run: CountedRun) -> list[dict[str, float]]:
    """Return tokens per second up to the end of each measured window, if an autoscaler changed the
    load (the reference has none elsewhere)."""
    if not run.config.autoscaler.enabled:
        return []
    start_s, tokens, rows = ns_to_s(run.facts.phases_ns.measure_start), 0, []
    for window in measured_windows(run):
        tokens += window.output_tokens
        since_s = window.end_s - start_s
        rows.append(
            {"timestamp": since_s, "throughput_tokens_per_sec": per_second(tokens, since_s)}
        )
    return rows


def _decision(run: CountedRun, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision in the reference's keys; all of it is in `kv_cache.autoscaling`."""
    started = run.facts.started_utc
    begin = datetime.fromtimestamp(0, UTC) if started is None else datetime.fromisoformat(started)
    evidence = row["evidence"]
    decision = {
        "timestamp": (begin + timedelta(seconds=row["at_s"])).isoformat(),
        "mode": row["mode"],
        "action": row["action"],
        "users": row["users"],
        "saturation_level": evidence["saturation"]["level"],
    }
    if row["action"] == "stop":
        return {**decision, "peak_throughput_tokens_per_sec": _tokens(evidence["peak"])}
    return {
        **decision,
        "read_latency_p95_ms": evidence["read_p95_ms"],
        "write_latency_p95_ms": evidence["write_p95_ms"],
        "throughput_tokens_per_sec": evidence["output_tokens_per_s"],
    }


def _tokens(peak: Mapping[str, Any]) -> float | None:
    """Return the peak in tokens; None if no tokens were generated, as it is one of requests or
    bytes then."""
    return peak["per_s"] if peak["unit"] == Unit.TOKENS else None


def _scaling(run: CountedRun) -> dict[str, Any] | None:
    rows, users = run.facts.autoscaling, run.config.run.num_users
    if not run.config.autoscaler.enabled:
        return None
    section = {
        "initial_users": users,
        "final_users": rows[-1]["users"] if rows else users,
        "total_scale_events": sum(row["users"] != row["users_before"] for row in rows),
    }
    if rows and rows[-1]["action"] == "stop":
        section["peak_user_count"] = rows[-1]["users"]
        section["peak_throughput_tokens_per_sec"] = _tokens(rows[-1]["evidence"]["peak"])
    return section


def _autoscaling(runs: Sequence[CountedRun]) -> dict[str, Any]:
    """Return the decisions of one run; for ranks that each have an autoscaler the users are
    added."""
    try:
        sections = [_scaling(run) for run in runs]
        if len(runs) == 1:
            rows = [_decision(runs[0], row) for row in runs[0].facts.autoscaling]
            return {"autoscaling_stats": rows, "autoscaling_summary": sections[0]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MisshapenError(f"kv_cache.autoscaling is not a list of decisions: {error}") from None
    known = [section for section in sections if section is not None]
    names = ("initial_users", "final_users", "total_scale_events")
    summed = {name: sum(section[name] for section in known) for name in names}
    whole = known and len(known) == len(sections)
    return {"autoscaling_stats": [], "autoscaling_summary": summed if whole else None}


# --- summary ---------------------------------------------------------------------------------


def _summary(
    runs: Sequence[CountedRun], counts: MergeableCounts, stats: Mapping[str, Any]
) -> dict[str, Any]:
    done, reuse = counts.measured.together, counts.reuse
    slo = agreed(run.config.run.slo_ms or None for run in runs)
    response = done.histogram_response
    return {
        "total_requests": done.completed,
        "total_tokens": done.output_tokens,
        "elapsed_time": max(run.window_s for run in runs),
        "avg_throughput_tokens_per_sec": rate(
            runs, lambda run: run.facts.measured.together.output_tokens
        ),
        "total_storage_io_time": ns_to_s(done.histogram_storage.total),
        "storage_throughput_tokens_per_sec": fsum(map(_tokens_per_storage_second, runs)),
        "requests_per_second": rate(runs, _completed),
        **{key: reference_ms(done.latency(latency)) for key, latency in LATENCIES.items()},
        "cache_stats": dict(stats),
        "qos_metrics": {qos.value: _qos(runs, counts, qos) for qos in Qos},
        "prefix_cache_stats": {
            "prefix_hits": reuse.shared_hits,
            "prefix_misses": reuse.shared_looked_up - reuse.shared_hits,
            "system_prompt_reuse": reuse.shared_hits,
            "common_phrase_reuse": 0,
            "bytes_saved": reuse.shared_hit_bytes,
        }
        if reuse.shared_looked_up or any(run.workload.shared_prompts for run in runs)
        else {},
        **_autoscaling(runs),
        "multi_turn_stats": {
            "cache_hits": reuse.history_hits,
            "cache_misses": reuse.history_looked_up - reuse.history_hits,
            "hit_rate": ratio(reuse.history_hits, reuse.history_looked_up),
        },
        "arrival": agreed(run.workload.arrival for run in runs),
        "arrival_cv": agreed(run.workload.arrival_cv for run in runs),
        "request_rate": _sum_if_known([run.workload.request_rate_per_s for run in runs]),
        "slo_ms": slo,
        "slo_attainment": None if slo is None else response.share_at_most(round(slo * NS_PER_MS)),
        "system_metrics": _system(runs),
    }


def _tokens_per_storage_second(run: CountedRun) -> float:
    done = run.facts.measured.together
    return per_second(done.output_tokens, ns_to_s(done.histogram_storage.total))


def _qos(runs: Sequence[CountedRun], counts: MergeableCounts, qos: Qos) -> dict[str, Any]:
    """Return the numbers of one class; with targets that differ between ranks, each request is
    compared with its own rank's."""
    stats = counts.measured.of(qos)
    if not stats.completed:
        return {"no_data": True}
    latency = reference_ms(stats.histogram_end_to_end, ("p50", "p95", "p99"))
    latency["max"] = ns_to_ms(stats.histogram_end_to_end.highest or 0)
    within = 0
    for run in runs:
        target_ns = round(targets_ms(run, qos)["p95"] * NS_PER_MS)
        latencies = run.facts.measured.of(qos).histogram_end_to_end
        within += latencies.counts_at_most([target_ns])[0]
    compliance = ratio(within, stats.completed)
    return {
        "total_requests": stats.completed,
        "latency_ms": latency,
        "sla": {
            "target_p95_ms": agreed(targets_ms(run, qos)["p95"] for run in runs),
            "actual_p95_ms": latency["p95"],
            "compliance": compliance,
            "met": compliance >= SLA_COMPLIANCE,
        },
    }


# --- the cache and storage -------------------------------------------------------------------


def _cache_stats(runs: Sequence[CountedRun], counts: MergeableCounts) -> dict[str, Any]:
    ledger, reuse, tiers = OperationLedger(counts.operations), counts.reuse, counts.tiers
    hits = reuse.hits + reuse.decode_hits
    lookups = reuse.looked_up + reuse.decode_looked_up
    stats: dict[str, Any] = {
        "cache_hit_rate": ratio(hits, lookups),
        "cache_hits": hits,
        "cache_misses": lookups - hits,
    }
    for label in TIER_LABELS:
        stats[f"{label}_entries"] = tiers[label].entries if label in tiers else 0
    for label in TIER_LABELS[:2]:
        stats[f"{label}_memory_used_gb"] = (tiers[label].used_bytes if label in tiers else 0) / GIB
    stats["offloads_cpu"] = total_operations(ledger.window("cpu", OpKind.WRITE))
    stats["offloads_storage"] = total_operations(ledger.window("storage", OpKind.WRITE))
    judged = bool(lookups) and any(map(_judges_hits, runs))
    stats["storage_health"] = health(
        ledger,
        {kind: bytes_per_second(runs, "storage", kind) / GIB for kind in KINDS},
        ratio(hits, lookups) if judged else None,
        runs[0].config.run.performance_profile if runs else "",
        real=bool(runs) and all(run.measured for run in runs),
    )
    stats["prefill_writes"] = _of_requests(ledger, OpKind.WRITE)
    stats["decode_reads"] = _of_requests(ledger, OpKind.READ)
    for label in TIER_LABELS:
        for kind, past in ((OpKind.WRITE, "written"), (OpKind.READ, "read")):
            moved = total_bytes(ledger.window(label, kind))
            stats[f"tier_{label}_kv_bytes_{past}_gb"] = moved / GIB
            stats[f"tier_{label}_{kind.value}_bandwidth_gbps"] = (
                bytes_per_second(runs, label, kind) / GIB
            )
    read, written = (total_bytes(ledger.window(None, kind)) for kind in KINDS)
    return {
        **stats,
        "system_prompt_hits": reuse.shared_hits,
        "common_phrase_hits": 0,
        "user_cache_hits": hits - reuse.shared_hits - reuse.history_hits,
        "multi_turn_hits": reuse.history_hits,
        "total_read_bytes": read,
        "total_write_bytes": written,
        "total_read_gb": read / GIB,
        "total_write_gb": written / GIB,
        "read_write_ratio": read / max(written, 1),
        **{f"{kind.value}_iops": operations_per_second(runs, "storage", kind) for kind in KINDS},
        "storage_tokens_processed": _sum_if_known([_storage_tokens(run) for run in runs]),
        **_percentiles(ledger),
    }


def _judges_hits(run: CountedRun) -> bool:
    """Whether the floor under the hit rate applies. It was made for lookups of what the same
    conversation has stored; where all blocks of a prompt are looked up, the hit rate is a property
    of the trace."""
    return not run.config.lifecycle_semantics(synthetic=True).reuse_prefix


def _storage_tokens(run: CountedRun) -> int | None:
    if run.workload.models is not UNSET:
        return None
    blocks = run.config.resolved_block_tokens(run.workload.trace_block_tokens)
    per_token = stored_bytes_per_token(run.config, shape_of(run.facts.model), turns=not blocks)
    if per_token is None:
        return None
    return round(sum(total_bytes(run.ledger.window("storage", kind)) for kind in KINDS) / per_token)


_OF_REQUESTS = (Cause.PREFILL, Cause.REUSE, Cause.DECODE)


def _of_requests(ledger: OperationLedger, kind: OpKind) -> int:
    """Count what requests stored, or loaded. The reference calls each store a prefill, also one
    that repairs a miss in decode, and each load a decode, also one of earlier turns."""
    return total_operations(row for row in ledger.window(None, kind) if row.cause in _OF_REQUESTS)


def _percentiles(ledger: OperationLedger) -> dict[str, float]:
    """Return the latencies of each tier and kind that have samples."""
    stats: dict[str, float] = {}
    for label in TIER_LABELS:
        for kind in KINDS:
            rows = ledger.window(label, kind)
            name = f"{label}_{kind.value}"
            parts = {name: times(rows, "total")}
            if label == "storage":
                parts[f"{name}_device"] = times(rows, "device")
                parts[f"{name}_host"] = times(rows, "host")
            for prefix, histogram in parts.items():
                if histogram.count:
                    values = reference_ms(histogram)
                    stats |= {f"{prefix}_{p}_ms": values[p] for p in PERCENTILES}
    return stats


def unsupported(counts: MergeableCounts) -> list[str]:
    """Return the reference's keys whose percentile too few values support, by their paths in the
    result. They keep their number, as a launcher looks for it."""
    paths: list[str] = []

    def look(count: int, where: str, names: Iterable[str] = PERCENTILES) -> None:
        few = (name for name in names if count and not supported(count, PERCENTILES[name]))
        paths.extend(where.format(name) for name in few)

    done, ledger = counts.measured.together, OperationLedger(counts.operations)
    look(done.histogram_end_to_end.count, "{}_latency_ms", ("p99",))
    for key, latency in LATENCIES.items():
        look(done.latency(latency).count, f"summary.{key}.{{}}")
    for label in counts.tiers:
        for kind in KINDS:
            count = total_operations(ledger.window(label, kind))
            for part in ("", "_device", "_host") if label == "storage" else ("",):
                look(count, f"summary.cache_stats.{label}_{kind.value}{part}_{{}}_ms")
    for qos in Qos:
        count = counts.measured.of(qos).histogram_end_to_end.count
        where = f"summary.qos_metrics.{qos}"
        look(count, f"{where}.latency_ms.{{}}", ("p50", "p95", "p99"))
        look(count, f"{where}.sla.actual_{{}}_ms", ("p95",))
    return paths


def health(
    ledger: OperationLedger,
    rates: Mapping[OpKind, float],
    hit_rate: float | None,
    profile: str,
    *,
    real: bool,
) -> dict[str, Any]:
    """Return the reference's pass criteria. Without any criterion, or without I/O, nothing passes.
    `rates`: GiB/s of storage; `hit_rate`: None if it is not judged; `profile`: latency or
    throughput."""
    criteria: list[dict[str, Any]] = []
    if real and profile == "throughput":
        criteria = _bandwidth_criteria(ledger, rates)
    elif real:
        criteria = _latency_criteria(ledger)
        if hit_rate is not None:
            name, passed = "Cache Hit Rate > 30%", hit_rate > HIT_RATE_FLOOR
            criteria.append(_criterion(name, HIT_RATE_FLOOR, hit_rate, "ratio", passed))
    met = sum(criterion["passed"] for criterion in criteria)
    return {
        "overall_status": "PASS" if criteria and met == len(criteria) else "FAIL",
        "criteria": criteria,
        "passed_count": met,
        "total_count": len(criteria),
    }


def _criterion(name: str, target: Any, actual: Any, unit: str, passed: bool) -> dict[str, Any]:
    return {"name": name, "target": target, "actual": actual, "unit": unit, "passed": passed}


def _latency_criteria(ledger: OperationLedger) -> list[dict[str, Any]]:
    written, read = (ledger.window("storage", kind) for kind in (OpKind.WRITE, OpKind.READ))
    ram = [row for kind in KINDS for row in ledger.window("cpu", kind)]
    rows = [
        ("Storage Tier Write Device P95 < 500ms", times(written, "device"), 500.0),
        ("Storage Tier Read Device P95 < 200ms", times(read, "device"), 200.0),
        ("CPU RAM P95 < 150ms", times(ram, "total"), 150.0),
    ]
    measured = [
        (name, reference_ms(histogram, ("p95",))["p95"], limit)
        for name, histogram, limit in rows
        if histogram.count
    ]
    return [_criterion(name, limit, p95, "ms", p95 < limit) for name, p95, limit in measured]


def _bandwidth_criteria(
    ledger: OperationLedger, rates: Mapping[OpKind, float]
) -> list[dict[str, Any]]:
    rows = [(kind, total_bytes(ledger.window("storage", kind))) for kind in KINDS]
    if any(moved for _, moved in rows):
        rows = [(kind, moved) for kind, moved in rows if moved]
    return [
        _criterion(
            f"Storage KV {kind.value.title()} Bandwidth",
            ">0",
            f"{rates[kind]:.2f}",
            "GiB/s",
            moved > 0,
        )
        for kind, moved in rows
    ]


# --- the machines ----------------------------------------------------------------------------


def _of_windows(runs: Sequence[CountedRun], name: str) -> list[float | int | None]:
    return [number(run.kernel("window"), name) for run in runs]


def _sum_if_known(values: Sequence[Any]) -> Any:
    """Add values; whole numbers stay whole. None if one is not known, or there is none."""
    if not values or None in values:
        return None
    return sum(values) if all(type(value) is int for value in values) else fsum(values)


def _host_percent(runs: Sequence[CountedRun]) -> float | None:
    """Return the share of all cores' time that was not idle, everybody's work included."""
    busy, total = (
        _sum_if_known(_of_windows(runs, name)) for name in ("host_busy_s", "host_total_s")
    )
    return None if busy is None or total is None else 100 * ratio(busy, total)


def _of_hosts(runs: Sequence[CountedRun], name: str) -> int | None:
    """Return what each machine counts for everybody on it: the largest of its ranks' counts, added
    up."""
    most: dict[str, Any] = {}
    for run, value in zip(runs, _of_windows(runs, name), strict=True):
        if value is None:
            return None
        most[run.host] = max(most.get(run.host, 0), value)
    return sum(most.values()) if runs else None


def _cpu_s(run: CountedRun) -> float:
    return (number(run.kernel("window"), "process_cpu_ns") or 0) / NS_PER_S


def _system(runs: Sequence[CountedRun]) -> dict[str, Any]:
    """Return the machines during the window; null throughout without real I/O."""
    cores: dict[str, int] = {}
    for run in runs:
        here = None if run.machine.cpu is None else run.machine.cpu.logical_cores
        if run.measured and here is not None:
            cores[run.host] = max(cores.get(run.host, 0), here)

    def summed(name: str) -> Any:
        return _sum_if_known(_of_windows(runs, name))

    return {
        "elapsed_wall_s": max(run.window_s for run in runs),
        "process_cpu_time_s": fsum(map(_cpu_s, runs)),
        "process_cpu_percent_avg": 100 * rate(runs, _cpu_s),
        "host_cpu_percent_avg": _host_percent(runs),
        "process_user_cpu_s": summed("process_user_s"),
        "process_system_cpu_s": summed("process_system_s"),
        "cpu_count": sum(cores.values()) if cores else None,
        "fabric_rx_bytes": _of_hosts(runs, "network_rx_bytes"),
        "fabric_tx_bytes": _of_hosts(runs, "network_tx_bytes"),
        "process_max_rss_bytes": summed("peak_rss_bytes"),
        "process_io_read_bytes": summed("process_read_bytes"),
        "process_io_write_bytes": summed("process_write_bytes"),
    }
