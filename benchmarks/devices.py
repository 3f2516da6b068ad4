"""Devices whose speed we set, or break: directories and files in RAM, as long as a `with` lasts.

    with ram_directory(gib=4) as directory: …                     ext4 on a loop device in RAM
    with throttled_directory(200_000_000, gib=4) as directory: …  the same behind a rate limit
    with throttled_file(200_000_000, gib=4) as path: …            one file behind a rate limit
    with changing_directory(200_000_000, gib=4) as device: device.set_rate(70_000_000)
    with faulty_directory(gib=1) as faults: faults.break_(); …; faults.mend()

Everything that a device consists of (backing file, sockets, process ids, mount points) lies in one
directory in /dev/shm whose name tells the process that made it. What is there is taken down by
reading that directory, when the `with` ends however it ends; after a `kill -9` the next device
that anybody makes takes down what it finds. Needs root, and the Debian packages nbdkit, libnbd-bin
and qemu-system-common.

    python benchmarks/devices.py            make one of each and print what fio measures on it
    python benchmarks/devices.py --clean    only take down what dead processes have left
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.core.units import GIB, MIB

SHM = Path("/dev/shm")
PREFIX = "kv-bench-device-"

BURST_S = 0.02
"""Credit of the rate limit after idling: enough to make up for a thread that wakes late, and small
beside what is measured. nbdkit's own default is 2 s."""
_PACKAGES = {
    "losetup": "mount",
    "mkfs.ext4": "e2fsprogs",
    "nbdkit": "nbdkit",
    "nbdfuse": "libnbd-bin",
    "qemu-storage-daemon": "qemu-system-common",
    "fio": "fio",
}
LOOP_TOOLS = ("losetup", "mkfs.ext4")
NBD_TOOLS = (*LOOP_TOOLS, "nbdkit", "nbdfuse")
QEMU_TOOLS = ("qemu-storage-daemon",)
_PATIENCE_S = 120.0  # with daemons on a busy machine
_CLOSING_S = 10.0  # with whoever still holds a device that goes
_POLL_S = 0.01

_daemons: dict[Path, list["subprocess.Popen[bytes]"]] = {}


RAM_RULES = {"V27": "invalid"}
THROTTLED_RULES = {"V28": "suspect"}
"""What the passport's rules on the stack say of runs on these devices: this and nothing else."""
_STACK_RULES = ("V27", "V28", "V31")


def stack_rules(own: dict[str, Any]) -> dict[str, str]:
    """The rules on what lies below the storage that found something in a run, from its section
    `kv_cache`."""
    found = {row["rule"]: row["status"] for row in own["passport"]["rules"]}
    return {n: found[n] for n in _STACK_RULES if found[n] in ("suspect", "invalid")}


# --- what is offered -----------------------------------------------------------------------


def why_not(tools: Sequence[str]) -> str | None:
    """Why devices that need these tools cannot be made here, as one sentence; None = they can."""
    if os.geteuid() != 0:
        return "devices with a set speed need root: run this as root"
    if tools is not QEMU_TOOLS and not Path("/dev/loop-control").exists():
        return "there are no loop devices here (/dev/loop-control): run this outside a container"
    if tools is not LOOP_TOOLS and not Path("/dev/fuse").exists():
        return "there is no FUSE here (/dev/fuse): run this outside a container"
    for tool in tools:
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install {_PACKAGES[tool]}"
    return None


@contextmanager
def ram_directory(gib: float, *, sector_bytes: int = 512, journal: bool = False) -> Iterator[Path]:
    """A directory that moves several GB/s: what is measured there is the client. `sector_bytes` is
    the least that its device moves. Where files are made and deleted all the time it needs a
    `journal`: without one ext4 looks at each inode that was deleted within the last minutes, at
    every file that it makes, which takes most of the time."""
    with _work(gib, LOOP_TOOLS) as work:
        yield _file_system(work, work / "back.img", sector_bytes=sector_bytes, journal=journal)


