"""How long it takes to find a known difference of 5 % on this machine's disk.

    python benchmarks/power.py [--minutes 18] [--slice 5] [--dir D] [--series power.jsonl]

Two loads read from the same disk, in turns: the same decode-only run, on side B with objects of
5 % more bytes (420 pages, 400 on side A). What is compared is reads a second. Each turn is a whole
run in this process, in the order A B A B, and each is appended to --series as it ends: the next
call goes on from there, and --minutes 0 only counts and draws. Keep the machine idle meanwhile.

Afterwards the recorded series is resampled in blocks of eight turns, 1,000 times for each length; a
block goes on from the last turn of the one before as it did from the turn that it followed. *Power*
is how often turns, judged as `sweep` judges them (`metrics/turns.py`), show the difference between
A and B; *false* how often the A turns alone do that are called A and B in turns, each block's one
way or the other by chance. A minute holds both sides with all that a run takes besides its window.
Writes docs/images/power-over-minutes.svg.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure as Drawing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from benchmarks.precision import IMAGES, save
from benchmarks.quiet import FOREIGN_CORES, with_foreign_cores
from kv_cache import load_config, run
from kv_cache.core.units import PAGE_BYTES
from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.turns import LEAST_TURNS, difference_in_turns
from kv_cache.view.drawing import COLOURS

PAGES = {"A": 400, "B": 420}
BLOCK_TOKENS = 64
ORDER = "AB"
BLOCK = 8  # turns, of one side or of both, that are resampled together
RESAMPLES, LENGTHS = 1000, 16
MOST_MINUTES, LEAST_POWER, MOST_FALSE = 15, 0.8, 0.07
OBJECTS_GIB = 1.0

_TEMPLATES = tuple(f"user_templates.{name}" for name in ("chatbot", "coding", "document"))
_USER = {"context_range": [512, 2048], "generation_range": [32, 96], "think_time_range": [0, 0]}

Floats = npt.NDArray[np.float64]


def turn(side: str, number: int, window_s: float, directory: Path) -> dict[str, Any]:
    """Run one side for a while; both sides of a pair have one seed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=directory, prefix="kv-power-") as scratch:
        config = load_config(
            None,
            {
                "run.model": "tiny-1b", "run.mode": "decode-only", "run.num_users": 4,
                "run.kv_bytes_per_token": PAGES[side] * PAGE_BYTES // BLOCK_TOKENS,
                "run.generation_mode": "none", "run.seed": 1 + number // 2,
                "run.duration_s": window_s, "run.warmup_s": 0.5, "run.drain_s": 1.0,
                "semantics.preset": "serving", "semantics.block_tokens": BLOCK_TOKENS,
                "tiers.gpu_mem_gib": 0.0, "tiers.cpu_mem_gib": 0.0,
                "tiers.storage_capacity_gib": OBJECTS_GIB, "tiers.cache_dir": [f"{scratch}/cache"],
                **dict.fromkeys(_TEMPLATES, _USER), "passport.settle_s": 0.0,
                "output.output": f"{scratch}/result.json",
            },
        )  # fmt: skip
        result, cores = with_foreign_cores(lambda: run(config), set())
    own = result.document["kv_cache"]
    assert own["status"] == "finished", own["notes"]
    reads = own["tiers"]["storage"]["read"]["operations_per_second"]
    return {
        "side": side, "reads_per_second": reads, "foreign_cores": cores,
        "seconds": time.monotonic() - began,
    }  # fmt: skip


def record(path: Path, minutes: float, window_s: float, directory: Path) -> None:
    """Append turns until the series holds so many minutes, as many of A as of B."""
    taken = read(path)
    while sum(row["seconds"] for row in taken) < 60 * minutes or len(taken) % len(ORDER):
        number = len(taken)
        row = turn(ORDER[number % len(ORDER)], number, window_s, directory)
        taken.append(row)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        noisy = "  (others were at work)" if row["foreign_cores"] > FOREIGN_CORES else ""
        print(
            f"{number:>4} {row['side']} {row['reads_per_second']:10.1f} reads/s{noisy}", flush=True
        )


def read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def found(logs: Floats) -> float:
    """Return in how many rows of turns a difference is claimed."""
    at = np.arange(logs.shape[1])
    claims = 0
    for row in logs:
        told = difference_in_turns(row[::2], row[1::2], at[::2], at[1::2])
        claims += told is not None and told.claimed(1 - CONFIDENCE)
    return claims / len(logs)


