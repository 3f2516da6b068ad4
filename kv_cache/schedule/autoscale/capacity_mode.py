"""The most throughput, whatever the latency: users grow while it improves; at the peak the run is
stopped."""

from collections.abc import Mapping
from math import hypot, inf
from typing import Any

from msgspec import Struct

from kv_cache.metrics.window import Window
from kv_cache.schedule.autoscale.backlog import Backlog
from kv_cache.schedule.autoscale.rules import AutoscaleRules, Order
from kv_cache.schedule.autoscale.window_pool import SURE, VERY_SURE, Ratio, Unit, WindowPool

_LEAST_GAIN = 0.01
_FINE_ERROR = 0.02
_FAIR_ERROR = 0.03  # with it, a tenth more or less is seen
_ROUGH_ERROR = 0.1  # with it, twice as much is seen
_IN_PROPORTION = 0.75  # of the gain in users came back as throughput
_MISSES = 2


class Peak(Struct, frozen=True, kw_only=True):
    """Throughput with a number of users."""

    users: int
    rate: Ratio


class CapacityMode:
    """Go up, for as long as it is worth it: double while throughput grows in proportion, then go on
    by the factor from where proportion ended. If going up from the first number brings nothing, go
    down: more users than a cache has room for may cost throughput."""

    def __init__(self, rules: AutoscaleRules, backlog: Backlog | None = None) -> None:
        """`backlog`: of an open loop."""
        self._rules, self._backlog = rules, backlog
        self._unit: Unit | None = None
        self._best: Peak | None = None
        self._misses = 0
        self._grows = self._doubles = True
        self._improved = False

    @property
    def settled(self) -> bool:
        return False

    def standing(self) -> dict[str, Any]:
        return {"peak": self._peak()}

    def at_once(self, pool: WindowPool, users: int, window: Window) -> Order | None:
        """Nothing is decided by one window."""
        return None

    def judge(self, pool: WindowPool, users: int, stuck: bool) -> Order | None:
        self._unit = self._unit or pool.unit()
        if self._unit is None or pool.windows < self._rules.least_windows:
            return None
        here, best = Peak(users=users, rate=pool.rate(self._unit)), self._best
        keeps_up = self._backlog is not None and not self._backlog.grows(users)
        short, long = self._rules.is_short(pool.windows), self._rules.is_long(pool.windows)
        if best is None:
            known = long or keeps_up or _relative(here.rate) <= _ROUGH_ERROR
            return self._first(here) if known else None
        gain, noise = _gain(here.rate, best.rate)
        better = gain > max(_LEAST_GAIN, (VERY_SURE if short else SURE) * noise)
        if self._doubles:
            if keeps_up:  # what is asked for is served: that is in proportion, however few came
                return self._doubled(
                    here, best, max(gain, here.users / best.users - 1), noise, long
                )
            rough = not long and _relative(here.rate) > _ROUGH_ERROR
            none = not better and short
            return None if rough or none else self._doubled(here, best, gain, noise, long)
        if better:
            if not long and _relative(here.rate) > _FAIR_ERROR:
                return None
            self._best, self._misses, self._improved = here, 0, True
        elif short:
            return None
        elif noise <= _FINE_ERROR or gain + SURE * noise < abs(users / best.users - 1) / 2:
            self._misses += 1
        elif not long:
            return None
        return self._step(here, best, gain, noise)

    def _doubled(
        self, here: Peak, best: Peak, gain: float, noise: float, long: bool
    ) -> Order | None:
        """Go on where throughput grew in proportion. Where it did not, go to where it would have,
        had it grown so up to what there is now."""
        proportion = _IN_PROPORTION * (here.users / best.users - 1)
        if gain < proportion <= gain + noise and not long:
            return None
        self._doubles = gain >= proportion
        goes_to = max(int(best.users * (1 + gain)), self._rules.more(best.users))
        if not self._doubles and goes_to < here.users:
            comparison = _comparison(best, gain, noise)
            return self._order(here, goes_to, comparison, {"gain": gain, "noise": noise})
        if self._doubles or gain > max(_LEAST_GAIN, SURE * noise):
            self._best, self._misses, self._improved = here, 0, True
        else:
            self._misses += 1
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
        comparison, goes_to = _comparison(best, gain, noise), self._next(here.users)
        return self._order(here, goes_to, comparison, {"gain": gain, "noise": noise})

    def _next(self, users: int) -> int | None:
        """Return what to try; None where the peak is known."""
        assert self._best is not None
        more = self._rules.more(users, doubles=self._doubles)
        goes_to = more if self._grows else self._rules.fewer(users)
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


def _comparison(best: Peak, gain: float, noise: float) -> str:
    return f"{100 * gain:+.1f} % against {best.users} users (noise {100 * noise:.1f} %)"


def _relative(rate: Ratio) -> float:
    return inf if rate.error is None or not rate.value else rate.error / rate.value


def _gain(here: Ratio, best: Ratio) -> tuple[float, float]:
    """Return by how much it is better, as a share of the best, and the standard error of that."""
    return here.value / best.value - 1, hypot(here.error or 0, best.error or 0) / best.value
