"""From names and numbers to objects: the parts that both drivers are made of."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from msgspec import structs, to_builtins

from kv_cache.cache.limits import TierSpec
from kv_cache.cache.manager import CacheManager
from kv_cache.config.lengths import build_lengths
from kv_cache.config.models import build_geometry, build_mix, build_ranks, check_objects, copies
from kv_cache.config.policies import build_admission, build_ahead
from kv_cache.config.root import Config
from kv_cache.config.schema import same_fields
from kv_cache.config.shared import build_prompts, build_retriever
from kv_cache.config.workload_sections import WorkloadConfig
from kv_cache.core.block import Block
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import Phase, Qos, RunMode, Tier
from kv_cache.core.model import ModelShape
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_MS, gib_to_bytes, s_to_ns
from kv_cache.lifecycle import Through, World
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.outcome import TierFacts
from kv_cache.metrics.pace import MEASURED, MovedBytes
from kv_cache.metrics.recorder import Recorder
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.until import Precision, parse_until
from kv_cache.metrics.window import Meter
from kv_cache.policy.admission import ADMISSION
from kv_cache.policy.eviction import EVICTION
from kv_cache.policy.prefetch import PREFETCH
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.autoscale.autoscaler import Autoscaler
from kv_cache.schedule.autoscale.rules import AutoscaleRules, ScaleMode
from kv_cache.schedule.control import Control, Watch
from kv_cache.schedule.intake import Intake, OnArrival, ignore_arrival
from kv_cache.schedule.saturation import Saturation, SaturationRules
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import Survey
from kv_cache.workload.formats.surveying import facts as trace_facts
from kv_cache.workload.formats.trace_files import Trace
from kv_cache.workload.mix import Mix, Mixed
from kv_cache.workload.offered import Offered
from kv_cache.workload.paced import Pace, Paced
from kv_cache.workload.prepopulated import (
    OBJECTS_PER_USER,
    Prepopulated,
    objects_to_populate,
)
from kv_cache.workload.prompts import Prompted
from kv_cache.workload.qos import QosMix
from kv_cache.workload.quota import Counts, one
from kv_cache.workload.rag import Retriever, WithRetrievals
from kv_cache.workload.ranks import Ranked, Ranks
from kv_cache.workload.renamed import Renamed
from kv_cache.workload.replay import ReplayConfig, TraceReplay
from kv_cache.workload.row_requests import History, RowRequestsConfig
from kv_cache.workload.sessions import SessionReplay, SessionsConfig
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import Described, MappedBlocks
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig

BACKGROUND_THREADS = 8  # that store what was written behind, and populate


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who asks, and the objects to store before anybody does (decode-only and RAG)."""

    source: Source
    geometry: Geometry
    sessions: bool = False  # of a trace: each row is due when others are answered
    populate: Collection[tuple[Block, ...]] = ()
    retriever: Retriever | None = None  # with RAG: `populate` is what it has ingested


def build_load(
    config: Config,
    model: ModelShape,
    seed: Seed,
    trace: Trace | None,
    survey: Survey | None,
    capacity_bytes: int | None,
    salt: str = "",
    begun: int = 0,
) -> Load:
    """The source of requests. `found` is the survey of `trace`; `capacity_bytes` is what the tiers
    can be filled with; with `salt` the same is asked under other names; the first `begun` rows of a
    trace that is asked at a rate have been answered."""
    if trace is not None:
        check_objects(config, trace)
    room = capacity_bytes
    if room is not None:
        room //= copies(config, config.mixed_shapes().values() or (model,))
    load = _one_model(config, model, seed, trace, survey, room, salt, begun)
    mix = build_mix(config, load.geometry, seed)
    ranks = build_ranks(config, model, mix)
    placed = load if mix is None and ranks is None else _placed(config, load, mix, ranks)
    if trace is not None and is_recording(trace):
        return replace(placed, source=load.source)  # its objects are those of all models and ranks
    return placed


