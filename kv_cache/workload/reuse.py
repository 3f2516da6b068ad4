"""How much of what is asked for was asked for before: what caches of any size would find.

Blocks are looked at as one flat stream, request after request and block after block. A reference's
stack distance is how many other blocks were asked for since the same block was asked for last; a
cache of C blocks that keeps what was asked for last (LRU) finds exactly the references with a
distance below C. So one walk tells the hits of every size (Mattson, Gecsei, Slutz and Traiger,
"Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970).

Distances are exact. They are found for many references at once: a block's place is how many blocks
were last asked for before it, and a reference's distance is the number of places behind its
block's, less those given up in between, which are counted bit by bit as the inversions of a
permutation. That is O(log n) steps a reference, of arrays and not of Python, and memory for the
blocks that are remembered, however often they are asked for.

It must not remember what is asked for once (`Request.once`): such blocks take room in the stack,
and are counted, no more.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from kv_cache.core.block import Block, Key
from kv_cache.core.request import Request
from kv_cache.core.units import NS_PER_S
from kv_cache.workload.distribution import Bools, Ints, Spread, Times, spread

NEVER_AGAIN = -1
"""In place of a block's number: a block that is asked for once."""
FIRST = -1
"""In place of a distance: the block had not been asked for before."""

LRU_SHARES = (0.05, 0.10, 0.25)
WINDOWS_S = (60, 600, 3600)
"""Of the working set (Denning, "The working set model for program behavior", CACM 11(5), 1968)."""

_LEAST_BATCH = 1 << 16  # references that are looked at together
_CURVE_POINTS = 96
_MOST_SAMPLES = 512  # of the growth over time


# --- stack distances ---

_LAST_NS = 2**63 - 1  # a time that a trace says fits, but perhaps not with what is thought


class _Batch:
    """References in their order, each the number of its block or `NEVER_AGAIN`."""

    def __init__(self, blocks: Ints) -> None:
        self.blocks = blocks
        self._order = np.argsort(blocks, kind="stable")  # by block and then by time
        ordered = blocks[self._order]
        self._again = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)

    def previous(self, values: Ints, lasts: Ints) -> tuple[Ints, Bools]:
        """Return the value of each block's reference before this one, and whether there was one:
        `values` are those of the batch, `lasts` each block's last value before the batch."""
        order, again = self._order, self._again
        before, known = np.zeros(len(self.blocks), np.int64), np.zeros(len(self.blocks), bool)
        before[order[1:][again]] = values[order[:-1][again]]
        known[order[1:][again]] = True
        begins = order[np.concatenate(([True], ~again))] if len(order) else order
        old = begins[(self.blocks[begins] >= 0) & (self.blocks[begins] < len(lasts))]
        before[old] = lasts[self.blocks[old]]
        known[old] = True
        return before, known

    def lasts(self, values: Ints, lasts: Ints) -> Ints:
        """Return each block's last value after the batch, with room for its new blocks."""
        order = self._order
        ends = order[np.concatenate((~self._again, [True]))] if len(order) else order
        ends = ends[self.blocks[ends] >= 0]
        fresh = int(self.blocks.max(initial=NEVER_AGAIN)) + 1 - len(lasts)
        if fresh > 0:
            lasts = np.concatenate((lasts, np.empty(fresh, np.int64)))
        lasts[self.blocks[ends]] = values[ends]
        return lasts


class StackDistances:
    """Distances of a stream that comes in parts. Blocks have numbers from 0, in the order in which
    they first appear, or are `NEVER_AGAIN`."""

    def __init__(self) -> None:
        self._places: Ints = np.empty(0, np.int64)
        self._distinct = 0
        self.counts: Ints = np.zeros(0, np.int64)
        """How many references had each distance."""

    def add(self, blocks: Ints) -> Ints:
        """Return the distance of each reference, or `FIRST`."""
        return self.add_batch(_Batch(blocks))

    def add_batch(self, batch: _Batch) -> Ints:
        count = len(batch.blocks)
        here = self._distinct + np.arange(count)
        before, known = batch.previous(here, self._places)
        warm = np.flatnonzero(known)
        distances = np.full(count, FIRST, np.int64)
        given_up = before[warm]
        ranks, ordered = _ranked(given_up)
        distances[warm] = here[warm] - given_up - 1 - greater_before(ranks)
        # Each block moves to where it was asked for last, and all places close up.
        self._places = batch.lasts(here, self._places)
        self._places -= np.searchsorted(ordered, self._places)
        self._distinct += count - len(given_up)
        self._count(distances[warm])
        return distances

    def hits(self, capacity: int) -> int:
        """Return what LRU finds with room for `capacity` blocks."""
        return int(self.counts[:capacity].sum())

    def _count(self, distances: Ints) -> None:
        size = max(len(self.counts), int(distances.max(initial=-1)) + 1)
        self.counts = np.bincount(distances, minlength=size) + np.pad(
            self.counts, (0, size - len(self.counts))
        )


