"""The seam between the requests and how they are served.

A source gives one arrival at a time; the driver reports to it what has ended. The laws:
 1. `next_ns` is when the next arrival is due, or None while there is none until a request ends.
    It changes nothing. The arrival's intended instant is this one, or an earlier one that passed
    while nobody was free to ask.
 2. `pop` takes that arrival; the driver calls it only when `next_ns` is not None and not in the
    future. Request ids count up from 0 in the order of `pop`.
 3. `after` is called once for every popped request, whatever became of it; a run that is closed
    calls nothing any more.
 4. Once `exhausted` is true it stays true, and `next_ns` is None.
 5. The requests (everything but the instants of a closed loop) depends on the seed alone.
 6. `plan` is a fresh walk over the same requests in planned order, as if every request were
    answered at once; it changes nothing, and knows nothing of `resize`.
 7. `users` is how many users there are now; None if the load is not made by users. Only if it is
    not None may `resize` be called. Users who leave send nothing more, but their open requests are
    answered; users who come think first, and share no name and no conversation with any user
    before, though N users are always the same mix of classes. Users who stay are not changed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kv_cache.core.request import Request


class Source(Protocol):
    @property
    def on_demand(self) -> bool:
        """Arrivals have no instants of their own: the next is due whenever it can be served."""

    @property
    def exhausted(self) -> bool: ...

    @property
    def users(self) -> int | None: ...

    def next_ns(self) -> int | None: ...

    def pop(self, now_ns: int) -> Request: ...

    def after(self, request: Request, finished_ns: int) -> None: ...

    def resize(self, users: int, now_ns: int) -> None: ...

    def plan(self) -> Iterator[Request]: ...

    def describe(self) -> Mapping[str, Any]:
        """Return what the result says about this workload: names, counts, applied rules."""


def answered_at_once(source: Source) -> Iterator[Request]:
    """Walk a source, each request answered at its intended instant."""
    while source.next_ns() is not None:
        request = source.pop(0)
        source.after(request, request.intended_ns)
        yield request