def _placed(config: Config, load: Load, mix: Mix | None, ranks: Ranks | None) -> Load:
    """The load of one model and rank, as those of a mix and all ranks keep it. Prepopulated objects
    belong to one model each, documents are stored by all of them."""
    alone = config.mode is RunMode.DECODE_ONLY

    def kept(blocks: tuple[Block, ...]) -> Iterator[tuple[Block, ...]]:
        names: Iterable[str] = ("",) if mix is None else mix.shares
        for name in (mix.by_content(blocks),) if mix is not None and alone else names:
            whole = blocks if mix is None else mix.blocks(blocks, name)
            yield whole if ranks is None else ranks.blocks(whole, name)

    source, times = load.source, 1
    if mix is not None:
        source = Mixed(source, mix, config.workload.trace_models, prepopulated=alone)
        times = 1 if alone else len(mix.shares)
    if ranks is not None:
        source = Ranked(source, ranks)
    populate = MappedBlocks(load.populate, kept, times)
    if load.retriever is not None:
        source = Described(
            source, lambda: {"rag_bytes": None, "rag_ingested_bytes": populate.nbytes}
        )
    return replace(load, source=source, populate=populate)


def _one_model(
    config: Config,
    model: ModelShape,
    seed: Seed,
    trace: Trace | None,
    survey: Survey | None,
    capacity_bytes: int | None,
    salt: str = "",
    begun: int = 0,
) -> Load:
    """As if all were asked of `model`, on one rank."""
    sessions = trace is not None and TRACE_FORMATS[trace.format_name].grouped
    trace_block_tokens = survey.block_tokens if survey is not None else 0
    geometry = build_geometry(config, model, trace_block_tokens)
    retriever = build_retriever(config, geometry, seed.child("rag"), capacity_bytes)
    counts = one if retriever is None else retriever.counts
    source: Source
    recorded = trace is not None and is_recording(trace)
    if trace is not None and survey is not None:
        counted = one if recorded else counts
        source = _replay(config, geometry, seed, trace, survey, counted, begun)
        source = source if recorded else _prompted(config, geometry, seed, source)
    else:
        source = _users(config, geometry, seed, counts)
    if config.arrival.request_rate > 0:
        pace = Pace(
            rate=config.arrival.request_rate,
            process=config.arrival.process,
            cv=config.arrival.cv,
        )
        source = Paced(source, pace, seed, from_slots=not config.replays)
    if salt:
        source = Renamed(source, salt)
    if config.mode is not RunMode.DECODE_ONLY:
        if retriever is None:
            return Load(source=source, geometry=geometry, sessions=sessions)
        # Outermost: what is retrieved comes along with what the pace has let come, and the
        # documents are the same whatever else is renamed.
        return Load(
            source=Described(source, retriever.describe)
            if recorded
            else WithRetrievals(source, retriever, _planned(config)),
            geometry=geometry,
            sessions=sessions,
            populate=retriever.ingested,
            retriever=retriever,
        )
    users = config.run.num_users
    objects = objects_to_populate(geometry, users, capacity_bytes)
    wanted = users * OBJECTS_PER_USER
    swapped: Source = Prepopulated(source, objects, seed.child("prepopulated"), wanted)
    if recorded:  # it asks for objects that were swapped already
        swapped = Described(source, swapped.describe)
    return Load(source=swapped, geometry=geometry, populate=objects, sessions=sessions)


def is_recording(trace: Trace) -> bool:
    """Whether the rows are what a run asked (`--record`): nothing is added to that."""
    first = next(trace.rows(), None)
    return first is not None and first.request is not None


def build_intake(config: Config, load: Load, on_arrival: OnArrival = ignore_arrival) -> Intake:
    """Users who wait for their answers bound the queue themselves: none of them is rejected."""
    offered = Offered()
    for blocks in load.populate:
        offered.add(blocks)
    limit = config.schedule.queue_limit
    waiting = config.arrival.mode == "closed" and (load.sessions or not config.replays)
    users = _asking(config)
    users *= 1 if load.retriever is None else 2  # a user's retrieval waits beside his question
    return Intake(
        load.source,
        queue_limit=max(limit, users) if waiting else limit,
        ageing_ns=s_to_ns(config.schedule.ageing_s),
        max_requests=config.run.max_requests,
        users_wait=waiting,
        offered=offered,
        on_arrival=on_arrival,
    )


