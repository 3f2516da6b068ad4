"""The limit on a process's address space (`ulimit -v`, RLIMIT_AS), which batch systems set. What
exceeds it fails anywhere: in an import, in a thread's start, in an allocation."""

import errno

from kv_cache.bench.linux import usable_cpus
from kv_cache.core.units import MIB, human_bytes

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_PROGRAM_BYTES = 100 * MIB  # interpreter and libraries
_CPU_BYTES = 40 * MIB  # the thread that OpenBLAS starts for each, of at most 64
_SHORTAGES = ("can't start new thread", "failed to map segment", "cannot allocate memory")


def address_space_limit() -> int | None:
    """Return the bytes that this process may map; None where there is no limit."""
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == -1 else limit


def too_little_to_begin() -> str | None:
    """Return the sentence that refuses a limit which the program's libraries exceed."""
    limit, need = address_space_limit(), _PROGRAM_BYTES + _CPU_BYTES * min(64, usable_cpus())
    return None if limit is None or limit >= need else _sentence(limit)


def shortage(error: BaseException) -> str | None:
    """Return the sentence to print in place of an error that the limit explains."""
    limit, text = address_space_limit(), str(error).lower()
    starved = isinstance(error, MemoryError | SystemError) or any(s in text for s in _SHORTAGES)
    if limit is None or not (starved or getattr(error, "errno", None) == errno.ENOMEM):
        return None
    return _sentence(limit)


def _sentence(limit: int) -> str:
    return (
        f"the address space of this process is limited to {human_bytes(limit)} (ulimit -v), which "
        "libraries, buffers and the stacks of threads exceed; raise the limit, or use "
        "ulimit -v unlimited, and limit RAM by a cgroup"
    )
