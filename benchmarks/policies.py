"""How fast the lab replays each eviction policy, and whether an access costs the same however many
blocks there are, as Python and as compiled (figure 20).

    python benchmarks/policies.py [--policies lru arc ...] [--sizes 10000 1000000] [--sequence 64]

A cache of N blocks of one size, full and warmed up by 3N accesses, of which about two thirds hit.
They come as those of prompts do, 64 blocks in their order; which 64 is drawn by Zipf's law
(exponent 0.8 over 4N blocks) before the clock starts. All go through the lab's way to the policies
of the tiers, LRU and FIFO too, for which a study has shorter ways. Five stretches of 200,000
accesses are timed, those of the sizes in turns, and the median is told with the slowest and the
fastest; each policy has a process of its own for each engine. Time is the processor's: what else
runs beside it takes its share of the caches, but not of the clock. `--sequence 1` draws each block
alone: as hard on the memory as can be, and like nothing that a KV cache is asked.

A policy's cost is flat if an access at the most blocks costs at most `MOST_GROWTH` times what it
does at the fewest (the median of the pairs), or that many times as much more as FIFO's: FIFO does
nothing on a hit, so that its growth is that of the memory, whose caches the tables no longer fit.

The learned policy asks a model for each victim, and is not held to the speed of the others: its
first accesses with a model are timed.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish

ROOT = Path(__file__).resolve().parents[1]

SIZES = (10_000, 1_000_000)
LEAST_PER_S = 300_000
MOST_GROWTH = 2.0
STRETCHES, STRETCH = 5, 200_000
EXPONENT = 0.8
CONTENTS = 4  # for each block of the cache
SEQUENCE = 64  # blocks that are asked for in their order, as those of a prompt are
WARM_UP = 3
LEARNED, FEW, FEW_WARM = "learned", 1_000, 20_000
"""Accesses of a stretch of the slow one, after as many as it takes until there is a model."""
BLOCK_BYTES = 2 << 20
ENGINES = ("python", "compiled")

StudyRow = dict[str, Any]


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


def measure(name: str, sizes: Sequence[int], sequence: int, engine: str) -> list[StudyRow]:
    """A row for each size. In this process, which has imported nothing of the lab yet."""
    from kv_cache.app.compiled import engine_name, use

    if engine == "compiled":
        use(())
    stretch = FEW if name == LEARNED else STRETCH
    caches = [_warm(name, blocks, sequence, stretch) for blocks in sizes]
    assert engine_name() == engine
    gc.collect()
    gc.freeze()
    rows: list[StudyRow] = [{"rates": [], "misses": 0} for _ in sizes]
    for number in range(STRETCHES):
        for (cache, parts), row in zip(caches, rows, strict=True):
            began = time.process_time()
            row["misses"] += len(cache.blocks(parts[number]))
            row["rates"].append(stretch / (time.process_time() - began))
    for row in rows:
        row["hit_ratio"] = 1 - row["misses"] / (STRETCHES * stretch)
    return rows


def _warm(name: str, blocks: int, sequence: int, stretch: int) -> tuple[Any, list[Any]]:
    """A cache that is full and warm, and what it is asked then."""
    from kv_cache.core.seed import Seed
    from kv_cache.lab.accesses import accesses_of
    from kv_cache.lab.seam import Seam
    from kv_cache.lab.shared_state import SharedState
    from kv_cache.lab.variants import Named, PolicyVariant

    warm_up = blocks + FEW_WARM if name == LEARNED else WARM_UP * blocks
    asked = [*range(blocks), *accesses(blocks, warm_up + STRETCHES * stretch, sequence)]
    given = accesses_of(asked, np.full(CONTENTS * blocks, BLOCK_BYTES, np.int64))
    heads = np.flatnonzero(np.array(asked) % sequence == 0)
    given = replace(given, begins=heads)
    room, shared = blocks * BLOCK_BYTES, SharedState(given, Seed(1))
    cache = Seam(PolicyVariant(Named(name)).eviction(room, shared.seed), room, shared)
    begins = [0, *(blocks + warm_up + number * stretch for number in range(STRETCHES))]
    cold, *parts = _each(given, begins)
    cache.blocks(cold)
    return cache, parts


def _each(given: Any, begins: Sequence[int]) -> list[Any]:
    """The stretches, each as one part."""
    found = []
    for begin, end in zip(begins, [*begins[1:], given.lookups], strict=True):
        (part,) = replace(given, blocks=given.blocks[begin:end], begins=np.array([0])).parts()
        found.append(replace(part, begin=begin))
    return found


def figures(
    names: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    sequence: int = SEQUENCE,
) -> list[Figure]:
    found = []
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name)
        subprocess.run(
            [sys.executable, str(ROOT / "kv-cache.py"), "compile"], check=True,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )  # fmt: skip
        fifo = {each: _seen("fifo", sizes, sequence, each, cache) for each in ENGINES}
        for policy in _known() if names is None else names:
            for engine in ENGINES:
                seen = _seen(policy, sizes, sequence, engine, cache)
                found.append(_figure(policy, engine, seen, _growth(fifo[engine])))
                print(found[-1].what, found[-1].seen, flush=True)
    return found


def _figure(name: str, engine: str, seen: Sequence[StudyRow], memory: float) -> Figure:
    growth, most = _growth(seen), MOST_GROWTH * max(1.0, memory)
    told = ", ".join(f"{median(row['rates']) / 1000:.0f}" for row in seen)
    slowest, fastest = min(seen[-1]["rates"]), max(seen[-1]["rates"])
    return Figure(
        number="20", what=f"{name}, {engine}, lookups/s",
        wanted="no figure" if name == LEARNED else
        f">= {LEAST_PER_S:,} at the most blocks, cost x {most:.1f} at most",
        seen=f"{told} ({slowest / 1000:.0f} to {fastest / 1000:.0f}) k/s; cost x {growth:.1f} "
        f"(FIFO {memory:.1f}); hits {seen[-1]['hit_ratio']:.3f}",
        met=name == LEARNED or (
            median(seen[-1]["rates"]) >= LEAST_PER_S and growth <= most
        ),
    )  # fmt: skip


def _growth(seen: Sequence[StudyRow]) -> float:
    """Of the cost of an access, from the fewest blocks to the most: of each pair of stretches that
    stood beside each other."""
    pairs = zip(seen[0]["rates"], seen[-1]["rates"], strict=True)
    growth: float = median(few / many for few, many in pairs)
    return growth


def _seen(
    name: str, sizes: Sequence[int], sequence: int, engine: str, cache: Path
) -> list[StudyRow]:
    """In a process of its own."""
    command = [
        sys.executable, __file__, "--one", name, engine, "--sequence", str(sequence),
        "--sizes", *map(str, sizes),
    ]  # fmt: skip
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    rows: list[StudyRow] = json.loads(done.stdout)
    return rows


def _known() -> Sequence[str]:
    from kv_cache.policy.eviction import EVICTION

    return tuple(EVICTION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="+", metavar="NAME", help="[default: all]")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="blocks, rising")
    parser.add_argument("--sequence", type=int, default=SEQUENCE, help="blocks drawn together")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, engine = options.one
        print(json.dumps(measure(name, options.sizes, options.sequence, engine)))
        return
    rows = figures(options.policies, options.sizes, options.sequence)
    print()
    finish(rows)


if __name__ == "__main__":
    main()
