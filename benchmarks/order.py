"""How often `lab` is wrong about which of several policies is better, and how often it sees what
there is to see, on traces of which the order is known.

    python benchmarks/order.py [--seeds 400] [--requests 20000] [--processes 2] [--only NAME]

Each seed draws a trace of 20,000 requests of one block each: *independent* of one another, of 4,000
blocks as Zipf has them (exponent 0.9), or *mixed*, where a quarter each are of blocks that come
once and of 3,000 that come in turns. Two families replay it:

- *equal*: FIFO, and evicting by chance with four seeds. Where requests are independent of one
  another both find the same share (Gelenbe, IEEE Trans. Computers C-22(6), 1973); draws of chance
  always do. So any difference that is claimed is false.
- *apart*: evicting by chance with four amounts of room, each of which finds 5 % more hits than the
  one before in the long run (`hit_ratio`). The order is right where the best one is told from each
  other, and none is told the wrong way round.

A family is judged as one capacity of `lab` is: stretches behind those in which the cache fills, all
pairs together. Asked for are 1 to 8 % of families with any false difference, and the right order in
at least 90 %.

*Stretches* judges what `sim` has of a trace: values of 20, 30 and 40 stretches of variants that are
equal, of which neighbours correlate by 0 to 0.95 (AR(1)), two and five variants at a time. Where
nothing can be told apart for want of independent stretches nothing is false, so that only the upper
limit is asked for; said is how often that is so.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, median

import numpy as np
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import BATCHES, Accesses, accesses_of
from kv_cache.lab.judge import Shares, family_of
from kv_cache.lab.study import filling, replay
from kv_cache.lab.variants import Named, PolicyVariant
from kv_cache.metrics.order import compared

FIFO, RANDOM = (PolicyVariant(Named(name, ())) for name in ("fifo", "random"))
BLOCKS, EXPONENT = 4_000, 0.9
ROOM, ARMS, STEP = 400, 5, 1.05
IN_TURNS = 3_000
LEAST_FALSE, MOST_FALSE, LEAST_RIGHT = 0.01, 0.08, 0.9
KINDS = ("independent", "mixed")
STRETCHES = (20, 30, 40)
VARIANTS = (2, 5)
ALIKE = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)


def trace(kind: str, requests: int, seed: Seed) -> Accesses:
    """Draw requests that are independent of one another, or of which a quarter each comes once and
    in turns of 3,000 blocks."""
    rng = np.random.default_rng(seed.integer())
    weights = 1 / np.arange(1, BLOCKS + 1) ** EXPONENT
    names = rng.choice(BLOCKS, requests, p=weights / weights.sum())
    if kind == "mixed":
        which = rng.choice(4, requests)
        turns = BLOCKS + np.cumsum(which == 1) % IN_TURNS
        once = BLOCKS + IN_TURNS + np.arange(requests)
        names = np.where(which == 0, once, np.where(which == 1, turns, names))
    return accesses_of(names.tolist(), np.ones(BLOCKS + IN_TURNS + requests, np.int64))


def shares(accesses: Accesses, variant: PolicyVariant, room: int, seed: Seed) -> Shares:
    """Hit ratios in the stretches in which `ROOM` blocks are full."""
    counts = replay(accesses, variant, room, seed=seed)
    stretch = accesses.lookups / BATCHES
    begin = filling(accesses, [2 * ROOM])[0]
    values = [hits / stretch for hits in counts.batches[begin:]]
    return Shares(policy=f"{variant} {room} {seed}", mean=sum(values) / len(values), values=values)


class Judged(Struct, frozen=True):
    """Of one trace: whether any difference of equal policies was claimed, whether the order of
    those that are apart was right, and half the width of the interval of the smallest difference,
    as a share of what the better one finds."""

    false: bool
    right: bool
    reach: float


def judged(kind: str, requests: int, rooms: Sequence[int], seed: int) -> Judged:
    drawn = Seed(seed).child("order", kind)
    accesses = trace(kind, requests, drawn)
    chance = [drawn.child("chance", arm) for arm in range(ARMS)]
    arms = [shares(accesses, RANDOM, ROOM, each) for each in chance[1:]]
    if kind == "independent":
        arms.append(shares(accesses, FIFO, ROOM, chance[0]))
    equal = family_of(arms, seeds=False)
    some = [shares(accesses, RANDOM, room, each) for room, each in zip(rooms, chance, strict=False)]
    family = family_of(some, seeds=False)
    best = len(some) - 1
    right = all(family.better(best, other) for other in range(best))
    wrong = any(one < other for one, other in family.shown)
    lead = family.lead(best, best - 1)
    width = 0.0 if lead is None else lead.interval.high - lead.interval.low
    return Judged(bool(equal.shown), right and not wrong, width / 2 / some[best].mean)


def hit_ratio(kind: str, room: int) -> float:
    """What evicting by chance finds in the long run: a block survives each of the M misses until it
    is asked for again with 1 - 1/room, so that a gap of g requests is a hit with
    exp(-g M / room). Gaps of independent requests are geometric, those of turns all the same."""
    weights = 1 / np.arange(1, BLOCKS + 1) ** EXPONENT
    asked = weights / weights.sum() * (0.5 if kind == "mixed" else 1.0)
    turns = 0.25 if kind == "mixed" else 0.0
    missed = 0.5
    for _ in range(500):
        lost = missed / room
        hits = float((asked * asked / (asked + lost)).sum()) + turns * exp(-IN_TURNS / 0.25 * lost)
        missed += (1 - hits - missed) / 2
    return 1 - missed


def rooms_apart(kind: str) -> list[int]:
    """Find rooms that find `STEP` times as much each as the one before."""
    rooms = [ROOM]
    while len(rooms) < ARMS - 1:
        wanted = hit_ratio(kind, ROOM) * STEP ** len(rooms)
        rooms.append(min(range(rooms[-1], 2 * rooms[-1]),
                         key=lambda room: abs(hit_ratio(kind, room) - wanted)))  # fmt: skip
    return rooms


def judge_all(kind: str, args: argparse.Namespace) -> Iterator[Figure]:
    rooms = rooms_apart(kind)
    with ProcessPoolExecutor(args.processes) as pool:
        task = partial(judged, kind, args.requests, rooms)
        rows = list(pool.map(task, range(args.seeds), chunksize=10))
    false = sum(row.false for row in rows) / len(rows)
    right = sum(row.right for row in rows) / len(rows)
    print(
        f"{kind}: rooms {rooms}; {len(rows)} traces of {args.requests:,} requests: "
        f"{false:.1%} of families with a false difference, the right order in {right:.1%}, the "
        f"interval of a difference of 5 % reaches {median(row.reach for row in rows):.1%} to each "
        "side (median)", flush=True,
    )  # fmt: skip
    yield Figure(
        number="", what=f"families with a false difference, {kind}",
        wanted=f"{LEAST_FALSE:.0%} to {MOST_FALSE:.0%}", seen=f"{false:.1%}",
        met=LEAST_FALSE <= false <= MOST_FALSE,
    )  # fmt: skip
    yield Figure(
        number="", what=f"right order where hits differ by 5 %, {kind}",
        wanted=f">= {LEAST_RIGHT:.0%}", seen=f"{right:.1%}", met=right >= LEAST_RIGHT,
    )  # fmt: skip


def equal_stretches(
    rng: np.random.Generator, variants: int, stretches: int, alike: float
) -> list[list[float]]:
    """Draw values of variants that are equal in the long run; neighbours correlate by `alike`."""
    draws = rng.standard_normal((stretches, variants))
    for at in range(1, stretches):
        draws[at] = alike * draws[at - 1] + sqrt(1 - alike**2) * draws[at]
    values: list[list[float]] = draws.T.tolist()
    return values


def judge_stretches(stretches: int, variants: int, alike: float, seeds: int) -> tuple[float, float]:
    """Return the shares of families with a false difference, and without any that can be told."""
    rng = np.random.default_rng(Seed(stretches).child(f"{variants}", f"{alike}").integer())
    false = untold = 0
    for _ in range(seeds):
        family = compared(equal_stretches(rng, variants, stretches, alike), in_order=True)
        false += bool(family.shown)
        untold += all(pair is None for pair in family.pairs.values())
    return false / seeds, untold / seeds


def judge_sim(args: argparse.Namespace) -> Iterator[Figure]:
    cells = [(n, k, r) for n in STRETCHES for k in VARIANTS for r in ALIKE]
    with ProcessPoolExecutor(args.processes) as pool:
        columns = zip(*cells, strict=True)
        rows = list(pool.map(judge_stretches, *columns, [args.seeds] * len(cells)))
    for (stretches, variants, alike), (false, untold) in zip(cells, rows, strict=True):
        print(
            f"{stretches} stretches of {variants} equal variants, neighbours alike by {alike:g}: "
            f"{false:.1%} of {args.seeds} families with a false difference, none can be told "
            f"apart in {untold:.0%}", flush=True,
        )  # fmt: skip
    for stretches in STRETCHES:
        some = [false for cell, (false, _) in zip(cells, rows, strict=True) if cell[0] == stretches]
        yield Figure(
            number="", what=f"families with a false difference, {stretches} stretches: mean, most",
            wanted=f"mean <= {MOST_FALSE:.0%}", seen=f"{fmean(some):.1%}, {max(some):.1%}",
            met=fmean(some) <= MOST_FALSE,
        )  # fmt: skip


def judge(args: argparse.Namespace) -> Iterator[Figure]:
    for name in args.only or (*KINDS, "stretches"):
        yield from judge_sim(args) if name == "stretches" else judge_all(name, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", action="append", choices=(*KINDS, "stretches"))
    args = parser.parse_args()
    finish(judge(args))


if __name__ == "__main__":
    main()
