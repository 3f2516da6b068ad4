"""Legs whose end is known as soon as they are asked for, counted many at a time.

An assumed device says at once when it will have done what it is asked. So nothing has to happen at
that instant: what has ended is counted before somebody looks at the counts, batch by batch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import itemgetter, sub
from typing import NamedTuple

from kv_cache.core.effect import CopyRef, EndedLegs, IoChunk, Leg
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.metrics.recorder import Recorder
from kv_cache.sim.shared_device import ENGINE

Side = tuple[Tier, OpKind, Cause, bool]
"""What is counted together. True: new data is stored."""


Reading = tuple[int, bool, int, CopyRef, CopyRef]
"""A move that does not write yet: its place among the events, which begins with when what it reads
will have been read; what it reads and what it writes."""

TOGETHER = 4096
"""Legs of a side that are counted at once in what is not of a window."""

tier_of = itemgetter(CopyRef._fields.index("tier"))
nbytes_of = itemgetter(CopyRef._fields.index("nbytes"))


class _Batch(NamedTuple):
    """Legs that were asked for together; `over_ns` is when each one's whole operation has ended."""

    last_ns: int
    over_ns: Sequence[int]
    legs: EndedLegs

    def taken(self, chosen: Sequence[bool]) -> "_Batch":
        """Return those that are chosen, of which there is one."""
        over_ns = list(compress(self.over_ns, chosen))
        ended_ns, began_ns, refs = self.legs
        legs = EndedLegs(
            list(compress(ended_ns, chosen)),
            list(compress(began_ns, chosen)),
            list(compress(refs, chosen)),
        )
        return _Batch(max(over_ns), over_ns, legs)


_batch: Callable[[tuple[int, Sequence[int], EndedLegs]], _Batch] = partial(tuple.__new__, _Batch)
"""As the class, of all of its fields, without a frame of Python's."""


class Ends:
    """Legs by when the whole operation ends, which for the first of a move is later. They wait in
    slots of `slot_ns`, each batch in that of the first of its ends that was not looked at."""

    def __init__(self, recorder: Recorder, slot_ns: int) -> None:
        self._recorder = recorder
        self._slot_ns = slot_ns
        self._slots: defaultdict[int, defaultdict[Side, list[_Batch]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._over: defaultdict[Side, tuple[list[int], list[int], list[CopyRef]]] = defaultdict(
            lambda: ([], [], [])
        )
        """Legs that a window has counted, and the totals of the run have not: as `EndedLegs`."""
        self.moving: dict[int, tuple[Cause, int, Sequence[Reading]]] = {}
        """Moves that do not all write yet: why, when they were asked for, and those that do
        not."""

    def add(
        self, kind: OpKind, cause: Cause, legs: EndedLegs, over_ns: Sequence[int], *, new: bool
    ) -> None:
        """Add legs of operations that were asked for together, each with when its whole operation
        is over. `new`: new data is stored."""
        tiers = set(map(tier_of, legs.refs))
        batch = _batch((max(over_ns), over_ns, legs))
        slot = min(over_ns) // self._slot_ns
        if len(tiers) == 1:
            self._slots[slot][tiers.pop(), kind, cause, new].append(batch)
            return
        for tier in sorted(tiers):
            part = batch.taken([ref.tier is tier for ref in legs.refs])
            slot = min(part.over_ns) // self._slot_ns
            self._slots[slot][tier, kind, cause, new].append(part)

    def settle(self, before_ns: int) -> None:
        """Count the legs of all operations that end before an instant in their window."""
        last = before_ns // self._slot_ns
        for slot in sorted(slot for slot in self._slots if slot <= last):
            sides = self._slots.pop(slot)
            for side, batches in sides.items():
                over = [each.legs for each in batches if each.last_ns < before_ns]
                if len(over) < len(batches):
                    for batch in batches:
                        if batch.last_ns >= before_ns:
                            over += self._cut(side, batch, before_ns)
                if over:
                    self._count(side, over)

    def _cut(self, side: Side, batch: _Batch, before_ns: int) -> list[EndedLegs]:
        """Return the legs of a batch that are over before an instant; the others wait on."""
        is_over = [end_ns < before_ns for end_ns in batch.over_ns]
        left = batch.taken([not over for over in is_over])
        self._slots[min(left.over_ns) // self._slot_ns][side].append(left)
        return [batch.taken(is_over).legs] if any(is_over) else []

    def _count(self, side: Side, over: list[EndedLegs]) -> None:
        tier, kind, _, _ = side
        ended_ns, began_ns, refs = self._over[side]
        before = len(refs)
        for legs in over:
            ended_ns += legs.ended_ns
            began_ns += legs.began_ns
            refs += legs.refs
        latencies = list(map(sub, ended_ns[before:], began_ns[before:]))
        self._recorder.meter.legs(tier, kind, latencies, sum(map(nbytes_of, refs[before:])))
        if len(refs) >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Count what the windows have counted in the totals of the run."""
        for side in sorted(self._over, key=_deletes_last):
            tier, kind, cause, new = side
            legs = EndedLegs(*self._over[side])
            self._recorder.totals(tier, kind, cause, ENGINE, legs, new=new)
        self._over.clear()

    def latest_ns(self, until_ns: int) -> int:
        """Return when the last operation ends that does by an instant; 0 if none does."""
        ends_ns = (end_ns for _, batch in self._waiting() for end_ns in batch.over_ns)
        return max((end_ns for end_ns in ends_ns if end_ns <= until_ns), default=0)

    def in_flight(self, now_ns: int) -> Iterator[tuple[Cause, Leg]]:
        """Yield what has not ended by now, with its cause."""
        for cause, asked_ns, reading in self.moving.values():
            for read_ns, _, _, source, _ in reading:
                yield cause, known_leg(source, OpKind.READ, asked_ns, read_ns)
        for (_, kind, cause, _), batch in self._waiting():
            for finished_ns, asked_ns, ref in zip(*batch.legs, strict=True):
                if finished_ns > now_ns:
                    yield cause, known_leg(ref, kind, asked_ns, finished_ns)

    def _waiting(self) -> Iterator[tuple[Side, _Batch]]:
        for sides in self._slots.values():
            for side, batches in sides.items():
                yield from ((side, batch) for batch in batches)


def known_leg(ref: CopyRef, kind: OpKind, asked_ns: int, finished_ns: int) -> Leg:
    """Return a leg that takes its device from when it is asked for to its end."""
    chunks = () if kind is OpKind.DELETE else (IoChunk(finished_ns, ref.nbytes),)
    length_ns = finished_ns - asked_ns
    return Leg(ref.tier, kind, ENGINE, ref.nbytes, asked_ns, finished_ns, length_ns, chunks)


def _deletes_last(side: Side) -> bool:
    """A copy is read before it is deleted, which `Distinct` goes by."""
    return side[1] is OpKind.DELETE
