"""Many operations in one call, told in arrays: each is what it would be alone."""

import ctypes
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from operator import sub
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.many import PlacedMoves, PlacedObjects
from kv_cache.bench.probes.pagecache import PageCacheSampler
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Delete, MetadataStep, Move, OpDone, Read, Write
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.ops_done import OpsDone, each_of
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB, NS_PER_S, PAGE_BYTES
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.tiers import native
from kv_cache.tiers.base import Capability, Names, Place, PlacedStore, Span, Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.native import ROW, AbortFlag, Does, Piece, PieceTable
from kv_cache.tiers.nvme import layouts, open_storage
from kv_cache.tiers.nvme.striped import Striped
from kv_cache.tiers.payload import MISMATCH, Payload
from tests.cli import wait_for

CAPACITY = 4 * MIB
BUFFER = 256 * KIB
PAYLOAD = Payload(Seed(3).child("payload"), BUFFER)

pytestmark = pytest.mark.skipif(
    isinstance(native.library(), str), reason=f"the native library: {native.library()}"
)


def store_of(places: Sequence[Path], engine: str, layout: str, fsync: str) -> Store:
    if not places:
        return MemoryStore(Tier.NVME, CAPACITY)
    stores = [
        open_storage(place, capacity_bytes=CAPACITY, layout=layout, engine=engine, fsync=fsync)
        for place in places
    ]
    if Capability.POSITIONAL not in stores[0].capabilities:
        pytest.skip(str(stores[0].describe()["engine_note"]))
    return stores[0] if len(stores) == 1 else Striped(stores, [CAPACITY] * len(stores))


class Rig:
    """Storage in files, or in memory without any, and a mover that has it alone."""

    def __init__(
        self,
        *places: Path,
        verify: Verify = Verify.FULL,
        sampled: int = 0,
        engine: str = "direct",
        layout: str = "arena",
        fsync: str = "never",
        by_python: bool = False,
    ) -> None:
        self.store = store_of(places, engine, layout, fsync)
        self.places = places
        self.files = [file for place in places for file in sorted(place.rglob("*.kv"))]
        self.pulse, self.abort, clock = StoreCalls(), AbortFlag(), MonotonicClock()
        self.pools = BufferPool(2, BUFFER), BufferPool(2, BUFFER)
        self.above = MemoryStore(Tier.CPU, CAPACITY)
        self.sampler = PageCacheSampler(sampled) if sampled else None
        batches = native_batches(PAYLOAD, clock, verify, self.abort, 4, self.pulse)
        batches = None if by_python else batches
        self.mover = Mover(
            {Tier.NVME: self.store, Tier.CPU: self.above}, PAYLOAD, *self.pools, clock, verify,
            self.abort,
            pulse=self.pulse, batches=batches,
            page_cache=self.sampler,
        )  # fmt: skip

    def write(self, *refs: CopyRef) -> list[OpDone]:
        return self.mover.perform_all([Write(ref, Cause.PREFILL) for ref in refs])

    def read(self, *refs: CopyRef) -> list[OpDone]:
        return self.mover.perform_all([Read(ref, Cause.REUSE) for ref in refs])

    def moves(self, *refs: CopyRef) -> list[Move]:
        """Up from storage, or down to it."""
        tier = Tier.CPU if refs[0].tier is Tier.NVME else Tier.NVME
        return [
            Move(ref, ref._replace(copy_id=ref.copy_id + 10_000, tier=tier), Cause.DEMOTION)
            for ref in refs
        ]

    def delete(self, *refs: CopyRef) -> list[OpDone]:
        return self.mover.perform_all([Delete(ref, Cause.EVICTION) for ref in refs])


def copies(first: int, *pages: int) -> list[CopyRef]:
    return [
        CopyRef(number, content_key(number), Tier.NVME, count * PAGE_BYTES, version=number)
        for number, count in enumerate(pages, first)
    ]


@pytest.fixture(
    name="rig",
    params=[(0, "direct"), (1, "direct"), (2, "direct"), (1, "uring")],
    ids=["memory", "one drive", "two drives", "one drive by a ring"],
)
def _rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    drives, engine = request.param
    places = [tmp_path / "a", tmp_path / "b"][:drives]
    for place in places:
        place.mkdir()
    yield from opened(*places, engine=engine)


@pytest.fixture(name="sampling")
def _sampling(tmp_path: Path) -> Iterator[Rig]:
    yield from opened(tmp_path, sampled=3)


@pytest.fixture(name="single")
def _single(tmp_path: Path) -> Iterator[Rig]:
    yield from opened(tmp_path)


def opened(*places: Path, sampled: int = 0, engine: str = "direct") -> Iterator[Rig]:
    rig = Rig(*places, sampled=sampled, engine=engine)
    yield rig
    assert [pool.available for pool in rig.pools] == [2, 2]
    assert not rig.pulse.in_flight(10**18)
    rig.store.close()
    rig.above.close()


