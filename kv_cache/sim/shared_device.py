"""A measured device on the virtual clock: operations share it, as they did when it was probed.

For each number in flight and mix of reads the profile says how much a device does in all;
whenever an operation begins or ends, the others go on at the new pace. So a device is met at a
steady load, where the grid was measured, and between loads no pace is out of date.
Who gets what of it was measured by bursts: all the same (`evenness` 1), or the first ones the pace
of an operation that is alone, as long as it lasts, and the others nothing (0).

Around it is the host as the real driver has it: a buffer for each load and each store, and so
at most that many of them at once; who waits for one is not yet in the device. What is more than was
measured waits too: nothing is known of the device beyond. A delete takes its time beside them.

A demand is drawn by the measured quantiles, so that percentiles are the device's and not only those
of waiting. Nothing here may look at a real clock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from kv_cache.core.effect import CopyRef, IoChunk, Leg
from kv_cache.core.kinds import OpKind
from kv_cache.sim.profile_model import ProfileModel

At = Callable[[int, Callable[[], None]], None]
OnEnd = Callable[[Leg], None]

ENGINE = "model"


def _rest_ns(one: "_Going") -> float:
    return one.left * one.times / one.pace if one.pace > 0 else inf


@dataclass(slots=True, eq=False)
class _Going:
    """An operation in the device: what is left of its demand (1 at first), and how far its time
    differs from the mean."""

    kind: OpKind
    ref: CopyRef
    asked_ns: int
    began_ns: int
    on_end: OnEnd
    times: float = 1.0
    left: float = 1.0
    pace: float = 0.0  # of its demand, a nanosecond, as things are
    device_ns: float = 0.0


class SharedDevice:
    """One tier. `depth`: what was measured at once, at most; `loads` and `stores`: buffers; `draw`
    answers a part from 0 to 1 for each operation, in their order."""

    def __init__(
        self,
        profile: ProfileModel,
        *,
        depth: int,
        loads: int,
        stores: int,
        draw: Callable[[], float],
    ) -> None:
        self._profile = profile
        self.depth = depth
        self._most = {OpKind.READ: min(loads, depth), OpKind.WRITE: min(stores, depth)}
        self._draw = draw
        self._waiting: deque[_Going] = deque()
        self._going: list[_Going] = []
        self._count = {OpKind.READ: 0, OpKind.WRITE: 0}
        self._since_ns = 0
        self._round = 0  # events of earlier rounds are out of date
        self._paces: dict[tuple[OpKind, int, int, int], tuple[float, float]] = {}
        self._at: At | None = None
        self.deepest = 0
        """Operations that were in the device or waited for it, at most."""

    def bind(self, at: At) -> None:
        """Set the clock: `at` calls an action at an instant of it."""
        self._at = at

    def ask(self, ref: CopyRef, kind: OpKind, now_ns: int, on_end: OnEnd) -> None:
        """Begin one side of an operation; `on_end` gets its leg when it has ended."""
        one = _Going(kind, ref, now_ns, now_ns, on_end)
        if kind is OpKind.DELETE:
            self._remove(one)
            return
        self._waiting.append(one)
        self.deepest = max(self.deepest, len(self._waiting) + len(self._going))
        self._spend(now_ns)
        self._begin(now_ns)
        self._pace(now_ns)

    def _remove(self, one: _Going) -> None:
        assert self._at is not None
        took = self._profile.removal_ns(one.ref.nbytes)
        end_ns = one.asked_ns + took
        leg = Leg(one.ref.tier, one.kind, ENGINE, one.ref.nbytes, one.asked_ns, end_ns, took, ())
        self._at(end_ns, lambda: one.on_end(leg))

    def _begin(self, now_ns: int) -> None:
        """Let in who has a buffer and room, in the order in which they came."""
        kept: deque[_Going] = deque()
        while self._waiting:
            one = self._waiting.popleft()
            full = self._count[one.kind] >= self._most[one.kind]
            if full or len(self._going) >= self.depth:
                kept.append(one)
                continue
            one.began_ns = now_ns
            self._count[one.kind] += 1
            self._going.append(one)
            one.times = self._profile.spread(one.kind, one.ref.nbytes, self._draw())
        self._waiting = kept

    def _spend(self, now_ns: int) -> None:
        """Account for what was done since the last look, at the pace that was set then."""
        passed = now_ns - self._since_ns
        self._since_ns = now_ns
        if not passed:
            return
        for one in self._going:
            one.left -= passed * one.pace / one.times
            one.device_ns += passed * self._time_of(one)[1]

    def _time_of(self, one: _Going, *, alone: bool = False) -> tuple[float, float]:
        """Return an operation's mean time as things are, or alone, and the part of it inside the
        device."""
        depth, reads = len(self._going), self._count[OpKind.READ]
        if alone:
            depth, reads = 1, int(one.kind is OpKind.READ)
        key = (one.kind, one.ref.nbytes, depth, reads)
        pace = self._paces.get(key)
        if pace is None:
            total = self._profile.total_ns(one.kind, one.ref.nbytes, depth, reads / depth)
            inside = self._profile.service_ns(one.kind, one.ref.nbytes, depth, reads / depth)
            pace = self._paces[key] = (max(1.0, total), min(1.0, inside / max(1.0, total)))
        return pace

    def _pace(self, now_ns: int) -> None:
        """Set the pace of all, and look again when the first of them will have ended."""
        assert self._at is not None
        self._round += 1
        if not self._going:
            return
        for kind in self._count:
            self._share_out([one for one in self._going if one.kind is kind])
        first = min(self._going, key=_rest_ns)
        wait_ns = max(0, round(_rest_ns(first)))
        number = self._round
        self._at(now_ns + wait_ns, lambda: self._ended(number, first, now_ns + wait_ns))

    def _share_out(self, going: list[_Going]) -> None:
        """Divide what the device does for one kind. In order, `at_once` of them have the pace of
        one that is alone."""
        if not going:
            return
        times = [self._time_of(one)[0] for one in going]
        alone = [self._time_of(one, alone=True)[0] for one in going]
        at_once = sum(one / shared for one, shared in zip(alone, times, strict=True))
        all_even = at_once >= len(going)
        for one, mine, time in zip(going, alone, times, strict=True):
            part = min(1.0, at_once)
            at_once -= part
            even = 1.0 if all_even else self._profile.evenness(one.kind, one.ref.nbytes)
            one.pace = even / time + (1 - even) * part / mine

    def _ended(self, number: int, one: _Going, now_ns: int) -> None:
        if number != self._round:
            return
        self._spend(now_ns)
        self._going.remove(one)
        self._count[one.kind] -= 1
        self._begin(now_ns)
        self._pace(now_ns)
        leg = Leg(
            one.ref.tier, one.kind, ENGINE, one.ref.nbytes, one.asked_ns, now_ns,
            max(1, min(round(one.device_ns), now_ns - one.began_ns)),
            (IoChunk(now_ns, one.ref.nbytes),),
        )  # fmt: skip
        one.on_end(leg)
