"""Whether storage has more to do than it is meant to: one number, with hysteresis.

The pressure of a signal is what was measured over its limit, and the level is the largest pressure:
1 is at a limit. A signal's measure is the median of what the latest windows saw of it, so that one
odd window does not matter. A signal that none of them saw has no pressure, however high it was
before.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

from msgspec import Struct

from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.window import SaturationLevel, Window

READS, WRITES, QUEUE = "read_latency_p95", "write_latency_p95", "queue_depth"
"""The signals: device p95 of storage reads and of storage writes, and requests that wait."""


class SaturationRules(Struct, frozen=True, kw_only=True):
    """Limits of the signals, the windows that are looked at, and the level below which storage
    that was saturated no longer is."""

    read_p95_limit_ns: int = 100 * NS_PER_MS
    write_p95_limit_ns: int = 50 * NS_PER_MS
    queued_limit: int = 100
    history_windows: int = 10
    release_level: float = 0.8

    def __post_init__(self) -> None:
        limits = (self.read_p95_limit_ns, self.write_p95_limit_ns, self.queued_limit)
        if min(*limits, self.history_windows) < 1:
            raise ConfigError(
                "every limit and the history of saturation_detection must be above 0; leave out "
                "the key to have its default"
            )


class Saturation:
    """Begins at a level of 1, ends below `release_level`."""

    def __init__(self, rules: SaturationRules) -> None:
        self._rules = rules
        self._limits = {
            READS: rules.read_p95_limit_ns,
            WRITES: rules.write_p95_limit_ns,
            QUEUE: rules.queued_limit,
        }
        self._latest: deque[dict[str, float | None]] = deque(maxlen=rules.history_windows)
        self._saturated = False

    def see(self, window: Window) -> SaturationLevel:
        self._latest.append(_signals(window))
        pressures = {
            signal: measured / limit
            for signal, limit in self._limits.items()
            if (measured := _median(seen[signal] for seen in self._latest)) is not None
        }
        by = max(pressures, key=lambda signal: pressures[signal])
        level = pressures[by]
        threshold = self._rules.release_level if self._saturated else 1
        self._saturated = level >= threshold
        return SaturationLevel(level=level, by=by if level else None, saturated=self._saturated)

    def reset(self) -> None:
        """The load was changed: what was seen until now speaks of another."""
        self._latest.clear()
        self._saturated = False


def _signals(window: Window) -> dict[str, float | None]:
    return {
        READS: storage_rank95_ns(window, OpKind.READ),
        WRITES: storage_rank95_ns(window, OpKind.WRITE),
        QUEUE: window.gauges.queued,
    }


def storage_rank95_ns(window: Window, kind: OpKind) -> float | None:
    """Device time at the rank of the p95, of however few operations; None where none of the kind
    ended well. Decisions follow it; people are shown the window's p95."""
    ops = window.ops.get((Tier.NVME, kind))
    return None if ops is None else ops.latency.rank95_ns


def _median(values: Iterable[float | None]) -> float | None:
    seen = [value for value in values if value is not None]
    return median(seen) if seen else None
