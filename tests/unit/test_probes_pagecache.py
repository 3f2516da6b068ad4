"""What is in the page cache, asked without changing the answer."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_cache.bench.probes import pagecache
from kv_cache.bench.probes.pagecache import is_direct, page_states, resident_pages

PAGES = 64
BYTES = PAGES * mmap.PAGESIZE


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A file of `PAGES` pages that are all cached and clean, and a descriptor for reading."""
    path = tmp_path / "object"
    with path.open("wb", buffering=0) as out:
        out.write(os.urandom(BYTES))
        os.fsync(out.fileno())
    fd = os.open(path, os.O_RDONLY)
    yield path, fd
    os.close(fd)


@pytest.fixture(params=["cachestat", "mincore"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With mincore, the kernel is taken for one without cachestat."""
    if request.param == "mincore":
        monkeypatch.setattr(pagecache, "_CACHESTAT", None)
    return str(request.param)


def drop(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_pages(fd, 0, BYTES):
        pytest.skip("this file system keeps its pages")


@pytest.mark.usefixtures("way")
def test_what_was_written_is_resident_until_it_is_dropped(file: tuple[Path, int]) -> None:
    _, fd = file
    assert resident_pages(fd, 0, BYTES) == PAGES
    drop(fd)
    assert resident_pages(fd, 0, BYTES) == 0


@pytest.mark.usefixtures("way")
def test_a_range_counts_the_pages_that_it_touches(file: tuple[Path, int]) -> None:
    _, fd = file
    page = mmap.PAGESIZE
    assert resident_pages(fd, 3 * page, 2 * page) == 2
    assert resident_pages(fd, 3 * page + 1, page) == 2
    assert resident_pages(fd, page, 0) == 0
    assert resident_pages(fd, BYTES - page, 10 * page) == 1  # the file ends there


@pytest.mark.usefixtures("way")
def test_looking_brings_nothing_into_the_cache(file: tuple[Path, int]) -> None:
    _, fd = file
    drop(fd)
    for _ in range(3):
        assert resident_pages(fd, 0, BYTES) == 0


@pytest.mark.usefixtures("way")
def test_a_direct_descriptor_can_be_asked_and_its_reads_leave_nothing(
    file: tuple[Path, int],
) -> None:
    path, fd = file
    drop(fd)
    try:
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no direct I/O")
    try:
        assert is_direct(direct)
        assert not is_direct(fd)
        with mmap.mmap(-1, BYTES) as buffer:
            os.preadv(direct, [buffer], 0)
        assert resident_pages(direct, 0, BYTES) == 0
        os.pread(fd, BYTES, 0)
        assert resident_pages(direct, 0, BYTES) == PAGES
    finally:
        os.close(direct)


def test_the_mode_of_a_descriptor_is_what_it_is_now(file: tuple[Path, int]) -> None:
    import fcntl

    _, fd = file
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no direct I/O")
    assert is_direct(fd)
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    assert not is_direct(fd)


def test_what_cannot_be_learned_is_none(
    file: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = file
    monkeypatch.setattr(pagecache, "_CACHESTAT", None)
    fd = os.open(path, os.O_WRONLY)  # cannot be mapped
    try:
        assert resident_pages(fd, 0, BYTES) is None
    finally:
        os.close(fd)


def test_dirty_pages_are_told_from_clean_ones(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w+b", buffering=0) as out:
        out.write(bytes(BYTES))
        states = page_states(out.fileno(), 0, BYTES)
        if states is None:
            pytest.skip("no cachestat(2) to be trusted here")
        assert states.cached == PAGES
        os.fsync(out.fileno())
        after = page_states(out.fileno(), 0, BYTES)
        assert after is not None
        assert after.cached == PAGES
        if after.dirty:
            pytest.skip("a memory file system never gets clean")
        assert after.writeback == 0
