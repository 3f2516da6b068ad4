"""The formulas of what the section `kv_cache` publishes; each number is defined in
`docs/metrics.md`.

Each function takes runs: one, or ranks that ran together. Counts of several are merged; a rate of
several is the sum of each one's own over its own window.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from kv_cache.core.kinds import OpKind, Phase, Qos, RunMode, TierLabel
from kv_cache.metrics.evidence import OBJECT_ENGINES
from kv_cache.metrics.pace import MEASURED, Batch, MovedBytes, headline, together
from kv_cache.metrics.recorder import LATENCIES
from kv_cache.metrics.summary import NETWORK, latency_ms, ratio, size_numbers, slos_met
from kv_cache.result.counted import (
    Classes,
    MergeableCounts,
    MetadataRow,
    OperationRow,
    RequestAccounts,
    RequestCounts,
    ReuseCounts,
)
from kv_cache.result.merge import common, merged
from kv_cache.result.run import (
    CountedRun,
    OperationLedger,
    agreed,
    number,
    rate,
    times,
    total_bytes,
    total_operations,
    totals,
)

KINDS = (OpKind.READ, OpKind.WRITE)
PERCENTILES = ("p50", "p95", "p99", "p999", "p9999")


def body(runs: Sequence[CountedRun]) -> dict[str, Any]:
    """Return the derived numbers that one run and several ranks have alike, beside their counts."""
    counts = merged(totals(runs))
    return {
        "window_s": max((run.window_s for run in runs), default=0.0),
        "headline": _headline(runs),
        "requests": request_accounts(counts.requests),
        "measured": _measured(runs, counts.measured),
        "reuse": reuse_ratios(runs, counts.reuse),
        "tiers": tier_sections(runs, counts),
        "operations": [operation_row(row) for row in counts.operations],
        "metadata": [_metadata_row(row) for row in counts.metadata],
        "failed_operations": [asdict(row) for row in counts.failed_operations],
        "verification": asdict(counts.verification),
    }


def request_accounts(requests: RequestAccounts) -> dict[str, Any]:
    accounts = {
        **asdict(requests),
        "completed": requests.completed,
        "unfinished": requests.unfinished,
    }
    count = accounts.pop("out_of_turn")
    if count is UNSET:
        return accounts
    share = None if count is None or not requests.submitted else count / requests.submitted
    return {**accounts, "out_of_turn": count, "out_of_turn_share": share}


def operation_row(row: OperationRow) -> dict[str, Any]:
    """Return one row of operations with its latencies."""
    return {
        **{name: getattr(row, name) for name in ("phase", "tier", "operation", "cause", "engine")},
        "operations": row.histogram_total.count,
        "bytes": row.bytes,
        "system_calls": row.system_calls,
        "total_ms": latency_ms(row.histogram_total),
        "device_ms": latency_ms(row.histogram_device),
        "host_ms": latency_ms(row.histogram_host),
        "histogram_total": row.histogram_total.to_json(),
        "histogram_device": row.histogram_device.to_json(),
        "histogram_host": row.histogram_host.to_json(),
        "histogram_bytes": row.histogram_bytes.to_json("bytes"),
    }


def _metadata_row(row: MetadataRow) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in ("phase", "tier", "operation", "step")},
        "count": row.histogram.count,
        "ms": latency_ms(row.histogram),
        "histogram": row.histogram.to_json(),
    }


# --- requests --------------------------------------------------------------------------------


def _measured(runs: Sequence[CountedRun], classes: Classes) -> dict[str, Any]:
    return {
        "all": request_section(runs, classes.together, None),
        **{
            qos.value: {
                **request_section(runs, classes.of(qos), qos),
                "slos": slos_met(classes.of(qos).histogram_end_to_end, slos_ms(runs, qos)),
            }
            for qos in Qos
        },
    }


def request_section(
    runs: Sequence[CountedRun], counts: RequestCounts, qos: Qos | None
) -> dict[str, Any]:
    """Return one class's measured requests (`qos` None: all), and every latency of the
    vocabulary."""

    def rate_of(name: str) -> float:
        return rate(runs, lambda run: getattr(run.facts.measured.of(qos), name))

    return {
        **{name: getattr(counts, name) for name in ("completed", "prompt_tokens", "output_tokens")},
        "completed_per_second": rate_of("completed"),
        "output_tokens_per_second": rate_of("output_tokens"),
        **{f"{name}_ms": latency_ms(counts.latency(name)) for name in LATENCIES},
        **{f"histogram_{name}": counts.latency(name).to_json() for name in LATENCIES},
    }


def slos_ms(runs: Sequence[CountedRun], qos: Qos) -> Mapping[str, float]:
    """Return the SLO of a class by percentile, as far as all runs have the same."""
    return common([targets_ms(run, qos) for run in runs]) or {}


def targets_ms(run: CountedRun, qos: Qos) -> dict[str, float]:
    """Return the SLO of a class: percentiles (`PERCENTILES`) of its end-to-end latency."""
    profile = getattr(run.config.qos_profiles, qos.value)
    return {name: getattr(profile, f"target_latency_{name}_ms") for name in PERCENTILES[1:]}


# --- reuse -----------------------------------------------------------------------------------

_RATIOS: Mapping[str, tuple[str, str]] = {
    "reuse_hit_ratio": ("hits", "looked_up"),
    "history_hit_ratio": ("history_hits", "history_looked_up"),
    "retrieved_hit_ratio": ("retrieved_hits", "retrieved_looked_up"),
}
_OF_ALL_BLOCKS: Mapping[str, tuple[str, str]] = {
    "offered_block_ratio": ("offered_blocks", "blocks"),
    "achieved_block_ratio": ("hits", "blocks"),
    "offered_token_ratio": ("offered_tokens", "context_tokens"),
    "achieved_token_ratio": ("hit_tokens", "context_tokens"),
}


def reuse_ratios(runs: Sequence[CountedRun], reuse: ReuseCounts) -> dict[str, Any]:
    """Return the counts and ratios of reuse. Looked up, hit and loaded are three different things;
    beside what was achieved is what a cache without limits would have achieved on the same
    requests. In decode-only everything was stored before the run, and nothing is looked up."""
    looks_up = all(run.workload.prepopulated_objects is UNSET for run in runs)

    def share(of: tuple[str, str]) -> float:
        return ratio(getattr(reuse, of[0]), getattr(reuse, of[1]))

    return {
        **asdict(reuse),
        **{name: share(of) for name, of in _RATIOS.items()},
        **{name: share(of) if looks_up else None for name, of in _OF_ALL_BLOCKS.items()},
    }


# --- tiers -----------------------------------------------------------------------------------


def tier_sections(runs: Sequence[CountedRun], counts: MergeableCounts) -> dict[str, Any]:
    """Return each tier in the measured window and at the end of the run."""
    ledger = OperationLedger(counts.operations)
    return {
        label: {
            **asdict(tier),
            **{kind.value: _side(runs, ledger, label, kind) for kind in KINDS},
        }
        for label, tier in counts.tiers.items()
    }


def _side(
    runs: Sequence[CountedRun], ledger: OperationLedger, label: TierLabel, kind: OpKind
) -> dict[str, Any]:
    rows = ledger.window(label, kind)
    return {
        "operations": total_operations(rows),
        "bytes": total_bytes(rows),
        "bytes_per_second": bytes_per_second(runs, label, kind),
        "operations_per_second": operations_per_second(runs, label, kind),
        "total_ms": latency_ms(times(rows, "total")),
        "device_ms": latency_ms(times(rows, "device")),
        "host_ms": latency_ms(times(rows, "host")),
        "object_bytes": size_numbers(times(rows, "bytes")),
    }


def bytes_per_second(runs: Sequence[CountedRun], label: TierLabel, kind: OpKind) -> float:
    return rate(runs, lambda run: total_bytes(run.ledger.window(label, kind)))


def operations_per_second(runs: Sequence[CountedRun], label: TierLabel, kind: OpKind) -> float:
    return rate(runs, lambda run: total_operations(run.ledger.window(label, kind)))


def _headline(runs: Sequence[CountedRun]) -> dict[str, Any] | None:
    """Return the number that the mode measures, and its interval; None for ranks that did not run
    in the same mode."""
    mode = agreed(run.config.mode for run in runs)
    if mode is None:
        return None
    return headline(mode, *together([(run.window_s, paced(run, mode)) for run in runs]))


def paced(run: CountedRun, mode: RunMode) -> MovedBytes:
    """Return how evenly storage moved what the ledger counted in the window."""
    pacing = run.facts.headline
    return MovedBytes(
        nbytes=sum(total_bytes(run.ledger.window("storage", kind)) for kind in MEASURED[mode]),
        before_bytes=pacing.before_bytes,
        after_bytes=pacing.after_bytes,
        call_s=pacing.call_s,
        batches=tuple(Batch(*batch) for batch in pacing.batches),
    )


# --- beside the kernel -----------------------------------------------------------------------


def reconciliation(run: CountedRun) -> dict[str, Any] | None:
    """Return bytes that we say storage moved in the whole run, beside what the kernel counted for
    this process and for the device. None without real I/O.

    Of an object store no device counts the bytes. What this machine's network interfaces carried,
    everybody's, is beside them, unless the server is on this machine."""
    kernel = run.kernel("run")
    if not kernel:
        return None
    storage = run.facts.tiers.get("storage")
    if storage is not None and storage.store.get("engine") in OBJECT_ENGINES:
        elsewhere = run.facts.passport.evidence.ledger.server_here is False
        rows = {
            kind.value: reconciled(
                run.ledger.all_bytes("storage", kind),
                network=(number(kernel, counter) if elsewhere else None,),
            )
            for kind, counter in NETWORK.items()
        }
        return {"device": None, **rows}
    rows = {
        kind.value: reconciled(
            run.ledger.all_bytes("storage", kind),
            number(kernel, f"process_{kind.value}_bytes"),
            number(kernel, f"device_{kind.value}_bytes"),
        )
        for kind in KINDS
    }
    return {"device": kernel.get("device"), **rows}


def reconciled(
    claimed: int,
    process: float | None = None,
    device: float | None = None,
    network: tuple[float | None] | None = None,
) -> dict[str, Any]:
    """Return the claimed bytes beside each counter's; `network` only for object stores."""
    counters = {"process": process, "device": device}
    if network is not None:
        counters["network"] = network[0]
    return {
        "claimed_bytes": claimed,
        **{f"{name}_bytes": counter for name, counter in counters.items()},
        **{
            f"{name}_to_claimed": None if counter is None else ratio(counter, claimed)
            for name, counter in counters.items()
        },
    }


def measured_windows(run: CountedRun) -> list[Any]:
    """Return what was counted in each window of the measured phase."""
    return [window for window in run.windows if window.phase is Phase.MEASURE]
