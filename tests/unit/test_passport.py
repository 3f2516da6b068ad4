"""Each rule of the passport: the fault that it is for is named, and a healthy run is valid."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from kv_cache.config.passport import PassportConfig
from kv_cache.config.schema import describe, from_mapping
from kv_cache.core.units import GIB, MIB
from kv_cache.metrics.passport import RULES, VALID, Finding, Status, Thresholds, Verdict, judge

DEFAULTS = Thresholds()
QUIET = Path(__file__).parents[1] / "data/quiet_evidence.json"


def foot(kind: str, *path: str, reason: str | None = None, cached_by: Any = ()) -> dict[str, Any]:
    return {
        "name": path[-1], "kind": kind, "path": list(path), "reason": reason,
        "cached_by": list(cached_by),
    }  # fmt: skip


def healthy() -> dict[str, Any]:
    """30 s on ext4 with direct I/O: 60 GiB read, 20 GiB written."""
    read, written = 60 * GIB, 20 * GIB
    return {
        "driver": "real-io",
        "preconditioned": False,
        "completeness": {
            "status": "finished", "interrupted": None, "window_s": 30.0, "completed": 400,
            "failed_requests": 0, "rejected": 0, "unfinished": 16, "submitted": 416,
            "failed_operations": 0, "storage_failed_operations": 0, "records_error": None,
        },
        "verification": {
            "mode": "stamps", "objects": 1920, "bytes": read, "errors": 0,
            "storage_bytes": read,
            "storage_read_bytes": read,
        },
        "ledger": {
            "read": {
                "claimed_bytes": read, "process_bytes": read + 3 * MIB,
                "device_bytes": read + 9 * MIB, "calls_bytes": read + 5 * MIB,
                "foot_bytes": read + 10 * MIB,
            },
            "write": {
                "claimed_bytes": written, "process_bytes": written + 4 * MIB,
                "device_bytes": written + 60 * MIB, "calls_bytes": written + 4 * MIB,
                "foot_bytes": written + 61 * MIB,
            },
            "settle_s": 0.1, "device": "nvme0n1", "accounted": True, "filesystem": "ext4",
        },
        "engines": {
            "requested": "auto", "write_requested": None, "fsync": "object", "note": None,
            "rows": [
                {"operation": "read", "engine": "direct", "operations": 1920, "bytes": read},
                {"operation": "write", "engine": "direct", "operations": 640, "bytes": written},
            ],
        },
        "stack": {
            "feet": [foot("disk", "ext4 /data", "nvme0n1p2", "nvme0n1")],
            "not_compared": [], "no_barrier": [], "uncounted": [],
        },
        "page_cache": {
            "sampled_objects": 60, "pages": 491_520, "resident_before": 12, "resident_after": 12,
            "descriptors": {"direct": 60, "buffered": 0},
        },
        "link": {
            "bytes_per_second": 7.88e9, "source": "PCIe 4.0 x4",
            "read_bytes_per_second": read / 30, "write_bytes_per_second": written / 30,
        },
        "amplification": {
            "storage_bytes": read,
            "storage_read_bytes": read, "unique_read_bytes": 15 * GIB, "read_amplification": 4.0,
            "storage_written_bytes": written, "stored_bytes": written,
            "write_amplification": 1.0, "all_bytes": 100 * GIB, "storage_share": 0.8,
        },
        "payload": {
            "pages": 512, "entropy_bits_per_byte": 7.95, "compressed_ratio": 1.0003,
            "duplicate_share": 0.0, "zero_share": 0.004, "wrong_pages": 0,
        },
        "interposed": {
            "symbols": {"fsync": "/lib/x86_64-linux-gnu/libc.so.6"}, "foreign_symbols": [],
            "disagreeing": [], "preload": None, "libraries": ["/lib/x86_64-linux-gnu/libc.so.6"],
        },
        "throttles": {
            "cpu_throttled_s": 0.0, "cpu_throttled_periods": 0, "io_limits": [],
            "memory_limit_events": 0, "memory_stalled_s": 0.0,
            "governor": "powersave", "turbo": "on",
        },
        "foreign": {
            "read_bytes": 20 * MIB, "write_bytes": 80 * MIB,
            "processes": [{"pid": 7, "name": "updatedb", "read_bytes": 20 * MIB, "write_bytes": 0}],
        },
        "client": {
            "cpu_s": 9.0, "storage_gib": 80.0, "cpu_s_per_gib": 0.11, "cores_used": 0.3,
            "cores": 8, "ceiling": None, "schedule_lag_p99_ms": None, "shortest_target_ms": 50.0,
            "harness_lag_p50_ms": 0.06, "harness_lag_p99_ms": 1.2, "harness_lag_max_ms": 9.0,
            "storage_read_p50_ms": 14.0, "storage_read_p99_ms": 31.0,
        },
        "clock": {"wall_s": 41.02, "monotonic_s": 41.0},
        "gaps": {"counted": True, "found": [], "read_call_ms": 12.0, "write_call_ms": 14.0},
        "sample": {
            "mode": "standard", "ranks": 1, "read_operations": 1920, "write_operations": 640,
        },
        "steady": {
            "preconditioned": False, "filled_bytes": None, "capacity_bytes": 100 * GIB,
            "rounds": 0, "proof": None, "discard": False,
            "stationarity": {
                "windows": 30, "seconds": 30.0, "bytes": read + written, "submitted": 416,
                "bandwidth_trend": 0.08, "bandwidth_falls": True, "bandwidth_t": 1.3,
                "bandwidth_step_s": None, "backlog_growth": 0.0, "backlog_growth_share": 0.0,
                "backlog_t": 0.0,
            },
        },
    }  # fmt: skip


def changed(evidence: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with other values at dotted paths."""
    made = deepcopy(dict(evidence))
    for path, value in values.items():
        *way, last = path.split(".")
        place = made
        for name in way:
            place = place[name]
        place[last] = value
    return made


