"""One operation at a time on real stores: what it tells, what it leaves, and what it gives back."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.probes.pagecache import PageCacheSampler
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.core.block import content_key
from kv_cache.core.effect import ABORTED, CopyRef, Delete, Leg, Move, Op, OpDone, Read, Write
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.ops_done import OpsDone, each_of, in_order
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, PAGE_BYTES
from kv_cache.tiers.base import Capability, Sink, Store, Tap
from kv_cache.tiers.buffers import Buffer, BufferPool
from kv_cache.tiers.file_options import FSYNC, LAYOUTS
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.native import AbortFlag, Transfers, library
from kv_cache.tiers.null import NullStore
from kv_cache.tiers.nvme import NvmeStore, open_storage, uring
from kv_cache.tiers.payload import MISMATCH, Payload
from tests.cli import wait_for
from tests.stores import mounted
from tests.wrappers import FLIP, Around, Faulty, SinkAround, TapAround

BUFFER = 64 * KIB
SIZE = 3 * BUFFER + 5 * PAGE_BYTES
CHUNKS = [BUFFER, BUFFER, BUFFER, 5 * PAGE_BYTES]
POOL = 3
COPY_IDS = count(1)

Wrap = Callable[[Store], Store]


@dataclass(slots=True)
class Rig:
    """A mover over three tiers, and its parts."""

    stores: dict[Tier, Store]
    root: Path
    verify: Verify = Verify.STAMPS
    native: bool = True
    depth: int = 4
    abort: AbortFlag = field(default_factory=AbortFlag)
    loads: BufferPool = field(init=False)
    stored: BufferPool = field(init=False)
    mover: Mover = field(init=False)
    copies: dict[int, CopyRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        payload = Payload(Seed(3).child("payload"), BUFFER)
        self.loads = BufferPool(POOL, BUFFER)
        self.stored = BufferPool(POOL, BUFFER)
        clock, pools = MonotonicClock(), (self.loads, self.stored)
        batches = native_batches(payload, clock, self.verify, self.abort, self.depth)
        self.mover = Mover(
            self.stores, payload, *pools, clock, self.verify, self.abort,
            batches=batches if self.native else None,
        )  # fmt: skip

    def perform(self, op: Op) -> OpDone:
        """The operation, after which all buffers must be back and the report consistent."""
        done = self.mover.perform(op)
        assert (self.loads.available, self.stored.available) == (POOL, POOL)
        check_instants(done)
        assert done.op is op
        assert done.ok is (done.failed is None)
        return done

    def copy(self, tier: Tier, nbytes: int = SIZE) -> CopyRef:
        number = next(COPY_IDS)
        return CopyRef(number, content_key(number), tier, nbytes, version=number)

    def written(self, tier: Tier, nbytes: int = SIZE) -> CopyRef:
        ref = self.copy(tier, nbytes)
        assert self.perform(Write(ref, Cause.PREFILL)).ok
        return ref

    def twin(self, ref: CopyRef, tier: Tier) -> CopyRef:
        """The same bytes in another place."""
        return ref._replace(copy_id=next(COPY_IDS), tier=tier)

    def read(self, ref: CopyRef) -> OpDone:
        return self.perform(Read(ref, Cause.REUSE))

    def move(self, source: CopyRef, target: CopyRef) -> OpDone:
        return self.perform(Move(source, target, Cause.DEMOTION))

    @property
    def files(self) -> list[Path]:
        return sorted(self.root.rglob("*.kv"))


def check_instants(done: OpDone) -> None:
    for leg in done.legs:
        assert done.started_ns <= leg.started_ns <= leg.finished_ns <= done.finished_ns
        assert 0 <= leg.device_ns <= leg.finished_ns - leg.started_ns
        ends = [chunk.finished_ns for chunk in leg.chunks]
        instants = [leg.started_ns, *ends, leg.finished_ns]
        assert all(before <= after for before, after in pairwise(instants))


def moved(leg: Leg) -> list[int]:
    return [chunk.nbytes for chunk in leg.chunks]


def whole(leg: Leg) -> tuple[Tier, OpKind, str]:
    """Which leg it is, of one that moved everything."""
    assert leg.nbytes == SIZE == sum(moved(leg))
    assert moved(leg) == CHUNKS
    return leg.tier, leg.kind, leg.engine


def memories() -> dict[Tier, Store]:
    return {
        Tier.GPU: MemoryStore(Tier.GPU, 4 * SIZE, emulated=True),
        Tier.CPU: MemoryStore(Tier.CPU, 4 * SIZE),
    }


def file_store(root: Path, engine: str) -> NvmeStore:
    try:
        return open_storage(root, capacity_bytes=64 * SIZE, engine=engine)
    except PlaceError as refused:
        pytest.skip(str(refused))


def rig_of(
    root: Path, engine: str, *, wrap: Mapping[Tier, Wrap] | None = None, **parts: Any
) -> Rig:
    stores = memories() | {Tier.NVME: file_store(root, engine)}
    for tier, around in (wrap or {}).items():
        stores[tier] = around(stores[tier])
    return Rig(stores, root, **parts)


@pytest.fixture(name="engine", params=["direct", "uring", "mmap", "buffered"])
def _engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="rig", params=["native", "python"])
def _rig(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[Rig]:
    """What the native transfers do, and Python in their place."""
    if engine == "uring" and (missing := uring.uring_missing()) is not None:
        pytest.skip(missing)
    rig = rig_of(tmp_path, engine, native=request.param == "native")
    gc.disable()  # what earlier tests left in cycles is not closed meanwhile
    before = descriptors()
    yield rig
    gc.enable()
    now = descriptors()
    assert now <= before, "a descriptor was not closed"
    closed = [link for _, link in before - now if link.startswith(str(tmp_path))]
    assert not closed, "a descriptor of the store was closed"  # others' end with their threads


def descriptors() -> set[tuple[str, str]]:
    """Return them and what they are of, without the rings of threads that go on, and connections
    of other tests to a server, which end when they have been idle for a while."""
    places = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    links = [(place, os.readlink(place)) for place in places if os.path.islink(place)]
    return {
        (place, link)
        for place, link in links
        if "io_uring" not in link and not link.startswith("socket:")
    }


ENGINE = {Tier.GPU: "emulated-in-ram", Tier.CPU: "ram"}
ROUTES = [(source, target) for source in Tier for target in Tier if source is not target]


# --- what goes well ------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", Tier)
def test_a_write_and_a_read_have_one_leg_each_that_counts_every_byte(
    rig: Rig, engine: str, tier: Tier
) -> None:
    ref = rig.copy(tier)
    name = ENGINE.get(tier, engine)
    (leg,) = rig.perform(Write(ref, Cause.PREFILL)).legs
    assert whole(leg) == (tier, OpKind.WRITE, name)
    (leg,) = rig.read(ref).legs
    assert whole(leg) == (tier, OpKind.READ, name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("reads", ["uring", "direct"])
def test_each_side_goes_the_way_that_its_engine_names(
    layout: str, many: int, reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = "direct" if reads == "uring" else "uring"
    if (missing := uring.uring_missing()) is not None:
        pytest.skip(missing)
    store = open_storage(
        tmp_path, capacity_bytes=64 * SIZE, layout=layout, engine=reads, write_engine=writes
    )
    rig, ways = Rig({Tier.NVME: store}, tmp_path), list[str]()
    for name, way in (("through_ring", "uring"), ("run", "direct"), ("share_out", "direct")):
        call = getattr(Transfers, name)
        monkeypatch.setattr(Transfers, name, _noted(ways, way, call))
    refs = [rig.copy(Tier.NVME, PAGE_BYTES) for _ in range(many)]
    for kind, engine in ((Write, writes), (Read, reads)):
        ways.clear()
        ops = [kind(ref, Cause.PREFILL) for ref in refs]
        dones = rig.mover.perform_all(ops)
        assert [leg.engine for done in dones for leg in done.legs] == [engine] * many
        assert set(ways) == {engine}
    store.close()


def _noted(ways: list[str], way: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **named: Any) -> Any:
        ways.append(way)
        return call(*args, **named)

    return noted


@pytest.mark.parametrize(("source", "target"), ROUTES)
def test_a_move_reads_one_tier_writes_another_and_leaves_the_source(
    rig: Rig, engine: str, source: Tier, target: Tier
) -> None:
    ref = rig.written(source)
    copied = rig.twin(ref, target)
    done = rig.move(ref, copied)
    assert done.ok
    reading, writing = done.legs
    assert whole(reading) == (source, OpKind.READ, ENGINE.get(source, engine))
    assert whole(writing) == (target, OpKind.WRITE, ENGINE.get(target, engine))
    for read, written in zip(reading.chunks, writing.chunks, strict=True):
        assert read.finished_ns <= written.finished_ns
    assert rig.read(ref).ok
    assert rig.read(copied).ok


@pytest.mark.parametrize("tier", Tier)
def test_the_wait_for_a_buffer_is_the_operations_and_not_the_devices(
    rig: Rig, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All buffers of an object but the first come 20 ms late."""
    late_ns, take, taken = 20_000_000, BufferPool.take, count()

    def taken_late(pool: BufferPool, tint: int = 0) -> Buffer:
        if next(taken) % len(CHUNKS):
            time.sleep(late_ns / 1e9)
        return take(pool, tint)

    monkeypatch.setattr(BufferPool, "take", taken_late)
    ref = rig.copy(tier)
    for op in (Write(ref, Cause.PREFILL), Read(ref, Cause.REUSE)):
        (leg,) = rig.perform(op).legs
        late = late_ns * (len(CHUNKS) - 1)
        assert leg.total_ns == leg.finished_ns - leg.started_ns
        assert leg.total_ns - leg.device_ns >= late
    target = next(each for each in Tier if each is not tier)
    reading, writing = rig.move(ref, rig.twin(ref, target)).legs
    assert reading.total_ns - reading.device_ns >= late
    assert reading.aside_ns <= writing.device_ns == writing.total_ns


