"""Does something between us and the kernel answer our system calls in the kernel's place?

Images and CI machines preload libraries that turn fsync into nothing or hide the page cache
(`eatmydata` is the honest one). Three looks, because each can be deceived: which loaded object
provides a call, the C library being what lies beside the loader that the kernel has mapped; whether
the C library's call and the bare system call of the same name say the same, of a bad descriptor and
of a real file; what is preloaded, and what is mapped though the program's loader does not list it,
as libraries of LD_AUDIT are, which can redirect any call.

What sits below the system call (a sandbox's own kernel, a hypervisor, the drive's firmware)
cannot be seen from here.
"""

import ctypes
import errno
import os
import platform
import re
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

from kv_cache.bench.probes.diskstats import read_flushes
from kv_cache.bench.probes.pagecache import libc, page_states, resident_pages
from kv_cache.bench.procfs import text_of
from kv_cache.core.units import KIB, MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES

SYMBOLS = (
    *("fsync", "fdatasync", "msync", "sync_file_range", "syncfs", "sync"),
    *("posix_fadvise", "posix_fadvise64", "posix_madvise", "madvise", "readahead"),
    *("open", "open64", "openat", "openat64", "close", "fcntl", "fcntl64"),
    *("read", "pread", "pread64", "preadv", "preadv64", "preadv2", "preadv64v2"),
    *("write", "pwrite", "pwrite64", "pwritev", "pwritev64", "pwritev2", "pwritev64v2"),
    *("fallocate", "fallocate64", "posix_fallocate", "posix_fallocate64"),
    *("ftruncate", "ftruncate64", "rename", "renameat", "renameat2", "unlink", "unlinkat"),
    *("mmap", "mmap64", "munmap", "mincore", "fstatfs", "syscall"),
    *("clock_gettime", "nanosleep", "clock_nanosleep"),
)
"""What the data path calls, under each name it may have, and what this module relies on."""

MOST_LIBRARIES = 512

_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"fsync": 74, "fdatasync": 75, "posix_fadvise": 221},
    "aarch64": {"fsync": 82, "fdatasync": 83, "posix_fadvise": 223},
}
"""System call numbers (arch/x86/entry/syscalls, include/uapi/asm-generic/unistd.h)."""

_CLOCK_GETTIME: Mapping[str, int] = {"x86_64": 228, "aarch64": 113}
"""System call numbers, likewise."""

_C_LIBRARY = re.compile(
    r"(libc|libpthread|librt|libdl|ld)(-[\d.]+)?\.so(\.\d+)?"  # glibc, before 2.34 in parts
    r"|ld-linux[\w-]*\.so\.\d+|ld64\.so\.\d+"
    r"|ld-musl-[\w-]+\.so\.\d+|libc\.musl-[\w-]+\.so\.\d+"
)
_CLOCKS_APART_NS = 10 * NS_PER_MS  # by which two readings may differ where a core is taken away
_BAD_DESCRIPTOR = 2**31 - 1  # above every limit of open files; Python itself refuses -1
_TRIES = 3  # a page can be held for a moment by others: only "never" counts
_FEW_BYTES = 64 * KIB
_MANY_BYTES = 4 * MIB  # more than a device writes while the kernel tries to drop them
_RTLD_LAZY_NOLOAD = 1 | 4
_RTLD_DI_LINKMAP = 2
_ELF = b"\x7fELF"
_AT_BASE = 7  # of the auxiliary vector (getauxval(3)): where the kernel has put the loader


def look(directory: Path | None = None, disks: Sequence[str] = ()) -> dict[str, Any]:
    """Return the section `interposed` of a passport's evidence.

    `directory` is where a temporary file without a name is written, synced and dropped (256 KiB
    to 16 MiB: not inside a window whose bytes are counted); None writes nothing. `disks` are those
    that its bytes end on. `disagreeing` is None if no call could be compared; `note` says why a
    comparison was left out.
    """
    symbols = providers(SYMBOLS)
    maps = text_of(Path("/proc/self/maps"))
    bad, real, note = _canaries(directory)
    known = None if bad is None and real is None else sorted({*(bad or ()), *(real or ())})
    return {
        "symbols": symbols,
        "foreign_symbols": None
        if symbols is None
        else foreign_symbols(symbols, executable(), loader_directory(maps)),
        "disagreeing": known,
        "preload": preload(
            os.environ.get("LD_PRELOAD"),
            text_of(Path("/etc/ld.so.preload")),
            os.environ.get("LD_AUDIT"),
        ),
        "libraries": libraries(maps),
        "unlisted": unlisted(maps),
        "unflushed": None if directory is None else unflushed(directory, disks),
        "note": note,
    }


