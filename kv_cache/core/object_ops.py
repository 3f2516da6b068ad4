"""Operations on copies of blocks as operations on the objects that a tier keeps of them.

The laws of a life cycle are those of blocks: one is there or it is not. Where a copy is several
objects (one for each layer), drivers perform, time and count an operation on each; the life is told
of the block. What of a write went well beside an object that failed is deleted again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

from kv_cache.core.block import KEY_BYTES, salted_key
from kv_cache.core.effect import (
    VANISHED,
    CopyRef,
    Delete,
    Move,
    Op,
    OpDone,
    Read,
    Write,
)
from kv_cache.core.kinds import Cause, OpKind
from kv_cache.core.units import PAGE_BYTES


def objects_of(ref: CopyRef) -> Iterator[CopyRef]:
    """Yield the objects of a copy, each under a key of its own."""
    copy_id, key, tier, nbytes, version, count = ref
    for i in range(count):
        layer_key = salted_key(key, i.to_bytes(KEY_BYTES, "little")) if i else key
        yield CopyRef(copy_id + i, layer_key, tier, nbytes // count, version + i)


_count_of = itemgetter(CopyRef._fields.index("objects"))


def single_objects(refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
    """Return the objects of all copies, in the order of the copies."""
    if max(map(_count_of, refs)) == 1:
        return refs
    return [part for ref in refs for part in objects_of(ref)]


def of_objects(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return the operations on the objects of each copy, in the order of the copies."""
    for op in ops:
        if op.target.objects > 1:
            return tuple(part for op in ops for part in _parts(op))
    return tuple(ops)


def of_blocks(ops: Sequence[Op], done: Sequence[OpDone]) -> tuple[OpDone, ...]:
    """Return what became of operations, where that of the operations on their objects is `done`."""
    if len(done) == len(ops):
        return tuple(done)
    return tuple(_joined(op, results) for op, results in _by_block(ops, done))


def leftovers(ops: Sequence[Op], done: Sequence[OpDone]) -> tuple[Op, ...]:
    """Return what has to be deleted: objects that were written of copies that failed."""
    if len(done) == len(ops):  # an object each leaves nothing
        return ()
    return tuple(
        Delete(each.op.target, Cause.DISCARD)
        for op, results in _by_block(ops, done)
        if isinstance(op, Write | Move) and not all(each.ok for each in results)
        for each in results
        if each.ok
    )


def _by_block(ops: Sequence[Op], done: Sequence[OpDone]) -> Iterator[tuple[Op, list[OpDone]]]:
    results = iter(done)
    for op in ops:
        yield op, [next(results) for _ in range(op.target.objects)]


def _parts(op: Op) -> Iterator[Op]:
    if op.target.objects == 1:
        yield op
        return
    match op:
        case Move(source=source, target=target, cause=cause):
            for one, other in zip(objects_of(source), objects_of(target), strict=True):
                yield Move(one, other, cause)
        case Read(copy=ref, cause=cause) | Write(copy=ref, cause=cause):
            yield from (type(op)(one, cause) for one in objects_of(ref))
        case Delete(copy=ref, cause=cause):
            yield from (Delete(one, cause) for one in objects_of(ref))


def _joined(op: Op, done: Sequence[OpDone]) -> OpDone:
    if len(done) == 1:
        return done[0]
    failed = max((each for each in done if not each.ok), key=_weight, default=None)
    return OpDone(
        op,
        min(each.started_ns for each in done),
        max(each.finished_ns for each in done),
        error=failed and failed.error,
        failed=failed and failed.failed,
    )


def _weight(done: OpDone) -> tuple[bool, bool]:
    """What could not be read is told before what could not be written; that an object was gone
    already, last."""
    return done.error != VANISHED, done.failed is OpKind.READ


def beginning(ref: CopyRef, share: float) -> CopyRef:
    """Return so much of a copy, in whole pages: all of it but in a rehearsal."""
    if share == 1.0:
        return ref
    return _copy_ref((*ref[:3], moved_bytes(ref.nbytes, share), *ref[4:]))


@cache  # of few sizes; and no `_replace`, as a small object costs no more than what is asked here
def moved_bytes(nbytes: int, share: float) -> int:
    """Return how many bytes of so many are moved: all but in a rehearsal, there whole pages."""
    if share == 1.0:
        return nbytes
    return max(1, round(nbytes * share / PAGE_BYTES)) * PAGE_BYTES


_copy_ref: Callable[[tuple[Any, ...]], CopyRef] = partial(tuple.__new__, CopyRef)
