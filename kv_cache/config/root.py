"""The whole configuration of a run, and what follows from it.

`Config` holds what the user said (None = not said). Its methods answer what the run does: they
resolve the semantics' preset, the window, the model. `check` refuses what contradicts itself,
`warnings` names what is allowed but has no effect or may surprise.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from kv_cache.cache.limits import CacheRules
from kv_cache.config import reference as r
from kv_cache.config import sections as s
from kv_cache.config.lengths import build_lengths
from kv_cache.config.passport import PassportConfig
from kv_cache.config.personalities import PERSONALITIES
from kv_cache.config.policies import PoliciesConfig, policy_warnings
from kv_cache.config.schema import Option, describe, opt, show
from kv_cache.config.storage_targets import check_places, place_warnings
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.kinds import RunMode
from kv_cache.core.model import MODELS, ModelShape
from kv_cache.core.units import NS_PER_MS, s_to_ns
from kv_cache.lifecycle import Semantics
from kv_cache.workload.formats.base import Reading
from kv_cache.workload.formats.tokens import open_tokens

DEFAULT_DURATION_S = 60.0
DATASET_CONVERSATIONS = 500  # as many as the reference reads of a dataset
_SPEEDUP = "workload.trace_speedup"
_SLOWEST = 1e-6
_WINDOW = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)?:([0-9]{1,9}(?:\.[0-9]{1,9})?)?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What `semantics` and `io.fsync` are where the user left them open."""

    reuse: str
    decode_rereads: bool
    promote: bool
    write_behind: bool
    fsync: str
    gpu_in_place: bool
    prefill_only_from_tokens: int  # for synthetic users; a trace says itself what it generates
    block_tokens: int


