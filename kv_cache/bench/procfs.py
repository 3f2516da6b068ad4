"""Read and parse small files of /proc and /sys, as everything in `bench` that asks the kernel does.

Reading fails to None and parsing is pure; what a value means is decided by the caller.
"""

import os
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kv_cache.core.mounts import Mount, parse_mounts
from kv_cache.tiers.native import library, read_files

_PIECE_BYTES = 1 << 16


def text_of(path: Path) -> str | None:
    """Return the content of a small file of /proc or /sys; None if it is absent or hidden.

    Names in it can be any bytes: they are decoded as Python decodes paths, so that a mount point
    whose name is not UTF-8 breaks no run and compares equal to its path.
    """
    try:
        fd = os.open(path, os.O_RDONLY)  # half the calls of a file object's
        try:
            return os.fsdecode(b"".join(iter(partial(os.read, fd, _PIECE_BYTES), b"")))
        finally:
            os.close(fd)
    except OSError:
        return None


def texts_of(paths: Sequence[str]) -> list[str | None]:
    """Return the same of many files that describe processes. Where there is native code it is done
    in one call: in Python each file waits for the interpreter's lock several times, which came to
    0.2 to 0.8 s with some 180 processes beside 16 busy users."""
    loaded = library()
    if isinstance(loaded, str):
        return [text_of(Path(path)) for path in paths]
    texts = read_files(loaded, paths)
    return [None if text is None else text.decode(errors="surrogateescape") for text in texts]


def parse_pairs(text: str) -> dict[str, str]:
    """Parse lines of `name: value`."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


class ProcessStat(NamedTuple):
    """Of /proc/PID/stat. `started` is in ticks since the machine's start: with the pid, the
    process. `ticks` are CPU time, that of its children that ended included. `cpu` is where it ran
    last."""

    pid: int
    name: str
    state: str
    parent: int
    ticks: int
    started: int
    cpu: int


def parse_stat(text: str) -> ProcessStat:
    """Parse the text of /proc/PID/stat, as proc(5) describes it."""
    head, _, tail = text.rpartition(")")  # a name may hold blanks and brackets
    pid, _, name = head.partition(" (")
    state, parent, *columns = tail.split()
    ticks = sum(map(int, columns[9:13]))
    started, cpu = int(columns[17]), int(columns[34])
    return ProcessStat(int(pid), name, state, int(parent), ticks, started, cpu)


class CpuTimes(NamedTuple):
    busy_s: float
    total_s: float


_OWN_COLUMNS = 8  # of a line of /proc/stat; what guests had is in `user` and `nice` too
_IDLE = (3, 4)  # the columns `idle` and `iowait`; both do nothing


def cpu_times(text: str, cpus: Collection[int]) -> CpuTimes | None:
    """Add up what /proc/stat says of these CPUs; None if it has no line for one of them."""
    lines = (line.split() for line in text.splitlines())
    ticks = {words[0]: list(map(int, words[1 : 1 + _OWN_COLUMNS])) for words in lines
             if words[0].startswith("cpu")}  # fmt: skip
    rows = [ticks[name] for number in cpus if (name := f"cpu{number}") in ticks]
    if not rows or len(rows) < len(cpus):
        return None
    total, idle = sum(map(sum, rows)), sum(row[column] for row in rows for column in _IDLE)
    hertz = os.sysconf("SC_CLK_TCK")
    return CpuTimes((total - idle) / hertz, total / hertz)


def listed(text: str) -> frozenset[int]:
    """Parse numbers as the kernel lists them: `0-3,8`."""
    ends = (part.partition("-") for part in text.split(","))
    return frozenset(n for low, _, high in ends for n in range(int(low), int(high or low) + 1))


def block_device(number: str, root: Path = Path("/")) -> str | None:
    """Return the name of the block device with a number (`254:0`); None if there is none."""
    link = root / "sys/dev/block" / number
    return os.path.basename(os.path.realpath(link)) if link.exists() else None


def cgroup_directories(controller: str, cgroups: str, mounts: str) -> tuple[int, tuple[str, ...]]:
    """Find a controller's cgroup version and the directories whose limits hold for this process.

    The process's directory comes first, then its parents up to the mount point. Takes the text of
    /proc/self/cgroup and /proc/self/mountinfo. Without the controller: version 2 and no directory.
    """
    cgroup_paths: dict[int, str] = {}
    for line in cgroups.splitlines():
        number, names, path = line.split(":", 2)
        if number == "0":
            cgroup_paths[2] = path
        elif controller in names.split(","):
            cgroup_paths[1] = path
    for version in sorted(cgroup_paths):
        mount = _cgroup_mount(version, controller, mounts)
        if mount is not None:
            return version, _upwards(cgroup_paths[version], mount)
    return 2, ()


def _cgroup_mount(version: int, controller: str, mounts: str) -> Mount | None:
    """Find the mount of the hierarchy that carries a controller; None if it is not mounted."""
    for mount in parse_mounts(mounts):
        if version == 2 and mount.kind == "cgroup2":
            return mount
        if version == 1 and mount.kind == "cgroup" and controller in mount.all_options:
            return mount
    return None


def _upwards(path: str, mount: Mount) -> tuple[str, ...]:
    """List the directories from `path` up to the mount point.

    In a container the mount may show only the part below its root, and `path` begins with it.
    """
    inside = path.removeprefix(mount.root.rstrip("/")) if path.startswith(mount.root) else ""
    parts = [part for part in inside.split("/") if part]
    return tuple("/".join([mount.point, *parts[:depth]]) for depth in range(len(parts), -1, -1))
