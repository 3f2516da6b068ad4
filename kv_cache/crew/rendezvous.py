"""How the ranks of an MPI job learn where the coordinator is: rank 0 sends it to them by MPI.

    python -m kv_cache.crew.rendezvous     reads rank 0's message on stdin, prints it

It is a process of its own, which has ended before anything else begins: MPI libraries poll, start
threads, take signal handlers and end a whole job when one of its processes dies, none of which is
wanted in a process that measures.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import orjson

from kv_cache.core.errors import ConfigError, os_reason
from kv_cache.core.mpirank import MpiRank
from kv_cache.crew.child_processes import finding_this_package
from kv_cache.installing import install_hint

PATIENCE_S = 120.0
_NO_LIBRARY = 3
_EXPLAINED = "--mpi apart runs each rank by itself"

Telling = Mapping[str, Any]


class NoMpi(Exception):  # noqa: N818
    """MPI cannot be used, and every rank of the job finds so."""


def look_for_mpi() -> None:
    """Raise NoMpi if mpi4py is not installed, without loading it."""
    if find_spec("mpi4py") is None:
        raise NoMpi(f"mpi4py is not installed ({install_hint('mpi')})")


def meet(rank: MpiRank, telling: Telling | None, patience_s: float = PATIENCE_S) -> Telling:
    """Return rank 0's message, in every rank. Raises NoMpi if MPI knows of no other ranks,
    ConfigError if it fails, as then others may have met."""
    look_for_mpi()
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=orjson.dumps(telling),
            capture_output=True,
            timeout=patience_s,
            pass_fds=_inherited(),
            env=finding_this_package(os.environ),
        )
    except OSError as error:
        raise NoMpi(f"{sys.executable} cannot be started: {os_reason(error)}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{rank} did not meet the others by MPI within {patience_s:g} s: every rank has to "
            f"run the same program with mpi4py; {_EXPLAINED}"
        ) from None
    if done.returncode == _NO_LIBRARY or not done.stdout:
        raise NoMpi(_last_line(done.stderr))
    if done.returncode:
        raise ConfigError(
            f"{rank} could not meet the others by MPI ({_last_line(done.stderr)}); {_EXPLAINED}"
        )
    met = orjson.loads(done.stdout.splitlines()[-1])
    if met["ranks"] != rank.ranks or met["rank"] != rank.rank:
        raise NoMpi(
            f"the MPI library of mpi4py sees rank {met['rank']} of {met['ranks']} where the "
            f"starter says {rank}: it is not the library whose mpirun this is"
        )
    message: Telling = met["told"]
    return message


def _inherited() -> tuple[int, ...]:
    """Return the file descriptor through which MPICH's launcher talks to its processes."""
    number = os.environ.get("PMI_FD", "")
    return (int(number),) if number.isdigit() else ()


def _last_line(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def main() -> int:
    telling = orjson.loads(sys.stdin.buffer.read())
    print("began", flush=True)  # what fails before it failed without MPI
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library
        print(f"mpi4py cannot be used: {error}".splitlines()[0], file=sys.stderr)
        return _NO_LIBRARY
    world = MPI.COMM_WORLD
    message = orjson.loads(world.bcast(orjson.dumps(telling), root=0))
    met = {"rank": world.Get_rank(), "ranks": world.Get_size(), "told": message}
    world.Barrier()
    MPI.Finalize()
    print(orjson.dumps(met).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