def finding(verdict: Verdict, rule: str) -> Finding:
    return next(found for found in verdict.findings if found.rule == rule)


def proven(*speeds: float, read_ms: list[float] | None = None) -> dict[str, Any]:
    """A proof whose own word is that all is well."""
    return {
        "rule": "SNIA PTS", "values": list(speeds), "average": 1e9, "range_share": 0.01,
        "slope_share": 0.0, "steady": True, "since_round": 5,
        "latencies": {"read_p95_ms": {"values": read_ms}, "write_p95_ms": {"values": [None] * 5}},
    }  # fmt: skip


STEADY: Mapping[str, Any] = {
    "steady.preconditioned": True, "steady.filled_bytes": 200 * GIB, "steady.rounds": 7,
    "steady.proof": proven(228.90, 240.21, 240.60, 240.71, 240.71),
}  # fmt: skip
"""A whole fill, and rounds that are steady."""

BUFFERED = [
    {"operation": "read", "engine": "buffered", "operations": 10, "bytes": 60 * GIB},
    {"operation": "write", "engine": "buffered", "operations": 10, "bytes": 20 * GIB},
]
SLOW_CEILING = {"ratio": 1.05}
CURVE = {
    "ratio": 1.05, "operations_per_second": 21_400.0, "bytes_per_second": 5.2 * GIB,
    "limit_object_bytes": 98_304, "points": [{"object_bytes": 262_144.0}, {"object_bytes": 4096.0}],
}  # fmt: skip

