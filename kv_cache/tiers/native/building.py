"""The library of the native transfers, and how it is made, where there is a C compiler.

`python -m kv_cache.tiers.native`, which `make run` calls, and the wheel's build (`wheel.py`) make
it. Nothing else of the program needs a compiler, and without the library the same is done in
Python. Imports nothing that is not Python's own.
"""

import hashlib
import os
from pathlib import Path

SOURCE = Path(__file__).with_name("transfers.c")
FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra",
    "-D_FILE_OFFSET_BITS=64",
)  # fmt: skip


def library_path() -> Path:
    """Return where the library of this source and machine is, or would be."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return SOURCE.with_name(f"transfers-{digest}-{os.uname().machine}.so")


def compiler() -> list[str] | None:
    """Return the command of the C compiler: $CC, Python's own, or any; None if there is none."""
    import shlex  # here and below: whoever only loads the library needs none of it
    import shutil
    import sysconfig

    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]):
            return words[:1]
    return None


def build() -> str:
    """Compile the library beside its source, whole or not at all; say what came of it, which is
    nothing if it is there."""
    target = library_path()
    if target.exists():
        return ""
    import shlex
    import subprocess
    import tempfile

    cc = compiler()
    if cc is None:
        return (
            "native transfers: there is no C compiler (cc, gcc or clang), so objects are moved in "
            "Python, small ones more slowly; install one and run this again"
        )
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
            library = Path(scratch, target.name)
            command = [*cc, *FLAGS, str(SOURCE), "-o", str(library)]
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                return f"native transfers: {shlex.join(cc)} failed: {ended.stderr.strip()[-400:]}"
            for old in target.parent.glob("transfers-*.so"):
                old.unlink()
            library.rename(target)
    except OSError as error:
        return f"native transfers: {target.parent} cannot be written ({error.strerror})"
    return f"native transfers: {target.name} made with {shlex.join(cc)}"
