"""Legs whose end is known as soon as they are asked for, counted many at a time.

An assumed device says at once when it will have done what it is asked. So nothing has to happen at
that instant: what has ended is counted before somebody looks at the counts.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kv_cache.core.effect import CopyRef, EndedLeg, IoChunk, Leg, Move
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.metrics.recorder import Recorder
from kv_cache.sim.shared_device import ENGINE

Side = tuple[Tier, OpKind, Cause, bool]
"""What is counted together. True: new data is stored."""


Reading = tuple[int, int, Move]
"""A move that does not write yet: when what it reads will have been read, its place among the
events of that instant, and what moves."""


class Ends:
    """Legs by when the whole operation ends, which for the first of a move is later. They wait in
    slots of `slot_ns`, so that each is looked at once, but for those of the slot that is cut."""

    def __init__(self, recorder: Recorder, slot_ns: int) -> None:
        self._recorder = recorder
        self._slot_ns = slot_ns
        self._slots: defaultdict[int, dict[Side, list[tuple[int, EndedLeg]]]] = defaultdict(dict)
        self.moving: dict[int, tuple[Cause, int, Sequence[Reading]]] = {}
        """Moves that do not all write yet: why, when they were asked for, and those that do
        not."""

    def add(self, side: Side, end_ns: int, leg: EndedLeg) -> None:
        sides = self._slots[end_ns // self._slot_ns]
        legs = sides.get(side)
        if legs is None:
            legs = sides[side] = []
        legs.append((end_ns, leg))

    def add_batch(
        self,
        kind: OpKind,
        cause: Cause,
        asked_ns: int,
        ends_ns: Sequence[int],
        refs: Sequence[CopyRef],
    ) -> None:
        """Add operations of one leg that were asked for together."""
        new = kind is OpKind.WRITE
        side: Side | None = None
        slot, legs = -1, list[tuple[int, EndedLeg]]()
        for ref, end_ns in zip(refs, ends_ns, strict=True):
            if side is None or side[0] is not ref.tier or end_ns // self._slot_ns != slot:
                slot, side = end_ns // self._slot_ns, (ref.tier, kind, cause, new)
                legs = self._slots[slot].setdefault(side, [])
            legs.append((end_ns, (end_ns, asked_ns, ref)))

    def settle(self, before_ns: int) -> None:
        """Count the legs of all operations that end before an instant."""
        last = before_ns // self._slot_ns
        for slot in sorted(slot for slot in self._slots if slot <= last):
            sides = self._slots.pop(slot)
            for side in sorted(sides, key=_deletes_last):
                over = legs = sides[side]
                if slot == last:
                    over = [leg for leg in legs if leg[0] < before_ns]
                    if len(over) < len(legs):
                        left = [leg for leg in legs if leg[0] >= before_ns]
                        self._slots[slot][side] = left
                if over:
                    self._count(side, [leg for _, leg in over])

    def _count(self, side: Side, legs: list[EndedLeg]) -> None:
        tier, kind, cause, new = side
        self._recorder.legs(tier, kind, cause, ENGINE, legs, new=new)

    def latest_ns(self, until_ns: int) -> int:
        """Return when the last operation ends that does by an instant; 0 if none does."""
        legs = (leg for sides in self._slots.values() for legs in sides.values() for leg in legs)
        return max((end_ns for end_ns, _ in legs if end_ns <= until_ns), default=0)

    def in_flight(self, now_ns: int) -> Iterator[tuple[Cause, Leg]]:
        """Yield what has not ended by now, with its cause."""
        for cause, asked_ns, reading in self.moving.values():
            for read_ns, _, move in reading:
                yield cause, known_leg(move.source, OpKind.READ, asked_ns, read_ns)
        for sides in self._slots.values():
            for (_, kind, cause, _), legs in sides.items():
                for _, (finished_ns, asked_ns, ref) in legs:
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
