"""Storage that fails, lies, stalls, fills up or is changed under us, in whole runs: wrong data is
never served, every fault is told by its name, and the run goes on."""

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kv_cache.app.run as command
import kv_cache.cli
from benchmarks.devices import (
    LOOP_TOOLS,
    NBD_TOOLS,
    RAM_RULES,
    THROTTLED_RULES,
    faulty_directory,
    ram_directory,
    throttled_directory,
    why_not,
)
from kv_cache.bench.batches import BatchMover
from kv_cache.bench.many import PlacedMover, PlacedMoves, PlacedObjects
from kv_cache.bench.run import open_run
from kv_cache.bench.transfer import Mover
from kv_cache.core.effect import CopyRef, OpDone
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.ops_done import OpsDone
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES
from kv_cache.tiers.base import Capability, Sink, Store, Tap
from kv_cache.tiers.buffers import Buffer, BufferPool
from kv_cache.tiers.native import LEFT_OUT, WRONG, Does, library
from kv_cache.tiers.nvme import uring
from kv_cache.tiers.payload import MISMATCH, Payload
from tests.cli import LIGHT, SMALL, finish, prepare, run, start, worker_of
from tests.covering import by_day
from tests.passports import names
from tests.stores import mounted
from tests.wrappers import FLIP, LOST, SWAPPED, TORN, Fault, Faulty, Stall

LAYOUTS = ("file", "arena", "bucket")
WAYS = ("python", "native")
SEED = 3  # of `SMALL`
_MAIN = threading.main_thread()
CHECKED = [*SMALL, "--output=R.json", "--verify=full"]


# --- runs that are watched -----------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """Compares every byte that storage gives to a request with what was to be written there."""

    right: int = 0
    wrong: int = 0  # operations, which end at the first buffer that is
    payload: Payload = field(default_factory=lambda: Payload(Seed(SEED).child("payload"), MIB))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, store: Store) -> Store:
        return store if store.tier is not Tier.NVME else _WatchedStore(store, self)

    def see(self, ref: CopyRef, offset: int, data: memoryview) -> bool:
        if threading.current_thread().name == "storage":
            return True  # not for a request: the sample at the end (`bench/stillness`)
        buffer = Buffer(np.frombuffer(data, np.uint8))
        right = self.payload.matches(buffer, ref, offset, len(data), full=True)
        with self.lock:
            self.right += right
            self.wrong += not right
        return right


class _WatchedStore:
    def __init__(self, store: Store, watch: Watch) -> None:
        self.tier, self.removal = store.tier, store.removal
        self.capabilities = store.capabilities & ~Capability.POSITIONAL
        self.describe, self.delete, self.close = store.describe, store.delete, store.close
        self._store, self._watch = store, watch

    def create(self, ref: CopyRef) -> Sink:
        return self._store.create(ref)

    def open(self, ref: CopyRef) -> Tap:
        tap = self._store.open(ref)
        read = tap.read

        def watched(offset: int, into: memoryview) -> None:
            read(offset, into)
            self._watch.see(ref, offset, into)

        tap.read = watched  # type: ignore[method-assign]
        return tap