@pytest.mark.parametrize("tier", Tier)
def test_a_delete_has_one_leg_without_bytes_and_leaves_nothing(rig: Rig, tier: Tier) -> None:
    ref = rig.written(tier)
    done = rig.perform(Delete(ref, Cause.EVICTION))
    (leg,) = done.legs
    engine = "unlink" if tier is Tier.NVME else "free"
    assert (leg.tier, leg.kind, leg.engine, leg.chunks) == (tier, OpKind.DELETE, engine, ())
    assert done.ok
    assert rig.files == []
    assert rig.read(ref).error == "vanished"


@pytest.mark.parametrize("nbytes", [PAGE_BYTES, BUFFER, BUFFER + PAGE_BYTES])
@pytest.mark.parametrize("verify", Verify)
def test_every_size_passes_every_way_of_checking(
    tmp_path: Path, engine: str, nbytes: int, verify: Verify
) -> None:
    rig = rig_of(tmp_path, engine, verify=verify)
    ref = rig.written(Tier.NVME, nbytes)
    up = rig.twin(ref, Tier.GPU)
    down = rig.twin(ref, Tier.NVME)
    assert rig.move(ref, up).ok
    assert rig.move(up, down).ok
    (leg,) = rig.read(down).legs
    assert sum(moved(leg)) == nbytes


