"""What is done to a run while it goes on, and undone before it ends, is named: limits, mounts, loop
devices, tracers; and so is what others do to its files."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.devices import (
    LOOP_TOOLS,
    NBD_TOOLS,
    THROTTLED_RULES,
    changing_directory,
    counting_directory,
    why_not,
)
from kv_cache.bench.probes.settings_watch import SettingsWatch
from tests import cli
from tests.integration.test_passport import (
    WhenLoaded,
    cgroup,
    flags,
    measured,
    mounted,
    path_of,
    process,
    ran,
    started,
)
from tests.integration.test_runs import wait_for_objects
from tests.integration.test_stack import disk, on_image, once_free, run_on, tool
from tests.passports import named, names, says, status

NO_LOOPS, NO_NETWORK_DEVICES = why_not(LOOP_TOOLS), why_not(NBD_TOOLS)
needs_loops = pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "they are there")
pytestmark = pytest.mark.root
__all__ = ["disk"]  # a fixture

LONG = ("--max-requests=0", "--duration=5")
A_WHILE_S = 2.5


@contextmanager
def for_a_while(change: AbstractContextManager[object], cache: Path) -> Iterator[None]:
    """Change something after the first object of the run beside this, and change it back when the
    settings were looked at: of two looks the second has begun since."""
    over, failed, looks = threading.Event(), [], list[None]()
    look = SettingsWatch._look

    def noted(self: SettingsWatch) -> None:
        look(self)
        looks.append(None)

    def act() -> None:
        while not cli.anything(cache, "*/*/*.kv"):
            if over.wait(0.02):
                return
        try:
            with change:
                seen = len(looks)
                over.wait(A_WHILE_S)
                while len(looks) < seen + 2 and not over.wait(0.05):
                    pass
        except (OSError, subprocess.CalledProcessError) as error:
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        with patch.object(SettingsWatch, "_look", noted):
            yield
    finally:
        over.set()
        thread.join()
    assert not failed


@contextmanager
def switched(do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


@contextmanager
def in_memory(directories: Iterator[Path]) -> Iterator[None]:
    """Memory mounted over directories that others use."""
    with ExitStack() as stack:
        for directory in directories:
            tool("mount", "-t", "tmpfs", "tmpfs", str(directory))
            stack.callback(tool, "umount", "--lazy", str(directory))
        yield


# --- settings below the storage ------------------------------------------------------------------


@needs_loops
def test_an_io_limit_that_is_gone_before_the_run_ends_is_named(disk: Path) -> None:
    with on_image(disk / "image", direct=True) as directory:
        loop = Path(tool("findmnt", "-no", "SOURCE", str(directory))).name
        number = Path(f"/sys/block/{loop}/dev").read_text().strip()
        limit = cgroup("blkio", **{"throttle.read_bps_device": f"{number} 900000000000"})
        beside = for_a_while(limit, directory / "cache")
        own = run_on(disk, directory, *LONG, beside=beside)
    names(own, V24="suspect")
    assert f"{loop} read_bps=900000000000" in says(own, "V24")


def test_a_cpu_limit_of_another_cgroup_that_the_run_was_moved_to_is_named(tmp_path: Path) -> None:
    """Read at both ends, in the cgroup that the run begins and ends in, nothing was stopped."""
    cpu = Path("/sys/fs/cgroup/cpu")
    if not (cpu / "cgroup.procs").exists():
        pytest.skip("making a cgroup needs version 1's cpu controller")
    small = cpu / f"kv-cache-test-{os.getpid()}"
    small.mkdir()
    try:
        (small / "cpu.cfs_quota_us").write_text("5000")  # of each 100 ms
        program = started(tmp_path, "--max-requests=0", "--duration=8")
        wait_for_objects(tmp_path / "cache", program)
        worker = str(cli.worker_of(program))
        (small / "cgroup.procs").write_text(worker)
        time.sleep(4)
        (cpu / "cgroup.procs").write_text(worker)
        done = cli.finish(program, tmp_path)
    finally:
        once_free(small.rmdir)
    assert done.code == 0, done.err
    names(done.own, V24="suspect")
    assert "the CPU limit of this cgroup stopped the benchmark" in says(done.own, "V24")


@needs_loops
def test_barriers_that_are_off_for_a_part_of_the_run_are_named(disk: Path) -> None:
    with on_image(disk / "image", direct=True) as directory:

        def remount(option: str) -> Callable[[], object]:
            return lambda: tool("mount", "-o", f"remount,{option}", str(directory))

        change = switched(remount("barrier=0"), remount("barrier=1"))
        beside = for_a_while(change, directory / "cache")
        own = run_on(disk, directory, *LONG, "--fsync=object", beside=beside)
    names(own, V31="suspect")
    assert "is mounted without barriers" in says(own, "V31")
    assert own["passport"]["evidence"]["stack"]["no_barrier"] == []


@needs_loops
def test_direct_io_of_a_loop_device_that_is_off_for_a_part_of_the_run_is_named(disk: Path) -> None:
    with on_image(disk / "image", direct=True) as directory:
        loop = tool("findmnt", "-no", "SOURCE", str(directory))

        def direct(word: str) -> Callable[[], object]:
            return lambda: tool("losetup", f"--direct-io={word}", loop)

        beside = for_a_while(switched(direct("off"), direct("on")), directory / "cache")
        own = run_on(disk, directory, *LONG, beside=beside)
    names(own, V27="invalid")
    assert "(loop without direct I/O: dio 0) answers from the page cache" in says(own, "V27")


@needs_loops
def test_a_device_that_stops_counting_in_the_run_is_named(disk: Path) -> None:
    with on_image(disk / "image", direct=True) as directory:
        loop = Path(tool("findmnt", "-no", "SOURCE", str(directory))).name
        counts = Path(f"/sys/block/{loop}/queue/iostats")
        change = switched(lambda: counts.write_text("0"), lambda: counts.write_text("1"))
        own = run_on(disk, directory, *LONG, beside=for_a_while(change, directory / "cache"))
    assert {"V19", "V27"} & named(own).keys()
    names(own, also=("V19", "V27"))


@needs_loops
def test_a_trim_between_the_fill_and_the_end_is_named(disk: Path) -> None:
    """A fresh drive is steady too: the fill was handed back to it, as fstrim.timer does it."""
    moved = ("most_round_range=5", "most_round_change=5", "least_round_s=0.1",
             "least_round_turnover=0")  # fmt: skip
    loose = [f"--set=passport.{threshold}" for threshold in moved]
    with on_image(disk / "image", direct=True) as directory:

        def trim() -> None:
            tool("sync", "--file-system", str(directory))
            tool("fstrim", str(directory))

        rounds = ("--precondition", "--storage-capacity-gb=0.05", "--round=1", "--max-rounds=5")
        with for_a_while(switched(trim, trim), directory / "cache"):
            own = ran(disk, f"--cache-dir={directory / 'cache'}", *LONG, *rounds, *loose)
    names(own)
    assert own["preconditioning"]["proof"]["steady"]
    assert status(own, "V14") == "not-judged"
    assert "were discarded on the device after the fill" in says(own, "V14")


def test_counters_of_the_machine_that_are_not_the_kernels_are_named(tmp_path: Path) -> None:
    """As lxcfs mounts them over those of a container: of its own I/O alone, so that what others do
    on the disk is nobody's."""
    shown, over = tmp_path / "diskstats", threading.Event()

    def counters() -> str:
        """Of disks that stay, and wide: nothing moves as numbers change, so whoever reads while
        it is written has whole lines."""
        rows = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
        stay = [row for row in rows if not re.match(r"(loop|dm-|nbd)", row[2])]
        return "".join(" ".join(word.rjust(20) for word in row) + "\n" for row in stay)

    shown.write_text(counters())

    def follow() -> None:
        while not over.wait(0.01):
            with shown.open("r+") as file:
                file.write(counters())

    follower = threading.Thread(target=follow)
    follower.start()
    run = cli.command("run", *flags(tmp_path, [], {}))
    script = f'mount --bind {shown} /proc/diskstats && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *run]
    try:
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    finally:
        over.set()
        follower.join()
    assert done.returncode == 0, done.stderr
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    names(own, V5="suspect", also=("V27", "V31"))  # the copy is some ms late
    assert "on /proc/diskstats), as in a container" in says(own, "V5")


