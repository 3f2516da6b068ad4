"""What happened, counted as it ends: operations by tier, kind, cause, engine and phase; requests
by outcome and class. The size is bounded however long the run is.

Phases are decided by the instant at which something ended. Bytes are counted by the system call
(`IoChunk`), operations and their latencies by the operation: a transfer that straddles the end of
the window gives its finished system calls to the window and its latency to the drain.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from msgspec import Struct, field

from kv_cache.core.effect import (
    ABORTED,
    CopyRef,
    EndedLegs,
    Leg,
    OpDone,
    Write,
)
from kv_cache.core.kinds import Cause, OpKind, Outcome, Phase, Qos, Tier
from kv_cache.core.ops_done import OpsDone
from kv_cache.core.record import RequestRecord
from kv_cache.metrics.histogram import Histogram, Values
from kv_cache.metrics.pace import BytesOverTime
from kv_cache.metrics.window import Meter

SAMPLE_LIMIT = 50_000
"""How many single latencies a result keeps for the reference's lists; histograms keep all."""


_PACED = (Phase.MEASURE, Phase.DRAIN)


class Flow(NamedTuple):
    """What is counted apart."""

    phase: Phase
    tier: Tier
    kind: OpKind
    cause: Cause
    engine: str


class OpStats(Struct, eq=False):
    """`bytes` and `calls` (system calls that moved them) as they end, the rest by operation;
    `sizes` are bytes of whole objects."""

    operations: int = 0
    bytes: int = 0
    calls: int = 0
    sizes: Histogram = field(default_factory=Histogram)
    total: Histogram = field(default_factory=Histogram)
    device: Histogram = field(default_factory=Histogram)
    host: Histogram = field(default_factory=Histogram)


class Failure(Struct, frozen=True):
    tier: Tier
    kind: OpKind
    cause: Cause
    reason: str


class Edges(Struct, eq=False):
    """Where the phases meet. Unknown ends are None: then the earlier phase is still running."""

    populate_end_ns: int | None = None
    precondition_end_ns: int | None = 0  # None while it is running
    measure_start_ns: int = 0
    measure_end_ns: int | None = None

    def phase_of(self, at_ns: int) -> Phase:
        if self.populate_end_ns is None or at_ns < self.populate_end_ns:
            return Phase.POPULATE
        if self.precondition_end_ns is None or at_ns < self.precondition_end_ns:
            return Phase.PRECONDITION
        if at_ns < self.measure_start_ns:
            return Phase.WARMUP
        if self.measure_end_ns is None or at_ns <= self.measure_end_ns:
            return Phase.MEASURE
        return Phase.DRAIN


class StepFlow(NamedTuple):
    """What is counted apart of operations on metadata."""

    phase: Phase
    tier: Tier
    kind: OpKind
    step: str


