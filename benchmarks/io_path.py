"""Our I/O path beside fio's (figures 1, 2 and 3): the same file, the same settings.

    python benchmarks/io_path.py [--quick] [--on disk ram throttled] [--dir D] [--groups N]
                                 [--sizes-kib 64 256] [--batch 1 8 64] [--python | --alone]
                                 [--set-mb 150 350] [--layout file] [--verify off] [--awake]

Whole blocks are stored to and loaded from one preallocated file by threads with direct I/O, from
buffers in transparent huge pages: by ours through `Mover`, stamped and verified, and by fio
(psync, threads, one block a system call; with --depth N io_uring, N at a time of each thread), each
thread in a part of the file of its own. Units come in groups ours-fio-fio-ours after one pass that
is thrown away; a group gives one log-ratio. A unit is rejected and repeated when the device moved
over 2 % more bytes than it did, or when other processes took over 0.35 core. Ours runs in a process
of its own: its CPU time is all that the path costs, in all threads; fio's is that of its I/O
threads.

With --layout file each block is a file, and in fio's place is a loop in C (`file_loop.c`) of the
same system calls: create, write, close and rename, or open, read and close. The device has a
journal there, as otherwise ext4 goes over every inode that was deleted within the last minutes at
each file that it makes (832 us of 960 were seen, and 222 of the loop's).

    disk        --dir, the disk as it is: 1 GiB a unit
    ram         a loop device in RAM, where the client is what counts: 4 GiB a unit
    throttled   a directory at 200 MB/s, or at each rate of --set-mb: 1 GiB, which is 5 s, a unit

On a shared disk no difference below 5 % (load) or 10 % (store) means anything.
"""

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import leave_cleanly_on_sigterm, ram_directory, throttled_directory
from benchmarks.figures import Figure, Middle, middle, middle_ratio, percentile, table
from benchmarks.quiet import FOREIGN_CORES, awake, with_foreign_cores
from kv_cache.bench.batches import BatchMover
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.counters import device_of
from kv_cache.bench.probes.diskstats import added_up, read_diskstats
from kv_cache.bench.run import SWITCH_INTERVAL_S
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Delete, Op, Read, Write
from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.core.kinds import Cause, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, KIB, MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES, round_up
from kv_cache.tiers import native
from kv_cache.tiers.base import NEW_MODE
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.native import ROW, AbortFlag, Does
from kv_cache.tiers.nvme import open_storage
from kv_cache.tiers.nvme.layouts import FilePerObject
from kv_cache.tiers.payload import Payload

R = TypeVar("R")

# Our buffers are in transparent huge pages, which saves requests of the device and up to 30 % of
# the time; so shall fio's be: with this and --iomem_align=2m they are.
HUGE = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

BUFFER = 16 * MIB  # as a run has by default, and so many of them in each pool
BUFFERS = 16
SET_MB = 200  # a second, of the throttled device
SIZES_MIB = (2, 32, 80)
CONCURRENCIES = (1, 4, 16)
QUICK_SIZES_MIB = (2, 32)
QUICK_CONCURRENCIES = (1, 4)
CPU_SIZE_MIB, CPU_CONCURRENCY = 32, 4  # where figure 3 is measured
FOREIGN_BYTES = 1.02
TRIES = 4
LEAST_EACH = 3

STORE, LOAD = "store", "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What both sides do."""

    path: str
    block: int
    concurrency: int
    wished_bytes: int  # of a unit
    buffer: int = BUFFER
    verify: str = "stamps"
    batch: int = 1  # of ours: operations a call
    depth: int = 1  # of ours: of a call's, in flight at a time
    native: bool = True
    alone: bool = False  # of ours: the native transfers without `Mover`
    layout: str = "arena"

    @property
    def blocks(self) -> int:
        """As many for each thread, and at least one."""
        each = max(1, round(self.wished_bytes / self.block / self.concurrency))
        return each * self.concurrency

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block

    def __str__(self) -> str:
        size = f"{self.block // MIB} MiB" if self.block >= MIB else f"{self.block / KIB:g} KiB"
        calls = f" by {self.batch}" if self.batch > 1 else ""
        calls += f" depth {self.depth}" if self.depth > 1 else ""
        calls += " files" if self.layout == "file" else ""
        way = " alone" if self.alone else "" if self.native else " Python"
        way += " no check" if self.verify == Verify.OFF else ""
        return f"{size} x {self.concurrency}{calls}{way}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One measurement of one side."""

    nbytes: int
    seconds: float
    cpu_s: float
    latencies_ns: Sequence[int]

    @property
    def rate(self) -> float:
        return self.nbytes / self.seconds

    @property
    def cpu_s_per_gib(self) -> float:
        return self.cpu_s / (self.nbytes / GIB)


