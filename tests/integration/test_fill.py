"""Filling real file systems: as many bytes as asked for, really written, and nothing left."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.devices import (
    LOOP_TOOLS,
    NBD_TOOLS,
    faulty_directory,
    ram_directory,
    throttled_directory,
    why_not,
)
from kv_cache.bench import fill as module
from kv_cache.bench.cache_dir import CacheDir
from kv_cache.bench.fill import Filled, check_fill, discards, fill
from kv_cache.bench.probes.payload_pages import examine
from kv_cache.core.errors import PlaceError
from kv_cache.core.mounts import mount_of, parse_mounts
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, MIB, PAGE_BYTES
from kv_cache.tiers.nvme.engines import Buffered
from tests.stores import mounted

SEED = Seed(3)
NO_LOOPS = why_not(LOOP_TOOLS)
NO_DEVICES = why_not(NBD_TOOLS)


def filled(
    *directories: Path,
    capacity: int = 8 * MIB,
    size: int = 0,
    threads: int = 2,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Filled:
    """`capacity` for each directory."""
    return fill(
        directories,
        [capacity] * len(directories),
        seed=SEED,
        stop=stop or threading.Event(),
        size_bytes=size,
        threads=threads,
        progress=progress,
    )


def everything(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")} - {"lost+found"}


# --- what is written -------------------------------------------------------------------------


@pytest.fixture(params=["disk", "tmpfs"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
    elif os.geteuid() == 0:
        with mounted(tmp_path, "tmpfs", "size=64m"):
            yield tmp_path
    else:
        pytest.skip("mounting a tmpfs needs root")


def test_twice_the_capacity_is_written_in_two_passes_and_nothing_is_left(directory: Path) -> None:
    told: list[int] = []
    found = filled(directory, progress=told.append)
    assert (found.wanted_bytes, found.bytes, found.area_bytes) == (16 * MIB, 16 * MIB, 8 * MIB)
    assert (found.passes, found.threads) == (2, 2)
    assert sum(row.bytes for row in found.rows) == 16 * MIB
    assert found.rows[0].start_s == 0
    assert found.filesystem_bytes > found.area_bytes
    assert told[-1] == 16 * MIB
    assert told == sorted(told)
    assert everything(directory) == set()


@pytest.mark.parametrize(
    ("capacity", "size", "threads", "passes"),
    [
        (8 * MIB, 3 * MIB, 5, 1),  # less than the capacity: only so much of it
        (8 * MIB, 20 * MIB, 3, 3),  # the last pass ends half-way
        (PAGE_BYTES, 0, 4, 2),
        (5 * MIB + 3 * PAGE_BYTES + 100, 0, 4, 2),
    ],
)
def test_any_size_is_written_to_the_page(
    capacity: int, size: int, threads: int, passes: int, tmp_path: Path
) -> None:
    found = filled(tmp_path, capacity=capacity, size=size, threads=threads)
    area = capacity // PAGE_BYTES * PAGE_BYTES
    assert found.bytes == found.wanted_bytes == (size or 2 * area)
    assert found.area_bytes == min(area, size or area)
    assert found.passes == passes
    assert everything(tmp_path) == set()


def test_directories_share_the_fill(tmp_path: Path) -> None:
    drives = [tmp_path / name for name in "ab"]
    for drive in drives:
        drive.mkdir()
    seen: set[str] = set()

    def look(_: int) -> None:
        seen.update(path.parts[-3] for drive in drives for path in drive.glob("00/*.kv"))

    found = fill(
        drives, [12 * MIB, 4 * MIB], seed=SEED, stop=threading.Event(), threads=2, progress=look
    )
    assert (found.bytes, found.area_bytes, found.threads) == (32 * MIB, 16 * MIB, 2)
    assert everything(tmp_path) == {"a", "b"}


def test_what_is_written_neither_compresses_nor_repeats_over_files_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Fill, "remove", lambda self: None)
    pages: list[bytes] = []
    for size in (4 * MIB, 8 * MIB):  # as the first and as the second pass leave it
        filled(tmp_path, capacity=4 * MIB, size=size)
        for path in sorted(tmp_path.glob("00/*.kv")):
            data = path.read_bytes()
            pages += [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
            path.unlink()
    assert len(pages) == 2048
    assert len(set(pages)) == 2048
    found = examine(pages[::4])
    assert found["compressed_ratio"] > 0.99
    assert found["zero_share"] < 0.01


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    precious = tmp_path / "00" / "fill-0000.kv"
    precious.write_text("precious")
    with pytest.raises(PlaceError, match="file exists"):
        filled(tmp_path)
    assert precious.read_text() == "precious"
    assert everything(tmp_path) == {"00", "00/fill-0000.kv"}


def test_it_works_in_a_cache_directory_whose_owner_removes_what_a_kill_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, CacheDir(tmp_path / "cache", run="test") as cache:
        patched.setattr(module._Fill, "remove", lambda self: None)
        filled(cache.objects)
        assert len(list(cache.objects.glob("00/*.kv"))) == 2
    assert everything(tmp_path) == set()


@pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there")
@pytest.mark.root
def test_on_a_device_all_bytes_reach_it_and_are_counted() -> None:
    with ram_directory(0.1) as disk:
        found = filled(disk, capacity=32 * MIB)
        assert found.engine == "direct"
        assert found.device_write_bytes is not None
        assert found.device_write_bytes >= 64 * MIB
        assert found.discard is False
        assert everything(disk) == set()


@pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there")
@pytest.mark.root
def test_where_it_has_to_go_through_the_page_cache_both_passes_reach_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "choose_engine", lambda *args: (Buffered(), "O_DIRECT is refused"))
    with ram_directory(0.15) as disk:
        found = filled(disk, capacity=80 * MIB, threads=1)
        assert (found.engine, found.engine_note) == ("buffered", "O_DIRECT is refused")
        assert found.device_write_bytes is not None
        assert found.device_write_bytes >= 150 * MIB
        assert everything(disk) == set()


def test_what_a_result_tells_is_plain(tmp_path: Path) -> None:
    told = filled(tmp_path).to_json()
    assert told["bytes"] == 16 * MIB
    assert {"start_s", "end_s", "bytes", "bytes_per_second"} == told["rows"][0].keys()


# --- ends before the end ---------------------------------------------------------------------


@pytest.mark.skipif(NO_DEVICES is not None, reason=NO_DEVICES or "devices can be made")
@pytest.mark.root
def test_a_stop_in_the_middle_ends_it_and_leaves_nothing() -> None:
    stop = threading.Event()
    with throttled_directory(100_000_000, 0.2) as disk:

        def half(done: int) -> None:
            if done > 10 * MIB:
                stop.set()

        found = filled(disk, capacity=128 * MIB, stop=stop, progress=half)
        assert 10 * MIB < found.bytes < 256 * MIB
        assert found.bytes < found.wanted_bytes
        assert everything(disk) == set()


def test_a_stop_before_it_begins_writes_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert filled(tmp_path, stop=stop).bytes == 0
    assert everything(tmp_path) == set()


def test_an_exception_of_who_watches_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    def fail(_: int) -> None:
        raise KeyboardInterrupt

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path, progress=fail)
    assert everything(tmp_path) == set()
    assert threading.active_count() == threads


@pytest.mark.skipif(NO_DEVICES is not None, reason=NO_DEVICES or "devices can be made")
@pytest.mark.root
def test_a_device_that_fails_is_one_sentence_and_leaves_nothing() -> None:
    with faulty_directory(0.2, bytes_per_s=100_000_000) as faults:

        def break_(done: int) -> None:
            if done:
                faults.break_(reads=False)

        with pytest.raises(PlaceError, match=r"(?i)the fill failed after .*input/output error"):
            filled(faults.path, capacity=128 * MIB, progress=break_)
        faults.mend()
        assert everything(faults.path) == set()


@pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there")
@pytest.mark.root
def test_a_disk_that_somebody_else_fills_is_one_sentence_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ram_directory(0.05) as disk:
        (disk / "ballast").write_bytes(bytes(20 * MIB))
        monkeypatch.setattr(module, "check_fill", lambda *args: None)  # it came after the look
        with pytest.raises(PlaceError, match="the disk is full after"):
            filled(disk, capacity=40 * MIB)
        assert everything(disk) == {"ballast"}


# --- what is refused -------------------------------------------------------------------------


def test_a_fill_of_more_than_twice_the_file_system_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    found = os.statvfs(tmp_path)
    whole = found.f_blocks * found.f_frsize
    with pytest.raises(PlaceError, match="more than 2 times its size"):
        check_fill(2 * whole + GIB, [MIB], [tmp_path / "not" / "there"])
    check_fill(2 * whole - GIB, [MIB], [tmp_path / "not" / "there"])
    with pytest.raises(PlaceError):
        filled(tmp_path, capacity=MIB, size=2 * whole + GIB)
    assert everything(tmp_path) == set()


def test_directories_on_one_file_system_are_taken_together(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    whole, free = (n * found.f_frsize for n in (found.f_blocks, found.f_bavail))
    both = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(PlaceError, match="more than 2 times"):
        check_fill(2 * whole + GIB, [MIB, MIB], both)
    check_fill(GIB, [free * 2 // 3, free * 2 // 3], both)  # only 1 GiB of the capacity
    with pytest.raises(PlaceError, match="are free"):
        check_fill(0, [free * 2 // 3, free * 2 // 3], both)


def test_a_fill_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="less than a page"):
        check_fill(100, [GIB], [tmp_path])


# --- what becomes of deleted blocks ----------------------------------------------------------

MOUNTS = """\
21 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
36 21 0:32 / /mnt/fast\\040disk rw,noatime shared:7 - btrfs /dev/nvme0n1 rw,ssd,discard=async
37 21 8:1 / /mnt/old rw,noatime - ext4 /dev/sda1 rw,discard
38 37 8:2 / /mnt/old/in rw - xfs /dev/sda2 rw,nodiscard
broken line
"""


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("/home/me", "errors=remount-ro"),
        ("/mnt/fast disk/cache", "discard=async"),
        ("/mnt/old/out", "discard"),
        ("/mnt/old/in/x", "nodiscard"),
        ("/mnt/older", "errors=remount-ro"),
    ],
)
def test_the_options_of_the_deepest_mount_are_found(path: str, option: str) -> None:
    mount = mount_of(path, "", parse_mounts(MOUNTS))
    assert mount is not None
    assert option in mount.all_options


def test_without_a_mount_nothing_is_known() -> None:
    assert mount_of("/home", "", ()) is None


@pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there")
@pytest.mark.root
def test_a_file_system_that_discards_is_told() -> None:
    with ram_directory(0.05) as disk:
        assert discards(disk) is False
        assert os.system(f"mount -o remount,discard {disk}") == 0
        assert discards(disk) is True
        assert filled(disk, capacity=4 * MIB).discard is True
