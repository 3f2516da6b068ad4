"""A run is cut into windows: the control sees each, and what it orders is done."""

import threading
from collections.abc import Callable, Sequence

from kv_cache.bench.machine import RunMachine
from kv_cache.bench.run_state import RunState
from kv_cache.bench.storage_answers import StorageAnswers
from kv_cache.core.errors import NoAnswerError
from kv_cache.core.kinds import Phase
from kv_cache.core.units import NS_PER_MS, NS_PER_S, s_to_ns
from kv_cache.metrics.window import Window

TICK_S = 0.2
_SHORTEST_NS = NS_PER_MS  # less than this is not a window


class WindowCutter:
    """Waits within a phase. `tick` is called a few times a second; `stop` ends the run, `abort`
    its operations at their next buffer."""

    def __init__(
        self,
        state: RunState,
        machine: RunMachine,
        answers: StorageAnswers,
        stops: tuple[threading.Event, threading.Event],
        tick: Callable[[], None],
    ) -> None:
        self._state = state
        self._machine = machine
        self._drive = machine.drive
        self.answers = answers
        self.stop, self.abort = stops
        self.tick = tick
        self._tick_ns = s_to_ns(machine.config.monitor.tick_s)
        self._next_cut_ns: int | None = None
        self._enough = False  # the control has seen all that it needs
        self._recent: list[Window] = []  # of the round that goes on

    def begin(self) -> None:
        self._next_cut_ns = self._state.clock.now_ns() + self._tick_ns

    def cut(self, *, last: bool = False) -> None:
        """End a window: let the control see it, and do what it orders, unless it was the `last`.
        A window is of the phase that it lies in for the most part."""
        state = self._state
        if state.clock.now_ns() - state.meter.start_ns < _SHORTEST_NS:
            return
        bins, gauges = self._drive.take()
        self._next_cut_ns = bins.end_ns + self._tick_ns
        phase = state.recorder.edges.phase_of((bins.start_ns + bins.end_ns) // 2)
        window = state.meter.read(bins, phase, gauges, self._machine.monitor.sample())
        if phase is Phase.PRECONDITION:
            self._recent.append(window)
        orders = state.control.see(window, last=last)
        state.latest = state.control.latest
        if orders.users is not None:
            self._machine.resize(orders.users)
        self._enough = self._enough or orders.stop

    def of_round(self, seconds: float) -> Sequence[Window]:
        """Wait for a round of the preconditioning, and return its windows."""
        begin_ns = self._state.clock.now_ns()
        self._recent.clear()
        self.wait(begin_ns + s_to_ns(seconds))
        self.cut()
        return self._recent

    def wait(self, until_ns: int | None) -> None:
        """Until an instant, the end of all requests, a death, a signal, or until it is enough. A
        phase is shown as it begins, however short it is."""
        self.tick()
        while not self.stop.is_set() and not self._enough:
            due_s = ((self._next_cut_ns or 0) - self._state.clock.now_ns()) / NS_PER_S
            if self._drive.wait(until_ns, min(TICK_S, due_s) if due_s > 0 else TICK_S):
                return
            endless = until_ns is None or self._state.phase == Phase.PRECONDITION
            if endless and self.end_without_answer():
                return
            self.look(until_ns)

    def look(self, until_ns: int | None = None) -> None:
        """Cut if it is time, unless the window would end at `until_ns` anyway, and leave a scrap
        before it; show progress."""
        now_ns = self._state.clock.now_ns()
        due = self._next_cut_ns is not None and now_ns >= self._next_cut_ns
        if due and (until_ns is None or until_ns - now_ns > self._tick_ns // 2):
            self.cut()
        self.tick()

    def end_without_answer(self) -> bool:
        """End the run if storage does not answer, where nothing else ends a wait."""
        if not self.answers.are_missing():
            return False
        self._drive.fail(NoAnswerError(self.answers.silence))
        return True
