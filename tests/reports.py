"""Documents for reports, made by hand: a run with everything in it, and a capacity search."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import sin
from typing import Any

import orjson

from kv_cache.app.sweep_document import cell_row, run_row, sweep_document
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.units import GIB, MIB
from kv_cache.metrics.histogram import Histogram
from kv_cache.result.chain import seal
from tests import trials

_CLASSES = ("interactive", "responsive", "batch")
RULES = [
    {"rule": "V1", "name": "page cache", "status": "pass", "message": "the kernel counted 100 %"},
    {
        "rule": "V14",
        "name": "steady state",
        "status": "not-judged",
        "message": "nothing was proven",
    },
]


def histogram(count: int, typical: int, unit: str = "ns") -> dict[str, Any]:
    """Values around a typical one, with a tail that is ten times that."""
    made: dict[str, Any] = orjson.loads(_histogram(count, typical, unit))
    return made


@cache
def _histogram(count: int, typical: int, unit: str) -> bytes:
    made = Histogram()
    for number in range(count):
        made.add(int(typical * (0.5 + (number % 997) / 997 + 10 * (number % 1999 == 0))))
    return orjson.dumps(made.to_json(unit))


def _latency(ms: float) -> dict[str, float]:
    return {"p50_ms": ms, "p95_ms": 2.123 * ms, "p99_ms": 3.217 * ms, "max_ms": 4.331 * ms}


def window(second: int, phase: str = "measure") -> dict[str, Any]:
    wave = 1.3 + sin(second / 37.7) * sin(second / 5.3)
    moved = {
        op: {
            "operations": 100,
            "failed": 0,
            "bytes": int(share * wave * GIB),
            "system_calls": 400,
            **_latency(share * wave * 7.77),
        }
        for op, share in (("read", 1.0), ("write", 0.3), ("delete", 0.01))
    }
    return {
        "start_s": second * 1.0007,
        "end_s": (second + 1) * 1.0007,
        "phase": phase,
        "users": 20 + second // 300,
        "workers": 32,
        "in_flight": int(10 * wave),
        "queued": int(3 * wave),
        "oldest_queued_s": 0.0,
        "behind": 0,
        "submitted": int(100 * wave),
        "completed": int(99 * wave),
        "output_tokens": int(1700 * wave),
        "tiers": {"gpu": moved, "cpu": moved, "storage": moved},
        "classes": {
            qos: {
                "completed": 30,
                "failed": 0,
                "rejected": 0,
                "output_tokens": 500,
                "response_ms": _latency(29.3 * wave),
                "ttft_ms": _latency(19.1 * wave),
                "over": [0, 1, 2],
            }
            for qos in _CLASSES
        },
        "saturation": {"level": wave / 2.5, "by": "queue_depth", "saturated": False},
        "machine": {"device_utilisation": wave / 2.5, "process_cores": 1.1, "cores": 2},
    }


def operation(
    tier: str, operation: str, cause: str, gib: float, count: int = 2000, phase: str = "measure"
) -> dict[str, Any]:
    return {
        "phase": phase,
        "tier": tier,
        "operation": operation,
        "cause": cause,
        "engine": "direct",
        "operations": count,
        "bytes": int(gib * GIB),
        "system_calls": 4 * count,
        "histogram_total": histogram(count, 3_000_000),
        "histogram_device": histogram(count, 2_000_000),
        "histogram_bytes": histogram(count, MIB, "bytes"),
    }


OPERATIONS = (
    ("gpu", "write", "prefill", 6.0),
    ("gpu", "read", "reuse", 8.0),
    ("gpu", "read", "demotion", 6.0),
    ("cpu", "write", "demotion", 4.0),
    ("cpu", "read", "demotion", 3.0),
    ("storage", "write", "demotion", 5.0),
    ("storage", "read", "promotion", 1.5),
    ("cpu", "write", "promotion", 1.5),
    ("storage", "read", "reuse", 21.0),
    ("storage", "delete", "eviction", 0.0),
)
"""2 GiB of the demotions go past the cpu tier."""


def run(seconds: int = 60, seed: int = 3, **changed: Any) -> dict[str, Any]:
    """A result with windows of a second and all that a report shows. `changed` are keys of its
    section."""
    windows = [window(s, "warmup" if s < 3 else "measure") for s in range(seconds)]
    measured = {
        name: {
            **trials.requests(30 * seconds),
            "histogram_response": histogram(30 * seconds, 60_000_000),
            "histogram_ttft": histogram(30 * seconds, 40_000_000),
            "slos": {
                "p95": {
                    "target_ms": 100.0,
                    "actual_ms": 90.0,
                    "met": True,
                    "requests": 600,
                    "within": 590,
                    "share_low": 0.97,
                    "share_high": 0.99,
                }
            },
        }
        for name in ("all", *_CLASSES)
    }
    base = trials.result(seed)["kv_cache"]
    own = {
        **base,
        "measured": measured,
        "notes": [],
        "passport": {"verdict": "valid", "reasons": [], "rules": RULES, "changed_thresholds": {}},
        "requests": {"completed_in_window": 5000, "failed": 0, "rejected": 0, "unfinished": 2},
        "reuse": {
            "requests": 5000,
            "blocks": 10_000,
            "looked_up": 8000,
            "hits": 6000,
            "history_looked_up": 7000,
            "history_hits": 5500,
            "offered_token_ratio": 0.75,
            "achieved_token_ratio": 0.5,
            "offered_is_exact": True,
            "reuse_hit_ratio": 0.75,
        },
        "tiers": dict.fromkeys(("gpu", "cpu", "storage"), base["tiers"]["storage"]),
        "operations": [operation(*row) for row in OPERATIONS],
        "series": {**trials.series(windows), "slos": ["interactive:p95<50ms"]},
        "autoscaling": [],
        "preconditioning": None,
        "recordings": [],
        "config": to_mapping(Config()),
        "environment": {"hostname": "here", "drives": [{"cache_dir": "/a"}]},
        **changed,
    }  # fmt: skip
    return seal({"kv_cache": own}, {})


def _probe(number: int, load: float, inside: bool) -> dict[str, Any]:
    return {
        "probe": number,
        "load": load,
        "why": "the first load",
        "inside": inside,
        "overloaded": not inside,
        "client_bound": False,
        "slos": [
            {"slo": "interactive:p95<100ms", "ended": 100, "over": 1, "share": 0.01,
             "low": 0.001, "high": 0.05, "allowed": 0.05}
        ],
        "seconds": 20.0,
        "offered_per_s": 2.0 * load,
        "completed_per_s": 2.0 * load if inside else 150.0,
        "storage_read_bytes_per_s": 0.02 * load * GIB,
        "storage_write_bytes_per_s": 0.005 * load * GIB,
        "response_ms": {"mean": load, "p50": load, "p95": 2 * load, "p99": 3 * load},
        "verdict": "valid",
        "reasons": [],
        "reuse_hit_ratio": 0.9,
    }  # fmt: skip


def capacity(loads: Sequence[float] = (10, 20, 40, 40, 80), **changed: Any) -> dict[str, Any]:
    """A search of which loads up to 40 are inside."""
    own = {
        "schema": "kv-cache-capacity/2",
        "program_version": "0.5.0",
        "driver": "real-io",
        "status": "finished",
        "seed": 5,
        "slo": ["interactive:p95<100ms"],
        "unit": "users",
        "answer": {"load": 40, "unit": "users", "confirmed": True, "confidence": 0.95, "low": 38,
                   "high": 44, "reason": "80 is overloaded", "requests_per_s": 80.0},
        "limited_by": {"what": "device-bandwidth", "why": "storage was full"},
        "knee": {"load": 40, "power": 2.0},
        "verdict": "valid",
        "reasons": [],
        "probes": [_probe(n, load, load <= 40) for n, load in enumerate(loads, start=1)],
        "model": {"name": "Tiny 1B"},
        "config": to_mapping(Config()),
        "environment": {"hostname": "here"},
        **changed,
    }  # fmt: skip
    return seal({"kv_cache": own}, {})


def precondition(rounds: int = 6, **changed: Any) -> dict[str, Any]:
    done = {
        "fill": {"bytes": GIB, "rows": [{"start_s": 0.0, "end_s": 1.0, "bytes": GIB,
                                         "bytes_per_second": 1.0 * GIB}]},
        "rounds": [{"round": n, "bytes_per_second": 1.0 * GIB, "read_p95_ms": 5.0,
                    "write_p95_ms": 6.0} for n in range(1, rounds + 1)],
        "proof": {"rule": "at most 20 %", "average": 1.0 * GIB, "range_share": 0.1,
                  "slope_share": 0.01, "steady": True, "since_round": 5},
    }  # fmt: skip
    own = {
        "schema": "kv-cache-precondition/1",
        "program_version": "0.5.0",
        "driver": "real-io",
        "status": "finished",
        "seed": 1,
        "verdict": "steady",
        "reasons": [],
        "preconditioning": done,
        "config": to_mapping(Config()),
        "environment": {"hostname": "here"},
        **changed,
    }
    return seal({"kv_cache": own}, {})


def ranks(count: int = 3, **changed: Any) -> dict[str, Any]:
    """Of several ranks, the last of which is lost where `lost` says why."""
    lost = changed.pop("lost", None)
    results = [run(20 + rank, seed=rank) for rank in range(count)]
    first = results[0]["kv_cache"]
    rows: list[dict[str, Any]] = [
        {
            "rank": rank,
            "host": f"node{rank}",
            "counted": not (gone := lost is not None and rank == count - 1),
            "why_not": "there is no result of it" if gone else None,
            "lost": lost if gone else None,
            "seed": rank,
            "status": None if gone else "finished",
            "verdict": None if gone else "valid",
            "reasons": [],
            "schedule_sha256": None,
            "window_s": None if gone else 17.0 + rank,
            "begin_ns": 1_000_000 * rank,
            "end_ns": 17_000_000_000,
            "figures": {} if gone else {"storage.read.bytes_per_second": 1.5 * GIB,
                                        "response_ms.p95": 12.5},
            "fingerprint": None if gone else "ab" * 32,
            "result": None if gone else result,
        }
        for rank, result in enumerate(results)
    ]  # fmt: skip
    measured = {
        name: {**first["measured"][name], "completed_per_second": 90.0 * count,
               "output_tokens_per_second": 900.0 * count}
        for name in first["measured"]
    }  # fmt: skip
    own = {
        **first,
        "schema": "kv-cache-ranks/2",
        "result_schema": first["schema"],
        "status": "finished" if lost is None else "broken",
        "measured": measured,
        "crew": {
            "how": "mpi",
            "expected": count,
            "planned_ns": 0,
            "ended_early": None,
            "start_skew_ns": 1_000_000 * (count - 1) if lost is None else None,
            "start_skew_error_ns": 60_000 if lost is None else None,
            "members": [
                {"rank": rank, "host": f"node{rank}", "pid": 10 + rank, "offset_ns": 5000 * rank,
                 "offset_error_ns": 30_000, "ready_ns": 0, "opened_ns": 1_000_000 * rank,
                 "ended_ns": None, "lost": None}
                for rank in range(count)
            ],
        },
        "together": {"begin_ns": 0, "end_ns": 17_000_000_000, "span_s": 17.0, "shared_s": 16.9,
                     "shared_share": 16.9 / 17.0},
        "ranks": rows,
        **changed,
    }  # fmt: skip
    del own["series"]
    return seal({"kv_cache": own}, {})


def sweep(
    values: Sequence[object] = (1, 2), source: str = "g.yaml", **passport: object
) -> dict[str, Any]:
    """Two cells of which the second is twice as fast."""
    cells = [
        cell_row(number, f"cell-{number:03}", {"io.threads": value}, _runs(number * 1e9, passport))
        for number, value in enumerate(values, start=1)
    ]
    return sweep_document(
        {"vary": {"io.threads": list(values)}}, cells, source=source, paths=["io.threads"],
        seed=7, repeat=3, digest="0" * 64, workers=1, real=True, interrupted=None, notes=[],
    )  # fmt: skip


def _runs(rate: float, passport: Mapping[str, object]) -> list[dict[str, Any]]:
    valid = {"verdict": "valid", "reasons": [], **passport}
    return [
        run_row(
            trial, trial, f"c/trial{trial}", exit_code=0, sha256=f"{trial:064x}",
            document=trials.result(trial, rate * share, passport=valid),
        )
        for trial, share in enumerate((1.0, 1.01, 0.99), start=1)
    ]  # fmt: skip
