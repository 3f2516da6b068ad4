"""What is counted of copies, apart from the bytes of a tier (see ledger.py)."""

from msgspec import Struct, field


class CopyTally(Struct, eq=False):
    """Blocks and their bytes (whole pages)."""

    blocks: int = 0
    bytes: int = 0

    def add(self, nbytes: int) -> None:
        self.blocks += 1
        self.bytes += nbytes


class Prefetches(Struct, eq=False):
    """Copies that were begun before anybody asked. Each comes to exactly one end, the first of:
    read where it was brought (useful), asked for while it was on its way (late), gone unread
    (wasted), not completed (failed); or it is there at the end, unread."""

    started: CopyTally = field(default_factory=CopyTally)
    useful: CopyTally = field(default_factory=CopyTally)
    late: CopyTally = field(default_factory=CopyTally)
    wasted: CopyTally = field(default_factory=CopyTally)
    failed: CopyTally = field(default_factory=CopyTally)
    no_room: CopyTally = field(default_factory=CopyTally)  # not begun

    @property
    def ended_blocks(self) -> int:
        ends = (self.useful, self.late, self.wasted, self.failed)
        return sum(tally.blocks for tally in ends)
