"""The engine of sim and lab as machine code, if it was compiled (`app/compile_engine`).

What is compiled lies in the user's cache directory, under a digest of the program's text and of the
interpreter, so that another version of the program never uses it; without it, or with `--pure`, the
Python text itself runs and gives the same numbers.

It must be imported before the modules that it may replace, and import none of them; sim and lab
never fail for want of it.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.extensions import is_an_extension

MODULES: Mapping[str, Sequence[str]] = {
    "kv_cache.sim.cluster": (
        "bound", "cluster", "compute", "counts", "event_loop", "fabric", "fleet", "flight",
        "handover", "instance", "instance_events", "level", "preemption", "prefix_chain",
        "prefix_match", "roster", "router", "routing", "scheduler_rules", "segments", "state_moves",
        "storage", "unlimited", "waiting_queue",
    ),
    "kv_cache.policy.eviction": (
        "arc", "base", "chain", "clock", "cost_aware", "counts", "fifo", "gdsf", "ghosts",
        "greedy_dual", "heavy_hitter", "histories", "importance", "leaf_first", "learned", "lfu",
        "lru", "mq", "numbers", "regret_aware", "s3fifo", "sieve", "sliding_window", "windowed",
    ),
    "kv_cache.lab": ("caches", "chance", "one_size", "seam"),
}  # fmt: skip
"""By package. Those that inherit from each other must all be here."""
PURE = "--pure"
ROOT = Path(__file__).resolve().parents[2]
"""What the package is in."""


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


def _names_extension(part: str) -> bool:
    """Return whether a part of a list names MODULE:CLASS, and not `policy:number=1`."""
    pieces = part.removeprefix("--").split(":")
    plain = len(pieces) > 1 and "=" not in pieces[1] and is_an_extension(":".join(pieces[:2]))
    return plain or is_an_extension(part.rpartition("=")[2])


def use(argv: Sequence[str]) -> bool:
    """Let the modules be taken from what was compiled, if it is there, and return whether they are.
    Does nothing once one of them is imported, nor where a policy of the user's own is named, which
    cannot inherit from machine code."""
    extended = any(_names_extension(part) for word in argv for part in word.split(","))
    if PURE in argv or extended or any(name in sys.modules for name in module_names()):
        return False
    try:
        if not any(cache_directory().glob("engine-*")):
            return False  # without reading all texts
        folder = engine_folder()
        if not is_complete(folder):
            return False
    except (OSError, PlaceError):  # no home, or another user's
        return False
    sys.meta_path.insert(0, _Finder(folder))
    sys.path.append(str(folder))  # what the modules share lies there
    return True


def engine_name() -> str:
    """Return `compiled` if what is imported of the engine is machine code, else `python`."""
    loaded = [sys.modules[name] for name in module_names() if name in sys.modules]
    text = any((each.__file__ or "").endswith(".py") for each in loaded)
    return "compiled" if loaded and not text else "python"


def require_pure(pure: bool) -> None:
    """Raise ConfigError if `pure` is wanted, and the compiled engine is loaded already."""
    if pure and engine_name() == "compiled":
        raise ConfigError("the compiled engine is loaded already; give --pure as a flag")


def module_names() -> list[str]:
    """Return the full names of the modules that are compiled."""
    return [f"{package}.{name}" for package, names in MODULES.items() for name in names]


# --- where it is -----------------------------------------------------------------------------


def engine_folder() -> Path:
    """Return where the machine code of this text for this interpreter is, or would be.

    All texts of the program count: what is compiled may hold constants of the others. Several
    machines may share a home, so the C library counts as well. Raises PlaceError.
    """
    what = (
        sys.implementation.cache_tag, sysconfig.get_platform(), EXTENSION_SUFFIXES[0], _c_library(),
    )  # fmt: skip
    digest = hashlib.sha256(" ".join(what).encode())
    for path in sorted((ROOT / "kv_cache").rglob("*.py")):
        digest.update(path.read_bytes())
    return cache_directory() / f"engine-{digest.hexdigest()[:16]}"


def _c_library() -> str:
    """Return GNU's C library with its version; empty for others."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


def _library(folder: Path, name: str) -> Path:
    return folder.joinpath(*name.split(".")).with_suffix(EXTENSION_SUFFIXES[0])


def is_complete(folder: Path) -> bool:
    """Whether all that was compiled is there."""
    return any(folder.glob("*__mypyc*")) and all(
        _library(folder, name).is_file() for name in module_names()
    )


def cache_directory() -> Path:
    """Return the program's directory in the user's cache. Raises PlaceError."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "kv-cache"
    except RuntimeError:
        raise PlaceError(
            "compile needs a directory to write to, and this user has no home; set XDG_CACHE_HOME"
        ) from None
