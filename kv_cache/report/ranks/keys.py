"""The reference's keys of several ranks: where a launcher looks for one run's, it finds all ranks'.

Counts, bytes, rates and bandwidths are sums over the ranks, as the submission rules want it;
percentiles come from merged histograms, and are null where there is none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, TypeVar

from kv_cache.core.kinds import Cause, OpKind, Phase, Qos, Tier
from kv_cache.core.units import GIB, NS_PER_MS, ns_to_ms
from kv_cache.metrics.recorder import SAMPLE_LIMIT, Flow, OpStats
from kv_cache.metrics.summary import (
    PERCENTILES,
    Flows,
    per_second,
    ratio,
    reference_ms,
    total_bytes,
    total_operations,
)
from kv_cache.report.mlperf import LATENCIES, SLA_COMPLIANCE, health, operations_of, percentiles
from kv_cache.report.node import MisshapenError, Node
from kv_cache.report.ranks.part import Part

_TIERS = {tier.label: tier for tier in Tier}
_KINDS = (OpKind.READ, OpKind.WRITE)
_LISTS = (
    *("end_to_end_latencies", "storage_latencies", "generation_latencies"),
    *("prefill_latencies", "decode_latencies"),
)
_HIT_RATE = "Cache Hit Rate > 30%"

Body = Mapping[str, Any]
T = TypeVar("T")


def reference_keys(counted: Sequence[Part], body: Body) -> dict[str, Any]:
    """All but `overall_passed`, which is more than numbers. `body` has the merged sections."""
    done, reuse = body["measured"]["all"], body["reuse"]
    stats, end_to_end = _cache_stats(counted, body), _latency(done, "end_to_end")
    storage = body["tiers"].get("storage", {})
    moved = fsum(storage[kind]["bytes_per_second"] for kind in ("read", "write") if storage)
    document: dict[str, Any] = {
        "requests_completed": done["completed"],
        "total_tokens_generated": done["output_tokens"],
        "total_storage_io_latency": _added(counted, "total_storage_io_latency"),
        "total_generation_latency": _added(counted, "total_generation_latency"),
        **{name: _listed(counted, name) for name in _LISTS},
        "throughput_timeline": [],
        "multi_turn_cache_hits": reuse["history_hits"],
        "multi_turn_cache_misses": reuse["history_looked_up"] - reuse["history_hits"],
        "seed": next((part.root["seed"].value for part in counted if part.rank == 0), None),
        "overall_passed": False,
        "total_requests": done["completed"],
        "avg_latency_ms": end_to_end["mean"],
        "p99_latency_ms": end_to_end["p99"],
        "throughput_req_per_sec": done["completed_per_second"],
        "storage_throughput_mbps": moved / 1e6,
        "cache_hit_rate": stats["cache_hit_rate"],
        "metadata": {"nvme_backend": "file"},
        "host_cpu_percent_avg": _host_percent(counted),
        "fabric_rx_bytes": _of_hosts(counted, "kernel_counters.window.network_rx_bytes"),
        "fabric_tx_bytes": _of_hosts(counted, "kernel_counters.window.network_tx_bytes"),
    }
    if done["completed"]:
        document["summary"] = _summary(counted, body, stats, document)
    return document


def _latency(done: Body, name: str) -> dict[str, Any]:
    """Of all ranks' requests together."""
    return reference_ms(Node(done, "measured.all")[f"histogram_{name}"].histogram())


def _added(counted: Sequence[Part], name: str) -> float | None:
    """Null where a rank has none, having timed nothing."""
    nodes = [part.root[name] for part in counted]
    return None if any(n.value is None for n in nodes) else fsum(n.number() for n in nodes)


