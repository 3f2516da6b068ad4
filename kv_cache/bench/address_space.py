"""The limits on what a process maps (`ulimit -v`, RLIMIT_AS) and on its own data (`ulimit -d`,
RLIMIT_DATA), which batch systems set. What exceeds them fails anywhere: in an import, in a thread's
start, in an allocation."""

import errno
from collections.abc import Sequence
from typing import NamedTuple

from kv_cache.bench.linux import usable_cpus
from kv_cache.core.units import MIB, human_bytes

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_PROGRAM_BYTES = 100 * MIB  # interpreter and libraries
_CPU_BYTES = 40 * MIB  # the thread that OpenBLAS starts for each, of at most 64
_SHORTAGES = ("can't start new thread", "failed to map segment", "cannot allocate memory")


class MemoryLimit(NamedTuple):
    """A limit on the memory of this process."""

    of: str
    nbytes: int
    flag: str
    used: str  # where psutil counts what is taken of it


_KINDS = (
    ("RLIMIT_AS", "address space", "ulimit -v", "vms"),
    ("RLIMIT_DATA", "data", "ulimit -d", "data"),
)


def memory_limits() -> list[MemoryLimit]:
    """List the limits that are set."""
    limits = []
    for name, of, flag, used in _KINDS if resource is not None else ():
        nbytes, _ = resource.getrlimit(getattr(resource, name))
        if nbytes != resource.RLIM_INFINITY:
            limits.append(MemoryLimit(of, nbytes, flag, used))
    return limits


def too_little_to_begin() -> str | None:
    """Return the sentence that refuses a limit which the program's libraries exceed."""
    need = _PROGRAM_BYTES + _CPU_BYTES * min(64, usable_cpus())
    low = [limit for limit in memory_limits() if limit.used == "vms" and limit.nbytes < need]
    return _sentence(low) if low else None


def shortage(error: BaseException) -> str | None:
    """Return the sentence to print in place of an error that a limit explains."""
    limits, text = memory_limits(), str(error).lower()
    starved = isinstance(error, MemoryError | SystemError) or any(s in text for s in _SHORTAGES)
    if not limits or not (starved or getattr(error, "errno", None) == errno.ENOMEM):
        return None
    return _sentence(limits)


def _sentence(limits: Sequence[MemoryLimit]) -> str:
    each = [f"the {at.of} of this process is limited to {human_bytes(at.nbytes)} ({at.flag})"
            for at in limits]  # fmt: skip
    return (
        f"{' and '.join(each)}, which libraries, buffers and the stacks of threads exceed; raise "
        f"the limit, or use {' and '.join(f'{at.flag} unlimited' for at in limits)}, and limit RAM "
        "by a cgroup"
    )
