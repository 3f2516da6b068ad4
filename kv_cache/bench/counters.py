"""What the kernel counted: bytes of this process and of the device, beside what we counted.

Two snapshots around a run, subtracted, show whether the bytes that the program claims to have
moved reached the device, and whether others moved bytes too.
"""

import os
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
from msgspec import Struct

from kv_cache.bench.path_checks import device_number
from kv_cache.bench.probes.diskstats import DiskStats, added_up, read_diskstats
from kv_cache.bench.procfs import block_device, cpu_times, listed, parse_pairs, text_of
from kv_cache.core.units import KIB

_LEVELS = frozenset({"device", "usable_cpus", "peak_rss_bytes", "rss_bytes"})
_OF_USABLE_CPUS = frozenset({"usable_busy_s", "usable_total_s"})


class Counters(Struct, frozen=True, kw_only=True):
    """A snapshot, or the difference of two. None = the kernel doesn't say.

    `process_*_bytes` reached (or were read from) the block layer for this process; `rchar` and
    `wchar` are bytes of its read and write calls, the page cache's included. `device_*` count
    everybody's, and `foot_*` those of the disks at the bottom of its stack. `device_io_ms` is the
    time in which the device had something to do. `host_*` add up all cores, `usable_*` those that
    this process may run on (`usable_cpus`, as the kernel lists them: `0-3,8`; a difference has none
    if they changed), `network_*` all interfaces but the loopback. `queued_bytes` were given to
    sockets of this process, and have not come to the other end. The two `rss` values, `device`
    and `usable_cpus` are levels: a difference carries the later snapshot's.
    """

    process_read_bytes: int | None
    process_write_bytes: int | None
    process_cancelled_write_bytes: int | None
    rchar: int | None
    wchar: int | None
    device: str | None
    device_read_bytes: int | None
    device_write_bytes: int | None
    device_reads: int | None
    device_writes: int | None
    device_io_ms: int | None
    device_discard_bytes: int | None
    foot_read_bytes: int | None
    foot_write_bytes: int | None
    foot_reads: int | None
    foot_writes: int | None
    process_cpu_ns: int
    process_user_s: float
    process_system_s: float
    host_busy_s: float
    host_total_s: float
    usable_cpus: str | None
    usable_busy_s: float | None
    usable_total_s: float | None
    network_rx_bytes: int
    network_tx_bytes: int
    queued_bytes: int | None
    peak_rss_bytes: int
    rss_bytes: int | None

    def __sub__(self, earlier: Self) -> Self:
        assert self.device == earlier.device, "counters of two devices cannot be subtracted"
        names = self.__struct_fields__
        return type(self)(**{name: _difference(name, self, earlier) for name in names})


def _difference(name: str, later: Counters, earlier: Counters) -> Any:
    after, before = getattr(later, name), getattr(earlier, name)
    if name in _LEVELS:
        return after
    if name in _OF_USABLE_CPUS and later.usable_cpus != earlier.usable_cpus:
        return None
    return None if after is None or before is None else after - before


def read_counters(
    devices: Sequence[str], disks: Sequence[str] = (), *, sockets: bool = False
) -> Counters:
    """Read the counters now. `devices`, named as by `device_of`, each once, are added up; none
    means that no device is counted. `disks`: those at the feet of the stack, likewise. `sockets`:
    look through all descriptors for those that bytes may wait in."""
    io = {name: int(value) for name, value in _pairs("/proc/self/io").items()}
    process, host = os.times(), psutil.cpu_times()
    network = [n for name, n in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    total_s = sum(host) - host.guest - host.guest_nice  # which are in user and nice already
    disk, foot = (_total(each) for each in (devices, disks))
    status = _pairs("/proc/self/status")
    cpus = status.get("Cpus_allowed_list")
    usable = None if cpus is None else cpu_times(text_of(Path("/proc/stat")) or "", listed(cpus))
    rss, peak = _kib(status.get("VmRSS")), _kib(status.get("VmHWM"))
    return Counters(
        process_read_bytes=io.get("read_bytes"),
        process_write_bytes=io.get("write_bytes"),
        process_cancelled_write_bytes=io.get("cancelled_write_bytes"),
        rchar=io.get("rchar"),
        wchar=io.get("wchar"),
        device="+".join(devices) or None,
        device_read_bytes=None if disk is None else disk.read_bytes,
        device_write_bytes=None if disk is None else disk.write_bytes,
        device_reads=None if disk is None else disk.reads,
        device_writes=None if disk is None else disk.writes,
        device_io_ms=None if disk is None else disk.busy_ms,
        device_discard_bytes=None if disk is None else disk.discard_bytes,
        foot_read_bytes=None if foot is None else foot.read_bytes,
        foot_write_bytes=None if foot is None else foot.write_bytes,
        foot_reads=None if foot is None else foot.reads,
        foot_writes=None if foot is None else foot.writes,
        process_cpu_ns=time.process_time_ns(),
        process_user_s=process.user,
        process_system_s=process.system,
        host_busy_s=total_s - host.idle - host.iowait,
        host_total_s=total_s,
        usable_cpus=cpus,
        usable_busy_s=None if usable is None else usable.busy_s,
        usable_total_s=None if usable is None else usable.total_s,
        network_rx_bytes=sum(nic.bytes_recv for nic in network),
        network_tx_bytes=sum(nic.bytes_sent for nic in network),
        queued_bytes=_queued_bytes() if sockets else None,
        peak_rss_bytes=_peak_rss_bytes() if peak is None else peak,
        rss_bytes=rss,
    )


def device_of(path: Path) -> str | None:
    """Return the name in /proc/diskstats of the disk or partition that holds `path` (or will hold
    it), or is it.

    None if the file system has no block device of its own: tmpfs, overlay, FUSE, network,
    btrfs. Raises PlaceError when the path cannot be looked at.
    """
    number = device_number(path)
    name = block_device(f"{os.major(number)}:{os.minor(number)}")
    return name if name is not None and read_diskstats([name]) else None


def _total(devices: Sequence[str]) -> DiskStats | None:
    """Add up what the devices counted; None if there are none, or one of them has no counters."""
    stats = read_diskstats(devices)
    return None if stats is None else added_up(stats.values())


def _queued_bytes() -> int:
    """Add up SIOCOUTQ (tcp(7)) of our sockets."""
    import fcntl  # here: only Unix has them, and modules are imported anywhere
    import termios

    queued = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since, or no connection
            if stat.S_ISSOCK(os.fstat(fd := int(name)).st_mode):
                answer = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))
                queued += int.from_bytes(answer, sys.byteorder)
    return queued


def _peak_rss_bytes() -> int:
    """Ask getrusage, whose maximum survives exec: it can be that of the program that started us."""
    import resource  # here: only Linux has /proc, and modules are imported anywhere

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def _kib(value: str | None) -> int | None:
    """Convert `1234 kB` to bytes."""
    return None if value is None else int(value.split()[0]) * KIB


def _pairs(path: str) -> dict[str, str]:
    """Parse a file of /proc; empty if the kernel was built without it or hides it."""
    return parse_pairs(text_of(Path(path)) or "")
