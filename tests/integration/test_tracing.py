"""Block-layer tracing with the real bpftrace, beside a known number of operations of known size."""

import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.devices import LOOP_TOOLS, ram_directory
from benchmarks.devices import why_not as why_no_device
from kv_cache.bench.counters import device_of
from kv_cache.bench.probes.diskstats import DiskStats, read_diskstats
from kv_cache.bench.tracing import _PATIENCE_S, Tracer, why_not
from kv_cache.core.units import KIB
from kv_cache.metrics.tracing import Bucket, Traced
from tests.cli import wait_for

ROOT = Path(__file__).parents[2]
OPERATIONS, SIZE = 256, 128 * KIB

DEVICE = next(iter(sorted(os.listdir("/sys/block"))), "vda")
MISSING = why_not([DEVICE])
if MISSING is None:
    with Tracer([DEVICE]) as _tracer:  # what shows only when it is tried
        MISSING = _tracer.start()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(MISSING is not None, reason=MISSING or "everything is there"),
]
needs_loop = pytest.mark.skipif(
    why_no_device(LOOP_TOOLS) is not None, reason=why_no_device(LOOP_TOOLS) or "there is one"
)

HOLD = """
import sys, time
from kv_cache.bench.tracing import Tracer
tracer = Tracer(sys.argv[1:])
print(tracer.start(), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The same operations, as they were traced and as the device's counters tell."""

    alone: bool
    traced: Traced
    moved: DiskStats


@pytest.fixture(scope="module", params=["disk", pytest.param("memory", marks=needs_loop)])
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    """On the disk, which others use too, and on a device in RAM, which is ours alone."""
    if request.param == "memory":
        with ram_directory(0.125) as made:
            yield operations_traced(made / "file", alone=True)
        return
    directory = tmp_path_factory.mktemp("disk")
    if device_of(directory) is None:
        pytest.skip("the temporary directory lies on no block device")
    yield operations_traced(directory / "file", alone=False)


def pass_over(path: Path, flags: int, operation: Callable[[int, mmap.mmap, int], object]) -> None:
    page = mmap.mmap(-1, SIZE)
    page.write(os.urandom(SIZE))
    fd = os.open(path, flags | os.O_CREAT | os.O_DIRECT)
    try:
        for offset in range(0, OPERATIONS * SIZE, SIZE):
            operation(fd, page, offset)
    finally:
        os.close(fd)


def read(fd: int, page: mmap.mmap, offset: int) -> None:
    assert os.preadv(fd, [page], offset) == SIZE


def operations_traced(path: Path, *, alone: bool) -> Seen:
    """Everything was written once before, so that no block is fresh."""
    device = device_of(path.parent)
    assert device is not None
    pass_over(path, os.O_WRONLY, os.pwrite)
    with Tracer([device]) as tracer:
        assert tracer.start() is None
        before = read_diskstats([device])
        pass_over(path, os.O_WRONLY, os.pwrite)
        pass_over(path, os.O_RDONLY, read)
        after = read_diskstats([device])
        traced = tracer.stop()
    assert before is not None
    assert after is not None
    return Seen(alone=alone, traced=traced, moved=after[device] - before[device])


def bucket_with(traced: Traced, name: str, value: int) -> Bucket:
    return next(
        b for b in traced.histograms[name].buckets if b.low is not None and b.low <= value
        and (b.high is None or value < b.high)
    )  # fmt: skip


def test_operations_and_their_sizes_are_those_that_were_done(seen: Seen) -> None:
    """A completion that interrupts another tracepoint is not traced, the more of them the busier
    the machine is; but the device's counters have it."""
    assert seen.traced.reason is None
    for kind, ended in (("read", seen.moved.reads), ("write", seen.moved.writes)):
        ours = bucket_with(seen.traced, f"bssplit_{kind}_kb", SIZE // KIB).count
        told = seen.traced.section()["operations"][kind]
        assert seen.traced.histograms[f"vfs_{kind}_us"].count == OPERATIONS  # this process's
        assert told["traced"] >= ours >= OPERATIONS - (told["kernel"] - told["traced"])
        assert told["kernel"] >= max(ended, told["traced"])
    if seen.alone:
        assert seen.traced.remarks() == []


def test_latencies_are_those_that_the_devices_counters_tell(seen: Seen) -> None:
    """The counters tell the mean in whole ms of all operations, queue included. Where more were
    counted than traced, on a disk that others use, only the sum can be held against theirs."""
    histograms = seen.traced.section()["histograms"]
    for kind, all_ms, ended in (
        ("read", seen.moved.read_ms, seen.moved.reads),
        ("write", seen.moved.write_ms, seen.moved.writes),
    ):
        device, queue = histograms[f"d2c_{kind}_us"], histograms[f"q2d_{kind}_us"]
        counted_us, unsure_us = 1000 * all_ms / ended, 2000 / ended
        total_us = device["mean"] + queue["mean"]
        traced = seen.traced.histograms[f"d2c_{kind}_us"].count
        if seen.alone or traced >= ended:
            assert total_us == pytest.approx(counted_us, rel=0.5, abs=unsure_us)
        else:
            assert total_us * traced <= 1.5 * 1000 * all_ms + 2000
        assert device["p50"][0] <= 2 * counted_us + unsure_us
        if seen.alone:  # the device's mean is of our operations only
            assert histograms[f"vfs_{kind}_us"]["mean"] >= 0.5 * device["mean"]


def test_gaps_and_syncs_of_our_threads_are_seen(tmp_path: Path) -> None:
    with Tracer([device_of(tmp_path) or DEVICE]) as tracer:
        assert tracer.start() is None
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        for _ in range(5):
            os.pwrite(fd, b"x" * 4096, 0)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 4096, os.POSIX_FADV_DONTNEED)
            assert os.preadv(fd, [bytearray(4096)], 0) == 4096
        os.close(fd)
        traced = tracer.stop()
    assert traced.reason is None
    keys = traced.reference_keys()
    for name in ("fsync_us", "write_to_fsync_us", "fadvise_to_read_us", "vfs_write_us"):
        assert sum(bucket["count"] for bucket in keys[name]["buckets"]) == 5
        assert keys[name]["raw"]


