"""A request rate for any source: the k-th arrival is not before the k-th slot.

Slots are spaced evenly, or by exponential (Poisson) or gamma-distributed gaps of the same mean,
drawn from the seed. In a closed loop a slot waits for a user who has his answer, and the request
counts from its slot: that nobody was free to ask is the system's doing, and a time that began only
when somebody was would leave out the wait (coordinated omission).
"""

from collections.abc import Iterator, Mapping
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
