"""Operations on many objects of one tier at once: what became of them is told in columns.

Reads and writes are of objects whose places their store knows: those of a batch go in one call,
whose table is read by columns. The table is shared out among the crew of native threads,
each with a place in one buffer for all the objects that it moves. What is not one call that went
well is told object by object (`AloneAfterAll`).
"""

from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

from msgspec import Struct

from kv_cache.bench.batches import BatchMover, done_to, sync_rows
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.core.effect import CopyRef, Delete, Leg, Read, Write
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.ops_done import OpsDone
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.base import Capability, Place, Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.native import Does, Moved, Piece, PieceTable
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
        self, objects: Sequence[tuple[Read | Write, CopyRef, Place]], clock: MonotonicClock
    ) -> None:
        self.ops, self.refs, self.places = zip(*objects, strict=True)
        self.kind = OpKind.READ if isinstance(self.ops[0], Read) else OpKind.WRITE
        self.cause, self.tier = self.ops[0].cause, self.refs[0].tier
        self.engine = self.places[0].engine
        self._clock = clock
        self._rows: list[int] = []  # of each object, where its pieces begin
        self.table = PieceTable(())

    def lay_out(self, payload: Payload, does: int, address: int, room: int) -> None:
        """Make the table. All objects lie in the same memory: at `address`, or where each one's
        noise says in so many pages of `room` from there on."""
        pieces: list[tuple[int, ...]] = []
        for number, (ref, place) in enumerate(zip(self.refs, self.places, strict=True)):
            self._rows.append(len(pieces))
            first = payload.bases(ref, 0)
            at, begin = address, 0
            if room:
                at += PAGE_BYTES * payload.shift(first, ref.nbytes // PAGE_BYTES, room)
            for fd, offset, nbytes in place.spans:
                bases = payload.bases(ref, begin) if begin else first
                pieces.append((number, does, fd, offset, nbytes, at + begin, *bases))
                begin += nbytes
            pieces += sync_rows(number, place.sync, does & Does.NOWHERE)
        self.table = PieceTable(pieces)

    def calls(self) -> Iterator[_RowCall]:
        """Yield the calls that threads are in now."""
        began, *_ = self.table.columns()
        ends = [*self._rows[1:], self.table.count]
        for first, end in zip(self._rows, ends, strict=True):
            began_ns = began[first]
            if began_ns and not self.table.are_over(first, end):
                at_ns = self._clock.of_monotonic(began_ns)
                yield _RowCall(self.cause, self.kind, self.tier, self.engine, at_ns)

    def outcome(self) -> tuple[OpsDone | None, list["AloneAfterAll"]]:
        """Return what became of those that took one call and went well, and each of the others:
        while the table is worked off, of those that have ended."""
        began, ended, _, _, errors = self.table.columns()
        if len(self.refs) == self.table.count and all(ended) and not any(errors):
            return self._went_well(range(len(self.refs)), began, ended), []
        ends = [*self._rows[1:], self.table.count]
        well, others = [], []
        for number, (first, end) in enumerate(zip(self._rows, ends, strict=True)):
            if not all(ended[row] or errors[row] for row in range(first, end)):
                continue
            if end - first == 1 and not errors[first]:
                well.append(number)
                continue
            rows = [self.table.row(row) for row in range(first, end)]
            others.append(
                AloneAfterAll(self.ops[number], self.refs[number], self.places[number], rows)
            )
        rows_of = [self._rows[number] for number in well]
        began, ended = ([column[row] for row in rows_of] for column in (began, ended))
        return self._went_well(well, began, ended) if well else None, others

    def _went_well(
        self, numbers: Sequence[int], began: Sequence[int], ended: Sequence[int]
    ) -> OpsDone:
        origin_ns = self._clock.of_monotonic(0)
        steps = [step for number in numbers for step in self.places[number].steps]
        steps_ns = [step.duration_ns for step in steps]
        if steps:
            began = list(map(sub, began, steps_ns))
        return OpsDone(
            ops=[self.ops[number] for number in numbers],
            tier=self.tier,
            kind=self.kind,
            cause=self.cause,
            engine=self.engine,
            refs=[self.refs[number] for number in numbers],
            started_ns=[at_ns + origin_ns for at_ns in began],
            finished_ns=[at_ns + origin_ns for at_ns in ended],
            step=steps[0].name if steps else None,
            steps_ns=steps_ns,
        )


class AloneAfterAll(NamedTuple):
    """One of many objects by itself, and what became of its rows."""

    op: Read | Write
    ref: CopyRef
    place: Place
    rows: Sequence[tuple[Piece, Moved]]


class PlacedMover:
    """Moves placed objects, for any number of threads."""

    def __init__(self, batches: BatchMover, pulse: StoreCalls) -> None:
        self._batches, self._pulse = batches, pulse

    def move(self, objects: PlacedObjects, pool: BufferPool, *, how: Capability) -> None:
        """Read and verify, or stamp and write, all of the objects."""
        batches, payload = self._batches, self._batches.payload
        writes = objects.kind is OpKind.WRITE
        does = done_to(Does.WRITE | Does.STAMPED if writes else batches.reads, how)
        pages = max(ref.nbytes for ref in objects.refs) // PAGE_BYTES
        all_pages = pool.buffer_bytes // PAGE_BYTES
        slots = min(len(objects.refs), batches.at_once(how), all_pages // pages)
        if writes:  # where the noise of each begins somewhere else
            pages = payload.room(pages, all_pages // slots)
        tint = payload.tint(objects.refs[0], 0) if writes else 0
        buffer = pool.take(tint)
        try:
            objects.lay_out(payload, does, buffer.address, pages if writes else 0)
            if writes:
                payload.fill(buffer, slots * pages, tint)
            self._pulse.enter_many(objects)
            try:
                batches.share_out(objects.table, apart=pages * PAGE_BYTES, slots=slots)
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
