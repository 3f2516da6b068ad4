"""The QoS queue: a higher class goes first, but waiting counts too.

Each step of priority is worth `ageing_ns` of waiting: a request of priority p that was enqueued at
t is ordered by t - p * ageing_ns. So batch work is overtaken only by what arrives within a fixed
time after it, and is never starved; and because the order of two requests never changes while
they wait, a heap is enough. 0 is first come, first served.
"""

import heapq
from typing import NamedTuple

from kv_cache.core.request import Request


class Queued(NamedTuple):
    request: Request
    enqueued_ns: int


class QosQueue:
    def __init__(self, ageing_ns: int) -> None:
        self._ageing_ns = ageing_ns
        self._heap: list[tuple[int, int, Queued]] = []
        self._pushed = 0

    def push(self, request: Request, now_ns: int) -> None:
        rank = now_ns - request.priority * self._ageing_ns
        heapq.heappush(self._heap, (rank, self._pushed, Queued(request, now_ns)))
        self._pushed += 1

    def pop(self) -> Queued | None:
        return heapq.heappop(self._heap)[2] if self._heap else None

    def oldest_ns(self) -> int | None:
        """When the request was enqueued that has waited longest."""
        return min((queued.enqueued_ns for _, _, queued in self._heap), default=None)

    def __len__(self) -> int:
        return len(self._heap)
