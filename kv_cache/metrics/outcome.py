"""What a run leaves behind for the report, from either driver: plain values and the recorder."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from kv_cache.core.kinds import Outcome, Phase, Tier
from kv_cache.core.mpirank import ALONE, MpiRank
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.ceiling import CeilingPoint
from kv_cache.metrics.recorder import Recorder
from kv_cache.metrics.until import Precision
from kv_cache.metrics.window import Series

_RUN = (Phase.WARMUP, Phase.MEASURE, Phase.DRAIN)
"""What was asked before them was asked by the preconditioning."""


class TierFacts(Struct, frozen=True, kw_only=True):
    """One tier at the end of the run. `capacity_bytes` None is unlimited."""

    tier: Tier
    capacity_bytes: int | None
    used_bytes: int
    peak_bytes: int
    stranded_bytes: int
    entries: int
    store: Mapping[str, Any]
    eviction: Mapping[str, int] = field(default_factory=dict)  # what the policy says of itself


class RunOutcome(Struct, frozen=True, kw_only=True):
    """`kernel` has the deltas of the kernel's counters over the whole run and over the window,
    `witness` what else the machine said of the run (`bench/witness`)."""

    driver: str  # "real-io" or "virtual-time"
    recorder: Recorder
    submitted: int
    longest_queue: int
    out_of_turn: int | None = None  # served before one that came earlier; None without priorities
    tiers: Sequence[TierFacts]
    dropped_last_copies: int
    dropped_stores: int
    lost_bytes: int
    schedule_sha256: str
    schedule_requests: int
    workload: Mapping[str, Any]
    warnings: Sequence[str] = ()
    seed: int = 0
    started_unix_s: float = 0.0
    interrupted: str | None = None  # the signal's name
    death: str | None = None  # why a thread of the program died, or what did not answer
    unanswered: Mapping[str, Any] | None = None  # the calls on storage that were given up
    kernel: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    witness: Mapping[str, Any] = field(default_factory=dict)
    ceiling: Sequence[CeilingPoint] | None = None  # what the client could do, from --certify
    offered_forgotten: int = 0  # blocks whose being asked for again would not be seen
    record_bytes: int = 0  # that the program wrote to files of records
    buffers: Mapping[str, Any] = field(default_factory=dict)
    series: Series = field(default_factory=Series)
    slos: Sequence[str] = ()  # those that the windows count `over` for
    decisions: Sequence[Mapping[str, Any]] = ()  # of the autoscaler
    standing: Mapping[str, Any] | None = None  # how far it has come
    precision: Precision | None = None  # what ended the window, where it was asked for
    preconditioning: Mapping[str, Any] | None = None
    policies: Mapping[str, Any] = field(default_factory=dict)  # their names, and what they did
    tracing: Mapping[str, Any] | None = None  # the reference's keys, where the kernel was traced
    leftovers: Mapping[str, Any] | None = None  # of dead runs, that were removed at the opening
    kept_in: str | None = None  # the directory of cache files that were left on purpose
    rank: MpiRank = ALONE
    not_submittable: Sequence[str] = ()  # why no launcher may be given this as a result

    @property
    def window_ns(self) -> int:
        """Length of the measured window; 0 where it never began."""
        edges = self.recorder.edges
        return max(0, (edges.measure_end_ns or 0) - edges.measure_start_ns)

    @property
    def window_s(self) -> float:
        return self.window_ns / NS_PER_S

    def accounting(self) -> dict[str, int]:
        """Where every submitted request ended: completed + failed + rejected + unfinished.

        What ended after the window closed is unfinished, however it ended; it is counted apart.
        """
        outcomes = self.recorder.outcomes
        live = (Phase.WARMUP, Phase.MEASURE)

        def count(outcome: Outcome, phases: Sequence[Phase]) -> int:
            return sum(outcomes[phase][outcome] for phase in phases)

        drained = count(Outcome.COMPLETED, (Phase.DRAIN,))
        failed_late = count(Outcome.FAILED, (Phase.DRAIN,))
        abandoned = count(Outcome.UNFINISHED, _RUN)
        return {
            "submitted": self.submitted,
            "completed": count(Outcome.COMPLETED, live),
            "failed": count(Outcome.FAILED, live),
            "rejected": count(Outcome.REJECTED, _RUN),
            "unfinished": drained + failed_late + abandoned,
            "completed_in_warmup": count(Outcome.COMPLETED, (Phase.WARMUP,)),
            "completed_in_window": count(Outcome.COMPLETED, (Phase.MEASURE,)),
            "unfinished_completed_in_drain": drained,
            "unfinished_failed_in_drain": failed_late,
            "unfinished_abandoned": abandoned,
        }
