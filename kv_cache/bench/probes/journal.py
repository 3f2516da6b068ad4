"""What file systems have written to their journals: a device counts it beside our bytes, and no
process does.

ext4 tells how many transactions there were since it was mounted, and of how many blocks they are
on average, rounded down (Linux, fs/jbd2/journal.c); XFS tells sectors (fs/xfs/xfs_stats.h). Where
the journal is on another device, that of the file system has none.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from kv_cache.bench.probes.diskstats import SECTOR_BYTES
from kv_cache.bench.procfs import text_of

_TRANSACTIONS = re.compile(r"(\d+) transactions")
_BLOCKS = re.compile(r"(\d+) logged blocks per transaction")
_SECTORS = re.compile(r"^log \d+ (\d+)", re.MULTILINE)


class Written(NamedTuple):
    """Bytes since the file systems were mounted: at least, and at most."""

    least: int
    most: int

    def since(self, earlier: "Written") -> int:
        """Return what was surely written between the two."""
        return max(0, self.least - earlier.most)


def read_journals(places: Mapping[str, Path], root: Path = Path("/")) -> Written:
    """Add up what is known of the journals on devices, by name, each with a directory of its file
    system."""
    journals = [_written(device, place, root) for device, place in places.items()]
    return Written(sum(one.least for one in journals), sum(one.most for one in journals))


def _written(device: str, place: Path, root: Path) -> Written:
    sectors = _SECTORS.search(text_of(root / f"sys/fs/xfs/{device}/stats/stats") or "")
    if sectors:
        nbytes = int(sectors[1]) * SECTOR_BYTES
        return Written(nbytes, nbytes)
    texts = [text_of(info) or "" for info in (root / "proc/fs/jbd2").glob(f"{device}-*/info")]
    return _of_transactions(texts, place)


def _of_transactions(texts: Collection[str], place: Path) -> Written:
    for text in texts:
        count, blocks = _TRANSACTIONS.search(text), _BLOCKS.search(text)
        if count and blocks:
            each = int(count[1]) * os.statvfs(place).f_frsize
            return Written(int(blocks[1]) * each, (int(blocks[1]) + 1) * each)
    return Written(0, 0)
