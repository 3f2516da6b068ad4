"""The second driver: lives on a virtual clock.

Events are totally ordered by (time, sequence number), so a seed gives the same records, byte for
byte, in every process. Nothing here may look at a real clock.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, count, repeat
from math import inf
from typing import Any, TypeVar

from kv_cache.core.callbacks import ignore
from kv_cache.core.clock import VirtualClock
from kv_cache.core.effect import (
    Await,
    Compute,
    CopyRef,
    Delete,
    Done,
    Effect,
    Leg,
    Life,
    Move,
    Op,
    OpDone,
    Read,
    Spawn,
    Token,
    Transfer,
    Write,
    all_well,
    ended_legs,
)
from kv_cache.core.kinds import Cause, OpKind, Outcome, Tier
from kv_cache.core.object_ops import of_blocks, of_objects, single_objects
from kv_cache.core.record import RequestRecord, unstarted
from kv_cache.core.request import Request
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_S
from kv_cache.lifecycle import World, lifecycle
from kv_cache.metrics.recorder import Recorder
from kv_cache.metrics.window import Gauges
from kv_cache.schedule.control import Control
from kv_cache.schedule.intake import Intake
from kv_cache.schedule.queue import Queued
from kv_cache.sim.ends import Ends, Reading
from kv_cache.sim.io_workers import IoWorkers, Next
from kv_cache.sim.models import Devices, asked

OnRecord = Callable[[RequestRecord], None]
OnOp = Callable[[OpDone], None]
OnLeg = Callable[[Op, Leg], None]
T = TypeVar("T")


def _never() -> bool:
    return False


def _on_storage(op: Op) -> bool:
    refs = (op.source, op.target) if isinstance(op, Move) else (op.copy,)
    return any(ref.tier is Tier.NVME for ref in refs)


class _Moves:
    """A life that waits for moves that were asked for at one instant, of which this was the `first`
    event: the first legs that have not ended, in the order of the events; and the latest end that
    is known, with its place."""

    __slots__ = ("asked_ns", "cause", "end", "first", "life", "on_end", "reading")

    def __init__(
        self,
        life: Generator[Effect, Done, Any],
        on_end: Callable[[Any], None],
        first: int,
        cause: Cause,
        asked_ns: int,
        reading: list[Reading],
    ) -> None:
        self.life = life
        self.on_end = on_end
        self.first = first
        self.cause = cause
        self.asked_ns = asked_ns
        self.reading = reading
        self.end = (0, 0)


_KINDS: Mapping[type[Op], OpKind] = {
    Read: OpKind.READ, Write: OpKind.WRITE, Delete: OpKind.DELETE, Move: OpKind.READ,
}  # fmt: skip
"""What is asked for first."""


_READ, _WRITE, _DELETE = OpKind.READ, OpKind.WRITE, OpKind.DELETE
"""By these names no search through the classes of an enumeration, which is done for each batch."""


def _last_end(ends_ns: Sequence[int], first: int) -> tuple[int, int]:
    """Return the latest end, with the place of its last operation; the `first` has that one."""
    end_ns, place = max(ends_ns), len(ends_ns) - 1
    while ends_ns[place] != end_ns:
        place -= 1
    return end_ns, first + place


class Simulation:
    """One run. `workers` requests are served at once; 0 `duration_ns` means to the end."""

    def __init__(
        self,
        world: World,
        intake: Intake,
        recorder: Recorder,
        devices: Devices,
        signals: Signals,
        *,
        workers: int,
        on_record: OnRecord = ignore,
        on_op: OnOp = ignore,
        on_leg: OnLeg = ignore,
        control: Control | None = None,
        tick_ns: int = NS_PER_S,
        workers_for: Callable[[int], int] | None = None,
        io_workers: IoWorkers | None = None,
        background: int | None = None,
    ) -> None:
        """`on_leg` is told each side of an operation when it is asked for, `on_op` when all of it
        has ended. `control` sees a window every `tick_ns`; `workers_for` tells how many workers
        serve so many users, where their number may change. `io_workers` and `background` are the
        threads of the real driver, for operations and for what is stored behind; without them
        there is no end of either."""
        self._io_workers = io_workers
        watched = on_op is not ignore or on_leg is not ignore
        self._singly = watched or bool(devices.shared) or io_workers is not None
        self._ends = Ends(recorder, tick_ns)
        self._background_idle = background
        self._behind: deque[Life] = deque()  # lives that wait for a background thread
        for device in devices.shared.values():
            device.bind(self._at)
        self._world = world
        self._intake = intake
        self._recorder = recorder
        self._devices = devices
        self._signals = signals
        self._workers = self._idle = workers  # fewer than none idle: some leave when they can
        self._control = control
        self._tick_ns = tick_ns
        self._workers_for = workers_for
        self._tick_at: int | None = None
        self._end_ns: int | None = None
        self._enough = False
        self._on_record = on_record
        self._on_op = on_op
        self._on_leg = on_leg
        self._clock = VirtualClock()
        self._events: list[tuple[int, bool, int, Callable[[], None]]] = []
        self._sequence = 0
        self._legs: dict[int, tuple[Cause, Leg]] = {}  # in flight, by their numbers
        self._numbers = count()
        self._parked: dict[Token, list[Callable[[], None]]] = {}
        self._living: dict[int, Queued] = {}
        self._wakes: set[int] = set()  # when a wake-up is due: one for each instant, at most
        self._progress: Callable[[int], None] = ignore
        self._stopped: Callable[[], bool] = _never

    @property
    def now_ns(self) -> int:
        return self._clock.now_ns()

    def populate(self, lives: Iterable[Life]) -> None:
        """Run `lives` to their end before anything is asked, one after the other."""
        for life in lives:
            self._live(life, ignore)
            self._run_until(None)
        self._ends.settle(self.now_ns + 1)
        self._ends.flush()

    def counted(self, read: Callable[[], T]) -> T:
        """Return what `read` reads of the recorder, which has all that windows have counted."""
        self._ends.flush()
        return read()

    def run(
        self,
        *,
        start_ns: int,
        end_ns: int | None,
        drain_ns: int,
        progress: Callable[[int], None],
        stopped: Callable[[], bool] = _never,
    ) -> None:
        """Serve arrivals from now on; measure from `start_ns` until `end_ns`, the last request, or
        until `stopped` says that a person has had enough.

        At the end of the window no more is admitted, and what is in flight may finish within
        `drain_ns`.
        """
        self._progress = progress
        self._stopped = stopped
        self._intake.begin(self.now_ns)
        self._cut()
        self._recorder.edges.measure_start_ns = start_ns
        self._recorder.edges.measure_end_ns = end_ns
        self._tick_at = None if self._control is None else self._next_tick(self.now_ns)
        self._admit()
        self._run_until(end_ns)
        edges = self._recorder.edges
        over = end_ns is None or self._intake.finished or self._enough or stopped()
        self._ends.settle((self.now_ns if over else end_ns or 0) + (not self._enough))
        self._ends.flush()
        if over:
            edges.measure_end_ns = self.now_ns
            edges.measure_start_ns = min(edges.measure_start_ns, self.now_ns)
        else:
            self._clock.advance_to(max(end_ns or 0, self.now_ns))
        self._cut(last=True)
        self._tick_at, self._enough = None, False
        for queued in self._intake.close():
            self._refuse(queued, Outcome.UNFINISHED, "window-closed")
        last_ns = None if end_ns is None else (edges.measure_end_ns or 0) + drain_ns
        self._run_until(last_ns)
        if last_ns is not None and not stopped():
            self._clock.advance_to(max(self.now_ns, self._ends.latest_ns(last_ns)))
        self._ends.settle(self.now_ns + 1)
        self._ends.flush()
        self._cut_off()
        self._cut()

    def _cut_off(self) -> None:
        """End the drain: what is still in flight is not waited for."""
        for cause, leg in chain(self._legs.values(), self._ends.in_flight(self.now_ns)):
            late_ns = max(0, self.now_ns - leg.finished_ns)  # of one whose end is not known yet
            so_far = leg._replace(
                finished_ns=leg.finished_ns + late_ns, device_ns=leg.device_ns + late_ns
            )
            self._recorder.cut_off(cause, so_far)
        for queued in self._living.values():
            self._refuse(queued, Outcome.UNFINISHED, "drain-ended")

    def _run_until(self, end_ns: int | None) -> None:
        self._end_ns = end_ns
        events, stopped, advance_to = self._events, self._stopped, self._clock.advance_to
        while not (stopped() or self._enough):
            due_ns = events[0][0] if events else None
            if due_ns is not None and end_ns is not None and due_ns > end_ns:
                due_ns = None
            tick_at = self._tick_at
            if tick_at is not None and self._ticks_before(tick_at, due_ns, end_ns):
                self._tick(tick_at)
            elif due_ns is None:
                return
            else:
                at_ns, _, _, action = heapq.heappop(events)
                advance_to(at_ns)
                action()

    def _until_ns(self) -> float:
        """Return before which instant nobody looks at what has happened."""
        tick_ns = inf if self._tick_at is None else self._tick_at
        return tick_ns if self._end_ns is None else min(tick_ns, self._end_ns + 1)

    def _ticks_before(self, tick_ns: int, due_ns: int | None, end_ns: int | None) -> bool:
        """Whether a tick comes before the next event, or before the end if nothing happens until
        then."""
        if due_ns is not None:
            return tick_ns <= due_ns
        return end_ns is not None and tick_ns < end_ns and not self._intake.finished

    # --- windows ---------------------------------------------------------------------------

    def _next_tick(self, now_ns: int) -> int:
        """Return the next tick; the measured window begins with one of its own."""
        start_ns = self._recorder.edges.measure_start_ns
        due_ns = now_ns + self._tick_ns
        return start_ns if now_ns < start_ns < due_ns else due_ns

    def _tick(self, at_ns: int) -> None:
        self._clock.advance_to(at_ns)
        self._tick_at = self._next_tick(at_ns)
        self._ends.settle(at_ns)
        self._cut()

    def _cut(self, *, last: bool = False) -> None:
        """Let the control see what happened since the last time, and do what it says."""
        if self._control is None:
            return
        meter, intake = self._recorder.meter, self._intake
        if meter.start_ns == self.now_ns:
            return
        bins = meter.take(self.now_ns)
        gauges = Gauges(
            users=intake.users,
            workers=self._workers,
            in_flight=intake.in_flight,
            queued=intake.queued,
            oldest_queued_ns=intake.oldest_ns(self.now_ns),
            behind=self._world.behind.taken,
            submitted=intake.submitted,
        )
        phase = self._recorder.edges.phase_of((bins.start_ns + bins.end_ns) // 2)
        orders = self._control.see(meter.read(bins, phase, gauges), last=last)
        if orders.users is not None:
            self._resize(orders.users)
        self._enough = self._enough or orders.stop

    def _resize(self, users: int) -> None:
        assert self._workers_for is not None, "nobody said how many workers serve users"
        self._intake.resize(users, self.now_ns)
        workers = self._workers_for(users)
        self._idle += workers - self._workers
        self._workers = workers
        self._at(self.now_ns, self._admit, arrival=True)

    def _at(self, at_ns: int, action: Callable[[], None], *, arrival: bool = False) -> None:
        """Schedule an action. At one instant arrivals come last: so it does not matter whether a
        request was known before, as in a replay, or follows from an answer of the same instant."""
        heapq.heappush(self._events, (at_ns, arrival, self._sequence, action))
        self._sequence += 1

    def _admit(self) -> None:
        """Give idle workers what is due, and wake up for what is due next."""
        while self._idle > 0:
            queued = self._intake.take(self.now_ns)
            self._reject()
            if queued is None:
                break
            self._idle -= 1
            request, enqueued_ns = queued
            self._living[request.request_id] = queued
            life = lifecycle(request, self._world, enqueued_ns=enqueued_ns, started_ns=self.now_ns)
            self._live(life, partial(self._finish, request))
        wake_ns = self._intake.wake_ns()
        if wake_ns is not None and wake_ns > self.now_ns and wake_ns not in self._wakes:
            self._wakes.add(wake_ns)
            self._at(wake_ns, self._wake, arrival=True)

    def _wake(self) -> None:
        self._wakes.remove(self.now_ns)
        self._intake.pump(self.now_ns)
        self._reject()
        self._admit()

    def _reject(self) -> None:
        for queued in self._intake.rejected:
            self._refuse(queued, Outcome.REJECTED, "queue-full")
        self._intake.rejected.clear()

    def _refuse(self, queued: Queued, outcome: Outcome, reason: str) -> None:
        first_token_ns = self._world.first_tokens.get(queued.request.request_id)
        self._end(unstarted(queued.request, queued.enqueued_ns, outcome, reason, first_token_ns))

    def _finish(self, request: Request, record: RequestRecord) -> None:
        del self._living[request.request_id]
        self._end(record)
        self._idle += 1
        self._intake.finish(request, self.now_ns)
        if self._intake.finished:
            self._world.rest()
        self._progress(self._intake.submitted)
        self._at(self.now_ns, self._admit, arrival=True)

    def _end(self, record: RequestRecord) -> None:
        self._recorder.request(record)
        self._on_record(record)

    def _live(self, life: Generator[Effect, Done, Any], on_end: Callable[[Any], None]) -> None:
        self._step(life, on_end, None)

    def _step(
        self,
        life: Generator[Effect, Done, Any],
        on_end: Callable[[Any], None],
        done: Done | None,
    ) -> None:
        """Let a life go on until it has to wait for an event. Its first step may be one of several
        that belong to one event, which all come before anything ends."""
        begins, signals = done is None, self._signals
        while True:
            try:
                effect = next(life) if done is None else life.send(done)
            except StopIteration as stop:
                self._wake_waiters()
                on_end(stop.value)
                return
            if signals.fired:
                self._wake_waiters()
            match effect:
                case Transfer():
                    if self._singly:
                        self._transfer_singly(life, on_end, effect.ops)
                    elif self._transfer(life, on_end, effect, begins=begins):
                        done = all_well(self._clock.now_ns())
                        continue
                case Compute(duration_ns=duration_ns):
                    at_ns = self.now_ns + duration_ns
                    self._at(at_ns, lambda: self._step(life, on_end, all_well(self.now_ns)))
                case Await(token=token):
                    self._parked.setdefault(token, []).append(
                        lambda: self._step(life, on_end, all_well(self.now_ns))
                    )
                case Spawn(life=child):
                    self._behind.append(child)
                    self._at(self.now_ns, self._live_behind)
                    done = all_well(self.now_ns)
                    continue
            return

    def _live_behind(self) -> None:
        """Let the next life in the background begin, where a thread is idle."""
        if self._background_idle == 0 or not self._behind:
            return
        life = self._behind.popleft()
        if self._background_idle is None:
            self._live(life, ignore)
        else:
            self._background_idle -= 1
            self._live(life, self._ended_behind)

    def _ended_behind(self, _: object) -> None:
        assert self._background_idle is not None
        self._background_idle += 1
        self._live_behind()

    def _transfer(
        self,
        life: Generator[Effect, Done, Any],
        on_end: Callable[[Any], None],
        transfer: Transfer,
        *,
        begins: bool,
    ) -> bool:
        """Ask assumed devices, which say at once when they will have done what they are asked: one
        event ends a batch. The second leg of a move is asked for after its first. Return whether
        all has ended: in no time, before anything else happens."""
        now_ns, first = self._clock.now_ns(), self._sequence
        kind, cause, refs = _KINDS[transfer.sort], transfer.cause, single_objects(transfer.refs)
        self._sequence += len(refs)
        asked_ns = [now_ns] * len(refs)
        ends_ns: Sequence[int] = asked_ns
        if kind is not _DELETE:  # which takes no time
            ends_ns = self._devices.ends_ns(refs, kind, asked_ns)
        if transfer.targets:
            targets = single_objects(transfer.targets)
            reading = sorted(zip(ends_ns, repeat(False), count(first), refs, targets, strict=False))
            self._ends.moving[first] = cause, now_ns, reading
            self._await_read(_Moves(life, on_end, first, cause, now_ns, reading))
            return False
        legs = ended_legs((ends_ns, asked_ns, refs))
        self._ends.add(kind, cause, legs, ends_ns, new=kind is _WRITE)
        end_ns, last = _last_end(ends_ns, first)
        events = self._events
        if end_ns == now_ns and not begins and (not events or events[0] > (now_ns, False, last)):
            return True
        self._end_batch(life, on_end, end_ns, last)
        return False

    def _await_read(self, moves: _Moves) -> None:
        action: Callable[[], None] = partial(self._write_moved, moves)
        heapq.heappush(self._events, (*moves.reading[0][:3], action))

    def _write_moved(self, moves: _Moves) -> None:
        """Ask for the second legs of moves whose first has ended, until something else happens."""
        events, reading = self._events, moves.reading
        over = bisect_left(reading, (self._until_ns(),))
        if events:
            over = bisect_left(reading, events[0][:3], 0, over)
        read_ns, _, _, sources, targets = zip(*reading[: max(1, over)], strict=True)
        del reading[: len(read_ns)]
        ends_ns = self._devices.ends_ns(targets, _WRITE, read_ns)
        self._clock.advance_to(read_ns[-1])
        read = ended_legs((read_ns, [moves.asked_ns] * len(read_ns), sources))
        self._ends.add(_READ, moves.cause, read, ends_ns, new=False)
        written = ended_legs((ends_ns, read_ns, targets))
        self._ends.add(_WRITE, moves.cause, written, ends_ns, new=False)
        moves.end = max(moves.end, _last_end(ends_ns, self._sequence))
        self._sequence += len(read_ns)
        if reading:
            self._await_read(moves)
            return
        del self._ends.moving[moves.first]
        self._end_batch(moves.life, moves.on_end, *moves.end)

    def _end_batch(
        self,
        life: Generator[Effect, Done, Any],
        on_end: Callable[[Any], None],
        at_ns: int,
        number: int,
    ) -> None:
        """Let the life go on when the last operation has ended: among the events of that instant at
        the place of this operation."""
        action: Callable[[], None] = partial(self._go_on, life, on_end)
        heapq.heappush(self._events, (at_ns, False, number, action))

    def _go_on(self, life: Generator[Effect, Done, Any], on_end: Callable[[Any], None]) -> None:
        self._step(life, on_end, all_well(self._clock.now_ns()))

    # --- one by one: on measured devices, or where somebody watches ------------------------------

    def _transfer_singly(
        self,
        life: Generator[Effect, Done, Any],
        on_end: Callable[[Any], None],
        blocks: tuple[Op, ...],
    ) -> None:
        ops, results = of_objects(blocks), dict[int, OpDone]()

        def ended(index: int, further: Next, *legs: Leg) -> None:
            result = OpDone(ops[index], legs[0].started_ns, legs[-1].finished_ns, legs)
            self._recorder.op(result)
            self._on_op(result)
            results[index] = result
            further()
            if len(results) == len(ops):
                in_order = [results[i] for i in range(len(ops))]
                self._step(life, on_end, Done(self.now_ns, of_blocks(blocks, in_order)))

        def begin(index: int, further: Next) -> None:
            self._perform(ops[index], partial(ended, index, further))

        if self._io_workers is not None:
            starts = [partial(begin, index) for index in range(len(ops))]
            self._io_workers.work(starts, shared=any(map(_on_storage, ops)))
            return
        for index in range(len(ops)):
            begin(index, ignore)

    def _perform(self, op: Op, ended: Callable[..., None]) -> None:
        """Perform an operation; `ended` gets the legs. A move asks for its second when the first
        has ended."""
        match op:
            case Read(copy=ref):
                self._leg(op, ref, OpKind.READ, ended)
            case Write(copy=ref):
                self._leg(op, ref, OpKind.WRITE, ended)
            case Delete(copy=ref):
                self._leg(op, ref, OpKind.DELETE, ended)
            case Move(source=source, target=target):
                self._leg(
                    op,
                    source,
                    OpKind.READ,
                    lambda read: self._leg(op, target, OpKind.WRITE, partial(ended, read)),
                )

    def _leg(self, op: Op, ref: CopyRef, kind: OpKind, ended: Callable[[Leg], None]) -> None:
        device = self._devices.shared.get(ref.tier)
        leg = (self._devices.leg if device is None else asked)(ref, kind, self.now_ns)
        self._on_leg(op, leg)
        number = next(self._numbers)
        self._legs[number] = (op.cause, leg)

        def over(whole: Leg) -> None:
            del self._legs[number]
            ended(whole)

        if device is not None:
            device.ask(ref, kind, self.now_ns, over)
        else:
            self._at(leg.finished_ns, partial(over, leg))

    def _wake_waiters(self) -> None:
        for token in self._signals.drain():
            for resume in self._parked.pop(token, ()):
                self._at(self.now_ns, resume)
