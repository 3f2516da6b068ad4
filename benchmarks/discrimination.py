"""Whole runs on devices whose speed is known (figures 4 and 5).

    python benchmarks/discrimination.py [--quick]

Figure 4: the same run on a device of 100 MB/s and on one of 467 MB/s, in both semantics. The
headline storage read bandwidth must tell them apart as they are: by 4.67.
Figure 5: the same run five times with one seed on a device of 200 MB/s: the spread of read
bandwidth, tokens/s and the response time's p95.

All through the command line, as a user would. Two kinds of load, both without think time, GPU tier
or CPU tier: *decode only*, a window of fixed length over objects that were stored before, where
reads always wait for the device; and *whole requests*, a fixed number of them, so that both devices
do the same work (in a window of fixed length the faster one gets further into the conversations,
where each request reads more). Whole requests include what no device is to blame for: the first
tenths of a second have nothing to read yet, 2 % of a window of 6 s and 0.5 % of one of 30 s.

The two devices have the same credit after idling in bytes. With the same credit in seconds the
faster one would give away more of each write, and the headline would rightly be 5.1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import (
    BURST_S,
    THROTTLED_RULES,
    leave_cleanly_on_sigterm,
    stack_rules,
    throttled_directory,
)
from benchmarks.figures import Figure, table, variation
from benchmarks.quiet import FOREIGN_CORES, with_foreign_cores
from kv_cache.core.errors import UsageError
from kv_cache.core.units import GIB

ROOT = Path(__file__).resolve().parents[1]

SLOW, FAST = 100_000_000, 467_000_000  # bytes/s
KNOWN = FAST / SLOW
REPEATED_AT = 200_000_000
REPEATS = 5
TRIES = 3
TOLERANCE = 0.03
CREDIT_BYTES = BURST_S * FAST
DEVICE_GIB = 2.8
CAPACITY_GIB = 2.5

_CONFIG = """
io: {{buffer_mib: 4, load_buffers: 16, store_buffers: 16, threads: 8}}
user_templates:
  chatbot: &user
    {{context_range: [{0}, {1}], generation_range: [32, 96], think_time_range: [0, 0]}}
  coding: *user
  document: *user
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run does, as flags; `context` are the tokens that a user brings, 24 KiB each."""

    name: str
    semantics: str
    flags: Sequence[str]
    context: tuple[int, int] = (512, 2048)


WHOLE = (
    Load(
        name="100 requests", semantics="mlperf", context=(128, 512),
        flags=("--num-users=4", "--max-requests=100"),
    ),
    Load(
        name="220 requests", semantics="serving", context=(128, 512),
        flags=("--num-users=4", "--max-requests=220"),
    ),
)  # fmt: skip
_DECODE = ("--decode-only", "--num-users=2", "--warmup=2", "--duration=15")
DECODE = tuple(
    Load(name="decode only", semantics=semantics, flags=_DECODE)
    for semantics in ("mlperf", "serving")
)
REPEATED = (
    Load(
        name="100 requests", semantics="mlperf", context=(128, 512),
        flags=("--num-users=4", "--max-requests=100"),
    ),
    Load(
        name="250 requests", semantics="serving", context=(128, 512),
        flags=("--num-users=4", "--max-requests=250"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a result says first."""

    read_bytes_per_s: float
    tokens_per_s: float
    p95_ms: float
    window_s: float


def run(load: Load, directory: Path) -> Headline:
    """A run that nobody disturbed, within a few tries."""
    for _ in range(TRIES):
        made, cores = with_foreign_cores(lambda: one_run(load, directory), set())
        if cores <= FOREIGN_CORES:
            break
    else:
        print(f"the next run is noisy: others used {cores:.2f} cores", flush=True)
    return made


