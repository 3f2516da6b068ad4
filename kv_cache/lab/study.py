"""Many policies times many capacities over one sequence of accesses.

What is asked was read once and is numbers by now; each cache is made, is shown all of it in parts,
and is forgotten before the next is made: never is there the room of two. Nothing is chosen here and
nothing is judged: the answer is counts.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from kv_cache.core.callbacks import ignore
from kv_cache.core.garbage import rarely_looked_for
from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import BATCHES, Accesses, AccessPart, Flags, Ints
from kv_cache.lab.bounds import HitLimit, Min, SpaceTime, leading
from kv_cache.lab.caches import Cache
from kv_cache.lab.seam import cache_of
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.variants import PolicyVariant

_MANY = 500_000  # lookups, beside which looking for garbage takes next to no time
UNLIMITED, MIN, MIN_REFUSING, LIMIT = "unlimited", "min", "min-refusing", "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """What one cache found by one rule. Bytes are logical; `stored_bytes` are those of hits as they
    lie in the cache. `batches` are the hits in each stretch of the sequence."""

    hits: int
    hit_bytes: int
    stored_bytes: int
    evictions: int
    refused: int
    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One policy, or bound, at one capacity. `prefix` is None for a bound that is none there, and
    where each request asks for one block, which makes both rules the same."""

    policy: str
    room_bytes: int
    blocks: ReplayCounts
    prefix: ReplayCounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What holds for every cache: what was asked, and what no cache finds. `compulsory` are the
    misses of the cache without limits by blocks, and `prefix_compulsory` those by prefix."""

    lookups: int
    nbytes: int
    unique: int
    requests: int
    working_set_bytes: int
    compulsory: int
    prefix_compulsory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    base: Base
    unlimited: StudyRow
    rows: Sequence[StudyRow]
    limits: Sequence[HitLimit] | None
    """Of each capacity, where blocks have different sizes: then MIN is a rule and no bound."""
    filling: Sequence[int]
    """Of each capacity: in how many stretches a cache that stores all it missed is not yet full. At
    most half of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFrame:
    """What a study has beside the replays of its rows. `size` are the bytes of a block, where all
    have as many."""

    size: int | None
    base: Base
    unlimited: StudyRow
    limits: Sequence[HitLimit] | None
    filling: Sequence[int]

    def study(self, rows: Sequence[StudyRow]) -> Study:
        return Study(
            base=self.base, unlimited=self.unlimited, rows=rows, limits=self.limits,
            filling=self.filling,
        )  # fmt: skip


class Replays:
    """All replays of one sequence, each for itself: what one finds depends on no other. `stored`
    are the sizes of blocks in the cache, where they are not their own. `on_part` is called on the
    way, and may raise."""

    def __init__(
        self,
        accesses: Accesses,
        *,
        seed: Seed,
        stored: Ints | None = None,
        on_part: Callable[[], None] = ignore,
    ) -> None:
        there = accesses if stored is None else accesses.sized(stored)
        self._shared = SharedState(there, seed)
        self._accessed = _Accessed(accesses=accesses, there=there, on_part=on_part)

    def row(self, policy: PolicyVariant | str, room_bytes: int) -> StudyRow:
        """Replay a policy, or a bound by its name, at one capacity."""
        if isinstance(policy, str):
            return _bound(self._accessed, self._shared, policy, room_bytes)
        return _row(self._accessed, self._shared, policy, room_bytes)

    def frame(self, rooms_bytes: Sequence[int]) -> StudyFrame:
        unlimited = _unlimited(self._accessed)
        accesses = self._accessed.accesses
        return StudyFrame(
            size=accesses.size, base=_base(accesses, unlimited), unlimited=unlimited,
            limits=_limits(self._shared, rooms_bytes),
            filling=filling(self._accessed.there, rooms_bytes),
        )  # fmt: skip


