"""What only one layout, engine or wrapper of storage does: buckets, arenas, batches of fsync,
several drives, rings."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kv_cache.bench.probes.pagecache import page_states
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import MIB, PAGE_BYTES
from kv_cache.tiers import native
from kv_cache.tiers.base import Span
from kv_cache.tiers.buffers import aligned_bytes
from kv_cache.tiers.nvme import NvmeStore, Striped, layouts, open_storage, uring
from kv_cache.tiers.nvme.engines import ENGINES
from tests.stores import (
    BUCKET,
    BUFFER,
    CAPACITY,
    Kind,
    copy,
    descriptors_left,
    mounted,
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

NO_URING = uring.uring_missing()
needs_uring = pytest.mark.skipif(NO_URING is not None, reason=NO_URING or "io_uring is here")
HALF = BUCKET // 2


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(layouts, "BUCKET_BYTES", BUCKET)
    monkeypatch.setattr(layouts, "SHARDS", 4)
    with real_disk(tmp_path) as path:
        yield path


@pytest.fixture(name="store")
def _store(root: Path) -> Iterator[NvmeStore]:
    """Buckets for two objects of `HALF`."""
    store = open_storage(root, capacity_bytes=CAPACITY, layout="bucket", engine="direct")
    yield store
    store.close()


def names(root: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in root.rglob("*.kv"))


def taken(root: Path) -> int:
    """In halves of a bucket: the file system's own blocks are counted too."""
    blocks = sum(path.stat().st_blocks for path in root.rglob("*.bucket.kv"))
    return round(blocks * 512 / HALF)


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def ends_of(act: Callable[[CopyRef], object], refs: Sequence[CopyRef]) -> list[str]:
    """What happens when as many threads do this at once."""
    ends: list[str] = []
    threads = [
        threading.Thread(target=lambda ref=ref: ends.append(outcome(lambda: act(ref))))
        for ref in refs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


# --- objects that share a file ---------------------------------------------------------------


@pytest.mark.parametrize("engine", ["mmap", "buffered"])
@pytest.mark.parametrize("layout", ["arena", "bucket"])
def test_a_load_brings_no_other_object_into_the_page_cache(
    tmp_path: Path, layout: str, engine: str
) -> None:
    """Whose own load would then ask no device."""
    with real_disk(tmp_path) as root:
        store = open_storage(
            root, capacity_bytes=CAPACITY, layout=layout, engine=engine, fsync="object"
        )
        refs = [stored(store, 8 * PAGE_BYTES) for _ in range(5)]
        (file,) = (path for path in root.rglob("*.kv") if "meta" not in path.name)
        with file.open("rb") as data:
            os.sync()
            os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert read_back(store, refs[2])
            cached = page_states(data.fileno(), 0, CAPACITY)
        store.close()
    if cached is None:
        pytest.skip("no cachestat(2) to be trusted here")
    assert cached.cached == 8


# --- buckets -------------------------------------------------------------------------------


def test_a_full_bucket_has_an_index_beside_it_and_both_go_with_its_last_object(
    root: Path, store: NvmeStore
) -> None:
    first, second = (stored(store, HALF) for _ in range(2))
    assert names(root) == [".bucket.kv"]
    third = stored(store, HALF)
    assert names(root) == [".bucket.kv", ".meta.kv", "1.bucket.kv"]
    (index,) = root.rglob("*.meta.kv")
    assert json.loads(index.read_bytes()) == [
        {"key": ref.key.hex(), "copy_id": ref.copy_id, "offset": at, "bytes": HALF}
        for ref, at in ((first, 0), (second, HALF))
    ]
    store.delete(first)
    assert (taken(root), read_back(store, second)) == (2, True)
    store.delete(second)
    assert names(root) == ["1.bucket.kv"]
    store.delete(third)
    assert (names(root), taken(root)) == (["1.bucket.kv"], 0)


def test_a_bucket_takes_so_many_objects_and_one_that_is_larger_has_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch, store: NvmeStore
) -> None:
    monkeypatch.setattr(layouts, "BUCKET_OBJECTS", 3)
    refs = [stored(store, PAGE_BYTES) for _ in range(7)]
    assert store.describe()["buckets"] == 3
    refs += [stored(store, size) for size in (PAGE_BYTES, 2 * BUCKET, PAGE_BYTES)]
    assert store.describe()["buckets"] == 5
    assert all(read_back(store, ref) for ref in refs)


