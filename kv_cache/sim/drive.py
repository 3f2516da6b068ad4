"""The second driver: lives on a virtual clock.

Events are totally ordered by (time, sequence number), so a seed gives the same records, byte for
byte, in every process. Nothing here may look at a real clock.
"""

import heapq
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

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
)
from kv_cache.core.kinds import OpKind, Outcome
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.core.signals import Signals
from kv_cache.lifecycle import World, lifecycle, unstarted
from kv_cache.metrics.recorder import Recorder
from kv_cache.schedule.intake import Intake
from kv_cache.sim.models import Devices

OnRecord = Callable[[RequestRecord], None]
OnOp = Callable[[OpDone], None]


def _ignore(_: object) -> None:
    """Nobody asked for records."""


def _never() -> bool:
    return False


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
        on_record: OnRecord = _ignore,
        on_op: OnOp = _ignore,
    ) -> None:
        self._world = world
        self._intake = intake
        self._recorder = recorder
        self._devices = devices
        self._signals = signals
        self._idle = workers
        self._on_record = on_record
        self._on_op = on_op
        self._clock = VirtualClock()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._parked: dict[Token, list[Callable[[], None]]] = {}
        self._living: dict[int, tuple[Request, int]] = {}
        self._wakes: set[int] = set()  # when a wake-up is due: one for each instant, at most
        self._progress: Callable[[int], None] = _ignore
        self._stopped: Callable[[], bool] = _never

    @property
    def now_ns(self) -> int:
        return self._clock.now_ns()

    def populate(self, lives: Iterable[Life]) -> None:
        """Run `lives` to their end before anything is asked, one after the other."""
        for life in lives:
            self._live(life, _ignore)
            self._run_until(None)

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
        self._recorder.edges.measure_start_ns = start_ns
        self._recorder.edges.measure_end_ns = end_ns
        self._admit()
        self._run_until(end_ns)
        if end_ns is None or self._intake.finished or stopped():
            edges = self._recorder.edges
            edges.measure_end_ns = self.now_ns
            edges.measure_start_ns = min(edges.measure_start_ns, self.now_ns)
        else:
            self._clock.advance_to(max(end_ns, self.now_ns))
        for queued in self._intake.close():
            self._end(
                unstarted(queued.request, queued.enqueued_ns, Outcome.UNFINISHED, "window-closed")
            )
        self._run_until(None if end_ns is None else end_ns + drain_ns)
        for request, enqueued_ns in self._living.values():
            self._end(unstarted(request, enqueued_ns, Outcome.UNFINISHED, "drain-ended"))

    def _run_until(self, end_ns: int | None) -> None:
        while self._events and (end_ns is None or self._events[0][0] <= end_ns):
            if self._stopped():
                return
            at_ns, _, action = heapq.heappop(self._events)
            self._clock.advance_to(at_ns)
            action()

    def _at(self, at_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ns, self._sequence, action))
        self._sequence += 1

    def _admit(self) -> None:
        """Give idle workers what is due, and wake up for what is due next."""
        while self._idle:
            queued = self._intake.take(self.now_ns)
            self._reject()
            if queued is None:
                break
            self._idle -= 1
            request, enqueued_ns = queued
            self._living[request.request_id] = (request, enqueued_ns)
            life = lifecycle(request, self._world, enqueued_ns=enqueued_ns, started_ns=self.now_ns)
            self._live(life, partial(self._finish, request))
        wake_ns = self._intake.wake_ns()
        if wake_ns is not None and wake_ns > self.now_ns and wake_ns not in self._wakes:
            self._wakes.add(wake_ns)
            self._at(wake_ns, self._wake)

    def _wake(self) -> None:
        self._wakes.remove(self.now_ns)
        self._intake.pump(self.now_ns)
        self._reject()
        self._admit()

    def _reject(self) -> None:
        for queued in self._intake.rejected:
            self._end(unstarted(queued.request, queued.enqueued_ns, Outcome.REJECTED, "queue-full"))
        self._intake.rejected.clear()

    def _finish(self, request: Request, record: RequestRecord) -> None:
        del self._living[request.request_id]
        self._end(record)
        self._idle += 1
        self._intake.finish(request, self.now_ns)
        self._progress(self._intake.submitted)
        self._at(self.now_ns, self._admit)

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
        """Let a life go on until it has to wait for an event."""
        while True:
            try:
                effect = next(life) if done is None else life.send(done)
            except StopIteration as stop:
                self._wake_waiters()
                on_end(stop.value)
                return
            self._wake_waiters()
            match effect:
                case Transfer(ops=ops):
                    self._transfer(life, on_end, ops)
                case Compute(duration_ns=duration_ns):
                    at_ns = self.now_ns + duration_ns
                    self._at(at_ns, lambda: self._step(life, on_end, Done(self.now_ns)))
                case Await(token=token):
                    self._parked.setdefault(token, []).append(
                        lambda: self._step(life, on_end, Done(self.now_ns))
                    )
                case Spawn(life=child):
                    self._at(self.now_ns, partial(self._live, child, _ignore))
                    done = Done(self.now_ns)
                    continue
            return

    def _transfer(
        self,
        life: Generator[Effect, Done, Any],
        on_end: Callable[[Any], None],
        ops: tuple[Op, ...],
    ) -> None:
        results: dict[int, OpDone] = {}

        def ended(index: int, *legs: Leg) -> None:
            result = OpDone(ops[index], legs[0].started_ns, legs[-1].finished_ns, legs)
            self._recorder.op(result)
            self._on_op(result)
            results[index] = result
            if len(results) == len(ops):
                in_order = tuple(results[i] for i in range(len(ops)))
                self._step(life, on_end, Done(self.now_ns, in_order))

        for index, op in enumerate(ops):
            self._perform(op, partial(ended, index))

    def _perform(self, op: Op, ended: Callable[..., None]) -> None:
        """`ended` gets the legs; a move asks for its second when the first has ended."""
        match op:
            case Read(copy=ref):
                self._leg(ref, OpKind.READ, ended)
            case Write(copy=ref):
                self._leg(ref, OpKind.WRITE, ended)
            case Delete(copy=ref):
                self._leg(ref, OpKind.DELETE, ended)
            case Move(source=source, target=target):
                self._leg(
                    source,
                    OpKind.READ,
                    lambda read: self._leg(target, OpKind.WRITE, partial(ended, read)),
                )

    def _leg(self, ref: CopyRef, kind: OpKind, ended: Callable[[Leg], None]) -> None:
        leg = self._devices.leg(ref, kind, self.now_ns)
        self._at(leg.finished_ns, partial(ended, leg))

    def _wake_waiters(self) -> None:
        for token in self._signals.drain():
            for resume in self._parked.pop(token, ()):
                self._at(self.now_ns, resume)
