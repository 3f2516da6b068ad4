"""Rules between the options of a run, where each option alone is fine."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import pairwise

from kv_cache.config import reference as r
from kv_cache.config.lengths import build_lengths
from kv_cache.config.root import Config, options, say
from kv_cache.config.schema import show
from kv_cache.config.unread import value_at
from kv_cache.core.errors import ConfigError, did_you_mean, refusals, refuse
from kv_cache.core.kinds import RunMode
from kv_cache.core.units import gib_to_bytes
from kv_cache.metrics.until import parse_until
from kv_cache.tiers.objects.account import endpoint_of
from kv_cache.tiers.objects.place import is_object_url, parse_url

_SPEEDUP = "workload.trace_speedup"
_SLOWEST = 1e-6
_THINK = "think_time_range"
_ZERO_IS = {
    "precondition.size_gib": "twice the capacity",
    "tiers.storage_capacity_gib": "what is free",
    "schedule.max_inflight_gib": "no limit",
}
"""Sizes of which 0 means something else, so that none may be rounded down to it."""


def check(config: Config) -> None:
    """Raise ConfigError for the rules that the options break together."""
    refuse(refusals(partial(each, config) for each in _CHECKS))


def _check_places(config: Config) -> None:
    """Raise ConfigError where the places, or what is to be done there, make no sense."""
    if config.s3.endpoint is not None:
        endpoint_of(config.s3.endpoint, {})
    urls = [name for name in config.tiers.cache_dir or () if is_object_url(name)]
    for url in urls:
        parse_url(url)
    if not urls:
        return
    if len(urls) < len(config.tiers.cache_dir or ()):
        raise ConfigError(
            "tiers.cache_dir (--cache-dir) has directories and object stores, whose bytes go "
            "different ways: one run measures one kind of storage; give only one of them"
        )
    for name, is_asked, why in _for_devices(config):
        if is_asked:
            raise ConfigError(f"{name} and --cache-dir {urls[0]}: {why}; leave one of them out")
    if config.tiers.storage_bytes is None and not config.run.virtual_time:
        raise ConfigError(
            f"--cache-dir {urls[0]}: a bucket has no free space to take a share of; say with "
            "tiers.storage_capacity_gib (--storage-capacity-gb) how much the cache may keep there"
        )


def _check_device(config: Config) -> None:
    """Raise ConfigError where a raw device is not named twice, or cannot do what is asked."""
    device, places = config.tiers.erase_device, config.tiers.cache_dir or ()
    if device is None:
        return
    subject = f"tiers.erase_device (--erase-device) is {show(device)}"
    if set(places) != {device}:
        raise ConfigError(
            f"{subject}, but {say(config, 'tiers.cache_dir')}: a device is named twice, so that "
            "none is erased by mistake; give both options the same device, or leave this one out"
        )
    for path, wanted, why in (
        ("io.layout", "arena", "a device has no files to put objects in; use --layout arena"),
        ("tiers.keep_cache", False, "there are no files to keep; leave it out"),
        ("run.clients", 1, "one process alone can claim a device; leave it out"),
    ):
        if value_at(config, path) != wanted:
            raise ConfigError(f"{subject}, and {say(config, path)}: {why}")


def _for_devices(config: Config) -> Iterator[tuple[str, bool, str]]:
    """Options that mean a device or files: how they are named, whether they were given, and why
    they mean nothing here."""
    io = config.io
    files = "that is about files, and objects are none"
    device = "that is about a device of this machine, and an object store is none"
    yield f"--personality {io.personality}", io.personality is not None, files
    yield f"--layout {io.layout}", io.layout != "file", files
    yield f"--io-engine {io.engine}", io.engine != "auto", files
    yield f"io.write_engine {io.write_engine}", io.write_engine is not None, files
    yield (
        "precondition.enabled (--precondition)",
        config.precondition.enabled,
        ("a drive is filled until it is no longer fresh, and an object store is no drive"),
    )
    yield "--enable-latency-tracing", config.monitor.latency_tracing, device
    yield "--fio-export", config.output.fio_export is not None, device


def _check_not_yet(config: Config) -> None:
    for path, option in options().items():
        for prefix, reason in r.NOT_YET.items():
            inside = path == prefix or path.startswith(f"{prefix}.")
            if inside and value_at(config, path) != option.default:
                raise ConfigError(
                    f"{say(config, path)}: {reason}; leave it at {show(option.default)}"
                )


def _check_cpcs(config: Config) -> None:
    """The reference's fork writes this section into its own file and never reads it."""
    off: tuple[object, ...] = ("off", False, None)  # YAML reads a bare `off` as false
    idle = {"mode": off, "cpcs_mode": off, "enabled": off, "backend": ("file", None)}
    idle["nvme_backend"] = idle["backend"]
    for key, allowed in idle.items():
        if config.cpcs.get(key, allowed[0]) not in allowed:
            raise ConfigError(
                f"cpcs.{key} is {show(config.cpcs[key])}: computational storage is not in this "
                f"version; set it to {allowed[0]}, or leave the section out"
            )