def resampled(logs: Floats, turns: int, rng: np.random.Generator, sides: int) -> Floats:
    """Return rows of so many turns, in blocks of a series of so many sides. A block begins with any
    turn of the first side, as far from the turn before it as it was when both were measured."""
    block = BLOCK * sides // 2
    last = (len(logs) - block) // sides
    starts = rng.integers(1, last + 1, size=(RESAMPLES, -(-turns // block), 1))
    steps = np.diff(logs, prepend=logs[0])[sides * starts + np.arange(block)]
    return np.cumsum(steps.reshape(RESAMPLES, -1)[:, :turns], axis=1)


def powers(logs: Floats, seconds: float) -> list[tuple[float, float, float]]:
    """Return power and false claims by minutes; `seconds` is what a turn takes."""
    rng, rows = np.random.default_rng(16), []
    most = max(2 * LEAST_TURNS, round(60 * MOST_MINUTES / seconds))
    for turns in np.unique(np.linspace(2 * LEAST_TURNS, most, LENGTHS).round().astype(int)):
        power = found(resampled(logs, int(turns), rng, sides=2))
        false = found(resampled(logs[::2], int(turns), rng, sides=1))
        rows.append((turns * seconds / 60, power, false))
    return rows


def draw(rows: list[tuple[float, float, float]]) -> Drawing:
    drawing = Drawing(figsize=(7, 3.6), layout="constrained")
    axes = drawing.add_subplot()
    minutes, power, false = zip(*rows, strict=True)
    axes.plot(minutes, power, color=COLOURS[0], label="5 % more bytes an object: found")
    axes.plot(minutes, false, color=COLOURS[1], label="no difference: found all the same")
    for level, colour in ((LEAST_POWER, COLOURS[0]), (MOST_FALSE, COLOURS[1])):
        axes.axhline(level, color=colour, linewidth=0.7, linestyle=":")
    axes.set_xlabel("minutes of both sides, in turns")
    axes.set_ylabel(f"share of {RESAMPLES:,} resamples")
    axes.set_ylim(0, 1.02)
    axes.legend(loc="center right", frameon=False)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=18.0, help="of recorded turns")
    parser.add_argument("--slice", type=float, default=5.0, help="seconds of a turn's window")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="on the disk")
    parser.add_argument("--series", type=Path, default=Path("power.jsonl"))
    parser.add_argument("--images", type=Path, default=IMAGES)
    args = parser.parse_args()
    record(args.series, args.minutes, args.slice, args.dir)
    taken = read(args.series)
    if len(taken) < 4 * BLOCK:
        sys.exit(f"{args.series} has {len(taken)} turns, fewer than {4 * BLOCK}; add --minutes")
    if any(row["side"] != ORDER[number % 2] for number, row in enumerate(taken)):
        sys.exit(f"{args.series} is of another order than {ORDER * 2}; name another --series")
    logs = np.log([float(row["reads_per_second"]) for row in taken])
    seconds = float(np.mean([float(row["seconds"]) for row in taken]))
    rows = powers(logs, seconds)
    ratio = np.exp(logs[1::2].mean() - logs[::2].mean())
    print(f"{len(taken)} turns of {seconds:.1f} s each; B/A {ratio:.4f}")
    print(f"{'minutes':>8}{'power':>8}{'false':>8}")
    for minutes, power, false in rows:
        print(f"{minutes:8.1f}{power:8.3f}{false:8.3f}")
    save(draw(rows), args.images / "power-over-minutes.svg")
    enough = [minutes for minutes, power, _ in rows if power >= LEAST_POWER]
    false = rows[-1][2]
    finish(
        [
            Figure(
                number="", what="power 0.8 for 5 % more bytes an object, reads",
                wanted=f"within {MOST_MINUTES} min", met=bool(enough),
                seen=f"after {enough[0]:.1f} min" if enough else f"{rows[-1][1]:.2f} at the end",
            ),
            Figure(
                number="", what=f"false differences in {RESAMPLES:,} resamples",
                wanted=f"<= {MOST_FALSE:.0%}", seen=f"{false:.1%}", met=false <= MOST_FALSE,
            ),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
