"""A run's result, or that of several ranks, as its readers have it: what pages, tables and pictures
take from the section `kv_cache`, typed. What an earlier schema did not have is absent here too, so
that results of all schemas are read by the same names.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from kv_cache.core.bounded import Count, Number
from kv_cache.core.crew import Member
from kv_cache.core.kinds import Phase
from kv_cache.metrics.histogram import Histogram
from kv_cache.result import kinds
from kv_cache.result.counted import Kernel, Verified
from kv_cache.result.preconditioning import Preconditioned
from kv_cache.result.run import converted

RANKS = kinds.RANKS
"""The schema of several ranks that ran together."""


class RuleRow(Struct, frozen=True, kw_only=True):
    """One rule of the passport with what it says."""

    rule: str
    name: str
    status: str
    message: str


class Passport(Struct, frozen=True, kw_only=True):
    """The verdict, what it rests on, and every rule."""

    verdict: str = ""
    reasons: list[str] = []
    rules: list[RuleRow] = []
    changed_thresholds: dict[str, Any] = {}
    evidence: dict[str, Any] = {}


class IntervalWithin(Struct, frozen=True, kw_only=True):
    """Where the headline may lie within this run."""

    low: Number
    high: Number
    confidence: Number


class Headline(Struct, frozen=True, kw_only=True):
    """The number that the run is there for, by its name among the metrics."""

    metric: str
    bytes_per_second: Number
    within_run: IntervalWithin | None = None
    why_none: str | None = None


class Percentiles(Struct, frozen=True, kw_only=True):
    """Of latencies in ms; None if too few values support one. Those named in `at_least` are lower
    bounds."""

    mean: Number | None = None
    p50: Number | None = None
    p95: Number | None = None
    p99: Number | None = None
    at_least: list[str] = []


class ObjectSizes(Struct, frozen=True, kw_only=True):
    """Sizes of the objects that one side of storage moved, and how many there are from each power
    of two to below the next."""

    objects: Count
    min: Number | None = None
    mean: Number | None = None
    p50: Number | None = None
    p95: Number | None = None
    max: Number | None = None
    powers_of_two: list[tuple[Count, Count]] = []


class TierSide(Struct, frozen=True, kw_only=True):
    """What one tier read, or wrote, in the measured window."""

    operations: Count = 0
    bytes: Count = 0
    bytes_per_second: Number = 0.0
    total_ms: Percentiles = Percentiles()
    device_ms: Percentiles = Percentiles()
    object_bytes: ObjectSizes | None = None


class TierStore(Struct, frozen=True, kw_only=True):
    """What held a tier's bytes; `fsync` was once yes or no."""

    engine: str = ""
    layout: str = "file"
    fsync: str | bool = False


class PublishedTier(Struct, frozen=True, kw_only=True):
    """One tier at the end of the run, and what it moved."""

    capacity_bytes: Count | None = None
    peak_bytes: Count | None = None
    entries: Count | None = None
    store: TierStore = TierStore()
    read: TierSide = TierSide()
    write: TierSide = TierSide()


class OperationFacts(Struct, frozen=True, kw_only=True):
    """All operations of one kind on one tier for one cause that ended in one phase."""

    phase: Phase
    tier: str
    operation: str
    cause: str
    operations: Count
    bytes: Count
    system_calls: Count | None = None
    engine: str = ""
    histogram_total: Histogram
    histogram_device: Histogram
    histogram_bytes: Histogram | None = None


class MetadataFacts(Struct, frozen=True, kw_only=True):
    """One step of operations on names and files."""

    phase: Phase
    tier: str
    operation: str
    step: str
    ms: Percentiles


class FailedOperations(Struct, frozen=True, kw_only=True):
    reason: str
    count: Count


class RequestBooks(Struct, frozen=True, kw_only=True):
    """What became of requests."""

    completed_in_window: Count | None = None
    failed: Count | None = None
    rejected: Count | None = None
    unfinished: Count | None = None


class SloFacts(Struct, frozen=True, kw_only=True):
    """How many requests of a class kept one limit; `met` None is too few to say."""

    target_ms: Number | None = None
    actual_ms: Number | None = None
    requests: Count = 0
    within: Count = 0
    share_low: Number | None = None
    share_high: Number | None = None
    met: bool | None = None


class ClassFacts(Struct, frozen=True, kw_only=True):
    """Requests of one class, or of all, that completed in the window."""

    completed: Count = 0
    output_tokens: Count = 0
    completed_per_second: Number | None = None
    output_tokens_per_second: Number | None = None
    response_ms: Percentiles = Percentiles()
    ttft_ms: Percentiles = Percentiles()
    histogram_response: Histogram = field(default_factory=Histogram)
    histogram_ttft: Histogram = field(default_factory=Histogram)
    slos: dict[str, SloFacts] = {}


