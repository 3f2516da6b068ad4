"""Which sequence loses its memory when an instance runs short.

A rule chooses among those that can be preempted, the last to be admitted first; None if there is
none. Whatever it chooses, each request ends: those that decode take memory only for their next
token, and no token is made twice; a prompt takes memory only from those that were admitted later.
"""

from collections.abc import Callable, Iterator, Mapping

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


VICTIMS: Mapping[str, Choose] = {
    "youngest": youngest, "oldest": oldest, "least-recent": least_recent,
}  # fmt: skip
