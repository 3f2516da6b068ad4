"""The passport of a run: all evidence in one place, and the verdict on it.

What the machine said (`bench/witness`), what the recorder counted and what the configuration asked
for come together here as plain values; `verify` derives them again from the file alone. The keys
are defined in `docs/reference/passport.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.core.kinds import OpKind, Phase, Qos
from kv_cache.core.units import GIB, KIB, NS_PER_S, ns_to_ms
from kv_cache.metrics.ceiling import CeilingPoint, limit_object_bytes
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.passport import judge
from kv_cache.metrics.rules.readings import CACHED_ENGINES
from kv_cache.metrics.slo import parse_slos
from kv_cache.metrics.steady import LEAST_WINDOWS, ROUNDS, WindowSample, trends
from kv_cache.metrics.summary import NETWORK, call_ms, per_second, ratio
from kv_cache.result.counted import EvidenceFacts, Json, LedgerFacts
from kv_cache.result.paths import value_at
from kv_cache.result.run import (
    CountedRun,
    MisshapenError,
    converted,
    number,
    times,
    total_bytes,
    total_operations,
)
from kv_cache.result.sections import KINDS, bytes_per_second, measured_windows, targets_ms
from kv_cache.tiers.payload import MISMATCH

_JOURNALLED = 64 * KIB  # of a journal for each write that is synced, at most: 46 on ext4
_PLAIN = 3  # of a path: a file system, a partition, a disk, and nothing that makes more requests
_OPENING_S = 2.0  # a window that is no longer is the beginning of those measured
_RATES = ("bytes_per_second", "operations_per_second")
_OF_POINTS = ("object_bytes", *_RATES, "cores_used")


def passport(run: CountedRun) -> dict[str, Any]:
    """Return the section `passport`: verdict, reasons, rules, evidence."""
    evidence = gather(run)
    verdict = judge(evidence, run.config.passport.thresholds())
    return {**verdict.to_json(), "evidence": evidence}


def gather(run: CountedRun) -> dict[str, Any]:
    """Return the evidence; what is not known is None."""
    facts = _facts(run)
    return {
        "driver": run.facts.driver,
        "steady": _steady(run),
        "completeness": _completeness(run),
        "verification": _verification(run),
        "ledger": _ledger(run, facts.ledger),
        "engines": _engines(run),
        "stack": facts.stack,
        "page_cache": facts.page_cache,
        "link": {**facts.link, **_link(run)},
        "amplification": _amplification(run),
        "payload": facts.payload,
        "interposed": facts.interposed,
        "throttles": facts.throttles,
        "foreign": _foreign(run),
        "client": {**facts.client, **_client(run)},
        "clock": None if facts.clock is None else {**facts.clock, **_counted_time(run)},
        "gaps": _gaps(run),
        "sample": _sample(run),
    }


def _facts(run: CountedRun) -> EvidenceFacts:
    return run.facts.passport.evidence


def _sample(run: CountedRun) -> dict[str, Any]:
    return {
        "mode": run.config.run.mode,
        "ranks": run.facts.rank.ranks,
        **{
            f"{kind.value}_operations": total_operations(run.ledger.window("storage", kind))
            for kind in KINDS
        },
    }


def _series(rounds: Sequence[Any]) -> dict[str, Any]:
    """Return what rule V14 looks at in all rounds; nothing where one has no such number."""
    names = ("bytes_per_second", "seconds", "read_bytes", "write_bytes")
    columns = {name: [value_at(row, name) for row in rounds] for name in names}
    known = [value for column in columns.values() for value in column]
    if not known or not all(isinstance(value, int | float) for value in known):
        return {"values": [], "shortest_s": None, "moved_bytes": None}
    return {
        "values": columns["bytes_per_second"],
        "shortest_s": min(columns["seconds"][-ROUNDS:]),
        "moved_bytes": sum(columns["read_bytes"]) + sum(columns["write_bytes"]),
    }


def _steady(run: CountedRun) -> dict[str, Any]:
    """Return what was done before the measured window, and whether the window was level."""
    done = run.facts.preconditioning or {}
    fill, rounds = done.get("fill") or {}, done.get("rounds") or []
    storage = run.facts.tiers.get("storage")
    if not isinstance(fill, Mapping) or not isinstance(rounds, list):
        raise MisshapenError("kv_cache.preconditioning: expected a fill and a list of rounds")
    return {
        "preconditioned": bool(done),
        "filled_bytes": fill.get("bytes"),
        "capacity_bytes": None if storage is None else storage.capacity_bytes,
        "filesystem_bytes": fill.get("filesystem_bytes"),
        "discard": fill.get("discard"),
        "discarded_bytes": run.kernel("run").get("device_discard_bytes") if done else None,
        "rounds": len(rounds),
        **({"series": _series(rounds)} if rounds else {}),
        "proof": done.get("proof"),
        "stationarity": trends(
            [
                WindowSample(
                    start_s=window.start_s,
                    end_s=window.end_s,
                    nbytes=sum(
                        side.bytes
                        for kind, side in window.tiers.get("storage", {}).items()
                        if kind in ("read", "write")
                    ),
                    backlog=window.queued + window.in_flight,
                    submitted=window.submitted,
                )
                for window in measured_windows(run)
            ]
        ),
    }


def _completeness(run: CountedRun) -> dict[str, Any]:
    requests, failures = run.facts.requests, run.facts.failed_operations
    facts = _facts(run).completeness
    return {
        "status": run.facts.status,
        "interrupted": facts.interrupted,
        "window_s": run.window_s,
        "completed": requests.completed_in_window,
        "failed_requests": requests.failed + requests.unfinished_failed_in_drain,
        "rejected": requests.rejected,
        "unfinished": requests.unfinished,
        "submitted": requests.submitted,
        **_asked(run),
        "oldest_operation_ms": _oldest_ms(run),
        "failed_operations": sum(row.count for row in failures),
        "storage_failed_operations": sum(row.count for row in failures if row.tier == "storage"),
        "records_error": facts.records_error,
    }


def _asked(run: CountedRun) -> dict[str, Any]:
    """Return how many requests were asked in the window and at what rate they were to be, and of a
    schedule by how much the number that wait for their answers grew."""
    windows = measured_windows(run)
    arrived = sum(window.submitted for window in windows)
    grown = _grown_backlog(run, windows) if windows and _scheduled(run) else None
    return {
        "asked": arrived,
        "asked_per_s": per_second(arrived, run.window_s),
        "requested_per_s": run.workload.request_rate_per_s
        if run.workload.loop == "closed"
        else None,
        "backlog_growth": grown,
    }


def _grown_backlog(run: CountedRun, windows: Sequence[Any]) -> int:
    """Return by how much more requests wait at the end of the measured windows than at the end of
    the first, or, where that is most of them, than at their beginning."""
    first = windows[0]
    if first.end_s - first.start_s > max(_OPENING_S, run.window_s / LEAST_WINDOWS):
        earlier = [each for each in run.windows if each.end_s <= first.start_s]
        opening = earlier[-1].queued + earlier[-1].in_flight if earlier else 0
    else:
        opening = first.queued + first.in_flight
    return max(0, int(windows[-1].queued + windows[-1].in_flight - opening))


def _scheduled(run: CountedRun) -> bool:
    return run.config.has_schedule(sessions=run.workload.source == "sessions")


def _oldest_ms(run: CountedRun) -> float | None:
    """Return the age of the oldest storage operation that was in flight as the window closed."""
    rows = (row for kind in KINDS for row in run.ledger.window("storage", kind))
    going = (row.histogram_total.in_flight for row in rows)
    ages = [ages.highest for ages in going if ages is not None and ages.highest is not None]
    return ns_to_ms(max(ages)) if ages else None


def _verification(run: CountedRun) -> dict[str, Any]:
    """Return what was verified. For storage only whole loads count: those that the end of the run
    cut off were delivered to no request."""
    verified = run.facts.verification
    return {
        "mode": run.config.io.verify if run.measured else "none",
        "objects": verified.objects,
        "bytes": verified.bytes,
        "errors": sum(row.count for row in run.facts.failed_operations if row.reason == MISMATCH),
        "storage_bytes": _facts(run).verification.storage_bytes,
        "storage_read_bytes": _loaded_bytes(run),
    }


def _loaded_bytes(run: CountedRun) -> int:
    """Return the bytes of whole loads from storage. A load that the end of the run cut off has
    moved bytes, and is in no count of objects."""
    loads = run.ledger.where(lambda row: row.tier == "storage" and row.operation is OpKind.READ)
    return times(loads, "bytes").total


def _ledger(run: CountedRun, facts: LedgerFacts) -> dict[str, Any]:
    kernel = run.kernel("run")
    calls = {OpKind.READ: "rchar", OpKind.WRITE: "wchar"}
    in_window = _facts(run).foreign or {}
    ours = "within" if "within_read_bytes" in in_window else "own"  # of a result of before
    sides: dict[str, Any] = {
        kind.value: {
            "claimed_bytes": run.ledger.all_bytes("storage", kind),
            "process_bytes": kernel.get(f"process_{kind.value}_bytes"),
            "device_bytes": kernel.get(f"device_{kind.value}_bytes"),
            "foot_bytes": kernel.get(f"foot_{kind.value}_bytes"),
            "calls_bytes": kernel.get(calls[kind]),
            "window_claimed_bytes": _count(in_window.get(f"{ours}_{kind.value}_bytes")),
            "window_process_bytes": run.kernel("window").get(f"process_{kind.value}_bytes"),
        }
        for kind in calls
    }
    if isinstance(facts.server_here, bool):  # an object store: what the interfaces carried
        for kind, counter in NETWORK.items():
            sides[kind.value]["network_bytes"] = kernel.get(counter)
        sides["server_here"] = facts.server_here
        window = run.kernel("window")
        sides["write"]["window_calls_bytes"] = window.get("wchar")
        sides["write"]["window_queued_bytes"] = window.get("queued_bytes")
    return {
        **sides,
        "other_process_write_bytes": facts.other_process_write_bytes,
        "settle_s": facts.settle_s,
        "device": kernel.get("device"),
        "accounted": facts.accounted,
        "filesystem": _filesystems(run),
    }


def _engines(run: CountedRun) -> dict[str, Any]:
    """Return what really moved the bytes of storage, by direction."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row in run.facts.operations:
        if row.tier == "storage" and row.operation is not OpKind.DELETE:
            sums = rows.setdefault((row.operation.value, row.engine), [0, 0])
            sums[0] += row.histogram_total.count
            sums[1] += row.bytes
    storage = run.facts.tiers.get("storage")
    return {
        "requested": run.config.io.engine,
        "write_requested": run.config.io.write_engine,
        "fsync": run.config.fsync(),
        "note": None if storage is None else storage.store.get("engine_note"),
        "rows": [
            {"operation": kind, "engine": engine, "operations": n, "bytes": nbytes}
            for (kind, engine), (n, nbytes) in sorted(rows.items())
            if nbytes
        ],
    }


