"""What a simulation of a cluster found: counters and samples, no opinions.

Samples and blocks are of the requests behind the warm-up (`workload.warmup_requests`); tiers, links
and instances count from the first of these on; the conservation of requests, peaks, the longest
queue, `concurrency_ns`, `events` and the series are of the whole run. Times are ns, sizes bytes; a
block is `model.block_tokens` tokens.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_hardware import GpuGroup


class EventBytes(NamedTuple):
    """Bytes that an event moves or frees, and the place that they are in, or come from."""

    tier: str
    place: int
    nbytes: int


class OnEvent(Protocol):
    """Hears each event; `number` and `instance` are -1 where it is of no request alone."""

    def __call__(
        self, at_ns: int, kind: str, number: int, instance: int, moved: EventBytes | None = None, /
    ) -> None: ...


REQUEST_COLUMNS = (
    "number", "arrival_ns", "queue_ns", "load_ns", "ttft_ns", "decode_queue_ns", "transfer_ns",
    "ttft_with_transfer_ns", "first_chunk_ns", "movement_ns", "tpot_ns", "e2e_ns", "prompt_tokens",
    "output_tokens", "hit_tokens", "instance", "decoder",
)  # fmt: skip
"""Columns of `Requests`, which have an entry for each measured request that finished."""

INSTANCE_COUNTS = (
    "requests", "finished", "prefill_tokens", "decode_tokens", "busy_ns", "preemptions",
)  # fmt: skip
"""What an instance counts, by the names of `Instances` too."""

POOL_COUNTS = ("stored", "evicted", "dropped", "not_stored", "prefetch_wasted", "admitted")
"""What a pool counts, by the names of `ClusterTierFacts` too."""


def _ns() -> "array[int]":
    return array("q")


@dataclass(slots=True, kw_only=True)
class Requests:
    """Every request ends in exactly one of finished, rejected and aborted. The reasons count all
    requests; the samples are of the measured requests that finished, one entry for each, in order
    of their ends, in all arrays alike. `tpot_ns` is -1 if the answer has one token;
    `first_chunk_ns` and `movement_ns` are -1 if nothing was sent to another instance.

    ttft: first token out - arrival. queue: first admission - arrival. load: of the rest of ttft,
    what the request waited for cached state alone. Where another instance is to decode, decode
    queue: memory there, or the answer that there is none - first token out; transfer: state there -
    the later of these; else both are 0.
    ttft with transfer: the token that the first decode step makes, which is the second one, out -
    arrival; ttft if the answer has one token.
    first chunk, movement: the first part of the state, and all of it, there - first part sent.
    tpot: (last token out - first token out) / (output tokens - 1). e2e: last token out - arrival.
    `instance`: who prefilled, `decoder`: who gave the last token.
    """

    arrived: int = 0
    finished: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    aborted: Counter[str] = field(default_factory=Counter)
    measured_arrived: int = 0
    measured_finished: int = 0
    number: "array[int]" = field(default_factory=_ns)
    arrival_ns: "array[int]" = field(default_factory=_ns)
    queue_ns: "array[int]" = field(default_factory=_ns)
    load_ns: "array[int]" = field(default_factory=_ns)
    ttft_ns: "array[int]" = field(default_factory=_ns)
    decode_queue_ns: "array[int]" = field(default_factory=_ns)
    transfer_ns: "array[int]" = field(default_factory=_ns)
    ttft_with_transfer_ns: "array[int]" = field(default_factory=_ns)
    first_chunk_ns: "array[int]" = field(default_factory=_ns)
    movement_ns: "array[int]" = field(default_factory=_ns)
    tpot_ns: "array[int]" = field(default_factory=_ns)
    e2e_ns: "array[int]" = field(default_factory=_ns)
    prompt_tokens: "array[int]" = field(default_factory=_ns)
    output_tokens: "array[int]" = field(default_factory=_ns)
    hit_tokens: "array[int]" = field(default_factory=_ns)
    instance: "array[int]" = field(default_factory=_ns)
    decoder: "array[int]" = field(default_factory=_ns)
    kind: "array[int]" = field(default_factory=_ns)  # its class, where there are any
    class_arrived: Counter[int] = field(default_factory=Counter)  # measured ones
    preemptions: int = 0
    retries: int = 0  # other instances that were asked
    retries_taken: int = 0  # of them: they had room
    longest_central_queue: int = 0
    handoffs: int = 0  # state sent from one instance to another, which decodes
    handoffs_declined: int = 0  # offered to a mixed instance that had no room
    good: int = 0  # measured and finished, within every limit of the SLO


@dataclass(slots=True, kw_only=True)
class Blocks:
    """Counted by block of the measured requests' prompts (whole blocks); hits at their first
    admission, so that a rejected request has missed all.

    looked_up = hits of all tiers + missed; `ceiling` is what an unlimited cache with no delay would
    have had: blocks of the prompt whose content was asked for before, as a prefix, by anyone;
    the others are compulsory misses. `recomputed`: computed again after preemption.
    """

    looked_up: int = 0
    hits: Counter[str] = field(default_factory=Counter)  # by tier
    ceiling: int = 0
    recomputed: int = 0
    from_others: int = 0  # of the hits: below HBM, sent there by another than who finds them

    @property
    def hit(self) -> int:
        return sum(self.hits.values())


@dataclass(slots=True, kw_only=True)
class ClusterTierFacts:
    """All places of one tier together. Blocks are evicted (they leave a place) and dropped (no
    place has them any more that the instance that evicts can reach)."""

    name: str
    scope: str
    places: int  # that were used at all
    possible: int  # that the scenario has
    capacity_blocks: int  # of one place (of the largest, where they differ)
    used_blocks: int = 0  # at the end
    peak_blocks: int = 0  # of the fullest place at its fullest
    stored: int = 0
    evicted: int = 0
    dropped: int = 0
    not_stored: int = 0  # offered, but did not fit
    admitted: int = 0  # by an admission policy that was asked
    not_admitted: Counter[str] = field(default_factory=Counter)  # by reason
    prefetched: int = 0
    prefetch_useful: int = 0
    prefetch_late: int = 0
    prefetch_wasted: int = 0
    most_hits: int | None = None  # by MIN on what each place was asked for, where it was noted


@dataclass(slots=True, kw_only=True)
class LinkFacts:
    """All links of one kind (nvlink, pcie, nic, uplink, wire, device:nvme:read ...)."""

    kind: str
    links: int
    transfers: int
    bytes_by_cause: Counter[str]
    busy_ns: int
    busiest_ns: int  # of one link
    busiest: str  # its name
    servers: int = 1  # of a measured device: the most operations at a time
    wait_buckets: Mapping[int, int] = field(default_factory=dict)  # where links are queues
    wait_ns: int = 0  # of all transfers together
    longest_queue: int = 0  # at one link


@dataclass(slots=True, kw_only=True)
class Instances:
    """One entry for each instance of the scenario, by its number."""

    group: list[str] = field(default_factory=list)
    role: list[str] = field(default_factory=list)
    node: "array[int]" = field(default_factory=_ns)
    rack: "array[int]" = field(default_factory=_ns)
    requests: "array[int]" = field(default_factory=_ns)  # that it admitted, to prefill or decode
    finished: "array[int]" = field(default_factory=_ns)
    prefill_tokens: "array[int]" = field(default_factory=_ns)
    decode_tokens: "array[int]" = field(default_factory=_ns)
    busy_ns: "array[int]" = field(default_factory=_ns)
    peak_blocks: "array[int]" = field(default_factory=_ns)
    capacity_blocks: "array[int]" = field(default_factory=_ns)
    preemptions: "array[int]" = field(default_factory=_ns)
    longest_queue: "array[int]" = field(default_factory=_ns)


@dataclass(slots=True, kw_only=True)
class ClusterSeries:
    """State on a grid of instants, each as it was at that instant; tokens, hits and rejects count
    what happened since the one before."""

    interval_ns: int = 0
    columns: dict[str, "array[int]"] = field(
        default_factory=lambda: {
            name: array("q")
            for name in (
                "at_ns", "waiting", "central_queue", "prefilling", "decode_queue", "transferring",
                "decoding", "hbm_blocks", "output_tokens", "prefill_tokens", "finished", "rejected",
                "aborted",
            )
        }
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class ClusterOutcome:
    """`itl_parts` hold gaps between two tokens of a sequence: (ns, how many) by bucket, see
    `metrics/histogram.py`, each those that ended while an equal part of the measured requests
    arrived, the last one shorter, and until the end. `concurrency_ns` is the integral of requests
    in the system over time (Little: = the sum of the times that they spent there), `levels` are
    those of each level, until the last end, and the most of it."""

    scenario: Scenario
    gpus: Mapping[str, GpuGroup] = field(default_factory=dict)
    requests: Requests
    blocks: Blocks
    tiers: list[ClusterTierFacts]
    links: list[LinkFacts]
    instances: Instances
    series: ClusterSeries
    itl_parts: Sequence[Counter[int]] = ()
    began_ns: int = 0  # the first measured arrival
    ended_ns: int = 0  # the last end
    moved_ns: int = 0  # the end of the last transfer, which may be later
    events: int = 0
    concurrency_ns: int = 0
    levels: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    checks: Counter[str] = field(default_factory=Counter)  # how often each law was checked
    warnings: list[str] = field(default_factory=list)
