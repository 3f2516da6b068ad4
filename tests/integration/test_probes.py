"""The probes where the fault is real: preloaded libraries, quotas, a busy neighbour."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from kv_cache.bench.counters import device_of
from kv_cache.bench.probes.foreign import culprits, snapshot
from kv_cache.bench.probes.interposed import look
from kv_cache.bench.probes.pagecache import resident_pages
from kv_cache.core.units import MIB
from tests.cli import PATIENCE_S

ROOT = Path(__file__).parents[2]
PATHS = f"{ROOT}:{Path(numpy.__file__).parents[1]}"
SYSTEM_PYTHON = "/usr/bin/python3"

LOOK = """
import json, sys
from pathlib import Path
from kv_cache.bench.probes import interposed, pagecache
if sys.argv[2:] == ["old-kernel"]:
    pagecache._CACHESTAT = None
print(json.dumps(interposed.look(Path(sys.argv[1]))))
"""

FAKE_FADVISE = """
int posix_fadvise(int fd, long offset, long length, int advice) { return 0; }
int posix_fadvise64(int fd, long offset, long length, int advice) { return 0; }
"""

SMART_FSYNC = """
#include <fcntl.h>
int fsync(int fd) { return fcntl(fd, F_GETFD) < 0 ? -1 : 0; }  /* EBADF passes through */
"""

HARMLESS = "int answer(void) { return 42; }\n"

needs_numbers = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"),
    reason="the numbers of the system calls are known on x86_64 and aarch64",
)


def run_python(
    code: str, *arguments: object, program: tuple[str, ...] = (sys.executable,), **variables: str
) -> Any:
    """What a Python process printed as JSON; no preload of this process is inherited."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [*program, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": PATHS} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def disk_directory(tmp_path: Path) -> Path:
    """Where a page that is clean can be dropped: not in memory."""
    if (note := look(tmp_path)["note"]) is not None:
        pytest.skip(note)
    return tmp_path


def library(directory: Path, code: str, name: str = "libfake.so") -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile a library with")
    source, made = directory / "fake.c", directory / name
    source.write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def looked_with(library: Path, directory: Path, *more: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run_python(LOOK, directory, *more, LD_PRELOAD=str(library))
    assert found["preload"] == f"LD_PRELOAD: {library}"
    return found


def three_looks(fake: Path, directory: Path, *more: str) -> list[Mapping[str, Any]]:
    """Look for a faked fsync that passes for a true one. The kernel may write a page back by itself
    just then, as if it had been synced: one look can miss the fake, and several do not."""
    looks = [looked_with(fake, directory, *more) for _ in range(3)]
    assert ["fsync"] in [found["disagreeing"] for found in looks]
    return looks


@needs_numbers
def test_without_a_preload_nothing_is_foreign_and_nothing_disagrees(disk_directory: Path) -> None:
    found = run_python(LOOK, disk_directory)
    assert found["foreign_symbols"] == []
    assert found["disagreeing"] == []
    assert found["preload"] is None
    assert {"fsync", "posix_fadvise", "mincore"} <= found["symbols"].keys()


@needs_numbers
def test_eatmydata_is_named(disk_directory: Path) -> None:
    if (tool := shutil.which("eatmydata")) is None:
        pytest.skip("eatmydata is not installed")
    found = run_python(LOOK, disk_directory, program=(tool, sys.executable))
    assert {"fsync", "fdatasync", "msync", "open"} <= set(found["foreign_symbols"])
    assert found["disagreeing"] == ["fdatasync", "fsync"]
    assert "libeatmydata" in found["preload"]
    assert any("libeatmydata" in path for path in found["libraries"])


@needs_numbers
def test_a_faked_posix_fadvise_is_named(disk_directory: Path) -> None:
    fake = library(disk_directory, FAKE_FADVISE)
    found = looked_with(fake, disk_directory)
    assert found["foreign_symbols"] == ["posix_fadvise", "posix_fadvise64"]
    assert found["symbols"]["posix_fadvise"] == str(fake)
    assert found["disagreeing"] == ["posix_fadvise"]


@needs_numbers
@pytest.mark.parametrize("kernel", ["this-kernel", "old-kernel"])
def test_a_faked_fsync_that_refuses_bad_descriptors_is_named(
    disk_directory: Path, kernel: str
) -> None:
    looks = three_looks(library(disk_directory, SMART_FSYNC), disk_directory, kernel)
    assert all(found["foreign_symbols"] == ["fsync"] for found in looks)


@needs_numbers
def test_a_fake_that_is_called_like_the_c_library_is_still_found_out(disk_directory: Path) -> None:
    looks = three_looks(library(disk_directory, SMART_FSYNC, "libc-2.99.so"), disk_directory)
    # It does not lie where the loader does.
    assert all(found["foreign_symbols"] == ["fsync"] for found in looks)


@needs_numbers
def test_a_preload_that_answers_no_system_call_is_told_and_nothing_more(
    disk_directory: Path,
) -> None:
    harmless = library(disk_directory, HARMLESS)
    found = looked_with(harmless, disk_directory)
    assert found["foreign_symbols"] == []
    assert found["disagreeing"] == []
    assert str(harmless) in found["libraries"]


@needs_numbers
def test_a_python_linked_to_a_fixed_address_hides_no_preload(disk_directory: Path) -> None:
    """Debian's is: there, the loader names the executable itself as where fsync is."""
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"no {SYSTEM_PYTHON}")
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if version != str(sys.version_info[:2]):
        pytest.skip(f"{SYSTEM_PYTHON} is of another version than the packages")
    fake = library(disk_directory, SMART_FSYNC)
    assert run_python(LOOK, disk_directory, program=(SYSTEM_PYTHON,))["foreign_symbols"] == []
    found = run_python(LOOK, disk_directory, program=(SYSTEM_PYTHON,), LD_PRELOAD=str(fake))
    assert found["foreign_symbols"] == ["fsync"]
    assert found["symbols"]["fsync"] == str(fake)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A stacked file system, as the root of most containers is."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    merged = tmp_path / "merged"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    yield merged
    subprocess.run(["umount", merged], check=True)


