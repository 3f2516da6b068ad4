"""One request, from arrival to record: the only place that says what a request does.

A life is a pure generator. It asks the cache what is resident, decides, and yields an effect
("read these copies", "write this one", "compute 3 ms"); it is sent back what happened and when.
`bench/` performs effects with threads and real bytes, `sim/` charges them to models on a virtual
clock. Between two yields the code runs alone.

It must never look at a clock, draw a number, or wait for room while it holds pins: what holds
something always runs to its end, so nothing waits for ever.
"""

from collections.abc import Callable, Generator, Mapping, Sequence

from msgspec import Struct, field

from kv_cache.cache.copies import NO_POSITIONS, Position, positions_of
from kv_cache.cache.counts import CopyTally
from kv_cache.cache.ledger import Claim
from kv_cache.cache.manager import CacheManager
from kv_cache.cache.plans import RoomPlan
from kv_cache.core.block import Block, Key
from kv_cache.core.effect import (
    VANISHED,
    Await,
    Compute,
    CopyRef,
    Delete,
    Done,
    Effect,
    Life,
    Move,
    OpDone,
    Read,
    Spawn,
    Token,
    Transfer,
    Write,
)
from kv_cache.core.kinds import Cause, Lookup, OpKind, Outcome, RunMode, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.core.units import MIB
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.ahead import Ahead

_KNOWN = (Lookup.TURNS, Lookup.OPERATION)  # `Request.new_from` says what others may have left
_SEQUENCES = (Lookup.TURNS, Lookup.CONTENT)  # each block attends over those before it

_LEAST_BLOCKS, _MOST_BLOCKS = 8, 64  # of a batch whose size nobody gave
_BATCH_BYTES, _PLACE_BYTES = 64 * MIB, 16 * MIB  # of such a batch, and of a place in a queue

NOWHERE = "fits-nowhere"
ROOM_LOST = "room-not-made"


class Semantics(Struct, frozen=True, kw_only=True):
    """What a request does, apart from how fast. `config/root.py` has the two presets.

    `reuse_prefix`: look up all blocks and use the longest resident prefix, computing the rest
    (serving engines); otherwise look up each block of earlier turns by itself and compute only
    this turn's (the reference benchmark).
    """

    reuse_prefix: bool
    decode_rereads: bool
    decode_batch_tokens: int
    promote: bool
    write_behind: bool
    write_behind_drop: bool  # drop a store when the queue is full, instead of waiting
    gpu_in_place: bool
    prefill_only_from_tokens: int  # 0 = never; the reference ends a request of 10000 at prefill
    prefill_ns_per_token: int
    decode_ns_per_token: int
    batch_blocks: int | None  # that one request stores or promotes at once; None: by their size


class Through(Struct, eq=False, kw_only=True):
    """Write-through: what is stored above the last tier is copied there in the background, through
    a queue of bounded length. `selective`: only what the last tier admits, which it is asked when
    a block is stored and when it is used again."""

    gate: Gate
    selective: bool
    written: CopyTally = field(default_factory=CopyTally)
    failed: CopyTally = field(default_factory=CopyTally)
    dropped_blocks: int = 0  # as the queue was full


class World(Struct, eq=False, kw_only=True):
    """What all requests of a run share."""

    cache: CacheManager
    semantics: Semantics
    mode: RunMode
    stores: Gate  # --max-concurrent-allocs and in-flight bytes
    behind: Gate  # the bounded write-behind queue
    through: Through | None = None  # None: what is stored goes down when its tier makes room
    ahead: Ahead | None = None  # None: nothing is brought up ahead
    announced: dict[Key, Token] = field(default_factory=dict)  # blocks in that queue
    groups: int = 0  # handed to that queue so far; numbers their tokens
    dropped_stores: int = 0
    first_tokens: dict[int, int] = field(default_factory=dict)
    """When live requests had theirs: all that is known of those that are cut off."""

    def rest(self) -> None:
        """Bring nothing more up ahead, as the last request has ended."""
        if self.ahead is not None:
            self.ahead.rest()