@contextmanager
def throttled_directory(
    bytes_per_s: int,
    gib: float,
    *,
    burst_s: float = BURST_S,
    loop_direct: bool = True,
    journal: bool = False,
) -> Iterator[Path]:
    """A directory on a device with this rate, for reads and for writes each. Devices of different
    rates that shall differ in nothing else need the same credit in bytes: `burst_s` times rate.
    Without `loop_direct` the page cache lies above the device, as `losetup` leaves it."""
    with _work(gib, NBD_TOOLS) as work:
        options = [f"rate={8 * bytes_per_s}", f"burstiness={burst_s:f}"]
        block = _network_block_device(work, ["rate"], options)
        yield _file_system(work, block, loop_direct, journal=journal)


@contextmanager
def counting_directory(requests_per_s: int, gib: float) -> Iterator[Path]:
    """A directory on a device that serves so many requests a second, however large they are."""
    with _work(gib, NBD_TOOLS) as work:
        each = f"{1000 // requests_per_s}ms"
        options = ["serialize=all-requests", f"rdelay={each}", f"wdelay={each}"]
        yield _file_system(work, _network_block_device(work, ["noparallel", "delay"], options))


@contextmanager
def throttled_file(bytes_per_s: int, gib: float) -> Iterator[Path]:
    """One file of `gib` with this rate, for reads and for writes each. After idling it has a
    credit of 0.1 s."""
    with _work(gib, QEMU_TOOLS) as work:
        exported = work / "exported"
        exported.touch()
        limits = f"x-bps-read={bytes_per_s},x-bps-write={bytes_per_s}"
        back = f"filename={work / 'back.img'},cache.direct=on"
        command = [
            "qemu-storage-daemon",
            "--object", f"throttle-group,id=limits,{limits}",
            "--blockdev", f"driver=file,node-name=back,{back}",
            "--blockdev", "driver=throttle,node-name=limited,throttle-group=limits,file=back",
            "--export", f"type=fuse,id=out,node-name=limited,writable=on,mountpoint={exported}",
        ]  # fmt: skip
        _start(work, "qemu", command, lambda: _mounted(exported))
        yield exported


class Throttle:
    """A directory on a device whose rate can be set while it is used."""

    def __init__(self, path: Path, rate: Path) -> None:
        self.path = path
        self._rate = rate

    def set_rate(self, bytes_per_s: int) -> None:
        new = self._rate.with_suffix(".new")
        new.write_text(f"{8 * bytes_per_s}\n")
        new.rename(self._rate)


@contextmanager
def changing_directory(bytes_per_s: int, gib: float) -> Iterator[Throttle]:
    """A directory on a device that has this rate at first."""
    with _work(gib, NBD_TOOLS) as work:
        rate = work / "rate"
        options = [f"rate={8 * bytes_per_s}", f"burstiness={BURST_S:f}", f"rate-file={rate}"]
        yield Throttle(_file_system(work, _network_block_device(work, ["rate"], options)), rate)


class Faults:
    """A directory on a device that breaks, freezes and recovers when told to."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path = path
        self._work = work

    def break_(self, *, reads: bool = True, writes: bool = True) -> None:
        """From now on every read, or write, of the device fails."""
        for wanted, trigger in ((reads, "broken-pread"), (writes, "broken-pwrite")):
            if wanted:
                (self._work / trigger).touch()

    def mend(self) -> None:
        for trigger in self._work.glob("broken-*"):
            trigger.unlink()

    def pause(self) -> None:
        """Requests of the device hang from now on; those in flight have ended."""
        _tell(self._work, b"p")

    def resume(self) -> None:
        _tell(self._work, b"r")


@contextmanager
def faulty_directory(
    gib: float, *, bytes_per_s: int | None = None, error: str = "EIO"
) -> Iterator[Faults]:
    """A directory on a device that can be broken. `error` is EIO or ENOSPC. Without a journal:
    ext4 stays writable after failed data writes."""
    with _work(gib, NBD_TOOLS) as work:
        options = [f"pause-control={work / 'pause'}"]
        for call in ("pread", "pwrite"):
            options += [
                f"error-{call}={error}",
                f"error-{call}-rate=100%",
                f"error-{call}-file={work / f'broken-{call}'}",
            ]
        filters = ["pause", "error"]
        if bytes_per_s is not None:
            filters.append("rate")
            options += [f"rate={8 * bytes_per_s}", f"burstiness={BURST_S}"]
        yield Faults(_file_system(work, _network_block_device(work, filters, options)), work)


def daemon_pids() -> set[int]:
    """The processes that make up the devices of this process."""
    return {daemon.pid for daemons in _daemons.values() for daemon in daemons}


def leave_cleanly_on_sigterm() -> None:
    """SIGTERM then unwinds like Ctrl-C, so that devices are taken down. For scripts."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def clean() -> list[Path]:
    """Take down what processes that are dead have left behind; one process at a time does."""
    lock = os.open(SHM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left = [work for work in SHM.glob(f"{PREFIX}*") if not _maker_lives(work)]
        for work in left:
            _take_down(work)
        return left
    finally:
        os.close(lock)


# --- how it is made ------------------------------------------------------------------------


@contextmanager
def _work(gib: float, tools: Sequence[str]) -> Iterator[Path]:
    """The directory of one device, with its backing file; it goes with everything in it."""
    reason = why_not(tools)
    if reason is not None:
        raise PlaceError(reason)
    clean()
    nbytes = int(gib * GIB) // MIB * MIB
    free = os.statvfs(SHM).f_bavail * os.statvfs(SHM).f_frsize
    if nbytes > free:
        raise PlaceError(
            f"a device of {gib} GiB: {SHM} has {free / GIB:.1f} GiB free; make it smaller"
        )
    work = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=SHM))
    try:
        _fill(work / "back.img", nbytes)
        yield work
    finally:
        with _signals_held():
            _take_down(work)


