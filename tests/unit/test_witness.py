"""The witness of a run: what it notes at which edge, how long it waits, and what it cannot say."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kv_cache.bench import witness
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.counters import Counters, device_of, read_counters
from kv_cache.bench.probes import throttles
from kv_cache.bench.probes.stack import Stack
from kv_cache.bench.probes.throttles import Throttles
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.bench.witness import Witness
from kv_cache.config.passport import PassportConfig
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, MIB, PAGE_BYTES, round_up
from kv_cache.tiers.base import Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.payload import Payload

SEED = Seed(5)
FAR = 2**60  # bytes that no device gets to


@pytest.fixture
def made() -> Iterator[list[Witness]]:
    """Witnesses that are stopped when the test ends."""
    all_of_them: list[Witness] = []
    yield all_of_them
    for one in all_of_them:
        one.stop()


def begun(
    made: list[Witness], *directories: Path, pulse: StoreCalls | None = None, **config: Any
) -> Witness:
    one = Witness(PassportConfig(**config), directories, MonotonicClock(), pulse=pulse)
    made.append(one)
    one.begin()
    return one


def ended(one: Witness) -> dict[str, Any]:
    one.settle(0, 0)
    one.stop()
    return one.evidence()


def counted(monkeypatch: pytest.MonkeyPatch, *looks: Counters) -> "count[int]":
    """The counters of the next looks; the last is seen for ever. Answers how often it was."""
    seen, turn = chain(looks, repeat(looks[-1])), count()

    def look(*_: Sequence[str], sockets: bool) -> Counters:
        next(turn)
        return next(seen)

    monkeypatch.setattr(witness, "read_counters", look)
    return turn


def counters(read: int | None = 0, written: int | None = 0) -> Counters:
    return replace(
        read_counters([]), device="vda", device_read_bytes=read, device_write_bytes=written
    )


# --- the edges -------------------------------------------------------------------------------


def test_a_run_without_a_window_has_all_evidence_there_can_be(
    made: list[Witness], tmp_path: Path
) -> None:
    evidence = ended(begun(made, tmp_path))
    assert evidence["page_cache"]["sampled_objects"] == 0
    assert evidence["payload"] == {}
    names = {f"harness_lag_{n}_ms" for n in ("p50", "p99", "max")}
    assert evidence["lag"].keys() == {*names, "harness_lag_of"}
    assert evidence["clock"]["wall_s"] == pytest.approx(evidence["clock"]["monotonic_s"], abs=60)
    assert evidence["cores"] > 0
    assert evidence["foreign"]["processes"] == []
    assert evidence["accounted"] is (device_of(tmp_path) is not None)


def test_the_window_and_the_run_are_counted_apart(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(
        monkeypatch,
        counters(0, 0),
        counters(100, 1000),
        counters(500, 3000),
        counters(600, 4000),
    )
    pulse = StoreCalls()
    one = begun(made, tmp_path, pulse=pulse)
    pulse.moved(OpKind.READ, 90)
    one.open_window()
    pulse.moved(OpKind.READ, 300)
    pulse.moved(OpKind.WRITE, 2000)
    one.close_window()
    pulse.moved(OpKind.WRITE, 7)
    evidence = ended(one)
    run, window = one.kernel["run"], one.kernel["window"]
    assert (run["device_read_bytes"], run["device_write_bytes"]) == (600, 4000)
    assert (window["device_read_bytes"], window["device_write_bytes"]) == (400, 2000)
    own = evidence["foreign"]["own_read_bytes"], evidence["foreign"]["own_write_bytes"]
    assert own == (300, 2000)


def test_what_ends_while_counters_are_read_is_ours_and_not_claimed_within_them(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them took 80 ms in a guest, where memory was said to have answered the rest (V6)."""
    pulse = StoreCalls()
    one = begun(made, tmp_path, pulse=pulse)

    def slowly(*args: Any, **named: Any) -> Counters:
        pulse.moved(OpKind.WRITE, 70)  # before the kernel is asked
        counts = read_counters(*args, **named)
        pulse.moved(OpKind.WRITE, 700)  # and after it was
        return counts

    monkeypatch.setattr(witness, "read_counters", slowly)
    one.open_window()
    pulse.moved(OpKind.WRITE, 1000)
    one.close_window()
    foreign = ended(one)["foreign"]
    assert (foreign["within_write_bytes"], foreign["own_write_bytes"]) == (1000, 2540)


