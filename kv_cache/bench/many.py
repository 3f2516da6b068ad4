"""Operations on many objects of one tier at once: what became of them is told in columns.

Reads and writes are of objects whose places their store knows: those of a batch go in one call,
whose table is read by columns. The table is shared out among the crew of native threads,
each with a place in one buffer for all the objects that it moves. Moves from one tier to another
are two such calls, between which each object has a place of its own in the buffer. What is not one
call that went well is told object by object (`AloneAfterAll`).
"""

from collections.abc import Callable, Iterator, Sequence
from operator import sub
from typing import NamedTuple

from msgspec import Struct, structs

from kv_cache.bench.batches import (
    ALL_MOVED,
    BatchMover,
    done_to,
    step_name,
    sync_rows,
    with_steps,
    within,
)
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.probes.pagecache import PageCacheSampler, SampledPages
from kv_cache.core.effect import CopyRef, Delete, Leg, Move, Read, Write
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.ops_done import OpsDone
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.base import Capability, Names, Place, Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.native import STEPS, Does, Moved, Piece, PieceTable
from kv_cache.tiers.payload import Payload


class _RowCall(Struct, frozen=True, eq=False):
    """A call that a native thread is in."""

    cause: Cause
    kind: OpKind
    tier: Tier
    engine: str
    began_ns: int
    calling: bool = True

    @property
    def on_storage(self) -> bool:
        return self.tier is Tier.NVME

    def so_far(self, now_ns: int) -> Leg:
        took_ns = now_ns - self.began_ns
        return Leg(self.tier, self.kind, self.engine, 0, self.began_ns, now_ns, took_ns, ())


