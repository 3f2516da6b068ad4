"""Signals outside `bench/interrupts.py`: before a command takes them over, and in those commands
that have little to put away.

KeyboardInterrupt is raised wherever the main thread happens to be. Within an import that may be the
start of an extension module, which does not look (orjson's then reads address 0) or drops it;
within a finalizer or a weak reference's callback Python prints it and goes on. Both end the process
at once. Elsewhere it is raised, so that a file that is half written is removed.
"""

import os
import signal
import sys
from types import FrameType

from kv_cache.bench.ending_signals import EXITS, HANGUP, drop_dead_terminal
from kv_cache.core.exits import Exit


def end_on(*numbers: signal.Signals) -> None:
    """Let these signals end the process from now on, with their exit codes. One that is ignored
    stays so, as SIGINT is for what a script runs in the background."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handler)
    sys.unraisablehook = _unraisable


def exit_of(ended: BaseException | None) -> int:
    """Return the exit code of a KeyboardInterrupt."""
    return int(ended.args[0]) if ended is not None and ended.args else Exit.SIGINT


def _handler(number: int, frame: FrameType | None) -> None:
    code = EXITS[signal.Signals(number)]
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(code)
        frame = frame.f_back
    if number == HANGUP:
        drop_dead_terminal()
    raise KeyboardInterrupt(int(code))


def _unraisable(dropped: "sys.UnraisableHookArgs") -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        os._exit(exit_of(dropped.exc_value))
    sys.__unraisablehook__(dropped)