FAULTS: Mapping[str, tuple[str, str, Mapping[str, Any], str]] = {
    "reads come from the page cache": (
        "V1", "invalid", {"ledger.read.process_bytes": 30 * GIB}, "50.0 %"),
    "pages are in memory before they are read": (
        "V1", "invalid",
        {"page_cache.resident_before": 400_000, "engines.rows": BUFFERED}, "81.4 %"),
    "somebody else reads the cache files": (
        "V1", "suspect", {"page_cache.resident_before": 400_000,
                          "page_cache.resident_after": 400_000}, "something else reads"),
    "a tmpfs answers direct reads from memory": (
        "V1", "invalid", {"page_cache.resident_before": 491_520, "ledger.accounted": False,
                          "ledger.read.process_bytes": 0}, "100.0 %"),
    "reads are faster than the link": (
        "V1", "invalid", {"link.read_bytes_per_second": 9e9}, "8.382 GiB/s"),
    "writes are faster than the link": (
        "V1", "invalid", {"link.write_bytes_per_second": 9e9}, "PCIe 4.0 x4"),
    "nothing shows where reads came from": (
        "V1", "suspect", {"ledger.read.process_bytes": None, "page_cache": None}, "nothing shows"),
    "the payload is zeros": (
        "V2", "invalid", {"payload.zero_share": 1.0, "payload.entropy_bits_per_byte": 0.0,
                          "payload.compressed_ratio": 0.001, "payload.duplicate_share": 0.99},
        "0.00 bits"),
    "the payload repeats": ("V2", "invalid", {"payload.duplicate_share": 0.4}, "duplicates"),
    "one run mixes engines": (
        "V3", "invalid", {"engines.rows": [
            *BUFFERED[:1], {"operation": "write", "engine": "uring", "bytes": 20 * GIB}]}, "mixed"),
    "only writes fall back": (
        "V3", "invalid", {"engines.rows": [
            {"operation": "read", "engine": "direct", "bytes": 60 * GIB}, *BUFFERED[1:]]},
        "mixed"),
    "a direction mixes engines though one was asked for": (
        "V3", "invalid", {"engines.requested": "buffered", "engines.rows": [
            *BUFFERED, {"operation": "read", "engine": "direct", "bytes": GIB}]}, "mixed"),
    "auto falls back": (
        "V3", "suspect", {"engines.rows": BUFFERED, "engines.note": "EINVAL on open"}, "EINVAL"),
    "direct was asked for and not done": (
        "V3", "invalid", {"engines.rows": BUFFERED, "engines.requested": "direct"}, "asked for"),
    "the engine says direct and the descriptor does not": (
        "V3", "invalid", {"page_cache.descriptors": {"direct": 0, "buffered": 60}}, "60 sampled"),
    "direct loads leave pages behind": (
        "V3", "invalid", {"page_cache.resident_after": 490_000}, "only seems"),
    "fsync is faked": (
        "V4", "invalid", {"interposed.disagreeing": ["fsync"], "interposed.preload": "eat.so"},
        "eat.so"),
    "a library stands in for fsync": (
        "V4", "suspect", {"interposed.foreign_symbols": ["fsync"],
                          "interposed.symbols": {"fsync": "/opt/x.so"}}, "/opt/x.so"),
    "no block device counts the bytes": (
        "V5", "suspect", {"ledger.accounted": False, "ledger.filesystem": "tmpfs"}, "tmpfs"),
    "others read more often, and hardly any bytes": (
        "V23", "suspect", {"foreign.read_bytes": 200 * MIB, "foreign.write_bytes": 0,
                           "foreign.read_requests": 130_000,
                           "foreign.most_own_read_requests": 50_000,
                           "foreign.most_own_write_requests": 10_000,
                           "gaps.read_call_ms": 12.0}, "beside at most 60000 operations of ours"),
    "others write more often, and hardly any bytes": (
        "V23", "suspect", {"foreign.read_bytes": 0, "foreign.write_bytes": 300 * MIB,
                           "foreign.write_requests": 100_000, "foreign.synced_writes": 6_000,
                           "foreign.most_own_read_requests": 20_000,
                           "foreign.most_own_write_requests": 30_000},
        "in some 46000 reads and writes"),
    "memory answers in the window alone": (
        "V6", "invalid", {"ledger.read.window_claimed_bytes": 2 * GIB,
                          "ledger.read.window_process_bytes": 1.5 * GIB}, "in the measured window"),
    "the counters are a container's": (
        "V5", "suspect", {"stack.counters_by": ["fuse.lxcfs on /proc/diskstats"]}, "lxcfs"),
    "more is claimed than the kernel saw written": (
        "V6", "invalid", {"ledger.write.process_bytes": 10 * GIB}, "50.0 %"),
    "more is claimed than system calls moved": (
        "V6", "invalid", {"ledger.read.calls_bytes": 30 * GIB}, "our count is wrong"),
    "more is moved than any ledger has": (
        "V6", "suspect", {"ledger.read.process_bytes": 70 * GIB}, "10.00 GiB more"),
    "the kernel's counters cannot be read": (
        "V6", "suspect", {"ledger.read.process_bytes": None}, "/proc/self/io"),
    "fewer bytes were read than there are different ones": (
        "V11", "suspect", {"amplification.unique_read_bytes": 90 * GIB}, "contradicts"),
    "the amplification is not what the bytes give": (
        "V11", "suspect", {"amplification.read_amplification": 1.0}, "1.00"),
    "the run was interrupted": (
        "V12", "invalid", {"completeness.status": "interrupted",
                           "completeness.interrupted": "SIGINT"}, "SIGINT"),
    "the run broke": ("V12", "invalid", {"completeness.status": "broken"}, "broken"),
    "requests failed": ("V12", "invalid", {"completeness.failed_requests": 3}, "3 requests"),
    "operations failed": (
        "V12", "invalid", {"completeness.failed_operations": 2,
                           "completeness.storage_failed_operations": 1}, "1 of them on storage"),
    "nothing completed": ("V12", "invalid", {"completeness.completed": 0}, "--duration"),
    "the window never began": (
        "V12", "invalid", {"completeness.window_s": 0, "completeness.completed": 0}, "window"),
    "records are incomplete": (
        "V12", "invalid", {"completeness.records_error": "no space"}, "no space"),
    "a backlog grows": (
        "V12", "suspect", {"completeness.backlog_growth": 12, "completeness.asked": 50},
        "12 more requests waited at the end of the window"),
    "windows are too long to show a trend": (
        "V14", "suspect", {"steady.stationarity.seconds": 34.0, "steady.stationarity.windows": 4,
                           "steady.stationarity.bandwidth_trend": None}, "monitor.tick_s"),
    "an operation never ends": (
        "V12", "suspect", {"completeness.oldest_operation_ms": 9_000.0}, "9.0 s after it began"),
    "requests were rejected": ("V12", "suspect", {"completeness.rejected": 40}, "rejected"),
    "next to nothing was read": (
        "V30", "invalid", {"sample.read_operations": 29}, "only 29 storage reads"),
    "nothing was written in a run that reads and writes": (
        "V30", "invalid", {"sample.write_operations": 0}, "--decode-only"),
    "little was read": ("V30", "suspect", {"sample.read_operations": 199}, "under 200"),
    "little was written by a run that only writes": (
        "V30", "suspect", {"sample.mode": "prefill-only", "sample.write_operations": 30},
        "30 storage writes"),
    "ranks have next to nothing together": (
        "V30", "invalid", {"sample.ranks": 4, "sample.read_operations": 7}, "4 ranks together"),
    "how much was measured is not known": (
        "V30", "suspect", {"sample": None}, "not known"),
    "how the run ended is not known": ("V12", "suspect", {"completeness": {}}, "status"),
    "the client is close to its ceiling": (
        "V13", "suspect", {"client.ceiling": SLOW_CEILING, "client.cores_used": 0.6}, "1.05"),
    "the client is the limit": (
        "V13", "invalid", {"client.ceiling": SLOW_CEILING, "client.cores_used": 7.5}, "7.50"),
    "the client would be the limit at smaller objects": (
        "V13", "suspect", {"client.ceiling": CURVE, "client.cores_used": 0.6},
        "below 96 KiB it would be the limit itself; the run used 0.60 of 8 cores"),
    "others use all cores": (
        "V13", "suspect", {"client.others_cores": 7.0, "client.idle_cores": 0.6,
                           "client.busiest": [{"name": "make", "cpu_s": 69.0}]}, "make (69.0 s)"),
    "requests to an object store keep the cores busy": (
        "V13", "suspect",
        {"client.ceiling": {**CURVE, "ratio": 45.56}, "client.cores_used": 7.5,
         "engines.rows": [{"operation": "read", "engine": "s3", "operations": 9, "bytes": GIB}]},
        "HTTP and signatures"),
    "the cores are busy": ("V13", "suspect", {"client.cores_used": 7.5}, "--certify"),
    "a preconditioned drive is not steady": (
        "V14", "suspect",
        {**STEADY, "steady.proof": proven(900.0, 700.0, 500.0, 400.0, 300.0)}, "107.14 %"),
    "a drive is called steady after too few rounds": (
        "V14", "suspect", {**STEADY, "steady.rounds": 4, "steady.proof": proven(1, 1, 1, 1)},
        "too few"),
    "the rounds of a proof stood still": (
        "V14", "suspect", {**STEADY, "steady.proof": proven(0, 0, 0, 0, 0)}, "above 0"),
    "reads get slower in an open loop that is served all the same": (
        "V14", "suspect",
        {**STEADY, "client.schedule_lag_p99_ms": 0.1,
         "steady.proof": proven(1, 1, 1, 1, 1, read_ms=[1.0, 2.0, 3.0, 4.0, 5.0])},
        "p95 of reads"),
    "the bandwidth falls while it is measured": (
        "V14", "suspect",
        {**STEADY, "steady.stationarity.bandwidth_trend": 0.6,
         "steady.stationarity.bandwidth_t": 30.0, "steady.stationarity.bandwidth_step_s": 12.0},
        "fell by 60.0 % of its mean, after about 12 s"),
    "the bandwidth rises while a fresh cache is measured": (
        "V14", "suspect",
        {"steady.stationarity.bandwidth_trend": 0.6, "steady.stationarity.bandwidth_t": 30.0,
         "steady.stationarity.bandwidth_falls": False}, "rose by 60.0 %"),
    "more is asked than is served": (
        "V14", "suspect",
        {"steady.stationarity.backlog_growth_share": 0.3, "steady.stationarity.backlog_t": 9.0},
        "30.0 %"),
    "the schedule is late": (
        "V15", "suspect", {"client.schedule_lag_p99_ms": 4.0, "completeness.completed": 1000},
        "2.50 ms"),
    "the schedule is late as a rule": (
        "V15", "suspect",
        {"client.schedule_lag_p99_ms": 4.0, "client.schedule_lag_p50_ms": 3.0}, "p50 of the lag"),
    "users are not there to ask": (
        "V15", "suspect",
        {"client.schedule_lag_p99_ms": 4.0, "completeness.asked_per_s": 1.05,
         "completeness.requested_per_s": 3.0}, "asked 1.05/s of 3/s"),
    "no byte touches storage": (
        "V18", "invalid", {"amplification.storage_read_bytes": 0,
                           "amplification.storage_written_bytes": 0}, "no byte"),
    "hardly a byte touches storage": (
        "V18", "invalid", {"amplification.storage_share": 0.001}, "0.1 %"),
    "too few bytes touch storage": (
        "V18", "suspect", {"amplification.storage_read_bytes": MIB,
                           "amplification.storage_written_bytes": MIB}, "2.0 MiB"),
    "most writes never reach the device": (
        "V19", "invalid", {"ledger.write.device_bytes": 2 * GIB}, "10.0 %"),
    "some writes lag behind": (
        "V19", "suspect", {"ledger.write.device_bytes": 18 * GIB}, "settling"),
    "the clock is not the kernel's": (
        "V21", "invalid", {"clock.kernel_s": 80.0}, "the kernel's for 80.000 s"),
    "a window has more time of cores than it can hold": (
        "V21", "invalid", {"clock.counted_s": 30.1, "clock.cores": 8,
                            "clock.core_s": 80.0 * 8}, "longer than is said"),
    "a window has a disk that was busy for longer": (
        "V21", "invalid", {"clock.counted_s": 30.1, "clock.devices": 1, "clock.busy_s": 80.0},
        "the disk was busy for"),
    "counters are of a longer time than the window": (
        "V21", "suspect", {"clock.counted_s": 60.0}, "around a window of 30.00 s"),
    "a library is loaded beside the program's": (
        "V4", "suspect", {"interposed.unlisted": ["/tmp/a.so"]}, "/tmp/a.so"),
    "the clocks disagree": ("V21", "suspect", {"clock.wall_s": 50.0}, "9.000 s"),
    "the time was set back": ("V21", "suspect", {"clock.wall_s": -3559.0}, "3600.000 s"),
    "wrong data was read": ("V22", "invalid", {"verification.errors": 1}, "corrupts"),
    "verification is off": ("V22", "suspect", {"verification.mode": "off"}, "--verify stamps"),
    "less was verified than read": (
        "V22", "suspect", {"verification.storage_bytes": 30 * GIB}, "30.00 GiB of 60.00 GiB"),
    "others use the device": (
        "V23", "suspect", {"foreign.read_bytes": 40 * GIB, "foreign.processes": [
            {"pid": 9, "name": "fio", "read_bytes": 40 * GIB, "write_bytes": 0}]},
        ", most of it fio"),
    "others use the device, and hardly any of them can be named": (
        "V23", "suspect", {"foreign.read_bytes": 40 * GIB, "foreign.processes": [
            {"pid": 9, "name": "fio", "read_bytes": 40 * MIB, "write_bytes": 0}]},
        ", a part of it fio (40.0 MiB), beside"),
    "an I/O limit is in force": (
        "V24", "suspect", {"throttles.io_limits": ["vda read_bps=1000"]}, "read_bps=1000"),
    "the CPU limit stops us": (
        "V24", "suspect", {"throttles.cpu_throttled_s": 12.0}, "12.00 s"),
    "the memory limit holds us up": (
        "V24", "suspect", {"throttles.memory_limit_events": 40, "throttles.memory_stalled_s": 12.0},
        "memory for 12.00 s"),
    "the harness is as slow as the device": (
        "V25", "suspect", {"client.harness_lag_p99_ms": 15.0}, "15.00 ms"),
    "the harness is slow throughout": (
        "V25", "suspect", {"client.harness_lag_p50_ms": 3.0}, "3.00 ms"),
    "the harness distorts writes alone": (
        "V25", "suspect", {"client.storage_write_p99_ms": 4.0},
        "1.20 ms late at p99, where a write"),
    "a loop device buffers": ("V27", "invalid", {"stack.feet": [foot(
        "unseen", "ext4 /m", "loop3", "fuse /nbd", reason="FUSE",
        cached_by=["loop3 (loop without direct I/O: dio 0)"])]}, "losetup --direct-io=on"),
    "a RAM disk": ("V27", "invalid", {"stack.feet": [foot(
        "ram", "ext4 /m", "zram0", reason="it compresses into RAM")]}, "zram0 is memory"),
    "one drive of two is memory": ("V27", "invalid", {"stack.feet": [
        foot("disk", "ext4 /a", "sda"), foot("ram", "ext4 /b", "loop0", "tmpfs /dev/shm")]},
        "tmpfs /dev/shm is memory"),
    "reads do not reach the foot of a device without statistics": ("V19", "invalid", {
        "stack.uncounted": ["nvme0n1"], "ledger.read.device_bytes": 0,
        "ledger.read.foot_bytes": 0}, "memory answered the rest"),
    "reads do not reach the foot": ("V27", "invalid", {
        "ledger.read.foot_bytes": 1 * MIB}, "counted only 0.0 %"),
    "some writes do not reach the foot": ("V27", "suspect", {
        "ledger.write.foot_bytes": 15 * GIB}, "counted only 75.0 %"),
    "a process stands below the loop device": ("V28", "suspect", {"stack.feet": [foot(
        "unseen", "ext4 /m", "loop3", "fuse /nbd", reason="a process answers")]},
        "what lies below fuse /nbd cannot be seen: a process answers"),
    "a target on another host": ("V28", "suspect", {"stack.feet": [foot(
        "unseen", "xfs /m", "nvme4n1", reason="NVMe/TCP to 10.0.0.2")]}, "NVMe/TCP to 10.0.0.2"),
    "the raw device goes away": ("V28", "suspect", {
        "stack.feet": [foot("disk", "raw device", "nvme0n1")],
        "stack.later": {"feet": [foot("unseen", "raw device", "259:0")]}},
        "nvme0n1 went away while the run went on: from then on operations fail, as io-error"),
    "the raw device goes away with its node": ("V28", "suspect", {
        "stack.feet": [foot("disk", "raw device", "nvme0n1")],
        "stack.later": {"feet": [foot("ram", "devtmpfs /dev")]}},
        "nvme0n1 went away while the run went on"),
    "the drive of the file system goes away": ("V28", "suspect", {
        "stack.feet": [foot("disk", "ext4 /m", "nvme1n1")],
        "stack.later": {"feet": [foot("unseen", "ext4 /m")]}}, "nvme1n1 went away"),
    "memory is mounted over the directory": ("V28", "suspect", {
        "stack.feet": [foot("disk", "ext4 /m", "sda")],
        "stack.later": {"feet": [foot("unseen", "fuse /m/cache")]}},
        "fuse /m/cache was not there as it began"),
    "a mount without barriers": ("V31", "suspect", {
        "stack.no_barrier": ["ext4 /data"]}, "ext4 /data is mounted without barriers"),
    "a write cache that is taken for none": ("V31", "suspect", {
        "stack.hidden_caches": ["nvme0n1"]}, "nvme0n1 has a write cache"),
    "an fsync that flushes nothing": ("V31", "suspect", {
        "interposed.unflushed": True}, "let no disk flush"),
    "the clock is slewed": ("V21", "suspect", {"clock.raw_s": 65.0}, "is being slewed"),
    "a batch on a mount without barriers": ("V31", "suspect", {
        "stack.no_barrier": ["ext4 /data"], "engines.fsync": "batch"}, "--fsync batch"),
    "nothing is real": ("V26", "invalid", {"driver": "virtual-time"}, "virtual time"),
    "storage stands still": (
        "V29", "suspect", {"gaps.found": [{"at_s": 4.0, "seconds": 2.0}]}, "2.0 s from 4.0 s on"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_by_its_rule(fault: str) -> None:
    rule, status, values, words = FAULTS[fault]
    verdict = judge(changed(healthy(), values), DEFAULTS)
    found = finding(verdict, rule)
    assert (found.status, words in found.message) == (status, True), found
    assert verdict.verdict in (status, "invalid")
    assert found in verdict.reasons


def test_who_waits_for_a_stalled_device_is_not_advised_to_fill_it() -> None:
    trend = {"steady.stationarity.bandwidth_trend": 1.14, "steady.stationarity.bandwidth_t": 9.0}
    stall = {"gaps.found": [{"at_s": 18.4, "seconds": 11.6}]}
    alone, stalled = (
        finding(judge(changed(healthy(), values), DEFAULTS), "V14")
        for values in (trend, {**trend, **stall})
    )
    assert ("--precondition" in alone.message, "V29" in alone.message) == (True, False)
    assert ("--precondition" in stalled.message, "V29" in stalled.message) == (False, True)


def test_every_rule_has_a_fault_that_it_names() -> None:
    assert {rule for rule, *_ in FAULTS.values()} == RULES.keys()


def test_a_healthy_run_is_valid() -> None:
    verdict = judge(healthy(), DEFAULTS)
    assert (verdict.verdict, verdict.reasons) == (VALID, ())
    open_rules = {found.rule for found in verdict.findings if found.status is not Status.PASS}
    assert open_rules == {"V14", "V15"}  # not preconditioned; a closed loop has no schedule


def test_the_recorded_evidence_of_a_quiet_run_is_valid() -> None:
    """Of 25 s on a disk, as a run left it: what a live run cannot be held to beside others."""
    verdict = judge(orjson.loads(QUIET.read_bytes()), DEFAULTS)
    assert (verdict.verdict, verdict.reasons) == (VALID, ())
    open_rules = {found.rule for found in verdict.findings if found.status is not Status.PASS}
    assert open_rules == {"V14", "V15"}  # not preconditioned; a closed loop has no schedule


def test_a_schedule_that_is_kept_passes() -> None:
    lag = {"client.schedule_lag_p99_ms": 2.4, "client.shortest_target_ms": 50.0}
    found = finding(judge(changed(healthy(), lag), DEFAULTS), "V15")
    assert found.status is Status.PASS


HARMLESS: Mapping[str, Mapping[str, Any]] = {
    "a raw device has no mount whose barriers count": {
        "stack.feet": [foot("disk", "raw device", "nvme1n1")], "engines.fsync": "object"},
    "counters are read when a busy machine lets the program": {
        "clock.counted_s": 32.0, "clock.cores": 8, "clock.core_s": 8 * 32.0},
    "others are busy and leave cores idle": {
        "client.others_cores": 1.2, "client.idle_cores": 6.5, "client.busiest": []},
    "the harness is later than a typical read and not where the tail is published": {
        "client.harness_lag_p99_ms": 15.0, "client.storage_read_p99_ms": 120.0},
    "a small run says nothing wrong of its counters": {
        "ledger.read.claimed_bytes": 8 * MIB, "ledger.read.process_bytes": 1 * MIB,
        "ledger.read.device_bytes": 1 * MIB, "ledger.read.calls_bytes": 9 * MIB},
    "the page cache was asked for and the device answered": {
        "engines.rows": BUFFERED, "engines.requested": "buffered",
        "page_cache.resident_after": 491_000,
        "page_cache.descriptors": {"direct": 0, "buffered": 60}},
    "writes have an engine of their own": {
        "engines.write_requested": "buffered",
        "engines.rows": [{"operation": "read", "engine": "direct", "bytes": 60 * GIB},
                         *BUFFERED[1:]]},
    "nothing was read": {
        "ledger.read": {"claimed_bytes": 0, "process_bytes": 9 * MIB, "device_bytes": 90 * MIB,
                        "calls_bytes": 9 * MIB},
        "verification": {"mode": "stamps", "objects": 0, "bytes": 0, "errors": 0,
                         "storage_bytes": 0, "storage_read_bytes": 0},
        "page_cache": {"sampled_objects": 0, "pages": 0, "resident_before": 0,
                       "resident_after": 0, "descriptors": {"direct": 0, "buffered": 0}},
        "amplification.storage_read_bytes": 0, "amplification.unique_read_bytes": 0,
        "amplification.read_amplification": None, "client.storage_read_p50_ms": None,
        "engines.rows": [{"operation": "write", "engine": "direct", "bytes": 20 * GIB}]},
    "objects are read very often": {
        "amplification.unique_read_bytes": 60 * GIB // 5000,
        "amplification.read_amplification": 5000.0},
    "the journal writes a little more": {"ledger.write.device_bytes": 24 * GIB},
    "an allocator is preloaded": {"interposed.preload": "/usr/lib/libjemalloc.so.2"},
    "the link is not known": {
        "link.bytes_per_second": None, "link.read_bytes_per_second": 99e9},
    "a window of no length has no rate": {
        "completeness.window_s": 0.2, "link.read_bytes_per_second": 9e9},
    "the load asks for no more than a null store gives": {
        "client.ceiling": SLOW_CEILING, "client.cores_used": 0.2},
    "an open loop keeps its schedule": {
        "client.ceiling": SLOW_CEILING, "client.cores_used": 1.4,
        "client.schedule_lag_p99_ms": 0.4, "completeness.unfinished": 0},
    "pages of our own writes are written back in the window": {
        "engines.rows": BUFFERED, "engines.requested": "buffered",
        "page_cache.resident_after": 491_000,
        "page_cache.descriptors": {"direct": 0, "buffered": 60},
        "foreign.write_bytes": 40 * GIB},
    "files are in pieces, so that our own reads are more requests": {
        "foreign.read_bytes": 20 * MIB, "foreign.read_requests": 400_000,
        "foreign.most_own_read_requests": 60_000, "foreign.most_own_write_requests": 0,
        "gaps.read_call_ms": 12.0},
    "somebody reads now and then beside a run that writes": {
        "foreign.read_bytes": 40 * MIB, "foreign.read_requests": 9_000,
        "foreign.most_own_read_requests": 0, "foreign.most_own_write_requests": 20_000,
        "gaps.read_call_ms": 12.0},
    "the journal is written after each write that is synced": {
        "foreign.write_bytes": 150 * MIB, "foreign.write_requests": 72_000,
        "foreign.synced_writes": 18_400, "foreign.most_own_read_requests": 7_000,
        "foreign.most_own_write_requests": 18_400},
    "what was in flight as the window opened had been counted": {
        "ledger.read.window_claimed_bytes": 2 * GIB, "ledger.read.window_process_bytes": 1.85 * GIB,
        "gaps.read_call_ms": 40.0},
    "our own buffered writes are in the page cache and reads are direct": {
        "engines.write_requested": "buffered", "page_cache.resident_before": 300_000,
        "page_cache.resident_after": 300_000,
        "engines.rows": [{"operation": "read", "engine": "direct", "bytes": 60 * GIB},
                         *BUFFERED[1:]]},
    "two hundred users of a closed loop are still waiting": {"completeness.unfinished": 300},
    "a queue is longer by a few as the window ends": {
        "completeness.backlog_growth": 4, "completeness.asked": 20},
    "the latest of few requests was late": {"client.schedule_lag_p99_ms": 4.0,
                                            "client.schedule_lag_p50_ms": 0.1},
    "all are late by little of what they take": {
        "client.schedule_lag_p99_ms": 40.0, "client.schedule_lag_p50_ms": 20.0,
        "client.response_p99_ms": 2_000.0, "client.response_p50_ms": 1_135.0,
        "completeness.completed": 1000},
    "a load was cut off before its first end": {"amplification.loaded_bytes": 0,
                                               "amplification.unique_read_bytes": 0},
    "ring reads are no system calls": {
        "ledger.read.calls_bytes": 5 * MIB,
        "engines.rows": [{"operation": "read", "engine": "uring", "bytes": 60 * GIB},
                         {"operation": "write", "engine": "direct", "bytes": 20 * GIB}]},
    "the records were written too": {
        "ledger.write.process_bytes": 23 * GIB, "ledger.write.calls_bytes": 23 * GIB,
        "ledger.other_process_write_bytes": 3 * GIB},
    "the clock is trimmed by the network": {"clock.wall_s": 41.4},
    "a short window is bursty": {
        "steady.stationarity.seconds": 20.0, "steady.stationarity.bandwidth_trend": 2.0,
        "steady.stationarity.bandwidth_t": 40.0},
    "noise has a trend that may be none": {
        "steady.stationarity.bandwidth_trend": 0.5, "steady.stationarity.bandwidth_t": 3.0,
        "steady.stationarity.backlog_growth_share": 0.2, "steady.stationarity.backlog_t": 1.0},
    "a device without statistics lies on disks that count": {
        "stack.uncounted": ["nvme0n1"], "ledger.read.device_bytes": 0,
        "ledger.write.device_bytes": 0},
    "a device without statistics lies on nobody's disk here": {
        "stack.uncounted": ["nvme0n1"], "ledger.read.device_bytes": 0,
        "ledger.write.device_bytes": 0, "ledger.read.foot_bytes": None,
        "ledger.write.foot_bytes": None},
    "a mirror moves other bytes": {
        "stack.not_compared": ["md0 is md raid1"], "ledger.write.foot_bytes": 40 * GIB,
        "ledger.read.foot_bytes": None},
    "nobody syncs on a mount without barriers": {
        "stack.no_barrier": ["ext4 /data"], "engines.fsync": "never"},
    "a run that only writes reads nothing": {
        "sample.mode": "prefill-only", "sample.read_operations": 0},
    "a run that only reads writes nothing": {
        "sample.mode": "decode-only", "sample.write_operations": 0},
    "eight ranks have a sample together": {
        "sample.ranks": 8, "sample.read_operations": 40, "sample.write_operations": 25},
    "a trend is certain and small": {
        "steady.stationarity.bandwidth_trend": 0.1, "steady.stationarity.bandwidth_t": 100.0},
}  # fmt: skip


@pytest.mark.parametrize("case", HARMLESS)
def test_what_is_harmless_stays_valid(case: str) -> None:
    verdict = judge(changed(healthy(), HARMLESS[case]), DEFAULTS)
    assert (verdict.verdict, verdict.reasons) == (VALID, ())


def test_a_whole_fill_steady_rounds_and_a_level_window_prove_a_steady_state() -> None:
    found = finding(judge(changed(healthy(), STEADY), DEFAULTS), "V14")
    assert found.status is Status.PASS
    assert "after 7 rounds" in found.message
    assert "4.96 %" in found.message
    assert "4.05 %" in found.message


UNPROVEN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "nothing was done": ({"steady.preconditioned": False}, "was not preconditioned"),
    "only the flag is there": ({"steady": None, "preconditioned": True}, "nothing proves"),
    "it was only filled": ({"steady.rounds": 0, "steady.proof": None}, "nothing proves"),
    "the fill is not known": ({"steady.filled_bytes": None}, "not known"),
    "the capacity is not known": ({"steady.capacity_bytes": None}, "not known"),
    "the fill was too small": ({"steady.filled_bytes": 120 * GIB}, "1.20 times"),
    "deleting the fill undid it": ({"steady.discard": True}, "mount option discard"),
    "an open loop's p95 were of too few": (
        {"steady.proof": {**proven(*[240.0] * 5), "unjudged": ["too few reads for a p95"]}},
        "too few reads for a p95",
    ),
    "a trim undid it": ({"steady.discarded_bytes": 6 * GIB}, "6.00 GiB were discarded"),
    "the window is short": ({"steady.stationarity.seconds": 12.0}, "at least 30 s"),
    "the window has no trend": ({"steady.stationarity.bandwidth_trend": None}, "too little"),
    "no window was looked at": ({"steady.stationarity": None}, "too little"),
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_a_steady_state_is_not_proven_by_less(case: str) -> None:
    values, words = UNPROVEN[case]
    found = finding(judge(changed(changed(healthy(), STEADY), values), DEFAULTS), "V14")
    assert (found.status, words in found.message) == (Status.NOT_JUDGED, True), found


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ({"shortest_s": 4.0}, "a round of 4 s is too short"),
        ({"moved_bytes": 1.0}, "less than 1 times the capacity under test"),
        ({"values": [100.0 * 0.977**n for n in range(12)]}, "the change goes on"),
    ],
)
def test_rounds_that_keep_the_rule_may_prove_nothing(series: dict[str, Any], words: str) -> None:
    """The last five are steady in each; evidence without the series is of an older version."""
    whole = {"values": [100.0] * 12, "shortest_s": 60.0, "moved_bytes": 1e15}
    slope = series.get("values", whole["values"])[-5:]
    for seen, status in ((whole, Status.PASS), (whole | series, Status.SUSPECT)):
        rounds = {**STEADY, "steady.proof": proven(*slope), "steady.series": seen}
        found = finding(judge(changed(healthy(), rounds), DEFAULTS), "V14")
        assert found.status is status, found
    assert words in found.message


