"""Derives the fio job that does the I/O of a run's storage tier in its window.

What a job takes over from a result: the sizes of objects and of system calls, reads and writes at
once, how many of each were in flight (Little's law), direct or not, the engine, fsync, and whether
an object is a file or a place in a preallocated one. `unlike` lists what it cannot take over.

fio has no word for "an object": one system call carries a whole object, or, where all objects have
one size and took several calls, the calls of one object follow each other and their completion
latencies are added up.

The threads of the run were inside system calls for a part of their time only. So that fio asks the
device for as much at once, its threads (the next whole number) think between two objects:

    think = service * (threads / in_flight - 1)        with in_flight = sum of device time / window
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import OpKind, Phase, Tier
from kv_cache.core.mounts import RAW_DEVICE
from kv_cache.core.units import (
    KIB,
    MIB,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    PAGE_BYTES,
    human_bytes,
    round_up,
)
from kv_cache.files.reading import require_replaceable
from kv_cache.files.writing import write_output
from kv_cache.metrics.evidence import OBJECT_ENGINES
from kv_cache.metrics.histogram import Histogram, bucket_bounds, merged
from kv_cache.result.paths import list_at, value_at
from kv_cache.result.published import OperationFacts, PublishedRun, published
from kv_cache.result.run import SECTION, MisshapenError, not_as_written
from kv_cache.tiers.file_options import FSYNC_BATCH

DEFAULT_SECONDS = 20.0
HEADER = "# kv-cache twin: fio does the I/O of a run's storage tier"
"""The first line of every job that we write; a file that begins so may be replaced."""

FILE_NAMES = "$jobname.$jobnum.$filenum.kv"
CLASSES = 20
"""Sizes of a mix that a job distinguishes; fio takes 64, in whole percents."""

PERCENTILES = (50.0, 95.0, 99.0)

_SLOTS = 100  # fio's percents are whole numbers
_ENGINES: Mapping[str, tuple[str, bool]] = {
    "direct": ("psync", True),
    "buffered": ("psync", False),
    "mmap": ("mmap", False),
    "uring": ("io_uring", True),
}
"""Our engine: fio's, and whether it is direct."""

_WHOLE = 0.03  # threads that are idle for less than this share do not think
_FILES = 4096  # of one fio thread, at most
_MARGIN = 2.0  # a fio twice as fast as the run does not meet data again


class SizeClass(Struct, frozen=True, kw_only=True):
    """Objects of about one size, and their share of all in whole percents."""

    nbytes: int
    percent: int


class Side(Struct, frozen=True, kw_only=True):
    """The reads or the writes of the run's storage tier in its window."""

    kind: OpKind
    engine: str
    other_engines: tuple[str, ...]
    operations: int
    nbytes: int
    sizes: tuple[SizeClass, ...]
    calls_per_object: float
    device: Histogram
    in_flight: float
    mixed: bool = False  # ours differ in size, and `sizes` is their mean alone

    @property
    def direct(self) -> bool:
        return _ENGINES[self.engine][1]

    @property
    def largest(self) -> int:
        return max(size.nbytes for size in self.sizes)

    @property
    def threads(self) -> int:
        whole = round(self.in_flight)
        if whole and abs(self.in_flight / whole - 1) <= _WHOLE:
            return whole
        return max(1, ceil(self.in_flight))

    @property
    def think_ns(self) -> int:
        """Between two objects of one thread, so that `in_flight` of them are at the device."""
        idle = self.threads / self.in_flight - 1
        return round((self.device.mean or 0) * idle) if idle > _WHOLE else 0

    @property
    def calls(self) -> int:
        """Of one object in fio."""
        return 1 if len(self.sizes) > 1 else round(self.calls_per_object)

    @property
    def call_bytes(self) -> int:
        """Of one system call in fio, where all objects have one size."""
        return round_up(ceil(self.largest / self.calls), PAGE_BYTES)

    @property
    def object_bytes(self) -> int:
        """The largest object, in whole calls."""
        return self.call_bytes * self.calls


