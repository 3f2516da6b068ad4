"""The runs of a sweep as processes: on this machine, or spread over the ranks of an MPI job."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from kv_cache.bench.device_mark import JOB, job_of
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.core.errors import UsageError
from kv_cache.crew.child_processes import finding_this_package, tied
from kv_cache.files.writing import write_atomically
from kv_cache.installing import install_hint

CONFIG, RESULT, LOG, CODE = "cell.yaml", "result.json", "log.txt", "exit_code"
"""The files of a run in its directory."""

_NOT_A_RUN_S = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "KV_CACHE_")
"""Environment variables that would make a run a rank, or change its configuration."""

Submit = Callable[[str], "Future[int | None]"]


class Children:
    """Runs that go on as processes of their own; a signal is passed on to all of them."""

    def __init__(self, caught: Interrupts) -> None:
        self._caught = caught
        self._alive: set[subprocess.Popen[bytes]] = set()
        caught.on_signal = self._pass_on

    def run(self, directory: str) -> int | None:
        """One run to its end; the exit code, as a shell says it. None where a signal had come."""
        if self._caught.came:
            return None
        place = Path(directory)
        with (place / LOG).open("ab") as log:
            code = self._child(place, log)
        write_atomically(place / CODE, f"{code}\n".encode())
        return code

    def _child(self, place: Path, log: IO[bytes]) -> int:
        command = [
            *(sys.executable, "-m", "kv_cache.cli", "run", "--no-progress"),
            *("--config", str(place / CONFIG), "--output", str(place / RESULT)),
        ]
        process = subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=_environment(),
        )  # fmt: skip
        self._alive.add(process)
        try:
            if self._caught.came:  # between the look above and now
                self._signal(process)
            code = process.wait()
        finally:
            self._alive.discard(process)
        return code if code >= 0 else 128 - code

    def _pass_on(self) -> None:
        for process in list(self._alive):
            self._signal(process)

    def _signal(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(self._caught.number or 0)


def _environment() -> dict[str, str]:
    """A run is started by nobody's launcher, and finds the program where this one was found. Runs
    at once (--jobs, ranks) share their device."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_A_RUN_S) and name not in ("MPI_LOCALNRANKS", "SLURM_PROCID")
    }
    return finding_this_package({**variables, JOB: job_of(os.environ).name})


def run_remote(directory: str) -> int | None:
    """One run, in a rank that serves the sweep."""
    with interrupts() as caught:
        return Children(caught).run(directory)


class Pool(Struct, frozen=True, kw_only=True):
    """Where runs are done, `workers` at once. `gone` says that it may not answer after a signal."""

    submit: Submit
    workers: int
    gone: bool = False


@contextmanager
def local_pool(jobs: int, caught: Interrupts) -> Iterator[Pool]:
    children = Children(caught)
    with ThreadPoolExecutor(jobs) as threads:
        yield Pool(submit=lambda directory: threads.submit(children.run, directory),
                   workers=jobs)  # fmt: skip


Pooling = Callable[[int, Interrupts], AbstractContextManager[Pool]]
"""Opens a pool for `--jobs` runs at once."""

Entry = Callable[[Pooling], int]
"""What plans a sweep, given where its runs are done; the exit code."""


def mpi_ranks(rank: int) -> Callable[[Entry], int] | None:
    """Return what this rank of an MPI job does: rank 0 plans and hands out runs, the others serve.
    None for another rank than 0 if there is no MPI. Raises UsageError on rank 0."""
    served = "mpi4py.futures" in sys.modules  # python -m mpi4py.futures: the others serve already
    try:
        futures, mpi = import_module("mpi4py.futures"), import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        if rank:
            return None
        raise UsageError(
            f"sweep was started as several ranks, but mpi4py cannot be used ({error}); get it with "
            f"{install_hint('mpi')}, or start one process and give --jobs"
        ) from None
    if served:
        return lambda entry: entry(_spread(futures.MPIPoolExecutor()))

    def join(entry: Entry) -> int:
        with futures.MPICommExecutor(mpi.COMM_WORLD, root=0) as executor:
            return 0 if executor is None else entry(_spread(executor))

    return join


def _spread(executor: Any) -> Pooling:
    @contextmanager
    def pool(jobs: int, caught: Interrupts) -> Iterator[Pool]:
        if jobs != 1:
            raise UsageError("--jobs has no use under mpirun: each other rank is one; leave it out")
        yield Pool(
            submit=lambda directory: executor.submit(run_remote, directory),
            workers=executor.num_workers, gone=True,
        )  # fmt: skip

    return pool
