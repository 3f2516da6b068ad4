"""The most users within the SLOs: a pool of windows is judged, and a bracket of users closed.

The pressure of an SLO is the share of its requests over the limit, over the share that may be: 1 is
exactly at the SLO, and the goal is at most `target_saturation`. Users grow by a factor until they
are outside; then the interval between the most inside and the fewest outside is bisected. Once it
has settled, the number is held for as long as nothing shows that the limit is elsewhere.
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from kv_cache.core.kinds import Qos
from kv_cache.metrics.window import Window
from kv_cache.schedule.autoscale.backlog import Backlog, Overload
from kv_cache.schedule.autoscale.quickest import Quickest
from kv_cache.schedule.autoscale.rules import AutoscaleRules, Order
from kv_cache.schedule.autoscale.window_pool import SURE, VERY_SURE, OverShare, WindowPool

_SOON = 1.0  # where a wrong answer is soon found out
_FEW = 5  # requests that show that a number is inside, where none was and all are far from it
_SLOWER = 0.75  # of the users who were inside are served
_TOLERANCE = 0.05
_MOST_PATIENCE = 8
_FASTER = "the latest answers took less than half as long as any before"
_STUCK = "no request ends, and some have been there for longer than any limit"


class UsersVerdict(StrEnum):
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
        """Whether nothing was outside yet, and nothing was settled on."""
        return self.outside is None and self._stride == inf

    def after(
        self,
        users: int,
        verdict: UsersVerdict,
        *,
        plain: bool,
        easy: bool = False,
        served: int | None = None,
    ) -> int:
        """Return the number of users to try after this verdict on `users`; the same number to
        stay. `easy`: no request missed an SLO. `served`: no more users than these are served."""
        held, soon = self.settled, self.first_time
        if held:
            self.settled, self._stride = False, _TOLERANCE
            self.inside = self.outside = None
        if plain and not (held and verdict is UsersVerdict.INSIDE):
            self._stride *= 2
        if verdict is UsersVerdict.OUTSIDE:
            users = self.outside = users if served is None else min(users, served)
            if self.inside is not None and self.inside >= users:
                self.inside = None
        else:
            self.inside, self._soon = users, soon
        goes_to = self._next(users, doubles=soon and easy)
        self.settled = self.settled or goes_to == users
        return goes_to

    def forget(self) -> None:
        """Storage has become faster: nothing is known of it."""
        self.inside = self.outside = None
        self._stride, self._soon, self.settled = inf, False, False

    def _next(self, users: int, *, doubles: bool) -> int:
        if self.inside is None:
            return self._rules.fewer(users, self._stride)
        if self.outside is None:
            return self._rules.more(users, self._stride, doubles=doubles)
        if self.outside - self.inside <= max(1, _TOLERANCE * self.inside):
            self.settled = not self._soon
            self._stride = _TOLERANCE
            return self.inside
        return (self.inside + self.outside) // 2


class _Resume(NamedTuple):
    """Users to go on with, and what was known and how many there were before an overload."""

    users: int
    overload: Overload | None
    bracket: Bracket
    users_before: int


class QosMode:
    """Judge a pool by the SLOs, move the bracket, and hold what was settled on: down at once when
    it is surely outside, up after a long time surely inside; each try that leads back doubles that
    time, up to 8 times."""

    def __init__(self, rules: AutoscaleRules, backlog: Backlog | None = None) -> None:
        """`backlog`: of an open loop."""
        self._rules, self._backlog = rules, backlog
        self._bracket = Bracket(rules)
        self._quickest = Quickest()
        self._inside = 0  # the latest number that was
        self._resume: _Resume | None = None  # when the backlog is drained
        self._latest: deque[UsersVerdict | None] = deque(maxlen=rules.consecutive_samples_required)
        self._held_windows = 0
        self._held_at: int | None = None
        self._patience = 1

    @property
    def settled(self) -> bool:
        return self._bracket.settled

    def standing(self) -> dict[str, int | None]:
        return {"inside": self._bracket.inside, "outside": self._bracket.outside}

    def at_once(self, pool: WindowPool, users: int, window: Window) -> Order | None:
        """Return what cannot wait for a sample: storage that serves much less than is asked, or
        answers much faster than ever, and to go on when a backlog is drained."""
        faster = self._quickest.see(window)
        overload = None if self._backlog is None else self._backlog.overload()
        if overload is not None:
            return self._step(pool, users, UsersVerdict.OUTSIDE, str(overload), overload)
        if self._resume is not None and self._backlog is not None and self._backlog.sticks(users):
            return self._step(
                pool,
                users,
                UsersVerdict.OUTSIDE,
                f"{self._there} requests there do not become less",
            )
        if self._resume is not None and (order := self._resumes(pool, users)) is not None:
            return order
        if faster and not self._bracket.first_time:
            self._bracket.forget()
            return self._step(pool, users, UsersVerdict.INSIDE, _FASTER)
        return None

    def _resumes(self, pool: WindowPool, users: int) -> Order | None:
        """Go on with what was to be tried; where an overload was a stall, with what was before."""
        resume = self._resume
        assert resume is not None
        assert self._backlog is not None
        if self._backlog.stands(users):
            return None
        self._resume = None
        goes_to, text = resume.users, f"the backlog is drained to {self._there}"
        if resume.overload is not None and self._backlog.stalled(resume.overload):
            self._bracket, goes_to = resume.bracket, resume.users_before
            text = "storage had only stood still"
        if goes_to == users:
            return None
        return self._order(pool, goes_to, f"{text}; goes on with {goes_to} users", self.standing())

    @property
    def _there(self) -> int:
        return 0 if self._backlog is None else self._backlog.there

    def judge(self, pool: WindowPool, users: int, stuck: bool) -> Order | None:
        """Judge a pool at the end of a sample; `stuck`: nothing ends that should have long ago."""
        held = self._bracket.settled
        if self._resume is not None:
            return None
        if held:
            self._held_windows += self._rules.windows_per_sample
        verdict = UsersVerdict.OUTSIDE if stuck else self._verdict(pool)
        if verdict is UsersVerdict.INSIDE and self._grows(pool, users):
            verdict = None
        self._latest.append(verdict)
        if held and pool.windows >= 2 * self._rules.longest_windows:
            pool.forget_half()
        agreed = self._latest.count(verdict) == self._latest.maxlen
        if verdict is None or not agreed or (held and self._waits(verdict)):
            return None
        if held and self._bracket.inside is None and verdict is UsersVerdict.INSIDE:
            self._bracket.forget()  # none were inside before: storage has become faster
        return self._step(pool, users, verdict, _STUCK if stuck else None)

    def _grows(self, pool: WindowPool, users: int) -> bool:
        """Return whether a backlog grows, whose requests will miss an SLO later."""
        long = self._rules.is_long(pool.windows)
        return self._backlog is not None and not long and self._backlog.grows(users)

    def _waits(self, verdict: UsersVerdict) -> bool:
        """Return whether it is too early to try for more than what was settled on."""
        quiet = self._rules.longest_windows * self._patience
        some = self._bracket.inside is not None
        return some and verdict is UsersVerdict.INSIDE and self._held_windows < quiet

    def _verdict(self, pool: WindowPool) -> UsersVerdict | None:
        """Return what the pool shows, sure enough for how short it is and how often it is asked.
        While nothing was outside yet, a wrong "inside" is soon found out and soon is good
        enough."""
        rules, target, first = self._rules, self._rules.target_saturation, self._bracket.first_time
        short, long = rules.is_short(pool.windows), rules.is_long(pool.windows)
        shares = pool.shares()
        if _surely_above(shares, 2 * target if short and not first else target, VERY_SURE):
            return UsersVerdict.OUTSIDE
        lowest = self._bracket.inside is None and all(s.ended >= _FEW for s in shares)
        if (first or lowest) and shares and all(share.easy for share in shares):
            return UsersVerdict.INSIDE
        judged = [share for share in shares if share.enough]
        silent = _classes(shares) - _classes(judged)
        if not judged or (silent and not long) or (short and not first):
            return None
        if _surely_below(judged, target, _SOON if first else SURE):
            return UsersVerdict.INSIDE
        if self._bracket.settled or short:
            return None
        if _surely_above(judged, target, SURE):
            return UsersVerdict.OUTSIDE
        return _as_it_looks(judged, target) if long else None

    def _step(
        self,
        pool: WindowPool,
        users: int,
        verdict: UsersVerdict,
        why: str | None = None,
        overload: Overload | None = None,
    ) -> Order | None:
        """`why`: what is plain whatever the shares are."""
        before, bracket, shares = self.standing(), copy(self._bracket), pool.shares()
        plain = why is not None or self._plain(verdict, pool)
        easy, served = why == _FASTER or not any(share.over for share in shares), None
        if self._backlog is not None and verdict is UsersVerdict.OUTSIDE:
            served = self._backlog.served_users(users, overload)
            if overload is not None and served is not None and served < _SLOWER * self._inside:
                self._quickest.forget()  # it is not that there are more users
        elif self._backlog is not None:
            self._backlog.was_inside(users)
            self._inside = users
        goes_to = self._bracket.after(users, verdict, plain=plain, easy=easy, served=served)
        self._latest.clear()
        if self._bracket.settled:
            self._settle(goes_to)
        text = _verdict_text(
            _worst(shares), users, verdict, why, self._rules.target_saturation
        ) + self._why(goes_to)
        self._resume = None
        if self._backlog is not None and verdict is UsersVerdict.OUTSIDE:
            drains = self._backlog.draining_users(users, overload)
            if drains < goes_to:
                text += f", after {drains} users have drained the {self._there} requests there"
            if drains < goes_to or overload is not None:
                self._resume = _Resume(goes_to, overload, bracket, users)
                goes_to = min(goes_to, drains)
        if goes_to == users:
            return None
        return self._order(pool, goes_to, text, before, verdict, why)

    def _order(
        self,
        pool: WindowPool,
        goes_to: int,
        text: str,
        before: dict[str, int | None],
        verdict: UsersVerdict | None = None,
        why: str | None = None,
    ) -> Order:
        self._quickest.begin_anew()
        worst = _worst(pool.shares())
        return Order(
            users=goes_to,
            reason=text,
            evidence={
                "verdict": None if verdict is None else verdict.value,
                "stuck": why == _STUCK,
                "pressure": None if worst is None else worst.pressure,
                "target": self._rules.target_saturation,
                "slos": [_share_row(share) for share in pool.shares()],
                "backlog": None if self._backlog is None else self._there,
                "bracket_before": before,
                "bracket": self.standing(),
                "settled": self._bracket.settled,
            },
        )

    def _plain(self, verdict: UsersVerdict, pool: WindowPool) -> bool:
        """Return whether pressure is surely less than half of the goal, or more than twice as
        much. In an open loop it tells nothing of the distance: there is hardly any below the limit,
        and all that is allowed above it."""
        if self._backlog is not None:
            return False
        target, shares = self._rules.target_saturation, pool.shares()
        if verdict is UsersVerdict.OUTSIDE:
            return _surely_above(shares, 2 * target, SURE)
        return _surely_below(shares, target / 2, SURE)

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


def _classes(shares: Sequence[OverShare]) -> set[Qos]:
    return {share.slo.qos for share in shares}


def _surely_above(shares: Sequence[OverShare], pressure: float, errors: float) -> bool:
    """Return whether the pressure of at least one SLO surely is above `pressure`."""
    return any(share.enough and share.bounds(errors)[0] > pressure for share in shares)


def _surely_below(shares: Sequence[OverShare], pressure: float, errors: float) -> bool:
    """Return whether the pressure of every SLO surely is at most `pressure`."""
    return all(share.bounds(errors)[1] <= pressure for share in shares)


def _as_it_looks(shares: Sequence[OverShare], pressure: float) -> UsersVerdict | None:
    """Return the verdict by the SLOs of which many requests ended; None if there is no such SLO."""
    much = [share for share in shares if share.much]
    if not much:
        return None
    over = any(share.pressure > pressure for share in much)
    return UsersVerdict.OUTSIDE if over else UsersVerdict.INSIDE


def _worst(shares: Sequence[OverShare]) -> OverShare | None:
    return max(shares, key=lambda share: share.pressure, default=None)


def _verdict_text(
    worst: OverShare | None, users: int, verdict: UsersVerdict, why: str | None, target: float
) -> str:
    users_text = f"{users} users are {verdict.value}: "
    if why is not None or worst is None:
        return f"{users_text}{why or _STUCK}; "
    return (
        f"{users_text}{worst.over} of {worst.ended} requests missed {worst.slo}, "
        f"{worst.pressure:.2f} of what is allowed (the goal is {target:g}); "
    )


def _share_row(share: OverShare) -> dict[str, Any]:
    low, high = share.bounds(SURE)
    return {
        "slo": str(share.slo),
        "ended": share.ended,
        "over": share.over,
        "pressure": share.pressure,
        "pressure_low": low,
        "pressure_high": high,
    }
