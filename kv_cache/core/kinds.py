"""The closed sets of words that the whole program shares.

Enumerations whose members end up in results are strings, so that a result reads without this file.
"""

from enum import IntEnum, StrEnum
from typing import Literal


class Tier(IntEnum):
    """A place for copies, the fastest first: the order is the waterfall's order."""

    GPU = 0
    CPU = 1
    NVME = 2

    @property
    def label(self) -> "TierLabel":
        """The name used in results: `gpu`, `cpu`, `storage` (the reference's word for NVME)."""
        return TIER_LABELS[self]


TierLabel = Literal["gpu", "cpu", "storage"]
TIER_LABELS: tuple[TierLabel, ...] = ("gpu", "cpu", "storage")


class Qos(StrEnum):
    """A request's quality-of-service class."""

    INTERACTIVE = "interactive"
    RESPONSIVE = "responsive"
    BATCH = "batch"


class OpKind(StrEnum):
    """What a physical operation did to one tier."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class Cause(StrEnum):
    """Why bytes moved. Every physical operation has exactly one."""

    REUSE = "reuse"  # loads of blocks that earlier turns or other requests have left
    PREFILL = "prefill"  # stores of newly computed blocks
    DECODE = "decode"  # loads during generation, and stores that repair a miss there
    DEMOTION = "demotion"  # one tier down, to make room
    PROMOTION = "promotion"  # one tier or more up, on a hit
    WRITE_THROUGH = "write-through"  # a copy in the last tier of what was stored above it
    PREFETCH = "prefetch"  # up, before anybody asks; and what leaves a tier for that
    EVICTION = "eviction"  # deletion, to make room
    DISCARD = "discard"  # deletion of a copy that failed verification
    POPULATE = "populate"  # stores before the measured window (decode-only)


class RunMode(StrEnum):
    """Which stages of a request's life are run."""

    STANDARD = "standard"
    PREFILL_ONLY = "prefill-only"
    DECODE_ONLY = "decode-only"


class Phase(StrEnum):
    """The phases of a run, in order. Only `MEASURE` counts for the headline."""

    POPULATE = "populate"
    PRECONDITION = "precondition"
    WARMUP = "warmup"
    MEASURE = "measure"
    DRAIN = "drain"


class Lookup(StrEnum):
    """How the blocks of a request are found, as far as its source knows who has left them."""

    TURNS = "turns"  # by its conversation's earlier turns, or shared: `Request.new_from` says which
    CONTENT = "content"  # by anybody: each may be there, and what is not is computed
    INDEPENDENT = "independent"  # the same, and each is of use without those before it
    OPERATION = "operation"  # as a trace of operations says: a read looks up, a write stores


class Outcome(StrEnum):
    """How a submitted request ended. Exactly one holds for each."""

    COMPLETED = "completed"
    FAILED = "failed"  # an operation that it needed failed, or an object fits nowhere
    REJECTED = "rejected"  # the queue was full
    UNFINISHED = "unfinished"  # the window closed first