def rows_of(
    variants: Sequence[PolicyVariant], *, refusing: bool = False
) -> Sequence[PolicyVariant | str]:
    """Return whose rows a study has at each capacity: bounds first, MIN always, and with `refusing`
    the one that may refuse."""
    return (MIN, MIN_REFUSING, *variants) if refusing else (MIN, *variants)


def study(
    accesses: Accesses,
    variants: Sequence[PolicyVariant],
    rooms_bytes: Sequence[int],
    *,
    seed: Seed,
    stored: Ints | None = None,
    refusing: bool = False,
) -> Study:
    """Make all replays, those of a capacity together."""
    replays = Replays(accesses, seed=seed, stored=stored)
    policies = rows_of(variants, refusing=refusing)
    rows = [replays.row(policy, room) for room in rooms_bytes for policy in policies]
    return replays.frame(rooms_bytes).study(rows)


def replay(
    accesses: Accesses, variant: PolicyVariant, room_bytes: int, *, seed: Seed
) -> ReplayCounts:
    """Replay one variant at one capacity, by blocks: the shortest way."""
    accessed, shared = _Accessed(accesses=accesses, there=accesses), SharedState(accesses, seed)
    with _no_other_cache(shared):
        return accessed.blocks(cache_of(variant, room_bytes, shared))


def _bound(accessed: "_Accessed", shared: SharedState, name: str, room: int) -> StudyRow:
    rule = Min(shared, room, refusing=name == MIN_REFUSING)
    return StudyRow(policy=name, room_bytes=room, blocks=accessed.blocks(rule), prefix=None)


def _row(accessed: "_Accessed", shared: SharedState, variant: PolicyVariant, room: int) -> StudyRow:
    with _no_other_cache(shared):
        blocks, same = accessed.blocks_and_same(cache_of(variant, room, shared))
    if shared.accesses.alone:
        prefix = None
    elif same:
        prefix = blocks
    else:
        with _no_other_cache(shared):
            prefix = accessed.prefix(cache_of(variant, room, shared))
    return StudyRow(policy=str(variant), room_bytes=room, blocks=blocks, prefix=prefix)


def _no_other_cache(shared: SharedState) -> AbstractContextManager[None]:
    """Give up what the cache before has left in circles, where that may be much: it is looked for
    seldom while a cache is filled."""
    return rarely_looked_for(first=shared.accesses.lookups > _MANY)


def _limits(shared: SharedState, rooms_bytes: Sequence[int]) -> list[HitLimit] | None:
    accesses = shared.accesses
    if accesses.size is not None or not accesses.lookups:
        return None
    space = SpaceTime(accesses, shared.uses)
    return [space.limit(room) for room in rooms_bytes]


