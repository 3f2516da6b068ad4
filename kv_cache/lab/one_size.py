"""Eviction policies over blocks of one size, as short ways past the seam to those of the tiers.

Where all blocks have one size and none is pinned, a policy needs no items, keys or bytes: a node of
each block stands in the chain where the block is, or is remembered. Each class here must evict
exactly what the policy of the same name in `policy/eviction` does, whose theory and papers are
there; a policy with numbers of its own, or behind an admission policy, goes through the seam.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol, cast

from kv_cache.lab.accesses import AccessPart
from kv_cache.lab.shared_state import SharedState
from kv_cache.policy.eviction.chain import Chain, append, take
from kv_cache.policy.eviction.counts import CountBucket, close, insert_above
from kv_cache.policy.eviction.greedy_dual import WorthLine
from kv_cache.policy.eviction.mq import GHOST_SHARE as MQ_GHOST_SHARE
from kv_cache.policy.eviction.mq import LIFETIME, QUEUES, Expiring, lower_expired
from kv_cache.policy.eviction.s3fifo import GHOST_SHARE, MOST_HITS, SMALL_SHARE, TO_MAIN

_GONE, _FIRST, _SECOND, _FIRST_GHOSTS, _SECOND_GHOSTS = range(5)


class Node(Expiring):
    """One block that is in the cache, or is remembered. `state` is the chain that it stands in;
    those up to `_SECOND` are of the cache. `bucket` and `line` are there from its first use on,
    where the policy has them."""

    __slots__ = ("block", "bucket", "count", "height", "here", "line", "state", "turn")
    bucket: CountBucket
    line: WorthLine

    def __init__(self) -> None:
        self.block = 0
        self.here = False
        self.state = _GONE
        self.count = 0  # of its uses, or marks
        self.expires = self.turn = 0
        self.height = 0.0


class OneSize:
    """A cache of `room` blocks, 1 or more, of `size` bytes. Nodes of what is forgotten are used
    again, so that there are no more than the cache and its memory hold: those stay near."""

    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        self._nodes: list[Node | None] = [None] * shared.accesses.unique
        self._spare: list[Node] = []
        self._free = room_bytes // size
        self.evicted = self.refused = 0

    def blocks(self, part: AccessPart) -> list[int]:
        nodes = self._nodes
        missed: list[int] = []
        for at, block in enumerate(part.blocks):
            node = nodes[block]
            if node is not None and node.here:
                self.hit(node)
            else:
                missed.append(at)
                self._store(block, node)
        return missed

    def prefix(self, part: AccessPart) -> list[int]:
        nodes, blocks = self._nodes, part.blocks
        gaps: list[int] = []
        for at, end in part.requests():
            while at < end:
                node = nodes[blocks[at]]
                if node is None or not node.here:
                    break
                self.hit(node)
                at += 1
            gaps.append(at)
            for block in blocks[at:end]:
                node = nodes[block]
                if node is None or not node.here:
                    self._store(block, node)
        return gaps

    def _store(self, block: int, node: Node | None) -> None:
        if node is None:
            node = self._nodes[block] = self._spare.pop() if self._spare else Node()
            node.block = block
        self.expect(node)
        if self._free:
            self._free -= 1
        else:
            victim = self.evict()
            victim.here = False
            self.evicted += 1
            if victim.state == _GONE:
                self.forget(victim)
        node.here = True
        self.insert(node)

    def forget(self, node: Node) -> None:
        """Let the node of a block that is in no chain stand for another one."""
        self._nodes[node.block] = None
        self._spare.append(node)

    def expect(self, node: Node) -> None:
        """Room for this block, which is not here, is looked for now."""

    def insert(self, node: Node) -> None:
        raise NotImplementedError

    def hit(self, node: Node) -> None:
        raise NotImplementedError

    def evict(self) -> Node:
        """Let the best victim go, and return it."""
        raise NotImplementedError


class OneSizeClock(OneSize):
    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared)
        self._ring = Chain()  # its front is where the hand stands

    def insert(self, node: Node) -> None:
        node.count = 0
        append(node, self._ring)

    def hit(self, node: Node) -> None:
        node.count = 1

    def evict(self) -> Node:
        ring = self._ring
        while True:
            front = cast(Node, ring.after)
            take(front)
            if not front.count:
                return front
            front.count = 0
            append(front, ring)


class OneSizeSieve(OneSize):
    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared)
        self._ahead, self._passed = Chain(), Chain()  # of the hand

    def insert(self, node: Node) -> None:
        node.count = 0
        append(node, self._ahead)

    def hit(self, node: Node) -> None:
        node.count = 1

    def evict(self) -> Node:
        while True:
            front = cast(Node, self._ahead.after)
            take(front)
            marked = front.count
            if marked:
                front.count = 0
                append(front, self._passed)
            if self._ahead.empty:
                self._ahead, self._passed = self._passed, self._ahead
            if not marked:
                return front


class OneSizeLfu(OneSize):
    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared)
        self._ends = CountBucket(0)  # before the lowest and after the highest

    def insert(self, node: Node) -> None:
        self._join(node, 1, self._ends)

    def hit(self, node: Node) -> None:
        old = node.bucket
        take(node)
        self._join(node, old.count + 1, old)
        if old.empty:
            close(old)

    def evict(self) -> Node:
        bucket = self._ends.higher
        node = cast(Node, bucket.after)
        take(node)
        if bucket.empty:
            close(bucket)
        return node

    def _join(self, node: Node, uses: int, lower: CountBucket) -> None:
        bucket = lower.higher
        if bucket.count != uses:
            bucket = insert_above(CountBucket(uses), lower)
        node.bucket = bucket
        append(node, bucket)


class OneSizeArc(OneSize):
    """Targets and limits are bytes, as the policy has them."""

    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared)
        self._capacity, self._size = room_bytes, size
        self._room, self._most = room_bytes // size, 2 * room_bytes // size  # blocks
        self._chains = [Chain() for _ in range(5)]  # T1, T2, B1 and B2 by state
        self._t1 = self._t2 = self._b1 = self._b2 = 0  # blocks in each
        self._p = 0.0
        self._from_b2 = False

    def expect(self, node: Node) -> None:
        state, size = node.state, self._size
        self._from_b2 = state == _SECOND_GHOSTS
        if state == _FIRST_GHOSTS:
            step = size * max(1.0, self._b2 * size / (self._b1 * size))
            self._p = min(float(self._capacity), self._p + step)
        elif state == _SECOND_GHOSTS:
            step = size * max(1.0, self._b1 * size / (self._b2 * size))
            self._p = max(0.0, self._p - step)

    def insert(self, node: Node) -> None:
        if node.state == _GONE:
            node.state = _FIRST
            self._t1 += 1
        else:
            take(node)
            if node.state == _FIRST_GHOSTS:
                self._b1 -= 1
            else:
                self._b2 -= 1
            node.state = _SECOND
            self._t2 += 1
        append(node, self._chains[node.state])
        ghosts = self._b1 + self._b2
        if ghosts and self._t1 + self._t2 + ghosts > self._room:
            self._cut()

    def hit(self, node: Node) -> None:
        before, after, chain = node.before, node.after, self._chains[_SECOND]  # take(node)
        before.after = after
        after.before = before
        if node.state == _FIRST:
            node.state = _SECOND
            self._t1 -= 1
            self._t2 += 1
        last = chain.before  # append(node, chain)
        node.before, node.after = last, chain
        last.after = chain.before = node

    def evict(self) -> Node:
        t1_bytes = self._t1 * self._size
        over = t1_bytes > self._p or (self._from_b2 and t1_bytes == self._p)
        if self._t1 and (over or not self._t2):
            node = cast(Node, self._chains[_FIRST].after)
            self._t1 -= 1
            self._b1 += 1
            node.state = _FIRST_GHOSTS
        else:
            node = cast(Node, self._chains[_SECOND].after)
            self._t2 -= 1
            self._b2 += 1
            node.state = _SECOND_GHOSTS
        take(node)
        append(node, self._chains[node.state])
        return node

    def _cut(self) -> None:
        """Forget the oldest ghosts that are too many."""
        while self._b1 and self._t1 + self._b1 > self._room:
            self._forget(_FIRST_GHOSTS)
        here = self._t1 + self._t2
        while here + self._b1 + self._b2 > max(self._most, here):
            self._forget(_SECOND_GHOSTS if self._b2 else _FIRST_GHOSTS)

    def _forget(self, ghosts: int) -> None:
        oldest = cast(Node, self._chains[ghosts].after)
        take(oldest)
        oldest.state = _GONE
        self.forget(oldest)
        if ghosts == _FIRST_GHOSTS:
            self._b1 -= 1
        else:
            self._b2 -= 1


class _OneSizeGhosts(OneSize):
    """With `share` of the room for the names of what was evicted, the oldest forgotten first."""

    def __init__(self, room_bytes: int, size: int, shared: SharedState, share: float) -> None:
        super().__init__(room_bytes, size, shared)
        self._ghosts = Chain()
        self._most_ghosts = int(room_bytes * share) // size
        self._ghost_count = 0

    def recall(self, node: Node) -> bool:
        """Return whether a block is remembered, and remember it no more: so that what makes room
        for it does not push it out."""
        if node.state != _FIRST_GHOSTS:
            return False
        take(node)
        node.state = _GONE
        self._ghost_count -= 1
        return True

    def remember(self, node: Node) -> None:
        append(node, self._ghosts)
        node.state = _FIRST_GHOSTS
        if self._ghost_count < self._most_ghosts:
            self._ghost_count += 1
            return
        oldest = cast(Node, self._ghosts.after)
        take(oldest)
        oldest.state = _GONE
        if oldest is not node:
            self.forget(oldest)


class OneSizeS3Fifo(_OneSizeGhosts):
    """The small queue is `_FIRST`, the main queue `_SECOND`; `count` are hits."""

    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared, GHOST_SHARE)
        self._small, self._main = Chain(), Chain()
        self._in_small = 0
        self._full = -(-int(room_bytes * SMALL_SHARE) // size)  # blocks that fill the small queue
        self._cold = 0  # blocks of the main queue without hits
        self._known = False

    def expect(self, node: Node) -> None:
        self._known = self.recall(node)

    def insert(self, node: Node) -> None:
        node.count = 0
        if self._known or (not self.evicted and self._in_small >= self._full):
            self._to_main(node)
        else:
            node.state = _FIRST
            append(node, self._small)
            self._in_small += 1

    def hit(self, node: Node) -> None:
        if node.count < MOST_HITS:
            if not node.count and node.state == _SECOND:
                self._cold -= 1
            node.count += 1

    def evict(self) -> Node:
        main_first = self._in_small < self._full and not self._main.empty
        if self._in_small and not main_first:
            victim = self._from_small()
            if victim is not None:
                return victim
        return self._from_main()

    def _from_small(self) -> Node | None:
        """Move what was hit to the main queue, and return the first that was not; None if the
        small queue is no longer full. If all of the main queue was hit, too, the first goes
        unmoved, as it would be the first without hits there."""
        if not self._cold and not self._one_leaves():
            return self._leave_small(cast(Node, self._small.after))
        while self._in_small >= self._full and self._in_small:
            front = cast(Node, self._small.after)
            if front.count < TO_MAIN:
                return self._leave_small(front)
            take(front)
            self._in_small -= 1
            front.count = 0
            self._to_main(front)
        return None

    def _one_leaves(self) -> bool:
        """Return whether the small queue has a victim before it is no longer full."""
        node, left = self._small.after, self._in_small
        while left and left >= self._full:
            if cast(Node, node).count < TO_MAIN:
                return True
            node = node.after
            left -= 1
        return False

    def _leave_small(self, node: Node) -> Node:
        take(node)
        self._in_small -= 1
        self.remember(node)
        return node

    def _to_main(self, node: Node) -> None:
        node.state = _SECOND
        append(node, self._main)
        self._cold += 1

    def _from_main(self) -> Node:
        main = self._main
        while True:
            front = cast(Node, main.after)
            take(front)
            if not front.count:
                self._cold -= 1
                front.state = _GONE
                return front
            front.count -= 1
            self._cold += not front.count
            append(front, main)


class OneSizeMq(_OneSizeGhosts):
    """`count` are uses, which a ghost keeps."""

    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared, MQ_GHOST_SHARE)
        self._queues = [Chain() for _ in range(QUEUES)]
        self._now = 0
        self._none_due_until = LIFETIME  # no head expires before it

    def expect(self, node: Node) -> None:
        if not self.recall(node):
            node.count = 0

    def insert(self, node: Node) -> None:
        node.count += 1
        self._accessed(node)

    def hit(self, node: Node) -> None:
        take(node)
        node.count += 1
        self._accessed(node)

    def evict(self) -> Node:
        for queue in self._queues:
            if not queue.empty:
                break
        node = cast(Node, queue.after)
        take(node)
        self.remember(node)
        return node

    def _accessed(self, node: Node) -> None:
        level, uses = 0, node.count >> 1
        while uses and level < QUEUES - 1:
            level += 1
            uses >>= 1
        append(node, self._queues[level])
        node.expires = self._now + LIFETIME
        self._now += 1
        if self._now > self._none_due_until:
            self._none_due_until = lower_expired(self._queues, self._now, LIFETIME)


class OneSizeGdsf(OneSize):
    """Blocks cost as much, too, so that a line is of a number of uses."""

    def __init__(self, room_bytes: int, size: int, shared: SharedState) -> None:
        super().__init__(room_bytes, size, shared)
        self._worth = max(shared.accesses.cost or 0, 1) / max(size, 1)
        self._most_lines = 2 * self._free + 64
        self._lines: dict[int, WorthLine] = {}  # those that are filed
        self._heap: list[tuple[float, int, WorthLine]] = []
        self._floor = 0.0
        self._turns = 0

    def insert(self, node: Node) -> None:
        self._join(node, self._line_of(1))

    def hit(self, node: Node) -> None:
        take(node)
        old = node.line
        line = old.higher
        if line is None or not line.filed:
            line = self._line_of(old.uses + 1)
            if old.filed:
                old.higher = line
        self._join(node, line)

    def evict(self) -> Node:
        heap = self._heap
        while True:
            _, turn, line = heap[0]
            if line.empty:
                heappop(heap)
                self._close(line)
                continue
            first = cast(Node, line.after)
            if first.turn == turn:
                break
            heapreplace(heap, (first.height, first.turn, line))
        if first.height > self._floor:
            self._floor = first.height
        take(first)
        return first

    def _line_of(self, uses: int) -> WorthLine:
        """Return the line of so many uses, which the caller joins."""
        line = self._lines.get(uses)
        if line is None:
            if len(self._heap) > self._most_lines:  # hits alone leave lines behind
                for each in [each for each in self._lines.values() if each.empty]:
                    self._close(each)
                self._heap = [entry for entry in self._heap if entry[2].filed]
                heapify(self._heap)
            line = self._lines[uses] = WorthLine(self._worth, uses, uses * self._worth)
            heappush(self._heap, (self._floor + line.value, self._turns + 1, line))
        return line

    def _close(self, empty: WorthLine) -> None:
        del self._lines[empty.uses]
        empty.filed = False
        empty.higher = None

    def _join(self, node: Node, line: WorthLine) -> None:
        node.line = line
        node.height = self._floor + line.value
        node.turn = self._turns = self._turns + 1
        append(node, line)


class _Make(Protocol):
    def __call__(self, room_bytes: int, size: int, shared: SharedState) -> OneSize: ...


ONE_SIZE: Mapping[str, _Make] = {
    "lfu": OneSizeLfu,
    "clock": OneSizeClock,
    "arc": OneSizeArc,
    "s3-fifo": OneSizeS3Fifo,
    "sieve": OneSizeSieve,
    "mq": OneSizeMq,
    "gdsf": OneSizeGdsf,
}
"""By the name of the policy that each is a short way to."""
