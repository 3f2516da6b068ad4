"""The MLPerf reference's sections of the configuration, with its exact keys and defaults, so that
its `config.yaml` loads unchanged.

Each key works or is refused: `NOT_YET` names those whose feature this version does not have; they
are accepted at their default and refused, with the reason, at any other value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_cache.config.schema import opt
from kv_cache.core.model import ATTENTION_TYPES, DTYPE_BITS

NOT_YET: Mapping[str, str] = {
    "gpu_backend.max_eviction_attempts": "room in the GPU tier is planned at once, not attempted",
    "gpu_backend.free_memory_threshold": "the GPU tier takes its memory once, when a run starts",
    "eviction.max_recursion_depth": "demotions are planned at once, through two tiers at most",
}
"""Section or key -> why it is refused when changed."""


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
    """One QoS class: target response times and its priority."""

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

    min_prefix_length: int = opt(
        50, "A shorter prompt is not stored for others: who begins with it computes it",
        unit="tokens", low=0,
    )  # fmt: skip
    max_prefix_entries: int = opt(
        1000, "Prompts that are stored for others, at most: the most popular", low=0
    )
    system_prompt_hit_probability: float = opt(
        0.2, "Chance that a conversation begins with a system prompt", low=0, high=1
    )
    lengths: str = opt(
        "listed", "How long prompts are: as prompt_tokens says, or as five published prompts of "
        "products were in 2026 (3475 to 24134 tokens)", choices=("listed", "published"),
    )  # fmt: skip
    prompt_tokens: tuple[int, ...] = opt(
        (128, 256, 512), "Lengths of the prompts, the most popular first", unit="tokens", low=1,
        high=10_000_000, read_when=".lengths=listed",
    )  # fmt: skip
    prompts: int | None = opt(
        None, "How many prompts there are, their lengths taken over and over; if not given, one "
        "for each length", low=1, high=1_000_000,
    )  # fmt: skip
    popularity: str = opt(
        "uniform", "How prompts are chosen: all alike, or the i-th with a chance proportional to "
        "1 / i^zipf_s", choices=("uniform", "zipf"),
    )  # fmt: skip
    zipf_s: float = opt(
        1.0, "Exponent of popularity zipf", above=0, high=20, read_when=".popularity=zipf"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rag:
    """Retrieval: documents that are stored before the measured window, and requests that read
    chunks of them."""

    enabled: bool = opt(
        False, "Send RAG requests beside some requests: each reads chunks of a document",
        flag="--enable-rag",
    )  # fmt: skip
    num_docs: int = opt(
        10, "Number of documents, ingested before the measurement", low=0, high=1_000_000,
        flag="--rag-num-docs", read_when="rag.enabled",
    )  # fmt: skip
    reuse: str = opt(
        "independent", "When a stored chunk can be reused: at any position (independent, as "
        "CacheBlend, EPIC and the reference do), or only behind the same chunks "
        "in the same order (prefix)", choices=("independent", "prefix"), flag="--chunk-reuse",
        read_when="rag.enabled",
    )  # fmt: skip
    chunk_size_tokens: int = opt(
        512, "Tokens in a chunk, the last of a document may have fewer", unit="tokens", low=1,
        high=100_000_000,
    )  # fmt: skip
    top_k_chunks: int = opt(
        5, "Chunks of one document that a request reads, or all if it has fewer", low=1,
        high=1_000_000,
    )  # fmt: skip
    max_chunk_bytes: int = opt(
        268_435_456, "Bytes of a chunk, at most: chunk_size_tokens is lowered to it", unit="bytes",
        low=1,
    )  # fmt: skip
    request_probability: float = opt(0.1, "Chance that a request retrieves", low=0, high=1)
    retrieval_distribution: str = opt(
        "zipfian", "Which document, and which chunks of it: the i-th with a chance proportional to "
        "1 / i, or all alike", choices=("zipfian", "uniform"),
    )  # fmt: skip
    max_documents: int = opt(
        0, "Documents that are kept, the last of those that came; 0 = all", low=0
    )
    question_tokens: int = opt(
        32, "Tokens of the question behind the chunks", unit="tokens", low=0, high=1_000_000
    )
    generation_range: tuple[int, int] = opt(
        (50, 200), "Tokens that are generated from them", unit="tokens", low=1, high=100_000_000
    )
    large_model_doc_tokens_min: int = opt(
        1024, "Shortest document of a model of 64 layers or 8192 hidden", unit="tokens", low=1,
        high=100_000_000,
    )  # fmt: skip
    large_model_doc_tokens_max: int = opt(
        4096, "Longest document of such a model", unit="tokens", low=1, high=100_000_000
    )
    small_model_doc_tokens_min: int = opt(
        4000, "Shortest document of a smaller model", unit="tokens", low=1, high=100_000_000
    )
    small_model_doc_tokens_max: int = opt(
        12_000, "Longest document of a smaller model", unit="tokens", low=1, high=100_000_000
    )


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
    """Users that come and go during a run."""

    enabled: bool = opt(
        False, "Change the number of users during the run to find how many the storage sustains",
        flag="--enable-autoscaling",
    )  # fmt: skip
    mode: str = opt(
        "qos", "What to search for: the most users with the SLOs of all classes met (qos), or "
        "the highest throughput regardless of latency (capacity); predictive = qos",
        choices=("qos", "capacity", "predictive"), flag="--autoscaler-mode",
        read_when="autoscaler.enabled",
    )  # fmt: skip
    target_saturation: float = opt(
        0.8, "Share of the SLO limits that mode qos aims for; 1 = all of it", low=0, high=1,
        flag="--target-saturation", read_when="autoscaler.enabled",
    )  # fmt: skip
    min_users: int = opt(1, "Fewest users", low=1, high=100_000)
    max_users: int = opt(10_000, "Most users", low=1, high=100_000)
    scale_up_factor: float = opt(1.2, "Growth in one step", above=1, high=100)
    scale_down_factor: float = opt(0.8, "Shrinking in one step", above=0, high=0.99)
    consecutive_samples_required: int = opt(
        2, "Samples that must say the same before users leave", low=1, high=1000
    )
    windows_per_sample: int = opt(
        2, "Windows (monitor.tick_s) that make one sample", low=1, high=3600
    )
    cooldown_samples: int = opt(
        3, "Samples that are not looked at after the number was changed", low=0, high=1000
    )
    longest_samples: int = opt(
        30, "Samples after which a number of users is judged by what they show, sure or not", low=1,
        high=10_000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Generation."""

    batch_size: int = opt(
        32, "Tokens that are generated between two reads of the context", low=1, high=1_000_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGpt:
    """Datasets of conversations (--dataset-path, or a --trace of format sharegpt)."""

    max_context_tokens: int = opt(
        8192, "A conversation ends before the turn whose prompt, history included, is longer",
        unit="tokens", low=1, high=10_000_000,
    )  # fmt: skip
    max_generation_tokens: int = opt(
        2048, "Longer answers are cut to this", unit="tokens", low=1, high=10_000_000
    )
    chars_per_token_estimate: float = opt(
        4.0, "Characters that are a token, with tokenizer chars", above=0, high=1_000_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationDetection:
    """When storage is called saturated: each signal over its threshold is a level of 1."""

    read_latency_p95_threshold_ms: float = opt(
        100.0, "P95 of reads from storage", unit="ms", above=0, high=1e9
    )
    write_latency_p95_threshold_ms: float = opt(
        50.0, "P95 of writes to storage", unit="ms", above=0, high=1e9
    )
    queue_depth_threshold: int = opt(100, "Waiting requests", low=1, high=10**9)
    history_window_size: int = opt(10, "Windows whose median counts", low=1, high=3600)
    release_level: float = opt(
        0.8, "Below this level it is not saturated any more", above=0, high=1
    )


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
    dtype: str | None = opt(None, "Type of an element", choices=tuple(DTYPE_BITS))
    kv_dim_per_head: int | None = opt(
        None, "Elements in a head; 0 = hidden_dim / num_heads", low=0, high=100_000_000
    )
    attention_type: str | None = opt(None, "Kind of attention", choices=ATTENTION_TYPES)
    kv_lora_rank: int | None = opt(None, "MLA: size of the latent", low=0, high=100_000_000)
    qk_rope_head_dim: int | None = opt(None, "MLA: size of the rope key", low=0, high=100_000_000)
    kv_quant_group: int | None = opt(
        None, "Elements that share a scale, where dtype has at most 8 bits; 0 = no scales stored",
        low=0, high=1_000_000,
    )  # fmt: skip
    kv_scale_bytes: int | None = opt(
        None, "Bytes of one scale (and its zero point, if any)", unit="bytes", low=1, high=64
    )
    sliding_window: int | None = opt(
        None, "Tokens that a layer with a sliding window sees", unit="tokens", low=0,
        high=100_000_000,
    )  # fmt: skip
    sliding_layers: int | None = opt(
        None, "Layers with a sliding window; 0 = none", low=0, high=1_000_000
    )
    kv_bytes_per_token: int | None = opt(
        None, "KV state of one token, whatever the geometry; 0 = as the geometry says",
        unit="bytes", low=0, high=10**9,
    )  # fmt: skip