def filling(there: Accesses, rooms_bytes: Sequence[int]) -> list[int]:
    """Return in how many stretches a cache of each room that stores all it missed is not yet full,
    at most half of all."""
    firsts = there.first()
    stretches = np.repeat(there.stretches, np.diff(there.begins, append=there.lookups))
    stored = np.bincount(
        stretches[firsts], weights=there.sizes[there.blocks[firsts]], minlength=BATCHES
    ).cumsum()
    full = np.searchsorted(stored, rooms_bytes) + 1
    return [min(int(each), BATCHES // 2) for each in full]


# --- counting --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Accessed:
    """What caches are asked for, and how blocks lie `there` (in the cache)."""

    accesses: Accesses
    there: Accesses
    on_part: Callable[[], None] = ignore

    def blocks(self, cache: Cache | Min) -> ReplayCounts:
        """Count the hits of a cache by the rule of blocks."""
        return self.blocks_and_same(cache)[0]

    def blocks_and_same(self, cache: Cache | Min) -> tuple[ReplayCounts, bool]:
        """Also whether no request had a hit behind a miss: then a new cache that is asked by the
        rule of prefixes does the same, hit by hit."""
        count, same, alone = _Count(), True, self.accesses.alone
        for part in self.accesses.parts():
            missed = np.asarray(cache.blocks(part), np.int64)
            hit = _but(len(part.blocks), missed)
            self._see(count, part, hit)
            same = same and (alone or _none_behind(part, missed, hit))
        return count.counts(cache.evicted, cache.refused), same

    def prefix(self, cache: Cache) -> ReplayCounts:
        count = _Count()
        for part in self.accesses.parts():
            self._see(count, part, _until(part, cache.prefix(part)))
        return count.counts(cache.evicted, cache.refused)

    def kept(self, hit: Flags) -> ReplayCounts:
        """Count given hits of a cache that nothing leaves."""
        count = _Count()
        for part in self.accesses.parts():
            self._see(count, part, hit[part.begin : part.begin + len(part.blocks)])
        return count.counts(0, 0)

    def _see(self, count: "_Count", part: AccessPart, hit: Flags) -> None:
        self.on_part()
        hits = np.add.reduceat(hit, part.stretch_begins, dtype=np.int64)
        count.hits[part.stretches] += hits
        count.hit_bytes += _bytes_of(self.accesses, part, hit, int(hits.sum()))
        count.stored_bytes += _bytes_of(self.there, part, hit, int(hits.sum()))


@dataclass(slots=True, eq=False)
class _Count:
    hits: Ints = field(default_factory=lambda: np.zeros(BATCHES, np.int64))
    hit_bytes: int = 0
    stored_bytes: int = 0

    def counts(self, evictions: int, refused: int) -> ReplayCounts:
        return ReplayCounts(
            hits=int(self.hits.sum()), hit_bytes=self.hit_bytes, stored_bytes=self.stored_bytes,
            evictions=evictions, refused=refused, batches=tuple(self.hits.tolist()),
        )  # fmt: skip


def _bytes_of(accesses: Accesses, part: AccessPart, hit: Flags, hits: int) -> int:
    size = accesses.size
    return int(accesses.sizes[part.numbers[hit]].sum()) if size is None else size * hits


def _but(count: int, missed: Ints) -> Flags:
    """Return flags of `count` hits but those that were missed."""
    hit = np.ones(count, bool)
    hit[missed] = False
    return hit


def _none_behind(part: AccessPart, missed: Ints, hit: Flags) -> bool:
    """Return whether no hit is behind a miss of its request."""
    places = np.append(missed, len(part.blocks))
    gaps = np.minimum(part.ends, places[np.searchsorted(missed, part.begins)])
    return int(hit.sum()) == int((gaps - part.begins).sum())


def _until(part: AccessPart, gaps: Sequence[int]) -> Flags:
    """Mark the accesses of each request that come before its gap."""
    count = len(part.blocks)
    ups = np.bincount(part.begins, minlength=count + 1)
    downs = np.bincount(np.asarray(gaps, np.int64), minlength=count + 1)
    inside: Flags = np.cumsum(ups - downs)[:count] > 0
    return inside


def _unlimited(accessed: _Accessed) -> StudyRow:
    """Return the row of the cache that keeps everything."""
    accesses = accessed.accesses
    missed = accesses.first()
    by_prefix = leading(accesses, missed)
    return StudyRow(
        policy=UNLIMITED,
        room_bytes=accessed.there.working_set_bytes,
        blocks=accessed.kept(~missed),
        prefix=None if accesses.alone else accessed.kept(by_prefix),
    )


def _base(accesses: Accesses, unlimited: StudyRow) -> Base:
    prefix = unlimited.blocks if unlimited.prefix is None else unlimited.prefix
    return Base(
        lookups=accesses.lookups,
        nbytes=accesses.nbytes,
        unique=accesses.unique,
        requests=accesses.requests,
        working_set_bytes=accesses.working_set_bytes,
        compulsory=accesses.lookups - unlimited.blocks.hits,
        prefix_compulsory=accesses.lookups - prefix.hits,
    )
