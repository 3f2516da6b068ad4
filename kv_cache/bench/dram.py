"""How fast this machine copies memory: one thread, and all that may run.

Copies between two arrays that are each several times the last-level cache, so that what is measured
is memory. A byte counts once: it is read once and written once. The median of the passes counts,
and their spread is reported, because on a machine that is shared no single pass can be believed.

Nothing is measured where it would not be a measurement: if there is no room for such arrays.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct

from kv_cache.bench.linux import usable_cpus
from kv_cache.bench.memory import available_ram_bytes, usable_bytes
from kv_cache.bench.procfs import text_of
from kv_cache.core.units import MIB, human_bytes

PASSES = 9
_CACHES = 4  # an array is N times the last-level cache
_LEAST_BYTES = 256 * MIB
_CACHE_SIZES = Path("/sys/devices/system/cpu/cpu0/cache")


class Copied(Struct, frozen=True, kw_only=True):
    """Bytes/s. `spread` is (largest - smallest) / median of the passes of all threads."""

    one_thread_bytes_per_s: float
    bytes_per_s: float
    threads: int
    array_bytes: int
    passes: int
    spread: float


class NotCopied(Struct, frozen=True, kw_only=True):
    """Why nothing could be measured."""

    reason: str


def measure_copies(stop: Callable[[], bool] = lambda: False) -> Copied | NotCopied:
    """Measure for about two seconds."""
    threads = usable_cpus()
    each = max(_LEAST_BYTES, _CACHES * _last_level_cache_bytes()) // threads
    each = -(-each // MIB) * MIB
    needed, room = 2 * each * threads, usable_bytes(available_ram_bytes())
    if needed > room:
        return NotCopied(
            reason=f"arrays larger than the caches need {human_bytes(needed)}, and "
            f"{human_bytes(max(0, room))} of RAM may be used"
        )
    pairs = [(np.ones(each, np.uint8), np.zeros(each, np.uint8)) for _ in range(threads)]
    one = [_rate(pairs[:1]) for _ in range(PASSES) if not stop()]
    every = [_rate(pairs) for _ in range(PASSES) if not stop()]
    if len(every) < PASSES:
        return NotCopied(reason="it was interrupted")
    return Copied(
        one_thread_bytes_per_s=median(one),
        bytes_per_s=max(median(every), median(one)),
        threads=threads,
        array_bytes=each,
        passes=PASSES,
        spread=(max(every) - min(every)) / median(every),
    )


def _rate(pairs: list[tuple["np.ndarray", "np.ndarray"]]) -> float:
    """Return bytes/s of copying each pair by a thread of its own, all at the same time."""
    gate = threading.Barrier(len(pairs) + 1)

    def copy(source: "np.ndarray", target: "np.ndarray") -> None:
        gate.wait()
        np.copyto(target, source)

    workers = [threading.Thread(target=copy, args=pair, daemon=True) for pair in pairs]
    for worker in workers:
        worker.start()
    gate.wait()
    began_ns = time.monotonic_ns()
    for worker in workers:
        worker.join()
    took_ns = max(1, time.monotonic_ns() - began_ns)
    return sum(source.nbytes for source, _ in pairs) / took_ns * 1e9


def _last_level_cache_bytes() -> int:
    """Return the size of the last-level cache; 0 if the kernel does not say."""
    sizes = [0]
    for file in _CACHE_SIZES.glob("index*/size"):
        text = (text_of(file) or "").strip()
        unit = {"K": 1024, "M": MIB}.get(text[-1:], 0)
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes)
