"""Where the bytes of a directory or raw device end: file systems and devices, down to each foot.

A foot is a disk, memory, or something that this machine cannot look into. Followed are partitions,
device mapper and md (their members), loop devices (their file and its file system), btrfs (its
devices), and NVMe over fabrics whose target is this machine's own nvmet.

It reads sysfs, configfs and mountinfo below a root, so a recorded tree of another machine can be
read as well. Sources: kernel documentation ABI/testing/sysfs-block*, sysfs-block-loop,
sysfs-fs-btrfs, and drivers/nvme/target/configfs.c.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from kv_cache.bench.probes.link import controllers_of
from kv_cache.bench.probes.network import is_here
from kv_cache.bench.procfs import block_device, text_of
from kv_cache.core.mounts import (
    MEMORY_FILESYSTEMS,
    RAW_DEVICE,
    Mount,
    mount_of,
    parse_mounts,
)

_MOST_LEVELS = 24  # of one way down: a path of another mount namespace can lead in circles
_MEMORY_DEVICES = {
    re.compile(r"zram\d+"): "it compresses into RAM",
    re.compile(r"ram\d+"): "it is a RAM disk (brd)",
    re.compile(r"nullb\d+"): "it keeps bytes in RAM or nowhere (null_blk)",
}
_PLAYED_DISKS = {
    re.compile(r"session\d+"): "an iSCSI target is behind it",
    re.compile(r"tcm_loop_adapter_\d+"): "a SCSI target of this machine plays it (tcm_loop)",
    re.compile(r"dummy_hcd\.\d+"): "a USB gadget of this machine plays it (dummy_hcd)",
}
"""By a directory above theirs in sysfs."""
_UNSEEN_DEVICES = {
    re.compile(r"nbd\d+(p\d+)?"): "a server of network block devices is behind it",
    re.compile(r"ublkb\d+"): "a process is behind it",
    re.compile(r"rbd\d+"): "a Ceph cluster is behind it",
    re.compile(r"drbd\d+"): "another host has a copy of it",
    re.compile(r"zd\d+"): "ZFS is behind it, with a cache of its own in RAM",
}
_PLAIN_MD = frozenset({"raid0", "linear", "multipath"})
_PLAIN_DM = ("CRYPT-", "LVM-", "mpath-", "part")
_COUNTERS = ("/proc/diskstats", "/proc/stat")
_NO_BARRIER = re.compile(r"nobarrier|barrier=0|fsync_mode=nobarrier")
_TRADDR = re.compile(r"(?:^|,)traddr=([^,\s]+)")
_NVMET = "sys/kernel/config/nvmet/subsystems"


class FootKind(StrEnum):
    DISK = "disk"  # it has counters here, and what it is lies below what this machine sees
    RAM = "ram"
    UNSEEN = "unseen"  # another process or another host


class Foot(Struct, frozen=True, kw_only=True):
    """One end of the stack. `path` leads from the directory's file system down to `name`; `reason`
    says why it is memory or cannot be seen; `cached_by` names what on the way answers from the
    page cache."""

    name: str
    kind: FootKind
    path: tuple[str, ...]
    reason: str | None = None
    cached_by: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "path": list(self.path),
            "reason": self.reason,
            "cached_by": list(self.cached_by),
        }


class Stack(Struct, frozen=True, kw_only=True):
    """All that lies below some directories.

    `devices` are the block devices on the way, feet included. `not_compared` says where the bytes
    of the feet are not those of the directories by construction. `no_barrier` names the mounts
    that do not wait for a device's write cache, `hidden_caches` devices with such a cache that the
    kernel was told to take for none, `uncounted` devices without statistics, as NVMe over several
    paths has none before Linux 6.4. `counters_by` names what is mounted over the kernel's counters
    of the whole machine, as containers have it: they may be of the container alone.
    """

    feet: tuple[Foot, ...]
    devices: frozenset[str]
    not_compared: tuple[str, ...]
    no_barrier: tuple[str, ...]
    uncounted: tuple[str, ...] = ()
    hidden_caches: tuple[str, ...] = ()
    counters_by: tuple[str, ...] = ()

    @property
    def disks(self) -> tuple[str, ...]:
        """The disks that all bytes end on, each once; none if some end elsewhere, or do not
        count."""
        if any(f.kind is not FootKind.DISK or f.name in self.uncounted for f in self.feet):
            return ()
        return tuple(dict.fromkeys(foot.name for foot in self.feet))

    def joined(self, other: "Stack") -> "Stack":
        """Return everything that either has."""
        return Stack(
            feet=tuple(dict.fromkeys((*self.feet, *other.feet))),
            devices=self.devices | other.devices,
            not_compared=tuple(dict.fromkeys((*self.not_compared, *other.not_compared))),
            no_barrier=tuple(dict.fromkeys((*self.no_barrier, *other.no_barrier))),
            uncounted=tuple(dict.fromkeys((*self.uncounted, *other.uncounted))),
            hidden_caches=tuple(dict.fromkeys((*self.hidden_caches, *other.hidden_caches))),
            counters_by=tuple(dict.fromkeys((*self.counters_by, *other.counters_by))),
        )

    def to_json(self) -> dict[str, list[Any]]:
        return {
            "feet": [foot.to_json() for foot in self.feet],
            "not_compared": list(self.not_compared),
            "no_barrier": list(self.no_barrier),
            "uncounted": list(self.uncounted),
            "hidden_caches": list(self.hidden_caches),
            "counters_by": list(self.counters_by),
        }


def stack_of(
    directories: Sequence[Path],
    root: Path = Path("/"),
    *,
    here: Callable[[str], bool | None] = is_here,
) -> Stack:
    """Return the stack below these directories, or where they will be made, or of raw devices.
    `root` is where /proc and /sys are; `here` says whether a URL's host is this machine."""
    walk = _Walk(root, here)
    feet = [foot for directory in directories for foot in walk.place(directory)]
    return Stack(
        feet=tuple(dict.fromkeys(feet)),
        devices=frozenset(walk.devices),
        not_compared=tuple(dict.fromkeys(walk.not_compared)),
        no_barrier=tuple(dict.fromkeys(walk.no_barrier)),
        uncounted=tuple(dict.fromkeys(walk.uncounted)),
        hidden_caches=tuple(dict.fromkeys(walk.hidden_caches)),
        counters_by=walk.counters_by,
    )


