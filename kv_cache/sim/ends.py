"""Legs whose end is known as soon as they are asked for, counted many at a time.

An assumed device says at once when it will have done what it is asked. So nothing has to happen at
that instant: what has ended is counted before somebody looks at the counts.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import compress

from kv_cache.core.effect import CopyRef, EndedLegs, IoChunk, Leg, Move
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.metrics.recorder import Recorder
from kv_cache.sim.shared_device import ENGINE

Side = tuple[Tier, OpKind, Cause, bool]
"""What is counted together. True: new data is stored."""


Reading = tuple[int, int, Move]
"""A move that does not write yet: when what it reads will have been read, its place among the
events of that instant, and what moves."""


class _Waiting:
    """Legs of one side in columns; `over_ns` is when each one's whole operation has ended."""

    __slots__ = ("began_ns", "ended_ns", "over_ns", "refs")

    def __init__(self) -> None:
        self.over_ns: list[int] = []
        self.ended_ns: list[int] = []
        self.began_ns: list[int] = []
        self.refs: list[CopyRef] = []

    def legs(self) -> EndedLegs:
        return EndedLegs(self.ended_ns, self.began_ns, self.refs)

    def taken(self, chosen: Sequence[bool]) -> "_Waiting":
        """Return those that are chosen."""
        some = _Waiting()
        some.over_ns += compress(self.over_ns, chosen)
        some.ended_ns += compress(self.ended_ns, chosen)
        some.began_ns += compress(self.began_ns, chosen)
        some.refs += compress(self.refs, chosen)
        return some


class Ends:
    """Legs by when the whole operation ends, which for the first of a move is later. They wait in
    slots of `slot_ns`, so that each is looked at once, but for those of the slot that is cut."""

    def __init__(self, recorder: Recorder, slot_ns: int) -> None:
        self._recorder = recorder
        self._slot_ns = slot_ns
        self._slots: defaultdict[int, defaultdict[Side, _Waiting]] = defaultdict(
            lambda: defaultdict(_Waiting)
        )
        self.moving: dict[int, tuple[Cause, int, Sequence[Reading]]] = {}
        """Moves that do not all write yet: why, when they were asked for, and those that do
        not."""

    def add(
        self, kind: OpKind, cause: Cause, legs: EndedLegs, over_ns: Sequence[int], *, new: bool
    ) -> None:
        """Add legs of operations that were asked for together, each with when its whole operation
        is over. `new`: new data is stored."""
        ended_ns, began_ns, refs = legs
        tiers = {ref.tier for ref in refs}
        slot = min(over_ns) // self._slot_ns
        if len(tiers) == 1 and max(over_ns) // self._slot_ns == slot:
            waiting = self._slots[slot][tiers.pop(), kind, cause, new]
            waiting.over_ns += over_ns
            waiting.ended_ns += ended_ns
            waiting.began_ns += began_ns
            waiting.refs += refs
            return
        for over, ended, began, ref in zip(over_ns, ended_ns, began_ns, refs, strict=True):
            waiting = self._slots[over // self._slot_ns][ref.tier, kind, cause, new]
            waiting.over_ns.append(over)
            waiting.ended_ns.append(ended)
            waiting.began_ns.append(began)
            waiting.refs.append(ref)

    def settle(self, before_ns: int) -> None:
        """Count the legs of all operations that end before an instant."""
        last = before_ns // self._slot_ns
        for slot in sorted(slot for slot in self._slots if slot <= last):
            sides = self._slots.pop(slot)
            for side in sorted(sides, key=_deletes_last):
                over = legs = sides[side]
                if slot == last and max(legs.over_ns) >= before_ns:
                    over = legs.taken([end_ns < before_ns for end_ns in legs.over_ns])
                    left = legs.taken([end_ns >= before_ns for end_ns in legs.over_ns])
                    self._slots[slot][side] = left
                if over.refs:
                    tier, kind, cause, new = side
                    self._recorder.legs(tier, kind, cause, ENGINE, over.legs(), new=new)

    def latest_ns(self, until_ns: int) -> int:
        """Return when the last operation ends that does by an instant; 0 if none does."""
        ends_ns = (
            end_ns for sides in self._slots.values() for legs in sides.values()
            for end_ns in legs.over_ns
        )  # fmt: skip
        return max((end_ns for end_ns in ends_ns if end_ns <= until_ns), default=0)

    def in_flight(self, now_ns: int) -> Iterator[tuple[Cause, Leg]]:
        """Yield what has not ended by now, with its cause."""
        for cause, asked_ns, reading in self.moving.values():
            for read_ns, _, move in reading:
                yield cause, known_leg(move.source, OpKind.READ, asked_ns, read_ns)
        for sides in self._slots.values():
            for (_, kind, cause, _), legs in sides.items():
                for finished_ns, asked_ns, ref in zip(*legs.legs(), strict=True):
                    if finished_ns > now_ns:
                        yield cause, known_leg(ref, kind, asked_ns, finished_ns)


def known_leg(ref: CopyRef, kind: OpKind, asked_ns: int, finished_ns: int) -> Leg:
    """Return a leg that takes its device from when it is asked for to its end."""
    chunks = () if kind is OpKind.DELETE else (IoChunk(finished_ns, ref.nbytes),)
    length_ns = finished_ns - asked_ns
    return Leg(ref.tier, kind, ENGINE, ref.nbytes, asked_ns, finished_ns, length_ns, chunks)


def _deletes_last(side: Side) -> bool:
    """A copy is read before it is deleted, which `Distinct` goes by."""
    return side[1] is OpKind.DELETE
