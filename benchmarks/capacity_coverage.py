"""How often does a capacity search's interval hold the truth, and how wide is it?

    python benchmarks/capacity_coverage.py [--seeds 100] [--budget 1] [--svg FILE]

16 queues whose limit is known exactly: service times of 1, 20, 100 and 400 ms, constant and
exponential, SLOs of 1.2 and 20 times the unloaded p95. Each is searched with each seed, with the
default budget or a multiple of it. A width is in the limit itself where the SLO is near, and in
1 - utilisation at the limit where it is far, as "0.93 of the service rate, 7 % wide" would say
next to nothing there. `--svg` draws the intervals of the first seeds.
"""

import argparse
import sys
from math import inf
from multiprocessing import Pool
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kv_cache.schedule.capacity import CapacityAnswer
from tests.simulation.queues import Queue, holds, searched
from tests.simulation.test_capacity_search import CELLS

DRAWN = 20


def answer_of(job: tuple[Queue, int, float]) -> CapacityAnswer:
    queue, seed, budget = job
    return searched(queue, seed, probe_s=60 * budget)


def width(queue: Queue, answer: CapacityAnswer) -> float:
    """Return how wide an interval is, in units of what is in doubt."""
    doubt = queue.capacity if queue.far < 2 else 1 / queue.service_s - queue.capacity
    return inf if answer.high is None else (answer.high - answer.low) / doubt


def draw(path: Path, answers: dict[Queue, list[CapacityAnswer]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(4, 4, figsize=(12, 9), sharex=True, layout="constrained")
    for axis, (queue, several) in zip(axes.T.flat, answers.items(), strict=True):
        for row, answer in enumerate(several[:DRAWN]):
            ends = [answer.low / queue.capacity, (answer.high or 1e3) / queue.capacity]
            missed = not holds(answer, queue.capacity)
            axis.plot(ends, [row, row], color="tab:red" if missed else "tab:blue", linewidth=1.5)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(xscale="log", xlim=(0.05, 20), yticks=[])
        axis.set_title(str(queue), fontsize=8)
    figure.suptitle("Intervals of capacity searches, as shares of the true limit (line)")
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--budget", type=float, default=1)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    answers: dict[Queue, list[CapacityAnswer]] = {}
    print(f"{'queue':52}  holds   width p50    p90   confirmed  low > truth  high < truth")
    with Pool(2) as pool:
        for queue in CELLS:
            jobs = [(queue, seed, given.budget) for seed in range(given.seeds)]
            several = answers[queue] = pool.map(answer_of, jobs, chunksize=2)
            truth = queue.capacity
            widths = sorted(width(queue, answer) for answer in several)
            print(
                f"{queue!s:52}  {sum(holds(a, truth) for a in several):5}"
                f"  {median(widths):10.3f}{widths[int(0.9 * len(widths))]:8.3f}"
                f"  {sum(a.confirmed for a in several):9}  {sum(a.low > truth for a in several):11}"
                f"  {sum((a.high or inf) < truth for a in several):12}",
                flush=True,
            )
    held = sum(holds(a, queue.capacity) for queue, several in answers.items() for a in several)
    print(f"all: {held} of {given.seeds * len(CELLS)}")
    if given.svg:
        draw(given.svg, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
