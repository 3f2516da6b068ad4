"""A rank that outlives its own killing for as long as it takes to write the result.

Open MPI's mpirun, when it is interrupted or another rank fails, sends SIGTERM to the process group
of each rank and SIGKILL a quarter of a second later (5.0; no parameter changes it). That is too
short for a result. So the rank is a child in a session of its own, which mpirun does not know; the
process that mpirun knows only passes on signals and the exit code. When it is killed the kernel
sends the child SIGTERM, and the child ends as it always does then.

To be called before there are threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

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
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


def tied(command: Sequence[str], number: int = signal.SIGTERM) -> list[str]:
    """The command, such that it is sent a signal when the thread that starts it is gone: what a
    driver started does not outlive it when it is killed, and disturbs nobody who goes on."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), str(int(number)), *command]


def step_aside() -> None:
    """Returns in the child. The parent waits for it, and exits as it exits."""
    came: list[int] = []
    known: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for child in known:
            os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    parent = os.getpid()
    child = os.fork()
    if child:
        known.append(child)
        for number in came:  # before the child was known
            os.kill(child, number)
        code = _exit_code(child)
        known.clear()  # the number may be somebody else's now
        sys.exit(code)
    for number, handler in before.items():
        signal.signal(number, handler)
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if came or os.getppid() != parent:  # before the handlers were back, or the kernel asked
        os.kill(os.getpid(), came[0] if came else signal.SIGTERM)


def _exit_code(child: int) -> int:
    """The child's, or 128 and the signal that killed it, as a shell says it."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