def _ranked(values: Ints) -> tuple[Ints, Ints]:
    """Return the rank of each of different values, and the values in order."""
    order = np.argsort(values)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    return ranks, values[order]


def greater_before(ranks: Ints) -> Ints:
    """Return for each entry of a permutation of 0..n-1 how many greater ones are before it.

    From the highest bit down: of two entries that agree above a bit, the one with the bit is
    greater. So the entries that lack it count those before them that have it, among those that
    agree above; then these are parted, the order kept.
    """
    count = len(ranks)
    bits = max(1, (count - 1).bit_length())
    entries: Ints = np.arange(1 << bits)  # those added are behind and greater: counted nowhere
    entries[:count] = ranks
    greater: Ints = np.zeros(1 << bits, np.int64)
    for bit in reversed(range(bits)):
        half = 1 << bit
        entries, greater = (rows.reshape(-1, 2 * half) for rows in (entries, greater))
        has = (entries >> bit & 1).astype(bool)
        greater = greater + np.where(has, 0, np.cumsum(has, axis=1))
        entries, greater = _parted(entries, has, half), _parted(greater, has, half)
    return greater.reshape(-1)[ranks]


def _parted(rows: Ints, upper: Bools, half: int) -> Ints:
    """Return each row with its lower entries first; half of a row is lower."""
    return np.concatenate((rows[~upper].reshape(-1, half), rows[upper].reshape(-1, half)), axis=1)


# --- the reuse of a stream of requests ---


class Room(Struct, frozen=True, kw_only=True):
    """What an LRU cache of `blocks` finds. `share` is of the unique blocks; `nbytes` are those of
    `blocks` of mean size."""

    share: float
    blocks: int
    nbytes: int
    hits: int
    hit_ratio: float


class Growth(Struct, frozen=True, kw_only=True):
    """What had been asked for until an instant."""

    at_s: float
    requests: int
    references: int
    unique_blocks: int
    unique_bytes: int


class WorkingSet(Struct, frozen=True, kw_only=True):
    """What was asked for in the last `window_s` seconds: the mean over the whole time."""

    window_s: int
    blocks: float
    nbytes: float


class ReuseFigures(Struct, frozen=True, kw_only=True):
    """`hits` are those of a cache without limits, which finds what was stored before the first
    request and what was asked for; all else are first references, which no cache finds;
    `prefix_hits` of them stand before the first miss of their request. `own_hits` have been asked
    for by the same conversation (None: not looked at). Tokens are those of the whole sequences,
    what is behind the last block included."""

    references: int
    unique_blocks: int
    never_again: int
    bytes_referenced: int
    footprint_bytes: int
    hits: int
    first_references: int
    hit_ratio: float | None
    prefix_hits: int
    prefix_hit_ratio: float | None
    token_hit_ratio: float | None
    own_hits: int | None
    own_hit_ratio: float | None
    lru: Sequence[Room]
    lru_curve: Sequence[Room]
    distance_blocks: Spread | None
    time_s: Spread | None
    growth: Sequence[Growth]
    working_sets: Sequence[WorkingSet]


