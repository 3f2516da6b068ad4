"""What the rules of the passport read: evidence by its path, and thresholds.

Evidence is a plain nested mapping out of a file that anybody may have written. What is missing,
null or of the wrong type is unknown; reading it never fails.
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

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


class Thresholds(Struct, frozen=True, kw_only=True):
    """Where a rule changes its mind. Shares and ratios are plain numbers: 0.05 is 5 %."""

    counter_tolerance: float = 0.05
    enough_bytes: int = 64 * MIB
    most_resident_share: float = 0.05
    link_tolerance: float = 0.05
    least_entropy_bits: float = 7.5
    least_compressed_ratio: float = 0.9
    most_duplicate_share: float = 0.01
    most_zero_share: float = 0.01
    most_read_amplification: float = 0.0  # 0 = only shown
    most_unfinished_share: float = 0.1
    most_rejected_share: float = 0.01
    least_ceiling_ratio: float = 1.5
    client_bound_ratio: float = 1.1
    most_cores_share: float = 0.8
    idle_cores: float = 0.5
    least_fill_times: float = FILL_TIMES
    most_round_range: float = MOST_RANGE
    most_round_change: float = MOST_CHANGE
    least_round_s: float = LEAST_ROUND_S
    least_round_turnover: float = LEAST_TURNOVER
    most_bandwidth_trend: float = 0.2
    most_backlog_growth: float = 0.05
    most_schedule_lag_share: float = 0.05
    least_storage_share: float = 0.01
    least_device_share: float = 0.5
    clock_tolerance_s: float = 1.0
    clock_tolerance_share: float = 0.001
    most_unverified_share: float = 0.01
    most_foreign_share: float = 0.1
    most_throttled_share: float = 0.05
    most_harness_lag_share: float = 0.25
    most_median_lag_share: float = 0.1
    most_gap_share: float = 0.02
    measurement: bool = True  # false: declared to be a test
    least_operations: int = 30
    enough_operations: int = 200

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

    def number(self, path: str) -> float | None:
        """Return a finite number of 0 or more: nothing in the evidence can be below 0."""
        return _number(self.at(path))

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


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) and number >= 0 else None


Rule = Callable[[Evidence, Thresholds], Iterable[Look]]