def build_control(
    config: Config, slos: Sequence[Slo] | None = None, watch: Watch | None = None
) -> tuple[Meter, Control]:
    """What sees the windows of a run. `slos`: those of the classes, if not given; `watch` may
    end the measured window."""
    kept = class_slos(config) if slos is None else tuple(slos)
    detection = config.saturation_detection
    saturation = Saturation(
        SaturationRules(
            read_p95_limit_ns=round(detection.read_latency_p95_threshold_ms * NS_PER_MS),
            write_p95_limit_ns=round(detection.write_latency_p95_threshold_ms * NS_PER_MS),
            queued_limit=detection.queue_depth_threshold,
            history_windows=detection.history_window_size,
            release_level=detection.release_level,
        )
    )
    control = Control(saturation, _autoscaler(config, kept))
    if watch is not None:
        control.watch = watch
    return Meter(kept), control


def follow_precision(
    config: Config,
    recorder: Recorder,
    control: Control,
    locked: Callable[[Callable[[], MovedBytes]], MovedBytes] = lambda read: read(),
) -> Precision | None:
    """What ends the measured window when a figure is as sure as it is wanted to be, following the
    windows; None if nothing is wanted. `locked` keeps others from counting while it reads."""
    if config.run.until is None:
        return None
    kinds, meter = MEASURED[config.mode], recorder.meter
    precision = Precision(
        parse_until(config.run.until),
        lambda window_ns: locked(lambda: recorder.pace.read(window_ns, kinds)),
        lambda: recorder.edges.measure_start_ns,
    )
    others, watch = meter.on_latencies, control.watch

    def on_latencies(start: int, end: int, phase: Phase, by_tag: Mapping[str, Histogram]) -> None:
        precision.see_latencies(start, end, phase, by_tag)
        if others is not None:
            others(start, end, phase, by_tag)

    meter.on_latencies = on_latencies
    control.watch = lambda window: watch(window) | precision.watch(window)
    return precision


def class_slos(config: Config) -> tuple[Slo, ...]:
    """The p95 target of each class."""
    return tuple(
        Slo(
            qos=qos,
            percent=95.0,
            limit_ns=round(
                getattr(config.qos_profiles, qos.value).target_latency_p95_ms * NS_PER_MS
            ),
        )
        for qos in Qos
    )


def _autoscaler(config: Config, slos: Sequence[Slo]) -> Autoscaler | None:
    scaler = config.autoscaler
    if not scaler.enabled:
        return None
    rules = same_fields(AutoscaleRules, scaler)
    mode = ScaleMode.CAPACITY if scaler.mode == "capacity" else ScaleMode.QOS
    closed = config.arrival.mode == "closed"
    return Autoscaler(rules, mode, slos, config.run.num_users, users_wait=closed)


def endless(config: Config) -> Config:
    """The same load with nothing that ends it."""
    return replace(
        config,
        run=replace(config.run, max_requests=0),
        workload=replace(config.workload, replay_cycles=0),
    )


def load_extensions(config: Config) -> None:
    """Import what the configuration names of the user's own. Raises ConfigError."""
    for table, name in (
        (EVICTION, config.tiers.eviction),
        (ADMISSION, config.policies.admission),
        (PREFETCH, config.policies.prefetch),
    ):
        _ = table[name]


