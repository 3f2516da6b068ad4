"""The sections of the configuration: every option with its default, unit, bounds and flag.

First our own sections, then the MLPerf reference's, with its exact keys and defaults, so that its
`config.yaml` loads unchanged. Each key works or is refused: `NOT_YET` names those whose feature
this version does not have; they are accepted at their default and refused, with the reason, at any
other value. Sizes are GiB, times seconds, milliseconds or microseconds as the names say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_cache.config.schema import opt
from kv_cache.core.kinds import RunMode
from kv_cache.core.model import ATTENTION_TYPES, DTYPE_BYTES
from kv_cache.policy.eviction import EVICTION

_NO_EFFECT = "the key has no effect in the reference either"

NOT_YET: Mapping[str, str] = {
    "rag": "RAG is not in this version",
    "autoscaler": "the number of users stays fixed during a run in this version",
    "sharegpt": "ShareGPT datasets are not read by this version",
    "saturation_detection": "only an autoscaler would ask for it, and this version has none",
    "gpu_backend.max_eviction_attempts": "room in the GPU tier is planned at once, not attempted",
    "gpu_backend.free_memory_threshold": "the GPU tier takes its memory once, when a run starts",
    "eviction.max_recursion_depth": "demotions are planned at once, through two tiers at most",
    "prefix_cache.min_prefix_length": f"{_NO_EFFECT}; use prefix_cache.prompt_tokens",
    "prefix_cache.max_prefix_entries": f"{_NO_EFFECT}; use prefix_cache.prompt_tokens",
}
"""Section or key -> why it is refused when changed."""


# --- ours ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What to run, for how many users and for how long."""

    model: str = opt(
        "llama3.1-8b",
        "Model whose KV cache is moved: a built-in name, a key of model_configs, or the path of a "
        "Hugging Face config.json",
        flag="--model", metavar="NAME",
    )  # fmt: skip
    mode: str = opt(
        "standard",
        "Stages of a request that are run: all, only those before generation, or only generation "
        "from a populated cache",
        choices=tuple(mode.value for mode in RunMode),
    )
    num_users: int = opt(
        100, "Synthetic users who ask at the same time", low=1, high=100_000, flag="--num-users"
    )
    duration_s: float | None = opt(
        None,
        "Length of the measured window; if not given, 60 s, or no limit where max_requests or "
        "replay_cycles already bounds the run",
        unit="s", above=0, high=86_400, flag="--duration",
    )  # fmt: skip
    warmup_s: float = opt(
        0.0, "Load before the measured window, not counted", unit="s", low=0, high=86_400,
        flag="--warmup",
    )  # fmt: skip
    drain_s: float = opt(
        30.0, "How long requests in flight may finish after the window; reported apart", unit="s",
        low=0, high=86_400, flag="--drain",
    )  # fmt: skip
    seed: int | None = opt(
        None, "Seed of everything that is drawn; if not given, a fresh one, which the result names",
        low=0, high=2**32 - 1, flag="--seed",
    )  # fmt: skip
    max_requests: int = opt(
        0, "Stop after exactly so many requests; 0 = no limit", low=0, high=10**12,
        flag="--max-requests",
    )  # fmt: skip
    generation_mode: str = opt(
        "realistic",
        "Time that generation takes per token, see generation_timing (none = storage only)",
        choices=("none", "fast", "realistic"), flag="--generation-mode",
    )  # fmt: skip
    performance_profile: str = opt(
        "latency", "What the verdict judges: latency percentiles, or bandwidth only",
        choices=("latency", "throughput"), flag="--performance-profile",
    )  # fmt: skip
    slo_ms: float = opt(
        0.0, "Response time that a request must keep to count for goodput; 0 = none", unit="ms",
        low=0, high=86_400_000, flag="--slo-ms",
    )  # fmt: skip
    virtual_time: bool = opt(
        False, "Simulate with the models of section sim, with no I/O at all", flag="--virtual-time"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersConfig:
    """The places for copies: GPU memory, CPU memory and files on NVMe."""

    gpu_mem_gib: float = opt(
        16.0, "GPU memory for the cache on each card; 0 = no GPU tier", unit="GiB", low=0,
        high=65_536, flag="--gpu-mem-gb",
    )  # fmt: skip
    num_gpus: int = opt(1, "Cards; their memory adds up", low=1, high=65_536, flag="--num-gpus")
    tensor_parallel: int = opt(
        1, "Ranks that share a model: each stores 1/N of an object (at most num_gpus)", low=1,
        high=65_536, flag="--tensor-parallel",
    )  # fmt: skip
    gpu: str = opt(
        "auto", "Where GPU copies live: on a CUDA device, or emulated in CPU memory",
        choices=("auto", "cuda", "emulated"), flag="--gpu",
    )  # fmt: skip
    cpu_mem_gib: float = opt(
        32.0, "CPU memory for the cache; 0 = no CPU tier", unit="GiB", low=0, high=131_072,
        flag="--cpu-mem-gb",
    )  # fmt: skip
    storage_capacity_gib: float = opt(
        0.0, "Bytes that the cache may keep on storage; 0 = 95 % of the free space (no limit in "
        "virtual time)", unit="GiB", low=0, high=2**30, flag="--storage-capacity-gb",
    )  # fmt: skip
    cache_dir: str | None = opt(
        None, "Directory on the device to be measured; if not given, a temporary one",
        flag="--cache-dir", metavar="DIR",
    )  # fmt: skip
    keep_cache: bool = opt(False, "Leave the cache files behind after the run", flag="--keep-cache")
    eviction: str = opt(
        "lru", "Which copy leaves a full tier first", choices=tuple(EVICTION), flag="--eviction"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IoConfig:
    """How bytes reach the storage tier."""

    engine: str = opt(
        "auto", "How files are read and written; auto = direct where the file system can",
        choices=("auto", "direct", "mmap", "buffered"), flag="--io-engine",
    )  # fmt: skip
    verify: str = opt(
        "stamps", "What is checked on each read: the stamp of every page, all bytes, or nothing",
        choices=("stamps", "full", "off"), flag="--verify",
    )  # fmt: skip
    threads: int = opt(
        16, "I/O threads that work on the objects of one request", low=1, high=256,
        flag="--io-threads",
    )  # fmt: skip
    buffer_mib: int = opt(
        16, "Size of one I/O buffer", unit="MiB", choices=(1, 2, 4, 8, 16, 32, 64, 128, 256)
    )
    load_buffers: int = opt(16, "Buffers for reads", low=2, high=1024)
    store_buffers: int = opt(16, "Buffers for writes", low=2, high=1024)
    fsync: bool | None = opt(
        None, "Whether a write ends only when the device has it; if not given, by semantics.preset",
        flag="--fsync",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticsConfig:
    """What a request does; what is not given is as the preset says."""

    preset: str = opt(
        "mlperf",
        "mlperf = as the MLPerf reference: one object a turn, each looked up by itself, re-read "
        "during generation, written with fsync; serving = as an inference engine: 256-token "
        "blocks, longest prefix, promotion on a hit, write-behind",
        choices=("mlperf", "serving"), flag="--semantics",
    )  # fmt: skip
    block_tokens: int | None = opt(
        None, "Tokens in a block; 0 = one object a turn; if not given, the trace's own blocks "
        "where it has them, else 0 (mlperf) or 256 (serving)", unit="tokens", low=0, high=1_048_576,
        flag="--block-tokens",
    )  # fmt: skip
    reuse: str | None = opt(
        None, "What is reused: each block of earlier turns by itself, or the longest prefix",
        choices=("each", "prefix"),
    )  # fmt: skip
    decode_rereads: bool | None = opt(None, "Read the whole context again during generation")
    promote: bool | None = opt(None, "Copy what is hit into the fastest tier", flag="--promote")
    write_behind: bool | None = opt(
        None, "Answer before new blocks are stored; they are stored after", flag="--write-behind"
    )
    write_behind_queue: int = opt(64, "Stores that may wait behind", low=1, high=1_000_000)
    write_behind_full: str = opt(
        "wait", "When that queue is full: wait for room, or drop the store and count it",
        choices=("wait", "drop"),
    )  # fmt: skip
    gpu_in_place: bool | None = opt(None, "GPU hits are used where they are, with no copy")
    prefill_only_from_tokens: int | None = opt(
        None, "Requests of so many tokens end after prefill; 0 = never; if not given, 10000 "
        "for mlperf with synthetic users, else never", unit="tokens", low=0, high=10**9,
    )  # fmt: skip
    prefill_ms_per_token: float = opt(
        0.0, "Time to compute the KV state of a new token", unit="ms", low=0, high=60_000
    )
    batch_blocks: int = opt(
        8, "Blocks that one request stores or promotes at once", low=1, high=4096
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """In what order, and how many at once."""

    queue_limit: int = opt(
        10_000, "Requests that may wait; more are rejected and counted", low=1, high=10_000_000
    )
    ageing_s: float = opt(
        10.0, "Waiting time that is worth one step of priority; 0 = first come, first served",
        unit="s", low=0, high=86_400,
    )  # fmt: skip
    max_concurrent_allocs: int = opt(
        0, "Requests that may store new blocks at the same time; 0 = no limit", low=0, high=100_000,
        flag="--max-concurrent-allocs",
    )  # fmt: skip
    max_inflight_gib: float = opt(
        0.0, "Bytes of new blocks that may be in flight; 0 = no limit", unit="GiB", low=0,
        high=131_072,
    )  # fmt: skip
    max_workers: int = opt(
        500, "Requests that are served at the same time, at most", low=1, high=10_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalConfig:
    """When requests come."""

    mode: str = opt(
        "closed", "closed = users wait for their answer before they think and ask again; open = "
        "users do not wait, as in the reference", choices=("closed", "open"),
    )  # fmt: skip
    request_rate: float = opt(
        0.0, "Requests of all users together, with mode open; 0 = by the users' think times",
        unit="1/s", low=0, high=1e9, flag="--request-rate",
    )  # fmt: skip
    process: str = opt(
        "fixed", "Spacing of requests when request_rate is above 0",
        choices=("fixed", "poisson", "gamma"),
    )  # fmt: skip
    cv: float = opt(
        2.0, "Coefficient of variation of the gamma process; above 1 = bursts", above=0, high=100,
        flag="--arrival-cv",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Who asks for what: synthetic users, or a trace."""

    trace: str | None = opt(
        None, "Replay this trace instead of synthetic users", flag="--trace", metavar="PATH"
    )
    trace_format: str = opt(
        "auto", "Format of the trace; auto = by its name and first rows", flag="--trace-format",
        metavar="NAME",
    )  # fmt: skip
    trace_speedup: float = opt(
        1.0, "Gaps between requests are divided by this; 0 = as fast as they are served", low=0,
        high=1e9, flag="--trace-speedup",
    )  # fmt: skip
    replay_cycles: int = opt(
        0, "Stop after so many passes over the trace; 0 = endless", low=0, high=10**9,
        flag="--replay-cycles",
    )  # fmt: skip
    skip_bad_rows: bool = opt(
        False, "Skip and count rows that cannot be read, instead of stopping",
        flag="--skip-bad-rows",
    )  # fmt: skip
    use_burst_trace: bool = opt(
        False, "Replay the BurstGPT trace at burst_trace_path", flag="--use-burst-trace"
    )
    burst_trace_path: str = opt(
        "BurstGPT/data/BurstGPT_1.csv", "BurstGPT CSV: a file, a directory of them or a pattern",
        flag="--burst-trace-path", metavar="PATH",
    )  # fmt: skip
    multi_turn: bool = opt(
        True, "Users hold conversations whose earlier turns are looked up",
        flag="--disable-multi-turn",
    )  # fmt: skip
    prefix_caching: bool = opt(
        True, "Requests may share a system prompt, see prefix_cache",
        flag="--disable-prefix-caching",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Where results go."""

    output: str | None = opt(
        None, "Result JSON; if not given, benchmark_results_<date>_<time>.json",
        flag="--output", metavar="PATH",
    )  # fmt: skip
    results_dir: str | None = opt(
        None, "Directory for the whole record of the run", flag="--results-dir", metavar="DIR"
    )
    records: bool = opt(
        False, "Write one row for each request to the results directory", flag="--records"
    )
    progress: bool = opt(True, "Show progress on stderr", flag="--no-progress")
    latency_dump: str | None = opt(
        None, "JSON lines, one for each completed request", flag="--latency-dump", metavar="PATH"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTier:
    """An assumed tier: a fixed time per operation, then a bandwidth that its servers share."""

    read_latency_us: float = opt(1.0, "Assumed time per read", unit="us", low=0, high=1e9)
    write_latency_us: float = opt(1.0, "Assumed time per write", unit="us", low=0, high=1e9)
    read_gbytes_per_s: float = opt(
        1000.0, "Assumed read bandwidth", unit="GB/s, 10^9 bytes", above=0, high=1e9
    )
    write_gbytes_per_s: float = opt(
        1000.0, "Assumed write bandwidth", unit="GB/s, 10^9 bytes", above=0, high=1e9
    )
    servers: int = opt(1, "Operations that the tier serves at the same time", low=1, high=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """What virtual time assumes about each tier: assumptions, not measurements of any device."""

    gpu: SimTier = field(default_factory=SimTier)
    cpu: SimTier = field(
        default_factory=lambda: SimTier(read_gbytes_per_s=20.0, write_gbytes_per_s=20.0, servers=2)
    )
    nvme: SimTier = field(
        default_factory=lambda: SimTier(
            read_latency_us=80.0,
            write_latency_us=30.0,
            read_gbytes_per_s=6.0,
            write_gbytes_per_s=4.0,
        )
    )


# --- the reference's -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A kind of synthetic user."""

    context_range: tuple[int, int] = opt(
        (512, 4096), "Tokens that a user brings", unit="tokens", low=1, high=100_000_000
    )
    generation_range: tuple[int, int] = opt(
        (50, 200), "Tokens that are generated", unit="tokens", low=1, high=100_000_000
    )
    think_time_range: tuple[float, float] = opt(
        (0.1, 0.5), "Time between requests", unit="s", low=0, high=86_400
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTemplates:
    """The kinds of synthetic users; each user is one of them with equal chance."""

    chatbot: Template = field(default_factory=Template)
    coding: Template = field(
        default_factory=lambda: Template(
            context_range=(4096, 25_000), generation_range=(100, 500), think_time_range=(0.2, 1.0)
        )
    )
    document: Template = field(
        default_factory=lambda: Template(
            context_range=(4096, 16_384), generation_range=(200, 800), think_time_range=(0.3, 1.5)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTiming:
    """Time per generated token, for each generation_mode."""

    none: float = opt(0.0, "With --generation-mode none", unit="s/token", low=0, high=60)
    fast: float = opt(0.002, "With --generation-mode fast", unit="s/token", low=0, high=60)
    realistic: float = opt(
        0.030, "With --generation-mode realistic", unit="s/token", low=0, high=60
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QosProfile:
    """One QoS class: promised response times and its priority."""

    target_latency_p95_ms: float = opt(50.0, "95 % of requests", unit="ms", above=0, high=1e9)
    target_latency_p99_ms: float = opt(100.0, "99 % of requests", unit="ms", above=0, high=1e9)
    target_latency_p999_ms: float = opt(150.0, "99.9 % of requests", unit="ms", above=0, high=1e9)
    target_latency_p9999_ms: float = opt(200.0, "99.99 % of requests", unit="ms", above=0, high=1e9)
    priority: int = opt(3, "Higher is served first", low=0, high=1000)


def _profile(p95: float, p99: float, p999: float, p9999: float, priority: int) -> QosProfile:
    return QosProfile(
        target_latency_p95_ms=p95,
        target_latency_p99_ms=p99,
        target_latency_p999_ms=p999,
        target_latency_p9999_ms=p9999,
        priority=priority,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QosProfiles:
    """The QoS classes."""

    interactive: QosProfile = field(default_factory=QosProfile)
    responsive: QosProfile = field(default_factory=lambda: _profile(100.0, 200.0, 350.0, 500.0, 2))
    batch: QosProfile = field(default_factory=lambda: _profile(1000.0, 5000.0, 7500.0, 10_000.0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class QosDistribution:
    """Which users are in which QoS class, by one draw from 0 to 1; the rest is batch."""

    interactive_probability: float = opt(0.15, "Interactive below this", low=0, high=1)
    responsive_threshold: float = opt(0.50, "Else responsive below this", low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionConfig:
    """How much a full tier gives up (which copies go: tiers.eviction)."""

    max_recursion_depth: int = opt(10, "Kept for the reference's files", low=0)
    target_usage_ratio: float = opt(
        0.8, "A tier above storage makes room down to this share", above=0, high=1
    )
    large_entry_limit_ratio: float = opt(
        0.95, "Objects above this share of a tier skip it", above=0, high=1
    )
    max_evictions_hard_cap: int = opt(5000, "Copies that leave for one store, at most", low=1)
    max_evictions_min: int = opt(1000, "Copies that may always leave for one store", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBackend:
    """GPU memory."""

    memory_fraction: float = opt(
        0.8, "Share of a card's memory that the GPU tier may take", above=0, high=1
    )
    max_eviction_attempts: int = opt(100, "Kept for the reference's files", low=0)
    free_memory_threshold: float = opt(0.1, "Kept for the reference's files", low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """System prompts that the requests of many users share."""

    min_prefix_length: int = opt(50, "Kept for the reference's files", low=0)
    max_prefix_entries: int = opt(1000, "Kept for the reference's files", low=0)
    system_prompt_hit_probability: float = opt(
        0.2, "Chance that a request begins with a shared prompt", low=0, high=1
    )
    prompt_tokens: tuple[int, ...] = opt(
        (128, 256, 512), "Lengths of the shared prompts, one number each", unit="tokens", low=1,
        high=10_000_000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rag:
    """Retrieval-augmented requests: not in this version, leave the defaults."""

    chunk_size_tokens: int = opt(512, "Tokens in a chunk", low=1)
    top_k_chunks: int = opt(5, "Chunks that a request reads", low=1)
    max_chunk_bytes: int = opt(268_435_456, "Bytes of a chunk, at most", low=1)
    request_probability: float = opt(0.1, "Chance that a request retrieves", low=0, high=1)
    retrieval_distribution: str = opt(
        "zipfian", "Which chunks are retrieved", choices=("zipfian", "uniform")
    )
    max_documents: int = opt(0, "Documents, at most; 0 = no limit", low=0)
    large_model_doc_tokens_min: int = opt(1024, "Document length, large models", low=1)
    large_model_doc_tokens_max: int = opt(4096, "Document length, large models", low=1)
    small_model_doc_tokens_min: int = opt(4000, "Document length, small models", low=1)
    small_model_doc_tokens_max: int = opt(12_000, "Document length, small models", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Conversations of synthetic users."""

    max_conversations: int = opt(1000, "Conversations that are open at the same time", low=1)
    max_turns_per_conv: int = opt(50, "Turns after which a conversation ends", low=1)
    end_conversation_probability: float = opt(
        0.2, "Chance that a conversation ends before its next turn", low=0, high=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """Users that come and go during a run: not in this version, leave the defaults."""

    min_users: int = opt(1, "Fewest users", low=1)
    max_users: int = opt(10_000, "Most users", low=1)
    scale_up_factor: float = opt(1.2, "Growth in one step", above=0)
    scale_down_factor: float = opt(0.8, "Shrinking in one step", above=0)
    consecutive_samples_required: int = opt(2, "Samples before a step", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Generation."""

    batch_size: int = opt(
        32, "Tokens that are generated between two reads of the context", low=1, high=1_000_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGpt:
    """ShareGPT datasets: not in this version, leave the defaults."""

    max_context_tokens: int = opt(8192, "Longest context", low=1)
    max_generation_tokens: int = opt(2048, "Longest answer", low=1)
    chars_per_token_estimate: float = opt(4.0, "Characters in a token", above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationDetection:
    """When the autoscaler calls the storage saturated: not in this version, leave the defaults."""

    read_latency_p95_threshold_ms: float = opt(100.0, "Read latency", unit="ms", above=0)
    write_latency_p95_threshold_ms: float = opt(50.0, "Write latency", unit="ms", above=0)
    queue_depth_threshold: int = opt(100, "Waiting requests", low=1)
    history_window_size: int = opt(10, "Samples that are looked at", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationLimits:
    """Limits that a site sets for all its runs."""

    max_users: int = opt(100_000, "run.num_users, at most", low=1)
    max_duration_seconds: float = opt(86_400.0, "run.duration_s, at most", unit="s", above=0)
    max_gpu_memory_gb: float = opt(65_536.0, "tiers.gpu_mem_gib, at most", unit="GiB", low=0)
    max_cpu_memory_gb: float = opt(131_072.0, "tiers.cpu_mem_gib, at most", unit="GiB", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverride:
    """Fields of a model; the rest is as the built-in of that name, else the general default."""

    name: str | None = opt(None, "Name in results")
    num_layers: int | None = opt(None, "Layers with attention", low=1, high=1_000_000)
    hidden_dim: int | None = opt(None, "Hidden size", low=1, high=100_000_000)
    num_heads: int | None = opt(None, "Attention heads", low=1, high=1_000_000)
    kv_heads: int | None = opt(None, "Heads of keys and values", low=1, high=1_000_000)
    dtype: str | None = opt(None, "Type of an element", choices=tuple(DTYPE_BYTES))
    kv_dim_per_head: int | None = opt(
        None, "Elements in a head; 0 = hidden_dim / num_heads", low=0, high=100_000_000
    )
    attention_type: str | None = opt(None, "Kind of attention", choices=ATTENTION_TYPES)
    kv_lora_rank: int | None = opt(None, "MLA: size of the latent", low=0, high=100_000_000)
    qk_rope_head_dim: int | None = opt(None, "MLA: size of the rope key", low=0, high=100_000_000)
