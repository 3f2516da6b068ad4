"""How late the program itself is: a thread that does nothing but wake up.

It sleeps in short steps and records by how much it overslept. Whatever keeps it from running
(the interpreter lock, the scheduler, a stolen or throttled CPU) also keeps a worker from taking
its timestamp, so its percentiles say how far latencies can be off. Where the instants of storage
are taken in native code, so does it sleep: the lock is not among what makes them late.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Self

from kv_cache.core.units import NS_PER_MS, ns_to_ms, ns_to_s
from kv_cache.metrics.histogram import Histogram
from kv_cache.tiers.native import wake_up as wake_up_natively

INTERVAL_NS = 5 * NS_PER_MS
"""200 wake-ups a second of 20 to 30 µs each: about 0.5 % of one core."""


_NATIVE_WAKE_UPS = 20
"""Of a call: until its end a window knows nothing of them."""


class LagCanary:
    """Measures from `start` (or `with`) to `stop`; `mark` ends a window and begins the next."""

    def __init__(self, interval_ns: int = INTERVAL_NS, native: ctypes.CDLL | None = None) -> None:
        assert interval_ns > 0
        self._native = native
        self._interval_ns = interval_ns
        self._window = Histogram()
        self._lock = threading.Lock()
        self._wanted = False
        self._thread = threading.Thread(target=self._run, name="lag-canary", daemon=True)

    @property
    def of(self) -> str:
        """Return what it is late with: `native` code, or the `interpreter`."""
        return "interpreter" if self._native is None else "native"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread; once only."""
        self._wanted = True
        self._thread.start()

    def stop(self) -> None:
        """Wait for the thread, an interval at most. What was measured stays."""
        self._wanted = False
        if self._thread.ident is not None:
            self._thread.join()

    def mark(self) -> Histogram:
        """Return what was measured since the last mark (ns), and begin a new window.

        A wake-up counts in the window in which it comes (or comes to be known, within 0.1 s), not
        in the one in which it was due.
        """
        with self._lock:
            ended, self._window = self._window, Histogram()
        return ended

    def _run(self) -> None:
        if self._native is None:
            wake_up(self._interval_ns, self._add, lambda: self._wanted)
            return
        while self._wanted:
            for lag_ns in wake_up_natively(self._native, self._interval_ns, _NATIVE_WAKE_UPS):
                self._add(lag_ns)

    def _add(self, lag_ns: int) -> None:
        with self._lock:
            self._window.add(lag_ns)


def in_ms(lags: Histogram) -> dict[str, float | None]:
    """Return the keys `harness_lag_*` of the section `client` of a passport's evidence."""
    percentiles = {"p50": lags.at_rank(50), "p99": lags.at_rank(99), "max": lags.highest}
    return {
        f"harness_lag_{name}_ms": None if ns is None else ns_to_ms(ns)
        for name, ns in percentiles.items()
    }


def wake_up(interval_ns: int, add: Callable[[int], None], wanted: Callable[[], bool]) -> None:
    """Wake up on a grid of instants while `wanted`, and `add` by how much each was missed.

    Instants that passed during one long delay count each with its own: else a stall of a second
    would be one value among thousands, and no percentile would show it.
    """
    due_ns = time.monotonic_ns() + interval_ns
    while wanted():
        time.sleep(ns_to_s(max(0, due_ns - time.monotonic_ns())))
        now_ns = time.monotonic_ns()
        while due_ns <= now_ns:
            add(now_ns - due_ns)
            due_ns += interval_ns