class Distinct:
    """Bytes of different copies that were read from storage. It remembers only copies that are
    still there, so it is no larger than the cache's own index."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.bytes = 0

    def see(self, refs: Sequence[CopyRef], kind: OpKind) -> None:
        """Note operations on copies: reads, and deletes of what is there no more."""
        if kind is OpKind.DELETE:
            self._seen.difference_update([ref[0] for ref in refs])
        elif kind is OpKind.READ:
            seen = self._seen
            for copy_id, _, _, nbytes, _, _ in refs:
                if copy_id not in seen:
                    seen.add(copy_id)
                    self.bytes += nbytes


class FirstValues:
    """The first values of a list without end, in seconds, and how many there were. All of its
    memory is taken at once."""

    def __init__(self) -> None:
        self._values = array("d", bytes(8 * SAMPLE_LIMIT))
        self.seen = 0

    def add(self, value_ns: int) -> None:
        if self.seen < SAMPLE_LIMIT:
            self._values[self.seen] = value_ns / 1e9
        self.seen += 1

    def kept(self) -> list[float]:
        return self._values[: min(self.seen, SAMPLE_LIMIT)].tolist()


LATENCIES = (
    *("response", "end_to_end", "ttft", "tpot", "lateness", "queue"),
    *("service", "storage", "compute"),
)
"""Of a request; each is a histogram of `RequestStats`."""
_LATENCIES = tuple((name, f"{name}_ns") for name in LATENCIES)


def latencies_of(record: RequestRecord) -> list[tuple[str, int]]:
    """Return the latencies that a request has, by their names."""
    values = ((name, getattr(record, of_record)) for name, of_record in _LATENCIES)
    return [(name, round(value)) for name, value in values if value is not None]


class RequestStats(Struct, eq=False):
    """Requests of one class (or all) that completed inside the window."""

    completed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    response: Histogram = field(default_factory=Histogram)
    end_to_end: Histogram = field(default_factory=Histogram)
    lateness: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    storage: Histogram = field(default_factory=Histogram)
    compute: Histogram = field(default_factory=Histogram)

    def add(self, record: RequestRecord, latencies: Sequence[tuple[str, int]]) -> None:
        self.completed += 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens
        for name, latency_ns in latencies:
            getattr(self, name).add(latency_ns)

    def add_in_flight(self, record: RequestRecord, end_ns: int) -> None:
        """A request that had not been answered at `end_ns`: what it had waited for until then."""
        self.response.add_in_flight(end_ns - record.intended_ns)
        self.end_to_end.add_in_flight(end_ns - record.enqueued_ns)
        if record.first_token_ns is None or record.first_token_ns > end_ns:
            self.ttft.add_in_flight(end_ns - record.intended_ns)


class ReuseStats(Struct, eq=False):
    """Blocks asked for and found, by measured requests (completed or failed)."""

    requests: int = 0
    blocks: int = 0
    looked_up: int = 0
    hits: int = 0
    context_tokens: int = 0
    hit_tokens: int = 0
    offered_blocks: int = 0
    offered_tokens: int = 0
    retrieved_requests: int = 0
    retrieved_looked_up: int = 0
    retrieved_hits: int = 0
    retrieved_loaded_bytes: int = 0
    history_looked_up: int = 0
    history_hits: int = 0
    shared_looked_up: int = 0
    shared_hits: int = 0
    shared_hit_bytes: int = 0
    decode_looked_up: int = 0
    decode_hits: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0

    def add(self, record: RequestRecord) -> None:
        self.requests += 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(record, name))
        if record.retrieved:
            self.retrieved_requests += 1
            self.retrieved_looked_up += record.looked_up
            self.retrieved_hits += record.hits
            self.retrieved_loaded_bytes += record.loaded_bytes


_SUMMED = tuple(
    name for name in ReuseStats.__struct_fields__ if name in RequestRecord.__struct_fields__
)


class Recorder:
    """Counts of a run: the driver reports every operation and every request, under its lock."""

    def __init__(self, edges: Edges, meter: Meter | None = None) -> None:
        self.edges = edges
        self.meter = meter or Meter()
        self.flows: dict[Flow, OpStats] = {}
        self._index: dict[tuple[Phase, Tier, OpKind, Cause, str], OpStats] = {}  # by plain tuples
        self.steps: defaultdict[StepFlow, Histogram] = defaultdict(Histogram)
        self.distinct = Distinct()
        self.pace = BytesOverTime()
        self.new_bytes = 0  # of blocks that were stored as new, in whatever tier
        self.failures: Counter[Failure] = Counter()
        self.request_errors: Counter[str] = Counter()
        self.outcomes: dict[Phase, Counter[Outcome]] = {phase: Counter() for phase in Phase}
        self.all = RequestStats()
        self.classes = {qos: RequestStats() for qos in Qos}
        self.reuse = ReuseStats()
        self.loads = Histogram()  # what a request waited for its loads, of those that loaded
        self.stores = Histogram()  # and for its stores
        self.verified_objects = 0
        self.verified_bytes = 0
        self.verified_storage_bytes = 0
        self.end_to_end_s = FirstValues()
        self.storage_s = FirstValues()
        self.generation_s = FirstValues()
        self.prefill_s = FirstValues()
        self.decode_s = FirstValues()

    def op(self, done: OpDone, *, verified: bool = False) -> None:
        """Record one physical operation that has ended, well or badly."""
        self.meter.op(done)
        for leg in done.legs:
            phase = self.edges.phase_of(leg.finished_ns)
            if phase is Phase.DRAIN:
                self._in_flight(done.op.cause, leg)
            flow = (leg.tier, leg.kind, done.op.cause, leg.engine)
            began_ns = leg.started_ns
            for chunk in leg.chunks:
                at = self.edges.phase_of(chunk.finished_ns)
                where = self._flow(at, *flow)
                where.bytes += chunk.nbytes
                where.calls += 1
                if leg.tier is Tier.NVME and at in _PACED:
                    start_ns, end_ns = self.edges.measure_start_ns, self.edges.measure_end_ns
                    self.pace.call(leg.kind, chunk, began_ns, start_ns, end_ns)
                began_ns = chunk.finished_ns
            for step in leg.steps:
                at_step = StepFlow(phase, leg.tier, leg.kind, step.name)
                self.steps[at_step].add(step.duration_ns)
            if not done.ok:
                continue
            if isinstance(done.op, Write):
                self.new_bytes += leg.nbytes
            if leg.tier is Tier.NVME:
                self.distinct.see((done.op.source,), leg.kind)
            total, stats = leg.total_ns, self._flow(phase, *flow)
            stats.operations += 1
            stats.sizes.add(leg.nbytes)
            stats.total.add(total)
            stats.device.add(leg.device_ns)
            if leg.kind is not OpKind.DELETE:
                stats.host.add(max(0, total - leg.device_ns))
            if verified and leg.kind is OpKind.READ:
                self.verified_objects += 1
                self.verified_bytes += leg.nbytes
                if leg.tier is Tier.NVME:
                    self.verified_storage_bytes += leg.nbytes
        if done.failed is not None and done.error != ABORTED:
            reason = done.error or "unknown"
            self.failures[Failure(done.failed_tier, done.failed, done.op.cause, reason)] += 1

    def ops(self, done: OpsDone, *, verified: bool = False) -> None:
        """As `op` of each."""
        if any(map(self._straddles, done.sides)):
            for one in done.each():
                self.op(one, verified=verified)
            return
        for side in done.sides:
            self._side(side, new=isinstance(done.ops[0], Write))
        if verified and done.kind is OpKind.READ:
            nbytes = sum(ref.nbytes for ref in done.refs)
            self.verified_objects += len(done.refs)
            self.verified_bytes += nbytes
            if done.tier is Tier.NVME:
                self.verified_storage_bytes += nbytes

    def _straddles(self, done: OpsDone) -> bool:
        """Return whether steps follow the call of some beyond an edge of the window."""
        if not done.moved_ns:
            return False
        last = self.edges.phase_of(max(done.finished_ns))
        return last is Phase.DRAIN or last is not self.edges.phase_of(min(done.moved_ns))

    def _side(self, done: OpsDone, *, new: bool) -> None:
        tier, kind, cause, engine = done.tier, done.kind, done.cause, done.engine
        legs = EndedLegs(done.moved_ns or done.finished_ns, done.started_ns, done.refs)
        times = (done.total_ns, done.device_ns) if done.moved_ns else None
        took = times[tier is Tier.NVME] if times else list(map(sub, legs.ended_ns, legs.began_ns))
        self.meter.legs(tier, kind, took, sum([ref.nbytes for ref in legs.refs]))
        self.totals(tier, kind, cause, engine, legs, new=new, times_ns=times)
        last = self.edges.phase_of(max(done.finished_ns))
        at_once = last is self.edges.phase_of(min(done.finished_ns))
        for name, column in done.steps:
            if at_once:
                self.steps[StepFlow(last, tier, kind, name)].add_all(Values.of(column))
                continue
            for ended, step_ns in zip(done.finished_ns, column, strict=True):
                self.steps[StepFlow(self.edges.phase_of(ended), tier, kind, name)].add(step_ns)

    def totals(
        self,
        tier: Tier,
        kind: OpKind,
        cause: Cause,
        engine: str,
        legs: EndedLegs,
        *,
        new: bool,
        times_ns: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Record legs, of at least one operation that has ended, in what is not of a window alone.
        `new`: of blocks that were stored as new. `times_ns`: of legs of one phase, what each took
        in all and in the device, if that is not all of the time until it ended."""
        if new:
            self.new_bytes += sum([ref.nbytes for ref in legs.refs])
        if tier is Tier.NVME and kind is not OpKind.WRITE:
            self.distinct.see(legs.refs, kind)
        phase = self.edges.phase_of(max(legs.ended_ns))
        if phase is self.edges.phase_of(min(legs.ended_ns)):
            self._add_legs(Flow(phase, tier, kind, cause, engine), legs, times_ns)
            return
        rows: defaultdict[Phase, list[tuple[int, int, CopyRef]]] = defaultdict(list)
        for row in zip(*legs, strict=True):
            rows[self.edges.phase_of(row[0])].append(row)
        for phase, of_phase in rows.items():
            part = EndedLegs(*zip(*of_phase, strict=True))
            self._add_legs(Flow(phase, tier, kind, cause, engine), part)

    def _add_legs(
        self,
        flow: Flow,
        legs: EndedLegs,
        times_ns: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Count legs that ended in one phase."""
        phase, tier, kind, cause, engine = flow
        stats, count = self._flow(*flow), len(legs.refs)
        if phase is Phase.DRAIN:
            for ended, began, ref in zip(*legs, strict=True):
                leg = Leg(tier, kind, engine, ref.nbytes, began, ended, ended - began, ())
                self._in_flight(cause, leg)
        stats.operations += count
        sizes = Values.of([ref.nbytes for ref in legs.refs])
        stats.sizes.add_all(sizes)
        if times_ns is None:
            total = device = Values.of(list(map(sub, legs.ended_ns, legs.began_ns)))
        else:
            total, device = map(Values.of, times_ns)
        stats.total.add_all(total)
        stats.device.add_all(device)
        if kind is OpKind.DELETE:
            return
        stats.bytes += sizes.total
        stats.calls += count
        if times_ns is None:
            stats.host.add(0, count)
        else:
            stats.host.add_all(Values.of(list(map(sub, *times_ns))))
        if tier is Tier.NVME and phase in _PACED:
            start_ns, end_ns = self.edges.measure_start_ns, self.edges.measure_end_ns
            self.pace.calls(kind, legs, start_ns, end_ns)

    def cut_off(self, cause: Cause, leg: Leg) -> None:
        """A side of an operation will not be waited for: as far as it had come."""
        if self.edges.phase_of(leg.finished_ns) is Phase.DRAIN:
            self._in_flight(cause, leg)

    def _in_flight(self, cause: Cause, leg: Leg) -> None:
        """It was in flight when the window closed, with an age: of its time, no more than what
        passed since then lay behind the window."""
        end_ns = self.edges.measure_end_ns
        if end_ns is None or leg.started_ns > end_ns:
            return
        late_ns = leg.finished_ns - end_ns
        stats = self._flow(Phase.MEASURE, leg.tier, leg.kind, cause, leg.engine)
        stats.total.add_in_flight(leg.total_ns - late_ns)
        stats.device.add_in_flight(leg.device_ns - late_ns)

    def request(self, record: RequestRecord) -> None:
        """Record one request that has ended; only what ended inside the window is measured."""
        self.meter.request(record)
        at = record.finished_ns if record.finished_ns is not None else record.enqueued_ns
        phase = self.edges.phase_of(at)
        self.outcomes[phase][record.outcome] += 1
        end_ns = self.edges.measure_end_ns
        cut = record.outcome is Outcome.UNFINISHED or phase is Phase.DRAIN
        if end_ns is not None and cut and record.outcome is not Outcome.REJECTED:
            self.all.add_in_flight(record, end_ns)
            self.classes[record.qos].add_in_flight(record, end_ns)
        if record.error is not None and phase is not Phase.PRECONDITION:
            self.request_errors[record.error] += 1
        if phase is not Phase.MEASURE:
            return
        if record.outcome in (Outcome.COMPLETED, Outcome.FAILED):
            self.reuse.add(record)
        if record.outcome is not Outcome.COMPLETED:
            return
        latencies = latencies_of(record)
        self.all.add(record, latencies)
        self.classes[record.qos].add(record, latencies)
        self._sample(record)

    def _sample(self, record: RequestRecord) -> None:
        if record.end_to_end_ns is not None:
            self.end_to_end_s.add(record.end_to_end_ns)
        self.storage_s.add(record.storage_ns)
        self.generation_s.add(record.compute_ns)
        if record.loaded_bytes:
            self.loads.add(record.load_ns)
        if record.stored_bytes:
            self.stores.add(record.store_ns)
        if record.prefilled:
            self.prefill_s.add(record.store_ns)
        if record.decoded:
            self.decode_s.add(record.load_ns)

    def _flow(self, phase: Phase, tier: Tier, kind: OpKind, cause: Cause, engine: str) -> OpStats:
        key = (phase, tier, kind, cause, engine)
        stats = self._index.get(key)
        if stats is None:
            stats = self._index[key] = self.flows[Flow(*key)] = OpStats()
        return stats
