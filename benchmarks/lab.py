"""How fast the policy lab looks blocks up, and how much memory that takes (figure 17).

    python benchmarks/lab.py [--requests N] [--times N]

The work is that of the public simulator kvcache-sim on one node: 5,000 requests of sessions
with 4 turns, 2.2 million block lookups, of which 69.4 % ask for a block that was asked for before.
Timed is the replay of the accesses, which are numbers already; reading a trace is `trace stats`'
figure. The hits of LRU are held against those of the stack distances, so that nothing fast is
wrong.
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

from benchmarks.figures import Figure, finish
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB
from kv_cache.lab.accesses import Accesses, Ints
from kv_cache.lab.bounds import Min
from kv_cache.lab.shared_state import SharedState
from kv_cache.lab.study import replay, study
from kv_cache.lab.variants import USUAL, Named, PolicyVariant
from kv_cache.workload.reuse import StackDistances

LRU = PolicyVariant(Named("lru"))
REQUESTS = 5_000
TURNS = 4
TURN_TOKENS = (256, 2048)
CONTEXT_TOKENS, PROMPT_TOKENS, PROMPTS, BLOCK_TOKENS = 4096, 128, 8, 16
BLOCK_BYTES = 5_242_880
ROOM_BLOCKS = 4 * 953  # the HBM of its four workers
LEAST_PER_S = 1_500_000
MOST_MIB = 300.0
TIMES = 5
PART_OF_STUDY = 20
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)


def work(requests: int = REQUESTS) -> Accesses:
    """Session by session, as there: a system prompt that every eighth session shares, a context of
    its own, and turns that each ask for all before and for some tokens more. What does not fill a
    block is no block."""
    rng = np.random.default_rng(42)
    prompts: dict[int, Ints] = {}
    asked: list[Ints] = []
    after = 0
    for session in range(requests // TURNS):
        prompt = session % PROMPTS
        if prompt not in prompts:
            prompts[prompt] = np.arange(after, after + PROMPT_TOKENS // BLOCK_TOKENS)
            after += len(prompts[prompt])
        tokens = PROMPT_TOKENS + CONTEXT_TOKENS
        told = prompts[prompt]
        for _ in range(TURNS):
            tokens += int(rng.integers(*TURN_TOKENS, endpoint=True))
            grown = tokens // BLOCK_TOKENS - len(told)
            told = np.append(told, np.arange(after, after + grown))
            after += grown
            asked.append(told)
    lengths = [len(told) for told in asked]
    return Accesses(
        blocks=np.concatenate(asked),
        begins=np.cumsum([0, *lengths[:-1]]),
        sizes=np.full(after, BLOCK_BYTES, np.int64),
        tokens=np.full(after, BLOCK_TOKENS, np.int64),
    )


def seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def peak_mib() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB


def measure_one_node(requests: int, times: int) -> dict[str, float]:
    """In this process: LRU first, as the peak of memory is told behind it."""
    given, room, seed = work(requests), ROOM_BLOCKS * BLOCK_BYTES, Seed(1)
    found = replay(given, LRU, room, seed=seed)
    took = [seconds(lambda: replay(given, LRU, room, seed=seed)) for _ in range(times)]
    row = {
        "lookups": given.lookups, "hits": found.hits, "ceiling": given.lookups - given.unique,
        "lru_per_s": given.lookups / median(took), "lru_mib": peak_mib(),
    }  # fmt: skip
    stack = StackDistances()
    for begin in range(0, given.lookups, 1 << 17):
        stack.add(given.blocks[begin : begin + (1 << 17)])
    assert found.hits == stack.hits(ROOM_BLOCKS), "LRU does not find what stack distances say"
    shared = SharedState(given, seed)
    assert len(shared.uses)  # is made before the clock runs

    def least() -> None:
        rule = Min(shared, room)
        for part in given.parts():
            rule.blocks(part)

    row["min_per_s"] = given.lookups / seconds(least)
    few = work(requests // PART_OF_STUDY)
    variants = [PolicyVariant(Named(name)) for name in USUAL]
    rooms = [int(few.working_set_bytes * share) for share in SHARES]
    row["study_s"] = seconds(lambda: study(few, variants, rooms, seed=seed))
    row["study_lookups"] = few.lookups
    row["caches"] = len(rooms) * (1 + 2 * len(USUAL))  # policies by both rules
    row["study_mib"] = peak_mib()
    return row


def one_node(requests: int, times: int) -> list[Figure]:
    found = _in_a_process("--node", str(requests), str(times))
    lookups = found["lookups"]
    print(
        f"{lookups:,.0f} lookups, LRU finds {found['hits'] / lookups:.2%} of at most "
        f"{found['ceiling'] / lookups:.2%}; MIN {found['min_per_s']:,.0f} lookups/s"
    )
    rate = found["study_lookups"] * found["caches"] / found["study_s"]
    print(
        f"  {found['caches']:.0f} caches in one study of {found['study_lookups']:,.0f} lookups: "
        f"{found['study_s']:.0f} s, {rate:,.0f} lookups/s, peak {found['study_mib']:.0f} MiB"
    )
    return [
        Figure(
            number="17", what=f"lab, LRU, {lookups:,.0f} lookups",
            wanted=f">= {LEAST_PER_S:,} lookups/s", seen=f"{found['lru_per_s']:,.0f}",
            met=found["lru_per_s"] >= LEAST_PER_S,
        ),
        Figure(
            number="17", what="lab, LRU, peak memory", wanted=f"< {MOST_MIB:g} MiB",
            seen=f"{found['lru_mib']:.0f} MiB", met=found["lru_mib"] < MOST_MIB,
        ),
    ]  # fmt: skip


def figures() -> Sequence[Figure]:
    return one_node(REQUESTS, TIMES)


def _in_a_process(*words: str) -> dict[str, float]:
    command = [sys.executable, __file__, *words]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--node", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        print(json.dumps(measure_one_node(*options.node)))
        return
    rows = one_node(options.requests, options.times)
    print()
    finish(rows)


if __name__ == "__main__":
    main()
