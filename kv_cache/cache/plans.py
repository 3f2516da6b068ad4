"""What the cache decides, for a driver to carry out: room for new copies, and which they are."""

from msgspec import Struct, field

from kv_cache.cache.ledger import Claim
from kv_cache.core.block import Block, Key
from kv_cache.core.effect import CopyRef, Token


class Demotions(Struct, eq=False):
    """Copies of one tier that go to one tier below, and what is made of each there."""

    sources: list[CopyRef]
    targets: list[CopyRef]
    claim: Claim


class RoomLevel(Struct, eq=False):
    """What one tier has to do before bytes can come in: delete `drops`, then `demotions`, whose
    sources are `leaving`."""

    claim: Claim
    drops: list[CopyRef]
    demotions: list[Demotions]
    leaving: list[CopyRef]


class RoomPlan(Struct, eq=False):
    """Room for `targets` in one tier: carry out `levels` in order (the lowest tier first)."""

    targets: tuple[CopyRef, ...]
    levels: tuple[RoomLevel, ...]
    claim: Claim


class Placement(Struct, eq=False):
    """The answer to `begin_stores`. Blocks that are present or being stored need nothing, nor do
    those that no tier admits: they are not stored."""

    plan: RoomPlan | None = None
    present: list[Block] = field(default_factory=list)
    nowhere: list[Block] = field(default_factory=list)
    unwanted: list[Block] = field(default_factory=list)
    later: list[Block] = field(default_factory=list)
    wait: Token | None = None


class Backup(Struct, eq=False):
    """Copies in the last tier of what is above it: the plan's targets are of the pinned `sources`,
    in their order. What did not fit into one plan is `later`."""

    plan: RoomPlan | None = None
    sources: list[CopyRef] = field(default_factory=list)
    later: list[Key] = field(default_factory=list)
