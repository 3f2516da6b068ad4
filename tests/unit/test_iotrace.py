"""The I/O trace as text: the reference's columns and words, the order of asking, packed or not."""

import csv
import gzip
import io
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.effect import CopyRef, Delete, IoChunk, Leg, Move, Op, OpDone, Read, Write
from kv_cache.core.errors import PlaceError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.files.iotrace import COLUMNS, HEAD, PHASES, IoTrace, check_io_trace, line_of
from kv_cache.files.records import packing

KEY = bytes(range(16))


def copy(tier: Tier = Tier.NVME, nbytes: int = 4096) -> CopyRef:
    return CopyRef(1, KEY, tier, nbytes, 1)


def leg(ref: CopyRef, kind: OpKind, started_ns: int, finished_ns: int) -> Leg:
    chunks = (IoChunk(finished_ns, ref.nbytes),)
    return Leg(ref.tier, kind, "model", ref.nbytes, started_ns, finished_ns, 1, chunks)


@dataclass
class Going:
    """An operation as a driver tells it."""

    op: Op
    legs: list[Leg] = field(default_factory=list)

    def ask(self, trace: IoTrace, one: Leg) -> None:
        self.legs.append(one)
        trace.on_leg(self.op, one)

    def end(self, trace: IoTrace) -> None:
        legs = tuple(self.legs)
        trace.on_op(OpDone(self.op, legs[0].started_ns, legs[-1].finished_ns, legs))


def one_read(trace: IoTrace, at_ns: int) -> Going:
    ref = copy()
    going = Going(Read(ref, Cause.DECODE))
    going.ask(trace, leg(ref, OpKind.READ, at_ns, at_ns + 1000))
    return going


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


# --- one row -----------------------------------------------------------------------------------


@given(
    tier=st.sampled_from(Tier),
    kind=st.sampled_from(OpKind),
    cause=st.sampled_from(Cause),
    nbytes=st.integers(1, 2**50),
    at_ns=st.integers(0, 2**62),
)
def test_a_row_is_what_the_csv_module_writes_of_its_fields(
    tier: Tier, kind: OpKind, cause: Cause, nbytes: int, at_ns: int
) -> None:
    ref = copy(tier, nbytes)
    line = line_of(Read(ref, cause), leg(ref, kind, at_ns, at_ns)).decode()
    (cells,) = csv.reader([line])
    again = io.StringIO(newline="")
    csv.writer(again).writerow(cells)
    assert again.getvalue() == line
    row = dict(zip(COLUMNS, cells, strict=True))
    seconds, _, micros = row["Timestamp"].partition(".")
    assert int(seconds) * 10**6 + int(micros) == at_ns // 1000
    assert len(micros) == 6
    assert row["Operation"] == kind.value.title()
    assert int(row["Object_Size_Bytes"]) == nbytes
    assert row["Tier"] == f"Tier-{tier.value}"
    assert bytes.fromhex(row["Key"]) == KEY


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_phase(cause: Cause) -> None:
    known = {"Prefill", "Decode", "Evict", "Promote", "Prefetch", "Write-through", "Discard"}
    assert PHASES[cause] in known


def test_a_demotion_is_a_read_and_a_write_and_a_deletion_of_phase_evict() -> None:
    upper, lower = copy(Tier.CPU), copy(Tier.NVME)
    move = Move(upper, lower, Cause.DEMOTION)
    told = [
        line_of(move, leg(upper, OpKind.READ, 0, 1)),
        line_of(move, leg(lower, OpKind.WRITE, 1, 2)),
        line_of(Delete(upper, Cause.DEMOTION), leg(upper, OpKind.DELETE, 2, 2)),
        line_of(Delete(lower, Cause.EVICTION), leg(lower, OpKind.DELETE, 3, 3)),
    ]
    words = [(cells[1], cells[3], cells[5]) for cells in csv.reader(t.decode() for t in told)]
    assert words == [
        ("Read", "Tier-1", "Evict"),
        ("Write", "Tier-2", "Evict"),
        ("Delete", "Tier-1", "Evict"),
        ("Delete", "Tier-2", "Evict"),
    ]


def test_of_a_promotion_the_read_was_asked_for_and_the_write_follows() -> None:
    lower, upper = copy(Tier.NVME), copy(Tier.CPU)
    move = Move(lower, upper, Cause.PROMOTION)
    told = [
        line_of(move, leg(lower, OpKind.READ, 0, 1)),
        line_of(move, leg(upper, OpKind.WRITE, 1, 2)),
    ]
    assert [line.decode().rstrip().rpartition(",")[2] for line in told] == ["Decode", "Promote"]


# --- the file ----------------------------------------------------------------------------------


def test_rows_stand_in_the_order_of_asking_whatever_ends_first(tmp_path: Path) -> None:
    trace = IoTrace(tmp_path / "ops.csv")
    upper, lower = copy(Tier.CPU), copy(Tier.NVME)
    slow = Going(Move(upper, lower, Cause.DEMOTION))
    slow.ask(trace, leg(upper, OpKind.READ, 1_000, 9_000))
    first = one_read(trace, 2_000)
    second = one_read(trace, 3_000)
    second.end(trace)
    slow.ask(trace, leg(lower, OpKind.WRITE, 9_000, 20_000))
    first.end(trace)
    slow.end(trace)
    assert trace.close() is None
    head, *rows = rows_of(tmp_path / "ops.csv")
    assert ",".join(head) + "\r\n" == HEAD
    assert [row[0] for row in rows] == ["0.000001", "0.000002", "0.000003", "0.000009"]
    assert trace.written == 4