@pytest.mark.root
def test_pages_are_seen_through_a_stacked_file_system(overlay: Path) -> None:
    with (overlay / "object").open("w+b", buffering=0) as file:
        file.write(os.urandom(MIB))
        assert resident_pages(file.fileno(), 0, MIB) == MIB // os.sysconf("SC_PAGE_SIZE")


@pytest.mark.root
@needs_numbers
def test_a_faked_fsync_is_named_on_a_stacked_file_system(overlay: Path, tmp_path: Path) -> None:
    if look(overlay)["note"] is not None:
        pytest.skip("pages cannot be dropped here")
    three_looks(library(tmp_path, SMART_FSYNC), overlay)


@pytest.fixture
def cgroup(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup of version 1 of our own below the controller that the test names."""
    parent = Path("/sys/fs/cgroup") / request.param
    if os.geteuid() != 0 or not (parent / "cgroup.procs").exists():
        pytest.skip(f"making a cgroup needs root and version 1's {request.param} controller")
    made = parent / f"kv-cache-test-{os.getpid()}"
    made.mkdir()
    yield made
    made.rmdir()


THROTTLED = """
import json, os, sys, time
from pathlib import Path
from kv_cache.bench.probes.throttles import over, read_throttles
(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
before = read_throttles()
end = time.process_time() + 0.1
while time.process_time() < end:
    pass
print(json.dumps(over([(before, read_throttles())])))
"""


@pytest.mark.root
@pytest.mark.parametrize("cgroup", ["cpu"], indirect=True)
def test_a_cpu_quota_is_told_in_seconds(cgroup: Path) -> None:
    (cgroup / "cpu.cfs_quota_us").write_text(
        "5000"
    )  # of each 100 ms: less than a busy machine leaves
    found = run_python(THROTTLED, cgroup)
    assert found["cpu_throttled_periods"] > 0
    assert found["cpu_throttled_s"] > 0


@pytest.mark.root
@pytest.mark.parametrize("cgroup", ["blkio"], indirect=True)
def test_a_limit_on_a_disk_is_named(cgroup: Path, tmp_path: Path) -> None:
    device = device_of(tmp_path)
    if device is None or not Path(f"/sys/block/{device}").exists():
        pytest.skip("the temporary directory is not on a whole disk")
    number = Path(f"/sys/block/{device}/dev").read_text().strip()
    (cgroup / "blkio.throttle.read_bps_device").write_text(f"{number} 123456789")
    found = run_python(THROTTLED, cgroup)
    assert f"{device} read_bps=123456789 ({cgroup})" in found["io_limits"]


NEIGHBOUR = """
import os, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    print("ready", flush=True)
    sys.stdin.readline()
    file.write(os.urandom(8 << 20))
    os.fsync(file.fileno())
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_a_neighbour_that_writes_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NEIGHBOUR, str(tmp_path / "f")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as neighbour:
        assert neighbour.stdin is not None
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        before = snapshot()
        neighbour.stdin.write("\n")
        neighbour.stdin.flush()
        neighbour.stdout.readline()
        after = snapshot()
        neighbour.stdin.write("\n")
    if neighbour.pid not in before or device_of(tmp_path) is None:
        pytest.skip("the kernel does not count a process's bytes here")
    only = {neighbour.pid: after[neighbour.pid]}  # others may be busier on this machine
    (found,) = culprits(before, only)
    assert found.pid == neighbour.pid
    assert found.write_bytes >= 8 * MIB
