"""Signals to end, for commands that have something to put away: remembered, never raised."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType

from kv_cache.bench.ending_signals import EXITS, HANGUP, drop_dead_terminal
from kv_cache.core.callbacks import ignore


class Stop(threading.Event):
    """An event that a signal handler may set. The handler runs between two steps of the main
    thread: if these are within `set` or `wait` of a plain event, whose lock is held there, it waits
    for ever. Nothing here takes a lock but SimpleQueue, whose `put` may interrupt itself."""

    def __init__(self) -> None:
        super().__init__()
        self._came = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._came

    def set(self) -> None:
        self._came = True
        self._wake.put(None)

    def clear(self) -> None:
        raise TypeError("a signal that came has come")

    def wait(self, timeout: float | None = None) -> bool:
        if not self._came:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=None if timeout is None else max(0.0, timeout))
                self._wake.put(None)  # for who else waits
        return self._came


class Interrupts:
    """The first signal that came. It sets `stop` and calls `on_signal`, for what has to happen at
    once; that must not take a lock that the main thread may hold."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.stop = Stop()
        self.on_signal: Callable[[], None] = ignore

    @property
    def name(self) -> str | None:
        return None if self.number is None else signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        return 0 if self.number is None else EXITS[signal.Signals(self.number)]

    @property
    def came(self) -> bool:
        return self.number is not None


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Only note signals while the context lasts, so that files can be removed in peace."""
    caught = Interrupts()

    def handler(number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            drop_dead_terminal()
        caught.number = caught.number or number
        caught.stop.set()
        caught.on_signal()

    before = {number: signal.signal(number, handler) for number in taken_over()}
    try:
        yield caught
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def taken_over() -> list[signal.Signals]:
    """Return the signals to take over: all, except a SIGHUP that `nohup` has set to be ignored."""
    ignored = HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN
    return [number for number in EXITS if number is not HANGUP or not ignored]
