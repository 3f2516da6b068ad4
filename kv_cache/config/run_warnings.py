"""What is allowed in the configuration of a run and has no effect, or may surprise."""

from collections.abc import Iterator, Mapping
from math import ceil

from kv_cache.config.personalities import PERSONALITIES
from kv_cache.config.policies import guarded_tiers, writes_all
from kv_cache.config.root import Config, options, say
from kv_cache.config.schema import show
from kv_cache.config.storage_targets import on_objects
from kv_cache.config.unread import Condition, Fact, Unread, unread, value_at
from kv_cache.metrics.until import least_window_s, parse_until

_FACTS: Mapping[str, Fact] = {
    "replays": Fact(lambda config: config.replays, "no trace is replayed"),
    "on_objects": Fact(on_objects, "storage is not an object store (--cache-dir s3://...)"),
    "several_tiers": Fact(lambda config: _tiers(config) > 1, "storage is the only tier"),
}
_FACTS_THAT_HOLD: Mapping[str, str] = {
    "replays": "a trace determines who sends what when",
    "on_objects": "storage is an object store, which answers a write once it is complete",
}


def config_warnings(config: Config) -> list[str]:
    """Return one sentence for each thing that is allowed but may surprise."""
    return [
        *(_without_effect(config, each) for each in unread(config, _FACTS)),
        *_device(config),
        *_admission(config),
        *_ranks(config),
        *_prompts(config),
        *_same_as_another(config),
        *_unlike_the_connector(config),
        *_never_sure_in_time(config),
    ]


def _without_effect(config: Config, each: Unread) -> str:
    subject = f"section {each.path}" if each.rule is None else say(config, each.path)
    return f"{subject}: no effect{_reason(config, each.why)}"


def _reason(config: Config, why: Condition) -> str:
    """Return ` without --records`, ` with --virtual-time`, or which option has which value."""
    if why.is_fact:
        table = _FACTS_THAT_HOLD if why.operator == "!" else None
        return f", as {_FACTS[why.path].otherwise if table is None else table[why.path]}"
    option = options()[why.path]
    flag_sets = not option.default or option.kind is bool
    if option.flag is None or why.values or not flag_sets:
        return f", as {say(config, why.path)}"
    with_flag = (why.operator == "!") is not (option.default is True)
    return f" {'with' if with_flag else 'without'} {option.flag}"


def _device(config: Config) -> Iterator[str]:
    if config.tiers.erase_device is not None and not config.run.virtual_time:
        yield (
            f"{say(config, 'tiers.erase_device')}: what was on it is overwritten, and it is not "
            "discarded, neither before nor after the run"
        )


def _admission(config: Config) -> Iterator[str]:
    """Warn of an admission policy that no tier asks."""
    policies, tiers = config.policies, _tiers(config)
    if policies.admission == "always" or guarded_tiers(policies, tiers):
        return
    if writes_all(policies, tiers):
        yield (
            f"{say(config, 'policies.admission')}: no effect, as {say(config, 'policies.write')}, "
            "which storage is not asked about, and no other tier asks; use through-selective, or "
            "--admission-at all"
        )
    else:
        yield (
            f"{say(config, 'policies.admission')}: no effect, as storage is the only tier and "
            "policies.admission_at (--admission-at) is 'lower'; use --admission-at all"
        )


def _tiers(config: Config) -> int:
    return 1 + bool(config.tiers.gpu_gib) + bool(config.tiers.cpu_gib)


def _ranks(config: Config) -> Iterator[str]:
    ranks = config.tiers.tensor_parallel
    if ranks & (ranks - 1):
        yield f"{say(config, 'tiers.tensor_parallel')}, not a power of two: models rarely split so"
    if config.tiers.ranks == "all" or ranks == 1:
        return
    for shape in config.mixed_shapes().values() or (config.model_shape(),):
        if shape.attention_type != "mla" and shape.kv_heads < ranks:
            yield (
                f"{say(config, 'tiers.tensor_parallel')}, more than the {shape.kv_heads} KV "
                f"heads of {shape.name}: 1/{ranks} of each object is counted, as in the "
                "reference, where an engine has each head several times; see --ranks all"
            )


def _prompts(config: Config) -> Iterator[str]:
    prompts, workload = config.prefix_cache, config.workload
    used = workload.prefix_caching and (workload.trace_prompts or not config.replays)
    if not used or prompts.lengths != "listed":
        return
    if max(prompts.prompt_tokens) < prompts.min_prefix_length:
        yield (
            f"{say(config, 'prefix_cache.prompt_tokens')}, all below min_prefix_length of "
            f"{prompts.min_prefix_length}: no prompt is stored for others"
        )


def _same_as_another(config: Config) -> Iterator[str]:
    policies = config.policies
    if policies.write == "through-selective" and policies.admission == "always":
        yield f"{say(config, 'policies.write')}: the same as through, as storage takes everything"
    if config.autoscaler.enabled and config.autoscaler.mode == "predictive":
        yield f"{say(config, 'autoscaler.mode')}: the same as qos, as nothing is predicted here"


def _unlike_the_connector(config: Config) -> Iterator[str]:
    """Warn of what is set explicitly over a personality, also by a whole file of defaults."""
    name = config.io.personality
    for path, value in PERSONALITIES[name].options.items() if name is not None else ():
        if value_at(config, path) != value:
            yield f"{say(config, path)}, where personality {name} has {show(value)}"


def _never_sure_in_time(config: Config) -> Iterator[str]:
    """Warn of a bound before which --until cannot end the window, however sure its figure is."""
    bound_s = config.window_s()
    if config.run.until is None or bound_s is None:
        return
    until = parse_until(config.run.until)
    least_s = least_window_s(until, config.monitor.tick_s)
    if bound_s < least_s:
        way = "" if until.tag is None else f", or a {say(config, 'monitor.tick_s')} below 1"
        yield (
            f"{say(config, 'run.until')} ends no window before {least_s:.3g} s, and this one is "
            f"{bound_s:g} s at most: it will only say how sure the figure is; give --duration "
            f"{ceil(least_s)} or more{way}"
        )