def executable() -> str:
    return os.path.realpath("/proc/self/exe")


# What provides a call


def is_c_library(path: str, directory: str | None) -> bool:
    """Return whether a file is glibc, musl or one of their loaders: by its name, and by lying in or
    below the directory of the loader, if that is known."""
    named = _C_LIBRARY.fullmatch(os.path.basename(path)) is not None
    return named and (directory is None or Path(os.path.realpath(path)).is_relative_to(directory))


def foreign_symbols(
    symbols: Mapping[str, str], program: str, directory: str | None = None
) -> list[str]:
    """Return the calls that neither the C library nor the program itself (linked statically)
    provides. `directory` is the loader's."""
    return sorted(
        name
        for name, path in symbols.items()
        if path != program and not is_c_library(path, directory)
    )


def loader_directory(maps: str | None) -> str | None:
    """Return where the loader lies that the kernel has mapped for this program; None if there is
    none or it is not known."""
    try:
        words = struct.iter_unpack("@NN", Path("/proc/self/auxv").read_bytes())
        base = dict(words).get(_AT_BASE, 0)
    except (OSError, struct.error):
        return None
    path = next((path for begin, end, path in _mapped(maps or "") if begin <= base < end), None)
    return None if not base or path is None else os.path.dirname(os.path.realpath(path))


def _mapped(maps: str) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and file of each mapping of a file (text of /proc/self/maps)."""
    for columns in (line.split(maxsplit=5) for line in maps.splitlines()):
        if len(columns) == 6 and _is_file(columns[5]):
            begin, _, end = columns[0].partition("-")
            yield int(begin, 16), int(end, 16), columns[5]


class _Described(ctypes.Structure):
    """`Dl_info` of dladdr(3)."""

    _fields_ = (
        ("object", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _Loaded(ctypes.Structure):
    """`struct link_map` of dlinfo(3): a list of the loaded objects in the order of search."""


_Loaded._fields_ = (
    ("address", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_void_p),
    ("next", ctypes.POINTER(_Loaded)),
    ("previous", ctypes.POINTER(_Loaded)),
)


def providers(names: Iterable[str]) -> dict[str, str] | None:
    """Map each call that exists here to the file of the object that answers it.

    None if the loader cannot be asked (a statically linked Python).
    """
    try:
        loader = _loader()
    except (OSError, AttributeError):
        return None
    loaded = list(_loaded_objects(loader))
    paths = {name: _provider(loader, name, loaded) for name in names}
    return {name: path for name, path in paths.items() if path is not None}


def _loader() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.dlopen.restype = library.dlsym.restype = ctypes.c_void_p
    library.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.dlclose.argtypes = [ctypes.c_void_p]
    library.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.dladdr.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    return library


def _provider(loader: ctypes.CDLL, name: str, loaded: Collection[str]) -> str | None:
    address = loader.dlsym(None, name.encode())  # RTLD_DEFAULT: as our own calls are bound
    if address is None:
        return None
    path = _object_at(loader, address)
    if path is not None and path in loaded:
        return path
    # The executable (the only one without a name): where it is linked to a fixed address, as
    # Debian's Python, this is its jump to the call, and the call is in the first object after it.
    behind = (other for other in loaded if _defines(loader, other, name))
    return next(behind, executable())


def _defines(loader: ctypes.CDLL, path: str, name: str) -> bool:
    handle = loader.dlopen(os.fsencode(path), _RTLD_LAZY_NOLOAD)
    if handle is None:
        return False  # the kernel's vdso
    try:
        address = loader.dlsym(handle, name.encode())  # it looks in what `path` needs as well
        return address is not None and _object_at(loader, address) == path
    finally:
        loader.dlclose(handle)


def _object_at(loader: ctypes.CDLL, address: int) -> str | None:
    description = _Described()
    if loader.dladdr(address, ctypes.byref(description)) == 0 or description.object is None:
        return None
    return os.fsdecode(description.object)


def _loaded_objects(loader: ctypes.CDLL) -> Iterator[str]:
    """Yield all but the executable, in the order in which the loader looks for a name."""
    program = loader.dlopen(None, _RTLD_LAZY_NOLOAD)
    first = ctypes.POINTER(_Loaded)()
    try:
        if loader.dlinfo(program, _RTLD_DI_LINKMAP, ctypes.byref(first)) != 0:
            return
    finally:
        loader.dlclose(program)
    while first:
        if first.contents.name:
            yield os.fsdecode(first.contents.name)
        first = first.contents.next


# What the calls say


def _canaries(directory: Path | None) -> tuple[list[str] | None, list[str] | None, str | None]:
    """Return the calls that disagree on a bad descriptor and on a real file, and why one was not
    tried."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return None, None, f"the system calls of {platform.machine()} have no number here"
    try:
        bad = on_a_bad_descriptor(numbers)
    except (OSError, AttributeError) as error:
        return None, None, f"no system call can be made by its number ({error})"
    if directory is None:
        return bad, None, "no directory to compare the calls in"
    try:
        real = on_a_real_file(numbers, directory)
    except OSError as error:
        return bad, None, f"the calls could not be compared on a file ({error})"
    return bad, real, "pages cannot be dropped in this directory" if real is None else None


