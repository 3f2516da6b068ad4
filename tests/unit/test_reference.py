"""The reference's keys of a run whose every operation and request is known: the numbers by hand.

`verify` derives a result by the same formulas, so that it finds none that is wrong: these do."""

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from kv_cache.config.load import load_config
from kv_cache.core.effect import Read, Write
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.model import MODELS
from kv_cache.core.units import GIB, MIB, NS_PER_MS
from kv_cache.metrics.outcome import TierFacts
from kv_cache.result.collect import collect
from kv_cache.result.reference import reference_keys
from kv_cache.result.run import CountedRun
from kv_cache.result.sections import body
from tests.unit.test_recorder import record
from tests.unit.test_report_passport import (
    BEFORE_NS,
    ENVIRONMENT,
    IN_NS,
    copy,
    ended,
    leg,
    outcome,
    reading,
    recorded,
    writing,
)

WINDOW_S = 10


@pytest.fixture
def run() -> CountedRun:
    """Five reads of 4 MiB and two writes of 2 MiB on storage, three reads of 1 MiB in RAM; three
    requests, of 100, 200 and 600 ms; four of seven blocks of history were hits."""
    recorder = recorded()
    recorder.op(reading(copy(nbytes=32 * MIB), BEFORE_NS))
    for number in range(1, 6):
        recorder.op(reading(copy(nbytes=4 * MIB), device_ns=number * NS_PER_MS))
    for _ in range(2):
        recorder.op(writing(copy(nbytes=2 * MIB)))
    for _ in range(3):
        recorder.op(reading(copy(Tier.CPU, MIB), engine="ram"))
    for ms, looked_up, hits in ((100, 4, 3), (200, 2, 1), (600, 1, 0)):
        one = record(IN_NS, enqueued_ns=IN_NS - ms * NS_PER_MS)
        recorder.request(
            replace(one, looked_up=looked_up, hits=hits,
                    history_looked_up=looked_up, history_hits=hits)
        )  # fmt: skip
    tiers = [
        TierFacts(
            tier=tier, capacity_bytes=GIB, used_bytes=GIB // 4, peak_bytes=GIB, stranded_bytes=0,
            entries=9, store={},
        )
        for tier in (Tier.CPU, Tier.NVME)
    ]  # fmt: skip
    model = asdict(MODELS["tiny-1b"])
    left = outcome(recorder, submitted=3, tiers=tiers)
    return collect(load_config(None), left, model=model, environment=ENVIRONMENT)


TOP = {
    "requests_completed": 3,
    "total_tokens_generated": 15,
    "avg_latency_ms": 300.0,
    "storage_throughput_mbps": 24 * MIB / WINDOW_S / 1e6,
    "throughput_req_per_sec": 0.3,
    "multi_turn_cache_hits": 4,
    "multi_turn_cache_misses": 3,
    "cache_hit_rate": 4 / 7,
    "total_storage_io_latency": 3 * 7e-9,
}
STATS = {
    "cache_hits": 4,
    "cache_misses": 3,
    "cpu_entries": 9,
    "storage_entries": 9,
    "cpu_memory_used_gb": 0.25,
    "offloads_storage": 2,
    "prefill_writes": 2,
    "decode_reads": 8,
    "tier_storage_kv_bytes_read_gb": 20 * MIB / GIB,
    "tier_storage_kv_bytes_written_gb": 4 * MIB / GIB,
    "tier_cpu_kv_bytes_read_gb": 3 * MIB / GIB,
    "tier_storage_read_bandwidth_gbps": 2 * MIB / GIB,
    "tier_storage_write_bandwidth_gbps": 0.4 * MIB / GIB,
    "total_read_bytes": 23 * MIB,
    "total_write_bytes": 4 * MIB,
    "read_write_ratio": 23 / 4,
    "read_iops": 0.5,
    "write_iops": 0.2,
    "user_cache_hits": 0,
    "multi_turn_hits": 4,
    "storage_read_device_p50_ms": 3.0,
}


@pytest.mark.parametrize("key", TOP)
def test_a_key_of_the_launcher_has_the_number_that_comes_out_by_hand(
    key: str, run: CountedRun
) -> None:
    assert reference_keys([run])[key] == pytest.approx(TOP[key], rel=2e-3)


@pytest.mark.parametrize("key", STATS)
def test_a_number_of_the_cache_comes_out_by_hand(key: str, run: CountedRun) -> None:
    stats = reference_keys([run])["summary"]["cache_stats"]
    assert stats[key] == pytest.approx(STATS[key], rel=2e-3)


def test_two_ranks_have_twice_the_counts_and_rates_and_the_same_latencies(run: CountedRun) -> None:
    one, two = reference_keys([run]), reference_keys([run, run])
    for key in TOP.keys() - {"avg_latency_ms", "cache_hit_rate"}:
        assert two[key] == pytest.approx(2 * one[key])
    same = ("avg_latency_ms", "p99_latency_ms", "cache_hit_rate")
    assert [two[key] for key in same] == [one[key] for key in same]


def test_the_section_has_the_same_numbers_in_its_own_units(run: CountedRun) -> None:
    numbers: Any = body([run])
    storage = numbers["tiers"]["storage"]
    assert storage["read"]["bytes_per_second"] == 2 * MIB
    assert (storage["read"]["operations"], storage["write"]["bytes"]) == (5, 4 * MIB)
    assert numbers["reuse"]["history_hit_ratio"] == pytest.approx(4 / 7)
    assert numbers["reuse"]["reuse_hit_ratio"] == pytest.approx(4 / 7)
    assert numbers["measured"]["all"]["completed_per_second"] == pytest.approx(0.3)
    assert numbers["measured"]["batch"]["end_to_end_ms"]["mean"] == pytest.approx(300.0)
    assert numbers["headline"]["bytes"] == 24 * MIB


def test_decode_reads_and_prefill_writes_are_what_requests_loaded_and_stored() -> None:
    """As in the reference, whose phases they are: loads of history are decodes, a store that
    repairs a miss is a prefill; what the cache moves by itself is neither."""
    recorder = recorded()
    for number, cause in enumerate(Cause):
        for kind, op in ((OpKind.READ, Read), (OpKind.WRITE, Write)):
            for _ in range(1 + number):
                ref = copy()
                recorder.op(ended(op(ref, cause), leg(ref, kind, IN_NS)))
    tiers = [
        TierFacts(
            tier=Tier.NVME, capacity_bytes=GIB, used_bytes=0, peak_bytes=0, stranded_bytes=0,
            entries=0, store={},
        )
    ]  # fmt: skip
    recorder.request(record(IN_NS, enqueued_ns=IN_NS))
    left, model = outcome(recorder, submitted=1, tiers=tiers), asdict(MODELS["tiny-1b"])
    run = collect(load_config(None), left, model=model, environment=ENVIRONMENT)
    stats = reference_keys([run])["summary"]["cache_stats"]
    of = {cause: 1 + number for number, cause in enumerate(Cause)}
    wanted = of[Cause.REUSE] + of[Cause.PREFILL] + of[Cause.DECODE]
    assert (stats["decode_reads"], stats["prefill_writes"]) == (wanted, wanted)
