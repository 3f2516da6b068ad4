"""The mounts of /proc/self/mountinfo, and which of them holds a path. Source: proc(5)."""

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

RAW_DEVICE = "raw device"
"""In the place of a file system's type, where there is none."""

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"})


class Mount(Struct, frozen=True, kw_only=True):
    """One line of /proc/self/mountinfo."""

    major_minor: str
    root: str
    point: str
    options: str
    kind: str
    source: str
    super_options: str

    @property
    def all_options(self) -> list[str]:
        """The mount's own options, and those of its file system."""
        return f"{self.options},{self.super_options}".split(",")


@lru_cache(4)  # looked at once a second, and hardly ever another
def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the lines of a mountinfo, as proc(5) describes them."""
    return tuple(_mount(line) for line in text.splitlines() if " - " in line)


def _mount(line: str) -> Mount:
    left, _, right = line.partition(" - ")
    _, _, major_minor, root, point, options, *_ = left.split(" ")
    kind, source, super_options = (*right.split(" ", 2), "", "")[:3]
    return Mount(
        major_minor=major_minor,
        root=_unescape(root),
        point=_unescape(point),
        options=options,
        kind=kind,
        source=_unescape(source),
        super_options=super_options,
    )


def _unescape(text: str) -> str:
    """The kernel writes blanks and backslashes as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits.group(1), 8)), text)


def mount_of(path: str, major_minor: str, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount that a resolved path lies on: the deepest, of two on one point the later.

    Those of the file's own device go first, because a mount can be hidden under another; btrfs
    gives files a device number that no mount has.
    """
    holding = [mount for mount in mounts if _within(path, mount.point)]
    same = [mount for mount in holding if mount.major_minor == major_minor] or holding
    return max(reversed(same), key=lambda mount: len(mount.point), default=None)


def _within(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
