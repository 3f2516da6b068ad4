"""The process that owns a command's end: its child does the work, and all that touches a device.

A thread in a call on a device that hangs for good cannot be killed, and keeps its process. So the
process that the user started does no I/O on storage: it passes signals on, ends as its child ends,
and where that cannot end says so and ends all the same. When it is killed the kernel ends the
child.

A rank that a launcher started has its child in a session of its own. Open MPI's mpirun, when it is
interrupted or another rank fails, sends SIGTERM to the process group of each rank and SIGKILL a
quarter of a second later (5.0; no parameter changes it): too short for a result. mpirun knows only
the parent; when that is killed the kernel sends the child SIGTERM, and it ends as it always does.

To be called before there are threads, and before much is imported: what is, is in both.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from kv_cache.bench.ending_signals import EXITS, HANGUP
from kv_cache.core.exits import Exit

_PR_SET_PDEATHSIG = 1
_SI_KERNEL = 0x80  # of a signal that the terminal sent, to the whole of its foreground group
_LOOK_S = 0.5
_LEAVE_S = 5.0  # for a child that has said how it ends
_STILL_S = 60.0  # in one call that no signal ends, for the thread that would have to tell about it
_KILL_S = 1.0

_channel: int | None = None  # of the child, to the parent


def tell(**fields: Any) -> None:
    """Say something to the parent, if there is one: `code` and `still_s` mean something to it."""
    if _channel is not None:
        os.write(_channel, json.dumps(fields).encode() + b"\n")


def supervisor() -> int | None:
    """The process that supervises this one; None where it is alone."""
    return None if _channel is None else os.getppid()


def supervise(*, own_session: bool = False) -> None:
    """Returns in the child. The parent waits for it, and exits as it exits. Does nothing where the
    kernel is not Linux: nothing touches a device there."""
    if not hasattr(signal, "sigtimedwait"):
        return
    global _channel
    reading, writing = os.pipe()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*EXITS, signal.SIGCHLD})
    child = os.fork()
    if child:
        os.close(writing)
        _Parent(child, reading, own_session=own_session).wait()
    os.close(reading)
    _channel = writing
    if own_session:
        os.setsid()
    # SIGKILL: whoever kills a command without a chance to end has it gone at once.
    last = signal.SIGTERM if own_session else signal.SIGKILL
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, last)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        os.kill(os.getpid(), last)


class _Parent:
    def __init__(self, child: int, reading: int, *, own_session: bool) -> None:
        os.set_blocking(reading, False)
        self._child = child
        self._reading = reading
        self._own_session = own_session
        self._unread = b""
        self._told: dict[str, Any] = {}
        self._told_s: float | None = None  # when the child had said its exit code
        self._seen = ""
        self._seen_s = time.monotonic()

    def wait(self) -> NoReturn:
        for number in signal.sigpending():  # the child may not have been there when they came
            if number in EXITS:
                self._kill(number)
        waited_for = {*EXITS, signal.SIGCHLD}
        while True:
            came = signal.sigtimedwait(waited_for, _LOOK_S)
            if (code := self._ended()) is not None:
                _exit(code)
            if came is not None and came.si_signo in EXITS:
                self._pass_on(came)
            self._listen()
            if (why := self._stuck()) is not None:
                _exit(self._give_up(why))

    def _pass_on(self, came: "signal.struct_siginfo") -> None:
        """What the terminal sends has reached the child too, unless that has its own session. A
        SIGHUP may have come to this process alone, as the leader of the terminal's session."""
        of_group = came.si_code == _SI_KERNEL and came.si_signo != HANGUP
        if self._own_session or not of_group:
            self._kill(came.si_signo)

    def _kill(self, number: int) -> None:
        os.kill(self._child, number)  # it has not been waited for: the number is its own

    def _ended(self) -> int | None:
        """The child's exit code, or 128 and the signal that killed it, as a shell says it."""
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        if HANGUP is not None and code == -HANGUP:
            return Exit.SIGTERM
        return code if code >= 0 else 128 - code

    def _listen(self) -> None:
        try:
            self._unread += os.read(self._reading, 65536)
        except BlockingIOError:
            return
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._told |= json.loads(line)
        if "code" in self._told and self._told_s is None:
            self._told_s = time.monotonic()

    def _stuck(self) -> str | None:
        """Why the child will not end by itself."""
        now_s = time.monotonic()
        if self._told_s is not None:
            late = now_s - self._told_s > _LEAVE_S
            return "it has done all that it could, and does not end" if late else None
        state, seen = self._look()
        if seen != self._seen or state not in ("D", "Z"):
            self._seen, self._seen_s = seen, now_s
        still_s = max(_LEAVE_S, self._told.get("still_s", _STILL_S))
        if now_s - self._seen_s < still_s:
            return None
        if state == "Z":
            return "it was killed, and a call on a device keeps it"
        return f"it has been in one call{self._call()}, which no signal ends, for {still_s:g} s"

    def _call(self) -> str:
        """Where in the kernel, as far as that is told."""
        try:
            with open(f"/proc/{self._child}/wchan") as file:
                name = file.read()
        except OSError:
            return ""
        return f" ({name})" if name not in ("", "0") else ""

    def _look(self) -> tuple[str, str]:
        """The state of the child's main thread, and how often the kernel has switched to it."""
        try:
            with open(f"/proc/{self._child}/status", errors="replace") as file:
                lines = [line.split() for line in file]
        except OSError:
            return "", ""
        fields = {words[0]: words[1] for words in lines if len(words) > 1}
        switches = [value for name, value in fields.items() if name.endswith("ctxt_switches:")]
        return fields.get("State:", ""), " ".join(switches)

    def _give_up(self, why: str) -> int:
        print(
            f"kv-cache: the device did not answer: process {self._child} is left behind: {why}",
            file=sys.stderr,
        )
        self._kill(signal.SIGKILL)
        until_s = time.monotonic() + _KILL_S
        while time.monotonic() < until_s:
            if self._ended() is not None:
                break
            time.sleep(0.05)
        return Exit.NO_ANSWER


def _exit(code: int) -> NoReturn:
    """Without what an interpreter does at its end: this process has done nothing."""
    sys.stderr.flush()
    os._exit(code)
