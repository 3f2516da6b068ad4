"""The queue of an instance: the first to arrive first, or the shortest job first."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from kv_cache.sim.cluster.flight import Flight


class WaitingQueue:
    __slots__ = ("_arrived", "_by_size", "_shortest_first", "longest", "offers")

    def __init__(self, *, shortest_first: bool) -> None:
        self._shortest_first = shortest_first
        self._arrived: deque[Flight] = deque()
        self._by_size: list[tuple[int, int, Flight]] = []
        self.longest = 0
        self.offers: deque[Flight] = deque()
        """Who is prefilled elsewhere and decodes here if there is room at the next step."""

    def __len__(self) -> int:
        return len(self._by_size) if self._shortest_first else len(self._arrived)

    def add(self, flight: Flight, *, first: bool) -> None:
        """Let a flight wait; at the head if `first`, as when it has been admitted before."""
        if self._shortest_first:
            request = flight.request
            size = -1 if first else flight.target + request.output_tokens - flight.generated
            heappush(self._by_size, (size, request.number, flight))
        elif first:
            self._arrived.appendleft(flight)
        else:
            self._arrived.append(flight)
        self.longest = max(self.longest, len(self))

    def head(self) -> Flight | None:
        """Return the flight that is admitted next; None if none waits."""
        if self._shortest_first:
            return self._by_size[0][2] if self._by_size else None
        return self._arrived[0] if self._arrived else None

    def every(self) -> Iterator[Flight]:
        """Yield all who wait, in no order."""
        if self._shortest_first:
            return (entry[2] for entry in self._by_size)
        return iter(self._arrived)

    def pop(self) -> None:
        """Take the head out."""
        if self._shortest_first:
            heappop(self._by_size)
        else:
            self._arrived.popleft()

    def withdraw(self, flight: Flight) -> None:
        """Take out a flight that has ended elsewhere, if it waits here."""
        if flight in self.offers:
            self.offers.remove(flight)
        elif self._shortest_first:
            self._by_size = [entry for entry in self._by_size if entry[2] is not flight]
            heapify(self._by_size)
        elif flight in self._arrived:
            self._arrived.remove(flight)
