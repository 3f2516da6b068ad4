"""How many users there are to be, judged from windows while a run goes on. Pure: a driver shows it
each window and carries out what it decides.

A change is followed by a cooldown, whose windows are not used. After it windows are pooled, and at
the end of each sample the pool is judged. What it does not show clearly is left to grow.

- qos: the most users for whom every promise is kept. The pressure of a promise is the share of its
  requests over the limit, over the share that may be: 1 is exactly at the promise, and the goal is
  at most `target_saturation`. Users grow by a factor until they are outside; then the interval
  between the most inside and the fewest outside is bisected. Settled, the number is held for as
  long as nothing shows that the limit is elsewhere.
- capacity: the most throughput, whatever the latency. Users grow while it improves; at the peak
  the run is stopped.

Requests of one moment share their fate, so the uncertainty of a share or a rate comes from batches
of neighbouring windows (batch means; Law, Simulation Modeling and Analysis, 9.5.3), with Wilson's
score interval (JASA 22, 1927) on as many requests as would be worth as much if they were
independent (Kish's design effect).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import hypot, inf, sqrt
from statistics import median
from typing import Any, Protocol

from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind, Phase, Qos
from kv_cache.core.units import NS_PER_S, ns_to_ms, ns_to_s
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import Window
from kv_cache.schedule.saturation import SaturationState, saturation_row, storage_rank95_ns


class ScaleMode(StrEnum):
    QOS = "qos"
    CAPACITY = "capacity"


class Action(StrEnum):
    UP = "scale_up"
    DOWN = "scale_down"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleRules:
    """`windows_per_sample` windows are a sample. So many samples in a row must say the same before
    a step, and so many after a step are not used. A pool of `longest_samples` is judged by what it
    shows, sure or not."""

    min_users: int = 1
    max_users: int = 10_000
    scale_up_factor: float = 1.2
    scale_down_factor: float = 0.8
    windows_per_sample: int = 2
    consecutive_samples_required: int = 2
    cooldown_samples: int = 3
    longest_samples: int = 30
    target_saturation: float = 0.8

    def __post_init__(self) -> None:
        if self.min_users > self.max_users:
            raise ConfigError(
                f"autoscaler.min_users {self.min_users} is above autoscaler.max_users "
                f"{self.max_users}; lower the first or raise the second"
            )
        if not self.scale_up_factor > 1:
            raise ConfigError(
                f"autoscaler.scale_up_factor {self.scale_up_factor:g} must be above 1, as 1.2, "
                "for users to become more"
            )
        if not 0 < self.scale_down_factor < 1:
            raise ConfigError(
                f"autoscaler.scale_down_factor {self.scale_down_factor:g} must be between 0 and 1, "
                "as 0.8, for users to become fewer"
            )

    @property
    def longest_windows(self) -> int:
        return self.longest_samples * self.windows_per_sample

    def is_short(self, windows: int) -> bool:
        """Less than a third of the longest pool: only what is plain can be seen in it."""
        return 3 * windows < self.longest_windows

    def is_long(self, windows: int) -> bool:
        return windows >= self.longest_windows

    @property
    def least_windows(self) -> int:
        return self.consecutive_samples_required * self.windows_per_sample

    @property
    def cooldown_windows(self) -> int:
        return self.cooldown_samples * self.windows_per_sample

    def more(self, users: int, stride: float = inf) -> int:
        """One step up, of at most this share of them and of at least one user."""
        step = min(stride, self.scale_up_factor - 1)
        return min(self.max_users, max(users + 1, int(users * (1 + step))))

    def fewer(self, users: int, stride: float = inf) -> int:
        step = min(stride, 1 - self.scale_down_factor)
        return max(self.min_users, min(users - 1, int(users * (1 - step))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An order to the driver, and the evidence that it was taken on: plain values, as in results.
    On `stop`, `users` is where the peak was."""

    at_ns: int
    mode: ScaleMode
    action: Action
    users_before: int
    users: int
    reason: str
    evidence: Mapping[str, Any]


