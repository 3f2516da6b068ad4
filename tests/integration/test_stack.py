"""What lies below a cache directory, on real devices: memory and ends that cannot be seen are named
in a run and in a probe, and a disk is found below a file system on a file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.devices import (
    LOOP_TOOLS,
    NBD_TOOLS,
    RAM_RULES,
    THROTTLED_RULES,
    ram_directory,
    throttled_directory,
    why_not,
)
from kv_cache.bench.probes.stack import FootKind, stack_of
from kv_cache.cli import probe
from kv_cache.config.profile import read_profile
from kv_cache.core.units import GIB, MIB
from tests import cli
from tests.integration.test_passport import measured
from tests.passports import names, says, status

NO_LOOPS, NO_NETWORK_DEVICES = why_not(LOOP_TOOLS), why_not(NBD_TOOLS)
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there"),
]
SECTORS = GIB // 2 // 512  # of a partition
needs_nbd = pytest.mark.skipif(
    NO_NETWORK_DEVICES is not None, reason=NO_NETWORK_DEVICES or "they are there"
)


def tool(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def once_free(do: Callable[[], object]) -> None:
    """Do it as soon as what others of these tests have open for a moment, or see in a copy of all
    mounts, is no longer busy."""
    end = time.monotonic() + 60
    while True:
        try:
            do()
        except (subprocess.CalledProcessError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


@contextmanager
def file_system_on(block: str, at: Path, *options: str) -> Iterator[Path]:
    """ext4 on a block device, as long as the `with` lasts."""
    at.mkdir()
    tool("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,nodiscard", block)
    tool("mount", *options, block, str(at))
    try:
        yield at
    finally:
        once_free(lambda: tool("umount", str(at)))


@contextmanager
def on_image(image: Path, *options: str, direct: bool) -> Iterator[Path]:
    """ext4 on a loop device on a file that is made for it."""
    with image.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, GIB // 2)
    wanted = ["--direct-io=on"] if direct else []
    loop = tool("losetup", *wanted, "--show", "--find", str(image))
    try:
        with file_system_on(loop, image.with_suffix(".mounted"), *options) as directory:
            yield directory
    finally:
        tool("losetup", "--detach", loop)


@contextmanager
def on_zram(at: Path) -> Iterator[Path]:
    """ext4 on a zram device of our own."""
    control = Path("/sys/class/zram-control")
    if not control.exists():
        pytest.skip("this kernel has no zram")
    number = (control / "hot_add").read_text().strip()
    try:
        Path(f"/sys/block/zram{number}/disksize").write_text(str(GIB // 2))
        with file_system_on(f"/dev/zram{number}", at) as directory:
            yield directory
    finally:
        once_free(lambda: (control / "hot_remove").write_text(number))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory whose bytes end on a disk."""
    if {foot.kind for foot in stack_of([tmp_path]).feet} != {FootKind.DISK}:
        pytest.skip("the temporary directory is on no disk")
    return tmp_path


def run_on(
    cwd: Path,
    directory: Path,
    *more: str,
    beside: AbstractContextManager[object] | None = None,
) -> Any:
    places = (f"--cache-dir={directory / 'cache'}", "--storage-capacity-gb=0.25")
    return measured(cwd, *places, *more, beside=beside)


# --- neighbours on the same disk ----------------------------------------------------------------


@contextmanager
def halves(image: Path) -> Iterator[tuple[str, str]]:
    """Two partitions of a loop device on a file of 1 GiB that is made for it."""
    with image.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, GIB)
    loop = tool("losetup", "--direct-io=on", "--show", "--find", str(image))
    try:
        for number in (1, 2):
            tool("addpart", loop, str(number), str((number - 1) * SECTORS), str(SECTORS))
        yield f"{loop}p1", f"{loop}p2"
    finally:
        tool("partx", "--delete", "--nr", "1:2", loop)
        tool("losetup", "--detach", loop)


