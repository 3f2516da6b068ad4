"""Many policies times many capacities over one sequence of accesses, in one pass.

Every part of the sequence is shown to every cache before the next part is made, so a sequence of
any length needs the room of its numbers and no more. Nothing is chosen here and nothing is judged:
the answer is counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_cache.lab.accesses import TENTHS, Accesses, Flags, Ints, Part
from kv_cache.lab.bounds import Future, Limit, Min, SpaceTime, leading
from kv_cache.lab.caches import Cache
from kv_cache.lab.seam import cache_of

UNLIMITED, MIN, MIN_REFUSING, LIMIT = "unlimited", "min", "min-refusing", "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one cache found by one rule. Bytes are logical; `stored_bytes` are those of hits as they
    lie in the cache. `tenths` are the hits in each tenth of the sequence."""

    hits: int
    hit_bytes: int
    stored_bytes: int
    evictions: int
    refused: int
    tenths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy, or bound, at one capacity. `prefix` is None for a bound that is none there, and
    where each request asks for one block, which makes both rules the same."""

    policy: str
    room_bytes: int
    blocks: Found
    prefix: Found | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What holds for every cache: what was asked, by tenths too, and what no cache finds.
    `compulsory` are the misses of the cache without limits by blocks, and `prefix_compulsory` those
    by prefix."""

    lookups: int
    nbytes: int
    unique: int
    requests: int
    working_set_bytes: int
    compulsory: int
    prefix_compulsory: int
    tenths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    base: Base
    unlimited: Row
    rows: Sequence[Row]
    limits: Sequence[Limit] | None
    """Of each capacity, where blocks have different sizes: then MIN is a rule and no bound."""


def study(
    accesses: Accesses,
    policies: Sequence[str],
    rooms_bytes: Sequence[int],
    *,
    stored: Ints | None = None,
    refusing: bool = False,
) -> Study:
    """`stored` are the sizes of blocks in the cache, where they are not their own. MIN is always
    among the rows, `refusing` adds the one that may refuse; those of a capacity stand together,
    bounds first."""
    there = accesses if stored is None else accesses.sized(stored)
    future = Future(there)
    lanes = [
        lane for room in rooms_bytes for lane in _lanes(there, future, policies, room, refusing)
    ]
    for part in accesses.parts():
        sizes = part.sizes if stored is None else stored[np.array(part.blocks, np.int64)]
        for lane in lanes:
            lane.see(part, sizes)
    unlimited = _unlimited(accesses, there)
    return Study(
        base=_base(accesses, unlimited),
        unlimited=unlimited,
        rows=[lane.row() for lane in lanes],
        limits=_limits(there, future.uses, rooms_bytes),
    )


def replay(accesses: Accesses, policy: str, room_bytes: int) -> Found:
    """One policy at one capacity, by blocks: the shortest way."""
    lane = _Lane(
        policy=policy, room_bytes=room_bytes, by_prefix=None,
        by_blocks=cache_of(policy, room_bytes, accesses),
    )  # fmt: skip
    for part in accesses.parts():
        lane.see(part, part.sizes)
    return lane.row().blocks


def _limits(accesses: Accesses, uses: Ints, rooms_bytes: Sequence[int]) -> list[Limit] | None:
    if accesses.size is not None or not accesses.lookups:
        return None
    space = SpaceTime(accesses, uses)
    return [space.limit(room) for room in rooms_bytes]


# --- counting --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Count:
    hits: Ints = field(default_factory=lambda: np.zeros(TENTHS, np.int64))
    hit_bytes: int = 0
    stored_bytes: int = 0

    def see(self, hit: Flags, part: Part, stored: Ints) -> None:
        self.hits += np.bincount(part.tenths[hit], minlength=TENTHS)
        self.hit_bytes += int(part.sizes[hit].sum())
        self.stored_bytes += int(stored[hit].sum())

    def found(self, evictions: int, refused: int) -> Found:
        return Found(
            hits=int(self.hits.sum()), hit_bytes=self.hit_bytes, stored_bytes=self.stored_bytes,
            evictions=evictions, refused=refused, tenths=tuple(self.hits.tolist()),
        )  # fmt: skip