class Twin(Struct, frozen=True, kw_only=True):
    """What a result says about its storage I/O, and what a fio job does of it."""

    result: Path
    window_s: float
    sides: tuple[Side, ...]
    layout: str
    fsync: str
    footprint_bytes: int
    cpu_ns: int | None
    cache_dirs: tuple[str, ...]
    mount_points: tuple[str | None, ...]  # of these
    device: str | None
    raw_device: str | None = None  # in place of directories
    drives: int = 1  # directories that fio spreads its files over

    @property
    def files(self) -> bool:
        """Whether each object is a file, in the run."""
        return self.layout == "file"

    def space_bytes(self, seconds: float) -> int:
        """Return the bytes of the job's files."""
        return sum(_extent(self, side, seconds).total_bytes for side in self.sides)

    def memory_bytes(self) -> int:
        """Return the bytes of fio's buffers."""
        return sum(side.threads * side.call_bytes for side in self.sides)

    def in_less_memory(self) -> "Twin":
        """Return a twin whose buffers hold one system call of the run, and no whole object: its
        objects have the mean of the sizes, as fio cannot group the calls of others."""
        return replace(self, sides=tuple(map(_of_mean_size, self.sides)))

    def unlike(self) -> list[str]:
        """Return what the run and its twin do not share, as sentences for a person."""
        return list(_unlike(self))


def _of_mean_size(side: Side) -> Side:
    if len(side.sizes) == 1:
        return side
    mean = max(1, round(side.nbytes / side.operations / PAGE_BYTES)) * PAGE_BYTES
    return replace(side, sizes=(SizeClass(nbytes=mean, percent=100),), mixed=True)


# --- from a result ---------------------------------------------------------------------------


def derive(document: Mapping[str, Any], file: Path) -> Twin:
    """Derive the storage I/O of a result's window. Raises UsageError if there is none, or the
    result does not have enough."""
    try:
        run = published(document[SECTION])
    except MisshapenError as error:
        raise not_as_written(file, f"{SECTION}.{error}") from None
    rows = _storage_rows(run, file)
    if not rows or not 0 < run.window_s < 1e9:
        raise UsageError(
            f"{file}: nothing was read from storage or written to it in the measured window, so "
            "there is nothing for fio to do; give a run whose storage tier was used"
        )
    tier = run.tiers.get(Tier.NVME.label)
    if tier is None or tier.peak_bytes is None:
        raise not_as_written(file, f"{SECTION}.tiers.storage is missing")
    sides = [
        _side(kind, of_kind, run.window_s, file)
        for kind in (OpKind.READ, OpKind.WRITE)
        if (of_kind := [row for row in rows if row.operation == kind])
    ]
    cpu_ns = run.kernel_counters.get("window", {}).get("process_cpu_ns")
    directories = value_at(run.config, "tiers.cache_dir")
    device = value_at(run.environment, "device.name")
    on_device = value_at(run.environment, "filesystem.type") == RAW_DEVICE
    node = value_at(run.environment, "filesystem.source")
    return Twin(
        result=file,
        window_s=run.window_s,
        sides=tuple(sides),
        layout=tier.store.layout,
        fsync=_fsync(tier.store.fsync),
        footprint_bytes=tier.peak_bytes,
        cpu_ns=cpu_ns if isinstance(cpu_ns, int) else None,
        cache_dirs=tuple(
            str(path)
            for path in (directories if isinstance(directories, list) else [directories])
            if path
        ),
        mount_points=tuple(
            value_at(drive, "filesystem.mount_point")
            for drive in list_at(run.environment, "drives")
        ),
        device=device if isinstance(device, str) else None,
        raw_device=node if on_device and isinstance(node, str) else None,
    )


def _fsync(stored: str | bool) -> str:
    """Return `never`, `object` or `batch`."""
    if isinstance(stored, bool):
        return "object" if stored else "never"
    return stored


