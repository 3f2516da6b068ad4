"""Latency of the block layer while a run goes on, by bpftrace (`--enable-latency-tracing`).

bpftrace is a child in a session of its own, so that Ctrl-C is ours alone, and it does not outlive
us: the kernel kills it when the thread that started it ends. Its output goes to memory, not to a
disk that is being measured. Where the tracepoints' file system is not mounted, it is mounted for
the child alone, in a mount namespace of its own.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from kv_cache.bench.bpftrace_program import ATTACHED, CLOSE, OPEN, kernel_number, missing, program
from kv_cache.bench.probes.diskstats import DiskStats, read_diskstats
from kv_cache.bench.procfs import text_of
from kv_cache.metrics.tracing import READ, WRITE, Traced, parse

ATTACH_S = 60.0
"""How long attaching may take; a second is usual, on a busy machine it may be 20."""

_PATIENCE_S = {signal.SIGINT: ATTACH_S, signal.SIGTERM: 2.0, signal.SIGKILL: None}
"""How long to wait after a signal: after the first, bpftrace detaches (2 s) and prints."""
_POLL_S = 0.02
_TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_TOOLS = {"bpftrace": "bpftrace", "setpriv": "util-linux", "unshare": "util-linux"}
_MORTAL = ("setpriv", "--pdeathsig", "KILL")
"""The start of a command that the kernel kills when we end, however we do: its output is not read
any more then."""
_WITH_ITS_NUMBER = ("sh", "-c", 'exec bpftrace "$@" "$$"', "sh")
"""The start of a command that gives bpftrace its own process number, as its last argument."""
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO
_HARMLESS = "RLIMIT_MEMLOCK"  # kernels since 5.11 don't count BPF memory there


class Tracer:
    """`start` before the measured window and `stop` behind it, both from a thread that lives as
    long as the run; leaving the `with` ends bpftrace in any case."""

    def __init__(self, devices: Sequence[str], *, attach_s: float = ATTACH_S) -> None:
        """`devices` as `counters.device_of` names them."""
        self._wanted = tuple(dict.fromkeys(devices))
        self._attach_s = attach_s
        self._reason: str | None = "it was not started"
        self._child: subprocess.Popen[bytes] | None = None
        self._out = self._err = -1
        self._ended_well = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end((signal.SIGKILL,))

    def start(self) -> str | None:
        """None once every event is traced; else why none is, as one sentence."""
        assert self._child is None, "it has been started"
        try:
            self._reason = why_not(self._wanted) or self._attach()
        except OSError as error:
            self._reason = f"bpftrace could not be started ({error})"
        if self._reason is not None:
            self._end((signal.SIGTERM, signal.SIGKILL))
        return self._reason

    def stop(self) -> Traced:
        """Return what was traced. Takes as long as bpftrace needs to print it."""
        if self._child is None:
            return Traced(reason=self._reason)
        ended = self._child.poll()
        self._child.send_signal(CLOSE)
        after, seconds = read_diskstats(self._devices), time.monotonic() - self._began
        out, err = self._end((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
        if ended is not None:
            return Traced(reason=f"bpftrace ended before the run did{_last_words(err)}")
        if not self._ended_well:
            return Traced(reason=f"bpftrace did not end when it was asked to{_last_words(err)}")
        return Traced(
            reason=None,
            version=self._version,
            devices=self._devices,
            tracepoints=self._program.tracepoints,
            seconds=seconds,
            printed=parse(f"{out}\n{err}"),
            kernel_operations=_operations(self._before, after),
            notes=tuple(self._notes),
        )

    # --- starting ----------------------------------------------------------------------------

    def _attach(self) -> str | None:
        tracepoints, refused = _tracepoints()
        if refused is not None:
            return refused
        lacking = missing(tracepoints)
        if lacking:
            return f"the kernel has no tracepoint {lacking[0]}: it was built without block tracing"
        self._devices = tuple(dict.fromkeys(d for w in self._wanted for d in request_devices(w)))
        numbers = {device: _number(device) for device in self._devices}
        unknown = [device for device, number in numbers.items() if number is None]
        if unknown:
            return f"{unknown[0]} is not a block device that the kernel numbers (/sys/class/block)"
        self._version = _version()
        pid = _traceable_pid()
        self._notes = _notes(self._wanted, self._devices, pid)
        self._program = program(
            tracepoints,
            [number for number in numbers.values() if number is not None],
            [f"/sys/block/{device}/inflight" for device in self._devices],
            pid,
        )
        self._launch([*_WITH_ITS_NUMBER, "-B", "line", "-e", self._program.text])
        return self._wait_until_attached()

    def _launch(self, command: Sequence[str]) -> None:
        self._out, self._err = os.memfd_create("trace"), os.memfd_create("trace-errors")
        self._child = subprocess.Popen(
            [*_MORTAL, *_seeing_tracepoints(), *command],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    def _wait_until_attached(self) -> str | None:
        assert self._child is not None
        deadline = time.monotonic() + self._attach_s
        while ATTACHED not in _content(self._out):
            if self._child.poll() is not None:
                return f"bpftrace could not attach{_last_words(_content(self._err))}"
            if time.monotonic() >= deadline:
                reason = _last_words(_content(self._err))
                return f"bpftrace did not attach within {self._attach_s:g} s{reason}"
            time.sleep(_POLL_S)
        self._before, self._began = read_diskstats(self._devices), time.monotonic()
        self._child.send_signal(OPEN)
        return None

    # --- ending ------------------------------------------------------------------------------

    def _end(self, signals: Sequence[signal.Signals]) -> tuple[str, str]:
        """bpftrace's output and its errors. Signals are sent in turn until one has helped."""
        child, self._child = self._child, None
        self._reason = self._reason or "the trace is over"
        if child is None:
            return "", ""
        for number in signals:
            child.send_signal(number)  # does nothing to one that has ended
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(_PATIENCE_S[number])
                self._ended_well = number is signal.SIGINT and code == 0
                break
        texts = _content(self._out), _content(self._err)
        os.close(self._out)
        os.close(self._err)
        return texts[0], "\n".join(x for x in texts[1].splitlines() if _HARMLESS not in x)


