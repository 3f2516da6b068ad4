"""SIGINT and SIGTERM for commands that have something to put away: remembered, never raised."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType

EXITS = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""The signals that are taken over, with the exit code of each."""


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
    """The first signal that came. `stop` is set by it; whoever has to do something at once sets
    `on_signal`, which must not take a lock that the main thread may hold."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.stop = Stop()
        self.on_signal: Callable[[], None] = _nothing

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
    """Within it a signal only leaves a note, so that what was made can be removed in peace."""
    found = Interrupts()

    def handler(number: int, frame: FrameType | None) -> None:
        found.number = found.number or number
        found.stop.set()
        found.on_signal()

    before = {number: signal.signal(number, handler) for number in EXITS}
    try:
        yield found
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _nothing() -> None:
    """Nobody wants to be told."""
