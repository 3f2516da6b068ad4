"""The shortest answers that storage gave: where all become much shorter, it is faster."""

from math import inf

from kv_cache.metrics.window import Window
from kv_cache.schedule.autoscale.window_pool import ended

_REQUESTS = 5  # of one look
_FASTER = 0.5  # of the shortest so far
_LOOKS = 2  # in a row
_MUCH_FASTER, _MANY = 0.25, 10  # one look of so many requests is enough
_KNOWN = 10  # looks that tell what the shortest is


class Quickest:
    """Neighbouring windows with at least 5 requests are a look: its p95 is that of the slowest
    class in the slowest window."""

    def __init__(self) -> None:
        self._looks: list[float] = []
        self.forget()

    def begin_anew(self) -> None:
        """The number of users was changed: what is seen next is of another load."""
        self._looks.clear()
        self._requests, self._longest_ns = 0, 0.0

    def forget(self) -> None:
        """Storage has become slower."""
        self._shortest_ns, self._seen = inf, 0
        self.begin_anew()

    def see(self, window: Window) -> bool:
        """Return whether the latest answers are shorter by far than any before."""
        self._requests += ended(window)
        for of_class in window.classes.values():
            self._longest_ns = max(self._longest_ns, of_class.response.rank95_ns or 0)
        if self._requests < _REQUESTS or not self._longest_ns:
            return False
        self._looks.append(self._longest_ns)
        many = self._requests >= _MANY
        self._requests, self._longest_ns = 0, 0.0
        if len(self._looks) < _LOOKS:
            return False
        self._seen += 1
        plain = many and self._looks[-1] < _MUCH_FASTER * self._shortest_ns
        shorter = plain or max(self._looks) < _FASTER * self._shortest_ns
        faster = self._seen > _KNOWN and shorter
        self._shortest_ns = min(self._shortest_ns, max(self._looks))
        del self._looks[0]
        return faster
