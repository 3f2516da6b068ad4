"""Runs as processes: started with the words that are shown, in a session of their own, and known
by a small file beside what they write.

    <results>/<id>/web.json    the words, the process, how it ended
    <results>/<id>/stdout.txt  what the command printed
    <results>/<id>/stderr.txt  its log
    <results>/<id>/out         what it wrote

A run never depends on this process: killed, the server leaves it to end as any run does, and the
next one finds it by its file, still running, ended, or interrupted.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

import kv_cache
from kv_cache.bench.device_mark import JOB, DeviceInUseError, JobId, claim, release
from kv_cache.bench.ending_signals import EXITS
from kv_cache.bench.owner import start_ticks
from kv_cache.core.errors import PlaceError, UsageError, os_reason
from kv_cache.core.text import printable
from kv_cache.files.writing import write_atomically

JOB_FILE = "web.json"
OUTPUT, LOG = "stdout.txt", "stderr.txt"
OUT = "out"
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[a-z-]+-[0-9a-f]{6}")
_TAIL = 16 << 10  # bytes of a log that are looked at
_MOST_RUNNING = 8
_PROGRAM = Path(kv_cache.__file__).resolve().parents[1] / "kv-cache.py"
_URL = re.compile(rb"metrics at http://127\.0\.0\.1:(\d+)/metrics")


class BusyError(UsageError):
    """Another run has what this one wants."""


class JobState(StrEnum):
    """What became of a run."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # by a signal: its result has what was measured until then
    FAILED = "failed"  # it ended with another code than 0
    INTERRUPTED = "interrupted"  # it ended, and nobody saw how
    CANCELLED = "cancelled"


class WebRun(Struct, kw_only=True):
    """One run. `ticks` is when its process started, in the kernel's ticks since boot: a process of
    the same number that started at another time is another one."""

    id: str
    command: str
    words: list[str]
    started_unix_s: float
    pid: int = 0
    ticks: int = 0
    devices: list[str] = []
    exit_code: int | None = None
    ended_unix_s: float | None = None
    cancelled: bool = False


