"""How often does a capacity search's interval hold the truth, and how wide is it?

    python benchmarks/capacity_coverage.py [--seeds 100] [--budget 1 --resolution 0.03] [--svg FILE]

16 queues whose limit is known exactly: service times of 1, 20, 100 and 400 ms, constant and
exponential, SLOs of 1.2 and 20 times the unloaded p95. Each is searched with each seed, with the
default budget or a multiple of it. A width is in the limit itself where the SLO is near, and in
1 - utilisation at the limit where it is far, as "0.93 of the service rate, 7 % wide" would say
next to nothing there. `--svg` draws the intervals of the first seeds.

Beside each width stand two that are the least in the time that all probes have:

*by counts*  of who counts requests over the limit, all of the time at the limit itself, and knows
             of the curve how steep it is there. n requests, of which the share p is over, tell the
             logit of p to sqrt(i / (n p (1 - p))), where i is the inflation of the share's
             variance, from a long run of the queue.
*by law*     of who knows that the queue is M/M/1, or M/D/1, and sees each service time of a server
             that is always busy: of t mu exponential times the rate mu is known to mu / sqrt(t mu)
             (Fisher's information), and the limit is mu less a constant; of a constant time, one
             is enough.
"""

import argparse
import sys
from functools import cache
from math import inf, sqrt
from multiprocessing import Pool
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kv_cache.schedule.capacity import CapacityAnswer
from tests.simulation.queues import ALLOWED, Queue, holds, rules_of, searched
from tests.simulation.test_capacity_search import CELLS

DRAWN = 20
_ERRORS = 2 * 1.96  # that an interval of 95 % is wide
_STRETCHES, _BATCHES, _BATCH = 24, 10, 100_000  # requests: sixty times the longest memory


def answer_of(job: tuple[Queue, int, float, float]) -> CapacityAnswer:
    queue, seed, budget, resolution = job
    return searched(queue, seed, probe_s=60 * budget, resolution=resolution)


def in_doubt(queue: Queue) -> float:
    """Return the unit of a width: requests/s that are in doubt."""
    return queue.capacity if queue.far < 2 else 1 / queue.service_s - queue.capacity


def width(queue: Queue, answer: CapacityAnswer) -> float:
    return inf if answer.high is None else (answer.high - answer.low) / in_doubt(queue)


def batch_shares(queue: Queue, dice: np.random.Generator) -> list[float]:
    """Return the shares over the limit of neighbouring batches, of a stretch at the limit."""
    seconds = 1.01 * (_BATCHES + 1) * _BATCH / queue.capacity
    arrived, left = queue.responses(queue.capacity, dice, seconds)
    over = (left - arrived > queue.limit_s)[_BATCH : (_BATCHES + 1) * _BATCH]
    return [float(share) for share in over.reshape(_BATCHES, _BATCH).mean(axis=1)]


@cache
def inflation_at_limit(constant: bool, far: float) -> float:
    """Return the variance of the share over the limit of a long stretch, over the binomial one."""
    queue, dice = Queue(service_s=1.0, constant=constant, far=far), np.random.default_rng(3)
    shares = [share for _ in range(_STRETCHES) for share in batch_shares(queue, dice)]
    return float(_BATCH * np.var(shares, ddof=1) / (ALLOWED * (1 - ALLOWED)))


def least_by_counts(queue: Queue, seconds: float) -> float:
    inflation = inflation_at_limit(queue.constant, queue.far)
    error = sqrt(inflation / (queue.capacity * seconds * ALLOWED * (1 - ALLOWED)))
    return _ERRORS * error / (queue.steepness * in_doubt(queue))


def least_by_law(queue: Queue, seconds: float) -> float:
    rate = 1 / queue.service_s
    return 0.0 if queue.constant else _ERRORS * sqrt(rate / seconds) / in_doubt(queue)


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
    parser.add_argument("--budget", type=float, default=1, help="times the default")
    parser.add_argument("--resolution", type=float, default=0.03)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    answers: dict[Queue, list[CapacityAnswer]] = {}
    print(f"{'queue':52}  holds  width p50    p90  by counts  by law  low > truth  high < truth")
    with Pool(2) as pool:
        for queue in CELLS:
            jobs = [(queue, s, given.budget, given.resolution) for s in range(given.seeds)]
            several = answers[queue] = pool.map(answer_of, jobs, chunksize=2)
            truth, seconds = queue.capacity, rules_of(queue, probe_s=60 * given.budget).seconds
            widths = sorted(width(queue, answer) for answer in several)
            print(
                f"{queue!s:52}  {sum(holds(a, truth) for a in several):5}"
                f"  {median(widths):9.3f}{widths[int(0.9 * len(widths))]:8.3f}"
                f"  {least_by_counts(queue, seconds):9.3f}  {least_by_law(queue, seconds):6.3f}"
                f"  {sum(a.low > truth for a in several):11}"
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