class Reuse:
    """Counts the reuse of requests that are added in their order; `by_conversation` also counts
    what each conversation has asked for itself, and remembers for it who asked for what."""

    def __init__(self, *, by_conversation: bool = False) -> None:
        self._numbers: dict[Key, int] = {}
        self._sizes = array("q")  # bytes of each numbered block
        self._owners = _Owners() if by_conversation else None
        self._pending = _Pending()
        self._stack = StackDistances()
        self._times = Times()
        self._residence = _Residence()
        self._growth = _Samples()
        self._requests = self._references = self._alone = 0
        self._bytes = self._unique_bytes = 0
        self._hits = self._prefix_hits = 0
        self._tokens = self._hit_tokens = 0
        self._begin_ns: int | None = None
        self._now_ns = 0  # since the first request

    def add(self, request: Request) -> None:
        if self._begin_ns is None:
            self._begin_ns = request.intended_ns
        at_ns = self._now_ns = max(self._now_ns, request.intended_ns - self._begin_ns)
        self._requests += 1
        self._references += len(request.blocks)
        self._tokens += request.tail_tokens
        if request.once:
            self._add_alone(request, at_ns)
        else:
            self._add_shared(request, at_ns)
        self._growth.add(
            (
                at_ns, self._requests, self._references,
                len(self._numbers) + self._alone, self._unique_bytes,
            )
        )  # fmt: skip
        if self._pending.full(len(self._numbers)):
            self._flush()

    def store(self, blocks: Iterable[Block]) -> None:
        """Add blocks that are there before the first request."""
        count = 0
        for key, _, nbytes, _ in blocks:
            if key in self._numbers:
                continue
            self._pending.blocks.append(len(self._numbers))
            self._numbers[key] = len(self._numbers)
            self._sizes.append(nbytes)
            self._unique_bytes += nbytes
            count += 1
        self._pending.end(count, 0)

    def figures(self) -> ReuseFigures:
        """Return the figures of all requests so far."""
        self._flush()
        unique = len(self._numbers) + self._alone
        return ReuseFigures(
            references=self._references,
            unique_blocks=unique,
            never_again=self._alone,
            bytes_referenced=self._bytes,
            footprint_bytes=self._unique_bytes,
            hits=self._hits,
            first_references=self._references - self._hits,
            hit_ratio=_ratio(self._hits, self._references),
            prefix_hits=self._prefix_hits,
            prefix_hit_ratio=_ratio(self._prefix_hits, self._references),
            token_hit_ratio=_ratio(self._hit_tokens, self._tokens),
            own_hits=self._owners.hits if self._owners else None,
            own_hit_ratio=_ratio(self._owners.hits, self._references) if self._owners else None,
            lru=[self._room(share, int(unique * share)) for share in LRU_SHARES],
            lru_curve=[self._room(size / unique, size) for size in _sizes_of(unique)],
            distance_blocks=spread(np.arange(len(self._stack.counts)), self._stack.counts),
            time_s=self._times.spread(NS_PER_S),
            growth=[Growth(at_s=at_ns / NS_PER_S, requests=r, references=n, unique_blocks=u,
                           unique_bytes=b) for at_ns, r, n, u, b in self._growth.rows()],
            working_sets=self._residence.means(self._now_ns, self._view_sizes()),
        )  # fmt: skip

    def _add_shared(self, request: Request, at_ns: int) -> None:
        numbers, note, owners = self._numbers, self._pending.blocks.append, self._owners
        hits = 0
        prefix = -1
        filled = request.tokens_in_blocks
        self._tokens += sum(filled)
        for (key, _, nbytes, _), tokens in zip(request.blocks, filled, strict=True):
            number = numbers.get(key)
            self._bytes += nbytes
            if number is None:
                number = numbers[key] = len(numbers)
                self._sizes.append(nbytes)
                self._unique_bytes += nbytes
                if prefix < 0:
                    prefix = hits
            else:
                hits += 1
                self._hit_tokens += tokens
            note(number)
            if owners is not None:
                owners.see(request.conversation, number)
        self._hits += hits
        self._prefix_hits += hits if prefix < 0 else prefix
        self._pending.end(len(request.blocks), at_ns)

    def _add_alone(self, request: Request, at_ns: int) -> None:
        count, nbytes = len(request.blocks), request.total_bytes
        self._tokens += request.context_tokens - request.tail_tokens
        self._alone += count
        self._bytes += nbytes
        self._unique_bytes += nbytes
        self._residence.alone(at_ns, count, nbytes)
        if self._numbers:  # else there is nothing yet that they could push out
            self._pending.blocks.extend([NEVER_AGAIN] * count)
            self._pending.end(count, at_ns)

    def _flush(self) -> None:
        blocks, times_ns = self._pending.take()
        if not len(blocks):
            return
        batch = _Batch(blocks)
        self._stack.add_batch(batch)
        self._times.add_all(self._residence.add(batch, times_ns, self._view_sizes()))

    def _view_sizes(self) -> Ints:
        return np.array(self._sizes, np.int64)

    def _room(self, share: float, blocks: int) -> Room:
        unique = len(self._numbers) + self._alone
        hits = self._stack.hits(blocks)
        return Room(
            share=share,
            blocks=blocks,
            nbytes=self._unique_bytes * blocks // unique if unique else 0,
            hits=hits,
            hit_ratio=hits / self._references if self._references else 0.0,
        )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _sizes_of(unique: int) -> list[int]:
    """Return sizes from one block to all of them, evenly on a logarithmic scale."""
    if not unique:
        return []
    return [int(size) for size in np.unique(np.geomspace(1, unique, _CURVE_POINTS).round())]


