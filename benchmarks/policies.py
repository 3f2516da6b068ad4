"""How fast the eviction policies are, and whether an access costs the same however many blocks
there are.

    python benchmarks/policies.py [--policies lru arc ...] [--sizes 10000 100000 1000000]

Each policy alone, in a process of its own: a full cache of N blocks of one size, asked for 2N
blocks by Zipf's law (exponent 0.9 over 2N contents, drawn before the clock starts), so that about
two thirds hit. An access is a look-up in the driver's table of what is here (a dict), and a hit or
an eviction with an insertion. As many accesses as warm up are timed: at most a million. Cost is
flat if an access at the most blocks takes at most `MOST_GROWTH` times as long as at the fewest;
part of that is the memory's: FIFO does next to nothing, and grows too.
"""

import argparse
import gc
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, table
from kv_cache.policy.eviction import EVICTION, Item
from kv_cache.policy.eviction.base import Eviction

SIZES = (10_000, 100_000, 1_000_000)
LEAST_PER_S = 300_000
MOST_GROWTH = 4.0
MOST_ACCESSES = 1_000_000
EXPONENT = 0.9
BLOCK = 2 << 20


def accesses(blocks: int, count: int) -> list[int]:
    """Contents by Zipf's law, the popular ones spread over all numbers."""
    contents = 2 * blocks
    weights = np.arange(1, contents + 1, dtype=np.float64) ** -EXPONENT
    cumulated = np.cumsum(weights) / weights.sum()
    rng = np.random.default_rng(7)
    ranks = np.searchsorted(cumulated, rng.random(count))
    drawn: list[int] = rng.permutation(contents)[np.minimum(ranks, contents - 1)].tolist()
    return drawn


def keys_of(blocks: int) -> list[bytes]:
    return [content.to_bytes(16, "little") for content in range(2 * blocks)]


class Cache:
    """The least that drives a policy."""

    def __init__(self, policy: Eviction, blocks: int, keys: Sequence[bytes]) -> None:
        self.policy, self.blocks, self.keys = policy, blocks, keys
        self.copies: dict[int, int] = {}
        self.contents: dict[int, int] = {}
        self.ids = itertools.count()
        self.hits = 0

    def run(self, asked: Sequence[int]) -> None:
        policy, copies, contents, keys = self.policy, self.copies, self.contents, self.keys
        hits = 0
        for content in asked:
            copy_id = copies.get(content)
            if copy_id is not None:
                hits += 1
                policy.hit(copy_id)
                continue
            key = keys[content]
            policy.expect(key)
            if len(copies) >= self.blocks:
                victim = next(policy.victims())
                policy.remove(victim, evicted=True)
                del copies[contents.pop(victim)]
            copy_id = next(self.ids)
            depth = content % 64
            parent = keys[content - 1] if depth else None
            policy.insert(Item(copy_id, key, BLOCK, 256, depth, parent))
            copies[content], contents[copy_id] = copy_id, content
        self.hits = hits


def measure(name: str, blocks: int) -> dict[str, float]:
    """In this process."""
    count = min(2 * blocks, MOST_ACCESSES)
    asked = accesses(blocks, 2 * blocks + count)
    cache = Cache(EVICTION[name](blocks * BLOCK), blocks, keys_of(blocks))
    cache.run(range(blocks))  # full before it warms up
    cache.run(asked[: 2 * blocks])
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    cache.run(asked[2 * blocks :])
    took = time.perf_counter() - began
    return {"per_s": count / took, "hit_ratio": cache.hits / count}


def figures(names: Sequence[str], sizes: Sequence[int]) -> list[Figure]:
    rows = []
    for name in names:
        seen = [_in_a_process(name, blocks) for blocks in sizes]
        rates = [row["per_s"] for row in seen]
        growth = rates[0] / rates[-1]
        told = ", ".join(f"{rate / 1000:.0f}" for rate in rates)
        rows.append(Figure(
            number="17", what=f"policy {name}, accesses/s",
            wanted=f">= {LEAST_PER_S:,} at the most blocks, growth < {MOST_GROWTH:g}",
            seen=f"{told} k/s; cost x {growth:.2f}; hits {seen[-1]['hit_ratio']:.3f}",
            met=rates[-1] >= LEAST_PER_S and growth < MOST_GROWTH,
        ))  # fmt: skip
        print(rows[-1].what, rows[-1].seen, flush=True)
    return rows


def _in_a_process(name: str, blocks: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, str(blocks)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="+", choices=tuple(EVICTION), default=list(EVICTION))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="blocks, rising")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    rows = figures(options.policies, options.sizes)
    print(f"\n{table(rows)}")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