def test_each_is_told_as_if_it_was_performed_alone(rig: Rig) -> None:
    refs = copies(0, *([16] * 20), 3, 64, 1)
    alone = copies(100, 16)
    for perform, steps in ((rig.write, ["allocate"]), (rig.read, []), (rig.delete, [])):
        (single,), many = perform(*alone), perform(*refs)
        assert [each.op.target for each in many] == refs
        for each in many:
            (leg,), (like,) = each.legs, single.legs
            assert (leg.tier, leg.kind, leg.engine) == (like.tier, like.kind, like.engine)
            assert [step.name for step in leg.steps] == [step.name for step in like.steps]
            assert [step.name for step in leg.steps] == (steps if rig.files else [])
            assert leg.nbytes == each.op.target.nbytes
            assert sum(chunk.nbytes for chunk in leg.chunks) == leg.nbytes * bool(like.chunks)
            assert 0 < leg.device_ns <= leg.finished_ns - leg.started_ns
            assert leg.device_ns == leg.total_ns
            assert sum(step.duration_ns for step in leg.steps) < leg.device_ns


def test_what_goes_well_in_one_call_is_one_part(rig: Rig) -> None:
    (part,) = rig.mover.perform_many([Write(r, Cause.PREFILL) for r in copies(0, *([4] * 9))])
    assert isinstance(part, OpsDone)
    assert part.ok
    assert rig.pulse.bytes_moved() == (0, 9 * 4 * PAGE_BYTES)


def test_moves_that_go_well_are_as_many_parts_as_buffers_and_as_each_alone(rig: Rig) -> None:
    *refs, alone = copies(0, *([16] * 10))
    rig.write(*refs, alone)
    for _ in range(2):  # up, and down again
        before = rig.pulse.bytes_moved()
        moves = rig.moves(*refs)
        parts = list(rig.mover.perform_many(moves))
        assert [len(part.ops) for part in parts if isinstance(part, OpsDone)] == [4, 4, 1]
        reads, writes = map(sub, rig.pulse.bytes_moved(), before)
        assert sorted((reads, writes)) == [0, 9 * 16 * PAGE_BYTES]
        (single,) = rig.mover.perform_all(rig.moves(alone))
        for each in (one for part in parts for one in each_of(part)):
            for leg, like in zip(each.legs, single.legs, strict=True):
                assert (leg.tier, leg.kind, leg.engine) == (like.tier, like.kind, like.engine)
                assert [step.name for step in leg.steps] == [step.name for step in like.steps]
                assert each.started_ns <= leg.started_ns < leg.finished_ns <= each.finished_ns
                assert sum(chunk.nbytes for chunk in leg.chunks) == 16 * PAGE_BYTES
                assert 0 < leg.device_ns <= leg.total_ns
            assert each.legs[1].total_ns == each.legs[1].device_ns
        *refs, alone = [*(move.target for move in moves), single.op.target]
        assert [each.error for each in rig.read(*refs)] == [None] * 9


def test_of_moves_in_one_call_each_fails_alone(single: Rig) -> None:
    """One is not there, one is another's bytes, and there is room for five."""
    refs = [ref._replace(tier=Tier.CPU) for ref in copies(0, *([8] * 10))]
    single.write(*refs)
    single.delete(refs[1])
    moves = single.moves(*(ref._replace(version=77) if ref is refs[2] else ref for ref in refs))
    full = copies(500, *([64] * 15), 24)  # but for five
    assert all(each.ok for each in single.write(*full))
    done = single.mover.perform_all(moves)
    assert [(each.error, each.failed) for each in done] == [
        (None, None), ("vanished", OpKind.READ), (MISMATCH, OpKind.READ), (None, None),
        (None, None), (None, None), (None, None), *[("no-space", OpKind.WRITE)] * 3,
    ]  # fmt: skip
    for move, each in zip(moves, done, strict=True):
        (found,) = single.read(move.target)
        assert found.error == (None if each.ok else "vanished")


def test_moves_that_are_aborted_leave_nothing_above(single: Rig) -> None:
    refs = copies(0, *([8] * 6))
    single.write(*refs)
    single.abort.set()
    moves = single.moves(*refs)
    assert {each.error for each in single.mover.perform_all(moves)} == {"aborted"}
    single.abort.clear()
    assert {each.error for each in single.read(*(move.target for move in moves))} == {"vanished"}
    assert all(each.ok for each in single.mover.perform_all(moves))


