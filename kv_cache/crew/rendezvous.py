"""How the ranks of an MPI job learn where the coordinator is: rank 0 tells the others, by MPI.

    python -m kv_cache.crew.rendezvous     reads on stdin what rank 0 has to tell, prints it

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

from kv_cache.core.errors import ConfigError
from kv_cache.core.mpirank import MpiRank
from kv_cache.installing import install_hint

PATIENCE_S = 120.0
_NO_LIBRARY = 3
_EXPLAINED = "--mpi apart runs each rank by itself"

Telling = Mapping[str, Any]


class NoMpi(Exception):  # noqa: N818
    """Why ranks cannot find each other by MPI, as every rank of the job finds it."""


def look_for_mpi() -> None:
    """Raises NoMpi where there is no mpi4py; without loading it."""
    if find_spec("mpi4py") is None:
        raise NoMpi(f"mpi4py is not installed ({install_hint('mpi')})")


def meet(rank: MpiRank, telling: Telling | None, patience_s: float = PATIENCE_S) -> Telling:
    """What rank 0 tells, in every rank. Raises NoMpi where MPI knows of no other ranks, ConfigError
    where it fails: then others may have found each other."""
    look_for_mpi()
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=orjson.dumps(telling),
            capture_output=True,
            timeout=patience_s,
            pass_fds=_inherited(),
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{rank} did not meet the others by MPI within {patience_s:g} s: every rank has to "
            f"run the same program with mpi4py; {_EXPLAINED}"
        ) from None
    if done.returncode == _NO_LIBRARY:
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
    answer: Telling = met["told"]
    return answer


def _inherited() -> tuple[int, ...]:
    """What MPICH's starter talks to its processes through."""
    number = os.environ.get("PMI_FD", "")
    return (int(number),) if number.isdigit() else ()


def _last_line(said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def main() -> int:
    telling = orjson.loads(sys.stdin.buffer.read())
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library
        print(f"mpi4py cannot be used: {error}".splitlines()[0], file=sys.stderr)
        return _NO_LIBRARY
    world = MPI.COMM_WORLD
    offer = orjson.loads(world.bcast(orjson.dumps(telling), root=0))
    met = {"rank": world.Get_rank(), "ranks": world.Get_size(), "told": offer}
    world.Barrier()
    MPI.Finalize()
    print(orjson.dumps(met).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
