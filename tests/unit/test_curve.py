"""The knee of a curve, and the word for what limits."""

import pytest
from msgspec.structs import replace

from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.metrics.curve import Bottleneck, CurvePoint, Pressure, knee, limit_of


def mm1(load: float, capacity: float = 1000.0) -> CurvePoint:
    response_ns = NS_PER_S / (capacity - load)
    return CurvePoint(load=load, throughput_per_s=load, response_ns=response_ns)


def test_the_knee_of_a_single_queue_is_at_half_its_capacity() -> None:
    found = knee(mm1(load) for load in range(50, 1000, 50))
    assert found is not None
    assert found.load == 500


def test_of_equal_points_the_lower_load_is_the_knee() -> None:
    more = CurvePoint(load=8, throughput_per_s=8, response_ns=4)
    less = CurvePoint(load=4, throughput_per_s=4, response_ns=2)
    assert knee([more, less]) == knee([less, more]) == less


def test_where_nothing_ended_there_is_no_knee() -> None:
    nothing = CurvePoint(load=5, throughput_per_s=0, response_ns=None)
    assert knee([]) is None
    assert knee([nothing]) is None
    assert knee([nothing, mm1(400)]) == mm1(400)


CALM = Pressure(
    bytes_per_s=1e9,
    peak_bytes_per_s=2e9,
    utilisation=0.6,
    cores_used=1.0,
    cores=4,
    lateness_p99_ns=0.1 * NS_PER_MS,
    limit_ns=50 * NS_PER_MS,
)
FULL = replace(CALM, bytes_per_s=1.95e9, utilisation=0.99)


@pytest.mark.parametrize(
    ("probe", "word", "told"),
    [
        (CALM, Bottleneck.LATENCY, "50% of the highest rate seen, with utilisation 60%"),
        (replace(CALM, busy_cores=3.9), Bottleneck.LATENCY, "used 1.0 of 4 cores, others 2.9"),
        (replace(CALM, rejected_share=0.021), Bottleneck.LATENCY, "2.1% were rejected"),
        (FULL, Bottleneck.DEVICE_BANDWIDTH, "1.816 GiB/s of at most 1.863 GiB/s"),
        (replace(FULL, utilisation=None), Bottleneck.DEVICE_BANDWIDTH, "utilisation unknown"),
        (replace(FULL, utilisation=0.5), Bottleneck.LATENCY, "utilisation 50%"),
        (replace(FULL, memory_stall_share=0.3), Bottleneck.MEMORY, "30% of the time"),
        (replace(FULL, memory_stall_share=0.05), Bottleneck.DEVICE_BANDWIDTH, "GiB/s"),
        (replace(FULL, lateness_p99_ns=3 * NS_PER_MS), Bottleneck.CLIENT, "3 ms late"),
        (
            replace(FULL, lateness_p99_ns=55 * NS_PER_MS, cores_used=0.1, busy_cores=4.0),
            Bottleneck.CLIENT,
            "by no doing of storage, above 5% of the 50 ms of the SLO; the client used 0.1 of 4",
        ),
        (replace(FULL, cores_used=3.7), Bottleneck.CLIENT, "3.7 of 4 cores"),
        (
            replace(FULL, cores_used=None, lateness_p99_ns=None),
            Bottleneck.DEVICE_BANDWIDTH,
            "GiB/s",
        ),
        (replace(CALM, bytes_per_s=0, peak_bytes_per_s=0), Bottleneck.LATENCY, "0% of the highest"),
    ],
)
def test_what_limited_a_probe_is_one_word_and_its_reason(
    probe: Pressure, word: Bottleneck, told: str
) -> None:
    found = limit_of(probe)
    assert found.by is word
    assert told in found.why


def test_a_client_whose_lateness_explains_nothing_did_not_limit_the_load() -> None:
    """A device 25 times too slow for the SLO: 0.2 ms of lateness is not why."""
    late = replace(FULL, lateness_p99_ns=3 * NS_PER_MS)
    assert limit_of(late, by_client=False).by is Bottleneck.DEVICE_BANDWIDTH
