"""`run --virtual-time` of this program beside another version of it: block lookups a second.

    python benchmarks/virtual_time.py OTHER_CHECKOUT [--pairs 5] [--trace FILE] [--engine-blocks]

Mooncake rows as fast as they are served, serving semantics, and three tiers that all overflow:
6,000 rows in the trace's own blocks of 512 tokens (64 MiB), or 600 in the 16 tokens of serving
engines (2 MiB) and tiers of a quarter. In groups A B B A, by the CPU time of a whole command, its
start included, which other work on the machine moves less than the clock's. In the trace's blocks
both do the same operations, or there is no figure. In those of 16 tokens older versions do others,
as the last block of a prompt counted as full there: lookups and operations of both are told.
`--batch-blocks 8` has this version store as many at once as they do, where 32 is its default.
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


def counts(document: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Return the blocks looked up, and the operations by tier, kind and cause."""
    own = document["kv_cache"]
    operations = {
        f"{row['tier']} {row['operation']} {row['cause']}": int(row["operations"])
        for row in own["operations"]
    }
    return int(own["reuse"]["looked_up"]), operations


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--engine-blocks", action="store_true")
    parser.add_argument("--batch-blocks", type=int)
    args = parser.parse_args()
    traces = Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")
    trace = (args.trace or traces / TRACE).resolve()
    with tempfile.TemporaryDirectory() as place:
        if args.engine_blocks:
            rows = trace.read_text().splitlines(keepends=True)[:ENGINE_ROWS]
            trace = Path(place, trace.name)
            trace.write_text("".join(rows))
        tiers = ENGINE_BLOCKS if args.engine_blocks else TRACE_BLOCKS
        command = (*COMMAND, *tiers, f"--trace={trace}")
        batch = args.batch_blocks and ["--set", f"semantics.batch_blocks={args.batch_blocks}"]
        sides = {ROOT: (*command, *(batch or [])), args.other.resolve(): command}
        return compare(sides, args.pairs, unlike=args.engine_blocks)


def compare(sides: Mapping[Path, Sequence[str]], pairs: int, *, unlike: bool) -> int:
    """Run both in pairs, and print what each looked up and did a second of CPU. `unlike`: they may
    do other operations."""
    own, other = sides
    ratios: list[tuple[float, float]] = []
    for number in range(pairs):
        seen, rates = {}, {}
        for checkout in (own, other) if number % 2 else (other, own):
            seconds, document = cpu_s(checkout, sides[checkout])
            seen[checkout] = lookups, operations = counts(document)
            rates[checkout] = lookups / seconds, sum(operations.values()) / seconds
            name = "this" if checkout == own else "other"
            print(f"{name}: {lookups:,} lookups, {sum(operations.values()):,} operations in "
                  f"{seconds:.1f} s of CPU", flush=True)  # fmt: skip
        if seen[own] != seen[other] and not unlike:
            print(f"the versions do not do the same: {seen}")
            return 1
        mine, theirs = rates[own], rates[other]
        ratios.append((mine[0] / theirs[0], mine[1] / theirs[1]))
    for name, of in zip(("lookups/s", "operations/s"), zip(*ratios, strict=True), strict=True):
        print(f"{name} of CPU, this over other: {statistics.median(of):.2f} "
              f"({min(of):.2f} to {max(of):.2f})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
