"""Whose bytes went over the device beside ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kv_cache.bench import procfs
from kv_cache.bench.probes.foreign import (
    MOST_PROCESSES,
    ProcessIo,
    culprits,
    moved,
    parse_process,
    section,
    snapshot,
    snapshot_of,
)

IO = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"


def stat_of(pid: int, name: str, parent: int, started: int) -> str:
    return f"{pid} ({name}) S {parent} {' '.join(['0'] * 17)} {started} {' '.join(['0'] * 30)}\n"


def test_files_of_processes_are_the_same_natively_and_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a name that is no UTF-8, of a pid that is nobody's, and of none at all."""
    (tmp_path / "stat").write_bytes(b"1 (\xff) S")
    paths = [f"/proc/{os.getpid()}/comm", "/proc/0/stat", "/proc", str(tmp_path / "stat")]
    natively = procfs.texts_of(paths)
    monkeypatch.setattr(procfs, "library", lambda: "not there")
    assert procfs.texts_of(paths) == natively
    assert natively[1:3] == [None, None]
    assert procfs.texts_of([]) == []


def process(
    pid: int, read: int = 0, write: int = 0, *, started: int = 1, parent: int = 1
) -> ProcessIo:
    return ProcessIo(
        pid=pid,
        started=started,
        parent=parent,
        name=f"p{pid}",
        read_bytes=read,
        write_bytes=write,
    )


def of(*processes: ProcessIo) -> dict[int, ProcessIo]:
    return {one.pid: one for one in processes}


def test_a_process_is_read_as_proc_describes_it() -> None:
    assert parse_process(stat_of(12, "a) (b c", 3, 77), IO) == ProcessIo(
        pid=12, started=77, parent=3, name="a) (b c", read_bytes=4096, write_bytes=8192
    )


def test_the_busiest_are_named_first_and_the_idle_not_at_all() -> None:
    before = of(process(1, 5, 5), process(2, 10), process(3))
    after = of(process(1, 5, 5), process(2, 20), process(3, 0, 90), process(4, 50))
    found = culprits(before, after)
    assert [(one.pid, one.read_bytes, one.write_bytes) for one in found] == [
        (3, 0, 90),
        (4, 50, 0),
        (2, 10, 0),
    ]


def test_no_more_than_a_few_are_named() -> None:
    after = of(*(process(pid, pid) for pid in range(1, 20)))
    assert [one.pid for one in culprits({}, after)] == list(range(19, 19 - MOST_PROCESSES, -1))


def test_a_pid_that_is_used_again_is_another_process() -> None:
    found = culprits(of(process(7, 1000)), of(process(7, 30, started=2)))
    assert [one.read_bytes for one in found] == [30]


def test_a_process_that_ended_is_counted_by_its_parent_less_what_it_had_before() -> None:
    """The kernel adds the bytes of a child's whole life to its parent when it ends."""
    before = of(process(5, 100), process(6, 1000, parent=5))
    assert [one.read_bytes for one in culprits(before, of(process(5, 1130)))] == [30]


def test_the_section_names_them_with_their_bytes() -> None:
    assert section((10, 20), (9, 18), [process(3, 7, 8)]) == {
        "own_read_bytes": 10,
        "own_write_bytes": 20,
        "within_read_bytes": 9,
        "within_write_bytes": 18,
        "processes": [{"pid": 3, "name": "p3", "read_bytes": 7, "write_bytes": 8}],
    }


def test_processes_that_vanish_or_hide_are_left_out(tmp_path: Path) -> None:
    for pid in (10, 11, 12):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat_of(pid, "x", 1, 5))
    (tmp_path / "10/io").write_text(IO)
    (tmp_path / "12/io").write_text(IO)
    (tmp_path / "self").mkdir()
    assert list(snapshot(tmp_path, excluded=[12])) == [10]


def test_we_are_not_among_the_others() -> None:
    assert os.getpid() not in snapshot()
    mine = snapshot(excluded=())
    if os.getpid() in mine:  # a kernel may hide the counters
        assert mine[os.getpid()].parent == os.getppid()


def test_siblings_are_looked_at_alone_and_are_nobody_else() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        before = snapshot_of([child.pid])
        assert set(before) == {child.pid}
        assert child.pid not in snapshot(excluded={os.getpid(), child.pid})
        assert moved(before, snapshot_of([child.pid])) is not None
        assert moved(before, {}) is None
        assert moved({}, {}) is None
    finally:
        child.communicate(b"\n")
    assert snapshot_of([child.pid]) == {}
