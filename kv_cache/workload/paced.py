"""A request rate for any source: the k-th arrival is not before the k-th slot.

Slots are spaced evenly, or by exponential (Poisson) or gamma-distributed gaps of the same mean,
drawn from the seed. In a closed loop a slot waits for a user who has his answer, and the request
counts from its slot: that nobody was free to ask is the system's doing, and a time that began only
when somebody was would leave out the wait (coordinated omission).
"""

from collections.abc import Iterable, Iterator, Mapping
from math import cos, pi, sin
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import NS_PER_S
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import SourceWrapper


class Pace(Struct, frozen=True, kw_only=True):
    """`rate` in requests/s; `process` fixed, poisson or gamma; `cv` is gamma's coefficient of
    variation (shape 1/cv^2)."""

    rate: float
    process: str = "fixed"
    cv: float = 2.0

    def gaps_ns(self, seed: Seed) -> Iterator[int]:
        """Yield the gaps between arrivals, for ever; the first comes before the first arrival."""
        rng = seed.child("arrivals").rng()
        mean_ns = NS_PER_S / self.rate
        while True:
            match self.process:
                case "fixed":
                    yield round(mean_ns)
                case "poisson":
                    yield round(rng.expovariate(1.0) * mean_ns)
                case "gamma":
                    shape = 1 / self.cv**2
                    yield round(rng.gammavariate(shape, mean_ns / shape))
                case _:
                    raise AssertionError(f"an unknown arrival process: {self.process}")


def over_the_day(gaps_ns: Iterable[int], swing: float, day_s: float) -> Iterator[int]:
    """Yield the gaps of arrivals whose rate follows the time of day: at the instant t it is
    1 + `swing` sin(2 pi t / `day_s`) times as high, so that a day has as many arrivals as before.

    Inverts the integrated rate (time change of a point process; Cinlar, Introduction to Stochastic
    Processes, 1975). `swing` is from 0 to 1.
    """
    day_ns = day_s * NS_PER_S
    steady_ns = moved_ns = 0
    for gap_ns in gaps_ns:
        steady_ns += gap_ns
        days, share = divmod(steady_ns / day_ns, 1)
        at_ns = max(moved_ns, round((days + _time_of_day(share, swing)) * day_ns))
        yield at_ns - moved_ns
        moved_ns = at_ns


def _time_of_day(share: float, swing: float) -> float:
    """Return the part of a day after which `share` of its arrivals have come: x where
    x + swing (1 - cos 2 pi x) / 2 pi is `share`, by Newton's method between bounds."""
    low, high = max(0.0, share - swing / pi), share
    x = high
    for _ in range(_MOST_STEPS):
        off = x + swing * (1 - cos(2 * pi * x)) / (2 * pi) - share
        if abs(off) < _NEAR:
            break
        low, high = (low, x) if off > 0 else (x, high)
        slope = 1 + swing * sin(2 * pi * x)
        x -= off / slope if slope > _NEAR else 0.0
        if not low < x < high:
            x = (low + high) / 2
    return x


_MOST_STEPS = 60
_NEAR = 1e-13


class Paced(SourceWrapper):
    """`source`, its arrivals not before their slots."""

    on_demand = False

    def __init__(self, source: Source, pace: Pace, seed: Seed, *, from_slots: bool = False) -> None:
        """`from_slots`: requests count from their slots, however late their source has them. Rows
        that wait for an answer and a pause after it count from there."""
        super().__init__(source)
        self._from_slots = from_slots
        self._pace = pace
        self._seed = seed
        self._gaps = pace.gaps_ns(seed)
        self._slot_ns = next(self._gaps)

    def next_ns(self) -> int | None:
        inner = self._source.next_ns()
        return None if inner is None else max(inner, self._slot_ns)

    def pop(self, now_ns: int) -> Request:
        due_ns = self.next_ns()
        assert due_ns is not None, "pop without an arrival"
        intended_ns = self._slot_ns if self._from_slots else due_ns
        self._slot_ns += next(self._gaps)
        return replace(self._source.pop(now_ns), intended_ns=intended_ns)

    def plan(self) -> Iterator[Request]:
        slot_ns = 0
        for request, gap_ns in zip(
            self._source.plan(), self._pace.gaps_ns(self._seed), strict=False
        ):
            slot_ns += gap_ns
            yield replace(request, intended_ns=max(slot_ns, request.intended_ns))

    def describe(self) -> Mapping[str, Any]:
        return {
            **self._source.describe(),
            "request_rate_per_s": self._pace.rate,
            "arrival_process": self._pace.process,
            "arrival_cv": self._pace.cv if self._pace.process == "gamma" else None,
        }