def decision_row(decision: Decision) -> dict[str, Any]:
    """One decision as results tell it; `at_s` is seconds since the run's origin."""
    return {
        "at_s": ns_to_s(decision.at_ns),
        "mode": decision.mode.value,
        "action": decision.action.value,
        "users_before": decision.users_before,
        "users": decision.users,
        "reason": decision.reason,
        "evidence": dict(decision.evidence),
    }


# --- evidence --------------------------------------------------------------------------------

_SURE = 2.0  # standard errors: 2.3 % of such verdicts are wrong
_VERY_SURE = 3.0  # where the same question is asked over and over
_SOON = 1.0  # where a wrong answer is soon found out
_MANY_OVER = 5  # where one is allowed, that is chance in 1 of 270
_MUCH = 30  # requests that may be over the limit: known to a fifth, if independent

_MOST_BATCHES = 20
_HISTORY = 10  # windows whose p95 of storage are kept


@dataclass(frozen=True, slots=True)
class Ratio:
    """Σy / Σx of batches, with its standard error; None where one batch does not show it."""

    value: float
    error: float | None


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio estimator of (y, x) pairs. Σx must be above 0."""
    whole = sum(x for _, x in pairs)
    value = sum(y for y, _ in pairs) / whole
    if len(pairs) < 2:
        return Ratio(value, None)
    spread = sum((y - value * x) ** 2 for y, x in pairs) * len(pairs) / (len(pairs) - 1)
    return Ratio(value, sqrt(spread) / whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many requests of a promise were over its limit. `worth` is how many independent ones
    would tell as much as those that `ended`."""

    slo: Slo
    ended: int
    over: int
    worth: float

    @property
    def pressure(self) -> float:
        """The share over the limit, over the share that is allowed."""
        return self.over / self.ended / self.slo.allowed_share

    @property
    def enough(self) -> bool:
        """One request over the limit would be allowed, or it is plain that too many are."""
        return self.ended * self.slo.allowed_share >= 1 or self.over >= _MANY_OVER

    @property
    def much(self) -> bool:
        """Enough to go by what it shows, sure or not."""
        return self.ended * self.slo.allowed_share >= _MUCH

    def bounds(self, errors: float) -> tuple[float, float]:
        """What the pressure is between (Wilson's score interval)."""
        p, n, z2 = self.over / self.ended, self.worth, errors**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = errors / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        allowed = self.slo.allowed_share
        return (middle - half) / allowed, (middle + half) / allowed