def _storage_rows(run: PublishedRun, file: Path) -> list[OperationFacts]:
    rows = [
        row
        for row in run.operations
        if row.phase == Phase.MEASURE
        and row.tier == Tier.NVME.label
        and row.operation in (OpKind.READ, OpKind.WRITE)
    ]
    if any(row.histogram_bytes is None or row.system_calls is None for row in rows):
        raise UsageError(
            f"{file}: it has no sizes of objects and system calls, as results of older "
            "versions have none; repeat the run with this version"
        )
    return [row for row in rows if row.operations]


def _side(kind: OpKind, rows: Sequence[OperationFacts], window_s: float, file: Path) -> Side:
    device = merged(row.histogram_device for row in rows)
    sizes = merged(row.histogram_bytes for row in rows if row.histogram_bytes is not None)
    operations = sum(row.operations for row in rows)
    calls = sum(row.system_calls or 0 for row in rows)
    nbytes = sum(row.bytes for row in rows)
    if sizes.count != operations or not sizes.total or not device.total or nbytes <= 0:
        raise UsageError(
            f"{file}: its storage {kind}s do not fit together ({operations} operations, "
            f"{sizes.count} sizes, {nbytes} bytes, {device.total} ns); the file was changed, so "
            "give an untouched result"
        )
    engine, *others = _by_bytes(rows)
    if engine in OBJECT_ENGINES:
        raise UsageError(
            f"{file}: its storage tier was an object store, and fio does the I/O of files; to "
            "compare, run a client of objects of the same size and concurrency, as benchmarks/s3.py"
        )
    if engine not in _ENGINES:
        raise UsageError(
            f"{file}: the engine of its storage {kind}s is {engine!r}, which fio has no "
            f"equivalent of; give a run with --io-engine {', '.join(_ENGINES)}"
        )
    return Side(
        kind=kind,
        engine=engine,
        other_engines=tuple(others),
        operations=operations,
        nbytes=nbytes,
        sizes=size_classes(sizes),
        calls_per_object=max(1.0, calls / operations),
        device=device,
        in_flight=device.total / (window_s * NS_PER_S),
    )


def _by_bytes(rows: Iterable[OperationFacts]) -> list[str]:
    """Return the engines, the one that moved most first; an unknown one alone, to be refused."""
    moved: Counter[str] = Counter()
    for row in rows:
        if row.engine not in _ENGINES:
            return [row.engine]
        moved[row.engine] += row.bytes
    return [engine for engine, _ in moved.most_common()]


def size_classes(sizes: Histogram) -> tuple[SizeClass, ...]:
    """At most `CLASSES` sizes of whole pages with whole percents, whose mean is that of `sizes`.

    The objects, in order of size, are cut into 100 slots of 1 % each; a slot has the mean size of
    its objects, so that the mean of all stays. Neighbours with one size become one class; then
    those whose union moves the fewest bytes, until few enough are left.
    """
    runs = [
        [float(nbytes), float(len(list(same)))] for nbytes, same in groupby(_slots(sizes), round)
    ]
    while len(runs) > CLASSES:
        at = min(range(len(runs) - 1), key=lambda i: _cost(runs[i], runs[i + 1]))
        (small, few), (large, more) = runs[at : at + 2]
        runs[at : at + 2] = [[(small * few + large * more) / (few + more), few + more]]
    return tuple(
        SizeClass(nbytes=max(PAGE_BYTES, round(n / PAGE_BYTES) * PAGE_BYTES), percent=round(p))
        for n, p in runs
    )


def _slots(sizes: Histogram) -> list[float]:
    """Return the mean size of each hundredth of the objects. An object counts as `_SLOTS` parts,
    and a slot has as many parts as there are objects, so that nothing is rounded."""
    low, high = sizes.lowest or 0, sizes.highest or 0
    slots, filled, held = [], 0, 0.0
    for bucket, count in sizes.buckets().items():
        nbytes = min(max(sum(bucket_bounds(bucket)) / 2, low), high)
        left = count * _SLOTS
        while left:
            taken = min(left, sizes.count - filled)
            filled, held, left = filled + taken, held + taken * nbytes, left - taken
            if filled == sizes.count:
                slots.append(held / filled)
                filled, held = 0, 0.0
    return slots


