"""What windows since the last change show: shares of requests over an SLO, and throughput.

Requests of one moment share their fate, so the uncertainty of a share or a rate comes from batches
of neighbouring windows (batch means; Law, Simulation Modeling and Analysis, 9.5.3), with Wilson's
score interval (JASA 22, 1927) on as many requests as would be worth as much if they were
independent (Kish's design effect).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import sqrt
from statistics import median
from typing import Any

from msgspec import Struct

from kv_cache.core.kinds import OpKind
from kv_cache.core.units import NS_PER_S, ns_to_ms, ns_to_s
from kv_cache.metrics.slo import Slo, SloMeasure
from kv_cache.metrics.window import Window
from kv_cache.schedule.saturation import storage_rank95_ns

SURE = 2.0  # standard errors: 2.3 % of such verdicts are wrong
VERY_SURE = 3.0  # where the same question is asked over and over
_MANY_OVER = 5  # where one is allowed, that is chance in 1 of 270
_MUCH = 30  # requests that may be over the limit: known to a fifth, if independent
_MOST_BATCHES = 20
_HISTORY = 10  # windows whose p95 of storage are kept


class Ratio(Struct, frozen=True):
    """Σy / Σx of batches, with its standard error; None where one batch does not show it."""

    value: float
    error: float | None


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio estimator of (y, x) pairs. Σx must be above 0."""
    whole = sum(x for _, x in pairs)
    value = sum(y for y, _ in pairs) / whole
    if len(pairs) < 2:
        return Ratio(value, None)
    spread = sum((y - value * x) ** 2 for y, x in pairs) * len(pairs) / (len(pairs) - 1)
    return Ratio(value, sqrt(spread) / whole)


class OverShare(Struct, frozen=True, kw_only=True):
    """How many requests of an SLO's class were over its limit. `worth` is how many independent ones
    would show as much as those that `ended`."""

    slo: Slo
    ended: int
    over: int
    worth: float
    longest_ns: int | None = None  # of those that were answered

    @property
    def easy(self) -> bool:
        """Whether nothing came nearer to the limit than half of it."""
        known = self.longest_ns is not None and not self.over
        return known and 2 * (self.longest_ns or 0) <= self.slo.limit_ns

    @property
    def pressure(self) -> float:
        """The share over the limit, over the share that is allowed."""
        return self.over / self.ended / self.slo.allowed_share

    @property
    def enough(self) -> bool:
        """Whether one request over the limit would be allowed, or it is plain that too many are."""
        return self.ended * self.slo.allowed_share >= 1 or self.over >= _MANY_OVER

    @property
    def much(self) -> bool:
        """Enough to go by what it shows, sure or not."""
        return self.ended * self.slo.allowed_share >= _MUCH

    def bounds(self, errors: float) -> tuple[float, float]:
        """Return the interval of the pressure (Wilson's score interval)."""
        p, n, z2 = self.over / self.ended, self.worth, errors**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = errors / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        allowed = self.slo.allowed_share
        return (middle - half) / allowed, (middle + half) / allowed


