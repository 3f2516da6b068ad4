"""Transfers outside the interpreter: what they leave and tell, one after the other and many at a
time, and that each way to fail is a value."""

import ctypes
import errno
import gc
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, PAGE_BYTES, SECTOR_BYTES
from kv_cache.tiers import native
from kv_cache.tiers.buffers import Buffer, BufferPool, aligned_bytes
from kv_cache.tiers.native import (
    ABORTED,
    LEFT_OUT,
    SHORT,
    WRONG,
    AbortFlag,
    Does,
    Moved,
    Piece,
    PieceTable,
)
from kv_cache.tiers.native.building import build, compiler
from kv_cache.tiers.payload import Payload
from tests.cli import wait_for

BUFFER = 256 * KIB
DEPTH = 8
NO_FD = 1 << 20  # beyond what may be open
PAYLOAD = Payload(Seed(7).child("payload"), BUFFER)
STAMPED, FULL = Does.STAMPED, Does.STAMPED | Does.NOISE

RING, HELD = "through a ring", "through a ring that holds memory"

pytestmark = pytest.mark.skipif(
    isinstance(native.library(), str), reason=f"the native library: {native.library()}"
)


class Rig:
    """A file, a buffer to write from and one to read into, and objects that lie one after the
    other."""

    def __init__(self, path: Path, way: str = "one by one") -> None:
        library = native.library()
        assert not isinstance(library, str)
        self.pool = BufferPool(2, BUFFER)
        self.written, self.read = self.pool.take(), self.pool.take()
        self.transfers, self.way = native.Transfers(library, PAYLOAD.noise, depth=DEPTH), way
        if way == HELD:  # what is written, and the beginning of what is read
            self.transfers.hold(self.pool.memory[: BUFFER + 6 * PAGE_BYTES])
        self.abort = AbortFlag()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        PAYLOAD.fill(self.written, BUFFER // PAGE_BYTES, tint=1)

    def pieces(self, sizes: Sequence[int], does: Does, version: int = 1) -> list[Piece]:
        """Each an object of so many pages."""
        buffer = self.written if does & Does.WRITE else self.read
        at, pieces = 0, []
        for number, pages in enumerate(sizes):
            ref, nbytes = ref_of(number, pages, version), pages * PAGE_BYTES
            bases = PAYLOAD.bases(ref, 0)
            pieces.append(Piece(number, does, self.fd, at, nbytes, buffer.address + at, *bases))
            at += nbytes
        return pieces

    def run(self, pieces: Sequence[Piece]) -> list[Moved]:
        table = PieceTable(pieces)
        if self.way in (RING, HELD):
            return self.transfers.run_at_once(table, self.abort, DEPTH)
        if self.way == "by a crew":
            self.transfers.share_out(table, self.abort, apart=0, slots=table.count)
            return table.moved()
        return self.transfers.run(table, self.abort)

    def store(self, sizes: Sequence[int]) -> None:
        assert not any(m.error for m in self.run(self.pieces(sizes, Does.WRITE | STAMPED)))

    def flip(self, at: int) -> None:
        plain = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR)
        page = bytearray(os.pread(plain, 1, at))
        page[0] ^= 0x10
        os.pwrite(plain, page, at)
        os.close(plain)


def ref_of(number: int, pages: int, version: int = 1) -> CopyRef:
    return CopyRef(number, content_key(number), Tier.NVME, pages * PAGE_BYTES, version)


@pytest.fixture(name="rig", params=["one by one", "by a crew", RING, HELD])
def _rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "f", request.param)
    if rig.way in (RING, HELD) and rig.transfers.ring_refusal() is not None:
        pytest.skip("io_uring is refused here")
    yield rig
    os.close(rig.fd)