def _link(run: CountedRun) -> dict[str, Any]:
    return {
        f"{kind.value}_bytes_per_second": bytes_per_second([run], "storage", kind) for kind in KINDS
    }


def _amplification(run: CountedRun) -> dict[str, Any]:
    """Return amplification over the whole run; `stored_bytes` are those of new blocks, wherever
    they were put first."""
    read, written = (run.ledger.all_bytes("storage", kind) for kind in KINDS)
    facts = _facts(run).amplification
    everything = total_bytes(run.ledger.where(lambda row: row.operation is not OpKind.DELETE))
    loaded = _loaded_bytes(run)
    return {
        "storage_read_bytes": read,
        "loaded_bytes": loaded,
        "unique_read_bytes": facts.unique_read_bytes,
        "read_amplification": ratio(loaded, facts.unique_read_bytes),
        "storage_written_bytes": written,
        "stored_bytes": facts.stored_bytes,
        "write_amplification": ratio(written, facts.stored_bytes),
        "all_bytes": everything,
        "storage_share": ratio(read + written, everything),
    }


def _foreign(run: CountedRun) -> dict[str, Any] | None:
    """Return what others moved; and how many ranks are among them and us, where there are
    several."""
    foreign, ranks = _facts(run).foreign, run.facts.rank.on_machine or 1
    if foreign is None:
        return None
    if "own_read_bytes" in foreign:
        foreign = {**foreign, **_less_ours(run, foreign)}
    if ranks == 1 or _knows_all(foreign.get("siblings"), ranks):
        return foreign
    return {**foreign, "ranks_here": ranks}


