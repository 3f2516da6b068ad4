"""The one real clock: monotonic nanoseconds since the run's origin; and the kernel's own word for
it."""

import ctypes
import platform
import time
from typing import NamedTuple

from kv_cache.core.units import NS_PER_S

_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}
"""System call numbers (arch/x86/entry/syscalls, include/uapi/asm-generic/unistd.h)."""


class MonotonicClock:
    def __init__(self) -> None:
        self._origin_ns = time.monotonic_ns()
        self.started_unix_s = time.time()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns


class Instants(NamedTuple):
    """One moment by several clocks; `kernel_ns` is the monotonic clock's, past the C library."""

    wall_s: float
    monotonic_ns: int
    kernel_ns: int | None


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def kernel_ns() -> int | None:
    """Read the monotonic clock by a system call of its number: no library's function of the
    clock's name answers. None where that cannot be done."""
    number = _CLOCK_GETTIME.get(platform.machine())
    if number is None:
        return None
    now = _Timespec()
    try:
        failed = ctypes.CDLL(None).syscall(
            ctypes.c_long(number), ctypes.c_long(time.CLOCK_MONOTONIC), ctypes.byref(now)
        )
    except (OSError, AttributeError):
        return None
    return None if failed else now.seconds * NS_PER_S + now.nanoseconds
