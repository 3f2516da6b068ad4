"""The queues of an instance: the first to arrive first, by a rank, or fair to classes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.scheduler_rules import Rules

Rank = Callable[[Flight, bool], tuple[int, int]]
"""Of a flight, and whether it was admitted before."""


class WaitingQueue:
    """The first to arrive first."""

    __slots__ = ("_arrived", "longest", "offers")

    def __init__(self) -> None:
        self._arrived: deque[Flight] = deque()
        self.longest = 0
        self.offers: deque[Flight] = deque()
        """Who is prefilled elsewhere and decodes here if there is room at the next step."""

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, flight: Flight, *, first: bool) -> None:
        """Let a flight wait; at the head if `first`, as when it has been admitted before."""
        if first:
            self._arrived.appendleft(flight)
        else:
            self._arrived.append(flight)
        self.longest = max(self.longest, len(self._arrived))

    def head(self) -> Flight | None:
        """Return the flight that is admitted next; None if none waits."""
        return self._arrived[0] if self._arrived else None

    def every(self) -> Iterator[Flight]:
        """Yield all who wait, in no order."""
        return iter(self._arrived)

    def pop(self) -> None:
        """Take the head out."""
        self._arrived.popleft()

    def withdraw(self, flight: Flight) -> None:
        """Take out a flight that has ended elsewhere, if it waits here."""
        if flight in self.offers:
            self.offers.remove(flight)
        else:
            self._take_out(flight)

    def _take_out(self, flight: Flight) -> None:
        if flight in self._arrived:
            self._arrived.remove(flight)


class RankedQueue(WaitingQueue):
    """The least rank first, of equal ones the first of the plan."""

    __slots__ = ("_rank", "_ranked")

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank
        self._ranked: list[tuple[tuple[int, int], int, Flight]] = []

    def __len__(self) -> int:
        return len(self._ranked)

    def add(self, flight: Flight, *, first: bool) -> None:
        heappush(self._ranked, (self._rank(flight, first), flight.request.number, flight))
        self.longest = max(self.longest, len(self._ranked))

    def head(self) -> Flight | None:
        return self._ranked[0][2] if self._ranked else None

    def every(self) -> Iterator[Flight]:
        return (entry[2] for entry in self._ranked)

    def pop(self) -> None:
        heappop(self._ranked)

    def _take_out(self, flight: Flight) -> None:
        self._ranked = [entry for entry in self._ranked if entry[2] is not flight]
        heapify(self._ranked)


class FairQueue(WaitingQueue):
    """Classes share the service by their weights: the class that has had the least tokens for its
    weight is next (virtual token counters: Sheng et al., "Fairness in Serving Large Language
    Models", OSDI 2024). One that comes back from having nothing to ask saves nothing up. Of classes
    that always wait, tokens / weight differ by no more than one request's."""

    __slots__ = ("_classes", "_latest", "_served", "_weights")

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()  # holds who was admitted before, ahead of all
        self._weights = weights
        self._served = [0.0] * len(weights)
        self._latest = 0.0  # what the last one to be served had, for its weight
        self._classes: list[deque[Flight]] = [deque() for _ in weights]

    def __len__(self) -> int:
        return len(self._arrived) + sum(map(len, self._classes))

    def add(self, flight: Flight, *, first: bool) -> None:
        if first:
            self._arrived.appendleft(flight)
        else:
            kind = flight.kind
            if not self._classes[kind]:
                busy = [self._served[k] for k, some in enumerate(self._classes) if some]
                self._served[kind] = max(self._served[kind], min(busy, default=self._latest))
            self._classes[kind].append(flight)
        self.longest = max(self.longest, len(self))

    def head(self) -> Flight | None:
        kind = self._next()
        if self._arrived:
            return self._arrived[0]
        return None if kind < 0 else self._classes[kind][0]

    def every(self) -> Iterator[Flight]:
        return chain(self._arrived, *self._classes)

    def pop(self) -> None:
        if self._arrived:
            self._arrived.popleft()
        else:
            kind = self._next()
            self._served[kind] += size_of(self._classes[kind].popleft()) / self._weights[kind]
            self._latest = self._served[kind]

    def _next(self) -> int:
        busy = (kind for kind, some in enumerate(self._classes) if some)
        return min(busy, key=self._served.__getitem__, default=-1)

    def _take_out(self, flight: Flight) -> None:
        for some in (self._arrived, self._classes[flight.kind]):
            if flight in some:
                some.remove(flight)


def size_of(flight: Flight) -> int:
    """Return the tokens that a flight still needs."""
    return flight.target + flight.request.output_tokens - flight.generated


def expected_size(flight: Flight) -> int:
    """Return the tokens that a flight is expected to need."""
    return flight.target + max(1, flight.expected - flight.generated)


def is_full(queue: WaitingQueue, flight: Flight, rules: Rules) -> bool:
    """Whether as many wait as may: where lower classes are paused, of a flight's own class or a
    higher one, as it takes the place of the others."""
    if not rules.max_queue or len(queue) < rules.max_queue:
        return False
    of, least = rules.priorities, rules.priorities[flight.kind]
    waiting = (not rules.pause_lower or of[each.kind] >= least for each in queue.every())
    return sum(waiting) >= rules.max_queue


def make_queue(rules: Rules) -> WaitingQueue:
    """Build the queue of `scheduler.order`."""
    if rules.order == "fair":
        return FairQueue(rules.weights)
    if rules.order == "priority":
        priorities = rules.priorities
        return RankedQueue(
            lambda flight, first: (-2 * priorities[flight.kind] - first, flight.arrival_ns)
        )
    if rules.order == "sjf":
        return RankedQueue(lambda flight, first: (-1 if first else expected_size(flight), 0))
    return WaitingQueue()