class _Trail(NamedTuple):
    """From a directory down to where the walk is."""

    path: tuple[str, ...]
    cached_by: tuple[str, ...]

    def down(self, name: str) -> "_Trail":
        return self._replace(path=(*self.path, name))

    def through_cache(self, what: str) -> "_Trail":
        return self._replace(cached_by=(*self.cached_by, what))

    def foot(self, kind: FootKind, reason: str | None = None) -> Foot:
        return Foot(
            name=self.path[-1], kind=kind, path=self.path, reason=reason, cached_by=self.cached_by
        )

    def unseen(self, reason: str) -> Foot:
        return self.foot(FootKind.UNSEEN, reason)


class _Walk:
    """One look at a machine: yields feet, and notes what it passes on the way."""

    def __init__(self, root: Path, here: Callable[[str], bool | None]) -> None:
        self._root = root
        self._here = here
        self._mounts = parse_mounts(_path_in(root / "proc/self/mountinfo") or "")
        self.counters_by = tuple(
            f"{mount.kind} on {mount.point}"
            for mount in self._mounts
            if mount.point in _COUNTERS and mount.kind != "proc"
        )
        self.devices: set[str] = set()
        self.not_compared: list[str] = []
        self.no_barrier: list[str] = []
        self.uncounted: list[str] = []
        self.hidden_caches: list[str] = []

    # --- files ---------------------------------------------------------------------------------

    def place(self, path: Path) -> Iterator[Foot]:
        """Yield feet of a directory or, if it is a block device, of that."""
        node, trail = self._node(str(path)), _Trail((), ())
        return self.file(path, trail) if node is None else self.device(node, trail.down(RAW_DEVICE))

    def file(self, path: Path, trail: _Trail) -> Iterator[Foot]:
        """Yield feet of the file system that holds `path`."""
        real, number = self._look_up(path)
        mount = mount_of(real, number, self._mounts)
        if mount is None:
            yield trail.down(_shown(real)).unseen("no mount of this process holds it")
            return
        trail = trail.down(f"{mount.kind} {_shown(mount.point)}")
        if any(_NO_BARRIER.fullmatch(option) for option in mount.all_options):
            self.no_barrier.append(trail.path[-1])
        if mount.kind in MEMORY_FILESYSTEMS:
            yield trail.foot(FootKind.RAM, "it is a file system in RAM")
        elif mount.kind.startswith("fuse"):  # fuseblk has a device, behind a process
            yield trail.unseen("a process answers for this file system (FUSE)")
        elif mount.kind == "btrfs":
            yield from self._btrfs(mount, trail)
        elif (device := block_device(mount.major_minor, self._root)) is not None:
            yield from self.device(device, trail)
        else:
            yield trail.unseen("this file system has no block device of this machine")

    def _look_up(self, path: Path) -> tuple[str, str]:
        """Return the path without symbolic links, or its nearest ancestor that exists, and the
        number of its device. A recorded tree has no such files: there the path is taken as it
        is."""
        if self._root != Path("/") or "\0" in str(path):
            return str(path), ""
        real = os.path.realpath(path)
        while real != "/" and not os.path.exists(real):
            real = os.path.dirname(real)
        try:
            number = os.stat(real).st_dev
        except OSError:
            return real, ""  # it is gone since
        return real, f"{os.major(number)}:{os.minor(number)}"

    def _btrfs(self, mount: Mount, trail: _Trail) -> Iterator[Foot]:
        """Yield all devices of the file system that the mount's source is one of."""
        source = Path(mount.source).name
        for directory in sorted((self._root / "sys/fs/btrfs").glob("*/devices")):
            members = sorted(path.name for path in directory.iterdir())
            if source in members:
                self.not_compared.append(f"{trail.path[-1]} copies on write")
                for member in members:
                    yield from self.device(member, trail)
                return
        yield trail.unseen("its devices are not in /sys/fs/btrfs")

    # --- devices -------------------------------------------------------------------------------

    def device(self, name: str, trail: _Trail) -> Iterator[Foot]:
        """Yield feet of a block device."""
        trail = trail.down(name)
        directory = self._sysfs(name)
        if directory is None:
            yield trail.unseen("/sys does not show it")
        elif len(trail.path) > _MOST_LEVELS:
            yield trail.unseen(f"it lies more than {_MOST_LEVELS} levels down")
        else:
            self.devices.add(name)
            if (text_of(directory / "queue/iostats") or "").strip() == "0":
                self.uncounted.append(name)
            if _hides_its_cache(directory):
                self.hidden_caches.append(name)
            yield from self._below(name, directory, trail)

    def _below(self, name: str, directory: Path, trail: _Trail) -> Iterator[Foot]:
        backing = _path_in(directory / "loop/backing_file")
        members = sorted(path.name for path in directory.glob("slaves/*"))
        if (directory / "partition").exists():
            yield from self.device(directory.parent.name, trail)
        elif backing is not None:
            yield from self._loop(name, directory, backing, trail)
        elif members:
            self.not_compared.extend(self._changes_bytes(name, directory, members))
            for member in members:
                yield from self.device(member, trail)
        elif why := _known(name, _MEMORY_DEVICES) or _memory_by_model(directory):
            yield trail.foot(FootKind.RAM, why)
        elif (why := _known(name, _UNSEEN_DEVICES)) is not None:
            yield trail.unseen(why)
        elif name.startswith("dm-"):
            yield trail.unseen("it lies on no device that /sys names")
        elif played := [w for p in directory.parents if (w := _known(p.name, _PLAYED_DISKS))]:
            yield trail.unseen(played[0])
        else:
            yield from self._disk(directory, trail)

    def _loop(self, name: str, directory: Path, backing: str, trail: _Trail) -> Iterator[Foot]:
        if (text_of(directory / "loop/dio") or "").strip() != "1":
            trail = trail.through_cache(f"{name} (loop without direct I/O: dio 0)")
        yield from self._file_or_device(backing, trail)

    def _file_or_device(self, path: str, trail: _Trail) -> Iterator[Foot]:
        """Resolve the file or device that backs a loop device or a target."""
        node = self._node(path)
        if node is not None:
            yield from self.device(node, trail)
        elif self._root == Path("/") and not os.path.exists(path):
            yield trail.down(_shown(path)).unseen("its file is not to be found from here")
        else:
            yield from self.file(Path(path), trail)

    def _changes_bytes(self, name: str, directory: Path, members: Sequence[str]) -> Iterator[str]:
        """Yield why bytes of the members do not add up to those of the device; nothing if they
        do."""
        level = (text_of(directory / "md/level") or "").strip()
        uuid = text_of(directory / "dm/uuid")
        if level:
            if level not in _PLAIN_MD:
                yield f"{name} is md {level}"
        elif uuid is None:
            yield f"{name} lies on {', '.join(members)} in a way that is not known"
        elif not uuid.startswith(_PLAIN_DM):
            yield f"{name} is a device mapper target that is not known"
        elif uuid.startswith("LVM-") and any(self._is_part_of_volume(m) for m in members):
            yield f"{name} is a logical volume with parts (mirror, RAID, thin, cache or snapshot)"

    def _is_part_of_volume(self, name: str) -> bool:
        """Whether a device is a hidden volume: LVM makes plain volumes of physical ones, and all
        others of these."""
        directory = self._sysfs(name)
        return directory is not None and (text_of(directory / "dm/uuid") or "").startswith("LVM-")

    # --- NVMe ----------------------------------------------------------------------------------

    def _disk(self, directory: Path, trail: _Trail) -> Iterator[Foot]:
        """Yield a disk or, for an NVMe namespace beyond a fabric, what it ends on."""
        controllers = [_controller(path) for path in controllers_of(directory)]
        fabrics = [c for c in controllers if c is not None and text_of(c / "transport") != "pcie\n"]
        if not fabrics:
            yield trail.foot(FootKind.DISK)
            return
        away = [word for c in fabrics if (word := self._elsewhere(c)) is not None]
        nqn, nsid = (text_of(p) for p in (fabrics[0] / "subsysnqn", directory / "nsid"))
        target = self._root / _NVMET / (nqn or "").strip() / "namespaces" / (nsid or "").strip()
        backing = _path_in(target / "device_path")
        if away:
            yield trail.unseen(away[0])
        elif not nqn or not nsid or not backing:
            yield trail.unseen("its target is on this machine, but not in the kernel's nvmet")
        else:
            if (text_of(target / "buffered_io") or "").strip() == "1":
                trail = trail.through_cache(f"{trail.path[-1]} (nvmet with buffered_io 1)")
            yield from self._file_or_device(backing, trail)

    def _elsewhere(self, controller: Path) -> str | None:
        """Return why the target cannot be looked into; None if it is on this machine."""
        transport = (text_of(controller / "transport") or "").strip()
        address = _TRADDR.search(text_of(controller / "address") or "")
        if transport == "loop":
            return None
        if transport in ("tcp", "rdma") and address is not None:
            host = address[1]
            url = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
            return None if self._here(url) else f"NVMe/{transport.upper()} to {host}"
        return f"NVMe over {transport or 'an unknown fabric'}"

    # --- names ---------------------------------------------------------------------------------

    def _sysfs(self, name: str) -> Path | None:
        link = self._root / "sys/class/block" / name
        return Path(os.path.realpath(link)) if link.exists() else None

    def _node(self, path: str) -> str | None:
        """Return the block device whose node this is."""
        if self._root == Path("/"):
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                return None
            if not stat.S_ISBLK(status.st_mode):
                return None
            return block_device(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
        name = path.removeprefix("/dev/")
        return name if path.startswith("/dev/") and self._sysfs(name) is not None else None


def _path_in(path: Path) -> str | None:
    """Read a file that holds paths: bytes, decoded as Python decodes those that it opens."""
    try:
        return os.fsdecode(path.read_bytes()).rstrip("\n")
    except OSError:
        return None


def _shown(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")


def _known(name: str, table: Mapping[re.Pattern[str], str]) -> str | None:
    return next((why for pattern, why in table.items() if pattern.fullmatch(name)), None)


def _memory_by_model(directory: Path) -> str | None:
    """Return why a device whose name says nothing is in RAM."""
    model = (text_of(directory / "device/model") or "").strip()
    if model in ("scsi_debug", "RAMDISK-MCP"):
        return f"it is a RAM disk ({model})"
    flash = (text_of(directory / "device/type") or "").strip()
    return "it is a RAM disk (mtdram)" if flash == "ram" else None


def _hides_its_cache(directory: Path) -> bool:
    """Whether somebody has told the kernel, in queue/write_cache, that a drive with a volatile
    write cache has none: it is never flushed then. That it has one is seen by the driver's own word
    (virtio, SCSI), or by FUA, which a drive without a cache is not asked for."""
    if (text_of(directory / "queue/write_cache") or "").strip() != "write through":
        return False
    words = [directory / "cache_type", *directory.glob("device/scsi_disk/*/cache_type")]
    says = any((text_of(path) or "").startswith("write back") for path in words)
    return says or (text_of(directory / "queue/fua") or "").strip() == "1"


def _controller(path: Path) -> Path | None:
    """Return the NVMe controller at or above a directory of sysfs."""
    return next((p for p in (path, *path.parents) if (p / "transport").exists()), None)
