"""The whole configuration of a run, and what follows from it.

`Config` holds what the user set (None = not set). Its methods answer what the run does: they
resolve the semantics' preset, the window, the model. Rules between options are in `rules`, what has
no effect or may surprise in `run_warnings`.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from kv_cache.cache.limits import CacheRules
from kv_cache.config import reference as r
from kv_cache.config import sections as s
from kv_cache.config import workload_sections as w
from kv_cache.config.passport import PassportConfig
from kv_cache.config.policies import PoliciesConfig
from kv_cache.config.schema import Option, describe, opt, same_fields, show
from kv_cache.config.unread import value_at
from kv_cache.config.yaml_files import read_model, shipped
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.kinds import RunMode
from kv_cache.core.model import MODELS, ModelShape
from kv_cache.core.units import NS_PER_MS, s_to_ns
from kv_cache.lifecycle import Semantics
from kv_cache.metrics.until import LONGEST_S
from kv_cache.workload.formats.base import Reading
from kv_cache.workload.formats.tokens import open_tokens

DEFAULT_DURATION_S = 60.0
DATASET_CONVERSATIONS = 500  # as many as the reference reads of a dataset
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
    s3: s.S3Config = field(default_factory=s.S3Config, metadata={"read_when": ("on_objects",)})
    semantics: s.SemanticsConfig = field(default_factory=s.SemanticsConfig)
    schedule: s.ScheduleConfig = field(default_factory=s.ScheduleConfig)
    arrival: w.ArrivalConfig = field(default_factory=w.ArrivalConfig)
    workload: w.WorkloadConfig = field(default_factory=w.WorkloadConfig)
    lengths: w.LengthsConfig = field(
        default_factory=w.LengthsConfig, metadata={"read_when": ("!replays",)}
    )
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
        scheduled = self.workload.trace_speedup > 0 if self.replays else self.arrival.mode == "open"
        return (scheduled and not sessions) or self.arrival.request_rate > 0

    def window_s(self) -> float | None:
        """Length of the measured window in seconds; None = bounded by requests or cycles alone."""
        bounded = self.run.max_requests > 0 or self.workload.replay_cycles > 0
        if self.run.duration_s is None and not bounded:
            return DEFAULT_DURATION_S if self.run.until is None else LONGEST_S
        return self.run.duration_s

    def in_one_pass(self) -> "Config":
        """Return the run with one pass over its trace where it is in virtual time and nothing
        bounds it: 60 s of the models' time are as many passes as these are fast. A prediction and
        a log of operations stand beside a real run, and are as long as that."""
        work, run = self.workload, self.run
        bounded = run.duration_s is not None or run.until is not None or run.max_requests > 0
        beside = self.sim.predict is not None or self.output.io_trace_log is not None
        if not (run.virtual_time and self.replays) or work.replay_cycles > 0 or bounded or beside:
            return self
        once = dataclasses.replace(work, replay_cycles=1)
        return dataclasses.replace(self, workload=once)

    def trace_path(self) -> Path | None:
        """The trace to replay: as given, or the shipped one where `datasets/...` is not in the
        working directory. It may not exist; for BurstGPT it may be a directory or a pattern."""
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
                f"{say(self, 'workload.trace_window')}: give two times in seconds, the first "
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
        subject = "run.model_mix (--model-mix) has"
        return {name: self._shape(name, subject) for name in self.run.model_mix}

    def _shape(self, name: str, subject: str) -> ModelShape:
        """A key of model_configs, a built-in, or a path to a Hugging Face config.json or a
        directory with one; with the type of run.kv_dtype, if that is given."""
        path, stated = os.path.expanduser(name), self.run.kv_bytes_per_token
        if name in MODELS or name in self.model_configs:
            shape = _merged(name, self.model_configs.get(name, r.ModelOverride()))
        elif os.path.exists(path):
            shape = read_model(Path(path), stated or 0)
        else:
            raise ConfigError(
                f"{subject} {show(name)}, which is neither a model nor a path."
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
        semantics, preset = self.semantics, self.preset
        prefill_only = preset.prefill_only_from_tokens if synthetic else 0
        timing: float = getattr(self.generation_timing, self.run.generation_mode)
        return Semantics(
            reuse_prefix=(semantics.reuse or preset.reuse) == "prefix",
            decode_rereads=_or(semantics.decode_rereads, preset.decode_rereads),
            decode_batch_tokens=self.decode.batch_size,
            promote=_or(semantics.promote, preset.promote),
            write_behind=_or(semantics.write_behind, preset.write_behind),
            write_behind_drop=semantics.write_behind_full == "drop",
            gpu_in_place=_or(semantics.gpu_in_place, preset.gpu_in_place),
            prefill_only_from_tokens=_or(semantics.prefill_only_from_tokens, prefill_only),
            prefill_ns_per_token=round(semantics.prefill_ms_per_token * NS_PER_MS),
            decode_ns_per_token=s_to_ns(timing),
            batch_blocks=semantics.batch_blocks,
        )

    def resolved_block_tokens(self, trace_block_tokens: int = 0) -> int:
        """Tokens in a block, 0 = one object a turn. `trace_block_tokens`: the trace's, 0 = none.

        Raises ConfigError where `semantics.object` is something else.
        """
        one = self.semantics.object
        default = 0 if one == s.TURN else trace_block_tokens or self.preset.block_tokens
        size: int = _or(self.semantics.block_tokens, default)
        if one == s.TURN and size:
            raise ConfigError(
                f"--object turn and --block-tokens {size} contradict each other: a turn is one "
                "object, of however many tokens; leave one of them out"
            )
        if one == s.BLOCK and not size:
            raise ConfigError(
                "--object block needs blocks, and here each turn is one object; give "
                "--block-tokens, e.g. 256"
            )
        return size

    def fsync(self) -> str:
        """When a write to storage is on the device: never waited for, object or batch."""
        return _or(self.io.fsync, self.preset.fsync)

    def cache_rules(self) -> CacheRules:
        return same_fields(CacheRules, self.eviction)


@cache
def options() -> Mapping[str, Option]:
    """All options by their dotted path."""
    return {option.path: option for option in describe(Config)}


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _merged(name: str, override: r.ModelOverride) -> ModelShape:
    """The override's fields over the built-in of that name, or over the general defaults."""
    base = MODELS.get(name) or ModelShape(name=name, source="model_configs")
    values = {f.name: getattr(override, f.name) for f in fields(override)}
    changed = {k: v for k, v in values.items() if v is not None and v != getattr(base, k)}
    if changed.keys() - {"name"} and name in MODELS:
        changed["source"] = f"{base.source}, changed by model_configs"
    return replace(base, **changed)


def say(config: Config, path: str) -> str:
    """`run.num_users (--num-users) is 5`."""
    flag = options()[path].flag
    return f"{path}{f' ({flag})' if flag else ''} is {show(value_at(config, path))}"