def test_a_test_that_declares_itself_is_not_judged_by_its_sample_and_says_so() -> None:
    few = changed(healthy(), {"sample.read_operations": 3})
    verdict = judge(few, Thresholds(measurement=False))
    found = finding(verdict, "V30")
    assert found.status is Status.NOT_APPLICABLE
    assert "declared to be no measurement" in found.message
    assert verdict.changed_thresholds == {"measurement": [False, True]}
    moved = judge(few, Thresholds(least_operations=3, enough_operations=3))
    assert finding(moved, "V30").status is Status.PASS
    assert moved.changed_thresholds == {
        "least_operations": [3, 30], "enough_operations": [3, 200]
    }  # fmt: skip


def test_a_link_that_the_user_sets_is_judged_by_and_named() -> None:
    """Set to more than the device says it makes a run valid that is not."""
    fast = changed(healthy(), {"link.read_bytes_per_second": 9e9})
    assert finding(judge(fast, DEFAULTS), "V1").status is Status.INVALID
    wide = judge(fast, Thresholds(link_gbytes_per_s=100))
    assert finding(wide, "V1").status is Status.PASS
    assert wide.changed_thresholds == {"link_gbytes_per_s": [100, 0.0]}
    unknown = changed(fast, {"link.bytes_per_second": None, "link.source": None})
    narrow = finding(judge(unknown, Thresholds(link_gbytes_per_s=7.5)), "V1")
    assert narrow.status is Status.INVALID
    assert "(passport.link_gbytes_per_s)" in narrow.message


