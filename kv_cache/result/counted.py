"""What a run counted, typed: the facts of a result from which all its other numbers follow.

A `Counted` has the shape of the document that it is stored in, without what is derived: reading one
is `msgspec.convert`, which validates every value and names the place of one that is wrong. What
several runs counted merges (`merged`); `derive` has the formulas.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, fields

from kv_cache.core.kinds import TIER_LABELS, Cause, OpKind, Phase, Qos, TierLabel
from kv_cache.metrics import histogram
from kv_cache.metrics.histogram import Histogram

Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
"""No number of a document is larger: not a byte count, nor an instant in nanoseconds."""
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What a counter can have reached."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
"""A time that a run can have taken."""
Json = dict[str, Any]
Kernel = dict[str, int | float | str | None]
"""Deltas of the kernel's counters by name; `device` is a name."""

T = TypeVar("T", bound=Struct)
K = TypeVar("K")


class OperationRow(Struct, frozen=True, kw_only=True):
    """Physical operations of one phase, tier, kind, cause and engine. Bytes and system calls are
    counted as they end, the histograms by whole operations (times in ns, sizes in bytes)."""

    phase: Phase
    tier: TierLabel
    operation: OpKind
    cause: Cause
    engine: str
    bytes: Count
    system_calls: Count
    histogram_total: Histogram
    histogram_device: Histogram
    histogram_host: Histogram
    histogram_bytes: Histogram


class MetadataRow(Struct, frozen=True, kw_only=True):
    """One kind of operation on metadata: open, create, rename, fsync, ..."""

    phase: Phase
    tier: TierLabel
    operation: OpKind
    step: str
    histogram: Histogram


class FailureRow(Struct, frozen=True, kw_only=True):
    """Failed operations of one kind and reason."""

    tier: TierLabel
    operation: OpKind
    cause: Cause
    reason: str
    count: Count


class RequestCounts(Struct, frozen=True, kw_only=True):
    """Requests of one class that completed inside the window, and each latency of the vocabulary
    in ns."""

    completed: Count
    prompt_tokens: Count
    output_tokens: Count
    histogram_response: Histogram
    histogram_end_to_end: Histogram
    histogram_ttft: Histogram
    histogram_tpot: Histogram
    histogram_lateness: Histogram
    histogram_queue: Histogram
    histogram_service: Histogram
    histogram_storage: Histogram
    histogram_compute: Histogram

    def latency(self, name: str) -> Histogram:
        """The histogram of a latency of `metrics.summary.LATENCIES`."""
        histogram: Histogram = getattr(self, f"histogram_{name}")
        return histogram


class Classes(Struct, frozen=True, kw_only=True, dict=True):
    """The measured requests by QoS class."""

    interactive: RequestCounts
    responsive: RequestCounts
    batch: RequestCounts

    def of(self, qos: Qos) -> RequestCounts:
        counts: RequestCounts = getattr(self, qos.value)
        return counts

    @cached_property
    def together(self) -> RequestCounts:
        """All classes as one."""
        return _pooled([self.of(qos) for qos in Qos])


class RequestAccounts(Struct, frozen=True, kw_only=True):
    """Where the submitted requests ended."""

    submitted: Count
    failed: Count
    rejected: Count
    completed_in_warmup: Count
    completed_in_window: Count
    unfinished_completed_in_drain: Count
    unfinished_failed_in_drain: Count
    unfinished_abandoned: Count
    longest_queue: Count
    errors: dict[str, Count]

    @property
    def completed(self) -> int:
        return self.completed_in_warmup + self.completed_in_window

    @property
    def unfinished(self) -> int:
        drained = self.unfinished_completed_in_drain + self.unfinished_failed_in_drain
        return drained + self.unfinished_abandoned


class ReuseCounts(Struct, frozen=True, kw_only=True):
    """Blocks asked for and hit by measured requests; defined in `docs/metrics.md`."""

    requests: Count
    blocks: Count
    looked_up: Count
    hits: Count
    context_tokens: Count
    hit_tokens: Count
    offered_blocks: Count
    offered_tokens: Count
    retrieved_requests: Count
    retrieved_looked_up: Count
    retrieved_hits: Count
    retrieved_loaded_bytes: Count
    history_looked_up: Count
    history_hits: Count
    shared_looked_up: Count
    shared_hits: Count
    shared_hit_bytes: Count
    decode_looked_up: Count
    decode_hits: Count
    loaded_bytes: Count
    stored_bytes: Count
    offered_is_exact: bool


