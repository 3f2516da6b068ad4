"""Our storage path beside fio, on the same directory: store and load whole blocks.

    python benchmarks/vs_fio.py [--dir D] [--block-mib 32] [--threads 4] [--pairs 7]

Both write new files of one block each with direct I/O and no fsync, then read them back, with the
same number of threads and transparent huge pages, in turn (A B, B A, …); ours stamps what it
writes and verifies what it reads. One unit is `--unit-gib` of data, the first pair is thrown away.
Printed are the median of the ratio ours/fio and its spread. On a shared disk differences below 5 %
(read) or 10 % (write) mean nothing.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.run import SWITCH_INTERVAL_S
from kv_cache.bench.transfer import Mover, Verify
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Op, Read, Write
from kv_cache.core.kinds import Cause, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, MIB, NS_PER_S
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.nvme import FileStore, choose_engine
from kv_cache.tiers.payload import Payload

# Our buffers are in transparent huge pages, which saves device requests; so shall fio's be.
_HUGE = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

BUFFERS = 16  # in each pool, as a run has by default

Rates = dict[str, float]  # bytes/s by "write" and "read"


class Ours:
    def __init__(self, directory: Path, block: int, threads: int, buffer: int) -> None:
        self._directory = directory
        self._block = block
        self._threads = threads
        self._clock = MonotonicClock()
        self._payload = Payload(Seed(1), buffer)
        count = max(BUFFERS, threads)
        self._loads = BufferPool(count, buffer)
        self._stored = BufferPool(count, buffer)
        self._next = 0

    def unit(self, blocks: int) -> Rates:
        root = Path(tempfile.mkdtemp(prefix="ours-", dir=self._directory))
        engine, note = choose_engine("direct", root)
        assert note is None
        store = FileStore(root, engine, fsync=False)
        mover = Mover(
            {Tier.NVME: store},
            self._payload,
            self._loads,
            self._stored,
            self._clock,
            Verify.STAMPS,
            threading.Event(),
        )
        refs = [self._ref() for _ in range(blocks)]
        try:
            written = self._timed(mover, [Write(ref, Cause.PREFILL) for ref in refs])
            read = self._timed(mover, [Read(ref, Cause.REUSE) for ref in refs])
        finally:
            shutil.rmtree(root)
        total = blocks * self._block
        return {"write": total / written, "read": total / read}

    def _ref(self) -> CopyRef:
        self._next += 1
        return CopyRef(self._next, content_key("bench", self._next), Tier.NVME, self._block, 0)

    def _timed(self, mover: Mover, ops: list[Op]) -> float:
        left = iter(ops)
        lock = threading.Lock()
        errors: list[str] = []

        def work() -> None:
            while True:
                with lock:
                    op = next(left, None)
                if op is None:
                    return
                done = mover.perform(op)
                if not done.ok:
                    errors.append(done.error or "")

        threads = [threading.Thread(target=work) for _ in range(self._threads)]
        began = self._clock.now_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        return (self._clock.now_ns() - began) / NS_PER_S


class Fio:
    def __init__(self, directory: Path, block: int, threads: int) -> None:
        self._directory = directory
        self._block = block
        self._threads = threads

    def unit(self, blocks: int) -> Rates:
        root = Path(tempfile.mkdtemp(prefix="fio-", dir=self._directory))
        try:
            return {rw: self._run(root, rw, blocks) for rw in ("write", "read")}
        finally:
            shutil.rmtree(root)

    def _run(self, root: Path, rw: str, blocks: int) -> float:
        files = blocks // self._threads
        command = [
            "fio", "--name=unit", f"--directory={root}", f"--rw={rw}", "--direct=1",
            "--ioengine=psync", f"--bs={self._block}", f"--filesize={self._block}",
            f"--nrfiles={files}", f"--size={files * self._block}", f"--numjobs={self._threads}",
            "--thread", "--file_service_type=sequential", "--openfiles=1", "--create_on_open=1",
            "--fallocate=none", "--group_reporting", "--output-format=json", "--invalidate=0",
            "--refill_buffers=0", "--randrepeat=1",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_HUGE)
        report = json.loads(done.stdout)["jobs"][0][rw]
        assert report["io_bytes"] == blocks * self._block, "fio moved another amount"
        return float(report["bw_bytes"])


def compare(
    ours: Callable[[int], Rates], fio: Callable[[int], Rates], blocks: int, pairs: int
) -> None:
    rows: list[tuple[Rates, Rates]] = []
    for number in range(pairs + 1):
        if number % 2:
            theirs, mine = fio(blocks), ours(blocks)
        else:
            mine, theirs = ours(blocks), fio(blocks)
        if number:
            rows.append((mine, theirs))
    print(f"{pairs} pairs{'ours':>9}{'fio':>8} GiB/s{'ratio':>8}{'min':>7}{'max':>7}")
    for op in ("write", "read"):
        ratios = [mine[op] / theirs[op] for mine, theirs in rows]
        mine_median = statistics.median(mine[op] for mine, _ in rows) / GIB
        fio_median = statistics.median(theirs[op] for _, theirs in rows) / GIB
        print(
            f"{op:<8}{mine_median:>8.2f}{fio_median:>8.2f}{statistics.median(ratios):>14.3f}"
            f"{min(ratios):>7.2f}{max(ratios):>7.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, default=Path.cwd())
    parser.add_argument("--block-mib", type=int, default=32)
    parser.add_argument("--buffer-mib", type=int, default=16)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--unit-gib", type=float, default=1.0)
    options = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is not installed: apt-get install fio")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    block = options.block_mib * MIB
    blocks = max(1, int(options.unit_gib * GIB) // block // options.threads) * options.threads
    ours = Ours(options.dir, block, options.threads, options.buffer_mib * MIB)
    fio = Fio(options.dir, block, options.threads)
    print(f"{blocks} blocks of {options.block_mib} MiB, {options.threads} threads, {options.dir}")
    compare(ours.unit, fio.unit, blocks, options.pairs)


if __name__ == "__main__":
    main()
