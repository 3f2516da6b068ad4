"""`run --virtual-time` of this program beside another version of it: block lookups a second.

    python benchmarks/virtual_time.py OTHER_CHECKOUT [--pairs 5] [--trace FILE]

Mooncake rows as fast as they are served, serving semantics, blocks of 64 MiB, and three tiers that
all overflow. In groups A B B A, by the CPU time of a whole command, its start included, which other
work on the machine moves less than the clock's. Both count the same operations, or there is no
figure.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACE = "mooncake_conversation_6000.jsonl"
COMMAND = (
    "run", "--virtual-time", "--semantics=serving", "--model=llama3.1-8b", "--trace-speedup=0",
    "--replay-cycles=1", "--num-users=16", "--gpu-mem-gb=64", "--cpu-mem-gb=256",
    "--storage-capacity-gb=1024", "--seed=1", "--no-progress",
)  # fmt: skip


def cpu_s(checkout: Path, trace: Path) -> tuple[float, Mapping[str, Any]]:
    """Run one version; return its CPU time and its document."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        output = Path(place, "o.json")
        subprocess.run(
            [sys.executable, "kv-cache.py", *COMMAND, f"--trace={trace}", f"--output={output}"],
            cwd=checkout, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        document = json.loads(output.read_bytes())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, document


def counts(document: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Return the blocks looked up, and the operations by tier, kind and cause."""
    own = document["kv_cache"]
    rows = own["operations"]
    operations = {
        f"{row['tier']} {row['operation']} {row['cause']}": int(row["operations"]) for row in rows
    }
    return int(own["reuse"]["looked_up"]), operations


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trace", type=Path)
    args = parser.parse_args()
    traces = Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")
    trace = (args.trace or traces / TRACE).resolve()
    ratios: list[float] = []
    for number in range(args.pairs):
        order = [ROOT, args.other.resolve()] if number % 2 else [args.other.resolve(), ROOT]
        taken: dict[Path, float] = {}
        seen = []
        for checkout in order:
            taken[checkout], document = cpu_s(checkout, trace)
            seen.append(counts(document))
        if seen[0] != seen[1]:
            print(f"the versions do not do the same: {seen}")
            return 1
        lookups, operations = seen[0]
        other, own = (lookups / taken[each] for each in (args.other.resolve(), ROOT))
        ratios.append(own / other)
        print(
            f"{lookups:,} lookups, {sum(operations.values()):,} operations: {own:,.0f} lookups/s "
            f"of CPU, {other:,.0f} before: {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