# --- ending --------------------------------------------------------------------------------------


def tracers_below(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if child.name() == "bpftrace"]


def test_leaving_without_stopping_ends_bpftrace() -> None:
    with Tracer([DEVICE]) as tracer:
        assert tracer.start() is None
        (child,) = tracers_below(psutil.Process())
    assert not child.is_running()
    assert tracer.stop().reason is not None


def test_bpftrace_dies_with_a_process_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, DEVICE], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        (child,) = tracers_below(psutil.Process(holder.pid))
        holder.kill()
        holder.wait()
        wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_tracer_that_ends_during_the_run_is_told() -> None:
    with Tracer([DEVICE]) as tracer:
        assert tracer.start() is None
        (child,) = tracers_below(psutil.Process())
        child.send_signal(signal.SIGKILL)
        child.wait()
        traced = tracer.stop()
    assert traced.reason is not None
    assert traced.reason.startswith("bpftrace ended before the run did")
    assert traced.reference_keys() == {}


# --- where it cannot be done ---------------------------------------------------------------------


def path_with(tmp_path: Path, script: str, without: Sequence[str] = ()) -> str:
    """A PATH whose bpftrace is this script."""
    for tool in ("sh", "setpriv", "unshare", "mount", "ls", "sleep", "printf"):
        found = shutil.which(tool)
        if found is not None and tool not in without:
            (tmp_path / tool).symlink_to(found)
    if script:
        (tmp_path / "bpftrace").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bpftrace").chmod(0o755)
    return str(tmp_path)


def test_bpftraces_own_words_are_the_reason_when_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_with(tmp_path, "echo 'ERROR: no such probe' >&2; exit 1"))
    with Tracer([DEVICE]) as tracer:
        assert tracer.start() == "bpftrace could not attach (ERROR: no such probe)"


def test_a_bpftrace_that_never_attaches_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'test "$1" = --version && exit; echo working >&2; exec sleep 600'
    monkeypatch.setenv("PATH", path_with(tmp_path, script))
    with Tracer([DEVICE], attach_s=3) as tracer:
        assert tracer.start() == "bpftrace did not attach within 3 s (working)"
        assert not [c for c in psutil.Process().children() if c.name() in ("sleep", "bpftrace")]


def test_a_bpftrace_that_will_not_end_is_made_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "test \"$1\" = --version && exit; trap '' INT; echo 'kv-cache: attached'; exec sleep 9"
    monkeypatch.setenv("PATH", path_with(tmp_path, script))
    monkeypatch.setitem(_PATIENCE_S, signal.SIGINT, 0.2)
    with Tracer([DEVICE]) as tracer:
        assert tracer.start() is None
        assert tracer.stop().reason == "bpftrace did not end when it was asked to"


def test_a_device_that_is_not_there_is_named() -> None:
    reason = Tracer(["no-such-device"]).start()
    assert reason == (
        "no-such-device is not a block device that the kernel numbers (/sys/class/block)"
    )


@pytest.mark.parametrize("tool", ["bpftrace", "setpriv"])
def test_a_tool_that_is_missing_is_named_with_its_package(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "" if tool == "bpftrace" else "exit"
    monkeypatch.setenv("PATH", path_with(tmp_path, script, without=[tool]))
    reason = Tracer([DEVICE]).start()
    assert reason is not None
    assert reason.startswith(f"{tool} is not installed: apt-get install ")


def test_without_root_the_reason_says_so() -> None:
    code = (
        "import os, sys; sys.path.insert(0, '.'); import kv_cache.bench.tracing as t; "
        "os.setuid(65534); print(t.Tracer(['vda']).start())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout == "tracing the block layer needs root: run this as root, or with sudo\n"
