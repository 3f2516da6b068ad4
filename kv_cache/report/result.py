"""The whole result of a run: the reference's keys, and our own versioned section."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.kinds import Qos, RunMode
from kv_cache.core.model import ModelShape
from kv_cache.core.text import to_json
from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.pace import MEASURED, headline
from kv_cache.metrics.passport import Status
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.metrics.rules_sample import NO_MEASUREMENT
from kv_cache.metrics.summary import (
    Targets,
    failure_rows,
    flow_rows,
    kept_promises,
    metadata_rows,
    notes,
    reconciliation,
    request_numbers,
    reuse_numbers,
    tier_rows,
)
from kv_cache.metrics.window import window_row
from kv_cache.report.chain import seal, sealed_files
from kv_cache.report.iotrace import without_figures
from kv_cache.report.mlperf import mlperf_keys, unsupported
from kv_cache.report.model import model_section, stored_bytes_per_token
from kv_cache.report.node import Node
from kv_cache.report.passport import passport
from kv_cache.report.validation import ValidationTrace, compare
from kv_cache.report.writing import write_atomically

SCHEMA = "kv-cache-result/7"
SECTION = "kv_cache"


def build_result(
    config: Config,
    model: ModelShape,
    outcome: RunOutcome,
    environment: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
    *,
    recordings: Sequence[Mapping[str, Any]] = (),
    validation: ValidationTrace | None = None,
    twin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document that `--output` gets. `files`: SHA-256 of each file of records, by name;
    `recordings`: the traces that were written; `validation`: what the run is compared
    with; `twin`: what was predicted of it (`report/prediction`)."""
    targets = _targets(config)
    document = mlperf_keys(
        outcome,
        targets,
        bytes_per_token=stored_bytes_per_token(config, model, outcome.workload),
        profile=config.run.performance_profile,
        judge_hits=not config.lifecycle_semantics(synthetic=True).reuse_prefix,
    )
    own = document[SECTION] = _own_section(config, model, outcome, targets, environment)
    own["reference_keys_unsupported"] = unsupported(Node(own, SECTION))
    own["recordings"] = [dict(row) for row in recordings]
    if validation is not None:
        document["validation"] = compare(validation, outcome)
    if twin is not None:
        own["twin"] = dict(twin)
    if config.output.io_trace_log is not None:
        without_figures(document)
    document["overall_passed"] &= own["passport"]["verdict"] != Status.INVALID
    return seal(document, files or {})


def _targets(config: Config) -> Targets:
    promised = {}
    for qos in Qos:
        profile = getattr(config.qos_profiles, qos.value)
        names = ("p95", "p99", "p999", "p9999")
        promised[qos] = {name: getattr(profile, f"target_latency_{name}_ms") for name in names}
    return Targets(ms=promised, slo_ms=config.run.slo_ms or None)


def with_left_behind(result: bytes, left: Sequence[str]) -> bytes:
    """A result that was written before the run's files were removed, with those that could not be,
    each with its reason."""
    document = orjson.loads(result)
    document[SECTION]["left_behind"] = list(left)
    return as_json(seal(document, sealed_files(document)))


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, and the directory that it belongs in. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_json(document))


