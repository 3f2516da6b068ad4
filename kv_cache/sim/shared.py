"""A measured device on the virtual clock: operations share it, as they did when it was probed.

Each operation has a demand of 1 times what the profile says for so many in flight and such a mix
of reads; whenever one begins or ends, the others go on at the new pace. So a device is met at a
steady load, where the grid was measured, and between loads nobody keeps a pace that is out of date.

Around it stands the host as the real driver has it: a buffer for each load and each store, and so
at most so many of them at once; who waits for one is not yet in the device. What is more than was
measured waits too: nothing is known of the device beyond. A delete takes its time beside them.

A demand is drawn by the measured quantiles, so that percentiles are the device's and not only those
of waiting. Nothing here may look at a real clock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kv_cache.core.effect import Chunk, CopyRef, Leg
from kv_cache.core.kinds import OpKind
from kv_cache.sim.profile import ProfileModel

At = Callable[[int, Callable[[], None]], None]
OnEnd = Callable[[Leg], None]

ENGINE = "model"


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
    pace_ns: float = 0.0  # for a demand of 1, as things are
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
        """`at` calls an action at an instant of the virtual clock."""
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
        took = self._profile.removal_ns(one.ref.nbytes, 1 + len(self._going))
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
            depth, reads = len(self._going), self._count[OpKind.READ]
            one.times = self._profile.spread(
                one.kind, one.ref.nbytes, depth, reads / depth, self._draw()
            )
        self._waiting = kept

    def _spend(self, now_ns: int) -> None:
        """What was done since the last look, at the pace that was set then."""
        passed = now_ns - self._since_ns
        self._since_ns = now_ns
        if not passed:
            return
        for one in self._going:
            one.left -= passed / (one.pace_ns * one.times)
            one.device_ns += passed * self._share(one)

    def _share(self, one: _Going) -> float:
        """The part of its time that it is inside the device."""
        return self._pace_of(one)[1]

    def _pace_of(self, one: _Going) -> tuple[float, float]:
        depth, reads = len(self._going), self._count[OpKind.READ]
        key = (one.kind, one.ref.nbytes, depth, reads)
        found = self._paces.get(key)
        if found is None:
            total = self._profile.total_ns(one.kind, one.ref.nbytes, depth, reads / depth)
            inside = self._profile.service_ns(one.kind, one.ref.nbytes, depth, reads / depth)
            found = self._paces[key] = (max(1.0, total), min(1.0, inside / max(1.0, total)))
        return found

    def _pace(self, now_ns: int) -> None:
        """Set the pace of all, and look again when the first of them will have ended."""
        assert self._at is not None
        self._round += 1
        if not self._going:
            return
        for one in self._going:
            one.pace_ns = self._pace_of(one)[0]
        first = min(self._going, key=lambda one: one.left * one.pace_ns * one.times)
        wait_ns = max(0, round(first.left * first.pace_ns * first.times))
        number = self._round
        self._at(now_ns + wait_ns, lambda: self._ended(number, first, now_ns + wait_ns))

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
            (Chunk(now_ns, one.ref.nbytes),),
        )  # fmt: skip
        one.on_end(leg)
