"""The section `passport`: how evidence is gathered, and where its rules change their mind."""

from dataclasses import dataclass

from kv_cache.config.schema import opt
from kv_cache.core.units import MIB
from kv_cache.metrics.evidence import Thresholds

_T = Thresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassportConfig:
    """What a run proves about itself. Thresholds that are not at their default are named in the
    result, beside its verdict."""

    sample_every: int = opt(
        32, "Every so many loads from storage, one is looked up in the page cache before and after",
        low=1, high=1_000_000,
    )  # fmt: skip
    payload_pages: int = opt(
        512, "Pages that are read back from storage to judge the payload", unit="pages of 4 KiB",
        low=16, high=65_536,
    )  # fmt: skip
    link_gbytes_per_s: float = opt(
        0.0, "What the link to the device can carry; 0 = as the device says, where it does",
        unit="GB/s, 10^9 bytes", low=0, high=100_000,
    )  # fmt: skip
    settle_s: float = opt(
        2.0, "Longest wait for the kernel's counters to catch up with the run", unit="s", low=0,
        high=600,
    )  # fmt: skip
    certify_s: float = opt(
        5.0, "Length of the run against null stores that --certify adds", unit="s", above=0,
        high=3600,
    )  # fmt: skip
    counter_tolerance: float = opt(
        _T.counter_tolerance, "V1, V6, V19, V27: how far the kernel's bytes may be from ours",
        low=0, high=0.5,
    )  # fmt: skip
    enough_mib: float = opt(
        _T.enough_bytes / MIB, "V1, V6, V18, V19, V23, V27: fewer bytes than these are not judged",
        unit="MiB", low=0, high=2**20,
    )  # fmt: skip
    most_resident_share: float = opt(
        _T.most_resident_share, "V1, V3: sampled pages that may be in the page cache", low=0, high=1
    )
    link_tolerance: float = opt(
        _T.link_tolerance, "V1: how far the rate may be above the link's, as a share", low=0, high=1
    )
    least_entropy_bits: float = opt(
        _T.least_entropy_bits, "V2: entropy that the payload must have", unit="bits a byte", low=0,
        high=8,
    )  # fmt: skip
    least_compressed_ratio: float = opt(
        _T.least_compressed_ratio, "V2: size after zlib over size before, at least", low=0, high=1
    )
    most_duplicate_share: float = opt(
        _T.most_duplicate_share, "V2: sampled pages that may be duplicates", low=0, high=1
    )
    most_zero_share: float = opt(
        _T.most_zero_share, "V2: share of the sample that may be zeros", low=0, high=1
    )
    most_read_amplification: float = opt(
        _T.most_read_amplification, "V11: how often a byte may be read on average; 0 = only told",
        low=0, high=1e9,
    )  # fmt: skip
    most_unfinished_share: float = opt(
        _T.most_unfinished_share, "V12: share of what is asked by which a backlog may grow",
        low=0, high=1,
    )  # fmt: skip
    most_rejected_share: float = opt(
        _T.most_rejected_share, "V12: requests that a full queue may reject", low=0, high=1
    )
    least_ceiling_ratio: float = opt(
        _T.least_ceiling_ratio, "V13: rate with null stores over the measured rate, at least",
        low=1, high=1000,
    )  # fmt: skip
    client_bound_ratio: float = opt(
        _T.client_bound_ratio, "V13: below it, and with busy cores, the client was measured", low=1,
        high=1000,
    )  # fmt: skip
    most_cores_share: float = opt(
        _T.most_cores_share, "V13: share of all cores that the client may use", low=0, high=1
    )
    idle_cores: float = opt(
        _T.idle_cores, "V13: a client that uses less is never the limit", unit="cores", low=0,
        high=1,
    )  # fmt: skip
    least_fill_times: float = opt(
        _T.least_fill_times, "V14: bytes of the fill over the capacity under test, at least",
        low=0, high=100,
    )  # fmt: skip
    most_round_range: float = opt(
        _T.most_round_range, "V14: range of five rounds over their average", low=0, high=10
    )
    most_round_change: float = opt(
        _T.most_round_change, "V14: change of the best-fit line of five rounds over their average",
        low=0, high=10,
    )  # fmt: skip
    least_round_s: float = opt(
        _T.least_round_s, "V14: length of a round that may prove a steady state", unit="s", low=0,
        high=86_400,
    )  # fmt: skip
    least_round_turnover: float = opt(
        _T.least_round_turnover, "V14: bytes that all rounds move, over the capacity under test",
        low=0, high=1000,
    )  # fmt: skip
    most_bandwidth_trend: float = opt(
        _T.most_bandwidth_trend, "V14: change of the bandwidth while measured, over its mean",
        low=0, high=100,
    )  # fmt: skip
    most_backlog_growth: float = opt(
        _T.most_backlog_growth, "V14: growth of the backlog while measured, over the requests",
        low=0, high=1,
    )  # fmt: skip
    most_schedule_lag_share: float = opt(
        _T.most_schedule_lag_share, "V15: p99 of lateness over the shortest SLO",
        low=0, high=10,
    )  # fmt: skip
    least_storage_share: float = opt(
        _T.least_storage_share, "V18: share of all bytes that must have touched storage", low=0,
        high=1,
    )  # fmt: skip
    least_device_share: float = opt(
        _T.least_device_share,
        "V19, V27: bytes that reached the device, or its disks, over ours; below it is invalid",
        low=0, high=1,
    )  # fmt: skip
    clock_tolerance_s: float = opt(
        _T.clock_tolerance_s, "V21: how far the two clocks may be apart after a run", unit="s",
        low=0, high=3600,
    )  # fmt: skip
    clock_tolerance_share: float = opt(
        _T.clock_tolerance_share, "V21: the same as a share of the run, in addition", low=0, high=1
    )
    most_unverified_share: float = opt(
        _T.most_unverified_share, "V22: bytes read from storage that may be unverified", low=0,
        high=1,
    )  # fmt: skip
    most_foreign_share: float = opt(
        _T.most_foreign_share, "V23: bytes that others may move on the device, over ours", low=0,
        high=10,
    )  # fmt: skip
    most_throttled_share: float = opt(
        _T.most_throttled_share, "V24: share of the run in which the CPU limit may stop us", low=0,
        high=1,
    )  # fmt: skip
    most_harness_lag_share: float = opt(
        _T.most_harness_lag_share,
        "V25: p99 of the harness's lag over p99 of storage reads or writes",
        low=0, high=1000,
    )  # fmt: skip
    most_median_lag_share: float = opt(
        _T.most_median_lag_share,
        "V25: p50 of the harness's lag over p50 of storage reads or writes",
        low=0, high=1000,
    )  # fmt: skip

    most_gap_share: float = opt(
        _T.most_gap_share, "V29: share of the window in which storage may stand still", low=0,
        high=1,
    )  # fmt: skip
    measurement: bool = opt(
        _T.measurement, "V30: false declares a test, whose sample is not judged; its notes say so"
    )
    least_operations: int = opt(
        _T.least_operations, "V30: storage reads and writes that must have ended; below is invalid",
        low=0, high=1_000_000,
    )  # fmt: skip
    enough_operations: int = opt(
        _T.enough_operations, "V30: of these so many are enough; below is suspect", low=0,
        high=1_000_000,
    )  # fmt: skip

    def thresholds(self) -> Thresholds:
        values = {name: getattr(self, name) for name in THRESHOLDS if name != "enough_mib"}
        return Thresholds(enough_bytes=round(self.enough_mib * MIB), **values)


THRESHOLDS = tuple(
    "enough_mib" if name == "enough_bytes" else name for name in Thresholds.__struct_fields__
)
"""The options of this section at which a rule changes its mind."""
