"""Users and workers that come and go in one process: how fast, and what is left behind.

    python benchmarks/resize.py [--few 10] [--many 500] [--times 5]

A whole real run on memory and a directory; while it serves, its users are changed from few to many
and back, several times. Told are the times until the last thread has come or gone, and threads and
resident memory with few users before and after. The first round is thrown away: it has the memory
taken that a thread needs at its first use. Users think for 1 to 2 s, so that many of them are no
overload: who leaves is answered first, and that takes as long as the queue is.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.bench.run import RealRun, open_run
from kv_cache.bench.run_plan import RunPlan
from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, gib_to_bytes

SEED = 1
LIMIT_S = 2.0
MOST_WORKERS = 500  # schedule.max_workers
TOLERANCE = 0.05
_SETTLE_S = 1.5
_POLL_S = 0.005


@dataclass(slots=True, eq=False)
class Changes:
    """What was seen: seconds of each change, and (threads, resident bytes) with few users."""

    up_s: list[float] = field(default_factory=list)
    down_s: list[float] = field(default_factory=list)
    few: list[tuple[int, int]] = field(default_factory=list)


def workers_alive() -> int:
    return sum(thread.name.startswith("worker") for thread in threading.enumerate())


def change(run: RealRun, users: int) -> float:
    """Seconds until so many workers serve so many users, where there is one for each up to 500."""
    began = time.monotonic()
    run.resize(users)
    while workers_alive() != min(users, MOST_WORKERS):
        time.sleep(_POLL_S)
    return time.monotonic() - began


def go_up_and_down(run: RealRun, few: int, many: int, times: int, stop: threading.Event) -> Changes:
    """Serves while it changes; ends the run."""
    seen, process = Changes(), psutil.Process()
    while run.phase != "measure":
        time.sleep(_POLL_S)
    time.sleep(_SETTLE_S)
    for _ in range(times + 1):
        seen.few.append((threading.active_count(), process.memory_info().rss))
        seen.up_s.append(change(run, many))
        time.sleep(_SETTLE_S)
        seen.down_s.append(change(run, few))
        time.sleep(_SETTLE_S)
    seen.few.append((threading.active_count(), process.memory_info().rss))
    stop.set()
    return seen


def measure(few: int, many: int, times: int) -> Changes:
    """One run, changed from a thread beside it."""
    stop = threading.Event()
    found: list[Changes] = []
    template = {"context_range": [64, 512], "generation_range": [10, 40]}
    thinks = {**template, "think_time_range": [1.0, 2.0]}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        config = load_config(
            None,
            {
                "run.model": "tiny-1b", "run.num_users": few, "run.duration_s": 600,
                "run.generation_mode": "none", "tiers.gpu_mem_gib": 0.0, "tiers.cpu_mem_gib": 1.0,
                "tiers.storage_capacity_gib": 1.0, "tiers.cache_dir": (directory,),
                "io.buffer_mib": 1, "user_templates.chatbot": thinks,
                "user_templates.coding": thinks, "user_templates.document": thinks,
            },
        )  # fmt: skip
        specs = tier_specs(config, gib_to_bytes(config.tiers.storage_capacity_gib))
        room = fillable_bytes(config, specs)
        load = build_load(config, config.model_shape(), Seed(SEED), None, None, room)
        with open_run(RunPlan(config, load, specs, SEED), stop) as run:
            changer = threading.Thread(
                target=lambda: found.append(go_up_and_down(run, few, many, times, stop))
            )
            changer.start()
            outcome = run.execute(ignore)
            changer.join()
    assert outcome.death is None, outcome.death
    assert outcome.recorder.all.completed > 0
    return found[0]


def ignore(_: object) -> None:
    """No records are kept."""


def figures(few: int = 10, many: int = 500, times: int = 5) -> Sequence[Figure]:
    seen = measure(few, many, times)
    up, down = (statistics.median(values[1:]) for values in (seen.up_s, seen.down_s))
    worst = max(*seen.up_s[1:], *seen.down_s[1:])
    first, *later = seen.few[1:]
    threads = {count for count, _ in (first, *later)}
    growth = max(abs(rss / first[1] - 1) for _, rss in later)
    return [
        Figure(
            number="7",
            what=f"users {few} -> {many} -> {few}, each way",
            wanted=f"< {LIMIT_S:g} s",
            seen=f"{up:.2f} s, {down:.2f} s (worst {worst:.2f} s, {times} times)",
            met=worst < LIMIT_S,
        ),
        Figure(
            number="7",
            what="threads and memory return",
            wanted=f"+-{TOLERANCE:.0%}",
            seen=f"threads {sorted(threads)}, resident {first[1] / MIB:.0f} MiB, "
            f"off by at most {growth:.1%}",
            met=len(threads) == 1 and growth <= TOLERANCE,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=500)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    finish(figures(options.few, options.many, options.times))


if __name__ == "__main__":
    main()
