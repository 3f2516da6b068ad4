"""The summary for programs (`run --json`): what the terminal shows a person, as one JSON document.

The verdict comes first, and each number has the name that `compare` and trials give it. Everything
else is in the result, whose path it has.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.result.chain import fingerprint
from kv_cache.result.metrics import METRICS, Json

SCHEMA = "kv-cache-summary/1"
TRIALS_SCHEMA = "kv-cache-trials-summary/1"
RANKS_SCHEMA = "kv-cache-ranks-summary/2"


def brief(document: Json, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the summary of one run. `files` are the paths of what it wrote, `result` among
    them."""
    section, validation = document["kv_cache"], document.get("validation")
    return {
        "schema": SCHEMA,
        **_numbers(document),
        "schedule_sha256": section["schedule"]["sha256"],
        "metrics": _metrics(section),
        "precision": section["precision"],
        "autoscaler": section["autoscaler"],
        "validation": validation
        and {name: validation.get(name) for name in ("passed", "avg_error_pct")},
        "files": dict(files),
    }


def brief_of_trials(
    document: Json, runs: Sequence[Json], files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the summary of several trials, with that of each."""
    section = document["kv_cache"]
    names = (
        *("unit", "better", "median", "mean", "interval", "coefficient_of_variation", "values"),
        "at_least",
    )
    same = ("planned", "finished", "confidence", "headline", "variance")
    return {
        "schema": TRIALS_SCHEMA,
        **_verdict(section["passport"]),
        **{name: section[name] for name in same},
        "metrics": {
            metric: {name: numbers[name] for name in names if name in numbers}
            for metric, numbers in section["metrics"].items()
        },
        "trials": list(runs),
        "files": dict(files),
    }


def brief_of_ranks(document: Json, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the summary of several ranks: their sums, and the figures of each."""
    section = document["kv_cache"]
    of_crew = ("how", "expected", "ended_early", "start_skew_ns", "start_skew_error_ns")
    return {
        "schema": RANKS_SCHEMA,
        **_numbers(document),
        **{name: section["crew"][name] for name in of_crew},
        "together": section["together"],
        "metrics": _metrics(section) if any(row["counted"] for row in section["ranks"]) else {},
        "ranks": [
            {name: value for name, value in row.items() if name != "result"}
            for row in section["ranks"]
        ],
        "files": dict(files),
    }


_SAME = (
    *("status", "driver", "contains_performance", "notes", "semantics_preset", "seed"),
    *("window_s", "requests", "evictions", "verification", "failed_operations", "reconciliation"),
)


def _numbers(document: Json) -> dict[str, Any]:
    """Return what the summaries of one run and of several ranks share."""
    section = document["kv_cache"]
    return {
        **_verdict(section["passport"]),
        "overall_passed": document["overall_passed"],
        "model": section["model"].get("name"),
        "fingerprint": fingerprint(document),
        "headline": _headline(section),
        **{name: section[name] for name in _SAME},
    }


def _verdict(passport: Json) -> dict[str, Any]:
    return {
        "verdict": passport["verdict"],
        "reasons": list(passport["reasons"]),
        "changed_thresholds": passport.get("changed_thresholds", {}),
        "rules": dict(Counter(rule["status"] for rule in passport["rules"])),
    }


def _headline(section: Json) -> dict[str, Any] | None:
    """Return the number that the run measures, by its name among the metrics, and its interval."""
    if section["headline"] is None or section["config"]["output"]["io_trace_log"] is not None:
        return None
    names = ("metric", "bytes_per_second", "within_run", "why_none")
    return {name: section["headline"][name] for name in names}


def _metrics(section: Json) -> dict[str, Any]:
    """Return every metric that the run has; none if it only wrote a trace of its operations."""
    if section["config"]["output"]["io_trace_log"] is not None:
        return {}
    return {
        name: {
            "value": value,
            "unit": metric.unit,
            "better": metric.better,
            **({"at_least": True} if metric.at_least(section) else {}),
        }
        for name, metric in METRICS.items()
        if (value := metric.value(section)) is not None
    }
