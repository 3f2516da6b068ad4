"""`kv-cache.py compile`: the engine of sim and lab as machine code, up to four times as fast.

The event loop, the eviction policies and the lab's way to them are compiled from their own Python
text by mypyc; there is no second source. What is compiled lies in the user's cache directory, under
a digest of that text and of the interpreter, so that another version of the program never uses it;
without it, or with `--pure`, the Python text itself runs and gives the same numbers.

It must never write anywhere else, nor compile unasked, and sim and lab never fail for want of it.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.installing import install_hint

MODULES: Mapping[str, Sequence[str]] = {
    "kv_cache.sim.cluster": (
        "cluster", "compute", "counts", "event_loop", "fabric", "fleet", "flight", "instance",
        "prefix_chain", "prefix_match", "roster", "router", "scheduler_rules", "segments",
        "storage", "waiting_queue",
    ),
    "kv_cache.policy.eviction": (
        "arc", "base", "chain", "clock", "cost_aware", "counts", "fifo", "gdsf", "ghosts",
        "greedy_dual", "histories", "importance", "leaf_first", "learned", "lfu", "lru", "numbers",
        "ranked", "regret_aware", "s3fifo", "sieve", "sliding_window", "windowed",
    ),
    "kv_cache.lab": ("chance", "seam"),
}  # fmt: skip
"""By package. Those that inherit from each other must all be here."""
PURE = "--pure"

_LOOK_S = 0.2
_PATIENCE_S = 3.0
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup
modules = {modules!r}
setup(
    name="kv_cache_engine", packages=[], py_modules=[],
    ext_modules=mypycify(["--config-file=", "--ignore-missing-imports", *modules], opt_level="3"),
)
"""
_ROOT = Path(__file__).resolve().parents[2]
_EPILOG = """examples:
  kv-cache.py compile            once after each update; takes about a minute
  kv-cache.py sim cluster-10k    uses it
  kv-cache.py compile --remove   deletes what was compiled, of all versions
"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="kv-cache.py compile", description=(__doc__ or "").split("\n\n")[0].split(": ", 1)[1],
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--remove", action="store_true", help="delete what was compiled")
    remove = parser.parse_args(argv).remove
    try:
        return _remove() if remove else _make()
    except OSError as error:
        raise PlaceError(
            f"compile cannot write below {_cache()} ({error.strerror}); set XDG_CACHE_HOME to "
            "a directory of yours"
        ) from None


def _make() -> int:
    folder = place()
    if _is_complete(folder):
        print(f"compiled already: {folder}")
        return 0
    began = time.monotonic()
    with interrupts() as caught:
        build(folder, caught)
    if caught.came and not _is_complete(folder):
        print(f"kv-cache: compile: {caught.name}: nothing was kept", file=sys.stderr)
        return caught.exit_code
    print(f"compiled  {folder}\ntook      {time.monotonic() - began:.0f} s")
    return 0


class _Finder(MetaPathFinder):
    """Finds what was compiled, before Python looks for the text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if name not in MODULES.get(package, ()):
            return None
        return spec_from_file_location(fullname, _library(self._folder, fullname))


def use(argv: Sequence[str]) -> bool:
    """Let the modules be taken from what was compiled, if it is there; before they are imported."""
    if PURE in argv or any(name in sys.modules for name in _names()):
        return False
    try:
        if not any(_cache().glob("engine-*")):
            return False  # without reading all texts
        folder = place()
        if not _is_complete(folder):
            return False
    except (OSError, PlaceError):  # no home, or somebody else's
        return False
    sys.meta_path.insert(0, _Finder(folder))
    sys.path.append(str(folder))  # what the modules share lies there
    return True


