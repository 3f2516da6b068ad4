"""The client's ceiling over the size of objects: arithmetic, the sentence, and the storage that is
rehearsed."""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import isclose
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.bench.client_ceiling import Curve
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Op, Read, Write
from kv_cache.core.kinds import Cause, OpKind, Phase, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, KIB, MIB, NS_PER_S, PAGE_BYTES
from kv_cache.metrics.ceiling import (
    CeilingPoint,
    ceiling_sentence,
    limit_object_bytes,
    smaller_sizes,
)
from kv_cache.metrics.evidence import Evidence
from kv_cache.metrics.window import NO_LATENCY, Gauges, OpWindow, Window
from kv_cache.tiers import native
from kv_cache.tiers.base import Capability
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.file_options import FSYNC, LAYOUTS
from kv_cache.tiers.native import AbortFlag
from kv_cache.tiers.nvme.rehearsal import rehearsed_storage
from kv_cache.tiers.payload import Payload


def at(size: int, operation_us: float, operations: int = 1000) -> CeilingPoint:
    """Operations that take so long each."""
    seconds = operations * operation_us / 1e6
    return CeilingPoint(
        seconds=seconds, operations=operations, bytes=operations * size, cpu_s=seconds
    )


LINE = [at(256 * KIB, 114), at(32 * KIB, 58), at(4 * KIB, 51)]
"""50 us an operation and 1 us for 4 KiB (256 KiB in 64 us)."""


def test_the_limit_lies_where_an_objects_bytes_take_storage_as_long_as_the_client() -> None:
    # Storage: 1 us for 1 KiB. s / 1 KiB us = 50 us + s / 4 KiB us, so s = 66.67 KiB.
    assert limit_object_bytes(LINE, KIB * 1e6) == round(200 / 3 * KIB)


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        (4096 / 51e-6 * 0.999, None),  # less than it does at the smallest
        (256 * KIB / 114e-6 * 1.001, 256 * KIB),  # more than at the largest
    ],
)
def test_the_limit_is_sought_among_the_sizes_that_were_measured(
    rate: float, limit: int | None
) -> None:
    assert limit_object_bytes(LINE, rate) == limit


def test_without_operations_there_is_no_limit() -> None:
    idle = CeilingPoint(seconds=2.0, operations=0, bytes=0, cpu_s=0.1)
    assert idle.object_bytes is None
    assert limit_object_bytes([idle], 1e9) is None


curves = st.lists(
    st.tuples(st.integers(1, 2**18), st.floats(1, 1e6), st.integers(1, 10**6)), min_size=1,
    max_size=5, unique_by=lambda row: row[0],
).map(lambda rows: [at(pages * PAGE_BYTES, us, count) for pages, us, count in rows])  # fmt: skip
rates = st.floats(1, 1e12)


@given(curves, rates, rates)
def test_a_faster_storage_needs_larger_objects(
    points: Sequence[CeilingPoint], one: float, other: float
) -> None:
    slow, fast = (limit_object_bytes(points, rate) for rate in sorted((one, other)))
    assert slow is None or (fast is not None and slow <= fast + 1)


@given(curves, rates)
def test_the_client_keeps_up_at_sizes_above_the_limit_and_not_at_it(
    points: Sequence[CeilingPoint], rate: float
) -> None:
    limit = limit_object_bytes(points, rate)
    sizes = {p.bytes // p.operations: p.bytes_per_second for p in points}
    above = [size for size in sizes if limit is None or size > limit + 1]
    assert all(sizes[size] >= rate * (1 - 1e-9) for size in above)
    if limit is not None:
        assert min(sizes) <= limit + 1
        assert limit <= max(sizes) + 1


@given(st.integers(1, 2**30))
def test_smaller_sizes_are_pages_and_come_down_to_one(nbytes: int) -> None:
    sizes = smaller_sizes(nbytes)
    assert all(size % PAGE_BYTES == 0 for size in sizes)
    assert all(large > small for large, small in pairwise([nbytes, *sizes]))
    assert not sizes or sizes[-1] == PAGE_BYTES


# --- for people ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "end"),
    [
        (KIB * 1e6, "2.25 times what was measured; below 67 KiB it would be the limit itself"),
        (1e6, "2299.51 times what was measured; down to 4 KiB it would not be the limit"),
        (3 * GIB, "0.71 times what was measured; it is the limit itself"),
    ],
)
def test_the_sentence_names_what_the_client_could_do_and_where_it_limits(
    rate: float, end: str
) -> None:
    points = [{"object_bytes": point.object_bytes} for point in LINE]
    ceiling = {
        "operations_per_second": LINE[0].operations_per_second,
        "bytes_per_second": LINE[0].bytes_per_second,
        "ratio": LINE[0].bytes_per_second / rate,
        "limit_object_bytes": limit_object_bytes(LINE, rate),
        "points": points,
    }
    client = {"ceiling": ceiling, "cores": 2}
    assert ceiling_sentence(Evidence(client)) == (
        f"this client could do 8,772 operations/s or 2.142 GiB/s at 256 KiB on 2 cores, {end}"
    )


def test_the_sentence_of_an_object_store_knows_no_limit_as_its_requests_are_not_rehearsed() -> None:
    ceiling = {
        "operations_per_second": 1002.0, "bytes_per_second": 7.83 * GIB, "ratio": 45.56,
        "limit_object_bytes": 41 * KIB, "points": [{"object_bytes": 8 * MIB}],
    }  # fmt: skip
    assert ceiling_sentence(Evidence({"ceiling": ceiling, "cores": 2}), objects=True) == (
        "without what requests to the server cost, this client could do 1,002 operations/s or "
        "7.83 GiB/s at 8.0 MiB on 2 cores, 45.56 times what was measured"
    )


