"""One place of one tier: which blocks are in it, and who leaves when room is needed.

Content is kept as pieces: parts [start, end) of a node of the chain. A piece is one item for the
eviction policy, but it is given up block by block, from its end, only as far as room is needed: so
evictions are exact to the block, and what is left of a prefix is a prefix. (Engines free the blocks
of a sequence in reverse for the same reason.) Blocks are counted; who is pinned stays.

Beside its pieces a place of HBM holds private blocks: of sequences that run, not (yet) content that
others may use.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kv_cache.core.block import Key
from kv_cache.policy.admission import Admission, Candidate
from kv_cache.policy.eviction import Eviction, Item, MakeEviction
from kv_cache.sim.cluster.chain import Chain


class Run(NamedTuple):
    """Blocks [start, end) of a node."""

    node: int
    start: int
    end: int


class Piece:
    """A run that is in a place. `ready` is false while it is under way; then it is pinned."""

    __slots__ = ("end", "fetched", "node", "number", "pins", "ready", "start", "waiters")

    def __init__(self, number: int, node: int, start: int, end: int, *, ready: bool) -> None:
        self.number = number
        self.node = node
        self.start = start
        self.end = end
        self.pins = 0
        self.ready = ready
        self.fetched = False  # by a prefetch, and nobody has asked for it yet
        self.waiters: list[Callable[[], None]] | None = None


class Place:
    """Capacities and sizes in blocks. `listener` is told which nodes come and go."""

    __slots__ = (
        "_by_node",
        "_numbers",
        "_pieces",
        "_policy",
        "admission",
        "admitted",
        "block_bytes",
        "cached",
        "capacity",
        "chain",
        "dropped",
        "evicted",
        "index",
        "not_stored",
        "peak",
        "pinned",
        "private",
        "refused",
        "stored",
        "tier",
        "vertex",
        "wasted",
        "watch",
    )  # fmt: skip

    def __init__(
        self,
        tier: int,
        index: int,
        vertex: int,
        capacity: int,
        block_bytes: int,
        chain: Chain,
        eviction: MakeEviction,
        watch: "Watch",
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
        self.peak = self.stored = self.evicted = self.dropped = self.not_stored = self.wasted = 0
        self.admission = admission
        self.admitted = 0
        self.refused: Counter[str] = Counter()  # by reason
        self._policy: Eviction = eviction(capacity * block_bytes)
        self._pieces: dict[int, Piece] = {}
        self._by_node: dict[int, list[Piece]] = {}
        self._numbers = 0

    # --- looking ---------------------------------------------------------------------------

    def find(self, node: int, at: int) -> Piece | None:
        """The piece that has block `at` of `node`, or will have it when it is ready."""
        for piece in self._by_node.get(node, ()):
            if piece.start <= at < piece.end:
                return piece
        return None

    def pieces_of(self, node: int) -> Sequence[Piece]:
        return self._by_node.get(node, ())

    def missing(self, node: int, start: int, end: int) -> list[Run]:
        """What of [start, end) is not here, nor under way."""
        pieces = self._by_node.get(node)
        if not pieces:
            return [Run(node, start, end)] if start < end else []
        runs = []
        for piece in pieces:
            if piece.end <= start:
                continue
            if piece.start >= end:
                break
            if piece.start > start:
                runs.append(Run(node, start, piece.start))
            start = piece.end
        if start < end:
            runs.append(Run(node, start, end))
        return runs

    @property
    def pieces(self) -> Iterable[Piece]:
        return self._pieces.values()

    @property
    def used(self) -> int:
        return self.cached + self.private

    @property
    def available(self) -> int:
        """Blocks that are free or could be made so."""
        return self.capacity - self.private - self.pinned

    # --- coming in -------------------------------------------------------------------------

    def offer(self, run: Run) -> tuple[list[Run], list[Run]]:
        """What of a run that is missing may come in (`take_in` then), and what may not: block by
        block, the first ones first, each against the one that would leave for it. Where who would
        leave counts and nobody can, as all is in use, there is no room for what is left."""
        admission = self.admission
        if admission is None:
            return [run], []
        node, start, end = run
        depth, nbytes = self.chain.depth[node], self.block_bytes
        free = self.capacity - self.cached - self.private
        leaving = self._leaving()
        rivals: tuple[Key, ...] = ()
        taken: list[Run] = []
        refused: list[Run] = []
        for at in range(start, end):
            if admission.compares and free <= 0 and not rivals:
                rivals = tuple(islice(leaving, 1))
                if not rivals:
                    self.not_stored += end - at
                    return taken, [*self._turned_away(refused), Run(node, at, end)]
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

    def take_in(self, runs: Sequence[Run]) -> tuple[list[Piece], list[Run]] | None:
        """Runs that were `offer`ed come in, under way; and what left for them, the first to leave
        first. None: there can be no room, and nothing was done."""
        evicted = self.make_room(blocks_of(runs))
        if evicted is None:
            return None
        if self.admission is not None:
            self._tell(runs, admitted=True)
            self.admitted += blocks_of(runs)
        return [self.add(run, ready=False, pinned=False) for run in runs], evicted

    def note_use(self, run: Run) -> None:
        """Blocks were used, here or above: only for an admission policy that counts."""
        if self.admission is not None and self.admission.counts:
            for at in range(run.start, run.end):
                self.admission.used(_key(run.node, at + 1))

    # --- changing --------------------------------------------------------------------------

    def make_room(self, blocks: int) -> list[Run] | None:
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
        self.watch.total += blocks
        used = self.cached + self.private
        if used > self.peak:
            self.peak = used

    def give(self, blocks: int) -> None:
        self.private -= blocks
        assert self.private >= 0, "more private blocks were given back than taken"
        self.watch.total -= blocks

    def add(self, run: Run, *, ready: bool, pinned: bool) -> Piece:
        """Blocks that are free become a piece. It must be `missing`."""
        node, start, end = run
        number = self._numbers = self._numbers + 1
        piece = Piece(number, node, start, end, ready=ready)
        pieces = self._by_node.get(node)
        if pieces is None:
            self._by_node[node] = [piece]
            self.watch.came(self, node)
        else:
            pieces.append(piece)
            pieces.sort(key=_start)
        self._pieces[number] = piece
        blocks = end - start
        self.cached += blocks
        self.stored += blocks
        self.watch.total += blocks
        if pinned or not ready:
            piece.pins = 1
            self.pinned += blocks
        self._policy.insert(self._item(piece))
        self._grown()
        return piece

    def hit(self, piece: Piece) -> None:
        self._policy.hit(piece.number)

    def pin(self, piece: Piece) -> None:
        if not piece.pins:
            self.pinned += piece.end - piece.start
        piece.pins += 1

    def unpin(self, piece: Piece) -> None:
        piece.pins -= 1
        assert piece.pins >= 0, "a piece was unpinned more often than pinned"
        if not piece.pins:
            self.pinned -= piece.end - piece.start

    # --- laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything."""
        cached = pinned = 0
        for node, pieces in self._by_node.items():
            assert pieces, "an empty node was kept"
            end = 0
            for piece in pieces:
                assert end <= piece.start < piece.end, "two copies of a block"
                assert piece.end <= self.chain.blocks[node], "a piece is longer than its node"
                end = piece.end
                cached += piece.end - piece.start
                pinned += piece.end - piece.start if piece.pins else 0
                assert piece.ready or piece.pins, "what is under way is not pinned"
        assert cached == self.cached, "the cached blocks do not add up"
        assert pinned == self.pinned, "the pinned blocks do not add up"
        assert self.private >= 0, "fewer than no private blocks"
        assert self.used <= self.capacity, "a place is over its capacity"
        assert len(self._policy) == len(self._pieces), "the policy lost track"

    # --- inside ----------------------------------------------------------------------------

    def _turned_away(self, runs: list[Run]) -> list[Run]:
        self._tell(runs, admitted=False)
        return runs

    def _tell(self, runs: Sequence[Run], *, admitted: bool) -> None:
        """The admission policy what has been decided."""
        assert self.admission is not None
        for node, start, end in runs:
            depth = self.chain.depth[node]
            for at in range(start, end):
                candidate = Candidate(_key(node, at + 1), self.block_bytes, depth + at)
                self.admission.offered(candidate, admitted=admitted)

    def _leaving(self) -> Iterator[Key]:
        """The blocks that `_evict` would give up, in its order."""
        for number in self._policy.victims():
            piece = self._pieces[number]
            if not piece.pins:
                for end in range(piece.end, piece.start, -1):
                    yield _key(piece.node, end)

    def _item(self, piece: Piece) -> Item:
        """A piece is known by its last block, and its parent is the block before its first."""
        node, start, end = piece.node, piece.start, piece.end
        blocks = end - start
        number, nbytes, depth = (
            piece.number,
            blocks * self.block_bytes,
            self.chain.depth[node] + start,
        )
        return Item(
            number, _key(node, end), nbytes, blocks, depth, self._before(node, start), blocks
        )

    def _before(self, node: int, start: int) -> bytes | None:
        """The key of the block before, whether it is here or not."""
        chain = self.chain
        while start == 0:
            node = chain.parent[node]
            if node < 0:
                return None
            start = chain.blocks[node]
        return _key(node, start)

    def _evict(self, short: int) -> list[Run]:
        """Give up `short` blocks, which are there to be given up."""
        pieces = self._pieces
        whole: list[Piece] = []
        cut: tuple[Piece, int] | None = None
        self.evicted += short
        for number in self._policy.victims():
            piece = pieces[number]
            if piece.pins:
                continue
            blocks = piece.end - piece.start
            if blocks > short:
                cut = (piece, short)
                break
            whole.append(piece)
            short -= blocks
            if not short:
                break
        runs = []
        for piece in whole:
            runs.append(Run(piece.node, piece.start, piece.end))
            self._remove(piece, evicted=True)
        if cut is not None:
            runs.append(self._cut(*cut))
        self.watch.total -= sum(r.end - r.start for r in runs)
        return runs

    def _cut(self, piece: Piece, blocks: int) -> Run:
        end = piece.end
        piece.end -= blocks
        self.cached -= blocks
        self._wasted(piece, blocks)
        self._policy.shrink(self._item(piece))
        return Run(piece.node, piece.end, end)

    def _remove(self, piece: Piece, *, evicted: bool) -> None:
        blocks = piece.end - piece.start
        self._policy.remove(piece.number, evicted=evicted)
        del self._pieces[piece.number]
        pieces = self._by_node[piece.node]
        if len(pieces) == 1:
            del self._by_node[piece.node]
            self.watch.went(self, piece.node)
        else:
            pieces.remove(piece)
        self.cached -= blocks
        self._wasted(piece, blocks)

    def _wasted(self, piece: Piece, blocks: int) -> None:
        if piece.fetched:
            self.wasted += blocks

    def _grown(self) -> None:
        used = self.cached + self.private
        if used > self.peak:
            self.peak = used


class Watch:
    """What all places of one tier tell: who has which node, for routers, and how much there is."""

    __slots__ = ("holders", "total")

    def __init__(self) -> None:
        self.holders: dict[int, dict[int, None]] = {}
        self.total = 0

    def came(self, place: Place, node: int) -> None:
        self.holders.setdefault(node, {})[place.index] = None

    def went(self, place: Place, node: int) -> None:
        holders = self.holders[node]
        del holders[place.index]
        if not holders:
            del self.holders[node]


def _start(piece: Piece) -> int:
    return piece.start


def _key(node: int, end: int) -> bytes:
    return (node << 24 | end).to_bytes(8, "little")


def _append(runs: list[Run], node: int, at: int) -> None:
    """One more block of a node, behind all that are there."""
    if runs and runs[-1].end == at:
        runs[-1] = Run(node, runs[-1].start, at + 1)
    else:
        runs.append(Run(node, at, at + 1))


def become_ready(piece: Piece) -> None:
    """Its content is there: whoever waits for it is told."""
    piece.ready = True
    waiters, piece.waiters = piece.waiters, None
    for wake in waiters or ():
        wake()


def blocks_of(runs: Sequence[Run]) -> int:
    return sum(run.end - run.start for run in runs)