def _less_ours(run: CountedRun, foreign: Mapping[str, Any]) -> dict[str, Any]:
    """Return what devices counted in the window less what was ours.

    The disks at the feet of the stack count their other partitions and volumes too, and beside them
    other namespaces of their drives. Where their
    bytes are not those of the directories (mirrors, parity, copies on write), or they do not count,
    the devices of the file systems stand in for them."""
    window, stack = run.kernel("window"), _facts(run).stack or {}
    feet = None if stack.get("not_compared") else window.get("foot_read_bytes")
    beside = [str(name) for name in foreign.get("namespaces") or []]
    names = [*(str(foot.get("name")) for foot in _feet(stack)), *beside]
    counted = window.get("device") if feet is None else "+".join(dict.fromkeys(names))
    prefix = "device" if feet is None else "foot"
    synced = _synced_writes(run, foreign)
    journal = min(_count(foreign.get("journal_bytes")) or 0, _JOURNALLED * synced)
    theirs = {
        f"{kind.value}_bytes": _beyond(
            number(window, f"{prefix}_{kind.value}_bytes"),
            _ours(run, foreign, kind),
            journal if kind is OpKind.WRITE else 0,
        )
        for kind in KINDS
    }
    plain = feet is None or all(len(foot.get("path", ())) <= _PLAIN for foot in _feet(stack))
    return {
        **theirs,
        "counted": counted,
        **{
            f"{k.value}_requests": window.get(f"{prefix}_{k.value}s") if plain else None
            for k in KINDS
        },
        **{f"most_own_{k.value}_requests": _most_requests(run, foreign, k) for k in KINDS},
        "synced_writes": synced,
        "journal_bytes": journal,
    }


