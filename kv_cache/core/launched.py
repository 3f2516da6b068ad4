"""Which rank of a job this process is, by the environment alone: no MPI library is needed.

Imports little, as it is asked before anything else (`cli/supervisor`).
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from kv_cache.core.errors import ConfigError
from kv_cache.core.mpirank import ALONE, MpiRank

RANK = "KV_CACHE_RANK"
RANKS = "KV_CACHE_RANKS"
RANKS_HERE = "KV_CACHE_RANKS_HERE"
COORDINATOR = "KV_CACHE_COORDINATOR"
KEY = "KV_CACHE_KEY"
"""The environment variables of ranks that `--clients` starts (`crew`); rank 0 of an MPI job has the
last two as well."""


class _Starter(Struct, frozen=True, kw_only=True):
    """The environment variables in which one launcher describes its ranks."""

    rank: str
    ranks: str
    on_machine: Callable[[Mapping[str, str]], int | None]


def rank_of(environ: Mapping[str, str]) -> MpiRank:
    """Return the rank that the environment describes, else ALONE. Raises ConfigError.

    First comes what we have started ourselves. Then the order is the MLPerf wrapper's: Open MPI,
    then MPICH and what else speaks PMI. Last comes a step of Slurm with several tasks: a batch
    script that is no step has SLURM_PROCID too.
    """
    for starter in _STARTERS:
        rank = _number(environ, starter.rank)
        ranks = _number(environ, starter.ranks)
        if rank is None or (starter is _SLURM and (ranks or 1) == 1):
            continue
        if ranks is not None and rank >= ranks:
            raise ConfigError(
                f"the environment says {starter.rank}={rank} and {starter.ranks}={ranks}: ranks "
                "are counted from 0; unset both, or start with mpirun"
            )
        on_machine = ranks if ranks == 1 else starter.on_machine(environ)
        return MpiRank(rank=rank, ranks=ranks, on_machine=on_machine, source=starter.rank)
    return ALONE


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"the environment says {name}={text[:40]!r}, which is not a rank's number; unset it, "
            "or start with mpirun"
        )
    return int(text)


def _plain(name: str) -> Callable[[Mapping[str, str]], int | None]:
    return lambda environ: _number(environ, name)


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """`2(x3),1` is 2, 2, 2 and 1 tasks, by the number of the node."""
    tasks, node = environ.get("SLURM_STEP_TASKS_PER_NODE", ""), environ.get("SLURM_NODEID", "")
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        counts += [int(count)] * int(times or 1)
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None


_SLURM = _Starter(rank="SLURM_PROCID", ranks="SLURM_STEP_NUM_TASKS", on_machine=_slurm_tasks_here)
_STARTERS = (
    _Starter(rank=RANK, ranks=RANKS, on_machine=_plain(RANKS_HERE)),
    _Starter(
        rank="OMPI_COMM_WORLD_RANK",
        ranks="OMPI_COMM_WORLD_SIZE",
        on_machine=_plain("OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Starter(rank="PMI_RANK", ranks="PMI_SIZE", on_machine=_plain("MPI_LOCALNRANKS")),
    _SLURM,
)
