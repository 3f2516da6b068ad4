"""The laws of `tiers/base.py`, on every store."""

import importlib.util
import itertools
import json
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, PAGE_BYTES
from kv_cache.tiers.base import Capability, Sink, Store, Tap
from kv_cache.tiers.buffers import Buffer, BufferPool, Bytes
from kv_cache.tiers.gpu import GpuStore, TorchDevice
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.null import NullStore
from kv_cache.tiers.nvme import ENGINES, FileStore, choose_engine
from kv_cache.tiers.payload import Payload
from kv_cache.tiers.wrappers import Faulty

BUFFER = 64 * KIB
CAPACITY = 300 * PAGE_BYTES  # of the stores in memory
SIZES = {
    "one page": PAGE_BYTES,
    "a buffer less a page": BUFFER - PAGE_BYTES,
    "one buffer": BUFFER,
    "a buffer and a page": BUFFER + PAGE_BYTES,
    "several buffers and a part": 3 * BUFFER + 5 * PAGE_BYTES,
}
PAYLOAD = Payload(Seed(1), BUFFER)
POOL = BufferPool(40, BUFFER)
COPY_IDS = itertools.count(0xFA)


class ArrayDevice:
    """A GPU made of a numpy array, which knows its bounds and what was pinned."""

    def __init__(self, number: int, free: int = 1 << 40) -> None:
        self.name = f"array-{number}"
        self.memory: Bytes | None = None
        self.pinned: list[int] = []
        self._free = free

    def free_bytes(self) -> int:
        return self._free

    def allocate(self, nbytes: int) -> None:
        self.memory = np.full(nbytes, 0xA5, np.uint8)

    def pin(self, memory: Bytes) -> None:
        self.pinned.append(memory.ctypes.data)

    def unpin(self, memory: Bytes) -> None:
        self.pinned.remove(memory.ctypes.data)

    def upload(self, at: int, data: memoryview) -> None:
        self._place(at, len(data))[:] = np.frombuffer(data, np.uint8)

    def download(self, at: int, into: memoryview) -> None:
        np.frombuffer(into, np.uint8)[:] = self._place(at, len(into))

    def release(self) -> None:
        self.memory = None

    def _place(self, at: int, nbytes: int) -> Bytes:
        assert self.memory is not None
        assert 0 <= at < at + nbytes <= len(self.memory), "beyond the device's memory"
        return self.memory[at : at + nbytes]


def file_store(root: Path, engine: str, *, fsync: bool) -> FileStore:
    try:
        chosen, note = choose_engine(engine, root)
    except PlaceError as refused:
        pytest.skip(str(refused))
    return FileStore(root, chosen, fsync=fsync, note=note)


def torch_store() -> GpuStore:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return GpuStore([TorchDevice("cpu", 0)], CAPACITY, "torch", 1.0)


def no_fault(kind: OpKind, ref: CopyRef) -> str | None:
    return None


