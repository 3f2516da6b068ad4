"""Ranks that run together: who they are, how their clocks relate, and what became of each.

A crew is coordinated by one process, whose monotonic clock is the one that all instants here are
in. Each rank is a whole run with its own files; the coordinator opens their windows together, adds
up what they say while they run, and collects their results.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from kv_cache.core.bounded import Count

RankNumber = Annotated[int, Meta(ge=0, le=1 << 16)]
ClockReading = Annotated[int, Meta(gt=-(2**62), lt=2**62)]
"""Below 0 it is an offset of clocks."""

OWN = ("run.seed", "run.clients_port", "tiers.cache_dir", "tiers.free_share", "output")
"""Options, and sections, that the ranks of a crew may have different values of."""


def is_own(path: str) -> bool:
    """Return whether the option at a dotted path is each rank's own."""
    return any(path == option or path.startswith(f"{option}.") for option in OWN)


class Member(Struct, frozen=True, kw_only=True):
    """One rank, as the coordinator saw it. What never happened is None."""

    rank: RankNumber
    host: str | None = None
    pid: ClockReading | None = None
    offset_ns: ClockReading | None = None  # its monotonic clock less the coordinator's
    offset_error_ns: ClockReading | None = None  # half the shortest round trip
    ready_ns: ClockReading | None = None  # when it could have begun
    opened_ns: ClockReading | None = None  # when it let its first arrival in
    ended_ns: ClockReading | None = None  # when its result came
    lost: str | None = None  # why there is no whole result of it: `died`, `lagged`, ... in words


class Crew(Struct, frozen=True, kw_only=True):
    """All ranks of a run, by their numbers. `wanted` are as many as were started."""

    how: str  # they were started: "mpi" or "clients"
    expected: RankNumber
    members: Sequence[Member]
    planned_ns: Count | None = None  # the instant at which all were to open
    ended_early: str | None = None  # why the run was ended for all, in words

    @property
    def skew_ns(self) -> int | None:
        """From the first opening to the last, as their clocks tell it: max - min of opened_ns; None
        unless every rank that was wanted has opened."""
        opened = [m.opened_ns for m in self.members if m.opened_ns is not None]
        return max(opened) - min(opened) if len(opened) == self.expected else None

    @property
    def skew_error_ns(self) -> int | None:
        """How sure the skew is: the two largest errors of an offset, added up."""
        if self.skew_ns is None:
            return None
        return sum(sorted(m.offset_error_ns or 0 for m in self.members)[-2:])

    def to_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "expected": self.expected,
            "planned_ns": self.planned_ns,
            "ended_early": self.ended_early,
            "start_skew_ns": self.skew_ns,
            "start_skew_error_ns": self.skew_error_ns,
            "members": [asdict(member) for member in self.members],
        }
