"""Sections of the configuration that say who asks for what, and when."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_cache.config.schema import opt
from kv_cache.workload.formats.base import TimeUnit
from kv_cache.workload.lengths import LAWS
from kv_cache.workload.row_requests import History


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalConfig:
    """When requests come."""

    mode: str = opt(
        "closed", "closed = users wait for their answer before they think and ask again; open = "
        "users do not wait, as in the reference", choices=("closed", "open"),
        read_when="!replays or arrival.request_rate",
    )  # fmt: skip
    request_rate: float = opt(
        0.0, "Request rate of all users together, instead of think times or a trace's "
             "timestamps; 0 = not set",
        unit="1/s", low=0, high=1e9, flag="--request-rate",
    )  # fmt: skip
    process: str = opt(
        "fixed", "Spacing of requests when request_rate is above 0",
        choices=("fixed", "poisson", "gamma"),
    )  # fmt: skip
    cv: float = opt(
        2.0, "Coefficient of variation of the gamma process; above 1 = bursts", above=0, high=100,
        flag="--arrival-cv", read_when="arrival.process=gamma",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Who asks for what: synthetic users, or a trace."""

    trace: str | None = opt(
        None, "Replay this trace instead of synthetic users", flag="--trace", metavar="PATH"
    )
    trace_models: Mapping[str, str] = opt(
        {}, "Map the trace's model names to models of run.model_mix; requests of other models "
        "are drawn by weight", flag="--trace-models", metavar="TRACE=NAME,...", read_when="replays",
    )  # fmt: skip
    mix_opening_tokens: int = opt(
        512, "With run.model_mix and a trace of hash ids: requests that have the block behind this "
        "many tokens in common ask the same model; what is shared before it, as a system prompt, "
        "each model has for itself", unit="tokens", low=0, high=10_000_000,
    )  # fmt: skip
    trace_format: str = opt(
        "auto", "Format of the trace; auto = by its content", flag="--trace-format", metavar="NAME",
        read_when=("replays", "!workload.use_burst_trace or workload.dataset_path"),
    )  # fmt: skip
    trace_time_unit: str = opt(
        "auto", "Unit of the trace's times where they are bare numbers; auto = the format's, "
        "unless that makes them faster than any service and another unit does not",
        choices=("auto", *(unit.value for unit in TimeUnit)), flag="--trace-time-unit",
        read_when="replays",
    )  # fmt: skip
    trace_block_tokens: int = opt(
        0, "Tokens that a hash id of the trace stands for; 0 = as its format says", low=0,
        high=1_000_000, flag="--trace-block-tokens", read_when="replays",
    )  # fmt: skip
    trace_speedup: float = opt(
        1.0, "Divide gaps between requests and think times by this; 0 = send requests as fast as "
             "they are served", low=0, high=1e9, flag="--trace-speedup",
        read_when=("replays", "!arrival.request_rate"),
    )  # fmt: skip
    trace_users: int | None = opt(
        None, "Concurrent sessions, for a trace of sessions without timestamps; if not given, "
        "run.num_users", low=1, high=100_000, flag="--trace-users", read_when="replays",
    )  # fmt: skip
    arrival_scale: float = opt(
        1.0, "Multiply the session arrival rate by this; each session keeps its own pace, and a "
        "row without a session is a session of its own", low=1e-6, high=1e6, flag="--arrival-scale",
        read_when=("replays", "!arrival.request_rate", "workload.trace_speedup"),
    )  # fmt: skip
    trace_window: str | None = opt(
        None, "Replay only what lies between these seconds of the trace, e.g. 600:1200; either may "
        "be left out", flag="--trace-window", metavar="FROM:TO", read_when="replays",
    )  # fmt: skip
    trace_history: str = opt(
        "format", "How to read the prompts of a session's later rows: as the format says, as "
                  "including the history, as only what is added to it, or as having no history",
        choices=tuple(history.value for history in History), flag="--trace-history",
        read_when="replays",
    )  # fmt: skip
    trace_prompts: bool = opt(
        False, "Begin a share of the trace's conversations with a common system prompt, see "
               "prefix_cache: sharing that the trace itself does not have", flag="--trace-prompts",
        read_when="replays",
    )  # fmt: skip
    replay_cycles: int = opt(
        0, "Stop after this many passes over the trace; 0 = endless", low=0, high=10**9,
        flag="--replay-cycles",
    )  # fmt: skip
    skip_bad_rows: bool = opt(
        False, "Skip and count unreadable rows instead of refusing the trace",
        flag="--skip-bad-rows", read_when="replays",
    )  # fmt: skip
    include_failed_rows: bool = opt(
        False, "Ask what the trace marks as failed too (of BurstGPT 0 response tokens), without an "
        "answer, instead of leaving it out and counting it", flag="--include-failed-rows",
        read_when="replays",
    )  # fmt: skip
    strict_trace: bool = opt(
        False, "Refuse a trace of which a reader is warned otherwise: times that may be in another "
        "unit, rows that are not sorted, or none that can share anything", flag="--strict-trace",
        read_when="replays",
    )  # fmt: skip
    dataset_path: str | None = opt(
        None, "Replay the conversations of this file of ShareGPT's or of OpenAI's messages: the "
        "same as trace with trace_format sharegpt", flag="--dataset-path", metavar="PATH",
    )  # fmt: skip
    max_conversations: int | None = opt(
        None, "Read only the first N sessions of a trace of sessions; 0 = all; if not given, 500 "
              "for a dataset_path, else all", low=0, high=10**9, flag="--max-conversations",
        read_when="replays",
    )  # fmt: skip
    tokenizer: str = opt(
        "chars", "Tokenizer for a dataset's texts: chars (sharegpt.chars_per_token_estimate), "
        "tiktoken:ENCODING or tiktoken:FILE, or hf:FILE (a tokenizer.json); nothing is "
        "downloaded", flag="--tokenizer", metavar="NAME", read_when="replays",
    )  # fmt: skip
    use_burst_trace: bool = opt(
        False, "Replay the BurstGPT trace at burst_trace_path", flag="--use-burst-trace",
        read_when="!workload.dataset_path",
    )  # fmt: skip
    burst_trace_path: str = opt(
        "BurstGPT/data/BurstGPT_1.csv", "BurstGPT CSV: a file, a directory of them or a pattern",
        flag="--burst-trace-path", metavar="PATH", read_when="workload.use_burst_trace",
    )  # fmt: skip
    multi_turn: bool = opt(
        True, "Users hold conversations whose earlier turns are looked up",
        flag="--disable-multi-turn", read_when="!replays",
    )  # fmt: skip
    population_seed: int | None = opt(
        None, "Seed of who the synthetic users are (kind, class, pace), if not the run's: the same "
        "users, other requests", low=0, high=2**32 - 1,
    )  # fmt: skip
    prefix_caching: bool = opt(
        True, "Requests may share a system prompt, see prefix_cache",
        flag="--disable-prefix-caching", read_when="!replays",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LawConfig:
    """One law of lengths or times, with the keys that it needs."""

    law: str = opt(
        "personas",
        "personas = as user_templates says, of a scenario as prompt_tokens, output_tokens, think_s "
        "and turns say; fixed (value), uniform (low, high), lognormal (median, "
        "sigma; low and high cut it off), zipf (exponent, low, high, step: the k-th value has a "
        "share of k^-exponent) or empirical (quantiles, values; straight lines in between)",
        choices=("personas", *LAWS),
    )  # fmt: skip
    value: float | None = opt(None, "The value of fixed", low=0)
    low: float | None = opt(None, "Least value", low=0)
    high: float | None = opt(None, "Greatest value", low=0)
    step: int = opt(1, "Distance of two values of zipf", low=1)
    median: float | None = opt(None, "Median of lognormal, before it is cut off", above=0)
    sigma: float | None = opt(
        None, "Standard deviation of the logarithm, of lognormal", low=0, high=10
    )
    exponent: float | None = opt(None, "Exponent of zipf", low=0, high=20)
    quantiles: tuple[float, ...] | None = opt(
        None, "Shares of empirical, growing from 0 to 1", low=0, high=1
    )
    values: tuple[float, ...] | None = opt(
        None, "Values of empirical, one for each of quantiles", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsConfig:
    """Laws for synthetic users in place of user_templates: tokens that a request adds to its
    conversation (prompt; the first one first_prompt, if that has a law) and generates (output),
    seconds before it (think_s), requests of a conversation (turns). trace fit writes this
    section."""

    prompt: LawConfig = field(default_factory=LawConfig)
    first_prompt: LawConfig = field(
        default_factory=LawConfig, metadata={"read_when": ("workload.multi_turn",)}
    )
    output: LawConfig = field(default_factory=LawConfig)
    think_s: LawConfig = field(
        default_factory=LawConfig, metadata={"read_when": ("!arrival.request_rate",)}
    )
    turns: LawConfig = field(
        default_factory=LawConfig, metadata={"read_when": ("workload.multi_turn",)}
    )
    correlation: float = opt(
        0.0, "How turns and first_prompt of a conversation go together: the correlation of their "
        "normal scores, below 0 where those that begin long have few turns", low=-1, high=1,
        read_when=(".turns.law!=personas", ".first_prompt.law!=personas"),
    )  # fmt: skip
