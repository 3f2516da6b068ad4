"""A device measured: service time and bandwidth by object size, concurrency and share of reads.

For each size an arena of preallocated files is filled; then, for each concurrency, four steps that
leave the data as the next one needs it:

    write     objects are replaced
    mixed     every second operation (or a given share, or several) reads an object that was not
              read since it was written
    first     the same, reads only
    repeated  what was read before is read again, which a host's cache may hold

and for each size bursts: as many reads, then writes, begun at the same instant on an idle device
show whether it serves in order or all at once.

All in random order, with direct I/O, stamped and verified. The arena is written once as a whole
before: a device answers reads of what was never written out of nothing, and first writes to
preallocated space are slower than later ones. Where a run's files are to be predicted, the layout
is the run's: then a write's time has creating, fsync and renaming in it, and deletes are measured.

Small objects in an arena are measured by native code alone (`probe_native`), larger ones by the
mover that a run has. `probe_cells` says what the operations of a step come to.
"""

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import numpy as np
from msgspec import Struct, field

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.counters import device_of, read_counters
from kv_cache.bench.probe_cells import LEAST_PER_THREAD, Timed, objects_needed, summarise, us
from kv_cache.bench.probe_native import MEMORY_BYTES, NATIVE_BYTES, NativeObjects, NativeThreads
from kv_cache.bench.stillness import ANSWER_S, IoThreads, answered
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.config.profile import Burst, Cell, RefusedCell
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Delete, Leg, Read, Write
from kv_cache.core.errors import NoAnswerError, PlaceError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, PAGE_BYTES, human_bytes, round_up, s_to_ns
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.native import AbortFlag
from kv_cache.tiers.nvme import choose_engine, direct_block_bytes, open_storage
from kv_cache.tiers.payload import Payload

BUFFER_BYTES = 16 * MIB
BURST_ROUNDS = 4  # of which the first does not count
BURST_CONCURRENCY = 8  # or what is nearest below, of those that are measured

_BURST_PATIENCE_S = 10.0  # with a thread that does not come
_FILES = 4  # of an arena; objects that fit it evenly never lie in two
_LOOK_S = 0.1
_SWITCH_INTERVAL_S = 0.0005  # the default of 5 ms shows in the tail of every short operation
_FILL_THREADS = 4

Tick = Callable[[float, str], None]
"""Told the share that is done and what is being done."""