def test_many_operations_in_a_call_are_each_as_one_alone(rig: Rig) -> None:
    """Of two kinds, of sizes below and above a buffer's, on two tiers, and one has vanished."""
    sizes = [PAGE_BYTES, SIZE, 3 * PAGE_BYTES, BUFFER, 7 * PAGE_BYTES]
    refs = [rig.copy(Tier.NVME, nbytes) for nbytes in sizes]
    in_memory = rig.copy(Tier.CPU)
    done = rig.mover.perform_all([Write(ref, Cause.PREFILL) for ref in [*refs, in_memory]])
    assert all(each.ok for each in done)
    assert rig.perform(Delete(refs[2], Cause.EVICTION)).ok
    loads: list[Op] = [Read(ref, Cause.REUSE) for ref in [*refs, in_memory]]
    done = rig.mover.perform_all([*loads, Delete(refs[0], Cause.EVICTION)])
    assert [each.op for each in done[:-1]] == loads
    assert [each.error for each in done] == [None, None, "vanished", None, None, None, None]
    for each in done:
        check_instants(each)
    assert [leg_bytes(each.legs[0]) for each in done[:-1]] == [
        *(0 if ref is refs[2] else ref.nbytes for ref in refs), SIZE,
    ]  # fmt: skip
    assert (rig.loads.available, rig.stored.available) == (POOL, POOL)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fsync", FSYNC)
def test_every_layout_moves_at_once_as_much_as_a_buffer_holds(
    tmp_path: Path, layout: str, fsync: str
) -> None:
    """Reads and writes apart, those of memory, deletes and what is larger than a buffer alone."""
    store = open_storage(
        tmp_path, capacity_bytes=64 * SIZE, layout=layout, engine="direct", fsync=fsync
    )
    rig = Rig(memories() | {Tier.NVME: store}, tmp_path)
    if isinstance(library(), str) or Capability.POSITIONAL not in store.capabilities:
        pytest.skip(f"{library()}, or {store.describe()['engine_note']}")
    half = BUFFER // 2
    small, large = [rig.copy(Tier.NVME, half) for _ in range(5)], rig.copy(Tier.NVME)
    writes: list[Op] = [Write(ref, Cause.PREFILL) for ref in [*small, large]]
    others: list[Op] = [Read(small[0], Cause.REUSE), Write(rig.copy(Tier.CPU), Cause.PREFILL)]
    together = [[0, 1], [2, 3], [4], [5], [6], [7], [8]]
    assert rig.mover.units([*writes, *others, *writes[:1]]) == together
    test_many_operations_in_a_call_are_each_as_one_alone(rig)


