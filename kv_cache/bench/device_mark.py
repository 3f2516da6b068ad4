"""One job at a time on a device: each run marks the disks that it uses for as long as it lives, and
does not begin beside a mark of another job.

A mark is the name of an abstract Unix socket (unix(7)): nothing is written, everybody may read it
in /proc/net/unix, and the kernel removes it with the last process that holds it, also after a kill.
Whoever wants a device marks it first and looks then, so that of two at once none passes unseen.
Processes in another network namespace are not seen.

Of one job are the ranks of a launcher, which have different numbers and the same size of job, and
all processes with the same text in the variable `KV_CACHE_JOB`.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from kv_cache.bench.owner import start_ticks
from kv_cache.bench.path_checks import device_number
from kv_cache.bench.probes.stack import FootKind, stack_of
from kv_cache.bench.procfs import text_of
from kv_cache.core.errors import PlaceError
from kv_cache.core.launched import rank_of

JOB = "KV_CACHE_JOB"
"""The environment variable that names a job, for processes that share a device on purpose."""

_PREFIX = "kv-cache-device/"
_NAME = re.compile(f" @{_PREFIX}([^/\n]+)/([0-9a-f]+)/([0-9]*)/([0-9]+)/[0-9a-f]+$", re.M)
_UNIX_SOCKETS = Path("/proc/net/unix")
_PATIENCE_S, _LOOK_S = 3.0, 0.05


class DeviceInUseError(PlaceError):
    """Another job is using a device."""


class JobId(Struct, frozen=True):
    """The runs that belong together; `rank` tells those of a launcher from each other."""

    name: str
    rank: int | None = None


def job_of(environ: Mapping[str, str]) -> JobId:
    """Return the job of this process: the one that is named, its launcher's, or it alone. Raises
    ConfigError for ranks that contradict each other."""
    if name := environ.get(JOB):
        return JobId(name)
    rank = rank_of(environ)
    if rank.source is None:
        return JobId(f"process {os.getpid()}")
    return JobId(f"{rank.source} of {rank.ranks}", rank.rank)


class _Mark(Struct, frozen=True):
    device: str
    job: str  # a digest, as the name of a socket has at most 107 bytes
    rank: int | None
    pid: int

    def begins(self) -> str:
        rank = "" if self.rank is None else self.rank
        return f"{_PREFIX}{self.device}/{self.job}/{rank}/{self.pid}/"

    def shares(self, other: "_Mark") -> bool:
        """Whether both may be on one device: two processes of the same rank are of two jobs."""
        of_one_job = self.rank is None or self.rank != other.rank or self.pid == other.pid
        return self.device != other.device or (self.job == other.job and of_one_job)


def devices_of(path: Path) -> tuple[str, ...]:
    """Name the lowest block devices that the bytes of `path` go through, or will: the disks below
    partitions, volumes and loop devices. A file system without one is named by its number; one in
    RAM has no device. Raises PlaceError if a part of the path may not be looked at."""
    number = device_number(path)
    stack = stack_of([path])
    ways = [[name for name in foot.path if name in stack.devices] for foot in stack.feet]
    if names := {way[-1] for way in ways if way}:
        return tuple(sorted(names))
    in_ram = any(foot.kind is FootKind.RAM for foot in stack.feet)
    return () if in_ram else (f"{os.major(number)}:{os.minor(number)}",)


def claim(place: Path, devices: Sequence[str], job: JobId) -> list[socket.socket]:
    """Mark the devices of a place until the sockets, and their copies in other processes, are
    closed. Raises DeviceInUseError if another job uses one of them."""
    if text_of(_UNIX_SOCKETS) is None:  # no abstract sockets here
        return []
    digest = sha256(job.name.encode(errors="surrogateescape")).hexdigest()[:16]
    held: list[socket.socket] = []
    try:
        for device in devices:
            mark = _Mark(device, digest, job.rank, os.getpid())
            held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            held[-1].bind(f"\0{mark.begins()}{secrets.token_hex(4)}")
            if others := _others(mark):
                who = ", ".join(map(str, others))
                raise DeviceInUseError(
                    f"cache directory {place}: another run is using its device {device} (process "
                    f"{who}), and two would measure each other; wait for its end or, if both shall "
                    f"load it together, start both with one name in the variable {JOB}"
                )
    except BaseException:
        release(held)
        raise
    return held


def _others(mark: _Mark) -> list[int]:
    """Return the processes of other jobs on the device of a mark. What a killed one leaves for a
    moment, such as a child that it was just starting, is waited for."""
    until_s = time.monotonic() + _PATIENCE_S
    while others := sorted({other.pid for other in _marks() if not mark.shares(other)}):
        if any(start_ticks(pid) is not None for pid in others) or time.monotonic() > until_s:
            break
        time.sleep(_LOOK_S)
    return others


def release(held: list[socket.socket]) -> None:
    """Take marks away."""
    for each in held:
        each.close()
    held.clear()


def _marks() -> Iterator[_Mark]:
    for device, job, rank, pid in _NAME.findall(text_of(_UNIX_SOCKETS) or ""):
        yield _Mark(device, job, int(rank) if rank else None, int(pid))
