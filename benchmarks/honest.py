"""How often is an honest run called anything but VALID?

    python benchmarks/honest.py DIRECTORY [--runs 200] [--log honest.jsonl] [--minutes 60]
    python benchmarks/honest.py /dev/nvme0n1 --guest ...

Runs of 10 to 20 s on an idle machine whose disk is not shared, drawn by their number over modes,
semantics, users, sizes of objects, layouts, fsync and arrivals, none of them beyond what a small
disk carries. What is drawn does not depend on the log: runs that it has are not made again, so a
series may be made in parts. Prints each verdict that is not VALID with its rules and their words,
which somebody has to look at; and at the end how many there were.

With --guest it runs in a virtual machine, on ext4 that it makes on a drive of that. An emulated
machine computes 10 to 20 times slower and its drive does not, so these runs have one user and
objects of 64 MiB (with 8 MiB its timers are late by half of a read, V25), and last for 45 to 60 s.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

PROGRAM = Path(__file__).resolve().parents[1] / "kv-cache.py"
_SMALL_BLOCKS = "--block-tokens=64"  # 8 MiB of an 8B model: hundreds of them in ten seconds


def drawn_for_guest(number: int) -> list[str]:
    """Return the flags of a run that leaves an emulated client idle."""
    dice = Random(number)
    return [
        "--model=llama3.1-8b", "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=2",
        "--generation-mode=none", "--num-users=1", f"--duration={dice.choice([45, 60])}",
        "--warmup=5", f"--seed={number}", f"--layout={dice.choice(['file', 'arena', 'bucket'])}",
        f"--fsync={dice.choice(['never', 'object', 'batch'])}", "--semantics=serving",
        *dice.choice([[], ["--prefill-only"], ["--decode-only"]]), "--block-tokens=512",
    ]  # fmt: skip


@contextmanager
def file_system(drive: Path) -> Iterator[Path]:
    """Make ext4 on a drive whose content nobody needs, and mount it meanwhile."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mkfs.ext4", "-q", "-F", drive], check=True)
        subprocess.run(["mount", drive, place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def drawn(number: int) -> list[str]:
    """Return the flags of the run of this number: one that ends hundreds of operations, as the rule
    of the least sample rightly wants, and asks for no more than the disk serves."""
    dice = Random(number)
    model = dice.choice(["tiny-1b", "tiny-1b", "llama3.1-8b"])
    mode = dice.choice(["", "", "", "--prefill-only", "--decode-only"])
    scheduled = model == "tiny-1b" and not mode and dice.random() < 0.4
    users = 16 if scheduled else dice.choice([2, 4, 8, 16])
    whole_turns = mode == "--decode-only" and dice.random() < 0.5
    flags = [
        f"--model={model}", "--gpu-mem-gb=0", f"--cpu-mem-gb={dice.choice([0, 0.25])}",
        f"--storage-capacity-gb={dice.choice([4, 6, 8])}", "--generation-mode=none",
        f"--num-users={users}", f"--duration={dice.choice([10, 15, 20])}",
        f"--warmup={dice.choice([3, 5])}", f"--seed={number}",
        f"--layout={dice.choice(['file', 'file', 'arena', 'bucket'])}",
        f"--fsync={dice.choice(['never', 'never', 'object', 'batch'])}",
        f"--semantics={'mlperf' if whole_turns else 'serving'}",
        *([mode] if mode else []), *([_SMALL_BLOCKS] if model != "tiny-1b" else []),
    ]  # fmt: skip
    if scheduled:
        flags += ["--arrival=fixed", "--request-rate=2"]
    return flags


def verdict(directory: Path, number: int, flags: list[str]) -> dict[str, Any]:
    """Return what one run was called, and why."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "R.json")
        ended = subprocess.run(
            [sys.executable, PROGRAM, "run", *flags, f"--cache-dir={directory}",
             f"--output={result}", "--no-progress"],
            cwd=scratch, capture_output=True, text=True, check=False,
        )  # fmt: skip
        row: dict[str, Any] = {"run": number, "flags": flags, "exit": ended.returncode}
        if not result.exists():
            return {**row, "verdict": "none", "rules": [ended.stderr.strip()[-300:]]}
        passport = json.loads(result.read_text())["kv_cache"]["passport"]
    bad = [each for each in passport["rules"] if each["status"] in ("invalid", "suspect")]
    rules = [f"{each['rule']} {each['message']}" for each in bad]
    return {**row, "verdict": passport["verdict"], "rules": rules}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--log", type=Path, default=Path("honest.jsonl"))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--guest", action="store_true")
    given = parser.parse_args()
    if given.guest:
        with file_system(given.directory) as directory:
            return series(given, directory, drawn_for_guest)
    return series(given, given.directory, drawn)


def series(given: argparse.Namespace, directory: Path, flags: Callable[[int], list[str]]) -> int:
    """Make the runs that the log lacks, and print what they were called."""
    lines = given.log.read_text().splitlines() if given.log.exists() else []
    rows = {row["run"]: row for row in map(json.loads, lines)}
    end = time.monotonic() + 60 * given.minutes
    for number in range(given.runs):
        if number in rows or time.monotonic() > end:
            continue
        rows[number] = row = verdict(directory, number, flags(number))
        with given.log.open("a") as log:
            log.write(json.dumps(row) + "\n")
        if row["verdict"] != "valid":
            print(number, row["verdict"], " ".join(row["flags"]), *row["rules"], sep="\n   ")
            sys.stdout.flush()
    print(len(rows), "runs:", dict(Counter(row["verdict"] for row in rows.values())))
    print("rules:", dict(Counter(r.split()[0] for row in rows.values() for r in row["rules"])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
