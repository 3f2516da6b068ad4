"""Who answers our system calls; the preloads are real and run in processes of their own."""

import mmap
import os
import platform
from pathlib import Path

import pytest

from kv_cache.bench.probes.interposed import (
    MOST_LIBRARIES,
    executable,
    foreign_symbols,
    is_c_library,
    libraries,
    loader_directory,
    look,
    preload,
    providers,
    unflushed,
    unlisted,
)
from kv_cache.bench.probes.stack import stack_of

MAPS = """\
55e0-55e1 r--p 00000000 fe:00 1                          /usr/bin/python3
55e1-55e2 r-xp 00001000 fe:00 1                          /usr/bin/python3
7f00-7f01 r--p 00000000 fe:00 2                          /usr/lib/locale/C.utf8/LC_CTYPE
7f01-7f02 r-xp 00000000 fe:00 3                          /opt/with blank/libz.so.1
7f02-7f03 r-xp 00000000 fe:00 4                          /tmp/gone.so (deleted)
7f03-7f04 r-xp 00000000 00:01 5                          /memfd:code (deleted)
7f04-7f05 rw-p 00000000 00:00 0                          [heap]
7f05-7f06 r-xp 00000000 00:00 0                          [vdso]
7f06-7f07 r-xp 00000000 00:00 0
"""


@pytest.mark.parametrize(
    "path",
    [
        *("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc-2.28.so", "/lib64/libpthread.so.0"),
        *("/lib64/libpthread-2.28.so", "/lib64/ld-linux-x86-64.so.2", "/lib/ld-2.31.so"),
        *("/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1", "/lib/libc.musl-x86_64.so.1"),
    ],
)
def test_the_c_libraries_and_their_loaders_are_known(path: str) -> None:
    assert is_c_library(path, None)
    assert is_c_library(path, os.path.dirname(os.path.realpath(path)))


@pytest.mark.parametrize(
    "path",
    [
        *("/usr/lib/libeatmydata.so", "/usr/lib/libc++.so.1", "/usr/lib/libcurl.so.4"),
        *("/tmp/mylibc.so.6", "/usr/lib/libasan.so.8", "/usr/bin/python3"),
    ],
)
def test_other_libraries_are_not_the_c_library(path: str) -> None:
    assert not is_c_library(path, None)


def test_a_library_of_that_name_elsewhere_is_not_the_c_library(tmp_path: Path) -> None:
    assert not is_c_library(str(tmp_path / "librt.so.1"), "/usr/lib")
    assert foreign_symbols({"fsync": str(tmp_path / "librt.so.1")}, "/p", "/usr/lib") == ["fsync"]
    assert is_c_library("/usr/lib/glibc-hwcaps/power9/libc-2.28.so", "/usr/lib")


def test_the_loader_of_this_program_lies_beside_its_c_library() -> None:
    directory = loader_directory(Path("/proc/self/maps").read_text())
    found = providers(["fsync", "clock_gettime"])
    assert directory is not None
    assert found is not None
    assert {os.path.dirname(os.path.realpath(path)) for path in found.values()} == {directory}


def test_what_this_program_has_loaded_is_listed() -> None:
    assert unlisted(Path("/proc/self/maps").read_text()) == []
    strange = "7f0000000000-7f0000001000 r-xp 00000000 08:01 7 /tmp/audit.so\n"
    assert unlisted(strange) == ["/tmp/audit.so"]
    hidden = "7f0000000000-7f0000001000 r-xp 00000000 08:01 7 /dev/shm/audit.so\n"
    assert unlisted(hidden) == ["/dev/shm/audit.so"]


@pytest.mark.parametrize(("begin", "named"), [(b"\x7fELF", True), (b"code", False)])
def test_code_of_a_file_without_a_name_is_a_library_if_it_begins_as_one(
    begin: bytes, named: bool
) -> None:
    file = os.memfd_create("libffi")
    try:
        os.write(file, begin.ljust(mmap.PAGESIZE, b"\0"))
        code = mmap.mmap(file, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        found = unlisted(Path("/proc/self/maps").read_text())
        code.close()
    finally:
        os.close(file)
    assert found == (["/memfd:libffi (deleted)"] if named else [])


def test_an_fsync_of_what_was_written_flushes_a_disk(tmp_path: Path) -> None:
    disks = stack_of([tmp_path]).disks
    if unflushed(tmp_path, disks) is None:
        pytest.skip("no disk with a write cache and counters lies below")
    assert unflushed(tmp_path, disks) is False


def test_an_fsync_that_flushes_nothing_is_seen(tmp_path: Path) -> None:
    """A disk that counts no flush meanwhile: the counters are another machine's."""
    for name, text in {
        "sys/class/block/sda/queue/write_cache": "write back\n",
        "proc/diskstats": "8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert unflushed(tmp_path, ["sda"], tmp_path) is True
    assert unflushed(tmp_path, ["sdb"], tmp_path) is None
    assert unflushed(tmp_path, []) is None


def test_a_call_is_foreign_unless_the_c_library_or_the_program_provides_it() -> None:
    symbols = {
        "pread": "/lib/libc.so.6",
        "open": "/tmp/fake.so",
        "fsync": "/usr/lib/libeatmydata.so",
        "close": "/usr/bin/static-python",
    }
    assert foreign_symbols(symbols, "/usr/bin/static-python") == ["fsync", "open"]


def test_a_call_that_does_not_exist_has_no_provider() -> None:
    found = providers(["fsync", "no_such_call_anywhere"])
    assert found is not None
    assert list(found) == ["fsync"]


def test_only_files_with_code_are_listed_once_and_in_order() -> None:
    assert libraries(MAPS) == [
        "/opt/with blank/libz.so.1",
        "/tmp/gone.so (deleted)",
        "/usr/bin/python3",
    ]
    assert libraries(None) is None


def test_the_list_of_libraries_is_bounded() -> None:
    maps = "".join(f"1-2 r-xp 0 fe:00 {n} /lib/{n:04d}.so\n" for n in range(MOST_LIBRARIES + 3))
    found = libraries(maps)
    assert found is not None
    assert found[-2:] == [f"/lib/{MOST_LIBRARIES - 1:04d}.so", "and 3 more"]


def test_both_ways_to_preload_are_told() -> None:
    assert preload(None, None) is None
    assert preload("", " \n") is None
    assert preload("a.so b.so", None) == "LD_PRELOAD: a.so b.so"
    assert preload("a.so", "/x.so\n/y.so\n") == (
        "LD_PRELOAD: a.so; /etc/ld.so.preload: /x.so /y.so"
    )


def test_without_a_directory_nothing_is_written_and_the_note_says_so() -> None:
    found = look()
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the numbers of the system calls are not known here")
    assert found["disagreeing"] == []
    assert found["note"] == "no directory to compare the calls in"


def test_a_directory_that_cannot_be_written_is_a_note_and_no_error(tmp_path: Path) -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the numbers of the system calls are not known here")
    found = look(tmp_path / "absent")
    assert found["disagreeing"] == []
    assert "could not be compared on a file" in found["note"]


def test_the_temporary_file_leaves_nothing_behind(tmp_path: Path) -> None:
    look(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_executable_is_a_real_file() -> None:
    assert os.path.isfile(executable())
