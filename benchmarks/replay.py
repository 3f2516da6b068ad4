"""Replay of real traces: whether agents are causal and lose only what does not fit, and whether
memory grows with the trace.

    python benchmarks/replay.py [--quick] [--dir D] [--traces DIR]

1. The agentic sessions (`--traces`, else $KV_TRACES or ../shared/traces) through real files on a
   tier of 10 GiB, ten sessions at a time: of each follow-up whether it came after its
   predecessor's answer and its think time over the speed-up, from the records; the hit ratio
   beside the trace's own; and how much was dropped.
2. A trace replayed ten and twenty times in virtual time: peak resident memory of each, in turn.
   (A single pass does not fill what every run keeps of bounded size: lists of latencies, windows.)

The model has 3.5 KiB of KV a token, so that what the sessions store in all is a little more than
10 GiB.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish

ROOT = Path(__file__).resolve().parents[1]
SPEEDUP = 500.0
USERS = 10
PAIRS = 5
MOST_GROWTH = 1.10
_CONFIG = """
model_configs:
  agentic: {num_layers: 14, hidden_dim: 256, num_heads: 2, kv_heads: 1, dtype: int8}
"""
_PEAK = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def traces(given: Path | None) -> Path:
    return given or Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")


def program(*args: str) -> list[str]:
    return [
        sys.executable, str(ROOT / "kv-cache.py"), "--semantics=serving", "--gpu-mem-gb=0",
        "--cpu-mem-gb=0", "--generation-mode=none", "--seed=1", "--no-progress", *args,
    ]  # fmt: skip


# --- agents on a tier of 10 GiB ---


def agents(path: Path, directory: Path | None, capacity_gib: float, most: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="kv-replay-", dir=directory) as scratch:
        place = Path(scratch)
        (place / "model.yaml").write_text(_CONFIG)
        command = program(
            f"--config={place}/model.yaml", "--model=agentic", f"--trace={path}",
            f"--trace-users={USERS}", f"--trace-speedup={SPEEDUP}", "--replay-cycles=1",
            f"--max-requests={most}", f"--storage-capacity-gb={capacity_gib}",
            f"--cache-dir={place}/cache", f"--output={place}/R.json",
            f"--results-dir={place}/runs", "--records", "--drain=600",
        )  # fmt: skip
        subprocess.run(command, check=True)
        own = json.loads((place / "R.json").read_bytes())["kv_cache"]
        (records,) = place.glob("runs/*/requests.jsonl")
        rows = [json.loads(line) for line in records.read_text().splitlines()]
    followed, early = early_rows(rows, think_times(path))
    yield Figure(
        number="10", what="agents, follow-ups before answer + think time", wanted="0",
        seen=f"{early} of {followed}", met=not early and followed > 0,
    )  # fmt: skip
    reuse, dropped = own["reuse"], own["evictions"]["dropped_last_copies"]
    offered, achieved = reuse["offered_block_ratio"], reuse["achieved_block_ratio"]
    explained = achieved <= offered and (dropped > 0 or achieved > 0.999 * offered)
    yield Figure(
        number="10", what=f"agents, hit ratio on {capacity_gib:g} GiB", wanted="<= offered",
        seen=f"{achieved:.4f} of {offered:.4f}, {dropped} blocks dropped", met=explained,
    )  # fmt: skip


def think_times(path: Path) -> Mapping[str, Sequence[float]]:
    """Of each session, in s, row by row."""
    found = {}
    for file in sorted(path.glob("*.json")):
        session = json.loads(file.read_text())
        found[session["id"]] = [row.get("think_time", 0) for row in session["requests"]]
    return found


def early_rows(
    rows: Sequence[Mapping[str, Any]], think: Mapping[str, Sequence[float]]
) -> tuple[int, int]:
    """How many follow-ups there were, and how many came too early."""
    sessions: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["turn"]):
        sessions[row["conversation"]].append(row)
    followed = early = 0
    for name, asked in sessions.items():
        for before, row in pairwise(asked):
            followed += 1
            waits_ns = round(think[name][row["turn"] - 1] * 1e9 / SPEEDUP)
            early += row["enqueued_ns"] < before["finished_ns"] + waits_ns
    return followed, early


# --- memory ---


def memory(path: Path, pairs: int) -> Figure:
    """Peak resident memory of twenty passes over that of ten, in turn."""
    growth = []
    for _ in range(pairs):
        once, often = (peak_kib(path, cycles) for cycles in (10, 20))
        growth.append(often / once)
        print(
            f"peak resident memory: {once / 1024:.1f} MiB ten times, {often / 1024:.1f} MiB twenty"
        )
    return Figure(
        number="11", what="a trace twenty times over, peak memory", wanted=f"< {MOST_GROWTH} x ten",
        seen=f"{statistics.median(growth):.3f} ({min(growth):.3f} to {max(growth):.3f})",
        met=statistics.median(growth) < MOST_GROWTH,
    )  # fmt: skip


def peak_kib(path: Path, cycles: int) -> int:
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        command = program(
            "--virtual-time", f"--trace={path}", "--trace-speedup=0", f"--replay-cycles={cycles}",
            "--storage-capacity-gb=64", f"--output={scratch}/R.json",
        )  # fmt: skip
        told = subprocess.run(
            [sys.executable, "-c", _PEAK, *command], check=True, capture_output=True, text=True
        )
    return int(told.stdout)


def figures(place: Path, directory: Path | None, *, quick: bool) -> Iterator[Figure]:
    most = 150 if quick else 0
    yield from agents(place / "agentic", directory, 2.0 if quick else 10.0, most)
    yield memory(place / "azure_2023_code.csv", 1 if quick else PAIRS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer requests, a smaller tier")
    parser.add_argument("--dir", type=Path, help="on the device to be used")
    parser.add_argument("--traces", type=Path, help="where the real traces are")
    options = parser.parse_args()
    finish(figures(traces(options.traces), options.dir, quick=options.quick))


if __name__ == "__main__":
    main()
