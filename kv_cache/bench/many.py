"""Operations on many objects of one tier at once: what became of them is told in arrays.

Reads and writes are of objects whose places their store knows: those of a batch go in one call,
whose table is made and read by columns. The table is shared out among the crew of native threads,
each with a place in one buffer for all the objects that it moves. What is not one call that went
well is told object by object (`AloneAfterAll`).
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kv_cache.bench.batches import BatchMover, done_to
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.core.effect import CopyRef, Delete, Leg, Read, Write
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.ops_done import OpsDone
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.base import Capability, Place, Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.native import ROW, Does, Moved, Piece, row_of

Rows = npt.NDArray[np.void]


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
        spans = [place.spans for place in self.places]
        self.counts = np.fromiter(map(len, spans), np.int64, len(spans))
        self.rows: Rows = np.zeros(int(self.counts.sum()), ROW)
        self.of = np.repeat(np.arange(len(spans)), self.counts)
        where = np.array(list(chain.from_iterable(spans)), np.int64)
        rows = self.rows
        rows["object"] = self.of
        rows["fd"], rows["offset"], rows["nbytes"] = where.T
        ends = np.cumsum(where[:, 2])
        self.nbytes = np.fromiter((ref.nbytes for ref in self.refs), np.int64, len(spans))
        firsts = np.cumsum(self.nbytes) - self.nbytes
        self.begin = ends - where[:, 2] - firsts[self.of]
        """Where in its object each row begins."""

    def calls(self) -> Iterator[_RowCall]:
        """Yield the calls that threads are in now."""
        begun = self.rows["began_ns"].copy()
        for began_ns in begun[(begun > 0) & (self.rows["ended_ns"] == 0)].tolist():
            at_ns = self._clock.of_monotonic(began_ns)
            yield _RowCall(self.cause, self.kind, self.tier, self.engine, at_ns)

    def went_well(self) -> npt.NDArray[np.bool_]:
        """Return which objects took one call that went well."""
        well: npt.NDArray[np.bool_] = self.counts == 1
        well[self.of[self.rows["error"] != 0]] = False
        return well

    def outcome(self, well: npt.NDArray[np.bool_]) -> OpsDone:
        """Return what became of those that went well."""
        chosen = np.flatnonzero(well).tolist()
        rows = self.rows[well[self.of]]
        steps = [step for number in chosen for step in self.places[number].steps]
        steps_ns = [step.duration_ns for step in steps]
        began_ns = self._clock.of_monotonic(0) + rows["began_ns"]
        return OpsDone(
            ops=[self.ops[number] for number in chosen],
            tier=self.tier,
            kind=self.kind,
            cause=self.cause,
            engine=self.engine,
            nbytes=self.nbytes[well],
            started_ns=began_ns - np.array(steps_ns) if steps else began_ns,
            finished_ns=self._clock.of_monotonic(0) + rows["ended_ns"],
            step=steps[0].name if steps else None,
            steps_ns=steps_ns,
        )

    def others(self, well: npt.NDArray[np.bool_]) -> Iterator["AloneAfterAll"]:
        """Yield those that did not go well, or took more than one call."""
        for number in np.flatnonzero(~well).tolist():
            rows = list(map(row_of, self.rows[self.of == number]))
            yield AloneAfterAll(self.ops[number], self.refs[number], self.places[number], rows)


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
        batches, rows, payload = self._batches, objects.rows, self._batches.payload
        writes = objects.kind is OpKind.WRITE
        does = Does.WRITE | Does.STAMPED if writes else batches.reads
        rows["does"] = done_to(does, how)
        firsts = payload.firsts(objects.refs)
        rows["bases"] = payload.stamps_from(firsts[objects.of], objects.begin // PAGE_BYTES)
        largest = int(objects.nbytes.max())
        slots = min(len(objects.refs), batches.at_once(how), pool.buffer_bytes // largest)
        pages = largest // PAGE_BYTES
        if writes:  # where the noise of each begins somewhere else
            pages = payload.room(pages, pool.buffer_bytes // PAGE_BYTES // slots)
        tint = payload.tint(objects.refs[0], 0) if writes else 0
        buffer = pool.take(tint)
        try:
            rows["address"] = buffer.address + objects.begin.astype(np.uint64)
            if writes:
                payload.fill(buffer, slots * pages, tint)
                shifts = payload.shifts(firsts, objects.nbytes // PAGE_BYTES, pages)
                rows["address"] += shifts[objects.of] * np.uint64(PAGE_BYTES)
            self._pulse.enter_many(objects)
            try:
                batches.work_off(rows, apart=pages * PAGE_BYTES, slots=slots)
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
        nbytes=np.array([op.copy.nbytes for op in done]),
        started_ns=np.array(began_ns),
        finished_ns=np.array(ended_ns),
    )
    return whole, failed
