"""The event loop of the cluster: one virtual clock, one total order (time, rank, sequence).

It must never look at a real clock. An event is a function and its argument, no object of its own;
an event that has become void is known by its argument (an epoch), not taken out of the heap.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]

ENDS = 0  # at one instant what ends comes first: it frees what others take
STEPS = 1
ARRIVES = 2  # and arrivals come last, known before or not

_RANK = 1 << 60


class Loop:
    __slots__ = ("_heap", "_sequence", "events", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, Action, Any]] = []

    def at(self, at_ns: int, rank: int, action: Action, argument: Any = None) -> None:
        """Call `action(argument)` at `at_ns`, which is not in the past."""
        assert at_ns >= self.now_ns, f"an event at {at_ns} ns, but it is {self.now_ns} ns"
        self._sequence += 1
        heappush(self._heap, (at_ns, rank * _RANK + self._sequence, action, argument))

    @property
    def pending(self) -> int:
        return len(self._heap)

    def run(self, most: int) -> bool:
        """Handle at most `most` events; whether there are more."""
        heap = self._heap
        for _ in range(most):
            if not heap:
                return False
            self.now_ns, _, action, argument = heappop(heap)
            self.events += 1
            action(argument)
        return bool(heap)
