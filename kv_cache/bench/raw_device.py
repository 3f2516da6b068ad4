"""Possession of a raw block device: nobody else's while a run works on it.

A device is taken only where nothing is on it: no mount, swap space or other device, no partitions,
and no signature of a file system, a partition table or a volume. `why_not` decides by what the
kernel and wipefs(8) say. This module never writes to a device nor discards its blocks; what writes
there (the arena) opens it once a `RawDevice` holds it.
"""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from kv_cache.bench.cache_dir import in_use
from kv_cache.bench.device_mark import claim, devices_of, job_of, release
from kv_cache.bench.linux import require_linux
from kv_cache.bench.path_checks import resolve
from kv_cache.bench.procfs import block_device, text_of
from kv_cache.bench.removal import Removed
from kv_cache.core.errors import PlaceError, os_reason
from kv_cache.core.mounts import parse_mounts
from kv_cache.core.units import PAGE_BYTES

_SBIN = ("/usr/sbin", "/sbin")  # not in the PATH of who is not root


class DeviceState(Struct, frozen=True, kw_only=True):
    """What is on a block device, by the kernel and by its first and last bytes."""

    mounted_at: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    held_by: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    read_only: bool = False
    block_bytes: int = 512


def why_not(path: Path, state: DeviceState) -> str | None:
    """Return why a run may not have a device, and the way out; None if it may."""
    on_it = (
        (state.mounted_at, "it is mounted at {}", "unmount that"),
        (state.swaps, "{} is used as swap space", "end that with swapoff"),
        (state.held_by, "{} uses it", "take that down"),
        (state.partitions, "it has the partitions {}", "name one of them"),
        (state.signatures, "it has the signature of {}", f"erase that with wipefs --all {path}"),
    )
    for names, what, way_out in on_it:
        if names:
            fact = what.format(", ".join(names))
            return f"{fact}, and a run would overwrite it; {way_out}, or name an empty device"
    if state.read_only:
        return "it is read-only; name another device"
    if state.block_bytes > PAGE_BYTES:
        return (
            f"its blocks have {state.block_bytes} bytes, more than the {PAGE_BYTES} of a page; "
            "name another device"
        )
    return None


def check_raw_device(path: Path) -> None:
    """Refuse a block device that the run could not use or must not touch. Raises PlaceError."""
    RawDevice(path).close()


class RawDevice:
    """Possession of a block device, from the constructor to `close`: until then nobody can mount
    it, make a file system on it or take it in this way. Raises PlaceError."""

    def __init__(self, path: Path) -> None:
        require_linux()
        self.path = self.objects = resolve(path, f"cache directory {path}")
        """The node of the device, without symbolic links; it is also where the objects are."""
        self.leftovers = Removed()
        self._refuse(kernel_state(_block_name(path)))
        self._marks = claim(self.path, devices_of(self.path), job_of(os.environ))
        self._fd: int | None = None
        try:
            self._fd = self._claimed()  # from now on nobody can put anything there
            self._refuse(DeviceState(signatures=_signatures(self.path)))
        except BaseException:
            self.close()
            raise

    def close(self, *, keep: bool = False) -> Removed:
        """Let go of the device, whose bytes stay as they are. Calling again is fine."""
        fd, self._fd = self._fd, None
        release(self._marks)
        if fd is not None:
            os.close(fd)
        return Removed()

    def _refuse(self, state: DeviceState) -> None:
        if (why := why_not(self.path, state)) is not None:
            raise PlaceError(f"cache directory {self.path}: {why}")

    def _claimed(self) -> int:
        """Open the device with the kernel's exclusive claim. Read-only: closing a descriptor that
        could write makes udev look at the device again."""
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise PlaceError(
                f"cache directory {self.path}: this user may not read and write it; run as root "
                "or as a member of the device's group"
            )
        try:
            return os.open(self.path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise PlaceError(in_use(self.path, "another run or program")) from None
            raise PlaceError(
                f"cache directory {self.path}: it cannot be opened ({os_reason(error)}); check the "
                "device, or name another one"
            ) from error


def _block_name(path: Path) -> str:
    """Return the kernel's name of a block device."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise PlaceError(
            f"--erase-device {path}: it cannot be looked at ({os_reason(error)}); name a block "
            "device"
        ) from error
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    name = block_device(number) if stat.S_ISBLK(status.st_mode) else None
    if name is None:
        raise PlaceError(
            f"--erase-device {path}: it is not a block device of this machine; leave the option "
            "out, as a run erases nothing in a directory"
        )
    return name


def kernel_state(name: str, root: Path = Path("/")) -> DeviceState:
    """Return what the kernel knows to be on a device, its partitions included. `root` is where
    /proc and /sys are."""
    disk = root / "sys/class/block" / name
    partitions = tuple(sorted(path.parent.name for path in disk.glob("*/partition")))
    names = (name, *partitions)
    blocks = (text_of(disk / f"{at}queue/logical_block_size") for at in ("", "../"))
    return DeviceState(
        mounted_at=tuple(_mounted(names, root)),
        swaps=tuple(_swaps(names, root)),
        held_by=tuple(
            path.name for each in names for path in sorted((disk.parent / each).glob("holders/*"))
        ),
        partitions=partitions,
        read_only=(text_of(disk / "ro") or "").strip() == "1",
        block_bytes=int(next((text for text in blocks if text), "512")),
    )


def _mounted(names: Sequence[str], root: Path) -> Iterator[str]:
    """Yield the points of the mounts of these devices, by their number or, as btrfs has numbers of
    its own, by their source."""
    numbers = {(text_of(root / "sys/class/block" / each / "dev") or "").strip() for each in names}
    for mount in parse_mounts(text_of(root / "proc/self/mountinfo") or ""):
        if mount.major_minor in numbers or _name_of(mount.source) in names:
            yield mount.point


def _swaps(names: Sequence[str], root: Path) -> Iterator[str]:
    for line in (text_of(root / "proc/swaps") or "").splitlines()[1:]:
        node = line.split()[0]
        if _name_of(node) in names:
            yield node


def _name_of(node: str) -> str | None:
    return os.path.basename(os.path.realpath(node)) if node.startswith("/dev/") else None


def _signatures(path: Path) -> tuple[str, ...]:
    """Return the kinds of all signatures on a device, also of those that are damaged or of which
    several are there (where `blkid -p` gives none): wipefs only lists them unless it is told
    otherwise."""
    tool = shutil.which("wipefs", path=os.pathsep.join((os.environ.get("PATH", ""), *_SBIN)))
    if tool is None:
        raise PlaceError(
            f"cache directory {path}: whether a file system is on it is not known without wipefs; "
            "install it (apt-get install util-linux), or name a directory"
        )
    done = subprocess.run(
        [tool, "--noheadings", "--output", "TYPE", str(path)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        raise PlaceError(
            f"cache directory {path}: wipefs cannot say whether a file system is on it "
            f"({done.stderr.strip()}); check the device, or name another one"
        )
    return tuple(dict.fromkeys(done.stdout.split()))
