"""Stores around stores: faults are what they are called, a limit is the limit."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import NS_PER_S, PAGE_BYTES
from kv_cache.tiers.base import Capability, Store
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.nvme import open_storage
from tests.cli import PATIENCE_S
from tests.stores import (
    BUFFER,
    CAPACITY,
    borrowed,
    copy,
    put,
    read_back,
    reason,
    store_as,
    stored,
)
from tests.wrappers import FLIP, LOST, SWAPPED, TORN, Fault, Faulty, Stall, Throttled


def on(kind: OpKind, what: str | Stall) -> Fault:
    return lambda asked, ref: what if asked is kind else None


@pytest.fixture(name="store")
def _store() -> Store:
    return MemoryStore(Tier.NVME, CAPACITY)


def differences(store: Store, faulty: Store, ref: CopyRef) -> set[int]:
    """Where in the object what `faulty` reads is not what `store` reads."""
    found = []
    for one in (store, faulty):
        tap, data = one.open(ref), b""
        for offset in range(0, ref.nbytes, BUFFER):
            with borrowed() as buffer:
                n = min(BUFFER, ref.nbytes - offset)
                tap.read(offset, buffer.view[:n])
                data += bytes(buffer.view[:n])
        tap.close()
        found.append(data)
    return {at for at, (right, read) in enumerate(zip(*found, strict=True)) if right != read}


# --- faults --------------------------------------------------------------------------------


def test_a_flip_is_one_bit_of_what_a_call_moves(store: Store) -> None:
    ref = stored(store, 2 * BUFFER)
    faulty = Faulty(store, on(OpKind.READ, FLIP))
    assert differences(store, faulty, ref) == {3, BUFFER + 3}
    assert read_back(store, ref)


def test_a_torn_page_has_a_head_and_no_tail(store: Store) -> None:
    ref = stored(store, BUFFER)
    wrong = differences(store, Faulty(store, on(OpKind.READ, TORN)), ref)
    assert wrong <= set(range(PAGE_BYTES // 2, PAGE_BYTES))
    assert PAGE_BYTES - 1 in wrong


def test_swapped_pages_have_changed_places(store: Store) -> None:
    faulty = Faulty(store, on(OpKind.READ, SWAPPED))
    wrong = differences(store, faulty, stored(store, BUFFER))
    assert {at // PAGE_BYTES for at in wrong} == {0, 15}
    assert differences(store, faulty, stored(store, PAGE_BYTES)) == set()


@pytest.mark.parametrize("fault", [FLIP, TORN, SWAPPED, LOST])
@pytest.mark.parametrize("layout", ["file", "arena", "bucket"])
def test_a_write_that_is_spoiled_is_acknowledged_and_wrong_from_then_on(
    fault: str, layout: str, tmp_path: Path
) -> None:
    files = open_storage(tmp_path, capacity_bytes=CAPACITY, layout=layout, engine="direct")
    ref = stored(Faulty(files, on(OpKind.WRITE, fault)), BUFFER + 3 * PAGE_BYTES)
    assert not read_back(files, ref)
    assert not read_back(files, ref)
    assert read_back(files, stored(files, BUFFER))
    files.delete(ref)
    files.close()


def test_the_callers_buffer_is_left_alone_by_a_spoiled_write(store: Store) -> None:
    faulty, ref = Faulty(store, on(OpKind.WRITE, FLIP)), copy(BUFFER)
    sink = faulty.create(ref)
    with borrowed() as buffer:
        before = bytes(buffer.view)
        sink.write(0, buffer.view)
        assert bytes(buffer.view) == before
    sink.abort()


def test_a_lost_write_leaves_what_was_there_but_for_its_last_page(store: Store) -> None:
    """So a file has its length, and nothing tells but what it holds."""
    store.delete(stored(store, BUFFER))
    ref = copy(BUFFER)
    store_as(Faulty(store, on(OpKind.WRITE, LOST)), ref)
    twin = ref._replace(copy_id=ref.copy_id + 10**6)
    store_as(store, twin)
    wrong = set()
    for right, found in zip(data_of(store, twin), data_of(store, ref), strict=True):
        wrong |= {at // PAGE_BYTES for at in range(len(right)) if right[at] != found[at]}
    assert wrong == set(range(15))


def data_of(store: Store, ref: CopyRef) -> list[bytes]:
    tap = store.open(ref)
    with borrowed() as buffer:
        tap.read(0, buffer.view[: ref.nbytes])
        found = bytes(buffer.view[: ref.nbytes])
    tap.close()
    return [found]


@pytest.mark.parametrize("kind", [OpKind.READ, OpKind.DELETE])
def test_any_other_word_is_the_reason_for_which_an_operation_fails(
    kind: OpKind, store: Store
) -> None:
    ref = stored(store, BUFFER)
    faulty = Faulty(store, on(kind, "io-error"))
    act: Callable[[CopyRef], object] = faulty.open if kind is OpKind.READ else faulty.delete
    assert reason(lambda: act(ref)) == "io-error"
    assert read_back(store, ref)


def test_a_write_fails_when_it_is_committed_and_leaves_nothing_when_aborted(store: Store) -> None:
    ref = copy(BUFFER)
    sink = Faulty(store, on(OpKind.WRITE, "no-space")).create(ref)
    put(sink, ref)
    assert reason(sink.commit) == "no-space"
    sink.abort()
    assert reason(lambda: store.open(ref)) == "vanished"


def test_a_stalled_operation_waits_in_the_store_and_is_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for kind in (OpKind.WRITE, OpKind.READ, OpKind.DELETE):
        faulty = Faulty(store, on(kind, Stall(3 * NS_PER_S)))
        ref = stored(faulty, BUFFER)
        assert read_back(faulty, ref)
        faulty.delete(ref)
        assert slept == [3.0]
        slept.clear()


def test_a_wrapper_passes_on_what_is_under_it(tmp_path: Path) -> None:
    files = open_storage(tmp_path, capacity_bytes=CAPACITY, layout="file", engine="direct")
    faulty = Faulty(files, lambda kind, ref: None if kind is OpKind.DELETE else FLIP)
    store = Throttled(faulty, bytes_per_second=1e12)
    assert (store.tier, store.removal) == (Tier.NVME, "unlink")
    assert store.capabilities == files.capabilities & ~Capability.POSITIONAL
    ref = copy(BUFFER)
    sink = store.create(ref)
    put(sink, ref)
    sink.commit()
    assert [step.name for step in sink.steps] == ["create", "close", "rename"]
    tap = store.open(ref)
    assert [(span.offset, span.length) for span in tap.spans] == [(0, BUFFER)]
    assert tap.engine == sink.engine == "direct"
    tap.close()
    assert [step.name for step in tap.steps] == ["open", "close"]
    assert store.describe() == {
        **files.describe(),
        "faulty": True,
        "throttled": {"bytes_per_second": 1e12, "latency_ns": 0},
    }
    store.close()


# --- the limit -----------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.at_ns = 5 * NS_PER_S

    def now_ns(self) -> int:
        return self.at_ns

    def sleep_s(self, seconds: float) -> None:
        self.at_ns += round(seconds * NS_PER_S)


def limited(clock: Clock, store: Store, rate: float, latency_ns: int = 0) -> Throttled:
    return Throttled(
        store,
        bytes_per_second=rate,
        latency_ns=latency_ns,
        now_ns=clock.now_ns,
        sleep_s=clock.sleep_s,
    )


def test_reads_and_writes_share_the_link_to_the_byte(store: Store) -> None:
    clock = Clock()
    throttled = limited(clock, store, rate=BUFFER)  # a buffer takes a second
    began_ns = clock.at_ns
    ref = stored(throttled, 3 * BUFFER)
    assert clock.at_ns - began_ns == 3 * NS_PER_S
    assert read_back(throttled, ref)
    assert clock.at_ns - began_ns == 6 * NS_PER_S


def test_an_idle_link_has_no_credit(store: Store) -> None:
    clock = Clock()
    throttled = limited(clock, store, rate=BUFFER)
    throttled.delete(stored(throttled, BUFFER))
    clock.at_ns += 100 * NS_PER_S
    began_ns = clock.at_ns
    stored(throttled, 2 * BUFFER)
    assert clock.at_ns - began_ns == 2 * NS_PER_S


def test_each_call_has_its_latency_beside_the_bytes(store: Store) -> None:
    clock = Clock()
    throttled = limited(clock, store, rate=1e15, latency_ns=1000)
    began_ns = clock.at_ns
    ref = stored(throttled, 4 * BUFFER)
    assert clock.at_ns - began_ns == pytest.approx(4000, abs=10)
    assert read_back(throttled, ref)
    assert clock.at_ns - began_ns == pytest.approx(8000, abs=20)


def test_what_the_store_takes_is_part_of_a_calls_time(store: Store) -> None:
    clock = Clock()

    class Slow:
        """Memory that takes half a second for a buffer."""

        def __init__(self) -> None:
            self._copy_in = store.copy_in  # type: ignore[attr-defined]

        def __call__(self, at: int, data: memoryview) -> None:
            clock.at_ns += NS_PER_S // 2
            self._copy_in(at, data)

    store.copy_in = Slow()  # type: ignore[attr-defined]
    began_ns = clock.at_ns
    stored(limited(clock, store, rate=BUFFER), 2 * BUFFER)
    assert clock.at_ns - began_ns == 2 * NS_PER_S
    stored(limited(clock, store, rate=1e15), 2 * BUFFER)
    assert clock.at_ns - began_ns == 3 * NS_PER_S


def test_threads_share_the_link_and_wait_at_the_same_time(store: Store) -> None:
    """None is let through before the bytes of all before it have passed; nobody holds a lock
    while it waits."""
    waits: list[float] = []
    all_wait = threading.Barrier(4, timeout=PATIENCE_S)

    def sleep_s(seconds: float) -> None:
        waits.append(seconds)
        all_wait.wait()

    throttled = Throttled(store, bytes_per_second=BUFFER, now_ns=lambda: NS_PER_S, sleep_s=sleep_s)
    threads = [threading.Thread(target=lambda: stored(throttled, BUFFER)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == [1, 2, 3, 4]
