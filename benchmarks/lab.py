"""How fast the policy lab looks blocks up, and how much memory that takes (figure 17).

    python benchmarks/lab.py [--requests N] [--times N]

The work is that of the public simulators' single-node replay: 5,000 requests of 4-turn sessions
with 2.2 million block lookups, 69 % of them of blocks that were there before. Timed is the replay
of the accesses, which are numbers already; reading a trace is `trace stats`' figure. Each way is
timed several times and the median is told. The hits of LRU are held against those of the stack
distances, so that nothing fast is wrong.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, table
from kv_cache.core.units import KIB, MIB
from kv_cache.lab.accesses import Accesses
from kv_cache.lab.bounds import Future, Min
from kv_cache.lab.seam import POLICIES
from kv_cache.lab.study import replay, study
from kv_cache.workload.reuse import StackDistances

REQUESTS = 5_000
TURNS, TURN_BLOCKS = 4, 153
TOGETHER = 60  # sessions that take turns
BLOCK_BYTES = 5_242_880
ROOM_BLOCKS = 40_000
LEAST_PER_S = 1_500_000
MOST_MIB = 300.0
TIMES = 5
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)


def work(requests: int) -> Accesses:
    """Sessions whose turns ask for all that was before, and TURN_BLOCKS more or less; sessions
    begin behind a shared prompt of 8 blocks, and TOGETHER of them take turns."""
    rng = np.random.default_rng(1)
    asked, begins, after, total = [], [], 8, 0
    for first in range(0, requests // TURNS, TOGETHER):
        told = [np.arange(8)] * TOGETHER
        for _ in range(TURNS):
            for place in range(min(TOGETHER, requests // TURNS - first)):
                grown = int(rng.integers(TURN_BLOCKS // 2, TURN_BLOCKS * 2))
                told[place] = np.append(told[place], np.arange(after, after + grown))
                after += grown
                begins.append(total)
                total += len(told[place])
                asked.append(told[place])
    return Accesses(
        blocks=np.concatenate(asked),
        begins=np.array(begins, np.int64),
        sizes=np.full(after, BLOCK_BYTES, np.int64),
    )


def per_s(count: int, do: Callable[[], object], times: int) -> float:
    def took() -> float:
        began = time.perf_counter()
        do()
        return time.perf_counter() - began

    return count / median(took() for _ in range(times))


def measure(requests: int, times: int) -> dict[str, float]:
    """In this process."""
    given = work(requests)
    room = ROOM_BLOCKS * BLOCK_BYTES
    stack = StackDistances()
    for begin in range(0, given.lookups, 1 << 17):
        stack.add(given.blocks[begin : begin + (1 << 17)])
    found = replay(given, "lru", room)
    assert found.hits == stack.hits(ROOM_BLOCKS), "LRU does not find what stack distances say"
    rates = {
        f"{name}_per_s": per_s(given.lookups, lambda name=name: replay(given, name, room), times)  # type: ignore[misc]
        for name in POLICIES
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB
    future = Future(given)

    def least() -> None:
        rule = Min(future, room)
        for part in given.parts():
            rule.blocks(part)

    rooms = [int(given.working_set_bytes * share) for share in SHARES]
    began = time.perf_counter()
    done = study(given, POLICIES, rooms)
    seconds = time.perf_counter() - began
    caches = len(done.rows) + len(POLICIES) * len(rooms)  # policies by both rules
    return {
        "lookups": given.lookups, "hit_ratio": found.hits / given.lookups, "peak_mib": peak,
        **rates,
        "min_per_s": per_s(given.lookups, least, times), "study_s": seconds, "caches": caches,
        "study_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB,
    }  # fmt: skip


def figures(requests: int = REQUESTS, times: int = TIMES) -> Sequence[Figure]:
    command = [sys.executable, __file__, "--child", "--requests", str(requests)]
    command += ["--times", str(times)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    print(f"{found['lookups']:,} lookups, LRU finds {found['hit_ratio']:.2%}")
    for name in (*POLICIES, "min"):
        print(f"  {name:<20}{found[f'{name}_per_s']:>14,.0f} lookups/s")
    rate = found["lookups"] * found["caches"] / found["study_s"]
    print(
        f"  {found['caches']} caches in one pass: {found['study_s']:.1f} s, {rate:,.0f} lookups/s, "
        f"peak {found['study_mib']:.0f} MiB"
    )
    return [
        Figure(
            number="17", what=f"lab, LRU, {found['lookups']:,} lookups",
            wanted=f">= {LEAST_PER_S:,} lookups/s", seen=f"{found['lru_per_s']:,.0f}",
            met=found["lru_per_s"] >= LEAST_PER_S,
        ),
        Figure(
            number="17", what="lab, LRU, peak memory", wanted=f"< {MOST_MIB:g} MiB",
            seen=f"{found['peak_mib']:.0f} MiB", met=found["peak_mib"] < MOST_MIB,
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.requests, options.times)))
        return
    rows = figures(options.requests, options.times)
    print(f"\n{table(rows)}")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