Step = Generator[Effect, Done, None]


class _Progress:
    """The mutable notes of one life; only this file sees them."""

    def __init__(self, request: Request, world: World, started_ns: int) -> None:
        self.request = request
        self.world = world
        self.now_ns = started_ns
        self.error: str | None = None
        self.first_token_ns: int | None = None
        self.looked_up = self.hits = self.hit_tokens = 0
        self.history_looked_up = self.history_hits = 0
        self.shared_looked_up = self.shared_hits = self.shared_hit_bytes = 0
        self.decode_looked_up = self.decode_hits = 0
        self.prefix_hits = 0
        self.unreadable: set[int] = set()
        self.loaded_bytes = self.stored_bytes = 0
        self.load_ns = self.store_ns = self.wait_ns = self.compute_ns = 0
        self.prefilled = self.decoded = False
        self.positions: Mapping[Key, Position] = NO_POSITIONS
        self.unwanted: set[Key] = set()  # what no tier has admitted: it is not offered again

    def first_token(self) -> None:
        self.first_token_ns = self.world.first_tokens[self.request.request_id] = self.now_ns

    def locate(self, start: int) -> None:
        """Find the positions of the blocks from `start` on, if they are a sequence: before what is
        missing of them is stored."""
        if self.request.lookup in _SEQUENCES:
            self.positions = positions_of(self.request.blocks, start)

    def fail(self, reason: str) -> None:
        self.error = self.error or reason


def lifecycle(
    request: Request, world: World, *, enqueued_ns: int, started_ns: int
) -> Generator[Effect, Done, RequestRecord]:
    """Live through the stages of the run mode; the return value is the record."""
    progress = _Progress(request, world, started_ns)
    for stage in STAGES[world.mode]:
        yield from stage(progress)
        if progress.error is not None:
            break
    return _record(progress, enqueued_ns, started_ns)


def populate(blocks: Sequence[Block], world: World) -> Life:
    """Store blocks before the run; failures are visible in the ledger of operations."""
    yield from _store(_Background(world), blocks, Cause.POPULATE)


# --- the stages ----------------------------------------------------------------------------


def _reuse(p: _Progress) -> Step:
    """Load what earlier turns, or other requests with the same prefix, have left behind."""
    request, cache = p.request, p.world.cache
    prefix = _by_prefix(p)
    known = request.lookup in _KNOWN and not prefix
    looked_up = request.blocks[: request.new_from] if known else request.blocks
    yield from _await_stores(p, looked_up, prefix=prefix)
    refs: list[CopyRef | None] = []
    for block in looked_up:
        ref = cache.begin_read(block.key)
        if ref is None and prefix:
            break
        refs.append(ref)
    pinned = [ref for ref in refs if ref is not None]
    yield from _load(p, pinned, Cause.REUSE)
    if p.world.through is not None and p.world.through.selective:
        yield from _write_through(p, pinned)
    yield from _look_ahead(p)
    p.prefix_hits = len(refs) if prefix else 0
    p.looked_up = len(looked_up)
    _count_hits(p, [ref is not None and ref.copy_id not in p.unreadable for ref in refs])


def _count_hits(p: _Progress, hit: Sequence[bool]) -> None:
    """Count hits. `hit` says of the first blocks of the sequence whether they were resident and
    could be read."""
    request = p.request
    p.hits = sum(hit)
    p.hit_tokens = sum(n for n, was in zip(request.tokens_in_blocks, hit, strict=False) if was)
    p.shared_looked_up = request.shared
    p.shared_hits = sum(hit[: request.shared])
    p.shared_hit_bytes = sum(
        block.nbytes
        for block, was in zip(request.blocks, hit[: request.shared], strict=False)
        if was
    )
    p.history_looked_up = request.new_from - request.shared
    p.history_hits = sum(hit[request.shared : request.new_from])