FILES: dict[str, Callable[[Path], Store]] = {
    "direct": lambda root: file_store(root, "direct", fsync=False),
    "direct, fsync": lambda root: file_store(root, "direct", fsync=True),
    "mmap": lambda root: file_store(root, "mmap", fsync=False),
    "mmap, fsync": lambda root: file_store(root, "mmap", fsync=True),
    "buffered": lambda root: file_store(root, "buffered", fsync=False),
    "buffered, fsync": lambda root: file_store(root, "buffered", fsync=True),
    "faulty files": lambda root: Faulty(file_store(root, "buffered", fsync=False), no_fault),
}
MEMORIES: dict[str, Callable[[Path], Store]] = {
    "cpu": lambda root: MemoryStore(Tier.CPU, CAPACITY),
    "emulated gpu": lambda root: MemoryStore(Tier.GPU, CAPACITY, emulated=True),
    "faulty memory": lambda root: Faulty(MemoryStore(Tier.CPU, CAPACITY), no_fault),
    "three devices": lambda root: GpuStore(
        [ArrayDevice(number) for number in range(3)], CAPACITY // 3, "array", 1.0
    ),
    "torch": lambda root: torch_store(),
}
STORES = FILES | MEMORIES
NULL: dict[str, Callable[[Path], Store]] = {"null": lambda root: NullStore(Tier.NVME)}


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and where its files are, if any."""

    name: str
    store: Store
    root: Path

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def assert_empty(self) -> None:
        """No file is left, and all memory can be had."""
        assert self.files == []
        if self.name in MEMORIES:
            self.store.create(copy(CAPACITY)).abort()


@pytest.fixture(name="place")
def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    make = (STORES | NULL)[request.param]
    store = make(tmp_path)
    descriptors = open_descriptors()
    yield Place(request.param, store, tmp_path)
    assert open_descriptors() == descriptors, "a descriptor was not closed"
    store.close()
    store.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


every_store = pytest.mark.parametrize("place", STORES, indirect=True)
every_file_store = pytest.mark.parametrize("place", FILES, indirect=True)
every_memory = pytest.mark.parametrize("place", MEMORIES, indirect=True)
every_store_and_null = pytest.mark.parametrize("place", STORES | NULL, indirect=True)
every_size = pytest.mark.parametrize("nbytes", SIZES.values(), ids=SIZES)


def copy(nbytes: int, version: int = 0) -> CopyRef:
    number = next(COPY_IDS)
    return CopyRef(number, content_key(number), Tier.NVME, nbytes, version)


@contextmanager
def borrowed() -> Iterator[Buffer]:
    buffer = POOL.take()
    try:
        yield buffer
    finally:
        buffer.filled_pages = 0  # what was read into it is not the payload's
        POOL.give(buffer)


def put(sink: Sink, ref: CopyRef, upto: int | None = None) -> None:
    """Write the first `upto` bytes of the copy (or all), buffer by buffer."""
    for offset in range(0, ref.nbytes if upto is None else upto, BUFFER):
        n = min(BUFFER, ref.nbytes - offset)
        with borrowed() as buffer:
            PAYLOAD.stamp(buffer, ref, offset, n)
            sink.write(offset, buffer.view[:n])


def is_right(tap: Tap, ref: CopyRef) -> bool:
    right = []
    for offset in range(0, ref.nbytes, BUFFER):
        n = min(BUFFER, ref.nbytes - offset)
        with borrowed() as buffer:
            buffer.array[:] = 0x3C
            tap.read(offset, buffer.view[:n])
            right.append(PAYLOAD.matches(buffer, ref, offset, n, full=True))
            right.append(bool((buffer.array[n:] == 0x3C).all()))
    return all(right)


def stored(store: Store, nbytes: int) -> CopyRef:
    ref = copy(nbytes)
    sink = store.create(ref)
    put(sink, ref)
    sink.commit()
    return ref


def read_back(store: Store, ref: CopyRef) -> bool:
    tap = store.open(ref)
    try:
        return is_right(tap, ref)
    finally:
        tap.close()


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as failed:
        call()
    return failed.value.reason


def outcome(call: Callable[[], object]) -> str:
    """`fine`, or the reason why not."""
    try:
        call()
    except StoreError as error:
        return error.reason
    return "fine"


# --- 1, 2, 4, 7: what was committed comes back ---------------------------------------------------


@every_store
@every_size
def test_what_was_written_comes_back(place: Place, nbytes: int) -> None:
    ref = stored(place.store, nbytes)
    assert read_back(place.store, ref)
    assert read_back(place.store, ref)
    place.store.delete(ref)
    place.assert_empty()


@every_store
def test_objects_keep_apart_through_deletions_between_them(place: Place) -> None:
    sizes = [5, 1, 17, 33, 2, 40, 7, 16]
    living = [stored(place.store, pages * PAGE_BYTES) for pages in sizes]
    for ref in living[::2]:
        place.store.delete(ref)
    living = living[1::2] + [stored(place.store, pages * PAGE_BYTES) for pages in (50, 3, 30)]
    assert all(read_back(place.store, ref) for ref in living)
    for ref in living:
        place.store.delete(ref)
    place.assert_empty()


@every_store
def test_any_pages_can_be_read_in_any_order(place: Place) -> None:
    ref = stored(place.store, 2 * BUFFER)
    tap = place.store.open(ref)
    with borrowed() as whole, borrowed() as part:
        for offset in (BUFFER, 0):
            tap.read(offset, whole.view)
            for page, pages in ((3, 1), (9, 7), (0, 16), (15, 1)):
                start, end = page * PAGE_BYTES, (page + pages) * PAGE_BYTES
                tap.read(offset + start, part.view[: end - start])
                assert part.view[: end - start] == whole.view[start:end]
    tap.close()
    place.store.delete(ref)


@every_store
def test_buffers_can_be_written_in_any_order(place: Place) -> None:
    ref = copy(3 * BUFFER)
    sink = place.store.create(ref)
    for offset in (2 * BUFFER, 0, BUFFER):
        with borrowed() as buffer:
            PAYLOAD.stamp(buffer, ref, offset, BUFFER)
            sink.write(offset, buffer.view)
    sink.commit()
    assert read_back(place.store, ref)
    place.store.delete(ref)


@every_store
def test_a_copy_has_many_readers(place: Place) -> None:
    ref = stored(place.store, BUFFER + PAGE_BYTES)
    taps = [place.store.open(ref) for _ in range(3)]
    assert is_right(taps[1], ref)
    taps[1].close()
    assert is_right(taps[0], ref)
    assert is_right(taps[2], ref)
    taps[2].close()
    taps[0].close()
    place.store.delete(ref)


@every_store
def test_a_deleted_copy_has_vanished(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    place.store.delete(ref)
    assert reason(lambda: place.store.open(ref)) == "vanished"
    assert reason(lambda: place.store.delete(ref)) == "vanished"
    place.assert_empty()


@every_store
def test_a_copy_that_never_was_has_vanished(place: Place) -> None:
    assert reason(lambda: place.store.open(copy(PAGE_BYTES))) == "vanished"
    assert reason(lambda: place.store.delete(copy(PAGE_BYTES))) == "vanished"


# --- 3: different sinks and taps at the same time ------------------------------------------------


@every_store
def test_threads_work_on_different_copies_at_the_same_time(place: Place) -> None:
    problems: list[object] = []

    def work(me: int) -> None:
        try:
            for turn in range(6):
                ref = copy((1 + (5 * me + 7 * turn) % 33) * PAGE_BYTES, version=turn)
                sink = place.store.create(ref)
                put(sink, ref)
                if turn % 3 == 2:
                    sink.abort()
                    continue
                sink.commit()
                if not read_back(place.store, ref):
                    problems.append(ref)
                place.store.delete(ref)
        except BaseException as error:  # noqa: BLE001 - fails the test below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    place.assert_empty()


@every_store
def test_threads_read_one_copy_at_the_same_time(place: Place) -> None:
    ref = stored(place.store, 2 * BUFFER + PAGE_BYTES)
    right: list[bool] = []
    threads = [
        threading.Thread(target=lambda: right.append(read_back(place.store, ref))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 8
    place.store.delete(ref)


# --- 5: nothing is left --------------------------------------------------------------------------


@every_store
@pytest.mark.parametrize("upto", [0, BUFFER, 3 * BUFFER])
def test_after_an_abort_nothing_is_left(place: Place, upto: int) -> None:
    ref = copy(3 * BUFFER)
    sink = place.store.create(ref)
    put(sink, ref, upto)
    sink.abort()
    assert reason(lambda: place.store.open(ref)) == "vanished"
    place.assert_empty()


@every_store
def test_an_abort_takes_back_what_was_committed(place: Place) -> None:
    ref = copy(BUFFER)
    sink = place.store.create(ref)
    put(sink, ref)
    sink.commit()
    sink.abort()
    assert reason(lambda: place.store.open(ref)) == "vanished"
    place.assert_empty()


@every_store
def test_after_a_failed_commit_an_abort_leaves_nothing(place: Place) -> None:
    faulty = Faulty(place.store, lambda kind, ref: "io-error" if kind is OpKind.WRITE else None)
    ref = copy(BUFFER)
    sink = faulty.create(ref)
    put(sink, ref)
    assert reason(sink.commit) == "io-error"
    sink.abort()
    assert reason(lambda: faulty.open(ref)) == "vanished"
    place.assert_empty()


@every_file_store
def test_an_abort_after_somebody_removed_the_file_is_fine(place: Place) -> None:
    sink = place.store.create(copy(BUFFER))
    place.files[0].unlink()
    sink.abort()
    place.assert_empty()


@every_file_store
def test_a_create_without_its_directory_is_an_error_and_leaves_nothing(place: Place) -> None:
    ref = copy(BUFFER)
    (place.root / f"{ref.copy_id % 256:02x}").rmdir()
    assert reason(lambda: place.store.create(ref)) == "vanished"
    place.assert_empty()


@every_file_store
def test_a_copy_is_created_once_and_the_second_try_leaves_the_first(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    assert reason(lambda: place.store.create(ref)) == "eexist"
    assert read_back(place.store, ref)
    place.store.delete(ref)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let the process open only `count` more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probes: list[int] = []
    while len(probes) < count + 1:  # numbers below the limit may be free in the middle
        probes.append(os.open("/dev/null", os.O_RDONLY))
    for probe in probes:
        os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(probes), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@every_file_store
@pytest.mark.parametrize("left", [0, 1])
def test_without_descriptors_a_create_leaves_nothing_and_an_open_nothing_open(
    place: Place, left: int
) -> None:
    ref, new = stored(place.store, BUFFER), copy(BUFFER)
    with descriptors_left(left):
        opened = outcome(lambda: place.store.open(ref).close())
        created = outcome(lambda: place.store.create(new).abort())
    assert {opened, created} <= {"fine", "too-many-open-files"}
    assert left or "fine" not in (opened, created)
    assert len(place.files) == 1
    assert read_back(place.store, ref)
    place.store.delete(ref)


@every_memory
def test_more_memory_than_the_ledger_can_have_promised_is_a_defect(place: Place) -> None:
    with pytest.raises(AssertionError, match="ledger"):
        place.store.create(copy(CAPACITY + PAGE_BYTES))
    place.assert_empty()


@pytest.mark.root
def test_where_direct_io_is_refused_no_file_is_left(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "ramfs", "kv-test", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system without direct I/O: {mounted.stderr.decode()}")
    try:
        with pytest.raises(PlaceError, match=r"cannot do direct I/O \(einval\)"):
            choose_engine("direct", tmp_path)
        engine, why = choose_engine("auto", tmp_path)
        assert (engine.name, why) == ("buffered", "einval")
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        store = FileStore(tmp_path, ENGINES["direct"](), fsync=False)
        assert reason(lambda: store.create(copy(BUFFER))) == "einval"
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# --- 6: what goes wrong in the storage -----------------------------------------------------------


@every_file_store
@pytest.mark.parametrize("missing", [1, PAGE_BYTES - 1, PAGE_BYTES, BUFFER, 2 * BUFFER])
def test_a_file_cut_short_is_truncated(place: Place, missing: int) -> None:
    ref = stored(place.store, 2 * BUFFER)
    os.truncate(place.files[0], ref.nbytes - missing)
    assert reason(lambda: place.store.open(ref)) == "truncated"
    place.store.delete(ref)


@every_file_store
@pytest.mark.parametrize("missing", [1, PAGE_BYTES - 1, PAGE_BYTES, BUFFER, 2 * BUFFER])
def test_a_file_cut_short_under_a_reader_is_truncated(place: Place, missing: int) -> None:
    ref = stored(place.store, 2 * BUFFER)
    tap = place.store.open(ref)
    os.truncate(place.files[0], ref.nbytes - missing)
    with borrowed() as buffer:
        assert reason(lambda: tap.read(BUFFER, buffer.view)) == "truncated"
    tap.close()
    place.store.delete(ref)


@every_file_store
def test_a_removed_file_has_vanished(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    place.files[0].unlink()
    assert reason(lambda: place.store.open(ref)) == "vanished"
    assert reason(lambda: place.store.delete(ref)) == "vanished"


@every_memory
def test_beyond_the_end_of_an_object_nothing_is_moved(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    tap, sink = place.store.open(ref), place.store.create(copy(BUFFER))
    with borrowed() as buffer:
        assert reason(lambda: tap.read(PAGE_BYTES, buffer.view)) == "short-read"
        assert reason(lambda: sink.write(PAGE_BYTES, buffer.view)) == "short-read"
    tap.close()
    sink.abort()
    assert read_back(place.store, ref)
    place.store.delete(ref)


# --- 8: engines, and what else a store says ------------------------------------------------------

ENGINE_OF = {
    "cpu": "ram",
    "faulty memory": "ram",
    "emulated gpu": "emulated-in-ram",
    "three devices": "cuda",
    "torch": "cuda",
    "faulty files": "buffered",
    "null": "null",
}


@every_store_and_null
def test_sinks_and_taps_name_their_engine(place: Place) -> None:
    expected = ENGINE_OF.get(place.name) or place.name.split(",")[0]
    ref = copy(PAGE_BYTES)
    sink = place.store.create(ref)
    put(sink, ref)
    sink.commit()
    tap = place.store.open(ref)
    assert (sink.engine, tap.engine) == (expected, expected)
    tap.close()
    place.store.delete(ref)
    said = place.store.describe()
    assert said["engine"] == expected
    assert said["emulated"] is (place.name == "emulated gpu")
    assert json.loads(json.dumps(said)) == said


@every_store_and_null
def test_capabilities_are_declared(place: Place) -> None:
    has = place.store.capabilities
    assert (Capability.DATA in has) is (place.name != "null")
    assert (Capability.DIRECT in has) is place.name.startswith("direct")
    assert (Capability.DURABLE in has) is place.name.endswith("fsync")
    assert (Capability.EMULATED in has) is (place.name == "emulated gpu")


@every_file_store
def test_no_key_becomes_part_of_a_path_and_files_are_private(place: Place) -> None:
    ref = stored(place.store, PAGE_BYTES)
    (path,) = place.files
    assert str(path.relative_to(place.root)) == f"{ref.copy_id % 256:02x}/{ref.copy_id:016x}.kv"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == ref.nbytes
    place.store.delete(ref)


def bytes_read_from_devices() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


@pytest.mark.parametrize("place", [name for name in FILES if "fsync" in name], indirect=True)
def test_a_read_comes_from_the_device_and_not_from_memory(place: Place) -> None:
    if not os.major(place.root.stat().st_dev):
        pytest.skip(f"{place.root} is on a file system without a block device of its own")
    ref = stored(place.store, 4 * BUFFER)
    for _ in range(2):
        before = bytes_read_from_devices()
        assert read_back(place.store, ref)
        assert bytes_read_from_devices() - before >= ref.nbytes
    place.store.delete(ref)


# --- ends, and uses beyond them ------------------------------------------------------------------


@every_store
def test_a_second_close_never_closes_what_somebody_else_opened_since(place: Place) -> None:
    ref = stored(place.store, PAGE_BYTES)
    tap, sink = place.store.open(ref), place.store.create(copy(PAGE_BYTES))
    tap.close()
    sink.abort()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    for again in (tap.close, sink.abort, sink.commit):
        with suppress(StoreError, ValueError):
            again()
    for other in others:
        os.close(other)  # fails where it was closed before
    assert read_back(place.store, ref)
    place.store.delete(ref)


@every_store
def test_a_closed_store_gives_nothing_away(place: Place) -> None:
    ref = stored(place.store, PAGE_BYTES)
    if place.name in FILES:
        place.store.close()
        assert len(place.files) == 1  # whose they are removes them
        place.store.delete(ref)
        return
    tap = place.store.open(ref)
    place.store.close()
    with (
        borrowed() as buffer,
        pytest.raises((ValueError, AssertionError, TypeError)),
    ):
        tap.read(0, buffer.view[:PAGE_BYTES])


# --- the null store ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", NULL, indirect=True)
def test_the_null_store_takes_all_keeps_nothing_and_fails_never(place: Place) -> None:
    ref = stored(place.store, 3 * BUFFER)
    tap = place.store.open(ref)
    with borrowed() as buffer:
        buffer.array[:] = 0x77
        tap.read(0, buffer.view)
        assert (buffer.array == 0x77).all()
    tap.close()
    place.store.create(copy(BUFFER)).abort()
    for _ in range(2):
        place.store.delete(ref)
    place.assert_empty()


# --- several devices -----------------------------------------------------------------------------


def test_an_object_may_lie_on_several_devices() -> None:
    devices = [ArrayDevice(number) for number in range(3)]
    store = GpuStore(devices, 20 * PAGE_BYTES, "array", 1.0)
    first, second = (stored(store, pages * PAGE_BYTES) for pages in (15, 10))
    across = stored(store, 35 * PAGE_BYTES)
    assert all(read_back(store, ref) for ref in (first, second, across))
    store.delete(second)
    pieces = stored(store, 10 * PAGE_BYTES)
    assert all(read_back(store, ref) for ref in (first, pieces, across))
    memories = [device.memory for device in devices]
    assert all(memory is not None and (memory != 0xA5).any() for memory in memories)


def test_memory_is_pinned_once_and_given_back_with_the_devices() -> None:
    devices = [ArrayDevice(number) for number in range(2)]
    store = GpuStore(devices, 4 * PAGE_BYTES, "array", 1.0)
    assert store.describe()["pinned_staging"] is False
    store.pin(POOL.memory)
    assert [device.pinned for device in devices] == [[POOL.memory.ctypes.data], []]
    assert store.describe() == {
        "engine": "cuda",
        "library": "array",
        "devices": ["array-0", "array-1"],
        "capacity_bytes": 8 * PAGE_BYTES,
        "pinned_staging": True,
        "emulated": False,
    }
    store.close()
    assert [device.pinned for device in devices] == [[], []]
    assert [device.memory for device in devices] == [None, None]


def test_more_than_the_fraction_of_a_devices_free_memory_is_refused_before_any_is_taken() -> None:
    devices = [ArrayDevice(0), ArrayDevice(1, free=10 * PAGE_BYTES)]
    with pytest.raises(PlaceError, match=r"32 KiB are wanted on GPU 1, .* 0.75 .* is 30 KiB"):
        GpuStore(devices, 8 * PAGE_BYTES, "array", 0.75)
    assert [device.memory for device in devices] == [None, None]
