"""One run in virtual time, from a configuration to an outcome. No I/O at all."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from kv_cache.cache.limits import TierSpec
from kv_cache.config.build import (
    BACKGROUND_THREADS,
    Load,
    build_control,
    build_intake,
    build_world,
    follow_precision,
    policy_facts,
    tier_facts,
    workers,
)
from kv_cache.config.hardware import Dram
from kv_cache.config.machine import Machine, read_machine
from kv_cache.config.profile import Profile
from kv_cache.config.root import Config
from kv_cache.core.block import Block
from kv_cache.core.callbacks import ignore
from kv_cache.core.effect import OpDone
from kv_cache.core.garbage import rarely_looked_for
from kv_cache.core.kinds import Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_US, PAGE_BYTES, s_to_ns
from kv_cache.lifecycle import populate
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import OnLatencies
from kv_cache.schedule.autoscale.rules import decision_row
from kv_cache.schedule.control import Watch
from kv_cache.schedule.intake import OnArrival, ignore_arrival
from kv_cache.sim.drive import OnLeg, Simulation
from kv_cache.sim.io_workers import IoWorkers
from kv_cache.sim.models import Devices, TierModel
from kv_cache.sim.profile_model import ProfileModel
from kv_cache.sim.shared_device import ENGINE, SharedDevice
from kv_cache.workload.digest import schedule_digest

PLANNED_REQUESTS = 4096
"""If each turn is an object, the sizes of this many requests are looked up before the run."""


def storage_model(
    config: Config, load: Load, profile: Profile, *, extrapolate: bool = False
) -> tuple[ProfileModel, int]:
    """Return the storage of a profile, for the objects that this load will ask for, and how many of
    them were measured at once.

    Raises OutsideProfileError where their sizes were not measured, unless `extrapolate`. A size
    that only comes later ends the run with the same error.
    """
    sizes = _object_sizes(config, load)
    model = ProfileModel(profile, extrapolate=extrapolate)
    return model, model.depth(min(sizes), max(sizes))


def shared_device(
    config: Config, load: Load, profile: Profile, seed: int
) -> tuple[SharedDevice, ProfileModel]:
    """Build the same as a device on the virtual clock, with the buffers of the configuration."""
    model, depth = storage_model(config, load, profile, extrapolate=config.sim.extrapolate)
    device = SharedDevice(
        model,
        depth=depth,
        loads=config.io.load_buffers,
        stores=config.io.store_buffers,
        draw=Seed(seed).child("device").rng().random,
    )
    return device, model


def _object_sizes(config: Config, load: Load) -> set[int]:
    tokens = load.geometry.block_tokens
    alike = config.tiers.ranks == "one" and not config.run.model_mix
    if tokens and alike and not load.populate:  # only full blocks are stored
        return {_object_bytes(load.geometry.block(b"", tokens))}
    sizes = {_object_bytes(block) for blocks in load.populate for block in blocks}
    limit = min(config.run.max_requests or PLANNED_REQUESTS, PLANNED_REQUESTS)
    for request in islice(load.source.plan(), limit):
        sizes.update(map(_object_bytes, request.blocks))
    return sizes or {PAGE_BYTES}


def _object_bytes(block: Block) -> int:
    return block.stored_bytes // block.objects


def tier_models(config: Config, machine: Machine | None = None) -> dict[Tier, TierModel]:
    """Return the virtual-time models: assumptions, but for what a hardware profile knows."""
    known = {} if machine is None else dict(_known_models(config, machine))
    return {**_assumed_models(config), **known}


def _known_models(config: Config, machine: Machine) -> Iterator[tuple[Tier, TierModel]]:
    """Yield the memory tiers of a hardware profile. A GPU that is emulated in RAM is RAM."""
    hardware = machine.hardware
    if hardware is None:
        return
    dram, pcie = hardware.dram, hardware.pcie
    memory = None if dram.copy_bytes_per_s is None else _memory(dram)
    emulated = config.tiers.gpu == "emulated" or (
        config.tiers.gpu == "auto" and not pcie.has_values
    )
    if memory is not None:
        yield Tier.CPU, memory
    if emulated and memory is not None:
        yield Tier.GPU, memory
    elif not emulated and pcie.bytes_per_s is not None:
        rate, delay_ns = pcie.bytes_per_s, round((pcie.latency_us or 0) * NS_PER_US)
        yield (
            Tier.GPU,
            TierModel(
                read_latency_ns=delay_ns,
                write_latency_ns=delay_ns,
                read_bytes_per_s=rate * config.tiers.num_gpus,
                write_bytes_per_s=rate * config.tiers.num_gpus,
                servers=config.tiers.num_gpus,
            ),
        )


def known_tiers(config: Config, machine: Machine) -> set[Tier]:
    """Return the memory tiers whose times the machine's profile knows."""
    return {tier for tier, _ in _known_models(config, machine)}


def _memory(dram: Dram) -> TierModel:
    """Model RAM: N copies at once, each with one thread's speed, and together with the speed of
    all."""
    rate = dram.copy_bytes_per_s or 0.0
    one = dram.copy_one_thread_bytes_per_s or rate
    delay_ns = round((dram.latency_us or 0) * NS_PER_US)
    return TierModel(
        read_latency_ns=delay_ns,
        write_latency_ns=delay_ns,
        read_bytes_per_s=rate,
        write_bytes_per_s=rate,
        servers=max(1, round(rate / one)),
    )


