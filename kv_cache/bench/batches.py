"""Reads and writes without the interpreter lock, many in a call (`tiers/native`).

For stores whose bytes may be moved by positional calls (`Capability.POSITIONAL`). They go to the
native transfers as a table of pieces, whose memory is one buffer of the pool at a time. A file that
an object has to itself is opened and closed by rows of the same table (`Names`), if the
object fits into a buffer; other names are found, made and closed as ever.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.leg_timer import LegTimer
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.core.effect import ABORTED, CopyRef, Move, Read, Write
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers import native
from kv_cache.tiers.base import (
    NEW_MODE,
    RINGS,
    Capability,
    Names,
    Place,
    Sink,
    Span,
    Store,
    Tap,
    Unsynced,
    reason_of,
)
from kv_cache.tiers.buffers import Buffer, BufferPool
from kv_cache.tiers.native import STEPS, Does, Moved, Piece, PieceTable
from kv_cache.tiers.nvme.layouts import close_all
from kv_cache.tiers.payload import MISMATCH, Payload

ALL_MOVED = (0, native.WRONG)
_REASONS = {native.WRONG: MISMATCH, native.ABORTED: ABORTED}


class Batched:
    """One side of an operation of a batch, while it is performed. A tap or a sink that is there is
    open; with names or a place there is neither."""

    def __init__(self, op: Read | Write | Move, ref: CopyRef, timer: LegTimer) -> None:
        self.op, self.ref, self.timer = op, ref, timer
        self.tap: Tap | None = None
        self.sink: Sink | None = None
        self.names: Names | None = None
        self.place: Place | None = None
        self.kept: int | None = None  # its file, which is open still
        self.rows: _RowRange | None = None  # of all of it, in the call that moves it
        self.error: StoreError | None = None

    @property
    def spans(self) -> Sequence[Span]:
        """Where its bytes are; nowhere if it could not be opened."""
        if self.place is not None:
            return self.place.spans
        if self.names is not None:  # of the file that is opened then
            return (Span(-1, self.names.offset, self.ref.nbytes),)
        end = self.tap or self.sink
        return () if end is None else end.spans

    def give_up(self) -> None:
        """Leave nothing open behind, after a defect of the program."""
        tap, sink, self.tap, self.sink = self.tap, self.sink, None, None
        if tap is not None:
            tap.close()
        if sink is not None:
            sink.abort()
        self.close_kept()

    def close_kept(self) -> None:
        fd, self.kept = self.kept, None
        if fd is not None:
            os.close(fd)


# Numbers, as arithmetic on flags takes a microsecond a row.
_OPEN, _SYNC, _CLOSE, _RENAME = map(int, (Does.OPEN, Does.SYNC, Does.CLOSE, Does.RENAME))
_KEEP, _NOWHERE = int(Does.KEEP), int(Does.NOWHERE)
_MEMORY = int(Does.MEMORY)
_STEPS = {_SYNC: "fsync", _CLOSE: "close", _RENAME: "rename"}


class _RowRange(NamedTuple):
    """Rows of a table that follow each other."""

    table: PieceTable
    first: int
    end: int


class _Chunk(NamedTuple):
    """What of an operation goes through the buffer at once, and where in it."""

    of: Batched
    offset: int
    nbytes: int
    page: int


class BatchMover:
    """Moves the bytes of open taps and sinks."""

    def __init__(
        self, transfers: native.Transfers, payload: Payload, clock: MonotonicClock,
        abort: native.AbortFlag, reads: Does, pulse: StoreCalls,
    ) -> None:  # fmt: skip
        """`reads` says what is verified of a read. `pulse` counts what storage moves. So many
        pieces as `transfers` is deep may be in flight of all calls together, beside one of
        each."""
        self.pulse = pulse
        self.transfers, self.payload, self._clock = transfers, payload, clock
        self._abort, self.reads = abort, reads
        self._spare, self._lock = transfers.depth - 1, threading.Lock()

    def refusal(self, store: Store) -> str | None:
        """Return why the bytes of a store are not moved here; None if they are."""
        if Capability.POSITIONAL not in store.capabilities:
            engine = store.describe().get("engine")
            return f"{type(store).__name__} ({engine}) is not moved by positional calls"
        return self.transfers.ring_refusal() if store.capabilities & RINGS else None

    def load(self, batch: Sequence[Batched], pool: BufferPool, *, how: Capability) -> None:
        """Read what the taps of a batch hold, and verify it."""
        batch[0].timer.shared = len(batch) > 1
        for chunks, _ in _waves(batch, pool.buffer_bytes):
            buffer = pool.take()
            try:
                self._move(chunks, buffer, self.reads, how=how)
            finally:
                pool.give(buffer)

    def store(self, batch: Sequence[Batched], pool: BufferPool, *, how: Capability) -> None:
        """Write what the sinks of a batch shall hold."""
        batch[0].timer.shared = len(batch) > 1
        for chunks, pages in _waves(batch, pool.buffer_bytes):
            first = chunks[0]
            tint = self.payload.tint(first.of.ref, first.offset)
            buffer = pool.take(tint)
            try:
                begin = self.payload.place(first.of.ref, pages)
                self.payload.fill(buffer, begin + pages, tint)
                moved = [chunk._replace(page=begin + chunk.page) for chunk in chunks]
                self._move(moved, buffer, Does.WRITE | Does.STAMPED, how=how)
            finally:
                pool.give(buffer)

    def copy(
        self,
        pairs: Sequence[tuple[Batched, Batched]],
        pool: BufferPool,
        *,
        source: Capability,
        target: Capability,
    ) -> None:
        """Read and verify what the first of each pair holds, and write it as the second: what could
        not be read is not written."""
        writing = {id(reader): writer for reader, writer in pairs}
        one = len(pairs) == 1 and pairs[0][0].ref.nbytes > pool.buffer_bytes
        alone = pairs if one else ()
        made_ns = 0
        for reader, writer in alone:
            reader.timer.shared, made_ns = False, writer.timer.device_ns
        for chunks, _ in _waves([reader for reader, _ in pairs], pool.buffer_bytes):
            buffer = pool.take()
            try:
                self._move(chunks, buffer, self.reads, how=source)
                read = [chunk for chunk in chunks if chunk.of.error is None]
                written = [chunk._replace(of=writing[id(chunk.of)]) for chunk in read]
                self._move(written, buffer, Does.WRITE, how=target)
            finally:
                pool.give(buffer)
        for reader, writer in alone:  # between its calls are those of the other
            reader.timer.aside_ns = writer.timer.device_ns - made_ns

    def carry(
        self,
        timer: LegTimer,
        end: Tap | Sink,
        ref: CopyRef,
        offset: int,
        buffer: Buffer,
        *,
        how: Capability,
    ) -> int:
        """Move one buffer of a copy as it is: read and verify it from a tap, or write it to a sink.
        Return its bytes. Raises StoreError."""
        writes = timer.kind is OpKind.WRITE
        n = min(len(buffer.array), ref.nbytes - offset)
        does = done_to(Does.WRITE if writes else self.reads, how)
        pieces = list(self._pieces(0, end.spans, ref, offset, n, buffer.address, does))
        timer.begin()
        for moved in self._run(PieceTable(pieces), ref.tier, how=how, writes=writes):
            if moved.began_ns:
                timer.made(*self._calls(moved))
            if moved.error:
                timer.calling = moved.error not in ALL_MOVED  # it is the call that failed
                raise _error(moved.error, ref, writes=writes)
        return n

    def _run(self, table: PieceTable, tier: Tier, *, how: Capability, writes: bool) -> list[Moved]:
        self.transfer(table, tier, how=how, writes=writes)
        return table.moved()

    def transfer(
        self,
        table: PieceTable,
        tier: Tier,
        *,
        how: Capability,
        writes: bool,
        apart: int = 0,
        slots: int | None = None,
    ) -> None:
        """Transfer the rows of a table as a tier's store of these capabilities has it: through a
        ring, or by `slots` threads (as many as there are), each with a place of its own in memory,
        which are `apart` bytes from each other."""
        kind = OpKind.WRITE if writes else OpKind.READ
        with self.pulse.moving(kind, table) if tier is Tier.NVME else nullcontext():
            if self.by_ring(how, writes=writes):
                self._through_ring(table)
            else:
                slots = self.at_once(how) if slots is None else slots
                self.transfers.share_out(table, self._abort, apart=apart, slots=slots)

    def _through_ring(self, table: PieceTable) -> None:
        """Transfer as many rows at a time as there is depth to spare."""
        with self._lock:
            more = max(0, min(self._spare, table.count - 1))
            self._spare -= more
        try:
            self.transfers.through_ring(table, self._abort, 1 + more)
        finally:
            with self._lock:
                self._spare += more

    def by_ring(self, how: Capability, *, writes: bool) -> bool:
        """Return whether such operations of a store go through an io_uring."""
        return (Capability.WRITE_RINGS if writes else Capability.READ_RINGS) in how

    def at_once(self, how: Capability) -> int:
        """Return how many threads move objects of one call of a store of these capabilities."""
        return self.transfers.depth if Capability.AT_ONCE in how else 1

    def tell(self, one: Batched, rows: Iterable[tuple[Piece, Moved]]) -> None:
        """Note what became of the pieces of an object that were moved."""
        chunk = _Chunk(one, 0, one.ref.nbytes, 0)
        for piece, moved in rows:
            self._tell(chunk, piece, moved, writes=one.timer.kind is OpKind.WRITE)

    def _move(
        self, chunks: Sequence[_Chunk], buffer: Buffer, does: Does, *, how: Capability
    ) -> None:
        live = [chunk for chunk in chunks if chunk.of.error is None]
        if not live:
            return
        writes, all_of = bool(does & Does.WRITE), done_to(does, how)
        owners: list[_Chunk] = []
        firsts: list[int] = []
        pieces: list[Piece] = []
        for number, chunk in enumerate(live):
            of, address = chunk.of, buffer.address + chunk.page * PAGE_BYTES
            rows: Iterable[Piece] = self._pieces(
                number, of.spans, of.ref, chunk.offset, chunk.nbytes, address, all_of
            )
            beside = all_of & _NOWHERE
            if of.names is not None:
                rows = with_steps(number, of.names, rows, writes=writes, beside=beside)
            elif writes and of.place is not None:
                rows = [*rows, *sync_rows(number, of.place.sync, beside)]
            first = len(pieces)
            pieces.extend(rows)
            owners += [chunk] * (len(pieces) - first)
            firsts.append(first)
        table = PieceTable(pieces)
        for first, end, chunk in zip(firsts, [*firsts[1:], len(pieces)], live, strict=True):
            goes_on = partial(table.began_ns, first)
            if chunk.nbytes == chunk.of.ref.nbytes:
                chunk.of.rows = _RowRange(table, first, end)
                goes_on = partial(table.goes_on_since_ns, first, end)
            chunk.of.timer.begin_outside(goes_on)
        results = self._run(table, live[0].of.ref.tier, how=how, writes=writes)
        for piece, chunk, moved in zip(pieces, owners, results, strict=True):
            self._tell(chunk, piece, moved, writes=writes)

    def sync(self, one: Batched, due: Unsynced) -> None:
        """Sync files as a step of one write, all whatever happens, and close them. Raises
        StoreError."""
        rows = [row for number, fd in enumerate(due.files) for row in sync_rows(number, (fd,))]
        table, one.rows = PieceTable(rows), None  # it has not ended with those before
        one.timer.begin_outside(partial(table.began_ns, 0))
        try:
            results = self.transfers.run(table, self._abort)
        finally:
            close_all(due.fds)
        began = [moved.began_ns for moved in results if moved.began_ns]
        if began:
            ended_ns = max(moved.ended_ns for moved in results)
            instants = map(self._clock.of_monotonic, (began[0], ended_ns))
            one.timer.stepped("fsync", *instants, well=not any(moved.error for moved in results))
        one.timer.calling = False
        for moved in results:
            if moved.error:
                raise _error(moved.error, one.ref, writes=True)

    def _pieces(
        self,
        number: int,
        spans: Sequence[Span],
        ref: CopyRef,
        offset: int,
        nbytes: int,
        address: int,
        does: int,
    ) -> Iterator[Piece]:
        for fd, at, begin, length in within(spans, offset, nbytes):
            bases = self.payload.bases(ref, offset + begin)
            yield Piece(number, does, fd, at, length, address + begin, *bases)

    def _calls(self, moved: Moved) -> tuple[int, int, int]:
        """Return when the calls of a piece began and ended, and the bytes that they moved, which
        may be a part of those of a piece that failed."""
        began_ns, ended_ns = map(self._clock.of_monotonic, (moved.began_ns, moved.ended_ns))
        return began_ns, ended_ns, moved.nbytes

    def _tell(self, chunk: _Chunk, piece: Piece, moved: Moved, *, writes: bool) -> None:
        """Note what became of one piece of an operation."""
        of, timer = chunk.of, chunk.of.timer
        if moved.began_ns and piece.does & STEPS:
            if piece.does & _KEEP:
                of.kept = moved.nbytes or None
            began_ns, ended_ns, _ = self._calls(moved)
            name = step_name(piece.does, writes=writes)
            gave_up = writes and of.error is not None  # and closes what it has opened
            timer.stepped(name, began_ns, ended_ns, well=not (moved.error or gave_up))
        elif moved.began_ns:
            timer.called(*self._calls(moved), moved.host_ns)
        else:
            timer.calling = False
        if moved.error and moved.error != native.LEFT_OUT and of.error is None:
            of.error = _error(moved.error, of.ref, writes=writes)


def done_to(does: Does, how: Capability) -> int:
    """Return what is done with pieces of a store of these capabilities."""
    nowhere = _NOWHERE if Capability.NOWHERE in how else 0
    return int(does) | nowhere | (_MEMORY if Capability.MEMORY in how else 0)


def step_name(does: int, *, writes: bool) -> str:
    """Return what the step of a row is called in results."""
    return _STEPS.get(does & STEPS, "create" if writes else "open")


def sync_rows(number: int, fds: Iterable[int], beside: int = 0) -> list[Piece]:
    """Return the rows that sync files which are open already, for an object."""
    return [Piece(number, _SYNC | beside, fd, 0, 0, 0, 0, 0, 0) for fd in fds]


def with_steps(
    number: int, names: Names, pieces: Iterable[Piece], *, writes: bool, beside: int
) -> Iterator[Piece]:
    """Yield the pieces of an object between the steps of its file."""
    directory, name = names.directory, native.address_of(names.name)

    def step(does: int, *, offset: int = 0, nbytes: int = 0, to: int = 0) -> Piece:
        return Piece(number, does | beside, directory, offset, nbytes, name, to, 0, 0)

    yield step(_OPEN, offset=names.flags, nbytes=NEW_MODE)
    yield from pieces
    if names.sync:
        yield step(_SYNC)
    yield step(_CLOSE | _KEEP if names.keep else _CLOSE)
    if names.complete is not None:
        yield step(_RENAME, to=native.address_of(names.complete))


def _waves(batch: Sequence[Batched], room: int) -> Iterator[tuple[list[_Chunk], int]]:
    """Yield chunks that a buffer of `room` bytes holds at once, and of how many pages they are."""
    chunks: list[_Chunk] = []
    used = 0
    for one in (each for each in batch if each.error is None):
        for offset in range(0, one.ref.nbytes, room):
            n = min(room, one.ref.nbytes - offset)
            if used + n > room:
                yield chunks, used // PAGE_BYTES
                chunks, used = [], 0
            chunks.append(_Chunk(one, offset, n, used // PAGE_BYTES))
            used += n
    if chunks:
        yield chunks, used // PAGE_BYTES


def within(spans: Sequence[Span], offset: int, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (descriptor, offset in its file, offset in the range, length) of a range of an
    object."""
    at = 0
    for span in spans:
        begin, end = max(offset, at), min(offset + nbytes, at + span.length)
        if begin < end:
            yield span.fd, span.offset + begin - at, begin - offset, end - begin
        at += span.length


def calls_of(spans: Sequence[Span], offset: int, nbytes: int) -> Iterable[tuple[int, int]]:
    """Return where in a range of an object, and of how many bytes, each call is that moves it: of a
    store that says where it is, one of each piece."""
    pieces = [(begin, length) for _, _, begin, length in within(spans, offset, nbytes)]
    return pieces or ((0, nbytes),)


def _error(number: int, ref: CopyRef, *, writes: bool) -> StoreError:
    if number > 0:
        return StoreError(reason_of(OSError(number, "")), os.strerror(number))
    if number == native.SHORT:
        return StoreError(
            "short-write" if writes else "truncated", "the file ends before its object"
        )
    return StoreError(_REASONS[number], str(ref))