class TierCounts(Struct, frozen=True, kw_only=True):
    """One tier at the end of the run; `capacity_bytes` None is unlimited."""

    capacity_bytes: Count | None
    used_bytes: Count
    peak_bytes: Count
    stranded_bytes: Count
    entries: Count
    store: Json


class Verified(Struct, frozen=True, kw_only=True):
    """What was read and compared with what had been written."""

    mode: str
    objects: Count
    bytes: Count


class EvictionCounts(Struct, frozen=True, kw_only=True):
    dropped_last_copies: Count
    dropped_stores: Count
    lost_bytes: Count
    policies: dict[str, dict[str, int]] | UnsetType = UNSET


class MergeableCounts(Struct, frozen=True, kw_only=True):
    """The part of what was counted that merges."""

    requests: RequestAccounts
    measured: Classes
    reuse: ReuseCounts
    tiers: dict[TierLabel, TierCounts]
    operations: list[OperationRow]
    metadata: list[MetadataRow]
    failed_operations: list[FailureRow]
    verification: Verified
    evictions: EvictionCounts


class PhaseEnds(Struct, frozen=True, kw_only=True):
    """Instants of the run's clock in ns; None where a phase never ended."""

    populate_end: Count | None
    precondition_end: Count | None
    measure_start: Count
    measure_end: Count | None


class Pacing(Struct, frozen=True, kw_only=True):
    """How storage moved its bytes over the window (`metrics.pace`)."""

    before_bytes: Count
    after_bytes: Count
    call_s: Seconds
    batches: list[tuple[Seconds, Count]]


class RankFacts(Struct, frozen=True, kw_only=True):
    rank: Count
    ranks: Count | None
    on_machine: Count | None
    told_by: str | None


class ScheduleFacts(Struct, frozen=True, kw_only=True):
    sha256: str
    requests_digested: Count


class SeriesFacts(Struct, frozen=True, kw_only=True):
    """The windows as `metrics.window` wrote them, which has their statistics."""

    tick_s: float
    together: Count
    promises: list[str]
    windows: list[Json]


class WindowCounts(Struct, frozen=True, kw_only=True):
    """What is derived from a window."""

    start_s: float
    end_s: float
    phase: Phase
    queued: Count
    in_flight: Count
    submitted: Count
    output_tokens: Count
    tiers: dict[str, dict[str, "SideOfWindow"]]


class SideOfWindow(Struct, frozen=True, kw_only=True):
    bytes: Count


class WorkloadFacts(Struct, frozen=True, kw_only=True):
    """What is derived from a source's description of itself."""

    source: str | None = None
    loop: str = "trace"
    models: list[Json] | UnsetType = UNSET
    arrival_process: str | UnsetType = UNSET
    arrival_cv: float | None = None
    request_rate_per_s: float | None = None
    shared_prompts: Any = None
    prepopulated_objects: Any = UNSET
    trace_block_tokens: Count = 0

    @property
    def arrival(self) -> str:
        return self.loop if self.arrival_process is UNSET else self.arrival_process


class CpuFacts(Struct, frozen=True, kw_only=True):
    logical_cores: Count | None = None


class FilesystemFacts(Struct, frozen=True, kw_only=True):
    type: str | None = None


class StackFacts(Struct, frozen=True, kw_only=True):
    """What lies below a directory."""

    feet: list[Any]
    not_compared: list[Any]
    no_barrier: list[Any]
    uncounted: list[Any]


class DriveFacts(Struct, frozen=True, kw_only=True):
    filesystem: FilesystemFacts | None = None
    stack: StackFacts | None = None


class MachineFacts(Struct, frozen=True, kw_only=True):
    """What is derived from the environment."""

    hostname: str | None = None
    cpu: CpuFacts | None = None
    drives: list[DriveFacts] = []


class CompletenessFacts(Struct, frozen=True, kw_only=True):
    interrupted: str | None
    records_error: str | None


class VerificationFacts(Struct, frozen=True, kw_only=True):
    storage_bytes: Count


class LedgerFacts(Struct, frozen=True, kw_only=True):
    """`server_here` is unset but of an object store."""

    other_process_write_bytes: Count
    settle_s: float | None
    accounted: Any
    server_here: bool | UnsetType | None = UNSET


class AmplificationFacts(Struct, frozen=True, kw_only=True):
    unique_read_bytes: Count
    stored_bytes: Count


