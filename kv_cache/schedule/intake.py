"""From arrival to service: which request is served next, and when there are no more.

Pure: both drivers call it under their lock (or event), with the time as an argument. Every
request that was submitted comes out exactly once: through `take`, in `rejected`, or from `close`.
"""

from collections.abc import Callable

from msgspec.structs import replace

from kv_cache.core.request import Request
from kv_cache.schedule.queue import QosQueue, Queued
from kv_cache.workload.offered import Offered
from kv_cache.workload.source import Source

OnArrival = Callable[[Request], None]


def ignore_arrival(request: Request) -> None:
    """Do nothing with what arrives."""


class Intake:
    """`max_requests` (0 = no limit) counts submissions, and is exact. Where `users_wait` for their
    answers, `queue_limit` must hold all of them, also when users are added."""

    def __init__(
        self,
        source: Source,
        *,
        queue_limit: int,
        ageing_ns: int,
        max_requests: int,
        users_wait: bool = False,
        offered: Offered | None = None,
        on_arrival: OnArrival = ignore_arrival,
    ) -> None:
        """`on_arrival` is called with each request as its source asks it: its instant counts from
        `begin`."""
        self._source = source
        self._queue = QosQueue(ageing_ns)
        self._queue_limit = queue_limit
        self._max_requests = max_requests
        self._users_wait = users_wait
        self.offered = Offered() if offered is None else offered
        self._on_arrival = on_arrival
        self._origin_ns = 0
        self._closed = False
        self.submitted = 0
        self.in_flight = 0
        self.longest_queue = 0
        self.rejected: list[Queued] = []

    @property
    def out_of_turn(self) -> int:
        """Requests that were served before one that had come earlier."""
        return self._queue.out_of_turn

    @property
    def has_order(self) -> bool:
        """Whether requests came whose priorities differ."""
        return self._queue.has_order

    def begin(self, now_ns: int) -> None:
        """The source's time 0 is now: what came before (allocating, populating) is not late."""
        self._origin_ns = now_ns

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def users(self) -> int | None:
        return self._source.users

    def oldest_ns(self, now_ns: int) -> int:
        """Return how long the request that has waited longest has waited; 0 when none waits."""
        enqueued_ns = self._queue.oldest_ns()
        return 0 if enqueued_ns is None else now_ns - enqueued_ns

    def resize(self, users: int, now_ns: int) -> None:
        """Users come or go; those who wait for their answers still never fill the queue."""
        if self._users_wait:
            self._queue_limit = max(self._queue_limit, users + len(self._queue))
        self._source.resize(users, now_ns - self._origin_ns)

    @property
    def no_more_arrivals(self) -> bool:
        full = self._max_requests and self.submitted >= self._max_requests
        return bool(self._closed or full or self._source.exhausted)

    @property
    def finished(self) -> bool:
        """Whether nothing waits, nothing is served, and nothing will come."""
        return self.no_more_arrivals and not self._queue and not self.in_flight

    @property
    def demanded(self) -> bool:
        """Whether the source has a request that comes when it can be served, and not before."""
        ready = self._source.on_demand and not self.no_more_arrivals
        return ready and self._source.next_ns() is not None

    def wake_ns(self) -> int | None:
        """When the next arrival is due; None if only the end of a request can change anything."""
        if self.no_more_arrivals or self._source.on_demand:
            return None
        due_ns = self._source.next_ns()
        return None if due_ns is None else due_ns + self._origin_ns

    def pump(self, now_ns: int) -> None:
        """Let everything that is due arrive; on demand, nothing does before a worker is free.

        Sources hear of rejected requests when all have arrived: a user who asks again at once would
        be rejected for ever.
        """
        refused: list[Request] = []
        while (due_ns := self.wake_ns()) is not None and due_ns <= now_ns:
            request = self._pop(now_ns)
            self.submitted += 1
            if len(self._queue) >= self._queue_limit:
                refused.append(request)
            else:
                self._queue.push(request, now_ns)
                self.longest_queue = max(self.longest_queue, len(self._queue))
        for request in refused:
            self.rejected.append(Queued(request, now_ns))
            self._after(request, now_ns)

    def take(self, now_ns: int) -> Queued | None:
        """Return the request to serve next; the caller says `finish` when it is done."""
        self.pump(now_ns)
        if self.demanded:
            self._queue.push(self._pop(now_ns), now_ns)
            self.submitted += 1
        queued = self._queue.pop()
        if queued is not None:
            self.in_flight += 1
        return queued

    def finish(self, request: Request, now_ns: int) -> None:
        self.in_flight -= 1
        self._after(request, now_ns)

    def close(self) -> list[Queued]:
        """No more arrivals and no more service; what still waited is returned."""
        self._closed = True
        return self._queue.drain()

    def _pop(self, now_ns: int) -> Request:
        due_ns = None if self._source.on_demand else self._source.next_ns()
        request = self._source.pop(now_ns - self._origin_ns)
        if due_ns is None or due_ns == request.intended_ns:
            self._on_arrival(request)
        else:  # whoever plays it again asks when there was somebody to ask
            self._on_arrival(replace(request, intended_ns=due_ns))
        return self.offered.see(replace(request, intended_ns=request.intended_ns + self._origin_ns))

    def _after(self, request: Request, now_ns: int) -> None:
        self._source.after(request, now_ns - self._origin_ns)
