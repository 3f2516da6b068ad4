"""SIGINT and SIGTERM for commands that have something to put away: remembered, never raised."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EXITS = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""The signals that are taken over, with the exit code of each."""


class Interrupts:
    """The first signal that came. `stop` is set by it; whoever has to do something at once sets
    `on_signal`."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.stop = threading.Event()
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