# --- mounts over the cache -----------------------------------------------------------------------


def test_memory_that_is_mounted_over_the_cache_directory_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    beside = for_a_while(in_memory(iter([cache])), cache)
    own = measured(tmp_path, *LONG, beside=beside)
    names(own, V28="suspect", also=("V12",))
    assert f"tmpfs {cache} was not there as it began" in says(own, "V28")


def test_memory_that_is_mounted_over_the_objects_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    quarter = (each for each in cache.glob("*/[0-3]?") if each.is_dir())
    own = measured(tmp_path, *LONG, beside=for_a_while(in_memory(quarter), cache))
    names(own, V6="invalid", V1="invalid", also=("V2", "V3", "V12", "V19"))
    assert "the rest never was I/O of this process" in says(own, "V6")


def test_an_overlay_is_named(tmp_path: Path) -> None:
    parts = {name: tmp_path / name for name in ("lower", "upper", "work")}
    for part in parts.values():
        part.mkdir()
    options = ",".join(f"{name}dir={part}" for name, part in parts.items())
    at = tmp_path / "merged"
    with mounted(at, "-t", "overlay", "overlay", "-o", options):
        own = measured(tmp_path, f"--cache-dir={at / 'cache'}")
    names(own, V5="suspect")
    assert "file system overlay" in says(own, "V5")


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["file", "arena", "bucket"])
def test_holes_that_others_punch_into_the_objects_are_named(layout: str, tmp_path: Path) -> None:
    turn = itertools.count()

    def punch(fd: int) -> None:
        if next(turn) % 10 == 9:
            path = path_of(fd)
            tool("fallocate", "--punch-hole", "--length", str(path.stat().st_size), str(path))

    own = measured(tmp_path, f"--layout={layout}", wrap=lambda store: WhenLoaded(store, punch))
    names(own, V22="invalid", V12="invalid", also=("V1", "V2", "V6", "V19"))
    assert "did not have the data that was stored" in says(own, "V22")


