"""Whether anybody else was at work during a measurement: the CPU time of all other processes; and
processors that do not sleep, so that nobody waits for them to wake up."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks.devices import daemon_pids

FOREIGN_CORES = 0.35
"""Above this share of a core, taken by others, a measurement here says nothing."""

T = TypeVar("T")
_AWAKE: set[int] = set()
"""Processes that keep a processor from halting."""


@contextmanager
def awake() -> Iterator[None]:
    """Keep all processors from halting, by a loop on each that runs where nothing else wants to: a
    virtual one that halts is woken by its host, which takes some 20 us."""
    loops = [
        subprocess.Popen(
            ["chrt", "-i", "0", "taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]
        )
        for cpu in os.sched_getaffinity(0)
    ]
    _AWAKE.update(loop.pid for loop in loops)
    try:
        yield
    finally:
        _AWAKE.clear()
        for loop in loops:
            loop.kill()
            loop.wait()


def with_foreign_cores(measure: Callable[[], T], own: set[int]) -> tuple[T, float]:
    """What was measured, and how many cores others used meanwhile. `own` processes, the devices'
    and the kernel's (a loop device's work is done by them) do not count."""
    own = {os.getpid(), *own, *daemon_pids(), *_AWAKE}
    before, began = _cpu_ticks(own), time.monotonic()
    measured = measure()
    seconds = time.monotonic() - began
    after = _cpu_ticks(own)
    ticks = sum(max(0, used - before.get(pid, 0)) for pid, used in after.items())
    return measured, ticks / os.sysconf("SC_CLK_TCK") / seconds


def _cpu_ticks(own: set[int]) -> dict[int, int]:
    """CPU ticks that each process has used: its own, and those of its ended children."""
    ticks = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid, parent = int(stat.parent.name), int(fields[1])
        if pid not in own and 2 not in (pid, parent):
            ticks[pid] = sum(map(int, fields[11:15]))
    return ticks