def test_a_bucket_that_fills_while_it_is_written_is_completed_by_its_last_writer(
    root: Path, store: NvmeStore
) -> None:
    refs = [copy(HALF) for _ in range(3)]
    sinks = [store.create(ref) for ref in refs]
    assert names(root) == [".bucket.kv", "1.bucket.kv"]
    for sink, ref in zip(sinks, refs, strict=True):
        put(sink, ref)
    sinks[0].commit()
    store.delete(refs[0])  # all that is there, but it is not all that comes
    assert names(root) == [".bucket.kv", "1.bucket.kv"]
    sinks[1].commit()
    assert names(root) == [".bucket.kv", ".meta.kv", "1.bucket.kv"]
    assert read_back(store, refs[1])
    sinks[2].commit()


@pytest.mark.parametrize("deleted", [True, False])
def test_a_full_bucket_whose_writers_all_give_up_goes(
    root: Path, store: NvmeStore, deleted: bool
) -> None:
    if deleted:
        sinks = [store.create(copy(HALF))]
        store.delete(stored(store, HALF))
    else:
        sinks = [store.create(copy(HALF)) for _ in range(2)]
    last = stored(store, HALF)
    for sink in sinks:
        sink.abort()
    assert names(root) == ["1.bucket.kv"]
    assert read_back(store, last)