# --- ours, in a process of its own -----------------------------------------------------------


class Ours:
    """Speaks with that process: a word in, a unit out."""

    def __init__(self, case: Case) -> None:
        command = [sys.executable, __file__, "--worker", json.dumps(asdict(case))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def unit(self, action: str) -> Unit:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(action + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "our process has died, see above"
        return Unit(**json.loads(answer))


class _Worker:
    """What runs in it: a store on the file, a mover, and the blocks that are there."""

    def __init__(self, case: Case) -> None:
        self._case = case
        path = Path(case.path)
        self._clock = MonotonicClock()
        root = path.parent / "ours"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        store = open_storage(
            root,
            capacity_bytes=case.nbytes,
            layout=case.layout,
            engine="direct",
            fsync="never",
            arena_files=[path] if case.layout == "arena" else None,
        )
        count = max(BUFFERS, case.concurrency)
        payload, verify, abort = Payload(Seed(1), case.buffer), Verify(case.verify), AbortFlag()
        pools = BufferPool(count, case.buffer), BufferPool(count, case.buffer)
        batches = native_batches(payload, self._clock, verify, abort, case.depth)
        if case.native and batches is None:
            sys.exit(f"no native transfers: {native.library()}")
        self._alone = _Alone(case, payload, batches, root) if case.alone else None
        self._mover = Mover(
            {Tier.NVME: store}, payload, *pools, self._clock, verify, abort,
            batches=batches if case.native else None,
        )  # fmt: skip
        self._refs: list[CopyRef] = []
        self._made = 0

    def unit(self, action: str) -> Unit:
        if self._alone is not None:
            return self._alone.unit(action)
        if action == LOAD:
            return self._timed([Read(ref, Cause.REUSE) for ref in self._refs])
        for ref in self._refs:
            assert self._mover.perform(Delete(ref, Cause.DISCARD)).ok
        self._refs = [self._ref() for _ in range(self._case.blocks)]
        return self._timed([Write(ref, Cause.PREFILL) for ref in self._refs])

    def _ref(self) -> CopyRef:
        self._made += 1
        key = content_key("bench", self._made)
        return CopyRef(self._made, key, Tier.NVME, self._case.block, 0)

    def _timed(self, ops: Sequence[Op]) -> Unit:
        """All threads begin together, each with a part of its own, as fio's do."""
        each = len(ops) // self._case.concurrency
        parts = [ops[first : first + each] for first in range(0, len(ops), each)]
        results, cpu_s = _together(parts, self._case.batch, self._mover.perform_all)
        errors = [done.error for done in results if not done.ok]
        assert not errors, errors
        legs = [done.legs[0] for done in results]
        began_ns = min(leg.started_ns for leg in legs)
        ended_ns = max(leg.finished_ns for leg in legs)
        return Unit(
            nbytes=sum(leg.nbytes for leg in legs),
            seconds=(ended_ns - began_ns) / NS_PER_S,
            cpu_s=cpu_s,
            latencies_ns=[leg.total_ns for leg in legs],
        )


def _together(
    parts: Sequence[Any], batch: int, move: Callable[[Any], Sequence[R]]
) -> tuple[list[R], float]:
    """Have a thread for each part move it, so many at a time; all begin together. Return what came
    of it, and the CPU seconds that it took."""
    results: list[R] = []
    gate = threading.Barrier(len(parts) + 1)

    def work(part: Any) -> None:
        gate.wait()
        for first in range(0, len(part), batch):
            results.extend(move(part[first : first + batch]))

    threads = [threading.Thread(target=work, args=[part]) for part in parts]
    for thread in threads:
        thread.start()
    cpu_s = _cpu_s(resource.RUSAGE_SELF)
    gate.wait()
    for thread in threads:
        thread.join()
    return results, _cpu_s(resource.RUSAGE_SELF) - cpu_s


class _Alone:
    """The native transfers by themselves: each thread in a part of the file, or of the files, and
    with a place of its own in memory for each object that it moves at a time, as in a run
    (`bench/many`)."""

    def __init__(
        self, case: Case, payload: Payload, batches: BatchMover | None, root: Path
    ) -> None:
        assert batches is not None
        self._case, self._transfers, self._abort = case, batches.transfers, AbortFlag()
        self._files = FilePerObject(root) if case.layout == "file" else None
        self._made = 0  # units of files
        self._names: list[bytes] = []  # as long as they are used
        self._fd = -1 if self._files else os.open(case.path, os.O_RDWR | os.O_DIRECT)
        places = case.batch if case.depth > 1 else 1  # a ring moves them in any order
        size = round_up(places * case.block, 2 * MIB)  # in huge pages, as fio's and a run's are
        self._buffers = BufferPool(case.concurrency, size)
        self._transfers.hold(self._buffers.memory)
        self._tables: list[npt.NDArray[np.void]] = []
        each = case.blocks // case.concurrency
        self._sectors = Does(0) if case.block % PAGE_BYTES == 0 else Does.SECTORS
        for thread in range(case.concurrency):
            buffer = self._buffers.take()
            pages = self._buffers.buffer_bytes // PAGE_BYTES
            payload.fill(buffer, min(pages, case.buffer // PAGE_BYTES), tint=0)
            rows = np.zeros(each, ROW)
            rows["object"] = np.arange(each)
            rows["fd"], rows["nbytes"] = self._fd, case.block
            rows["offset"] = (thread * each + rows["object"]) * case.block
            rows["address"] = buffer.address + rows["object"] % places * case.block
            rows["bases"] = rows["offset"][:, np.newaxis] * np.array([3, 5, 7])  # any will do
            self._tables.append(rows)

    def _with_names(self, rows: npt.NDArray[np.void], thread: int) -> npt.NDArray[np.void]:
        """Return the rows of files: how each is opened and closed, around its own."""
        assert self._files is not None
        writes = bool(rows["does"][0] & Does.WRITE)
        table = np.repeat(rows, 4 if writes else 3)
        first = (self._made * self._case.concurrency + thread) * len(rows)
        for number in range(len(rows)):
            ref = CopyRef(first + number, b"", Tier.NVME, self._case.block, 0)
            names = self._files.names(ref, "direct", os.O_DIRECT, writes=writes, fsync="never")
            steps = table[number * (len(table) // len(rows)) :][: len(table) // len(rows)]
            self._names += [names.name, names.complete or b""]
            for row, does in ((steps[0], Does.OPEN), (steps[2], Does.CLOSE), (steps[-1], None)):
                if does is None and not writes:
                    break
                row["does"], row["fd"] = does or Does.RENAME, names.directory
                row["address"] = native.address_of(names.name)
                row["offset"], row["nbytes"] = names.flags, NEW_MODE
                row["bases"][0] = native.address_of(names.complete or b"")
            steps[1]["offset"] = 0
        return table

    def unit(self, action: str) -> Unit:
        does = self._sectors | (Does.WRITE if action == STORE else Does.READ)
        if self._case.verify != Verify.OFF:  # else what is written is not stamped, either
            does |= Does.STAMPED
        for rows in self._tables:
            for name in ("began_ns", "ended_ns", "host_ns", "moved", "error"):
                rows[name] = 0
            rows["does"] = does
        if self._files is not None:
            return self._unit_of_files(self._files, writes=action == STORE)
        return self._timed(self._tables, 1)

    def _unit_of_files(self, files: FilePerObject, *, writes: bool) -> Unit:
        if writes and self._made:
            for number in range(self._case.blocks):
                files.delete(CopyRef(self._case.blocks * self._made + number, b"", Tier.NVME, 0, 0))
        self._made += writes
        self._names.clear()
        tables = [self._with_names(rows, thread) for thread, rows in enumerate(self._tables)]
        return self._timed(tables, 4 if writes else 3)

    def _timed(self, tables: Sequence[npt.NDArray[np.void]], of_each: int) -> Unit:
        depth = self._case.depth if self._case.depth > 1 else 0

        def run(rows: npt.NDArray[np.void]) -> list[None]:
            self._transfers.work_off(rows, self._abort, depth)
            return []

        _, cpu_s = _together(tables, self._case.batch * of_each, run)
        done = np.concatenate(tables)
        assert not done["error"].any(), done[done["error"] != 0][0]
        took_ns = done["ended_ns"][of_each - 1 :: of_each] - done["began_ns"][::of_each]
        return Unit(
            nbytes=int(done["moved"].sum()),
            seconds=float(done["ended_ns"].max() - done["began_ns"].min()) / NS_PER_S,
            cpu_s=cpu_s,
            latencies_ns=took_ns.tolist(),
        )


def serve(case: Case) -> None:
    if not case.native:  # as in a run
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    worker = _Worker(case)
    for line in sys.stdin:
        print(json.dumps(asdict(worker.unit(line.strip()))), flush=True)


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


# --- fio ---------------------------------------------------------------------------------------

# A mix with no writes, because fio then touches its buffers before the clock runs, as ours are:
# fresh memory would cost the first read of each thread up to 3 ms for each MiB.
_RW = {STORE: ("--rw=write",), LOAD: ("--rw=rw", "--rwmixread=100")}


class Fio:
    """A unit lasts from the first operation's beginning to the last one's end, as ours does: the
    runtimes that fio tells are each thread's own, and threads do not begin together."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def unit(self, action: str) -> Unit:
        rw = "write" if action == STORE else "read"
        with tempfile.TemporaryDirectory(prefix="kv-bench-") as logs:
            jobs = self._run(_RW[action], logs)
            lines = (Path(logs) / "unit_clat.log").read_text().splitlines()
        rows = [line.split(",") for line in lines]
        ended_ms, latencies_ns = [int(row[0]) for row in rows], [int(row[1]) for row in rows]
        began_ms = min(at - ns / NS_PER_MS for at, ns in zip(ended_ms, latencies_ns, strict=True))
        nbytes = sum(job[rw]["io_bytes"] for job in jobs)
        assert nbytes == self._case.nbytes, "fio moved another amount"
        return Unit(
            nbytes=nbytes,
            seconds=(max(ended_ms) - began_ms) / 1000,
            cpu_s=sum(_job_cpu_s(job) for job in jobs),
            latencies_ns=latencies_ns,
        )

    def _run(self, rw: Sequence[str], logs: str) -> list[dict[str, Any]]:
        case = self._case
        part = case.nbytes // case.concurrency
        command = [
            "fio", "--name=unit", f"--filename={case.path}", *rw, "--direct=1",
            *self._engine(), "--thread", f"--bs={case.block}", f"--numjobs={case.concurrency}",
            f"--size={part}", f"--offset_increment={part}", "--overwrite=1", "--fallocate=none",
            "--invalidate=0", "--refill_buffers=0", "--scramble_buffers=0", "--iomem_align=2m",
            "--output-format=json", f"--write_lat_log={logs}/unit", "--per_job_logs=0",
            "--log_unix_epoch=1",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=HUGE)
        jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
        return jobs

    def _engine(self) -> tuple[str, ...]:
        if self._case.depth == 1:
            return ("--ioengine=psync",)
        return ("--ioengine=io_uring", f"--iodepth={self._case.depth}")


def _job_cpu_s(job: dict[str, Any]) -> float:
    """Of the thread that does the I/O alone: fio's start and end, which cost 0.1 s, are left out,
    as ours are."""
    seconds: float = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return seconds


class FileLoop:
    """A loop in C in fio's place, where each block is a file."""

    def __init__(self, case: Case) -> None:
        self._case, place = case, Path(case.path).parent
        self._program, self._files = place / "file_loop", place / "loop"
        source = Path(__file__).parent / "file_loop.c"
        flags = ("-O2", "-pthread")
        subprocess.run(["cc", *flags, "-o", self._program, source], check=True)
        shutil.rmtree(self._files, ignore_errors=True)
        self._files.mkdir()
        self._there = False

    def unit(self, action: str) -> Unit:
        if action == STORE and self._there:
            self._run("remove")
        self._there = True
        (began_ns, ended_ns, cpu_ns), latencies_ns = self._run(action)
        return Unit(
            nbytes=self._case.nbytes,
            seconds=(ended_ns - began_ns) / NS_PER_S,
            cpu_s=cpu_ns / NS_PER_S,
            latencies_ns=latencies_ns,
        )

    def _run(self, action: str) -> tuple[list[int], list[int]]:
        case = self._case
        numbers = map(str, (case.block, case.blocks, case.concurrency))
        command = [str(self._program), str(self._files), action, *numbers]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        first, *others = done.stdout.splitlines()
        return list(map(int, first.split())), list(map(int, others))


# --- the two in turn -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Two units of ours around two of fio's."""

    ours: tuple[Unit, Unit]
    fio: tuple[Unit, Unit]

    @property
    def rate_ratio(self) -> float:
        return math.sqrt(
            math.prod(a.rate / b.rate for a, b in zip(self.ours, self.fio, strict=True))
        )

    def latency_ratio(self, percent: float) -> float:
        return _latency(self.ours, percent) / _latency(self.fio, percent)


def _latency(units: Sequence[Unit], percent: float) -> float:
    return percentile([ns for unit in units for ns in unit.latencies_ns], percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All groups of one case and action; `noisy` units stayed noisy however often repeated."""

    place: str
    case: Case
    action: str
    groups: Sequence[Group]
    noisy: int
    set_rate: int

    @property
    def name(self) -> str:
        return f"{self.action} {self.case}"

    @property
    def rate(self) -> Middle:
        return middle_ratio([group.rate_ratio for group in self.groups])

    def latency(self, percent: float) -> Middle:
        return middle_ratio([group.latency_ratio(percent) for group in self.groups])

    def fio_apart(self, percent: float) -> float:
        """How far apart the latencies of fio's two units are, the most of all groups, as a ratio
        less 1."""
        pairs = [[_latency([unit], percent) for unit in group.fio] for group in self.groups]
        return max(max(pair) / min(pair) for pair in pairs) - 1

    def ours(self, value: Callable[[Unit], float]) -> Middle:
        """A value of our units, the median over all groups."""
        return middle([value(unit) for group in self.groups for unit in group.ours])

    def fio(self, value: Callable[[Unit], float]) -> Middle:
        return middle([value(unit) for group in self.groups for unit in group.fio])


class _Pair:
    """Ours and fio on one case."""

    def __init__(self, case: Case, ours: Ours) -> None:
        self._case = case
        self._ours = ours
        self._fio = Fio(case) if case.layout == "arena" else FileLoop(case)
        self._device = device_of(Path(case.path))
        self.noisy = 0

    def warm_up(self, actions: Sequence[str]) -> None:
        """Fio first: it must be our blocks that are left in the file."""
        for action in actions:
            self._fio.unit(action)
            self._ours.unit(action)

    def group(self, action: str) -> Group:
        first = self._quiet(self._ours.unit, action)
        fio = (self._quiet(self._fio.unit, action), self._quiet(self._fio.unit, action))
        return Group(ours=(first, self._quiet(self._ours.unit, action)), fio=fio)

    def _quiet(self, measure: Callable[[str], Unit], action: str) -> Unit:
        """A unit that nobody disturbed, within a few tries."""
        for _ in range(TRIES):
            before = self._device_bytes(action)
            unit, cores = with_foreign_cores(lambda: measure(action), {self._ours.pid})
            moved = self._device_bytes(action) - before
            if cores <= FOREIGN_CORES and moved <= FOREIGN_BYTES * unit.nbytes:
                return unit
        self.noisy += 1
        return unit

    def _device_bytes(self, action: str) -> int:
        """0 where nobody counts them."""
        stats = read_diskstats([self._device] if self._device else [])
        if stats is None:
            return 0
        counted = added_up(stats.values())
        return counted.write_bytes if action == STORE else counted.read_bytes


def compare(
    place: str, case: Case, groups: int, actions: Sequence[str], set_rate: int
) -> Iterator[Seen]:
    with Ours(case) as ours:
        pair = _Pair(case, ours)
        pair.warm_up([STORE] if place == "throttled" else [STORE, STORE, *actions])
        for action in actions:
            pair.noisy = 0
            made = [pair.group(action) for _ in range(groups)]
            yield Seen(
                place=place, case=case, action=action, groups=made, noisy=pair.noisy,
                set_rate=set_rate,
            )  # fmt: skip


# --- the places ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    sizes_kib: Sequence[float]
    concurrencies: Sequence[int]
    groups: Mapping[str, int]  # by place: a throttled device repeats itself
    directory: Path
    unit_gib: float | None = None  # of every place; None = the place's own
    buffer_mib: int = BUFFER // MIB
    batches: Sequence[int] = (1,)
    depth: int = 1
    native: bool = True
    alone: bool = False
    layout: str = "arena"
    verify: str = Verify.STAMPS.value
    set_rates: Sequence[int] = (SET_MB * 10**6,)  # bytes/s of the throttled device, each in turn


PLACES = ("disk", "ram", "throttled")
_UNIT_BYTES = {"disk": GIB, "ram": 4 * GIB, "throttled": GIB}


def measure(place: str, plan: Plan) -> Iterator[Seen]:
    """Every size and concurrency on one place; on the throttled one at each rate."""
    for set_rate in plan.set_rates if place == "throttled" else plan.set_rates[:1]:
        yield from _measure(place, plan, set_rate)


def _measure(place: str, plan: Plan, set_rate: int) -> Iterator[Seen]:
    """Every size and concurrency; on the throttled place also without verification."""
    wished = round(plan.unit_gib * GIB) if plan.unit_gib else _UNIT_BYTES[place]
    cases = [
        Case(
            path="",
            block=round(size * KIB),
            concurrency=concurrency,
            wished_bytes=wished,
            buffer=plan.buffer_mib * MIB,
            batch=batch,
            depth=plan.depth,
            native=plan.native,
            alone=plan.alone,
            layout=plan.layout,
            verify=plan.verify,
        )
        for size in plan.sizes_kib
        for concurrency in plan.concurrencies
        for batch in plan.batches
    ]
    largest = max(case.nbytes for case in cases)
    with _directory(place, plan, largest, set_rate) as directory:
        path = directory / "arena"
        if plan.layout == "arena":
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, largest)
            _write_all(path)
        for case in cases:
            at = replace(case, path=str(path))
            yield from compare(place, at, plan.groups[place], (STORE, LOAD), set_rate)
            if (
                place == "throttled"
                and case.block == CPU_SIZE_MIB * MIB
                and case.concurrency == CPU_CONCURRENCY
            ):
                unchecked = replace(at, verify=Verify.OFF.value)
                yield from compare(place, unchecked, plan.groups[place], (LOAD,), set_rate)


@contextmanager
def _directory(place: str, plan: Plan, nbytes: int, set_rate: int) -> Iterator[Path]:
    sides = 1 if plan.layout == "arena" else 2  # with files of their own
    gib = 1.05 * sides * nbytes / GIB + 0.1  # what the file system needs for itself
    match place:
        case "disk":
            with tempfile.TemporaryDirectory(prefix="kv-bench-", dir=plan.directory) as made:
                yield Path(made)
        case "ram":
            with ram_directory(gib, journal=plan.layout == "file") as directory:
                yield directory
        case _:
            with throttled_directory(set_rate, gib, journal=plan.layout == "file") as directory:
                yield directory


def _write_all(path: Path) -> None:
    """What was allocated and never written is read at 60 GB/s, from nowhere."""
    piece = os.urandom(MIB)
    with path.open("r+b") as file:
        for _ in range(path.stat().st_size // MIB):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


# --- what comes of it ------------------------------------------------------------------------

_HEAD = (
    f"{'place':<10}{'case':<20}{'ours':>8}{'fio':>8} MB/s {'ours/fio':<24}"
    f"{'p50':<24}{'p99':<24}{'CPU s/GiB ours':>15}{'fio':>7}"
)


def row(seen: Seen) -> str:
    ours, fio = seen.ours(lambda u: u.rate).median / 1e6, seen.fio(lambda u: u.rate).median / 1e6
    cpu = seen.ours(lambda u: u.cpu_s_per_gib).median, seen.fio(lambda u: u.cpu_s_per_gib).median
    noisy = f"  {seen.noisy} noisy units" if seen.noisy else ""
    return (
        f"{seen.place:<10}{seen.name:<20}{ours:>8.0f}{fio:>8.0f}      {seen.rate!s:<24}"
        f"{seen.latency(50)!s:<24}{seen.latency(99)!s:<24}{cpu[0]:>15.3f}{cpu[1]:>7.3f}{noisy}"
    )


def figures(everything: Sequence[Seen]) -> list[Figure]:
    """Figures 1, 2 and 3 of what was measured."""
    rows: list[Figure] = []
    checked = [seen for seen in everything if seen.case.verify != Verify.OFF]
    disk = [seen for seen in checked if seen.place == "disk"]
    ram = [seen for seen in checked if seen.place == "ram"]
    throttled = [seen for seen in checked if seen.place == "throttled"]
    if disk:
        good = [s.rate.median >= 0.95 and s.rate.high >= 1.0 for s in disk]
        rows.append(_ratio_row("1 disk", ">= 0.95, reaching 1.0", disk, good))
    if ram:
        good = [s.rate.median >= 0.95 for s in ram]
        rows.append(_ratio_row("1 ram", ">= 0.95", ram, good))
        rows.append(_latency_row("1 ram", 50, ram))
    for set_rate in dict.fromkeys(seen.set_rate for seen in throttled):
        there = [seen for seen in throttled if seen.set_rate == set_rate]
        good = [s.rate.median >= 0.99 for s in there]
        at = f"{set_rate / 1e6:g} MB/s"
        rows.append(_ratio_row(f"1 {at}", ">= 0.99", there, good))
        rows.append(_set_rate_row(f"1 {at}", there))
        loads = [seen for seen in there if seen.action == LOAD]
        rows += [_latency_row(f"2 {at}", percent, loads) for percent in (50, 99)]
    rows += _cpu_rows([seen for seen in everything if seen.place == "throttled"])
    return rows


def _ratio_row(number: str, wanted: str, seen: Sequence[Seen], good: Sequence[bool]) -> Figure:
    worst = min(seen, key=lambda s: s.rate.median)
    typical = middle_ratio([group.rate_ratio for s in seen for group in s.groups])
    return Figure(
        number=number, what="throughput ours/fio", wanted=wanted, met=all(good),
        seen=f"{typical}; worst {worst.rate} {worst.name}; {sum(good)} of {len(good)} cases",
    )  # fmt: skip


def _latency_row(number: str, percent: int, seen: Sequence[Seen]) -> Figure:
    """Loads' latency beside fio's: within 5 %, or beyond the median within what two units of fio
    are apart. Where a thread has only a block or two in a unit, the limiter's
    choice of whom to serve first is all that a percentile shows: such cases are left out."""
    everything = [s for s in seen if s.action == LOAD]
    loads = [s for s in everything if s.case.blocks >= LEAST_EACH * s.case.concurrency]
    out = len(everything) - len(loads)
    left_out = f", {out} left out: under {LEAST_EACH} blocks a thread" if out else ""
    if not loads:
        return Figure(
            number=number, what=f"p{percent} of loads ours/fio", wanted="within 5 %", met=False,
            seen="no case" + left_out,
        )  # fmt: skip
    apart = [0.05 if percent == 50 else max(0.05, s.fio_apart(percent)) for s in loads]
    good = [
        abs(s.latency(percent).median - 1) <= most for s, most in zip(loads, apart, strict=True)
    ]
    worst = max(loads, key=lambda s: abs(math.log(s.latency(percent).median)))
    typical = middle_ratio([g.latency_ratio(percent) for s in loads for g in s.groups])
    wanted = "within 5 %" if percent == 50 else f"within 5 %, or fio's own {max(apart):.0%}"
    return Figure(
        number=number, what=f"p{percent} of loads ours/fio", wanted=wanted, met=all(good),
        seen=f"{typical}; worst {worst.latency(percent)} {worst.name}; "
        f"{sum(good)} of {len(good)} cases{left_out}",
    )  # fmt: skip


def _set_rate_row(number: str, seen: Sequence[Seen]) -> Figure:
    def rate(s: Seen) -> Middle:
        return s.ours(lambda unit: unit.rate / s.set_rate)

    good = [abs(rate(s).median - 1) <= 0.01 for s in seen]
    worst = max(seen, key=lambda s: abs(rate(s).median - 1))
    typical = middle_ratio([u.rate / s.set_rate for s in seen for g in s.groups for u in g.ours])
    return Figure(
        number=number, what="ours/set rate", wanted="within 1 %", met=all(good),
        seen=f"{typical}; worst {rate(worst)} {worst.name}; {sum(good)} of {len(good)} cases",
    )  # fmt: skip


def _cpu_rows(seen: Sequence[Seen]) -> list[Figure]:
    """CPU-seconds per GiB loaded in 32 MiB blocks, with verification and without."""
    loads = [s for s in seen if s.action == LOAD and s.case.block == CPU_SIZE_MIB * MIB]
    rows = []
    for s in loads:
        ours, fio = s.ours(lambda u: u.cpu_s_per_gib), s.fio(lambda u: u.cpu_s_per_gib)
        if s.case.verify != Verify.OFF:
            wanted, met = "<= 0.12 s/GiB", ours.median <= 0.12
        else:
            wanted, met = "<= 0.10 s/GiB (2 x fio's 0.05)", ours.median <= 0.10
        rows.append(
            Figure(
                number="3 200 MB/s",
                what=f"client CPU, {s.case}, verify {s.case.verify}",
                wanted=wanted,
                seen=f"{ours}; fio {fio}",
                met=met,
            )
        )
    return rows


def run(places: Sequence[str], plan: Plan) -> list[Figure]:
    """Measure, tell each case as it comes, and give back the figures."""
    if shutil.which("fio") is None:
        raise PlaceError("fio is not installed: apt-get install fio")
    print(_HEAD, flush=True)
    everything = []
    for place in places:
        for seen in measure(place, plan):
            everything.append(seen)
            print(row(seen), flush=True)
    return figures(everything)


def plan_of(*, quick: bool, directory: Path, groups: int | None = None) -> Plan:
    sizes, concurrencies = (
        (QUICK_SIZES_MIB, QUICK_CONCURRENCIES) if quick else (SIZES_MIB, CONCURRENCIES)
    )
    usual = {"disk": 5, "ram": 5, "throttled": 3}
    return Plan(
        sizes_kib=[size * MIB // KIB for size in sizes],
        concurrencies=concurrencies,
        groups={place: groups or (1 if quick else usual[place]) for place in PLACES},
        directory=directory,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--on", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--dir", type=Path, default=Path.cwd())
    parser.add_argument("--quick", action="store_true", help="2 and 32 MiB at 1 and 4, one group")
    parser.add_argument("--groups", type=int)
    parser.add_argument("--sizes-kib", type=float, nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="operations a call, ours")
    parser.add_argument("--depth", type=int, default=1, help="of a call's, in flight at a time")
    parser.add_argument("--alone", action="store_true", help="ours: native transfers by themselves")
    parser.add_argument("--python", action="store_true", help="ours without native transfers")
    parser.add_argument("--concurrency", type=int, nargs="+")
    parser.add_argument("--unit-gib", type=float)
    parser.add_argument("--buffer-mib", type=int, default=BUFFER // MIB, help="of ours")
    parser.add_argument("--layout", choices=("arena", "file"), default="arena")
    parser.add_argument("--verify", choices=[each.value for each in Verify], default="stamps")
    parser.add_argument("--set-mb", type=int, nargs="+", default=[SET_MB], help="if throttled")
    parser.add_argument("--awake", action="store_true", help="no processor may halt meanwhile")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(Case(**json.loads(options.worker)))
        return
    leave_cleanly_on_sigterm()
    plan = plan_of(quick=options.quick, directory=options.dir, groups=options.groups)
    chosen = replace(
        plan,
        sizes_kib=options.sizes_kib or plan.sizes_kib,
        batches=options.batch,
        depth=options.depth,
        native=not options.python,
        alone=options.alone,
        concurrencies=options.concurrency or plan.concurrencies,
        unit_gib=options.unit_gib,
        buffer_mib=options.buffer_mib,
        layout=options.layout,
        verify=options.verify,
        set_rates=[rate * 10**6 for rate in options.set_mb],
    )
    with awake() if options.awake else nullcontext():
        print(table(run(options.on, chosen)))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(str(error))