def _but(count: int, missed: Sequence[int]) -> Flags:
    """All of so many but those that were missed."""
    hit = np.ones(count, bool)
    hit[np.asarray(missed, np.int64)] = False
    return hit


def _until(part: Part, gaps: Sequence[int]) -> Flags:
    """In each request what stands before its gap."""
    count = len(part.blocks)
    ups = np.bincount(np.asarray(part.begins, np.int64), minlength=count + 1)
    downs = np.bincount(np.asarray(gaps, np.int64), minlength=count + 1)
    inside: Flags = np.cumsum(ups - downs)[:count] > 0
    return inside


@dataclass(slots=True, eq=False, kw_only=True)
class _Lane:
    """One policy at one capacity, by both rules."""

    policy: str
    room_bytes: int
    by_blocks: Cache | Min
    by_prefix: Cache | None
    blocks: _Count = field(default_factory=_Count)
    prefix: _Count = field(default_factory=_Count)

    def see(self, part: Part, stored: Ints) -> None:
        hit = _but(len(part.blocks), self.by_blocks.blocks(part))
        self.blocks.see(hit, part, stored)
        if self.by_prefix is not None:
            self.prefix.see(_until(part, self.by_prefix.prefix(part)), part, stored)

    def row(self) -> Row:
        prefix = self.by_prefix
        return Row(
            policy=self.policy,
            room_bytes=self.room_bytes,
            blocks=self.blocks.found(self.by_blocks.evicted, self.by_blocks.refused),
            prefix=None if prefix is None else self.prefix.found(prefix.evicted, prefix.refused),
        )


def _lanes(
    accesses: Accesses, future: Future, policies: Sequence[str], room: int, refusing: bool
) -> list[_Lane]:
    rules = ((MIN, False), (MIN_REFUSING, True)) if refusing else ((MIN, False),)
    bounds = [
        _Lane(
            policy=name, room_bytes=room, by_prefix=None,
            by_blocks=Min(future, room, refusing=may),
        )
        for name, may in rules
    ]  # fmt: skip
    return bounds + [
        _Lane(
            policy=name, room_bytes=room, by_blocks=cache_of(name, room, accesses, future.sizes),
            by_prefix=None if accesses.alone else cache_of(name, room, accesses, future.sizes),
        )
        for name in policies
    ]  # fmt: skip


def _unlimited(accesses: Accesses, there: Accesses) -> Row:
    """The cache that keeps everything."""
    missed = accesses.first()
    by_prefix = leading(accesses, missed)
    return Row(
        policy=UNLIMITED,
        room_bytes=there.working_set_bytes,
        blocks=_kept(accesses, there, ~missed),
        prefix=None if accesses.alone else _kept(accesses, there, by_prefix),
    )


def _kept(accesses: Accesses, there: Accesses, hit: Flags) -> Found:
    tenths = np.bincount(_tenths(accesses)[hit], minlength=TENTHS)
    return Found(
        hits=int(hit.sum()),
        hit_bytes=int(accesses.sizes[accesses.blocks[hit]].sum()),
        stored_bytes=int(there.sizes[there.blocks[hit]].sum()),
        evictions=0,
        refused=0,
        tenths=tuple(tenths.tolist()),
    )


def _tenths(accesses: Accesses) -> Ints:
    """Of each access: that in which its request begins."""
    counts = np.diff(np.append(accesses.begins, accesses.lookups))
    tenths: Ints = np.repeat(accesses.begins * TENTHS // max(1, accesses.lookups), counts)
    return tenths


def _base(accesses: Accesses, unlimited: Row) -> Base:
    prefix = unlimited.blocks if unlimited.prefix is None else unlimited.prefix
    return Base(
        lookups=accesses.lookups,
        nbytes=accesses.nbytes,
        unique=accesses.unique,
        requests=accesses.requests,
        working_set_bytes=accesses.working_set_bytes,
        compulsory=accesses.lookups - unlimited.blocks.hits,
        prefix_compulsory=accesses.lookups - prefix.hits,
        tenths=tuple(np.bincount(_tenths(accesses), minlength=TENTHS).tolist()),
    )
