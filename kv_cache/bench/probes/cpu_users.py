"""Who else used the CPU while we measured.

The counters of /proc/stat are everybody's; less our own threads, those of other ranks and the
kernel's (which work for whoever asks, us included), they are the others' (`result/evidence`
subtracts). What a process that ended in between had used is in its parent's counters.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from kv_cache.bench.procfs import text_of

MOST_PROCESSES = 3
_KTHREADD = 2  # the parent of all threads of the kernel


class CpuUse(NamedTuple):
    """CPU seconds of a process's life, with its children's that ended."""

    started: int  # in ticks since the machine's start: with the pid, the process
    parent: int
    name: str
    seconds: float


class BusyProcess(Struct, frozen=True, kw_only=True):
    pid: int
    name: str
    cpu_s: float


class CpuUsers(Struct, frozen=True, kw_only=True):
    """Seconds of processes of other ranks, of the kernel's threads, and of the busiest others."""

    siblings_cpu_s: float
    kernel_cpu_s: float
    busiest: tuple[BusyProcess, ...]


Snapshot = Mapping[int, CpuUse]


def snapshot(proc: Path = Path("/proc")) -> Snapshot:
    """Return all processes by pid, about 15 µs each. Everybody may read them, unless /proc is
    mounted with hidepid."""
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    stats = {pid: text_of(proc / str(pid) / "stat") for pid in pids}
    return {pid: parse_stat(text) for pid, text in stats.items() if text}


def parse_stat(text: str) -> CpuUse:
    """Parse the text of /proc/PID/stat, as proc(5) describes it."""
    head, _, tail = text.rpartition(")")  # a name may hold blanks and brackets
    columns = tail.split()
    ticks = sum(map(int, columns[11:15]))
    return CpuUse(
        started=int(columns[19]),
        parent=int(columns[1]),
        name=head.partition(" (")[2],
        seconds=ticks / os.sysconf("SC_CLK_TCK"),
    )


def between(
    before: Snapshot, after: Snapshot, ours: Collection[int], siblings: Collection[int]
) -> CpuUsers:
    """Return who used the CPU between two snapshots."""
    used = {
        pid: max(0.0, process.seconds - _sooner(before.get(pid), process))
        for pid, process in after.items()
    }
    kernel = {pid for pid, process in after.items() if process.parent == _KTHREADD}
    others = [pid for pid in used if pid not in {*ours, *siblings, *kernel} and used[pid] > 0]
    others.sort(key=lambda pid: (-used[pid], pid))
    return CpuUsers(
        siblings_cpu_s=sum(used.get(pid, 0.0) for pid in siblings),
        kernel_cpu_s=sum(used[pid] for pid in kernel),
        busiest=tuple(
            BusyProcess(pid=pid, name=after[pid].name, cpu_s=used[pid])
            for pid in others[:MOST_PROCESSES]
        ),
    )


def _sooner(earlier: CpuUse | None, process: CpuUse) -> float:
    """Return what the same process had used before; a pid is used again."""
    same = earlier is not None and earlier.started == process.started
    return earlier.seconds if same and earlier is not None else 0.0
