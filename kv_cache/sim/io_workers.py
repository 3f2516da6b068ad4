"""Who works off a batch of operations: the threads of the real driver, in virtual time.

A request's own worker does its operations one after the other; where storage is among them, idle
I/O threads help, each with what is left of the batch that asked first. What `bench/drive` does with
threads is done here with turns, so that no more is in flight than a real run would have.
"""

from collections import deque
from collections.abc import Callable, Iterable

Next = Callable[[], None]
Start = Callable[[Next], None]
"""Begins an operation; calls what it is given when that has ended."""


class IoWorkers:
    """`helpers` I/O threads beside the workers."""

    def __init__(self, helpers: int) -> None:
        self._idle = helpers
        self._helpers = helpers
        self._open_batches: deque[deque[Start]] = deque()

    def work(self, starts: Iterable[Start], *, shared: bool) -> None:
        """Work off a batch, in its order; alone unless `shared`."""
        batch = deque(starts)
        wanted = min(self._helpers, len(batch) - 1) if shared else 0
        self._open_batches.extend(batch for _ in range(wanted))
        self._take(batch, helper=False)
        self._help()

    def _take(self, batch: deque[Start], *, helper: bool) -> None:
        if batch:
            batch.popleft()(lambda: self._take(batch, helper=helper))
        elif helper:
            self._idle += 1
            self._help()

    def _help(self) -> None:
        while self._idle and self._open_batches:
            batch = self._open_batches.popleft()
            if batch:
                self._idle -= 1
                self._take(batch, helper=True)
