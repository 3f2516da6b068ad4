"""The buffer pool: aligned memory, so many and no more, and one owner at a time."""

import itertools
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from kv_cache.core.units import KIB, MIB, PAGE_BYTES, round_up
from kv_cache.tiers.buffers import Buffer, BufferPool, aligned_bytes


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 4097, 2 * MIB, 5 * MIB + PAGE_BYTES])
def test_memory_begins_on_a_page_and_is_zeroed(nbytes: int) -> None:
    memory = aligned_bytes(nbytes)
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % PAGE_BYTES == 0
    assert not memory.any()
    memory[:] = 1  # and can be written


def huge_pages() -> int:
    """Bytes of this process in huge pages."""
    (found,) = re.findall(
        r"^AnonHugePages: +(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE
    )
    return int(found) * KIB


@pytest.mark.parametrize("nbytes", [1 * MIB, 2 * MIB, 3 * MIB, 7 * MIB + PAGE_BYTES])
def test_memory_from_one_mib_on_is_whole_huge_pages(nbytes: int) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this kernel gives no huge pages")
    before, memory = huge_pages(), aligned_bytes(nbytes)
    memory[::PAGE_BYTES] = 1
    assert huge_pages() - before == round_up(nbytes, 2 * MIB)
    assert memory.ctypes.data % (2 * MIB) == 0


def test_memory_lives_as_long_as_a_view_of_it() -> None:
    view = aligned_bytes(3 * PAGE_BYTES)[PAGE_BYTES:]
    others = [aligned_bytes(3 * PAGE_BYTES) for _ in range(10)]
    for other in others:
        other[:] = 0xFF
    assert not view.any()


@pytest.mark.parametrize("nbytes", [PAGE_BYTES, 64 * KIB, 2 * MIB])
def test_every_buffer_begins_on_a_page_and_overlaps_no_other(nbytes: int) -> None:
    pool = BufferPool(5, nbytes)
    taken = [pool.take() for _ in range(5)]
    addresses = sorted(buffer.array.ctypes.data for buffer in taken)
    assert all(address % PAGE_BYTES == 0 for address in addresses)
    assert all(after - before >= nbytes for before, after in itertools.pairwise(addresses))
    assert pool.memory.nbytes == 5 * nbytes
    for number, buffer in enumerate(taken):
        assert len(buffer.view) == nbytes
        assert buffer.words.shape == (nbytes // PAGE_BYTES, 512)
        buffer.view[:] = bytes([number]) * nbytes
    for number, buffer in enumerate(taken):
        assert (buffer.array == number).all()
        assert (buffer.words == np.uint64(int.from_bytes(bytes([number]) * 8, "little"))).all()


def test_buffers_are_whole_pages() -> None:
    with pytest.raises(AssertionError, match="whole pages"):
        BufferPool(2, PAGE_BYTES + 512)


def test_a_buffer_with_the_tint_that_is_asked_for_comes_first() -> None:
    pool = BufferPool(4, PAGE_BYTES)
    taken = [pool.take() for _ in range(4)]
    for tint, buffer in enumerate(taken):
        buffer.tint = tint
        pool.give(buffer)
    assert pool.count == pool.available == 4
    assert pool.take(2) is taken[2]
    assert pool.take(2) is taken[0], "none has it: the one that was unused the longest"
    assert pool.take(3) is taken[3]


def test_who_finds_none_waits_until_one_is_given_back() -> None:
    pool = BufferPool(2, PAGE_BYTES)
    first, _ = pool.take(), pool.take()
    assert pool.available == 0
    got: list[Buffer] = []
    took = threading.Event()

    def wait_for_one() -> None:
        got.append(pool.take())
        took.set()

    thread = threading.Thread(target=wait_for_one)
    thread.start()
    assert not took.wait(0.05)
    pool.give(first)
    thread.join()
    assert got == [first]


def test_many_threads_share_few_buffers_one_owner_at_a_time() -> None:
    pool = BufferPool(3, PAGE_BYTES)
    strangers: list[int] = []

    def work(me: int) -> None:
        for _ in range(300):
            buffer = pool.take()
            buffer.array[:] = me
            strangers.extend(buffer.array[buffer.array != me].tolist())
            pool.give(buffer)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert strangers == []
    assert pool.available == 3
