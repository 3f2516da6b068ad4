"""The program as a user starts it, in an empty directory: called in the tests' own process, which
takes milliseconds, or as a process of its own (`start`, and `alone`), which takes a second."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from kv_cache.cli import main
from tests import passports

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "kv-cache.py"

SMALL = [
    "--model=tiny-1b",
    "--gpu-mem-gb=0",
    "--cpu-mem-gb=0.0625",
    "--storage-capacity-gb=0.5",
    "--generation-mode=none",
    "--seed=3",
    "--config=small.yaml",
    "--num-users=4",
]
"""A run that takes little: objects of some MiB, 32 MiB of buffers."""

LIGHT = [
    *("--set=run.kv_bytes_per_token=3072", "--cpu-mem-gb=0.0078125"),
    "--storage-capacity-gb=0.0625",
]
"""Behind those: an eighth of the bytes in all, where they are not what is looked at."""

TRACE = (
    "--virtual-time",
    "--semantics=serving",
    "--trace=datasets/mooncake_sample.jsonl",
    "--trace-speedup=0",
    "--replay-cycles=1",
    "--num-users=1",
    "--model=tiny-1b",
    "--gpu-mem-gb=1",
    "--cpu-mem-gb=2",
    "--storage-capacity-gb=8",
    "--generation-mode=none",
    "--seed=1",
    "--output=R.json",
)
"""The sample of Mooncake in virtual time, in three tiers, as fast as it is answered."""

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
"""Those that end a command, each with its exit code."""

ONE_SIGNAL = [
    pytest.param(*each, marks=() if each[0] == signal.SIGTERM else pytest.mark.nightly)
    for each in SIGNALS
]
"""The others at night: all commands catch them in one place, which the tests of a run try."""

_SMALL_YAML = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 5}
passport: {measurement: false}
user_templates:
  chatbot: {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0.03, 0.06]}
  coding: {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0.03, 0.06]}
  document: {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0.03, 0.06]}
"""


PATIENCE_S = 240.0
"""What takes some seconds may take so long on a busy machine: a limit ends only what hangs."""


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str
    result: Any

    @property
    def own(self) -> Any:
        return self.result["kv_cache"]


def command(*args: str) -> list[str]:
    return [sys.executable, str(PROGRAM), *one_configuration(args)]


def one_configuration(args: Sequence[str]) -> list[str]:
    """The words without the configurations before the last: a test's own is in place of that of
    `SMALL`, as two are refused."""
    *dropped, _ = [word for word in args if word.startswith("--config=")] or [""]
    return [word for word in args if word not in dropped]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": str(ROOT)}


def start(cwd: Path, args: Sequence[str]) -> "subprocess.Popen[str]":
    prepare(cwd)
    return subprocess.Popen(
        command(*args),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def prepare(cwd: Path) -> None:
    (cwd / "small.yaml").write_text(_SMALL_YAML)


def run(cwd: Path, *args: str) -> Ran:
    """Call the program in `cwd`; the result of `--output=R.json`, if it was written."""
    prepare(cwd)
    ran = _ran(cwd, *called(cwd, *one_configuration(args)))
    return _of_run(ran) if args[0].startswith("--") else ran


def called(cwd: Path, *args: str, **environ: str) -> tuple[int, str, str]:
    """Call the program in `cwd` as it is: the exit code, and what it printed to both streams."""
    with as_a_process(cwd) as printed, patch.dict(os.environ, environ):
        try:
            code = main(args)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, printed[0], printed[1]


def alone(cwd: Path, *args: str) -> Ran:
    """The same in a process of its own."""
    return finish(start(cwd, args), cwd)


@contextlib.contextmanager
def as_a_process(cwd: Path) -> Iterator[list[str]]:
    """What a process begins with: its directory, streams, environment, handlers. At the end the
    list has what went to stdout and to stderr, also that of children."""
    printed: list[str] = []
    before, root = Path.cwd(), logging.getLogger()
    handlers, level, interval = root.handlers[:], root.level, sys.getswitchinterval()
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in (1, 2)]
        kept = [os.dup(fd) for fd in (1, 2)]
        streams = [open(fd, "w", errors="backslashreplace", closefd=False) for fd in (1, 2)]  # noqa: SIM115
        stack.enter_context(patch.multiple(sys, stdout=streams[0], stderr=streams[1]))
        stack.enter_context(patch.dict(os.environ, environment(), clear=True))
        stack.enter_context(patch.object(tempfile, "tempdir", None))  # it may be another
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        root.handlers.clear()
        for file, fd in zip(files, (1, 2), strict=True):
            os.dup2(file.fileno(), fd)
        os.chdir(cwd)
        try:
            yield printed
        finally:
            os.chdir(before)
            for stream, kept_fd, fd in zip(streams, kept, (1, 2), strict=True):
                stream.flush()
                os.dup2(kept_fd, fd)
                os.close(kept_fd)
            root.handlers[:] = handlers
            root.setLevel(level)
            sys.setswitchinterval(interval)
        for file in files:
            file.seek(0)
            printed.append(file.read().decode(errors="backslashreplace"))