def test_what_is_printed_as_the_finding_on_rounds_is_not_believed() -> None:
    """And an honest proof may be judged by other limits."""
    rounds = {**STEADY, "steady.proof": proven(90.0, 110.0, 110.0, 90.0, 85.0)}
    strict = finding(judge(changed(healthy(), rounds), DEFAULTS), "V14")
    loose = Thresholds(most_round_range=0.3, most_round_change=0.2)
    verdict = judge(changed(healthy(), rounds), loose)
    assert strict.status is Status.SUSPECT
    assert finding(verdict, "V14").status is Status.PASS
    assert verdict.changed_thresholds == {
        "most_round_range": [0.3, 0.2], "most_round_change": [0.2, 0.1]
    }  # fmt: skip


def test_a_latency_that_nobody_promised_to_judge_is_only_told_in_a_closed_loop() -> None:
    rising = proven(1, 1, 1, 1, 1, read_ms=[1.0, 2.0, 3.0, 4.0, 5.0])
    found = finding(judge(changed(healthy(), {**STEADY, "steady.proof": rising}), DEFAULTS), "V14")
    assert found.status is Status.PASS


def test_hidden_counters_make_a_run_suspect_with_reasons() -> None:
    hidden: dict[str, Any] = {f"ledger.{kind}.{name}_bytes": None for kind in ("read", "write")
              for name in ("process", "device", "calls")}  # fmt: skip
    hidden |= {"page_cache": None, "link": None, "throttles": None, "foreign": None, "client": {}}
    verdict = judge(changed(healthy(), hidden), DEFAULTS)
    assert verdict.verdict == "suspect"
    assert {found.rule for found in verdict.reasons} == {"V1", "V6"}


