"""Which operations have ended within calls that have not: where one of a batch hangs on its device,
the rows of the others tell what became of them.

Asked once, when such calls are not waited for any longer. It touches no store: what was still to
be done in Python (a failed write's file, a bucket's index) is not done.
"""

import threading
from collections.abc import Iterable, Sequence

from kv_cache.bench.batches import Batched, BatchMover
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.leg_timer import LegTimer
from kv_cache.bench.many import AloneAfterAll, PlacedMoves, PlacedObjects
from kv_cache.bench.store_calls import Call, CallsOfMany, StoreCalls
from kv_cache.core.effect import CopyRef, Leg, MetadataStep, Move, Op, OpDone, Read, Write
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import OpKind
from kv_cache.core.ops_done import OpsDone
from kv_cache.tiers.base import Place
from kv_cache.tiers.native import Moved, Piece

Sides = tuple[Batched, ...]


class UnderWay:
    """The operations of each thread's batch, by their sides."""

    def __init__(self, batches: BatchMover, clock: MonotonicClock) -> None:
        self._batches, self._clock = batches, clock
        self._of: dict[int, Sequence[Sides]] = {}

    def begin(self, operations: Sequence[Sides]) -> None:
        """Note this thread's batch."""
        self._of[threading.get_ident()] = operations

    def end(self) -> None:
        """Forget this thread's batch."""
        self._of.pop(threading.get_ident(), None)

    def ended(self, many: Iterable[CallsOfMany]) -> tuple[list[OpDone | OpsDone], set[Call]]:
        """Return the operations of all batches, and of `many`, that have ended, and the timers of
        their sides."""
        done, timers = list[OpDone | OpsDone](), set[Call]()
        for objects in many:
            assert isinstance(objects, PlacedObjects | PlacedMoves)
            well, others = objects.outcome()
            done += [*([] if well is None else [well]), *map(self._outcome_alone, others)]
        for operations in list(self._of.values()):
            for sides in operations:
                one = self._outcome(sides)
                if one is not None:
                    done.append(one)
                    timers.update(side.timer for side in sides)
        return done, timers

    def _outcome_alone(self, sides: Sequence[AloneAfterAll]) -> OpDone:
        legs, error, failed = list[Leg](), None, None
        for one in sides:
            assert not isinstance(one.place, StoreError)
            steps = one.place.steps if isinstance(one.place, Place) else ()
            leg, error = self._side_of(one.op, one.ref, one.kind, one.place.engine, steps, one.rows)
            legs.append(leg)
            if error is not None:
                failed = one.kind
                break
        return _done(sides[0].op, legs, error, failed)

    def _outcome(self, sides: Sides) -> OpDone | None:
        """Return what became of an operation; None while it goes on, or before it has begun."""
        legs, error, failed = list[Leg](), None, None
        for side in sides:
            rows = side.rows
            if rows is None or not rows.table.are_over(rows.first, rows.end):
                return None
            kind, steps = side.timer.kind, () if side.place is None else side.place.steps
            each = map(rows.table.row, range(rows.first, rows.end))
            leg, error = self._side_of(side.op, side.ref, kind, side.timer.engine, steps, each)
            legs.append(leg)
            if error is not None:
                failed = kind
                break
        return _done(sides[0].op, legs, error, failed)

    def _side_of(
        self,
        op: Read | Write | Move,
        ref: CopyRef,
        kind: OpKind,
        engine: str,
        steps: Sequence[MetadataStep],
        rows: Iterable[tuple[Piece, Moved]],
    ) -> tuple[Leg, StoreError | None]:
        timer = LegTimer(self._clock, StoreCalls(), op.cause, ref.tier, kind)
        timer.engine = engine
        timer.placed(steps)
        one = Batched(op, ref, timer)
        self._batches.tell(one, rows)
        return timer.leg(ref.nbytes), one.error


def _done(op: Op, legs: Sequence[Leg], error: StoreError | None, failed: OpKind | None) -> OpDone:
    reason = None if error is None else error.reason
    return OpDone(op, legs[0].started_ns, legs[-1].finished_ns, tuple(legs), reason, failed)
