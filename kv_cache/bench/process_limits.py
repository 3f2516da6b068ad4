"""The limits on how many files a process may have open, and on its threads, which shells, batch
systems and containers set."""

import errno

from kv_cache.bench import address_space
from kv_cache.core.errors import PlaceError

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_OTHER_FILES = 100  # of the interpreter, the cache, and of whoever looks at the machine


def take_files_for(rings: int) -> None:
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
