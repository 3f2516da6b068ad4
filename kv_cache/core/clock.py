"""Virtual time: integer nanoseconds that never go back. The real clock is in `bench/clock.py`."""


class VirtualClock:
    """A clock that moves when it is set; used by `sim/` and by tests."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def advance_to(self, at_ns: int) -> None:
        if at_ns < self._now_ns:
            raise AssertionError(f"virtual time would go back from {self._now_ns} to {at_ns} ns")
        self._now_ns = at_ns
