"""The copies of blocks that exist or are on their way, by their id and by their key."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from kv_cache.core.block import Block, Key
from kv_cache.core.effect import CopyRef, Token
from kv_cache.core.kinds import Tier


class Position(NamedTuple):
    """Where a block is in the sequence that it was made for, for policies that use it."""

    depth: int
    parent: Key | None


_ref: Callable[[tuple[int, Key, Tier, int, int, int]], CopyRef] = partial(tuple.__new__, CopyRef)
_position: Callable[[tuple[int, Key | None]], Position] = partial(tuple.__new__, Position)
"""As the classes, of all of their fields, without a frame of Python's."""
NO_POSITION = Position(0, None)
NO_POSITIONS: Mapping[Key, Position] = MappingProxyType({})


def positions_of(sequence: Sequence[Block], start: int) -> Mapping[Key, Position]:
    """Return the positions of the blocks from `start` on, by key; of a key that comes again, its
    first."""
    positions: dict[Key, Position] = {}
    parent = sequence[start - 1].key if start else None
    for depth in range(start, len(sequence)):
        key = sequence[depth].key
        positions.setdefault(key, _position((depth, parent)))
        parent = key
    return positions


class State(Enum):
    PLANNED = "planned"
    WRITING = "writing"
    RESIDENT = "resident"
    LEAVING = "leaving"


PLANNED, WRITING, RESIDENT, LEAVING = State.PLANNED, State.WRITING, State.RESIDENT, State.LEAVING
"""By these names no search through the classes of an enumeration, which is done for each copy."""


class Copy(Struct, eq=False):
    ref: CopyRef
    state: State = PLANNED
    pins: int = 0
    moving: bool = False  # chosen for demotion: readable, but not a victim again
    derived: bool = False  # made from another copy, not from new data
    refused: bool = False  # by the last tier, which is not asked again before it is used again
    ahead: bool = False  # brought up before a request asked for it,
    unread: bool = False  # and none has asked since
    awaited: bool = False  # somebody was told what to await
    tokens: int = 0
    position: Position = NO_POSITION

    def await_change(self) -> Token:
        """Return what is fired from now on whenever the copy changes."""
        self.awaited = True
        return ("copy", self.ref.copy_id)


def nearest_readable(copies: Iterable[Copy | None]) -> Copy | None:
    """Return the first copy that can be read now."""
    for copy in copies:
        if copy is not None and copy.state is RESIDENT:
            return copy
    return None


class Copies:
    """All copies. A key has at most one in each tier; an id is never used again."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tuple(tiers)
        self.index_of = {tier: index for index, tier in enumerate(tiers)}
        self.by_id: dict[int, Copy] = {}
        self.by_key: dict[Key, list[Copy | None]] = {}
        """For each tier, the fastest first, its copy. What is leaving can no longer be found."""
        self._next_copy_id = 0
        self._next_version = 0

    def readable(self, tier: Tier) -> Iterable[Copy]:
        """Return the copies of `tier` that can be read now."""
        return (
            copy for copy in self.by_id.values() if copy.state is RESIDENT and copy.ref.tier is tier
        )

    def new(
        self, blocks: Iterable[Block], index: int, positions: Mapping[Key, Position]
    ) -> list[CopyRef]:
        """List copies of new data, which are to be written."""
        tier, refs, by_id, put = self._tiers[index], list[CopyRef](), self.by_id, self._put
        copy_id, version = self._next_copy_id, self._next_version
        for block in blocks:
            key, tokens, _, objects = block
            ref = _ref((copy_id, key, tier, block.stored_bytes, version, objects))
            copy = Copy(ref, tokens=tokens, position=positions.get(key, NO_POSITION))
            refs.append(ref)
            by_id[copy_id] = copy
            put(key, index, copy)
            copy_id += objects
            version += objects
        self._next_copy_id, self._next_version = copy_id, version
        return refs

    def new_from(self, sources: Iterable[Copy], index: int) -> list[CopyRef]:
        """List copies that are to be made from others."""
        tier, refs, by_id, put = self._tiers[index], list[CopyRef](), self.by_id, self._put
        copy_id = self._next_copy_id
        for source in sources:
            _, key, _, nbytes, version, objects = source.ref
            ref = _ref((copy_id, key, tier, nbytes, version, objects))
            refs.append(ref)
            by_id[copy_id] = copy = Copy(
                ref,
                derived=True,
                refused=source.refused,
                tokens=source.tokens,
                position=source.position,
            )
            put(key, index, copy)
            copy_id += objects
        self._next_copy_id = copy_id
        return refs

    def unlist(self, copies: Iterable[Copy]) -> list[Copy]:
        """Make it impossible to find copies by their keys; return those that were the last of their
        blocks."""
        by_key, index_of, last = self.by_key, self.index_of, list[Copy]()
        for copy in copies:
            _, key, tier, _, _, _ = copy.ref
            entry = by_key[key]
            entry[index_of[tier]] = None
            if not any(entry):
                del by_key[key]
                last.append(copy)
        return last

    def check(self) -> None:
        for key, entry in self.by_key.items():
            assert any(c is not None for c in entry), "an empty entry was kept"
            for index, copy in enumerate(entry):
                if copy is not None:
                    assert copy.ref.key == key, "a copy is under another key"
                    assert self.index_of[copy.ref.tier] == index, "a copy is in another tier"
                    assert copy.state is not LEAVING, "a leaving copy can be found"

    def _put(self, key: Key, index: int, copy: Copy) -> None:
        entry = self.by_key.get(key)
        if entry is None:
            entry = self.by_key[key] = [None] * len(self._tiers)
        assert entry[index] is None, "a second copy of a key in one tier"
        entry[index] = copy