def _fill(path: Path, nbytes: int) -> None:
    """Write it all: memory that a virtual machine touches for the first time is slow (300 MB/s)."""
    zeros = bytes(MIB)
    with path.open("xb", buffering=0) as file:
        for _ in range(nbytes // MIB):
            file.write(zeros)


def _network_block_device(work: Path, filters: Sequence[str], options: Sequence[str]) -> Path:
    """The backing file behind nbdkit's filters, as a file of a FUSE mount."""
    point = work / "nbd"
    point.mkdir()
    serve = ["nbdkit", "--foreground", "--unix", str(work / "socket")]
    serve += ["--pidfile", str(work / "nbdkit.ready")]
    serve += [f"--filter={name}" for name in filters]
    serve += ["file", str(work / "back.img"), *options]
    _start(work, "nbdkit", serve, (work / "nbdkit.ready").exists)
    mount = ["nbdfuse", str(point), "--unix", str(work / "socket")]
    _start(work, "nbdfuse", mount, lambda: _mounted(point))
    return point / "nbd"


def _file_system(
    work: Path,
    block: Path,
    loop_direct: bool = True,
    *,
    sector_bytes: int = 512,
    journal: bool = False,
) -> Path:
    """ext4 on a loop device on `block`. No journal, or none that is written every few seconds, and
    no lazy initialisation: nothing but what is measured moves bytes there."""
    point = work / "fs"
    point.mkdir()
    direct = f"--direct-io={'on' if loop_direct else 'off'}"
    sector = f"--sector-size={sector_bytes}"
    made = _run("losetup", direct, sector, "--show", "--find", str(block))
    loop = made.stdout.strip()
    _run(
        "mkfs.ext4", "-q", "-m", "0", "-O", "has_journal" if journal else "^has_journal",
        "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", loop,
    )  # fmt: skip
    _run("mount", "-o", "noatime,commit=900" if journal else "noatime", loop, str(point))
    return point


def _start(work: Path, name: str, command: Sequence[str], ready: Callable[[], bool]) -> None:
    """A daemon in a session of its own: a Ctrl-C must not end it before what stands on it."""
    log = work / f"{name}.log"
    with log.open("wb") as said:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    _daemons.setdefault(work, []).append(daemon)
    (work / f"{name}.pid").write_text(str(daemon.pid))
    if not _eventually(lambda: daemon.poll() is not None or ready()) or daemon.poll() is not None:
        raise PlaceError(f"{name} did not start: {log.read_text().strip() or 'it said nothing'}")


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    """A tool that must succeed, out of reach of Ctrl-C."""
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise PlaceError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done


def _tell(work: Path, command: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(_PATIENCE_S)
        control.connect(str(work / "pause"))
        control.sendall(command)
        assert control.recv(1) == command.upper(), "nbdkit's pause filter answers in upper case"


# --- how it is taken down ------------------------------------------------------------------


def _take_down(work: Path) -> None:
    """From the top: file system, loop device, FUSE, daemons, files. A device that is broken or
    frozen is made to work again first, or unmounting would hang."""
    for trigger in work.glob("broken-*"):
        trigger.unlink()
    if (work / "pause").exists():
        with suppress(OSError):  # the daemon may be dead
            _tell(work, b"r")
    _unmount(work / "fs")
    for block in (work / "back.img", work / "nbd" / "nbd"):
        for loop in _loops(block):
            _run("losetup", "--detach", loop)
    _unmount(work / "nbd")
    _unmount(work / "exported")
    for daemon in _daemons.pop(work, []):
        daemon.terminate()
        try:
            daemon.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:  # it waits for a client that holds what was detached
            daemon.kill()
            daemon.wait()
    for note in work.glob("*.pid"):
        _end_stray(int(note.read_text()), work)
    shutil.rmtree(work)


def _unmount(point: Path) -> None:
    """Somebody may still be closing files: try for a while, then detach it lazily."""
    if _mounted(point) and not _eventually(lambda: _unmounts(point), _CLOSING_S):
        _run("umount", "--lazy", str(point))


def _unmounts(point: Path) -> bool:
    done = subprocess.run(["umount", str(point)], capture_output=True, start_new_session=True)
    return done.returncode == 0 or not _mounted(point)


def _loops(block: Path) -> list[str]:
    """Loop devices on a file, found by its name: the daemon behind it may be dead."""
    listed = json.loads(_run("losetup", "--list", "--json").stdout or '{"loopdevices": []}')
    return [row["name"] for row in listed["loopdevices"] if row["back-file"] == str(block)]


def _end_stray(pid: int, work: Path) -> None:
    """End a daemon whose maker was killed, if this is still that process."""
    with suppress(OSError):
        if str(work).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
            _eventually(lambda: not Path(f"/proc/{pid}").exists(), _CLOSING_S)


def _maker_lives(work: Path) -> bool:
    pid = work.name.removeprefix(PREFIX).partition("-")[0]
    return Path(f"/proc/{pid}").exists()


def _mounted(point: Path) -> bool:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(point) for line in mounts)


def _eventually(condition: Callable[[], bool], seconds: float = _PATIENCE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


@contextmanager
def _signals_held() -> Iterator[None]:
    """A second Ctrl-C must not leave half a device behind."""
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- a look at them ------------------------------------------------------------------------


def measured_rate(path: Path, nbytes: int) -> dict[str, float]:
    """Bytes/s that fio writes, then reads, in 1 MiB blocks with direct I/O."""
    rates = {}
    for rw in ("write", "read"):
        command = [
            "fio", "--name=rate", f"--filename={path}", f"--rw={rw}", "--direct=1",
            "--ioengine=psync", "--thread", f"--bs={MIB}", f"--size={nbytes}",
            "--output-format=json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rates[rw] = float(json.loads(done.stdout)["jobs"][0][rw]["bw_bytes"])
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clean", action="store_true")
    leave_cleanly_on_sigterm()
    if parser.parse_args().clean:
        for work in clean():
            print(f"taken down: {work}")
        return
    reason = why_not((*NBD_TOOLS, *QEMU_TOOLS, "fio"))
    if reason is not None:
        raise PlaceError(reason)
    print(f"{'device':<28}{'write MB/s':>12}{'read MB/s':>12}")
    with ram_directory(2) as directory:
        _show("RAM", measured_rate(directory / "file", GIB))
    for rate in (100_000_000, 200_000_000, 467_000_000):
        nbytes = 3 * rate // MIB * MIB
        with throttled_directory(rate, 2) as directory:
            _show(f"{rate // 10**6} MB/s, nbdkit", measured_rate(directory / "file", nbytes))
        with throttled_file(rate, 2) as path:
            _show(f"{rate // 10**6} MB/s, qemu", measured_rate(path, nbytes))


def _show(name: str, rates: dict[str, float]) -> None:
    print(f"{name:<28}{rates['write'] / 1e6:>12.1f}{rates['read'] / 1e6:>12.1f}")


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(str(error))
