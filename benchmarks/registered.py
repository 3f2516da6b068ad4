"""What do buffers that an io_uring has registered save? Operations a second of CPU time with them
over those without, A B B A on a device in RAM, on one core.

    python benchmarks/registered.py [--groups 7]
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import ram_directory
from benchmarks.figures import middle
from kv_cache.core.units import KIB, MIB
from kv_cache.tiers import native
from kv_cache.tiers.buffers import Bytes, aligned_bytes
from kv_cache.tiers.native import ROW, AbortFlag, Does, Transfers

_FILE_BYTES, _MEMORY_BYTES, _SECONDS = 512 * MIB, 256 * MIB, 0.7
CASES = ((512, 128), (4 * KIB, 16), (64 * KIB, 16), (2 * MIB, 4))
"""Bytes of an operation, and how many are in flight."""


def rate(transfers: Transfers, fd: int, memory: Bytes, case: tuple[int, int], does: Does) -> float:
    """Return operations a second of this process's CPU time."""
    nbytes, depth = case
    count = max(4 * depth, min(4096, 64 * MIB // nbytes))
    dice, done, began = np.random.default_rng(1), 0, time.perf_counter()
    cpu_s = time.process_time()
    while time.perf_counter() - began < _SECONDS:
        rows = np.zeros(count, ROW)
        rows["does"], rows["fd"], rows["nbytes"] = int(does), fd, nbytes
        rows["offset"] = dice.integers(0, _FILE_BYTES // nbytes, count) * nbytes
        rows["address"] = memory.ctypes.data + np.arange(count) % depth * nbytes
        transfers.work_off(rows, AbortFlag(), depth)
        assert not rows["error"].any()
        done += count
    return done / (time.process_time() - cpu_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=7)
    groups = parser.parse_args().groups
    library = native.library()
    if isinstance(library, str):
        sys.exit(library)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    plain, held = (Transfers(library, np.empty((0, 1), np.uint64), depth=128) for _ in range(2))
    memory = aligned_bytes(_MEMORY_BYTES)
    memory[:] = 7
    held.hold(memory)
    with ram_directory(1) as directory:
        fd = os.open(directory / "file", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        for at in range(0, _FILE_BYTES, _MEMORY_BYTES):
            os.pwrite(fd, memory.data, at)
        for case in CASES:
            for does in (Does.READ, Does.WRITE):
                ratios = []
                for _ in range(groups):
                    a, b, c, d = (
                        rate(each, fd, memory, case, does) for each in (plain, held, held, plain)
                    )
                    ratios.append(math.sqrt(b * c / (a * d)))
                what = "writes" if does is Does.WRITE else "reads"
                print(f"{case[0]:>8} bytes, {case[1]:>3} at a time, {what}: {middle(ratios)}")
        os.close(fd)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