@contextmanager
def later(seconds: float, do: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, do)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@pytest.mark.nightly
@pytest.mark.skipif(NO_NETWORK_DEVICES is not None, reason=NO_NETWORK_DEVICES or "they are there")
@pytest.mark.parametrize(("at_first", "then", "how"), [(150, 50, "fell"), (50, 150, "rose")])
def test_a_device_whose_speed_changes_in_the_window_is_named(
    tmp_path: Path, at_first: int, then: int, how: str
) -> None:
    """In MB/s: what is published would be the mean of two devices."""
    with changing_directory(at_first * 1_000_000, 0.5) as device:
        beside = later(18, lambda: device.set_rate(then * 1_000_000))
        own = run_on(tmp_path, device.path, "--max-requests=0", "--duration=34", beside=beside)
    names(own, V14="suspect", **THROTTLED_RULES)
    assert f"the bandwidth of storage {how} by " in says(own, "V14")


@pytest.mark.nightly
@pytest.mark.skipif(NO_NETWORK_DEVICES is not None, reason=NO_NETWORK_DEVICES or "they are there")
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_neighbour_of_many_small_requests_is_named(kind: str, tmp_path: Path) -> None:
    """It moves a hundredth of our bytes, and takes half of what the device serves: 206 MB/s were
    87, and VALID."""
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    small = (f"--rw=rand{kind}", "--bs=4k", "--iodepth=16", "--ioengine=libaio", "--direct=1")
    with counting_directory(500, 1) as directory:
        tool("dd", "if=/dev/urandom", f"of={directory}/other", "bs=1M", "count=64", "oflag=direct")
        other = ("fio", "--name=other", f"--filename={directory}/other", *small,
                 "--size=64m", "--time_based", "--runtime=300")  # fmt: skip
        flags = ("--decode-only", "--layout=arena", "--io-threads=1", "--duration=30")
        with process(*other):
            own = run_on(tmp_path, directory, *flags, "--max-requests=0")
    names(own, V23="suspect", **THROTTLED_RULES)
    assert "reads and writes beside at most" in says(own, "V23"), says(own, "V23")