class EvidenceFacts(Struct, frozen=True, kw_only=True):
    """What the machine said of the run, and what only the recorder knew; mappings are the
    witness's own."""

    completeness: CompletenessFacts
    verification: VerificationFacts
    ledger: LedgerFacts
    amplification: AmplificationFacts
    stack: Json | None
    page_cache: Json | None
    link: Json
    payload: Json | None
    interposed: Json | None
    throttles: Json | None
    foreign: Json | None
    client: Json
    clock: Json | None
    gaps: Json | None


class PassportFacts(Struct, frozen=True, kw_only=True):
    evidence: EvidenceFacts


class Facts(MergeableCounts, frozen=True, kw_only=True):
    """The counted part of the section `kv_cache`."""

    program_version: str
    driver: Literal["real-io", "virtual-time"]
    started_utc: str | None
    status: Literal["finished", "interrupted", "broken"]
    unanswered: Json | None
    leftovers: Json | None
    left_behind: list[str] | UnsetType = UNSET
    notes: list[str]
    passport: PassportFacts
    seed: int
    rank: RankFacts
    not_submittable: list[str]
    schedule: ScheduleFacts
    phases_ns: PhaseEnds
    headline: Pacing
    series: SeriesFacts
    autoscaling: list[Json]
    autoscaler: Json | None
    preconditioning: Json | None
    latency_tracing: Any
    policies: Json
    kernel_counters: dict[str, Kernel]
    buffers: Json
    workload: Json
    model: Json
    semantics: Json
    latency_lists_truncated: bool
    config: Json
    environment: Json
    recordings: list[Json]
    twin: Json | UnsetType = UNSET


class Counted(Struct, frozen=True, kw_only=True):
    """One run's facts. The lists are single latencies in seconds, as many as a result keeps, under
    the reference's names."""

    kv_cache: Facts
    end_to_end_latencies: list[float]
    storage_latencies: list[float]
    generation_latencies: list[float]
    prefill_latencies: list[float]
    decode_latencies: list[float]
    device_latency_tracing: Json | UnsetType = UNSET
    validation: Json | UnsetType = UNSET


LISTS = (
    *("end_to_end_latencies", "storage_latencies", "generation_latencies"),
    *("prefill_latencies", "decode_latencies"),
)


# --- merging ---------------------------------------------------------------------------------


def merged(several: Sequence[MergeableCounts]) -> MergeableCounts:
    """What several runs counted, as if one recorder had seen all of it, in whatever order."""
    if len(several) == 1:
        return several[0]
    if not several:
        return nothing()
    return MergeableCounts(
        requests=_requests([totals.requests for totals in several]),
        measured=Classes(
            **{q.value: _pooled([totals.measured.of(q) for totals in several]) for q in Qos}
        ),
        reuse=_reuse([totals.reuse for totals in several]),
        tiers={
            label: _tier([totals.tiers[label] for totals in several if label in totals.tiers])
            for label in TIER_LABELS
            if any(label in totals.tiers for totals in several)
        },
        operations=_grouped(several, lambda t: t.operations, operation_key),
        metadata=_grouped(several, lambda t: t.metadata, metadata_key),
        failed_operations=_failures(several),
        verification=Verified(
            mode="+".join(sorted({totals.verification.mode for totals in several})) or "none",
            objects=sum(totals.verification.objects for totals in several),
            bytes=sum(totals.verification.bytes for totals in several),
        ),
        evictions=EvictionCounts(
            **{
                name: sum(getattr(totals.evictions, name) for totals in several)
                for name in ("dropped_last_copies", "dropped_stores", "lost_bytes")
            }
        ),
    )


def nothing() -> MergeableCounts:
    """What no run at all counted."""
    none: dict[str, Any] = {field.name: 0 for field in fields(RequestCounts)[:3]}
    none |= {field.name: Histogram() for field in fields(RequestCounts)[3:]}
    requests = {field.name: 0 for field in fields(RequestAccounts)[:-1]}
    reuse = {field.name: 0 for field in fields(ReuseCounts)[:-1]}
    return MergeableCounts(
        requests=RequestAccounts(**requests, errors={}),
        measured=Classes(**{qos.value: RequestCounts(**none) for qos in Qos}),
        reuse=ReuseCounts(**reuse, offered_is_exact=True),
        tiers={},
        operations=[],
        metadata=[],
        failed_operations=[],
        verification=Verified(mode="none", objects=0, bytes=0),
        evictions=EvictionCounts(dropped_last_copies=0, dropped_stores=0, lost_bytes=0),
    )