def _check_limits(config: Config) -> None:
    limits = {
        "run.num_users": "validation_limits.max_users",
        "run.duration_s": "validation_limits.max_duration_seconds",
        "tiers.gpu_mem_gib": "validation_limits.max_gpu_memory_gb",
        "tiers.cpu_mem_gib": "validation_limits.max_cpu_memory_gb",
    }
    for path, limit in limits.items():
        _refuse_above(config, path, limit, "lower the first or raise the second")
    for path, meaning in _ZERO_IS.items():
        size = value_at(config, path)
        if size and not gib_to_bytes(size):
            raise ConfigError(
                f"{say(config, path)} GiB, which is less than a page; give at least 4 KiB, or 0 "
                f"for {meaning}"
            )


def _refuse_above(config: Config, path: str, limit: str, way_out: str) -> None:
    """Raise ConfigError where an option is above another one."""
    value, most = value_at(config, path), value_at(config, limit)
    if value is not None and value > most:
        raise ConfigError(f"{say(config, path)}, above {limit} of {show(most)}; {way_out}")


def _check_tiers(config: Config) -> None:
    if config.tiers.tensor_parallel > config.tiers.num_gpus:
        raise ConfigError(
            f"{say(config, 'tiers.tensor_parallel')}, more than the cards: raise "
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
            f"{say(config, 'run.model')} and run.model_mix (--model-mix) is given: a mix names "
            "all its models; leave one of them out"
        )
    for path in ("run.kv_dtype", "run.model_mix") if run.kv_bytes_per_token is not None else ():
        if value_at(config, path):
            raise ConfigError(
                f"{say(config, 'run.kv_bytes_per_token')} and {say(config, path)}: the bytes are "
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
            f"{say(config, 'arrival.process')}, which needs a rate; set arrival.request_rate "
            "(--request-rate) above 0"
        )
    if arrival.mode == "open" and arrival.request_rate == 0 and not config.replays:
        _check_thinking(config)


def _check_thinking(config: Config) -> None:
    """Refuse users who neither wait for an answer nor think: they would never stop asking."""
    law, templates = build_lengths(config.lengths).think_s, asdict(config.user_templates)
    longest = (
        {f"user_templates.{name}.{_THINK}": user[_THINK][1] for name, user in templates.items()}
        if law is None
        else {"lengths.think_s": law.quantile(1.0)}
    )
    for path, seconds in longest.items():
        if seconds == 0:
            raise ConfigError(
                f"{path} is 0 s at most, and {say(config, 'arrival.mode')}: users who neither wait "
                "nor think ask for everything at one instant; give a time above 0, run with a rate "
                "(--request-rate) or with --arrival closed, or search with capacity --by rate"
            )


def _check_trace(config: Config) -> None:
    work = config.workload
    if 0 < work.trace_speedup < _SLOWEST:
        raise ConfigError(
            f"{say(config, _SPEEDUP)}: give at least {_SLOWEST:g}, or 0 for as fast as served"
        )
    if work.trace is not None and work.use_burst_trace:
        raise ConfigError(
            f"{say(config, 'workload.trace')} and workload.use_burst_trace (--use-burst-trace) "
            "is true: a run replays one trace; leave one of them out"
        )
    if work.trace is not None and work.dataset_path is not None:
        raise ConfigError(
            f"{say(config, 'workload.trace')} and {say(config, 'workload.dataset_path')}: a run "
            "replays one trace; leave one of them out"
        )
    if work.dataset_path is not None and work.trace_format not in ("auto", "sharegpt"):
        raise ConfigError(
            f"{say(config, 'workload.trace_format')}, but workload.dataset_path (--dataset-path) "
            "is a ShareGPT file; give a trace of another format with workload.trace (--trace)"
        )
    if work.replay_cycles > 0 and not config.replays:
        raise ConfigError(
            f"{say(config, 'workload.replay_cycles')}, but only a trace has cycles; give one "
            "with workload.trace (--trace), or bound the run with --max-requests"
        )


