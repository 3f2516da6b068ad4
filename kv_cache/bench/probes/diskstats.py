"""What the block layer counted of a device: operations, bytes, waiting and working time.

Source: kernel documentation, admin-guide/iostats.rst, whose fields are numbered from 1 behind the
device's name.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from kv_cache.bench.procfs import text_of
from kv_cache.core.units import KIB

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the device's own."""


class DiskStats(Struct, frozen=True, kw_only=True):
    """Since the machine's start, or the difference of two, in the order of the kernel's columns.
    `in_flight` is a level: a difference carries the later one.

    An operation is a request that has ended; what was merged into another is none. `read_ms` and
    `write_ms` add up the operations' times, `busy_ms` is the time in which there was any, and
    `waiting_ms` the times of all that ended, flushes and discards too.
    """

    reads: int
    reads_merged: int
    read_bytes: int
    read_ms: int
    writes: int
    writes_merged: int
    write_bytes: int
    write_ms: int
    in_flight: int
    busy_ms: int
    waiting_ms: int
    discard_bytes: int = 0  # of a kernel before 4.18, none

    def __sub__(self, earlier: Self) -> Self:
        values = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS}
        return type(self)(in_flight=self.in_flight, **values)


_DISCARDED, _FLUSHES = 16, 18  # their columns, the device's name being the third
_COUNTERS = tuple(name for name in DiskStats.__struct_fields__ if name != "in_flight")


def read_diskstats(devices: Sequence[str], root: Path = Path("/")) -> dict[str, DiskStats] | None:
    """Read the counters by device; None if one of them is missing, as the others alone would
    mislead."""
    stats = parse(text_of(root / "proc/diskstats") or "", devices) if devices else {}
    return stats if stats and len(stats) == len(set(devices)) else None


def read_flushes(disks: Collection[str], root: Path = Path("/")) -> int | None:
    """Read how often the write caches of whole disks were flushed; None of a kernel before 5.5,
    and if one of them is missing."""
    rows = [line.split() for line in (text_of(root / "proc/diskstats") or "").splitlines()]
    counts = [int(row[_FLUSHES]) for row in rows if row[2] in disks and len(row) > _FLUSHES]
    return sum(counts) if len(counts) == len(set(disks)) else None


def largest_request_bytes(devices: Collection[str], root: Path = Path("/")) -> int | None:
    """Return the most that every one of these devices takes in one request; None if one of them
    does not say."""
    queues = (_queue(root / "sys/class/block" / device) for device in devices)
    texts = [text_of(queue / "max_sectors_kb") for queue in queues]
    sizes = [int(text) * KIB for text in texts if text is not None and text.strip().isdigit()]
    return min(sizes) if sizes and len(sizes) == len(texts) else None


def _queue(device: Path) -> Path:
    """Return the directory of its queue; a partition has its disk's."""
    real = Path(os.path.realpath(device))
    return (real if (real / "queue").exists() else real.parent) / "queue"


def added_up(stats: Collection[DiskStats]) -> DiskStats:
    """Add the counters of several devices up."""
    return DiskStats(
        **{name: sum(getattr(s, name) for s in stats) for name in DiskStats.__struct_fields__}
    )


def parse(text: str, devices: Sequence[str]) -> dict[str, DiskStats]:
    """Parse the counters of those `devices` that are in the text."""
    rows = (line.split() for line in text.splitlines())
    return {row[2]: _stats([int(n) for n in row[3:]]) for row in rows if row[2] in devices}


def _stats(row: Sequence[int]) -> DiskStats:
    """Of a row's counters behind the name: eleven, and those of discards and flushes."""
    values = dict(zip(DiskStats.__struct_fields__, row[:11], strict=False))
    if len(row) > _DISCARDED - 3:
        values["discard_bytes"] = row[_DISCARDED - 3] * SECTOR_BYTES
    values["read_bytes"] *= SECTOR_BYTES
    values["write_bytes"] *= SECTOR_BYTES
    return DiskStats(**values)