def test_virtual_time_leaves_nothing_to_look_at() -> None:
    verdict = judge({"driver": "virtual-time"}, DEFAULTS)
    assert verdict.verdict == "invalid"
    assert [found.rule for found in verdict.reasons] == ["V26"]
    others = {found.status for found in verdict.findings if found.rule != "V26"}
    assert others == {Status.NOT_APPLICABLE}


def test_no_evidence_is_suspect_and_never_valid() -> None:
    verdict = judge({}, DEFAULTS)
    assert verdict.verdict == "suspect"
    assert {"V1", "V6", "V12", "V22", "V26"} <= {found.rule for found in verdict.reasons}


def test_what_is_wrong_says_a_way_out() -> None:
    for fault, (rule, _, values, _) in FAULTS.items():
        says = finding(judge(changed(healthy(), values), DEFAULTS), rule).message
        assert ";" in says or ":" in says, fault
        assert "\n" not in says
        assert len(says) < 600


def test_a_verdict_is_json_with_the_gravest_reason_first() -> None:
    values = {"completeness.failed_requests": 1, "clock.wall_s": 99.0}
    made = orjson.loads(orjson.dumps(judge(changed(healthy(), values), DEFAULTS).to_json()))
    assert made["verdict"] == "invalid"
    assert [reason.split()[0] for reason in made["reasons"]] == ["V12", "V21"]
    assert [rule["rule"] for rule in made["rules"]] == list(RULES)
    assert made["changed_thresholds"] == {}


