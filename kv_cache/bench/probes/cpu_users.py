"""Who else used the CPU while we measured.

The counters of /proc/stat are everybody's; less our own threads, those of other ranks and the
kernel's (which work for whoever asks, us included), they are the others' (`result/evidence`
subtracts). All of it is of the CPUs that we may run on: who works on others takes nothing from us
(`taskset`, the cpusets of containers). Of a process it is known where it ran last. What a process
that ended in between had used is in its parent's counters.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct

from kv_cache.bench.procfs import ProcessStat, parse_stat, texts_of

MOST_PROCESSES = 3
_TICKS_S = 0.1  # by which counters of ticks may be off
_KTHREADD = 2  # the parent of all threads of the kernel


class BusyProcess(Struct, frozen=True, kw_only=True):
    pid: int
    name: str
    cpu_s: float


class CpuUsers(Struct, frozen=True, kw_only=True):
    """Seconds of processes of other ranks, of the kernel's threads, and of the busiest others."""

    siblings_cpu_s: float
    kernel_cpu_s: float
    busiest: tuple[BusyProcess, ...]


Snapshot = Mapping[int, ProcessStat]


def snapshot(proc: Path = Path("/proc")) -> Snapshot:
    """Return all processes by pid, about 15 µs each. Everybody may read them, unless /proc is
    mounted with hidepid."""
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    stats = texts_of([f"{proc}/{pid}/stat" for pid in pids])
    return {pid: parse_stat(text) for pid, text in zip(pids, stats, strict=True) if text}


def between(
    before: Snapshot,
    after: Snapshot,
    ours: Collection[int],
    siblings: Collection[int],
    cpus: Collection[int],
    seconds: float,
) -> CpuUsers:
    """Return who used these CPUs between two snapshots that are so far apart. Who would have had
    more than there is was given the whole life of a child that ended in between."""
    hertz = os.sysconf("SC_CLK_TCK")
    used = {
        pid: max(0, process.ticks - _sooner(before.get(pid), process)) / hertz
        for pid, process in after.items()
        if process.cpu in cpus
    }
    kernel = {pid for pid in used if after[pid].parent == _KTHREADD}
    known, most_s = {*ours, *siblings, *kernel}, len(cpus) * seconds + _TICKS_S
    others = [pid for pid, cpu_s in used.items() if pid not in known and 0 < cpu_s <= most_s]
    others.sort(key=lambda pid: (-used[pid], pid))
    return CpuUsers(
        siblings_cpu_s=sum(used.get(pid, 0.0) for pid in siblings),
        kernel_cpu_s=sum(used[pid] for pid in kernel),
        busiest=tuple(
            BusyProcess(pid=pid, name=after[pid].name, cpu_s=used[pid])
            for pid in others[:MOST_PROCESSES]
        ),
    )


def _sooner(earlier: ProcessStat | None, process: ProcessStat) -> int:
    """Return what the same process had used before; a pid is used again."""
    return 0 if earlier is None or earlier.started != process.started else earlier.ticks
