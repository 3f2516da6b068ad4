"""Hints of how to install what the program lacks, each in a form that works as printed.

The program is in no package index, and `kv-cache` there is a stranger's project whose package is
called `kv_cache` too. A hint names neither: it names the checkout that runs, or the packages. This
module imports nothing but the standard library, as it speaks where the rest cannot be imported,
and what is slow to import only where it speaks.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import kv_cache

DISTRIBUTION = "kv-cache-bench"
NEEDED = ("numpy", "psutil", "yaml", "tqdm", "orjson", "msgspec")
"""Modules without which nothing runs."""

_PACKAGE = Path(__file__).resolve().parent
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def install_hint(extra: str) -> str:
    """Shell command that installs the packages of the optional feature `extra`."""
    checkout = _checkout()
    if checkout is not None:
        return f"{_pip()} -e {quote(f'{checkout}[{extra}]')}"
    return _by_name(extra)


def missing_hint(module: str) -> str:
    """Sentence for a module of `NEEDED` that this interpreter has not."""
    hint = f"{_python()} has no package {module!r}, which this program needs"
    checkout = _checkout()
    if checkout is None:
        return f"{hint}; install it: {_by_name(None)}"
    ready = checkout / ".venv" / "bin" / "python"
    if ready.exists() and Path(sys.prefix) != ready.parents[1]:
        return f"{hint}; run the program by {quote(str(ready))}, the environment of its checkout"
    install = f"{_pip()} -r {quote(str(checkout / 'requirements.txt'))}"
    if _managed():
        install += f", and run the program by {quote(str(ready))}"
    return f"{hint}; install what it needs: {install}"


def stranger_hint() -> str | None:
    """Sentence where another project's files are in place of this program's; None where not."""
    if getattr(kv_cache, "DISTRIBUTION", None) == DISTRIBUTION:
        return None
    origin = kv_cache.__file__ or f"what is left in {_PACKAGE}"
    return (
        f"{origin} is not this program's: another project's package kv_cache (kv-cache on PyPI) "
        f"was installed over it; remove that ({_python()} -m pip uninstall kv-cache) and install "
        "this program again with --force-reinstall"
    )


def _checkout() -> Path | None:
    """Root of the source tree that runs; None where an installed copy does."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() else None


def _by_name(extra: str | None) -> str:
    packages = _packages(extra)
    if not packages:
        return f"the packages that {extra or 'dependencies'} lists in the program's pyproject.toml"
    return f"{_pip()} {' '.join(quote(each) for each in packages)}"


def _packages(extra: str | None) -> Sequence[str]:
    """Packages of an extra, or those always needed, as the installed metadata names them."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return ()
    location = []
    for line in lines:
        package, _, marker = line.partition(";")
        named = _EXTRA.search(marker)
        if (named.group(1) if named else None) == extra:
            location.append(package.strip())
    return location


def _python() -> str:
    return quote(sys.executable or "python3")


def _managed() -> bool:
    """Whether the system's own packaging forbids pip to install for this interpreter."""
    import sysconfig

    stdlib = Path(sysconfig.get_path("stdlib"))
    return sys.prefix == sys.base_prefix and (stdlib / "EXTERNALLY-MANAGED").exists()


def _pip() -> str:
    """The beginning of a command that installs where this program runs."""
    from importlib.util import find_spec

    checkout = _checkout()
    if _managed():
        if checkout is None:
            return f"{_python()} -m pip install --break-system-packages"
        venv = checkout / ".venv"
        python = quote(str(venv / "bin" / "python"))
        make = "" if venv.exists() else f"{_python()} -m venv {quote(str(venv))} && "
        return f"{make}{python} -m pip install"
    if find_spec("pip") is None:  # as in environments that uv makes
        return f"uv pip install --python {_python()}"
    return f"{_python()} -m pip install"