class ProbePlan(Struct, frozen=True, kw_only=True):
    """What to measure. `seconds` is aimed at for all of it; slow devices take longer."""

    sizes: tuple[int, ...]
    concurrencies: tuple[int, ...]
    data_bytes: int
    seconds: float
    seed: int = 1
    layout: str = "arena"
    fsync: str = "never"
    reclaim: str | None = None  # a dead host, see `CacheDir`
    shares: tuple[float, ...] = (0.5,)  # of reads, where they are mixed with writes
    native: bool = True  # whether the native library is there

    def in_native_code(self, nbytes: int) -> bool:
        """Whether objects of this size are measured by native code, which opens and syncs
        nothing."""
        names_nothing = self.layout == "arena" and self.fsync == "never"
        return self.native and names_nothing and nbytes <= NATIVE_BYTES

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """Each with its share of reads."""
        mixed = tuple((f"mixed {share:g}", share) for share in sorted(self.shares))
        return (("write", 0.0), *mixed, ("first", 1.0), ("repeated", 1.0))

    @property
    def step_s(self) -> float:
        """A step's length. The fills, one for each size, take twice that."""
        return self.seconds / self.total_steps

    @property
    def total_steps(self) -> int:
        return len(self.sizes) * (len(self.concurrencies) * len(self.steps) + 2)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the arena: all of the data, such that no object lies in two of its files."""
        unit = _FILES * math.lcm(PAGE_BYTES, *self.sizes)
        if unit > self.data_bytes:
            unit = _FILES * round_up(max(self.sizes), PAGE_BYTES)
        return max(1, self.data_bytes // unit) * unit

    @property
    def least_bytes(self) -> int:
        """Below which the largest objects cannot be measured at the highest concurrency."""
        return objects_needed(max(self.concurrencies)) * max(self.sizes)

    @property
    def buffers(self) -> int:
        """Count the buffers for reads, and for writes, of what is not measured by native code."""
        return 1 if all(map(self.in_native_code, self.sizes)) else max(self.concurrencies)

    def memory_bytes(self) -> int:
        small = any(map(self.in_native_code, self.sizes))
        native = MEMORY_BYTES + max(self.concurrencies) * NATIVE_BYTES if small else 0
        return 2 * self.buffers * BUFFER_BYTES + native


class Probed(Struct, eq=False):
    """The result of a probe. `counted` is what the kernel counted of the bytes moved."""

    cells: list[Cell] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    refused: list[RefusedCell] = field(default_factory=list)
    counted: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    block_bytes: int | None = None  # the least that direct I/O moves, where that was asked for
    verified_objects: int = 0
    failures: int = 0


class _Objects:
    """The copies of one size: those not read since they were written, the others, and free
    places."""

    def __init__(self, nbytes: int, places: int, random: Random, first_id: int) -> None:
        self.nbytes = nbytes
        self.next_id = first_id
        self._places = places
        self._random = random
        self._lock = threading.Lock()
        self.fresh: list[CopyRef] = []
        self.used: list[CopyRef] = []

    def new(self) -> tuple[CopyRef | None, CopyRef] | None:
        """Pick the object to delete, if any, and its replacement; None if all are in use."""
        with self._lock:
            gone = None
            if self._places:
                self._places -= 1
            elif self.used or self.fresh:
                gone = self._take(self.used or self.fresh)
            else:
                return None
            self.next_id += 1
            key = content_key("probe", self.next_id)
            return gone, CopyRef(self.next_id, key, Tier.NVME, self.nbytes, 0)

    def free(self) -> bool:
        return self._places > 0

    def unread(self) -> CopyRef | None:
        with self._lock:
            return self._take(self.fresh) if self.fresh else None

    def again(self) -> CopyRef | None:
        with self._lock:
            return self._take(self.used) if self.used else None

    def ended(self, op: Read | Write, *, ok: bool) -> None:
        """Take the copy of an operation back; one that could not be written frees its place."""
        with self._lock:
            if isinstance(op, Read):
                self.used.append(op.copy)
            elif ok:
                self.fresh.append(op.copy)
            else:
                self._places += 1

    def _take(self, refs: list[CopyRef]) -> CopyRef:
        at = self._random.randrange(len(refs))
        refs[at], refs[-1] = refs[-1], refs[at]
        return refs.pop()


class StorageProbe:
    """Measures below a directory that the caller owns and removes. A context manager, which gives
    memory and descriptors back."""

    def __init__(self, root: Path, plan: ProbePlan, *, stop: threading.Event, tick: Tick) -> None:
        """Raises PlaceError where the directory cannot do direct I/O."""
        self._root = root
        self._plan = plan
        self._stop = stop
        self._tick = tick
        self._clock = MonotonicClock()
        self._random = Seed(plan.seed).child("probe").rng()
        self._done_steps = 0
        self._ids = 0
        self._moved = {OpKind.READ: 0, OpKind.WRITE: 0}
        self._switch_interval_s = sys.getswitchinterval()
        self.probed = Probed()
        _, refused = choose_engine("auto", root)
        if refused is not None:
            raise PlaceError(
                f"cache directory {root.parent}: it cannot do direct I/O ({refused}), and a page "
                "cache is not a device; name a directory on another file system"
            )
        self._store = open_storage(
            root,
            capacity_bytes=plan.capacity_bytes,
            layout=plan.layout,
            engine="direct",
            fsync=plan.fsync,
        )
        payload = self._payload = Payload(Seed(plan.seed).child("payload"), BUFFER_BYTES)
        self._mover = Mover(
            {Tier.NVME: self._store},
            payload,
            BufferPool(plan.buffers, BUFFER_BYTES),
            BufferPool(plan.buffers, BUFFER_BYTES),
            self._clock,
            Verify.STAMPS,
            stop,
            batches=native_batches(payload, self._clock, Verify.STAMPS, AbortFlag()),
        )
        self._threads: NativeThreads | None = None

    def __enter__(self) -> Self:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.setswitchinterval(self._switch_interval_s)
        if not isinstance(error, NoAnswerError):
            answered(f"closing files in {self._root}", self._store.close, ANSWER_S)

    def run(self) -> Probed:
        """Measure everything of the plan, or until `stop`."""
        devices = [name for name in (device_of(self._root),) if name is not None]
        before = read_counters(devices)
        for at, nbytes in enumerate(sorted(self._plan.sizes, reverse=True)):
            self._one_size(nbytes, whole=at == 0)
        self.probed.cells.sort(key=lambda c: (c.object_bytes, c.concurrency, c.read_share))
        self.probed.store = dict(self._store.describe())
        counted = read_counters(devices) - before
        self.probed.counted = {
            "claimed_read_bytes": self._moved[OpKind.READ],
            "claimed_write_bytes": self._moved[OpKind.WRITE],
            "process_read_bytes": counted.process_read_bytes,
            "process_write_bytes": counted.process_write_bytes,
            "device_read_bytes": counted.device_read_bytes,
            "device_write_bytes": counted.device_write_bytes,
        }
        return self.probed

    def _one_size(self, nbytes: int, *, whole: bool) -> None:
        """Measure one size. `whole`: write all of the arena, and not only what is soon read."""
        if self._plan.in_native_code(nbytes):
            self._one_native_size(nbytes, whole=whole)
            return
        places = self._plan.capacity_bytes // nbytes
        objects = _Objects(nbytes, places, self._random, self._ids)
        self._fill(objects, whole=whole)
        self._steps(nbytes, places, nbytes, partial(self._measure, objects))
        self._bursts(nbytes, places, partial(self._burst, objects))
        for ref in (*objects.fresh, *objects.used):
            self._mover.perform(Delete(ref, Cause.EVICTION))
        self._ids = objects.next_id

    def _one_native_size(self, nbytes: int, *, whole: bool) -> None:
        """As `_one_size`, of objects that are parts of one copy, which native code moves."""
        if self._threads is None:
            most = max(self._plan.concurrencies)
            self._threads = NativeThreads(self._payload, most, str(self._root), self._stop)
        self._ids += 1
        key = content_key("probe", self._ids)
        ref = CopyRef(self._ids, key, Tier.NVME, self._plan.capacity_bytes, 0)
        sink = self._store.create(ref)
        spans = tuple(sink.spans)  # of files that the arena keeps open
        sink.commit()
        tried = partial(direct_block_bytes, spans[0], self._root.parent)
        block_bytes = answered(f"a write to files in {self._root}", tried, ANSWER_S)
        self.probed.block_bytes = block_bytes
        random = np.random.Generator(np.random.SFC64(self._random.getrandbits(64)))
        objects = NativeObjects(self._threads, spans, nbytes, block_bytes, self._ids, random)
        self._say(f"{human_bytes(nbytes)}: writing data")
        needed = objects_needed(max(self._plan.concurrencies))
        errors = objects.fill(2 * self._plan.step_s, whole=whole, needed=needed)
        self.probed.failures += len(errors)
        self._done_steps += 2
        measure = partial(self._measure_native, objects)
        self._steps(nbytes, objects.count, objects.moved_bytes, measure)
        self._bursts(nbytes, objects.count, objects.burst)
        self._store.delete(ref)
        self.probed.verified_objects += objects.verified
        for kind, moved_bytes in objects.moved.items():
            self._moved[kind] += moved_bytes

    def _steps(
        self, nbytes: int, places: int, place_bytes: int, measure: Callable[[int, str, float], None]
    ) -> None:
        """Do all steps at each concurrency for which there is enough data."""
        for concurrency in self._plan.concurrencies:
            for step, share in self._plan.steps:
                if self._stop.is_set():
                    return
                self._say(f"{human_bytes(nbytes)} x {concurrency} {step}")
                if places < objects_needed(concurrency):
                    needed = human_bytes(objects_needed(concurrency) * place_bytes)
                    self._refuse(nbytes, concurrency, step, f"needs {needed} of data (--size-gib)")
                else:
                    measure(concurrency, step, share)
                self._done_steps += 1

    def _fill(self, objects: _Objects, *, whole: bool) -> None:
        """Write objects for the first step, at least as many as any step needs."""
        self._say(f"{human_bytes(objects.nbytes)}: writing data")
        until_ns = self._clock.now_ns() + s_to_ns(2 * self._plan.step_s)
        needed = objects_needed(max(self._plan.concurrencies))

        def enough() -> bool:
            if not objects.free():
                return True
            late = self._clock.now_ns() > until_ns and len(objects.fresh) >= needed
            return late and not whole

        def job(_: int, __: int) -> Write | None:
            pair = None if enough() else objects.new()
            return None if pair is None else Write(pair[1], Cause.POPULATE)

        _, errors = self._together(_FILL_THREADS, job, objects)
        self.probed.failures += len(errors)
        self._done_steps += 2

    def _measure(self, objects: _Objects, concurrency: int, step: str, share: float) -> None:
        until_ns = self._clock.now_ns() + s_to_ns(self._plan.step_s)
        begun = [0] * concurrency

        def job(thread: int, number: int) -> Read | Write | None:
            # None leaves before all have done their least: a slow one would be alone then.
            if self._clock.now_ns() > until_ns and min(begun) >= LEAST_PER_THREAD:
                return None
            begun[thread] = number + 1
            # Spread evenly, and not in step between the threads.
            at = number + thread
            reads = math.floor((at + 1) * share) > math.floor(at * share)
            if reads:
                ref = objects.again() if step == "repeated" else objects.unread()
                return None if ref is None else Read(ref, Cause.REUSE)
            return self._replacement(objects, deletes[thread])

        deletes: list[list[int]] = [[] for _ in range(concurrency)]
        done, errors = self._together(concurrency, job, objects)
        if self._went_well(objects.nbytes, concurrency, step, errors):
            cell = summarise(
                [Timed.of_legs(legs) for legs in done],
                objects.nbytes,
                read_share=share,
                repeated=step == "repeated",
                data_path="python",
                deletes=list(chain.from_iterable(deletes)),
            )
            self._keep(cell, objects.nbytes, concurrency, step)

    def _measure_native(
        self, objects: NativeObjects, concurrency: int, step: str, share: float
    ) -> None:
        repeated = step == "repeated"
        done, errors = objects.step(concurrency, share, self._plan.step_s, repeated=repeated)
        if self._went_well(objects.nbytes, concurrency, step, errors):
            moved_bytes = objects.moved_bytes
            cell = None if not done else summarise(
                done,
                objects.nbytes,
                read_share=share,
                repeated=repeated,
                data_path="native",
                device_bytes=None if moved_bytes == objects.nbytes else moved_bytes,
            )  # fmt: skip
            self._keep(cell, objects.nbytes, concurrency, step)

    def _went_well(self, nbytes: int, concurrency: int, step: str, errors: Sequence[str]) -> bool:
        """Whether a step is worth a cell: nothing failed, and no signal ended it."""
        if errors:
            self.probed.failures += len(errors)
            reasons = ", ".join(sorted(set(errors)))
            self._refuse(nbytes, concurrency, step, f"{len(errors)} operations failed: {reasons}")
        return not (errors or self._stop.is_set())

    def _keep(self, cell: Cell | None, nbytes: int, concurrency: int, step: str) -> None:
        if cell is None:
            self._refuse(nbytes, concurrency, step, "threads had too few objects to work at once")
        else:
            self.probed.cells.append(cell)

    def _replacement(self, objects: _Objects, deletes: list[int]) -> Write | None:
        """Delete an object if there is no place left, and return what writes another; None if all
        are in use. `deletes` gets how long the deletion took in the device."""
        pair = objects.new()
        if pair is None:
            return None
        gone, ref = pair
        if gone is not None:
            ended = self._mover.perform(Delete(gone, Cause.EVICTION))
            if ended.ok:
                deletes.append(ended.legs[0].device_ns)
        return Write(ref, Cause.PREFILL)

    def _bursts(self, nbytes: int, places: int, burst: Callable[[OpKind, int], list[int]]) -> None:
        """Begin several operations at the same instant, a few times; do nothing if there are too
        few objects."""
        within = [c for c in self._plan.concurrencies if 1 < c <= BURST_CONCURRENCY]
        if not within or self._stop.is_set():
            return
        count = max(within)
        if places < objects_needed(count):
            return
        self._say(f"{human_bytes(nbytes)} x {count} bursts")
        for kind in (OpKind.READ, OpKind.WRITE):
            rounds = [burst(kind, count) for _ in range(BURST_ROUNDS)][1:]
            whole = [times for times in rounds if len(times) == count]
            if whole:
                mean_ns = sum(map(sum, whole)) / (len(whole) * count)
                last_ns = sum(map(max, whole)) / len(whole)
                self.probed.bursts.append(
                    Burst(
                        object_bytes=nbytes,
                        concurrency=count,
                        kind=kind.value,
                        mean_us=us(mean_ns),
                        last_us=us(last_ns),
                    )
                )

    def _burst(self, objects: _Objects, kind: OpKind, count: int) -> list[int]:
        """Do one round; return how long each operation took in the device."""
        ops: list[Read | Write] = []
        for _ in range(count):
            if kind is OpKind.READ:
                ref = objects.unread() or objects.again()
                ops += [] if ref is None else [Read(ref, Cause.REUSE)]
            elif (write := self._replacement(objects, [])) is not None:
                ops.append(write)
        gate = threading.Barrier(len(ops))

        def job(thread: int, number: int) -> Read | Write | None:
            if number:
                return None
            with suppress(threading.BrokenBarrierError):
                gate.wait(_BURST_PATIENCE_S)
            return ops[thread]

        done, errors = self._together(len(ops), job, objects) if ops else ([], [])
        self.probed.failures += len(errors)
        return [leg.device_ns for legs in done for leg in legs]

    def _together(
        self,
        threads: int,
        job: Callable[[int, int], Read | Write | None],
        objects: _Objects,
    ) -> tuple[list[list[Leg]], list[str]]:
        """Let N threads perform what `job` returns until it returns None. Returns what each has
        done, in order, and the reasons of what failed."""
        done: list[list[Leg]] = [[] for _ in range(threads)]
        errors: list[str] = []
        gate = threading.Barrier(threads)  # or the first may have used all up before the last

        def work(thread: int) -> None:
            gate.wait()
            number = 0
            while not self._stop.is_set() and not errors:
                op = job(thread, number)
                if op is None:
                    return
                number += 1
                ended = self._mover.perform(op)
                objects.ended(op, ok=ended.ok)
                if ended.ok:
                    done[thread].append(ended.legs[0])
                elif ended.error is not None:
                    errors.append(ended.error)

        workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
        for worker in workers:
            worker.start()
        self._join(workers)
        for leg in chain.from_iterable(done):
            self._moved[leg.kind] += leg.nbytes
            self.probed.verified_objects += leg.kind is OpKind.READ
        return done, errors

    def _join(self, workers: Sequence[threading.Thread]) -> None:
        """Wait for all. Raises NoAnswerError once none of those left has moved for long."""
        threads = IoThreads(workers, ANSWER_S)
        while left := threads.alive:
            left[0].join(_LOOK_S)
            threads.require_answer(f"operations in {self._root}")

    def _refuse(self, nbytes: int, concurrency: int, step: str, reason: str) -> None:
        self.probed.refused.append(
            RefusedCell(object_bytes=nbytes, concurrency=concurrency, step=step, reason=reason)
        )

    def _say(self, what: str) -> None:
        self._tick(self._done_steps / self._plan.total_steps, what)
