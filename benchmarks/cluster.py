"""The cluster simulator's speed and memory: whole commands, outputs written.

    python benchmarks/cluster.py [--runs N]

Each work is a shipped scenario, run in a process of its own; the works take turns, so that what
else the machine does falls on all of them. Some are run with the engine compiled (`kv-cache.py
compile`, into a directory that goes again), the others as Python. How the processor's time grows
from 10,000 to 50,000 requests is the median of the pairs that were run one after the other.

Three public simulators did the first in 2.27 s and 169 MB (C++, as its README builds it), the
second in 36.7 s and 1.47 GB, and the third not in 77 minutes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish

ROOT = Path(__file__).resolve().parents[1]
RUNS = 5
_CHILD = """
import resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
took = time.perf_counter() - began
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""


class Work(NamedTuple):
    what: str
    scenario: str
    sets: tuple[str, ...]
    most_s: float
    most_mb: float  # 10^6 bytes; 0 = no limit
    logged: bool = False
    compiled: bool = False


FEW, MANY = "cluster-10k few", "cluster-10k many"
TIMES_THE_REQUESTS, MOST_GROWTH = 5, 1.2
_SERVED = ("instances.gpu.hbm_gib=20", "tiers.write_policy=through")
_REQUESTS = "workload.requests="

WORKS: Mapping[str, Work] = {
    "b13": Work(
        "8 instances, 100,000 requests, event log and series written, compiled", "b13", (), 3.0,
        80.0, logged=True, compiled=True,
    ),
    "b13 python": Work("the same as Python", "b13", (), 0.0, 80.0, logged=True),
    "cluster-10k": Work("10,240 GPUs, 8,000 requests", "cluster-10k", (), 6.0, 400.0),
    "cluster-10k served": Work(
        "the same with memory for every prompt, written through to the pools, compiled",
        "cluster-10k", _SERVED, 6.0, 400.0, compiled=True,
    ),
    FEW: Work("the same with 10,000 requests", "cluster-10k", (*_SERVED, _REQUESTS + "10000"),
              0.0, 0.0, compiled=True),
    MANY: Work("the same with 50,000 requests", "cluster-10k", (*_SERVED, _REQUESTS + "50000"),
               0.0, 0.0, compiled=True),
    "pd-10k": Work(
        "10,240 GPUs, 1:3 apart, 4,000 requests", "pd-10k",
        ("instances.prefill.hbm_gib=20", "instances.decode.hbm_gib=20"), 60.0, 0.0,
    ),
}  # fmt: skip


def command(work: Work, folder: Path) -> list[str]:
    line = [
        sys.executable, str(ROOT / "kv-cache.py"), "sim",
        str(ROOT / "configs" / "scenarios" / f"{work.scenario}.yaml"),
        "--output", str(folder / "sim.json"),
    ]  # fmt: skip
    if not work.compiled:
        line.append("--pure")
    for setting in work.sets:
        line += ["--set", setting]
    if work.logged:
        line += ["--events", str(folder / "e.jsonl"), "--series", str(folder / "s.csv")]
    return line


def measure(work: Work, cache: Path) -> tuple[float, float, float]:
    """Wall s, CPU s and peak bytes of one run; `cache` has the compiled engine."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with tempfile.TemporaryDirectory() as name:
        line = [sys.executable, "-c", _CHILD, *command(work, Path(name))]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    wall, cpu, peak = map(float, done.stdout.split())
    return wall, cpu, peak


def figures(runs: int = RUNS) -> list[Figure]:
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WORKS}
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            [sys.executable, str(ROOT / "kv-cache.py"), "compile"], check=True,
            env={**os.environ, "XDG_CACHE_HOME": cache},
        )  # fmt: skip
        for _ in range(runs):
            for name, work in WORKS.items():
                seen[name].append(measure(work, Path(cache)))
                _tell(name, *seen[name][-1])
    rows = [_figure(WORKS[name], rows) for name, rows in seen.items()]
    return [*rows, _growth(seen[FEW], seen[MANY])]


def _growth(few: Sequence[tuple[float, ...]], many: Sequence[tuple[float, ...]]) -> Figure:
    """Compare the processor's time of a request in each pair."""
    each = [more[1] / less[1] / TIMES_THE_REQUESTS for less, more in zip(few, many, strict=True)]
    return Figure(
        number="18", what="a request's time, 50,000 beside 10,000", wanted=f"<= {MOST_GROWTH:g} x",
        seen=f"{statistics.median(each):.2f} x ({min(each):.2f} to {max(each):.2f})",
        met=statistics.median(each) <= MOST_GROWTH,
    )  # fmt: skip


def _tell(name: str, wall: float, cpu: float, peak: float) -> None:
    print(f"{name:<20}{wall:7.2f} s wall{cpu:7.2f} s CPU{peak / 1e6:8.0f} MB", flush=True)


def _figure(work: Work, rows: Sequence[tuple[float, float, float]]) -> Figure:
    walls = [wall for wall, _, _ in rows]
    cpu = statistics.median(cpu for _, cpu, _ in rows)
    wall, peak = statistics.median(walls), max(peak for _, _, peak in rows) / 1e6
    wanted = [f"under {work.most_s:g} s"] if work.most_s else []
    wanted += [f"under {work.most_mb:g} MB"] if work.most_mb else []
    return Figure(
        number="18",
        what=work.what,
        wanted=", ".join(wanted),
        seen=f"{wall:.2f} s ({min(walls):.2f} to {max(walls):.2f}; CPU {cpu:.2f}), {peak:.0f} MB",
        met=(not work.most_s or wall < work.most_s) and (not work.most_mb or peak < work.most_mb),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=RUNS)
    rows = figures(parser.parse_args().runs)
    print()
    finish(rows)


if __name__ == "__main__":
    main()