def _prefill(p: _Progress) -> Step:
    """Compute the blocks that are stored nowhere, and store them."""
    request, semantics = p.request, p.world.semantics
    cache = p.world.cache
    if _by_prefix(p):
        needed = request.blocks[p.prefix_hits :]
        computed = needed  # what is resident behind a gap is of no use: it attends over the gap
    elif request.lookup not in _KNOWN:
        needed = request.blocks
        computed = tuple(b for b in needed if cache.resident(b.key) is None)
    else:  # lost history is not made again, as in the reference; a shared prompt is
        needed = request.blocks[: request.shared] + request.blocks[request.new_from :]
        computed = tuple(b for b in needed if cache.resident(b.key) is None)
    missing = [b for b in needed if cache.resident(b.key) is None]
    tokens = sum(b.tokens for b in computed) + request.tail_tokens
    if computed and computed[-1] is request.blocks[-1]:
        tokens -= request.unfilled
    yield from _compute(p, tokens * semantics.prefill_ns_per_token)
    p.prefilled = bool(missing)
    if missing:
        p.locate(p.prefix_hits)
    if semantics.write_behind:
        yield from _store_behind(p, missing)
    else:
        yield from _store(p, missing, Cause.PREFILL)
    p.first_token()


def _decode(p: _Progress) -> Step:
    """Generate: the reference re-reads its object once, then once for each batch of tokens."""
    request, semantics = p.request, p.world.semantics
    if not request.output_tokens and p.world.mode is RunMode.STANDARD:
        return
    limit = semantics.prefill_only_from_tokens
    ends = limit and request.prompt_tokens >= limit and not request.retrieved
    if ends and p.world.mode is RunMode.STANDARD:
        return
    p.decoded = True
    if not semantics.decode_rereads:
        if p.world.mode is RunMode.DECODE_ONLY:
            yield from _read_sequence(p, request.blocks)
            yield from _look_ahead(p)
            p.first_token()
        yield from _compute(p, request.output_tokens * semantics.decode_ns_per_token)
        return
    start = 0 if p.world.mode is RunMode.DECODE_ONLY else _first_new_block(p)
    sequence = request.blocks[start:]
    yield from _read_sequence(p, sequence)
    if p.world.mode is RunMode.DECODE_ONLY:
        yield from _look_ahead(p)
    p.first_token()
    left = request.output_tokens
    while p.error is None:
        yield from _read_sequence(p, sequence)
        tokens = min(left, semantics.decode_batch_tokens)
        yield from _compute(p, tokens * semantics.decode_ns_per_token)
        left -= tokens
        if left <= 0:
            return


STAGES: Mapping[RunMode, tuple[Callable[[_Progress], Step], ...]] = {
    RunMode.STANDARD: (_reuse, _prefill, _decode),
    RunMode.PREFILL_ONLY: (_reuse, _prefill),
    RunMode.DECODE_ONLY: (_decode,),
}


# --- the steps that stages share -------------------------------------------------------------


def _by_prefix(p: _Progress) -> bool:
    """Return whether only the longest resident prefix is of use."""
    return p.world.semantics.reuse_prefix and p.request.lookup in _SEQUENCES


def _first_new_block(p: _Progress) -> int:
    """Return where this turn's new blocks begin: at 0 if the source does not know."""
    return 0 if p.world.semantics.reuse_prefix else p.request.new_from


def _compute(p: _Progress, duration_ns: int) -> Step:
    if duration_ns > 0 and p.error is None:
        done = yield Compute(duration_ns)
        assert done.at_ns - p.now_ns >= duration_ns, "told before it had computed"
        p.compute_ns += done.at_ns - p.now_ns
        p.now_ns = done.at_ns


