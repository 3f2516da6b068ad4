"""A curve of latency over throughput: where its knee is, and what ends it."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from kv_cache.core.format import gib_per_s
from kv_cache.core.units import ns_to_ms


class CurvePoint(Struct, frozen=True, kw_only=True):
    """One load that was run: how much ended, and how long it took on average from the intended
    instant. `response_ns` is None where nothing ended."""

    load: float
    throughput_per_s: float
    response_ns: float | None

    @property
    def power(self) -> float | None:
        """Throughput over mean response (Kleinrock, "Power and deterministic rules of thumb",
        ICC 1979): it grows while a load adds throughput, and falls when it only adds waiting."""
        return self.throughput_per_s / self.response_ns if self.response_ns else None


def knee(points: Iterable[CurvePoint]) -> CurvePoint | None:
    """Return the point of the greatest power, the lower load of equals; None where nothing
    ended."""
    measured = [(p.power, -p.load, p) for p in points if p.power]
    return max(measured, key=lambda row: row[:2])[2] if measured else None


class Bottleneck(StrEnum):
    """What limits the load."""

    DEVICE_BANDWIDTH = "device-bandwidth"
    LATENCY = "latency"
    CLIENT = "client"
    MEMORY = "memory"


class Limited(Struct, frozen=True, kw_only=True):
    by: Bottleneck
    why: str


MOST_LATENESS = 0.05
"""Share of an SLO's limit: requests that come later than this by our own doing falsify the 95th
percentile by more than the resolution of a capacity search."""
MOST_CORES = 0.9
"""Share of the cores: above, a thread that has its data waits for a core often enough to show."""
MOST_MEMORY_STALL = 0.1
"""Share of the time in which some thread waited for memory to be freed (PSI "some"). What is
stalled so pages in and out, and its latencies are not the storage's."""
DEVICE_BUSY = 0.9
"""Utilisation is the share of time with anything in flight: a device below has idled, and did not
limit. One above need not be full, as it may serve many at once; so the rate is looked at too."""
NEAR_PEAK = 0.95
"""Share of the highest rate seen: repeated runs at one load differ by about as much."""


class Pressure(Struct, frozen=True, kw_only=True):
    """What one probe looked like. None is not known.

    `lateness_p99_ns` is from the intended instant until we had the request in our queue;
    `limit_ns` the tightest SLO. `peak_bytes_per_s` is the most that any probe moved to and
    from storage, lower loads and higher ones.
    """

    bytes_per_s: float
    peak_bytes_per_s: float
    utilisation: float | None
    cores_used: float | None
    cores: float
    lateness_p99_ns: float | None
    limit_ns: float
    rejected_share: float = 0.0
    memory_stall_share: float | None = None
    busy_cores: float | None = None  # of the whole host


def limit_of(probe: Pressure, *, by_client: bool = True) -> Limited:
    """Return what limited the lowest load that missed its SLOs (or the highest that was run).

    Our own faults come first, as no other number is the storage's while they last; not
    `by_client`, what the client was late by is known not to be why. What remains when nothing is
    full is latency: single requests are too slow for their SLO.
    """
    for look in (_client, _memory, _device) if by_client else (_memory, _device):
        if why := look(probe):
            return why
    return Limited(by=Bottleneck.LATENCY, why=_latency(probe))


def _client(p: Pressure) -> Limited | None:
    late = p.lateness_p99_ns
    if late is not None and late > MOST_LATENESS * p.limit_ns:
        return Limited(
            by=Bottleneck.CLIENT,
            why=f"1 % of the requests came {ns_to_ms(late):.3g} ms late or more, by no doing of "
            f"storage, above {MOST_LATENESS:.0%} of the {ns_to_ms(p.limit_ns):g} ms of the SLO"
            f"{_cores(p)}",
        )
    if p.cores_used is not None and p.cores_used >= MOST_CORES * p.cores:
        return Limited(
            by=Bottleneck.CLIENT,
            why=f"the client used {p.cores_used:.1f} of {p.cores:g} cores",
        )
    return None


def _memory(p: Pressure) -> Limited | None:
    stalled = p.memory_stall_share
    if stalled is None or stalled < MOST_MEMORY_STALL:
        return None
    return Limited(
        by=Bottleneck.MEMORY, why=f"threads waited for memory to be freed {stalled:.0%} of the time"
    )


def _device(p: Pressure) -> Limited | None:
    near = p.bytes_per_s >= NEAR_PEAK * p.peak_bytes_per_s > 0
    if not near or (p.utilisation is not None and p.utilisation < DEVICE_BUSY):
        return None
    busy = "unknown" if p.utilisation is None else f"{p.utilisation:.0%}"
    return Limited(
        by=Bottleneck.DEVICE_BANDWIDTH,
        why=f"storage moved {gib_per_s(p.bytes_per_s)} of at most "
        f"{gib_per_s(p.peak_bytes_per_s)} that were seen at any load (utilisation {busy})",
    )


def _latency(p: Pressure) -> str:
    of_peak = p.bytes_per_s / p.peak_bytes_per_s if p.peak_bytes_per_s else 0.0
    busy = "unknown" if p.utilisation is None else f"{p.utilisation:.0%}"
    rejected = f"; {p.rejected_share:.1%} were rejected by a full queue" if p.rejected_share else ""
    return (
        f"requests took too long though storage moved {of_peak:.0%} of the highest rate seen, "
        f"with utilisation {busy}{_cores(p)}{rejected}"
    )


def _cores(p: Pressure) -> str:
    """Say who used the cores, where that is known: others may be why we waited."""
    if p.cores_used is None:
        return ""
    others = "" if p.busy_cores is None else f", others {max(0.0, p.busy_cores - p.cores_used):.1f}"
    return f"; the client used {p.cores_used:.1f} of {p.cores:g} cores{others}"
