"""How fast the eviction policies are, and whether an access costs the same however many blocks
there are.

    python benchmarks/policies.py [--policies lru arc ...] [--sizes 10000 1000000] [--sequence 64]

Each policy alone, in a process of its own: a full cache of N blocks of one size, warmed up by 3N
accesses, of which about two thirds hit. They come as those of prompts do, 64 blocks in their order;
which 64 is drawn by Zipf's law (exponent 0.8 over 4N blocks) before the clock starts. An access is
a look-up in the driver's table of what is here (a dict), and a hit or an eviction with an
insertion. As many accesses more are timed: at most a million. Time is the processor's: what else
runs beside it takes its share of the caches, but not of the clock. `--sequence 1` draws each block
alone: as hard on the memory as can be, and like nothing that a KV cache is asked.

A policy's cost is flat if an access at the most blocks takes at most `MOST_GROWTH` times as long as
at the fewest. Part of that is the memory's, whose caches the tables no longer fit: FIFO, which does
nothing on a hit, shows how much.

The learned policy asks a model for each victim, and is not held to the speed of the others: its
first accesses with a model are timed.
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
MOST_GROWTH = 2.0
MOST_ACCESSES = 1_000_000
EXPONENT = 0.8
CONTENTS = 4  # for each block of the cache
SEQUENCE = 64  # blocks that are asked for in their order, as those of a prompt are
WARM_UP = 3
SLOW = {"learned": 5_000}
"""Accesses that are timed, after as many as it takes until there is a model."""
BLOCK = 2 << 20


def accesses(blocks: int, count: int, sequence: int) -> list[int]:
    """Sequences by Zipf's law, the popular ones spread over all numbers, block by block."""
    sequences = CONTENTS * blocks // sequence
    weights = np.arange(1, sequences + 1, dtype=np.float64) ** -EXPONENT
    cumulated = np.cumsum(weights) / weights.sum()
    rng = np.random.default_rng(7)
    ranks = np.searchsorted(cumulated, rng.random(-(-count // sequence)))
    drawn = rng.permutation(sequences)[np.minimum(ranks, sequences - 1)]
    asked: list[int] = (drawn[:, None] * sequence + np.arange(sequence)).ravel()[:count].tolist()
    return asked


def keys_of(blocks: int) -> list[bytes]:
    return [content.to_bytes(16, "little") for content in range(CONTENTS * blocks)]


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
            depth = content % SEQUENCE
            parent = keys[content - 1] if depth else None
            policy.insert(Item(copy_id, key, BLOCK, 256, depth, parent))
            copies[content], contents[copy_id] = copy_id, content
        self.hits = hits


def measure(name: str, blocks: int, sequence: int) -> dict[str, float]:
    """In this process."""
    count = SLOW.get(name, min(WARM_UP * blocks, MOST_ACCESSES))
    warm_up = blocks + 20_000 if name in SLOW else WARM_UP * blocks
    asked = accesses(blocks, warm_up + count, sequence)
    cache = Cache(EVICTION[name](blocks * BLOCK), blocks, keys_of(blocks))
    cache.run(range(blocks))  # full before it warms up
    cache.run(asked[:warm_up])
    gc.collect()
    gc.freeze()
    began = time.process_time()
    cache.run(asked[warm_up:])
    took = time.process_time() - began
    return {"per_s": count / took, "hit_ratio": cache.hits / count}


def figures(
    names: Sequence[str] = tuple(EVICTION),
    sizes: Sequence[int] = SIZES,
    sequence: int = SEQUENCE,
) -> list[Figure]:
    memory = _growth(_rates("fifo", sizes, sequence))
    rows = []
    for name in names:
        rates = _rates(name, sizes, sequence)
        growth = _growth(rates)
        told = ", ".join(f"{row['per_s'] / 1000:.0f}" for row in rates)
        fast = rates[-1]["per_s"] >= LEAST_PER_S and growth <= MOST_GROWTH
        rows.append(Figure(
            number="20", what=f"policy {name}, accesses/s",
            wanted="no figure" if name in SLOW else
            f">= {LEAST_PER_S:,} at the most blocks, cost x {MOST_GROWTH:g} at most",
            seen=f"{told} k/s; cost x {growth:.1f} (FIFO {memory:.1f}); "
            f"hits {rates[-1]['hit_ratio']:.3f}",
            met=name in SLOW or fast,
        ))  # fmt: skip
        print(rows[-1].what, rows[-1].seen, flush=True)
    return rows


def _rates(name: str, sizes: Sequence[int], sequence: int) -> list[dict[str, float]]:
    return [_in_a_process(name, blocks, sequence) for blocks in sizes]


def _growth(rates: Sequence[dict[str, float]]) -> float:
    """Of the cost of an access, from the fewest blocks to the most."""
    return rates[0]["per_s"] / rates[-1]["per_s"]


def _in_a_process(name: str, blocks: int, sequence: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, str(blocks), "--sequence", str(sequence)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="+", choices=tuple(EVICTION), default=list(EVICTION))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="blocks, rising")
    parser.add_argument("--sequence", type=int, default=SEQUENCE, help="blocks drawn together")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.sequence)))
        return
    rows = figures(options.policies, options.sizes, options.sequence)
    print(f"\n{table(rows)}")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