def finish(process: "subprocess.Popen[str]", cwd: Path) -> Ran:
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return _of_run(_ran(cwd, process.returncode, out, err))


def _ran(cwd: Path, code: int, out: str, err: str) -> Ran:
    written = cwd / "R.json"
    result = json.loads(written.read_bytes()) if written.exists() else None
    return Ran(code, out, err, result)


def _of_run(ran: Ran) -> Ran:
    """Note a run that came to a good end: its rules are to be compared."""
    if ran.code == 0 and ran.result is not None and "passport" in ran.own:
        passports.not_compared.append(ran.own)
    return ran


def wait_for(there: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> None:
    """Look until it is so; what is looked at may go meanwhile: a directory, a process, a thread."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if there():
                return
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.02)


def states_of_threads(pid: int) -> list[str]:
    """As the kernel names them: D is of one that waits for a device, T of one that was stopped."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks]


def wait_until_at_work(process: "subprocess.Popen[str]", cpu_s: float = 0.5) -> None:
    """Until it has taken signals over, and used so much of the CPU since, however slow that is."""
    while not _takes_signals(worker_of(process)):
        assert process.poll() is None, "it has ended before it took signals over"
        time.sleep(0.01)
    seen = psutil.Process(worker_of(process))
    until_s = _cpu_s(seen) + cpu_s
    while _cpu_s(seen) < until_s:
        assert process.poll() is None, "it has ended before it was at work"
        time.sleep(0.01)


def worker_of(process: "subprocess.Popen[Any]") -> int:
    """The process that does a command's work: this one, or the child that it supervises."""
    return worker_below(process.pid)


def worker_below(pid: int) -> int:
    """A supervisor's child is of the same command line."""
    above = psutil.Process(pid)
    same = [child for child in above.children() if _words_of(child) == above.cmdline()]
    return same[0].pid if same else pid


def _words_of(process: psutil.Process) -> list[str] | None:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return None


def _takes_signals(pid: int) -> bool:
    """SIGTERM, which Python leaves alone."""
    with Path(f"/proc/{pid}/status").open() as lines:
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def small(cwd: Path, *args: str) -> Ran:
    """A small run below `cwd/cache`, with its result."""
    return run(cwd, *SMALL, "--cache-dir=cache", "--output=R.json", *args)


def small_alone(cwd: Path, *args: str) -> Ran:
    """The same in a process of its own."""
    return alone(cwd, *SMALL, "--cache-dir=cache", "--output=R.json", *args)


def anything(directory: Path, pattern: str, count: int = 1) -> bool:
    """Whether so many of that name are there; directories may go while they are looked at."""
    try:
        return sum(1 for _ in directory.glob(pattern)) >= count
    except FileNotFoundError:
        return False