def one_run(load: Load, directory: Path, seed: int = 7) -> Headline:
    """One run of the program, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as scratch:
        config = Path(scratch) / "load.yaml"
        config.write_text(_CONFIG.format(*load.context))
        output = Path(scratch) / "result.json"
        command = [
            sys.executable, str(ROOT / "kv-cache.py"), f"--config={config}", f"--output={output}",
            "--model=tiny-1b", "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--generation-mode=none",
            f"--storage-capacity-gb={CAPACITY_GIB}", f"--cache-dir={directory / 'cache'}",
            f"--semantics={load.semantics}", f"--seed={seed}", "--no-progress", *load.flags,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
        if not output.exists():
            raise AssertionError(f"the run failed: {done.stderr.strip()}")
        return headline(json.loads(output.read_bytes()))


def headline(result: dict[str, Any]) -> Headline:
    own, summary = result["kv_cache"], result["summary"]
    assert own["status"] == "finished", own["notes"]
    assert not own["failed_operations"], own["failed_operations"]
    assert stack_rules(own) == THROTTLED_RULES, own["passport"]["reasons"]
    return Headline(
        read_bytes_per_s=summary["cache_stats"]["tier_storage_read_bandwidth_gbps"] * GIB,
        tokens_per_s=summary["avg_throughput_tokens_per_sec"],
        p95_ms=summary["end_to_end_latency_ms"]["p95"],
        window_s=own["window_s"],
    )


def discriminates(loads: Sequence[Load]) -> list[Figure]:
    """Figure 4: each load on both devices."""
    print(f"{'load':<28}{'slow MB/s':>12}{'fast MB/s':>12}{'ratio':>8}{'windows s':>16}")
    rows = []
    with (
        throttled_directory(SLOW, DEVICE_GIB, burst_s=CREDIT_BYTES / SLOW) as slow,
        throttled_directory(FAST, DEVICE_GIB, burst_s=CREDIT_BYTES / FAST) as fast,
    ):
        for load in loads:
            on_slow, on_fast = run(load, slow), run(load, fast)
            ratio = on_fast.read_bytes_per_s / on_slow.read_bytes_per_s
            rows.append(_ratio_row(load, ratio))
            print(
                f"{load.semantics + ', ' + load.name:<28}{on_slow.read_bytes_per_s / 1e6:>12.1f}"
                f"{on_fast.read_bytes_per_s / 1e6:>12.1f}{ratio:>8.3f}"
                f"{on_slow.window_s:>9.1f}{on_fast.window_s:>7.1f}",
                flush=True,
            )
    return rows


def _ratio_row(load: Load, ratio: float) -> Figure:
    return Figure(
        number="4", what=f"467 : 100 MB/s, {load.semantics}, {load.name}",
        wanted=f"{KNOWN:.2f} within 3 %", seen=f"{ratio:.3f} ({100 * (ratio / KNOWN - 1):+.1f} %)",
        met=abs(ratio / KNOWN - 1) <= TOLERANCE,
    )  # fmt: skip


def repeats(loads: Sequence[Load]) -> list[Figure]:
    """Figure 5: each load five times."""
    rows = []
    print(f"{'load':<28}{'read MB/s':>12}{'tokens/s':>12}{'p95 ms':>10}{'window s':>10}")
    with throttled_directory(REPEATED_AT, DEVICE_GIB) as directory:
        for load in loads:
            made = []
            for _ in range(REPEATS):
                made.append(run(load, directory))
                print(_row(load, made[-1]), flush=True)
            spread = {
                "read bandwidth": variation([h.read_bytes_per_s for h in made]),
                "tokens/s": variation([h.tokens_per_s for h in made]),
                "p95": variation([h.p95_ms for h in made]),
            }
            rows.append(
                Figure(
                    number="5", what=f"{REPEATS} same runs, {load.semantics}",
                    wanted="CV < 3 %",
                    seen=", ".join(f"{name} {100 * cv:.2f} %" for name, cv in spread.items()),
                    met=max(spread.values()) < TOLERANCE,
                )
            )  # fmt: skip
    return rows


def _row(load: Load, made: Headline) -> str:
    return (
        f"{load.semantics + ', ' + load.name:<28}{made.read_bytes_per_s / 1e6:>12.1f}"
        f"{made.tokens_per_s:>12.1f}{made.p95_ms:>10.1f}{made.window_s:>10.1f}"
    )


def discriminate(*, quick: bool) -> list[Figure]:
    return discriminates(DECODE if quick else (*DECODE, *WHOLE))


def repeat(*, quick: bool) -> list[Figure]:
    return repeats(REPEATED[:1] if quick else REPEATED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="decode only, one load repeated")
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    print(table([*discriminate(quick=options.quick), *repeat(quick=options.quick)]))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(str(error))
