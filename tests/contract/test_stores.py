"""The laws of `tiers/base.py`, on every store."""

import fcntl
import gc
import importlib.util
import json
import os
import random
import re
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.base import Capability, Store
from kv_cache.tiers.buffers import Bytes
from kv_cache.tiers.gpu import GpuStore, TorchDevice
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.null import NullStore
from kv_cache.tiers.nvme import NvmeStore, choose_engine, layouts, uring
from kv_cache.tiers.nvme.engines import Direct
from kv_cache.tiers.nvme.layouts import FilePerObject
from kv_cache.tiers.objects import ObjectStore
from tests import s3server
from tests.covering import by_day, covering
from tests.stores import (
    BUCKET,
    BUFFER,
    CAPACITY,
    KINDS,
    MIXED_ENGINES,
    OBJECTS,
    PAYLOAD,
    PLAIN,
    POOL,
    SYNCED,
    Kind,
    borrowed,
    copy,
    descriptors_left,
    is_right,
    kept_descriptors,
    mounted,
    no_fault,
    open_descriptors,
    outcome,
    put,
    read_back,
    real_disk,
    reason,
    store_as,
    stored,
)
from tests.wrappers import Faulty

SIZES = {
    "one page": PAGE_BYTES,
    "a buffer less a page": BUFFER - PAGE_BYTES,
    "one buffer": BUFFER,
    "a buffer and a page": BUFFER + PAGE_BYTES,
    "several buffers and a part": 3 * BUFFER + 5 * PAGE_BYTES,
}


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


def torch_store() -> GpuStore:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return GpuStore([TorchDevice("cpu", 0)], CAPACITY, "torch", 1.0)


