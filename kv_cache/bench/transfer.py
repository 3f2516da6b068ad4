"""Operations on real stores: through the buffer pools, buffer by buffer, stamped and verified.

Timestamps bracket the store's calls; what lies between them (payload, verification, waiting for
a buffer) is the host's share. Loads and stores have pools of their own: a buffer of the store
pool is only ever stamped, so that its noise stays what it was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain, compress, groupby
from threading import Event
from typing import Any, cast

import numpy as np

from kv_cache.bench.batches import Batched, BatchMover, calls_of
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.leg_timer import LegTimer
from kv_cache.bench.many import (
    AloneAfterAll,
    PageLooks,
    PlacedMover,
    PlacedMoves,
    PlacedObjects,
    delete_many,
)
from kv_cache.bench.op_ends import OpEnds
from kv_cache.bench.probes.pagecache import PageCacheSampler
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.bench.under_way import UnderWay
from kv_cache.core.effect import (
    ABORTED,
    CopyRef,
    Delete,
    Leg,
    Move,
    Op,
    OpDone,
    Read,
    Write,
    alike,
)
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.object_ops import beginning, moved_bytes
from kv_cache.core.ops_done import OpsDone, in_order
from kv_cache.core.units import MIB
from kv_cache.tiers import native
from kv_cache.tiers.base import (
    FREE,
    Capability,
    Names,
    Place,
    PlacedStore,
    Sink,
    Store,
    Tap,
    call_nothing,
)
from kv_cache.tiers.buffers import Buffer, BufferPool
from kv_cache.tiers.native import AbortFlag, Does
from kv_cache.tiers.payload import MISMATCH, Payload

AT_ONCE_BYTES = 2 * MIB
"""Of one call: more are divided among threads. An object of over an eighth of it is alone: where
the device is memory, two of 1 MiB in one call have twice the p50 of two calls, and the same
rate."""

_Kind = tuple[type[Op], Tier, Tier, Cause]  # where from and where to

_MANY = 4  # operations that are worth a table of columns

BATCH = 64
"""Operations of storage that are open at the same time, at most: each may hold a descriptor."""


class Verify(StrEnum):
    """How loads are checked: every stamp, every byte, or not at all."""

    STAMPS = "stamps"
    FULL = "full"
    OFF = "off"


_VERIFIED = {
    Verify.STAMPS: Does.STAMPED,
    Verify.FULL: Does.STAMPED | Does.NOISE,
    Verify.OFF: Does.READ,
}


def native_batches(
    payload: Payload,
    clock: MonotonicClock,
    verify: Verify,
    abort: AbortFlag,
    depth: int = 1,
    pulse: StoreCalls | None = None,
) -> BatchMover | None:
    """Return the native transfers of a mover with these parts, which may have `depth` of a call's
    in flight at a time; None if they were not built."""
    library = native.library()
    if isinstance(library, str):
        return None
    transfers = native.Transfers(library, payload.noise, depth=depth)
    return BatchMover(transfers, payload, clock, abort, _VERIFIED[verify], pulse or StoreCalls())


class Mover:
    """Performs one operation at a time for each calling thread."""

    def __init__(
        self,
        stores: Mapping[Tier, Store],
        payload: Payload,
        loads: BufferPool,
        stored: BufferPool,
        clock: MonotonicClock,
        verify: Verify,
        abort: Event,
        *,
        page_cache: PageCacheSampler | None = None,
        rehearse: bool = False,
        pulse: StoreCalls | None = None,
        batches: BatchMover | None = None,
    ) -> None:
        """`rehearse`: for a store that keeps nothing, stamp and verify all the same, so that all
        that is left out is the storage. `pulse` is told of every operation. `batches` moves what
        can be moved by positional calls; None moves it as the rest, by taps and sinks."""
        self._pulse = pulse or (StoreCalls() if batches is None else batches.pulse)
        assert batches is None or batches.pulse is self._pulse, "what is moved is counted once"
        self._rehearse = rehearse
        self._page_cache = page_cache
        self._stores = stores
        self.payload = payload
        self._loads = loads
        self._stored = stored
        self._clock = clock
        self._verify = verify
        self._abort = abort
        self._size = loads.buffer_bytes
        self._has_data = {t: Capability.DATA in s.capabilities for t, s in stores.items()}
        checks = verify is not Verify.OFF
        self._verifies = {tier: checks and has for tier, has in self._has_data.items()}
        self.batches = batches
        self._many = None if batches is None else PlacedMover(batches)
        self._in_batches = {
            tier: batches is not None and batches.refusal(store) is None
            for tier, store in stores.items()
        }
        self._placed = {
            tier: cast("PlacedStore", store)
            for tier, store in stores.items()
            if self._in_batches[tier] and Capability.PLACED in store.capabilities
        }
        self._ends = OpEnds(clock, page_cache, self._placed, batches)
        self._under_way = None if batches is None else UnderWay(batches, clock)
        self._how = {tier: store.capabilities for tier, store in stores.items()}
        self._found_at_once = {
            tier for tier in self._placed if Capability.FOUND_AT_ONCE in self._how[tier]
        }
        self._at_once = {tier: Capability.AT_ONCE in how for tier, how in self._how.items()}
        self.share = 1.0
        """How much of each object is moved: a rehearsal may move less, from then on."""

    def verified(self, done: OpDone | OpsDone) -> bool:
        """Whether what was read was compared with what must be there."""
        if isinstance(done, OpsDone):
            return done.kind is OpKind.READ and self._verifies[done.tier]
        leg = done.legs[0] if done.legs else None
        return leg is not None and leg.kind is OpKind.READ and self._verifies[leg.tier]

    def cut_off(self) -> tuple[list[OpDone | OpsDone], list[tuple[Cause, Leg]]]:
        """Return the operations that have ended within calls that go on, and the sides of those
        that threads perform now, as far as they have come."""
        if self._under_way is None:
            return [], self._pulse.in_flight(self._clock.now_ns())
        ended, timers = self._under_way.ended(self._pulse.many)
        return ended, self._pulse.in_flight(self._clock.now_ns(), timers)

    def _waits(self, op: Op) -> bool:
        """Whether an operation waits for storage, so that a batch gains from several threads."""
        if isinstance(op, Delete) and self._stores[op.copy.tier].removal == FREE:
            return False
        return any(
            ref.tier is Tier.NVME and (self._rehearse or self._has_data[ref.tier])
            for ref in (op.source, op.target)
        )

    def units(self, ops: Sequence[Op]) -> list[list[int]]:
        """Divide operations, by their numbers, into what one thread performs at a time: those that
        one call moves at the same time, up to `AT_ONCE_BYTES`, and each other one alone; all
        together where none waits for storage."""
        same = alike(ops)
        waits = any(map(self._waits, ops[:1] if same else ops))
        if not waits or (same and self._are_placed(ops)):
            return [list(range(len(ops)))]
        units: list[list[int]] = []
        together: dict[_Kind, tuple[list[int], int]] = {}  # and how much room is left
        for number, op in enumerate(ops):
            at_once = self._at_once[op.source.tier] or self._at_once[op.target.tier]
            nbytes = beginning(op.target, self.share).nbytes
            at_once = at_once and nbytes <= AT_ONCE_BYTES // 8
            kind = self._batch_kind(op) if at_once else None
            unit, room = together.get(kind, ([], 0)) if kind is not None else ([], 0)
            if not unit or len(unit) == BATCH or nbytes > room:
                unit, room = [], min(AT_ONCE_BYTES, self._size)
                units.append(unit)
            unit.append(number)
            if kind is not None:
                together[kind] = unit, room - nbytes
        return units

    def perform_all(self, ops: Sequence[Op]) -> list[OpDone]:
        """Perform operations one after the other, and return what became of each."""
        return in_order(ops, self.perform_many(ops))

    def perform_many(self, ops: Sequence[Op]) -> Iterator[OpDone | OpsDone]:
        """Perform operations one after the other: as many in a call as follow each other and do the
        same. Yield what became of them as they end, in no order."""
        if len(ops) >= _MANY and alike(ops):
            yield from self._perform_alike(ops)
            return
        for _, group in groupby(ops, self._batch_kind):
            part = list(group)
            yield from self._perform_alike(part) if alike(part) else map(self.perform, part)

    def _perform_alike(self, same: Any) -> Iterator[OpDone | OpsDone]:
        if self._are_placed(same):
            return self._move_placed(same)
        if self._are_freed(same):
            return self._delete_many(same)
        if self._batch_kind(same[0]) is None:
            return map(self.perform, same)
        return self._in_batches_of(same)

    def _in_batches_of(self, same: Any, *, sampled: bool = False) -> Iterator[OpDone]:
        """`sampled`: what is read is opened, and its pages are looked at."""
        together = (
            self._move_batch if isinstance(next(iter(same), None), Move) else self._perform_batch
        )
        for first in range(0, len(same), BATCH):
            yield from together(same[first : first + BATCH], sampled=sampled)

    def _are_placed(self, same: Sequence[Op]) -> bool:
        """Return whether such operations go in one call."""
        first, count = same[0], len(same)
        tiers = {first.source.tier, first.target.tier}
        placed = not isinstance(first, Delete) and tiers <= self._found_at_once
        if not placed or count < _MANY or self.batches is None:
            return False
        how, writes = self._how[first.target.tier], isinstance(first, Write)
        if isinstance(first, Move) or not self.batches.by_ring(how, writes=writes):
            return True
        return count * max(op.target.nbytes for op in same) <= self._size  # each has its own memory

    def _are_freed(self, same: Sequence[Op]) -> bool:
        """Return whether such operations are deletes that ask no device."""
        free = isinstance(same[0], Delete) and self._stores[same[0].copy.tier].removal == FREE
        return free and len(same) >= _MANY

    def _batch_kind(self, op: Op) -> _Kind | None:
        source, target = op.source.tier, op.target.tier
        moved = self._in_batches[source] and self._in_batches[target]
        return None if isinstance(op, Delete) or not moved else (type(op), source, target, op.cause)

    def perform(self, op: Op) -> OpDone:
        if self._batch_kind(op) is not None:
            return self.perform_all((op,))[0]
        match op:
            case Read(copy=ref):
                return self._read(op, beginning(ref, self.share))
            case Write(copy=ref):
                return self._write(op, beginning(ref, self.share))
            case Move(source=source, target=target):
                share = self.share  # of both sides
                return self._move(op, beginning(source, share), beginning(target, share))
            case Delete(copy=ref):
                return self._delete(op, ref)

    # --- the four operations ---------------------------------------------------------------

    def _read(self, op: Op, ref: CopyRef) -> OpDone:
        timer = LegTimer(self._clock, self._pulse, op.cause, ref.tier, OpKind.READ)
        try:
            tap = self._open(timer, ref)
            try:
                for offset in range(0, ref.nbytes, self._size):
                    self._load_chunk(timer, tap, ref, offset)
            finally:
                self._ends.close(timer, tap)
        except StoreError as error:
            return self._ends.done(op, ref, timer, error)
        return self._ends.done(op, ref, timer)

    def _write(self, op: Op, ref: CopyRef) -> OpDone:
        timer = LegTimer(self._clock, self._pulse, op.cause, ref.tier, OpKind.WRITE)
        try:
            sink = self._create(timer, ref)
            try:
                for offset in range(0, ref.nbytes, self._size):
                    self._store_chunk(timer, sink, ref, offset)
                self._ends.commit(timer, sink)
            except BaseException:
                sink.abort()
                raise
            finally:
                timer.steps = tuple(sink.steps)
        except StoreError as error:
            return self._ends.done(op, ref, timer, error)
        return self._ends.done(op, ref, timer)

    def _move(self, op: Op, source: CopyRef, target: CopyRef) -> OpDone:
        reading = LegTimer(self._clock, self._pulse, op.cause, source.tier, OpKind.READ)
        writing = LegTimer(self._clock, self._pulse, op.cause, target.tier, OpKind.WRITE)
        started_ns = reading.started_ns
        reason = side = None
        try:
            sink = self._create(writing, target)
            try:
                created_ns = writing.device_ns
                tap = self._open(reading, source)
                try:
                    for offset in range(0, source.nbytes, self._size):
                        self._carry_chunk(reading, writing, tap, sink, source, target, offset)
                finally:
                    reading.aside_ns = writing.device_ns - created_ns
                    self._ends.close(reading, tap)
                self._ends.commit(writing, sink)  # last: after it nothing may fail
            except BaseException:
                sink.abort()
                raise
            finally:
                writing.steps = tuple(sink.steps)
        except StoreError as error:
            reason = error.reason
            side = OpKind.WRITE if writing.calling else OpKind.READ
        writing.leave_host_to_the_other()
        legs = (reading.leg(source.nbytes), writing.leg(target.nbytes))
        return OpDone(op, started_ns, self._clock.now_ns(), legs, reason, side)

    def _delete(self, op: Op, ref: CopyRef) -> OpDone:
        timer = LegTimer(self._clock, self._pulse, op.cause, ref.tier, OpKind.DELETE)
        timer.engine = self._stores[ref.tier].removal
        try:
            self._stores[ref.tier].delete(ref)
            timer.end()
        except StoreError as error:
            return self._ends.done(op, ref, timer, error)
        return self._ends.done(op, ref, timer)

    # --- many of one tier ------------------------------------------------------------------

    def _move_placed(self, ops: Sequence[Read | Write | Move]) -> Iterator[OpDone | OpsDone]:
        """Read, write or move copies whose places are found at once. Those beyond a buffer are
        opened in their turn, as who comes first has the room."""
        share, room = self.share, self._size
        sizes = [moved_bytes(op.target.nbytes, share) for op in ops]
        if max(sizes) > room:
            for fits, ones in groupby(ops, lambda op: moved_bytes(op.target.nbytes, share) <= room):
                part = list(ones)
                yield from self._move_placed(part) if fits else self._in_batches_of(part)
            return
        moves = isinstance(ops[0], Move)  # each needs memory of its own
        most = room // max(sizes) if moves else len(ops)
        for first in range(0, len(ops), most):
            some: Any = ops[first : first + most]
            yield from self._copy_found(some) if moves else self._move_found(some)

    def _found(
        self, ops: Sequence[Read | Write | Move], kind: OpKind
    ) -> list[tuple[CopyRef, Place | Names | StoreError]]:
        """Return what of one side of operations is moved, and where it is."""
        writes = kind is OpKind.WRITE
        refs = [beginning(op.target if writes else op.source, self.share) for op in ops]
        tier = refs[0].tier
        timer = LegTimer(self._clock, self._pulse, ops[0].cause, tier, kind)
        timer.start()  # a bucket may have to be made
        try:
            places = self._placed[tier].places(refs, writes=writes)
        finally:
            self._pulse.leave(timer)
        return list(zip(refs, places, strict=True))

    def _move_found(self, ops: Sequence[Read | Write]) -> Iterator[OpDone | OpsDone]:
        kind, tier = _kind_of(ops[0]), ops[0].copy.tier
        looks = PageLooks(self._looks_at(ops[0].copy) if kind is OpKind.READ else None)
        rows: list[tuple[Read | Write, CopyRef, Place | Names]] = []
        opened: list[Read | Write] = []
        left: list[Read | Write] = []  # without a place, until others give theirs back
        for op, (ref, place) in zip(ops, self._found(ops, kind), strict=True):
            if isinstance(place, StoreError):
                left.append(op)
            elif looks.have_it_opened(ref, place):
                opened.append(op)
            else:
                rows.append((op, ref, place))
        yield from self._in_batches_of(opened, sampled=True)
        if rows:
            assert self._many is not None
            pool = self._loads if kind is OpKind.READ else self._stored
            objects = PlacedObjects(kind, rows, self._clock)
            self._many.move(objects, pool, how=self._how[tier])
            looks.look_again(objects)
            yield from self._told(*objects.outcome(self._placed[tier].end_writes))
        for op in left:
            yield from self._perform_batch([op])

    def _copy_found(self, ops: Sequence[Move]) -> Iterator[OpDone | OpsDone]:
        looks = PageLooks(self._looks_at(ops[0].source))
        sources = self._found(ops, OpKind.READ)
        opened = [looks.have_it_opened(*source) for source in sources]
        yield from self._in_batches_of(list(compress(ops, opened)), sampled=True)
        closed = [not one for one in opened]
        ops, sources = list(compress(ops, closed)), list(compress(sources, closed))
        if not ops:
            return
        rows, left = [], list[Move]()
        targets = self._found(ops, OpKind.WRITE)
        for op, (ref, place), (copy, there) in zip(ops, sources, targets, strict=True):
            if isinstance(there, StoreError):
                left.append(op)
            elif isinstance(place, StoreError):
                reading = AloneAfterAll(op, OpKind.READ, ref, place, ())
                yield self._end_alone((reading, AloneAfterAll(op, OpKind.WRITE, copy, there, ())))
            else:
                rows.append((op, (ref, place), (copy, there)))
        if rows:
            assert self._many is not None
            moves = PlacedMoves(rows, self._clock)
            source, target = self._how[ops[0].source.tier], self._how[ops[0].target.tier]
            self._many.copy(moves, self._loads, source=source, target=target)
            looks.look_again(moves.reading)
            yield from self._told(*moves.outcome(self._placed[ops[0].target.tier].end_writes))
        for op in left:
            yield from self._move_batch([op])

    def _told(
        self, done: OpsDone | None, others: Iterable[Sequence[AloneAfterAll]]
    ) -> Iterator[OpDone | OpsDone]:
        if done is not None:
            for side in done.sides:
                if side.tier is Tier.NVME:
                    self._pulse.ended_many(side)
            yield done
        yield from map(self._end_alone, others)

    def _end_alone(self, sides: Sequence[AloneAfterAll]) -> OpDone:
        """End an operation of many that failed, or took more than one call."""
        batched = [self._batched(one) for one in sides]
        if len(batched) == 2:
            return self._ends.end_move(*batched)
        reads = sides[0].kind is OpKind.READ
        return self._ends.end_read(batched[0]) if reads else self._ends.end_write(batched[0])

    def _batched(self, one: AloneAfterAll) -> Batched:
        assert self.batches is not None
        timer = LegTimer(self._clock, self._pulse, one.op.cause, one.ref.tier, one.kind)
        batched = Batched(one.op, one.ref, timer)
        if isinstance(one.place, StoreError):
            batched.error = one.place
            return batched
        timer.engine = one.place.engine
        if isinstance(one.place, Place):
            batched.place = one.place
            timer.placed(one.place.steps)
        else:
            batched.names = one.place
        self.batches.tell(batched, one.rows)
        return batched

    def _delete_many(self, ops: Sequence[Delete]) -> Iterator[OpDone | OpsDone]:
        done, failed = delete_many(ops, self._stores[ops[0].copy.tier], self._clock)
        if done is not None:
            yield done
        for op, error in failed:
            timer = LegTimer(self._clock, self._pulse, op.cause, op.copy.tier, OpKind.DELETE)
            timer.engine = FREE
            yield self._ends.done(op, op.copy, timer, error)

    # --- many in a call --------------------------------------------------------------------

    def _perform_batch(self, ops: Sequence[Read | Write], *, sampled: bool = False) -> list[OpDone]:
        """Reads, or writes, of copies of one tier whose bytes positional calls may move. `sampled`:
        reads whose pages are looked at."""
        assert self.batches is not None
        reads = isinstance(ops[0], Read)
        how = self._how[ops[0].copy.tier]
        kind = OpKind.READ if reads else OpKind.WRITE
        batch = [self._side(op, op.copy, kind) for op in ops]
        assert self._under_way is not None
        self._under_way.begin([(one,) for one in batch])
        try:
            for one in batch:
                self._begin(one, reads=reads, sampled=sampled)
            if reads:
                self.batches.load(batch, self._loads, how=how)
            else:
                self.batches.store(batch, self._stored, how=how)
            return [
                self._ends.end_read(one) if reads else self._ends.end_write(one) for one in batch
            ]
        except BaseException:
            for one in batch:
                one.give_up()
            raise
        finally:
            self._under_way.end()

    def _move_batch(self, moves: Sequence[Move], *, sampled: bool = False) -> list[OpDone]:
        """Moves from one tier to another, between which positional calls may carry the bytes."""
        assert self.batches is not None
        source, target = (self._how[ref.tier] for ref in (moves[0].source, moves[0].target))
        pairs = [
            (self._side(op, op.source, OpKind.READ), self._side(op, op.target, OpKind.WRITE))
            for op in moves
        ]
        assert self._under_way is not None
        self._under_way.begin(pairs)
        try:
            for reader, writer in pairs:
                self._begin(writer, reads=False)
                if writer.error is None:
                    self._begin(reader, reads=True, sampled=sampled)
            begun = [pair for pair in pairs if pair[1].error is None]
            self.batches.copy(begun, self._loads, source=source, target=target)
            return [self._ends.end_move(reader, writer) for reader, writer in pairs]
        except BaseException:
            for side in chain(*pairs):
                side.give_up()
            raise
        finally:
            self._under_way.end()

    def _side(self, op: Read | Write | Move, ref: CopyRef, kind: OpKind) -> Batched:
        timer = LegTimer(self._clock, self._pulse, op.cause, ref.tier, kind)
        return Batched(op, beginning(ref, self.share), timer)

    def _begin(self, one: Batched, *, reads: bool, sampled: bool = False) -> None:
        try:
            if (placed := self._placed.get(one.ref.tier)) and one.ref.nbytes <= self._size:
                looks = self._looks_at(one.ref) if reads else None
                if sampled or (
                    looks is not None and looks.is_turn()
                ):  # which is looked at while it is open
                    one.tap = self._open(one.timer, one.ref, sampled=True)
                    return
                self._find(one, placed, reads=reads)
                return
            if reads:
                one.tap = self._open(one.timer, one.ref)
            else:
                one.sink = self._create(one.timer, one.ref)
        except StoreError as error:
            one.error = error

    def _find(self, one: Batched, store: PlacedStore, *, reads: bool) -> None:
        """Have an object without tap or sink."""
        one.timer.start()
        place = store.place(one.ref, writes=not reads)
        one.timer.engine = place.engine
        if isinstance(place, Names):
            one.names, one.timer.calling = place, False  # rows have instants of their own
        else:
            one.place = place
            one.timer.end_of_names()
            one.timer.steps = tuple(place.steps)

    # --- their parts -----------------------------------------------------------------------

    def _open(self, timer: LegTimer, ref: CopyRef, *, sampled: bool = False) -> Tap:
        timer.start()
        tap = self._stores[ref.tier].open(ref)
        timer.end_of_names()
        timer.engine = tap.engine
        looks = self._looks_at(ref) if tap.spans else None
        if looks is not None and (sampled or looks.is_turn()):
            timer.sampled = looks.before(tap.spans)
        return tap

    def _looks_at(self, ref: CopyRef) -> PageCacheSampler | None:
        """Return who looks at the pages of loads from a copy's tier; loads from memory take no
        turns of those from storage."""
        return self._page_cache if ref.tier is Tier.NVME else None

    def _create(self, timer: LegTimer, ref: CopyRef) -> Sink:
        timer.start()
        sink = self._stores[ref.tier].create(ref)
        timer.end_of_names()
        timer.engine = sink.engine
        return sink

    def _load_chunk(self, timer: LegTimer, tap: Tap, ref: CopyRef, offset: int) -> None:
        if not self._has_data[ref.tier]:
            self._pretend(timer, ref, offset, self._loads)
            return
        buffer = self._loads.take()
        try:
            self._fetch(timer, tap, buffer, ref, offset)
        finally:
            self._loads.give(buffer)

    def _fetch(self, timer: LegTimer, tap: Tap, buffer: Buffer, ref: CopyRef, offset: int) -> int:
        """Read and verify one buffer; the bytes count as moved even if they are wrong."""
        self._check_abort()
        if self.batches is not None and self._in_batches[ref.tier]:
            return self.batches.carry(timer, tap, ref, offset, buffer, how=self._how[ref.tier])
        n = min(self._size, ref.nbytes - offset)
        for at, length in calls_of(tap.spans, offset, n):
            timer.move(length, partial(tap.read, offset + at, buffer.view[at : at + length]))
        if self._verifies[ref.tier]:
            full = self._verify is Verify.FULL
            if not self.payload.matches(buffer, ref, offset, n, full):
                raise StoreError(MISMATCH, f"{ref} at {offset}")
        return n

    def _store_chunk(self, timer: LegTimer, sink: Sink, ref: CopyRef, offset: int) -> None:
        if not self._has_data[ref.tier]:
            self._pretend(timer, ref, offset, self._stored)
            return
        n = min(self._size, ref.nbytes - offset)
        buffer = self._stored.take(self.payload.tint(ref, offset))
        try:
            self._check_abort()  # now: the wait for a buffer can have been long
            _write(timer, sink, offset, self.payload.stamp(buffer, ref, offset, n))
        finally:
            self._stored.give(buffer)

    def _carry_chunk(
        self,
        reading: LegTimer,
        writing: LegTimer,
        tap: Tap,
        sink: Sink,
        source: CopyRef,
        target: CopyRef,
        offset: int,
    ) -> None:
        if not (self._has_data[source.tier] and self._has_data[target.tier]):
            self._load_chunk(reading, tap, source, offset)
            self._store_chunk(writing, sink, target, offset)
            return
        buffer = self._loads.take()
        try:
            n = self._fetch(reading, tap, buffer, source, offset)
            if self.batches is not None and self._in_batches[target.tier]:
                how = self._how[target.tier]
                self.batches.carry(writing, sink, target, offset, buffer, how=how)
                return
            _write(writing, sink, offset, buffer.view[:n])
        finally:
            self._loads.give(buffer)

    def _pretend(self, timer: LegTimer, ref: CopyRef, offset: int, pool: BufferPool) -> None:
        """A store that keeps nothing is given nothing: only the harness is left to measure."""
        n = min(self._size, ref.nbytes - offset)
        if self._rehearse:
            self._rehearse_chunk(ref, offset, n, pool)
        timer.begin()
        timer.end(n)

    def _rehearse_chunk(self, ref: CopyRef, offset: int, n: int, pool: BufferPool) -> None:
        """What the client does beside the system call. Stamping costs what verifying stamps does;
        a buffer of a load holds nothing that could be verified."""
        self._check_abort()
        loads = pool is self._loads
        buffer = pool.take(self.payload.tint(ref, offset))
        try:
            if not loads or self._verify is not Verify.OFF:
                data = self.payload.stamp(buffer, ref, offset, n)
                if loads and self._verify is Verify.FULL:
                    loaded = Buffer(np.frombuffer(data, np.uint8))
                    self.payload.matches(loaded, ref, offset, n, full=True)
            call_nothing()
        finally:
            pool.give(buffer)

    def _check_abort(self) -> None:
        if self._abort.is_set():
            raise StoreError(ABORTED)


def _write(timer: LegTimer, sink: Sink, offset: int, data: memoryview) -> None:
    for at, length in calls_of(sink.spans, offset, len(data)):
        timer.move(length, partial(sink.write, offset + at, data[at : at + length]))


def _kind_of(op: Read | Write) -> OpKind:
    return OpKind.READ if isinstance(op, Read) else OpKind.WRITE
