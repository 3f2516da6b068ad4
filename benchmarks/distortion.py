"""What our own machinery adds to a read: the evidence for the choice of the data path.

    python benchmarks/distortion.py [--seconds 0.4] [--cached]

Reads of 4 KiB to 32 MiB with direct I/O from a device in RAM (without root, or with --cached:
from a file in memory), by 1 and by 4 at the same time. First a bare loop of `os.preadv`, then one
thing more:

    pool            a buffer is taken and given back for each read
    hand-over       the read is done by an I/O thread, through a queue and back
    mover           all of our path: store, buffers, timestamps, a stamp checked in every page
    + busy          four threads that compute in Python beside it, at three switch intervals
    I/O process     the read is done by another process into shared memory, through a pipe and back
    own processes   the bare loop, each in a process of its own (several clients)

A cell has p50 and p99 in microseconds and GB/s. `seen` is from before the ask to after the answer,
`call` brackets the system call alone. What `call` adds to the bare loop's is what a result would
wrongly blame on the device; what `seen` adds is what the client's users would wait.
"""

import argparse
import itertools
import multiprocessing
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import LOOP_TOOLS, leave_cleanly_on_sigterm, ram_directory, why_not
from benchmarks.figures import percentile
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.run import SWITCH_INTERVAL_S
from kv_cache.bench.transfer import Mover, Verify
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Read, Write
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import Cause, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB, NS_PER_S, NS_PER_US
from kv_cache.tiers.buffers import BufferPool, aligned_bytes
from kv_cache.tiers.nvme import open_storage
from kv_cache.tiers.payload import Payload

SIZES = (4 * KIB, 256 * KIB, 2 * MIB, 32 * MIB)
CONCURRENCIES = (1, 4)
FILE_BYTES = 256 * MIB
BUSY_THREADS = 4
SWITCH_INTERVALS_S = (0.005, 0.0005, 0.0001)
LEAST_READS = 16

_now = time.monotonic_ns
_JOB = struct.Struct("<QQ")  # offset and size; the answer: nanoseconds
_ALONE = struct.Struct("<Qd5s")  # size, seconds and a word that makes it longer

Reader = Callable[[], int]
"""Does one read; how many nanoseconds the system call took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """All reads of one measurement, in nanoseconds."""

    seen: Sequence[int]
    call: Sequence[int]
    seconds: float


class Place:
    """The file that is read, and where in it next."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        self.path = path
        self.flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
        self.engine = "direct" if direct else "buffered"
        self.fd = os.open(path, self.flags)
        self._next = itertools.count()

    def offset(self, size: int) -> int:
        return next(self._next) * size % FILE_BYTES


# --- ways to read ------------------------------------------------------------------------------


def bare(place: Place, size: int) -> Reader:
    view = aligned_bytes(size).data
    view[:: 4 * KIB] = bytes(len(view[:: 4 * KIB]))  # touched

    def read() -> int:
        offset = place.offset(size)
        began_ns = _now()
        os.preadv(place.fd, [view], offset)
        return _now() - began_ns

    return read


def pooled(place: Place, size: int, pool: BufferPool) -> Reader:
    def read() -> int:
        buffer = pool.take()
        offset = place.offset(size)
        began_ns = _now()
        os.preadv(place.fd, [buffer.view[:size]], offset)
        took_ns = _now() - began_ns
        pool.give(buffer)
        return took_ns

    return read


class _Job:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.took_ns = 0


class IoThreads:
    """As the driver's: a queue of jobs, and threads that do them."""

    def __init__(self, place: Place, size: int, count: int) -> None:
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=[bare(place, size)]) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def reader(self) -> Reader:
        def read() -> int:
            job = _Job()
            self._queue.put(job)
            job.ended.wait()
            return job.took_ns

        return read

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, read: Reader) -> None:
        while (job := self._queue.get()) is not None:
            job.took_ns = read()
            job.ended.set()