def on_a_bad_descriptor(numbers: Mapping[str, int]) -> list[str]:
    """Return the calls that do not refuse a descriptor that cannot exist just as the kernel does.

    Where a kernel lacks a call (ENOSYS) or a sandbox forbids it, both say so and agree.
    """
    errors = {
        name: (_errno_of(call), _errno_of(partial(_raw, numbers, name)))
        for name, call in _library_calls().items()
    }
    return [name for name, (ours, kernel) in errors.items() if ours != kernel or ours == 0]


def on_a_real_file(numbers: Mapping[str, int], directory: Path) -> list[str] | None:
    """Return the calls that do not have the effect on a file's pages that their bare system call
    has.

    None if the bare calls have none either, so that nothing can be compared (memory file
    systems, some network ones). Raises OSError where the file cannot be written.
    """
    calls = _library_calls()
    raw = {name: partial(_raw, numbers, name) for name in numbers}
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        attempt = partial(_ever_dropped, file.fileno())
        if not attempt(raw["fsync"], raw["posix_fadvise"]):
            return None
        tried = {
            "fsync": attempt(calls["fsync"], raw["posix_fadvise"]),
            "fdatasync": attempt(calls["fdatasync"], raw["posix_fadvise"]),
            "posix_fadvise": attempt(raw["fsync"], calls["posix_fadvise"]),
        }
    return [name for name, works in tried.items() if not works]


def unflushed(directory: Path, disks: Sequence[str], root: Path = Path("/")) -> bool | None:
    """Return whether an fsync of bytes just written lets none of the disks flush its write cache.
    None where they have no such cache, or do not count. Others' flushes may hide that; they cannot
    bring it about."""
    caches = [text_of(root / "sys/class/block" / disk / "queue/write_cache") for disk in disks]
    if not disks or any(cache != "write back\n" for cache in caches):
        return None
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            return not any(_flushed(file, disks, root) for _ in range(_TRIES))
    except OSError:
        return None


def _flushed(file: IO[bytes], disks: Sequence[str], root: Path) -> bool:
    before = read_flushes(disks, root)
    file.write(bytes(PAGE_BYTES))
    os.fsync(file.fileno())
    return before is None or before != read_flushes(disks, root)


def _ever_dropped(fd: int, sync: Callable[[int], None], drop: Callable[[int], None]) -> bool:
    return any(_dropped(fd, sync, drop) for _ in range(_TRIES))


def _dropped(fd: int, sync: Callable[[int], None], drop: Callable[[int], None]) -> bool:
    """Whether pages that were just written are clean after `sync` and gone after `drop`.

    A dirty page cannot be dropped. But dropping begins to write it back, and a fast device can be
    done with few of them in time; so the kernel is asked in between, if it says.
    """
    nbytes = _FEW_BYTES if page_states(fd, 0, 1) is not None else _MANY_BYTES
    os.pwrite(fd, bytes(nbytes), 0)
    if not resident_pages(fd, 0, nbytes):
        return False
    sync(fd)
    states = page_states(fd, 0, nbytes)
    if states is not None and states.dirty + states.writeback:
        return False
    drop(fd)
    return resident_pages(fd, 0, nbytes) == 0


