"""What an operation costs this client, in native code and around it, and how that scales.

    python benchmarks/client_cost.py [--seconds 1] [--groups 5]

Reads of 512 B to 2 MiB, each stamped or verified as a run does, by tables of many in one call:

    nowhere   all but the system call: what stamps cost, whatever the device
    device    from a block device in RAM with direct I/O: CPU time of the calling threads alone, as
              the copying is done by others (the loop device's)

by 1 and by 2 threads, each on a core of its own, in turn (1 2 2 1). Scaling is the rate of 2
threads over that of 1: 2 where nothing is shared. On the device, whose own threads need the cores
too, it says nothing and is left out.

Then what Python does for each object of 256 KiB where nobody else wants its lock, eight a call, in
a store whose system calls are left out: to write, read and delete it (`Mover`), to move it there
from a tier in RAM, and to record it, as CPU of its thread. In RAM copies are not left out.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import leave_cleanly_on_sigterm, ram_directory
from benchmarks.figures import middle, middle_ratio
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Delete, Move, Op, OpDone, Read, Write
from kv_cache.core.kinds import Cause, Tier
from kv_cache.core.ops_done import OpsDone, each_of
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, KIB, MIB, NS_PER_S, PAGE_BYTES
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.tiers import native
from kv_cache.tiers.base import Store
from kv_cache.tiers.buffers import BufferPool, aligned_bytes
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.native import ROW, AbortFlag, Does
from kv_cache.tiers.nvme.rehearsal import rehearsed_storage
from kv_cache.tiers.payload import Payload

BOOKS = ("write", "read", "delete", "demote", "record")
_TOGETHER = 8
_IN_RAM = 2 * _TOGETHER * 256 * KIB
SIZES = (512, 4 * KIB, 64 * KIB, 256 * KIB, 2 * MIB)
DATA = 256 * MIB
_MOST_ROWS = 1 << 16


class Client:
    """A thread's memory, and its table of one size."""

    def __init__(self, transfers: native.Transfers, fd: int, nbytes: int, seed: int) -> None:
        self._transfers, self._memory = transfers, aligned_bytes(max(nbytes, PAGE_BYTES))
        self.rows = np.zeros(min(_MOST_ROWS, 4 * DATA // nbytes), ROW)
        places = np.random.default_rng(seed).integers(0, DATA // nbytes, len(self.rows))
        self.rows["object"] = np.arange(len(self.rows))
        self.rows["fd"], self.rows["offset"], self.rows["nbytes"] = fd, places * nbytes, nbytes
        self.rows["address"] = self._memory.ctypes.data

    def work(self, abort: AbortFlag, core: int) -> tuple[int, int]:
        """Do its operations over and over until `abort` is set; return how many, and the ns of CPU
        that they took."""
        os.sched_setaffinity(threading.get_native_id(), {core})
        began_ns, done = time.thread_time_ns(), 0
        while not abort.is_set():
            self.rows["began_ns"], self.rows["moved"], self.rows["error"] = 0, 0, 0
            self._transfers.work_off(self.rows, abort)
            assert set(np.unique(self.rows["error"])) <= {0, native.ABORTED}, "an operation failed"
            done += int(np.count_nonzero(self.rows["error"] == 0))
        return done, time.thread_time_ns() - began_ns


def measured(clients: Sequence[Client], seconds: float) -> tuple[float, float]:
    """Return operations a second, and ns of CPU an operation."""
    abort, results = AbortFlag(), list[tuple[int, int]]()
    threads = [
        threading.Thread(target=lambda c=client, i=i: results.append(c.work(abort, i)))
        for i, client in enumerate(clients)
    ]
    began_ns = time.monotonic_ns()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    abort.set()
    for thread in threads:
        thread.join()
    took_s = (time.monotonic_ns() - began_ns) / NS_PER_S
    done, cpu_ns = (sum(column) for column in zip(*results, strict=True))
    return done / took_s, cpu_ns / max(1, done)


class Books:
    """One thread that moves objects through `Mover`, as a run does, and records that."""

    def __init__(self, layout: str) -> None:
        store: Store | None = MemoryStore(Tier.NVME, _IN_RAM)
        if layout != "ram":
            store = rehearsed_storage(GIB, layout=layout, engine="direct")
        assert store is not None
        payload, clock, abort = Payload(Seed(1), 16 * MIB), MonotonicClock(), AbortFlag()
        pools = BufferPool(1, 16 * MIB), BufferPool(1, 16 * MIB)
        memory = MemoryStore(Tier.CPU, _IN_RAM)
        self._mover = Mover(
            {Tier.NVME: store, Tier.CPU: memory}, payload, *pools, clock, Verify.STAMPS, abort,
            batches=native_batches(payload, clock, Verify.STAMPS, abort),
        )  # fmt: skip
        self._recorder, self._made = Recorder(Edges(populate_end_ns=0)), 0

    def us_an_object(self, seconds: float) -> dict[str, float]:
        """Return the microseconds of each step."""
        took_s, until_s, objects = dict.fromkeys(BOOKS, 0.0), time.perf_counter() + seconds, 0
        while time.perf_counter() < until_s:
            refs = [self._ref(Tier.NVME) for _ in range(_TOGETHER)]
            above = [self._ref(Tier.CPU) for _ in range(_TOGETHER)]
            below = [ref._replace(tier=Tier.NVME) for ref in above]
            written = self._mover.perform_all([Write(ref, Cause.PREFILL) for ref in above])
            writes = tuple(Write(ref, Cause.PREFILL) for ref in refs)
            reads = tuple(Read(ref, Cause.REUSE) for ref in refs)
            deletes = tuple(Delete(ref, Cause.EVICTION) for ref in refs)
            moves = tuple(Move(*pair, Cause.DEMOTION) for pair in zip(above, below, strict=True))
            parts: list[OpDone | OpsDone] = []
            every: tuple[tuple[Op, ...], ...] = (writes, reads, deletes, moves)
            for name, ops in zip(BOOKS, every, strict=False):
                began_s = time.thread_time()
                parts += self._mover.perform_many(ops)
                took_s[name] += time.thread_time() - began_s
            left = self._mover.perform_all([Delete(ref, Cause.EVICTION) for ref in above + below])
            assert all(each.ok for each in (*written, *parts, *left))
            moved = [one for one in parts if isinstance(next(each_of(one)).op, Read | Write)]
            began_s = time.thread_time()
            for each in moved:
                verified = self._mover.verified(each)
                if isinstance(each, OpsDone):
                    self._recorder.ops(each, verified=verified)
                else:
                    self._recorder.op(each, verified=verified)
            took_s["record"] += (time.thread_time() - began_s) / 2
            objects += _TOGETHER
        return {name: 1e6 * seconds_ / objects for name, seconds_ in took_s.items()}

    def _ref(self, tier: Tier) -> CopyRef:
        self._made += 1
        key = content_key("books", self._made)
        return CopyRef(self._made, key, tier, 256 * KIB, self._made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--groups", type=int, default=5)
    given = parser.parse_args()
    leave_cleanly_on_sigterm()
    library = native.library()
    if isinstance(library, str):
        sys.exit(f"no native transfers: {library}")
    transfers = native.Transfers(library, Payload(Seed(1), 16 * MIB).noise)
    print(f"{'bytes':>9}  {'where':<8}{'ns of CPU an operation':<30}{'2 threads over 1':<24}")
    with ram_directory(0.5) as directory:
        path = directory / "data"
        path.write_bytes(bytes(DATA))
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for nbytes in SIZES:
            clients = [Client(transfers, fd, nbytes, seed) for seed in range(2)]
            for where in ("nowhere", "device"):
                sectors = Does.SECTORS if nbytes < PAGE_BYTES else Does.READ
                checked = (
                    Does.WRITE | Does.STAMPED | Does.NOWHERE if where == "nowhere" else Does.READ
                )
                for client in clients:
                    client.rows["does"] = int(checked | sectors)
                cost, scaling = list[float](), list[float]()
                for _ in range(given.groups):
                    rates = {1: 1.0, 2: 1.0}
                    for count in (1, 2, 2, 1):
                        rate, cpu_ns = measured(clients[:count], given.seconds)
                        rates[count] *= rate
                        cost.append(cpu_ns)
                    scaling.append((rates[2] / rates[1]) ** 0.5)
                told = str(middle_ratio(scaling)) if where == "nowhere" else ""
                each = middle(cost)
                print(
                    f"{nbytes:>9,}  {where:<8}"
                    f"{f'{each.median:,.0f} ({each.low:,.0f} to {each.high:,.0f})':<30}{told}",
                    flush=True,
                )
        os.close(fd)
    print(f"\n{'layout':<9}" + "".join(f"{name + ', us':<24}" for name in BOOKS))
    for layout in ("arena", "file", "ram"):
        books = Books(layout)
        rows = [books.us_an_object(given.seconds) for _ in range(given.groups)]
        each_step = (middle([row[name] for row in rows]) for name in BOOKS)
        cells = (f"{m.median:.1f} ({m.low:.1f} to {m.high:.1f})" for m in each_step)
        print(f"{layout:<9}" + "".join(f"{cell:<24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
