"""What the rules of the passport read: evidence by its path, and thresholds.

Evidence is a plain nested mapping out of a file that anybody may have written. What is missing,
null or of the wrong type is unknown; reading it never fails.
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Annotated, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import fields

from kv_cache.core.units import MIB
from kv_cache.metrics.judging import Look
from kv_cache.metrics.steady import (
    FILL_TIMES,
    LEAST_ROUND_S,
    LEAST_TURNOVER,
    MOST_CHANGE,
    MOST_RANGE,
    RoundLimits,
)

OBJECT_ENGINES = frozenset({"s3"})
"""Engines whose bytes go to an object store: no file, no device, no page cache of this machine."""

_LONGEST = 120  # characters of one piece of text that a sentence takes up


class Says(NamedTuple):
    """What a threshold is of, and the bounds of what it may be set to."""

    help: str
    high: float | None = 1
    low: float = 0
    unit: str | None = None


class Thresholds(Struct, frozen=True, kw_only=True):
    """Where a rule changes its mind. Shares and ratios are plain numbers: 0.05 is 5 %. Each is an
    option of the section `passport` (`config/passport.py`)."""

    counter_tolerance: Annotated[float, Says(
        "V1, V6, V19, V27: how far the kernel's bytes may be from ours", 0.5)] = 0.05  # fmt: skip
    enough_bytes: Annotated[int, Says(
        "V1, V6, V18, V19, V23, V27: fewer bytes than these are not judged", 2**20, unit="MiB",
    )] = 64 * MIB  # fmt: skip
    most_resident_share: Annotated[float, Says(
        "V1, V3: sampled pages that may be in the page cache")] = 0.05  # fmt: skip
    link_gbytes_per_s: Annotated[float, Says(
        "V1: what the link to the device can carry; 0 = as the device says, where it does",
        100_000, unit="GB/s, 10^9 bytes")] = 0.0  # fmt: skip
    link_tolerance: Annotated[float, Says(
        "V1: how far the rate may be above the link's, as a share")] = 0.05  # fmt: skip
    least_entropy_bits: Annotated[float, Says(
        "V2: entropy that the payload must have", 8, unit="bits a byte")] = 7.5  # fmt: skip
    least_compressed_ratio: Annotated[float, Says(
        "V2: size after zlib over size before, at least")] = 0.9  # fmt: skip
    most_duplicate_share: Annotated[float, Says(
        "V2: sampled pages that may be duplicates")] = 0.01  # fmt: skip
    most_zero_share: Annotated[float, Says(
        "V2: share of the sample that may be zeros")] = 0.01  # fmt: skip
    most_read_amplification: Annotated[float, Says(
        "V11: how often a byte may be read on average; 0 = only told", 1e9)] = 0.0  # fmt: skip
    most_unfinished_share: Annotated[float, Says(
        "V12: share of what is asked by which a backlog may grow")] = 0.1  # fmt: skip
    most_rejected_share: Annotated[float, Says(
        "V12: requests that a full queue may reject")] = 0.01  # fmt: skip
    least_ceiling_ratio: Annotated[float, Says(
        "V13: rate with null stores over the measured rate, at least", 1000, low=1,
    )] = 1.5  # fmt: skip
    client_bound_ratio: Annotated[float, Says(
        "V13: below it, and with busy cores, the client was measured", 1000, low=1,
    )] = 1.1  # fmt: skip
    most_cores_share: Annotated[float, Says(
        "V13: share of all cores that the client may use")] = 0.8  # fmt: skip
    idle_cores: Annotated[float, Says(
        "V13: a client that uses less is never the limit", unit="cores")] = 0.5  # fmt: skip
    least_fill_times: Annotated[float, Says(
        "V14: bytes of the fill over the capacity under test, at least", 100,
    )] = FILL_TIMES  # fmt: skip
    most_round_range: Annotated[float, Says(
        "V14: range of five rounds over their average", 10)] = MOST_RANGE  # fmt: skip
    most_round_change: Annotated[float, Says(
        "V14: change of the best-fit line of five rounds over their average", 10,
    )] = MOST_CHANGE  # fmt: skip
    least_round_s: Annotated[float, Says(
        "V14: length of a round that may prove a steady state", 86_400, unit="s",
    )] = LEAST_ROUND_S  # fmt: skip
    least_round_turnover: Annotated[float, Says(
        "V14: bytes that all rounds move, over the capacity under test", 1000,
    )] = LEAST_TURNOVER  # fmt: skip
    most_bandwidth_trend: Annotated[float, Says(
        "V14: change of the bandwidth while measured, over its mean", 100)] = 0.2  # fmt: skip
    most_backlog_growth: Annotated[float, Says(
        "V14: growth of the backlog while measured, over the requests")] = 0.05  # fmt: skip
    most_schedule_lag_share: Annotated[float, Says(
        "V15: p99 of lateness over the shortest SLO", 10)] = 0.05  # fmt: skip
    least_storage_share: Annotated[float, Says(
        "V18: share of all bytes that must have touched storage")] = 0.01  # fmt: skip
    least_device_share: Annotated[float, Says(
        "V19, V27: bytes that reached the device, or its disks, over ours; below it is invalid",
    )] = 0.5  # fmt: skip
    clock_tolerance_s: Annotated[float, Says(
        "V21: how far the two clocks may be apart after a run", 3600, unit="s")] = 1.0  # fmt: skip
    clock_tolerance_share: Annotated[float, Says(
        "V21: the same as a share of the run, in addition")] = 0.001  # fmt: skip
    most_unverified_share: Annotated[float, Says(
        "V22: bytes read from storage that may be unverified")] = 0.01  # fmt: skip
    most_foreign_share: Annotated[float, Says(
        "V23: bytes that others may move on the device, over ours", 10)] = 0.1  # fmt: skip
    most_throttled_share: Annotated[float, Says(
        "V24: share of the run in which the CPU limit may stop us")] = 0.05  # fmt: skip
    most_harness_lag_share: Annotated[float, Says(
        "V25: p99 of the harness's lag over p99 of storage reads or writes", 1000,
    )] = 0.25  # fmt: skip
    most_median_lag_share: Annotated[float, Says(
        "V25: p50 of the harness's lag over p50 of storage reads or writes", 1000,
    )] = 0.1  # fmt: skip
    most_gap_share: Annotated[float, Says(
        "V29: share of the window in which storage may stand still")] = 0.02  # fmt: skip
    measurement: Annotated[bool, Says(
        "V30: false declares a test, whose sample is not judged; its notes say so", high=None,
    )] = True  # fmt: skip
    least_operations: Annotated[int, Says(
        "V30: storage reads and writes that must have ended; below is invalid", 1_000_000,
    )] = 30  # fmt: skip
    enough_operations: Annotated[int, Says(
        "V30: of these so many are enough; below is suspect", 1_000_000)] = 200  # fmt: skip

    @property
    def rounds(self) -> RoundLimits:
        """Limits of the rounds before a measurement."""
        return RoundLimits(
            most_range=self.most_round_range,
            most_change=self.most_round_change,
            least_s=self.least_round_s,
            least_turnover=self.least_round_turnover,
        )

    def changed(self) -> dict[str, list[float]]:
        """`[value, default]` of each threshold that is not at its default."""
        pairs = {f.name: [getattr(self, f.name), f.default] for f in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class Evidence(Struct, frozen=True):
    """Evidence by dotted path. Whatever is not there, or not of the type asked for, is None."""

    tree: Mapping[str, Any]

    def at(self, path: str) -> Any:
        value: Any = self.tree
        for name in path.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(name)
        return value

    def number(self, path: str, *, least: float = 0) -> float | None:
        """Return a finite number of 0 or more: nothing in the evidence can be below 0, but for what
        says how far it can."""
        return _number(self.at(path), least)

    def numbers(self, path: str, *names: str) -> list[float | None]:
        return [self.number(f"{path}.{name}") for name in names]

    def text(self, path: str) -> str | None:
        """Text that is not empty."""
        value = self.at(path)
        return value[:_LONGEST] if isinstance(value, str) and value else None

    def flag(self, path: str) -> bool | None:
        value = self.at(path)
        return value if isinstance(value, bool) else None

    def words(self, path: str) -> list[str] | None:
        """Return a list of words. What is no text counts too: it must not get lost."""
        value = self.at(path)
        if not isinstance(value, list | tuple):
            return None
        return [(item if isinstance(item, str) else str(item))[:_LONGEST] for item in value]

    def rows(self, path: str) -> "list[Evidence] | None":
        value = self.at(path)
        if not isinstance(value, list | tuple):
            return None
        return [Evidence(item) for item in value if isinstance(item, Mapping)]


def _number(value: Any, least: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) and number >= least else None


Rule = Callable[[Evidence, Thresholds], Iterable[Look]]
