"""A scenario of the cluster simulator: every option with its default, unit and bounds.

A scenario says what is asked (workload), of whom (instances in nodes and racks), where KV state may
live (tiers), who decides (router, scheduler, separation, policies) and what lies between (network).
Sizes are GiB, bandwidths GB/s (10^9 bytes), times as the names say. It must never hold anything
that only one of the questions needs: questions are settings, not modes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_cache.config.admission import TAKES, AdmissionConfig
from kv_cache.config.schema import opt
from kv_cache.config.workload_sections import LawConfig
from kv_cache.core.model import DTYPE_BITS
from kv_cache.core.residency import BITS
from kv_cache.policy.admission import ADMISSION
from kv_cache.policy.eviction import EVICTION
from kv_cache.workload.formats.base import TimeUnit

ROLES = ("mixed", "prefill", "decode")
SCOPES = ("device", "node", "rack", "cluster")
COMPUTE = ("roofline", "rate", "table", "none")
ROUTERS = (
    "round-robin", "least-connections", "least-loaded", "power-of-two", "session-affinity",
    "prefix-aware",
)  # fmt: skip
DECODE_ROUTERS = (*ROUTERS, "cheapest")
RESERVATIONS = ("reserve-full", "reserve-prompt", "on-demand")
PREEMPTIONS = ("recompute", "swap", "abort")
VICTIMS = ("youngest", "oldest", "least-recent", "lowest-priority")
ORDERS = ("fcfs", "sjf", "fair", "priority")
QUEUES = ("instance", "central")
TRANSFERS = ("push", "pull", "on-demand")
WRITE_POLICIES = ("none", "through", "through-selective", "back")
PREFETCH_INTO = ("below", "hbm")
PREFETCHES = ("none", "on-arrival", "next-in-session")
DISCIPLINES = ("fifo", "fair-share")
WORKLOADS = ("sessions", "agents", "poisson", "trace")
LAWS = ("fixed", "uniform", "exponential")
JUDGED_BY = (
    "goodput.per_s", "goodput.share", "ttft_ms.p50", "ttft_ms.p95", "ttft_ms.p99",
    "ttft_with_transfer_ms.p50", "ttft_with_transfer_ms.p95", "ttft_with_transfer_ms.p99",
    "itl_ms.p50", "itl_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "e2e_ms.p50", "e2e_ms.p99",
    "queue_ms.p50", "queue_ms.p99", "rates.finished_per_s", "rates.output_tokens_per_s",
    "blocks.hit_ratio",
)  # fmt: skip
"""Numbers by which variants may be called better."""
DRAWN_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """The model that is served: its geometry by name, its weights for the compute model."""

    name: str = opt(
        "llama3.1-8b", "Built-in model whose geometry gives KV bytes and attention FLOPs per token",
        read_when="!.kv_bytes_per_token or computed",
    )  # fmt: skip
    kv_dtype: str | None = opt(
        None, "Element type of the KV cache; if not given, the model's own",
        choices=tuple(DTYPE_BITS),
    )  # fmt: skip
    kv_bytes_per_token: int = opt(
        0, "KV state of one token; 0 = as the geometry and the type say", unit="bytes", low=0,
        high=10**9,
    )  # fmt: skip
    params_billion: float | None = opt(
        None, "Weights that every token passes through; if not given, the built-in model's own",
        unit="10^9", above=0, high=1e5, read_when="computed or profiled",
    )  # fmt: skip
    total_params_billion: float | None = opt(
        None, "Weights that memory holds, more than these in a mixture of experts; if not given, "
        "the built-in model's own, or params_billion", unit="10^9", above=0, high=1e5,
        read_when="profiled",
    )  # fmt: skip
    weight_bits: int = opt(
        16, "Bits of one weight", unit="bits", low=1, high=64, read_when="computed or profiled"
    )
    block_tokens: int = opt(16, "Tokens of a block", unit="tokens", low=1, high=65_536)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsSection:
    """Laws in place of prompt_tokens, output_tokens, think_s and turns; those of a run's section
    `lengths`."""

    prompt: LawConfig = field(default_factory=LawConfig)
    first_prompt: LawConfig = field(
        default_factory=LawConfig, metadata={"read_when": ("workload.source=sessions|agents",)}
    )
    output: LawConfig = field(default_factory=LawConfig)
    think_s: LawConfig = field(
        default_factory=LawConfig,
        metadata={"read_when": ("workload.source!=poisson or workload.concurrency",)},
    )
    turns: LawConfig = field(
        default_factory=LawConfig, metadata={"read_when": ("workload.source=sessions|agents",)}
    )
    correlation: float = opt(
        0.0, "How turns and first_prompt of a conversation go together: the correlation of their "
        "normal scores, below 0 where those that begin long have few turns", low=-1, high=1,
        read_when=(
            "workload.source=sessions|agents", ".turns.law!=personas", ".first_prompt.law!=personas"
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSection:
    """What is asked and when."""

    source: str = opt(
        "sessions",
        "sessions: conversations whose turns wait for their answers; agents: long loops of "
        "reasoning and tool results; poisson: single requests that share nothing; trace: a file",
        choices=WORKLOADS,
    )
    requests: int | None = opt(
        None, f"Requests that are asked, if not {DRAWN_REQUESTS} (of a trace: all of its rows)",
        low=1, high=100_000_000,
    )  # fmt: skip
    warmup_requests: int = opt(
        0, "The first of them, which no number counts but the conservation of requests", low=0,
        high=100_000_000,
    )  # fmt: skip
    rate_per_s: float = opt(
        10.0, "Sessions (or single requests) that begin in a second; 0 = all begin at once",
        unit="1/s", low=0, high=1e9, read_when="!.concurrency or .source=trace",
    )  # fmt: skip
    arrival_process: str = opt(
        "poisson", "How they are spaced: poisson; gamma: with arrival_cv, bursts above 1; fixed: "
        "evenly", choices=("poisson", "gamma", "fixed"),
        read_when=("!.concurrency or .source=trace", ".rate_per_s"),
    )  # fmt: skip
    arrival_cv: float = opt(
        2.0, "Coefficient of variation of gamma's gaps", above=0, high=100,
        read_when=".arrival_process=gamma",
    )  # fmt: skip
    day_swing: float = opt(
        0.0, "Time of day: the rate is 1 + day_swing x sin(2 pi t / day_s) times rate_per_s; 0 = "
        "the same all day", low=0, high=1,
        read_when=("!.concurrency or .source=trace", ".rate_per_s"),
    )  # fmt: skip
    day_s: float = opt(
        86_400.0, "Length of a day", unit="s", above=0, high=1e9, read_when=".day_swing"
    )
    concurrency: int = opt(
        0, "Closed loop: this many users; each has one session after the other, and thinks between "
        "them too; 0 = open loop", low=0, high=10_000_000,
    )  # fmt: skip
    turns: tuple[int, int] = opt(
        (4, 4), "Turns of a session, drawn between", low=1, high=10_000,
        read_when=(".source=sessions|agents", ".lengths.turns.law=personas"),
    )  # fmt: skip
    think_s: tuple[float, float] = opt(
        (0.0, 0.0),
        "Between an answer and the next turn, drawn between",
        unit="s",
        low=0,
        high=1e6,
        read_when=(
            ".source!=trace",
            ".source!=poisson or .concurrency",
            "several_turns or .concurrency",
            ".lengths.think_s.law=personas",
        ),
    )
    system_prompts: int = opt(
        8, "System prompts, dealt out in turn; 0 = none", low=0, high=10**6,
        read_when=".source=sessions|agents",
    )  # fmt: skip
    system_tokens: int = opt(
        128, "Length of a system prompt", unit="tokens", low=1, high=10**7,
        read_when=".source=sessions|agents",
    )  # fmt: skip
    tool_sets: int = opt(
        0, "Sets of tool descriptions behind it; 0 = none", low=0, high=10**6,
        read_when=".source=sessions|agents",
    )  # fmt: skip
    tool_tokens: int = opt(
        2048, "Length of one", unit="tokens", low=1, high=10**7, read_when=".source=sessions|agents"
    )
    context_tokens: int = opt(
        4096, "Further context before the first turn: a session's own, or documents", unit="tokens",
        low=0, high=10**8, read_when=".source=sessions|agents",
    )  # fmt: skip
    documents: int = opt(
        0, "Documents that all sessions draw their context from; 0 = each has its own", low=0,
        high=10**7, read_when=".source=sessions|agents",
    )  # fmt: skip
    documents_per_session: int = opt(
        3, "Documents of one context", low=1, high=1000, read_when=".source=sessions|agents"
    )
    zipf_alpha: float = opt(
        1.2, "Skew of the draw of documents", low=0, high=10, read_when=".source=sessions|agents"
    )
    prompt_tokens: tuple[int, int] = opt(
        (256, 2048), "New tokens of a turn, drawn between", unit="tokens", low=1, high=10**8,
        read_when=(".source!=trace", ".lengths.prompt.law=personas"),
    )  # fmt: skip
    prompt_law: str = opt(
        "uniform", "How they are drawn: fixed: the pair's middle; uniform: between; exponential: "
        "with the pair's middle as mean, at least 1", choices=LAWS,
        read_when=(".source!=trace", ".lengths.prompt.law=personas"),
    )  # fmt: skip
    reasoning_tokens: int = opt(
        0, "Tokens that every later turn of an agent adds before its tool result", unit="tokens",
        low=0, high=10**7, read_when=(".source=agents", "several_turns"),
    )  # fmt: skip
    output_tokens: tuple[int, int] = opt(
        (128, 128), "Tokens of an answer", unit="tokens", low=1, high=10**7,
        read_when=(".source!=trace", ".lengths.output.law=personas"),
    )  # fmt: skip
    output_law: str = opt(
        "uniform", "How they are drawn, as prompt_law", choices=LAWS,
        read_when=(".source!=trace", ".lengths.output.law=personas"),
    )  # fmt: skip
    lengths: LengthsSection = field(
        default_factory=LengthsSection, metadata={"read_when": (".source!=trace",)}
    )
    fitted: str | None = opt(
        None, "Configuration that trace fit wrote, whose arrivals and lengths stand in place of "
        "those of this section", metavar="PATH", read_when=".source!=trace",
    )  # fmt: skip
    trace: str | None = opt(
        None, "Trace file of source trace", metavar="PATH", read_when=".source=trace"
    )
    trace_format: str | None = opt(
        None, "Its format, if it should not be recognised", read_when=".source=trace"
    )
    trace_time_unit: str = opt(
        "auto", "Unit of its times where they are bare numbers; auto = the format's, unless that "
        "makes them faster than any service and another unit does not",
        choices=("auto", *(unit.value for unit in TimeUnit)), read_when=".source=trace",
    )  # fmt: skip
    trace_block_tokens: int = opt(
        0, "Tokens that a hash id of it stands for; 0 = as its format says", unit="tokens", low=0,
        high=1_000_000, read_when=".source=trace",
    )  # fmt: skip
    skip_bad_rows: bool = opt(
        False,
        "Skip and count its unreadable rows instead of refusing it",
        read_when=".source=trace",
    )
    include_failed_rows: bool = opt(
        False, "Ask what it marks as failed too (of BurstGPT 0 response tokens), with an answer of "
        "one token, instead of leaving it out and counting it", read_when=".source=trace",
    )  # fmt: skip
    strict_trace: bool = opt(
        False, "Refuse a trace of which a reader is warned otherwise: times that may be in another "
        "unit, rows that are not sorted, or none that can share anything",
        read_when=".source=trace",
    )  # fmt: skip
    arrival_scale: float = opt(
        1.0, "Times the rate at which a trace's sessions begin", above=0, high=1e9,
        read_when=".source=trace",
    )  # fmt: skip

    @property
    def drawn_requests(self) -> int:
        """Requests of a source that has no end of its own."""
        return DRAWN_REQUESTS if self.requests is None else self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSection:
    """A group of equal instances: engines of one or more GPUs that batch together."""

    count: int = opt(1, "Instances of the group", low=1, high=1_000_000)
    role: str = opt("mixed", "What they do", choices=ROLES)
    profile: str | None = opt(
        None, "GPU in place of its memory and peaks: a shipped hardware profile (h100), or a "
        "file of `calibrate`, of one kind of GPU", metavar="PATH",
    )  # fmt: skip
    tensor_parallel: int = opt(
        1, "GPUs of the profile that share each layer", low=1, high=1024, read_when=".profile"
    )
    activation_share: float = opt(
        0.1, "Share of a GPU's memory for activations and the engine itself, beside weights and KV "
        "state", low=0, high=0.99, read_when=".profile",
    )  # fmt: skip
    hbm_gib: float = opt(
        16.0, "GPU memory for KV state, beside the weights", unit="GiB", low=0, high=1e6,
        read_when="!.profile",
    )  # fmt: skip
    compute: str = opt(
        "roofline",
        "roofline: FLOPs and bytes against the peaks; rate: measured tokens per second; table: "
        "measured times of steps; none: no time",
        choices=COMPUTE,
    )
    tflops: float = opt(
        800.0, "Peak of the instance", unit="10^12 FLOP/s", above=0, high=1e9,
        read_when=(".compute=roofline", "!.profile"),
    )  # fmt: skip
    flops_share: float = opt(
        0.5, "Share of it that prefill reaches", above=0, high=1, read_when=".compute=roofline"
    )
    hbm_gbytes_per_s: float = opt(
        3350.0, "Peak of its memory", unit="GB/s", above=0, high=1e9,
        read_when=(".compute=roofline", "!.profile"),
    )  # fmt: skip
    bytes_share: float = opt(
        0.8, "Share of it that decoding reaches", above=0, high=1, read_when=".compute=roofline"
    )
    step_overhead_us: float = opt(
        0.0, "Fixed time of a step", unit="us", low=0, high=1e9, read_when=".compute!=none"
    )
    prefill_tokens_per_s: float = opt(
        4000.0, "Measured prefill rate (compute rate)", unit="tokens/s", above=0, high=1e12,
        read_when=".compute=rate",
    )  # fmt: skip
    decode_tokens_per_s: float = opt(
        2000.0, "Measured decode rate of all sequences together", unit="tokens/s", above=0,
        high=1e12, read_when=".compute=rate",
    )  # fmt: skip
    decode_sharing_cap: int = opt(
        0, "Sequences that share the decode rate; of more, each is as fast as of so many; 0 = all",
        low=0, high=1_000_000, read_when=".compute=rate",
    )  # fmt: skip
    step_table: str | None = opt(
        None, "CSV of compute table: phase (prefill or decode), tokens, context, ms",
        metavar="PATH", read_when=".compute=table",
    )  # fmt: skip
    max_num_seqs: int | None = opt(
        None, "Sequences at a time, if not as scheduler.max_num_seqs", low=1, high=1_000_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySection:
    """Where instances are. Groups are spread evenly over the nodes, in the order given."""

    racks: int = opt(1, "Racks", low=1, high=100_000)
    nodes_per_rack: int = opt(1, "Nodes of a rack", low=1, high=10_000)
    instances_per_node: int = opt(8, "Places for instances in a node", low=1, high=1000)
    profile: str | None = opt(
        None, "Hardware profile whose topology takes their place, as far as it says one: a place "
        "has as many GPUs as the largest tensor_parallel", metavar="PATH",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSection:
    """What a place of a tier is, and who reaches it."""

    capacity_gib: float = opt(0.0, "Capacity of one place of it", unit="GiB", low=0, high=1e9)
    scope: str = opt("node", "Who shares one place", choices=SCOPES)
    read_gbytes_per_s: float = opt(
        25.0, "Read bandwidth of one place", unit="GB/s", above=0, high=1e9, read_when="!.profile",
    )  # fmt: skip
    write_gbytes_per_s: float = opt(
        25.0, "Write bandwidth of one place", unit="GB/s", above=0, high=1e9, read_when="!.profile",
    )  # fmt: skip
    read_latency_us: float = opt(
        10.0, "Fixed time of a read", unit="us", low=0, high=1e9, read_when="!.profile"
    )
    write_latency_us: float = opt(
        10.0, "Fixed time of a write", unit="us", low=0, high=1e9, read_when="!.profile"
    )
    eviction: str = opt("lru", "Eviction policy", choices=EVICTION)
    profile: str | None = opt(
        None, "Hardware profile (of `probe` or `calibrate`) in place of bandwidths and latencies",
        metavar="PATH",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSection(AdmissionConfig, PlaceSection):
    """One tier below HBM, what it takes of what comes down or is prefetched, and in how many bits.
    A capacity of 0 is a tier that is not there."""

    admission: str = opt("always", TAKES, choices=ADMISSION, read_when="tiers.write_policy=back")
    residency: str | None = opt(
        None, f"Type in which blocks lie in it: {', '.join(BITS)}, or parts of each block, as "
        "layers or groups of heads, in several: 4fp16+28int4; if not given, as in HBM (16 bits, "
        "with model.kv_bytes_per_token)",
    )  # fmt: skip
    quant_group: int = opt(
        0, "Elements of 8 bits or fewer that share 4 bytes of scales; 0 = none are stored", low=0,
        high=1_000_000, read_when=".residency",
    )  # fmt: skip
    dequant: Mapping[str, float] = opt(
        {}, "Time for widening one stored byte of a type as it leaves the tier upwards; a type "
        "that is not given takes none", unit="ns", low=0, read_when=".residency",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersSection:
    """HBM is each instance's own; below it, in this order, the tiers that have a capacity."""

    hbm_eviction: str = opt("lru", "Eviction policy of HBM", choices=EVICTION)
    dram: TierSection = field(default_factory=TierSection)
    rack_pool: TierSection = field(
        default_factory=lambda: TierSection(
            scope="rack", read_gbytes_per_s=100.0, write_gbytes_per_s=80.0, read_latency_us=8.0,
            write_latency_us=8.0,
        )
    )  # fmt: skip
    nvme: TierSection = field(
        default_factory=lambda: TierSection(
            read_gbytes_per_s=7.0, write_gbytes_per_s=4.0, read_latency_us=80.0,
            write_latency_us=30.0,
        )
    )  # fmt: skip
    remote: TierSection = field(
        default_factory=lambda: TierSection(
            scope="cluster", read_gbytes_per_s=50.0, write_gbytes_per_s=50.0,
            read_latency_us=500.0, write_latency_us=500.0,
        )
    )  # fmt: skip
    write_policy: str = opt(
        "back",
        "When blocks go down: back: when they are evicted above; through: at once, to one tier "
        "after the other; through-selective: likewise, those of depth below "
        "selective_depth_blocks; none: never",
        choices=WRITE_POLICIES,
    )
    selective_depth_blocks: int = opt(
        64, "See write_policy", unit="blocks", low=1, high=10**9,
        read_when=".write_policy=through-selective",
    )  # fmt: skip
    prefetch: str = opt(
        "none",
        "on-arrival: load while the request waits; next-in-session: bring what the next turn of "
        "a session will want up, while it thinks",
        choices=PREFETCHES,
    )
    prefetch_into: str = opt(
        "below",
        "Where to: below: into the first tier below HBM; hbm: into HBM, as far as running "
        "sequences leave room: each that decodes keeps its next block",
        choices=PREFETCH_INTO, read_when=".prefetch=on-arrival|next-in-session",
    )  # fmt: skip
    prefetch_at: float = opt(
        0.5,
        "Share of the time to think after which next-in-session begins; a simulation knows when "
        "the turn will come, an engine has to guess", low=0, high=1,
        read_when=".prefetch=next-in-session",
    )  # fmt: skip
    overlap_load: bool = opt(
        True, "Whether loading overlaps with the computation of what is missing, layer by layer"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSection:
    """Who gets a request. The cost of prefix-aware is in time: w_load x work that waits there +
    w_overlap x prefill of what it lacks + w_transfer x loading of what it has elsewhere; where it
    decodes, w_load x answers there, its own too, + w_transfer x sending of what is not there."""

    kind: str = opt("prefix-aware", "Rule for instances that prefill", choices=ROUTERS)
    decode: str = opt(
        "least-loaded",
        "Rule for instances that decode; cheapest: each request where the cost is least, by mixed "
        "instances for each other too, but where it was computed if that is as cheap or another "
        "mixed one has no room",
        choices=DECODE_ROUTERS, read_when="separated",
    )  # fmt: skip
    w_overlap: float = opt(
        1.0, "Weight", low=0, high=1e6, read_when=".kind=prefix-aware or decode_by_prefix"
    )
    w_load: float = opt(
        1.0, "Weight", low=0, high=1e6, read_when=".kind=prefix-aware or decode_by_cost"
    )
    w_transfer: float = opt(
        1.0, "Weight", low=0, high=1e6, read_when=".kind=prefix-aware or decode_by_cost"
    )
    candidates: int = opt(
        16, "Instances that prefix-aware looks at: holders of the longest prefix, and the least "
        "loaded", low=1, high=100_000, read_when=".kind=prefix-aware or decode_by_cost",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSection:
    """What happens inside an instance."""

    max_num_seqs: int = opt(
        64, "Sequences at a time", low=1, high=1_000_000, read_when="shared_max_num_seqs"
    )
    max_num_batched_tokens: int = opt(
        8192, "Tokens of one step, prefill and decode together", unit="tokens", low=1, high=10**8
    )
    chunked_prefill: bool = opt(
        True, "Whether a prompt may be spread over steps, beside sequences that decode"
    )
    order: str = opt(
        "fcfs",
        "Order of the waiting queue: fcfs: as they come; sjf: the fewest tokens first; fair: the "
        "class that has had the least tokens for its weight; priority: the highest class",
        choices=ORDERS,
    )  # fmt: skip
    length_error_cv: float = opt(
        0.0, "How far the expected length of an answer is off, where sjf or the work at an "
        "instance goes by it: coefficient of variation of a lognormal factor on the true one",
        low=0, high=100,
        read_when=".order=sjf or router.kind=least-loaded|power-of-two|prefix-aware",
    )  # fmt: skip
    pause_lower: bool = opt(
        False, "Whether one that waits takes place and memory from sequences of lower classes, as "
        "preemption says, which go on when there is room again",
        read_when=(".order=priority", ".reservation!=reserve-full"),
    )  # fmt: skip
    queue: str = opt(
        "instance",
        "Where requests wait: at the instance that the router chooses as they arrive, or in one "
        "central queue, routed when an instance has a place and the memory for them",
        choices=QUEUES,
    )  # fmt: skip
    reservation: str = opt("on-demand", "Memory that admission takes", choices=RESERVATIONS)
    preemption: str = opt(
        "recompute", "What happens to a sequence that loses its memory", choices=PREEMPTIONS,
        read_when=(".reservation!=reserve-full", "lower_tiers or .preemption!=swap"),
    )  # fmt: skip
    victim: str = opt(
        "youngest",
        "Which one does, where those that decode need memory: youngest: the last to be admitted; "
        "oldest: the first; least-recent: the one that began its prompt or its answer longest ago; "
        "lowest-priority: the last of the lowest class. A prompt takes memory from later ones "
        "alone, or from lower classes",
        choices=VICTIMS, read_when=".reservation!=reserve-full",
    )  # fmt: skip
    max_queue: int = opt(
        0, "Requests that may wait in a queue; more are rejected; 0 = no limit. With pause_lower "
        "those of lower classes than the one that comes do not count", low=0, high=10**9,
    )  # fmt: skip
    max_retries: int = opt(
        0, "Other instances that are asked for a request, the least loaded first, before it is "
        "rejected for a full queue, or aborted for want of memory (preemption abort)", low=0,
        high=1000, read_when=".max_queue or .preemption=abort",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSection:
    """A class of requests. All requests of a session, or of a trace's session, are of one class,
    drawn by the shares."""

    share: float = opt(1.0, "Sessions of it, relative to the other classes", above=0, high=1e9)
    weight: float = opt(
        1.0, "Tokens that it is to have, relative to the other classes", above=0, high=1e9,
        read_when="scheduler.order=fair",
    )  # fmt: skip
    priority: int = opt(
        0, "Which goes first: the highest", low=0, high=1000,
        read_when="scheduler.order=priority or scheduler.victim=lowest-priority",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparationSection:
    """How KV state gets from who prefills to who decodes, where roles are separate."""

    transfer: str = opt(
        "push", "push: the prefill side sends; pull: the decode side asks when it has room; "
        "on-demand: as pull, chunk by chunk, each asked for when the one before is there",
        choices=TRANSFERS, read_when="separated",
    )  # fmt: skip
    pipelined: bool = opt(
        True, "push only: each chunk goes when it is computed, not the whole at the end; none goes "
        "before all of the prompt has memory (with reservation on-demand: its last chunk)",
        read_when=("separated", ".transfer=push"),
    )  # fmt: skip
    chunk_blocks: int = opt(
        16, "Blocks that on-demand asks for at once", low=1, high=10**6,
        read_when=("separated", ".transfer=on-demand"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSection:
    """One link, each way. A bandwidth of 0 is a link that is not there."""

    gbytes_per_s: float = opt(12.5, "Bandwidth each way", unit="GB/s", low=0, high=1e9)
    latency_us: float = opt(5.0, "Latency", unit="us", low=0, high=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSection:
    """An explicit link between two ends: `instance:0`, `node:3`, `rack:1`, `core`."""

    a: str = opt("core", "One end")
    b: str = opt("core", "The other end")
    gbytes_per_s: float = opt(12.5, "Bandwidth each way", unit="GB/s", above=0, high=1e9)
    latency_us: float = opt(5.0, "Latency", unit="us", low=0, high=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSection:
    """Links: between the instances of a node (nvlink), instance and node (pcie), node and rack
    (nic), rack and core (uplink); `wires` replace or add single ones."""

    discipline: str = opt("fifo", "How transfers share a link", choices=DISCIPLINES)
    profile: str | None = opt(
        None, "Hardware profile whose nvlink, pcie and nic take the place of these, as far as it "
        "has them", metavar="PATH",
    )  # fmt: skip
    nvlink: LinkSection = field(
        default_factory=lambda: LinkSection(gbytes_per_s=900.0, latency_us=1.0)
    )
    pcie: LinkSection = field(default_factory=lambda: LinkSection(gbytes_per_s=50.0))
    nic: LinkSection = field(default_factory=lambda: LinkSection(gbytes_per_s=50.0))
    uplink: LinkSection = field(
        default_factory=lambda: LinkSection(gbytes_per_s=400.0, latency_us=10.0)
    )
    wires: Mapping[str, WireSection] = opt({}, "Explicit links by name")
    jitter_cv: float = opt(
        0.0, "Coefficient of variation of a lognormal factor on each transfer's time", low=0,
        high=10,
    )  # fmt: skip
    tail_probability: float = opt(0.0, "Share of transfers that are slow", low=0, high=1)
    tail_multiplier: float = opt(1.0, "How many times slower they are", low=1, high=1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSection:
    """What goodput counts: requests within all of these; 0 = no limit."""

    ttft_ms: float = opt(0.0, "Time to the first token", unit="ms", low=0, high=1e9)
    ttft_with_transfer_ms: float = opt(
        0.0, "Time to the first token that a decode step makes, after prefill and the transfer of "
        "KV state", unit="ms", low=0, high=1e9,
    )  # fmt: skip
    tpot_ms: float = opt(0.0, "Mean time of each further token", unit="ms", low=0, high=1e9)
    e2e_ms: float = opt(0.0, "Time to the last token", unit="ms", low=0, high=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSection:
    """What is recorded on the way, and how often the laws are checked."""

    events: bool = opt(False, "Write the event log")
    series_interval_ms: float = opt(
        0.0, "Interval of the time series; 0 = chosen so that it has at most series_points", low=0,
        high=1e9, unit="ms",
    )  # fmt: skip
    series_per_instance: bool = opt(
        False, "Give the time series the queue, the decoding sequences and the HBM in use of each "
        "instance, by its number (waiting.0, decoding.0, hbm_blocks.0)"
    )  # fmt: skip
    min_bound: bool = opt(
        False, "Note what each place is asked for, and tell the most hits that any policy could "
        "have had of it (MIN): 1 us and 8 bytes for each block"
    )  # fmt: skip
    series_points: int = opt(
        2000, "Points that the time series holds at most: beyond, intervals are joined by twos",
        low=2, high=1_000_000,
    )  # fmt: skip
    check_every: int | None = opt(
        None, "Check the invariants after this many events; 0 = at the end alone; empty = 10,000, "
        "or as many as a check recounts if that is more", unit="events", low=0, high=10**12,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated cluster and what is asked of it."""

    name: str = opt("unnamed", "Name of the scenario")
    question: str = opt("none", "The question that it answers, in one sentence")
    judged_by: str | None = opt(
        None, "The number that decides which variant is best; if not given, goodput where there "
        "are SLOs, else TTFT p95, or block hits where misses take no time", choices=JUDGED_BY,
    )  # fmt: skip
    seed: int = opt(42, "Seed of everything that is drawn", low=0, high=2**32 - 1)
    model: ModelSection = field(default_factory=ModelSection)
    workload: WorkloadSection = field(default_factory=WorkloadSection)
    topology: TopologySection = field(default_factory=TopologySection)
    instances: Mapping[str, InstanceSection] = opt({}, "Groups of instances by name")
    classes: Mapping[str, ClassSection] = opt({}, "Classes of requests by name")
    tiers: TiersSection = field(default_factory=TiersSection)
    router: RouterSection = field(default_factory=RouterSection)
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    separation: SeparationSection = field(default_factory=SeparationSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    slo: SloSection = field(default_factory=SloSection)
    watch: WatchSection = field(default_factory=WatchSection)