def test_drives_on_one_file_system_are_one_device(made: list[Witness], tmp_path: Path) -> None:
    device = device_of(tmp_path)
    if device is None:
        pytest.skip("the temporary directory is on no block device")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one = begun(made, tmp_path / "a", tmp_path / "b")
    ended(one)
    assert one.kernel["run"]["device"] == device


def test_one_drive_without_a_device_leaves_the_bytes_unaccounted(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {tmp_path: "vda", tmp_path / "memory": None}
    monkeypatch.setattr(witness, "device_of", known.__getitem__)
    assert ended(begun(made, tmp_path))["accounted"] is True
    assert ended(begun(made, *known))["accounted"] is False


def test_stopping_a_witness_that_never_began_returns(tmp_path: Path) -> None:
    Witness(PassportConfig(), [tmp_path], MonotonicClock()).stop()


# --- waiting for the kernel ------------------------------------------------------------------


def test_counters_that_lag_behind_are_waited_for(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = counters(MIB, 10)
    counted(monkeypatch, counters(), late, late, counters(MIB, 20))
    one = begun(made, tmp_path, settle_s=600)
    one.settle(MIB, 20)
    assert one.kernel["run"]["device_write_bytes"] == 20
    assert one.evidence()["settle_s"] > 0


def test_counters_that_never_come_are_given_up(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = counted(monkeypatch, counters())
    one = begun(made, tmp_path, settle_s=0.11)
    one.settle(FAR, FAR)
    assert next(looks) > 2
    assert one.kernel["run"]["device_read_bytes"] == 0


def test_what_no_device_counts_is_not_waited_for(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "device_of", lambda _: None)
    one = begun(made, tmp_path, settle_s=600)
    one.settle(FAR, FAR)
    assert one.kernel["run"]["device"] is None


def test_a_clock_that_was_set_shows_beside_the_other(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begun(made, tmp_path)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 7200)
    clock = ended(one)["clock"]
    assert clock["wall_s"] - clock["monotonic_s"] == pytest.approx(-7200, abs=60)


# --- limits ----------------------------------------------------------------------------------


def ends_on(device: str | None) -> Stack:
    devices = frozenset() if device is None else frozenset({device, "md7"})
    return Stack(feet=(), devices=devices, not_compared=(), no_barrier=())


LIMITS = ("vda read_bps=5 (/a)", "vdaa read_bps=5 (/a)", "vdb write_iops=7 (/)")


@pytest.mark.parametrize(
    ("device", "told"), [("vda", [LIMITS[0]]), ("vdc", []), (None, sorted(LIMITS))]
)
def test_limits_of_other_devices_are_left_out_where_ours_is_known(
    device: str | None,
    told: list[str],
    made: list[Witness],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = Throttles(
        cpu_throttled_periods=None,
        cpu_throttled_ns=None,
        memory_limit_events=None,
        memory_stalled_ns=None,
        io_limits=LIMITS,
        governor=None,
        turbo=None,
    )
    monkeypatch.setattr(witness, "device_of", lambda _: device)
    monkeypatch.setattr(witness, "stack_of", lambda _: ends_on(device))
    monkeypatch.setattr(throttles, "read_throttles", lambda: limits)
    assert ended(begun(made, tmp_path))["throttles"]["io_limits"] == told


# --- the link --------------------------------------------------------------------------------


def test_links_of_several_drives_add_up_if_all_are_known(
    made: list[Witness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = {"a": (4e9, "PCIe a"), "b": (3e9, "PCIe b"), "c": None}
    for name in links:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(witness, "device_of", lambda path: path.name)
    monkeypatch.setattr(witness, "link_of", links.__getitem__)
    both = ended(begun(made, tmp_path / "a", tmp_path / "b"))["link"]
    assert both == {"bytes_per_second": 7e9, "source": "PCIe a, PCIe b"}
    some = ended(begun(made, tmp_path / "a", tmp_path / "c"))["link"]
    assert some == {"bytes_per_second": None, "source": None}
    links["b"] = links["a"]  # another partition of the drive, or behind the same narrow link
    assert ended(begun(made, tmp_path / "a", tmp_path / "b"))["link"]["bytes_per_second"] == 4e9


# --- the payload -----------------------------------------------------------------------------


def stored(store: Store, copies: int, nbytes: int, *, same: bool = False) -> list[CopyRef]:
    """Copies with the payload of a run; `same`: one content, stored several times."""
    whole = round_up(nbytes, PAGE_BYTES)
    payload, pool = Payload(SEED, whole), BufferPool(1, whole)
    refs = []
    for number in range(copies):
        ref = CopyRef(number, content_key(0 if same else number), Tier.CPU, nbytes, version=1)
        buffer = pool.take()
        data = payload.stamp(buffer, ref, 0, nbytes)
        sink = store.create(ref)
        sink.write(0, data)
        sink.commit()
        pool.give(buffer)
        refs.append(ref)
    return refs


def examined(
    made: list[Witness], tmp_path: Path, store: Store, refs: Sequence[CopyRef], pages: int
) -> Any:
    one = begun(made, tmp_path, payload_pages=pages)
    one.examine_payload(store, refs, Payload(SEED, MIB), SEED, lambda: False)
    return ended(one)["payload"]


def test_the_payload_of_a_run_neither_compresses_nor_repeats(
    made: list[Witness], tmp_path: Path
) -> None:
    store = MemoryStore(Tier.CPU, 16 * MIB)
    found = examined(made, tmp_path, store, stored(store, 4, MIB), 100)
    assert found["pages"] == 100
    assert found["entropy_bits_per_byte"] > 7.9
    assert found["compressed_ratio"] > 0.99
    assert found["duplicate_share"] == found["zero_share"] == found["wrong_pages"] == 0


@pytest.mark.parametrize("nbytes", [MIB, 2 * PAGE_BYTES + 512])
def test_pages_that_hold_something_else_than_was_stored_are_counted(
    nbytes: int, made: list[Witness], tmp_path: Path
) -> None:
    store = MemoryStore(Tier.CPU, 16 * MIB)
    refs = stored(store, 4, nbytes)
    stale = [refs[0]._replace(version=2), *refs[1:]]
    count = nbytes // PAGE_BYTES
    assert examined(made, tmp_path, store, refs, 4 * count)["wrong_pages"] == 0
    assert examined(made, tmp_path, store, stale, 4 * count)["wrong_pages"] == count


def test_the_same_object_stored_twice_shows_as_duplicates(
    made: list[Witness], tmp_path: Path
) -> None:
    store = MemoryStore(Tier.CPU, 16 * MIB)
    refs = stored(store, 2, 16 * PAGE_BYTES, same=True)
    assert examined(made, tmp_path, store, refs, 32)["duplicate_share"] == 0.5


def test_small_copies_give_as_many_pages_as_they_have(made: list[Witness], tmp_path: Path) -> None:
    store = MemoryStore(Tier.CPU, MIB)
    refs = stored(store, 3, 2 * PAGE_BYTES)
    assert examined(made, tmp_path, store, refs, 512)["pages"] == 6


def test_a_copy_that_is_gone_is_left_out(made: list[Witness], tmp_path: Path) -> None:
    store = MemoryStore(Tier.CPU, MIB)
    refs = stored(store, 3, 2 * PAGE_BYTES)
    store.delete(refs[1])
    assert examined(made, tmp_path, store, refs, 512)["pages"] == 4


def test_nothing_on_storage_is_nothing_to_examine(made: list[Witness], tmp_path: Path) -> None:
    store = MemoryStore(Tier.CPU, MIB)
    assert examined(made, tmp_path, store, [], 16) == {}
    gone = CopyRef(1, content_key(1), Tier.CPU, MIB, version=1)
    assert examined(made, tmp_path, store, [gone], 16) == {}


def test_a_large_sample_of_large_copies_is_taken_from_all_over(
    made: list[Witness], tmp_path: Path
) -> None:
    """Zeros in the second half only must not be missed."""
    store = MemoryStore(Tier.CPU, GIB // 64)
    ref = stored(store, 1, 4 * MIB)[0]
    tap = store.open(ref)
    tap.write(2 * MIB, memoryview(bytes(2 * MIB)))
    assert 0.2 < examined(made, tmp_path, store, [ref], 256)["zero_share"] < 0.8