def test_deleting_the_last_two_objects_of_a_bucket_at_once_succeeds_for_both(
    root: Path, store: NvmeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has left the index and has not yet punched its hole when the other removes the file."""
    first, second = (stored(store, HALF) for _ in range(2))
    stored(store, HALF)
    punch, ends = layouts._punch_by_name, []

    def overtaken(root: layouts.Root, name: str, offset: int, nbytes: int) -> None:
        if offset == 0:
            in_thread(lambda: ends.append(outcome(lambda: store.delete(second))))
        punch(root, name, offset, nbytes)

    monkeypatch.setattr(layouts, "_punch_by_name", overtaken)
    ends.append(outcome(lambda: store.delete(first)))
    assert ends == ["fine", "fine"]
    assert names(root) == ["1.bucket.kv"]


def test_a_bucket_that_fills_while_its_objects_are_deleted_goes(
    root: Path, store: NvmeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [stored(store, HALF) for _ in range(2)]
    punch, ends = layouts._punch_by_name, []

    def overtaken(root: layouts.Root, name: str, offset: int, nbytes: int) -> None:
        if offset:
            in_thread(lambda: ends.append(outcome(lambda: stored(store, HALF))))
        punch(root, name, offset, nbytes)

    monkeypatch.setattr(layouts, "_punch_by_name", overtaken)
    for ref in refs:
        ends += ends_of(store.delete, [ref])
    assert ends == ["fine", "fine", "fine"]
    assert names(root) == ["1.bucket.kv"]


def test_threads_that_empty_buckets_together_leave_none(root: Path, store: NvmeStore) -> None:
    for _ in range(20):
        refs = [stored(store, 20 * PAGE_BYTES) for _ in range(15)]
        assert set(ends_of(store.delete, refs)) == {"fine"}
        assert taken(root) == 0
        assert len(names(root)) == 1


@pytest.mark.root
@pytest.mark.parametrize("gives_up", [True, False])
def test_a_bucket_whose_index_has_no_room_keeps_its_other_objects(
    gives_up: bool, root: Path
) -> None:
    disk = root / "disk"
    disk.mkdir()
    with mounted(disk, "tmpfs", "size=8m,nr_inodes=64"):
        store = open_storage(disk, capacity_bytes=CAPACITY, layout="bucket", engine="direct")
        first, second = stored(store, HALF), copy(HALF)
        sink = store.create(second)
        put(sink, second)
        third = stored(store, HALF)
        ballast = no_inodes_left(disk)
        if not gives_up:
            assert reason(sink.commit) == "no-space"
        assert outcome(sink.abort) == ("no-space" if gives_up else "fine")
        assert reason(lambda: store.open(second)) == "vanished"
        assert taken(disk) == 2
        assert all(read_back(store, ref) for ref in (first, third))
        for path in ballast:
            path.unlink()
        store.delete(first)
        assert names(disk) == ["1.bucket.kv"]
        fourth = stored(store, HALF)
        assert all(read_back(store, ref) for ref in (third, fourth))
        store.close()


def no_inodes_left(disk: Path) -> list[Path]:
    ballast = []
    try:
        for number in range(1000):
            path = disk / f"ballast-{number}"
            path.touch()
            ballast.append(path)
    except OSError:
        return ballast
    raise AssertionError("the file system has inodes without end")


# --- arenas --------------------------------------------------------------------------------


def test_an_arena_uses_the_files_that_it_is_given_and_no_others(root: Path) -> None:
    files = [root / f"disk-{number}" for number in range(2)]
    for path in files:
        path.write_bytes(bytes(20 * PAGE_BYTES))
    store = open_storage(
        root / "objects", capacity_bytes=40 * PAGE_BYTES, layout="arena", arena_files=files,
        engine="buffered",
    )  # fmt: skip
    ref = stored(store, 30 * PAGE_BYTES)  # in both
    assert read_back(store, ref)
    assert reason(lambda: store.create(copy(11 * PAGE_BYTES))) == "no-space"
    store.delete(ref)
    store.close()
    assert sorted(root.iterdir()) == files
    assert [path.stat().st_size for path in files] == [20 * PAGE_BYTES] * 2


def test_an_arena_is_never_promised_to_two(root: Path) -> None:
    """Who comes too late is told so; it is no defect of the program."""
    store = open_storage(root, capacity_bytes=CAPACITY, layout="arena", engine="direct")
    for _ in range(30):
        refs = [copy(CAPACITY // 2) for _ in range(6)]
        ends = ends_of(lambda ref: store.create(ref).commit(), refs)
        assert sorted(ends) == ["fine"] * 2 + ["no-space"] * 4
        assert sorted(ends_of(store.delete, refs)) == ["fine"] * 2 + ["vanished"] * 4
    store.close()


def test_what_an_arena_gives_for_lost_writes_is_never_what_was_written(root: Path) -> None:
    """The bytes of the object that was there before: of the right form, and wrong."""
    store = open_storage(root, capacity_bytes=CAPACITY, layout="arena", engine="direct")
    store.delete(stored(store, CAPACITY))
    lying = Faulty(store, lambda kind, ref: "lost" if kind is OpKind.WRITE else None)
    ref = stored(lying, 3 * BUFFER)
    assert not read_back(store, ref)
    store.close()


# --- when things are on the device -----------------------------------------------------------


@pytest.fixture(name="synced")
def _synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The files that were really synced, by device and inode."""
    sync, files = os.fsync, []

    def watched(fd: int) -> None:
        found = os.fstat(fd)
        files.append((found.st_dev, found.st_ino))
        sync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    return files


def test_a_batch_syncs_so_many_objects_at_once_and_the_rest_at_the_end(
    root: Path, synced: list[tuple[int, int]]
) -> None:
    for layout, files in (("file", 8), ("arena", 1), ("bucket", 1)):
        store = open_storage(
            root, capacity_bytes=CAPACITY, layout=layout, engine="mmap", fsync="batch"
        )
        sinks = []
        for _ in range(12):
            ref = copy(PAGE_BYTES)
            sinks.append(store.create(ref))
            put(sinks[-1], ref)
            sinks[-1].commit()
        slow = [number for number, s in enumerate(sinks, 1) if "fsync" in [n for n, _ in s.steps]]
        assert (layout, slow, len(synced), len(set(synced))) == (layout, [8], files, files)
        store.close()
        assert (layout, len(set(synced))) == (layout, 12 if layout == "file" else 1)
        synced.clear()


def test_a_copy_that_goes_before_its_batch_is_synced_gives_its_space_back(root: Path) -> None:
    store = open_storage(
        root, capacity_bytes=CAPACITY, layout="file", engine="direct", fsync="batch"
    )
    before = open_descriptors()
    refs = [stored(store, PAGE_BYTES) for _ in range(5)]
    assert open_descriptors() == before + 5
    for ref in refs:
        store.delete(ref)
    assert open_descriptors() == before
    store.close()


def test_an_error_at_the_last_sync_is_told_and_everything_is_closed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    stores = [Kind(layout="arena", engine="direct", fsync="batch").open(root)]
    stores[0].delete(stored(stores[0], PAGE_BYTES))
    striped = Striped([*stores, lasting(root / "b"), lasting(root / "c")], [CAPACITY] * 3)
    refs = [CopyRef(n, content_key(n), Tier.NVME, PAGE_BYTES, 0) for n in range(9)]
    for ref in refs:
        store_as(striped, ref)

    def broken(fd: int) -> None:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(os, "fsync", broken)
    assert reason(striped.close) == "io-error"
    assert open_descriptors() == before


def test_a_batch_whose_sync_fails_is_told_and_tries_every_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lasting(root / "a")
    for _ in range(3):
        ref = copy(PAGE_BYTES)
        sink = store.create(ref)
        put(sink, ref)
        sink.commit()
    tried: list[int] = []

    def broken(fd: int) -> None:
        tried.append(fd)
        raise OSError(errno.EIO, "the device is gone")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError) as failed:
        store.flush()
    assert (failed.value.reason, len(tried)) == ("io-error", 3)
    store.flush()
    assert len(tried) == 3, "what has failed is not waited for again"
    store.close()


