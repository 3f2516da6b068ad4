"""The admission seam: one policy object says which content one tier takes.

A policy is asked before content would come into its tier, whatever brings it: a store, a demotion,
a promotion, a prefetch or a write-through. It decides nothing else: where refused content goes is
the manager's to say.

The caller guarantees:
 1. `refusal` may be asked any number of times. `offered` is called once for each answer that has
    become a decision, with the candidate and the answer; an answer that came to nothing (the plan
    was given up) is forgotten.
 2. `rivals` are what would leave the tier for the candidate, all of it: empty where there is room.
    Only policies that say `compares` are given them.
 3. `used` is called for every use: a hit in whatever tier, and new content, once it was decided
    where it goes. Only for policies that say `counts`.
The policy guarantees:
 4. `refusal` changes nothing: it answers the same until the next `offered` or `used`.
 5. The answer is None (admitted) or one of `REASONS`.
 6. The answer depends on the calls alone: no clock, no chance, no order of a hash table.
 7. What is remembered is bounded by `AdmissionRules.memory`, whatever is called.
 8. A call costs O(1) on average over the calls so far (and O(rivals)).
 9. Whatever the caller does against 1 to 3, 4 to 8 hold; only the choice may suffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from kv_cache.core.block import Key


class Candidate(NamedTuple):
    """Content that would come into a tier. `depth` is its place in its sequence (0: the first, or
    no part of one). `fresh`: it was just computed, a use that `used` has not reported yet."""

    key: Key
    nbytes: int
    depth: int = 0
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """What the policies go by; each reads what concerns it."""

    max_bytes: int = 16 * 2**20  # size: the largest object that is admitted
    max_depth: int = 64  # depth: blocks of a sequence that are admitted, from its beginning
    memory: int = 65_536  # second-hit and frequency: contents that are remembered
    floor: int = 1  # frequency: uses that are enough where nothing has to leave

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; it must be from {least} to {most}")


_BOUNDS = (
    ("max_bytes", 0, 2**60), ("max_depth", 1, 10**9), ("memory", 1, 2**26), ("floor", 0, 15),
)  # fmt: skip


class Admission(Protocol):
    REASONS: ClassVar[tuple[str, ...]] = ()
    NUMBERS: ClassVar[tuple[str, ...]] = ()  # of AdmissionRules: those that it goes by
    compares: ClassVar[bool] = False
    counts: ClassVar[bool] = False

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        """Return why the candidate is not admitted; None if it is."""
        ...

    def offered(self, candidate: Candidate, *, admitted: bool) -> None:
        """Note that the candidate has come, or has been turned away. Most policies need not
        know."""
        return

    def used(self, key: Key) -> None:
        return
