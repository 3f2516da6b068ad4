"""`benchmarks/devices.py`: as fast as was set, broken when told to, gone afterwards."""

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.devices import (
    LOOP_TOOLS,
    NBD_TOOLS,
    PREFIX,
    QEMU_TOOLS,
    SHM,
    clean,
    daemon_pids,
    faulty_directory,
    ram_directory,
    throttled_directory,
    throttled_file,
    why_not,
)
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import MIB

ROOT = Path(__file__).parents[2]
MISSING = why_not((*NBD_TOOLS, *QEMU_TOOLS))
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(MISSING is not None, reason=MISSING or "everything is there"),
]

RATE = 50_000_000
UNIT = 40 * MIB

HOLD = """
import os, sys
from benchmarks.devices import leave_cleanly_on_sigterm, throttled_directory
leave_cleanly_on_sigterm()
with throttled_directory(50_000_000, 0.0625) as directory:
    (directory / "open").open("wb").write(b"x")
    print(directory, flush=True)
    sys.stdin.read()
"""


def rate_of(path: Path, flags: int) -> float:
    """Bytes/s of direct I/O in 1 MiB pieces."""
    page = mmap.mmap(-1, MIB)
    fd = os.open(path, flags | os.O_DIRECT)
    try:
        began = time.monotonic()
        for offset in range(0, UNIT, MIB):
            if flags & os.O_WRONLY:
                assert os.pwrite(fd, page, offset) == MIB
            else:
                assert os.preadv(fd, [page], offset) == MIB
        return UNIT / (time.monotonic() - began)
    finally:
        os.close(fd)


def near_rate(path: Path, flags: int) -> bool:
    """Within 10 %, at one of thirty looks: others may take the CPU for a while."""
    return any(abs(rate_of(path, flags) / RATE - 1) < 0.1 for _ in range(30))


def traces(work: Path) -> list[str]:
    """Whatever still names a device: mounts, loop devices, processes, files."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    loops = [p.read_text() for p in Path("/sys/block").glob("loop*/loop/backing_file")]
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has just ended
    found = [line for line in (*mounts, *loops, *commands) if str(work) in line]
    return found + [str(work)] * work.exists()


def test_a_throttled_directory_is_as_fast_as_was_set_and_gone_afterwards() -> None:
    with throttled_directory(RATE, 0.125) as directory:
        work = directory.parent
        assert traces(work)
        assert daemon_pids()
        path = directory / "file"
        path.touch()
        assert near_rate(path, os.O_WRONLY)
        assert near_rate(path, os.O_RDONLY)
    assert traces(work) == []
    assert daemon_pids() == set()


def test_a_throttled_file_is_as_fast_as_was_set_and_gone_afterwards() -> None:
    with throttled_file(RATE, 0.0625) as path:
        work = path.parent
        assert path.stat().st_size == 64 * MIB
        # 0.1 s of credit after idling is 5 MB of the 42 MB that are read.
        assert any(0.9 < rate_of(path, os.O_RDONLY) / RATE < 1.25 for _ in range(30))
    assert traces(work) == []


def test_a_directory_in_ram_takes_direct_io_and_is_gone_after_an_error() -> None:
    def work_and_fail() -> None:
        with ram_directory(0.125) as directory:
            found.append(directory.parent)
            (directory / "file").touch()
            rate_of(directory / "file", os.O_WRONLY)
            raise ZeroDivisionError

    found: list[Path] = []
    with pytest.raises(ZeroDivisionError):
        work_and_fail()
    assert traces(found[0]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_device_is_gone_after_a_signal(number: signal.Signals) -> None:
    with holder() as process:
        work = work_of(process)
        process.send_signal(number)
        process.communicate()
    assert traces(work) == []


def test_what_a_killed_process_has_left_is_taken_down_by_the_next() -> None:
    with holder() as process:
        work = work_of(process)
        process.kill()
        process.communicate()
    assert traces(work)
    clean()  # as every new device does first
    assert traces(work) == []


def test_a_broken_device_fails_and_a_mended_one_works() -> None:
    page = mmap.mmap(-1, MIB)
    with faulty_directory(0.0625) as faults:
        fd = os.open(faults.path / "file", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        try:
            assert os.pwrite(fd, page, 0) == MIB
            faults.break_(writes=False)
            with pytest.raises(OSError) as caught:
                os.preadv(fd, [page], 0)
            assert caught.value.errno == errno.EIO
            assert os.pwrite(fd, page, 0) == MIB
            faults.break_()
            with pytest.raises(OSError):
                os.pwrite(fd, page, 0)
            faults.mend()
            assert os.preadv(fd, [page], 0) == MIB
        finally:
            os.close(fd)


def test_a_paused_device_answers_when_it_is_resumed_and_a_broken_one_can_be_taken_down() -> None:
    page = mmap.mmap(-1, MIB)
    with faulty_directory(0.0625) as faults:
        work = faults.path.parent
        fd = os.open(faults.path / "file", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        os.pwrite(fd, page, 0)
        answered = threading.Event()

        def ask() -> None:
            os.preadv(fd, [page], 0)
            answered.set()

        faults.pause()
        thread = threading.Thread(target=ask)
        thread.start()
        assert not answered.wait(0.2)
        faults.resume()
        thread.join()
        assert answered.is_set()
        os.close(fd)
        faults.break_()
        faults.pause()
    assert traces(work) == []


def test_who_is_not_root_is_told_so() -> None:
    code = (
        "import os; from benchmarks.devices import *; os.setuid(65534); print(why_not(NBD_TOOLS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("devices with a set speed need root"), done.stderr


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert why_not(LOOP_TOOLS) == "losetup is not installed: apt-get install mount"
    with pytest.raises(PlaceError, match="losetup"), ram_directory(0.0625):
        pass


def test_a_device_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PlaceError, match="GiB free"), ram_directory(1 << 20):
        pass
    assert list(SHM.glob(f"{PREFIX}{os.getpid()}-*")) == []


def holder() -> "subprocess.Popen[str]":
    """A process that holds a device until its standard input ends."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT
    )


def work_of(process: "subprocess.Popen[str]") -> Path:
    assert process.stdout is not None
    assert process.stderr is not None
    directory = process.stdout.readline().strip()
    assert directory, process.stderr.read()
    return Path(directory).parent
