"""How often `sim` is wrong about which variant of a cluster is better on a trace, where requests
queue up.

    python benchmarks/queues.py [--seeds 100] [--processes 2]

Each seed draws a trace of 800 single requests whose rate is a share of what four instances can do,
and serves it by three variants that are equal but for the draws of their router. So any difference
that is claimed is false. At half of the rate nobody waits for long, near all of it a queue comes
and goes, and beyond it grows as long as requests arrive. Every number by which variants may be
called better is a family of its own; asked for are at most 8 % of families with a false difference
at each load and by each number.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_trace import open_work
from kv_cache.config.schema import from_mapping, to_mapping
from kv_cache.core.seed import Seed
from kv_cache.result.simulation.document import run_row, variant_row
from kv_cache.result.simulation.judge import verdict
from kv_cache.sim.cluster.facts import facts
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.simulate import simulate
from kv_cache.sim.cluster.sources import build_source
from kv_cache.sim.cluster.stretches import stretch_values

REQUESTS, EQUAL = 800, 3
AT_MOST_PER_S = 8.0  # what the instances can do
LOADS = (0.5, 0.8, 0.9, 0.95, 1.05, 1.5, 3.0)
MOST_FALSE = 0.08
CLUSTER = {
    "model": {"kv_bytes_per_token": 1000},
    "instances": {
        "gpu": {"count": 4, "hbm_gib": 1, "compute": "rate", "prefill_tokens_per_s": 2000.0,
                "decode_tokens_per_s": 150.0},
    },
    "router": {"kind": "power-of-two"},
    "scheduler": {"max_num_seqs": 4},
    "slo": {"ttft_ms": 1500.0},
}  # fmt: skip


def write_trace(path: Path, load: float, seed: Seed) -> None:
    rng = np.random.default_rng(seed.integer())
    at_ms = np.cumsum(rng.exponential(1000 / (load * AT_MOST_PER_S), REQUESTS)).round(3)
    prompts, answers = rng.integers(50, 401, REQUESTS), rng.integers(20, 121, REQUESTS)
    rows = zip(at_ms.tolist(), prompts.tolist(), answers.tolist(), strict=True)
    text = "".join(f"{n} {at} {one} {other} 0\n" for n, (at, one, other) in enumerate(rows))
    path.write_text(f"# id arrival_ms prompt_tokens gen_tokens streaming\n{text}")


def judged(load: float, seed: int) -> dict[str, Any]:
    """Return the verdict on equal variants by each measure."""
    drawn, variants = Seed(seed).child("queues", f"{load}"), []
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.txt")
        write_trace(trace, load, drawn)
        work = {"source": "trace", "trace": str(trace)}
        for number in range(1, EQUAL + 1):
            values = CLUSTER | {"workload": work, "seed": EQUAL * seed + number}
            scenario = from_mapping(Scenario, values)
            chain = PrefixChain()
            source = build_source(scenario, chain, open_work(scenario))
            outcome = simulate(scenario, source, chain)
            run = run_row(
                number, scenario.seed, facts(outcome), log=None,
                stretches=stretch_values(outcome), columns=None,
            )  # fmt: skip
            variants.append(
                variant_row(number, f"{number}", {}, to_mapping(scenario), [run], same=[])
            )
    measures: dict[str, Any] = verdict(variants, ["router"])["measures"]
    return measures


def is_claimed(finding: Any) -> bool:
    """Return whether any difference is."""
    return any(lead is not None and lead["shown"] for lead in (finding["leads"] or {}).values())


def judge(args: argparse.Namespace) -> Iterator[Figure]:
    for load in LOADS:
        with ProcessPoolExecutor(args.processes) as pool:
            rows = list(pool.map(judged, [load] * args.seeds, range(args.seeds), chunksize=5))
        false = Counter(name for row in rows for name, each in row.items() if is_claimed(each))
        told = Counter(name for row in rows for name, each in row.items() if each["leads"])
        each = ", ".join(f"{name} {told[name]}, {false[name]}" for name in sorted(told))
        print(f"{load:g} of the rate, told and false of {len(rows)} traces: {each}", flush=True)
        (worst, most), *_ = false.most_common(1) or [("none", 0)]
        yield Figure(
            number="", what=f"families with a false difference at {load:g} of the rate, most",
            wanted=f"<= {MOST_FALSE:.0%}", seen=f"{most / len(rows):.1%} ({worst})",
            met=most / len(rows) <= MOST_FALSE,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    finish(judge(parser.parse_args()))


if __name__ == "__main__":
    main()
