"""Reads fio's report of a job."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.core.kinds import OpKind
from kv_cache.core.units import GIB, NS_PER_MS
from kv_cache.files.fio import PERCENTILES, Side, Twin
from kv_cache.metrics.histogram import Histogram, supported


class Measured(Struct, frozen=True, kw_only=True):
    """One side as either program measured it."""

    bytes_per_s: float
    latency_ns: Mapping[float, float | None]  # None where there are too few for a percentile


class Answer(Struct, frozen=True, kw_only=True):
    """What fio measured."""

    version: str
    sides: Mapping[OpKind, Measured]
    cpu_ns_per_gib: float


def ours(side: Side, window_s: float) -> Measured:
    """Return what the run measured."""
    return Measured(
        bytes_per_s=side.nbytes / window_s,
        latency_ns={p: side.device.percentile(p) for p in PERCENTILES},
    )


def read_answer(
    twin: Twin, report: Mapping[str, Any], logs: Mapping[OpKind, Sequence[Sequence[int]]]
) -> Answer:
    """Read fio's JSON report; `logs` has the completion latencies (ns) of each thread, in order, of
    the sides whose objects take several calls.

    Raises KeyError, IndexError, TypeError or ValueError if it is not a report of this job."""
    sides, cpu_ns, moved = {}, 0.0, 0
    jobs = {str(job["jobname"]): job for job in report["jobs"]}
    for side in twin.sides:
        job = jobs[f"{side.kind}s"]
        numbers = job[side.kind.value]
        cpu_ns += (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * NS_PER_MS
        moved += numbers["io_bytes"]
        if side.kind in logs:
            latency = _object_percentiles(logs[side.kind], side.calls)
        else:
            calls = numbers["clat_ns"]
            latency = {
                p: float(calls["percentile"][f"{p:.6f}"]) if supported(int(calls["N"]), p) else None
                for p in PERCENTILES
            }
        sides[side.kind] = Measured(bytes_per_s=float(numbers["bw_bytes"]), latency_ns=latency)
    return Answer(
        version=str(report["fio version"]), sides=sides, cpu_ns_per_gib=cpu_ns / (moved / GIB)
    )


def _object_percentiles(
    threads: Sequence[Sequence[int]], calls: int
) -> Mapping[float, float | None]:
    """Return the percentiles of objects, from the latencies of their calls."""
    objects = Histogram()
    for latencies in threads:
        for first in range(0, len(latencies) - calls + 1, calls):
            objects.add(sum(latencies[first : first + calls]))
    if not objects.count:
        raise ValueError("fio finished no object")
    return {p: objects.percentile(p) for p in PERCENTILES}


def read_logs(twin: Twin, logs: Path) -> Mapping[OpKind, Sequence[Sequence[int]]]:
    """Return the completion latencies (ns) of each thread, where an object takes several calls."""
    return {
        side.kind: [_latencies(log) for log in sorted(logs.glob(f"{side.kind}_clat.*.log"))]
        for side in twin.sides
        if side.calls > 1
    }


def _latencies(log: Path) -> list[int]:
    """Read the latencies of lines `time ms, latency ns, direction, bytes, …`."""
    return [int(line.split(",")[1]) for line in log.read_text().splitlines() if line.strip()]
