"""The headline's batches and interval: to the last byte, and on devices whose level is known."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.effect import CopyRef, EndedLegs, IoChunk
from kv_cache.core.kinds import OpKind, RunMode, Tier
from kv_cache.core.units import MIB, NS_PER_S
from kv_cache.metrics.intervals import LEAST_BATCHES
from kv_cache.metrics.pace import (
    KINDS,
    MEASURED,
    METRIC,
    MOST_SLOTS,
    SLOT_NS,
    Batch,
    BytesOverTime,
    MovedBytes,
    batch_count,
    headline,
    together,
)

_CALLS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 40 * NS_PER_S),  # began
        st.integers(0, 20 * NS_PER_S),  # lasted
        st.integers(1, 2**30),
    ),
    max_size=30,
)


@given(_CALLS, st.integers(NS_PER_S, 30 * NS_PER_S))
def test_batches_and_edges_hold_each_byte_once(
    calls: list[tuple[OpKind, int, int, int]], length_ns: int
) -> None:
    start, end, pace, moved = 5 * NS_PER_S, 5 * NS_PER_S + length_ns, BytesOverTime(), 0
    for kind, began, lasted, nbytes in calls:
        if began + lasted >= start:
            pace.call(kind, IoChunk(began + lasted, nbytes), began, start, end)
            moved += nbytes if began + lasted <= end else 0
    paced = pace.read(length_ns, KINDS)
    assert paced.nbytes == moved
    if paced.batches:
        inside = sum(batch.nbytes for batch in paced.batches)
        assert inside == paced.nbytes - paced.before_bytes + paced.after_bytes
        assert sum(batch.seconds for batch in paced.batches) == pytest.approx(length_ns / 1e9)


@given(_CALLS, st.one_of(st.none(), st.integers(NS_PER_S, 30 * NS_PER_S)), st.integers(1, 100))
def test_calls_at_once_are_those_one_by_one(
    calls: list[tuple[OpKind, int, int, int]], length_ns: int | None, stretched: int
) -> None:
    """Also of a run that is so long that its slots become longer."""
    end = None if length_ns is None else length_ns * stretched
    singly, at_once = BytesOverTime(), BytesOverTime()
    for kind in KINDS:
        legs = [
            ((began + lasted) * stretched, began * stretched, CopyRef(0, b"", Tier.NVME, nbytes, 0))
            for each, began, lasted, nbytes in calls
            if each is kind and began + lasted > 0
        ]
        for ended, began, ref in legs:
            singly.call(kind, IoChunk(ended, ref.nbytes), began, 0, end)
        if legs:
            at_once.calls(kind, EndedLegs(*zip(*legs, strict=True)), 0, end)
    window_ns = end or 6000 * NS_PER_S
    assert at_once.read(window_ns, KINDS) == singly.read(window_ns, KINDS)


def test_a_call_is_spread_over_its_time_and_counted_apart_outside_the_window() -> None:
    pace, end = BytesOverTime(), 8 * NS_PER_S
    pace.call(OpKind.READ, IoChunk(NS_PER_S, 1000), -NS_PER_S, 0, end)  # half of it before
    pace.call(OpKind.READ, IoChunk(6 * NS_PER_S, 4000), 2 * NS_PER_S, 0, end)
    pace.call(OpKind.READ, IoChunk(9 * NS_PER_S, 600), 7 * NS_PER_S, 0, end)  # half of it after
    pace.call(OpKind.WRITE, IoChunk(7 * NS_PER_S, 9), 7 * NS_PER_S, 0, end)
    paced = pace.read(end, (OpKind.READ,))
    assert (paced.nbytes, paced.before_bytes, paced.after_bytes) == (5000, 500, 300)
    assert paced.call_s == pytest.approx((1000 * 2 + 4000 * 4) / 5000)
    assert paced.batches == ()  # batches of two calls each would be too few
    assert pace.read(end, (OpKind.WRITE,)).batches == tuple(
        Batch(0.25, 9 * (slot == 27)) for slot in range(32)
    )


def test_a_long_window_takes_no_more_memory() -> None:
    pace, seconds = BytesOverTime(), MOST_SLOTS * SLOT_NS // NS_PER_S * 5
    for second in range(seconds):
        pace.call(OpKind.READ, IoChunk((second + 1) * NS_PER_S, 7), second * NS_PER_S, 0, None)
    batches = pace.read(seconds * NS_PER_S, (OpKind.READ,)).batches
    assert len(batches) == 128
    assert all(batch.nbytes == pytest.approx(7 * batch.seconds, abs=28) for batch in batches)


@pytest.mark.parametrize("in_flight", [1, 4, 16])
def test_a_device_of_constant_rate_has_a_narrow_interval_though_its_calls_end_in_bursts(
    in_flight: int,
) -> None:
    """200 MB/s shared by calls of 16 MiB that began together, as under a cgroup's limit."""
    pace, end, calls_ns = (
        BytesOverTime(),
        40 * NS_PER_S,
        round(in_flight * 16 * MIB / 200e6 * NS_PER_S),
    )
    for began in range(-calls_ns // 3, end, calls_ns):
        for _ in range(in_flight):
            pace.call(OpKind.WRITE, IoChunk(began + calls_ns, 16 * MIB), began, 0, end)
    found = pace.read(end, KINDS).interval(40.0)
    assert found is not None
    assert 200e6 in found
    assert (found.high - found.low) / 2 < 0.03 * 200e6


def test_the_interval_holds_the_level_of_a_noisy_device_about_as_often_as_it_says() -> None:
    """Its rate changes every half second, and a call is a tenth of one."""
    rng, held, runs = Random(5), 0, 300
    for _ in range(runs):
        pace, at, rate = BytesOverTime(), 0, 0.0
        while at < 30 * NS_PER_S:
            rate = 0.5 * rate + rng.gauss(0, 20e6) if at % (NS_PER_S // 2) == 0 else rate
            ended = at + NS_PER_S // 10
            pace.call(OpKind.READ, IoChunk(ended, round((200e6 + rate) / 10)), at, 0, 30 * NS_PER_S)
            at = ended
        found = pace.read(30 * NS_PER_S, KINDS).interval(30.0)
        held += found is not None and 200e6 in found
    assert 0.92 <= held / runs <= 0.99


def test_there_is_no_interval_of_nothing_of_a_short_window_or_of_long_calls() -> None:
    none = BytesOverTime().read(60 * NS_PER_S, KINDS)
    assert (none.interval(60.0), none.why_none()) == (None, "nothing was moved")
    short = MovedBytes(nbytes=9, before_bytes=0, after_bytes=0, call_s=0.0, batches=())
    assert (short.interval(5.0), short.why_none()) == (None, "an interval needs a window of 8 s")
    slow = MovedBytes(nbytes=9, before_bytes=0, after_bytes=0, call_s=3.0, batches=())
    assert slow.why_none() == "an interval needs a window of 48 s"
    assert batch_count(30.0, 3.0) == batch_count(7.9, 0.1) == 0
    assert (batch_count(8.0, 0.1), batch_count(48.0, 3.0)) == (32, LEAST_BATCHES)
    assert batch_count(3600.0, 0.1) == 128


def test_an_interval_does_not_go_below_nothing() -> None:
    rows = tuple(Batch(1.0, nbytes) for nbytes in (0, 0, 900, 0, 0, 0, 0, 100))
    found = MovedBytes(nbytes=1000, before_bytes=0, after_bytes=0, call_s=0.1, batches=rows)
    interval = found.interval(8.0)
    assert interval is not None
    assert interval.low == 0.0


@pytest.mark.parametrize(
    ("mode", "metric"),
    [
        (RunMode.STANDARD, "storage.bytes_per_second"),
        (RunMode.PREFILL_ONLY, "storage.write.bytes_per_second"),
        (RunMode.DECODE_ONLY, "storage.read.bytes_per_second"),
    ],
)
def test_the_headline_is_what_the_mode_measures(mode: RunMode, metric: str) -> None:
    pace = BytesOverTime()
    pace.call(OpKind.READ, IoChunk(NS_PER_S, 30), 0, 0, None)
    pace.call(OpKind.WRITE, IoChunk(NS_PER_S, 12), 0, 0, None)
    found = headline(mode, 2.0, pace.read(2 * NS_PER_S, MEASURED[mode]))
    expected = {OpKind.READ: 30, OpKind.WRITE: 12}
    assert found["metric"] == metric == METRIC[MEASURED[mode]]
    assert found["bytes_per_second"] == sum(expected[kind] for kind in MEASURED[mode]) / 2.0


def test_rates_of_ranks_add_up_in_each_batch_and_opposite_waves_cancel() -> None:
    def rank(*rows: int) -> tuple[float, MovedBytes]:
        batches = tuple(Batch(1.0, nbytes) for nbytes in rows)
        return 8.0, MovedBytes(nbytes=sum(rows), before_bytes=0, after_bytes=0, call_s=0.1,
                          batches=batches)  # fmt: skip

    seconds, both = together([rank(*[10, 30] * 4), rank(*[30, 10] * 4)])
    assert seconds == pytest.approx(8.0)
    assert both.nbytes == 320
    assert [batch.nbytes / batch.seconds for batch in both.batches] == [pytest.approx(40.0)] * 8
    assert together([rank(1, 2), rank(1, 2, 3)])[1].batches == ()
