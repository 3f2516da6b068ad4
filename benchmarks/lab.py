"""How fast the policy lab looks blocks up, and how much memory that takes (figure 17).

    python benchmarks/lab.py [--requests N] [--times N] [--policies lru arc ...] [--sizes N ...]

The first work is that of the public simulator kvcache-sim on one node: 5,000 requests of sessions
with 4 turns, 2.2 million block lookups, of which 69.4 % ask for a block that was asked for before.
Timed is the replay of the accesses, which are numbers already; reading a trace is `trace stats`'
figure. The hits of LRU are held against those of the stack distances, so that nothing fast is
wrong.

The second is each policy in the lab at 10^4, 10^5 and 10^6 resident blocks, with the work and by
the rules of `benchmarks/policies.py`: a cache of N blocks that is full and warm is asked for a
million blocks by Zipf's law. All go through the seam to the policies of the tiers, LRU and FIFO
too, for which a study has shorter ways. Time is the processor's; a policy's cost is flat if it
grows at most `MOST_GROWTH` times as much as that of FIFO, whose growth is the memory's.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, table
from benchmarks.policies import CONTENTS, MOST_GROWTH, SEQUENCE, SIZES, WARM_UP
from benchmarks.policies import LEAST_PER_S as LEAST_OF_POLICIES
from benchmarks.policies import accesses as zipf
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB
from kv_cache.lab.accesses import Accesses, Ints, accesses_of
from kv_cache.lab.arms import USUAL, Arm, Named
from kv_cache.lab.bounds import Min
from kv_cache.lab.ground import Ground
from kv_cache.lab.seam import Seam
from kv_cache.lab.study import replay, study
from kv_cache.workload.reuse import StackDistances

LRU = Arm(Named("lru"))
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
TIMED = 1_000_000


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
    ground = Ground(given, seed)
    assert len(ground.uses)  # is made before the clock runs

    def least() -> None:
        rule = Min(ground, room)
        for part in given.parts():
            rule.blocks(part)

    row["min_per_s"] = given.lookups / seconds(least)
    few = work(requests // PART_OF_STUDY)
    arms = [Arm(Named(name)) for name in USUAL]
    rooms = [int(few.working_set_bytes * share) for share in SHARES]
    row["study_s"] = seconds(lambda: study(few, arms, rooms, seed=seed))
    row["study_lookups"] = few.lookups
    row["caches"] = len(rooms) * (1 + 2 * len(USUAL))  # policies by both rules
    row["study_mib"] = peak_mib()
    return row


def measure_policy(name: str, blocks: int) -> dict[str, float]:
    """In this process: lookups a second of a cache of so many blocks that is full and warm."""
    cold = (1 + WARM_UP) * blocks
    asked = [*range(blocks), *zipf(blocks, WARM_UP * blocks + TIMED, SEQUENCE)]
    given = accesses_of(asked, np.full(CONTENTS * blocks, BLOCK_BYTES, np.int64))
    warm, timed = replace(given, begins=np.array([0, cold])).parts()
    room, ground = blocks * BLOCK_BYTES, Ground(given, Seed(1))
    cache = Seam(Arm(Named(name)).eviction(room, ground.seed), room, ground)
    cache.blocks(warm)
    gc.collect()
    gc.freeze()
    began = time.process_time()
    misses = len(cache.blocks(timed))
    took = time.process_time() - began
    return {"per_s": TIMED / took, "hit_ratio": 1 - misses / TIMED, "mib": peak_mib()}


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


def policies(names: Sequence[str], sizes: Sequence[int]) -> list[Figure]:
    """FIFO's growth first, which the others' is held against."""
    seen = {
        name: [_in_a_process("--policy", name, str(blocks)) for blocks in sizes]
        for name in ("fifo", *names)
    }
    usual = _growth(seen["fifo"])
    return [_figure(name, seen[name], usual, sizes) for name in names]


def _growth(seen: Sequence[dict[str, float]]) -> float:
    return seen[0]["per_s"] / seen[-1]["per_s"]


def _figure(
    name: str, seen: Sequence[dict[str, float]], usual: float, sizes: Sequence[int]
) -> Figure:
    rates, growth = [row["per_s"] for row in seen], _growth(seen) / usual
    return Figure(
        number="17", what=f"lab, {name}, lookups/s",
        wanted=f">= {LEAST_OF_POLICIES:,} at {sizes[-1]:,} blocks, growth < {MOST_GROWTH:g} fifo's",
        seen=f"{', '.join(f'{rate / 1000:.0f}' for rate in rates)} k/s; x {growth:.2f}; "
        f"hits {seen[-1]['hit_ratio']:.3f}; {seen[-1]['mib']:.0f} MiB",
        met=rates[-1] >= LEAST_OF_POLICIES and growth < MOST_GROWTH,
    )  # fmt: skip


def figures(*, quick: bool = False) -> Sequence[Figure]:
    sizes = (SIZES[0], SIZES[-1]) if quick else SIZES
    return [*one_node(REQUESTS, TIMES), *policies(USUAL, sizes)]


def _in_a_process(*words: str) -> dict[str, float]:
    command = [sys.executable, __file__, *words]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--policies", nargs="*", choices=USUAL, default=list(USUAL))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="blocks, rising")
    parser.add_argument("--node", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--policy", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        print(json.dumps(measure_one_node(*options.node)))
        return
    if options.policy:
        print(json.dumps(measure_policy(options.policy[0], int(options.policy[1]))))
        return
    rows = one_node(options.requests, options.times)
    rows += policies(options.policies, options.sizes)
    print(f"\n{table(rows)}")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
