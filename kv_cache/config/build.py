"""From names and numbers to objects: the parts that both drivers are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kv_cache.cache.manager import CacheManager, TierSpec
from kv_cache.config.root import Config
from kv_cache.core.block import Block
from kv_cache.core.kinds import Qos, RunMode, Tier
from kv_cache.core.model import ModelShape
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_MS, gib_to_bytes, s_to_ns
from kv_cache.lifecycle import World
from kv_cache.metrics.outcome import TierFacts
from kv_cache.metrics.slo import Promise
from kv_cache.metrics.window import Meter
from kv_cache.policy.eviction import EVICTION
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.autoscale import Autoscaler, AutoscaleRules, ScaleMode
from kv_cache.schedule.control import Control, Watch
from kv_cache.schedule.intake import Intake
from kv_cache.schedule.saturation import Saturation, SaturationRules
from kv_cache.workload.formats.opening import Survey, Trace
from kv_cache.workload.paced import Pace, Paced
from kv_cache.workload.prepopulated import (
    OBJECTS_PER_USER,
    Prepopulated,
    objects_to_populate,
)
from kv_cache.workload.qos import QosMix
from kv_cache.workload.renamed import Renamed
from kv_cache.workload.replay import ReplayConfig, TraceReplay
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who asks, and the objects to store before anybody does (decode-only)."""

    source: Source
    geometry: Geometry
    populate: tuple[tuple[Block, ...], ...] = ()


def build_load(
    config: Config,
    model: ModelShape,
    seed: Seed,
    trace: Trace | None,
    found: Survey | None,
    capacity_bytes: int | None,
    salt: str = "",
) -> Load:
    """The source of requests. `found` is the survey of `trace`; `capacity_bytes` is what the tiers
    can be filled with; with `salt` the same is asked under other names."""
    own = found.block_tokens if found is not None else 0
    geometry = Geometry(
        model=model,
        tensor_parallel=config.tiers.tensor_parallel,
        block_tokens=config.resolved_block_tokens(own),
    )
    source: Source
    if trace is not None and found is not None:
        source = _replay(config, geometry, seed, trace, found)
    else:
        source = _users(config, geometry, seed)
    if config.arrival.request_rate > 0:
        pace = Pace(
            rate=config.arrival.request_rate,
            process=config.arrival.process,
            cv=config.arrival.cv,
        )
        source = Paced(source, pace, seed)
    if salt:
        source = Renamed(source, salt)
    if config.mode is not RunMode.DECODE_ONLY:
        return Load(source=source, geometry=geometry)
    users = config.run.num_users
    objects = objects_to_populate(geometry, users, capacity_bytes)
    wanted = users * OBJECTS_PER_USER
    swapped = Prepopulated(source, objects, seed.child("prepopulated"), wanted)
    return Load(source=swapped, geometry=geometry, populate=objects)


def build_intake(config: Config, source: Source) -> Intake:
    """Users who wait for their answers bound the queue themselves: none of them is rejected."""
    limit = config.schedule.queue_limit
    waiting = config.arrival.mode == "closed" and not config.replays
    return Intake(
        source,
        queue_limit=max(limit, config.run.num_users) if waiting else limit,
        ageing_ns=s_to_ns(config.schedule.ageing_s),
        max_requests=config.run.max_requests,
        users_wait=waiting,
    )


def build_control(
    config: Config, promises: Sequence[Promise] | None = None, watch: Watch | None = None
) -> tuple[Meter, Control]:
    """What sees the windows of a run. `promises`: those of the classes, if not given; `watch` may
    end the measured window."""
    kept = class_promises(config) if promises is None else tuple(promises)
    found = config.saturation_detection
    saturation = Saturation(
        SaturationRules(
            read_p95_limit_ns=round(found.read_latency_p95_threshold_ms * NS_PER_MS),
            write_p95_limit_ns=round(found.write_latency_p95_threshold_ms * NS_PER_MS),
            queued_limit=found.queue_depth_threshold,
            history_windows=found.history_window_size,
            release_level=found.release_level,
        )
    )
    control = Control(saturation, _autoscaler(config, kept))
    if watch is not None:
        control.watch = watch
    return Meter(kept), control


def class_promises(config: Config) -> tuple[Promise, ...]:
    """The P95 that each class is promised."""
    return tuple(
        Promise(
            qos=qos,
            percent=95.0,
            limit_ns=round(
                getattr(config.qos_profiles, qos.value).target_latency_p95_ms * NS_PER_MS
            ),
        )
        for qos in Qos
    )


def _autoscaler(config: Config, promises: Sequence[Promise]) -> Autoscaler | None:
    given = config.autoscaler
    if not given.enabled:
        return None
    rules = AutoscaleRules(
        min_users=given.min_users,
        max_users=given.max_users,
        scale_up_factor=given.scale_up_factor,
        scale_down_factor=given.scale_down_factor,
        consecutive_samples_required=given.consecutive_samples_required,
        cooldown_samples=given.cooldown_samples,
        longest_samples=given.longest_samples,
        target_saturation=given.target_saturation,
        windows_per_sample=given.windows_per_sample,
    )
    mode = ScaleMode.CAPACITY if given.mode == "capacity" else ScaleMode.QOS
    return Autoscaler(rules, mode, promises, config.run.num_users)


