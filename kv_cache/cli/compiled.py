"""`kv-cache.py compile`: the engine of simulated clusters as machine code, four times as fast.

The modules of the event loop are compiled from their own Python text by mypyc; there is no second
source. What is compiled lies in the user's cache directory, under a digest of that text and of the
interpreter, so that another version of the program never uses it; without it, or with `sim --pure`,
the Python text itself runs and gives the same numbers.

It must never write anywhere else, nor compile unasked.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kv_cache.core.errors import PlaceError, UsageError

MODULES = (
    "chain", "cluster", "compute", "fleet", "flight", "instance", "loop", "pieces", "router",
    "stack",
)  # fmt: skip
INSIDE = Path("kv_cache", "sim", "cluster")
PURE = "--pure"

_HOW_TO_GET_IT = "pip install 'kv-cache[fast]', and a C compiler (gcc or clang)"
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
  kv-cache.py compile            once after each update; takes about half a minute
  kv-cache.py sim cluster-10k    uses it
  kv-cache.py compile --remove   deletes what was compiled, of all versions
"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="kv-cache.py compile", description=(__doc__ or "").split("\n\n")[0].split(": ", 1)[1],
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--remove", action="store_true", help="delete what was compiled")
    if parser.parse_args(argv).remove:
        _remove()
        return 0
    folder = place()
    if _complete(folder):
        print(f"compiled already: {folder}")
        return 0
    began = time.monotonic()
    build(folder)
    print(f"compiled  {folder}\ntook      {time.monotonic() - began:.0f} s")
    return 0


def use(argv: Sequence[str]) -> bool:
    """Let the modules be taken from what was compiled, if it is there; before they are imported."""
    folder = place()
    if PURE in argv or "kv_cache.sim.cluster.loop" in sys.modules or not _complete(folder):
        return False
    import kv_cache.sim.cluster as package

    package.__path__.insert(0, str(folder / INSIDE))
    sys.path.append(str(folder))  # what the modules share lies there
    return True


def in_use() -> bool:
    """Whether the engine that is imported is machine code."""
    from kv_cache.sim.cluster import loop

    return not (loop.__file__ or "").endswith(".py")


def place() -> Path:
    """Where the machine code of this text for this interpreter lies, or would."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {sysconfig.get_platform()}".encode())
    for module in MODULES:
        digest.update((_ROOT / INSIDE / f"{module}.py").read_bytes())
    return _cache() / f"engine-{digest.hexdigest()[:16]}"


def build(folder: Path) -> None:
    """Compile into `folder`, whole or not at all. Raises UsageError."""
    if shutil.which("gcc") is None and shutil.which("clang") is None:
        raise UsageError(f"compile needs a C compiler, which is missing; get it: {_HOW_TO_GET_IT}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder.parent) as name:
            made = Path(name, "made")
            _compile(Path(name), made)
            os.replace(made, folder)
    except OSError as error:
        raise PlaceError(
            f"compile cannot write below {folder.parent} ({error.strerror}); set XDG_CACHE_HOME to "
            "a directory of yours"
        ) from None


def _compile(work: Path, made: Path) -> None:
    shutil.copytree(
        _ROOT / "kv_cache", work / "kv_cache", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    paths = [str(INSIDE / f"{module}.py") for module in MODULES]
    (work / "setup.py").write_text(_SETUP.format(modules=paths))
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=work, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or "nothing was said").splitlines()[-1]
        raise UsageError(f"compile failed ({last}); it needs: {_HOW_TO_GET_IT}")
    for library in (*work.glob("*.so"), *(work / INSIDE).glob("*.so")):
        target = made / library.relative_to(work)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)


def _complete(folder: Path) -> bool:
    return (folder / INSIDE).is_dir()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kv-cache"


def _remove() -> None:
    found = sorted(_cache().glob("engine-*"))
    for folder in found:
        shutil.rmtree(folder)
        print(f"removed   {folder}")
    if not found:
        print("nothing was compiled")