class ReuseFacts(Struct, frozen=True, kw_only=True):
    """Blocks and tokens that were asked for, found, and on offer; an absent count was not kept by
    that version."""

    blocks: Count | None = None
    looked_up: Count | None = None
    hits: Count | None = None
    context_tokens: Count | None = None
    hit_tokens: Count | None = None
    offered_blocks: Count | None = None
    offered_tokens: Count | None = None
    retrieved_requests: Count | None = None
    retrieved_looked_up: Count | None = None
    retrieved_hits: Count | None = None
    retrieved_loaded_bytes: Count | None = None
    history_looked_up: Count | None = None
    history_hits: Count | None = None
    shared_looked_up: Count | None = None
    shared_hits: Count | None = None
    decode_looked_up: Count | None = None
    decode_hits: Count | None = None
    loaded_bytes: Count | None = None
    stored_bytes: Count | None = None
    offered_is_exact: bool | None = None
    reuse_hit_ratio: Number | None = None
    retrieved_hit_ratio: Number | None = None
    offered_block_ratio: Number | None = None
    achieved_block_ratio: Number | None = None
    offered_token_ratio: Number | None = None
    achieved_token_ratio: Number | None = None


class WindowSide(Struct, frozen=True, kw_only=True):
    """Operations of one kind on one tier in one window."""

    bytes: Count = 0
    p50_ms: Number | None = None
    p95_ms: Number | None = None
    p99_ms: Number | None = None


class WindowLatency(Struct, frozen=True, kw_only=True):
    p95_ms: Number | None = None


class WindowClass(Struct, frozen=True, kw_only=True):
    response_ms: WindowLatency = WindowLatency()
    ttft_ms: WindowLatency = WindowLatency()


class WindowMachine(Struct, frozen=True, kw_only=True):
    device_utilisation: Number | None = None


class WindowSaturation(Struct, frozen=True, kw_only=True):
    level: Number | None = None


class WindowFacts(Struct, frozen=True, kw_only=True):
    """One window of the run; what it does not name it had none of."""

    start_s: Number
    end_s: Number
    phase: Phase
    users: Number | None = None
    in_flight: Number | None = None
    queued: Number | None = None
    completed: Number = 0.0
    output_tokens: Number = 0.0
    tiers: dict[str, dict[str, WindowSide]] = {}
    classes: dict[str, WindowClass] = {}
    machine: WindowMachine | None = None
    saturation: WindowSaturation | None = None

    def side(self, tier: str, kind: str) -> WindowSide:
        """Return what one tier read or wrote."""
        return self.tiers.get(tier, {}).get(kind, WindowSide())


class RunSeries(Struct, frozen=True, kw_only=True):
    """All windows, `together` ticks of `tick_s` in each at most."""

    tick_s: Number | None = None
    together: Number = 1.0
    slos: list[str] = []
    windows: list[WindowFacts] = []


class ScalingRow(Struct, frozen=True, kw_only=True):
    """A decision of the autoscaler."""

    at_s: Number
    users_before: Number
    users: Number
    reason: str = ""


class AutoscalerEnd(Struct, frozen=True, kw_only=True):
    settled: bool


class BlockTally(Struct, frozen=True, kw_only=True):
    blocks: Count
    bytes: Count


class AdmissionTier(Struct, frozen=True, kw_only=True):
    consulted: bool
    admitted: BlockTally = BlockTally(blocks=0, bytes=0)
    not_admitted: dict[str, BlockTally] = {}


class AdmissionFacts(Struct, frozen=True, kw_only=True):
    name: str
    tiers: dict[str, AdmissionTier]
    not_stored: BlockTally


class WriteFacts(Struct, frozen=True, kw_only=True):
    name: str
    written: BlockTally | None = None
    failed: BlockTally | None = None
    no_room: BlockTally | None = None
    dropped_blocks: Count | None = None


class PrefetchFacts(Struct, frozen=True, kw_only=True):
    name: str
    started: BlockTally | None = None
    useful: BlockTally | None = None
    late: BlockTally | None = None
    wasted: BlockTally | None = None
    failed: BlockTally | None = None
    no_room: BlockTally | None = None
    unread_blocks: Count | None = None


class PolicyFacts(Struct, frozen=True, kw_only=True):
    """What policies did in the whole run; counts of the default policies are absent."""

    admission: AdmissionFacts | None = None
    write: WriteFacts | None = None
    prefetch: PrefetchFacts | None = None


class CountedByKernel(Struct, frozen=True, kw_only=True):
    """The bytes that one side claims to have moved, beside what the kernel counted of it."""

    claimed_bytes: Count = 0
    process_to_claimed: Number | None = None
    network_to_claimed: Number | None = None


class Reconciliation(Struct, frozen=True, kw_only=True):
    read: CountedByKernel
    write: CountedByKernel