def endless(config: Config) -> Config:
    """The same load with nothing that ends it."""
    return replace(
        config,
        run=replace(config.run, max_requests=0),
        workload=replace(config.workload, replay_cycles=0),
    )


def build_world(config: Config, specs: tuple[TierSpec, ...], signals: Signals) -> World:
    cache = CacheManager(specs, EVICTION[config.tiers.eviction], config.cache_rules(), signals)
    return World(
        cache=cache,
        semantics=config.lifecycle_semantics(synthetic=not config.replays),
        mode=config.mode,
        stores=Gate(
            0,
            signals,
            slots=config.schedule.max_concurrent_allocs,
            max_bytes=gib_to_bytes(config.schedule.max_inflight_gib),
        ),
        behind=Gate(1, signals, slots=config.semantics.write_behind_queue),
    )


def tier_specs(config: Config, storage_bytes: int | None) -> tuple[TierSpec, ...]:
    """The waterfall: a tier of 0 bytes is left out; storage is always there."""
    gpu = gib_to_bytes(config.tiers.gpu_mem_gib) * config.tiers.num_gpus
    cpu = gib_to_bytes(config.tiers.cpu_mem_gib)
    upper = [(Tier.GPU, gpu), (Tier.CPU, cpu)]
    specs = [TierSpec(tier=t, capacity_bytes=n) for t, n in upper if n]
    return (*specs, TierSpec(tier=Tier.NVME, capacity_bytes=storage_bytes))


def fillable_bytes(config: Config, specs: tuple[TierSpec, ...]) -> int | None:
    """What the tiers hold before anything is dropped: those above storage fill to a share."""
    *upper, storage = specs
    if storage.capacity_bytes is None:
        return None
    share = config.eviction.target_usage_ratio
    return storage.capacity_bytes + sum(int((s.capacity_bytes or 0) * share) for s in upper)


def workers(config: Config, users: int | None = None) -> int:
    """How many requests are served at once: one a user, up to a limit (the reference's 500).
    `users`: how many there are, if not as many as the run begins with."""
    if config.schedule.workers is not None:
        return config.schedule.workers
    return min(config.run.num_users if users is None else users, config.schedule.max_workers)


def tier_facts(world: World, stores: Mapping[Tier, Mapping[str, Any]]) -> tuple[TierFacts, ...]:
    """The tiers at the end of a run; `stores` says what stood behind each."""
    cache = world.cache
    return tuple(
        TierFacts(
            tier=spec.tier,
            capacity_bytes=spec.capacity_bytes,
            used_bytes=ledger.used,
            peak_bytes=ledger.peak,
            stranded_bytes=ledger.stranded,
            entries=cache.entries(spec.tier),
            store=stores[spec.tier],
        )
        for spec, ledger in zip(cache.specs, cache.ledgers, strict=True)
    )


def _qos(config: Config) -> QosMix:
    profiles = config.qos_profiles
    return QosMix(
        interactive=config.qos_distribution.interactive_probability,
        responsive_below=config.qos_distribution.responsive_threshold,
        priorities=(
            profiles.interactive.priority,
            profiles.responsive.priority,
            profiles.batch.priority,
        ),
    )


def _users(config: Config, geometry: Geometry, seed: Seed) -> SyntheticUsers:
    templates = config.user_templates
    personas = (
        ("chatbot", templates.chatbot),
        ("coding", templates.coding),
        ("document", templates.document),
    )
    people = config.workload.population_seed
    prompts = tuple(config.prefix_cache.prompt_tokens) if config.workload.prefix_caching else ()
    users = UsersConfig(
        num_users=config.run.num_users,
        personas=tuple(
            Persona(
                name=name,
                context_range=template.context_range,
                generation_range=template.generation_range,
                think_time_range=template.think_time_range,
            )
            for name, template in personas
        ),
        qos=_qos(config),
        geometry=geometry,
        closed=config.arrival.mode == "closed",
        thinks=config.arrival.request_rate == 0,
        multi_turn=config.workload.multi_turn,
        max_conversations=config.conversation.max_conversations,
        max_turns=config.conversation.max_turns_per_conv,
        end_probability=config.conversation.end_conversation_probability,
        prompt_probability=config.prefix_cache.system_prompt_hit_probability,
        prompt_tokens=prompts,
        population=None if people is None else Seed(people).child("users"),
    )
    # Requests that are planned user by user need users who stay; else the intake counts alone.
    planned = 0 if config.autoscaler.enabled else config.run.max_requests
    return SyntheticUsers(users, seed.child("users"), planned)


def _replay(
    config: Config, geometry: Geometry, seed: Seed, trace: Trace, found: Survey
) -> TraceReplay:
    replay = ReplayConfig(
        geometry=geometry,
        qos=_qos(config),
        trace_block_tokens=found.block_tokens,
        # A rate replaces the trace's own instants.
        speedup=0 if config.arrival.request_rate > 0 else config.workload.trace_speedup,
        cycles=config.workload.replay_cycles,
    )
    facts = {
        "files": [str(path) for path in trace.files],
        "format": trace.format_name,
        "sha256": found.sha256,
        "rows": found.rows,
        "skipped_bad_rows": found.bad_rows,
        "dropped_failed_rows": found.failed_rows,
        "backward_rows": found.backward_rows,
        "trace_block_tokens": found.block_tokens,
    }
    return TraceReplay(trace.rows, replay, seed.child("trace"), facts)
