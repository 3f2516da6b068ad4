"""SIGINT outside `bench/interrupts.py`: before a command takes signals over, and in those commands
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

from kv_cache.core.exits import Exit


def end_on_sigint() -> None:
    """Let every SIGINT from now on end the process. Does nothing where SIGINT is ignored, as of
    what a script runs in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _handler)
        sys.unraisablehook = _unraisable


def _handler(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(Exit.SIGINT)
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(dropped: "sys.UnraisableHookArgs") -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        os._exit(Exit.SIGINT)
    sys.__unraisablehook__(dropped)
