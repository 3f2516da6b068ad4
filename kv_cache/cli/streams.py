"""The three standard files, whatever whoever started us made of them."""

import os
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper, UnsupportedOperation
from typing import Any

from kv_cache.core.errors import os_reason


class _Outliving(FileIO):
    """A pipe whose reader may leave (`| head`): what is written after that goes nowhere, and the
    program does what it does for a reader who stays."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            to_nowhere(self.fileno())
            return super().write(data)


def to_nowhere(fd: int) -> None:
    """Let a descriptor lead to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def open_standard_files() -> None:
    """Open /dev/null where one of the three is closed, as cron and daemons leave them: Python has
    no stream then, and the next file that is opened would take the number. Outlive the readers of
    the others."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            with suppress(OSError):
                os.fstat(number)
                continue
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(fd, True)
            setattr(sys, name, open(fd, "r" if number == 0 else "w"))  # noqa: SIM115
        elif number and isinstance(stream, TextIOWrapper):
            with suppress(UnsupportedOperation):  # of a caller's, without a descriptor
                setattr(sys, name, _outliving(stream))


def _outliving(stream: TextIOWrapper) -> TextIOWrapper:
    """Return the same stream, which outlives its reader. What is printed may name a mount point, a
    directory or a variable whose bytes are no UTF-8."""
    return TextIOWrapper(
        BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,
    )


def lost_output() -> str | None:
    """Return what to say where stdout takes no more, and print nothing there from now on; None
    where it takes another line: what failed may have left nothing to be flushed."""
    try:
        print(flush=True)
    except OSError as error:
        to_nowhere(sys.stdout.fileno())
        return (
            f"standard output takes no more ({os_reason(error)}): what was to be printed is not "
            "there; free some space, or send it elsewhere"
        )
    return None
