"""Small objects of a probe: the operations of each thread follow each other in native code.

The interpreter between two of them would take longer than the device. So each thread has a table of
what it will do before a step begins, and works it off in one call, which ends with the table, or
when time is up and the abort flag is set. Instants are those around each system call.

All objects of a size are parts of one copy that takes the whole arena, in as many versions as there
are steps that write. So the stamps of many are computed at once, and what is filled in large pieces
is what small reads verify. Where the device's blocks are larger than an object, each object begins
at a block and the blocks that cover it are moved: they hold nothing else, so that a write replaces
them and a read verifies them as a whole.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kv_cache.bench.probe_cells import LEAST_PER_THREAD, Timed
from kv_cache.bench.stillness import ANSWER_S, IoThreads, answered
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import KIB, MIB, PAGE_BYTES, round_up, whole_pages
from kv_cache.tiers import native
from kv_cache.tiers.base import Span, reason_of
from kv_cache.tiers.buffers import BufferPool, aligned_bytes
from kv_cache.tiers.native import ROW, AbortFlag, Does
from kv_cache.tiers.payload import MISMATCH, Payload, stamped_bytes

NATIVE_BYTES = 256 * KIB
"""Objects of this size and smaller are measured here."""

_BUFFERS = 4  # as many threads fill
_FILL_PIECE = MIB
_FILL_ROUND = 64  # pieces, after each of which it is asked whether that is enough
_MOST_OBJECTS = 1 << 22  # more are spread over the data, as choosing among them takes memory
_MOST_ROWS = 1 << 19  # of all threads of a step
_ROWS_PER_S = 2_000_000  # more than this program can ask for
_LOOK_S = 0.1

MEMORY_BYTES = 512 * MIB
"""For tables, the state of objects, and buffers; those of reads come on top."""

Table = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


class NativeThreads:
    """Threads that each work off a table, and the memory that they move."""

    def __init__(self, payload: Payload, most: int, where: str, stop: threading.Event) -> None:
        """At `most` so many at a time."""
        library = native.library()
        assert not isinstance(library, str), library
        self.payload = payload
        self.transfers = native.Transfers(library, payload.noise, depth=most)
        self._where, self._stop = where, stop
        pages = len(payload.noise)
        pool = BufferPool(_BUFFERS, pages * PAGE_BYTES)
        for tint in range(_BUFFERS):
            payload.fill(pool.take(), pages, tint)
        self._stored, self._loaded = pool.memory, aligned_bytes(most * NATIVE_BYTES)
        self.transfers.hold(self._stored, self._loaded)

    def work_off(self, tables: Sequence[Table], seconds: float | None = None) -> None:
        """Work off tables, a thread each, until all are done or `seconds` have passed and each
        thread has done its least. Raises NoAnswerError."""
        abort, gate = AbortFlag(), threading.Barrier(len(tables) + 1)

        def work(table: Table) -> None:
            gate.wait()  # or the first would be done before the last of hundreds has begun
            self.transfers.work_off(table, abort)

        workers = [threading.Thread(target=work, args=(table,), daemon=True) for table in tables]
        for worker in workers:
            worker.start()
        gate.wait()
        until_s = None if seconds is None else time.monotonic() + seconds
        watched = IoThreads(workers, ANSWER_S)
        while left := watched.alive:
            left_s = _LOOK_S if until_s is None else until_s - time.monotonic()
            if self._stop.is_set() or (left_s <= 0 and all(map(_has_done_least, tables))):
                abort.set()
            left[0].join(min(_LOOK_S, left_s) if left_s > 0 else _LOOK_S)
            if until_s is None or left_s <= 0:  # looking at hundreds of threads costs them time
                watched.require_answer(f"operations in {self._where}")

    def at_once(self, rows: Table) -> list[int]:
        """Begin all rows of a table at one instant; return how long each took, or nothing if one
        failed. Raises NoAnswerError."""

        def run() -> None:
            self.transfers.work_off(rows, AbortFlag(), depth=len(rows))

        answered(f"operations in {self._where}", run, ANSWER_S)
        took_ns: list[int] = (rows["ended_ns"] - rows["began_ns"]).tolist()
        return [] if rows["error"].any() else took_ns

    def addresses(self, reads: npt.NDArray[np.bool_], thread: int, of: int, nbytes: int) -> Numbers:
        """Return where in memory the operations of a thread, of so many, have their bytes: a read
        where the one before it had them, a write in noise that was not written for long."""
        share = whole_pages(len(self._stored) // of)
        begin = self._stored.ctypes.data + thread * share
        writes = begin + np.arange(len(reads)) % (share // nbytes) * nbytes
        return np.where(reads, self._loaded.ctypes.data + thread * NATIVE_BYTES, writes)


def _has_done_least(table: Table) -> bool:
    return len(table) < LEAST_PER_THREAD or bool(table["ended_ns"][LEAST_PER_THREAD - 1])


class _Places(NamedTuple):
    """Where objects are: descriptor, offset in its file, offset in the copy."""

    fds: Numbers
    offsets: Numbers
    begins: Numbers


class _Region:
    """The space of a copy, divided into objects that each lie in one of its spans."""

    def __init__(self, spans: Sequence[Span], moved_bytes: int) -> None:
        self._spans = spans
        self._fds = np.array([span.fd for span in spans], np.int64)
        self._offsets = np.array([span.offset for span in spans], np.int64)
        lengths = np.array([span.length for span in spans], np.int64)
        self.nbytes = int(lengths.sum())
        self._begins = np.cumsum(lengths) - lengths
        fit = int((lengths // moved_bytes).sum())
        self._pitch = moved_bytes * max(1, -(-fit // _MOST_OBJECTS))
        self._counts = lengths // self._pitch
        self._firsts = np.cumsum(self._counts) - self._counts
        self.count = int(self._counts.sum())

    def places(self, objects: Numbers) -> _Places:
        of = np.searchsorted(self._firsts, objects, side="right") - 1
        within = (objects - self._firsts[of]) * self._pitch
        return _Places(self._fds[of], self._offsets[of] + within, self._begins[of] + within)

    def pieces(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield descriptor, offset in its file, length and offset in the copy of large pieces."""
        for span, begin in zip(self._spans, self._begins.tolist(), strict=True):
            for at in range(0, span.length, _FILL_PIECE):
                length = min(_FILL_PIECE, span.length - at)
                yield span.fd, span.offset + at, length, begin + at

    def before(self, offset: int) -> int:
        """Return how many objects surely lie before an offset in the copy."""
        return int(np.clip((offset - self._begins) // self._pitch, 0, self._counts).sum())


class NativeObjects:
    """The objects of one size, in a copy that the caller has created and deletes."""

    def __init__(
        self,
        threads: NativeThreads,
        spans: Sequence[Span],
        nbytes: int,
        block_bytes: int,
        copy_id: int,
        random: np.random.Generator,
    ) -> None:
        self.nbytes, self.moved_bytes = nbytes, round_up(nbytes, block_bytes)
        self._threads, self._random, self._copy_id = threads, random, copy_id
        self._region = _Region(spans, self.moved_bytes)
        self._apart = stamped_bytes(nbytes)
        self._sectors = Does(0) if self._apart == PAGE_BYTES else Does.SECTORS
        self._versions = list[CopyRef]()
        self._begin_version()  # that of what was not written
        self._version_of = np.zeros(self.count, np.int32)
        self._unread = np.zeros(self.count, np.bool_)
        self.moved = {OpKind.READ: 0, OpKind.WRITE: 0}
        self.verified = 0

    @property
    def count(self) -> int:
        return self._region.count

    def fill(self, seconds: float, *, whole: bool, needed: int) -> list[str]:
        """Write all of the copy, or if not `whole` so much as `seconds` allow and is needed. Return
        the reasons of what failed."""
        until_s, filled, errors = time.monotonic() + seconds, 0, list[str]()
        self._begin_version()
        pieces = self._region.pieces()
        while not errors and (batch := list(islice(pieces, _FILL_ROUND))):
            tables = [self._filling(batch[n::_BUFFERS], n) for n in range(_BUFFERS)]
            self._threads.work_off(tables)
            for table in tables:
                errors += self._count(table)
            if not all(table["ended_ns"].all() for table in tables):
                break  # it was stopped
            filled = batch[-1][2] + batch[-1][3]
            if not whole and time.monotonic() > until_s and self._region.before(filled) >= needed:
                break
        ready = 0 if errors else self._region.before(filled)
        self._version_of[:ready], self._unread[:ready] = len(self._versions) - 1, True
        return errors

    def step(
        self, threads: int, share: float, seconds: float, *, repeated: bool
    ) -> tuple[list[Timed], list[str]]:
        """Let threads read and write for so long; return what each did, nothing where there are too
        few objects, and the reasons of what failed."""
        rows = min(_MOST_ROWS, round(_ROWS_PER_S * seconds)) // threads
        chosen = self._chosen(threads, max(rows, 2 * LEAST_PER_THREAD), share, repeated=repeated)
        if chosen is None:
            return [], []
        objects, reads = chosen
        self._begin_version()
        tables = [self._table(objects[n], reads[n], n, threads) for n in range(threads)]
        self._threads.work_off(tables, seconds)
        return self._ended(tables, objects, reads)

    def burst(self, kind: OpKind, count: int) -> list[int]:
        """Begin so many operations at one instant; return how long each took, nothing where that
        cannot be done."""
        if self._threads.transfers.ring_refusal() is not None:
            return []
        share = float(kind is OpKind.READ)
        chosen = self._chosen(count, 1, share, repeated=False)
        if chosen is None and kind is OpKind.READ:
            chosen = self._chosen(count, 1, share, repeated=True)
        if chosen is None:
            return []
        objects, reads = chosen
        self._begin_version()
        tables = [self._table(objects[n], reads[n], n, count) for n in range(count)]
        times = self._threads.at_once(np.concatenate(tables))
        if times:
            self.moved[kind] += count * self.moved_bytes
            self._note(objects.ravel(), reads.ravel())
        return times

    # --- what is done ----------------------------------------------------------------------

    def _begin_version(self) -> None:
        key, nbytes = content_key("probe", self._copy_id), self._region.nbytes
        version = CopyRef(self._copy_id, key, Tier.NVME, nbytes, len(self._versions))
        self._versions.append(version)

    def _chosen(
        self, threads: int, count: int, share: float, *, repeated: bool
    ) -> tuple[Numbers, npt.NDArray[np.bool_]] | None:
        """Choose objects for at most `count` operations of each thread, and say which are read. No
        two threads have the same, and none is read twice, but where reads are repeated. None where
        there are too few."""
        written = self._version_of > 0
        readable = np.flatnonzero(written & (self._unread != repeated))
        if repeated:
            reads = np.ones((threads, count), np.bool_)
            return (self._random.choice(readable, reads.shape), reads) if len(readable) else None
        if not share:  # a thread that has written all of its objects begins again
            distinct = self._random.choice(
                self.count, (threads, min(count, self.count // threads)), False
            )
            return np.resize(distinct.T, (count, threads)).T, np.zeros((threads, count), np.bool_)
        count = min(count, self.count // threads)
        # Spread evenly, and not in step between the threads.
        numbers = np.arange(count) + np.arange(threads)[:, np.newaxis]
        reads = np.floor((numbers + 1) * share) > np.floor(numbers * share)
        fit = int(np.searchsorted(np.cumsum(reads.sum(axis=0)), len(readable), side="right"))
        reads = reads[:, :fit]
        if not fit:
            return None
        objects = np.empty(reads.shape, np.int64)
        objects[reads] = self._random.choice(readable, int(reads.sum()), replace=False)
        if not reads.all():
            others = np.ones(self.count, np.bool_)
            others[objects[reads]] = False
            writes = int((~reads).sum())
            objects[~reads] = self._random.choice(np.flatnonzero(others), writes, replace=False)
        return objects, reads

    def _table(self, objects: Numbers, reads: npt.NDArray[np.bool_], thread: int, of: int) -> Table:
        places = self._region.places(objects)
        rows = np.zeros(len(objects), ROW)
        rows["object"] = np.arange(len(objects))
        rows["does"] = Does.STAMPED | self._sectors
        rows["does"][~reads] |= Does.WRITE
        rows["fd"], rows["offset"], rows["nbytes"] = places.fds, places.offsets, self.moved_bytes
        rows["address"] = self._threads.addresses(reads, thread, of, self.moved_bytes)
        versions = np.where(reads, self._version_of[objects], len(self._versions) - 1)
        rows["bases"] = self._bases(versions, places.begins)
        return rows

    def _filling(self, pieces: Sequence[tuple[int, int, int, int]], thread: int) -> Table:
        """Return the table of a thread that writes large pieces of the last version."""
        rows = np.zeros(len(pieces), ROW)
        fds, offsets, lengths, begins = np.array(pieces, np.int64).reshape(-1, 4).T
        rows["object"] = np.arange(len(pieces))
        rows["does"] = Does.WRITE | Does.STAMPED | self._sectors
        rows["fd"], rows["offset"], rows["nbytes"] = fds, offsets, lengths
        reads = np.zeros(len(pieces), np.bool_)
        rows["address"] = self._threads.addresses(reads, thread, _BUFFERS, _FILL_PIECE)
        versions = np.full(len(pieces), len(self._versions) - 1)
        rows["bases"] = self._bases(versions, begins)
        return rows

    def _bases(self, versions: Numbers, begins: Numbers) -> npt.NDArray[np.uint64]:
        numbers = (begins // self._apart).astype(np.uint64)
        payload = self._threads.payload
        firsts = np.array(payload.firsts(self._versions), np.uint64)
        return payload.stamps_from(firsts[versions], numbers)

    def _ended(
        self, tables: Sequence[Table], objects: Numbers, reads: npt.NDArray[np.bool_]
    ) -> tuple[list[Timed], list[str]]:
        timed, errors = list[Timed](), list[str]()
        for rows, of, are_reads in zip(tables, objects, reads, strict=True):
            errors += self._count(rows)
            begun = rows["began_ns"] > 0
            ended, these = rows[begun], are_reads[begun]
            self._note(of[begun], these)
            self._version_of[of[begun & (rows["error"] != 0) & ~are_reads]] = 0
            device_ns = ended["ended_ns"] - ended["began_ns"]
            timed.append(Timed(ended["began_ns"], ended["ended_ns"], device_ns, these))
        return timed, errors

    def _note(self, objects: Numbers, reads: npt.NDArray[np.bool_]) -> None:
        """Note what was read, and what is of the last version now."""
        self._unread[objects] = ~reads
        self._version_of[objects[~reads]] = len(self._versions) - 1

    def _count(self, rows: Table) -> list[str]:
        """Count the bytes of a table that was worked off; return the reasons of what failed."""
        writes = (rows["does"] & Does.WRITE) > 0
        self.moved[OpKind.WRITE] += int(rows["moved"][writes].sum())
        self.moved[OpKind.READ] += int(rows["moved"][~writes].sum())
        self.verified += int(((rows["error"] == 0) & (rows["began_ns"] > 0) & ~writes).sum())
        failed = (rows["error"] != 0) & (rows["error"] != native.ABORTED)
        return [
            _reason(int(error), writes=bool(write))
            for error, write in zip(rows["error"][failed], writes[failed], strict=True)
        ]


def _reason(error: int, *, writes: bool) -> str:
    if error > 0:
        return reason_of(OSError(error, ""))
    if error == native.SHORT:
        return "short-write" if writes else "truncated"
    return MISMATCH
