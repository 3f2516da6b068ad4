"""What is there in an open loop, whose users do not wait: it outlasts a change of their number.

Who comes after a change may stand behind what came before it, and misses an SLO by no doing of the
users that there are now. So it is drained first, and what came and what ended tell how many users
storage serves at all.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil, inf, sqrt
from typing import NamedTuple

from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import Window
from kv_cache.schedule.autoscale.rules import AutoscaleRules
from kv_cache.schedule.autoscale.window_pool import VERY_SURE, ended

_SOON_SEEN = 3  # windows in which storage that became much slower shows
_STALL = 1  # window: what stands still so long goes on as before
_HARDLY = 0.9  # of what was there before
_STALLED = 2.0  # times as fast
_TOLD_BY = 10  # requests that ended, for their rate to tell how many users are served
_MUCH_SLOWER = 0.6  # of what came was served
_FEWEST = 0.25  # of the users, however little was served
_GENTLE, _HASTY = 0.92, 0.5  # shares of what is served that ask while a backlog drains


class _Moment(NamedTuple):
    """What came, what ended, and what is there at the end of `ns`."""

    came: int
    ended: int
    there: int
    ns: int


class Overload(NamedTuple):
    """In `seconds` clearly more came than ended, and what is there takes longer than a limit."""

    windows: int
    came: int
    ended: int
    seconds: float
    there: int
    takes_s: float

    def __str__(self) -> str:
        return (
            f"in {self.seconds:.3g} s {self.came} requests came and {self.ended} ended, and the "
            f"{self.there} that are there take {self.takes_s:.3g} s, longer than the shortest limit"
        )


class Backlog:
    """Shown every window, and which of them are of the cooldown of a change. `slos` of classes of
    which no request has ended bound nothing."""

    def __init__(self, rules: AutoscaleRules, slos: Sequence[Slo]) -> None:
        self._rules, self._slos = rules, slos
        self._shortest_limit_ns = inf
        self._draining = _Moment(0, 0, 0, 0)  # since the change, for as long as something stands
        self._drains = False
        self._moments: deque[_Moment] = deque(maxlen=rules.longest_windows)
        self._sent: deque[tuple[int, int]] = deque(maxlen=rules.longest_windows)  # requests, users
        self._usual: float | None = None  # for each user, in the latest sample that was inside

    def begin_anew(self) -> None:
        self._moments.clear()
        self._draining, self._drains = _Moment(0, 0, 0, 0), True

    def see(self, window: Window, *, cools: bool = False) -> None:
        self._sent.append((window.submitted, window.gauges.users or 0))
        asks = [s.limit_ns for s in self._slos if window.classes[s.qos].ended]
        self._shortest_limit_ns = min([self._shortest_limit_ns, *asks])
        there = window.gauges.in_flight + window.gauges.queued
        length_ns = window.end_ns - window.start_ns
        moment = _Moment(window.submitted, ended(window), there, length_ns)
        if self._drains:
            sums = (a + b for a, b in zip(self._draining, moment, strict=True))
            self._draining, self._drains = _Moment(*sums), there > 1
        if not cools:
            self._moments.append(moment)

    def stalled(self, overload: Overload) -> bool:
        """Return whether what stood was served much faster than an overload said: storage stood
        still for a moment, and is as fast as before."""
        drained = self._draining
        per_s = drained.ended * NS_PER_S / max(1, drained.ns)
        return per_s > _STALLED * overload.ended / overload.seconds

    def was_inside(self, users: int) -> None:
        self._usual = sum(moment.there for moment in self._moments) / len(self._moments) / users

    @property
    def there(self) -> int:
        return self._moments[-1].there if self._moments else 0

    def stands(self, users: int) -> bool:
        """Return whether more is there than so many users are the cause of."""
        return self.there > self._allowed(users)

    def grows(self, users: int) -> bool:
        """Return whether it has been longer than that all the time lately."""
        latest = list(self._moments)[len(self._moments) // 2 :]
        return min((moment.there for moment in latest), default=0) > self._allowed(users)

    def sticks(self, users: int) -> bool:
        """Return whether it stands and, in four cooldowns, has hardly become less."""
        half = 2 * self._rules.cooldown_windows
        if len(self._moments) < 2 * half or not self.stands(users):
            return False
        there = [moment.there for moment in self._moments][-2 * half :]
        return sum(there[half:]) > _HARDLY * sum(there[:half])

    def overload(self) -> Overload | None:
        """Return what shows that more users ask than storage serves; None if nothing does."""
        for windows in range(1 + _STALL, min(_SOON_SEEN, len(self._moments)) + 1):
            came, served, ns = self._sums(windows)
            takes_ns = self.there * ns / served if served else float(ns)
            surely = came - served > VERY_SURE * sqrt(came + served)
            if surely and takes_ns > self._shortest_limit_ns:
                return Overload(
                    windows, came, served, ns / NS_PER_S, self.there, takes_ns / NS_PER_S
                )
        return None

    def served_users(self, users: int, overload: Overload | None) -> int | None:
        """Return how many of the users storage serves, where it surely does not serve all: by what
        ended since the change, or since an overload began. A stall tells nothing of it."""
        came, served = self._each_window(overload)
        windows = len(self._moments) if overload is None else overload.windows
        if served * windows < _TOLD_BY:
            return None
        if (came - served) * windows <= VERY_SURE * sqrt((came + served) * windows):
            return None
        return max(self._rules.min_users, ceil(users * served / came))

    def draining_users(self, users: int, overload: Overload | None) -> int:
        """Return how many users leave storage the time to drain what stands, within three
        cooldowns, or nearly as many as it serves. Where it serves much fewer than are there, half
        of these are enough to go on with."""
        _, served = self._each_window(overload)
        came = self._asks(users)
        if not came:
            return users
        least = _HASTY if served < _MUCH_SLOWER * came else _GENTLE
        stands = max(0.0, self.there - self._allowed(users))
        drains = served - stands / (3 * self._rules.cooldown_windows)
        share = max(drains / came, least * min(1.0, max(served / came, _FEWEST)))
        return max(self._rules.min_users, min(users, int(users * share)))

    def _asks(self, users: int) -> float:
        """Return how many requests so many users send in a window. Each sends as many whatever
        their number is, so that the windows before a change tell it too: in the few since, chance
        sends a fifth more or less."""
        sent = sum(requests for requests, _ in self._sent)
        return users * sent / max(1, sum(by for _, by in self._sent))

    def _each_window(self, overload: Overload | None) -> tuple[float, float]:
        """Return what came in a window since the change, and what ended in one, if there is an
        overload since it began."""
        came, served, _ = self._sums(len(self._moments))
        each = max(1, len(self._moments))
        if overload is None:
            return came / each, served / each
        return came / each, overload.ended / overload.windows

    def _allowed(self, users: int) -> float:
        """Return how much may be there: as much as in the latest sample inside, for each user, and
        what chance adds, unless it takes longer than half of the shortest limit. Before there was
        one: what takes no longer than that."""
        _, served, ns = self._sums(min(_SOON_SEEN, len(self._moments)))
        half = 1 + served / max(1, ns) * self._shortest_limit_ns / 2
        if self._usual is None:
            return half
        usual = self._usual * users
        return min(usual + VERY_SURE * sqrt(usual) + 1, max(usual, half))

    def _sums(self, windows: int) -> tuple[int, int, int]:
        latest = list(self._moments)[len(self._moments) - windows :]
        came, served = sum(moment.came for moment in latest), sum(moment.ended for moment in latest)
        return came, served, sum(moment.ns for moment in latest)
