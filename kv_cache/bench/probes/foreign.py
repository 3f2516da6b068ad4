"""Who else used the device while we measured, and who it was.

The counters of the disks are everybody's, on all their partitions; less our own calls, they are
the others' (`result/evidence` subtracts). Which processes did it is a guess from their own
counters: these are of all devices, and what a kernel thread writes back counts for the process that
wrote. A process that began and ended in between is seen in its parent, which inherits the counters.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.bench.procfs import parse_pairs, parse_stat, texts_of

MOST_PROCESSES = 5


class ProcessIo(Struct, frozen=True, kw_only=True):
    """Bytes that a process has read from and written to devices in its life."""

    pid: int
    started: int  # in ticks since the machine's start: with the pid, the process
    parent: int
    name: str
    read_bytes: int
    write_bytes: int


Snapshot = Mapping[int, ProcessIo]

_ours: set[int] = set()


def count_as_ours(pid: int) -> None:
    """Count a process as ours, such as the one that supervises this one."""
    _ours.add(pid)


def our_pids() -> set[int]:
    """Return this process and those that count as ours."""
    return {os.getpid(), *_ours}


def section(
    own: tuple[int, int], within: tuple[int, int], culprits: Collection[ProcessIo]
) -> dict[str, Any]:
    """Return what is known of a window for the section `foreign` of a passport's evidence: the
    bytes (read, written) of our calls that ended in it, and who else was busy. The kernel's
    counters take their time to be read: `own` has what ended meanwhile, `within` has none of it."""
    read, written = own
    named = ("pid", "name", "read_bytes", "write_bytes")
    return {
        "own_read_bytes": read,
        "own_write_bytes": written,
        "within_read_bytes": within[0],
        "within_write_bytes": within[1],
        "processes": [{name: getattr(one, name) for name in named} for one in culprits],
    }


def snapshot(proc: Path = Path("/proc"), *, excluded: Collection[int] | None = None) -> Snapshot:
    """Return all processes that may be looked at but the `excluded` pids (by default ours), by pid.

    Without root these are the user's own. About 40 µs a process.
    """
    ours = our_pids() if excluded is None else set(excluded)
    pids = (int(name) for name in os.listdir(proc) if name.isdigit())
    return snapshot_of([pid for pid in pids if pid not in ours], proc)


def snapshot_of(pids: Collection[int], proc: Path = Path("/proc")) -> Snapshot:
    """Return these processes alone, without those that have ended or may not be looked at."""
    stats = texts_of([f"{proc}/{pid}/stat" for pid in pids])
    counts = texts_of([f"{proc}/{pid}/io" for pid in pids])
    pairs = zip(stats, counts, strict=True)
    processes = [parse_process(stat, io) for stat, io in pairs if stat and io]
    return {process.pid: process for process in processes}


def moved(before: Snapshot, after: Snapshot) -> tuple[int, int] | None:
    """Return the bytes (read, written) that the same processes moved between two snapshots; None if
    one of them is in one alone."""
    if before.keys() != after.keys() or not after:
        return None
    if not all(_same(before[pid], process) for pid, process in after.items()):
        return None
    read = sum(after[pid].read_bytes - before[pid].read_bytes for pid in after)
    written = sum(after[pid].write_bytes - before[pid].write_bytes for pid in after)
    return max(0, read), max(0, written)


def siblings_row(pids: Collection[int], moved: tuple[int, int] | None) -> dict[str, Any]:
    """Build the row of `section` for processes whose bytes count as ours. Unknown bytes are None,
    and are then among the others'."""
    read, written = moved or (None, None)
    return {"pids": list(pids), "read_bytes": read, "write_bytes": written}


def culprits(before: Snapshot, after: Snapshot) -> list[ProcessIo]:
    """List the processes that moved most bytes between two snapshots, at most `MOST_PROCESSES`.

    The fields of those returned are differences. Those who moved nothing are left out.
    """
    ended = [process for process in before.values() if not _same(after.get(process.pid), process)]
    moved = [_moved(process, before.get(process.pid), ended) for process in after.values()]
    busy = [one for one in moved if one.read_bytes + one.write_bytes > 0 and not _serves(one)]
    busy.sort(key=lambda process: (-process.read_bytes - process.write_bytes, process.pid))
    return busy[:MOST_PROCESSES]


def _serves(process: ProcessIo) -> bool:
    """Whether it is a thread of the kernel that works for whoever asks, us included, as those of
    a loop device do."""
    return process.name.startswith("kworker/")


def _moved(
    process: ProcessIo, earlier: ProcessIo | None, ended: Collection[ProcessIo]
) -> ProcessIo:
    """Return a process less what it had moved before, and less what its children had that ended
    since: their whole life's bytes were added to their parent's then."""
    counted = [child for child in ended if child.parent == process.pid]
    if earlier is not None and _same(earlier, process):
        counted.append(earlier)
    return replace(
        process,
        read_bytes=max(0, process.read_bytes - sum(other.read_bytes for other in counted)),
        write_bytes=max(0, process.write_bytes - sum(other.write_bytes for other in counted)),
    )


def _same(one: ProcessIo | None, other: ProcessIo) -> bool:
    """Whether both are the same process: a pid is used again."""
    return one is not None and (one.pid, one.started) == (other.pid, other.started)


def parse_process(stat: str, io: str) -> ProcessIo:
    """Parse the text of /proc/PID/stat and /proc/PID/io, as proc(5) describes them."""
    who, values = parse_stat(stat), parse_pairs(io)
    return ProcessIo(
        pid=who.pid,
        started=who.started,
        parent=who.parent,
        name=who.name,
        read_bytes=int(values["read_bytes"]),
        write_bytes=int(values["write_bytes"]),
    )
