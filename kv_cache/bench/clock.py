"""The one real clock: monotonic nanoseconds since the run's origin."""

import time


class MonotonicClock:
    def __init__(self) -> None:
        self._origin_ns = time.monotonic_ns()
        self.started_unix_s = time.time()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    def of_monotonic(self, ns: int) -> int:
        """Return an instant of the system's monotonic clock as one of this clock."""
        return ns - self._origin_ns