def _assumed_models(config: Config) -> dict[Tier, TierModel]:
    sections = (
        (Tier.GPU, config.sim.gpu),
        (Tier.CPU, config.sim.cpu),
        (Tier.NVME, config.sim.nvme),
    )
    return {
        tier: TierModel(
            read_latency_ns=round(section.read_latency_us * NS_PER_US),
            write_latency_ns=round(section.write_latency_us * NS_PER_US),
            read_bytes_per_s=section.read_gbytes_per_s * 1e9,
            write_bytes_per_s=section.write_gbytes_per_s * 1e9,
            servers=section.servers,
        )
        for tier, section in sections
    }


def simulate(
    config: Config,
    load: Load,
    specs: tuple[TierSpec, ...],
    seed: int,
    *,
    progress: Callable[[int], None],
    on_record: Callable[[RequestRecord], None],
    on_op: Callable[[OpDone], None],
    on_leg: OnLeg = ignore,
    on_arrival: OnArrival = ignore_arrival,
    stopped: Callable[[], bool] = lambda: False,
    slos: Sequence[Slo] | None = None,
    watch: Watch | None = None,
    on_latencies: OnLatencies | None = None,
) -> RunOutcome:
    """Serve the whole load on the models, or until `stopped`; the same configuration and seed give
    the same records, byte for byte. `on_leg` as in `Simulation`, `on_arrival` as in `Intake`,
    `slos` and `watch` as in `build_control`."""
    signals = Signals()
    world = build_world(config, specs, signals)
    intake = build_intake(config, load, on_arrival)
    meter, control = build_control(config, slos, watch)
    meter.on_latencies = on_latencies
    recorder = Recorder(Edges(), meter)
    modelled = _Modelled(config, load, specs, seed)
    simulation = Simulation(
        world,
        intake,
        recorder,
        modelled.devices,
        signals,
        workers=workers(config),
        on_record=on_record,
        on_op=on_op,
        on_leg=on_leg,
        control=control,
        tick_ns=s_to_ns(config.monitor.tick_s),
        workers_for=lambda users: workers(config, users),
        io_workers=None if modelled.shared is None else IoWorkers(config.io.threads - 1),
        background=None if modelled.shared is None else BACKGROUND_THREADS,
    )
    precision = follow_precision(config, recorder, control, simulation.counted)
    digest = schedule_digest(load.source.plan(), config.run.max_requests)
    with rarely_looked_for():
        simulation.populate(populate(blocks, world) for blocks in load.populate)
        recorder.edges.populate_end_ns = simulation.now_ns
        _run_phases(simulation, config, stopped, progress)
    return RunOutcome(
        driver="virtual-time",
        recorder=recorder,
        submitted=intake.submitted,
        longest_queue=intake.longest_queue,
        out_of_turn=intake.out_of_turn if intake.has_order else None,
        offered_forgotten=intake.offered.forgotten,
        tiers=tier_facts(world, modelled.describe()),
        dropped_last_copies=world.cache.dropped_last_copies,
        dropped_stores=world.dropped_stores,
        lost_bytes=world.cache.lost_bytes,
        policies=policy_facts(config, world),
        schedule_sha256=digest.sha256,
        schedule_requests=digest.requests,
        workload=load.source.describe(),
        seed=seed,
        series=control.series,
        slos=[str(slo) for slo in meter.slos],
        decisions=[decision_row(decision) for decision in control.decisions],
        standing=control.standing,
        precision=precision,
    )


def _run_phases(
    simulation: Simulation,
    config: Config,
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> None:
    """Warm up, measure a window, and drain."""
    start_ns = simulation.now_ns + s_to_ns(config.run.warmup_s)
    window_s = config.window_s()
    simulation.run(
        start_ns=start_ns,
        end_ns=None if window_s is None else start_ns + s_to_ns(window_s),
        drain_ns=s_to_ns(config.run.drain_s),
        stopped=stopped,
        progress=progress,
    )


class _Modelled:
    """The tiers of a run as devices on the virtual clock. `shared` is the storage of a measured
    profile; None if its times are assumed."""

    def __init__(self, config: Config, load: Load, specs: tuple[TierSpec, ...], seed: int) -> None:
        self._specs = specs
        self._machine = None if config.sim.profile is None else read_machine(config.sim.profile)
        self.shared: SharedDevice | None = None
        self._profile: ProfileModel | None = None
        if self._machine is not None:
            drive = self._machine.drive
            self.shared, self._profile = shared_device(config, load, drive, seed)
        models = tier_models(config, self._machine)
        self.devices = Devices(
            {spec.tier: models[spec.tier] for spec in specs},
            {} if self.shared is None else {Tier.NVME: self.shared},
        )

    def describe(self) -> dict[Tier, dict[str, object]]:
        """Describe the model of each tier, with what the run has asked of it."""
        facts: dict[Tier, dict[str, object]] = {
            spec.tier: {"engine": ENGINE} for spec in self._specs
        }
        if self._machine is not None and self.shared is not None and self._profile is not None:
            facts[Tier.NVME] |= {
                "profile": self._machine.describe(),
                "servers": self.shared.depth,
                "extrapolated": self._profile.extrapolated,
                "deepest": self.shared.deepest,
            }
        return facts