class Jobs:
    """All runs that were started below a folder of results, by this process or an earlier one."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._jobs: dict[str, WebRun] = {}
        self._starting = threading.Lock()
        self._ending = threading.Lock()
        for file in sorted(results.glob(f"*/{JOB_FILE}")):
            with suppress(OSError, msgspec.MsgspecError):
                job = msgspec.json.decode(file.read_bytes(), type=WebRun)
                if _ID.fullmatch(job.id) and job.id == file.parent.name:
                    self._jobs[job.id] = job

    def new_id(self, command: str) -> str:
        """Return the name of a run that begins now."""
        name = re.sub("[^a-z]+", "-", command)
        return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(3)}"

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self._results / name

    def start(
        self, name: str, words: Sequence[str], devices: Mapping[Path, Sequence[str]]
    ) -> WebRun:
        """Start a run, if nobody uses the devices of its places. Raises BusyError, PlaceError."""
        if sum(map(self.is_alive, self.all())) >= _MOST_RUNNING:
            raise BusyError(f"{_MOST_RUNNING} runs go on already; wait for the end of one")
        job = WebRun(
            id=name, command=words[0], words=list(words), started_unix_s=time.time(),
            devices=sorted({each for names in devices.values() for each in names}),
        )  # fmt: skip
        belongs = os.environ.get(JOB) or name
        held: list[socket.socket] = []
        with self._starting:  # of two at once one has the device
            try:
                for place, names in devices.items():
                    held += claim(place, names, JobId(belongs))
                self._spawn(job, held, belongs)
            except DeviceInUseError as error:
                raise BusyError(str(error)) from None
            finally:
                release(held)
        return job

    def _spawn(self, job: WebRun, held: Sequence[socket.socket], belongs: str) -> None:
        folder = self.folder(job.id)
        try:
            (folder / OUT).mkdir(parents=True)
            write_atomically(folder / JOB_FILE, msgspec.json.encode(job))
            with (folder / OUTPUT).open("xb") as output, (folder / LOG).open("xb") as log:
                process = subprocess.Popen(
                    [*self.program(), *job.words],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=log,
                    env={**self.environment(), JOB: belongs}, start_new_session=True,
                    pass_fds=[each.fileno() for each in held],
                )  # fmt: skip
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            reason = os_reason(error)
            raise PlaceError(
                f"the run could not be started in {folder}: {reason}; make room there, or start "
                "serve with --results for another folder"
            ) from None
        job.pid, job.ticks = process.pid, start_ticks(process.pid) or 0
        self._processes[job.id], self._jobs[job.id] = process, job
        self._keep(job)

    @staticmethod
    def program() -> list[str]:
        """Return what starts the command line."""
        program = [str(_PROGRAM)] if _PROGRAM.exists() else ["-m", "kv_cache.cli"]
        return [sys.executable, *program]

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the variables of a run: without options, as the shown words are all of it."""
        return {k: v for k, v in os.environ.items() if not k.startswith("KV_CACHE_")}

    def _keep(self, job: WebRun) -> None:
        """A full disk ends no run: what could not be written is known as long as this process."""
        with suppress(OSError):
            write_atomically(self.folder(job.id) / JOB_FILE, msgspec.json.encode(job))

    # --- what became of them ---------------------------------------------------------------------

    def all(self) -> list[WebRun]:
        """List all runs, the latest first."""
        return sorted(self._jobs.values(), key=lambda job: job.started_unix_s, reverse=True)

    def get(self, name: str) -> WebRun:
        """Return a run by its id. Raises KeyError."""
        return self._jobs[name]

    def is_alive(self, job: WebRun) -> bool:
        """Whether its process goes on; notes how it ended."""
        with self._ending:  # several threads ask, and one of them sees the end
            return self._is_alive(job)

    def _is_alive(self, job: WebRun) -> bool:
        if job.exit_code is not None or job.ended_unix_s is not None:
            return False
        process = self._processes.get(job.id)
        if process is None:
            alive = job.pid > 0 and start_ticks(job.pid) == job.ticks
        else:
            job.exit_code = process.poll()
            alive = job.exit_code is None
        if not alive:
            job.ended_unix_s = time.time()
            self._processes.pop(job.id, None)
            self._end(job)
        return alive

    def _end(self, job: WebRun) -> None:
        if job.cancelled:
            shutil.rmtree(self.folder(job.id) / OUT, ignore_errors=True)
        self._keep(job)

    def state(self, job: WebRun) -> JobState:
        """Return what became of a run."""
        if self.is_alive(job):
            return JobState.RUNNING
        if job.cancelled:
            return JobState.CANCELLED
        if job.exit_code is None:
            return JobState.DONE if self._has_result(job) else JobState.INTERRUPTED
        if job.exit_code in EXITS.values():
            return JobState.STOPPED
        return JobState.DONE if job.exit_code == 0 else JobState.FAILED

    def _has_result(self, job: WebRun) -> bool:
        """Whether a run that nobody saw ending has written something."""
        files = (self.folder(job.id) / OUT).rglob("*.json")
        return any(file.name != "environment.json" for file in files)

    def stop(self, job: WebRun, *, cancel: bool = False) -> None:
        """End a run as Ctrl-C does: what it measured until now is written; `cancel` removes that
        once it has ended. Raises BusyError for one that has ended."""
        with self._ending:
            if not self._is_alive(job):
                raise BusyError(f"run {job.id} has ended already; its files are in {job.id}")
            job.cancelled = job.cancelled or cancel
            self._keep(job)
            with suppress(ProcessLookupError):  # one of a server before this has ended just now
                os.kill(job.pid, signal.SIGTERM if cancel else signal.SIGINT)

    # --- what they said --------------------------------------------------------------------------

    def tail(self, job: WebRun, name: str = LOG) -> list[str]:
        """Return the last lines of what a run said."""
        try:
            with (self.folder(job.id) / name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [printable(line) for line in text.splitlines()]

    def files(self, job: WebRun) -> list[str]:
        """List what stands in the folder of a run, by paths from the folder of results."""
        folder = self.folder(job.id)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return [str(path.relative_to(self._results)) for path in paths[:200]]

    def metrics_port(self, job: WebRun) -> int | None:
        """Return the port at which the run tells its numbers, once its log says it."""
        try:
            with (self.folder(job.id) / LOG).open("rb") as file:
                url = _URL.search(file.read(_TAIL))
        except OSError:
            return None
        return None if url is None else int(url[1])


def refusal(lines: Sequence[str]) -> str | None:
    """Return the sentence with which a command refused, or None."""
    sentences = [line for line in lines if line.startswith("kv-cache: ")]
    return sentences[-1].removeprefix("kv-cache: ") if sentences else None


def metrics_url(port: int) -> str:
    """Return the address at which a run tells its numbers, as its log says it."""
    return f"http://127.0.0.1:{port}/metrics"