def _cost(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the bytes that change their class's size when two classes become one."""
    weight = one[1] * other[1] / (one[1] + other[1])
    return weight * (other[0] - one[0])


# --- the job ---------------------------------------------------------------------------------


class _Extent(Struct, frozen=True, kw_only=True):
    """The files of one side: some of each of fio's threads, or one in each directory."""

    per_thread: int | None
    file_bytes: int
    total_bytes: int


def _extent(twin: Twin, side: Side, seconds: float) -> _Extent:
    """Size the files of one side: no more than the run's storage held, where it had room, nor than
    fio could get through, but two objects for each thread."""
    reach = max(_MARGIN * side.nbytes / twin.window_s * seconds, 2 * _each_thread_one(twin, side))
    wanted = min(_room(twin, side), reach)
    if _file_an_object(twin, side):
        files = max(1, min(_FILES, int(wanted) // _each_thread_one(twin, side)))
        total = files * _each_thread_one(twin, side)
        return _Extent(per_thread=files, file_bytes=side.object_bytes, total_bytes=total)
    objects = max(1, int(wanted) // twin.drives // side.object_bytes)
    size = objects * side.object_bytes
    return _Extent(per_thread=None, file_bytes=size, total_bytes=size * twin.drives)


def _each_thread_one(twin: Twin, side: Side) -> int:
    """Return the bytes of an object for each thread, in as many directories for each drive."""
    return round_up(side.threads, twin.drives) * side.object_bytes


def _room(twin: Twin, side: Side) -> float:
    """Return a side's part of what the run's storage held: half of it, or what leaves a file for
    each thread of the other."""
    half = twin.footprint_bytes / len(twin.sides)
    others = sum(_each_thread_one(twin, each) for each in twin.sides if each is not side)
    mine = _each_thread_one(twin, side)
    fits = mine + others <= twin.footprint_bytes
    return max(mine, min(half, twin.footprint_bytes - others)) if fits else half


def _could_be_files(twin: Twin, side: Side) -> bool:
    """Return whether one file for each object would be as the run did, or has to be: through the
    page cache fio drops a file's pages only when it opens it. The files of one job cannot differ in
    size."""
    cached = side.kind is OpKind.READ and not side.direct
    return (twin.files or cached) and len(side.sizes) == 1 and twin.raw_device is None


def _file_an_object(twin: Twin, side: Side) -> bool:
    """Return whether fio uses one file for each object: there is room for one of each thread."""
    return _could_be_files(twin, side) and _each_thread_one(twin, side) <= _room(twin, side)


def job_text(
    twin: Twin, seconds: float, directories: Sequence[str] = (), logs: Path | None = None
) -> str:
    """Return the job file. Without directories it works where fio is started; in the directory
    `logs` fio writes the latency of each call, where an object takes several."""
    lines = [
        HEADER,
        f"# of {twin.result}, {twin.window_s:.1f} s; run it as: fio THIS_FILE",
        "# It is not the same in this:",
        *(f"#   {text}" for text in twin.unlike()),
        "",
        "[global]",
        *_global(seconds),
    ]
    for side in twin.sides:
        lines += ["", *_section(twin, side, seconds, directories)]
        if logs is not None and side.calls > 1:
            lines.append(f"write_lat_log={logs / side.kind}")
    return "".join(f"{_one_line(line)}\n" for line in lines)


def _one_line(text: str) -> str:
    """Replace what is not printable: a line of a job file is a command to fio, so no text may bring
    lines of its own."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _global(seconds: float) -> list[str]:
    return [
        "thread",
        "time_based",
        f"runtime={max(1, round(seconds))}",
        "group_reporting",
        "fallocate=none",
        "randrepeat=1",
        f"filename_format={FILE_NAMES}",
    ]


def _listed(names: Sequence[str]) -> str:
    """A colon parts names from each other, so one in a name is escaped."""
    return ":".join(name.replace(":", r"\:") for name in names)


def _engine(side: Side) -> list[str]:
    name, direct = _ENGINES[side.engine]
    lines = [f"ioengine={name}", f"direct={int(direct)}"]
    if name == "io_uring":
        return [*lines, "iodepth=1", "fixedbufs=1"]
    if name == "mmap":  # as ours; at random it would read single pages
        return [*lines, "fadvise_hint=sequential"]
    return lines


def _section(twin: Twin, side: Side, seconds: float, directories: Sequence[str]) -> list[str]:
    """Return one job: the readers or the writers."""
    reads = side.kind is OpKind.READ
    lines = [
        f"[{side.kind}s]",
        "new_group",
        _about(side),
        *_engine(side),
        f"numjobs={side.threads}",
    ]
    if side.think_ns:
        lines += [
            f"thinktime={max(1, side.think_ns // NS_PER_US)}",
            f"thinktime_blocks={side.calls}",
        ]
    lines += _sizes(side)
    extent = _extent(twin, side, seconds)
    if extent.per_thread is not None:
        lines += [
            f"rw={side.kind}",
            f"filesize={extent.file_bytes}",
            f"nrfiles={extent.per_thread}",
            "file_service_type=sequential",
            "openfiles=1",
        ]
        lines += [f"directory={_listed(directories)}"] if directories else []
        if not reads:
            # The mmap engine would map a file that has no bytes yet, and die.
            renewal = ["create_on_open=1", "unlink_each_loop=1"]
            lines += renewal if side.engine != "mmap" else ["overwrite=1"]
    else:
        name = f"{side.kind}s.kv"
        sequence = f":{side.calls}" if side.calls > 1 else ""
        lines += [
            f"rw=rand{side.kind}{sequence}",
            "norandommap=1",
            f"blockalign={side.object_bytes if len(side.sizes) == 1 else PAGE_BYTES}",
        ]
        if twin.raw_device is not None:
            before = twin.sides[: twin.sides.index(side)]
            offset = sum(_extent(twin, each, seconds).total_bytes for each in before)
            lines += [
                f"filename={_listed([twin.raw_device])}",
                f"offset={offset}",
                f"size={extent.file_bytes}",
            ]
        else:
            lines += [
                f"filesize={extent.file_bytes}",
                # With `directory` a file that is named would go to the first alone.
                f"filename={_listed([str(Path(each, name)) for each in directories or ['']])}",
                f"file_service_type=roundrobin:{side.calls}",  # all calls of an object to one file
            ]
        lines += [] if reads else ["overwrite=1"]
    return lines if reads else [*lines, *_durable(twin, side)]


def _about(side: Side) -> str:
    return (
        f"# {side.operations} {side.kind}s of {human_bytes(side.nbytes)} in all, "
        f"{side.in_flight:.2f} at the device at a time"
    )


def _sizes(side: Side) -> list[str]:
    if len(side.sizes) == 1:
        return [f"bs={side.call_bytes}"]
    return ["bssplit=" + ":".join(f"{size.nbytes}/{size.percent}" for size in side.sizes)]


def _durable(twin: Twin, side: Side) -> list[str]:
    """Return fio's options for fsync; its completion latency includes an O_DSYNC, but not an fsync
    that follows."""
    if twin.fsync == "never":
        return []
    if twin.fsync == "batch":
        return [f"fsync={side.calls * FSYNC_BATCH}"]
    if side.calls > 1 or side.engine == "mmap":
        return [f"fsync={side.calls}"]
    return ["sync=dsync"]


def _unlike(twin: Twin) -> Iterable[str]:
    if twin.layout != "arena":  # whose files stay open
        yield (
            "ours opens, names and closes objects inside its device time; fio's completion "
            "latency is that of the system call alone"
        )
    yield (
        "ours stamps what it writes and verifies what it reads, and its CPU time is that of the "
        "whole program; fio scrambles one buffer and verifies nothing"
    )
    yield (
        "ours was given its load by requests that come, wait and compute; fio's threads repeat "
        "one step at an even pace"
    )
    for side in twin.sides:
        if side.calls == 1 and round(side.calls_per_object, 1) > 1:
            yield (
                f"ours took {side.calls_per_object:.1f} system calls for an object on "
                f"{side.kind}; fio takes one, as it cannot group the calls of objects that differ "
                "in size"
            )
        if len(side.sizes) > 1:
            yield f"sizes of {side.kind}s are {len(side.sizes)} classes in whole percents"
        if side.mixed:
            yield (
                f"the {side.kind}s of ours differ in size; fio's have the mean, as otherwise each "
                "buffer would hold a whole object, for which there is too little RAM"
            )
        if twin.files and not _file_an_object(twin, side):
            differ = "the files of a fio job cannot differ in size"
            full = "the run's storage did not hold a file for each of its threads"
            yield (
                f"each object of ours is a file; fio's {side.kind}s go to one large file, as "
                f"{differ if len(side.sizes) > 1 else full}"
            )
        if side.kind is OpKind.WRITE and _durable(twin, side)[:1] not in ([], ["sync=dsync"]):
            yield "the fsync of a write is in our latency and not in fio's"
    if twin.layout not in ("file", "arena"):
        yield f"the layout {twin.layout!r} of ours is one preallocated file in fio"
    for side in twin.sides:
        if not side.direct:
            yield from _cached(twin, side)
        if side.other_engines:
            others = ", ".join(side.other_engines)
            yield f"some {side.kind}s of ours were {others}; all of fio's are {side.engine}"
    if twin.raw_device is not None:
        yield (
            f"fio reads what is on {twin.raw_device}, however it came there, and its writes "
            "overwrite it"
        )
        return
    yield (
        "fio's files hold no more than it can get through in its time, and were written in one "
        "pass before"
    )


def _cached(twin: Twin, side: Side) -> Iterable[str]:
    if side.kind is OpKind.WRITE:
        if side.engine == "mmap" and twin.files:
            yield "ours makes a new file for each object; fio stores into files that are there"
    elif side.engine == "mmap" or not _file_an_object(twin, side):
        yield (
            "ours drops an object's pages from the page cache before it reads it; fio may read "
            "from there what it has read before, and is then faster than the device"
        )
    elif not twin.files:
        yield "fio reads a file an object, so that it drops its pages from the page cache"


# --- for a person, and the file ----------------------------------------------------------------


def what_it_does(twin: Twin) -> str:
    """Return one line on each side of the job."""
    lines = []
    for side in twin.sides:
        sizes = f"{_size(side.sizes[0].nbytes)}"
        if len(side.sizes) > 1:
            sizes = f"{len(side.sizes)} sizes up to {_size(side.largest)}"
        elif side.calls > 1:
            sizes += f" in {side.calls} calls"
        think = f", thinking {side.think_ns / NS_PER_MS:.2f} ms" if side.think_ns else ""
        synced = side.kind is OpKind.WRITE and twin.fsync != "never"
        lines.append(
            f"{side.kind}s: {side.threads} thread{'s' * (side.threads > 1)}{think}, {sizes}, "
            f"{side.engine}{', fsync' * synced}"
        )
    return "\n".join(lines)


def _size(nbytes: int) -> str:
    unit, name = (MIB, "MiB") if nbytes >= MIB else (KIB, "KiB")
    return f"{nbytes / unit:g} {name}" if nbytes % unit == 0 else human_bytes(nbytes)


def export_job(
    twin: Twin, path: Path, seconds: float = DEFAULT_SECONDS, directories: Sequence[str] = ()
) -> None:
    """Write the job of a result, e.g. of `derive(document, path)`, to a file. Raises PlaceError if
    it holds something that is not ours to replace."""
    require_replaceable(path, HEADER, "--fio-export")
    raw_device = None if directories else twin.raw_device
    spread = replace(twin, drives=max(1, len(directories)), raw_device=raw_device)
    data = job_text(spread, seconds, directories).encode()
    write_output(path, data, "--fio-export")