@pytest.mark.parametrize("kind", [OpKind.READ, OpKind.WRITE])
def test_steps_of_files_are_timed_apart_in_a_batch_as_alone(tmp_path: Path, kind: OpKind) -> None:
    store = open_storage(tmp_path, capacity_bytes=64 * SIZE, engine="direct", fsync="object")
    rig = Rig(memories() | {Tier.NVME: store}, tmp_path)
    refs = [rig.copy(Tier.NVME, BUFFER // 4) for _ in range(3)]
    done = rig.mover.perform_all([Write(ref, Cause.PREFILL) for ref in refs])
    if kind is OpKind.READ:
        done = rig.mover.perform_all([Read(ref, Cause.REUSE) for ref in refs])
    wanted = ["open", "close"] if kind is OpKind.READ else ["create", "fsync", "close", "rename"]
    for each in done:
        check_instants(each)
        (leg,) = each.legs
        assert [step.name for step in leg.steps] == wanted
        assert 0 < sum(step.duration_ns for step in leg.steps) < leg.device_ns
        assert leg.engine == "direct"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fsync", FSYNC)
def test_what_is_synced_when_is_the_same_as_in_python(
    tmp_path: Path, layout: str, fsync: str
) -> None:
    """Of writes and of moves, in files that are filled on the way; the reads find all of it."""
    steps: dict[bool, list[list[str]]] = {}
    for native in (False, True):
        (root := tmp_path / str(native)).mkdir()
        store = open_storage(
            root, capacity_bytes=64 * SIZE, layout=layout, engine="direct", fsync=fsync
        )
        rig = Rig(memories() | {Tier.NVME: store}, root, native=native)
        before, refs = descriptors(), [rig.copy(Tier.NVME, BUFFER // 8) for _ in range(19)]
        done = rig.mover.perform_all([Write(ref, Cause.PREFILL) for ref in refs])
        above = [rig.written(Tier.CPU, BUFFER // 8) for _ in range(7)]
        below = [rig.twin(ref, Tier.NVME) for ref in above]
        moves = [Move(*pair, Cause.DEMOTION) for pair in zip(above, below, strict=True)]
        done += rig.mover.perform_all(moves)
        for each in done:
            check_instants(each)
            assert each.ok
            assert sum(step.duration_ns for step in each.legs[-1].steps) < each.legs[-1].device_ns
        steps[native] = [sorted(step.name for step in each.legs[-1].steps) for each in done]
        refs += below
        assert all(d.ok for d in rig.mover.perform_all([Read(r, Cause.REUSE) for r in refs]))
        for ref in refs:
            assert rig.perform(Delete(ref, Cause.EVICTION)).ok
        assert len(descriptors() - before) <= (layout == "bucket")
        store.close()
    assert steps[True] == steps[False]
    synced = sum("fsync" in names for names in steps[True])
    assert synced == {"never": 0, "object": 26, "batch": 3}[fsync]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sync_of_a_batch_that_fails_fails_the_write_that_it_was_due_with(
    tmp_path: Path, layout: str
) -> None:
    store = open_storage(
        tmp_path, capacity_bytes=64 * SIZE, layout=layout, engine="direct", fsync="batch"
    )
    rig, before = Rig(memories() | {Tier.NVME: store}, tmp_path), descriptors()
    other = rig.copy(Tier.NVME, PAGE_BYTES)
    reading, writing = os.pipe()  # which no device has to keep
    os.close(writing)
    assert store.synced_with(other, (), reading) is None
    refs = [rig.copy(Tier.NVME, PAGE_BYTES) for _ in range(9)]
    done = rig.mover.perform_all([Write(ref, Cause.PREFILL) for ref in refs])
    assert [each.error for each in done] == [None] * 6 + ["einval"] + [None] * 2
    assert "fsync" not in [step.name for step in done[6].legs[0].steps]
    check_instants(done[6])
    loads = rig.mover.perform_all([Read(ref, Cause.REUSE) for ref in refs])
    assert [each.error for each in loads] == [None] * 6 + ["vanished"] + [None] * 2
    store.close()
    assert descriptors() <= before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fsync", FSYNC)
def test_once_aborted_nothing_of_a_batch_is_written_or_left_open(
    tmp_path: Path, layout: str, fsync: str
) -> None:
    store = open_storage(
        tmp_path, capacity_bytes=64 * SIZE, layout=layout, engine="direct", fsync=fsync
    )
    rig = Rig(memories() | {Tier.NVME: store}, tmp_path)
    stored = [rig.written(Tier.NVME, PAGE_BYTES) for _ in range(5)]
    before, files = descriptors(), rig.files
    rig.abort.set()
    writes: list[Op] = [Write(rig.copy(Tier.NVME, PAGE_BYTES), Cause.PREFILL) for _ in range(9)]
    done = rig.mover.perform_all([*writes, *[Read(ref, Cause.REUSE) for ref in stored]])
    assert {each.error for each in done} == {ABORTED}
    assert descriptors() <= before
    assert rig.files == files
    store.close()


@pytest.mark.parametrize("moves", [False, True])
def test_of_a_batch_that_never_ends_each_operation_has_ended_or_is_in_flight(
    tmp_path: Path, moves: bool
) -> None:
    """The open of a pipe without another end waits, as a device would that hangs."""
    rig = rig_of(tmp_path, "direct")
    refs = [rig.copy(Tier.NVME, PAGE_BYTES) for _ in range(6)]
    assert all(d.ok for d in rig.mover.perform_all([Write(ref, Cause.PREFILL) for ref in refs]))
    hung, gone = rig.files[2], refs.pop(4)
    assert rig.perform(Delete(gone, Cause.EVICTION)).ok
    hung.unlink()
    os.mkfifo(hung)
    ops: list[Op] = [Read(ref, Cause.REUSE) for ref in refs]
    ops.insert(4, Read(gone, Cause.REUSE))
    if moves:
        ops = [Move(op.source, rig.twin(op.source, Tier.CPU), Cause.PROMOTION) for op in ops]
    done: list[OpDone | OpsDone] = []
    caller = threading.Thread(target=lambda: done.extend(rig.mover.perform_many(ops)))
    caller.start()
    many = 1 if moves else 5
    wait_for(lambda: sum(len(list(each_of(p))) for p in rig.mover.cut_off()[0]) >= many)
    ended, in_flight = rig.mover.cut_off()
    os.close(os.open(hung, os.O_WRONLY))
    caller.join()
    outcomes = {id(one.op): one.error for part in ended for one in each_of(part)}
    failed = {id(ops[4]): "vanished"}
    if moves:  # what was read is not written yet
        assert outcomes == failed
        assert {cause for cause, _ in in_flight} == {Cause.PROMOTION}
    else:
        assert outcomes == {id(op): None for i, op in enumerate(ops) if i != 2} | failed
        assert [(cause, leg.kind) for cause, leg in in_flight] == [(Cause.REUSE, OpKind.READ)]
    for part in ended:
        for one in each_of(part):
            check_instants(one)
            assert one.error or sum(moved(one.legs[0])) == PAGE_BYTES
    assert rig.mover.cut_off() == ([], [])
    assert [each.error for each in in_order(ops, done)][2] is not None


def test_a_name_that_is_taken_fails_alone_and_stays_what_it_was(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "direct")
    refs = [rig.copy(Tier.NVME, PAGE_BYTES) for _ in range(3)]
    assert all(d.ok for d in rig.mover.perform_all([Write(r, Cause.PREFILL) for r in refs[::2]]))
    before, number = rig.files, refs[1].copy_id
    taken = tmp_path / f"{number % 256:02x}" / f"{number:016x}.tmp.kv"
    taken.write_text("of another")
    (done,) = rig.mover.perform_all([Write(refs[1], Cause.PREFILL)])
    assert done.error == "eexist"
    assert taken.read_text() == "of another"
    assert {*before, taken} == set(rig.files)


@pytest.mark.parametrize(("source", "target"), ROUTES)
def test_of_many_moves_in_a_call_each_is_as_one_alone(rig: Rig, source: Tier, target: Tier) -> None:
    """One that cannot be read fails on that side, and what it should have become is not there."""
    sizes = [BUFFER // 4, BUFFER // 4, BUFFER + PAGE_BYTES, BUFFER // 2]
    refs = [rig.written(source, nbytes) for nbytes in sizes]
    assert rig.perform(Delete(refs[1], Cause.EVICTION)).ok
    moves = [Move(ref, rig.twin(ref, target), Cause.DEMOTION) for ref in refs]
    done = rig.mover.perform_all(moves)
    assert (rig.loads.available, rig.stored.available) == (POOL, POOL)
    assert [each.op for each in done] == moves
    assert [(each.error, each.failed) for each in done] == [
        (None, None), ("vanished", OpKind.READ), (None, None), (None, None),
    ]  # fmt: skip
    for move, each, nbytes in zip(moves, done, sizes, strict=True):
        check_instants(each)
        reading, writing = each.legs
        assert (reading.tier, writing.tier) == (source, target)
        if each.ok:
            assert sum(moved(reading)) == sum(moved(writing)) == nbytes
            assert reading.total_ns >= reading.device_ns
            assert writing.total_ns == writing.device_ns
            assert rig.read(move.target).ok
        else:
            assert moved(reading) == moved(writing) == []
            assert rig.read(move.target).error == "vanished"
    stored = [move for move in moves if Tier.NVME in (source, target) and move is not moves[1]]
    assert len(rig.files) == len(stored)


def test_of_moves_none_of_which_can_be_read_nothing_is_written(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "direct")
    refs = [rig.written(Tier.NVME, PAGE_BYTES) for _ in range(2)]
    for path in rig.files:
        corrupt(path, 3)
    up = [Move(ref, rig.twin(ref, Tier.CPU), Cause.PROMOTION) for ref in refs]
    assert [each.error for each in rig.mover.perform_all(up)] == [MISMATCH] * 2
    assert {rig.read(move.target).error for move in up} == {"vanished"}


def test_of_many_moves_one_of_wrong_bytes_and_one_to_a_taken_name_fail_alone(
    tmp_path: Path,
) -> None:
    rig = rig_of(tmp_path, "direct")
    refs = [rig.written(Tier.NVME, PAGE_BYTES) for _ in range(3)]
    corrupt(next(path for path in rig.files if f"{refs[1].copy_id:016x}" in path.name), 3)
    up = [Move(ref, rig.twin(ref, Tier.CPU), Cause.PROMOTION) for ref in refs]
    done = rig.mover.perform_all(up)
    assert [each.error for each in done] == [None, MISMATCH, None]
    assert done[1].failed is OpKind.READ
    assert rig.read(up[1].target).error == "vanished"
    down = [Move(up[i].target, rig.twin(refs[i], Tier.NVME), Cause.DEMOTION) for i in (0, 2)]
    number = down[0].target.copy_id
    taken = tmp_path / f"{number % 256:02x}" / f"{number:016x}.tmp.kv"
    taken.parent.mkdir(exist_ok=True)
    taken.write_text("of another")
    done = rig.mover.perform_all(down)
    assert [(each.error, each.failed) for each in done] == [("eexist", OpKind.WRITE), (None, None)]
    assert taken.read_text() == "of another"
    assert rig.read(down[1].target).ok


def leg_bytes(leg: Leg) -> int:
    return sum(chunk.nbytes for chunk in leg.chunks)


def test_threads_share_few_buffers(rig: Rig) -> None:
    problems: list[object] = []

    def work() -> None:
        for _ in range(4):
            ref = rig.copy(Tier.NVME)
            there, back = rig.twin(ref, Tier.CPU), rig.twin(ref, Tier.NVME)
            ops: list[Op] = [
                Write(ref, Cause.PREFILL),
                Move(ref, there, Cause.PROMOTION),
                Delete(ref, Cause.EVICTION),
                Move(there, back, Cause.DEMOTION),
                Delete(there, Cause.EVICTION),
                Read(back, Cause.REUSE),
                Delete(back, Cause.EVICTION),
            ]
            problems.extend(done for op in ops if not (done := rig.mover.perform(op)).ok)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert rig.files == []
    assert (rig.loads.available, rig.stored.available) == (POOL, POOL)


# --- wrong data ----------------------------------------------------------------------------------

STAMP, BODY = BUFFER + 3, BUFFER + 2000  # both in the second of four buffers


def corrupt(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())


def test_a_corrupt_file_fails_the_read_and_its_bytes_count(rig: Rig, engine: str) -> None:
    ref = rig.written(Tier.NVME)
    corrupt(rig.files[0], STAMP)
    done = rig.read(ref)
    assert (done.error, done.failed) == (MISMATCH, OpKind.READ)
    (leg,) = done.legs
    assert (leg.engine, leg.nbytes, moved(leg)) == (engine, SIZE, [BUFFER, BUFFER])


def test_a_move_from_a_corrupt_file_leaves_no_target(rig: Rig) -> None:
    ref = rig.written(Tier.NVME)
    target = rig.twin(ref, Tier.CPU)
    corrupt(rig.files[0], STAMP)
    done = rig.move(ref, target)
    assert (done.error, done.failed) == (MISMATCH, OpKind.READ)
    reading, writing = done.legs
    assert (moved(reading), moved(writing)) == ([BUFFER, BUFFER], [BUFFER])
    assert rig.read(target).error == "vanished"
    assert len(rig.files) == 1


def test_a_move_from_corrupt_memory_leaves_no_file(tmp_path: Path, engine: str) -> None:
    def flip(store: Store) -> Store:
        return Faulty(store, lambda kind, ref: FLIP if kind is OpKind.READ else None)

    rig = rig_of(tmp_path, engine, wrap={Tier.CPU: flip})
    ref = rig.written(Tier.CPU)
    done = rig.move(ref, rig.twin(ref, Tier.NVME))
    assert (done.error, done.failed) == (MISMATCH, OpKind.READ)
    assert rig.files == []


@pytest.mark.parametrize(
    ("verify", "at", "found"),
    [
        (Verify.OFF, STAMP, False),
        (Verify.OFF, BODY, False),
        (Verify.STAMPS, STAMP, True),
        (Verify.STAMPS, BODY, False),
        (Verify.FULL, STAMP, True),
        (Verify.FULL, BODY, True),
    ],
)
def test_what_is_found_is_what_was_asked_for(
    tmp_path: Path, verify: Verify, at: int, found: bool
) -> None:
    rig = rig_of(tmp_path, "buffered", verify=verify)
    ref = rig.written(Tier.NVME)
    corrupt(rig.files[0], at)
    assert rig.read(ref).error == (MISMATCH if found else None)
    assert rig.move(ref, rig.twin(ref, Tier.CPU)).error == (MISMATCH if found else None)


def test_the_bytes_of_another_version_of_the_key_are_found(rig: Rig) -> None:
    ref = rig.written(Tier.NVME)
    assert rig.read(ref._replace(version=ref.version + 1)).error == MISMATCH
    assert rig.read(ref).ok


# --- storage that fails --------------------------------------------------------------------------


def test_a_file_deleted_under_us_has_vanished(rig: Rig) -> None:
    ref = rig.written(Tier.NVME)
    rig.files[0].unlink()
    done = rig.read(ref)
    assert (done.error, done.failed) == ("vanished", OpKind.READ)
    (leg,) = done.legs
    assert (leg.engine, leg.chunks) == ("none", ())
    target = rig.twin(ref, Tier.CPU)
    done = rig.move(ref, target)
    assert (done.error, done.failed) == ("vanished", OpKind.READ)
    assert rig.read(target).error == "vanished"
    done = rig.perform(Delete(ref, Cause.EVICTION))
    assert (done.error, done.failed) == ("vanished", OpKind.DELETE)


@pytest.mark.parametrize("left", [0, PAGE_BYTES, SIZE - 1])
def test_a_file_cut_short_is_truncated(rig: Rig, left: int) -> None:
    ref = rig.written(Tier.NVME)
    os.truncate(rig.files[0], left)
    done = rig.read(ref)
    assert (done.error, done.failed) == ("truncated", OpKind.READ)
    target = rig.twin(ref, Tier.GPU)
    done = rig.move(ref, target)
    assert (done.error, done.failed) == ("truncated", OpKind.READ)
    assert rig.read(target).error == "vanished"


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of twice the object's size."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "tmpfs", f"size={2 * SIZE}"):
        yield disk


@pytest.mark.root
@pytest.mark.parametrize("native", [True, False])
def test_a_full_disk_has_no_space_and_nothing_of_the_copy_is_left(
    small_disk: Path, engine: str, native: bool
) -> None:
    rig = rig_of(small_disk, engine, native=native)
    first, in_memory = rig.written(Tier.NVME), rig.written(Tier.CPU, 2 * SIZE)
    files = rig.files
    done = rig.perform(Write(rig.copy(Tier.NVME, 2 * SIZE), Cause.PREFILL))
    assert (done.error, done.failed) == ("no-space", OpKind.WRITE)
    assert sum(moved(done.legs[0])) == (0 if engine == "mmap" else SIZE)  # all there was room for
    assert rig.files == files
    done = rig.move(in_memory, rig.twin(in_memory, Tier.NVME))
    assert (done.error, done.failed) == ("no-space", OpKind.WRITE)
    assert rig.files == files
    assert rig.read(first).ok
    assert rig.read(in_memory).ok
    assert rig.perform(Delete(first, Cause.EVICTION)).ok
    assert rig.move(in_memory, rig.twin(in_memory, Tier.NVME)).ok
    rig.stores[Tier.NVME].close()  # which holds the directory that is unmounted


@pytest.mark.parametrize("tier", Tier)
def test_a_failed_commit_leaves_nothing_whatever_the_tier(tmp_path: Path, tier: Tier) -> None:
    failing = threading.Event()

    def fault(kind: OpKind, ref: CopyRef) -> str | None:
        return "io-error" if kind is OpKind.WRITE and failing.is_set() else None

    rig = rig_of(tmp_path, "buffered", wrap={tier: lambda store: Faulty(store, fault)})
    source = rig.written(Tier.CPU if tier is not Tier.CPU else Tier.GPU)
    failing.set()
    ref, target = rig.copy(tier), rig.twin(source, tier)
    done = rig.perform(Write(ref, Cause.PREFILL))
    assert (done.error, done.failed) == ("io-error", OpKind.WRITE)
    assert moved(done.legs[0]) == CHUNKS
    done = rig.move(source, target)
    assert (done.error, done.failed) == ("io-error", OpKind.WRITE)
    assert [moved(leg) for leg in done.legs] == [CHUNKS, CHUNKS]
    assert rig.read(ref).error == rig.read(target).error == "vanished"
    assert rig.read(source).ok
    assert rig.files == []


@pytest.mark.parametrize("kind", [OpKind.READ, OpKind.DELETE])
def test_a_failing_read_or_delete_leaves_the_copy(tmp_path: Path, kind: OpKind) -> None:
    failing = threading.Event()

    def fault(asked: OpKind, ref: CopyRef) -> str | None:
        return "io-error" if asked is kind and failing.is_set() else None

    rig = rig_of(tmp_path, "buffered", wrap={Tier.NVME: lambda store: Faulty(store, fault)})
    ref = rig.written(Tier.NVME)
    failing.set()
    op = Read(ref, Cause.REUSE) if kind is OpKind.READ else Delete(ref, Cause.EVICTION)
    done = rig.perform(op)
    assert (done.error, done.failed) == ("io-error", kind)
    failing.clear()
    assert rig.read(ref).ok


# --- the run ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", Tier)
def test_after_the_end_of_the_run_an_operation_is_aborted_at_its_next_buffer(
    rig: Rig, tier: Tier
) -> None:
    ref = rig.written(tier)
    target = rig.twin(ref, Tier.CPU if tier is not Tier.CPU else Tier.NVME)
    files = rig.files
    rig.abort.set()
    new = rig.copy(tier)
    for op in (
        Read(ref, Cause.REUSE),
        Write(new, Cause.PREFILL),
        Move(ref, target, Cause.DEMOTION),
    ):
        done = rig.perform(op)
        assert done.error == ABORTED
        assert [moved(leg) for leg in done.legs] == [[]] * len(done.legs)
    assert rig.files == files
    rig.abort.clear()
    assert rig.read(ref).ok
    assert rig.read(new).error == rig.read(target).error == "vanished"


# --- ends that go wrong --------------------------------------------------------------------------


class BadEnds(Around):
    """A store whose sinks raise `on_write` at the last buffer, and whose taps raise `on_close`."""

    def __init__(
        self, store: Store, *, on_write: Exception | None = None, on_close: Exception | None = None
    ) -> None:
        super().__init__(store)
        self._on_write = on_write
        self._on_close = on_close

    def create(self, ref: CopyRef) -> Sink:
        return _BadSink(self.inner.create(ref), self._on_write)

    def open(self, ref: CopyRef) -> Tap:
        return _BadTap(self.inner.open(ref), self._on_close)


class _BadSink(SinkAround):
    def __init__(self, sink: Sink, error: Exception | None) -> None:
        super().__init__(sink)
        self._error = error

    def write(self, offset: int, data: memoryview) -> None:
        if self._error is not None and len(data) < BUFFER:
            raise self._error
        super().write(offset, data)


class _BadTap(TapAround):
    def __init__(self, tap: Tap, error: Exception | None) -> None:
        super().__init__(tap)
        self._error = error

    def close(self) -> None:
        super().close()
        if self._error is not None:
            raise self._error


def test_a_move_whose_source_fails_when_it_is_closed_leaves_no_target(
    tmp_path: Path, engine: str
) -> None:
    error = StoreError("io-error")
    rig = rig_of(tmp_path, engine, wrap={Tier.CPU: lambda store: BadEnds(store, on_close=error)})
    ref = rig.written(Tier.CPU)
    done = rig.move(ref, rig.twin(ref, Tier.NVME))
    assert (done.error, done.failed) == ("io-error", OpKind.READ)
    assert rig.files == []


def test_a_defect_of_the_program_is_raised_and_leaves_neither_files_nor_buffers_behind(
    tmp_path: Path, engine: str
) -> None:
    error = RuntimeError("a defect")
    rig = rig_of(tmp_path, engine, wrap={Tier.NVME: lambda store: BadEnds(store, on_write=error)})
    before = len(os.listdir("/proc/self/fd"))
    source = rig.written(Tier.CPU)
    for op in (
        Write(rig.copy(Tier.NVME), Cause.PREFILL),
        Move(source, rig.twin(source, Tier.NVME), Cause.DEMOTION),
    ):
        with pytest.raises(RuntimeError, match="a defect"):
            rig.mover.perform(op)
        assert rig.files == []
        assert (rig.loads.available, rig.stored.available) == (POOL, POOL)
        assert len(os.listdir("/proc/self/fd")) == before


# --- stores that keep nothing --------------------------------------------------------------------


@pytest.mark.parametrize("verify", Verify)
def test_null_stores_move_everything_take_no_buffer_and_fail_no_check(
    tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig({tier: NullStore(tier) for tier in Tier}, tmp_path, verify)
    held = [pool.take() for pool in (rig.loads, rig.stored) for _ in range(POOL)]
    monkeypatch.setattr(BufferPool, "take", None)  # else it would wait for ever
    ref = rig.copy(Tier.NVME)
    for op in (
        Write(ref, Cause.PREFILL),
        Read(ref, Cause.REUSE),
        Move(ref, rig.twin(ref, Tier.CPU), Cause.PROMOTION),
    ):
        done = rig.mover.perform(op)
        assert done.ok
        assert [(leg.engine, moved(leg)) for leg in done.legs] == [("null", CHUNKS)] * len(
            done.legs
        )
    assert len(held) == 2 * POOL


def test_what_moves_from_a_store_that_keeps_nothing_is_right_where_it_arrives(
    tmp_path: Path,
) -> None:
    rig = rig_of(tmp_path, "buffered", wrap={Tier.GPU: lambda store: NullStore(Tier.GPU)})
    ref = rig.written(Tier.GPU)
    down = rig.twin(ref, Tier.NVME)
    assert rig.move(ref, down).ok
    assert rig.read(down).ok
    done = rig.move(down, rig.twin(down, Tier.GPU))
    assert done.ok
    assert [moved(leg) for leg in done.legs] == [CHUNKS, CHUNKS]
    corrupt(rig.files[0], STAMP)
    assert rig.move(down, rig.twin(down, Tier.GPU)).error == MISMATCH


# --- what else a leg carries ---------------------------------------------------------------------


def test_a_leg_names_its_operations_on_metadata(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "direct")
    ref = rig.copy(Tier.NVME)
    (leg,) = rig.perform(Write(ref, Cause.PREFILL)).legs
    assert [step.name for step in leg.steps] == ["create", "close", "rename"]
    assert 0 < sum(step.duration_ns for step in leg.steps) <= leg.device_ns
    (leg,) = rig.read(ref).legs
    assert [step.name for step in leg.steps] == ["open", "close"]


def test_every_so_many_loads_are_looked_up_in_the_page_cache(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "buffered")
    sampler = PageCacheSampler(every=2)
    mover = Mover(
        rig.stores, Payload(Seed(3).child("payload"), BUFFER), rig.loads, rig.stored,
        MonotonicClock(), Verify.STAMPS, rig.abort, page_cache=sampler,
    )  # fmt: skip
    ref = rig.written(Tier.NVME)
    os.sync()
    for _ in range(4):
        assert mover.perform(Read(ref, Cause.REUSE)).ok
    found = sampler.section()
    if not found["pages"]:
        pytest.skip("the kernel does not tell what is in the page cache")
    assert found["sampled_objects"] == 2
    assert found["pages"] == 2 * SIZE // PAGE_BYTES
    assert found["resident_before"] == 0, "the engine drops an object's pages before it reads"
    assert found["resident_after"] == found["pages"]
    assert found["descriptors"] == {"direct": 0, "buffered": 2}


def test_a_rehearsal_stamps_and_checks_but_moves_nothing(tmp_path: Path) -> None:
    stores: dict[Tier, Store] = {Tier.NVME: NullStore(Tier.NVME)}
    loads, stored = BufferPool(2, BUFFER), BufferPool(2, BUFFER)
    mover = Mover(
        stores, Payload(Seed(3), BUFFER), loads, stored, MonotonicClock(), Verify.FULL,
        threading.Event(), rehearse=True,
    )  # fmt: skip
    ref = CopyRef(1, content_key(1), Tier.NVME, SIZE, version=1)
    for op in (Write(ref, Cause.PREFILL), Read(ref, Cause.REUSE)):
        done = mover.perform(op)
        assert done.ok
        assert moved(done.legs[0]) == CHUNKS
    assert (loads.available, stored.available) == (2, 2)
    assert any(loads.take(tint).filled_pages for tint in (0, 1)), "loads were not rehearsed"
