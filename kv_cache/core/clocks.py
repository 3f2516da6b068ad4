"""How far apart two clocks are that run equally fast, from messages sent there and back.

    sent            back          our clock
     │ ╲          ╱ │
     ▼   ▶ theirs    ▼            their clock, read somewhere between

The offset is taken as if the reading was halfway; it cannot be wrong by more than half the way.
So of several exchanges the shortest tells the most (Cristian, "Probabilistic clock
synchronization", 1989), and an average over them would tell less.
"""

from collections.abc import Iterable

from msgspec import Struct


class Exchange(Struct, frozen=True, kw_only=True):
    """One message there and back: two instants of our clock, and one of theirs between them."""

    sent_ns: int
    theirs_ns: int
    back_ns: int

    @property
    def round_trip_ns(self) -> int:
        return self.back_ns - self.sent_ns


class Offset(Struct, frozen=True, kw_only=True):
    """`offset_ns` is their clock less ours, at most `error_ns` off."""

    offset_ns: int
    error_ns: int


def offset_of(exchanges: Iterable[Exchange]) -> Offset:
    """By the exchange with the shortest round trip. Raises ValueError where there is none."""
    best = min(exchanges, key=lambda each: each.round_trip_ns)
    halfway_ns = (best.sent_ns + best.back_ns) // 2
    return Offset(offset_ns=best.theirs_ns - halfway_ns, error_ns=(best.round_trip_ns + 1) // 2)
