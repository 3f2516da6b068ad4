"""The first run (`kv-cache.py` without options) on a device throttled to 200 MB/s, several times.

    python benchmarks/first_run.py [--runs N] [--rate BYTES_PER_S]

Figure 21: after warm-up at least 4 storage reads a write and 60 % hits; the headline's half-width
within a run is at most 3 %, and the runs agree within it: no two headlines are further apart than
their intervals reach together. About 80 s a run; nothing else should use the machine.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import kv_cache
from benchmarks.devices import leave_cleanly_on_sigterm, throttled_directory
from benchmarks.figures import Figure, finish

ROOT = Path(__file__).resolve().parents[1]
QUICK = ROOT / "configs" / "quick.yaml"
RATE = 200_000_000
DEVICE_GIB = 10.0  # what the run stores, and room
HALF_WIDTH = 0.03
HITS = 0.6
READS_A_WRITE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one run told."""

    verdict: str
    rules: Sequence[str]  # that found something
    bytes_per_s: float
    half_width: float  # as a share of it
    hits: float
    reads: int
    writes: int


def run(cache: Path) -> Seen:
    with tempfile.TemporaryDirectory() as directory:
        own = kv_cache.run(
            kv_cache.load_config(
                QUICK,
                {
                    "tiers.cache_dir": (str(cache),),
                    "output.output": f"{directory}/result.json",
                },
            )
        ).section
    headline, within = own["headline"], own["headline"]["within_run"]
    storage = own["tiers"]["storage"]
    return Seen(
        verdict=own["passport"]["verdict"],
        rules=[
            f"{row['rule']} {row['status']}"
            for row in own["passport"]["rules"]
            if row["status"] in ("suspect", "invalid")
        ],
        bytes_per_s=headline["bytes_per_second"],
        half_width=(within["high"] - within["low"]) / 2 / headline["bytes_per_second"],
        hits=own["reuse"]["reuse_hit_ratio"],
        reads=storage["read"]["operations"],
        writes=storage["write"]["operations"],
    )


def figures(runs: int = 3, rate: int = RATE) -> list[Figure]:
    seen = []
    with throttled_directory(rate, DEVICE_GIB) as directory:
        for turn in range(runs):
            one = run(directory / "cache")
            seen.append(one)
            print(
                f"{turn + 1}: {one.bytes_per_s / 1e6:.1f} MB/s ± {one.half_width:.2%}, "
                f"{one.reads} reads, {one.writes} writes, hits {one.hits:.1%}, "
                f"{one.verdict} {', '.join(one.rules)}",
                flush=True,
            )
    apart = [
        abs(a.bytes_per_s - b.bytes_per_s)
        / (a.bytes_per_s * a.half_width + b.bytes_per_s * b.half_width)
        for a, b in itertools.combinations(seen, 2)
    ]
    on = f"first run at {rate // 10**6} MB/s"
    wide = [one.half_width for one in seen]
    ratio = [one.reads / one.writes for one in seen]
    hits = [one.hits for one in seen]
    rows = (
        ("half-width of the headline", f"at most {HALF_WIDTH:.0%}", wide, ".2%",
         max(wide) <= HALF_WIDTH),
        ("distance of two, of what their intervals reach", "at most 1", apart, ".2f",
         max(apart) <= 1),
        ("storage reads a write", f"at least {READS_A_WRITE}", ratio, ".1f",
         min(ratio) >= READS_A_WRITE),
        ("hits", f"at least {HITS:.0%}", hits, ".1%", min(hits) >= HITS),
    )  # fmt: skip
    return [
        Figure(
            number="21", what=f"{on}: {what}", wanted=wanted, met=met,
            seen=", ".join(format(each, form) for each in values),
        )
        for what, wanted, values, form, met in rows
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=int, default=RATE, help="of the device, bytes/s")
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    finish(figures(options.runs, options.rate))


if __name__ == "__main__":
    main()
