"""Makes one number of many ranks and trials, as the rules do, and beside it what they do not give.

By the rules: bandwidths and tokens/s are added over the ranks of a trial, and the trials' sums are
averaged; latencies are the worst P95 of any rank. That is no percentile of anything. So all samples
are pooled too, from the ranks' histograms, and the spread between trials is shown.

Nothing is made of an option with any flaw.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from kv_cache.config.mlperf import EDITION, MLPERF_OPTIONS
from kv_cache.core.units import ns_to_ms
from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.summary import latency_ms
from kv_cache.mlperf.rankfile import HISTOGRAMS, RankResult, pooled
from kv_cache.mlperf.tree import Tree
from kv_cache.result.metrics import spread
from kv_cache.result.submission import SCHEMA
from kv_cache.view.identity import disk_models

SUMS = (
    "read_bandwidth_gbps",
    "write_bandwidth_gbps",
    "storage_throughput_tokens_per_sec",
    "avg_throughput_tokens_per_sec",
)
WORST = ("device_read_p95_ms", "device_write_p95_ms", "p95_latency_ms")

HEADLINE = (
    "aggregated_read_bandwidth_gbps",
    "aggregated_device_read_p95_ms",
    "aggregated_device_write_p95_ms",
    "aggregated_storage_throughput_tokens_per_sec",
)
"""What the rules report of an option, with the number of ranks."""

Json = Mapping[str, Any]


def summarize(tree: Tree) -> dict[str, Any]:
    """Return a sequence with all its numbers as plain values."""
    expected = tree.expected
    return {
        "schema": SCHEMA,
        "tree": str(tree.place.run),
        "division": tree.division,
        "edition": EDITION,
        "system": tree.place.system,
        "organisation": tree.place.org,
        "total_ranks": expected.ranks,
        "trials_per_option": expected.trials,
        "expected_by": expected.source,
        "hosts": sorted({result.hostname for result in tree.ranks}),
        "drives": sorted({m for result in tree.ranks for m in disk_models(result.environment)}),
        "program_versions": sorted({result.program_version for result in tree.ranks}),
        "started_utc": min((result.started_utc for result in tree.ranks), default=None),
        "complete": not tree.flaws,
        "not_submittable": list(tree.not_submittable),
        "deviations": list(tree.deviations),
        "confidence": CONFIDENCE,
        "histogram_relative_error": RELATIVE_ERROR,
        "options": {str(option): option_summary(tree, option) for option in expected.options},
    }


def option_summary(tree: Tree, option: int) -> dict[str, Any]:
    """Summarize one option; an invalid one has no numbers."""
    known = MLPERF_OPTIONS.get(option)
    flaws = tree.flaws_of(option)
    head = {
        "option": option,
        "name": None if known is None else known.name,
        "valid": not flaws,
        "invalid_because": [
            {"kind": flaw.kind, "where": flaw.path, "message": flaw.message} for flaw in flaws
        ],
    }
    return head if flaws else {**head, **_numbers(tree.of(option))}


def _numbers(results: Sequence[RankResult]) -> dict[str, Any]:
    trials = _by_trial(results)
    verdicts = {r.path: list(r.reasons) for r in results if r.verdict != "valid"}
    return {
        "by_the_rules": by_the_rules(results),
        "cpu_tier_ranks": [r.path for r in results if r.storage_entries == 0],
        "not_valid": verdicts,
        "trials": [_trial(trial, of_trial) for trial, of_trial in trials.items()],
        "spread": trial_spread(results, SUMS),
        "pooled_ms": {name: _pooled(results, trials, name) for name in HISTOGRAMS},
    }


def trial_spread(results: Iterable[RankResult], names: Iterable[str]) -> Mapping[str, Json]:
    """Return how far the sums of the trials agree, for each figure."""
    trials = _by_trial(results).values()
    return {name: spread([trial_sum(of_trial, name) for of_trial in trials]) for name in names}


def _by_trial(results: Iterable[RankResult]) -> dict[int, list[RankResult]]:
    trials: dict[int, list[RankResult]] = {}
    for result in results:
        trials.setdefault(result.spot.trial, []).append(result)
    return trials


def by_the_rules(results: Sequence[RankResult]) -> dict[str, float | None]:
    """Return the aggregates, under the launcher's names. A latency without any sample is None."""
    trials = _by_trial(results).values()
    sums = {f"aggregated_{name}": fmean(trial_sum(t, name) for t in trials) for name in SUMS}
    return {**sums, **{f"aggregated_{name}": worst(results, name) for name in WORST}}


def trial_sum(results: Iterable[RankResult], name: str) -> float:
    """Add a figure over the ranks of one trial."""
    return sum(result.figures[name] or 0.0 for result in results)


def worst(results: Iterable[RankResult], name: str) -> float | None:
    """Return the largest of any rank and trial."""
    known = [value for r in results if (value := r.figures[name]) is not None]
    return max(known, default=None)


def _trial(trial: int, results: Sequence[RankResult]) -> dict[str, Any]:
    return {
        "trial": trial,
        **{name: trial_sum(results, name) for name in SUMS},
        **{name: worst(results, name) for name in WORST},
        "ranks": [
            {
                "rank": r.spot.rank, "file": r.path, "host": r.hostname, "verdict": r.verdict,
                "storage_entries": r.storage_entries, **r.figures,
            }
            for r in results
        ],
    }  # fmt: skip


def _pooled(
    results: Sequence[RankResult], trials: Mapping[int, list[RankResult]], name: str
) -> dict[str, Any] | None:
    """Return percentiles of all samples, and the P95 of each trial's; None if there are no samples,
    or too few for it."""
    whole = pooled(results, name)
    if not whole.count:
        return None
    each = [pooled(of_trial, name).percentile(95) for of_trial in trials.values()]
    known = [ns_to_ms(p95_ns) for p95_ns in each if p95_ns is not None]
    return {
        "count": whole.count,
        **latency_ms(whole),
        "max": (whole.highest or 0) / 1e6,
        "p95_of_trials": spread(known) if known else None,
    }


def run_summary(tree: Tree, stamp: str) -> dict[str, Any]:
    """Return the file that the launcher leaves beside its trials, in its words. An invalid option
    has `partial_failure` and no numbers."""

    def of(option: int) -> dict[str, Any]:
        flaws, results = tree.flaws_of(option), tree.of(option)
        names = (*(f"aggregated_{name}" for name in (*SUMS, *WORST)),)
        return {
            "option": option,
            **(dict.fromkeys(names) if flaws else by_the_rules(results)),
            "rank_count": tree.expected.ranks,
            "trial_count": tree.expected.trials,
            "partial_failure": bool(flaws),
            "missing_files": [str(flaw.path) for flaw in flaws],
            "cpu_tier_ranks": [r.path for r in results if r.storage_entries == 0],
        }

    return {
        "schema_version": "1.0",
        "run_datetime": stamp,
        "made_by": "kv-cache.py mlperf run",
        "total_ranks": tree.expected.ranks,
        "trials_per_option": tree.expected.trials,
        "not_submittable": list(tree.not_submittable),
        "options": {str(option): of(option) for option in tree.expected.options},
        "partial_failure": bool(tree.flaws),
    }