def watch_natively(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """See what native reads have brought into their buffers, when they have verified it."""
    move = BatchMover._move

    def watched(
        self: BatchMover, chunks: Any, buffer: Buffer, does: Does, *, how: Capability
    ) -> None:
        seen = [chunk for chunk in chunks if chunk.of.error is None and not does & Does.WRITE]
        move(self, chunks, buffer, does, how=how)
        wrong: set[int] = set()  # operations: two of a batch may read the same
        for of, offset, nbytes, page in seen:
            if id(of) in wrong or (of.error is not None and of.error.reason != MISMATCH):
                continue  # it has not been read
            data = buffer.view[page * PAGE_BYTES : page * PAGE_BYTES + nbytes]
            if not watch.see(of.ref, offset, data):
                wrong.add(id(of))

    monkeypatch.setattr(BatchMover, "_move", watched)
    found, place, copy = Mover._move_found, PlacedMover.move, PlacedMover.copy

    def singly(self: Mover, ops: Any) -> Iterator[OpDone | OpsDone]:
        for op in ops:  # of many in one call the next takes the place of the last
            yield from found(self, [op])

    def shown(self: PlacedMover, objects: PlacedObjects, pool: Any, *, how: Capability) -> None:
        showing: Any = _Shown(pool, objects, watch)
        place(self, objects, showing, how=how)

    def shown_moves(self: PlacedMover, moves: PlacedMoves, pool: Any, **how: Capability) -> None:
        showing: Any = _Shown(pool, moves.reading, watch)
        copy(self, moves, showing, **how)

    monkeypatch.setattr(Mover, "_move_found", singly)
    monkeypatch.setattr(PlacedMover, "move", shown)
    monkeypatch.setattr(PlacedMover, "copy", shown_moves)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A pool whose buffer is looked at before it is given back."""

    pool: BufferPool
    objects: PlacedObjects
    watch: Watch

    @property
    def buffer_bytes(self) -> int:
        return self.pool.buffer_bytes

    def take(self, tint: int = 0) -> Buffer:
        return self.pool.take(tint)

    def give(self, buffer: Buffer) -> None:
        apart = max(ref.nbytes for ref in self.objects.refs)  # of moves, each in its own place
        for number, ref in enumerate(self.objects.refs):
            one = self.objects.alone(number)
            errors = set() if one is None else {moved.error for _, moved in one.rows}
            if one and one.kind is OpKind.READ and errors <= {0, WRONG, LEFT_OUT}:
                self.watch.see(ref, 0, buffer.view[number * apart :][: ref.nbytes])
        self.pool.give(buffer)


@dataclass(frozen=True, slots=True)
class Told:
    """What a run said, and what was seen of it."""

    code: int
    own: Any
    watch: Watch

    @property
    def reasons(self) -> Counter[tuple[str, str]]:
        """(operation, reason) of all that failed on storage."""
        found: Counter[tuple[str, str]] = Counter()
        for row in self.own["failed_operations"]:
            assert row["tier"] == "storage", row
            found[row["operation"], row["reason"]] += row["count"]
        return found

    def assert_nothing_wrong_was_served(self) -> None:
        """Each operation that read wrong bytes has failed for that reason, and is counted once."""
        assert self.code == 0
        assert self.own["status"] == "finished"
        assert self.watch.right > 0
        assert self.reasons["read", MISMATCH] == self.watch.wrong
        assert self.own["requests"]["completed"] > 0


def watched_run(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *flags: str,
    cache: Path = Path("cache"),
    fault: Fault = lambda kind, ref: None,
    meanwhile: Callable[[Path, threading.Event], None] | None = None,
    native: bool = False,
) -> Told:
    """Run in this process; `native`: by native transfers, without `fault`. `meanwhile` is called
    with the cache directory when the run has loaded something from there, and returns when the
    event is set at the latest."""
    prepare(directory)
    monkeypatch.chdir(directory)
    watch, ended = Watch(), threading.Event()

    def wrap(store: Store) -> Store:
        return watch(Faulty(store, fault) if store.tier is Tier.NVME else store)

    if native:
        watch_natively(watch, monkeypatch)
    else:
        monkeypatch.setattr(command, "open_run", functools.partial(open_run, wrap=wrap))

    def wait_and_act() -> None:
        assert meanwhile is not None
        while watch.right < 20 and not ended.wait(0.02):
            pass
        if not ended.is_set():  # else a signal would end these tests
            meanwhile(cache, ended)

    other = threading.Thread(target=wait_and_act)
    if meanwhile is not None:
        other.start()
    try:
        code = kv_cache.cli.main([*CHECKED, f"--cache-dir={cache}", *flags])
    finally:
        ended.set()
        if meanwhile is not None:
            other.join()
    own = json.loads(Path("R.json").read_bytes())["kv_cache"]
    path = own["tiers"]["storage"]["store"]["data_path"]
    assert path == "native" if native else path.startswith("python: "), path
    assert not list(cache.glob("kv-cache-run-*"))
    return Told(code, own, watch)


def engine_of(layout: str) -> str:
    """A different one for each layout."""
    engine = {"file": "direct", "arena": "uring", "bucket": "mmap"}[layout]
    return "direct" if engine == "uring" and uring.uring_missing() is not None else engine


def objects(cache: Path) -> list[Path]:
    """The files of a run, which may be removing them."""
    with contextlib.suppress(FileNotFoundError):
        return list(cache.glob("*/??/*.kv"))
    return []


# --- storage that lies or fails --------------------------------------------------------------


EACH_LAYOUT = {layout: (layout,) for layout in LAYOUTS}
EACH_WAY = {f"{layout}-{way}": (layout, way == "native") for layout in LAYOUTS for way in WAYS}
needs_native = pytest.mark.skipif(isinstance(library(), str), reason=str(library()))


@pytest.mark.parametrize("layout", by_day(EACH_LAYOUT, ["file"]))
def test_wrong_data_of_every_kind_is_never_served_and_always_told(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its way, and on the medium."""
    on_the_way = {1: FLIP, 2: TORN, 3: SWAPPED}
    on_the_medium = {5: FLIP, 6: TORN, 7: SWAPPED, 8: LOST}

    def fault(kind: OpKind, ref: CopyRef) -> str | None:
        which = ref.copy_id % 17
        if kind is OpKind.READ:
            return on_the_way.get(which)
        return on_the_medium.get(which) if kind is OpKind.WRITE else None

    told = watched_run(
        tmp_path, monkeypatch, *LIGHT, "--max-requests=120", f"--layout={layout}",
        f"--io-engine={engine_of(layout)}", fault=fault,
    )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    assert told.watch.wrong > 0
    assert set(told.reasons) == {("read", MISMATCH)}
    assert told.own["verification"]["objects"] > 0


def test_what_fails_is_told_by_operation_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {OpKind.READ: "io-error", OpKind.WRITE: "no-space", OpKind.DELETE: "read-only"}
    injected: Counter[tuple[str, str]] = Counter()

    def fault(kind: OpKind, ref: CopyRef) -> str | None:
        main = threading.current_thread() is threading.main_thread()
        if main or (ref.copy_id + len(kind.value)) % 7:
            return None
        injected[kind.value, reasons[kind]] += 1
        return reasons[kind]

    told = watched_run(
        tmp_path, monkeypatch, *LIGHT, "--max-requests=120", "--cpu-mem-gb=0.004",
        "--storage-capacity-gb=0.0125", fault=fault,
    )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    assert told.watch.wrong == 0
    assert set(told.reasons) == {(kind.value, reason) for kind, reason in reasons.items()}
    # A write that the end of the run met before it could fail is not a failure of the storage.
    assert told.reasons <= injected
    assert (injected - told.reasons).total() <= 8


def test_a_layer_that_fails_takes_its_block_with_it_and_leaves_no_other_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve layers of a block have ids that follow each other."""
    there: set[int] = set()

    def fault(kind: OpKind, ref: CopyRef) -> str | None:
        if kind is OpKind.READ:
            return "io-error" if ref.copy_id % 89 == 0 else None
        if kind is OpKind.WRITE and ref.copy_id % 97 == 0:
            return "io-error"
        (there.add if kind is OpKind.WRITE else there.discard)(ref.copy_id)
        return None

    told = watched_run(
        tmp_path, monkeypatch, *LIGHT, "--max-requests=60", "--object=layer", "--block-tokens=64",
        "--cpu-mem-gb=0", fault=fault,
    )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    assert set(told.reasons) == {("read", "io-error"), ("write", "io-error")}
    blocks = Counter(copy_id // 12 for copy_id in there)
    assert blocks
    assert set(blocks.values()) == {12}


def test_a_device_that_holds_an_operation_does_not_hold_the_result_of_a_stopped_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall_s, began = 12.0, list[float]()

    def fault(kind: OpKind, ref: CopyRef) -> Stall | None:
        if kind is not OpKind.READ or began or threading.current_thread() is _MAIN:
            return None
        began.append(time.time())
        return Stall(round(stall_s * NS_PER_S))

    def stop(cache: Path, ended: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    told = watched_run(
        tmp_path, monkeypatch, "--max-requests=0", "--duration=60", fault=fault, meanwhile=stop
    )
    assert told.code == 143
    assert told.own["status"] == "interrupted"
    books = told.own["requests"]
    ends = ("completed", "failed", "rejected", "unfinished")
    assert books["submitted"] == sum(books[end] for end in ends)
    assert Path("R.json").stat().st_mtime < began[0] + stall_s  # it was still going on


def test_a_stall_delays_and_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stalls: Counter[OpKind] = Counter()

    def fault(kind: OpKind, ref: CopyRef) -> Stall | None:
        if ref.copy_id % 4:
            return None
        stalls[kind] += 1
        return Stall(100 * NS_PER_MS)

    told = watched_run(
        tmp_path, monkeypatch, "--max-requests=30", "--cpu-mem-gb=0",
        "--storage-capacity-gb=0.1", fault=fault,
    )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    assert set(stalls) >= {OpKind.READ, OpKind.WRITE}
    assert told.own["failed_operations"] == []
    late = [row for row in told.own["operations"] if row["histogram_device"].get("max", 0) > 95e6]
    assert "read" in {row["operation"] for row in late}


# --- files that somebody changes -------------------------------------------------------------


class Harm:
    """Changes the run's files under it, as long as it lasts."""

    def __init__(self, layout: str) -> None:
        self._chance = random.Random(4)
        self._layout = layout
        self.done: Counter[str] = Counter()

    def __call__(self, cache: Path, ended: threading.Event) -> None:
        acts = [self._flip, self._zero, self._swap, self._flip, self._zero, self._swap]
        acts += [self._cut, self._remove] * 2 if self._layout == "file" else [self._cut]
        while not ended.wait(0.01):
            act = self._chance.choice(acts)
            with contextlib.suppress(FileNotFoundError, ValueError, IndexError):  # it is gone
                act([path for path in objects(cache) if ".meta" not in path.name])
                self.done[act.__name__] += 1
            if self._layout != "file" and self.done["_cut"]:
                acts = [self._flip, self._zero, self._swap]  # once is much, of files that large

    def _flip(self, files: list[Path]) -> None:
        with self._chance.choice(files).open("r+b") as file:
            at = self._some_page(file.fileno()) + self._chance.randrange(PAGE_BYTES)
            (byte,) = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte ^ 1]), at)

    def _zero(self, files: list[Path]) -> None:
        with self._chance.choice(files).open("r+b") as file:
            at = self._some_page(file.fileno())
            os.pwrite(file.fileno(), bytes(PAGE_BYTES // 2), at + PAGE_BYTES // 2)

    def _swap(self, files: list[Path]) -> None:
        """Also what a stale version is: what was once right, somewhere."""
        with (
            self._chance.choice(files).open("r+b") as a,
            self._chance.choice(files).open("r+b") as b,
        ):
            places = [(file.fileno(), self._some_page(file.fileno())) for file in (a, b)]
            pages = [os.pread(fd, PAGE_BYTES, at) for fd, at in places]
            for (fd, at), page in zip(places, reversed(pages), strict=True):
                os.pwrite(fd, page, at)

    def _cut(self, files: list[Path]) -> None:
        path = self._chance.choice(files)
        os.truncate(path, path.stat().st_size // 2 + 100)

    def _remove(self, files: list[Path]) -> None:
        self._chance.choice(files).unlink()

    def _some_page(self, fd: int) -> int:
        """One that holds data, so that arenas and buckets are not hit in the middle of nowhere."""
        size = os.fstat(fd).st_size // PAGE_BYTES * PAGE_BYTES
        at = self._chance.randrange(0, size, PAGE_BYTES)
        with contextlib.suppress(OSError):
            at = os.lseek(fd, at, os.SEEK_DATA) // PAGE_BYTES * PAGE_BYTES
        return min(at, size - PAGE_BYTES)


@needs_native
@pytest.mark.parametrize(("layout", "native"), by_day(EACH_WAY, ["bucket-python", "file-native"]))
def test_files_that_are_changed_cut_or_removed_are_found_and_told(
    layout: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm = Harm(layout)
    told = watched_run(
        tmp_path, monkeypatch, "--duration=4", f"--layout={layout}", "--cpu-mem-gb=0",
        "--storage-capacity-gb=0.15", meanwhile=harm, native=native,
    )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    assert told.watch.wrong > 0
    reasons = {reason for _, reason in told.reasons}
    assert reasons <= {MISMATCH, "truncated", "vanished"}
    assert harm.done["_cut"] > 0
    if layout == "file":
        assert reasons == {MISMATCH, "truncated", "vanished"}


def test_removed_buckets_have_vanished_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(cache: Path, ended: threading.Event) -> None:
        while not ended.wait(0.3):
            for path in objects(cache):
                path.unlink(missing_ok=True)

    told = watched_run(
        tmp_path, monkeypatch, "--duration=4", "--layout=bucket", "--cpu-mem-gb=0",
        meanwhile=remove,
    )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    assert ("read", "vanished") in told.reasons
    assert {reason for _, reason in told.reasons} == {"vanished"}


# --- devices that fail and stall -------------------------------------------------------------

NO_DEVICES = why_not(NBD_TOOLS)
needs_devices = pytest.mark.skipif(NO_DEVICES is not None, reason=NO_DEVICES or "they are there")


@needs_devices
@pytest.mark.root
@needs_native
@pytest.mark.parametrize(
    ("layout", "engine", "fsync", "native"),
    [("file", "direct", "object", False), ("arena", "uring", "object", False),
     ("bucket", "mmap", "object", False), ("file", "direct", "object", True),
     ("file", "direct", "batch", True), ("arena", "direct", "object", True),
     ("bucket", "direct", "object", True), ("bucket", "direct", "batch", True),
     ("arena", "uring", "object", True)],
)  # fmt: skip
def test_a_device_that_fails_for_a_while_is_told_and_the_run_goes_on(
    layout: str, engine: str, fsync: str, native: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if engine == "uring" and uring.uring_missing() is not None:
        pytest.skip(str(uring.uring_missing()))
    with faulty_directory(0.2) as faults:

        def break_and_mend(cache: Path, ended: threading.Event) -> None:
            faults.break_()
            before = requests_ended(faults.path)
            while not ended.wait(0.5) and requests_ended(faults.path) < before + 8:
                pass
            faults.mend()

        told = watched_run(
            tmp_path, monkeypatch, "--max-requests=60",
            f"--layout={layout}", f"--io-engine={engine}", "--cpu-mem-gb=0", f"--fsync={fsync}",
            "--storage-capacity-gb=0.1", meanwhile=break_and_mend, cache=faults.path, native=native,
        )  # fmt: skip
        told.assert_nothing_wrong_was_served()
        assert {reason for _, reason in told.reasons} <= {"io-error", MISMATCH}
        assert "io-error" in {reason for _, reason in told.reasons}
        wrong = {"V22": "invalid"} if told.watch.wrong else {}
        # Mapped pages that the broken device has not taken cannot be dropped before a load.
        also = ["V1"] if engine == "mmap" else []
        names(told.own, also=also, V12="invalid", **wrong, **THROTTLED_RULES)
        assert clean(faults.path)


def requests_ended(path: Path) -> int:
    """How many the device below has answered, with an error too."""
    device = path.stat().st_dev
    told = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(told[0]) + int(told[4])


def clean(directory: Path) -> bool:
    return {path.name for path in directory.iterdir()} <= {"lost+found"}


@needs_devices
@pytest.mark.root
def test_a_device_that_hangs_for_a_while_delays_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_directory(0.2) as faults:

        def hang(cache: Path, ended: threading.Event) -> None:
            faults.pause()
            time.sleep(1)  # also if the run wants to end: it waits for the device
            faults.resume()

        told = watched_run(
            tmp_path, monkeypatch, "--max-requests=60", "--cpu-mem-gb=0",
            "--storage-capacity-gb=0.1", meanwhile=hang, cache=faults.path,
        )  # fmt: skip
        told.assert_nothing_wrong_was_served()
        assert told.own["failed_operations"] == []
        names(told.own, **THROTTLED_RULES)
        assert clean(faults.path)


@needs_devices
@pytest.mark.root
def test_requests_that_a_slow_device_does_not_serve_in_time_are_unfinished_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with throttled_directory(20_000_000, 0.2) as directory:
        told = watched_run(
            tmp_path, monkeypatch, "--duration=2", "--drain=0",
            "--cpu-mem-gb=0", "--storage-capacity-gb=0.1", cache=directory,
        )  # fmt: skip
        assert told.code == 0
        assert told.own["failed_operations"] == []
        assert told.own["requests"]["unfinished"] > 0
        assert told.own["requests"]["failed"] == 0
        names(told.own, **THROTTLED_RULES)
        assert clean(directory)


# --- a disk that fills up --------------------------------------------------------------------

NO_LOOPS = why_not(LOOP_TOOLS)


@pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there")
@pytest.mark.root
@needs_native
@pytest.mark.parametrize(("layout", "native"), by_day(EACH_WAY, ["arena-python", "file-native"]))
def test_a_disk_that_somebody_fills_is_told_by_who_needs_it(
    layout: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody but the arena, whose space was allocated when the run began."""
    with ram_directory(0.15) as disk:
        ballast = disk / "ballast"

        def fill(cache: Path, ended: threading.Event) -> None:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(MIB // 4))
            ended.wait(1.5)  # in which some write comes, also on a busy machine
            ballast.unlink()

        told = watched_run(
            tmp_path, monkeypatch, "--duration=5", f"--layout={layout}",
            "--storage-capacity-gb=0.1", "--cpu-mem-gb=0", meanwhile=fill, cache=disk,
            native=native,
        )  # fmt: skip
        told.assert_nothing_wrong_was_served()
        assert told.watch.wrong == 0
        expected = set() if layout == "arena" else {("write", "no-space")}
        assert set(told.reasons) == expected
        names(told.own, **({"V12": "invalid"} if expected else {}), **RAM_RULES)
        assert clean(disk)


# --- runs that are killed, runs that meet -----------------------------------------------------


@contextlib.contextmanager
def started(directory: Path, *flags: str) -> "Iterator[subprocess.Popen[str]]":
    process = start(directory, [*CHECKED, "--duration=60", *flags])
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_bytes(cache: Path, process: "subprocess.Popen[str]") -> None:
    """Until the run has written something that is there to be read."""
    found = False
    while not found:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
        with contextlib.suppress(FileNotFoundError):  # a copy has left
            found = any(path.stat().st_blocks for path in objects(cache))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_killed_run_left_of_any_layout_goes_with_the_next_run_and_nothing_else_does(
    layout: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    for _ in range(5):  # a kill can come when every object has just been evicted
        with started(tmp_path, f"--layout={layout}", "--cache-dir=cache") as process:
            wait_for_bytes(cache, process)
            time.sleep(0.3)
            process.kill()
            process.communicate()
        if objects(cache):
            break
    (left,) = cache.glob("kv-cache-run-*")
    assert objects(cache)
    foreign = [cache / "thesis.arena.kv", cache / "notes.txt", left / "00" / "mine.txt"]
    for path in foreign:
        path.write_text("precious")
    other = {"file": "bucket", "bucket": "arena", "arena": "file"}[layout]
    ran = run(tmp_path, *CHECKED, "--cache-dir=cache", f"--layout={other}", "--max-requests=10")
    assert ran.code == 0, ran.err
    assert ran.own["failed_operations"] == []
    assert sorted(path for path in cache.rglob("*") if path.is_file()) == sorted(foreign)
    assert {path.read_text() for path in foreign} == {"precious"}


@pytest.mark.root
def test_a_run_is_refused_a_drive_that_another_run_uses_and_leaves_its_others_untouched(
    tmp_path: Path,
) -> None:
    shared, third = tmp_path / "shared", tmp_path / "third"
    for path in (shared, third):
        path.mkdir()
    with mounted(shared, "tmpfs", "size=400m"), mounted(third, "tmpfs", "size=400m"):
        flags = ["--storage-capacity-gb=0.2", f"--cache-dir={shared}/cache"]
        with started(tmp_path, *flags) as first:
            wait_for_bytes(shared / "cache", first)
            second = run(
                tmp_path, *SMALL, f"--cache-dir={third}/cache", f"--cache-dir={shared}/cache",
                "--storage-capacity-gb=0.2", "--output=second.json",
            )  # fmt: skip
            assert second.code == 2
            assert str(worker_of(first)) in second.err
            assert list(third.iterdir()) == []
            assert not (tmp_path / "second.json").exists()
            assert first.poll() is None
            first.terminate()
            assert finish(first, tmp_path).code == 143
        assert list(shared.iterdir()) == []
