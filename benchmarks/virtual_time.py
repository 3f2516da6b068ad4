"""`run --virtual-time` of this program beside another version of it: block lookups a second.

    python benchmarks/virtual_time.py OTHER_CHECKOUT [--pairs 5] [--trace FILE] [--engine-blocks]

Mooncake rows as fast as they are served, serving semantics, and three tiers that all overflow:
6,000 rows in the trace's own blocks of 512 tokens (64 MiB), or 600 in the 16 tokens of serving
engines (2 MiB) and tiers of a quarter. In groups A B B A, by the CPU time of a whole command, its
start included, which other work on the machine moves less than the clock's. Versions that store as
many blocks at once do the same operations; the numbers are told where they do not.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACE = "mooncake_conversation_6000.jsonl"
COMMAND = (
    "run", "--virtual-time", "--semantics=serving", "--model=llama3.1-8b", "--trace-speedup=0",
    "--replay-cycles=1", "--num-users=16", "--seed=1", "--no-progress",
)  # fmt: skip
TRACE_BLOCKS = ("--gpu-mem-gb=64", "--cpu-mem-gb=256", "--storage-capacity-gb=1024")
ENGINE_BLOCKS = (
    "--block-tokens=16", "--gpu-mem-gb=16", "--cpu-mem-gb=64", "--storage-capacity-gb=256",
)  # fmt: skip
ENGINE_ROWS = 600


def cpu_s(checkout: Path, command: Sequence[str]) -> tuple[float, Mapping[str, Any]]:
    """Run one version; return its CPU time and its document."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        output = Path(place, "o.json")
        subprocess.run(
            [sys.executable, "kv-cache.py", *command, f"--output={output}"],
            cwd=checkout, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        document = json.loads(output.read_bytes())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, document


def counts(document: Mapping[str, Any]) -> tuple[int, int]:
    """Return the blocks looked up, and the operations."""
    own = document["kv_cache"]
    operations = sum(int(row["operations"]) for row in own["operations"])
    return int(own["reuse"]["looked_up"]), operations


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--engine-blocks", action="store_true")
    args = parser.parse_args()
    traces = Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")
    rows = (args.trace or traces / TRACE).read_text().splitlines(keepends=True)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as taken:
        taken.writelines(rows[: ENGINE_ROWS if args.engine_blocks else None])
        taken.flush()
        tiers = ENGINE_BLOCKS if args.engine_blocks else TRACE_BLOCKS
        compare(args.other.resolve(), args.pairs, (*COMMAND, *tiers, f"--trace={taken.name}"))
    return 0


def compare(other: Path, pairs: int, command: Sequence[str]) -> None:
    """Run both in pairs, and print what each looked up and did a second of CPU."""
    ratios: list[tuple[float, float]] = []
    for number in range(pairs):
        rates = {}
        for checkout in (ROOT, other) if number % 2 else (other, ROOT):
            seconds, document = cpu_s(checkout, command)
            rates[checkout] = [each / seconds for each in counts(document)]
            name = "this" if checkout == ROOT else "other"
            print(f"{name}: {counts(document)} lookups, operations in {seconds:.1f} s", flush=True)
        (lookups, operations), before = rates[ROOT], rates[other]
        ratios.append((lookups / before[0], operations / before[1]))
    for name, of in zip(("lookups/s", "operations/s"), zip(*ratios, strict=True), strict=True):
        print(f"{name} of CPU, this over other: {statistics.median(of):.2f} "
              f"({min(of):.2f} to {max(of):.2f})")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