def _synced_writes(run: CountedRun, foreign: Mapping[str, Any]) -> float:
    """Return after how many writes at most a file system may have written its journal."""
    if run.config.fsync() == "never":
        return 0
    writes = total_operations(run.ledger.window("storage", OpKind.WRITE))
    return writes * (_with_siblings(foreign, OpKind.WRITE) or 1)


def _with_siblings(foreign: Mapping[str, Any], kind: OpKind) -> float | None:
    """Return how much more all ranks here moved than this one, whose calls are as large as theirs;
    None where that is not known."""
    siblings, ours = foreign.get("siblings"), _count(foreign.get(f"own_{kind.value}_bytes"))
    if not siblings:
        return 1
    theirs = _count(siblings.get(f"{kind.value}_bytes")) if isinstance(siblings, Mapping) else None
    if theirs == 0:
        return 1
    return None if theirs is None or not ours else 1 + theirs / ours


def _most_requests(run: CountedRun, foreign: Mapping[str, Any], kind: OpKind) -> float | None:
    """Return as how many requests our calls can have come to a device, at most: each has two more
    than its bytes need, as it begins and ends in some extent. None through the page cache."""
    rows = run.ledger.window("storage", kind)
    names = (f"own_{kind.value}_bytes", "largest_request_bytes")
    nbytes, largest = (_count(foreign.get(name)) for name in names)
    cached = any(row.engine in CACHED_ENGINES for row in rows)
    times = _with_siblings(foreign, kind)
    if nbytes is None or not largest or cached or times is None:
        return None
    return times * (nbytes / largest + 2 * sum(row.system_calls for row in rows))