class _Batch:
    """Sums over neighbouring windows."""

    __slots__ = ("completed", "ended", "ns", "over", "storage", "tokens", "windows")

    def __init__(self, slos: Sequence[Slo]) -> None:
        self.windows = self.ns = self.tokens = self.completed = self.storage = 0
        self.ended, self.over = [0] * len(slos), [0] * len(slos)

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

    def absorb(self, other: "_Batch") -> "_Batch":
        for name in ("windows", "ns", "tokens", "completed", "storage"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ended = [a + b for a, b in zip(self.ended, other.ended, strict=True)]
        self.over = [a + b for a, b in zip(self.over, other.over, strict=True)]
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


class Pool:
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

    def shares(self) -> list[Share]:
        """Of the promises of whose class requests ended."""
        return [self._share(i) for i in range(len(self._slos)) if self._ended(i)]

    def _ended(self, slo: int) -> int:
        return sum(batch.ended[slo] for batch in self._batches)

    def _share(self, slo: int) -> Share:
        pairs = [(batch.over[slo], batch.ended[slo]) for batch in self._batches]
        over, ended = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
        found = ratio(pairs)
        chance = found.value * (1 - found.value) / ended
        error = found.error or 0
        worth = ended * min(1.0, chance / error**2) if chance and error else ended
        return Share(slo=self._slos[slo], ended=ended, over=over, worth=max(1.0, worth))

    def unit(self) -> Unit | None:
        """What there is of: tokens, else requests, else bytes; None where nothing happened."""
        for unit, counted in _COUNTED.items():
            if any(counted(batch) for batch in self._batches):
                return unit
        return None

    def rate(self, unit: Unit) -> Ratio:
        """What came in a second. Its error is at least that of a count of so many independent
        requests: a few batches may be alike by chance."""
        counted = _COUNTED[unit]
        found = ratio([(counted(batch), batch.ns / NS_PER_S) for batch in self._batches])
        completed = sum(batch.completed for batch in self._batches)
        if found.error is None or not completed:
            return found
        return Ratio(found.value, max(found.error, found.value / sqrt(completed)))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a mode wants: other users, or the end of the run."""

    users: int
    reason: str
    evidence: Mapping[str, Any]
    stops: bool = False


class Mode(Protocol):
    """What users are judged by, and how the best number of them is searched for."""

    @property
    def settled(self) -> bool: ...

    def standing(self) -> dict[str, Any]: ...

    def judge(self, pool: Pool, users: int, stuck: bool) -> Order | None:
        """At the end of a sample; `stuck` where nothing ends that should have long ago."""
        ...


# --- qos: the most users within the promises -------------------------------------------------

_TOLERANCE = 0.05
_MOST_PATIENCE = 8


class Verdict(StrEnum):
    INSIDE = "inside"
    OUTSIDE = "outside"


class Bracket:
    """The most users that were inside since it opened, the fewest that were outside, and which
    number is to be tried next. Settled where the two are within 5 % or one user.

    A number that was settled on and proves wrong is left in steps of 5 %, which double with every
    verdict that is plain: most such errors are small, and a limit that has moved far is still found
    soon. What was taken for inside soon, while users grew, is looked at again before it is settled
    on.
    """

    def __init__(self, rules: AutoscaleRules) -> None:
        self._rules = rules
        self._stride = inf
        self._soon = False  # `inside` was
        self.inside: int | None = None
        self.outside: int | None = None
        self.settled = False

    @property
    def first_time(self) -> bool:
        """Nothing was outside yet, and nothing was settled on."""
        return self.outside is None and self._stride == inf

    def after(self, users: int, verdict: Verdict, *, plain: bool) -> int:
        """What to try after this verdict on so many users; the same number to stay there."""
        if self.settled:
            self.settled, self._stride = False, _TOLERANCE
            self.inside = self.outside = None
        soon = self.first_time
        self._stride *= 2 if plain else 1
        if verdict is Verdict.OUTSIDE:
            self.outside = users
            self.inside = None if self.inside == users else self.inside
        else:
            self.inside, self._soon = users, soon
        goes_to = self._next(users)
        self.settled = self.settled or goes_to == users
        return goes_to

    def _next(self, users: int) -> int:
        if self.inside is None:
            return self._rules.fewer(users, self._stride)
        if self.outside is None:
            return self._rules.more(users, self._stride)
        if self.outside - self.inside <= max(1, _TOLERANCE * self.inside):
            self.settled = not self._soon
            self._stride = _TOLERANCE
            return self.inside
        return (self.inside + self.outside) // 2


class _Qos:
    """Judges a pool by the promises, moves the bracket, and holds what was settled on: down at
    once when it is surely outside, up after a long time surely inside; each try that leads back
    doubles that time, up to 8 times."""

    def __init__(self, rules: AutoscaleRules) -> None:
        self._rules = rules
        self._bracket = Bracket(rules)
        self._latest: deque[Verdict | None] = deque(maxlen=rules.consecutive_samples_required)
        self._held_windows = 0
        self._held_at: int | None = None
        self._patience = 1

    @property
    def settled(self) -> bool:
        return self._bracket.settled

    def standing(self) -> dict[str, Any]:
        return {"inside": self._bracket.inside, "outside": self._bracket.outside}

    def judge(self, pool: Pool, users: int, stuck: bool) -> Order | None:
        held = self._bracket.settled
        if held:
            self._held_windows += self._rules.windows_per_sample
        verdict = Verdict.OUTSIDE if stuck else self._verdict(pool)
        self._latest.append(verdict)
        if held and pool.windows >= 2 * self._rules.longest_windows:
            pool.forget_half()
        agreed = self._latest.count(verdict) == self._latest.maxlen
        if verdict is None or not agreed or (held and self._waits(verdict)):
            return None
        return self._step(pool, users, verdict, stuck)

    def _waits(self, verdict: Verdict) -> bool:
        """Whether it is too early to try for more than what was settled on."""
        quiet = self._rules.longest_windows * self._patience
        return verdict is Verdict.INSIDE and self._held_windows < quiet

    def _verdict(self, pool: Pool) -> Verdict | None:
        """What the pool shows, sure enough for how short it is and how often it is asked. While
        nothing was outside yet, a wrong "inside" is soon found out and soon is good enough."""
        rules, target, first = self._rules, self._rules.target_saturation, self._bracket.first_time
        short, long = rules.is_short(pool.windows), rules.is_long(pool.windows)
        shares = pool.shares()
        if _surely_above(shares, 2 * target if short and not first else target, _VERY_SURE):
            return Verdict.OUTSIDE
        judged = [share for share in shares if share.enough]
        silent = _classes(shares) - _classes(judged)
        if not judged or (silent and not long) or (short and not first):
            return None
        if _surely_below(judged, target, _SOON if first else _SURE):
            return Verdict.INSIDE
        if self._bracket.settled or short:
            return None
        if _surely_above(judged, target, _SURE):
            return Verdict.OUTSIDE
        return _as_it_looks(judged, target) if long else None

    def _step(self, pool: Pool, users: int, verdict: Verdict, stuck: bool) -> Order | None:
        before = self.standing()
        plain = stuck or self._plain(verdict, pool)
        goes_to = self._bracket.after(users, verdict, plain=plain)
        self._latest.clear()
        if self._bracket.settled:
            self._settle(goes_to)
        if goes_to == users:
            return None
        worst = _worst(pool.shares())
        return Order(
            users=goes_to,
            reason=_told(worst, users, verdict, stuck, self._rules.target_saturation)
            + self._why(goes_to),
            evidence={
                "verdict": verdict.value,
                "stuck": stuck,
                "pressure": None if worst is None else worst.pressure,
                "target": self._rules.target_saturation,
                "promises": [_share_row(share) for share in pool.shares()],
                "bracket_before": before,
                "bracket": self.standing(),
                "settled": self._bracket.settled,
            },
        )

    def _plain(self, verdict: Verdict, pool: Pool) -> bool:
        """Whether pressure is surely less than half of the goal, or more than twice as much."""
        target, shares = self._rules.target_saturation, pool.shares()
        if verdict is Verdict.OUTSIDE:
            return _surely_above(shares, 2 * target, _SURE)
        return _surely_below(shares, target / 2, _SURE)

    def _settle(self, users: int) -> None:
        """Coming back to where it was before is a reason to try less often."""
        again = users == self._held_at
        self._patience = min(2 * self._patience, _MOST_PATIENCE) if again else 1
        self._held_at, self._held_windows = users, 0

    def _why(self, goes_to: int) -> str:
        inside, outside = self._bracket.inside, self._bracket.outside
        if inside is None:
            return f"no number inside is known; tries {goes_to}"
        if outside is None:
            return f"no number outside is known; tries {goes_to}"
        between = f"the limit is from {inside} to below {outside} users"
        return f"{between}; " + (
            f"settles on {goes_to}" if self._bracket.settled else f"tries {goes_to}"
        )


def _classes(shares: Sequence[Share]) -> set[Qos]:
    return {share.slo.qos for share in shares}


def _surely_above(shares: Sequence[Share], pressure: float, errors: float) -> bool:
    """Of one promise at least."""
    return any(share.enough and share.bounds(errors)[0] > pressure for share in shares)


def _surely_below(shares: Sequence[Share], pressure: float, errors: float) -> bool:
    """Of all promises."""
    return all(share.bounds(errors)[1] <= pressure for share in shares)


def _as_it_looks(shares: Sequence[Share], pressure: float) -> Verdict | None:
    """By the promises that many requests speak of; None where there is no such promise."""
    much = [share for share in shares if share.much]
    if not much:
        return None
    over = any(share.pressure > pressure for share in much)
    return Verdict.OUTSIDE if over else Verdict.INSIDE


def _worst(shares: Sequence[Share]) -> Share | None:
    return max(shares, key=lambda share: share.pressure, default=None)


def _told(worst: Share | None, users: int, verdict: Verdict, stuck: bool, target: float) -> str:
    said = f"{users} users are {verdict.value}: "
    if stuck or worst is None:
        return f"{said}no request ends, and some have been there for longer than any limit; "
    return (
        f"{said}{worst.over} of {worst.ended} requests missed {worst.slo}, "
        f"{worst.pressure:.2f} of what is allowed (the goal is {target:g}); "
    )


def _share_row(share: Share) -> dict[str, Any]:
    low, high = share.bounds(_SURE)
    return {
        "promise": str(share.slo),
        "ended": share.ended,
        "over": share.over,
        "pressure": share.pressure,
        "pressure_low": low,
        "pressure_high": high,
    }


# --- capacity: the most throughput -----------------------------------------------------------

_LEAST_GAIN = 0.01
_FINE_ERROR = 0.02
_MISSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Throughput with a number of users."""

    users: int
    rate: Ratio


class _Capacity:
    """Up, for as long as it is worth it. Where going up from the first number brings nothing,
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

    def judge(self, pool: Pool, users: int, stuck: bool) -> Order | None:
        self._unit = self._unit or pool.unit()
        if self._unit is None or pool.windows < self._rules.least_windows:
            return None
        here, best = Peak(users=users, rate=pool.rate(self._unit)), self._best
        short, long = self._rules.is_short(pool.windows), self._rules.is_long(pool.windows)
        if best is None:
            known = long or (not short and _relative(here.rate) <= _FINE_ERROR)
            return self._first(here) if known else None
        gain, noise = _gain(here.rate, best.rate)
        if gain > max(_LEAST_GAIN, (_VERY_SURE if short else _SURE) * noise):
            self._best, self._misses, self._improved = here, 0, True
        elif short:
            return None
        elif noise <= _FINE_ERROR or gain + _SURE * noise < abs(users / best.users - 1) / 2:
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
        said = f"{100 * gain:+.1f} % against {best.users} users (noise {100 * noise:.1f} %)"
        goes_to = self._next(here.users)
        return self._order(here, goes_to, said, {"gain": gain, "noise": noise})

    def _next(self, users: int) -> int | None:
        """What to try; None where the peak is known."""
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
        self, here: Peak, goes_to: int | None, said: str, evidence: Mapping[str, Any]
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
            reason=f"{here.users} users: {here.rate.value:.1f} {unit}, {said}; {does}",
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
    """By how much it is better, as a share of the best, and the standard error of that."""
    return here.value / best.value - 1, hypot(here.error or 0, best.error or 0) / best.value


# --- the autoscaler --------------------------------------------------------------------------

_LONGEST_COOLDOWN = 20


class Autoscaler:
    """Shown every window, it says when there are to be more or fewer users, or that the run is to
    stop. `users` are those that it believes in, from the first to its latest decision."""

    def __init__(
        self, rules: AutoscaleRules, mode: ScaleMode, slos: Sequence[Slo], users: int
    ) -> None:
        if not rules.min_users <= users <= rules.max_users:
            raise ConfigError(
                f"the run begins with {users} users, but autoscaler.min_users to "
                f"autoscaler.max_users is {rules.min_users} to {rules.max_users}; change "
                "--num-users or these keys"
            )
        if mode is ScaleMode.QOS and not slos:
            raise ConfigError(
                "--autoscaler-mode qos needs a class that is promised something; set a latency "
                "target of a QoS class, or use --autoscaler-mode capacity"
            )
        self._rules, self._mode, self._slos = rules, mode, tuple(slos)
        self._judge: Mode = _Qos(rules) if mode is ScaleMode.QOS else _Capacity(rules)
        self._longest_limit_ns = _longest_limit_ns(slos)
        self._inside = 0  # requests that wait or are served at the latest tick
        self._silent_windows = 0
        self._silent_since_ns = 0
        self._cooling = True
        self.users = users
        self.stopped = False
        self._begin_anew(None)

    def see(self, window: Window, saturation: SaturationState) -> Decision | None:
        """Windows are shown in order, each once. Only those of the measured phase count: in the
        others nobody asks, or something else does."""
        if self.stopped or window.phase is not Phase.MEASURE:
            return None
        self._watch(window)
        if self._cooling:
            self._cooling = self._cools(window)
            return None
        self._pool.add(window)
        if self._pool.windows % self._rules.windows_per_sample:
            return None
        order = self._judge.judge(self._pool, self.users, self._stuck(window))
        return None if order is None else self._decide(order, window, saturation)

    @property
    def settled(self) -> bool:
        """Users are held, until something shows that the limit is elsewhere; or the run ends."""
        return self.stopped or self._judge.settled

    def standing(self) -> dict[str, Any]:
        """How far it has come: in qos mode the most users that were seen inside and the fewest
        that were outside, in capacity mode the peak so far; None is not known."""
        return {"users": self.users, "settled": self.settled, **self._judge.standing()}

    def _begin_anew(self, at_ns: int | None) -> None:
        self._changed_ns = at_ns
        self._pool = Pool(self._slos)
        self._cooldown_windows = self._cooldown_ended = 0
        self._cooling = True

    def _watch(self, window: Window) -> None:
        """For how long nothing has ended though somebody was there all the time."""
        if ended(window) or not self._inside:
            self._silent_windows, self._silent_since_ns = 0, window.end_ns
        else:
            self._silent_windows += 1
        self._inside = window.gauges.in_flight + window.gauges.queued

    def _stuck(self, window: Window) -> bool:
        """Nothing ended for a sample, and somebody has been there for longer than any limit."""
        there_ns = max(window.gauges.oldest_queued_ns, window.end_ns - self._silent_since_ns)
        silent = self._silent_windows >= self._rules.windows_per_sample
        return silent and there_ns > self._longest_limit_ns

    def _cools(self, window: Window) -> bool:
        """Whether this window still speaks of the load before the change: the cooldown is not
        over, users who are to go are still there, somebody waits since before it, or fewer
        requests have ended than there are users, so that some have not asked yet."""
        if self._changed_ns is None:
            self._changed_ns = window.start_ns
        self._cooldown_windows += 1
        self._cooldown_ended += ended(window)
        shortest = self._rules.cooldown_windows
        if self._cooldown_windows < shortest:
            return True
        if self._cooldown_windows >= _LONGEST_COOLDOWN * shortest:
            return False
        lags = window.gauges.users not in (None, self.users)
        old = window.gauges.oldest_queued_ns > window.end_ns - self._changed_ns
        new = self._cooldown_ended < self.users and not self._stuck(window)
        return lags or old or new

    def _decide(self, order: Order, window: Window, saturation: SaturationState) -> Decision:
        decision = Decision(
            at_ns=window.end_ns,
            mode=self._mode,
            action=_action(order, self.users),
            users_before=self.users,
            users=order.users,
            reason=order.reason,
            evidence={
                "samples": self._pool.windows // self._rules.windows_per_sample,
                **self._pool.evidence(),
                "oldest_queued_s": ns_to_s(window.gauges.oldest_queued_ns),
                "saturation": saturation_row(saturation),
                **order.evidence,
            },
        )
        self.users, self.stopped = order.users, order.stops
        self._begin_anew(window.end_ns)
        return decision


def _action(order: Order, users: int) -> Action:
    if order.stops:
        return Action.STOP
    return Action.UP if order.users > users else Action.DOWN


def _longest_limit_ns(slos: Sequence[Slo]) -> float:
    """Nobody may be there for longer; a class that is promised nothing may be there for ever."""
    if {slo.qos for slo in slos} != set(Qos):
        return inf
    return max(slo.limit_ns for slo in slos)
