"""Two devices whose rates are known: does the capacity search tell them apart as they are, and
does it give the same answer again?

    python benchmarks/capacity.py [--quick]

The same search on a device of 200 MB/s and on one of 400 MB/s, in turns, each twice or more with
seeds of its own. What is looked for is requests/s of Poisson arrivals whose P95 stays below a
limit of some 30 times the service time, so that the answer is near the device's rate: of two
queues whose limit is close to their service time, the faster one carries more than its share.

A request stores 42 tokens of tiny-1b (1 MiB) and reads them twice.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import BURST_S, leave_cleanly_on_sigterm, throttled_directory
from benchmarks.figures import Figure, finish
from kv_cache.app.capacity import CapacityOptions, capacity, configured
from kv_cache.config.load import Invocation
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

SLOW, FAST = 200_000_000, 400_000_000  # bytes/s
KNOWN = FAST / SLOW
TOLERANCE = 0.10
CREDIT_BYTES = BURST_S * FAST
DEVICE_GIB = 3.0

_CONFIG = """
tiers: {gpu_mem_gib: 0, cpu_mem_gib: 0, storage_capacity_gib: 2}
run: {model: tiny-1b, generation_mode: none, num_users: 100, drain_s: 2}
io: {buffer_mib: 4, load_buffers: 32, store_buffers: 16, threads: 1, fsync: never}
workload: {multi_turn: false, prefix_caching: false}
qos_distribution: {interactive_probability: 0, responsive_threshold: 0}
user_templates:
  chatbot: &user
    {context_range: [42, 42], generation_range: [32, 32], think_time_range: [0, 0]}
  coding: *user
  document: *user
"""
_SLO = "batch:p95<300ms"


def search(directory: Path, seed: int, probe_s: int) -> dict[str, Any]:
    """Return the document of one search."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "c.yaml")
        path.write_text(_CONFIG)
        overrides = {
            "tiers.cache_dir": (str(directory / "kv"),), "run.seed": seed,
            "output.output": f"{scratch}/capacity.json",
        }  # fmt: skip
        options = CapacityOptions(
            slo=_SLO, by="rate", first=40, probe=probe_s, probe_warmup=3, concurrency=64
        )
        config = configured(options, Invocation(config_path=path, overrides=overrides))
        result = capacity(options, config)
    if result.end:
        raise AssertionError(f"the search failed: {result.section['passport']['reasons']}")
    print(terminal(made_view(result.document)), flush=True)
    return dict(result.section)


def figures(*, quick: bool) -> Sequence[Figure]:
    times, probe_s = (2, 15) if quick else (3, 40)
    answers: dict[int, list[float]] = {SLOW: [], FAST: []}
    for turn in range(times):
        for rate in (SLOW, FAST) if turn % 2 == 0 else (FAST, SLOW):
            with throttled_directory(rate, DEVICE_GIB, burst_s=CREDIT_BYTES / rate) as directory:
                own = search(directory, seed=turn + 1, probe_s=probe_s)
            answers[rate].append(own["answer"]["load"])
    return rows(answers)


def rows(answers: dict[int, list[float]]) -> Sequence[Figure]:
    slow, fast = answers[SLOW], answers[FAST]
    ratios = [b / a for a, b in zip(slow, fast, strict=True)]
    ratio = math.exp(statistics.fmean(math.log(r) for r in ratios))
    spread = {rate: max(found) / min(found) - 1 for rate, found in answers.items()}
    told = {rate: ", ".join(f"{x:.1f}" for x in found) for rate, found in answers.items()}
    return [
        Figure(
            number="8",
            what="capacity, 400 beside 200 MB/s",
            wanted=f"{KNOWN:.1f} +- {TOLERANCE:.0%}",
            seen=f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            met=abs(ratio / KNOWN - 1) <= TOLERANCE,
        ),
        *(
            Figure(
                number="8",
                what=f"capacity at {rate // 10**6} MB/s again",
                wanted=f"within {TOLERANCE:.0%}",
                seen=f"{told[rate]} requests/s: {spread[rate]:.1%}",
                met=spread[rate] <= TOLERANCE,
            )
            for rate in (SLOW, FAST)
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two searches a device, short probes")
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    finish(figures(quick=options.quick))


if __name__ == "__main__":
    main()