def _feet(stack: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [foot for foot in stack.get("feet") or [] if isinstance(foot, Mapping)]


def _count(value: Any) -> int | None:
    """Return a count of bytes out of a file that anybody may have written."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _beyond(counted: float | None, ours: float | None, beside: float) -> float | None:
    return None if counted is None or ours is None else max(0, counted - ours - beside)


def _ours(run: CountedRun, foreign: Mapping[str, Any], kind: OpKind) -> float | None:
    """Return the bytes of our calls that ended in the window, those of other ranks on this machine,
    and of files beside the result. What went through the page cache is the process's by the
    kernel's count, read-ahead included."""
    ours: float | None = _count(foreign.get(f"own_{kind.value}_bytes"))
    if any(row.engine in CACHED_ENGINES for row in run.ledger.window("storage", kind)):
        process = number(run.kernel("window"), f"process_{kind.value}_bytes")
        ours = None if ours is None or process is None else max(ours, process)
    siblings = foreign.get("siblings")
    if isinstance(siblings, Mapping):
        ours = None if ours is None else ours + (_count(siblings.get(f"{kind.value}_bytes")) or 0)
    beside = _facts(run).ledger.other_process_write_bytes if kind is OpKind.WRITE else 0
    return None if ours is None else ours + beside


def _knows_all(siblings: Any, ranks: int) -> bool:
    """Whether what the other ranks here moved is known, so that it is not among the foreign."""
    if not isinstance(siblings, Mapping) or siblings.get("read_bytes") is None:
        return False
    pids = siblings.get("pids")
    return isinstance(pids, list) and len(pids) == ranks - 1


def _counted_time(run: CountedRun) -> dict[str, Any]:
    """Return time that the kernel counted in the window: of all cores, busy or not, and of the
    devices with something to do."""
    window = run.kernel("window")
    names, busy_ms = window.get("device"), number(window, "device_io_ms")
    return {
        "core_s": window.get("host_total_s"),
        "busy_s": None if busy_ms is None else busy_ms / 1000,
        "devices": len(str(names).split("+")) if names else None,
    }


def _client(run: CountedRun) -> dict[str, Any]:
    sides = [run.ledger.window("storage", kind) for kind in KINDS]
    moved, operations = (sum(map(total, sides)) for total in (total_bytes, total_operations))
    cpu_ns = number(run.kernel("window"), "process_cpu_ns")
    cpu_s = None if cpu_ns is None else cpu_ns / NS_PER_S
    together = run.facts.measured.together
    loads, stored = (times(run.ledger.window("storage", kind), "device") for kind in KINDS)
    targets = _limits_ms(run) or [ms for qos in Qos for ms in targets_ms(run, qos).values()]
    return {
        "cpu_s": cpu_s,
        "storage_gib": moved / GIB,
        "cpu_s_per_gib": cpu_s / (moved / GIB) if cpu_s is not None and moved else None,
        "cpu_us_per_operation": cpu_s * 1e6 / operations if cpu_s and operations else None,
        "cores_used": None if cpu_s is None else per_second(cpu_s, run.window_s),
        "ceiling": _ceiling(run),
        **_others_cores(run, cpu_s),
        **{
            f"schedule_lag_p{p}_ms": _ms(together.histogram_lateness, p)
            if _scheduled(run)
            else None
            for p in (50, 99)
        },
        **{f"response_p{p}_ms": _ms(together.histogram_response, p) for p in (50, 99)},
        "shortest_target_ms": min(targets, default=None),
        "storage_read_p50_ms": _ms(loads, 50),
        "storage_read_p99_ms": _ms(loads, 99),
        "storage_write_p50_ms": _ms(stored, 50),
        "storage_write_p99_ms": _ms(stored, 99),
    }


def _ceiling(run: CountedRun) -> Json | None:
    """Return what --certify measured beside what the run did; of an older document as it is."""
    ceiling = _facts(run).client.get("ceiling")
    if not isinstance(ceiling, Mapping) or not ceiling.get("points"):
        return ceiling
    place = "kv_cache.passport.evidence.client.ceiling.points"
    points = converted(ceiling["points"], list[CeilingPoint], place)
    rows = [run.ledger.window("storage", kind) for kind in KINDS]
    reached = per_second(sum(map(total_bytes, rows)), run.window_s)
    return {
        **{name: getattr(points[0], name) for name in _RATES},
        "measured_bytes_per_second": reached,
        "measured_operations_per_second": per_second(
            sum(map(total_operations, rows)), run.window_s
        ),
        "ratio": points[0].bytes_per_second / reached if reached else None,
        "limit_object_bytes": limit_object_bytes(points, reached) if reached else None,
        "points": [
            {name: getattr(point, name) for name in (*_OF_POINTS, *point.__struct_fields__)}
            for point in points
        ],
    }


def _others_cores(run: CountedRun, cpu_s: float | None) -> dict[str, float | None]:
    """Return cores that others kept busy in the window, and those that were idle: of the machine's
    cores that the process may run on (all, where an older result does not say), less our threads,
    other ranks' and the kernel's."""
    window, seen = run.kernel("window"), _facts(run).client
    of = "host" if number(window, "usable_total_s") is None else "usable"
    busy_s, total_s = number(window, f"{of}_busy_s"), number(window, f"{of}_total_s")
    theirs = [seen.get(f"{name}_cpu_s") for name in ("siblings", "kernel")]
    known = [s for s in (cpu_s, *theirs) if isinstance(s, int | float)]
    counted_s = (_facts(run).clock or {}).get("counted_s") or run.window_s
    if busy_s is None or total_s is None or not counted_s:
        return {"others_cores": None, "idle_cores": None}
    others_s = max(0.0, busy_s - sum(known)) if len(known) > len(theirs) else None
    return {
        "others_cores": None if others_s is None else others_s / counted_s,
        "idle_cores": (total_s - busy_s) / counted_s,
    }


def _gaps(run: CountedRun) -> dict[str, Any] | None:
    """Return when storage stood still in the window, and how long a system call takes by the median
    of the operations."""
    facts = _facts(run).gaps
    if facts is None:
        return None
    calls = {}
    for kind in KINDS:
        steps = [
            row.histogram
            for row in run.facts.metadata
            if (row.phase, row.tier, row.operation) == (Phase.MEASURE, "storage", kind)
        ]
        rows = run.ledger.window("storage", kind)
        moved = sum(row.system_calls for row in rows)
        calls[f"{kind.value}_call_ms"] = call_ms(times(rows, "device"), moved, steps)
    return {**facts, **calls}


def _limits_ms(run: CountedRun) -> list[float]:
    """Return the limits of SLOs whose class has requests."""
    texts = run.facts.series.slos
    slos = parse_slos(",".join(texts)) if texts else ()
    classes = run.facts.measured
    return [ns_to_ms(slo.limit_ns) for slo in slos if classes.of(slo.qos).completed]


def _ms(histogram: Histogram, percent: float) -> float | None:
    """Return a percentile for rules, which check themselves how many values there were."""
    value = histogram.at_rank(percent)
    return None if value is None else ns_to_ms(value)


def _filesystems(run: CountedRun) -> str | None:
    """Return the types of file system that the drives have, e.g. `ext4` or `ext4+tmpfs`."""
    drives = run.machine.drives
    kinds = {drive.filesystem.type for drive in drives if drive.filesystem is not None}
    return "+".join(sorted(kind for kind in kinds if kind)) or None
