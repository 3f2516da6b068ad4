"""Small objects of a probe: which are moved by whom, that each is verified, and what fails."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.bench.probe_native import NativeObjects, NativeThreads, _Region
from kv_cache.core.kinds import OpKind
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB, PAGE_BYTES, SECTOR_BYTES
from kv_cache.tiers import native
from kv_cache.tiers.base import Span
from kv_cache.tiers.payload import MISMATCH, Payload

PAYLOAD = Payload(Seed(3), MIB)
DATA = 2 * MIB

pytestmark = pytest.mark.skipif(
    isinstance(native.library(), str), reason=f"the native library: {native.library()}"
)


@pytest.fixture(name="fd")
def _fd(tmp_path: Path) -> Iterator[int]:
    """A file of the page cache: what is moved is the same."""
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(fd, DATA)
    yield fd
    os.close(fd)


def objects(fd: int, nbytes: int = SECTOR_BYTES, block: int = SECTOR_BYTES) -> NativeObjects:
    threads = NativeThreads(PAYLOAD, 8, "here", threading.Event())
    spans = (Span(fd, 0, DATA // 2), Span(fd, DATA // 2, DATA // 2))
    return NativeObjects(threads, spans, nbytes, block, 1, np.random.default_rng(5))


def fill(made: NativeObjects) -> None:
    assert made.fill(60, whole=True, needed=0) == []


@pytest.mark.parametrize("nbytes", [512, 1536, 4 * KIB, 6656, 64 * KIB])
@pytest.mark.parametrize("block", [SECTOR_BYTES, PAGE_BYTES])
def test_what_is_filled_and_written_is_found_right_in_all_steps(
    fd: int, nbytes: int, block: int
) -> None:
    made = objects(fd, nbytes, block)
    assert made.moved_bytes == -(-nbytes // block) * block
    fill(made)
    reads = 0
    for share, repeated in ((1.0, False), (0.0, False), (0.5, False), (1.0, False), (1.0, True)):
        timed, errors = made.step(3, share, 0.02, repeated=repeated)
        assert errors == []
        assert len(timed) == 3
        for each in timed:
            assert (each.started_ns < each.finished_ns).all()
            assert (each.device_ns == each.finished_ns - each.started_ns).all()
            assert (each.finished_ns[:-1] <= each.started_ns[1:]).all()
            reads += int(each.reads.sum())
    assert made.verified == reads > 0
    assert made.moved[OpKind.READ] == reads * made.moved_bytes


@pytest.mark.parametrize("sector", range(3))
def test_a_flipped_bit_of_a_stamp_in_any_sector_is_found(fd: int, sector: int) -> None:
    made = objects(fd, 3 * SECTOR_BYTES)
    fill(made)
    at = 7 * made.moved_bytes + sector * SECTOR_BYTES + 511
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 0x20]), at)
    _, errors = made.step(1, 1.0, 60, repeated=False)
    assert errors == [MISMATCH]


def test_nothing_is_read_as_unread_twice_and_there_may_be_too_little(fd: int) -> None:
    made = objects(fd, 64 * KIB)
    assert made.step(2, 1.0, 0.01, repeated=False) == ([], [])  # nothing was written
    fill(made)
    timed, _ = made.step(2, 1.0, 60, repeated=False)
    assert sum(len(each.reads) for each in timed) == made.count == DATA // (64 * KIB)
    assert made.step(2, 1.0, 0.01, repeated=False) == ([], [])
    timed, errors = made.step(2, 0.0, 0.05, repeated=False)
    assert errors == []
    assert min(len(each.reads) for each in timed) > made.count // 2  # and begins again
    timed, errors = made.step(2, 0.25, 60, repeated=False)
    assert errors == []
    assert sum(int(each.reads.sum()) for each in timed) >= made.count // 4 - 2


def test_a_failed_call_is_a_reason_and_what_it_wrote_is_not_read(fd: int, tmp_path: Path) -> None:
    made = objects(fd)
    fill(made)
    os.truncate(fd, DATA // 2)
    timed, errors = made.step(2, 1.0, 60, repeated=False)
    assert set(errors) == {"truncated"}
    assert len(errors) == made.count // 2 > 0
    assert sum(len(each.reads) for each in timed) == made.count


def test_a_burst_begins_at_one_instant(fd: int) -> None:
    made = objects(fd)
    fill(made)
    for kind in (OpKind.READ, OpKind.WRITE):
        times = made.burst(kind, 8)
        assert len(times) in (0, 8)  # without io_uring there is none
        assert all(time > 0 for time in times)
    assert made.step(8, 1.0, 0.01, repeated=False)[1] == []


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    moved=st.integers(1, 20),
)
def test_objects_lie_in_one_span_each_and_in_order(lengths: list[int], moved: int) -> None:
    spans = [Span(n, 1000 * n, length * 512) for n, length in enumerate(lengths)]
    region = _Region(spans, moved * 512)
    assert region.count == sum(length // moved for length in lengths)
    fds, offsets, begins = region.places(np.arange(region.count))
    for fd, offset in zip(fds, offsets, strict=True):
        assert spans[fd].offset <= offset
        assert offset + moved * 512 <= spans[fd].offset + spans[fd].length
    assert (np.diff(begins) >= moved * 512).all()
    assert [region.before(int(begin)) for begin in begins] == list(range(region.count))
    assert sum(length for _, _, length, _ in region.pieces()) == region.nbytes
