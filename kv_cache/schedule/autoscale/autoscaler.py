"""How many users there are to be, judged from windows while a run goes on. Pure: a driver shows it
each window and carries out what it decides.

A change is followed by a cooldown, whose windows are not used. After it windows are pooled, and at
the end of each sample the pool is judged. What it does not show clearly is left to grow.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.units import ns_to_s
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import SaturationLevel, Window
from kv_cache.schedule.autoscale.backlog import Backlog
from kv_cache.schedule.autoscale.capacity_mode import CapacityMode
from kv_cache.schedule.autoscale.qos_mode import QosMode
from kv_cache.schedule.autoscale.rules import Action, AutoscaleRules, Decision, Order, ScaleMode
from kv_cache.schedule.autoscale.window_pool import WindowPool, ended

_LONGEST_COOLDOWN = 20


class Autoscaler:
    """Shown every window, it decides when there are to be more or fewer users, or that the run is
    to stop. `users` is their number after its latest decision."""

    def __init__(
        self,
        rules: AutoscaleRules,
        mode: ScaleMode,
        slos: Sequence[Slo],
        users: int,
        *,
        users_wait: bool = True,
    ) -> None:
        """Users who wait for their answers (a closed loop) leave no backlog to those after them."""
        self._rules, self._mode, self._slos = rules, mode, tuple(slos)
        self._backlog = None if users_wait else Backlog(rules, self._slos)
        judge = QosMode if mode is ScaleMode.QOS else CapacityMode
        self._judge: QosMode | CapacityMode = judge(rules, self._backlog)
        self._longest_limit_ns = _longest_limit_ns(slos)
        self._inside = 0  # requests that wait or are served at the latest tick
        self._fewer = False  # the latest change made them
        self._silent_windows = 0
        self._silent_since_ns = 0
        self._cooling = True
        self.users = users
        self.stopped = False
        self._begin_anew(None)

    def see(self, window: Window, saturation: SaturationLevel) -> Decision | None:
        """Take the next window. Each is shown once, in order. Only those of the measured phase
        count: in the others no users ask, or something else does."""
        if self.stopped or window.phase is not Phase.MEASURE:
            return None
        self._watch(window)
        if self._cooling:
            self._cooling = self._cools(window)
            return None
        if self._backlog is not None:
            self._backlog.see(window)
        self._pool.add(window)
        order = self._judge.at_once(self._pool, self.users, window)
        if order is None and not self._pool.windows % self._rules.windows_per_sample:
            order = self._judge.judge(self._pool, self.users, self._stuck(window))
        return None if order is None else self._decide(order, window, saturation)

    @property
    def settled(self) -> bool:
        """Users are held, until something shows that the limit is elsewhere; or the run ends."""
        return self.stopped or self._judge.settled

    def standing(self) -> dict[str, Any]:
        """Return how far it has come: in qos mode the most users that were seen inside and the
        fewest that were outside, in capacity mode the peak so far; None is not known."""
        return {"users": self.users, "settled": self.settled, **self._judge.standing()}

    def _begin_anew(self, at_ns: int | None) -> None:
        self._changed_ns = at_ns
        self._pool = WindowPool(self._slos)
        self._cooldown_windows = self._cooldown_ended = 0
        self._cooling = True
        if self._backlog is not None:
            self._backlog.begin_anew()

    def _watch(self, window: Window) -> None:
        """Follow for how long nothing has ended though requests were there all the time."""
        if ended(window) or not self._inside:
            self._silent_windows, self._silent_since_ns = 0, window.end_ns
        else:
            self._silent_windows += 1
        self._inside = window.gauges.in_flight + window.gauges.queued

    def _stuck(self, window: Window) -> bool:
        """Return whether nothing ended for a sample, and a request has been there for longer than
        any limit."""
        there_ns = max(window.gauges.oldest_queued_ns, window.end_ns - self._silent_since_ns)
        silent = self._silent_windows >= self._rules.windows_per_sample
        return silent and there_ns > self._longest_limit_ns

    def _cools(self, window: Window) -> bool:
        """Return whether this window still shows the load before the change: the cooldown is not
        over, users who are to go are still there, a request waits since before it, or a backlog
        that was left stands and does not grow, or fewer requests have ended than there are users,
        so that some have not asked yet."""
        if self._changed_ns is None:
            self._changed_ns = window.start_ns
        self._cooldown_windows += 1
        self._cooldown_ended += ended(window)
        shortest = self._rules.cooldown_windows
        if self._backlog is not None:
            self._backlog.see(window, cools=self._cooldown_windows < shortest)
        if self._cooldown_windows < shortest:
            return True
        if self._cooldown_windows >= _LONGEST_COOLDOWN * shortest:
            return False
        lags = window.gauges.users not in (None, self.users)
        old = window.gauges.oldest_queued_ns > window.end_ns - self._changed_ns
        new = self._cooldown_ended < self.users and not self._stuck(window)
        return lags or new or (old if self._backlog is None else self._stands(self._backlog))

    def _stands(self, backlog: Backlog) -> bool:
        grows = backlog.overload() is not None or backlog.sticks(self.users)
        return self._fewer and backlog.stands(self.users) and not grows

    def _decide(self, order: Order, window: Window, saturation: SaturationLevel) -> Decision:
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
                "saturation": saturation._asdict(),
                **order.evidence,
            },
        )
        self._fewer = order.users < self.users
        self.users, self.stopped = order.users, order.stops
        self._begin_anew(window.end_ns)
        return decision


def _action(order: Order, users: int) -> Action:
    if order.stops:
        return Action.STOP
    return Action.UP if order.users > users else Action.DOWN


def _longest_limit_ns(slos: Sequence[Slo]) -> float:
    """Return for how long a request may be there; requests of a class without an SLO may be for
    ever."""
    if {slo.qos for slo in slos} != set(Qos):
        return inf
    return max(slo.limit_ns for slo in slos)
