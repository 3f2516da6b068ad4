"""What became of many operations at once, in columns where each would be an object."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from kv_cache.core.effect import (
    CopyRef,
    Delete,
    IoChunk,
    Leg,
    MetadataStep,
    Move,
    Op,
    OpDone,
    Read,
    Write,
)
from kv_cache.core.kinds import Cause, OpKind, Tier


class OpsDone(Struct, frozen=True, eq=False, kw_only=True):
    """Operations of one kind on one tier that went well, each by one call that moved its bytes,
    from `started_ns` to `finished_ns`, with the `steps` that all of them have, and what each took.

    Where steps follow the call, it ended at `moved_ns`, and `device_ns` and `total_ns` are what a
    leg says of each; else that is all of its time, and they are empty. `refs` are what was moved:
    copies, or in a rehearsal their beginnings. Of moves this is what they read, `then` what they
    wrote."""

    ops: Sequence[Read | Write | Delete | Move]
    tier: Tier
    kind: OpKind
    cause: Cause
    engine: str
    refs: Sequence[CopyRef]
    started_ns: Sequence[int]
    finished_ns: Sequence[int]
    steps: Sequence[tuple[str, Sequence[int]]] = ()
    moved_ns: Sequence[int] = ()
    device_ns: Sequence[int] = ()
    total_ns: Sequence[int] = ()
    then: "OpsDone | None" = None

    ok: ClassVar[bool] = True

    @property
    def sides(self) -> Sequence["OpsDone"]:
        return (self,) if self.then is None else (self, self.then)

    def each(self) -> Iterator[OpDone]:
        """Yield the operations one by one, in their order."""
        for sides in zip(*(side._each_side() for side in self.sides), strict=True):
            legs = tuple(leg for _, leg in sides)
            started_ns = min(leg.started_ns for leg in legs)
            yield OpDone(sides[0][0], started_ns, legs[-1].finished_ns, legs)

    def _each_side(self) -> Iterator[tuple[Op, Leg]]:
        rows = zip(self.ops, self.refs, self.started_ns, self.finished_ns, strict=True)
        for number, (op, ref, started, finished) in enumerate(rows):
            moved, took = finished, finished - started
            device = total = took
            if self.moved_ns:
                moved, device, total = (
                    column[number] for column in (self.moved_ns, self.device_ns, self.total_ns)
                )
            chunks = () if self.kind is OpKind.DELETE else (IoChunk(moved, ref.nbytes),)
            steps = tuple(MetadataStep(name, column[number]) for name, column in self.steps)
            leg = Leg(
                self.tier, self.kind, self.engine, ref.nbytes, started, finished, device, chunks,
                took - total, steps,
            )  # fmt: skip
            yield op, leg


def in_order(ops: Iterable[Op], parts: Iterable[OpDone | OpsDone]) -> list[OpDone]:
    """Return what became of each of `ops`, which parts tell in any order."""
    done: Mapping[int, OpDone] = {id(one.op): one for part in parts for one in each_of(part)}
    return [done[id(op)] for op in ops]


def last_ns(part: OpDone | OpsDone) -> int:
    """Return when the last operation of a part had ended."""
    if isinstance(part, OpsDone):
        return max(max(side.finished_ns) for side in part.sides)
    return part.finished_ns


def each_of(part: OpDone | OpsDone) -> Iterator[OpDone]:
    """Yield the operations of a part one by one."""
    if isinstance(part, OpsDone):
        yield from part.each()
    else:
        yield part
