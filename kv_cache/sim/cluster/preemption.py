"""Which sequence loses its memory when an instance runs short.

A rule chooses among those that can be preempted, the last to be admitted first; None if there is
none. Whatever it chooses, each request ends: those that decode take memory only for their next
token, and no token is made twice; a prompt takes memory only from those behind it in one order: of
admission, or of classes first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kv_cache.sim.cluster.flight import Flight

Choose = Callable[[Iterator[Flight]], Flight | None]


def youngest(able: Iterator[Flight]) -> Flight | None:
    """Return the last to be admitted, as vLLM does."""
    return next(able, None)


def oldest(able: Iterator[Flight]) -> Flight | None:
    """Return the first to be admitted: FIFO."""
    return min(able, key=lambda flight: flight.order, default=None)


def least_recent(able: Iterator[Flight]) -> Flight | None:
    """Return the one whose prompt, or answer, began before those of all others: LRU, where
    admission and the beginning of decoding are the uses."""
    return min(able, key=lambda flight: flight.begun, default=None)


def last_in_order(able: Iterator[Flight]) -> Flight | None:
    """Return the last of the order, where that is by classes first."""
    return max(able, key=lambda flight: flight.order, default=None)


def lowest_below(able: Iterator[Flight], kind: int, priorities: Sequence[int]) -> Flight | None:
    """Return the last to be admitted of the lowest class below `kind`."""
    lower = (flight for flight in able if priorities[flight.kind] < priorities[kind])
    return min(lower, key=lambda flight: (priorities[flight.kind], -flight.order), default=None)


VICTIMS: Mapping[str, Choose] = {
    "youngest": youngest, "oldest": oldest, "least-recent": least_recent,
    "lowest-priority": last_in_order,
}  # fmt: skip
