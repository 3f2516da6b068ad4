"""Ranks that run together on one machine: do their windows open at one instant, and do the
bandwidths of two on one device add up to what the device can do?

    python benchmarks/ranks.py [--quick] [--only skew sum]

Skew: four ranks (`run --clients 4`), several times; the widest counts, with how sure the clocks are
known. Sum: two ranks on a device of 200 MB/s, once reading alone and once writing alone; the bytes
that both have moved in their windows, a second, beside the device's rate. The second part needs
root, nbdkit and nbdfuse.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import NBD_TOOLS, leave_cleanly_on_sigterm, throttled_directory, why_not
from benchmarks.figures import Figure, finish
from kv_cache.core.units import NS_PER_MS

ROOT = Path(__file__).resolve().parents[1]

RANKS = 4
MOST_SKEW_MS = 10.0
RATE = 200_000_000  # bytes/s of the device
TOLERANCE = 0.02
DEVICE_GIB = 3.0

_CONFIG = """
tiers: {gpu_mem_gib: 0, cpu_mem_gib: 0}
run: {model: tiny-1b, generation_mode: none, drain_s: 5}
io: {buffer_mib: 4, load_buffers: 16, store_buffers: 16, threads: 2, fsync: never}
workload: {multi_turn: false, prefix_caching: false}
user_templates:
  chatbot: &user
    {context_range: [128, 128], generation_range: [32, 32], think_time_range: [0, 0]}
  coding: *user
  document: *user
"""
_SIDES = {"read": "--decode-only", "write": "--prefill-only"}


def together(directory: Path, *flags: str) -> dict[str, Any]:
    """The section `kv_cache` of the result of all ranks."""
    with tempfile.TemporaryDirectory() as scratch:
        config, output = Path(scratch, "c.yaml"), Path(scratch, "R.json")
        config.write_text(_CONFIG)
        command = [
            sys.executable, str(ROOT / "kv-cache.py"), f"--config={config}", f"--output={output}",
            f"--cache-dir={directory / 'kv'}", "--seed=1", "--no-progress", *flags,
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"the run failed: {done.stderr[-2000:]}")
        own: dict[str, Any] = json.loads(output.read_bytes())["kv_cache"]
    return own


def skew(directory: Path, times: int) -> Figure:
    crews = [
        together(
            directory, f"--clients={RANKS}", "--num-users=4", "--duration=2",
            "--storage-capacity-gb=0.1",
        )["crew"]
        for _ in range(times)
    ]  # fmt: skip
    found = [
        (crew["start_skew_ns"] / NS_PER_MS, crew["start_skew_error_ns"] / NS_PER_MS)
        for crew in crews
    ]
    widest, error = max(found)
    told = ", ".join(f"{each:.2f}" for each, _ in found)
    return Figure(
        number="14", what=f"start skew of {RANKS} ranks, the widest of {times}",
        wanted=f"< {MOST_SKEW_MS:g} ms", met=widest + error < MOST_SKEW_MS,
        seen=f"{widest:.2f} +- {error:.2f} ms ({told})",
    )  # fmt: skip


def sums(seconds: int) -> Iterator[Figure]:
    for kind, mode in _SIDES.items():
        with throttled_directory(RATE, DEVICE_GIB) as directory:
            own = together(
                directory, "--clients=2", "--num-users=16", "--storage-capacity-gb=0.5", mode,
                "--warmup=3", f"--duration={seconds}",
            )  # fmt: skip
        each = [_rate_of(row, kind) for row in own["ranks"]]
        share = sum(each) / RATE
        told = " + ".join(f"{rate / 1e6:.1f}" for rate in each)
        yield Figure(
            number="14", what=f"two ranks that {kind} on {RATE / 1e6:g} MB/s",
            wanted=f"sum +- {TOLERANCE:.0%}", met=abs(share - 1) <= TOLERANCE,
            seen=f"{told} MB/s = {share:.4f}",
        )  # fmt: skip


def _rate_of(row: dict[str, Any], kind: str) -> float:
    """Bytes that a rank moved on storage in its window, a second."""
    own = row["result"]["kv_cache"]
    moved = sum(
        each["bytes"]
        for each in own["operations"]
        if (each["phase"], each["tier"], each["operation"]) == ("measure", "storage", kind)
    )
    return float(moved / own["window_s"])


def figures(directory: Path, *, quick: bool, only: Sequence[str] = ("skew", "sum")) -> list[Figure]:
    found = [skew(directory, 3 if quick else 10)] if "skew" in only else []
    if "sum" in only:
        reason = why_not(NBD_TOOLS)
        if reason is not None:
            print(f"the sum is not measured: {reason}", file=sys.stderr)
        else:
            found += sums(10 if quick else 30)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer runs, shorter windows")
    parser.add_argument("--only", nargs="+", choices=("skew", "sum"), default=("skew", "sum"))
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="kv-ranks-") as scratch:
        finish(figures(Path(scratch), quick=options.quick, only=options.only))


if __name__ == "__main__":
    main()
