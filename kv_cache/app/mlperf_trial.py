"""One trial of MLPerf's sequence: its ranks are started, waited for, and ended where one fails.

Nothing is measured here. A rank is a process of `mlperf_wrapper.py`, started here or behind a
launcher such as mpirun.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from kv_cache.bench.interrupts import Interrupts
from kv_cache.core.errors import PlaceError, os_reason
from kv_cache.core.text import printable
from kv_cache.crew.child_processes import tied
from kv_cache.mlperf.layout import results_in

POLL_S = 0.2
_PATIENCE_S = 60.0  # ranks are done 5 s after a signal, on a busy machine later; a second one kills
_LATE_S = 6.0  # ranks outlive an mpirun that was ended by this
_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_LOCALNRANKS")

Processes = Sequence["subprocess.Popen[bytes]"]


class SignalCounter:
    """The signals that came to a sequence, counted: a second one kills."""

    def __init__(self, caught: Interrupts) -> None:
        self.caught, self.count = caught, 0
        caught.on_signal = self._came

    def _came(self) -> None:
        self.count += 1


class Trial(Struct, frozen=True, kw_only=True):
    """The ranks of one trial: how they are started, and the directory that their results are in."""

    directory: Path
    ranks: int
    launch: Sequence[str]  # starts all ranks; empty: they are started here
    command: Sequence[str]  # a rank, with its words
    ignored: frozenset[str]  # environment variables that ranks do not get

    def run(
        self, counter: SignalCounter, show: Callable[[float], None]
    ) -> tuple[list[int], str | None]:
        """Run the ranks; return their exit codes, and what makes the trial incomplete. `show` gets
        the seconds so far. Raises PlaceError if a rank cannot be started."""
        self.directory.mkdir(parents=True)
        with ExitStack() as files:
            codes = _wait(list(self._start(files)), counter, show)
        if any(codes) and (self.launch or -signal.SIGKILL in codes):
            self._await_late()
        return codes, self._problem(codes)

    def _start(self, files: ExitStack) -> "Iterator[subprocess.Popen[bytes]]":
        """Start each rank, or the launcher, in a session of its own: the terminal's signals are
        ours to pass on."""
        command = [*self.launch, *self.command]
        for name, environment in self._environments().items():
            log = files.enter_context((self.directory / f"{name}.log").open("wb"))
            try:
                yield subprocess.Popen(
                    tied(command), env=environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise PlaceError(f"{command[0]} cannot be started: {os_reason(error)}") from None

    def _environments(self) -> Mapping[str, Mapping[str, str]]:
        """Return the environment of each process, by its name. Ranks read their number as MPICH
        writes it; a launcher that we ourselves run under is not theirs."""
        kept = {name: text for name, text in os.environ.items() if name not in self.ignored}
        if self.launch:
            return {"launch": kept}
        kept = {name: text for name, text in kept.items() if not name.startswith(_LAUNCHERS)}
        size = str(self.ranks)
        return {
            f"rank_{rank}": {
                **kept,
                "PMI_RANK": str(rank),
                "PMI_SIZE": size,
                "MPI_LOCALNRANKS": size,
            }
            for rank in range(self.ranks)
        }

    def _await_late(self) -> None:
        """Wait for results that ranks write after the mpirun that was ended is gone."""
        ends = time.monotonic() + _LATE_S
        while self._without_result() and time.monotonic() < ends:
            time.sleep(POLL_S)

    def _without_result(self) -> list[int]:
        return [n for n in range(self.ranks) if not results_in(self.directory / f"rank_{n}")]

    def _problem(self, codes: Sequence[int]) -> str | None:
        """Return why the trial is not complete, by the name of each rank."""
        problems = [
            f"{'the launcher' if self.launch else f'rank {n}'} ended with exit code {code}"
            for n, code in enumerate(codes)
            if code
        ]
        if missing := self._without_result():
            problems.append(f"rank {', '.join(map(str, missing))} left no result")
        return "; ".join(problems) or None

    def last_words(self) -> str:
        """Return the end of the first log that has one."""
        for path in sorted(self.directory.glob("*.log")):
            lines = path.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
            if lines:
                return f"{path.name} ends with: {printable(lines[-1])}"
        return f"the logs in {self.directory} are empty"


def _wait(processes: Processes, signals: SignalCounter, show: Callable[[float], None]) -> list[int]:
    """Wait until all have ended; return the exit codes. After a signal, or once one has failed, the
    others are ended: their trial cannot become complete any more."""
    began_s, ended_s, caught = time.monotonic(), None, signals.caught
    while None in [process.poll() for process in processes]:  # all are looked at
        show(time.monotonic() - began_s)
        failed = any(process.returncode for process in processes)
        if ended_s is None and (caught.came or failed):
            ended_s = time.monotonic()
            _signal(processes, caught.number or signal.SIGTERM)
        patience_s = 0 if signals.count > 1 else _PATIENCE_S
        if ended_s is not None and time.monotonic() - ended_s > patience_s:
            _signal(processes, signal.SIGKILL)
        time.sleep(POLL_S / 2) if caught.came else caught.stop.wait(POLL_S)
    return [process.returncode for process in processes]


def _signal(processes: Processes, number: int) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
