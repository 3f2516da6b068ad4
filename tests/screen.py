"""A program on a terminal of its own, and what a person would see there."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.cli import PATIENCE_S, worker_of

_PIECE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]")


class Screen:
    """The little of a terminal that progress needs: text that wraps, CR, LF, cursor up, erase to
    the end of the line and of the screen. Anything else is an error."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.rows: list[list[str]] = [[]]  # with what has scrolled away
        self.x = self.y = self.top = 0

    def feed(self, text: str) -> None:
        for piece in _PIECE.finditer(text):
            if piece[0] == "\r":
                self.x = 0
            elif piece[0] == "\n":
                self._down()
            elif piece[2] is None:
                self._put(piece[0])
            else:
                self._control(piece[1], piece[2])

    def _control(self, number: str, what: str) -> None:
        if what == "A":
            self.y = max(self.top, self.y - int(number or 1))
        elif what == "K":
            del self.rows[self.y][self.x :]
        elif what == "J":
            del self.rows[self.y][self.x :]
            del self.rows[self.y + 1 :]
        else:
            raise AssertionError(f"a sequence that not every terminal knows: {number}{what}")

    def _put(self, char: str) -> None:
        if self.x >= self.columns:
            self.x = 0
            self._down()
        row = self.rows[self.y]
        row.extend(" " * (self.x + 1 - len(row)))
        row[self.x] = char
        self.x += 1

    def _down(self) -> None:
        self.y += 1
        if self.y == len(self.rows):
            self.rows.append([])
        self.top = max(self.top, self.y - self.lines + 1)

    @property
    def text(self) -> list[str]:
        """All lines, without empty ones at the end."""
        told = ["".join(row).rstrip() for row in self.rows]
        while told and not told[-1]:
            told.pop()
        return told


_DRAWING = re.compile(r".*?\x1b\[J(?:\x1b\[\d+A)?\r?|.+$", re.DOTALL)
"""All up to where the rest of the screen is cleared, and the way back to the first line."""
_WHOLE = re.compile(r"(?:[^\x1b]|\x1b\[[0-9;?]*[A-Za-z])*")
"""Without the beginning of a sequence whose end is not read yet."""
_DRAWN = re.compile(r"\x1b\[J(?:\x1b\[\d+A)?\r$")


class Terminal:
    """Runs a command with stderr, or stdout too, on a terminal. `told` is all that it wrote
    there, `frames` what the screen showed after each drawing, however many came at once."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        *,
        columns: int = 100,
        lines: int = 30,
        stdout: bool = False,
    ) -> None:
        self._master, slave = pty.openpty()
        self.screen = Screen(columns, lines)
        self.told = ""
        self.frames: list[list[str]] = []
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._rest = ""
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stderr=slave,
            stdout=slave if stdout else subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        """As a terminal that cuts off what has no room any more."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.columns, self.screen.lines = columns, lines
        for row in self.screen.rows:
            del row[columns:]

    def until(self, reached: Callable[["Terminal"], bool], seconds: float = PATIENCE_S) -> bool:
        """Read on until it is so; False where the program ended before."""
        late = time.monotonic() + seconds
        while not reached(self):
            if not select.select([self._master], [], [], max(0.0, late - time.monotonic()))[0]:
                raise AssertionError(f"not seen within {seconds:g} s: {self.told[-2000:]!r}")
            try:
                read = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return False
            data = self._rest + self._decode(read)
            whole = _WHOLE.match(data)
            assert whole is not None
            self._rest = data[whole.end() :]
            for text in _DRAWING.findall(whole[0]):
                self.told += text
                self.screen.feed(text)
                self.frames.append(self.screen.text)
        return True

    def resize_between_drawings(self, columns: int, lines: int) -> None:
        """What was drawn for the old size is read before, as long as the program stands still: the
        process that draws, which is the child of one that supervises it."""
        worker = psutil.Process(worker_of(self.process))
        while True:
            worker.suspend()
            while worker.status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            while select.select([self._master], [], [], 0)[0]:
                before = len(self.told)
                self.until(lambda t, before=before: len(t.told) > before)  # type: ignore[misc]
            whole = _DRAWN.search(self.told) is not None
            if whole:
                self.resize(columns, lines)
            worker.resume()
            if whole:
                return

    def finish(self, seconds: float = PATIENCE_S) -> tuple[int, str]:
        """The exit code, and stdout where it is no terminal."""
        try:
            self.until(lambda _: False, seconds)
            out = b"" if self.process.stdout is None else self.process.stdout.read()
            return self.process.wait(seconds), out.decode()
        finally:
            self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._master)
