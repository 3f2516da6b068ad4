"""The reference benchmark's result keys, with right values.

Names and places of the keys are the MLPerf Storage KV-cache benchmark's, so that its launcher and
everybody's scripts go on working; where the reference's value was wrong in meaning, the right one
stands under the same key, and `docs/metrics.md` says what changed.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kv_cache.core.kinds import Cause, OpKind, Phase, Qos, Tier
from kv_cache.core.units import GIB, NS_PER_MS, NS_PER_S, ns_to_ms, ns_to_s
from kv_cache.metrics.histogram import merged, supported
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import RequestStats
from kv_cache.metrics.summary import (
    PERCENTILES,
    Flows,
    Targets,
    bandwidth_gib,
    per_second,
    ratio,
    reference_ms,
    total_bytes,
    total_operations,
)
from kv_cache.report.node import Node
from kv_cache.schedule.autoscale import Unit

_TIERS = (Tier.GPU, Tier.CPU, Tier.NVME)
_KINDS = (OpKind.READ, OpKind.WRITE)
HIT_RATE_FLOOR = 0.30
SLA_COMPLIANCE = 0.95
LATENCIES = {
    "end_to_end_latency_ms": "end_to_end",
    "storage_io_latency_ms": "storage",
    "generation_latency_ms": "compute",
}
"""What the summary tells of all requests, and which of our latencies it is."""


def mlperf_keys(
    outcome: RunOutcome,
    targets: Targets,
    *,
    bytes_per_token: int | None,
    profile: str,
    judge_hits: bool,
) -> dict[str, Any]:
    """The reference's document. `bytes_per_token` is what is stored for one token, None where that
    is not one number; `profile` is latency or throughput (its pass criteria); `judge_hits`: whether
    the floor under the hit rate applies. It was made for lookups of what the same conversation has
    stored; where all blocks of a prompt are looked up, the hit rate is a property of the trace."""
    recorder, seconds = outcome.recorder, outcome.window_s
    done = recorder.all
    stats = _cache_stats(outcome, bytes_per_token, profile, judge_hits)
    flows = Flows(recorder.flows)
    moved = sum(total_bytes(flows.measured(Tier.NVME, kind)) for kind in _KINDS)
    sound = (
        outcome.driver == "real-io"
        and done.completed > 0
        and outcome.death is None
        and outcome.interrupted is None
        and not recorder.failures
        and not outcome.accounting()["failed"]
    )
    end_to_end = reference_ms(done.end_to_end)
    document: dict[str, Any] = {
        "requests_completed": done.completed,
        "total_tokens_generated": done.output_tokens,
        "total_storage_io_latency": ns_to_s(done.storage.total),
        "total_generation_latency": ns_to_s(done.compute.total),
        "end_to_end_latencies": recorder.end_to_end_s.kept(),
        "storage_latencies": recorder.storage_s.kept(),
        "generation_latencies": recorder.generation_s.kept(),
        "throughput_timeline": _timeline(outcome),
        "prefill_latencies": recorder.prefill_s.kept(),
        "decode_latencies": recorder.decode_s.kept(),
        "multi_turn_cache_hits": recorder.reuse.history_hits,
        "multi_turn_cache_misses": recorder.reuse.history_looked_up - recorder.reuse.history_hits,
        "seed": outcome.seed,
        # What the launcher reads at the top level.
        "overall_passed": sound and stats["storage_health"]["overall_status"] == "PASS",
        "total_requests": done.completed,
        "avg_latency_ms": end_to_end["mean"],
        "p99_latency_ms": end_to_end["p99"],
        "throughput_req_per_sec": per_second(done.completed, seconds),
        "storage_throughput_mbps": per_second(moved, seconds) / 1e6,
        "cache_hit_rate": stats["cache_hit_rate"],
        "metadata": {"nvme_backend": "file"},
        "host_cpu_percent_avg": _host_percent(outcome),
        "fabric_rx_bytes": outcome.kernel.get("window", {}).get("network_rx_bytes"),
        "fabric_tx_bytes": outcome.kernel.get("window", {}).get("network_tx_bytes"),
    }
    if outcome.tracing is not None and outcome.tracing["keys"]:
        document["device_latency_tracing"] = dict(outcome.tracing["keys"])
    if done.completed:
        document["summary"] = _summary(outcome, targets, stats)
    return document


def _timeline(outcome: RunOutcome) -> list[dict[str, float]]:
    """Tokens per second up to the end of each measured window, where an autoscaler changed the
    load (the reference has none elsewhere)."""
    if outcome.initial_users is None:
        return []
    start_ns, tokens, rows = outcome.recorder.edges.measure_start_ns, 0, []
    for window in outcome.series.of(Phase.MEASURE):
        tokens += window.output_tokens
        seconds = ns_to_s(window.end_ns - start_ns)
        rows.append(
            {"timestamp": seconds, "throughput_tokens_per_sec": per_second(tokens, seconds)}
        )
    return rows


def _decision(outcome: RunOutcome, row: Mapping[str, Any]) -> dict[str, Any]:
    """A decision as the reference tells it; all of it stands in `kv_cache.autoscaling`."""
    seen = row["evidence"]
    told = {
        "timestamp": datetime.fromtimestamp(outcome.started_unix_s + row["at_s"], UTC).isoformat(),
        "mode": row["mode"],
        "action": row["action"],
        "users": row["users"],
        "saturation_level": seen["saturation"]["level"],
    }
    if row["action"] == "stop":
        return {**told, "peak_throughput_tokens_per_sec": _tokens(seen["peak"])}
    return {
        **told,
        "read_latency_p95_ms": seen["read_p95_ms"],
        "write_latency_p95_ms": seen["write_p95_ms"],
        "throughput_tokens_per_sec": seen["output_tokens_per_s"],
    }


def _tokens(peak: Mapping[str, Any]) -> float | None:
    """None where no tokens were generated: the peak is of requests or bytes then."""
    return peak["per_s"] if peak["unit"] == Unit.TOKENS else None


def _scaling(outcome: RunOutcome) -> dict[str, Any] | None:
    rows, users = outcome.decisions, outcome.initial_users
    if users is None:
        return None
    told = {
        "initial_users": users,
        "final_users": rows[-1]["users"] if rows else users,
        "total_scale_events": sum(row["users"] != row["users_before"] for row in rows),
    }
    if rows and rows[-1]["action"] == "stop":
        told["peak_user_count"] = rows[-1]["users"]
        told["peak_throughput_tokens_per_sec"] = _tokens(rows[-1]["evidence"]["peak"])
    return told


def _summary(outcome: RunOutcome, targets: Targets, stats: dict[str, Any]) -> dict[str, Any]:
    recorder, seconds = outcome.recorder, outcome.window_s
    done, reuse = recorder.all, recorder.reuse
    storage_s = ns_to_s(done.storage.total)
    slo = targets.slo_ms
    attained = None if slo is None else done.response.share_at_most(round(slo * NS_PER_MS))
    workload = outcome.workload
    return {
        "total_requests": done.completed,
        "total_tokens": done.output_tokens,
        "elapsed_time": seconds,
        "avg_throughput_tokens_per_sec": per_second(done.output_tokens, seconds),
        "total_storage_io_time": storage_s,
        "storage_throughput_tokens_per_sec": per_second(done.output_tokens, storage_s),
        "requests_per_second": per_second(done.completed, seconds),
        **{key: reference_ms(getattr(done, latency)) for key, latency in LATENCIES.items()},
        "cache_stats": stats,
        "qos_metrics": {q.value: _qos(recorder.classes[q], targets.ms[q]["p95"]) for q in Qos},
        "prefix_cache_stats": {
            "prefix_hits": reuse.shared_hits,
            "prefix_misses": reuse.shared_looked_up - reuse.shared_hits,
            "system_prompt_reuse": reuse.shared_hits,
            "common_phrase_reuse": 0,
            "bytes_saved": reuse.shared_hit_bytes,
        }
        if reuse.shared_looked_up or workload.get("shared_prompts")
        else {},
        "autoscaling_stats": [_decision(outcome, row) for row in outcome.decisions],
        "autoscaling_summary": _scaling(outcome),
        "multi_turn_stats": {
            "cache_hits": reuse.history_hits,
            "cache_misses": reuse.history_looked_up - reuse.history_hits,
            "hit_rate": ratio(reuse.history_hits, reuse.history_looked_up),
        },
        "arrival": workload.get("arrival_process", workload.get("loop", "trace")),
        "arrival_cv": workload.get("arrival_cv"),
        "request_rate": workload.get("request_rate_per_s"),
        "slo_ms": slo,
        "slo_attainment": attained,
        "system_metrics": _system(outcome),
    }


def _system(outcome: RunOutcome) -> dict[str, Any]:
    """The machine during the window; null throughout without real I/O."""
    kernel = outcome.kernel.get("window", {})
    seconds = outcome.window_s
    cpu_s = kernel.get("process_cpu_ns", 0) / NS_PER_S
    return {
        "elapsed_wall_s": seconds,
        "process_cpu_time_s": cpu_s,
        "process_cpu_percent_avg": 100 * per_second(cpu_s, seconds),
        "host_cpu_percent_avg": _host_percent(outcome),
        "process_user_cpu_s": kernel.get("process_user_s"),
        "process_system_cpu_s": kernel.get("process_system_s"),
        "cpu_count": outcome.cpu_count,
        "fabric_rx_bytes": kernel.get("network_rx_bytes"),
        "fabric_tx_bytes": kernel.get("network_tx_bytes"),
        "process_max_rss_bytes": kernel.get("peak_rss_bytes"),
        "process_io_read_bytes": kernel.get("process_read_bytes"),
        "process_io_write_bytes": kernel.get("process_write_bytes"),
    }


def _host_percent(outcome: RunOutcome) -> float | None:
    """The share of all cores' time that was not idle, everybody's work included."""
    kernel = outcome.kernel.get("window")
    return None if not kernel else 100 * ratio(kernel["host_busy_s"], kernel["host_total_s"])


def _qos(stats: RequestStats, target_ms: float) -> dict[str, Any]:
    if not stats.completed:
        return {"no_data": True}
    latency = reference_ms(stats.end_to_end, ("p50", "p95", "p99"))
    latency["max"] = ns_to_ms(stats.end_to_end.highest or 0)
    compliance = stats.end_to_end.share_at_most(round(target_ms * NS_PER_MS)) or 0.0
    return {
        "total_requests": stats.completed,
        "latency_ms": latency,
        "sla": {
            "target_p95_ms": target_ms,
            "actual_p95_ms": latency["p95"],
            "compliance": compliance,
            "met": compliance >= SLA_COMPLIANCE,
        },
    }


def _cache_stats(
    outcome: RunOutcome, bytes_per_token: int | None, profile: str, judge_hits: bool
) -> dict[str, Any]:
    recorder, seconds = outcome.recorder, outcome.window_s
    flows, reuse = Flows(recorder.flows), recorder.reuse
    facts = {f.tier: f for f in outcome.tiers}
    hits = reuse.hits + reuse.decode_hits
    lookups = reuse.looked_up + reuse.decode_looked_up
    stats: dict[str, Any] = {
        "cache_hit_rate": ratio(hits, lookups),
        "cache_hits": hits,
        "cache_misses": lookups - hits,
    }
    for tier in _TIERS:
        stats[f"{tier.label}_entries"] = facts[tier].entries if tier in facts else 0
    for tier in (Tier.GPU, Tier.CPU):
        used = facts[tier].used_bytes if tier in facts else 0
        stats[f"{tier.label}_memory_used_gb"] = used / GIB
    stats["offloads_cpu"] = total_operations(flows.measured(Tier.CPU, OpKind.WRITE))
    stats["offloads_storage"] = total_operations(flows.measured(Tier.NVME, OpKind.WRITE))
    stats["storage_health"] = health(
        flows,
        {kind: bandwidth_gib(flows.measured(Tier.NVME, kind), seconds) for kind in _KINDS},
        stats["cache_hit_rate"] if judge_hits and lookups else None,
        profile,
        real=outcome.driver == "real-io",
    )
    stats["prefill_writes"] = operations_of(flows, OpKind.WRITE, Cause.PREFILL)
    stats["decode_reads"] = operations_of(flows, OpKind.READ, Cause.DECODE)
    for tier in _TIERS:
        for kind, past in ((OpKind.WRITE, "written"), (OpKind.READ, "read")):
            moved = flows.measured(tier, kind)
            stats[f"tier_{tier.label}_kv_bytes_{past}_gb"] = total_bytes(moved) / GIB
            stats[f"tier_{tier.label}_{kind.value}_bandwidth_gbps"] = bandwidth_gib(moved, seconds)
    read, written = (total_bytes(flows.measured(None, kind)) for kind in _KINDS)
    stats |= {
        "system_prompt_hits": reuse.shared_hits,
        "common_phrase_hits": 0,
        "user_cache_hits": hits - reuse.shared_hits - reuse.history_hits,
        "multi_turn_hits": reuse.history_hits,
        "total_read_bytes": read,
        "total_write_bytes": written,
        "total_read_gb": read / GIB,
        "total_write_gb": written / GIB,
        "read_write_ratio": read / max(written, 1),
    }
    for kind in _KINDS:
        operations = total_operations(flows.measured(Tier.NVME, kind))
        stats[f"{kind.value}_iops"] = per_second(operations, seconds)
    storage = sum(total_bytes(flows.measured(Tier.NVME, kind)) for kind in _KINDS)
    stats["storage_tokens_processed"] = (
        None if bytes_per_token is None else round(storage / bytes_per_token)
    )
    return stats | percentiles(flows)


def operations_of(flows: Flows, kind: OpKind, cause: Cause) -> int:
    return total_operations(
        flows.where(lambda f: f.phase is Phase.MEASURE and f.kind is kind and f.cause is cause)
    )


def percentiles(flows: Flows) -> dict[str, float]:
    """Latencies of each tier and kind, where there are samples."""
    found: dict[str, float] = {}
    for tier in _TIERS:
        for kind in _KINDS:
            stats = flows.measured(tier, kind)
            name = f"{tier.label}_{kind.value}"
            parts = {name: merged(s.total for s in stats)}
            if tier is Tier.NVME:
                parts[f"{name}_device"] = merged(s.device for s in stats)
                parts[f"{name}_host"] = merged(s.host for s in stats)
            for prefix, histogram in parts.items():
                if histogram.count:
                    values = reference_ms(histogram)
                    found |= {f"{prefix}_{p}_ms": values[p] for p in PERCENTILES}
    return found


def unsupported(own: Node) -> list[str]:
    """The reference's keys whose percentile too few values support, by their paths in the result.
    They keep their number, as a launcher looks for it; `own` is our section, which has the counts.
    """
    found: list[str] = []

    def look(count: int, where: str, names: Iterable[str] = PERCENTILES) -> None:
        few = (name for name in names if count and not supported(count, PERCENTILES[name]))
        found.extend(where.format(name) for name in few)

    measured = own["measured"]
    look(_values(measured["all"], "end_to_end"), "{}_latency_ms", ("p99",))
    for key, latency in LATENCIES.items():
        look(_values(measured["all"], latency), f"summary.{key}.{{}}")
    for label, tier in own["tiers"].items():
        for kind in ("read", "write"):
            for part in ("", "_device", "_host") if label == Tier.NVME.label else ("",):
                where = f"summary.cache_stats.{label}_{kind}{part}_{{}}_ms"
                look(tier[kind]["operations"].whole(), where)
    for qos in Qos:
        count, where = _values(measured[qos.value], "end_to_end"), f"summary.qos_metrics.{qos}"
        look(count, f"{where}.latency_ms.{{}}", ("p50", "p95", "p99"))
        look(count, f"{where}.sla.actual_{{}}_ms", ("p95",))
    return found


def _values(requests: Node, latency: str) -> int:
    return requests[f"histogram_{latency}"]["count"].whole()


def health(
    flows: Flows, rates: Mapping[OpKind, float], hit_rate: float | None, profile: str, *, real: bool
) -> dict[str, Any]:
    """The reference's pass criteria. Without any criterion, or without I/O, nothing passes.
    `rates`: GiB/s of storage; `hit_rate`: None where it is not judged."""
    criteria: list[dict[str, Any]] = []
    if real and profile == "throughput":
        criteria = _bandwidth_criteria(flows, rates)
    elif real:
        criteria = _latency_criteria(flows)
        if hit_rate is not None:
            criteria.append(
                {
                    "name": "Cache Hit Rate > 30%",
                    "target": HIT_RATE_FLOOR,
                    "actual": hit_rate,
                    "unit": "ratio",
                    "passed": hit_rate > HIT_RATE_FLOOR,
                }
            )
    passed = sum(c["passed"] for c in criteria)
    return {
        "overall_status": "PASS" if criteria and passed == len(criteria) else "FAIL",
        "criteria": criteria,
        "passed_count": passed,
        "total_count": len(criteria),
    }


def _latency_criteria(flows: Flows) -> list[dict[str, Any]]:
    criteria = []
    device = [
        ("Storage Tier Write Device P95 < 500ms", OpKind.WRITE, 500.0),
        ("Storage Tier Read Device P95 < 200ms", OpKind.READ, 200.0),
    ]
    rows = [
        (name, merged(s.device for s in flows.measured(Tier.NVME, kind)), limit)
        for name, kind, limit in device
    ]
    ram = [s.total for kind in _KINDS for s in flows.measured(Tier.CPU, kind)]
    rows.append(("CPU RAM P95 < 150ms", merged(ram), 150.0))
    for name, histogram, limit in rows:
        if histogram.count:
            actual = reference_ms(histogram, ("p95",))["p95"]
            criteria.append(
                {
                    "name": name,
                    "target": limit,
                    "actual": actual,
                    "unit": "ms",
                    "passed": actual < limit,
                }
            )
    return criteria


def _bandwidth_criteria(flows: Flows, rates: Mapping[OpKind, float]) -> list[dict[str, Any]]:
    rows = [(kind, flows.measured(Tier.NVME, kind)) for kind in _KINDS]
    if any(total_bytes(stats) for _, stats in rows):
        rows = [(kind, stats) for kind, stats in rows if total_bytes(stats)]
    return [
        {
            "name": f"Storage KV {kind.value.title()} Bandwidth",
            "target": ">0",
            "actual": f"{rates[kind]:.2f}",
            "unit": "GiB/s",
            "passed": total_bytes(stats) > 0,
        }
        for kind, stats in rows
    ]
