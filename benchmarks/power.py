"""How long it takes to find a known difference of 5 % on this machine's disk.

    python benchmarks/power.py [--minutes 18] [--slice 5] [--dir D] [--series power.jsonl]

Two loads read from the same disk, in turns: the same decode-only run, on side B with objects of
5 % more bytes (420 pages, 400 on side A). What is compared is reads a second. Each turn is a whole
run in this process, in the order A B B A, and each is appended to --series as it ends: the next
call goes on from there, and --minutes 0 only counts and draws. Keep the machine idle meanwhile.

Afterwards the recorded series is resampled in blocks of eight turns, 1,000 times for each length:
*power* is how often `compare`'s test of pairs (Student's t on the logarithms of ratios, 5 %, wider
by how neighbours correlate) finds the difference between A and B; *false* how often it finds one
between the two A of four turns, which are called A B and B A in turns, as above, and in each block
the other way round by chance. A minute holds both sides with all that a run takes besides its
window. Writes docs/images/power-over-minutes.svg.
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
from kv_cache.result.comparison import ratio_of_pairs
from kv_cache.view.drawing import COLOURS

PAGES = {"A": 400, "B": 420}
BLOCK_TOKENS = 64
ORDER = "ABBA"
BLOCK = 2  # of turns in that order, that are resampled together
RESAMPLES = 1000
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
    """Append turns until the series holds so many minutes, and ends with a whole A B B A."""
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


def ratios(rates: Floats) -> tuple[Floats, Floats]:
    """Return the logarithms of B/A by pair (two for each A B B A), and of A/A (one)."""
    a, b, b_again, a_again = np.log(rates[: len(rates) // 4 * 4].reshape(-1, 4)).T
    return np.stack([b - a, b_again - a_again], axis=1), a_again - a


def found(logs: Floats) -> float:
    """Return in how many rows of pairs, in their order, a difference is claimed."""
    claims = 0
    for row in logs:
        told = ratio_of_pairs([1.0] * len(row), np.exp(row).tolist(), CONFIDENCE)
        claims += told is not None and 1.0 not in told[1]
    return claims / len(logs)


def resampled(count: int, pairs: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return rows of so many places in a series of `count`, in blocks that follow each other."""
    blocks = -(-pairs // BLOCK)
    starts = rng.integers(0, count, size=(RESAMPLES, blocks, 1))
    return ((starts + np.arange(BLOCK)) % count).reshape(RESAMPLES, -1)[:, :pairs]


def powers(rates: Floats, seconds: float) -> list[tuple[float, float, float]]:
    """Return power and false claims by minutes; `seconds` is what a turn takes."""
    rng, (different, same) = np.random.default_rng(16), ratios(rates)
    rows = []
    for fours in range(2, max(3, round(60 * MOST_MINUTES / seconds / 4) + 1)):
        places = resampled(len(different), fours, rng)
        power = found(different[places].reshape(RESAMPLES, -1))
        places = resampled(len(same), 2 * fours, rng)
        swapped = rng.choice([-1, 1], size=(RESAMPLES, fours, 1)) * np.array([1, -1])
        rows.append(
            (fours * 4 * seconds / 60, power, found(same[places] * swapped.reshape(RESAMPLES, -1)))
        )
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
    if len(taken) < 4 * len(ORDER):
        sys.exit(f"{args.series} has {len(taken)} turns, and 16 are the least; add --minutes")
    rates = np.array([float(row["reads_per_second"]) for row in taken])
    seconds = float(np.mean([float(row["seconds"]) for row in taken]))
    different, _ = ratios(rates)
    rows = powers(rates, seconds)
    print(f"{len(taken)} turns of {seconds:.1f} s each; B/A {np.exp(different.mean()):.4f}")
    print(f"{'minutes':>8}{'power':>8}{'false':>8}")
    for minutes, power, false in rows[:: max(1, len(rows) // 15)]:
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