def lasting(root: Path) -> NvmeStore:
    root.mkdir()
    return open_storage(
        root, capacity_bytes=CAPACITY, layout="file", engine="buffered", fsync="batch"
    )


# --- several drives ------------------------------------------------------------------------


class Drives:
    """A tier of three drives, and how many objects there are on each."""

    def __init__(self, root: Path, capacity: int) -> None:
        self.roots = [root / name for name in "abc"]
        for each in self.roots:
            each.mkdir()
        self.stores = [
            open_storage(each, capacity_bytes=capacity, engine="buffered") for each in self.roots
        ]
        self.store = Striped(self.stores, [capacity] * 3)

    @property
    def counts(self) -> list[int]:
        return [len(list(root.rglob("*.kv"))) for root in self.roots]


def of_drive(number: int, nbytes: int) -> CopyRef:
    """A copy whose key wants this one of three drives."""
    ref = copy(nbytes)
    return ref._replace(key=number.to_bytes(8, "little") + ref.key[8:])


def test_an_object_lies_on_the_drive_of_its_key_and_on_another_when_that_is_full(
    root: Path,
) -> None:
    drives = Drives(root, 2 * BUFFER)
    refs = [of_drive(1, BUFFER) for _ in range(2)]
    for ref in refs:
        store_as(drives.store, ref)
    assert drives.counts == [0, 2, 0]
    refs += [of_drive(1, BUFFER) for _ in range(4)]
    for ref in refs[2:]:
        store_as(drives.store, ref)
    assert drives.counts == [2, 2, 2]
    assert all(read_back(drives.store, ref) for ref in refs)
    drives.store.delete(refs[0])
    store_as(drives.store, again := of_drive(2, BUFFER))
    assert drives.counts == [2, 2, 2]
    for ref in (again, *refs[1:]):
        drives.store.delete(ref)
    assert drives.counts == [0, 0, 0]
    drives.store.close()


def test_what_is_left_on_each_drive_adds_up_to_the_room_that_was_promised(root: Path) -> None:
    drives = Drives(root, 3 * BUFFER)
    refs = [of_drive(number, 2 * BUFFER) for number in range(3)]
    refs.append(of_drive(0, 3 * BUFFER))  # a buffer is free on each
    for ref in refs:
        store_as(drives.store, ref)
    assert all(read_back(drives.store, ref) for ref in refs)
    assert sorted(drives.counts) == [1, 1, 2]
    for ref in refs:
        drives.store.delete(ref)
    for number in range(3):
        store_as(drives.store, of_drive(number, 3 * BUFFER))
    assert drives.counts == [1, 1, 1]
    drives.store.close()


def test_a_drive_that_refuses_a_create_has_its_bytes_back(root: Path) -> None:
    drives = Drives(root, BUFFER)
    for shard in drives.roots[0].glob("??"):
        shard.rmdir()
    for _ in range(3):
        assert reason(lambda: drives.store.create(of_drive(0, BUFFER))) == "vanished"
    layouts.Root.with_shards(drives.roots[0]).close()
    store_as(drives.store, ref := of_drive(0, BUFFER))
    assert drives.counts == [1, 0, 0]
    assert read_back(drives.store, ref)
    drives.store.close()


def test_a_file_that_vanished_from_a_drive_gives_its_bytes_back_once(root: Path) -> None:
    drives = Drives(root, BUFFER)
    store_as(drives.store, ref := of_drive(0, BUFFER))
    next(drives.roots[0].rglob("*.kv")).unlink()
    assert reason(lambda: drives.store.open(ref)) == "vanished"
    for _ in range(2):
        assert reason(lambda: drives.store.delete(ref)) == "vanished"
    refs = [of_drive(0, BUFFER) for _ in range(3)]
    for ref in refs:
        store_as(drives.store, ref)
    assert drives.counts == [1, 1, 1]
    drives.store.close()


def test_drives_that_differ_are_named_apart_and_promise_what_all_keep(root: Path) -> None:
    drives = []
    for name, fsync, engine in (("a", "object", "direct"), ("b", "never", "buffered")):
        (root / name).mkdir()
        drives.append(
            open_storage(root / name, capacity_bytes=CAPACITY, engine=engine, fsync=fsync)
        )
    store = Striped(drives, [CAPACITY] * 2)
    said = store.describe()
    assert said["engine"] == "buffered+direct"
    assert [drive["engine"] for drive in said["drives"]] == ["direct", "buffered"]
    assert store.capabilities == drives[1].capabilities
    store.close()


