"""How fast `trace stats` looks at a trace, and how much memory that takes (figure 12).

    python benchmarks/trace_stats.py [--rows N]

Each file in a process of its own: the whole command, from its words to its document, without the
start of Python. The real traces are looked for in ../shared/traces or $KV_TRACES and left out where
they are missing. The made-up BurstGPT file of N rows is looked at once and repeated ten-fold: peak
memory must not grow with it, as rows without sessions or hash ids leave nothing to remember.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.cli import main as program
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB
from kv_cache.workload.samples.token_traces import burstgpt_lines

ROWS = 100_000
TIMES = 10
LEAST_PER_MIN = 100_000
MOST_GROWTH = 0.05
MOST_BLOCKS_S = 20.0

REAL = (
    ("azure_2023_code.csv", True),
    ("azure_2023_conv.csv", True),
    ("mooncake_conversation_6000.jsonl", False),
    ("agentic", False),
    ("sharegpt_v3_400.json", False),
)
"""Each file, and whether it has token counts alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One command: what was looked at, how long it took, and the process's peak of memory."""

    name: str
    counts: bool  # a format of token counts alone
    rows: int
    blocks: int
    seconds: float
    peak_mib: float

    @property
    def per_min(self) -> float:
        return 60 * self.rows / self.seconds


def look(path: Path) -> dict[str, float]:
    """In this process."""
    said = io.StringIO()
    began = time.monotonic()
    with contextlib.redirect_stdout(said):
        code = program(["trace", "stats", str(path), "--json"])
    seconds = time.monotonic() - began
    assert code == 0, f"trace stats {path} ended with {code}"
    own = json.loads(said.getvalue())["kv_cache"]
    return {
        "rows": own["rows"]["good"] + own["rows"]["notes"].get("failed", 0),
        "blocks": own["reuse"]["references"],
        "seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB,
    }


def in_child(path: Path, name: str, *, counts: bool) -> Looked:
    command = [sys.executable, __file__, "--child", str(path)]
    done = subprocess.run(command, capture_output=True, check=True)
    found = json.loads(done.stdout)
    return Looked(
        name=name, counts=counts, rows=round(found["rows"]), blocks=round(found["blocks"]),
        seconds=found["seconds"], peak_mib=found["peak_mib"],
    )  # fmt: skip


def looked(rows: int) -> Iterator[Looked]:
    place = Path(os.environ.get("KV_TRACES") or Path.cwd().parent / "shared" / "traces")
    for name, counts in REAL:
        if (place / name).exists():
            yield in_child(place / name, name, counts=counts)
    with tempfile.TemporaryDirectory() as directory:
        for times in (1, TIMES):
            path = Path(directory) / f"burst{times}.csv"
            _write(path, rows, times)
            yield in_child(path, f"burstgpt {rows:,} rows x {times}", counts=True)


def _write(path: Path, rows: int, times: int) -> None:
    """The same rows again and again, each time behind the last."""
    head, *lines = burstgpt_lines(Seed(1), rows)
    cells = [line.split(",", 1) for line in lines]
    span = int(cells[-1][0])
    with path.open("w") as file:
        file.write(f"{head}\n")
        for turn in range(times):
            file.writelines(f"{int(at) + turn * span},{rest}\n" for at, rest in cells)


def figures(rows: int = ROWS) -> Sequence[Figure]:
    print(f"{'':<34}{'rows':>11}{'blocks':>11}{'s':>8}{'rows/min':>13}{'peak MiB':>10}")
    found = []
    for each in looked(rows):
        found.append(each)
        print(
            f"{each.name:<34}{each.rows:>11,}{each.blocks:>11,}{each.seconds:>8.2f}"
            f"{each.per_min:>13,.0f}{each.peak_mib:>10.1f}",
            flush=True,
        )
    return [_rate(found), _memory(found), *_blocks(found)]


def _rate(found: Sequence[Looked]) -> Figure:
    slowest = min((each for each in found if each.counts), key=lambda each: each.per_min)
    return Figure(
        number="12", what="trace stats, token-count formats",
        wanted=f">= {LEAST_PER_MIN:,} rows/min",
        seen=f"{slowest.per_min:,.0f} ({slowest.name})", met=slowest.per_min >= LEAST_PER_MIN,
    )  # fmt: skip


def _memory(found: Sequence[Looked]) -> Figure:
    one, many = found[-2:]
    growth = many.peak_mib / one.peak_mib - 1
    return Figure(
        number="12", what=f"trace stats, memory for {TIMES} times the rows",
        wanted=f"grows by < {MOST_GROWTH:.0%}",
        seen=f"{growth:+.1%} ({one.peak_mib:.1f} to {many.peak_mib:.1f} MiB)",
        met=growth < MOST_GROWTH,
    )  # fmt: skip


def _blocks(found: Sequence[Looked]) -> Iterator[Figure]:
    """The trace with the most blocks that are remembered."""
    shared = [each for each in found if not each.counts]
    if shared:
        each = max(shared, key=lambda each: each.blocks)
        yield Figure(
            number="12", what=f"trace stats, {each.blocks:,} blocks ({each.name})",
            wanted=f"< {MOST_BLOCKS_S:g} s", seen=f"{each.seconds:.1f} s",
            met=each.seconds < MOST_BLOCKS_S,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(look(options.child)))
        return
    rows = figures(options.rows)
    print()
    finish(rows)


if __name__ == "__main__":
    main()
