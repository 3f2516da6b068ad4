"""Child processes that end with the process that starts them."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TIED = """\
import ctypes, os, sys
number = int(sys.argv[2])
ctypes.CDLL(None).prctl(1, number)
if os.getppid() != int(sys.argv[1]):
    sys.exit(128 + number)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"{sys.argv[3]} cannot be started: {error.strerror}")
"""


def tied(command: Sequence[str], number: int = signal.SIGTERM) -> list[str]:
    """The command, such that it is sent a signal when the thread that starts it is gone: what a
    driver started does not outlive it when it is killed, and disturbs nobody who goes on."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), str(int(number)), *command]


def finding_this_package(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that imports this package: it finds it where this one was found,
    whatever the working directory is."""
    root = str(Path(__file__).resolve().parents[2])
    path = filter(None, [root, variables.get("PYTHONPATH")])
    return {**variables, "PYTHONPATH": os.pathsep.join(path)}
