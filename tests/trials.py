"""Results, and documents of trials, made by hand: what each says is said by its test."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson

from kv_cache.metrics.histogram import Histogram
from kv_cache.result.chain import seal
from kv_cache.result.derive import SCHEMA
from kv_cache.result.trials import aggregate, trial_seed

GB = 1e9
LATENCIES = {"p50": 4.0, "p95": 8.0, "p99": 9.0}
NOTHING = dict.fromkeys(LATENCIES, 0.0)


def histogram(count: int) -> dict[str, Any]:
    """`count` times of 4 ms."""
    made: dict[str, Any] = orjson.loads(_histogram(count))
    return made


@cache
def _histogram(count: int) -> bytes:
    made = Histogram()
    for _ in range(count):
        made.add(4_000_000)
    return orjson.dumps(made.to_json("ns"))


def requests(count: int = 100, scale: float = 1.0) -> dict[str, Any]:
    latency = {name: ms * scale if count else 0.0 for name, ms in LATENCIES.items()}
    return {
        "completed": count,
        "output_tokens": 50 * count,
        "response_ms": latency,
        "ttft_ms": latency,
        "histogram_response": histogram(count),
        "histogram_ttft": histogram(count),
    }


MASTER = 7
"""Seed that those of trials follow from."""


def result(
    trial: int,
    read: float = GB,
    *,
    status: str = "finished",
    verdict: str = "valid",
    **changed: Any,
) -> dict[str, Any]:
    """The result of a trial of 10 s that reads `read` bytes/s from storage and writes nothing."""
    reads = {"operations": 1000, "bytes_per_second": read, "device_ms": LATENCIES}
    writes = {"operations": 0, "bytes_per_second": 0.0, "device_ms": NOTHING}
    own = {
        "schema": SCHEMA,
        "program_version": "0.4.0",
        "driver": "real-io",
        "semantics_preset": "serving",
        "contains_performance": True,
        "started_utc": "2026-01-01T00:00:00+00:00",
        "status": status,
        "passport": {"verdict": verdict, "reasons": ["V9 clock: it jumped"] * (verdict != "valid")},
        "seed": trial_seed(MASTER, trial),
        "schedule": {"sha256": f"{trial:064x}", "requests_digested": 100},
        "window_s": 10.0,
        "measured": {
            "all": requests(),
            "interactive": requests(),
            "responsive": requests(0),
            "batch": requests(0),
        },
        "reuse": {"looked_up": 10, "reuse_hit_ratio": 0.5},
        "tiers": {"storage": {"read": reads, "write": writes}},
        "workload": {"source": "users"},
        "model": {"name": "Tiny 1B", "num_layers": 12, "source": "built in"},
        "semantics": {"promote": True},
        "config": {
            "run": {"mode": "standard", "seed": trial_seed(MASTER, trial)},
            "tiers": {"cache_dir": ["/a"]},
        },
        "environment": {"hostname": "here"},
        **changed,
    }
    return seal({"kv_cache": own}, {})


def of(
    documents: Sequence[dict[str, Any]], planned: int | None = None, **more: Any
) -> dict[str, Any]:
    files = {f"R.trial{k}.json": f"{k:064x}" for k in range(1, len(documents) + 1)}
    more = {"master_seed": MASTER, "planned": planned or len(documents), **more}
    return aggregate(documents, files, **more)


def windows(
    rates: Sequence[float],
    *,
    seconds: float = 1.0,
    phase: str = "measure",
    latency: dict[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Rows of a series that follow each other, with these bytes/s read from storage. Latencies
    move against them unless they are given."""
    rows = []
    for number, rate in enumerate(rates):
        moved = latency or {name: ms * GB / rate for name, ms in LATENCIES.items()}
        shown = {f"{name}_ms": ms for name, ms in moved.items()}
        row = {
            "start_s": 5 + number * seconds,
            "end_s": 5 + (number + 1) * seconds,
            "phase": phase,
            "completed": round(10 * seconds * rate / GB * 100),
            "output_tokens": round(500 * seconds * rate / GB * 100),
            "tiers": {
                "storage": {"read": {"operations": 100, "bytes": int(rate * seconds), **shown}}
            },
            "classes": {"interactive": {"completed": 10, "response_ms": shown, "ttft_ms": shown}},
        }
        rows.append(row)
    return rows


def series(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"tick_s": 1.0, "together": 1, "slos": [], "windows": list(rows)}