def test_of_moves_that_go_on_those_have_ended_that_are_written(rig: Rig) -> None:
    """Six: one cannot be read; of five that are being written two are, and one of them failed."""
    ops = rig.moves(*copies(0, *([1] * 6)))
    clock, now_ns = MonotonicClock(), time.monotonic_ns()
    place = Place((Span(0, 0, PAGE_BYTES),), (), "direct")
    moves = PlacedMoves([(op, (op.source, place), (op.target, place)) for op in ops], clock)
    rig.pulse.enter_many(moves)
    moves.reading.lay_out(PAYLOAD, 0, 0, 0)
    assert not moves.begin_writing()
    assert rig.mover.cut_off() == ([], [])

    def fill(objects: PlacedObjects, instants: Sequence[tuple[int, int]], failed: int) -> None:
        rows = np.frombuffer(objects.table.rows, ROW)
        rows["began_ns"], rows["ended_ns"] = zip(
            *[[now_ns - 1000 * at if at else 0 for at in row] for row in instants], strict=True
        )
        rows["error"][failed] = native.WRONG

    fill(moves.reading, [(20 - i, 19 - i) for i in range(6)], failed=1)
    assert moves.begin_writing()
    assert list(moves.read) == [0, 2, 3, 4, 5]
    assert moves.writing is not None
    moves.writing.lay_out(PAYLOAD, int(native.Does.WRITE), 0, 0, PAGE_BYTES, slots=moves.read)
    addresses = np.frombuffer(moves.writing.table.rows, ROW)["address"]
    assert addresses.tolist() == [PAGE_BYTES * at for at in moves.read]
    fill(moves.writing, [(9, 8), (7, 6), (5, 0), (0, 0), (0, 0)], failed=1)
    ended, in_flight = rig.mover.cut_off()
    rig.pulse.leave_many(moves)
    outcomes = [(each.op, each.ok, each.failed) for part in ended for each in each_of(part)]
    assert outcomes == [
        (ops[0], True, None), (ops[1], False, OpKind.READ), (ops[2], False, OpKind.WRITE),
    ]  # fmt: skip
    assert [(leg.kind, leg.tier) for _, leg in in_flight] == [(OpKind.WRITE, ops[0].target.tier)]


@pytest.mark.parametrize("up", [True, False])
def test_whoever_looks_while_a_table_is_made_sees_nothing_of_it_yet(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, up: bool
) -> None:
    """As a thread does whose own call of storage ends after a silence, at any time."""
    refs = copies(0, *([4] * 6))
    rig.write(*refs)
    moves = rig.moves(*refs)
    if not up:
        rig.mover.perform_all(moves)
        moves = rig.moves(*(move.target for move in moves))
    bases, seen = PAYLOAD.bases, list[object]()

    def bases_and_look(ref: CopyRef, offset: int) -> tuple[int, ...]:
        seen.extend(rig.pulse.waiting(10**18))
        ended, in_flight = rig.mover.cut_off()
        seen.extend([*ended, *in_flight])
        return bases(ref, offset)

    monkeypatch.setattr(PAYLOAD, "bases", bases_and_look)
    assert all(each.ok for each in rig.mover.perform_all(moves))
    assert not seen


def test_pages_are_looked_at_of_every_nth_move_up_in_the_call_of_all(sampling: Rig) -> None:
    refs = copies(0, *([8] * 12))
    sampling.write(*refs)
    parts = list(sampling.mover.perform_many(sampling.moves(*refs)))
    assert [len(part.ops) for part in parts if isinstance(part, OpsDone)] == [8, 4]  # of a buffer
    assert all(part.ok for part in parts)
    assert sampling.sampler is not None
    assert sampling.sampler.section()["sampled_objects"] == 4


def test_loads_from_memory_take_no_turns_of_those_whose_pages_are_looked_at(sampling: Rig) -> None:
    above = [ref._replace(tier=Tier.CPU) for ref in copies(0, *([8] * 6))]
    sampling.write(*above)
    sampling.read(*above[:3])
    downwards = sampling.moves(*above)
    for ops in ([Read(ref, Cause.REUSE) for ref in above], downwards):
        parts = list(sampling.mover.perform_many(ops))
        assert [len(part.ops) for part in parts if isinstance(part, OpsDone)] == [6]
    sampling.mover.perform_all(sampling.moves(*(move.target for move in downwards)))
    assert sampling.sampler is not None
    assert sampling.sampler.section()["sampled_objects"] == 2


def test_a_load_larger_than_a_buffer_takes_one_turn(sampling: Rig) -> None:
    refs = copies(0, *([80] * 7))
    sampling.write(*refs)
    sampling.read(*refs)
    assert sampling.sampler is not None
    assert sampling.sampler.section()["sampled_objects"] == 3  # the first, fourth and seventh


def test_what_a_rehearsal_moves_less_is_counted_as_less(rig: Rig) -> None:
    refs, recorder = copies(0, *([8] * 6)), Recorder(Edges(0))
    rig.write(*refs)
    rig.mover.share = 0.25
    (part,) = rig.mover.perform_many([Read(ref, Cause.REUSE) for ref in refs])
    assert isinstance(part, OpsDone)
    recorder.ops(part, verified=True)
    (stats,) = recorder.flows.values()
    assert stats.bytes == stats.sizes.total == recorder.verified_bytes == 6 * 2 * PAGE_BYTES