# --- the windows of a rehearsal --------------------------------------------------------------


def window(start_s: float, operations: int, nbytes: int) -> Window:
    reads = OpWindow(
        operations=operations, failed=0, bytes=operations * nbytes, calls=0, latency=NO_LATENCY
    )
    gauges = Gauges(
        users=1, workers=1, in_flight=0, queued=0, oldest_queued_ns=0, behind=0, submitted=0
    )
    start_ns = round(start_s * NS_PER_S)
    return Window(
        start_ns=start_ns, end_ns=start_ns + NS_PER_S // 2, phase=Phase.MEASURE, gauges=gauges,
        submitted=0, ops={(Tier.NVME, OpKind.READ): reads}, classes={},
        machine={"process_cores": 1.5},
    )  # fmt: skip


def test_objects_become_smaller_as_time_passes() -> None:
    curve, shares = Curve(8.0), [1.0]
    curve.move_less = shares.append
    for number in range(16):
        curve.watch(window(number / 2, 100, round(256 * KIB * shares[-1])))
    assert shares == [1.0, 1 / 8, 1 / 64]
    points = curve.points()
    assert [point.object_bytes for point in points or ()] == [256 * KIB, 32 * KIB, 4 * KIB]
    assert [point.seconds for point in points or ()] == [3.5, 1.5, 1.5], (
        "the first window is left out"
    )
    assert all(isclose(point.cpu_s, 1.5 * point.seconds) for point in points or ())


def test_without_operations_sizes_stay() -> None:
    curve, shares = Curve(2.0), list[float]()
    curve.move_less = shares.append
    for number in range(4):
        curve.watch(window(number / 2, 0, 0))
    assert not shares
    assert [point.operations for point in curve.points() or ()] == [0]


def test_a_rehearsal_that_is_over_before_its_first_window_says_nothing() -> None:
    assert Curve(2.0).points() is None


# --- the storage that is rehearsed -----------------------------------------------------------

needs_native = pytest.mark.skipif(isinstance(native.library(), str), reason="no native transfers")


@needs_native
@pytest.mark.parametrize("fsync", FSYNC)
@pytest.mark.parametrize("verify", Verify)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rehearsal_goes_the_way_of_the_run_and_may_move_less(
    layout: str, verify: Verify, fsync: str, tmp_path: Path
) -> None:
    store = rehearsed_storage(64 * MIB, layout=layout, engine="auto", fsync=fsync)
    assert store is not None
    assert Capability.AT_ONCE | Capability.PLACED in store.capabilities
    payload, clock, abort = Payload(Seed(3), MIB), MonotonicClock(), AbortFlag()
    batches = native_batches(payload, clock, verify, abort, 4)
    pools = BufferPool(2, MIB), BufferPool(2, MIB)
    mover = Mover(
        {Tier.NVME: store}, payload, *pools, clock, verify, abort, rehearse=True, batches=batches
    )
    refs = [CopyRef(n, content_key(n), Tier.NVME, 64 * KIB, version=1) for n in range(40)]
    writes: list[Op] = [Write(ref, Cause.PREFILL) for ref in refs]
    reads: list[Op] = [Read(ref, Cause.REUSE) for ref in refs]
    units = len(mover.units(reads))
    for share, nbytes in ((1.0, 64 * KIB), (0.25, 16 * KIB), (1e-9, PAGE_BYTES)):
        mover.share = share
        for ops in (writes, reads) if share == 1.0 else (reads,):
            done = mover.perform_all(ops)
            assert [one.op for one in done] == list(ops)
            assert all(one.ok and one.legs[0].nbytes == nbytes for one in done)
    assert len(mover.units(reads)) <= units
    assert [pool.available for pool in pools] == [2, 2]
    store.close()


def _note(seen: list[str], _: FrameType, event: str, __: object) -> None:
    seen.append(event)


@needs_native
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_of_an_object_takes_as_many_steps_of_python_as_a_smaller_object(layout: str) -> None:
    """Or the client is the limit of sizes at which it is not."""
    frames = {}
    for share, nbytes in ((1.0, 16 * KIB), (0.25, 64 * KIB)):
        store = rehearsed_storage(64 * MIB, layout=layout, engine="auto")
        assert store is not None
        payload, clock, abort = Payload(Seed(3), MIB), MonotonicClock(), AbortFlag()
        batches = native_batches(payload, clock, Verify.STAMPS, abort)
        pools = BufferPool(2, MIB), BufferPool(2, MIB)
        mover = Mover(
            {Tier.NVME: store}, payload, *pools, clock, Verify.STAMPS, abort,
            rehearse=True, batches=batches,
        )  # fmt: skip
        mover.share = share
        refs = [CopyRef(n, content_key(n), Tier.NVME, nbytes, version=1) for n in range(40)]
        seen = list[str]()
        sys.setprofile(partial(_note, seen))
        try:
            for part in (Write, Read):
                list(mover.perform_many([part(ref, Cause.REUSE) for ref in refs]))
        finally:
            sys.setprofile(None)
        frames[share] = seen.count("call")
        store.close()
    assert frames[0.25] <= frames[1.0] + len(refs) // 4  # of what is asked once


def test_what_python_moves_has_no_such_storage() -> None:
    assert rehearsed_storage(MIB, layout="file", engine="buffered") is None
    assert rehearsed_storage(MIB, layout="file", engine="direct", write_engine="mmap") is None
