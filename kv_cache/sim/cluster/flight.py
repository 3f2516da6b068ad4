"""One request on its way through the cluster, and what it holds in an instance.

The phases are those of serving engines: queued, prefill, decode queue (computed, and without
memory where it is to decode), transfer (of its state: there, or back from where it was swapped to),
decode; loading goes on beside prefill. A flight only remembers; instances and the cluster decide.
"""

from dataclasses import dataclass, field

from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.prefix_match import missing
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.segments import BlockExtent, BlockPool, Segment, become_ready, blocks_of

QUEUED, PREFILL, DECODE_QUEUE, TRANSFER, DECODE, ENDED = range(6)


@dataclass(slots=True, eq=False)
class Hold:
    """Memory of one pool that belongs to a flight: pinned segments and private blocks. `shared` are
    the blocks of its sequence that the pinned segments have."""

    pool: BlockPool
    pins: list[Segment] = field(default_factory=list)
    private: int = 0
    shared: int = 0

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


@dataclass(slots=True, eq=False)
class Flight:
    """The state of one request. Instances are numbers, -1 if there is none yet."""

    request: ClusterRequest
    path: tuple[int, ...]
    arrival_ns: int
    measured: bool
    phase: int = QUEUED
    kind: int = 0  # its class, by the place of that
    expected: int = field(init=False)  # tokens of its answer, as far as is known beforehand
    target: int = field(init=False)  # tokens whose state is there when prefill ends
    computed: int = 0  # of them: found or computed so far
    generated: int = 0  # tokens of the answer that are out
    hit_tokens: int = -1  # found at its first admission; -1 before
    admitted_ns: int = -1
    first_ns: int = -1  # its first token is out
    second_ns: int = -1  # its second one is, if it is measured
    load_ns: int = 0  # that its first token waited for loads alone
    loads_since_ns: int = 0  # since when nothing but loads keeps it
    room_ns: int = 0  # there is memory for it where it decodes, or it is known that there is none
    send_ns: int = -1  # its state began to be sent to where it decodes
    chunk_ns: int = -1  # the first part of it is there
    landed_ns: int = -1  # all of it is
    out_ns: int = -1  # its latest token is out
    order: int = 0  # the n-th to be admitted where it is: the last one is preempted first
    begun: int = 0  # the n-th beginning where it is, of a prompt or of an answer
    joined_step: int = 0
    finish_step: int = 0
    ticket: int = 0  # of the batch that it decodes in; 0: in none
    loads: int = 0  # transfers to where it prefills that it waits for
    swapped: int = 0  # blocks in host memory
    retries: int = 0  # other instances that were asked to serve it
    moved: bool = False  # to another of them, where it has not been admitted yet
    home: int = -1  # the instance that prefills
    hold: Hold | None = None  # its memory there; once it decodes elsewhere, there
    decoder: int = -1  # the instance that decodes, if it is another one
    landing_order: int = 0  # its order there
    landing: Hold | None = None  # what it has there while its state is being sent
    sending: int = 0  # transfers there that are under way
    sent: int = 0  # tokens sent there, or found there
    prepared: bool = False  # all that is to be sent is computed
    work_at: int = -1  # where routers count what it costs, in ns
    prefill_work: int = 0  # still to come
    answer_work: int = 0
    decode_work: int = 0  # where it decodes, if that is elsewhere

    def __post_init__(self) -> None:
        self.target = self.request.prompt_tokens
        self.expected = self.request.output_tokens

    def answered_offer(self, now_ns: int) -> None:
        """There is memory for it where it decodes, or it is known that there is none; what comes
        behind its second token, or behind its state, is of another instance."""
        if self.second_ns < 0 and self.landed_ns < 0:
            self.room_ns = now_ns

    @property
    def stored_tokens(self) -> int:
        """Tokens whose state is there in the end: the last one's is never computed."""
        return self.request.prompt_tokens + self.request.output_tokens - 1