@contextmanager
def reading(device: str) -> Iterator[None]:
    """Another process reads the device from its beginning again and again, past the page cache."""
    some = "bs=1M count=128 status=none"
    tool("dd", "if=/dev/zero", f"of={device}", "oflag=direct", *some.split())  # else it has none
    loop = f"while dd if={device} of=/dev/null iflag=direct {some}; do :; done"
    reader = subprocess.Popen(["sh", "-c", loop], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(reader.pid, signal.SIGTERM)
        reader.wait()


def test_what_others_read_from_another_partition_of_the_disk_is_foreign(disk: Path) -> None:
    with halves(disk / "image") as (ours, theirs), ExitStack() as beside:
        directory = beside.enter_context(file_system_on(ours, disk / "mounted"))
        beside.enter_context(reading(theirs))
        own = run_on(disk, directory)
    foreign = own["passport"]["evidence"]["foreign"]
    window = own["kernel_counters"]["window"]
    for kind in ("read", "write"):
        counted, ours = window[f"foot_{kind}_bytes"], foreign[f"own_{kind}_bytes"]
        journal = foreign["journal_bytes"] if kind == "write" else 0
        assert foreign[f"{kind}_bytes"] == max(0, counted - ours - journal)
    names(own, V23="suspect")
    assert foreign["read_bytes"] > 64 * MIB
    assert {"dd", "sh"} & {one["name"] for one in foreign["processes"]}  # sh waited for dd


# --- memory ------------------------------------------------------------------------------------


def test_a_loop_device_without_direct_io_is_named(disk: Path) -> None:
    with on_image(disk / "image", direct=False) as directory:
        own = run_on(disk, directory)
    names(own, V27="invalid")
    assert "(loop without direct I/O: dio 0) answers from the page cache" in says(own, "V27")


def test_a_loop_device_with_direct_io_ends_on_the_disk_that_its_file_is_on(disk: Path) -> None:
    with on_image(disk / "image", direct=True) as directory:
        own = run_on(disk, directory)
    names(own)
    (foot,) = own["passport"]["evidence"]["stack"]["feet"]
    assert foot["name"] in stack_of([disk]).disks
    assert foot["path"][1].startswith("loop")
    assert f"the bytes end on {foot['name']}" in says(own, "V27")
    ledger = own["passport"]["evidence"]["ledger"]
    for side in ("read", "write"):
        assert ledger[side]["foot_bytes"] >= 0.95 * ledger[side]["claimed_bytes"] > 0


def test_a_file_system_on_a_file_in_memory_is_named(tmp_path: Path) -> None:
    with ram_directory(0.5) as directory:
        own = run_on(tmp_path, directory)
    names(own, **RAM_RULES)
    assert "is memory and no drive: it is a file system in RAM" in says(own, "V27")


def test_a_file_system_on_zram_is_named(tmp_path: Path) -> None:
    with on_zram(tmp_path / "zram") as directory:
        own = run_on(tmp_path, directory)
    names(own, V27="invalid")
    assert "is memory and no drive: it compresses into RAM" in says(own, "V27")


def test_one_drive_in_memory_among_two_is_named(disk: Path) -> None:
    with ram_directory(0.5) as memory:
        own = run_on(disk, memory, f"--cache-dir={disk / 'cache'}")
    names(own, V27="invalid")


# --- ends that cannot be seen --------------------------------------------------------------------


@needs_nbd
def test_a_process_below_the_loop_device_is_named_and_nothing_else(tmp_path: Path) -> None:
    with throttled_directory(400_000_000, 0.5) as directory:
        own = run_on(tmp_path, directory)
    names(own, **THROTTLED_RULES)
    assert "a process answers for this file system (FUSE)" in says(own, "V28")
    assert status(own, "V27") == "not-applicable"


@needs_nbd
def test_a_page_cache_above_an_end_that_cannot_be_seen_is_named_too(tmp_path: Path) -> None:
    with throttled_directory(137_000_000, 0.5, loop_direct=False) as directory:
        own = run_on(tmp_path, directory)
    names(own, V27="invalid", V28="suspect")


@contextmanager
def lying(at: Path) -> Iterator[Path]:
    """A file system of a process that keeps all in memory and acknowledges every fsync."""
    at.mkdir()
    server = subprocess.Popen([sys.executable, cli.ROOT / "tests/lying_fs.py", str(at)])
    try:
        once_free(lambda: tool("mountpoint", "-q", str(at)))
        yield at
        once_free(lambda: tool("umount", str(at)))
        assert server.wait(10) == 0
    finally:
        server.kill()  # which ends the mount's answers, whatever the test left of it
        server.wait()
        subprocess.run(["umount", "--lazy", str(at)], check=False, capture_output=True)


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="there is no FUSE here")
def test_a_file_system_that_keeps_all_in_memory_and_acknowledges_fsync_is_named(
    tmp_path: Path,
) -> None:
    with lying(tmp_path / "mounted") as directory:
        own = run_on(tmp_path, directory, "--fsync=object", "--max-requests=20")
    names(own, V5="suspect")
    assert "no block device of this machine counts the bytes (file system fuse)" in says(own, "V5")


# --- barriers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["object", "batch", "never"])
def test_a_mount_without_barriers_is_named_where_writes_are_synced(fsync: str, disk: Path) -> None:
    with on_image(disk / "image", "-o", "nobarrier", direct=True) as directory:
        own = run_on(disk, directory, f"--fsync={fsync}")
    if fsync == "never":
        names(own)
        assert status(own, "V31") == "not-applicable"
    else:
        names(own, V31="suspect")
        assert f"--fsync {fsync} was asked for, but ext4 " in says(own, "V31")


def test_a_mount_without_barriers_below_the_file_of_a_loop_device_is_named(disk: Path) -> None:
    with ExitStack() as stack:
        lower = stack.enter_context(on_image(disk / "lower", "-o", "barrier=0", direct=True))
        image = lower / "upper"
        with image.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, GIB // 3)
        loop = tool("losetup", "--direct-io=on", "--show", "--find", str(image))
        stack.callback(tool, "losetup", "--detach", loop)
        upper = stack.enter_context(file_system_on(loop, disk / "upper"))
        own = run_on(disk, upper, "--fsync=object")
    names(own, V31="suspect")
    assert says(own, "V31").count("ext4 ") == 1  # the lower one, not the upper


# --- a probe says the same -----------------------------------------------------------------------

FEW = ("--size-gib=0.05", "--sizes-mib=1", "--concurrency=1", "--seconds=1")


def probed(cwd: Path, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints; its profile must say the same."""
    profile = cwd / "p.yaml"
    assert probe.main([f"--cache-dir={directory / 'cache'}", f"--profile={profile}", *FEW]) == 0
    out = capsys.readouterr().out
    for note in read_profile(profile).facts["notes"]:
        assert f"! {note}" in out
    return out


def test_a_probe_names_memory_in_the_words_of_a_run(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ram_directory(0.5) as directory:
        own = run_on(disk, directory)
        out = probed(disk, directory, capsys)
    assert f"invalid: V27 memory under the storage: {says(own, 'V27')}" in out


def test_a_probe_names_a_loop_device_without_direct_io(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with on_image(disk / "image", direct=False) as directory:
        out = probed(disk, directory, capsys)
    assert "! invalid: V27 memory under the storage: loop" in out


def test_a_probe_names_zram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with on_zram(tmp_path / "zram") as directory:
        assert "is memory and no drive: it compresses into RAM" in probed(
            tmp_path, directory, capsys
        )
