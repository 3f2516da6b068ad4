"""How many there are of something over time: exactly, with two numbers."""


class CountOverTime:
    """`most` is the most that there were for any time at all: what comes and goes at one instant
    was never there."""

    __slots__ = ("_moment", "_most", "_since", "count")

    def __init__(self) -> None:
        self.count = 0
        self._moment = 0  # the sum of all changes x their instants
        self._since = 0  # the latest change
        self._most = 0

    def change(self, by: int, now_ns: int) -> None:
        """Count what came, or went."""
        if now_ns != self._since:
            if self.count > self._most:
                self._most = self.count
            self._since = now_ns
        self.count += by
        self._moment += by * now_ns

    def area_ns(self, now_ns: int) -> int:
        """Return the count, integrated over time up to now."""
        return self.count * now_ns - self._moment

    def most(self, now_ns: int) -> int:
        """Return the largest count up to now."""
        return max(self._most, self.count) if now_ns != self._since else self._most