class TraceNotes(Struct, frozen=True, kw_only=True):
    """The trace that was asked, or the synthetic users."""

    source: str | None = None
    users: Count | None = None
    loop: str | None = None
    multi_turn: bool | None = None
    request_rate_per_s: Number | None = None
    arrival_process: str | None = None
    speedup: Number | None = None
    files: list[str] = []
    format: str | None = None
    rows: Count | None = None
    asked_rows: Count | None = None
    skipped_bad_rows: Count = 0
    unidentified_rows: Count = 0
    includes_failed_rows: bool = False
    sha256: str | None = None
    time_unit: str | None = None
    time_unit_from: str | None = None
    notes: dict[str, Count] = {}
    rag_documents: Count | None = None
    rag_reuse: str | None = None
    rag_ingested_documents: Count | None = None
    rag_ingested_bytes: Count | None = None


class ModelFacts(Struct, frozen=True, kw_only=True):
    name: str | None = None
    bytes_per_token: Number | None = None


class PublishedSchedule(Struct, frozen=True, kw_only=True):
    sha256: str | None = None


class PhaseInstants(Struct, frozen=True, kw_only=True):
    measure_start: Count | None = None


class RecordingRow(Struct, frozen=True, kw_only=True):
    """A trace that the run wrote."""

    what: str
    path: str
    rows: Count
    sha256: str


class PublishedCrew(Struct, frozen=True, kw_only=True):
    """Ranks that ran together, by the first one's clock."""

    expected: Count | None = None
    ended_early: str | None = None
    start_skew_ns: Number | None = None
    start_skew_error_ns: Number | None = None
    members: list[Member] = []


class SharedTime(Struct, frozen=True, kw_only=True):
    """How far all ranks measured at the same time."""

    shared_s: Number | None = None
    span_s: Number | None = None
    shared_share: Number | None = None


class PublishedRank(Struct, frozen=True, kw_only=True):
    """One rank with its numbers by their names among the metrics, of which some are lower bounds;
    `result` is its own document."""

    rank: Count
    host: str | None = None
    verdict: str | None = None
    counted: bool
    why_not: str | None = None
    lost: str | None = None
    reasons: list[str] = []
    figures: dict[str, Number | None] | None = None
    at_least: list[str] = []
    seed: int | None = None
    window_s: Number | None = None
    fingerprint: str | None = None
    result: Any = None


class PredictionError(Struct, frozen=True, kw_only=True):
    absolute: Number | None = None
    relative: Number | None = None


class Prediction(Struct, frozen=True, kw_only=True):
    """What the twin said before the run, beside what was measured."""

    prediction: dict[str, Number | None] = {}
    measurement: dict[str, Number | None] = {}
    error: dict[str, PredictionError | None] = {}
    extrapolated: list[str] = []
    assumed_tiers: list[str] = []
    notes: list[str] = []


class PublishedRun(Struct, frozen=True, kw_only=True):
    """The section `kv_cache` of a run, or of ranks (`ranks` and `crew` are there)."""

    schema: str
    passport: Passport = Passport()
    program_version: str | None = None
    driver: str | None = None
    started_utc: str | None = None
    status: str | None = None
    contains_performance: bool | None = None
    semantics_preset: str | None = None
    seed: int | None = None
    window_s: Number = 0.0
    notes: list[str] = []
    headline: Headline | None = None
    requests: RequestBooks = RequestBooks()
    measured: dict[str, ClassFacts] = {}
    reuse: ReuseFacts | None = None
    tiers: dict[str, PublishedTier] = {}
    operations: list[OperationFacts] = []
    metadata: list[MetadataFacts] = []
    failed_operations: list[FailedOperations] = []
    series: RunSeries | None = None
    autoscaling: list[ScalingRow] = []
    autoscaler: AutoscalerEnd | None = None
    policies: PolicyFacts | None = None
    verification: Verified | None = None
    reconciliation: Reconciliation | None = None
    workload: TraceNotes | None = None
    model: ModelFacts = ModelFacts()
    schedule: PublishedSchedule | None = None
    phases_ns: PhaseInstants = PhaseInstants()
    kernel_counters: dict[str, Kernel] = {}
    recordings: list[RecordingRow] = []
    config: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    twin: Prediction | None = None
    preconditioning: Preconditioned | None = None
    crew: PublishedCrew | None = None
    together: SharedTime | None = None
    ranks: list[PublishedRank] | None = None

    @property
    def measured_bytes(self) -> bool:
        """Whether bytes were moved, rather than simulated."""
        return self.driver == "real-io"


def published(section: Mapping[str, Any]) -> PublishedRun:
    """Return the section `kv_cache` of a result of any schema. Raises MisshapenError."""
    return converted(section, PublishedRun, "")