# --- thresholds ------------------------------------------------------------------------------


def test_the_section_has_the_thresholds_of_the_rules() -> None:
    assert PassportConfig().thresholds() == DEFAULTS
    options = {option.path for option in describe(PassportConfig)}
    assert {f.name for f in fields(Thresholds)} - {"enough_bytes"} <= options


def test_a_loosened_threshold_is_told_beside_the_verdict() -> None:
    config = from_mapping(PassportConfig, {"counter_tolerance": 0.5, "enough_mib": 1})
    verdict = judge(
        changed(healthy(), {"ledger.read.process_bytes": 40 * GIB}), config.thresholds()
    )
    assert finding(verdict, "V1").status is Status.PASS
    assert verdict.changed_thresholds == {
        "counter_tolerance": [0.5, 0.05], "enough_bytes": [MIB, 64 * MIB]
    }  # fmt: skip


def test_what_failed_operations_moved_until_then_is_named_by_v12_alone() -> None:
    more = {"ledger.write.process_bytes": 25 * GIB, "foreign.write_bytes": 40 * GIB}
    well = judge(changed(healthy(), more), DEFAULTS)
    assert {found.rule for found in well.reasons} == {"V6", "V23"}
    failed = {f"completeness.{name}failed_operations": 9 for name in ("", "storage_")}
    found = judge(changed(healthy(), {**more, **failed}), DEFAULTS)
    assert {each.rule for each in found.reasons} == {"V12"}


