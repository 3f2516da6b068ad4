"""The limits on how many files a process may have open, on its threads, and on memory that the
kernel holds for it, which shells, batch systems and containers set."""

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from kv_cache.bench import address_space
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB

if TYPE_CHECKING:  # what every command begins with imports no package
    from kv_cache.tiers.buffers import BufferPool
    from kv_cache.tiers.native import Transfers

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_OTHER_FILES = 100  # of the interpreter, the cache, and of whoever looks at the machine


_MOST_HELD_RINGS = 128  # each takes the kernel 4 MiB for 512 MiB in small pages
_CAP_IPC_LOCK = 14  # linux/capability.h


def take_rings(transfers: "Transfers", rings: int, *pools: "BufferPool") -> None:
    """Prepare for so many threads that each have an io_uring, which hold the memory of
    `pools` where they may. Raises PlaceError where there can be no such rings."""
    _take_files_for(rings)
    try:
        transfers.try_rings(rings)
    except OSError as error:
        limit = "; ulimit -l" if error.errno == errno.ENOMEM else ""
        raise PlaceError(
            f"--io-engine uring: {rings} threads need an io_uring each, which the kernel refuses "
            f"({error.strerror}{limit}); ask with fewer users, or use --io-engine direct"
        ) from None
    nbytes = rings * sum(pool.memory.nbytes for pool in pools)
    if rings > _MOST_HELD_RINGS:
        transfers.not_held = f"of {rings} threads, {_MOST_HELD_RINGS} at most can have it"
    elif not _may_lock(nbytes):
        transfers.not_held = f"{rings} threads lock {nbytes / GIB:.1f} GiB for it; see ulimit -l"
    else:
        transfers.hold(*(pool.memory for pool in pools))


def _may_lock(nbytes: int) -> bool:
    """Return whether this process may lock so much memory, as far as is known beforehand."""
    assert resource is not None, "io_uring is Linux's"
    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = Path("/proc/self/status").read_text()
    capable = int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_IPC_LOCK & 1
    return bool(capable) or most == resource.RLIM_INFINITY or most >= nbytes


def _take_files_for(rings: int) -> None:
    """Raise this process's limit on open files as far as it goes, as each io_uring needs two.
    Raises PlaceError where that is too little."""
    if resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    need = 2 * rings + _OTHER_FILES
    if most != resource.RLIM_INFINITY and most < need:
        raise PlaceError(
            f"--io-engine uring: {rings} threads need {need} open files, and this process may have "
            f"{most} (ulimit -Hn); raise that, ask with fewer users, or use --io-engine direct"
        )


def shortage(error: BaseException) -> str | None:
    """Return the sentence to print in place of an error that a limit explains."""
    number = getattr(error, "errno", None)
    if (sentence := address_space.shortage(error)) is not None:
        return sentence
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            "no more files may be open at the same time (ulimit -n, or fs.file-max of the system); "
            "raise that, or ask with fewer users"
        )
    if "can't start new thread" in str(error):
        return (
            "the system starts no more threads for this process (ulimit -u, or pids.max of its "
            "cgroup, as containers have it); raise that, ask with fewer users, or lower "
            "--io-threads"
        )
    return None