# --- rings ---------------------------------------------------------------------------------


@needs_uring
def test_a_transfer_of_more_pieces_than_a_ring_holds_is_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uring, "PIECE_BYTES", PAGE_BYTES)
    store = open_storage(root, capacity_bytes=MIB, layout="file", engine="uring")
    nbytes = (2 * uring.DEPTH + 7) * PAGE_BYTES
    there, back = aligned_bytes(nbytes), aligned_bytes(nbytes)
    there[:] = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    ref = copy(nbytes)
    sink = store.create(ref)
    sink.write(0, there.data)
    sink.commit()
    tap = store.open(ref)
    tap.read(0, back.data)
    tap.close()
    assert np.array_equal(there, back)
    os.truncate(next(root.rglob("*.kv")), nbytes - PAGE_BYTES - 100)
    with (root / "other").open("wb"):
        assert reason(lambda: store.open(ref)) == "truncated"
    store.close()


@needs_uring
def test_a_thread_takes_its_ring_with_it(root: Path) -> None:
    store = open_storage(root, capacity_bytes=CAPACITY, layout="file", engine="uring")
    in_thread(lambda: stored(store, BUFFER))
    before = open_descriptors()
    for _ in range(5):
        in_thread(lambda: stored(store, BUFFER))
    assert open_descriptors() == before
    store.close()


@needs_uring
@pytest.mark.parametrize("left", range(4))
def test_a_thread_that_cannot_have_a_ring_fails_its_operation_and_nothing_else(
    root: Path, left: int
) -> None:
    store = open_storage(root, capacity_bytes=CAPACITY, layout="arena", engine="uring")
    ref = stored(store, BUFFER)
    before, ends = open_descriptors(), []
    with descriptors_left(left):
        in_thread(lambda: ends.append(outcome(lambda: read_back(store, ref))))
    assert ends[0] in ("fine", "too-many-open-files")
    assert left or ends == ["too-many-open-files"]
    assert open_descriptors() == before
    assert read_back(store, ref)
    store.close()


@needs_uring
@pytest.mark.parametrize("writes", [True, False])
def test_a_ring_says_what_failed_of_a_buffer_and_serves_the_next(root: Path, writes: bool) -> None:
    path = root / "f"
    path.write_bytes(bytes(BUFFER))
    fd, only = (os.open(path, mode | os.O_DIRECT) for mode in (os.O_RDONLY, os.O_WRONLY))
    good, bad = (only, fd) if writes else (fd, only)
    data = aligned_bytes(BUFFER).data
    for _ in range(2):
        broken, whole = (uring.UringRegion(Span(each, 0, BUFFER)) for each in (bad, good))
        with pytest.raises(StoreError, match="Bad file descriptor"):
            broken.write(0, data) if writes else broken.read(0, data)
        whole.write(0, data) if writes else whole.read(0, data)
    os.close(fd)
    os.close(only)


@pytest.mark.parametrize("name", ["direct", "buffered", pytest.param("uring", marks=needs_uring)])
def test_a_file_that_ends_early_is_truncated_and_what_it_gave_counts(root: Path, name: str) -> None:
    path, data, engine = root / "f", aligned_bytes(BUFFER).data, ENGINES[name]()
    for nbytes in (0, PAGE_BYTES, BUFFER - PAGE_BYTES, BUFFER - 100):
        path.write_bytes(bytes(nbytes))
        fd = os.open(path, os.O_RDONLY | engine.open_flags)
        region = engine.region(Span(fd, 0, BUFFER), writable=False)
        with pytest.raises(StoreError) as failed:
            region.read(0, data)
        assert (failed.value.reason, failed.value.moved_bytes) == ("truncated", nbytes)
        os.close(fd)


def test_without_the_native_library_uring_is_refused_in_one_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", lambda: "transfers.so was not built: make native")
    with pytest.raises(PlaceError) as refused:
        open_storage(root, capacity_bytes=CAPACITY, engine="uring")
    said = "its bytes are moved by native code, and transfers.so was not built: make native"
    assert str(refused.value) == f"--io-engine uring: {said}; or use direct"


@needs_uring
def test_a_kernel_that_allows_no_rings_refuses_uring_in_one_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: native.Transfers) -> None:
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(native.Transfers, "_ring", refused)
    with pytest.raises(PlaceError) as told:
        open_storage(root, capacity_bytes=CAPACITY, engine="uring")
    said = "the kernel refuses io_uring (Operation not permitted); use direct"
    assert str(told.value) == f"--io-engine uring: {said}"
