"""What the link to a drive can carry: no device is faster, so a read that is comes from memory.

Only for NVMe drives on PCIe, from sysfs. The narrowest link on the way up counts, because a
drive behind a switch or in a slower slot gets no more.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kv_cache.bench.procfs import text_of

_NVME = re.compile(r"nvme\d+n\d+(p\d+)?")
_NAMESPACE = re.compile(r"nvme\d+n\d+")
_CONTROLLER = re.compile(r"nvme\d+")
_SPEED = re.compile(r"([\d.]+) GT/s.*")
_NO_WIDTH = (0, 255)  # no link is up; the kernel doesn't know
_TEN_BIT_BELOW = 8.0


def link_of(device: str | None, sysfs: Path = Path("/sys")) -> tuple[float, str] | None:
    """Return bytes/s in each direction that the link of a disk or partition can carry, and why.

    None for what is not an NVMe drive on PCIe, or whose link is not known. An upper bound:
    packet headers take a few percent more. A drive with several controllers (multipath) has
    the sum of their links.
    """
    if device is None or not _NVME.fullmatch(device):
        return None
    links = [_narrowest(path) for path in controllers_of(sysfs / "class/block" / device)]
    known = [link for link in links if link is not None]
    if not known or len(known) < len(links):
        return None
    return sum(rate for rate, _ in known), " + ".join(source for _, source in known)


def namespaces_beside(disks: Sequence[str], sysfs: Path = Path("/sys")) -> tuple[str, ...]:
    """Return the other namespaces of NVMe drives that these disks are namespaces of: they have the
    same flash and controller, and counters of their own."""
    homes = [
        Path(os.path.realpath(sysfs / "class/block" / disk)).parent
        for disk in disks
        if _NAMESPACE.fullmatch(disk)
    ]
    names = [path.name for home in dict.fromkeys(homes) for path in sorted(home.glob("nvme*n*"))]
    return tuple(name for name in names if _NAMESPACE.fullmatch(name) and name not in disks)


def bytes_per_second(speed: str | None, width: str | None) -> float | None:
    """Parse current_link_speed (`16.0 GT/s PCIe`) and current_link_width (`4`).

    8 of 10 bits are data below 8 GT/s, 128 of 130 from there on (PCI Express Base Specification);
    64 GT/s is coded otherwise, with at most as much. None where a text is not a rate.
    """
    match, lanes = _SPEED.fullmatch((speed or "").strip()), (width or "").strip()
    if match is None or not lanes.isdigit() or int(lanes) in _NO_WIDTH:
        return None
    transfers = float(match.group(1))
    share = 8 / 10 if transfers < _TEN_BIT_BELOW else 128 / 130
    return transfers * 1e9 * int(lanes) * share / 8


def controllers_of(link: Path) -> Iterable[Path]:
    """Return the directories to walk up from. With multipath, a disk hangs below a subsystem that
    exists in the kernel only, beside links to its controllers."""
    device = Path(os.path.realpath(link))
    for directory in device.parents:
        if directory.name.startswith("nvme-subsys"):
            named = sorted(path for path in directory.iterdir() if _CONTROLLER.fullmatch(path.name))
            return [Path(os.path.realpath(path)) for path in named]
    return [device]


def _narrowest(path: Path) -> tuple[float, str] | None:
    """Return the drive's own link, or one above it that carries less; None unless its own is
    known."""
    links = list(_links(path))
    first = links[0] if links else None
    if first is None or first[0] is None:
        return None
    known = [(rate, source) for rate, source in links if rate is not None]
    return min(known, key=lambda link: link[0])


def _links(path: Path) -> Iterator[tuple[float | None, str]]:
    for directory in (path, *path.parents):
        speed, width = (text_of(directory / f"current_link_{name}") for name in ("speed", "width"))
        if speed is not None and width is not None:
            source = f"{directory.name}: {speed.strip()} x{width.strip()}"
            yield bytes_per_second(speed, width), source
