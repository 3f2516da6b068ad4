"""What a driver leaves behind as the facts of a result: nothing here divides."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, to_builtins
from msgspec.structs import asdict

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.kinds import Qos
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.pace import MEASURED
from kv_cache.metrics.recorder import LATENCIES, SAMPLE_LIMIT, RequestStats
from kv_cache.metrics.rules.sample import NO_MEASUREMENT
from kv_cache.metrics.summary import notes
from kv_cache.metrics.window import window_row
from kv_cache.result.counted import (
    AmplificationFacts,
    Classes,
    CompletenessFacts,
    Counted,
    EvictionCounts,
    EvidenceFacts,
    Facts,
    FailureRow,
    Json,
    LedgerFacts,
    MetadataRow,
    OperationRow,
    Pacing,
    PassportFacts,
    PhaseEnds,
    PrecisionCounts,
    RankFacts,
    RequestAccounts,
    RequestCounts,
    ReuseCounts,
    ScheduleFacts,
    SeriesFacts,
    TierCounts,
    VerificationFacts,
    Verified,
)
from kv_cache.result.merge import failure_order, metadata_key, operation_key
from kv_cache.result.run import CountedRun, plain, semantics_of
from kv_cache.result.verdicts import status_of

_OF_A_TIER = ("capacity_bytes", "used_bytes", "peak_bytes", "stranded_bytes", "entries")
_AS_SEEN = (
    *("stack", "page_cache", "payload", "interposed", "throttles", "foreign", "clock", "gaps"),
)
"""What the witness says of the machine is evidence as it is."""


def collect(
    config: Config,
    outcome: RunOutcome,
    *,
    model: Mapping[str, Any],
    environment: Mapping[str, Any],
    recordings: Sequence[Mapping[str, Any]] = (),
    validation: Mapping[str, Any] | None = None,
    twin: Mapping[str, Any] | None = None,
) -> CountedRun:
    """Return the facts of one run. `model`: its section of the result; `recordings`: the traces
    that were written; `validation`: the run beside a real system's; `twin`: what was predicted of
    it."""
    recorder = outcome.recorder
    tracing = None if outcome.tracing is None else outcome.tracing["keys"]
    facts = _facts(config, outcome, plain(environment))
    counted = Counted(
        kv_cache=Facts(
            **facts,
            **_counts(config, outcome),
            model=dict(model),
            recordings=[dict(row) for row in recordings],
            twin=UNSET if twin is None else plain(twin),
        ),
        end_to_end_latencies=recorder.end_to_end_s.kept(),
        storage_latencies=recorder.storage_s.kept(),
        generation_latencies=recorder.generation_s.kept(),
        prefill_latencies=recorder.prefill_s.kept(),
        decode_latencies=recorder.decode_s.kept(),
        device_latency_tracing=dict(tracing) if tracing else UNSET,
        validation=UNSET if validation is None else plain(validation),
    )
    return CountedRun(counted, config)


def _facts(config: Config, outcome: RunOutcome, environment: Json) -> dict[str, Any]:
    """Return what is known of the run beside its counts."""
    recorder, edges = outcome.recorder, outcome.recorder.edges
    started = datetime.fromtimestamp(outcome.started_unix_s, UTC)
    paced = recorder.pace.read(outcome.window_ns, MEASURED[config.mode])
    declared = [] if config.passport.thresholds().measurement else [NO_MEASUREMENT]
    return {
        "program_version": __version__,
        "driver": outcome.driver,
        "started_utc": started.isoformat() if outcome.driver == "real-io" else None,
        "status": status_of(outcome.interrupted, outcome.death),
        "unanswered": None if outcome.unanswered is None else dict(outcome.unanswered),
        "leftovers": None if outcome.leftovers is None else dict(outcome.leftovers),
        "notes": [*declared, *notes(outcome)],
        "passport": PassportFacts(evidence=_evidence(outcome)),
        "seed": outcome.seed,
        "rank": RankFacts(**asdict(outcome.rank)),
        "not_submittable": list(outcome.not_submittable),
        "schedule": ScheduleFacts(
            sha256=outcome.schedule_sha256, requests_digested=outcome.schedule_requests
        ),
        "phases_ns": PhaseEnds(
            **{name.removesuffix("_ns"): at_ns for name, at_ns in asdict(edges).items()}
        ),
        "headline": Pacing(
            before_bytes=paced.before_bytes,
            after_bytes=paced.after_bytes,
            call_s=paced.call_s,
            batches=[(batch.seconds, batch.nbytes) for batch in paced.batches],
        ),
        "precision": outcome.precision
        and PrecisionCounts(stopped=outcome.precision.stopped, batches=outcome.precision.counts()),
        "series": SeriesFacts(
            tick_s=config.monitor.tick_s,
            together=outcome.series.together,
            slos=list(outcome.slos),
            windows=plain([window_row(window) for window in outcome.series.windows]),
        ),
        "autoscaling": plain([dict(row) for row in outcome.decisions]),
        "autoscaler": None if outcome.standing is None else plain(dict(outcome.standing)),
        "preconditioning": plain(outcome.preconditioning),
        "latency_tracing": None if outcome.tracing is None else plain(outcome.tracing["section"]),
        "policies": plain(dict(outcome.policies)),
        "kernel_counters": {span: dict(row) for span, row in outcome.kernel.items()},
        "buffers": plain(dict(outcome.buffers)),
        "workload": plain(dict(outcome.workload)),
        "semantics": semantics_of(config),
        "latency_lists_truncated": recorder.end_to_end_s.seen > SAMPLE_LIMIT,
        "config": plain(to_mapping(config)),
        "environment": environment,
    }


def _counts(config: Config, outcome: RunOutcome) -> dict[str, Any]:
    """Return what merges."""
    recorder = outcome.recorder
    return {
        "requests": _requests(outcome),
        "measured": Classes(**{q.value: _request_counts(recorder.classes[q]) for q in Qos}),
        "reuse": ReuseCounts(
            **asdict(recorder.reuse), offered_is_exact=not outcome.offered_forgotten
        ),
        "tiers": {
            tier.tier.label: TierCounts(
                **{name: getattr(tier, name) for name in _OF_A_TIER},
                store=plain(dict(tier.store)),
            )
            for tier in outcome.tiers
        },
        "operations": _operations(outcome),
        "metadata": sorted(
            (
                MetadataRow(
                    phase=flow.phase,
                    tier=flow.tier.label,
                    operation=flow.kind,
                    step=flow.step,
                    histogram=histogram,
                )
                for flow, histogram in recorder.steps.items()
            ),
            key=metadata_key,
        ),
        "failed_operations": sorted(
            (
                FailureRow(
                    tier=failure.tier.label,
                    operation=failure.kind,
                    cause=failure.cause,
                    reason=failure.reason,
                    count=count,
                )
                for failure, count in recorder.failures.items()
            ),
            key=failure_order,
        ),
        "verification": Verified(
            mode=config.io.verify if outcome.driver == "real-io" else "none",
            objects=recorder.verified_objects,
            bytes=recorder.verified_bytes,
        ),
        "evictions": EvictionCounts(
            dropped_last_copies=outcome.dropped_last_copies,
            dropped_stores=outcome.dropped_stores,
            lost_bytes=outcome.lost_bytes,
            policies={
                tier.tier.label: dict(tier.eviction) for tier in outcome.tiers if tier.eviction
            }
            or UNSET,
        ),
    }


def _operations(outcome: RunOutcome) -> list[OperationRow]:
    rows = (
        OperationRow(
            phase=flow.phase,
            tier=flow.tier.label,
            operation=flow.kind,
            cause=flow.cause,
            engine=flow.engine,
            bytes=stats.bytes,
            system_calls=stats.calls,
            histogram_total=stats.total,
            histogram_device=stats.device,
            histogram_host=stats.host,
            histogram_bytes=stats.sizes,
        )
        for flow, stats in outcome.recorder.flows.items()
    )
    return sorted(rows, key=operation_key)


def _requests(outcome: RunOutcome) -> RequestAccounts:
    """Count how every submitted request ended."""
    accounts = outcome.accounting()
    names = [name for name in RequestAccounts.__struct_fields__ if name in accounts]
    return RequestAccounts(
        **{name: accounts[name] for name in names},
        longest_queue=outcome.longest_queue,
        out_of_turn=outcome.out_of_turn,
        errors=dict(outcome.recorder.request_errors),
    )


def _request_counts(stats: RequestStats) -> RequestCounts:
    return RequestCounts(
        completed=stats.completed,
        prompt_tokens=stats.prompt_tokens,
        output_tokens=stats.output_tokens,
        **{f"histogram_{name}": getattr(stats, name) for name in LATENCIES},
    )


def _evidence(outcome: RunOutcome) -> EvidenceFacts:
    """Return what the machine said of the run, and what only the recorder knew."""
    witness, recorder = plain(dict(outcome.witness)), outcome.recorder
    server_here = witness.get("server_here")
    return EvidenceFacts(
        completeness=CompletenessFacts(
            interrupted=outcome.interrupted,
            records_error=next((w for w in outcome.warnings if "incomplete" in w), None),
        ),
        verification=VerificationFacts(storage_bytes=recorder.verified_storage_bytes),
        ledger=LedgerFacts(
            other_process_write_bytes=outcome.record_bytes,
            settle_s=witness.get("settle_s"),
            accounted=witness.get("accounted"),
            server_here=UNSET if server_here is None else server_here,
        ),
        amplification=AmplificationFacts(
            unique_read_bytes=recorder.distinct.bytes, stored_bytes=recorder.new_bytes
        ),
        **{name: witness.get(name) for name in _AS_SEEN},
        link=witness.get("link") or {},
        client={
            "cores": witness.get("cores"),
            "ceiling": outcome.ceiling and {"points": to_builtins(outcome.ceiling)},
            **(witness.get("lag") or {}),
            **(witness.get("cpu_users") or {}),
        },
    )