def build_world(config: Config, specs: tuple[TierSpec, ...], signals: Signals) -> World:
    cache = CacheManager(
        specs,
        EVICTION[config.tiers.eviction],
        config.cache_rules(),
        signals,
        build_admission(config.policies, len(specs)),
    )
    return World(
        cache=cache,
        semantics=config.lifecycle_semantics(synthetic=not config.replays),
        mode=config.mode,
        stores=Gate(
            0,
            signals,
            slots=config.schedule.max_concurrent_allocs,
            most=gib_to_bytes(config.schedule.max_inflight_gib),
        ),
        behind=Gate(1, signals, most=config.semantics.write_behind_queue),
        through=None
        if config.policies.write == "back"
        else Through(
            gate=Gate(2, signals, most=config.semantics.write_behind_queue),
            selective=config.policies.write == "through-selective",
        ),
        ahead=build_ahead(config.policies),
    )


def tier_specs(config: Config, storage_bytes: int | None) -> tuple[TierSpec, ...]:
    """The waterfall: a tier of 0 bytes is left out; storage is always there."""
    gpu = gib_to_bytes(config.tiers.gpu_gib) * config.tiers.num_gpus
    cpu = gib_to_bytes(config.tiers.cpu_gib)
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
    return min(_asking(config) if users is None else users, config.schedule.max_workers)


def _asking(config: Config) -> int:
    """Users, or sessions of a trace, at the same time."""
    sessions = config.workload.trace_users if config.replays else None
    return sessions or config.run.num_users


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
            eviction=cache.notes(spec.tier),
        )
        for spec, ledger in zip(cache.specs, cache.ledgers, strict=True)
    )


def policy_facts(config: Config, world: World) -> dict[str, Any]:
    """The policies by name and what they did, over the whole run."""
    policies, cache = config.policies, world.cache
    return {
        "eviction": config.tiers.eviction,
        "admission": {
            "name": policies.admission,
            "tiers": {
                spec.tier.label: {
                    "consulted": cache.admission_gate.guarded(index),
                    "admitted": structs.asdict(cache.admission_gate.admitted[index]),
                    "not_admitted": {
                        why: structs.asdict(tally)
                        for why, tally in sorted(cache.admission_gate.not_admitted[index].items())
                    },
                }
                for index, spec in enumerate(cache.specs)
            },
            "not_stored": structs.asdict(cache.admission_gate.not_stored),
        },
        "write": {"name": policies.write, **_written(world)},
        "prefetch": {"name": policies.prefetch, **_prefetched(world)},
    }


def _prefetched(world: World) -> dict[str, Any]:
    """What was brought up ahead; null where nothing is."""
    ahead, prefetches = world.ahead, world.cache.prefetches
    ended = prefetches.useful.blocks + prefetches.late.blocks + prefetches.wasted.blocks
    return {
        "wanted_blocks": ahead and ahead.wanted_blocks,
        "given_up_blocks": ahead and ahead.given_up_blocks,
        **{name: ahead and tally for name, tally in to_builtins(prefetches).items()},
        "unread_blocks": ahead and world.cache.unread_blocks,
        "useful_ratio": ahead and (prefetches.useful.blocks / ended if ended else None),
    }


def _written(world: World) -> dict[str, Any]:
    """What was written through; null where nothing is."""
    through = world.through
    return {
        "written": through and structs.asdict(through.written),
        "failed": through and structs.asdict(through.failed),
        "no_room": through and structs.asdict(world.cache.not_backed_up),
        "dropped_blocks": through and through.dropped_blocks,
    }


def _qos(config: Config) -> QosMix:
    return QosMix(
        interactive=config.qos_distribution.interactive_probability,
        responsive_below=config.qos_distribution.responsive_threshold,
        priorities=tuple(getattr(config.qos_profiles, qos.value).priority for qos in Qos),
    )


def _users(config: Config, geometry: Geometry, seed: Seed, counts: Counts) -> SyntheticUsers:
    people = config.workload.population_seed
    users = UsersConfig(
        num_users=config.run.num_users,
        personas=tuple(
            Persona(name=name, **ranges) for name, ranges in asdict(config.user_templates).items()
        ),
        qos=_qos(config),
        geometry=geometry,
        closed=config.arrival.mode == "closed",
        thinks=config.arrival.request_rate == 0,
        multi_turn=config.workload.multi_turn,
        max_conversations=config.conversation.max_conversations,
        max_turns=config.conversation.max_turns_per_conv,
        end_probability=config.conversation.end_conversation_probability,
        lengths=build_lengths(config.lengths),
        prompt_probability=config.prefix_cache.system_prompt_hit_probability,
        prompts=build_prompts(config),
        population=None if people is None else Seed(people).child("users"),
    )
    return SyntheticUsers(users, seed.child("users"), _planned(config), counts)


