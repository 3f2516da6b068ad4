"""The first driver: lives on threads, operations on real stores.

One lock guards all decisions; operations run outside it. A worker serves one request at a time
and performs its operations itself; where a batch waits for storage, idle I/O threads help it. A
feeder lets arrivals in at their instants. Any thread that dies ends the run with an error.
"""

import itertools
import threading
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.probes.interposed import is_the_kernels_clock
from kv_cache.bench.transfer import Mover
from kv_cache.core.callbacks import ignore
from kv_cache.core.effect import (
    Await,
    Compute,
    Done,
    Effect,
    Life,
    Op,
    OpDone,
    Spawn,
    Token,
    Transfer,
)
from kv_cache.core.kinds import Outcome
from kv_cache.core.object_ops import leftovers, of_blocks, of_objects
from kv_cache.core.ops_done import OpsDone, each_of, in_order, last_ns
from kv_cache.core.record import RequestRecord, unstarted
from kv_cache.core.request import Request
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_S, s_to_ns
from kv_cache.lifecycle import World, lifecycle
from kv_cache.metrics.recorder import Recorder
from kv_cache.metrics.window import Bins, Gauges
from kv_cache.schedule.intake import Intake
from kv_cache.schedule.queue import Queued

T = TypeVar("T")

OnRecord = Callable[[RequestRecord], None]
OnOp = Callable[[OpDone], None]


_LONGEST_WAIT_S = 0.5  # nobody waits longer without looking around
_LOOK_S = 0.1  # so often, at the end, whether somebody wants it to come at once
_PATIENCE_NS = s_to_ns(1.0)  # with a device that holds on to an operation, then


class _Aborted(Exception):  # noqa: N818 - not an error: the run ends under a life
    """Unwinds a life whose run has ended."""


class _IoBatch:
    """Operations that several threads work off together, a unit at a time: the numbers of those
    that one call moves."""

    def __init__(
        self,
        ops: tuple[Op, ...],
        units: list[list[int]],
        mover: Mover,
        results: list[OpDone | OpsDone],
    ) -> None:
        """What becomes of the operations is added to `results` as they end."""
        self._ops, self._units = ops, units
        self._mover = mover
        self._next = itertools.count()
        self._lock = threading.Lock()
        self._left = len(units)
        self._ended = threading.Event()
        self._results = results
        self._error: BaseException | None = None

    def work(self) -> None:
        while (i := next(self._next)) < len(self._units):
            unit = self._units[i]
            try:
                for part in self._mover.perform_many([self._ops[number] for number in unit]):
                    self._results.append(part)  # now: another may never end
            except BaseException as error:  # noqa: BLE001 - raised again in `wait`
                self._error = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._ended.set()

    def wait(self) -> None:
        self._ended.wait()
        if self._error is not None:
            raise self._error


class _Lived:
    """A life and what its thread has to do for it. Only under the drive's lock, but by that thread
    where it is not parked."""

    __slots__ = ("effect", "error", "life", "needed", "over", "value")

    def __init__(self, life: Generator[Effect, Done, Any]) -> None:
        self.life = life
        self.effect: Effect | None = None
        """None where the life waits."""
        self.over = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.needed = threading.Lock()
        """Held until the thread, which waits, has something to do."""
        self.needed.acquire()