def place() -> Path:
    """Where the machine code of this text for this interpreter lies, or would. All texts of the
    program count: what is compiled may hold constants of the others. A home may be shared by
    machines, so that the C library counts as well."""
    what = (
        sys.implementation.cache_tag, sysconfig.get_platform(), EXTENSION_SUFFIXES[0], _c_library(),
    )  # fmt: skip
    digest = hashlib.sha256(" ".join(what).encode())
    for path in sorted((_ROOT / "kv_cache").rglob("*.py")):
        digest.update(path.read_bytes())
    return _cache() / f"engine-{digest.hexdigest()[:16]}"


def _c_library() -> str:
    """GNU's with its version; of others nothing is said."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


def _library(folder: Path, name: str) -> Path:
    return folder.joinpath(*name.split(".")).with_suffix(EXTENSION_SUFFIXES[0])


def _is_complete(folder: Path) -> bool:
    return any(folder.glob("*__mypyc*")) and all(
        _library(folder, name).is_file() for name in _names()
    )


def _names() -> list[str]:
    return [f"{package}.{name}" for package, names in MODULES.items() for name in names]


def _paths() -> list[Path]:
    """Of the texts, below the root."""
    return [Path(*name.split(".")).with_suffix(".py") for name in _names()]


def build(folder: Path, caught: Interrupts) -> None:
    """Compile into `folder`, whole or not at all. Raises UsageError, OSError."""
    if shutil.which("gcc") is None and shutil.which("clang") is None:
        raise UsageError("compile needs a C compiler, which is missing; install gcc or clang")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder.parent) as name:
        made = Path(name, "made")
        _compile(Path(name), made, caught)
        if caught.came:
            return
        if folder.exists() and not _is_complete(folder):
            _discard(folder)  # somebody took a part of it away
        try:
            os.replace(made, folder)
        except OSError:
            if not _is_complete(folder):  # else another compile was quicker
                raise


def _compile(work: Path, made: Path, caught: Interrupts) -> None:
    shutil.copytree(
        _ROOT / "kv_cache", work / "kv_cache", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    texts = [str(path) for path in _paths()]
    (work / "setup.py").write_text(_SETUP.format(modules=texts))
    said = work / "said.txt"
    with said.open("w") as out:
        compiler = subprocess.Popen(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out,
            env={**os.environ, "PYTHONPATH": "", "TMPDIR": str(work)}, start_new_session=True,
        )  # fmt: skip
        try:
            while compiler.poll() is None and not caught.stop.wait(_LOOK_S):
                pass
        finally:
            _end(compiler)
    if caught.came:
        return
    if compiler.returncode:
        last = (said.read_text(errors="replace").strip() or "nothing was said").splitlines()[-1]
        raise UsageError(
            f"compile failed ({last}); it needs gcc or clang and mypy's compiler: "
            f"{install_hint('fast')}"
        )
    for library in (*work.glob("*.so"), *(work / "kv_cache").rglob("*.so")):
        target = made / library.relative_to(work)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)


def _end(compiler: "subprocess.Popen[bytes]") -> None:
    """With those that it has started, so that nobody writes any more."""
    if compiler.poll() is not None:
        return
    group = compiler.pid
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(group, signal.SIGTERM)
        compiler.wait(_PATIENCE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
        compiler.wait()
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            os.killpg(group, 0)  # raises once the last one is gone
            time.sleep(0.01)


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "kv-cache"
    except RuntimeError:
        raise PlaceError(
            "compile needs a directory to write to, and this user has no home; set XDG_CACHE_HOME"
        ) from None


def _remove() -> int:
    """What was compiled, of all versions, and what a compile that was killed has left."""
    made = [path for kind in ("engine", "compiling") for path in _cache().glob(f"{kind}-*")]
    for folder in sorted(made):
        _discard(folder)
        print(f"removed   {folder}")
    if not made:
        print("nothing was compiled")
    return 0


def _discard(folder: Path) -> None:
    """At once for whoever looks, so that nobody loads a part of it."""
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder.parent) as name:
        os.replace(folder, Path(name, folder.name))
