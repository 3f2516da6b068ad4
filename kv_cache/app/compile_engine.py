"""Compile the event loop, the eviction policies and the lab's way to them from their own Python
text, by mypyc; there is no second source. `app/compiled` uses what is compiled.

It must never write outside of the user's cache directory, nor compile unless asked to.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kv_cache.app.compiled import ROOT, cache_directory, engine_folder, is_complete, module_names
from kv_cache.bench.interrupts import Interrupts
from kv_cache.config.schema import opt
from kv_cache.core.errors import PlaceError, UsageError, os_reason
from kv_cache.installing import install_hint

_LOOK_S = 0.2
_PATIENCE_S = 3.0
_LINES_SHOWN = 10  # of what the compiler said last
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup
modules = {modules!r}
setup(
    name="kv_cache_engine", packages=[], py_modules=[],
    ext_modules=mypycify(["--config-file=", "--ignore-missing-imports", *modules], opt_level="3"),
)
"""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Whether to compile, or to remove."""

    remove: bool = opt(False, "Delete what was compiled, of all versions", flag="--remove")


@dataclass(frozen=True, kw_only=True)
class CompiledEngine:
    """Machine code of the engine, and the time that compiling it took; None if it was there."""

    folder: Path
    seconds: float | None


def compile_engine(stop: Interrupts | None = None) -> CompiledEngine | None:
    """Compile the engine unless that was done; None if `stop` ended it. Raises UsageError."""
    caught = stop or Interrupts()
    with _writable():
        folder = engine_folder()
        if is_complete(folder):
            return CompiledEngine(folder=folder, seconds=None)
        began_s = time.monotonic()
        _build(folder, caught)
        if caught.came and not is_complete(folder):
            return None
        return CompiledEngine(folder=folder, seconds=time.monotonic() - began_s)


def remove_engines() -> list[Path]:
    """Remove what was compiled, of all versions, and what a compile that was killed has left.
    Return what was removed. Raises UsageError."""
    with _writable():
        cache = cache_directory()
        folders = sorted(f for kind in ("engine", "compiling") for f in cache.glob(f"{kind}-*"))
        for folder in folders:
            _discard(folder)
        return folders


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlaceError(
            f"compile cannot write below {cache_directory()} ({os_reason(error)}); set "
            "XDG_CACHE_HOME to a directory of yours"
        ) from None


def _build(folder: Path, stop: Interrupts) -> None:
    """Compile into `folder`, whole or not at all. Raises UsageError, OSError."""
    if shutil.which("gcc") is None and shutil.which("clang") is None:
        raise UsageError("compile needs a C compiler, which is missing; install gcc or clang")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder.parent) as name:
        libraries = Path(name, "libraries")
        _compile(Path(name), libraries, stop)
        if stop.came:
            return
        if folder.exists() and not is_complete(folder):
            _discard(folder)  # a part of it was taken away
        try:
            os.replace(libraries, folder)
        except OSError:
            if not is_complete(folder):  # else another compile was quicker
                raise


def _compile(work: Path, libraries: Path, stop: Interrupts) -> None:
    shutil.copytree(
        ROOT / "kv_cache", work / "kv_cache", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    texts = [str(Path(*name.split(".")).with_suffix(".py")) for name in module_names()]
    (work / "setup.py").write_text(_SETUP.format(modules=texts))
    errors = work / "errors.txt"  # of both: mypy says on stdout what it finds
    with errors.open("w") as out:
        compiler = subprocess.Popen(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=work, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": "", "TMPDIR": str(work)}, start_new_session=True,
        )  # fmt: skip
        try:
            while compiler.poll() is None and not stop.stop.wait(_LOOK_S):
                pass
        finally:
            _end(compiler)
    if stop.came:
        return
    if compiler.returncode:
        text = errors.read_text(errors="replace").strip() or "nothing"
        raise UsageError(
            "compile failed; it needs gcc or clang and mypy's compiler: "
            f"{install_hint('fast')}\nIt said last:\n"
            + "\n".join(text.splitlines()[-_LINES_SHOWN:])
        )
    for library in (*work.glob("*.so"), *(work / "kv_cache").rglob("*.so")):
        target = libraries / library.relative_to(work)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)


def _end(compiler: "subprocess.Popen[bytes]") -> None:
    """End it with the processes that it has started, so that none writes any more."""
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


def _discard(folder: Path) -> None:
    """Remove a folder at once for all processes, so that none loads a part of it."""
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder.parent) as name:
        os.replace(folder, Path(name, folder.name))
