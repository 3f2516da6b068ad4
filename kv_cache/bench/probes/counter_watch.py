"""Whether the device's byte counters move: a thread that looks at them ten times a second.

It reads what the kernel keeps in memory and never touches the device, which may hang. How late a
look comes is noted with it, as nothing is known of the time between (`metrics/gaps`).
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.procfs import text_of
from kv_cache.metrics.gaps import Stillness, Stretch

INTERVAL_S = 0.1
_SECTORS = (2, 6, 13)
"""Read, written and discarded, in /sys/class/block/X/stat (kernel documentation, block/stat.rst);
the third came with Linux 4.18."""


class CounterWatch:
    """Looks from `start` to `stop`."""

    def __init__(self, clock: MonotonicClock, devices: Sequence[str]) -> None:
        """`devices` as `counters.device_of` names them; none = there is nothing to look at."""
        self._clock = clock
        self._stats = [Path("/sys/class/block", device, "stat") for device in devices]
        self._stillness = Stillness()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="still-watch", daemon=True)
        self.counted = self._moved() is not None

    def start(self) -> None:
        """Start the thread; once only."""
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def stretches(self) -> list[Stretch]:
        """Look once more, and return all that was seen."""
        self._look()
        with self._lock:
            return self._stillness.stretches()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            moved = self._moved()
            self._stillness.look(self._clock.now_ns(), moved)

    def _moved(self) -> int | None:
        """Return the sectors that all devices moved; None if one of them does not say."""
        rows = [(text_of(path) or "").split() for path in self._stats]
        if not rows or not all(len(row) > _SECTORS[1] for row in rows):
            return None
        return sum(int(row[column]) for row in rows for column in _SECTORS if column < len(row))
