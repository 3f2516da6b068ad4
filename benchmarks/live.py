"""What the live view costs: the share of a core that it takes on a pseudo terminal, beside none.

    python benchmarks/live.py [--seconds 10] [--dir D]

A small real run on three tiers is made twice, with the view on a terminal of 120 columns and with
--no-progress. The thread that draws is timed in each of its ticks, in CPU time of its own; the
share is what all ticks took, over the time from the first to the last.
"""

import argparse
import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish, percentile

ROOT = Path(__file__).resolve().parents[1]
MOST_SHARE = 0.01  # of a core
COLUMNS, LINES = 120, 40


def child(argv: Sequence[str], path: Path) -> int:
    """One run in this process, whose ticks are timed."""
    from kv_cache.bench.run import RealRun
    from kv_cache.cli import main
    from kv_cache.cli.progress import RunProgress

    ticks: list[tuple[float, int]] = []
    real = RunProgress.tick

    def timed(self: RunProgress, run: RealRun) -> None:
        began_ns = time.thread_time_ns()
        real(self, run)
        ticks.append((time.monotonic(), time.thread_time_ns() - began_ns))

    RunProgress.tick = timed  # type: ignore[method-assign]
    code = main(argv)
    path.write_text(json.dumps(ticks))
    return code


def measured(seconds: float, place: Path, *more: str) -> tuple[list[list[float]], Any]:
    """The ticks of a run on a terminal, and the run's own section."""
    ticks, result = place / "ticks.json", place / "R.json"
    argv = [
        "--config=quick", "--model=tiny-1b", "--semantics=mlperf", "--num-users=8",
        "--gpu-mem-gb=0.125", "--cpu-mem-gb=0.125", "--storage-capacity-gb=1",
        "--generation-mode=none", f"--duration={seconds:g}", "--seed=1",
        f"--cache-dir={place / 'cache'}", f"--output={result}", *more,
    ]  # fmt: skip
    master, slave = pty.openpty()
    os.environ |= {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", str(ticks), *argv],
        stdout=subprocess.DEVNULL, stderr=slave, cwd=place,
    )  # fmt: skip
    os.close(slave)
    threading.Thread(target=_drain, args=(master,), daemon=True).start()
    if process.wait():
        raise SystemExit(f"the run ended with {process.returncode}")
    return json.loads(ticks.read_text()), json.loads(result.read_bytes())["kv_cache"]


def _drain(master: int) -> None:
    try:
        while os.read(master, 65536):
            pass
    except OSError:  # the other end is closed
        pass
    os.close(master)


def share_of(ticks: Sequence[Sequence[float]]) -> float:
    return sum(ns for _, ns in ticks) / 1e9 / (ticks[-1][0] - ticks[0][0])


def figures(seconds: float, directory: Path | None) -> list[Figure]:
    shares = {}
    print(f"{'':<10}{'ticks':>7}{'median us':>11}{'longest us':>12}{'share':>9}{'requests/s':>12}")
    for name, more in (("view", ()), ("none", ("--no-progress",))):
        with tempfile.TemporaryDirectory(prefix="kv-live-", dir=directory) as scratch:
            ticks, own = measured(seconds, Path(scratch), *more)
        shares[name] = share_of(ticks)
        us = [ns / 1e3 for _, ns in ticks]
        done = own["measured"]["all"]["completed"] / own["window_s"]
        print(
            f"{name:<10}{len(us):>7}{percentile(us, 50):>11.0f}{max(us):>12.0f}"
            f"{shares[name]:>9.3%}{done:>12.1f}"
        )
    return [
        Figure(
            number="16", what="live view, share of a core", wanted=f"< {MOST_SHARE:.0%}",
            seen=f"{shares['view']:.3%} ({shares['none']:.3%} without)",
            met=shares["view"] < MOST_SHARE,
        )
    ]  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[3:], Path(sys.argv[2])))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--dir", type=Path, help="on the device to be used")
    options = parser.parse_args()
    finish(figures(options.seconds, options.dir))


if __name__ == "__main__":
    main()