def _library_calls() -> Mapping[str, Callable[[int], None]]:
    """Build the library calls as the tiers make them."""
    return {
        "fsync": os.fsync,
        "fdatasync": os.fdatasync,
        "posix_fadvise": lambda fd: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED),
    }


def _raw(numbers: Mapping[str, int], name: str, fd: int) -> None:
    """Make the system call, past the library's function of its name. Raises OSError."""
    more = (0, 0, os.POSIX_FADV_DONTNEED) if name == "posix_fadvise" else ()
    values = [ctypes.c_long(value) for value in (numbers[name], fd, *more)]
    if libc().syscall(*values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def kernel_ns(clock: int = time.CLOCK_MONOTONIC) -> int | None:
    """Read a clock past the library's function for it. None where that cannot be done."""
    number, now = _CLOCK_GETTIME.get(platform.machine()), _Timespec()
    if number is None:
        return None
    call = (ctypes.c_long(number), ctypes.c_long(clock), ctypes.byref(now))
    try:
        failed = libc().syscall(*call)
    except (OSError, AttributeError):
        return None
    return None if failed else now.seconds * NS_PER_S + now.nanoseconds


def is_the_kernels_clock() -> bool:
    """Return whether the interpreter's clock tells what the kernel's does, or no more is known.
    What answers in its place is the passport's to name."""
    kernel = kernel_ns()
    return kernel is None or abs(time.monotonic_ns() - kernel) < _CLOCKS_APART_NS


def _errno_of(call: Callable[[int], None]) -> int:
    """Return the error for a descriptor that cannot exist; 0 if the call succeeds."""
    try:
        call(_BAD_DESCRIPTOR)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


# What is loaded


def preload(variable: str | None, file: str | None, audit: str | None = None) -> str | None:
    """Join what LD_PRELOAD, the text of /etc/ld.so.preload and LD_AUDIT request; None if none
    does."""
    sources = {"LD_PRELOAD": variable, "/etc/ld.so.preload": file, "LD_AUDIT": audit}
    requests = [f"{name}: {' '.join(text.split())}" for name, text in sources.items() if text]
    return "; ".join(name for name in requests if not name.endswith(": ")) or None


def libraries(maps: str | None) -> list[str] | None:
    """The files with code that are mapped (text of /proc/self/maps), sorted and without repeats.

    A file that was deleted since carries ` (deleted)`. At most `MOST_LIBRARIES`, then a line that
    counts those left out.
    """
    if maps is None:
        return None
    columns = (line.split(maxsplit=5) for line in maps.splitlines())
    files = sorted({c[5] for c in columns if len(c) == 6 and "x" in c[1] and _is_file(c[5])})
    left_out = len(files) - MOST_LIBRARIES
    return files if left_out <= 0 else [*files[:MOST_LIBRARIES], f"and {left_out} more"]


def unlisted(maps: str | None) -> list[str] | None:
    """Return the files with code that are mapped though the loader does not list them among those
    of the program. None if it cannot be asked."""
    try:
        listed = {_real(path) for path in _loaded_objects(_loader())}
    except (OSError, AttributeError):
        return None
    mapped = libraries(maps)
    if mapped is None:
        return None
    known = {*listed, executable()}
    files = [path for path in mapped if path.startswith("/") and _real(path) not in known]
    return [*files, *_anonymous_libraries(maps or "")]


def _anonymous_libraries(maps: str) -> list[str]:
    """Return files without a name that libraries were loaded from: code is mapped from them, and
    they begin as one does. Closures of libffi lie in such files too, and begin otherwise."""
    rows = [line.split(maxsplit=5) for line in maps.splitlines()]
    rows = [row for row in rows if len(row) == 6 and row[5].startswith("/memfd:")]
    code = {row[4] for row in rows if "x" in row[1]}
    begins = [row for row in rows if row[4] in code and "r" in row[1] and int(row[2], 16) == 0]
    starts = {row[5]: int(row[0].partition("-")[0], 16) for row in begins}
    return sorted(n for n, at in starts.items() if ctypes.string_at(at, len(_ELF)) == _ELF)


_real = cache(os.path.realpath)  # what is mapped stays where it is


def _is_file(name: str) -> bool:
    """Whether a mapping is of a file: not `[vdso]`, shared memory or an anonymous file."""
    if name.startswith("/dev/shm/"):  # a file like any other, no device
        return True
    return name.startswith("/") and not name.startswith(("/memfd:", "/dev/", "/SYSV"))
