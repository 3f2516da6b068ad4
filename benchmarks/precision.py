"""The rule that ends a run of `--until`, on processes whose level is known: two pictures.

    python benchmarks/precision.py [--runs 400] [--images docs/images]

`until-width.svg`: how the interval of the headline narrows over a run's time until the run ends.
`until-coverage.svg`: how often the interval holds the level at that instant, for slots of 0.25 s
that correlate with their neighbours by 0, 0.5 and 0.9; beside it the plain rule that ends as soon
as 20 batches, taken for independent, say that it is narrow. A minute or two.
"""

import argparse
import sys
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Drawing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.intervals import share_interval, t_quantile
from kv_cache.view.drawing import COLOURS
from tests.unit.test_until import LEVEL, SLOT_S, Pace, pace_of, processes, stopped_at

CASES = ((0.0, 0.5, 0.05), (0.5, 0.3, 0.05), (0.9, 0.2, 0.06))
"""Correlation of neighbouring slots, their spread, and what is wanted."""
LONGEST_S = 3600
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LEAST, MOST = 0.925, 0.975


def save(drawing: Drawing, path: Path) -> None:
    """Write an SVG that is the same whenever it is drawn."""
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "path"}):
        drawing.savefig(path, format="svg", metadata={"Date": None})
    print(f"wrote {path}")


def plain_end(row: np.ndarray, spread: float, share: float) -> tuple[float, float, float]:
    """Return when 20 batches, taken for independent, are narrow; their mean, and its reach."""
    slots = 32
    while True:
        rates = LEVEL * (1 + spread * row[: slots - slots % 20].reshape(20, -1).mean(axis=1))
        reach = t_quantile(0.975, 19) * stdev(rates) / sqrt(20)
        if reach <= share * LEVEL:
            return slots * SLOT_S, fmean(rates), reach
        slots += 4


def held_at(pace: Pace, share: float) -> bool:
    seconds = stopped_at(pace, share, LONGEST_S)
    interval = None if seconds is None else pace(round(seconds * NS_PER_S)).interval(seconds)
    return interval is not None and LEVEL in interval


def coverage(runs: int) -> list[tuple[float, int, int]]:
    """Return for each case how many intervals held: by the rule of `--until`, by the plain one."""
    counts = []
    for phi, spread, share in CASES:
        ours = plain = 0
        for row in processes(phi, runs, round(LONGEST_S / SLOT_S), seed=25):
            ours += held_at(pace_of(row, spread), share)
            _, mean, reach = plain_end(row, spread, share)
            plain += abs(mean - LEVEL) <= reach
        print(f"correlation {phi:g}: {ours / runs:.3f} by --until, {plain / runs:.3f} plainly")
        counts.append((phi, ours, plain))
    return counts


def draw_coverage(counts: list[tuple[float, int, int]], runs: int) -> Drawing:
    drawing = Drawing(figsize=(7, 3.6), layout="constrained")
    axes = drawing.add_subplot()
    axes.axhspan(LEAST, MOST, color="#dfe6ee", label=f"{LEAST:.1%} to {MOST:.1%}")
    axes.axhline(0.95, color="#4a4f57", linewidth=0.8)
    for side, name in ((1, "--until"), (2, "20 batches, first time that they are narrow")):
        shares = [row[side] / runs for row in counts]
        ends = [share_interval(row[side], runs) for row in counts]
        places = np.arange(len(counts)) + 0.08 * (2 * side - 3)
        errors = np.array([[s - e.low, e.high - s] for s, e in zip(shares, ends, strict=True)]).T
        axes.errorbar(
            places, shares, errors, fmt="o", capsize=3, color=COLOURS[side - 1], label=name
        )
    axes.set_xticks(range(len(counts)), [f"{phi:g}" for phi, *_ in counts])
    axes.set_xlabel("correlation of neighbouring slots of 0.25 s")
    axes.set_ylabel(f"intervals of {runs} that hold the level")
    axes.set_ylim(0.5, 1)
    axes.legend(loc="lower left", frameon=False)
    return drawing


def draw_width() -> Drawing:
    drawing = Drawing(figsize=(7, 3.6), layout="constrained")
    axes = drawing.add_subplot()
    for colour, (phi, spread, share) in zip(COLOURS, CASES, strict=False):
        pace = pace_of(processes(phi, 1, round(LONGEST_S / SLOT_S), seed=7)[0], spread)
        end = stopped_at(pace, share, LONGEST_S) or LONGEST_S
        seconds = [float(s) for s in np.unique(np.round(np.geomspace(8, end, 80)))]
        half = [
            np.nan if interval is None else 50 * (interval.high - interval.low) / LEVEL
            for interval in (pace(round(s * NS_PER_S)).interval(s) for s in seconds)
        ]
        label = f"correlation {phi:g}, wanted ±{share:.0%}: ends after {end:.0f} s"
        axes.plot(seconds, half, color=colour, label=label)
        axes.plot([end], half[-1:], "o", color=colour)
        axes.axhline(100 * share, color=colour, linewidth=0.7, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
    axes.set_yticks([3, 5, 10, 20, 50], ["3", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set_xlabel("measured, s")
    axes.set_ylabel("half the interval's width, % of the headline")
    axes.legend(frameon=False)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--images", type=Path, default=IMAGES)
    args = parser.parse_args()
    save(draw_width(), args.images / "until-width.svg")
    counts = coverage(args.runs)
    save(draw_coverage(counts, args.runs), args.images / "until-coverage.svg")
    finish(
        Figure(
            number="", what=f"coverage where a run ends, correlation {phi:g}",
            wanted=f"{LEAST:.1%} to {MOST:.1%}", seen=f"{ours / args.runs:.1%}",
            met=LEAST <= ours / args.runs <= MOST,
        )
        for phi, ours, _ in counts
    )  # fmt: skip


if __name__ == "__main__":
    main()
