"""Independent parts of a study, many at once in processes of their own.

What a part returns depends on its arguments alone, and comes back in the order asked for, so that
a result is the same to the byte whatever did it. The processes end with the one that asks.
"""

import ctypes
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from threading import Timer
from typing import Any

import psutil

from kv_cache.app import compiled
from kv_cache.bench.ending_signals import EXITS
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.linux import usable_cpus
from kv_cache.core.errors import UsageError

_LOOK_S = 0.1
_PATIENCE_S = 3.0  # with parts that are to end and do not look
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

Progress = Callable[[int], None]
Part = Callable[..., Any]
"""Takes what was prepared, its own arguments, and whom to tell how far it is, in any unit; that
raises StoppedError if the command was interrupted."""


class StoppedError(Exception):
    """A signal came to the command: the part is given up."""


def processes_for(parts: int) -> int:
    """Return how many processes may work at once: no more than usable cores, nor than fit into
    memory if each becomes as large as this one was."""
    largest = max(1, psutil.Process().memory_info().rss)
    return max(1, min(parts, usable_cpus(), psutil.virtual_memory().available // largest))


class Cores:
    """Processes that work off parts."""

    def __init__(self, pool: ProcessPoolExecutor, processes: int, stop: Any, count: Any) -> None:
        self._pool = pool
        self._ahead = 2 * processes
        self._stop = stop
        self._count = count

    def in_order(
        self, part: Part, all_arguments: Iterable[tuple[Any, ...]], caught: Interrupts,
        progress: Progress,
    ) -> Iterator[Any]:  # fmt: skip
        """Yield what each part returns, and tell how far all of them are together. Raises what a
        part raises, StoppedError after a signal, and UsageError if a process died."""
        waiting = deque[Future[Any]]()
        left = iter(all_arguments)
        try:
            while True:
                while len(waiting) < self._ahead and (arguments := next(left, None)) is not None:
                    with _signals_kept_back():  # submitting may start a process
                        waiting.append(self._pool.submit(_work, pickle.dumps((part, arguments))))
                if not waiting:
                    return
                yield self._ended(waiting.popleft(), caught, progress)
                if caught.came:  # parts that are shorter than a look at it never see it
                    raise StoppedError
        except BrokenProcessPool:
            if caught.came:
                raise StoppedError from None
            raise UsageError(
                "a process that did a part of the study died, as it does where memory runs out; "
                "make the study smaller, or let it have one core (taskset -c 0)"
            ) from None
        finally:
            self._stop.value = 1

    def _ended(self, future: "Future[Any]", caught: Interrupts, progress: Progress) -> Any:
        while True:
            if caught.came and not future.done():
                raise StoppedError
            progress(self._count.value)
            with suppress(TimeoutError):
                return future.result(_LOOK_S)


@contextmanager
def _signals_kept_back() -> Iterator[None]:
    """Let processes that are started now never get a signal that a terminal sends to all: they are
    the command's to end."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, EXITS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def cores(processes: int, prepare: Callable[..., Any], *arguments: Any) -> Iterator[Cores]:
    """Start processes, each of which prepares for itself what its parts need."""
    spawning = get_context("spawn")  # a fork would take over locks that other threads hold
    stop, count = spawning.Value("b", 0, lock=False), spawning.Value("q", 0)
    # As bytes, so that nothing is imported before it is known whether it is compiled.
    prepared = pickle.dumps((prepare, arguments))
    before = set(active_children())
    pool = ProcessPoolExecutor(
        processes, mp_context=spawning, initializer=_begin,
        initargs=(os.getpid(), compiled.engine_name() == "compiled", stop, count, prepared),
    )  # fmt: skip
    try:
        yield Cores(pool, processes, stop, count)
    finally:
        stop.value = 1
        impatient = Timer(_PATIENCE_S, _kill_but, (before,))
        impatient.start()
        pool.shutdown(cancel_futures=True)
        impatient.cancel()


def _kill_but(before: Collection[BaseProcess]) -> None:
    """Kill the processes of a pool that is over."""
    for process in active_children():
        if process not in before:
            process.kill()


# --- in a process that works -----------------------------------------------------------------

_to_prepare = b""
_stop: Any = None
_count: Any = None


def _begin(parent: int, as_compiled: bool, stop: Any, count: Any, prepared: bytes) -> None:
    """Begin a process that ends with its parent."""
    global _to_prepare, _stop, _count
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if as_compiled:
        compiled.use([])
    _stop, _count, _to_prepare = stop, count, prepared


@cache
def _prepared() -> Any:
    """Prepare with the first part, which so fails where this does."""
    prepare, arguments = pickle.loads(_to_prepare)
    return prepare(*arguments)


def _work(part_and_arguments: bytes) -> Any:
    part, arguments = pickle.loads(part_and_arguments)
    before = 0

    def progress(done: int) -> None:
        nonlocal before
        if _stop.value:
            raise StoppedError
        with _count.get_lock():
            _count.value += done - before
        before = done

    return part(_prepared(), *arguments, progress)