def test_what_never_ended_is_left_out_as_in_the_result(tmp_path: Path) -> None:
    trace = IoTrace(tmp_path / "ops.csv")
    one_read(trace, 1_000)
    one_read(trace, 2_000).end(trace)
    half = Going(Move(copy(Tier.CPU), copy(), Cause.DEMOTION))
    half.ask(trace, leg(copy(Tier.CPU), OpKind.READ, 3_000, 4_000))
    assert trace.close() is None
    assert [row[0] for row in rows_of(tmp_path / "ops.csv")[1:]] == ["0.000002"]


def test_a_trace_without_operations_is_its_header(tmp_path: Path) -> None:
    trace = IoTrace(tmp_path / "new" / "deep" / "ops.csv")
    assert trace.close() is None
    assert (tmp_path / "new" / "deep" / "ops.csv").read_bytes() == HEAD.encode()


def written(path: Path) -> bytes:
    trace = IoTrace(path)
    for number in range(500):
        one_read(trace, number * 1000).end(trace)
    assert trace.close() is None
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_trace_holds_the_same_rows_and_repeats_byte_for_byte(
    suffix: str, tmp_path: Path
) -> None:
    if suffix == ".zst":
        pytest.importorskip("zstandard")
    plain = written(tmp_path / "plain.csv")
    packed = written(tmp_path / f"one.csv{suffix}")
    assert packed == written(tmp_path / f"two.csv{suffix}")
    assert len(packed) < len(plain) / 4
    assert unpacked(packed, suffix) == plain


def unpacked(packed: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.decompress(packed)
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    data: bytes = frame.decompress(packed)
    assert frame.eof
    assert frame.unused_data == b"", "one frame"
    return data


def test_without_the_package_zst_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(PlaceError, match=r"--io-trace-log .*ops\.csv\.zst.*\[zstd\]"):
        check_io_trace(tmp_path / "ops.csv.zst")


@pytest.mark.parametrize("name", ["ops.csv.xz", "ops.bz2", "OPS.ZIP"])
def test_a_packing_that_is_not_ours_is_refused(name: str) -> None:
    with pytest.raises(PlaceError, match=r"use \.gz, \.zst"):
        packing(Path(name), "--io-trace-log")


# --- whose file it is --------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_older_trace_may_be_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"ops.csv{suffix}"
    written(path)
    check_io_trace(path)


@pytest.mark.parametrize("text", ["", "Timestamp,Key\r\n", "my notes", "\x00\xff"])
def test_somebody_elses_file_is_not_replaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_bytes(text.encode())
    with pytest.raises(PlaceError, match="did not write"):
        check_io_trace(path)
    assert path.read_bytes() == text.encode()


def test_nor_is_one_with_the_name_of_the_unfinished_file(tmp_path: Path) -> None:
    (tmp_path / "ops.csv.partial").write_text("mine")
    with pytest.raises(PlaceError, match=r"ops\.csv\.partial"):
        check_io_trace(tmp_path / "ops.csv")
    (tmp_path / "ops.csv.partial").write_text("")  # as a run leaves it that is killed at once
    check_io_trace(tmp_path / "ops.csv")


@pytest.mark.parametrize("make", ["directory", "dangling", "pipe"])
def test_what_is_no_file_is_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    if make == "directory":
        path.mkdir()
    elif make == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(path)
    with pytest.raises(PlaceError, match="not a regular file"):
        check_io_trace(path)


def test_a_link_to_an_older_trace_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    written(target)
    link.symlink_to(target)
    check_io_trace(link)
    trace = IoTrace(link)
    assert trace.close() is None
    assert link.is_symlink()
    assert target.read_bytes() == HEAD.encode()


def test_directories_above_are_made_only_where_that_can_be(tmp_path: Path) -> None:
    check_io_trace(tmp_path / "a" / "b" / "ops.csv")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(PlaceError, match="no directory"):
        check_io_trace(tmp_path / "file" / "b" / "ops.csv")


def test_a_name_that_no_file_system_takes_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="cannot be looked at"):
        check_io_trace(tmp_path / ("x" * 250 + ".csv"))


def test_a_write_operation_is_told_as_one(tmp_path: Path) -> None:
    trace = IoTrace(tmp_path / "ops.csv")
    going = Going(Write(copy(Tier.GPU, 8192), Cause.PREFILL))
    going.ask(trace, leg(copy(Tier.GPU, 8192), OpKind.WRITE, 0, 5))
    going.end(trace)
    assert trace.close() is None
    assert rows_of(tmp_path / "ops.csv")[1] == [
        "0.000000", "Write", "8192", "Tier-0", KEY.hex(), "Prefill",
    ]  # fmt: skip
