"""The most throughput, whatever the latency: users grow while it improves; at the peak the run is
stopped."""

from collections.abc import Mapping
from math import hypot, inf
from typing import Any

from msgspec import Struct

from kv_cache.schedule.autoscale.rules import AutoscaleRules, Order
from kv_cache.schedule.autoscale.window_pool import SURE, VERY_SURE, Ratio, Unit, WindowPool

_LEAST_GAIN = 0.01
_FINE_ERROR = 0.02
_MISSES = 2


class Peak(Struct, frozen=True, kw_only=True):
    """Throughput with a number of users."""

    users: int
    rate: Ratio


class CapacityMode:
    """Go up, for as long as it is worth it. If going up from the first number brings nothing, go
    down: more users than a cache has room for may cost throughput."""

    def __init__(self, rules: AutoscaleRules) -> None:
        self._rules = rules
        self._unit: Unit | None = None
        self._best: Peak | None = None
        self._misses = 0
        self._grows = True
        self._improved = False

    @property
    def settled(self) -> bool:
        return False

    def standing(self) -> dict[str, Any]:
        return {"peak": self._peak()}

    def judge(self, pool: WindowPool, users: int, stuck: bool) -> Order | None:
        self._unit = self._unit or pool.unit()
        if self._unit is None or pool.windows < self._rules.least_windows:
            return None
        here, best = Peak(users=users, rate=pool.rate(self._unit)), self._best
        short, long = self._rules.is_short(pool.windows), self._rules.is_long(pool.windows)
        if best is None:
            known = long or (not short and _relative(here.rate) <= _FINE_ERROR)
            return self._first(here) if known else None
        gain, noise = _gain(here.rate, best.rate)
        if gain > max(_LEAST_GAIN, (VERY_SURE if short else SURE) * noise):
            self._best, self._misses, self._improved = here, 0, True
        elif short:
            return None
        elif noise <= _FINE_ERROR or gain + SURE * noise < abs(users / best.users - 1) / 2:
            self._misses += 1
        elif not long:
            return None
        return self._step(here, best, gain, noise)

    def _peak(self) -> dict[str, Any] | None:
        if self._best is None or self._unit is None:
            return None
        best = self._best
        return {"users": best.users, "per_s": best.rate.value, "unit": self._unit.value}

    def _first(self, here: Peak) -> Order:
        self._best = here
        return self._order(here, self._next(here.users), "the first measured", {})

    def _step(self, here: Peak, best: Peak, gain: float, noise: float) -> Order:
        comparison = f"{100 * gain:+.1f} % against {best.users} users (noise {100 * noise:.1f} %)"
        goes_to = self._next(here.users)
        return self._order(here, goes_to, comparison, {"gain": gain, "noise": noise})

    def _next(self, users: int) -> int | None:
        """Return what to try; None where the peak is known."""
        assert self._best is not None
        goes_to = self._rules.more(users) if self._grows else self._rules.fewer(users)
        if self._misses < _MISSES and goes_to != users:
            return goes_to
        if not self._grows or self._improved:
            return None
        self._grows, self._misses = False, 0
        below = self._rules.fewer(self._best.users)
        return None if below == self._best.users else below

    def _order(
        self, here: Peak, goes_to: int | None, comparison: str, evidence: Mapping[str, Any]
    ) -> Order:
        best, unit = self._best, self._unit
        assert best is not None
        assert unit is not None
        does = (
            f"the peak is {best.rate.value:.1f} {unit} with {best.users} users"
            if goes_to is None
            else f"tries {goes_to}"
        )
        return Order(
            users=best.users if goes_to is None else goes_to,
            reason=f"{here.users} users: {here.rate.value:.1f} {unit}, {comparison}; {does}",
            evidence={
                "throughput": {
                    "per_s": here.rate.value,
                    "error": here.rate.error,
                    "unit": unit.value,
                },
                "peak": self._peak(),
                "misses": self._misses,
                **evidence,
            },
            stops=goes_to is None,
        )


def _relative(rate: Ratio) -> float:
    return inf if rate.error is None or not rate.value else rate.error / rate.value


def _gain(here: Ratio, best: Ratio) -> tuple[float, float]:
    """Return by how much it is better, as a share of the best, and the standard error of that."""
    return here.value / best.value - 1, hypot(here.error or 0, best.error or 0) / best.value