class Movers:
    """Objects of one size in an arena, read through the whole of our path."""

    def __init__(self, place: Place, size: int, count: int) -> None:
        self._store = open_storage(
            place.path.parent,
            capacity_bytes=FILE_BYTES,
            layout="arena",
            engine=place.engine,
            arena_files=[place.path],
        )
        buffer = min(size, 16 * MIB)
        self._mover = Mover(
            {Tier.NVME: self._store},
            Payload(Seed(1), buffer),
            BufferPool(count, buffer),
            BufferPool(1, buffer),
            MonotonicClock(),
            Verify.STAMPS,
            threading.Event(),
        )
        self._refs = itertools.cycle([self._written(i, size) for i in range(LEAST_READS // 2)])

    def reader(self) -> Reader:
        def read() -> int:
            done = self._mover.perform(Read(next(self._refs), Cause.REUSE))
            assert done.ok, done.error
            return done.legs[0].device_ns

        return read

    def close(self) -> None:
        self._store.close()

    def _written(self, number: int, size: int) -> CopyRef:
        ref = CopyRef(number, content_key("distortion", number), Tier.NVME, size, 0)
        done = self._mover.perform(Write(ref, Cause.PREFILL))
        assert done.ok, done.error
        return ref


class IoProcess:
    """Another process with a buffer that both see: reads when told to, or all by itself."""

    def __init__(self, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self._memory = shared_memory.SharedMemory(create=True, size=max(SIZES))
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._memory.name, str(place.path), place.flags)
        self._process = context.Process(target=_io_process, args=arguments, daemon=True)
        self._process.start()
        self._place = place

    def reader(self, size: int) -> Reader:
        def read() -> int:
            self._pipe.send_bytes(_JOB.pack(self._place.offset(size), size))
            took_ns: int = _JOB.unpack(self._pipe.recv_bytes())[0]
            return took_ns

        return read

    def begin_alone(self, size: int, seconds: float) -> None:
        self._pipe.send_bytes(_ALONE.pack(size, seconds, b"alone"))

    def end_alone(self) -> Timed:
        timed: Timed = self._pipe.recv()
        return timed

    def close(self) -> None:
        self._pipe.send_bytes(b"")
        self._process.join()
        self._memory.close()
        self._memory.unlink()


def _io_process(pipe: Connection, memory: str, path: str, flags: int) -> None:
    """In the other process. A short message is one read, an empty one the end."""
    shared = shared_memory.SharedMemory(memory)
    assert shared.buf is not None
    place = Place(Path(path), direct=bool(flags & os.O_DIRECT))
    while message := pipe.recv_bytes():
        if len(message) == _JOB.size:
            offset, size = _JOB.unpack(message)
            began_ns = _now()
            os.preadv(place.fd, [shared.buf[:size]], offset)
            pipe.send_bytes(_JOB.pack(_now() - began_ns, 0))
        else:
            size, seconds, _ = _ALONE.unpack(message)
            pipe.send(timed([bare(place, size)], seconds))
    shared.close()


# --- measuring -------------------------------------------------------------------------------


def timed(readers: Sequence[Reader], seconds: float) -> Timed:
    """Each reader on a thread of its own, again and again."""
    seen: list[list[int]] = [[] for _ in readers]
    call: list[list[int]] = [[] for _ in readers]
    began_ns = _now()
    deadline_ns = began_ns + round(seconds * NS_PER_S)

    def work(number: int) -> None:
        read, mine, calls = readers[number], seen[number], call[number]
        while (asked_ns := _now()) < deadline_ns or len(mine) < LEAST_READS:
            calls.append(read())
            mine.append(_now() - asked_ns)

    threads = [threading.Thread(target=work, args=[i]) for i in range(len(readers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Timed(
        seen=list(itertools.chain(*seen)),
        call=list(itertools.chain(*call)),
        seconds=(_now() - began_ns) / NS_PER_S,
    )


@contextmanager
def busy(interval_s: float) -> Iterator[None]:
    """Threads that hold the interpreter lock for as long as they are let."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(200))

    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    threads = [threading.Thread(target=spin) for _ in range(BUSY_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)


Way = Callable[[int, int, float], Timed]
"""Of a size, a concurrency and a time."""


class Ways:
    def __init__(self, place: Place, processes: Sequence[IoProcess]) -> None:
        self._place = place
        self._processes = processes

    def table(self) -> dict[str, Way]:
        beside = {
            f"{name} + busy, {1000 * interval_s:g} ms": self._busy(way, interval_s)
            for name, way, intervals in (
                ("bare loop", self._bare, SWITCH_INTERVALS_S),
                ("hand-over", self._handed, SWITCH_INTERVALS_S[1:2]),
                ("mover", self._moved, SWITCH_INTERVALS_S[1:2]),
                ("I/O process", self._processed, SWITCH_INTERVALS_S[1:2]),
            )
            for interval_s in intervals
        }
        alone = {
            "bare loop": self._bare,
            "pool": self._pooled,
            "hand-over": self._handed,
            "mover": self._moved,
            "I/O process": self._processed,
            "own processes": self._own,
        }
        return {**alone, **beside}

    def _bare(self, size: int, count: int, seconds: float) -> Timed:
        return timed([bare(self._place, size) for _ in range(count)], seconds)

    def _pooled(self, size: int, count: int, seconds: float) -> Timed:
        pool = BufferPool(max(4, count), size)
        return timed([pooled(self._place, size, pool) for _ in range(count)], seconds)

    def _handed(self, size: int, count: int, seconds: float) -> Timed:
        threads = IoThreads(self._place, size, count)
        try:
            return timed([threads.reader() for _ in range(count)], seconds)
        finally:
            threads.close()

    def _moved(self, size: int, count: int, seconds: float) -> Timed:
        movers = Movers(self._place, size, max(4, count))
        try:
            return timed([movers.reader() for _ in range(count)], seconds)
        finally:
            movers.close()

    def _processed(self, size: int, count: int, seconds: float) -> Timed:
        return timed([p.reader(size) for p in self._processes[:count]], seconds)

    def _own(self, size: int, count: int, seconds: float) -> Timed:
        for process in self._processes[:count]:
            process.begin_alone(size, seconds)
        made = [process.end_alone() for process in self._processes[:count]]
        return Timed(
            seen=list(itertools.chain(*(m.seen for m in made))),
            call=list(itertools.chain(*(m.call for m in made))),
            seconds=max(m.seconds for m in made),
        )

    @staticmethod
    def _busy(way: Way, interval_s: float) -> Way:
        def beside(size: int, count: int, seconds: float) -> Timed:
            with busy(interval_s):
                return way(size, count, seconds)

        return beside


# --- what is printed -------------------------------------------------------------------------


def cell(values: Sequence[int], gb_per_s: float) -> str:
    p50, p99 = (percentile(values, percent) / NS_PER_US for percent in (50, 99))
    return f"{p50:>9.0f}{p99:>9.0f}{gb_per_s:>7.2f}"


def show(ways: dict[str, Way], concurrency: int, seconds: float) -> None:
    print(f"\n{concurrency} at the same time")
    sizes = [f"{s // MIB} MiB" if s >= MIB else f"{s // KIB} KiB" for s in SIZES]
    print(f"{'':<36}" + "".join(f"{size:>18}{'':>7}" for size in sizes))
    print(f"{'':<36}" + f"{'p50 us':>9}{'p99 us':>9}{'GB/s':>7}" * len(SIZES))
    for name, way in ways.items():
        made = [way(size, concurrency, seconds) for size in SIZES]
        rates = [size * len(m.seen) / m.seconds / 1e9 for size, m in zip(SIZES, made, strict=True)]
        for what in ("seen", "call"):
            cells = (cell(getattr(m, what), rate) for m, rate in zip(made, rates, strict=True))
            print(f"{name if what == 'seen' else '':<30}{what:<6}" + "".join(cells), flush=True)


@contextmanager
def place_to_read(*, cached: bool) -> Iterator[Place]:
    if cached or why_not(LOOP_TOOLS) is not None:
        with tempfile.TemporaryDirectory(prefix="kv-bench-", dir="/dev/shm") as directory:
            print("reading a file in memory")
            yield Place(_written(Path(directory)), direct=False)
    else:
        with ram_directory(1.2 * FILE_BYTES / 2**30) as directory:
            print("reading a loop device in RAM, direct I/O")
            place = Place(_written(directory), direct=True)
            try:
                yield place
            finally:
                os.close(place.fd)


def _written(directory: Path) -> Path:
    path = directory / "file"
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    return path


def tell(seconds: float = 0.4, *, cached: bool = False) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with place_to_read(cached=cached) as place, ExitStack() as stack:
        processes = [IoProcess(place) for _ in range(max(CONCURRENCIES))]
        for process in processes:
            stack.callback(process.close)
        ways = Ways(place, processes).table()
        for concurrency in CONCURRENCIES:
            show(ways, concurrency, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each measurement")
    parser.add_argument("--cached", action="store_true")
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    tell(options.seconds, cached=options.cached)


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(str(error))
