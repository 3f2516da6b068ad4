"""What a request wants of the world, and what happened.

A lifecycle yields one `Effect` at a time and is sent one `Done`. Effects are descriptions: they
hold no buffers, no files and no clocks, so that threads and a virtual clock can both carry them
out. A failed operation is a `Done` with `ok=False`, not an exception.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple, cast

from msgspec import Struct

from kv_cache.core.block import Key
from kv_cache.core.kinds import Cause, OpKind, Tier


class CopyRef(NamedTuple):
    """The bytes of one block in one tier. A `copy_id` is never reused, so that a late delete
    cannot hit a newer copy of the same key.

    `nbytes` are physical: whole pages. `version` names the bytes: a copy made from another copy
    (demotion, promotion) keeps it; a new store of the same key gets a new one, so that stale
    data is recognised on load.

    A copy in several `objects` of one size has as many ids and versions, from these on.
    """

    copy_id: int
    key: Key
    tier: Tier
    nbytes: int
    version: int
    objects: int = 1


class _OfOneCopy(Struct, frozen=True):
    """The one copy is what the operation reads from, and what it is about."""

    copy: CopyRef
    cause: Cause

    @property
    def source(self) -> CopyRef:
        return self.copy

    @property
    def target(self) -> CopyRef:
        return self.copy


class Read(_OfOneCopy, frozen=True):
    pass


class Write(_OfOneCopy, frozen=True):
    pass


class Delete(_OfOneCopy, frozen=True):
    pass


class Move(Struct, frozen=True):
    """Read `source` and write what was read as `target`; `source` stays."""

    source: CopyRef
    target: CopyRef
    cause: Cause


Op = Read | Write | Move | Delete


def alike(ops: Sequence[Op]) -> bool:
    """Return whether operations do the same to the same tiers, for one cause."""
    first = ops[0]
    if len(set(map(type, ops))) > 1:
        return False
    if isinstance(first, Move):
        way = _way(first)
        return all(_way(op) == way for op in ops)
    tier, cause, copies = first.copy.tier, first.cause, cast("Sequence[Read]", ops)
    return not [op for op in copies if op.copy.tier is not tier or op.cause is not cause]


def _way(op: Op) -> tuple[Tier, Tier, Cause]:
    return op.source.tier, op.target.tier, op.cause


class Transfer(Struct, frozen=True):
    """Operations of one sort, for one cause, that may be done in any order and at the same time:
    on copies, or from copies (`refs`) to the `targets` of moves."""

    sort: type[Op]
    refs: Sequence[CopyRef]
    cause: Cause
    targets: Sequence[CopyRef] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        """Each of them, for who performs them one by one."""
        sort: Callable[..., Op] = self.sort
        columns = (self.refs, self.targets) if self.targets else (self.refs,)
        return tuple(map(sort, *columns, repeat(self.cause)))


class Compute(Struct, frozen=True):
    """The accelerator is busy with this request for `duration_ns`."""

    duration_ns: int


Token = tuple[str, int]
"""Names something that can change: `("copy", copy_id)`, `("room", 0)`, `("gate-0", turn)`."""


class Await(Struct, frozen=True):
    """Continue after `token` was fired. Wake-ups may be spurious: look again."""

    token: Token


class Spawn(Struct, frozen=True):
    """Let `life` live in the background from now on; this request continues at once."""

    life: "Life"


Effect = Transfer | Compute | Await | Spawn


class IoChunk(NamedTuple):
    """One system call's worth: when it ended and how many bytes it moved."""

    finished_ns: int
    nbytes: int


class MetadataStep(NamedTuple):
    """One operation on metadata (create, open, allocate, fsync, rename, close): a part of the
    device time of its leg, and counted apart."""

    name: str
    duration_ns: int


class Leg(NamedTuple):
    """One tier's side of an operation; a `Move` has two.

    `device_ns` is the time inside the device or the system calls alone; what the side took beyond
    it is the host's (payload, verification, waiting for a buffer). The sides of a move alternate:
    `aside_ns` is what the other one used up between this one's beginning and end.
    """

    tier: Tier
    kind: OpKind
    engine: str
    nbytes: int
    started_ns: int
    finished_ns: int
    device_ns: int
    chunks: tuple[IoChunk, ...]
    aside_ns: int = 0
    steps: tuple[MetadataStep, ...] = ()

    @property
    def total_ns(self) -> int:
        return self.finished_ns - self.started_ns - self.aside_ns


class EndedLegs(NamedTuple):
    """Sides of operations that went well, by one call each that took all of its time, in columns:
    when they ended, when they were asked for, and which copies they were of."""

    ended_ns: Sequence[int]
    began_ns: Sequence[int]
    refs: Sequence[CopyRef]


ABORTED = "aborted"
"""The error of an operation under which the run ended: not a failure of the storage."""

VANISHED = "vanished"
"""The error of an operation on data that is not there any more."""


class OpDone(NamedTuple):
    """`error` is a short stable reason, `failed` the side that it happened on; None when all went
    well. `legs` are the sides that moved bytes, whole or in part."""

    op: Op
    started_ns: int
    finished_ns: int
    legs: tuple[Leg, ...] = ()
    error: str | None = None
    failed: OpKind | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def failed_tier(self) -> Tier:
        """The tier of the side that failed."""
        return (self.op.source if self.failed is OpKind.READ else self.op.target).tier


class Done(NamedTuple):
    """`ops` in the order of the `Transfer`'s; empty for other effects, and where a driver only says
    that all of them went well."""

    at_ns: int
    ops: tuple[OpDone, ...] = ()

    @property
    def failures(self) -> "dict[int, OpDone]":
        """What did not go well, by its number in the `Transfer`."""
        if not self.ops:
            return {}
        return {number: op for number, op in enumerate(self.ops) if op.error is not None}


_done: Callable[[tuple[int, tuple[OpDone, ...]]], Done] = partial(tuple.__new__, Done)
ended_legs: Callable[[tuple[Sequence[int], Sequence[int], Sequence[CopyRef]]], EndedLegs] = partial(
    tuple.__new__, EndedLegs
)
"""As the classes, of all of their fields, without a frame of Python's."""


def all_well(at_ns: int) -> Done:
    return _done((at_ns, ()))


Life = Generator[Effect, Done, None]