class PlacedObjects:
    """Copies of one tier that are to be read, or written, for one cause, and their table."""

    def __init__(
        self,
        kind: OpKind,
        objects: Sequence[tuple[Read | Write | Move, CopyRef, Place | Names]],
        clock: MonotonicClock,
    ) -> None:
        self.ops, self.refs, self.places = zip(*objects, strict=True)
        self.kind = kind
        self.cause, self.tier = self.ops[0].cause, self.refs[0].tier
        self.engine = self.places[0].engine
        self._clock = clock
        self._rows: list[tuple[int, int]] = []  # of each object, from where to where
        self._shape: list[int] = []  # what is done by the rows of the object with fewest
        took = [len(place.steps) for place in self.places]  # steps to find them
        usual = min(1, *took)
        first = self.places[0]
        self._ends = kind is OpKind.WRITE and isinstance(first, Place) and first.ends
        self._apart = {n for n, count in enumerate(took) if count > usual}  # though they went well
        self.table = PieceTable(())

    def lay_out(
        self,
        payload: Payload,
        does: int,
        address: int,
        room: int,
        apart: int = 0,
        slots: Sequence[int] | None = None,
    ) -> None:
        """Make the table. Objects lie in `slots`, if not given one after the other, which are
        `apart` bytes from each other, or in the same memory: at `address`, or where each one's
        noise says in so many pages of `room` from there on."""
        beside, writes = does & int(Does.NOWHERE), self.kind is OpKind.WRITE
        slots = range(len(self.refs)) if slots is None else slots
        pieces: list[tuple[int, ...]] = []
        firsts: list[int] = []
        stamps = payload.firsts(self.refs)
        objects = zip(self.refs, self.places, slots, stamps, strict=True)
        for number, (ref, place, slot, first) in enumerate(objects):
            firsts.append(len(pieces))
            at = address + slot * apart
            if room:
                at += PAGE_BYTES * payload.shift(first, ref.nbytes // PAGE_BYTES, room)
            if isinstance(place, Names):
                row = Piece(number, does, -1, place.offset, ref.nbytes, at, *first)
                pieces += with_steps(number, place, (row,), writes=writes, beside=beside)
                continue
            if len(place.spans) == 1:
                fd, offset, _ = place.spans[0]
                pieces.append((number, does, fd, offset, ref.nbytes, at, *first))
            else:
                for fd, offset, begin, nbytes in within(place.spans, 0, ref.nbytes):
                    bases = payload.bases(ref, begin)
                    pieces.append((number, does, fd, offset, nbytes, at + begin, *bases))
            if place.sync:
                pieces += sync_rows(number, place.sync, beside)
        self.table = PieceTable(pieces)
        rows = list(zip(firsts, [*firsts[1:], len(pieces)], strict=True))
        fewest = min(rows, key=lambda at: at[1] - at[0])
        self._shape = [piece[1] for piece in pieces[slice(*fewest)]]
        self._rows = rows  # last: other threads look at these first, at any time

    def calls(self) -> Iterator[_RowCall]:
        """Yield the calls that threads are in now."""
        rows = self._rows
        began, *_ = self.table.columns()
        for first, end in rows:
            began_ns = began[first]
            if began_ns and not self.table.are_over(first, end):
                at_ns = self._clock.of_monotonic(began_ns)
                yield _RowCall(self.cause, self.kind, self.tier, self.engine, at_ns)

    def has_come(self, number: int) -> bool:
        """Return whether all bytes of an object were moved, right or wrong, of a table that was
        worked off."""
        rows = map(self.table.row, range(*self._rows[number]))
        return all(moved.error in ALL_MOVED for _, moved in rows)

    def alone(self, number: int) -> "AloneAfterAll | None":
        """Return what became of one object; None while it is moved, or before."""
        if not self._rows:
            return None
        first, end = self._rows[number]
        if not self.table.are_over(first, end):
            return None
        rows = [self.table.row(row) for row in range(first, end)]
        ref, place = self.refs[number], self.places[number]
        return AloneAfterAll(self.ops[number], self.kind, ref, place, rows)

    def outcome(
        self, end_writes: "EndWrites | None" = None
    ) -> tuple[OpsDone | None, list[tuple["AloneAfterAll", ...]]]:
        """Return what became of those that took one call and went well, and the sides of each of
        the others: while the table is worked off, of those that have ended. `end_writes` ends what
        has been written."""
        if not self._rows:
            return None, []
        began, ended, host, _, errors = self.table.columns()
        columns, count = (began, ended, host), len(self._shape)
        alike = sum(not does & STEPS for does in self._shape) == 1
        well: Sequence[int] = range(len(self.refs))
        whole = alike and not self._apart and len(well) * count == len(began)
        if not (whole and all(ended) and not any(errors)):
            well = [
                number
                for number, (first, end) in enumerate(self._rows)
                if alike and number not in self._apart and end - first == count
                if all(ended[first:end]) and not any(errors[first:end])
            ]
        if end_writes is not None and self._ends and well:
            left = {ref.copy_id for ref in end_writes([self.refs[number] for number in well])}
            if left:
                well = [number for number in well if self.refs[number].copy_id not in left]
        others: list[tuple[AloneAfterAll, ...]] = []
        if len(well) < len(self.refs):
            rest = set(range(len(self.refs))).difference(well)
            others = [(one,) for number in sorted(rest) if (one := self.alone(number))]
        return self._went_well(well, columns) if well else None, others

    def _went_well(self, numbers: Sequence[int], columns: Sequence[Sequence[int]]) -> OpsDone:
        """Return operations whose rows have one shape and have all gone well."""
        shape = self._shape
        if len(numbers) * len(shape) != len(columns[0]):  # rows of others are among them
            rows = [self._rows[number][0] + at for number in numbers for at in range(len(shape))]
            columns = [[column[row] for row in rows] for column in columns]
        began, ended, host = (
            [column[at :: len(shape)] for at in range(len(shape))] for column in columns
        )
        origin_ns, writes = self._clock.of_monotonic(0), self.kind is OpKind.WRITE
        steps: list[tuple[str, Sequence[int]]] = []
        allocations = [step for number in numbers for step in self.places[number].steps]
        started = began[0]
        if allocations:
            steps.append((allocations[0].name, [step.duration_ns for step in allocations]))
            started = list(map(sub, started, steps[0][1]))
        moved: Sequence[int] = ()
        device: Sequence[int] = ()
        total: Sequence[int] = ()
        if len(shape) > 1:
            took = [list(map(sub, *each)) for each in zip(ended, began, strict=True)]
            device = list(map(sum, zip(*(column for _, column in steps), *took, strict=True)))
            whole = list(map(sub, ended[-1], started))
            most = map(sum, zip(device, *host, strict=True))
            data = next(at for at, does in enumerate(shape) if not does & STEPS)
            moved = [at_ns + origin_ns for at_ns in ended[data]]
            total = list(map(min, whole, most))
            if writes and isinstance(self.ops[0], Move):
                total = device  # what lies between is the other side's, which reads
            steps += [
                (step_name(does, writes=writes), took[at])
                for at, does in enumerate(shape)
                if does & STEPS
            ]
        return OpsDone(
            ops=[self.ops[number] for number in numbers],
            tier=self.tier,
            kind=self.kind,
            cause=self.cause,
            engine=self.engine,
            refs=[self.refs[number] for number in numbers],
            started_ns=[at_ns + origin_ns for at_ns in started],
            finished_ns=[at_ns + origin_ns for at_ns in ended[-1]],
            steps=steps,
            moved_ns=moved,
            device_ns=device,
            total_ns=total,
        )


EndWrites = Callable[[Sequence[CopyRef]], Sequence[CopyRef]]
"""A store's `end_writes`."""


class AloneAfterAll(NamedTuple):
    """One side of one of many operations by itself: the place of its object, or why it has none,
    and what became of its rows."""

    op: Read | Write | Move
    kind: OpKind
    ref: CopyRef
    place: Place | Names | StoreError
    rows: Sequence[tuple[Piece, Moved]]

    @property
    def failed(self) -> bool:
        return any(moved.error for _, moved in self.rows)


class PageLooks:
    """Has the pages of those loads of one call whose turn it is looked at, before and after."""

    def __init__(self, sampler: PageCacheSampler | None) -> None:
        """Without a sampler nothing is looked at."""
        self._sampler = sampler
        self._looked: list[tuple[CopyRef, Place, SampledPages]] = []

    def have_it_opened(self, ref: CopyRef, place: Place | Names | StoreError) -> bool:
        """Look at the pages of an object, if it is its turn; return whether it has to be opened for
        that, as its file is not."""
        if self._sampler is None or not self._sampler.is_turn():
            return False
        if isinstance(place, Place) and place.memory is None:
            before = self._sampler.before(place.spans)
            if before is not None:
                self._looked.append((ref, place, before))
        return isinstance(place, Names)

    def look_again(self, objects: PlacedObjects) -> None:
        """Look at those whose bytes have all come."""
        for ref, place, before in self._looked:
            assert self._sampler is not None
            if objects.has_come(objects.refs.index(ref)):
                self._sampler.after(before, place.spans)


Placed = tuple[CopyRef, Place | Names]


class PlacedMoves:
    """Moves from one tier to another, for one cause: what can be read is written then."""

    def __init__(self, moves: Sequence[tuple[Move, Placed, Placed]], clock: MonotonicClock) -> None:
        self._clock = clock
        self._moves = moves
        sources = [(op, *source) for op, source, _ in moves]
        self.reading = PlacedObjects(OpKind.READ, sources, clock)
        self.writing: PlacedObjects | None = None
        self.read: Sequence[int] = ()  # of those that are written
        self._all_read: OpsDone | None = None

    def calls(self) -> Iterator[_RowCall]:
        """Yield the calls that threads are in now."""
        yield from self.reading.calls()
        if self.writing is not None:
            yield from self.writing.calls()

    def begin_writing(self) -> bool:
        """Find what was read; return whether that is anything."""
        done, _ = self.reading.outcome()
        if done is not None and len(done.ops) == len(self._moves):
            self.read, self._all_read = range(len(self._moves)), done
        else:
            alone = (self.reading.alone(number) for number in range(len(self._moves)))
            self.read = [number for number, one in enumerate(alone) if one and not one.failed]
        if self.read:
            targets = [(self._moves[n][0], *self._moves[n][2]) for n in self.read]
            self.writing = PlacedObjects(OpKind.WRITE, targets, self._clock)
        return bool(self.read)

    def outcome(
        self, end_writes: EndWrites | None = None
    ) -> tuple[OpsDone | None, list[tuple[AloneAfterAll, ...]]]:
        """As of `PlacedObjects`; where one has failed, or not ended, each by itself."""
        if self._all_read is not None and self.writing is not None:
            written, _ = self.writing.outcome(end_writes)
            if written is not None and len(written.ops) == len(self._moves):
                return structs.replace(self._all_read, then=written), []
        alone = map(self._alone, range(len(self._moves)))
        return None, [sides for sides in alone if sides]

    def _alone(self, number: int) -> tuple[AloneAfterAll, ...]:
        """Return both sides of a move that has ended; nothing of another."""
        read = self.reading.alone(number)
        if read is None:
            return ()
        if read.failed:
            op, _, target = self._moves[number]
            return read, AloneAfterAll(op, OpKind.WRITE, *target, ())
        if self.writing is None:
            return ()
        written = self.writing.alone(self.read.index(number))
        return () if written is None else (read, written)


class PlacedMover:
    """Moves placed objects, for any number of threads."""

    def __init__(self, batches: BatchMover) -> None:
        self._batches, self._pulse = batches, batches.pulse

    def copy(
        self, moves: PlacedMoves, pool: BufferPool, *, source: Capability, target: Capability
    ) -> None:
        """Read and verify all of the moves' sources, for which there must be room in one buffer,
        and write as their targets what could be read."""
        batches, reading = self._batches, moves.reading
        apart = max(ref.nbytes for ref in reading.refs)
        buffer = pool.take()
        try:
            does = done_to(batches.reads, source)
            reading.lay_out(batches.payload, does, buffer.address, 0, apart)
            self._pulse.enter_many(moves)
            try:
                batches.transfer(reading.table, reading.tier, how=source, writes=False)
                if moves.begin_writing():
                    writing, does = moves.writing, done_to(Does.WRITE, target)
                    assert writing is not None
                    writing.lay_out(
                        batches.payload, does, buffer.address, 0, apart, slots=moves.read
                    )
                    batches.transfer(writing.table, writing.tier, how=target, writes=True)
            finally:
                self._pulse.leave_many(moves)
        finally:
            pool.give(buffer)

    def move(self, objects: PlacedObjects, pool: BufferPool, *, how: Capability) -> None:
        """Read and verify, or stamp and write, all of the objects. In a ring each has memory of its
        own, for which there must be room."""
        batches, payload = self._batches, self._batches.payload
        writes = objects.kind is OpKind.WRITE
        does = done_to(Does.WRITE | Does.STAMPED if writes else batches.reads, how)
        pages = max(ref.nbytes for ref in objects.refs) // PAGE_BYTES
        all_pages = pool.buffer_bytes // PAGE_BYTES
        ring = batches.by_ring(how, writes=writes)
        slots = len(objects.refs)
        if not ring:
            slots = min(slots, batches.at_once(how), all_pages // pages)
        if writes:  # where the noise of each begins somewhere else
            pages = payload.room(pages, all_pages // slots)
        tint = payload.tint(objects.refs[0], 0) if writes else 0
        buffer = pool.take(tint)
        try:
            apart = pages * PAGE_BYTES
            room = pages if writes else 0
            objects.lay_out(payload, does, buffer.address, room, apart if ring else 0)
            if writes:
                payload.fill(buffer, slots * pages, tint)
            self._pulse.enter_many(objects)
            try:
                batches.transfer(
                    objects.table, objects.tier, how=how, writes=writes, apart=apart, slots=slots
                )
            finally:
                self._pulse.leave_many(objects)
        finally:
            pool.give(buffer)


def delete_many(
    ops: Sequence[Delete], store: Store, clock: MonotonicClock
) -> tuple[OpsDone | None, list[tuple[Delete, StoreError]]]:
    """Delete copies of one tier which asks no device for that; return what went well, and what did
    not."""
    done: list[Delete] = []
    failed: list[tuple[Delete, StoreError]] = []
    began_ns: list[int] = []
    ended_ns: list[int] = []
    at_ns = clock.now_ns()
    for op in ops:
        before_ns = at_ns
        try:
            store.delete(op.copy)
        except StoreError as error:
            failed.append((op, error))
            at_ns = clock.now_ns()
            continue
        at_ns = clock.now_ns()
        done.append(op)
        began_ns.append(before_ns)
        ended_ns.append(at_ns)
    if not done:
        return None, failed
    whole = OpsDone(
        ops=done,
        tier=store.tier,
        kind=OpKind.DELETE,
        cause=done[0].cause,
        engine=store.removal,
        refs=[op.copy for op in done],
        started_ns=began_ns,
        finished_ns=ended_ns,
    )
    return whole, failed
