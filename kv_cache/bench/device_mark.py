"""Which runs of this machine use a device: each says so by a name that lasts as long as it.

The name is that of an abstract Unix socket (unix(7)): nothing is written, everybody may read it in
/proc/net/unix, and the kernel removes it with the last process that holds it, also after a kill.
Runs that share a device on purpose (ranks, cells of a sweep) may: `others_on` only tells. Whoever
wants a device for one run alone marks it first and looks then, so that of two at once none passes
unseen. Processes in another network namespace are not seen.
"""

import os
import secrets
import socket
from collections.abc import Collection
from pathlib import Path

from kv_cache.bench.path_checks import device_number

_PREFIX = "kv-cache-device/"
_UNIX_SOCKETS = Path("/proc/net/unix")


def device_of(path: Path) -> str:
    """Name the disk that `path` is or will be on, `sda` for any of its partitions; what is no
    block device by its number. Raises PlaceError if a part of the path may not be looked at."""
    number = device_number(path)
    name = f"{os.major(number)}:{os.minor(number)}"
    node = Path(os.path.realpath(f"/sys/dev/block/{name}"))
    if not node.exists():
        return name
    return (node.parent if (node / "partition").exists() else node).name


def mark(device: str) -> socket.socket | None:
    """Say that this process, and whoever inherits the socket, uses a device, until it is closed.
    None where the system has no abstract sockets."""
    if not _UNIX_SOCKETS.exists():
        return None
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    held.bind(f"\0{_PREFIX}{device}/{os.getpid()}/{secrets.token_hex(4)}")
    return held


def others_on(device: str, ours: Collection[socket.socket] = ()) -> list[int]:
    """List the processes that marked a device, without those of the sockets `ours`."""
    try:
        text = _UNIX_SOCKETS.read_text(errors="replace")
    except OSError:
        return []
    known = {held.getsockname().decode().lstrip("\0") for held in ours}
    names = {line.rpartition(" @")[2] for line in text.splitlines() if f"@{_PREFIX}" in line}
    marks = (name.removeprefix(_PREFIX) for name in names - known)
    parts = (each.rsplit("/", 2) for each in marks)
    return sorted({int(pid) for on, pid, _ in parts if on == device})
