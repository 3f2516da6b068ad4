"""Results made by hand: what storage did in the window is said by each test."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kv_cache.config.load import load_config
from kv_cache.core.units import MIB
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.chain import seal
from kv_cache.result.collect import collect
from kv_cache.result.sections import body

WINDOW_S = 10.0


def numbers(outcome: RunOutcome) -> dict[str, Any]:
    """What is derived of an outcome, with the default configuration."""
    return body([collect(load_config(None), outcome, model={}, environment={})])


def histogram(values: Sequence[int], unit: str) -> dict[str, Any]:
    made = Histogram()
    for value in values:
        made.add(value)
    return {**made.to_json(), "unit": unit}


def row(
    operation: str,
    sizes: Sequence[int],
    device_ns: Sequence[int],
    *,
    calls: int = 1,
    engine: str = "direct",
    phase: str = "measure",
    cause: str = "reuse",
) -> dict[str, Any]:
    """One row of `kv_cache.operations`, of objects of these sizes and times."""
    return {
        "phase": phase,
        "tier": "storage",
        "operation": operation,
        "cause": cause,
        "engine": engine,
        "operations": len(sizes),
        "bytes": sum(sizes),
        "system_calls": calls * len(sizes),
        "histogram_bytes": histogram(sizes, "bytes"),
        "histogram_device": histogram(device_ns, "ns"),
        "histogram_total": histogram(device_ns, "ns"),
        "histogram_host": histogram([0] * len(device_ns), "ns"),
    }


def document(
    rows: Sequence[dict[str, Any]],
    *,
    cache_dir: str | list[str] | None = None,
    peak_bytes: int = 64 * MIB,
    **store: Any,
) -> dict[str, Any]:
    """A result with these operations; `store` is what stood behind the storage tier."""
    own = {
        "schema": "kv-cache-result/1",
        "driver": "real-io",
        "window_s": WINDOW_S,
        "operations": list(rows),
        "tiers": {
            "storage": {
                "peak_bytes": peak_bytes,
                "store": {"engine": "direct", "layout": "file", "fsync": "never", **store},
            }
        },
        "buffers": {"buffer_bytes": 16 * MIB},
        "kernel_counters": {"window": {"process_cpu_ns": 2_000_000_000}},
        "config": {"tiers": {"cache_dir": cache_dir}, "io": {"engine": "auto"}},
        "environment": {"device": {"name": None}},
    }
    return {"requests_completed": 0, "kv_cache": own}


def write(path: Path, made: Any) -> Path:
    """With its chain, where it is like a result."""
    own = made.get("kv_cache") if isinstance(made, dict) else None
    path.write_text(json.dumps(seal(made, {}) if isinstance(own, dict) else made))
    return path