class _Pending:
    """References that are not counted yet."""

    def __init__(self) -> None:
        self.blocks = array("q")
        self._counts = array("q")
        self._times_ns = array("q")

    def end(self, count: int, at_ns: int) -> None:
        """Note that the last `count` of them came at `at_ns`."""
        self._counts.append(count)
        self._times_ns.append(min(at_ns, _LAST_NS))

    def full(self, known: int) -> bool:
        """Return whether to count them: with many blocks, one reference costs as much as many."""
        return len(self.blocks) >= max(_LEAST_BATCH, known // 4)

    def take(self) -> tuple[Ints, Ints]:
        """Return blocks and instants, one each a reference, and forget them."""
        blocks = np.array(self.blocks, np.int64)
        times_ns = np.repeat(np.array(self._times_ns, np.int64), np.array(self._counts, np.int64))
        for part in (self.blocks, self._counts, self._times_ns):
            del part[:]
        return blocks, times_ns


class _Owners:
    """Which conversations have asked for which blocks."""

    def __init__(self) -> None:
        self._conversations: dict[str, int] = {}
        self._first = array("q")  # of each block, the conversation that asked for it first
        self._others: set[tuple[int, int]] = set()
        self.hits = 0

    def see(self, conversation: str, block: int) -> None:
        who = self._conversations.setdefault(conversation, len(self._conversations))
        if block == len(self._first):
            self._first.append(who)
        elif self._first[block] == who or (who, block) in self._others:
            self.hits += 1
        else:
            self._others.add((who, block))


class _Residence:
    """Time between references, and how long blocks are in the working sets of `WINDOWS_S`.

    A block is in a working set for as long as the window after each reference, or until the next
    one. The sum of that over all references, divided by the whole time, is the mean size (Denning
    and Schwartz, "Properties of the working-set model", CACM 15(3), 1972).
    """

    def __init__(self) -> None:
        self._last_ns: Ints = np.empty(0, np.int64)
        self._windows_ns = [seconds * NS_PER_S for seconds in WINDOWS_S]
        self._sums = [[0.0, 0.0] for _ in WINDOWS_S]  # block-ns and byte-ns
        self._recent: deque[list[int]] = deque()  # second, blocks and bytes that are asked for once

    def add(self, batch: _Batch, times_ns: Ints, sizes: Ints) -> Ints:
        """Return the time since the same block's last reference, for those that had one."""
        before_ns, known = batch.previous(times_ns, self._last_ns)
        gaps_ns: Ints = (times_ns - before_ns)[known]
        self._sum(gaps_ns, sizes[batch.blocks[known]])
        self._last_ns = batch.lasts(times_ns, self._last_ns)
        return gaps_ns

    def alone(self, at_ns: int, count: int, nbytes: int) -> None:
        """Add blocks that are asked for once; they stay for the whole window."""
        for window_ns, sums in zip(self._windows_ns, self._sums, strict=True):
            sums[0] += float(window_ns) * count
            sums[1] += float(window_ns) * nbytes
        second = at_ns // NS_PER_S
        if self._recent and self._recent[-1][0] == second:
            self._recent[-1][1] += count
            self._recent[-1][2] += nbytes
        else:
            self._recent.append([second, count, nbytes])
        while self._recent[0][0] < second - WINDOWS_S[-1]:
            self._recent.popleft()

    def means(self, end_ns: int, sizes: Ints) -> list[WorkingSet]:
        """Return the working sets of the windows that are no longer than the whole time."""
        working_sets = []
        for seconds, window_ns, sums in zip(WINDOWS_S, self._windows_ns, self._sums, strict=True):
            if window_ns > end_ns:
                continue
            left_ns = np.minimum(window_ns, end_ns - self._last_ns)
            blocks = sums[0] + float(left_ns.sum(dtype=np.float64))
            nbytes = sums[1] + float((left_ns.astype(np.float64) * sizes).sum())
            for second, count, size in self._recent:  # what would reach beyond the end
                beyond_ns = max(0, second * NS_PER_S + window_ns - end_ns)
                blocks -= float(beyond_ns) * count
                nbytes -= float(beyond_ns) * size
            working_sets.append(
                WorkingSet(window_s=seconds, blocks=blocks / end_ns, nbytes=nbytes / end_ns)
            )
        return working_sets

    def _sum(self, gaps_ns: Ints, sizes: Ints) -> None:
        for window_ns, sums in zip(self._windows_ns, self._sums, strict=True):
            stays_ns = np.minimum(window_ns, gaps_ns).astype(np.float64)
            sums[0] += float(stays_ns.sum())
            sums[1] += float((stays_ns * sizes).sum())


class _Samples:
    """Rows of a stream, evenly apart and never more than `_MOST_SAMPLES`, and the last."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._every = 1
        self._seen = 0
        self._last: tuple[int, ...] | None = None

    def add(self, row: tuple[int, ...]) -> None:
        self._last = row
        if self._seen % self._every == 0:
            self._rows.append(row)
            if len(self._rows) == _MOST_SAMPLES:
                self._rows = self._rows[::2]
                self._every *= 2
        self._seen += 1

    def rows(self) -> list[tuple[int, ...]]:
        if self._last is None or self._rows[-1] == self._last:
            return self._rows
        return [*self._rows, self._last]