def _await_stores(p: _Progress, blocks: Sequence[Block], *, prefix: bool) -> Step:
    """Wait for blocks that another request has computed and is still storing: an engine would have
    them in memory, so they are neither a miss nor computed twice. A prefix ends at the first block
    that is not there or on its way. Called before anything is pinned: who holds a pin must not wait
    for a store."""
    cache = p.world.cache
    for block in blocks:
        while cache.resident(block.key) is None:
            token = cache.incoming(block.key) or p.world.announced.get(block.key)
            if token is None:
                if prefix:
                    return
                break
            yield from _wait(p, token)
        if p.world.ahead is not None:
            token = cache.arriving(block.key)
            if token is not None:  # as good as read: reading it below would take longer
                yield from _wait(p, token)


def _look_ahead(p: _Progress) -> Step:
    """Show the prefetch policy what this request uses, and let what it wants be brought up while
    this request computes and its user thinks."""
    ahead, request, cache = p.world.ahead, p.request, p.world.cache
    if ahead is None or request.once:
        return
    wanted = ahead.policy.wanted_after(request.conversation, [b.key for b in request.blocks])
    ahead.want((key for key in wanted if cache.resident(key) is not None), cache.can_rise)
    while ahead.try_enter():
        done = yield Spawn(_prefetch(p.world, ahead))
        p.now_ns = done.at_ns


def _prefetch(world: World, ahead: Ahead) -> Life:
    """Bring up what is wanted, a block at a time, so that a request waits for no copy but its
    own."""
    while (key := ahead.take()) is not None:
        begun = world.cache.begin_prefetch(key, nearest=ahead.nearest)
        if begun is not None:
            plan, source = begun
            yield from _copy(plan, [source], world, Cause.PREFETCH, Cause.PREFETCH)
        elif not world.cache.can_rise(key):
            ahead.given_up_blocks += 1
    ahead.leave()


def _wait(p: _Progress, token: Token) -> Step:
    done = yield Await(token)
    p.wait_ns += done.at_ns - p.now_ns
    p.now_ns = done.at_ns


def _read_sequence(p: _Progress, blocks: Sequence[Block]) -> Step:
    """Read every block once; one that has been dropped meanwhile is a miss, and is stored again."""
    cache = p.world.cache
    yield from _await_stores(p, blocks, prefix=False)
    pinned: list[CopyRef] = []
    missing: list[Block] = []
    for block in blocks:
        p.decode_looked_up += 1
        ref = cache.begin_read(block.key)
        if ref is not None:
            p.decode_hits += 1
            pinned.append(ref)
        else:
            missing.append(block)
    yield from _load(p, pinned, Cause.DECODE)
    missing = [block for block in missing if block.key not in p.unwanted]
    if missing and p.world.mode is not RunMode.DECODE_ONLY and p.error is None:
        p.locate(0)
        yield from _store(p, missing, Cause.DECODE)


def _load(p: _Progress, pinned: Sequence[CopyRef], cause: Cause) -> Step:
    """Load pinned copies, moving them up if promotion is on. Every pin is released."""
    cache, semantics = p.world.cache, p.world.semantics
    here: list[CopyRef] = []  # where they are as fast as can be
    lower: list[CopyRef] = []
    for ref in pinned:
        if semantics.gpu_in_place and ref.tier is Tier.GPU:
            cache.end_read(ref, ok=True)
        elif semantics.promote and ref.tier is not cache.fastest:
            lower.append(ref)
        else:
            here.append(ref)
    began_ns = p.now_ns
    bad: list[CopyRef] = []
    while lower:
        group = lower[: _together(lower[0].nbytes, semantics)]
        plan, count = cache.begin_promotions(group)
        if plan is None:
            here += group[:count]
        else:
            yield from _promote(p, plan, group[:count], cause, bad)
        lower = lower[count:]
    if here:
        yield from _read(p, here, cause, bad)
    if bad:
        p.now_ns = yield from _delete(bad, Cause.DISCARD, p.world)
    p.load_ns += p.now_ns - began_ns


def _read(p: _Progress, refs: Sequence[CopyRef], cause: Cause, bad: list[CopyRef]) -> Step:
    done = yield Transfer(Read, refs, cause)
    p.now_ns, failures = done.at_ns, done.failures
    for number, ref in enumerate(refs):
        _end_load(p, ref, failures.get(number), cause, bad)