def _planned(config: Config) -> int:
    """Requests that are planned user by user need users who stay; else the intake counts alone."""
    return 0 if config.autoscaler.enabled else config.run.max_requests


def _replay(
    config: Config,
    geometry: Geometry,
    seed: Seed,
    trace: Trace,
    survey: Survey,
    counts: Counts,
    begun: int = 0,
) -> TraceReplay | SessionReplay:
    work = config.workload
    requests = RowRequestsConfig(
        geometry=geometry,
        qos=_qos(config),
        trace_block_tokens=survey.block_tokens,
        history=History(work.trace_history),
    )
    # A rate replaces the trace's own instants; a format without any has none to keep.
    paced = config.arrival.request_rate > 0
    of = TRACE_FORMATS[trace.format_name]
    facts = {**trace_facts(trace, survey), "history": work.trace_history}
    _check_replay(work, trace)
    trace_seed, most = seed.child("trace"), config.run.max_requests
    if of.grouped:
        sessions = SessionsConfig(
            requests=requests,
            users=_asking(config),
            speedup=0 if paced else work.trace_speedup,
            cycles=work.replay_cycles,
        )
        return SessionReplay(trace.rows, sessions, trace_seed, facts, most, counts)
    replay = ReplayConfig(
        requests=requests,
        speedup=0 if paced or not of.timed else work.trace_speedup,
        arrival_scale=work.arrival_scale,
        cycles=work.replay_cycles,
    )
    window = config.trace_window_ns()
    if window is None:
        return TraceReplay(trace.rows, replay, trace_seed, facts, most, counts, begun)
    facts["window_s"] = work.trace_window
    within = _within(trace, window)
    return TraceReplay(within, replay, trace_seed, facts, most, counts, begun)


def _prompted(config: Config, geometry: Geometry, seed: Seed, source: Source) -> Source:
    """A trace's requests, with system prompts where they are asked for."""
    prompts = build_prompts(config) if config.workload.trace_prompts else None
    if prompts is None:
        return source
    chance = config.prefix_cache.system_prompt_hit_probability
    return Prompted(source, prompts, geometry, chance, seed.child("prompts"))


def _check_replay(work: WorkloadConfig, trace: Trace) -> None:
    """Options that this format has no use for. Raises TraceError."""
    of = TRACE_FORMATS[trace.format_name]
    if of.grouped and (work.arrival_scale != 1 or work.trace_window is not None):
        option = "--trace-window" if work.trace_window is not None else "--arrival-scale"
        raise TraceError(
            f"{option}: the sessions of {trace.files[0]} ({of.name}) have no instants in common; "
            "say with --trace-users how many go on at the same time"
        )
    if not of.grouped and work.trace_users is not None:
        raise TraceError(
            f"--trace-users: the rows of {trace.files[0]} ({of.name}) have instants of their own; "
            "use --arrival-scale or --trace-speedup for another load"
        )


def _within(trace: Trace, window: tuple[int, int | None]) -> Callable[[], Iterator[TraceRow]]:
    """The rows of a part of the trace. Raises TraceError where there are none."""
    begin_ns, end_ns = window

    def rows() -> Iterator[TraceRow]:
        for row in trace.rows():
            if end_ns is not None and row.at_ns >= end_ns:
                return
            if row.at_ns >= begin_ns:
                yield row._replace(at_ns=row.at_ns - begin_ns)

    if next(rows(), None) is None:
        raise TraceError(
            f"--trace-window: no row of {trace.files[0]} lies in it; `kv-cache.py trace stats` "
            "tells how long the trace is"
        )
    return rows
