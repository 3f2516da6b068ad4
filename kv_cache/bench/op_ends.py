"""How an operation ends: what was opened is closed, what was written is committed, or nothing of it
is left, and the answer says what became of it."""

import errno
from collections.abc import Mapping

from kv_cache.bench.batches import Batched, BatchMover
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.leg_timer import LegTimer
from kv_cache.bench.probes.pagecache import PageCacheSampler
from kv_cache.core.effect import VANISHED, CopyRef, Op, OpDone
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.tiers.base import PlacedStore, Sink, Tap, reason_of
from kv_cache.tiers.payload import MISMATCH

_EXISTS = reason_of(OSError(errno.EEXIST, ""))


class OpEnds:
    """Ends operations of a mover, alone or in batches, with sinks or on stores that have placed
    their copies."""

    def __init__(
        self,
        clock: MonotonicClock,
        page_cache: PageCacheSampler | None,
        placed: Mapping[Tier, PlacedStore],
        batches: BatchMover | None,
    ) -> None:
        self._clock, self._page_cache = clock, page_cache
        self._stores, self._batches = placed, batches

    def done(
        self, op: Op, ref: CopyRef, timer: LegTimer, error: StoreError | None = None
    ) -> OpDone:
        """Return what became of an operation of one side, which ends here."""
        legs = (timer.leg(ref.nbytes),)
        reason, side = (None, None) if error is None else (error.reason, timer.kind)
        return OpDone(op, timer.started_ns, self._clock.now_ns(), legs, reason, side)

    def close(self, timer: LegTimer, tap: Tap) -> None:
        if self._page_cache is not None and timer.sampled is not None and not timer.calling:
            self._page_cache.after(timer.sampled, tap.spans)
        timer.begin()
        try:
            tap.close()
        finally:
            timer.steps = tuple(tap.steps)
        timer.end_of_names()

    def commit(self, timer: LegTimer, sink: Sink) -> None:
        timer.begin()
        sink.commit()
        timer.end()

    # --- of a batch ------------------------------------------------------------------------

    def end_read(self, one: Batched) -> OpDone:
        self._close_tap(one)
        return self.done(one.op, one.ref, one.timer, one.error)

    def end_write(self, one: Batched) -> OpDone:
        self._end_writing(one)
        return self.done(one.op, one.ref, one.timer, one.error)

    def end_move(self, reader: Batched, writer: Batched) -> OpDone:
        self._close_tap(reader)
        side = OpKind.READ if reader.error else OpKind.WRITE
        writer.error = writer.error or reader.error
        self._end_writing(writer)  # last: after it nothing may fail
        error = reader.error or writer.error
        writer.timer.leave_host_to_the_other()
        started_ns = min(one.timer.started_ns for one in (reader, writer))
        legs = tuple(one.timer.leg(one.ref.nbytes) for one in (reader, writer))
        failed = (None, None) if error is None else (error.reason, side)
        return OpDone(reader.op, started_ns, self._clock.now_ns(), legs, *failed)

    def _close_tap(self, one: Batched) -> None:
        tap, one.tap = one.tap, None
        if one.error is not None and one.error.reason != MISMATCH:
            one.timer.sampled = None  # of a load all of whose bytes came
        try:
            if tap is not None:
                self.close(one.timer, tap)
        except StoreError as error:
            one.error = one.error or error

    def _end_writing(self, one: Batched) -> None:
        """Commit what was written, or leave nothing of it."""
        sink, one.sink = one.sink, None
        try:
            if sink is not None:
                self._end_sink(one, sink)
            elif one.error is None:
                self._complete(one)
        except StoreError as error:
            one.error = error
        if sink is None and one.error is not None and (one.names or one.place):
            self._give_up(one, one.error)

    def _end_sink(self, one: Batched, sink: Sink) -> None:
        try:
            if one.error is not None:
                raise one.error
            self.commit(one.timer, sink)
        except BaseException:
            sink.abort()
            raise
        finally:
            one.timer.steps = tuple(sink.steps)

    def _complete(self, one: Batched) -> None:
        """Do what is left of a write without a sink."""
        where = one.names or one.place
        assert where is not None
        store, spans = self._stores[one.ref.tier], () if one.place is None else one.place.spans
        if where.keep:
            fd, one.kept = one.kept, None
            due = store.synced_with(one.ref, spans, fd)
            if due is not None:
                assert self._batches is not None
                self._batches.sync(one, due)
        if one.place is not None and one.place.ends:
            one.timer.begin()
            steps = store.complete(one.ref, spans)
            one.timer.end_of_names()
            one.timer.steps += tuple(steps)

    def _give_up(self, one: Batched, error: StoreError) -> None:
        """Leave nothing, unless the name was another's before."""
        one.close_kept()
        if error.reason == _EXISTS:
            return
        try:
            spans = () if one.place is None else one.place.spans
            self._stores[one.ref.tier].give_up(one.ref, spans)
        except StoreError as failed:
            if failed.reason != VANISHED:
                one.error = failed