def test_read_amplification_is_judged_where_a_limit_is_set() -> None:
    verdict = judge(healthy(), Thresholds(most_read_amplification=2.0))
    assert finding(verdict, "V11").status is Status.SUSPECT


# --- evidence that anybody may have written --------------------------------------------------

_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values, mappings and lists themselves included."""
    if isinstance(value, dict):
        below = [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    elif isinstance(value, list):
        below = [leaf for n, item in enumerate(value) for leaf in leaves(item, (*path, n))]
    else:
        return [path]
    return [path, *below] if path else below


def put(value: Any, path: tuple[Any, ...], what: Any) -> None:
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = what


@given(st.data())
def test_no_evidence_makes_a_rule_fail(data: st.DataObject) -> None:
    evidence = changed(healthy(), deepcopy(data.draw(st.sampled_from([{}, dict(STEADY)]))))
    for _ in range(data.draw(st.integers(1, 4))):
        put(evidence, data.draw(st.sampled_from(leaves(evidence))), data.draw(_VALUES))
    verdict = judge(evidence, DEFAULTS)
    assert verdict.verdict in (VALID, "suspect", "invalid")
    assert [found.rule for found in verdict.findings] == list(RULES)


@given(st.sampled_from(leaves(healthy())), st.sampled_from([None, -1, "x", [], {}]))
def test_unknown_evidence_never_makes_a_bad_run_valid(path: tuple[Any, ...], value: Any) -> None:
    evidence = changed(healthy(), {"verification.errors": 1})
    if path[0] != "verification":
        put(evidence, path, value)
        assert judge(evidence, DEFAULTS).verdict == "invalid"
