"""Two devices whose rates are known: does the capacity search tell them apart as they are, and
does it give the same answer again?

    python benchmarks/capacity.py [--quick] [--known MB/s [--seed N]]

The same search on a device of 200 MB/s and on one of 400 MB/s, in turns, each twice or more with
seeds of its own. What is looked for is requests/s of Poisson arrivals whose P95 stays below a
limit of some 30 times the service time, so that the answer is near the device's rate: of two
queues whose limit is close to their service time, the faster one carries more than its share.

A request stores 42 tokens of tiny-1b (1 MiB) and reads them twice.

With `--known` one device of that rate and one search of default length, whose answer theory has:
a request is one write, of a size drawn between a fourth of the largest and the largest, which
`--seed` draws between 1 and 4 MiB; one is served at a time. A server whose rate and sizes are
known, behind Poisson arrivals: its limit is that of Lindley's recursion.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

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
_QUICK = CapacityOptions(
    slo="batch:p95<300ms", by="rate", first=40, probe=40, probe_warmup=3, concurrency=64
)
_WRITES_ALONE = """
tiers: {gpu_mem_gib: 0, cpu_mem_gib: 0, storage_capacity_gib: 2}
run: {model: tiny-1b, mode: prefill-only, generation_mode: none, num_users: 100, drain_s: 2,
      kv_bytes_per_token: 4096}
io: {buffer_mib: 4, load_buffers: 4, store_buffers: 4, threads: 1, fsync: never}
workload: {multi_turn: false, prefix_caching: false}
qos_distribution: {interactive_probability: 0, responsive_threshold: 0}
user_templates:
  chatbot: &user
    {context_range: [PAGES, PAGES], generation_range: [32, 32], think_time_range: [0, 0]}
  coding: *user
  document: *user
"""
_PAGE = 4096
_SMALLEST, _LARGEST = 256, 1024  # pages of the largest object
_FAR = 20  # the SLO in multiples of the mean service
_NEAR_TRUTH = 0.05
_CREDIT = 2 << 20  # bytes that the device moves at once after idling: no request of it is larger


def search(directory: Path, text: str, options: CapacityOptions, seed: int) -> dict[str, Any]:
    """Return the document of one search, its config given as YAML."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "c.yaml")
        path.write_text(text)
        overrides = {
            "tiers.cache_dir": (str(directory / "kv"),), "run.seed": seed,
            "output.output": f"{scratch}/capacity.json",
        }  # fmt: skip
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
                own = search(directory, _CONFIG, replace(_QUICK, probe=probe_s), seed=turn + 1)
            answers[rate].append(own["answer"]["load"])
    return rows(answers)


def known(rate: int, seed: int) -> Sequence[Figure]:
    """Search on a device of `rate` bytes/s for what theory knows."""
    pages = round(math.exp(random.Random(seed).uniform(math.log(_SMALLEST), math.log(_LARGEST))))
    limit_ms = round(1000 * _FAR * pages * _PAGE * 5 / 8 / rate)
    truth = limit_of(rate, pages, limit_ms / 1000)
    print(f"objects of {pages // 4} to {pages} pages, p95 < {limit_ms} ms: {truth:.2f} requests/s")
    options = CapacityOptions(
        slo=f"batch:p95<{limit_ms}ms", by="rate", first=round(truth * 0.4, 1), concurrency=1
    )
    with throttled_directory(rate, DEVICE_GIB, burst_s=_CREDIT / rate) as directory:
        text = _WRITES_ALONE.replace("PAGES", str(pages))
        answer = search(directory, text, options, seed)["answer"]
    off = answer["load"] / truth - 1
    return [
        Figure(
            number="8",
            what=f"capacity at {rate // 10**6} MB/s, {pages} pages, p95 < {limit_ms} ms",
            wanted=f"{truth:.2f} +- {_NEAR_TRUTH:.0%}",
            seen=f"{answer['load']:.2f} ({answer['low']:.2f} to {answer['high']:.2f}): {off:+.1%}",
            met=abs(off) <= _NEAR_TRUTH,
        )
    ]


def limit_of(rate: int, pages: int, limit_s: float) -> float:
    """Return at which load 5 % of the responses are longer, by Lindley's recursion; the device has
    its credit after idling."""
    dice = np.random.default_rng(0)
    count = 4_000_000
    gaps = dice.standard_exponential(count)
    served = np.cumsum(dice.integers(pages // 4, pages, count, endpoint=True) * _PAGE / rate)
    low, high = 0.0, rate / (_PAGE * pages * 5 / 8)
    for _ in range(30):
        load = (low + high) / 2
        came = np.cumsum(gaps / load)
        left = np.maximum.accumulate(came - _CREDIT / rate - np.append(0, served[:-1])) + served
        over = np.mean(left - came > limit_s)
        low, high = (load, high) if over < 0.05 else (low, load)
    return low


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
    parser.add_argument("--known", type=int, metavar="MB/s", help="one search, held against theory")
    parser.add_argument("--seed", type=int, default=1, help="of --known: draws sizes and arrivals")
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    if options.known:
        finish(known(options.known * 10**6, options.seed))
    else:
        finish(figures(quick=options.quick))


if __name__ == "__main__":
    main()
