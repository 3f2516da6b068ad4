"""What a run counted, typed: the facts of a result from which all its other numbers follow.

A `Counted` has the shape of the document that it is stored in, without what is derived: reading one
is `msgspec.convert`, which validates every value and names the place of one that is wrong. What
several runs counted merges (`merge`); `derive` has the formulas.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from kv_cache.core.bounded import Count, Seconds
from kv_cache.core.kinds import Cause, OpKind, Phase, Qos, TierLabel
from kv_cache.metrics import histogram
from kv_cache.metrics.histogram import Histogram

Json = dict[str, Any]
Kernel = dict[str, int | float | str | None]
"""Deltas of the kernel's counters by name; `device` is a name."""

T = TypeVar("T", bound=Struct)


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
        """Return the histogram of a latency of `metrics.recorder.LATENCIES`."""
        histogram: Histogram = getattr(self, f"histogram_{name}")
        return histogram


class Classes(Struct, frozen=True, kw_only=True, dict=True):
    """The measured requests by QoS class."""

    interactive: RequestCounts
    responsive: RequestCounts
    batch: RequestCounts

    def of(self, qos: Qos | None) -> RequestCounts:
        """Return one class; None is all as one."""
        counts: RequestCounts = self.together if qos is None else getattr(self, qos.value)
        return counts

    @cached_property
    def together(self) -> RequestCounts:
        """All classes as one."""
        return pooled([self.of(qos) for qos in Qos])


class RequestAccounts(Struct, frozen=True, kw_only=True):
    """Where the submitted requests ended. `out_of_turn` of them were served before one that came
    earlier: None where priorities did not differ, unset in results of earlier versions."""

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
    out_of_turn: Count | UnsetType | None = UNSET

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
    """Instants of the run's clock in ns; None if a phase never ended."""

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


class PrecisionCounts(Struct, frozen=True, kw_only=True):
    """What ended the window (`metrics.until`): whether its figure was sure enough, and of a
    percentile each batch's values, and how many of them lie beyond it."""

    stopped: bool
    batches: list[tuple[Count, Count]]


class RankFacts(Struct, frozen=True, kw_only=True):
    rank: Count
    ranks: Count | None
    on_machine: Count | None
    source: str | None


class ScheduleFacts(Struct, frozen=True, kw_only=True):
    sha256: str
    requests_digested: Count


class SeriesFacts(Struct, frozen=True, kw_only=True):
    """The windows as `metrics.window` wrote them, which has their statistics."""

    tick_s: float
    together: Count
    slos: list[str]
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
    hidden_caches: list[Any] = []
    counters_by: list[Any] = []


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
    precision: PrecisionCounts | None = None
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


def pooled(rows: Sequence[T]) -> T:
    """Return rows of one kind as one row: counts added, histograms merged, flags that all have,
    everything else as in the first."""
    values = asdict(rows[0])
    for name, first in values.items():
        column = [getattr(row, name) for row in rows]
        if isinstance(first, Histogram):
            values[name] = histogram.merged(column)
        elif type(first) is bool:
            values[name] = all(column)
        elif all(type(value) is int for value in column):
            values[name] = sum(column)
    return type(rows[0])(**values)