def operation_key(row: OperationRow) -> tuple[str, ...]:
    """What rows of operations are counted apart by, in the order of a result's rows: tiers from
    the fastest."""
    return (row.phase, str(TIER_LABELS.index(row.tier)), row.operation, row.cause, row.engine)


def metadata_key(row: MetadataRow) -> tuple[str, ...]:
    """The same of rows of metadata."""
    return (row.phase, str(TIER_LABELS.index(row.tier)), row.operation, row.step)


def failure_order(row: FailureRow) -> tuple[int, str, str, str, str]:
    """The most frequent first."""
    return (-row.count, row.reason, row.tier, row.operation, row.cause)


def _pooled(rows: Sequence[T]) -> T:
    """Rows of one kind as one: counts added, histograms merged, all else as in the first."""
    values = asdict(rows[0])
    for name, first in values.items():
        if isinstance(first, Histogram):
            values[name] = histogram.merged(getattr(row, name) for row in rows)
        elif type(first) is int:
            values[name] = sum(getattr(row, name) for row in rows)
    return type(rows[0])(**values)


def _grouped(
    several: Iterable[MergeableCounts],
    rows_of: Callable[[MergeableCounts], Iterable[T]],
    key: Callable[[T], tuple[str, ...]],
) -> list[T]:
    groups: dict[tuple[str, ...], list[T]] = {}
    for totals in several:
        for row in rows_of(totals):
            groups.setdefault(key(row), []).append(row)
    return [_pooled(groups[each]) for each in sorted(groups)]


def _requests(several: Sequence[RequestAccounts]) -> RequestAccounts:
    """The longest queue is the longest that one run had."""
    names = [field.name for field in fields(RequestAccounts)][:-2]
    return RequestAccounts(
        **{name: sum(getattr(each, name) for each in several) for name in names},
        longest_queue=max((each.longest_queue for each in several), default=0),
        errors=dict(sorted(added(each.errors for each in several).items())),
    )


def added(several: Iterable[Mapping[K, int]]) -> dict[K, int]:
    """Counts by name, added up; names in the order in which they are first met."""
    total: dict[K, int] = {}
    for counts in several:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def _reuse(several: Sequence[ReuseCounts]) -> ReuseCounts:
    names = [field.name for field in fields(ReuseCounts)][:-1]
    return ReuseCounts(
        **{name: sum(getattr(each, name) for each in several) for name in names},
        offered_is_exact=all(each.offered_is_exact for each in several),
    )


def _tier(several: Sequence[TierCounts]) -> TierCounts:
    limits = [each.capacity_bytes for each in several]
    levels = ("used_bytes", "peak_bytes", "stranded_bytes", "entries")
    return TierCounts(
        capacity_bytes=None if None in limits else sum(limit or 0 for limit in limits),
        **{name: sum(getattr(each, name) for each in several) for name in levels},
        store=_store([each.store for each in several]),
    )


def _store(stores: Sequence[Json]) -> Json:
    """What all stores have in common; their engines joined by `+`."""
    shared: Json = dict(common(stores) or {})
    for name in ("engine", "write_engine"):
        engines = {part for store in stores for part in str(store.get(name) or "").split("+")}
        if engines - {""}:
            shared[name] = "+".join(sorted(engines - {""}))
    return shared


def _failures(several: Iterable[MergeableCounts]) -> list[FailureRow]:
    counts: Counter[tuple[TierLabel, OpKind, Cause, str]] = Counter()
    for totals in several:
        for row in totals.failed_operations:
            counts[row.tier, row.operation, row.cause, row.reason] += row.count
    rows = [
        FailureRow(tier=tier, operation=operation, cause=cause, reason=reason, count=count)
        for (tier, operation, cause, reason), count in counts.items()
    ]
    return sorted(rows, key=failure_order)


class _Differs:
    """Instead of a value on which several do not agree."""


_DIFFERS = _Differs()


def common(values: Sequence[Any]) -> Any:
    """What several plain values have in common: a mapping without the keys on which they do not
    agree; None where they agree on nothing."""
    agreed = _common(values) if values else None
    return None if isinstance(agreed, _Differs) else agreed


def _common(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values[1:]):
        return first
    if not all(isinstance(value, Mapping) for value in values):
        return _DIFFERS
    shared = {name: _common([value[name] for value in values])
              for name in first if all(name in value for value in values)}  # fmt: skip
    return {name: value for name, value in shared.items() if not isinstance(value, _Differs)}
