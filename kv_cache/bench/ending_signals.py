"""The signals that end a command, and the terminal that is gone when one of them comes. It imports
little: each command begins with it."""

import errno
import os
import signal

from kv_cache.core.exits import Exit

try:  # not within a handler: an import there waits for one that was interrupted
    import termios
except ModuleNotFoundError:  # Windows
    termios = None  # type: ignore[assignment]

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
EXITS = {signal.SIGINT: Exit.SIGINT, signal.SIGTERM: Exit.SIGTERM}
if HANGUP is not None:
    EXITS[HANGUP] = Exit.SIGTERM
"""The signals that are taken over, with the exit code of each."""


def drop_dead_terminal() -> None:
    """Write to nowhere from now on if the terminal is gone: each write to it would fail."""
    assert termios is not None  # who has SIGHUP has it
    for fd in (0, 1, 2):
        try:
            termios.tcgetattr(fd)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, fd)
                os.close(nowhere)