# --- the process ---------------------------------------------------------------------------------

OTHER_SPEED = """
import time
now, began = time.monotonic_ns, time.monotonic_ns()
time.monotonic_ns = lambda: began + (now() - began) * {times} // 2
"""
NO_FSYNC = """
import os
os.fsync = os.fdatasync = lambda fd: None
"""


def with_site(cwd: Path, code: str, *more: str) -> Any:
    """A run of an interpreter that runs this code before any program."""
    (cwd / "site").mkdir()
    (cwd / "site/sitecustomize.py").write_text(code)
    environ = cli.environment() | {"PYTHONPATH": f"{cwd / 'site'}:{cli.ROOT}"}
    command = cli.command("run", *flags(cwd, more, {}))
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    own = json.loads((cwd / "R.json").read_bytes())["kv_cache"]
    assert f"Run: {own['passport']['verdict'].upper()}." in done.stdout
    return own


@pytest.mark.parametrize("times", [1, 4])
def test_an_interpreter_whose_clock_is_replaced_is_named(tmp_path: Path, times: int) -> None:
    """Half and double speed. What the kernel timed seems to end before it began, or to last for
    longer than it was asked for; before, the summary of the first ended in a traceback."""
    code = OTHER_SPEED.format(times=times)
    own = with_site(tmp_path, code, "--max-requests=0", "--duration=1")
    names(own, V21="invalid", also=("V25",))
    assert "something answers for the clock" in says(own, "V21")


def test_an_interpreter_whose_fsync_is_replaced_is_named(tmp_path: Path) -> None:
    own = with_site(tmp_path, NO_FSYNC, "--fsync=object")
    names(own, V4="invalid", also=("V31",))
    assert "fsync" in says(own, "V4")


def strace(*more: str) -> list[str]:
    if (program := shutil.which("strace")) is None:
        pytest.skip("strace is not installed")
    return [program, "-f", "-qq", "-o", "/dev/null", *more]


def test_a_tracer_that_answers_fsync_is_named(tmp_path: Path) -> None:
    command = cli.command("run", *flags(tmp_path, ["--fsync=object"], {}))
    fake = strace("-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:retval=0")
    subprocess.run([*fake, *command], cwd=tmp_path, check=True, capture_output=True)
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    names(own, V4="invalid", also=("V31",))


def test_a_tracer_that_comes_and_goes_is_named(tmp_path: Path) -> None:
    program = started(tmp_path, "--max-requests=0", "--duration=10")
    wait_for_objects(tmp_path / "cache", program)
    with process(*strace("-e", "trace=none", "-p", str(cli.worker_of(program)))) as tracer:
        time.sleep(2 * A_WHILE_S)  # in which the settings are looked at some times
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
    done = cli.finish(program, tmp_path)
    assert done.code == 0, done.err
    names(done.own, V4="suspect")
    assert "strace (" in says(done.own, "V4")


def test_a_run_that_is_stopped_for_moments_again_and_again_is_named(tmp_path: Path) -> None:
    """Each stop is shorter than what a gap is, and the wall clock has nothing to show for it."""
    program = started(tmp_path, "--max-requests=0", "--duration=8")
    wait_for_objects(tmp_path / "cache", program)
    worker = cli.worker_of(program)
    for _ in range(6):
        time.sleep(0.7)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(worker, signal.SIGCONT)
    done = cli.finish(program, tmp_path)
    assert done.code == 0, done.err
    names(done.own, V25="suspect")