MEMORIES: dict[str, Callable[[Path], Store]] = {
    "cpu": lambda root: MemoryStore(Tier.CPU, CAPACITY),
    "emulated gpu": lambda root: MemoryStore(Tier.GPU, CAPACITY, emulated=True),
    "faulty memory": lambda root: Faulty(MemoryStore(Tier.CPU, CAPACITY), no_fault),
    "three devices": lambda root: GpuStore(
        [ArrayDevice(number) for number in range(3)], CAPACITY // 3, "array", 1.0
    ),
    "torch": lambda root: torch_store(),
}
STORES: dict[str, Callable[[Path], Store]] = {
    **{name: kind.open for name, kind in KINDS.items()},
    **MEMORIES,
    **OBJECTS,
}
NULL: dict[str, Callable[[Path], Store]] = {"null": lambda root: NullStore(Tier.NVME)}


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and where its files are, if any."""

    name: str
    store: Store
    root: Path

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def assert_empty(self) -> None:
        """No file and no space is taken but by what the layout keeps; all memory can be had."""
        if self.name in NULL:
            assert self.files == []
        elif isinstance(self.store, ObjectStore):
            assert s3server.shared().objects(self.store.client.place.prefix) == {}
        elif self.name in MEMORIES or self.kind.layout == "arena":
            drives = 1 if self.name in MEMORIES else self.kind.drives
            all_of_it = [self.store.create(copy(CAPACITY)) for _ in range(drives)]
            for sink in all_of_it:
                sink.abort()
        elif self.kind.layout == "file":
            assert self.files == []
        else:
            assert len(self.files) <= self.kind.drives, "only buckets that are being filled"
            assert [path.stat().st_blocks for path in self.files] == [0] * len(self.files)


@pytest.fixture(name="disk", scope="module")
def _disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with real_disk(tmp_path_factory.mktemp("disk")) as path:
        yield path


keys = s3server.s3_keys  # of the server behind some of the stores


@pytest.fixture(name="place")
def _place(
    request: pytest.FixtureRequest, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setattr(layouts, "BUCKET_BYTES", BUCKET)
    monkeypatch.setattr(layouts, "SHARDS", 4)  # 256 directories are slow to look through
    store = (STORES | NULL)[request.param](disk)
    if "uring" in request.param:
        uring.uring_missing()  # this thread's ring stays; a store may only read by it
    gc.disable()  # what earlier tests left in cycles is not closed meanwhile
    before = open_descriptors() - kept_descriptors(store)
    try:
        yield Place(request.param, store, disk)
        now = open_descriptors() - kept_descriptors(store)
        assert now == before, "a descriptor was not closed"
    finally:
        gc.enable()
        store.close()
        store.close()
        for path in disk.rglob("*.kv"):
            path.unlink()


FILES = [name for name in KINDS if name not in SYNCED]
"""All but those that differ in fsync alone, which is what a commit does and nothing else."""


def choices(name: str) -> tuple[str, ...]:
    """What a store is made of; a memory, an object store, and what is around another store or on
    several drives, are tried as they are."""
    kind = KINDS.get(name)
    if kind is None:
        return (name,)
    reads, writes = kind.engines
    words = (kind.layout, f"{reads} reads", f"{writes} writes", f"fsync {kind.fsync}")
    return words if name in PLAIN or name in SYNCED or name in MIXED_ENGINES else (*words, name)


def over(names: Iterable[str], **others: Mapping[str, object]) -> pytest.MarkDecorator:
    """Parametrize over stores, and over each of `others` (an argument, and its values by their
    names): a covering array of what the stores are made of and of those values."""
    cases: dict[str, tuple[object, ...]] = {}
    words: dict[str, tuple[str, ...]] = {}
    values = product(*(each.items() for each in others.values()))
    for store, chosen in product(names, values):
        name = "-".join((store, *(word for word, _ in chosen)))
        cases[name] = (store, *(value for _, value in chosen))
        words[name] = (
            *choices(store),
            *(f"{n} {word}" for n, (word, _) in zip(others, chosen, strict=True)),
        )
    return pytest.mark.parametrize(
        ("place", *others), by_day(cases, covering(words)), indirect=["place"]
    )


def by_text(*values: object) -> dict[str, object]:
    return {str(value): value for value in values}


every_store = over(STORES)
most_stores = over([*FILES, *MEMORIES, *OBJECTS])
every_file_store = over(KINDS)
most_file_stores = over(FILES)
every_memory = over(MEMORIES)
every_store_and_null = over(STORES | NULL)


def one_drive(*kinds: str) -> pytest.MarkDecorator:
    """Stores of these layouts whose files lie in one place."""
    return over(n for n in FILES if KINDS[n].drives == 1 and KINDS[n].layout in kinds)


# --- 1, 2, 4, 7: what was committed comes back ---------------------------------------------------


@over(STORES, nbytes=SIZES)
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


@most_stores
def test_the_whole_capacity_can_be_had_again_and_again(place: Place) -> None:
    """In pieces of every size: space in between is never lost."""
    for pages in (3, 43, 100, 300):
        refs = [stored(place.store, pages * PAGE_BYTES) for _ in range(300 // pages)]
        for ref in refs[::2]:
            place.store.delete(ref)
        refs = refs[1::2] + [stored(place.store, ref.nbytes) for ref in refs[::2]]
        assert all(read_back(place.store, ref) for ref in refs)
        for ref in refs:
            place.store.delete(ref)
    place.assert_empty()


@most_stores
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


@most_stores
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


@most_stores
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


@most_stores
def test_a_deleted_copy_has_vanished(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    place.store.delete(ref)
    assert reason(lambda: place.store.open(ref)) == "vanished"
    assert reason(lambda: place.store.delete(ref)) == "vanished"
    place.assert_empty()


@most_stores
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


@most_stores
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


STEPS = 50  # of each of the four threads


class Users:
    """Threads that do with a store whatever its laws allow, in an order that is chosen by chance
    and by the threads' luck; they never want more than there is."""

    def __init__(self, place: Place, seed: int) -> None:
        self.problems: list[object] = []
        self._store = place.store
        self._lock = threading.Lock()
        drives = place.kind.drives if place.name in KINDS else 1
        self._free = CAPACITY // drives  # an object must find room on the drive of its key
        self._readers: dict[CopyRef, int] = {}
        self._seed = seed

    def run(self) -> None:
        threads = [threading.Thread(target=self._guarded, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, number: int) -> None:
        chance = random.Random(self._seed * 100 + number)
        acts = [self._store_one, self._read_one, self._read_one, self._delete_one]
        try:
            for _ in range(STEPS):
                chance.choice(acts)(chance)
        except BaseException as error:  # noqa: BLE001 - fails the test
            self.problems.append(error)

    def _store_one(self, chance: random.Random) -> None:
        ref = copy(chance.choice((1, 2, 15, 16, 17, 40, 60)) * PAGE_BYTES, chance.randrange(9))
        with self._lock:
            if ref.nbytes > self._free:
                return
            self._free -= ref.nbytes
        sink = self._store.create(ref)
        fate = chance.random()
        put(sink, ref, None if fate < 0.8 else chance.randrange(ref.nbytes))
        if fate < 0.75:
            sink.commit()
        elif fate < 0.8:
            sink.commit()
            sink.abort()  # the other half of a move has failed
        else:
            sink.abort()
        with self._lock:
            if fate < 0.75:
                self._readers[ref] = 0
            else:
                self._free += ref.nbytes

    def _read_one(self, chance: random.Random) -> None:
        with self._lock:
            if not self._readers:
                return
            ref = chance.choice(list(self._readers))
            self._readers[ref] += 1
        if not read_back(self._store, ref):
            self.problems.append(ref)
        with self._lock:
            self._readers[ref] -= 1

    def _delete_one(self, chance: random.Random) -> None:
        with self._lock:
            unread = [ref for ref, readers in self._readers.items() if not readers]
            if not unread:
                return
            ref = chance.choice(unread)
            del self._readers[ref]
        self._store.delete(ref)
        with self._lock:
            self._free += ref.nbytes

    def leave(self) -> None:
        """All that is left is right, and goes."""
        for ref in self._readers:
            if not read_back(self._store, ref):
                self.problems.append(ref)
            self._store.delete(ref)


@every_store
def test_whatever_threads_do_every_byte_is_right_and_nothing_is_left(place: Place) -> None:
    users = Users(place, seed=list(STORES).index(place.name))
    users.run()
    users.leave()
    assert users.problems == []
    place.assert_empty()


# --- 5: nothing is left --------------------------------------------------------------------------


@over(STORES, upto=by_text(0, BUFFER, 3 * BUFFER))
def test_after_an_abort_nothing_is_left(place: Place, upto: int) -> None:
    ref = copy(3 * BUFFER)
    sink = place.store.create(ref)
    put(sink, ref, upto)
    sink.abort()
    assert reason(lambda: place.store.open(ref)) == "vanished"
    place.assert_empty()


@most_stores
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


@every_store
def test_a_write_that_fails_in_the_middle_leaves_nothing(place: Place) -> None:
    """The process may not write beyond a place in a file: one call is short, the next fails."""
    ref = stored(place.store, BUFFER)
    with file_size_limit(3 * BUFFER + PAGE_BYTES):
        ends = [outcome(lambda: store_as(place.store, copy(2 * BUFFER))) for _ in range(4)]
    assert set(ends) <= {"fine", "efbig"}
    assert read_back(place.store, ref)
    again = stored(place.store, 2 * BUFFER)
    assert read_back(place.store, again)


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@most_file_stores
def test_an_abort_after_somebody_removed_the_file_is_fine(place: Place) -> None:
    ref = copy(BUFFER)
    sink = place.store.create(ref)
    put(sink, ref)
    for path in place.files:
        path.unlink()
    sink.abort()
    assert reason(lambda: place.store.open(ref)) == "vanished"


@one_drive("file", "bucket")
def test_a_create_without_its_directory_is_an_error_and_leaves_nothing(place: Place) -> None:
    shards = sorted(path for path in place.root.glob("??") if not any(path.iterdir()))
    for shard in shards:
        shard.rmdir()
    ref = copy(BUFFER)
    if place.kind.layout == "file" or not place.files:
        assert reason(lambda: place.store.create(ref)) == "vanished"
        assert reason(lambda: place.store.open(ref)) == "vanished"
    for shard in shards:
        shard.mkdir()
    store_as(place.store, ref)
    assert read_back(place.store, ref)
    place.store.delete(ref)
    place.assert_empty()


@pytest.mark.parametrize("place", ["file, mmap, uring writes, no rename"], indirect=True)
def test_a_copy_is_created_once_and_the_second_try_leaves_the_first(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    assert reason(lambda: place.store.create(ref)) == "eexist"
    assert read_back(place.store, ref)
    place.store.delete(ref)


@over(KINDS, left=by_text(0, 1, 2))
def test_without_descriptors_a_create_leaves_nothing_and_an_open_nothing_open(
    place: Place, left: int
) -> None:
    ref = stored(place.store, BUFFER)
    new = [copy(40 * PAGE_BYTES) for _ in range(5)]  # a bucket is full and the next one begins
    with descriptors_left(left):
        ends = [outcome(lambda: read_back(place.store, ref))]
        ends += [outcome(lambda ref=ref: store_as(place.store, ref)) for ref in new]  # type: ignore[misc]
    assert set(ends) <= {"fine", "too-many-open-files"}
    assert read_back(place.store, ref)
    for one, end in zip(new, ends[1:], strict=True):
        if end == "fine":
            assert read_back(place.store, one)
            place.store.delete(one)
        else:
            assert reason(lambda one=one: place.store.open(one)) == "vanished"  # type: ignore[misc]
    place.store.delete(ref)
    place.assert_empty()


@every_file_store
def test_an_error_of_close_leaves_no_file_and_no_descriptor(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a network file system, where close says that an earlier write was lost."""
    ref, close = copy(BUFFER), os.close

    def failing(fd: int) -> None:
        close(fd)
        raise OSError(5, "the disk is broken")

    sink = place.store.create(ref)
    put(sink, ref)
    monkeypatch.setattr(os, "close", failing)
    ends = {outcome(sink.commit), outcome(sink.abort)}
    monkeypatch.setattr(os, "close", close)
    assert ends <= {"fine", "io-error"}
    assert reason(lambda: place.store.open(ref)) == "vanished"
    place.assert_empty()


@every_memory
def test_more_memory_than_the_ledger_can_have_promised_is_a_defect(place: Place) -> None:
    with pytest.raises(AssertionError, match="ledger"):
        place.store.create(copy(CAPACITY + PAGE_BYTES))
    place.assert_empty()


def files_in(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.root
def test_where_direct_io_is_refused_no_file_is_left(tmp_path: Path) -> None:
    with mounted(tmp_path, "ramfs"):
        with pytest.raises(PlaceError, match=r"cannot do direct I/O \(O_DIRECT is refused\)"):
            choose_engine("direct", tmp_path)
        engine, why = choose_engine("auto", tmp_path)
        assert (engine.name, why) == ("buffered", "O_DIRECT is refused")
        assert files_in(tmp_path) == []
        store = NvmeStore(FilePerObject(tmp_path), Direct(), Direct(), fsync="never")
        try:
            assert reason(lambda: store.create(copy(BUFFER))) == "einval"
        finally:
            store.close()
        assert files_in(tmp_path) == []


@pytest.mark.root
@pytest.mark.parametrize("layout", ["arena", "bucket"])
def test_a_file_system_that_cannot_do_what_a_layout_needs_is_refused(
    layout: str, tmp_path: Path
) -> None:
    if layout == "arena":
        with (
            mounted(tmp_path, "tmpfs", f"size={CAPACITY // 2}"),
            pytest.raises(PlaceError, match=r"could not be allocated .* \(no-space\); lower"),
        ):
            Kind(layout=layout, engine="buffered").open(tmp_path, refuse=True)
    else:
        with (
            mounted(tmp_path, "ramfs"),
            pytest.raises(PlaceError, match=r"cannot give back a part of a file \(enotsup\)"),
        ):
            Kind(layout=layout, engine="buffered").open(tmp_path, refuse=True)
    assert files_in(tmp_path) == []


@pytest.mark.root
def test_a_directory_that_cannot_be_written_is_refused_by_its_reason(tmp_path: Path) -> None:
    with (
        mounted(tmp_path, "tmpfs", "size=64k"),
        (tmp_path / "ballast").open("wb", buffering=0) as ballast,
    ):
        with suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
        with pytest.raises(PlaceError, match="no-space"):
            choose_engine("auto", tmp_path)


@pytest.mark.root
@most_file_stores
def test_a_full_disk_takes_no_more_and_keeps_what_it_has(place: Place, tmp_path: Path) -> None:
    with ExitStack() as ends_with:
        ends_with.enter_context(mounted(tmp_path, "tmpfs", f"size={CAPACITY + BUCKET}"))
        ballast = tmp_path / "ballast"
        store = place.kind.open(tmp_path, refuse=True, capacity=CAPACITY // place.kind.drives)
        ends_with.callback(store.close)
        with ballast.open("wb") as file:  # 19 objects fit; the arenas are there already
            left = os.statvfs(tmp_path).f_bavail * PAGE_BYTES - 10 * BUFFER
            os.posix_fallocate(file.fileno(), 0, max(PAGE_BYTES, left))
        refs, ends = [copy(BUFFER) for _ in range(22)], []
        for ref in refs:
            ends.append(outcome(lambda ref=ref: store_as(store, ref)))  # type: ignore[misc]
        assert set(ends) == {"fine", "no-space"}
        fine = [ref for ref, end in zip(refs, ends, strict=True) if end == "fine"]
        assert all(read_back(store, ref) for ref in fine)
        for ref in fine[::2]:
            store.delete(ref)
        more = [stored(store, BUFFER) for _ in fine[2::2]]  # an index has taken a little
        assert all(read_back(store, ref) for ref in fine[1::2] + more)


# --- 6: what goes wrong in the storage -----------------------------------------------------------


MISSING = by_text(1, PAGE_BYTES - 1, PAGE_BYTES, BUFFER, 2 * BUFFER)


def cut(place: Place, ref: CopyRef, missing: int) -> Path:
    """Cut off the last bytes of an object, in whatever file they lie."""
    tap = place.store.open(ref)
    last = tap.spans[-1]
    path = Path(os.readlink(f"/proc/self/fd/{last.fd}"))
    assert last.length == ref.nbytes, "the object lies in several pieces"
    tap.close()
    os.truncate(path, last.offset + last.length - missing)
    return path


@over(FILES, missing=MISSING)
def test_a_file_cut_short_is_truncated(place: Place, missing: int) -> None:
    first, ref = stored(place.store, BUFFER), stored(place.store, 2 * BUFFER)
    cut(place, ref, missing)
    assert reason(lambda: read_back(place.store, ref)) == "truncated"
    assert read_back(place.store, first)
    place.store.delete(ref)


@over(FILES, missing=MISSING)
def test_a_file_cut_short_under_a_reader_is_truncated(place: Place, missing: int) -> None:
    ref = stored(place.store, 2 * BUFFER)
    tap = place.store.open(ref)
    cut(place, ref, missing)
    with borrowed() as buffer:
        assert reason(lambda: tap.read(BUFFER, buffer.view)) == "truncated"
    tap.close()
    place.store.delete(ref)


@most_file_stores
def test_a_file_cut_short_under_a_writer_is_no_end_of_the_program(place: Place) -> None:
    """A store into a mapping beyond the end of its file is a signal that kills."""
    ref = copy(2 * BUFFER)
    sink = place.store.create(ref)
    for path in place.files:
        os.truncate(path, 0)
    assert outcome(lambda: put(sink, ref)) in ("fine", "truncated")
    sink.abort()
    assert outcome(lambda: store_as(place.store, copy(BUFFER))) in ("fine", "truncated")


@one_drive("file", "bucket")
def test_a_removed_file_has_vanished(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    for path in place.files:
        path.unlink()
    assert reason(lambda: place.store.open(ref)) == "vanished"
    assert reason(lambda: place.store.delete(ref)) == "vanished"


@one_drive("arena")
def test_a_removed_arena_is_there_as_long_as_it_is_open(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    for path in place.files:
        path.unlink()
    assert read_back(place.store, ref)
    place.store.delete(ref)
    place.assert_empty()


@most_file_stores
def test_beyond_the_end_of_an_object_in_files_is_a_defect(place: Place) -> None:
    ref, other = stored(place.store, BUFFER), copy(BUFFER)
    tap, sink = place.store.open(ref), place.store.create(other)
    with borrowed() as buffer:
        with pytest.raises(AssertionError, match="beyond"):
            tap.read(PAGE_BYTES, buffer.view)
        with pytest.raises(AssertionError, match="beyond"):
            sink.write(PAGE_BYTES, buffer.view)
        tap.close()
        with pytest.raises(AssertionError, match="after its end"):
            tap.read(0, buffer.view)
    sink.abort()
    place.store.delete(ref)


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
    "null": "null",
    "s3": "s3",
}


@every_store_and_null
def test_sinks_and_taps_name_their_engine(place: Place) -> None:
    expected = ENGINE_OF.get(place.name)
    reads, writes = (expected, expected) if expected else place.kind.engines
    ref = copy(PAGE_BYTES)
    sink = place.store.create(ref)
    put(sink, ref)
    sink.commit()
    tap = place.store.open(ref)
    assert (sink.engine, tap.engine) == (writes, reads)
    tap.close()
    place.store.delete(ref)
    said = place.store.describe()
    assert said["engine"] == reads
    assert said.get("write_engine", writes) == writes
    assert said["emulated"] is (place.name == "emulated gpu")
    assert json.loads(json.dumps(said)) == said


@every_store_and_null
def test_capabilities_are_declared(place: Place) -> None:
    has, files = place.store.capabilities, KINDS.get(place.name)
    direct = files is not None and set(files.engines) <= {"direct", "uring"}
    assert (Capability.DATA in has) is (place.name != "null")
    assert (Capability.DIRECT in has) is direct
    assert (Capability.DURABLE in has) is (files is not None and files.fsync == "object")
    assert (Capability.EMULATED in has) is (place.name == "emulated gpu")


@most_file_stores
def test_direct_engines_go_past_the_page_cache_and_the_others_do_not(place: Place) -> None:
    ref = stored(place.store, BUFFER)
    tap = place.store.open(ref)
    flags = {fcntl.fcntl(span.fd, fcntl.F_GETFL) & os.O_DIRECT for span in tap.spans}
    assert flags == {os.O_DIRECT if tap.engine in ("direct", "uring") else 0}
    tap.close()
    place.store.delete(ref)


@most_file_stores
def test_no_key_becomes_part_of_a_path_and_files_are_private(place: Place) -> None:
    """And whoever owns the directory finds them by one pattern."""
    refs = [stored(place.store, 60 * PAGE_BYTES) for _ in range(2)]  # one bucket is full
    assert place.files
    for path in place.files:
        assert re.fullmatch(
            r"[0-9a-f]{2}/[0-9a-f]{16}(\.arena|\.bucket|\.meta)?\.kv",
            "/".join(path.parts[-2:]),
        )
        assert path.stat().st_mode & 0o777 == 0o600
    for ref in refs:
        place.store.delete(ref)


# --- 9: metadata, and where the bytes are ---------------------------------------------------------

CREATED = {"file": ["create"], "arena": ["allocate"], "bucket": ["allocate"]}
COMMITTED = {"file": ["close", "rename"], "arena": [], "bucket": []}


@every_file_store
def test_operations_on_metadata_are_listed_in_their_order(place: Place) -> None:
    kind = place.kind
    for _ in range(kind.drives):
        place.store.delete(stored(place.store, PAGE_BYTES))
    ref = copy(BUFFER)
    sink = place.store.create(ref)
    expected = CREATED[kind.layout]
    if kind.engines[1] == "mmap" and kind.layout == "file":
        expected = [*expected, "allocate"]
    found = [step.name for step in sink.steps]
    if kind.layout == "bucket" and kind.drives > 1:
        found = [name for name in found if name != "create"]  # the first on its drive
    assert found == expected
    before = len(sink.steps)
    put(sink, ref)
    sink.commit()
    expected = ["fsync"] * (kind.fsync == "object") + COMMITTED[kind.layout]
    if not kind.rename:
        expected.remove("rename")
    assert [step.name for step in sink.steps][before:] == expected
    tap = place.store.open(ref)
    opened = [] if kind.layout == "arena" else ["open"]
    assert [step.name for step in tap.steps] == opened
    tap.close()
    closed = [] if kind.layout == "arena" else ["close"]
    assert [step.name for step in tap.steps] == opened + closed
    assert all(step.duration_ns > 0 for step in (*sink.steps, *tap.steps))
    place.store.delete(ref)


@most_file_stores
def test_spans_say_where_on_files_the_bytes_are(place: Place) -> None:
    apart = [stored(place.store, BUFFER) for _ in range(6)]
    for one in apart[::2]:
        place.store.delete(one)
    ref = stored(place.store, 5 * BUFFER)  # in an arena, in several pieces
    tap = place.store.open(ref)
    assert sum(span.length for span in tap.spans) == ref.nbytes
    found = bytearray()
    for span in tap.spans:
        path = Path(os.readlink(f"/proc/self/fd/{span.fd}"))
        with path.open("rb") as file:
            file.seek(span.offset)
            found += file.read(span.length)
    with borrowed() as buffer:
        for offset in range(0, ref.nbytes, BUFFER):
            tap.read(offset, buffer.view)
            assert buffer.view == found[offset : offset + BUFFER]
    tap.close()
    assert list(tap.spans) == []
    for one in (*apart[1::2], ref):
        place.store.delete(one)


def bytes_read_from_devices() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


@pytest.mark.parametrize("place", [n for n in SYNCED if n.endswith("object")], indirect=True)
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


@most_stores
def test_a_second_close_never_closes_what_somebody_else_opened_since(place: Place) -> None:
    ref = stored(place.store, PAGE_BYTES)
    tap, sink = place.store.open(ref), place.store.create(copy(PAGE_BYTES))
    tap.close()
    sink.abort()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    for again in (tap.close, sink.abort, sink.commit):
        with suppress(StoreError, ValueError, KeyError):
            again()
    for other in others:
        os.close(other)  # fails where it was closed before
    assert read_back(place.store, ref)
    place.store.delete(ref)


@pytest.mark.parametrize(
    "place", [name for name in STORES if name not in (*MEMORIES, *OBJECTS)], indirect=True
)
def test_a_closed_store_opens_nothing_and_leaves_its_files(place: Place) -> None:
    ref = stored(place.store, PAGE_BYTES)
    place.store.close()
    assert len(place.files) >= 1  # whose they are removes them
    with pytest.raises((StoreError, KeyError)):
        place.store.open(ref)


@every_memory
def test_a_closed_memory_gives_nothing_away(place: Place) -> None:
    ref = stored(place.store, PAGE_BYTES)
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
