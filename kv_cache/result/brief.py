"""The summary for programs (`run --json`): what `table` tells a person, as one JSON document.

It has the verdict first, and each number under the name that `compare` and trials give it. All
else stands in the result, which it names.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.result.chain import fingerprint
from kv_cache.result.metrics import METRICS

SCHEMA = "kv-cache-summary/1"
TRIALS_SCHEMA = "kv-cache-trials-summary/1"
RANKS_SCHEMA = "kv-cache-ranks-summary/1"

Json = Mapping[str, Any]


def brief(document: Json, files: Mapping[str, str]) -> dict[str, Any]:
    """Of one run. `files` are what it wrote, by what they are; `result` is one of them."""
    own = document["kv_cache"]
    same = ("status", "driver", "contains_performance", "notes", "semantics_preset", "seed")
    return {
        "schema": SCHEMA,
        **_verdict(own["passport"]),
        "overall_passed": document["overall_passed"],
        **{name: own[name] for name in same},
        "model": own["model"]["name"],
        "schedule_sha256": own["schedule"]["sha256"],
        "fingerprint": fingerprint(document),
        "window_s": own["window_s"],
        "headline": _headline(own),
        "requests": own["requests"],
        "metrics": _metrics(own),
        "evictions": own["evictions"],
        "verification": own["verification"],
        "failed_operations": own["failed_operations"],
        "reconciliation": own["reconciliation"],
        "autoscaler": own["autoscaler"],
        "validation": _passed(document.get("validation")),
        "files": dict(files),
    }


def brief_of_trials(
    document: Json | None, runs: Sequence[Json], files: Mapping[str, str]
) -> dict[str, Any]:
    """Of several, with the summary of each."""
    own = {} if document is None else document["kv_cache"]
    names = ("unit", "better", "median", "mean", "interval", "coefficient_of_variation", "values")
    return {
        "schema": TRIALS_SCHEMA,
        **_verdict(own["passport"]),
        "planned": own["planned"],
        "finished": own["finished"],
        "confidence": own["confidence"],
        "headline": own["headline"],
        "metrics": {
            metric: {name: numbers[name] for name in names}
            for metric, numbers in own["metrics"].items()
        },
        "trials": list(runs),
        "files": dict(files),
    }


def brief_of_ranks(document: Json, files: Mapping[str, str]) -> dict[str, Any]:
    """Of several that ran together: their sums, and the figures of each."""
    own = document["kv_cache"]
    same = (
        *("status", "driver", "contains_performance", "notes", "semantics_preset", "seed"),
        *("window_s", "requests"),
    )
    crew = own["crew"]
    told = ("how", "wanted", "ended_early", "start_skew_ns", "start_skew_error_ns")
    return {
        "schema": RANKS_SCHEMA,
        **_verdict(own["passport"]),
        "overall_passed": document["overall_passed"],
        **{name: own[name] for name in same},
        "model": own["model"].get("name"),
        "fingerprint": fingerprint(document),
        **{name: crew[name] for name in told},
        "together": own["together"],
        "headline": _headline(own),
        "metrics": _metrics(own) if any(row["counted"] for row in own["ranks"]) else {},
        "evictions": own["evictions"],
        "verification": own["verification"],
        "failed_operations": own["failed_operations"],
        "reconciliation": own["reconciliation"],
        "ranks": [
            {name: value for name, value in row.items() if name != "result"} for row in own["ranks"]
        ],
        "files": dict(files),
    }


def _verdict(passport: Json) -> dict[str, Any]:
    return {
        "verdict": passport["verdict"],
        "reasons": list(passport["reasons"]),
        "rules": dict(Counter(rule["status"] for rule in passport["rules"])),
    }


def _headline(own: Json) -> dict[str, Any] | None:
    """The number that the run is there for, by its name among the metrics, and its interval."""
    if own["headline"] is None or own["config"]["output"]["io_trace_log"] is not None:
        return None
    names = ("metric", "bytes_per_second", "within_run", "why_none")
    return {name: own["headline"][name] for name in names}


def _metrics(own: Json) -> dict[str, Any]:
    """What there is of each; nothing of a run that was there to write a trace of its operations."""
    if own["config"]["output"]["io_trace_log"] is not None:
        return {}
    found = {name: metric.value(own) for name, metric in METRICS.items()}
    return {
        name: {"value": value, "unit": METRICS[name].unit, "better": METRICS[name].better}
        for name, value in found.items()
        if value is not None
    }


def _passed(validation: Any) -> Any:
    return validation and {name: validation.get(name) for name in ("passed", "avg_error_pct")}
