"""How fast the policy lab is beside libcachesim's wheel (0.3.5, of the authors of S3-FIFO), and
whether it finds the same.

    python benchmarks/beside_libcachesim.py [--policies NAME …] [--groups N]

The accesses of the Mooncake slice at 9,971 blocks, and blocks that are drawn singly by Zipf's law
(exponent 0.8 over 4N blocks) at rooms of 10,000 and 1,000,000, as hard on the memory as can be.
Ours is one cache of a study. The wheel's is asked in two ways: block by block from Python, as one
asks it for a trace of one's own (`get`), and all in one call over a file of its binary format
(`process_trace`), in which no Python runs. Groups of four (ours, theirs, theirs, ours); told is the
median of the groups' ratios of processor time, with the least and the most. Each policy and engine
has a process of its own. The wheel is not among the program's dependencies:

    pip install --no-deps libcachesim==0.3.5
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from benchmarks.policies import accesses

ROOT = Path(__file__).resolve().parents[1]
THEIRS = {
    "lru": "LRU", "fifo": "FIFO", "lfu": "LFU", "clock": "Clock", "arc": "ARC",
    "s3-fifo": "S3FIFO", "sieve": "Sieve", "mq": "MQ", "gdsf": "GDSF",
}  # fmt: skip
ENGINES = ("python", "compiled")
SLICE, SLICE_ROOM = "mooncake_conversation_6000.jsonl", 9_971
DRAWN = ((10_000, 400_000), (1_000_000, 2_000_000))
"""Rooms, and how many accesses are drawn for each."""
LEAST = {"lru": 2.0}
LEAST_OF_OTHERS = 0.5
GROUPS = 3
_ROW = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])

Row = dict[str, Any]


def works() -> Iterator[tuple[str, int, list[int]]]:
    """Yield each sequence of blocks with its name and room."""
    from tests.traces import real_trace

    lines = real_trace(SLICE).read_text().splitlines()
    blocks = [block for line in lines for block in json.loads(line)["hash_ids"]]
    yield "mooncake", SLICE_ROOM, blocks
    for room, count in DRAWN:
        yield f"drawn singly, {room:,}", room, accesses(room, count, 1)


def measure(name: str, engine: str, groups: int) -> list[Row]:
    """A row for each sequence. In this process, which has imported nothing of the lab yet."""
    from kv_cache.app.compiled import engine_name, use

    if engine == "compiled":
        use(())
    from kv_cache.core.seed import Seed
    from kv_cache.lab.accesses import accesses_of
    from kv_cache.lab.study import replay
    from kv_cache.lab.variants import Named, PolicyVariant

    variant, rows = PolicyVariant(Named(name)), []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as at:
        for work, room, blocks in works():
            given = accesses_of(blocks, np.ones(max(blocks) + 1, np.int64))
            file = _binary(blocks, Path(at, "trace.bin"))

            def ours(given: Any = given, room: int = room) -> float:
                hits: int = replay(given, variant, room, seed=Seed(1)).hits
                return 1 - hits / len(given.blocks)

            row: Row = {"work": work, "lookups": len(blocks), "ratios": {}, "misses": []}
            for way, theirs in (
                ("get", lambda room=room, blocks=blocks: _get(name, room, blocks)),
                ("process_trace", lambda room=room, file=file: _process(name, room, file)),
            ):
                row["ratios"][way], row["rate"], row["misses"] = _groups(ours, theirs, groups)
            row["rate"] *= len(blocks)
            rows.append(row)
    assert engine_name() == engine
    return rows


def _binary(blocks: Sequence[int], path: Path) -> Path:
    table = np.zeros(len(blocks), _ROW)
    table["time"] = np.arange(len(blocks))
    table["id"], table["size"], table["next"] = np.array(blocks) + 1, 1, -1
    table.tofile(path)
    return path


def _wheel() -> Any:
    return importlib.import_module("libcachesim")


def _cache(name: str, room: int) -> Any:
    return getattr(_wheel(), THEIRS[name])(room, hashpower=max(18, room.bit_length() + 1))


def _get(name: str, room: int, blocks: Sequence[int]) -> float:
    cache, request, hits = _cache(name, room), _wheel().Request(), 0
    request.obj_size = 1
    for block in blocks:
        request.obj_id = block + 1
        hits += cache.get(request)
    return 1 - hits / len(blocks)


def _process(name: str, room: int, file: Path) -> float:
    wheel = _wheel()
    reader = wheel.TraceReader(str(file), wheel.TraceType.ORACLE_GENERAL_TRACE)
    missed: float = _cache(name, room).process_trace(reader)[0]
    return missed


def _groups(
    ours: Callable[[], float], theirs: Callable[[], float], groups: int
) -> tuple[list[float], float, list[float]]:
    """How many times as fast ours is in each group; its passes a second; both shares of misses."""
    ratios, taken, misses = [], [], [0.0, 0.0]
    for _ in range(groups):
        seconds = [0.0, 0.0]
        for which in (0, 1, 1, 0):
            began = time.process_time()
            misses[which] = (ours, theirs)[which]()
            seconds[which] += time.process_time() - began
        ratios.append(seconds[1] / seconds[0])
        taken.append(seconds[0] / 2)
    return ratios, 1 / median(taken), misses


def figures(names: Sequence[str] = tuple(THEIRS), groups: int = GROUPS) -> list[Figure]:
    found = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        subprocess.run(
            [sys.executable, str(ROOT / "kv-cache.py"), "compile"], check=True, env=environment
        )
        for name in names:
            for engine in ENGINES:
                command = [sys.executable, __file__, "--one", name, engine, "--groups", str(groups)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
                for row in json.loads(done.stdout):
                    found.append(_figure(name, engine, row))
                    print(found[-1].what, found[-1].seen, flush=True)
    return found


def _figure(name: str, engine: str, row: Row) -> Figure:
    least = LEAST.get(name, LEAST_OF_OTHERS)
    told = ", ".join(
        f"{median(each):.2f} x {way} ({min(each):.2f} to {max(each):.2f})"
        for way, each in row["ratios"].items()
    )
    ours, theirs = row["misses"]
    return Figure(
        number="20", what=f"{name}, {engine}, {row['work']}", wanted=f">= {least:g} x get",
        seen=f"{told}; {row['rate'] / 1000:,.0f} k/s; misses {ours:.4f}, there {theirs:.4f}",
        met=median(row["ratios"]["get"]) >= least,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="+", choices=THEIRS, default=tuple(THEIRS))
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, engine = options.one
        print(json.dumps(measure(name, engine, options.groups)))
        return
    rows = figures(options.policies, options.groups)
    print()
    finish(rows)


if __name__ == "__main__":
    main()
