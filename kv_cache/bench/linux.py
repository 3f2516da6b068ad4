"""What real I/O needs of the operating system. Everything else of the program runs anywhere."""

import os
import sys

from kv_cache.core.errors import UsageError

_CALLS = ("O_DIRECT", "O_PATH", "posix_fallocate", "sched_getaffinity", "statvfs")


def require_linux() -> None:
    """Refuse real I/O on an operating system that lacks what it is made of. Raises UsageError."""
    if not all(hasattr(os, call) for call in _CALLS):
        raise UsageError(
            f"real I/O needs Linux (direct I/O, file locks, /proc), and this is {sys.platform}; "
            "lab, sim, trace, report, verify and run --virtual-time work here"
        )


def usable_cpus() -> int:
    """Count the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