def _listed(counted: Sequence[Part], name: str) -> list[float]:
    """The ranks' lists one after the other; where they are too long together, as many from each
    rank's beginning."""
    lists = [[value.number() for value in part.root[name].rows()] for part in counted]
    if sum(map(len, lists)) > SAMPLE_LIMIT:
        lists = [values[: SAMPLE_LIMIT // len(lists)] for values in lists]
    return [value for values in lists for value in values]


# --- summary ---------------------------------------------------------------------------------


def _summary(
    counted: Sequence[Part], body: Body, stats: dict[str, Any], root: Mapping[str, Any]
) -> dict[str, Any]:
    done, reuse = body["measured"]["all"], body["reuse"]
    slo = _same(counted, "slo_ms")
    response = Node(done, "measured.all")["histogram_response"].histogram()
    return {
        "total_requests": done["completed"],
        "total_tokens": done["output_tokens"],
        "elapsed_time": body["window_s"],
        "avg_throughput_tokens_per_sec": done["output_tokens_per_second"],
        "total_storage_io_time": root["total_storage_io_latency"],
        "storage_throughput_tokens_per_sec": None
        if root["total_storage_io_latency"] is None
        else fsum(
            per_second(
                part.own["measured"]["all"]["output_tokens"].whole(),
                part.root["total_storage_io_latency"].number(),
            )
            for part in counted
        ),
        "requests_per_second": done["completed_per_second"],
        **{key: _latency(done, latency) for key, latency in LATENCIES.items()},
        "cache_stats": stats,
        "qos_metrics": {
            qos.value: _qos(counted, qos.value, body["measured"][qos.value]) for qos in Qos
        },
        "prefix_cache_stats": {
            "prefix_hits": reuse["shared_hits"],
            "prefix_misses": reuse["shared_looked_up"] - reuse["shared_hits"],
            "system_prompt_reuse": reuse["shared_hits"],
            "common_phrase_reuse": 0,
            "bytes_saved": reuse["shared_hit_bytes"],
        }
        if any(part.root.find("summary.prefix_cache_stats.prefix_hits") for part in counted)
        else {},
        "autoscaling_stats": [],
        "autoscaling_summary": _scaling(counted),
        "multi_turn_stats": {
            "cache_hits": reuse["history_hits"],
            "cache_misses": reuse["history_looked_up"] - reuse["history_hits"],
            "hit_rate": reuse["history_hit_ratio"],
        },
        "arrival": _same(counted, "arrival"),
        "arrival_cv": _same(counted, "arrival_cv"),
        "request_rate": _sum_if_known(part.root.find("summary.request_rate") for part in counted),
        "slo_ms": slo,
        "slo_attainment": None
        if not isinstance(slo, int | float)
        else response.share_at_most(round(slo * NS_PER_MS)),
        "system_metrics": _system(counted, body["window_s"]),
    }


def _same(counted: Sequence[Part], name: str) -> Any:
    """What all ranks with a summary say; None where they differ."""
    found = [part.root["summary"][name].value for part in counted
             if "summary" in part.root.mapping()]  # fmt: skip
    return found[0] if found and all(value == found[0] for value in found) else None


def _sum_if_known(nodes: Iterable[Node | None]) -> float | None:
    known = list(nodes)
    if not known or any(node is None for node in known):
        return None
    return fsum(node.number() for node in known if node is not None)


def _scaling(counted: Sequence[Part]) -> dict[str, Any] | None:
    """Of all ranks' autoscalers together; None unless each has one."""
    rows = [part.root.find("summary.autoscaling_summary") for part in counted]
    known = [row for row in rows if row is not None]
    if not known or len(known) != len(rows):
        return None
    names = ("initial_users", "final_users", "total_scale_events")
    return {name: sum(row[name].whole() for row in known) for name in names}


def _qos(counted: Sequence[Part], name: str, pooled: Any) -> dict[str, Any]:
    """A class of all ranks."""
    rows = [row for part in counted if (row := part.root.find(f"summary.qos_metrics.{name}"))
            is not None and row.find("no_data") is None]  # fmt: skip
    if len(rows) < 2:
        return rows[0].mapping() if rows else {"no_data": True}
    total = sum(row["total_requests"].whole() for row in rows)
    if any(row["sla"]["compliance"].value is None for row in rows):  # which timed nothing
        return {**rows[0].mapping(), "total_requests": total}
    end_to_end = Node(pooled, f"measured.{name}")["histogram_end_to_end"].histogram()
    latency = reference_ms(end_to_end, ("p50", "p95", "p99"))
    latency["max"] = ns_to_ms(end_to_end.highest or 0)
    # A share of whole numbers gives its numerator back.
    kept = sum(
        round(row["sla"]["compliance"].number() * row["total_requests"].whole()) for row in rows
    )
    targets = {row["sla"]["target_p95_ms"].number() for row in rows}
    return {
        "total_requests": total,
        "latency_ms": latency,
        "sla": {
            "target_p95_ms": targets.pop() if len(targets) == 1 else None,
            "actual_p95_ms": latency["p95"],
            "compliance": ratio(kept, total),
            "met": ratio(kept, total) >= SLA_COMPLIANCE,
        },
    }


# --- the cache and storage -------------------------------------------------------------------


def _cache_stats(counted: Sequence[Part], body: Body) -> dict[str, Any]:
    flows, reuse, tiers = _flows(body["operations"]), body["reuse"], body["tiers"]
    hits = reuse["hits"] + reuse.get("decode_hits", 0)
    lookups = reuse["looked_up"] + reuse.get("decode_looked_up", 0)

    def at(label: str, name: str) -> int:
        return int(tiers[label][name]) if label in tiers else 0

    def rate(label: str, kind: OpKind, name: str) -> float:
        return float(tiers[label][kind.value][name]) if label in tiers else 0.0

    stats: dict[str, Any] = {
        "cache_hit_rate": ratio(hits, lookups),
        "cache_hits": hits,
        "cache_misses": lookups - hits,
        **{f"{label}_entries": at(label, "entries") for label in _TIERS},
        **{f"{label}_memory_used_gb": at(label, "used_bytes") / GIB for label in ("gpu", "cpu")},
        "offloads_cpu": total_operations(flows.measured(Tier.CPU, OpKind.WRITE)),
        "offloads_storage": total_operations(flows.measured(Tier.NVME, OpKind.WRITE)),
        "storage_health": health(
            flows,
            {kind: rate("storage", kind, "bytes_per_second") / GIB for kind in _KINDS},
            ratio(hits, lookups) if _judges_hits(counted) else None,
            str(next((part.said("config.run.performance_profile") for part in counted), "")),
            real=bool(counted) and all(part.said("driver") == "real-io" for part in counted),
        ),
        "prefill_writes": operations_of(flows, OpKind.WRITE, Cause.PREFILL),
        "decode_reads": operations_of(flows, OpKind.READ, Cause.DECODE),
    }
    for label, tier in _TIERS.items():
        for kind, past in ((OpKind.WRITE, "written"), (OpKind.READ, "read")):
            moved = total_bytes(flows.measured(tier, kind))
            stats[f"tier_{label}_kv_bytes_{past}_gb"] = moved / GIB
            bandwidth = rate(label, kind, "bytes_per_second") / GIB
            stats[f"tier_{label}_{kind.value}_bandwidth_gbps"] = bandwidth
    read, written = (total_bytes(flows.measured(None, kind)) for kind in _KINDS)
    shared, history = reuse.get("shared_hits", 0), reuse["history_hits"]
    return {
        **stats,
        "system_prompt_hits": shared,
        "common_phrase_hits": 0,
        "user_cache_hits": hits - shared - history,
        "multi_turn_hits": history,
        "total_read_bytes": read,
        "total_write_bytes": written,
        "total_read_gb": read / GIB,
        "total_write_gb": written / GIB,
        "read_write_ratio": read / max(written, 1),
        "read_iops": rate("storage", OpKind.READ, "operations_per_second"),
        "write_iops": rate("storage", OpKind.WRITE, "operations_per_second"),
        "storage_tokens_processed": _tokens(counted),
        **_with_host(percentiles(flows), counted),
    }


def _judges_hits(counted: Sequence[Part]) -> bool:
    """Whether a rank was held against the floor under the hit rate."""
    for part in counted:
        found = part.root.find("summary.cache_stats.storage_health.criteria")
        if found is not None and any(row["name"].value == _HIT_RATE for row in found.rows()):
            return True
    return False


def _tokens(counted: Sequence[Part]) -> int | None:
    nodes = [part.root.find("summary.cache_stats.storage_tokens_processed") for part in counted]
    if any(node is None for node in nodes):
        return None
    return sum(node.whole() for node in nodes if node is not None)


def _with_host(found: Mapping[str, float], counted: Sequence[Part]) -> dict[str, float | None]:
    """With the host's part of storage latencies: of one rank as it says, of several null."""
    made: dict[str, float | None] = {**found}
    for kind in _KINDS:
        for percentile in PERCENTILES:
            name = f"storage_{kind.value}_host_{percentile}_ms"
            if f"storage_{kind.value}_{percentile}_ms" in found:
                alone = counted[0].root.find(f"summary.cache_stats.{name}")
                made[name] = alone.number() if alone is not None and len(counted) == 1 else None
    return made


def _flows(rows: Sequence[Mapping[str, Any]]) -> Flows:
    """The merged rows as a ledger; without what only the recorder knows."""
    made: dict[Flow, OpStats] = {}
    for number, row in enumerate(rows):
        node = Node(row, f"operations[{number}]")
        flow = Flow(
            _word(node["phase"], Phase),
            _word(node["tier"], _tier),
            _word(node["operation"], OpKind),
            _word(node["cause"], Cause),
            node["engine"].text(),
        )
        made[flow] = OpStats(
            operations=node["operations"].whole(),
            bytes=node["bytes"].whole(),
            calls=node["system_calls"].whole(),
            sizes=node["histogram_bytes"].histogram(),
            total=node["histogram_total"].histogram(),
            device=node["histogram_device"].histogram(),
        )
    return Flows(made)


def _word(node: Node, kind: Callable[[str], T]) -> T:
    try:
        return kind(node.text())
    except ValueError:
        raise MisshapenError(f"{node.path} is {node.value[:40]!r}, which there is not") from None


def _tier(label: str) -> Tier:
    if label not in _TIERS:
        raise ValueError(label)
    return _TIERS[label]


# --- the machines ----------------------------------------------------------------------------


def _host_percent(counted: Sequence[Part]) -> float | None:
    """The share of all cores' time that was not idle, over all ranks' windows."""
    sums = [
        _sum_if_known(part.own.find(f"kernel_counters.window.{name}") for part in counted)
        for name in ("host_busy_s", "host_total_s")
    ]
    busy, total = sums
    return None if busy is None or total is None else 100 * ratio(busy, total)


def _of_hosts(counted: Sequence[Part], path: str) -> int | None:
    """What each machine counts for everybody on it: the largest of its ranks' counts, added up."""
    most: dict[str, int] = {}
    for part in counted:
        node = part.own.find(path)
        if node is None:
            return None
        most[part.host or ""] = max(most.get(part.host or "", 0), node.whole())
    return sum(most.values()) if counted else None


def _system(counted: Sequence[Part], seconds: float) -> dict[str, Any]:
    def total(name: str) -> Any:
        nodes = [part.own.find(f"kernel_counters.window.{name}") for part in counted]
        if any(node is None for node in nodes):
            return None
        values = [node.number() for node in nodes if node is not None]
        return sum(values) if all(isinstance(v, int) for v in values) else fsum(values)

    def summed(name: str) -> float:
        found = (part.root.find(f"summary.system_metrics.{name}") for part in counted)
        return fsum(node.number() for node in found if node is not None)

    cores: dict[str, int] = {}
    for part in counted:
        node = part.root.find("summary.system_metrics.cpu_count")
        if node is not None:
            cores[part.host or ""] = max(cores.get(part.host or "", 0), node.whole())
    return {
        "elapsed_wall_s": seconds,
        "process_cpu_time_s": summed("process_cpu_time_s"),
        "process_cpu_percent_avg": summed("process_cpu_percent_avg"),
        "host_cpu_percent_avg": _host_percent(counted),
        "process_user_cpu_s": total("process_user_s"),
        "process_system_cpu_s": total("process_system_s"),
        "cpu_count": sum(cores.values()) if cores else None,
        "fabric_rx_bytes": _of_hosts(counted, "kernel_counters.window.network_rx_bytes"),
        "fabric_tx_bytes": _of_hosts(counted, "kernel_counters.window.network_tx_bytes"),
        "process_max_rss_bytes": total("peak_rss_bytes"),
        "process_io_read_bytes": total("process_read_bytes"),
        "process_io_write_bytes": total("process_write_bytes"),
    }