def _promote(
    p: _Progress, plan: RoomPlan, refs: Sequence[CopyRef], cause: Cause, bad: list[CopyRef]
) -> Step:
    cache = p.world.cache
    p.now_ns = yield from _make_room(plan, p.world, p.now_ns)
    if not cache.begin_writes(plan):
        yield from _read(p, refs, cause, bad)
        return
    done = yield Transfer(Move, refs, Cause.PROMOTION, plan.targets)
    p.now_ns, failures = done.at_ns, done.failures
    cache.end_writes(plan.targets, failed=failures)
    for number, ref in enumerate(refs):
        _end_load(p, ref, failures.get(number), cause, bad)


def _end_load(
    p: _Progress, ref: CopyRef, failure: OpDone | None, cause: Cause, bad: list[CopyRef]
) -> None:
    """Release the pin. Data that could not be read fails the request; it is never a hit."""
    readable = failure is None or failure.failed is not OpKind.READ
    delete = p.world.cache.end_read(ref, ok=readable)
    if delete is not None:
        bad.append(delete)
    if readable:
        p.loaded_bytes += ref.nbytes
        return
    p.unreadable.add(ref.copy_id)
    p.fail((failure and failure.error) or "read-failed")
    if cause is Cause.DECODE:
        p.decode_hits -= 1


class _Background:
    """In place of `_Progress` for a store that no request waits for."""

    def __init__(
        self,
        world: World,
        positions: Mapping[Key, Position] = NO_POSITIONS,
        unwanted: set[Key] | None = None,
    ) -> None:
        self.world = world
        self.positions = positions
        self.unwanted = set() if unwanted is None else unwanted
        self.now_ns = 0
        self.store_ns = self.wait_ns = 0
        self.stored_bytes = 0

    def fail(self, reason: str) -> None:
        """The driver has counted the failed operation; no request hangs on it."""


def _store_behind(p: _Progress, blocks: Sequence[Block]) -> Step:
    """Hand blocks to the background, through a queue of bounded length."""
    gate = p.world.behind
    most = _together(blocks[0].nbytes, p.world.semantics) if blocks else 1
    for start in range(0, len(blocks), most):
        group = blocks[start : start + most]
        places = _places(group, p.world.semantics)
        if not gate.try_enter(places):
            if p.world.semantics.write_behind_drop:
                p.world.dropped_stores += len(group)
                continue
            yield from _wait(p, gate.line_up(places))
        p.world.groups += 1
        token = ("announced", p.world.groups)
        p.world.announced.update(dict.fromkeys([b.key for b in group], token))
        done = yield Spawn(_behind(_Background(p.world, p.positions, p.unwanted), group, token))
        p.now_ns = done.at_ns


def _behind(background: _Background, blocks: Sequence[Block], token: Token) -> Life:
    world = background.world
    yield from _store(background, blocks, Cause.PREFILL)
    for block in blocks:
        if world.announced.get(block.key) == token:
            del world.announced[block.key]
    world.behind.leave(_places(blocks, world.semantics))
    world.cache.signals.fire(token)


def _store(p: _Progress | _Background, blocks: Sequence[Block], cause: Cause) -> Step:
    """Store what is not there yet, in groups; wait for room without holding anything."""
    cache, gate = p.world.cache, p.world.stores
    began_ns, waited_ns = p.now_ns, p.wait_ns
    todo = list(blocks)
    while todo:
        group = todo[: _together(todo[0].nbytes, p.world.semantics)]
        nbytes = sum(b.nbytes for b in group)
        if not gate.try_enter(nbytes):
            done = yield Await(gate.line_up(nbytes))
            p.now_ns = done.at_ns
        placement = cache.begin_stores(group, p.positions)
        if placement.plan is not None:
            p.now_ns = yield from _make_room(placement.plan, p.world, p.now_ns)
            yield from _write(p, placement.plan, cause)
        gate.leave(nbytes)
        if placement.plan is not None:
            yield from _write_through(p, placement.plan.targets)
        if placement.nowhere:
            p.fail(NOWHERE)
        p.unwanted.update(b.key for b in placement.unwanted)
        todo = placement.later + todo[len(group) :]
        if placement.wait is not None:
            done = yield Await(placement.wait)
            p.now_ns = done.at_ns
    p.store_ns += p.now_ns - began_ns - (p.wait_ns - waited_ns)  # which has been counted