def test_what_is_written_is_what_python_stamps_and_is_found_right_by_both(rig: Rig) -> None:
    sizes = [3, 1, 16, 5]
    rig.store(sizes)
    for does in (Does.READ, STAMPED, FULL):
        results = rig.run(rig.pieces(sizes, does))
        assert [(m.error, m.nbytes) for m in results] == [(0, n * PAGE_BYTES) for n in sizes]
    assert np.array_equal(rig.read.array[: 25 * PAGE_BYTES], rig.written.array[: 25 * PAGE_BYTES])
    at = 0
    for number, pages in enumerate(sizes):
        rig.read.array[: pages * PAGE_BYTES] = rig.written.array[at : at + pages * PAGE_BYTES]
        ref = ref_of(number, pages)
        assert PAYLOAD.matches(rig.read, ref, 0, pages * PAGE_BYTES, full=True)
        at += pages * PAGE_BYTES


def test_instants_are_those_of_the_calls_and_verifying_is_the_hosts(rig: Rig) -> None:
    sizes = [4] * 12
    rig.store(sizes)
    results = rig.run(rig.pieces(sizes, FULL))
    assert all(0 < m.began_ns < m.ended_ns and m.host_ns > 0 for m in results)
    if rig.way != "by a crew":  # whose threads begin when the system lets them
        assert results[0].began_ns <= results[-1].began_ns


@pytest.mark.parametrize(
    ("byte", "does", "found"),
    [(3, STAMPED, True), (PAGE_BYTES - 1, STAMPED, True), (100, STAMPED, False), (100, FULL, True)],
)
def test_a_flipped_bit_is_found_where_it_is_looked_for(
    rig: Rig, byte: int, does: Does, found: bool
) -> None:
    rig.store([2, 2, 2])
    rig.flip(2 * PAGE_BYTES + byte)
    errors = [m.error for m in rig.run(rig.pieces([2, 2, 2], does))]
    assert errors == [0, WRONG if found else 0, 0]


def sector_pieces(rig: Rig, sizes: Sequence[int], does: Does) -> list[Piece]:
    """Each an object of so many sectors, on pages of its own."""
    buffer = rig.written if does & Does.WRITE else rig.read
    pieces = []
    for number, count in enumerate(sizes):
        nbytes, at = count * SECTOR_BYTES, number * PAGE_BYTES
        copy = CopyRef(number, content_key(number), Tier.NVME, nbytes, 1)
        stamps = PAYLOAD.bases(copy, 0)
        what = does | Does.SECTORS
        pieces.append(Piece(number, what, rig.fd, at, nbytes, buffer.address + at, *stamps))
    return pieces


def test_sectors_are_stamped_as_python_does_and_found_right_by_both(rig: Rig) -> None:
    sizes = [1, 3, 7]
    if rig.run(sector_pieces(rig, sizes, Does.WRITE | STAMPED))[0].error == errno.EINVAL:
        pytest.skip("the file system of the temporary directory has larger blocks")
    for does in (STAMPED, FULL):
        results = rig.run(sector_pieces(rig, sizes, does))
        assert [(m.error, m.nbytes) for m in results] == [(0, n * SECTOR_BYTES) for n in sizes]
    for number, count in enumerate(sizes):
        copy = CopyRef(number, content_key(number), Tier.NVME, count * SECTOR_BYTES, 1)
        begin, nbytes = number * PAGE_BYTES, copy.nbytes
        made = Buffer(aligned_bytes(BUFFER))
        python = np.frombuffer(PAYLOAD.stamp(made, copy, 0, nbytes), np.uint64).reshape(-1, 64)
        native_words = rig.read.array[begin : begin + nbytes].view(np.uint64).reshape(-1, 64)
        assert np.array_equal(python[:, [0, 1, 63]], native_words[:, [0, 1, 63]])
        alone = Buffer(aligned_bytes(PAGE_BYTES))
        alone.array[:nbytes] = rig.read.array[begin : begin + nbytes]
        assert PAYLOAD.matches(alone, copy, 0, nbytes, full=True)


@pytest.mark.parametrize("sector", range(7))
@pytest.mark.parametrize(("byte", "found"), [(0, STAMPED), (511, STAMPED), (100, FULL)])
def test_a_flipped_bit_in_any_sector_is_found(
    tmp_path: Path, sector: int, byte: int, found: Does
) -> None:
    rig = Rig(tmp_path / "f")
    if rig.run(sector_pieces(rig, [7, 7], Does.WRITE | STAMPED))[0].error == errno.EINVAL:
        pytest.skip("the file system of the temporary directory has larger blocks")
    rig.flip(PAGE_BYTES + sector * SECTOR_BYTES + byte)
    for does in (STAMPED, FULL):
        wrong = WRONG if found in (does, STAMPED) else 0
        assert [m.error for m in rig.run(sector_pieces(rig, [7, 7], does))] == [0, wrong]
    os.close(rig.fd)


