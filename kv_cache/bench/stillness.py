"""Waiting for storage that may never answer.

A call on a device that hangs for good cannot be ended from outside: its thread survives even
SIGKILL, as long as the device holds on to it. So whatever touches storage and can be waited for by
the thread that must report it is called in a thread of its own, and given up once that thread
has not run at all for a while: a call that makes any progress sleeps and wakes again and again.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kv_cache.bench.procfs import parse_pairs, text_of
from kv_cache.core.errors import NoAnswerError

T = TypeVar("T")

ANSWER_S = 30.0
"""How long a call on storage may stand still, if no configuration says (`run.answer_s`)."""
_LOOK_S = 0.1


class ThreadStillness:
    """Since when a thread, of this process or another, has not run."""

    def __init__(self, pid: int, thread: int) -> None:
        self._status = Path(f"/proc/{pid}/task/{thread}/status")
        self._seen: tuple[str, ...] = ()
        self._since_s = time.monotonic()
        self.state = ""
        """`R`, `S`, `D` (in a call that no signal ends) or `Z`, as the last look found it; empty
        where there is no such thread."""

    def look(self) -> float:
        """Return seconds for which the kernel has not once switched to the thread."""
        fields = parse_pairs(text_of(self._status) or "")  # empty once it has ended
        self.state = fields.get("State", "")[:1]
        seen = tuple(fields.get(f"{kind}_ctxt_switches", "") for kind in _KINDS)
        now_s = time.monotonic()
        if seen != self._seen or self.state in ("", "R"):
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s


_KINDS = ("voluntary", "nonvoluntary")


def all_still(watched: Sequence[ThreadStillness], patience_s: float) -> bool:
    """Whether there are threads, and none of them has run for so long."""
    return bool(watched) and min([each.look() for each in watched]) >= patience_s


class IoThreads:
    """Threads of this process that do I/O, from when they have begun."""

    def __init__(self, threads: Sequence[threading.Thread], patience_s: float) -> None:
        self._patience_s = patience_s
        self._stillness = {t: ThreadStillness(os.getpid(), t.native_id or 0) for t in threads}

    @property
    def alive(self) -> list[threading.Thread]:
        return [thread for thread in self._stillness if thread.is_alive()]

    def require_answer(self, what: str) -> None:
        """Raise NoAnswerError, which names `what` they do, once none of those that are still alive
        has run for too long."""
        left = self.alive
        if all_still([self._stillness[thread] for thread in left], self._patience_s):
            raise NoAnswerError(
                f"the device did not answer: {len(left)} {what} have stood still for "
                f"{self._patience_s:g} s"
            )


def answered(what: str, call: Callable[[], T], patience_s: float) -> T:
    """Return or raise what `call` does. Raises NoAnswerError, saying that `what` did not come to
    its end, once it has stood still for `patience_s`; its thread is left behind."""
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=work, name="storage", daemon=True)
    thread.start()
    thread.join(_LOOK_S)
    watched = ThreadStillness(os.getpid(), thread.native_id or 0)
    while thread.is_alive():
        if watched.look() >= patience_s:
            raise NoAnswerError(
                f"the device did not answer: {what} has stood still for {patience_s:g} s"
            )
        thread.join(_LOOK_S)
    if failed:
        raise failed[0]
    return done[0]
