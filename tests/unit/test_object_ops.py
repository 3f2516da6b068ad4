"""Operations on copies that are kept as several objects, one for each layer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.cache.copies import Copies
from kv_cache.core.block import Block, content_key
from kv_cache.core.effect import VANISHED, CopyRef, Delete, Move, Op, OpDone, Read, Write
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.object_ops import leftovers, of_blocks, of_objects
from kv_cache.core.units import PAGE_BYTES

SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 10**6)), min_size=1, max_size=6)
KINDS = (OpKind.READ, OpKind.WRITE)
FAILURES = st.sampled_from([None, None, *((e, k) for e in ("EIO", VANISHED) for k in KINDS)])


def copies_of(sizes: list[tuple[int, int]]) -> list[tuple[CopyRef, CopyRef]]:
    """Blocks of (objects, bytes), each in two tiers."""
    copies = Copies((Tier.CPU, Tier.NVME))
    made = []
    for number, (objects, nbytes) in enumerate(sizes):
        (source,) = copies.new([Block(content_key(number), 1, nbytes, objects)], 0, {})
        (target,) = copies.new_from([copies.by_id[source.copy_id]], 1)
        made.append((source, target))
    return made


def done(op: Op, failure: tuple[str, OpKind] | None = None) -> OpDone:
    error, failed = failure or (None, None)
    return OpDone(op, 0, 1, (), error, failed)


@given(SIZES)
def test_the_objects_of_copies_are_whole_pages_and_never_the_same(
    sizes: list[tuple[int, int]],
) -> None:
    made = copies_of(sizes)
    objects = of_objects([Move(source, target, Cause.DEMOTION) for source, target in made])
    assert len(objects) == sum(count for count, _ in sizes)
    sides = [ref for op in objects for ref in (op.source, op.target)]
    assert len({ref.copy_id for ref in sides}) == len(sides)
    assert all(
        (op.source.key, op.source.version) == (op.target.key, op.target.version) for op in objects
    )
    assert len({op.source.key for op in objects}) == len(objects)
    assert len({op.source.version for op in objects}) == len(objects)
    assert all(ref.nbytes % PAGE_BYTES == 0 and ref.nbytes for ref in sides)
    assert sum(op.target.nbytes for op in objects) == sum(target.nbytes for _, target in made)
    for (count, nbytes), (source, _) in zip(sizes, made, strict=True):
        assert nbytes <= source.nbytes < nbytes + count * (PAGE_BYTES + 1)


@given(st.data(), SIZES)
def test_a_block_is_moved_when_all_of_its_objects_are_and_nothing_is_left_of_one_that_is_not(
    data: st.DataObject, sizes: list[tuple[int, int]]
) -> None:
    ops = [Move(source, target, Cause.DEMOTION) for source, target in copies_of(sizes)]
    results = [done(op, data.draw(FAILURES)) for op in of_objects(ops)]
    there = {result.op.target.copy_id for result in results if result.ok}
    there -= {op.target.copy_id for op in leftovers(ops, results)}
    for op, result in zip(ops, of_blocks(ops, results), strict=True):
        first = op.target.copy_id
        left = there & set(range(first, first + op.target.objects))
        assert len(left) == (op.target.objects if result.ok else 0)


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ([("EIO", OpKind.WRITE), ("EIO", OpKind.READ), None], ("EIO", OpKind.READ)),
        ([(VANISHED, OpKind.READ), None, ("EIO", OpKind.WRITE)], ("EIO", OpKind.WRITE)),
        ([None, (VANISHED, OpKind.READ), None], (VANISHED, OpKind.READ)),
    ],
)
def test_of_several_failures_the_one_that_decides_what_becomes_of_the_block_is_told(
    failures: list[tuple[str, OpKind] | None], told: tuple[str, OpKind]
) -> None:
    ((source, target),) = copies_of([(3, 9000)])
    ops = (Move(source, target, Cause.PROMOTION),)
    results = list(map(done, of_objects(ops), failures))
    (whole,) = of_blocks(ops, results)
    assert (whole.error, whole.failed) == told


def test_what_is_one_object_stays_the_operation_that_it_was() -> None:
    ((source, target),) = copies_of([(1, 5000)])
    ops = (Read(source, Cause.REUSE), Write(target, Cause.PREFILL), Delete(target, Cause.EVICTION))
    assert of_objects(ops) == ops
    failed = [done(ops[0]), done(ops[1], ("EIO", OpKind.WRITE)), done(ops[2])]
    assert of_blocks(ops, failed) == tuple(failed)
    assert leftovers(ops, failed) == ()
