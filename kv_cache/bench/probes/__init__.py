"""Looks at the machine for a result's passport: what could make the number untrue.

One module a question: a thin reader and pure functions that understand what was read. A probe
never breaks a run: what the machine does not say is None. It only looks; what the finding
means is decided elsewhere.
"""

from pathlib import Path


def text_of(path: Path) -> str | None:
    """The content of a small file of /proc or /sys; None where it is absent or hidden.

    Names in it are any bytes, as in a path that Python gives: a mount point of anybody's that is
    not UTF-8 breaks no run, and equals the same path.
    """
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return None