def test_tables_of_many_lengths_leave_no_garbage() -> None:
    """What cycles of objects there are, all threads of a run stand to look for."""
    gc.collect()
    for count in range(100, 140):
        assert PieceTable([Piece(0, Does.READ, NO_FD, 0, 0, 0, 0, 0, 0)] * count).address
    assert gc.collect() == 0


def test_a_table_of_numpy_is_worked_off_as_pieces_are(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f")
    rig.store([2, 1])
    rows = np.array(
        [(*piece[:6], piece[6:], *5 * [0]) for piece in rig.pieces([2, 1], FULL)], native.ROW
    )
    rig.transfers.work_off(rows, rig.abort)
    assert rows["error"].tolist() == [0, 0]
    assert rows["moved"].tolist() == [2 * PAGE_BYTES, PAGE_BYTES]
    assert (rows["began_ns"] < rows["ended_ns"]).all()
    os.close(rig.fd)


@pytest.mark.parametrize("does", [Does.WRITE | STAMPED, Does.READ, STAMPED, FULL])
def test_a_rehearsal_calls_nothing_and_reads_find_what_they_look_for(rig: Rig, does: Does) -> None:
    sizes = [2, 3, 4]
    nowhere = [p._replace(fd=-1) for p in rig.pieces(sizes, does | Does.NOWHERE)]
    for byte in (0, 0x5A):
        rig.read.array[:] = byte
        results = rig.run(nowhere)
        assert [(m.error, m.nbytes) for m in results] == [(0, n * PAGE_BYTES) for n in sizes]
        assert all((m.host_ns > 0) is (does is not Does.READ) for m in results)


def test_another_version_and_another_place_are_wrong(rig: Rig) -> None:
    rig.store([2, 2])
    assert [m.error for m in rig.run(rig.pieces([2, 2], STAMPED, version=2))] == [WRONG, WRONG]
    swapped = [p._replace(offset=2 * PAGE_BYTES - p.offset) for p in rig.pieces([2, 2], STAMPED)]
    assert [m.error for m in rig.run(swapped)] == [WRONG, WRONG]


def test_a_file_that_ends_early_and_a_bad_descriptor_are_errors_of_their_objects(rig: Rig) -> None:
    rig.store([2, 2])
    os.ftruncate(rig.fd, 3 * PAGE_BYTES)
    pieces = rig.pieces([2, 2, 2], Does.READ)
    pieces.append(pieces[0]._replace(object=9, fd=NO_FD))
    results = rig.run(pieces)
    assert [m.error for m in results] == [0, SHORT, SHORT, errno.EBADF]
    assert [m.nbytes for m in results] == [2 * PAGE_BYTES, PAGE_BYTES, 0, 0]


@pytest.mark.parametrize("way", ["one by one", "by a crew"])
def test_the_rest_of_an_object_that_failed_is_left_out_and_the_next_one_is_not(
    tmp_path: Path, way: str
) -> None:
    rig = Rig(tmp_path / "f", way)
    rig.store([1, 1, 1, 1])
    first, *others = rig.pieces([1, 1, 1, 1], Does.READ)
    pieces = [first._replace(fd=NO_FD), others[0]._replace(object=0), *others[1:]]
    results = rig.run(pieces)
    assert [m.error for m in results] == [errno.EBADF, LEFT_OUT, 0, 0]
    assert results[1].began_ns == 0
    os.close(rig.fd)


class Files:
    """Objects of a file each, below a directory that is open."""

    def __init__(self, rig: Rig, root: Path) -> None:
        self.rig, self.directory = rig, os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self._kept: list[bytes] = []  # the library is given the addresses alone

    def _step(self, number: int, does: Does, name: str, *rest: int) -> Piece:
        self._kept.append(name.encode())
        offset, nbytes, to, *_ = [*rest, 0, 0, 0]
        at = native.address_of(self._kept[-1])
        return Piece(number, does, self.directory, offset, nbytes, at, to, 0, 0)

    def of(self, number: int, piece: Piece, name: str, *, to: str | None = None) -> list[Piece]:
        """Write the piece to a new file, sync, close and rename it; or read it from an old one."""
        new = os.O_CREAT | os.O_EXCL | os.O_WRONLY if to else os.O_RDONLY
        rows = [
            self._step(number, Does.OPEN, name, new | os.O_DIRECT, 0o600),
            piece._replace(object=number, fd=-1, offset=0),
        ]
        if to is not None:
            self._kept.append(to.encode())
            renamed = native.address_of(self._kept[-1])
            rows.append(self._step(number, Does.SYNC, name))
            rows.append(self._step(number, Does.CLOSE, name))
            return [*rows, self._step(number, Does.RENAME, name, 0, 0, renamed)]
        return [*rows, self._step(number, Does.CLOSE, name)]


@pytest.mark.parametrize("way", ["one by one", "by a crew"])
def test_files_are_opened_and_closed_by_rows_and_closed_after_every_failure(
    tmp_path: Path, way: str
) -> None:
    rig = Rig(tmp_path / "f", way)
    files, sizes = Files(rig, tmp_path), [3, 2, 1, 4]
    written = rig.pieces(sizes, Does.WRITE | STAMPED)
    (tmp_path / "2.tmp").write_text("of another")
    stored = [files.of(i, p, f"{i}.tmp", to=f"{i}") for i, p in enumerate(written)]
    open_before = len(os.listdir("/proc/self/fd"))
    done = rig.run([row for rows in stored for row in rows])
    failed = [errno.EEXIST, LEFT_OUT, LEFT_OUT, LEFT_OUT, LEFT_OUT]
    assert [m.error for m in done] == [0] * 10 + failed + [0] * 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2.tmp", "3", "f"]
    assert (tmp_path / "0").read_bytes() == bytes(rig.written.array[: 3 * PAGE_BYTES])
    steps = [m for m in done if m.began_ns]
    assert all(m.began_ns <= m.ended_ns for m in steps)

    os.truncate(tmp_path / "0", PAGE_BYTES)
    swapped = [p._replace(base0=p.base0 ^ (i == 3)) for i, p in enumerate(rig.pieces(sizes, FULL))]
    loaded = [files.of(i, p, f"{i}") for i, p in enumerate(swapped)]
    done = rig.run([row for rows in loaded for row in rows])
    wanted = [0, SHORT, 0, 0, 0, 0, errno.ENOENT, LEFT_OUT, LEFT_OUT, 0, WRONG, 0]
    assert [m.error for m in done] == wanted

    rig.abort.set()
    assert {m.error for m in rig.run(loaded[0])} == {ABORTED}
    assert len(os.listdir("/proc/self/fd")) == open_before
    os.close(files.directory)


def test_a_file_that_stays_open_is_the_callers_also_after_a_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f")
    files = Files(rig, tmp_path)
    written = rig.pieces([3, 2], Does.WRITE | STAMPED)
    pieces = [*files.of(0, written[0], "0.tmp", to="0"), *files.of(1, written[1], "1.tmp", to="1")]
    pieces = [p._replace(does=p.does | Does.KEEP) if p.does & Does.CLOSE else p for p in pieces]
    pieces[6] = pieces[6]._replace(nbytes=PAGE_BYTES // 3)  # which direct writes refuse
    done = rig.run(pieces)
    failed = [0, errno.EINVAL, LEFT_OUT, 0, LEFT_OUT]
    assert [m.error for m in done] == [0] * 5 + failed
    kept = [done[3].nbytes, done[8].nbytes]
    assert [os.fstat(fd).st_size for fd in kept] == [3 * PAGE_BYTES, 0]
    for fd in kept:
        os.close(fd)
    os.close(files.directory)


def test_files_that_are_open_are_synced_when_all_of_their_object_is_written(rig: Rig) -> None:
    reading, writing = os.pipe()  # which cannot be synced
    pieces = []
    for piece in rig.pieces([2, 3, 1, 4], Does.WRITE | STAMPED):
        fd = {1: reading, 2: NO_FD}.get(piece.object, rig.fd)
        sync = Piece(piece.object, Does.SYNC, fd, 0, 0, 0, 0, 0, 0)
        pieces += [piece._replace(fd=NO_FD) if piece.object == 2 else piece, sync]
    done = rig.run(pieces)
    errors = [0, 0, 0, errno.EINVAL, errno.EBADF, LEFT_OUT, 0, 0]
    assert [m.error for m in done] == errors
    for wrote, synced in ((0, 1), (6, 7)):
        assert 0 < done[wrote].ended_ns <= done[synced].began_ns < done[synced].ended_ns
    nowhere = [p._replace(fd=NO_FD, does=p.does | Does.NOWHERE) for p in pieces]
    assert not any(m.error for m in rig.run(nowhere))
    rig.abort.set()
    assert {m.error for m in rig.run(pieces)} == {ABORTED}
    for fd in (reading, writing):
        os.close(fd)


@pytest.mark.parametrize(
    ("began_ns", "ended_ns", "error", "over"),
    [(0, 0, 0, False), (5, 0, 0, False), (5, 9, 0, True), (5, 0, errno.EIO, False),
     (5, 9, errno.EIO, True), (0, 0, LEFT_OUT, True)],
)  # fmt: skip
def test_a_row_is_over_when_it_has_ended_or_was_left_out(
    began_ns: int, ended_ns: int, error: int, over: bool
) -> None:
    """An error is noted before the end is, by a thread that others look at."""
    table = PieceTable([Piece(0, Does.READ, NO_FD, 0, 1, 0, 0, 0, 0)])
    row = np.frombuffer(table.rows, native.ROW)
    row["began_ns"], row["ended_ns"], row["error"] = began_ns, ended_ns, error
    assert table.are_over(0, 1) is over
    assert table.goes_on_since_ns(0, 1) == (0 if over else began_ns)


def test_once_aborted_nothing_is_begun(rig: Rig) -> None:
    rig.store([1, 1])
    rig.abort.set()
    assert rig.abort.is_set()
    results = rig.run(rig.pieces([1, 1], Does.READ))
    assert [(m.error, m.began_ns) for m in results] == [(ABORTED, 0)] * 2
    rig.abort.clear()
    assert not any(m.error for m in rig.run(rig.pieces([1, 1], Does.READ)))


def test_more_pieces_than_may_be_in_flight_are_all_moved(rig: Rig) -> None:
    rig.store([1])
    pieces = rig.pieces([1], Does.READ) * (3 * DEPTH)
    results = rig.run([p._replace(object=i) for i, p in enumerate(pieces)])
    assert [m.error for m in results] == [0] * len(pieces)


def test_the_kernel_holds_the_memory_of_a_ring(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "f", HELD)
    if rig.transfers.ring_refusal() is not None:
        pytest.skip("io_uring is refused here")
    assert rig.transfers.not_held is None
    of_ring = ctypes.c_int.from_address(rig.transfers._ring().handle.value or 0).value
    facts = Path(f"/proc/self/fdinfo/{of_ring}").read_text()
    assert re.search(r"^UserBufs:\s+1$", facts, re.MULTILINE), facts


_MAY_LOCK_LITTLE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
from pathlib import Path
from tests.contract.test_native import HELD, STAMPED, Rig
rig = Rig(Path(sys.argv[1]), HELD)
if rig.transfers.ring_refusal() is None:
    rig.store([3, 1])
    assert [m.error for m in rig.run(rig.pieces([3, 1], STAMPED))] == [0, 0]
    print(rig.transfers.not_held)
else:
    print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="drops a capability")
def test_where_memory_may_not_be_locked_a_ring_goes_without_and_says_so(tmp_path: Path) -> None:
    without = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    ran = subprocess.run(
        [*without, sys.executable, "-c", _MAY_LOCK_LITTLE, str(tmp_path / "f")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    if ran.stdout.strip() == "refused":
        pytest.skip("io_uring is refused here")
    assert ran.stdout.strip() == os.strerror(errno.ENOMEM)


def test_a_ring_that_fails_is_used_no_more(tmp_path: Path) -> None:
    """What is left in its queue would go with the next call."""
    rig = Rig(tmp_path / "f", RING)
    if rig.transfers.ring_refusal() is not None:
        pytest.skip("io_uring is refused here")
    rig.store([1, 2])
    of_ring = ctypes.c_int.from_address(rig.transfers._ring().handle.value or 0).value
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, of_ring)
    with pytest.raises(OSError, match="not supported"):
        rig.run(rig.pieces([1, 2], STAMPED))
    assert [m.error for m in rig.run(rig.pieces([1, 2], STAMPED))] == [0, 0]
    os.close(other)
    os.close(rig.fd)


def test_a_crew_of_several_callers_moves_what_each_asked_for(tmp_path: Path) -> None:
    gc.collect()  # crews of other tests
    assert crew_threads() == 0
    rigs = [Rig(tmp_path / f"{i}", "by a crew") for i in range(4)]
    for rig in rigs:
        rig.transfers = rigs[0].transfers
        rig.store([2] * 30)
    asked = [(rig, rig.pieces([2] * 30, STAMPED, version=1 + i % 2)) for i, rig in enumerate(rigs)]
    with ThreadPoolExecutor(len(rigs)) as callers:
        for _ in range(50):
            for i, moved in enumerate(callers.map(lambda one: one[0].run(one[1]), asked)):
                assert [m.error for m in moved] == [WRONG if i % 2 else 0] * 30
    assert crew_threads() == DEPTH - 1
    del rig, rigs, asked, callers
    gc.collect()
    wait_for(lambda: crew_threads() == 0)  # the kernel ends a thread a little after its join


def crew_threads() -> int:
    found = 0
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found += Path("/proc/self/task", task, "comm").read_text() == "kv-transfer\n"
    return found


@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=8), wrong=st.integers(0, 7))
def test_of_any_objects_just_the_one_that_was_changed_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], wrong: int
) -> None:
    rig = Rig(tmp_path_factory.mktemp("native") / "f")
    rig.store(sizes)
    wrong %= len(sizes)
    rig.flip(sum(sizes[:wrong]) * PAGE_BYTES + 5000 % (sizes[wrong] * PAGE_BYTES))
    errors = [m.error for m in rig.run(rig.pieces(sizes, FULL))]
    assert errors == [WRONG if i == wrong else 0 for i in range(len(sizes))]
    os.close(rig.fd)


