"""How often two sides that take turns on a device are told apart, where its speed wanders.

    python benchmarks/turns.py [--draws 2000] [--seconds 7]

Series of logarithms of rates are drawn: noise of 4 % from turn to turn, and what a disk adds to it
(a trend, a step, waves, a wandering level, stalls). Side B is as fast as A (*false*), or 4.9 %
slower (*power*: 5 % more bytes an object), by pairs in the orders A B A B and A B B A (Student's t,
wider by how neighbouring pairs correlate), and by turns, A B A B (`metrics/turns.py`), as `sweep`
and `benchmarks/power.py` judge them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.turns import difference_in_turns
from kv_cache.result.comparison import ratio_of_pairs

Floats = npt.NDArray[np.float64]
Drift = Callable[[np.random.Generator, int], Floats]

SLOWER = log(1.05)
TURNS = (16, 40, 128)
MOST_FALSE = 0.07
_NOISE = 0.04


def alike(correlation: float, spread: float) -> Drift:
    """Return a level that wanders, whose neighbours correlate."""

    def drawn(rng: np.random.Generator, turns: int) -> Floats:
        level = rng.standard_normal(turns)
        for at in range(1, turns):
            level[at] = correlation * level[at - 1] + (1 - correlation**2) ** 0.5 * level[at]
        return spread * level

    return drawn


def waves(turns_each: float, height: float) -> Drift:
    def drawn(rng: np.random.Generator, turns: int) -> Floats:
        each = turns_each * rng.uniform(0.8, 1.25)
        return height * np.sin(2 * np.pi * (np.arange(turns) / each + rng.random()))

    return drawn


DRIFTS: dict[str, Drift] = {
    "noise alone": lambda rng, turns: np.zeros(turns),
    "a third faster or slower, evenly": lambda rng, turns: np.linspace(
        0, rng.choice([-0.4, 0.4]), turns
    ),
    "a third faster or slower at once": lambda rng, turns: (
        rng.choice([-0.4, 0.4]) * (np.arange(turns) >= rng.integers(turns))
    ),
    "steps of 20 % every 20 turns": lambda rng, turns: np.cumsum(
        rng.normal(0, 0.2, turns) * (rng.random(turns) < 0.05)
    ),
    "waves of 8 turns, 10 %": waves(8, 0.1),
    "waves of 40 turns, 30 %": waves(40, 0.3),
    "5 % each turn, kept": lambda rng, turns: np.cumsum(rng.normal(0, 0.05, turns)),
    "10 %, neighbours alike by 0.5": alike(0.5, 0.1),
    "30 %, neighbours alike by 0.9": alike(0.9, 0.3),
    "stalls of 30 % in 5 of 100 turns": lambda rng, turns: (
        -rng.exponential(0.3, turns) * (rng.random(turns) < 0.05)
    ),
}


def by_turns(rates: Floats, slower: float) -> bool:
    at = np.arange(len(rates))
    known = difference_in_turns(rates[::2], rates[1::2] - slower, at[::2], at[1::2])
    return known is not None and known.claimed(1 - CONFIDENCE)


def by_pairs(rates: Floats, slower: float, *, swapped: bool) -> bool:
    """Judge B/A by pairs; `swapped`: every other pair is B A."""
    first, second = rates[::2].copy(), rates[1::2].copy()
    if swapped:
        first[1::2], second[1::2] = rates[3::4], rates[2::4]
    known = ratio_of_pairs(np.exp(first).tolist(), np.exp(second - slower).tolist(), CONFIDENCE)
    return known is not None and 1.0 not in known[1]


WAYS: dict[str, Callable[[Floats, float], bool]] = {
    "pairs ABAB": lambda rates, slower: by_pairs(rates, slower, swapped=False),
    "pairs ABBA": lambda rates, slower: by_pairs(rates, slower, swapped=True),
    "turns ABAB": by_turns,
}


def judged(draws: int, seconds: float) -> Iterator[Figure]:
    for turns in TURNS:
        print(f"\n{turns} turns ({turns * seconds / 60:.1f} min): false, power")
        print(f"{'':34}" + "".join(f"{way:>16}" for way in WAYS))
        worst = 0.0
        for name, drift in DRIFTS.items():
            rng = np.random.default_rng(turns)
            series = [drift(rng, turns) + rng.normal(0, _NOISE, turns) for _ in range(draws)]
            cells = {}
            for way, told in WAYS.items():
                claims = (sum(told(s, slower) for s in series) for slower in (0.0, SLOWER))
                cells[way] = [claimed / draws for claimed in claims]
            row = "".join(f"{false:>9.1%}{power:>7.2f}" for false, power in cells.values())
            print(f"{name:34}{row}", flush=True)
            worst = max(worst, cells["turns ABAB"][0])
        yield Figure(
            number="", what=f"false differences by turns, {turns} of them, worst drift",
            wanted=f"<= {MOST_FALSE:.0%}", seen=f"{worst:.1%}", met=worst <= MOST_FALSE,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=7.0, help="of a turn, for the minutes")
    args = parser.parse_args()
    finish(judged(args.draws, args.seconds))


if __name__ == "__main__":
    main()