class _Batch:
    """Sums over neighbouring windows."""

    __slots__ = ("completed", "ended", "longest", "ns", "over", "storage", "tokens", "windows")

    def __init__(self, slos: Sequence[Slo]) -> None:
        self.windows = self.ns = self.tokens = self.completed = self.storage = 0
        self.ended, self.over, self.longest = ([0] * len(slos) for _ in range(3))

    def add(self, window: Window, slos: Sequence[Slo]) -> None:
        self.windows += 1
        self.ns += window.end_ns - window.start_ns
        self.tokens += window.output_tokens
        self.completed += window.completed
        self.storage += window.storage_bytes()
        for i, slo in enumerate(slos):
            of_class = window.classes.get(slo.qos)
            if of_class is not None:
                self.ended[i] += of_class.ended
                self.over[i] += of_class.over[i]
                by_ttft = slo.measure is SloMeasure.TTFT
                latency = of_class.ttft if by_ttft else of_class.response
                self.longest[i] = max(self.longest[i], latency.highest_ns or 0)

    def absorb(self, other: "_Batch") -> "_Batch":
        for name in ("windows", "ns", "tokens", "completed", "storage"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ended = [a + b for a, b in zip(self.ended, other.ended, strict=True)]
        self.over = [a + b for a, b in zip(self.over, other.over, strict=True)]
        self.longest = [max(pair) for pair in zip(self.longest, other.longest, strict=True)]
        return self


class Unit(StrEnum):
    """What throughput is counted in."""

    TOKENS = "output tokens/s"
    REQUESTS = "requests/s"
    BYTES = "storage bytes/s"


_COUNTED: Mapping[Unit, Callable[[_Batch], int]] = {
    Unit.TOKENS: lambda batch: batch.tokens,
    Unit.REQUESTS: lambda batch: batch.completed,
    Unit.BYTES: lambda batch: batch.storage,
}


class WindowPool:
    """The windows since the last change, in up to 20 batches of equally many."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = slos
        self._batches: list[_Batch] = []
        self._each = 1  # windows of a full batch
        self._p95 = {kind: deque[float](maxlen=_HISTORY) for kind in (OpKind.READ, OpKind.WRITE)}
        self.windows = 0

    def add(self, window: Window) -> None:
        if not self._batches or self._batches[-1].windows == self._each:
            self._make_room()
            self._batches.append(_Batch(self._slos))
        self._batches[-1].add(window, self._slos)
        self.windows += 1
        for kind, latest in self._p95.items():
            if (p95_ns := storage_rank95_ns(window, kind)) is not None:
                latest.append(p95_ns)

    def _make_room(self) -> None:
        if len(self._batches) >= _MOST_BATCHES:
            pairs = zip(self._batches[::2], self._batches[1::2], strict=True)
            self._batches = [first.absorb(second) for first, second in pairs]
            self._each *= 2

    def forget_half(self) -> None:
        """The older half."""
        self._batches = self._batches[len(self._batches) // 2 :]
        self.windows = sum(batch.windows for batch in self._batches)

    def shares(self) -> list[OverShare]:
        """Return the shares of the SLOs of whose class requests ended."""
        return [self._share(i) for i in range(len(self._slos)) if self._ended(i)]

    def _ended(self, slo: int) -> int:
        return sum(batch.ended[slo] for batch in self._batches)

    def _share(self, slo: int) -> OverShare:
        pairs = [(batch.over[slo], batch.ended[slo]) for batch in self._batches]
        over, ended = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
        share = ratio(pairs)
        chance = share.value * (1 - share.value) / ended
        error = share.error or 0
        worth = ended * min(1.0, chance / error**2) if chance and error else ended
        return OverShare(
            slo=self._slos[slo],
            ended=ended,
            over=over,
            worth=max(1.0, worth),
            longest_ns=max(batch.longest[slo] for batch in self._batches) or None,
        )

    def unit(self) -> Unit | None:
        """Return the unit that there is something of: tokens, else requests, else bytes; None if
        nothing happened."""
        for unit, counted in _COUNTED.items():
            if any(counted(batch) for batch in self._batches):
                return unit
        return None

    def rate(self, unit: Unit) -> Ratio:
        """Return what came in a second. Its error is at least that of a count of as many
        independent requests: a few batches may be alike by chance."""
        counted = _COUNTED[unit]
        rate = ratio([(counted(batch), batch.ns / NS_PER_S) for batch in self._batches])
        completed = sum(batch.completed for batch in self._batches)
        if rate.error is None or not completed:
            return rate
        return Ratio(rate.value, max(rate.error, rate.value / sqrt(completed)))

    def evidence(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "seconds": ns_to_s(sum(batch.ns for batch in self._batches)),
            "output_tokens_per_s": self.rate(Unit.TOKENS).value,
            "requests_per_s": self.rate(Unit.REQUESTS).value,
            "storage_bytes_per_s": self.rate(Unit.BYTES).value,
            "read_p95_ms": _median_ms(self._p95[OpKind.READ]),
            "write_p95_ms": _median_ms(self._p95[OpKind.WRITE]),
        }


def ended(window: Window) -> int:
    return sum(of_class.ended for of_class in window.classes.values())


def _median_ms(latest: Sequence[float]) -> float | None:
    return ns_to_ms(median(latest)) if latest else None