def _together(nbytes: int, semantics: Semantics) -> int:
    """Return how many blocks of so many bytes one request stores or promotes at once: what has to
    be done for a batch costs the program as much as ten blocks."""
    return semantics.batch_blocks or _blocks_in(_BATCH_BYTES, nbytes)


def _places(blocks: Sequence[Block | CopyRef], semantics: Semantics) -> int:
    """Return how many places blocks take in a queue: it is as long however many go at once."""
    each = semantics.batch_blocks or _blocks_in(_PLACE_BYTES, blocks[0].nbytes)
    return -(-len(blocks) // each)


def _blocks_in(room: int, nbytes: int) -> int:
    return max(_LEAST_BLOCKS, min(_MOST_BLOCKS, room // max(1, nbytes)))


def _write(p: _Progress | _Background, plan: RoomPlan, cause: Cause) -> Step:
    cache = p.world.cache
    if not cache.begin_writes(plan):
        p.fail(ROOM_LOST)
        return
    done = yield Transfer(Write, plan.targets, cause)
    p.now_ns, failures = done.at_ns, done.failures
    cache.end_writes(plan.targets, failed=failures)
    p.stored_bytes += sum([ref.nbytes for ref in plan.targets])
    for number, failure in failures.items():
        p.stored_bytes -= plan.targets[number].nbytes
        p.fail(failure.error or "write-failed")


def _write_through(p: _Progress | _Background, refs: Sequence[CopyRef]) -> Step:
    """Have copies made in the last tier: by a life of its own, for which nothing but a full queue
    is waited; or here and now, where this is such a life anyway."""
    through, cache = p.world.through, p.world.cache
    if through is None:
        return
    wanted = [ref for ref in refs if not cache.backed_up(ref.key)]
    if not wanted:
        return
    keys = [ref.key for ref in wanted]
    if isinstance(p, _Background):
        yield from _copy_through(p.world, through, keys)
        return
    places = _places(wanted, p.world.semantics)
    if not through.gate.try_enter(places):
        if p.world.semantics.write_behind_drop:
            through.dropped_blocks += len(keys)
            return
        yield from _wait(p, through.gate.line_up(places))
    done = yield Spawn(_through(p.world, through, keys, places))
    p.now_ns = done.at_ns


def _through(world: World, through: Through, keys: Sequence[Key], places: int) -> Life:
    yield from _copy_through(world, through, keys)
    through.gate.leave(places)


def _copy_through(world: World, through: Through, keys: Sequence[Key]) -> Life:
    later = list(keys)
    while later:
        backup = world.cache.begin_backups(later, selective=through.selective)
        later = backup.later
        if backup.plan is not None:
            complete = yield from _copy(backup.plan, backup.sources, world, Cause.WRITE_THROUGH)
            for ref, ok in zip(backup.sources, complete, strict=True):
                (through.written if ok else through.failed).add(ref.nbytes)


def _copy(
    plan: RoomPlan,
    refs: Sequence[CopyRef],
    world: World,
    cause: Cause,
    charged: Cause | None = None,
) -> Generator[Effect, Done, list[bool]]:
    """Make a plan's targets out of pinned copies, in the background, and return which of them are
    complete. Every pin is released. `charged`: the cause of what leaves to make room, if not its
    own."""
    cache = world.cache
    yield from _make_room(plan, world, 0, charged)
    failures: dict[int, OpDone] = {}
    written = cache.begin_writes(plan)
    if written:
        done = yield Transfer(Move, refs, cause, plan.targets)
        failures = done.failures
        cache.end_writes(plan.targets, failed=failures)
    unreadable = {number for number, each in failures.items() if each.failed is OpKind.READ}
    left = [cache.end_read(ref, ok=i not in unreadable) for i, ref in enumerate(refs)]
    bad = [ref for ref in left if ref is not None]
    if bad:
        yield from _delete(bad, Cause.DISCARD, world)
    return [written and number not in failures for number in range(len(refs))]


def _make_room(
    plan: RoomPlan, world: World, now_ns: int, charged: Cause | None = None
) -> Generator[Effect, Done, int]:
    """Carry out a plan's deletes and demotions, the lowest tier first. `charged`: their cause, if
    it is that of another operation."""
    cache = world.cache
    evicted, demoted = charged or Cause.EVICTION, charged or Cause.DEMOTION
    for level in plan.levels:
        if level.drops:
            done = yield Transfer(Delete, level.drops, evicted)
            now_ns = done.at_ns
            _end_drops(level.drops, done, world, level.claim)
        if not level.demotions:
            continue
        sources, targets = cache.begin_demotions(level)
        if sources:
            done = yield Transfer(Move, sources, demoted, targets)
            now_ns = done.at_ns
            cache.end_demotions(sources, targets, failed=done.failures)
        while (token := cache.pinned(level.leaving)) is not None:
            done = yield Await(token)
            now_ns = done.at_ns
        done = yield Transfer(Delete, level.leaving, demoted)
        now_ns = done.at_ns
        _end_drops(level.leaving, done, world, level.claim)
    return now_ns


def _delete(refs: Sequence[CopyRef], cause: Cause, world: World) -> Generator[Effect, Done, int]:
    done = yield Transfer(Delete, refs, cause)
    _end_drops(refs, done, world)
    return done.at_ns


def _end_drops(
    refs: Sequence[CopyRef], done: Done, world: World, claim: Claim | None = None
) -> None:
    """End deletes. If something else was quicker than one, nothing is left either, and the
    operation's record shows it."""
    stay = {number for number, each in done.failures.items() if each.error != VANISHED}
    world.cache.end_drops(refs, stay=stay, claim=claim)


def _record(p: _Progress, enqueued_ns: int, started_ns: int) -> RequestRecord:
    request = p.request
    parts_ns = p.load_ns + p.store_ns + p.wait_ns + p.compute_ns
    assert parts_ns <= p.now_ns - started_ns, "a time of a request is in two of its parts"
    p.world.first_tokens.pop(request.request_id, None)
    return RequestRecord(
        request_id=request.request_id,
        user=request.user,
        conversation=request.conversation,
        turn=request.turn,
        qos=request.qos,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        outcome=Outcome.COMPLETED if p.error is None else Outcome.FAILED,
        error=p.error,
        intended_ns=request.intended_ns,
        enqueued_ns=enqueued_ns,
        started_ns=started_ns,
        first_token_ns=p.first_token_ns,
        finished_ns=p.now_ns,
        blocks=len(request.blocks),
        context_tokens=request.context_tokens,
        looked_up=p.looked_up,
        hits=p.hits,
        hit_tokens=p.hit_tokens,
        offered_blocks=request.offered_blocks,
        offered_tokens=request.offered_tokens,
        retrieved=request.retrieved,
        history_looked_up=p.history_looked_up,
        history_hits=p.history_hits,
        shared_looked_up=p.shared_looked_up,
        shared_hits=p.shared_hits,
        shared_hit_bytes=p.shared_hit_bytes,
        decode_looked_up=p.decode_looked_up,
        decode_hits=p.decode_hits,
        loaded_bytes=p.loaded_bytes,
        stored_bytes=p.stored_bytes,
        load_ns=p.load_ns,
        store_ns=p.store_ns,
        wait_ns=p.wait_ns,
        compute_ns=p.compute_ns,
        prefilled=p.prefilled,
        decoded=p.decoded,
    )