PRESETS: Mapping[str, Preset] = {
    "mlperf": Preset(
        reuse="each",
        decode_rereads=True,
        promote=False,
        write_behind=False,
        fsync="object",
        gpu_in_place=False,
        prefill_only_from_tokens=10_000,
        block_tokens=0,
    ),
    "serving": Preset(
        reuse="prefix",
        decode_rereads=False,
        promote=True,
        write_behind=True,
        fsync="never",
        gpu_in_place=True,
        prefill_only_from_tokens=0,
        block_tokens=256,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The root; its fields are the top-level keys of a configuration file."""

    run: s.RunConfig = field(default_factory=s.RunConfig)
    tiers: s.TiersConfig = field(default_factory=s.TiersConfig)
    policies: PoliciesConfig = field(default_factory=PoliciesConfig)
    io: s.IoConfig = field(default_factory=s.IoConfig)
    s3: s.S3Config = field(default_factory=s.S3Config)
    semantics: s.SemanticsConfig = field(default_factory=s.SemanticsConfig)
    schedule: s.ScheduleConfig = field(default_factory=s.ScheduleConfig)
    arrival: s.ArrivalConfig = field(default_factory=s.ArrivalConfig)
    workload: s.WorkloadConfig = field(default_factory=s.WorkloadConfig)
    lengths: s.LengthsConfig = field(default_factory=s.LengthsConfig)
    output: s.OutputConfig = field(default_factory=s.OutputConfig)
    monitor: s.MonitorConfig = field(default_factory=s.MonitorConfig)
    precondition: s.PreconditionConfig = field(default_factory=s.PreconditionConfig)
    sim: s.SimConfig = field(default_factory=s.SimConfig)
    passport: PassportConfig = field(default_factory=PassportConfig)
    user_templates: r.UserTemplates = field(default_factory=r.UserTemplates)
    generation_timing: r.GenerationTiming = field(default_factory=r.GenerationTiming)
    qos_profiles: r.QosProfiles = field(default_factory=r.QosProfiles)
    qos_distribution: r.QosDistribution = field(default_factory=r.QosDistribution)
    eviction: r.EvictionConfig = field(default_factory=r.EvictionConfig)
    gpu_backend: r.GpuBackend = field(default_factory=r.GpuBackend)
    prefix_cache: r.PrefixCache = field(default_factory=r.PrefixCache)
    rag: r.Rag = field(default_factory=r.Rag)
    conversation: r.Conversation = field(default_factory=r.Conversation)
    autoscaler: r.Autoscaler = field(default_factory=r.Autoscaler)
    decode: r.Decode = field(default_factory=r.Decode)
    sharegpt: r.ShareGpt = field(default_factory=r.ShareGpt)
    saturation_detection: r.SaturationDetection = field(default_factory=r.SaturationDetection)
    validation_limits: r.ValidationLimits = field(default_factory=r.ValidationLimits)
    model_configs: Mapping[str, r.ModelOverride] = opt(
        {}, "Models by name: fields put over the built-in model of that name, or a new model"
    )
    cpcs: Mapping[str, Any] = opt(
        {}, "Computational storage, accepted for the reference's files; only mode off is possible"
    )

    # --- what the run does -----------------------------------------------------------------

    @property
    def preset(self) -> Preset:
        return PRESETS[self.semantics.preset]

    @property
    def mode(self) -> RunMode:
        return RunMode(self.run.mode)

    @property
    def replays(self) -> bool:
        """Whether a trace is replayed; otherwise the users are synthetic."""
        work = self.workload
        return (work.trace or work.dataset_path) is not None or work.use_burst_trace

    def has_schedule(self, *, sessions: bool = False) -> bool:
        """Whether requests have instants of their own; a trace "as fast as served" has none, nor
        has one of `sessions`, whose rows are due when others are answered."""
        own = self.workload.trace_speedup > 0 if self.replays else self.arrival.mode == "open"
        return (own and not sessions) or self.arrival.request_rate > 0

    def window_s(self) -> float | None:
        """Length of the measured window in seconds; None = bounded by requests or cycles alone."""
        bounded = self.run.max_requests > 0 or self.workload.replay_cycles > 0
        if self.run.duration_s is None and not bounded:
            return DEFAULT_DURATION_S
        return self.run.duration_s

    def trace_path(self) -> Path | None:
        """The trace to replay: as given, or the shipped one where `datasets/...` is not in the
        working directory. It may not exist; for BurstGPT it may be a directory or a pattern."""
        from kv_cache.config.load import shipped  # here, because `load` builds a Config

        work = self.workload
        burst = work.burst_trace_path if work.use_burst_trace else None
        trace = work.dataset_path or burst or work.trace  # a dataset wins, as in the reference
        return None if trace is None else shipped("datasets", trace)

    def trace_format(self) -> str:
        """The format that the trace is read in: by its name, or auto."""
        if self.workload.dataset_path is not None:
            return "sharegpt"
        return "burstgpt" if self.workload.use_burst_trace else self.workload.trace_format

    def trace_reading(self) -> Reading:
        """What counts tokens and how much is read of a trace. Raises ConfigError."""
        most, of = self.workload.max_conversations, self.sharegpt
        usual = DATASET_CONVERSATIONS if self.workload.dataset_path is not None else 0
        return Reading(
            tokens=open_tokens(self.workload.tokenizer, of.chars_per_token_estimate),
            max_context_tokens=of.max_context_tokens,
            max_generation_tokens=of.max_generation_tokens,
            max_sessions=_or(most, usual),
        )

    def trace_window_ns(self) -> tuple[int, int | None] | None:
        """From when to when in the trace; None = all of it. Raises ConfigError."""
        text = self.workload.trace_window
        if text is None:
            return None
        match = _WINDOW.fullmatch(text)
        begin_s, end_s = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0)
        bounded = match is not None and match.group(2) is not None
        if match is None or (bounded and end_s <= begin_s):
            raise ConfigError(
                f"{_say(self, 'workload.trace_window')}: give two times in seconds, the first "
                "before the second, as in 600:1200, 600: or :1200"
            )
        return s_to_ns(begin_s), s_to_ns(end_s) if bounded else None

    def model_shape(self) -> ModelShape:
        """The model of run.model, or the largest of run.model_mix (its bytes per token). Raises
        ConfigError."""
        mixed = self.mixed_shapes()
        if mixed:
            return max(mixed.values(), key=lambda shape: shape.bytes_per_token)
        return self._shape(self.run.model, "run.model (--model) is")

    def mixed_shapes(self) -> dict[str, ModelShape]:
        """The models of run.model_mix by name; empty if there is one model. Raises ConfigError."""
        said = "run.model_mix (--model-mix) has"
        return {name: self._shape(name, said) for name in self.run.model_mix}

    def _shape(self, name: str, said: str) -> ModelShape:
        """A key of model_configs, a built-in, or a path to a Hugging Face config.json or a
        directory with one; with the type of run.kv_dtype, if that is given."""
        from kv_cache.config.load import read_model

        path, stated = os.path.expanduser(name), self.run.kv_bytes_per_token
        if name in MODELS or name in self.model_configs:
            shape = _merged(name, self.model_configs.get(name, r.ModelOverride()))
        elif os.path.exists(path):
            shape = read_model(Path(path), stated or 0)
        else:
            raise ConfigError(
                f"{said} {show(name)}, which is neither a model nor a path."
                f"{did_you_mean(name, {*MODELS, *self.model_configs})}"
            )
        if stated is not None:
            shape = replace(
                shape, name=f"{shape.name} ({stated} bytes a token)", kv_bytes_per_token=stated,
                sliding_window=0, sliding_layers=0,
                source=f"{shape.source}; {stated} bytes a token from run.kv_bytes_per_token",
            )  # fmt: skip
        dtype = self.run.kv_dtype
        if dtype is not None and dtype != shape.dtype:
            source = f"{shape.source}; dtype from run.kv_dtype"
            shape = replace(shape, dtype=dtype, source=source)
        if shape.bytes_per_token < 1:
            raise ConfigError(
                f"model {show(name)} has 0 bytes of KV state a token; check its hidden_dim, "
                "num_heads and kv_dim_per_head"
            )
        return shape

    def lifecycle_semantics(self, *, synthetic: bool) -> Semantics:
        """What a request does. `synthetic`: the users are made up, not replayed from a trace."""
        given, preset = self.semantics, self.preset
        prefill_only = preset.prefill_only_from_tokens if synthetic else 0
        timing: float = getattr(self.generation_timing, self.run.generation_mode)
        return Semantics(
            reuse_prefix=(given.reuse or preset.reuse) == "prefix",
            decode_rereads=_or(given.decode_rereads, preset.decode_rereads),
            decode_batch_tokens=self.decode.batch_size,
            promote=_or(given.promote, preset.promote),
            write_behind=_or(given.write_behind, preset.write_behind),
            write_behind_drop=given.write_behind_full == "drop",
            gpu_in_place=_or(given.gpu_in_place, preset.gpu_in_place),
            prefill_only_from_tokens=_or(given.prefill_only_from_tokens, prefill_only),
            prefill_ns_per_token=round(given.prefill_ms_per_token * NS_PER_MS),
            decode_ns_per_token=s_to_ns(timing),
            batch_blocks=given.batch_blocks,
        )

    def resolved_block_tokens(self, trace_block_tokens: int = 0) -> int:
        """Tokens in a block, 0 = one object a turn. `trace_block_tokens`: the trace's, 0 = none."""
        return _or(self.semantics.block_tokens, trace_block_tokens or self.preset.block_tokens)

    def fsync(self) -> str:
        """When a write to storage is on the device: never waited for, object or batch."""
        return _or(self.io.fsync, self.preset.fsync)

    def cache_rules(self) -> CacheRules:
        return CacheRules(
            target_usage_ratio=self.eviction.target_usage_ratio,
            large_entry_limit_ratio=self.eviction.large_entry_limit_ratio,
            max_evictions_hard_cap=self.eviction.max_evictions_hard_cap,
            max_evictions_min=self.eviction.max_evictions_min,
        )

    # --- rules between options -------------------------------------------------------------

    def check(self) -> None:
        """Raise ConfigError for the first rule that the options break together."""
        check_places(self)
        _check_not_yet(self)
        _check_cpcs(self.cpcs)
        _check_limits(self)
        _check_tiers(self)
        _check_models(self)
        _check_arrival(self)
        _check_trace(self)
        _check_qos(self)
        _check_scaling(self)
        build_lengths(self.lengths)
        _check_prompts(self)
        _check_rag(self)

    def warnings(self) -> list[str]:
        """One sentence for each thing that is allowed but may surprise."""
        return list(_warnings(self))


def value_at(config: Config, path: str) -> Any:
    """The value of an option by its dotted path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


@cache
def options() -> Mapping[str, Option]:
    """All options by their dotted path."""
    return {option.path: option for option in describe(Config)}


def _or(given: T | None, default: T) -> T:
    return default if given is None else given


def _merged(name: str, override: r.ModelOverride) -> ModelShape:
    """The override's fields over the built-in of that name, or over the general defaults."""
    base = MODELS.get(name) or ModelShape(name=name, source="model_configs")
    given = {f.name: getattr(override, f.name) for f in fields(override)}
    changed = {k: v for k, v in given.items() if v is not None and v != getattr(base, k)}
    if changed.keys() - {"name"} and name in MODELS:
        changed["source"] = f"{base.source}, changed by model_configs"
    return replace(base, **changed)


def _say(config: Config, path: str) -> str:
    """`run.num_users (--num-users) is 5`."""
    flag = options()[path].flag
    return f"{path}{f' ({flag})' if flag else ''} is {show(value_at(config, path))}"


def _check_not_yet(config: Config) -> None:
    for path, option in options().items():
        for prefix, reason in r.NOT_YET.items():
            inside = path == prefix or path.startswith(f"{prefix}.")
            if inside and value_at(config, path) != option.default:
                raise ConfigError(
                    f"{_say(config, path)}: {reason}; leave it at {show(option.default)}"
                )


def _check_cpcs(cpcs: Mapping[str, Any]) -> None:
    """The reference's fork writes this section into its own file and never reads it."""
    off: tuple[object, ...] = ("off", False, None)  # YAML reads a bare `off` as false
    idle = {"mode": off, "cpcs_mode": off, "enabled": off, "backend": ("file", None)}
    idle["nvme_backend"] = idle["backend"]
    for key, allowed in idle.items():
        if key in cpcs and cpcs[key] not in allowed:
            raise ConfigError(
                f"cpcs.{key} is {show(cpcs[key])}: computational storage is not in this version; "
                f"set it to {allowed[0]}, or leave the section out"
            )


def _check_limits(config: Config) -> None:
    limits = {
        "run.num_users": "validation_limits.max_users",
        "run.duration_s": "validation_limits.max_duration_seconds",
        "tiers.gpu_mem_gib": "validation_limits.max_gpu_memory_gb",
        "tiers.cpu_mem_gib": "validation_limits.max_cpu_memory_gb",
    }
    for path, limit in limits.items():
        value, most = value_at(config, path), value_at(config, limit)
        if value is not None and value > most:
            raise ConfigError(
                f"{_say(config, path)}, above {limit} of {show(most)}; lower the first or raise "
                "the second"
            )


def _check_tiers(config: Config) -> None:
    if config.tiers.tensor_parallel > config.tiers.num_gpus:
        raise ConfigError(
            f"{_say(config, 'tiers.tensor_parallel')}, more than the cards: raise "
            f"tiers.num_gpus (--num-gpus) from {config.tiers.num_gpus}, or lower it"
        )
    if config.io.layout == "arena" and len(config.tiers.cache_dir or ()) > 1:
        raise ConfigError(
            "io.layout (--layout) is 'arena' and tiers.cache_dir (--cache-dir) has several "
            "directories: a whole object may not fit what each arena has left; use --layout file "
            "or bucket, or one directory"
        )


def _check_models(config: Config) -> None:
    run, named = config.run, config.workload.trace_models
    if run.model_mix and run.model != options()["run.model"].default:
        raise ConfigError(
            f"{_say(config, 'run.model')} and run.model_mix (--model-mix) is given: a mix names "
            "all its models; leave one of them out"
        )
    for path in ("run.kv_dtype", "run.model_mix") if run.kv_bytes_per_token is not None else ():
        if value_at(config, path):
            raise ConfigError(
                f"{_say(config, 'run.kv_bytes_per_token')} and {_say(config, path)}: the bytes are "
                "of one model, its type included; leave one of them out"
            )
    if named and not run.model_mix:
        raise ConfigError(
            "workload.trace_models (--trace-models) is given without a mix; name its models and "
            "their weights with run.model_mix (--model-mix)"
        )
    for theirs, name in named.items():
        if name not in run.model_mix:
            raise ConfigError(
                f"workload.trace_models (--trace-models) has {show(theirs)} as {show(name)}, "
                f"which is not in run.model_mix (--model-mix).{did_you_mean(name, run.model_mix)}"
            )


def _check_arrival(config: Config) -> None:
    arrival = config.arrival
    if arrival.process != "fixed" and arrival.request_rate == 0:
        raise ConfigError(
            f"{_say(config, 'arrival.process')}, which needs a rate; set arrival.request_rate "
            "(--request-rate) above 0"
        )


def _check_trace(config: Config) -> None:
    work = config.workload
    if 0 < work.trace_speedup < _SLOWEST:
        raise ConfigError(
            f"{_say(config, _SPEEDUP)}: give at least {_SLOWEST:g}, or 0 for as fast as served"
        )
    if work.trace is not None and work.use_burst_trace:
        raise ConfigError(
            f"{_say(config, 'workload.trace')} and workload.use_burst_trace (--use-burst-trace) "
            "is true: a run replays one trace; leave one of them out"
        )
    if work.trace is not None and work.dataset_path is not None:
        raise ConfigError(
            f"{_say(config, 'workload.trace')} and {_say(config, 'workload.dataset_path')}: a run "
            "replays one trace; leave one of them out"
        )
    if work.dataset_path is not None and work.trace_format not in ("auto", "sharegpt"):
        raise ConfigError(
            f"{_say(config, 'workload.trace_format')}, but workload.dataset_path (--dataset-path) "
            "is a ShareGPT file; give a trace of another format with workload.trace (--trace)"
        )
    if work.replay_cycles > 0 and not config.replays:
        raise ConfigError(
            f"{_say(config, 'workload.replay_cycles')}, but only a trace has cycles; give one "
            "with workload.trace (--trace), or bound the run with --max-requests"
        )


def _check_qos(config: Config) -> None:
    shares = config.qos_distribution
    if shares.interactive_probability > shares.responsive_threshold:
        raise ConfigError(
            f"{_say(config, 'qos_distribution.interactive_probability')}, above "
            f"responsive_threshold of {show(shares.responsive_threshold)}; the thresholds are "
            "cumulative, so raise the second or lower the first"
        )
    for name in ("interactive", "responsive", "batch"):
        paths = [
            f"qos_profiles.{name}.target_latency_{p}_ms" for p in ("p95", "p99", "p999", "p9999")
        ]
        for lower, upper in pairwise(paths):
            if value_at(config, lower) > value_at(config, upper):
                raise ConfigError(
                    f"{_say(config, lower)}, above {upper} of {show(value_at(config, upper))}; a "
                    "higher percentile cannot have a shorter target"
                )


def _check_scaling(config: Config) -> None:
    scaler = config.autoscaler
    if scaler.min_users > scaler.max_users:
        raise ConfigError(
            f"{_say(config, 'autoscaler.min_users')}, above autoscaler.max_users of "
            f"{scaler.max_users}; raise the second or lower the first"
        )
    if not scaler.enabled:
        return
    if config.replays or config.arrival.request_rate > 0:
        path = "arrival.request_rate" if config.arrival.request_rate > 0 else "workload.trace"
        raise ConfigError(
            f"{_say(config, 'autoscaler.enabled')}, but {_say(config, path)}: the load is not "
            "made by users, so more or fewer of them change nothing; leave one of them out, or "
            "use kv-cache.py capacity, which changes the rate"
        )
    if not scaler.min_users <= config.run.num_users <= scaler.max_users:
        raise ConfigError(
            f"{_say(config, 'run.num_users')}, outside autoscaler.min_users and max_users "
            f"({scaler.min_users} to {scaler.max_users}); begin inside"
        )


def _check_prompts(config: Config) -> None:
    if config.workload.trace_prompts and not config.workload.prefix_caching:
        raise ConfigError(
            f"{_say(config, 'workload.trace_prompts')} and "
            f"{_say(config, 'workload.prefix_caching')}: leave one of them out"
        )


def _check_rag(config: Config) -> None:
    rag = config.rag
    for size in ("large", "small"):
        low, high = (f"rag.{size}_model_doc_tokens_{end}" for end in ("min", "max"))
        if value_at(config, low) > value_at(config, high):
            raise ConfigError(
                f"{_say(config, low)}, above {high} of {show(value_at(config, high))}; raise the "
                "second or lower the first"
            )
    if not rag.enabled:
        return
    if not rag.num_docs:
        raise ConfigError(
            f"{_say(config, 'rag.num_docs')}, and {_say(config, 'rag.enabled')}: there is nothing "
            "to retrieve from; give at least 1"
        )
    if config.mode is RunMode.DECODE_ONLY:
        raise ConfigError(
            f"{_say(config, 'rag.enabled')} and {_say(config, 'run.mode')}: a decode-only run "
            "reads only the objects that it made itself, never a document; leave --enable-rag or "
            "--decode-only out"
        )


def _warnings(config: Config) -> Iterator[str]:
    ranks = config.tiers.tensor_parallel
    if ranks & (ranks - 1):
        yield f"{_say(config, 'tiers.tensor_parallel')}, not a power of two: models rarely split so"
    yield from _model_warnings(config)
    yield from _replay_warnings(config) if config.replays else _warnings_without_trace(config)
    if config.workload.dataset_path is not None and config.workload.use_burst_trace:
        yield f"{_say(config, 'workload.use_burst_trace')}: no effect with --dataset-path"
    yield from _output_warnings(config)
    yield from _virtual_time_warnings(config)
    yield from policy_warnings(config)
    yield from place_warnings(config)
    yield from _shared_by_nobody(config)
    yield from _not_like_the_connector(config)
    yield from _without_effect(config)
    if config.io.layout != "file" and not config.io.rename:
        yield f"{_say(config, 'io.rename')}: no effect, as io.layout is not file"
    if config.arrival.process != "gamma" and _is_set(config, "arrival.cv"):
        yield f"{_say(config, 'arrival.cv')}: no effect, as arrival.process is not gamma"


def _is_set(config: Config, path: str) -> bool:
    """Whether an option differs from its default."""
    return bool(value_at(config, path) != options()[path].default)


def _warnings_without_trace(config: Config) -> Iterator[str]:
    for name in (
        "trace_prompts", "trace_speedup", "skip_bad_rows", "burst_trace_path", "trace_format",
        "trace_time_unit", "max_conversations", "tokenizer", "trace_users", "arrival_scale",
        "trace_window", "trace_history",
    ):  # fmt: skip
        path = f"workload.{name}"
        if _is_set(config, path):
            yield f"{_say(config, path)}: no effect, as no trace is replayed"


def _replay_warnings(config: Config) -> Iterator[str]:
    work, spaced = config.workload, config.arrival.request_rate > 0
    scale = "workload.arrival_scale"
    if spaced and _is_set(config, _SPEEDUP):
        yield f"{_say(config, _SPEEDUP)}: no effect, as --request-rate sets the pace"
    if (spaced or not work.trace_speedup) and _is_set(config, scale):
        yield f"{_say(config, scale)}: no effect, as the trace's instants are not kept"
    # With a rate, the arrivals are spaced all the same.
    modes = () if spaced else ("arrival.mode",)
    for path in ("workload.multi_turn", "workload.prefix_caching", *modes):
        if _is_set(config, path):
            yield f"{_say(config, path)}: no effect, as a trace says itself who asks when"
    if work.dataset_path is None and work.use_burst_trace and work.trace_format != "auto":
        yield f"{_say(config, 'workload.trace_format')}: no effect with --use-burst-trace"


def _output_warnings(config: Config) -> Iterator[str]:
    output = config.output
    if output.records and output.results_dir is None:
        yield f"{_say(config, 'output.records')}: no effect without --results-dir"
    if output.hdr_log is not None and output.io_trace_log is not None:
        yield f"{_say(config, 'output.hdr_log')}: no effect with --io-trace-log: nothing is timed"
    if output.metrics_port is None and _is_set(config, "output.metrics_host"):
        yield f"{_say(config, 'output.metrics_host')}: no effect without --metrics-port"


def _virtual_time_warnings(config: Config) -> Iterator[str]:
    if not config.run.virtual_time:
        if config.sim.profile is not None:
            yield f"{_say(config, 'sim.profile')}: no effect without --virtual-time"
        return
    for path in ("output.certify", "output.fio_export", "output.metrics_port"):
        if _is_set(config, path):
            yield f"{_say(config, path)}: no I/O is done in virtual time, so it has no effect"
    if config.sim.predict is not None:
        yield f"{_say(config, 'sim.predict')}: no effect, as the run itself is in virtual time"


def _model_warnings(config: Config) -> Iterator[str]:
    ranks, laws = config.tiers.tensor_parallel, config.lengths
    if config.tiers.ranks == "all" and ranks == 1:
        yield f"{_say(config, 'tiers.ranks')}: no effect with one rank, see --tensor-parallel"
    if config.tiers.ranks == "one" and ranks > 1:
        shapes = config.mixed_shapes().values() or (config.model_shape(),)
        for shape in shapes:
            if shape.attention_type != "mla" and shape.kv_heads < ranks:
                yield (
                    f"{_say(config, 'tiers.tensor_parallel')}, more than the {shape.kv_heads} KV "
                    f"heads of {shape.name}: 1/{ranks} of each object is counted, as in the "
                    "reference, where an engine has each head several times; see --ranks all"
                )
    if config.workload.trace_models and not config.replays:
        yield "workload.trace_models (--trace-models): no effect, as no trace is replayed"
    if laws == s.LengthsConfig():
        return
    if config.replays:
        yield "lengths: no effect, as a trace says itself how much is asked"
    if config.arrival.request_rate > 0 and laws.think_s.law != "personas":
        yield "lengths.think_s: no effect, as --request-rate sets the pace"
    if not config.workload.multi_turn and laws.turns.law != "personas":
        yield "lengths.turns: no effect, as workload.multi_turn is off"


def _without_effect(config: Config) -> Iterator[str]:
    """Options of a feature that is off."""
    switches = (("autoscaler", "enabled"), ("precondition", "enabled"), ("rag", "enabled"))
    for section, switch in switches:
        if value_at(config, f"{section}.{switch}"):
            continue
        for path, option in options().items():
            flagged = path.startswith(f"{section}.") and option.flag is not None
            if flagged and value_at(config, path) != option.default:
                flag = options()[f"{section}.{switch}"].flag
                yield f"{_say(config, path)}: no effect without {flag}"
    if config.autoscaler.enabled and config.autoscaler.mode == "predictive":
        yield f"{_say(config, 'autoscaler.mode')}: the same as qos, as nothing is predicted here"
    if config.run.virtual_time:
        for path in ("precondition.enabled", "monitor.latency_tracing"):
            if value_at(config, path):
                yield f"{_say(config, path)}: there is no device in virtual time, so no effect"
    if config.run.trials == 1 and config.run.trial_cooldown_s:
        yield f"{_say(config, 'run.trial_cooldown_s')}: no effect with one trial"


def _shared_by_nobody(config: Config) -> Iterator[str]:
    """Prompts that are not stored for others, and options that change nothing about them."""
    given, work = config.prefix_cache, config.workload
    if not work.prefix_caching or (config.replays and not work.trace_prompts):
        return
    listed = given.lengths == "listed"
    if listed and max(given.prompt_tokens) < given.min_prefix_length:
        yield (
            f"{_say(config, 'prefix_cache.prompt_tokens')}, all below min_prefix_length of "
            f"{given.min_prefix_length}: no prompt is stored for others"
        )
    useless = {
        "prefix_cache.prompt_tokens": None if listed else "prefix_cache.lengths is not listed",
        "prefix_cache.zipf_s": None if given.popularity == "zipf" else "popularity is uniform",
    }
    for path, why in useless.items():
        if why is not None and value_at(config, path) != options()[path].default:
            yield f"{_say(config, path)}: no effect, as {why}"


def _not_like_the_connector(config: Config) -> Iterator[str]:
    """What is given explicitly wins over a personality, also a whole file of defaults."""
    name = config.io.personality
    for path, value in PERSONALITIES[name].options.items() if name is not None else ():
        if value_at(config, path) != value:
            yield f"{_say(config, path)}, where personality {name} has {show(value)}"
