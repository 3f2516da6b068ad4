"""One request on its way through the cluster, and what it holds in an instance.

The phases are those of serving engines: queued, prefill, transfer, decode; loading goes on beside
prefill. A flight only remembers; instances and the cluster decide.
"""

from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.prefix_match import missing
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.segments import BlockExtent, BlockPool, Segment, become_ready, blocks_of

QUEUED, PREFILL, TRANSFER, DECODE, ENDED = range(5)


class Hold:
    """Memory of one pool that belongs to a flight: pinned segments and private blocks. `shared` are
    the blocks of its sequence that the pinned segments have."""

    __slots__ = ("pins", "pool", "private", "shared")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.pins: list[Segment] = []
        self.private = 0
        self.shared = 0

    def release(self) -> None:
        pool = self.pool
        for segment in self.pins:
            pool.unpin(segment)
        self.pins.clear()
        if self.private:
            pool.give(self.private)
            self.private = 0

    def share(self, path: tuple[int, ...], chain: PrefixChain, depth: int) -> list[BlockExtent]:
        """Turn private blocks of the sequence, down to `depth`, into segments that others may use,
        as far as the pool lacks them. Returns what is new."""
        pool = self.pool
        extents = missing(pool, path, chain, depth)
        if self.shared + blocks_of(extents) < depth:
            self._adopt(path, chain, depth)
        for extent in extents:
            blocks = extent.end - extent.start
            assert blocks <= self.private, "what a flight has computed is not in its memory"
            self.private -= blocks
            pool.give(blocks)
            self.pins.append(pool.add(extent, ready=True, pinned=True))
            self.shared += blocks
        return extents

    def _adopt(self, path: tuple[int, ...], chain: PrefixChain, depth: int) -> None:
        """Use what has come here from others meanwhile in place of private blocks, and give those
        back: so all that is before a block in use is in use."""
        pool, shared = self.pool, self.shared
        for node in reversed(path):
            base = chain.depth[node]
            for segment in reversed(pool.segments_of(node)):
                blocks = min(segment.end, depth - base) - max(segment.start, shared - base)
                if blocks <= 0:
                    continue
                pool.pin(segment)
                pool.hit(segment)
                become_ready(segment)
                self.pins.append(segment)
                self.private -= blocks
                self.shared += blocks
                pool.give(blocks)


class Flight:
    __slots__ = (
        "admitted_ns",
        "answer_work",
        "arrival_ns",
        "computed",
        "decode_work",
        "decoder",
        "finish_step",
        "first_ns",
        "generated",
        "hit_tokens",
        "hold",
        "home",
        "joined_step",
        "landing",
        "landing_order",
        "loads",
        "measured",
        "order",
        "out_ns",
        "path",
        "phase",
        "prefill_work",
        "prepared",
        "request",
        "sending",
        "sent",
        "swapped",
        "target",
        "ticket",
        "work_at",
    )  # fmt: skip

    def __init__(
        self, request: ClusterRequest, path: tuple[int, ...], arrival_ns: int, measured: bool
    ) -> None:
        self.request = request
        self.path = path
        self.arrival_ns = arrival_ns
        self.measured = measured
        self.phase = QUEUED
        self.target = request.prompt_tokens  # tokens whose state is there when prefill ends
        self.computed = 0  # of them: found or computed so far
        self.generated = 0  # tokens of the answer that are out
        self.hit_tokens = -1  # found at its first admission; -1 before
        self.admitted_ns = self.first_ns = self.out_ns = -1
        self.order = 0  # the n-th to be admitted where it is: the last one is preempted first
        self.joined_step = self.finish_step = 0
        self.ticket = 0  # of the batch that it decodes in; 0: in none
        self.loads = 0  # transfers to where it prefills that it waits for
        self.swapped = 0  # blocks in host memory
        self.home = -1  # the instance that prefills
        self.hold: Hold | None = None  # there; once it decodes elsewhere, there
        self.decoder = -1  # the instance that decodes, where it is another one
        self.landing_order = 0  # its order there
        self.landing: Hold | None = None  # what it has there while its state is being sent
        self.sending = 0  # transfers there that are under way
        self.sent = 0  # tokens sent there, or found there
        self.prepared = False  # all that is to be sent is computed
        self.work_at = -1  # where routers count what it costs, in ns
        self.prefill_work = 0  # still to come
        self.answer_work = 0
        self.decode_work = 0  # where it decodes, if that is elsewhere

    @property
    def stored_tokens(self) -> int:
        """Tokens whose state is there in the end: the last one's is never computed."""
        return self.request.prompt_tokens + self.request.output_tokens - 1