def test_what_many_have_written_is_read_by_python_and_the_other_way_round(rig: Rig) -> None:
    refs = copies(0, 1, 5, 16, 64, 7, 2)
    rig.write(*refs)
    for ref in refs:
        tap, buffer = rig.store.open(ref), rig.pools[0].take()
        tap.read(0, buffer.view[: ref.nbytes])
        tap.close()
        assert PAYLOAD.matches(buffer, ref, 0, ref.nbytes, full=True)
        rig.pools[0].give(buffer)


def test_one_that_fails_fails_alone(rig: Rig) -> None:
    refs = copies(0, *([8] * 12))
    rig.write(*refs)
    rig.delete(refs[2])
    wrong = [*refs[:5], refs[5]._replace(version=77), *refs[6:]]
    assert [each.error for each in rig.read(*wrong)] == [
        "vanished" if ref is refs[2] else MISMATCH if ref.version == 77 else None for ref in wrong
    ]
    assert [each.error for each in rig.delete(*refs)] == [
        "vanished" if ref is refs[2] else None for ref in refs
    ]


# --- as Python does it -------------------------------------------------------------------


@pytest.fixture(name="both")
def _both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rig, Rig]]:
    """Native code, and Python in its place, with an arena of four files each."""
    monkeypatch.setattr(layouts, "BUCKET_BYTES", CAPACITY // 4)
    rigs = []
    for by_python in (False, True):
        (place := tmp_path / str(by_python)).mkdir()
        rigs.append(Rig(place, fsync="object", by_python=by_python))
        assert len(rigs[-1].files) == 4
    yield rigs[0], rigs[1]
    for rig in rigs:
        rig.store.close()


def test_a_piece_of_an_object_is_a_call_and_its_file_an_fsync_as_in_python(
    both: tuple[Rig, Rig],
) -> None:
    refs = copies(0, *([24] * 42))  # of 256 pages a file: two lie in two
    told = []
    for rig in both:
        done = [*rig.write(*refs), *rig.read(*refs)]
        assert all(each.ok for each in done)
        legs = [leg for each in done for leg in each.legs]
        told.append([([s.name for s in g.steps], [c.nbytes for c in g.chunks]) for g in legs])
    assert told[0] == told[1]
    assert [names for names, _ in told[0] if names[2:]] == [["allocate", "fsync", "fsync"]] * 2


def test_room_that_a_failed_write_gives_back_is_had_by_the_next_one_as_in_python(
    both: tuple[Rig, Rig],
) -> None:
    """Four of six cannot be read, and there is room for three."""
    refs = [ref._replace(tier=Tier.CPU) for ref in copies(0, *([8] * 6))]
    told = []
    for rig in both:
        full = copies(500, *([32] * 31), 8)
        assert all(each.ok for each in rig.write(*refs) + rig.write(*full))
        moves = rig.moves(*(ref._replace(version=77) if ref.copy_id < 4 else ref for ref in refs))
        told.append([(each.error, each.failed) for each in rig.mover.perform_all(moves)])
    assert told[0] == told[1] == [(MISMATCH, OpKind.READ)] * 4 + [(None, None)] * 2


def test_who_comes_first_has_the_room_whatever_its_size_as_in_python(both: tuple[Rig, Rig]) -> None:
    refs = copies(0, *([64] * 8), 300, 300)  # of 1024 pages; the last two are beyond a buffer
    told = [[each.error for each in rig.write(*refs)] for rig in both]
    assert told[0] == told[1] == [None] * 9 + ["no-space"]


def test_steps_that_fail_or_clean_up_are_no_steps_as_in_python(tmp_path: Path) -> None:
    """Of a name that is taken, a file that is not there and a load of other bytes."""
    told = []
    for by_python in (False, True):
        (place := tmp_path / str(by_python)).mkdir()
        rig, refs = Rig(place, layout="file", by_python=by_python), copies(0, *([4] * 8))
        (place / "03" / f"{3:016x}.tmp.kv").touch()
        done = rig.write(*refs)
        (place / "05" / f"{5:016x}.kv").unlink()
        done += rig.read(*refs[5:], refs[6]._replace(version=77), *refs[:2])
        recorder = Recorder(Edges(0))
        for each in done:
            recorder.op(each)
        steps = [(each.error, [step.name for step in each.legs[0].steps]) for each in done]
        told.append((steps, recorder.flows.keys()))
        rig.store.close()
    assert told[0] == told[1]
    assert told[0][0][3] == ("eexist", [])
    assert {flow.engine for flow in told[0][1]} == {"direct"}


def test_loads_of_wrong_bytes_have_their_pages_looked_at_as_in_python(tmp_path: Path) -> None:
    looked_at = []
    for by_python in (False, True):
        (place := tmp_path / str(by_python)).mkdir()
        rig, refs = Rig(place, sampled=1, by_python=by_python), copies(0, *([4] * 8))
        rig.write(*refs)
        done = rig.read(*(ref._replace(version=77) for ref in refs))
        assert {each.error for each in done} == {MISMATCH}
        assert rig.sampler is not None
        looked_at.append(rig.sampler.section()["sampled_objects"])
        rig.store.close()
    assert looked_at == [8, 8]


def test_what_finds_no_room_fails_and_what_does_is_there(single: Rig) -> None:
    refs = copies(0, *([48] * 24))  # 1152 pages of 1024
    errors = [each.error for each in single.write(*refs)]
    assert errors == [None] * 21 + ["no-space"] * 3
    assert [each.error for each in single.read(*refs[:21])] == [None] * 21


def test_a_write_that_fails_leaves_nothing_behind(single: Rig) -> None:
    for file in single.files:
        os.truncate(file, 0)
    refs = copies(0, *([8] * 6))
    assert all(each.ok for each in single.write(*refs))
    for file in single.files:
        os.truncate(file, 0)
    assert {each.error for each in single.read(*refs)} == {"truncated"}
    single.abort.set()
    more = copies(50, *([8] * 6))
    assert {each.error for each in single.write(*more)} == {"aborted"}
    single.abort.clear()
    assert {each.error for each in single.read(*more)} == {"vanished"}


def test_what_a_call_moved_before_it_failed_is_counted(single: Rig) -> None:
    """Else the kernel's counters seem to have the bytes of others."""
    refs = copies(0, *([8] * 5))
    single.write(*refs)
    (file,) = single.files
    os.truncate(file, 36 * PAGE_BYTES)  # in the middle of the last one
    before = single.pulse.bytes_moved()[0]
    *whole, cut = single.read(*refs)
    assert all(each.ok for each in whole)
    assert (cut.error, [chunk.nbytes for chunk in cut.legs[0].chunks]) == (
        "truncated", [4 * PAGE_BYTES],
    )  # fmt: skip
    assert single.pulse.bytes_moved()[0] - before == 36 * PAGE_BYTES


def test_what_a_call_of_many_has_moved_so_far_is_counted_while_it_goes_on(
    single: Rig, tmp_path: Path
) -> None:
    """A batch may be of hundreds of MB, of which the kernel counts each read as it is made: counted
    whole at its end, memory seemed to answer in a window's first seconds (V6). The second object's
    file is a pipe, which opens when somebody writes to it."""
    data, pipe = tmp_path / "data", tmp_path / "pipe"
    data.write_bytes(bytes(PAGE_BYTES))
    os.mkfifo(pipe)
    memory = bytearray(PAGE_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    name = os.fsencode(pipe) + b"\0"
    batches = single.mover.batches
    assert batches is not None
    with data.open("rb") as file:
        rows = [
            Piece(0, Does.READ, file.fileno(), 0, PAGE_BYTES, address, 0, 0, 0),
            Piece(1, Does.OPEN, -1, os.O_RDONLY, 0, native.address_of(name), 0, 0, 0),
            Piece(1, Does.CLOSE, -1, 0, 0, native.address_of(name), 0, 0, 0),
        ]
        table = PieceTable(rows)
        call = partial(batches.transfer, table, Tier.NVME, how=Capability.NONE, writes=False)
        thread = threading.Thread(target=call)
        thread.start()
        try:
            wait_for(lambda: single.pulse.bytes_moved() == (PAGE_BYTES, 0))
            assert thread.is_alive()
        finally:
            os.close(os.open(pipe, os.O_WRONLY))
            thread.join()
    assert [moved.error for moved in table.moved()] == [0, 0, 0]
    assert single.pulse.bytes_moved() == (PAGE_BYTES, 0)


def test_objects_in_pieces_are_told_with_all_of_their_calls(single: Rig) -> None:
    small = copies(0, *([8] * 128))
    single.write(*small)
    single.delete(*small[::2])
    refs = copies(1000, *([32] * 8))
    for done in (single.write(*refs), single.read(*refs)):
        assert all(each.ok for each in done)
        assert max(len(each.legs[0].chunks) for each in done) > 1
        assert all(sum(c.nbytes for c in each.legs[0].chunks) == 32 * PAGE_BYTES for each in done)


def test_the_room_of_an_object_that_is_told_alone_is_a_part_of_its_device_time(
    single: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects in pieces, and writes and moves that are cut off; room takes a second."""
    small = copies(0, *([8] * 128))
    single.write(*small)
    single.delete(*small[::2])
    find = cast("PlacedStore", single.store).places

    def slowly(refs: Sequence[CopyRef], *, writes: bool) -> list[Place | Names | StoreError]:
        steps = (MetadataStep("allocate", NS_PER_S),)
        places = find(refs, writes=writes)
        return [p._replace(steps=steps) if isinstance(p, Place) and writes else p for p in places]

    monkeypatch.setattr(single.store, "places", slowly)
    above = [ref._replace(tier=Tier.CPU) for ref in copies(2000, *([8] * 6))]
    single.write(*above)
    done = single.write(*copies(1000, *([32] * 8)))
    assert max(len(each.legs[0].chunks) for each in done) > 1
    single.abort.set()
    done += single.write(*copies(3000, *([8] * 6))) + single.mover.perform_all(single.moves(*above))
    for leg in (each.legs[-1] for each in done):
        assert leg.device_ns >= NS_PER_S
        assert leg.finished_ns - leg.started_ns >= leg.device_ns


# --- in buckets ----------------------------------------------------------------------------


@pytest.fixture(name="in_buckets", params=["never", "object"])
def _in_buckets(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Rig, Rig]]:
    """Native code, and Python in its place, with buckets of 40 pages on two drives each."""
    monkeypatch.setattr(layouts, "BUCKET_BYTES", 40 * PAGE_BYTES)
    rigs = []
    for by_python in (False, True):
        places = [tmp_path / f"{by_python}-{drive}" for drive in range(2)]
        for place in places:
            place.mkdir()
        fsync = request.param
        rigs.append(Rig(*places, layout="bucket", fsync=fsync, by_python=by_python))
    yield rigs[0], rigs[1]
    for rig in rigs:
        assert [pool.available for pool in rig.pools] == [2, 2]
        assert not rig.pulse.in_flight(10**18)
        rig.store.close()


def _below(rig: Rig) -> dict[str, list[int]]:
    """Return the files of a rig: of an index, what it holds; of a bucket, what words in 4 KiB
    are stamps."""
    files: dict[str, Any] = {}
    for drive, place in enumerate(rig.places):
        for file in place.rglob("*.kv"):
            data = file.read_bytes()
            meta = file.name.endswith(".meta.kv")
            words = np.frombuffer(b"" if meta else data, np.uint64).reshape(-1, PAGE_BYTES // 8)
            files[f"{drive}/{file.name}"] = data if meta else words[:, [0, 1, -1]].tolist()
    return files


def test_a_batch_in_buckets_is_what_python_makes_of_it_one_by_one(
    in_buckets: tuple[Rig, Rig],
) -> None:
    """Of sizes that leave room in a bucket, and up into memory and down again. But a bucket that
    is full is completed by its last writer, and not by who needs the next one."""
    refs = copies(0, *([8] * 13), 40, 3, *([16] * 9), 64)
    outcomes, steps, files = [], list[Counter[str]](), []
    for rig in in_buckets:
        done = [*rig.write(*refs), *rig.read(*refs)]
        done += rig.mover.perform_all(rig.moves(*refs[:20]))
        down = [ref._replace(copy_id=ref.copy_id + 10_000, tier=Tier.CPU) for ref in refs[:20]]
        below = [ref._replace(copy_id=ref.copy_id + 20_000) for ref in refs[:20]]
        done += rig.mover.perform_all(
            [Move(*pair, Cause.DEMOTION) for pair in zip(down, below, strict=True)]
        )
        done += [*rig.read(*below), *rig.delete(*refs[1:])]
        assert all(each.ok for each in done)
        legs = [leg for each in done for leg in each.legs]
        outcomes.append([(leg.kind, leg.tier, leg.engine, leg.nbytes) for leg in legs])
        steps.append(Counter(step.name for leg in legs for step in leg.steps))
        for leg in legs:
            assert 0 < leg.device_ns <= leg.finished_ns - leg.started_ns
            assert sum(step.duration_ns for step in leg.steps) < leg.device_ns
        files.append(_below(rig))
    assert outcomes[0] == outcomes[1]
    assert steps[0] == steps[1]
    assert {"close", "index", "create", "allocate"} <= set(steps[0])
    assert files[0] == files[1]


def test_objects_in_buckets_go_in_columns_but_those_that_begin_or_end_one(
    in_buckets: tuple[Rig, Rig],
) -> None:
    rig, refs = in_buckets[0], copies(0, *([4] * 32))
    parts = list(rig.mover.perform_many([Write(ref, Cause.PREFILL) for ref in refs]))
    columns, alone = [p for p in parts if isinstance(p, OpsDone)], parts[1:]
    steps = [[s.name for s in one.legs[0].steps] for one in alone if isinstance(one, OpDone)]
    assert len(columns) == 1
    assert len(columns[0].ops) + len(alone) == 32
    assert [name for name, _ in columns[0].steps][:1] == ["allocate"]
    assert all({"create", "index"} & set(names) for names in steps)
    (part,) = rig.mover.perform_many([Read(ref, Cause.REUSE) for ref in refs])
    assert isinstance(part, OpsDone)
    assert [name for name, _ in part.steps] == ["open", "close"]


def test_of_a_batch_in_buckets_whose_index_has_no_room_one_write_fails(
    in_buckets: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(layouts.Buckets, "_write_new", full)
    for rig in in_buckets:
        refs = copies(0, *([4] * 32))
        done = rig.write(*refs)
        failed = [each for each in done if not each.ok]
        assert 1 <= len(failed) <= 4
        assert {(each.error, each.failed) for each in failed} == {("no-space", OpKind.WRITE)}
        for each, read in zip(done, rig.read(*refs), strict=True):
            assert read.error == (None if each.ok else "vanished")


def test_an_aborted_batch_leaves_nothing_in_buckets(in_buckets: tuple[Rig, Rig]) -> None:
    for rig in in_buckets:
        refs = copies(0, *([4] * 32))
        rig.abort.set()
        assert {each.error for each in rig.write(*refs)} == {"aborted"}
        rig.abort.clear()
        assert {each.error for each in rig.read(*refs)} == {"vanished"}
        assert all(each.ok for each in rig.write(*refs))


def test_a_bucket_that_is_being_made_is_seen_from_outside(
    in_buckets: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by who waits for a device to answer."""
    rig, seen = in_buckets[0], list[tuple[OpKind, int]]()
    create = layouts.Root.create

    def slowly(root: layouts.Root, name: str, flags: int) -> int:
        seen.extend(rig.pulse.waiting(0))
        return create(root, name, flags)

    monkeypatch.setattr(layouts.Root, "create", slowly)
    assert all(each.ok for each in rig.write(*copies(0, *([4] * 5))))
    assert {kind for kind, _ in seen} == {OpKind.WRITE}


def test_pages_are_looked_at_of_every_nth_read_in_the_call_of_all(sampling: Rig) -> None:
    refs = copies(0, *([8] * 12))
    sampling.write(*refs)
    parts = list(sampling.mover.perform_many([Read(ref, Cause.REUSE) for ref in refs]))
    assert [len(part.ops) for part in parts if isinstance(part, OpsDone)] == [12]
    assert all(part.ok for part in parts)
    assert sampling.sampler is not None
    section = sampling.sampler.section()
    assert (section["sampled_objects"], section["pages"]) == (4, 4 * 8)
    assert section["descriptors"] == {"direct": 4, "buffered": 0}


@pytest.mark.parametrize("up", [False, True])
def test_a_file_of_its_own_is_opened_to_look_at_its_pages(tmp_path: Path, *, up: bool) -> None:
    rig, refs = Rig(tmp_path, sampled=3, layout="file"), copies(0, *([4] * 12))
    rig.write(*refs)
    ops = rig.moves(*refs) if up else [Read(ref, Cause.REUSE) for ref in refs]
    parts = list(rig.mover.perform_many(ops))
    assert [len(part.ops) for part in parts if isinstance(part, OpsDone)] == [8]
    assert all(part.ok for part in parts)
    assert rig.sampler is not None
    assert rig.sampler.section()["sampled_objects"] == 4
    rig.store.close()


def test_calls_that_go_on_are_seen_from_outside() -> None:
    clock = MonotonicClock()
    ops = [Read(ref, Cause.REUSE) for ref in copies(0, 1, 1, 1)]
    place = Place((Span(0, 0, PAGE_BYTES),), (), "direct")
    objects = PlacedObjects(OpKind.READ, [(op, op.copy, place) for op in ops], clock)
    pulse, now_ns = StoreCalls(), time.monotonic_ns()
    pulse.enter_many(objects)
    objects.lay_out(PAYLOAD, 0, 0, 0)
    instants = [(now_ns - 5_000, now_ns - 1_000), (now_ns - 3_000, 0), (0, 0)]
    rows = np.frombuffer(objects.table.rows, ROW)
    rows["began_ns"], rows["ended_ns"] = zip(*instants, strict=True)
    seen_ns = clock.of_monotonic(now_ns)
    ((cause, leg),) = pulse.in_flight(seen_ns)
    assert (cause, leg.kind, leg.device_ns) == (Cause.REUSE, OpKind.READ, 3_000)
    assert pulse.waiting(seen_ns) == [(OpKind.READ, 3_000)]
    pulse.leave_many(objects)
    assert not pulse.in_flight(seen_ns)


def test_of_a_call_that_goes_on_each_has_ended_or_is_in_flight_or_has_not_begun(rig: Rig) -> None:
    ops = [Read(ref, Cause.REUSE) for ref in copies(0, 1, 1, 1, 1, 2)]
    one, two = (Span(0, 0, PAGE_BYTES),), (Span(0, 0, PAGE_BYTES), Span(0, 0, PAGE_BYTES))
    spans = [one, one, one, one, two]
    clock, now_ns = MonotonicClock(), time.monotonic_ns()
    placed = [(op, op.copy, Place(s, (), "direct")) for op, s in zip(ops, spans, strict=True)]
    objects = PlacedObjects(OpKind.READ, placed, clock)
    objects.lay_out(PAYLOAD, 0, 0, 0)
    rows = np.frombuffer(objects.table.rows, ROW)
    instants = [(9, 8), (9, 0), (7, 6), (0, 0), (5, 4), (3, 0)]  # the last two of one object
    rows["began_ns"], rows["ended_ns"] = zip(
        *[[now_ns - 1000 * at if at else 0 for at in row] for row in instants], strict=True
    )
    rows["error"][2] = native.WRONG
    rig.pulse.enter_many(objects)
    ended, in_flight = rig.mover.cut_off()
    rig.pulse.leave_many(objects)
    outcomes = [(each.op, each.ok) for part in ended for each in each_of(part)]
    assert outcomes == [(ops[0], True), (ops[2], False)]
    assert [(cause, leg.kind) for cause, leg in in_flight] == [(Cause.REUSE, OpKind.READ)] * 2


def test_threads_share_the_crew_and_each_has_what_it_asked_for(rig: Rig) -> None:
    groups = [copies(1000 * n, *([4] * 30)) for n in range(4)]
    failed: list[OpDone] = []

    def work(refs: list[CopyRef]) -> None:
        for perform in (rig.write, rig.read, rig.read, rig.delete):
            failed.extend(each for each in perform(*refs) if not each.ok)

    threads = [threading.Thread(target=work, args=(refs,)) for refs in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 400)), min_size=1, max_size=12),
    st.sampled_from(OpKind),
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=200)
def test_a_recorder_counts_arrays_as_it_counts_each(
    instants: list[tuple[int, int]],
    kind: OpKind,
    open_end: bool,
    sizes: int,
    steps_around: bool,
    moves: bool,
) -> None:
    """In and across all phases: calls that began in the warm-up, end in the drain, or last long."""
    around = steps_around and kind is not OpKind.DELETE
    steps = ["open", "close"] if around else ["allocate"] * (kind is OpKind.WRITE)
    ms, refs = 10**6, copies(0, *(1 + i % sizes for i in range(len(instants))))
    make: type[Any] = {
        OpKind.READ: Read, OpKind.WRITE: Write, OpKind.DELETE: Delete,
    }[kind]  # fmt: skip
    part = OpsDone(
        ops=[make(ref, Cause.REUSE) for ref in refs], tier=Tier.NVME, kind=kind, cause=Cause.REUSE,
        engine="direct", refs=refs,
        started_ns=[ms * began for began, _ in instants],
        finished_ns=[ms * (began + took) for began, took in instants],
        steps=[(name, [7] * len(instants)) for name in steps],
        moved_ns=[ms * (began + took) - 9 for began, took in instants] if around else (),
        device_ns=[ms * took - 50 for _, took in instants] if around else (),
        total_ns=[ms * took - 20 for _, took in instants] if around else (),
    )  # fmt: skip
    if moves and kind is OpKind.READ:
        above = [ref._replace(tier=Tier.CPU) for ref in refs]
        ends_ns = [at + 50 * ms for at in part.finished_ns]
        ops = [Move(*pair, Cause.REUSE) for pair in zip(refs, above, strict=True)]
        written = OpsDone(
            ops=ops, tier=Tier.CPU, kind=OpKind.WRITE, cause=Cause.REUSE, engine="memory",
            refs=above, started_ns=part.finished_ns, finished_ns=ends_ns,
        )  # fmt: skip
        part = structs.replace(part, ops=ops, then=written)
    end_ns = None if open_end else 900 * ms
    both = [Recorder(Edges(100 * ms, 0, 200 * ms, end_ns)) for _ in range(2)]
    both[0].ops(part, verified=True)
    for each in part.each():
        both[1].op(each, verified=True)
    assert _counted(both[0]) == _counted(both[1])


def _counted(recorder: Recorder) -> list[object]:
    flows = {
        flow: (
            stats.operations, stats.bytes, stats.calls,
            *(h.to_json() for h in (stats.sizes, stats.total, stats.device, stats.host)),
        )
        for flow, stats in recorder.flows.items()
    }  # fmt: skip
    bins = recorder.meter.take(1)
    windows = {
        key: (ops.operations, ops.bytes, ops.calls, ops.latency.histogram().to_json())
        for key, ops in bins.ops.items()
    }
    steps = {step: histogram.to_json() for step, histogram in recorder.steps.items()}
    return [
        flows, windows, steps, recorder.distinct.bytes, recorder.new_bytes,
        recorder.pace.read(10**9, (OpKind.READ, OpKind.WRITE)),
        recorder.verified_objects, recorder.verified_bytes, recorder.verified_storage_bytes,
    ]  # fmt: skip