class Drive:
    """Threads that serve what `intake` gives them."""

    def __init__(
        self,
        world: World,
        intake: Intake,
        recorder: Recorder,
        mover: Mover,
        clock: MonotonicClock,
        signals: Signals,
        abort: threading.Event,
        *,
        workers: int,
        io_threads: int,
        background: int,
        on_record: OnRecord,
        on_op: OnOp,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` is called once by each thread, before it does anything else."""
        self._prepare = prepare
        self._world = world
        self._intake = intake
        self._recorder = recorder
        self._mover = mover
        self._clock = clock
        self._signals = signals
        self._abort = abort
        self._on_record = on_record
        self._on_op = on_op
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._feed = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._parked: dict[Token, list[_Lived]] = {}
        self._batches: SimpleQueue[_IoBatch | None] = SimpleQueue()
        self._lives: SimpleQueue[Life | None] = SimpleQueue()
        self._living: dict[int, Queued] = {}
        self._unrecorded: dict[int, list[OpDone | OpsDone]] = {}  # by thread: what has ended
        self._background_left = 0
        self._idle = 0
        self._workers = workers
        self._leaving = 0  # workers that end at the next opportunity
        self._started = False
        self._users: int | None = None  # as they were wanted, if they were changed
        self._thread_numbers = itertools.count()
        self._submitted_before = 0
        self._record_sink = on_record
        self._open = False
        self._stopping = False
        self._sealed = False  # the books are closed
        self.death: BaseException | None = None
        self._threads = [
            *self._make("worker", self._worker, workers),
            *self._make("io", self._helper, io_threads - 1),
            *self._make("background", self._backgrounder, background),
            *self._make("feeder", self._feeder, 1),
        ]
        self._io_threads = io_threads

    # --- what the run does ---------------------------------------------------------------

    def start(self) -> None:
        with self._lock:  # whoever resizes from now on starts those who come
            self._started, threads = True, list(self._threads)
        for thread in threads:
            thread.start()

    def populate(
        self, lives: Iterable[Life], stop: threading.Event, tick: Callable[[], None]
    ) -> None:
        """Hand lives to the background threads, and wait until all have ended (or `stop`)."""
        for life in lives:
            with self._lock:
                self._background_left += 1
            self._lives.put(life)
        while True:
            with self._changed:
                if not self._background_left or self._over:
                    return
                self._changed.wait(_LONGEST_WAIT_S)
            if stop.is_set():
                self._abort.set()
            tick()

    def switch(self, intake: Intake, *, recorded: bool) -> None:
        """Serve another intake from the next `open` on. The one before must be closed and nothing
        of it in flight. `recorded`: whether its requests are records of the run."""
        with self._lock:
            assert not self._intake.in_flight, "requests of the intake before are still served"
            self._submitted_before += self._intake.submitted
            self._intake, self._open = intake, False
            if self._users is not None:
                intake.resize(self._users, 0)
            self._record_sink = self._on_record if recorded else ignore

    def resize(self, workers: int, users: int | None) -> None:
        """So many workers from now on and, where users make the load, so many users. A worker who
        is not wanted any more ends when it has answered what it serves."""
        with self._lock:
            if users is not None:
                self._users = users
                self._intake.resize(users, self._clock.now_ns())
            alive = sum(t.name.startswith("worker") for t in self._threads)
            self._workers = workers
            self._leaving = max(0, alive - workers)
            coming = self._make("worker", self._worker, max(0, workers - alive))
            self._threads += coming
            self._work.notify_all()
            self._feed.notify_all()
            started = self._started
        for thread in coming if started else ():
            thread.start()

    def take(self) -> tuple[Bins, Gauges]:
        """Return what was collected since the last call, and the current gauges."""
        with self._lock:
            now_ns, intake = self._clock.now_ns(), self._intake
            gauges = Gauges(
                users=intake.users,
                workers=self._workers,
                in_flight=intake.in_flight,
                queued=intake.queued,
                oldest_queued_ns=intake.oldest_ns(now_ns),
                behind=self._world.behind.taken,
                submitted=self._submitted_before + intake.submitted,
            )
            return self._recorder.meter.take(now_ns), gauges

    def locked(self, read: Callable[[], T]) -> T:
        """Read what was counted, while nothing is."""
        with self._lock:
            return read()

    def open(self) -> int:
        """Arrivals may come in; the source's time begins, at the instant that is returned."""
        with self._lock:
            now_ns = self._clock.now_ns()
            self._intake.begin(now_ns)
            self._open = True
            self._work.notify_all()
            self._feed.notify_all()
            return now_ns

    def wait(self, until_ns: int | None, timeout_s: float) -> bool:
        """Wait a while. True when everything has ended, somebody died, or time is up."""
        if until_ns is not None:
            timeout_s = min(timeout_s, max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_S))
        with self._changed:
            if not self._done:
                self._changed.wait(timeout_s)
            late = until_ns is not None and self._clock.now_ns() >= until_ns
            return self._done or late

    def close(self) -> None:
        """The window is over: nothing more is admitted, what waited is unfinished."""
        with self._lock:
            for queued in self._intake.close():
                self._refuse(queued, Outcome.UNFINISHED, "window-closed")
            self._work.notify_all()
            self._feed.notify_all()

    def stop(
        self,
        hurried: Callable[[], bool] = lambda: False,
        no_answer: Callable[[], bool] = lambda: False,
    ) -> None:
        """End all threads. With `abort` set, operations end at their next buffer.

        Once `hurried` or without an answer, a thread that the device does not let go is left
        behind: nothing that it does counts any more, and `join` waits for it.
        """
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            self._feed.notify_all()
            if self._abort.is_set():
                for lived in itertools.chain(*self._parked.values()):
                    lived.needed.release()
                self._parked.clear()
        for thread in list(self._threads):
            self._batches.put(None)
            self._lives.put(None)
            assert thread is not threading.current_thread(), "a worker cannot stop the drive"
        self._wait_for_threads(hurried, no_answer)
        with self._lock:
            self._sealed = True
            self._record_what_is_left()
            for queued in self._living.values():
                self._refuse(queued, Outcome.UNFINISHED, "drain-ended")
            self._living.clear()

    def _record_what_is_left(self) -> None:
        """Record what threads that are left behind have ended of their batches, and how far they
        have come with the rest."""
        within, in_flight = self._mover.cut_off()
        unrecorded = list(self._unrecorded.values())  # a thread may begin its first life now
        parts = [part for each in unrecorded for part in list(each)]
        ended = {id(one.op) for part in parts for one in each_of(part)}
        for part in within:
            if not any(id(one.op) in ended for one in each_of(part)):  # it has just returned
                parts.append(part)
        for part in parts:
            self._record(part)
        for cause, leg in in_flight:
            self._recorder.cut_off(cause, leg)

    def _wait_for_threads(self, hurried: Callable[[], bool], no_answer: Callable[[], bool]) -> None:
        deadline_ns: int | None = None
        while (left := self.left) and (deadline_ns is None or self._clock.now_ns() < deadline_ns):
            left[0].join(_LOOK_S)
            if no_answer():
                return
            if deadline_ns is None and hurried():
                deadline_ns = self._clock.now_ns() + _PATIENCE_NS

    @property
    def left(self) -> list[threading.Thread]:
        """The threads that have not ended."""
        return [thread for thread in list(self._threads) if thread.is_alive()]

    def join(self, no_answer: Callable[[], bool] = lambda: False) -> None:
        """Wait for the threads that `stop` left behind, unless there is no answer."""
        self._wait_for_threads(lambda: False, no_answer)

    def fail(self, error: BaseException) -> None:
        """The run cannot go on: end all operations at their next buffer, and tell why."""
        with self._lock:
            self.death = self.death or error
            self._abort.set()
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Nothing is in flight (or the run is over anyway)."""
        with self._lock:
            return self._done

    # --- threads -------------------------------------------------------------------------

    def _make(self, name: str, target: Callable[[], None], count: int) -> list[threading.Thread]:
        def guarded() -> None:
            try:
                self._prepare()
                target()
            except BaseException as error:  # noqa: BLE001 - told in the result, ends the run
                self.fail(error)

        return [
            threading.Thread(
                target=guarded, name=f"{name}-{next(self._thread_numbers)}", daemon=True
            )
            for _ in range(count)
        ]

    def _worker(self) -> None:
        while True:
            with self._lock:
                queued = self._next_request()
                started_ns = self._clock.now_ns()
            if queued is None:
                return
            self._serve(queued, started_ns)

    def _next_request(self) -> Queued | None:
        """Under the lock: the next request, or None when there will be none."""
        while True:
            if self._stopping:
                return None
            if self._leaving:
                self._leaving -= 1
                self._threads.remove(threading.current_thread())
                return None
            if self._open:
                queued = self._intake.take(self._clock.now_ns())
                self._reject()
                if queued is not None:
                    self._living[queued.request.request_id] = queued
                    return queued
            self._idle += 1
            self._work.wait(_LONGEST_WAIT_S)
            self._idle -= 1

    def _serve(self, queued: Queued, started_ns: int) -> None:
        request, enqueued_ns = queued
        life = lifecycle(request, self._world, enqueued_ns=enqueued_ns, started_ns=started_ns)
        try:
            record, spawned = self._live(life)
        except _Aborted:
            return  # stays in `_living`: `stop` counts it
        self._hand_over(spawned)
        with self._lock:
            if self._sealed:
                return
            del self._living[request.request_id]
            self._recorder.request(record)
            self._record_sink(record)
            # By when the answer was there: what this thread did since is no time of the user's.
            ended_ns = record.finished_ns
            self._intake.finish(request, self._clock.now_ns() if ended_ns is None else ended_ns)
            if self._intake.finished:
                self._world.rest()
            self._next_arrivals(request)

    def _next_arrivals(self, ended: Request) -> None:
        """The end of a request may have made others due."""
        self._intake.pump(self._clock.now_ns())
        self._reject()
        for _ in range(min(self._idle, self._intake.queued)):
            self._work.notify()
        if self._idle and self._intake.demanded:
            self._work.notify_all()
        if self._intake.wake_ns() is not None:
            self._feed.notify()
        if self._done:
            self._changed.notify_all()

    def _feeder(self) -> None:
        with self._lock:
            while not self._stopping:
                now_ns = self._clock.now_ns()
                wait_s = _LONGEST_WAIT_S
                if self._open:
                    self._intake.pump(now_ns)
                    self._reject()
                    for _ in range(min(self._idle, self._intake.queued)):
                        self._work.notify()
                    due_ns = self._intake.wake_ns()
                    if due_ns is not None:
                        wait_s = min(wait_s, max(0.0, (due_ns - now_ns) / NS_PER_S))
                self._feed.wait(wait_s)

    def _backgrounder(self) -> None:
        life = self._lives.get()
        while life is not None:
            spawned: list[Life] = []
            try:
                _, spawned = self._live(life)
            except _Aborted:
                pass
            else:
                with self._lock:
                    self._background_left -= 1
                    if self._done or not self._background_left:
                        self._changed.notify_all()
            # The first is ours if none came before it: nobody has to be woken for it.
            following = spawned.pop(0) if spawned and self._lives.empty() else None
            self._hand_over(spawned)
            life = following or self._lives.get()

    def _hand_over(self, lives: Iterable[Life]) -> None:
        for life in lives:
            self._lives.put(life)

    def _helper(self) -> None:
        while (batch := self._batches.get()) is not None:
            batch.work()

    # --- one life ------------------------------------------------------------------------

    def _live(self, life: Generator[Effect, Done, Any]) -> tuple[Any, list[Life]]:
        """Run a life to its end; return its value, and lives that it has made and nobody has yet.

        A life that waits is taken on by who ends its waiting, as far as that needs no thread of its
        own: to wake one takes as long as many objects.
        """
        parts = self._unrecorded[threading.get_ident()] = list[OpDone | OpsDone]()
        lived, done = _Lived(life), None
        while True:
            with self._lock:
                if self._sealed:
                    raise _Aborted
                for part in parts:
                    if done is not None and last_ns(part) > done.at_ns:
                        assert not is_the_kernels_clock(), "told before it ended"
                    self._record(part)
                parts.clear()
                if self._abort.is_set():
                    raise _Aborted
                needed, spawned = self._go_on(lived, done)
            for other in needed:  # now: under the lock they would wake to wait for it
                other.needed.release()
            if lived.over:
                return lived.value, spawned
            self._hand_over(spawned)
            if lived.effect is None:
                lived.needed.acquire()
                if lived.error is not None:
                    raise lived.error
                if lived.over:
                    return lived.value, []
            if lived.effect is not None:  # else the run is aborted
                results = self._perform(lived.effect, parts)
                done = Done(self._clock.now_ns(), results)  # the instant at which it had ended

    def _go_on(self, lived: "_Lived", done: Done | None) -> tuple[list["_Lived"], list[Life]]:
        """Under the lock: take a life on, and those that wait for what that fires. Return those
        others whose threads have something to do now, and lives to begin."""
        needed: list[_Lived] = []
        spawned: list[Life] = []
        self._step(lived, done, spawned)
        while tokens := self._signals.drain():
            for other in itertools.chain(*(self._parked.pop(token, ()) for token in tokens)):
                try:
                    self._step(other, Done(self._clock.now_ns(), ()), spawned)
                except BaseException as error:  # noqa: BLE001 - raised by its own thread
                    other.error = error
                if other.over or other.error is not None or other.effect is not None:
                    needed.append(other)
        return needed, spawned

    def _step(self, lived: "_Lived", done: Done | None, spawned: list[Life]) -> None:
        """Take a life on until it is over, waits, or needs its thread."""
        life = lived.life
        while True:
            try:
                effect = next(life) if done is None else life.send(done)
            except StopIteration as stop:
                lived.over, lived.value = True, stop.value
                return
            if isinstance(effect, Await):
                lived.effect = None
                self._parked.setdefault(effect.token, []).append(lived)
                return
            if not isinstance(effect, Spawn):
                lived.effect = effect
                return
            self._background_left += 1
            spawned.append(effect.life)
            done = Done(self._clock.now_ns(), ())

    def _perform(self, effect: Effect, parts: list[OpDone | OpsDone]) -> tuple[OpDone, ...]:
        """Add to `parts` what is to be recorded; return what the life is told unless all went
        well."""
        if isinstance(effect, Transfer):
            return self._transfer(effect.ops, parts)
        assert isinstance(effect, Compute), effect
        self._abort.wait(effect.duration_ns / NS_PER_S)
        return ()

    def _transfer(self, ops: tuple[Op, ...], parts: list[OpDone | OpsDone]) -> tuple[OpDone, ...]:
        """Perform operations on the objects of each copy, and delete again what has to be."""
        objects = of_objects(ops)
        self._move(objects, parts)
        if all(part.ok for part in parts):
            return ()
        done = in_order(objects, parts)
        left = leftovers(ops, done)
        if left:
            self._move(left, parts)
        return of_blocks(ops, done)

    def _move(self, ops: tuple[Op, ...], parts: list[OpDone | OpsDone]) -> None:
        together = self._io_threads == 1 or len(ops) == 1
        units = [] if together else self._mover.units(ops)
        if len(units) < 2:
            for part in self._mover.perform_many(ops):
                parts.append(part)  # now: another may never end
            return
        batch = _IoBatch(ops, units, self._mover, parts)
        for _ in range(min(self._io_threads, len(units)) - 1):
            self._batches.put(batch)
        batch.work()
        batch.wait()

    # --- under the lock ------------------------------------------------------------------

    def _record(self, part: OpDone | OpsDone) -> None:
        verified = self._mover.verified(part)
        if isinstance(part, OpsDone):
            self._recorder.ops(part, verified=verified)
        else:
            self._recorder.op(part, verified=verified)
        if self._on_op is not ignore:
            for one in each_of(part):
                self._on_op(one)

    def _reject(self) -> None:
        for queued in self._intake.rejected:
            self._refuse(queued, Outcome.REJECTED, "queue-full")
        self._intake.rejected.clear()

    def _refuse(self, queued: Queued, outcome: Outcome, reason: str) -> None:
        first_token_ns = self._world.first_tokens.get(queued.request.request_id)
        record = unstarted(queued.request, queued.enqueued_ns, outcome, reason, first_token_ns)
        self._recorder.request(record)
        self._record_sink(record)

    @property
    def _over(self) -> bool:
        return self.death is not None or self._abort.is_set()

    @property
    def _done(self) -> bool:
        return self._over or (self._intake.finished and not self._background_left)
