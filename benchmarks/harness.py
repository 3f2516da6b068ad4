"""The harness alone: the whole real driver on stores that keep nothing.

    python benchmarks/harness.py [--operations N …]

Every decision, lock, record and histogram of a real run, with null stores, so what is measured is
what the benchmark itself costs. Each size runs in a process of its own; printed are block
operations a second (loads, stores, moves, deletes), CPU time an operation, and the resident memory
at the end: it must not grow with the number of operations.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kv_cache.bench.run import RealRun
from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, NS_PER_S, gib_to_bytes
from kv_cache.tiers.base import Store
from kv_cache.tiers.null import NullStore

SEED = 1


def ignore(_: object) -> None:
    """No records are kept."""


def null(store: Store) -> Store:
    return NullStore(store.tier)


def measure(max_requests: int, users: int) -> dict[str, Any]:
    """One run of `max_requests` requests of about 17 operations each."""
    with tempfile.TemporaryDirectory() as directory:
        think = {"think_time_range": [0, 0], "context_range": [256, 512]}
        overrides: dict[str, Any] = {
            "run.model": "tiny-1b",
            "run.num_users": users,
            "run.max_requests": max_requests,
            "run.generation_mode": "none",
            "run.seed": SEED,
            "tiers.gpu_mem_gib": 0,
            "tiers.cpu_mem_gib": 0.0625,
            "tiers.storage_capacity_gib": 0.5,
            "tiers.cache_dir": directory,
            "io.buffer_mib": 1,
            "io.load_buffers": 2,
            "io.store_buffers": 2,
            "semantics.preset": "serving",
            "semantics.block_tokens": 64,
            "semantics.write_behind": False,
        }
        for name in ("chatbot", "coding", "document"):
            for key, value in think.items():
                overrides[f"user_templates.{name}.{key}"] = value
        config = load_config(None, overrides)
        specs = tier_specs(config, gib_to_bytes(config.tiers.storage_capacity_gib))
        load = build_load(
            config, config.model_shape(), Seed(SEED), None, None, fillable_bytes(config, specs)
        )
        with RealRun(
            config, load, specs, SEED,
            stop=threading.Event(), on_record=ignore, on_op=ignore, wrap=null,
        ) as run:  # fmt: skip
            outcome = run.execute(ignore)
    assert outcome.death is None, outcome.death
    operations = sum(stats.operations for stats in outcome.recorder.flows.values())
    window = outcome.kernel["window"]
    return {
        "operations": operations,
        "requests": outcome.recorder.all.completed,
        "per_second": operations / outcome.window_s,
        "cpu_us": window["process_cpu_ns"] / operations / 1e3,
        "cpu_share": window["process_cpu_ns"] / NS_PER_S / outcome.window_s,
        "rss_mib": window["rss_bytes"] / MIB,
    }


def in_child(max_requests: int, users: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(max_requests), "--users", str(users)]
    made: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--child", type=int)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.users)))
        return
    per_request = 0.0
    print(
        f"{'operations':>11} {'requests':>9} {'op/s':>9} "
        f"{'CPU us/op':>10} {'cores':>6} {'RSS MiB':>8}"
    )
    for operations in options.operations:
        if not per_request:
            small = in_child(2000, options.users)
            per_request = small["operations"] / small["requests"]
        row = in_child(round(operations / per_request), options.users)
        print(
            f"{row['operations']:>11,} {row['requests']:>9,} {row['per_second']:>9,.0f} "
            f"{row['cpu_us']:>10.1f} {row['cpu_share']:>6.2f} {row['rss_mib']:>8.1f}"
        )


if __name__ == "__main__":
    main()