def why_not(devices: Sequence[str]) -> str | None:
    """Return why these devices cannot be traced here, as one sentence, as far as it shows before
    trying; None = nothing is known against it."""
    if not devices:
        return "the storage tier lies on no block device that the kernel counts"
    if os.geteuid() != 0:
        return "tracing the block layer needs root: run this as root, or with sudo"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install {package}, or your system's like"
    return None


def request_devices(device: str, sysfs: Path = Path("/sys")) -> list[str]:
    """Return where the requests of a device are seen: those of a partition at its disk, those of a
    device that is made of others (mapper, RAID) at its parts."""
    directory = (sysfs / "class/block" / device).resolve()
    parts = sorted(path.name for path in directory.glob("slaves/*"))
    if parts:
        return [disk for part in parts for disk in request_devices(part, sysfs)]
    return [directory.parent.name] if (directory / "partition").exists() else [device]


def _traceable_pid() -> int | None:
    """Return the process whose system calls are traced: ours, or None in a container with process
    numbers of its own, which the kernel's tracing does not know."""
    with suppress(OSError):
        if os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE:
            return os.getpid()
    return None


def _notes(wanted: Sequence[str], traced: Sequence[str], pid: int | None) -> list[str]:
    notes = []
    if set(wanted) != set(traced):
        notes.append(f"{', '.join(wanted)}: traced is all of {', '.join(traced)} below")
    if pid is None:
        notes.append("the system calls are not traced: this is a container with its own processes")
    return notes


def _number(device: str) -> int | None:
    major, _, minor = (text_of(Path("/sys/class/block") / device / "dev") or "").partition(":")
    return kernel_number(int(major), int(minor)) if minor else None


# --- the child's surroundings --------------------------------------------------------------------


def _seeing_tracepoints() -> list[str]:
    """Return the start of a command that sees them, if this process does not."""
    if any(Path(root, "events/block").is_dir() for root in _TRACEFS):
        return []
    mount = f'mount -t tracefs tracefs {_TRACEFS[0]} && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"]


def _tracepoints() -> tuple[set[str], str | None]:
    """Return their names, `block:block_rq_issue`; or why they cannot be seen."""
    look = f"cd {_TRACEFS[0]}/events 2>/dev/null || cd {_TRACEFS[1]}/events || exit; "
    listed = subprocess.run(
        [*_seeing_tracepoints(), "sh", "-c", look + "ls -d block/block_* syscalls/sys_*"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    names = {line.replace("/", ":") for line in listed.stdout.splitlines()}
    if not any(name.startswith("block:") for name in names):
        reason = _last_words(listed.stderr)
        return set(), f"the kernel's tracepoints ({_TRACEFS[0]}) cannot be seen{reason}"
    return names, None


def _version() -> str | None:
    done = subprocess.run(
        ["bpftrace", "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    return done.stdout.strip().removeprefix("bpftrace ") or None


def _content(fd: int) -> str:
    """Return all that was written so far. Opened anew, as the child shares the offset of `fd`, and
    read by no system call that is traced."""
    return Path(f"/proc/self/fd/{fd}").read_text(errors="replace")


def _last_words(text: str) -> str:
    """` (…)`: the first error, else the last line, or nothing if nothing was said."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and _HARMLESS not in line]
    errors = [line for line in lines if "ERROR" in line]
    return f" ({(errors or lines[-1:])[0]})" if lines else ""


def _operations(
    before: dict[str, DiskStats] | None, after: dict[str, DiskStats] | None
) -> dict[str, int] | None:
    if before is None or after is None or before.keys() != after.keys():
        return None
    moved = [after[name] - before[name] for name in after]
    return {READ: sum(m.reads for m in moved), WRITE: sum(m.writes for m in moved)}