def as_json(document: Any) -> bytes:
    return to_json(document, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _own_section(
    config: Config,
    model: ModelShape,
    outcome: RunOutcome,
    targets: Targets,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    recorder, edges = outcome.recorder, outcome.recorder.edges
    semantics = config.lifecycle_semantics(synthetic=not config.replays)
    started = datetime.fromtimestamp(outcome.started_unix_s, UTC)
    real = outcome.driver == "real-io"
    return {
        "schema": SCHEMA,
        "program_version": __version__,
        "driver": outcome.driver,
        "semantics_preset": config.semantics.preset,
        "contains_performance": real,
        "started_utc": started.isoformat() if real else None,
        "status": _status(outcome),
        "unanswered": None if outcome.unanswered is None else dict(outcome.unanswered),
        "leftovers": None if outcome.leftovers is None else dict(outcome.leftovers),
        "notes": [*([] if config.passport.measurement else [NO_MEASUREMENT]), *notes(outcome)],
        "passport": passport(config, outcome, targets, environment),
        "seed": outcome.seed,
        "rank": outcome.rank.to_json(),
        "not_submittable": list(outcome.not_submittable),
        "schedule": {
            "sha256": outcome.schedule_sha256,
            "requests_digested": outcome.schedule_requests,
        },
        "phases_ns": {
            "populate_end": edges.populate_end_ns,
            "precondition_end": edges.precondition_end_ns,
            "measure_start": edges.measure_start_ns,
            "measure_end": edges.measure_end_ns,
        },
        "window_s": outcome.window_s,
        "headline": _headline(config.mode, outcome),
        "requests": {
            **outcome.accounting(),
            "longest_queue": outcome.longest_queue,
            "errors": dict(recorder.request_errors),
        },
        "measured": {
            "all": request_numbers(recorder.all),
            **{
                q.value: {
                    **request_numbers(recorder.classes[q]),
                    "promises": kept_promises(recorder.classes[q].end_to_end, targets.ms[q]),
                }
                for q in Qos
            },
        },
        "reuse": reuse_numbers(outcome),
        "tiers": tier_rows(outcome),
        "operations": flow_rows(recorder.flows),
        "metadata": metadata_rows(recorder.steps),
        "failed_operations": failure_rows(outcome),
        **_over_time(config, outcome),
        "verification": {
            "mode": config.io.verify if real else "none",
            "objects": recorder.verified_objects,
            "bytes": recorder.verified_bytes,
        },
        "evictions": {
            "dropped_last_copies": outcome.dropped_last_copies,
            "dropped_stores": outcome.dropped_stores,
            "lost_bytes": outcome.lost_bytes,
            **_policy_notes(outcome),
        },
        "policies": dict(outcome.policies),
        "reconciliation": reconciliation(outcome),
        "kernel_counters": dict(outcome.kernel),
        "buffers": dict(outcome.buffers),
        "workload": dict(outcome.workload),
        "model": model_section(model, outcome.workload),
        "semantics": {**asdict(semantics), "fsync": config.fsync()},
        "histogram_relative_error": RELATIVE_ERROR,
        "latency_lists_limit": SAMPLE_LIMIT,
        "latency_lists_truncated": recorder.end_to_end_s.seen > SAMPLE_LIMIT,
        "config": to_mapping(config),
        "environment": dict(environment),
    }


def _headline(mode: RunMode, outcome: RunOutcome) -> dict[str, Any]:
    paced = outcome.recorder.pace.read(outcome.window_ns, MEASURED[mode])
    return headline(mode, outcome.window_s, paced)


def _policy_notes(outcome: RunOutcome) -> dict[str, Any]:
    """Of the policies that have something to say."""
    notes = {facts.tier.label: dict(facts.eviction) for facts in outcome.tiers if facts.eviction}
    return {"policies": notes} if notes else {}


def _over_time(config: Config, outcome: RunOutcome) -> dict[str, Any]:
    """What happened when, before the measured window too."""
    return {
        "series": {
            "tick_s": config.monitor.tick_s,
            "together": outcome.series.together,
            "promises": list(outcome.promises),
            "windows": [window_row(window) for window in outcome.series.windows],
        },
        "autoscaling": [dict(row) for row in outcome.decisions],
        "autoscaler": None if outcome.standing is None else dict(outcome.standing),
        "preconditioning": outcome.preconditioning,
        "latency_tracing": None if outcome.tracing is None else outcome.tracing["section"],
    }


def _status(outcome: RunOutcome) -> str:
    if outcome.death is not None:
        return "broken"
    return "finished" if outcome.interrupted is None else "interrupted"
