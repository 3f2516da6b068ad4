"""One pool of one tier: which blocks are in it, and which leave when room is needed.

Content is kept as segments: extents [start, end) of a node of the chain. A segment is one item for
the eviction policy, but it is given up block by block, from its end, only as far as room is needed:
so evictions are exact to the block, and what is left of a prefix is a prefix. (Engines free the
blocks of a sequence in reverse for the same reason.) Blocks are counted; pinned ones stay.

Beside its segments a pool of HBM holds private blocks: of sequences that run, not (yet) content
that others may use.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from kv_cache.core.block import Key
from kv_cache.policy.admission import Admission, Candidate
from kv_cache.policy.eviction import Eviction, Item, MakeEviction
from kv_cache.sim.cluster.event_loop import Loop
from kv_cache.sim.cluster.level import CountOverTime
from kv_cache.sim.cluster.prefix_chain import PrefixChain

_PACKED_AFTER = 16  # entries that left a dictionary, beside an eighth of it


class BlockExtent(NamedTuple):
    """Blocks [start, end) of a node."""

    node: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Segment:
    """An extent that is in a pool. `ready` is false while it is under way; then it is pinned."""

    number: int
    node: int
    start: int
    end: int
    ready: bool = field(kw_only=True)
    pins: int = 0
    fetched: bool = False  # by a prefetch, and not asked for yet
    waiters: list[Callable[[], None]] | None = None


class BlockPool:
    """Capacities and sizes in blocks. `watch` notes which nodes come and go."""

    __slots__ = (
        "_by_node", "_numbers", "_policy", "_segments", "admission", "admitted", "block_bytes",
        "cached", "capacity", "chain", "dropped", "events", "evicted", "index", "not_stored",
        "peak", "pinned", "prefetch_wasted", "private", "refused", "stored", "tier", "vertex",
        "watch",
    )  # fmt: skip

    def __init__(
        self,
        tier: int,
        index: int,
        vertex: int,
        capacity: int,
        block_bytes: int,
        chain: PrefixChain,
        eviction: MakeEviction,
        watch: "TierWatch",
        admission: Admission | None = None,
    ) -> None:
        self.tier = tier
        self.index = index
        self.vertex = vertex
        self.capacity = capacity
        self.block_bytes = block_bytes
        self.chain = chain
        self.watch = watch
        self.cached = self.private = self.pinned = 0
        self.peak = self.stored = self.evicted = self.dropped = self.not_stored = 0
        self.prefetch_wasted = 0
        self.admission = admission
        self.events: array[int] | None = None  # what came and was asked for, where it is noted
        self.admitted = 0
        self.refused: Counter[str] = Counter()  # by reason
        self._policy: Eviction = eviction(capacity * block_bytes)
        self._segments: dict[int, Segment] = {}
        self._by_node: dict[int, list[Segment]] = {}
        self._numbers = 0

    # --- looking ---------------------------------------------------------------------------

    def find(self, node: int, at: int) -> Segment | None:
        """Return the segment that has block `at` of `node`, or will have it when it is ready."""
        for segment in self._by_node.get(node, ()):
            if segment.start <= at < segment.end:
                return segment
        return None

    def segments_of(self, node: int) -> Sequence[Segment]:
        return self._by_node.get(node, ())

    def missing(self, node: int, start: int, end: int) -> list[BlockExtent]:
        """List the parts of [start, end) that are neither here nor under way."""
        segments = self._by_node.get(node)
        if not segments:
            return [BlockExtent(node, start, end)] if start < end else []
        extents = []
        for segment in segments:
            if segment.end <= start:
                continue
            if segment.start >= end:
                break
            if segment.start > start:
                extents.append(BlockExtent(node, start, segment.start))
            start = segment.end
        if start < end:
            extents.append(BlockExtent(node, start, end))
        return extents

    @property
    def segments(self) -> Collection[Segment]:
        return self._segments.values()

    @property
    def used(self) -> int:
        return self.cached + self.private

    @property
    def available(self) -> int:
        """Blocks that are free or could be made so."""
        return self.capacity - self.private - self.pinned

    # --- coming in -------------------------------------------------------------------------

    def offer(self, extent: BlockExtent) -> tuple[list[BlockExtent], list[BlockExtent]]:
        """Return what of a missing extent may come in (`take_in` then), and what may not: block by
        block, the first ones first, each against the one that would leave for it. Where who would
        leave counts and none can, as all is in use, there is no room for what is left."""
        admission = self.admission
        if admission is None:
            return [extent], []
        node, start, end = extent
        depth, nbytes = self.chain.depth[node], self.block_bytes
        free = self.capacity - self.cached - self.private
        leaving = self._leaving()
        rivals: tuple[Key, ...] = ()
        taken: list[BlockExtent] = []
        refused: list[BlockExtent] = []
        for at in range(start, end):
            if admission.compares and free <= 0 and not rivals:
                rivals = tuple(islice(leaving, 1))
                if not rivals:
                    self.not_stored += end - at
                    return taken, [*self._turned_away(refused), BlockExtent(node, at, end)]
            candidate = Candidate(_key(node, at + 1), nbytes, depth + at)
            reason = admission.refusal(candidate, rivals)
            if reason is None:
                free -= 1
                rivals = ()
                _append(taken, node, at)
            else:
                self.refused[reason] += 1
                _append(refused, node, at)
        return taken, self._turned_away(refused)

    def take_in(
        self, extents: Sequence[BlockExtent]
    ) -> tuple[list[Segment], list[BlockExtent]] | None:
        """Runs that were `offer`ed come in, under way; and what left for them, the first to leave
        first. None: there can be no room, and nothing was done."""
        evicted = self.make_room(blocks_of(extents))
        if evicted is None:
            return None
        if self.admission is not None:
            self._tell(extents, admitted=True)
            self.admitted += blocks_of(extents)
        return [self.add(extent, ready=False, pinned=False) for extent in extents], evicted

    def note_use(self, extent: BlockExtent) -> None:
        """Note that blocks were used, here or above: only for an admission policy that counts."""
        if self.admission is not None and self.admission.counts:
            for at in range(extent.start, extent.end):
                self.admission.used(_key(extent.node, at + 1))

    # --- changing --------------------------------------------------------------------------

    def make_room(self, blocks: int) -> list[BlockExtent] | None:
        """Evict until `blocks` are free; what left, the first to leave first. None: it cannot be,
        and nothing was done."""
        short = blocks - (self.capacity - self.cached - self.private)
        if short <= 0:
            return []
        if short > self.cached - self.pinned:
            return None
        return self._evict(short)

    def take(self, blocks: int) -> None:
        """Make `blocks` that are free private."""
        self.private += blocks
        self.watch.change(blocks)
        self._note_peak()

    def give(self, blocks: int) -> None:
        self.private -= blocks
        assert self.private >= 0, "more private blocks were given back than taken"
        self.watch.change(-blocks)

    def add(self, extent: BlockExtent, *, ready: bool, pinned: bool) -> Segment:
        """Make a segment of free blocks. It must be `missing`."""
        node, start, end = extent
        number = self._numbers = self._numbers + 1
        segment = Segment(number, node, start, end, ready=ready)
        segments = self._by_node.get(node)
        if segments is None:
            self._by_node[node] = [segment]
            self.watch.came(self, node)
        else:
            segments.append(segment)
            segments.sort(key=_start)
        self._segments[number] = segment
        blocks = end - start
        if self.events is not None:
            first = event_of(node, start)
            self.events.extend(range(first, first + 2 * blocks, 2))
        self.cached += blocks
        self.stored += blocks
        self.watch.change(blocks)
        if pinned or not ready:
            segment.pins = 1
            self.pinned += blocks
        self._policy.insert(self._item(segment))
        self._note_peak()
        return segment

    def hit(self, segment: Segment) -> None:
        self._policy.hit(segment.number)

    def pin(self, segment: Segment) -> None:
        if not segment.pins:
            self.pinned += segment.end - segment.start
        segment.pins += 1

    def unpin(self, segment: Segment) -> None:
        segment.pins -= 1
        assert segment.pins >= 0, "a segment was unpinned more often than pinned"
        if not segment.pins:
            self.pinned -= segment.end - segment.start

    # --- laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything."""
        cached = pinned = 0
        for node, segments in self._by_node.items():
            assert segments, "an empty node was kept"
            end = 0
            for segment in segments:
                assert end <= segment.start < segment.end, "two copies of a block"
                assert segment.end <= self.chain.blocks[node], "a segment is longer than its node"
                end = segment.end
                cached += segment.end - segment.start
                pinned += segment.end - segment.start if segment.pins else 0
                assert segment.ready or segment.pins, "what is under way is not pinned"
        assert cached == self.cached, "the cached blocks do not add up"
        assert pinned == self.pinned, "the pinned blocks do not add up"
        assert self.private >= 0, "fewer than no private blocks"
        assert self.used <= self.capacity, "a pool is over its capacity"
        assert len(self._policy) == len(self._segments), "the policy lost track"

    # --- inside ----------------------------------------------------------------------------

    def _turned_away(self, extents: list[BlockExtent]) -> list[BlockExtent]:
        self._tell(extents, admitted=False)
        return extents

    def _tell(self, extents: Sequence[BlockExtent], *, admitted: bool) -> None:
        """Report to the admission policy what was decided."""
        assert self.admission is not None
        for node, start, end in extents:
            depth = self.chain.depth[node]
            for at in range(start, end):
                candidate = Candidate(_key(node, at + 1), self.block_bytes, depth + at)
                self.admission.offered(candidate, admitted=admitted)

    def _leaving(self) -> Iterator[Key]:
        """Yield the blocks that `_evict` would give up, in its order."""
        for number in self._policy.victims():
            segment = self._segments[number]
            if not segment.pins:
                for end in range(segment.end, segment.start, -1):
                    yield _key(segment.node, end)

    def _item(self, segment: Segment) -> Item:
        """Return the policy's item of a segment, known by its last block; its parent is the block
        before its first."""
        node, start, end = segment.node, segment.start, segment.end
        blocks = end - start
        number, nbytes, depth = (
            segment.number,
            blocks * self.block_bytes,
            self.chain.depth[node] + start,
        )
        return Item(
            number, _key(node, end), nbytes, blocks, depth, self._before(node, start), blocks
        )

    def _before(self, node: int, start: int) -> bytes | None:
        """Return the key of the block before, whether it is here or not."""
        chain = self.chain
        while start == 0:
            node = chain.parent[node]
            if node < 0:
                return None
            start = chain.blocks[node]
        return _key(node, start)

    def _evict(self, short: int) -> list[BlockExtent]:
        """Give up `short` blocks, which are there to be given up."""
        segments = self._segments
        whole: list[Segment] = []
        cut: tuple[Segment, int] | None = None
        self.evicted += short
        for number in self._policy.victims():
            segment = segments[number]
            if segment.pins:
                continue
            blocks = segment.end - segment.start
            if blocks > short:
                cut = (segment, short)
                break
            whole.append(segment)
            short -= blocks
            if not short:
                break
        extents = []
        for segment in whole:
            extents.append(BlockExtent(segment.node, segment.start, segment.end))
            self._remove(segment, evicted=True)
        if cut is not None:
            extents.append(self._cut(*cut))
        self.watch.change(-blocks_of(extents))
        return extents

    def _cut(self, segment: Segment, blocks: int) -> BlockExtent:
        end = segment.end
        segment.end -= blocks
        self.cached -= blocks
        self._count_wasted(segment, blocks)
        self._policy.shrink(self._item(segment))
        return BlockExtent(segment.node, segment.end, end)

    def _remove(self, segment: Segment, *, evicted: bool) -> None:
        blocks = segment.end - segment.start
        self._policy.remove(segment.number, evicted=evicted)
        del self._segments[segment.number]
        segments = self._by_node[segment.node]
        if len(segments) == 1:
            del self._by_node[segment.node]
            self.watch.went(self, segment.node)
        else:
            segments.remove(segment)
        self.cached -= blocks
        self._count_wasted(segment, blocks)

    def _count_wasted(self, segment: Segment, blocks: int) -> None:
        if segment.fetched:
            self.prefetch_wasted += blocks

    def _note_peak(self) -> None:
        used = self.cached + self.private
        if used > self.peak:
            self.peak = used