def _check_qos(config: Config) -> None:
    shares = config.qos_distribution
    if shares.interactive_probability > shares.responsive_threshold:
        raise ConfigError(
            f"{say(config, 'qos_distribution.interactive_probability')}, above "
            f"responsive_threshold of {show(shares.responsive_threshold)}; the thresholds are "
            "cumulative, so raise the second or lower the first"
        )
    for name in ("interactive", "responsive", "batch"):
        paths = [
            f"qos_profiles.{name}.target_latency_{p}_ms" for p in ("p95", "p99", "p999", "p9999")
        ]
        for lower, upper in pairwise(paths):
            way_out = "a higher percentile cannot have a shorter target"
            _refuse_above(config, lower, upper, way_out)


def _check_scaling(config: Config) -> None:
    scaler = config.autoscaler
    way_out = "raise the second or lower the first"
    _refuse_above(config, "autoscaler.min_users", "autoscaler.max_users", way_out)
    if not scaler.enabled:
        return
    if config.replays or config.arrival.request_rate > 0:
        path = "arrival.request_rate" if config.arrival.request_rate > 0 else "workload.trace"
        raise ConfigError(
            f"{say(config, 'autoscaler.enabled')}, but {say(config, path)}: the load is not "
            "made by users, so more or fewer of them change nothing; leave one of them out, or "
            "use kv-cache.py capacity, which changes the rate"
        )
    if not scaler.min_users <= config.run.num_users <= scaler.max_users:
        raise ConfigError(
            f"{say(config, 'run.num_users')}, outside autoscaler.min_users and max_users "
            f"({scaler.min_users} to {scaler.max_users}); begin inside"
        )


def _check_lengths(config: Config) -> None:
    build_lengths(config.lengths)


def _check_until(config: Config) -> None:
    if config.run.until is None:
        return
    parse_until(config.run.until)
    if config.run.clients > 1:
        raise ConfigError(
            "run.until (--until) ends one process's window, and those of run.clients (--clients) "
            "are one: leave one of the two out, and set --duration"
        )
    if config.output.io_trace_log is not None:
        raise ConfigError(
            "run.until (--until) waits for a figure, and with output.io_trace_log "
            "(--io-trace-log) nothing is timed; leave one of the two out, and set --duration"
        )
    if config.autoscaler.enabled:
        raise ConfigError(
            "run.until (--until) waits for the interval of a level, and autoscaler.enabled changes "
            "the load, so that there is none; leave one of the two out"
        )


def _check_prompts(config: Config) -> None:
    if config.workload.trace_prompts and not config.workload.prefix_caching:
        raise ConfigError(
            f"{say(config, 'workload.trace_prompts')} and "
            f"{say(config, 'workload.prefix_caching')}: leave one of them out"
        )


def _check_rag(config: Config) -> None:
    rag = config.rag
    for size in ("large", "small"):
        low, high = (f"rag.{size}_model_doc_tokens_{end}" for end in ("min", "max"))
        _refuse_above(config, low, high, "raise the second or lower the first")
    if not rag.enabled:
        return
    if not rag.num_docs:
        raise ConfigError(
            f"{say(config, 'rag.num_docs')}, and {say(config, 'rag.enabled')}: there is nothing "
            "to retrieve from; give at least 1"
        )
    if config.mode is RunMode.DECODE_ONLY:
        raise ConfigError(
            f"{say(config, 'rag.enabled')} and {say(config, 'run.mode')}: a decode-only run "
            "reads only the objects that it made itself, never a document; leave --enable-rag or "
            "--decode-only out"
        )


_CHECKS = (
    _check_places, _check_device, _check_not_yet, _check_cpcs, _check_limits, _check_tiers,
    _check_models, _check_arrival, _check_trace, _check_qos, _check_scaling, _check_until,
    _check_lengths, _check_prompts, _check_rag,
)  # fmt: skip
