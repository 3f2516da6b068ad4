"""The QoS queue: a higher class goes first, but waiting counts too.

Each step of priority is worth `ageing_ns` of waiting: a request of priority p that was enqueued at
t is ordered by t - p * ageing_ns. So batch work is overtaken only by what arrives within a fixed
time after it, and is never starved; and because the order of two requests never changes while
they wait, a heap is enough. 0 is first come, first served.
"""

import heapq
from collections import OrderedDict
from typing import NamedTuple

from kv_cache.core.request import Request


class Queued(NamedTuple):
    request: Request
    enqueued_ns: int


class QosQueue:
    """`out_of_turn` counts requests that were served before one that had come earlier: where there
    are none, priorities decided nothing."""

    def __init__(self, ageing_ns: int) -> None:
        self._ageing_ns = ageing_ns
        self._heap: list[tuple[int, int, Queued]] = []
        self._came: OrderedDict[int, int] = OrderedDict()  # when, by their numbers
        self._pushed = 0
        self._priorities: set[int] = set()
        self.out_of_turn = 0

    @property
    def has_order(self) -> bool:
        """Whether requests came whose priorities differ."""
        return bool(self._ageing_ns) and len(self._priorities) > 1

    def push(self, request: Request, now_ns: int) -> None:
        rank = now_ns - request.priority * self._ageing_ns
        heapq.heappush(self._heap, (rank, self._pushed, Queued(request, now_ns)))
        self._came[self._pushed] = now_ns
        self._priorities.add(request.priority)
        self._pushed += 1

    def pop(self) -> Queued | None:
        if not self._heap:
            return None
        _, number, queued = heapq.heappop(self._heap)
        self.out_of_turn += number != next(iter(self._came))
        del self._came[number]
        return queued

    def drain(self) -> list[Queued]:
        """Return all that wait, in the order of service: nobody is served."""
        waiting = [queued for _, _, queued in sorted(self._heap)]
        self._heap.clear()
        self._came.clear()
        return waiting

    def oldest_ns(self) -> int | None:
        """When the request was enqueued that has waited longest."""
        return next(iter(self._came.values()), None)

    def __len__(self) -> int:
        return len(self._heap)