def test_without_a_compiler_one_sentence_says_so_and_runs_go_on_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_cache.tiers.native.building.SOURCE", tmp_path / "transfers.c")
    (tmp_path / "transfers.c").write_text("int none;\n")
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    if compiler() is not None:
        pytest.skip(f"this Python names its compiler by its path: {compiler()}")
    assert build().startswith("native transfers: there is no C compiler")
    assert not list(tmp_path.glob("*.so"))


def test_a_source_that_does_not_compile_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler() is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr("kv_cache.tiers.native.building.SOURCE", tmp_path / "transfers.c")
    (tmp_path / "transfers.c").write_text("this is no C\n")
    assert "failed:" in build()
    assert [path.name for path in tmp_path.iterdir()] == ["transfers.c"]
    (tmp_path / "transfers.c").write_text("int some;\n")
    assert f"-{platform.machine()}.so made with" in build()
    assert build() == ""
    assert len(list(tmp_path.glob("transfers-*.so"))) == 1


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("way", ["alone", "crew", "ring"])
def test_sanitizers_find_nothing_in_the_native_code(
    tmp_path: Path, sanitizer: str, way: str
) -> None:
    cc = compiler()
    if cc is None:
        pytest.skip("there is no C compiler")
    driver, binary = Path(__file__).with_name("native_driver.c"), tmp_path / "driver"
    flags = ["-std=gnu11", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}"]
    made = subprocess.run([*cc, *flags, str(driver), "-o", str(binary)], capture_output=True)
    if made.returncode:
        pytest.skip(f"this compiler has no such sanitizer: {made.stderr.decode()[-200:]}")
    ended = subprocess.run([binary, tmp_path / "f", tmp_path, way], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