class TierWatch:
    """All pools of one tier: which of them have a node, for routers, and the total of blocks."""

    __slots__ = ("_left", "_level", "_loop", "holders")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._level = CountOverTime()
        self.holders: dict[int, dict[int, None]] = {}
        self._left: dict[int, int] = {}  # pools that no longer have a node, since it was packed

    def change(self, blocks: int) -> None:
        """Count blocks that came, or went."""
        self._level.change(blocks, self._loop.now_ns)

    @property
    def total(self) -> int:
        """Blocks that are there."""
        return self._level.count

    def until(self, now_ns: int) -> tuple[int, int]:
        """Return the blocks, integrated over time up to now, and the most of them."""
        return self._level.area_ns(now_ns), self._level.most(now_ns)

    def came(self, pool: BlockPool, node: int) -> None:
        self.holders.setdefault(node, {})[pool.index] = None

    def went(self, pool: BlockPool, node: int) -> None:
        """Note that a pool no longer has a node. A dictionary keeps the places of what has left it,
        mostly its first ones, and whoever asks for the first holders goes over them: it is packed
        once an eighth has left."""
        holders = self.holders[node]
        del holders[pool.index]
        left = self._left[node] = self._left.get(node, 0) + 1
        if not holders:
            del self._left[node], self.holders[node]
        elif left > _PACKED_AFTER + len(holders) // 8:
            del self._left[node]
            self.holders[node] = dict.fromkeys(holders)


def _start(segment: Segment) -> int:
    return segment.start


def event_of(node: int, at: int) -> int:
    """Return the event that a block came; the next number is that it was asked for."""
    return (node << 24 | at) << 1


def _key(node: int, end: int) -> bytes:
    return (node << 24 | end).to_bytes(8, "little")


def _append(extents: list[BlockExtent], node: int, at: int) -> None:
    """Append one block of a node, behind all that are there."""
    if extents and extents[-1].end == at:
        extents[-1] = BlockExtent(node, extents[-1].start, at + 1)
    else:
        extents.append(BlockExtent(node, at, at + 1))


def become_ready(segment: Segment) -> None:
    """Mark a segment as ready, and wake the flights that wait for it."""
    segment.ready = True
    waiters, segment.waiters = segment.waiters, None
    for wake in waiters or ():
        wake()


def blocks_of(extents: Sequence[BlockExtent]) -> int:
    return sum(extent.end - extent.start for extent in extents)
