"""What a run takes from the machine: storage and threads, and what watches the machine."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kv_cache.bench.batches import BatchMover
from kv_cache.bench.counters import device_of
from kv_cache.bench.drive import Drive
from kv_cache.bench.monitor import MachineMonitor, gpu_used_bytes
from kv_cache.bench.process_limits import take_rings
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.bench.run_state import RunState
from kv_cache.bench.storage_answers import StorageAnswers
from kv_cache.bench.stores import (
    Opening,
    RunDirectories,
    RunStores,
    open_directories,
    open_stores,
)
from kv_cache.bench.transfer import Mover, Verify, native_batches
from kv_cache.bench.witness import Witness
from kv_cache.config.build import BACKGROUND_THREADS, workers
from kv_cache.config.root import Config
from kv_cache.core.kinds import Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB
from kv_cache.tiers import native
from kv_cache.tiers.base import Capability, Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.gpu import GpuStore
from kv_cache.tiers.payload import Payload

if TYPE_CHECKING:
    from kv_cache.bench.tracing import Tracer

_NATIVE_INSTANTS = Capability.POSITIONAL | Capability.WHOLE


class RunMachine(Struct, frozen=True):
    config: Config
    directories: RunDirectories
    stores: RunStores
    witness: Witness
    monitor: MachineMonitor
    tracer: "Tracer | None"
    mover: Mover
    drive: Drive
    native: bool
    """Whether the instants of all tiers are taken in native code."""
    moved_by: str

    @property
    def data_path(self) -> str:
        """What moved the bytes of storage, as far as is known by now."""
        refused = self.mover.batches and self.mover.batches.transfers.not_held
        note = f"; io_uring holds no memory ({refused})" if refused else ""
        return self.moved_by + note

    def resize(self, users: int) -> None:
        """Serve `users` from now on, with the workers that they need."""
        self.drive.resize(workers(self.config, users), users)

    def buffer_facts(self) -> Mapping[str, Any]:
        loads, stored = self.stores.load_buffers, self.stores.store_buffers
        return {
            "buffer_bytes": loads.buffer_bytes,
            "load_buffers": loads.count,
            "store_buffers": stored.count,
            "bytes": (loads.count + stored.count) * loads.buffer_bytes,
        }


def open_machine(
    plan: RunPlan, hooks: RunHooks, state: RunState, answers: StorageAnswers, opening: Opening
) -> RunMachine:
    """Open all that a run needs; what is opened puts its closing on `opening.closing`."""
    config = plan.config
    directories = open_directories(
        config, plan.seed, answers, opening.closing, keep=config.tiers.keep_cache
    )
    stores = open_stores(plan, directories, answers, opening)
    objects = [drive.objects for drive in directories.local]
    witness = Witness(
        config.passport,
        objects,
        state.clock,
        siblings=() if hooks.together is None else hooks.together.siblings,
        servers=directories.servers,
        pulse=answers.pulse,
        native=_NATIVE_INSTANTS in stores.by_tier[Tier.NVME].capabilities,
    )
    devices = [device for path in objects if (device := device_of(path)) is not None]
    tracer = _open_tracer(devices, opening.closing) if config.monitor.latency_tracing else None
    payload = Payload(Seed(plan.seed).child("payload"), config.io.buffer_mib * MIB)
    verify = Verify(config.io.verify)
    depth, pulse = config.io.threads, answers.pulse
    batches = native_batches(payload, state.clock, verify, opening.abort, depth, pulse)
    background = BACKGROUND_THREADS + _prefetchers(config)
    pools = stores.load_buffers, stores.store_buffers
    if batches is not None:
        _open_native(batches, config, workers(config) + depth + background, pools)
    mover = Mover(
        stores.by_tier,
        payload,
        *pools,
        state.clock,
        verify,
        opening.abort,
        page_cache=witness.page_cache,
        rehearse=plan.rehearse,
        pulse=pulse,
        batches=batches,
    )
    drive = Drive(
        state.world,
        state.intake,
        state.recorder,
        mover,
        state.clock,
        state.signals,
        opening.abort,
        workers=workers(config),
        io_threads=config.io.threads,
        background=background,
        on_record=hooks.on_record,
        on_op=hooks.on_op,
        prepare=partial(_prepare_thread, config, batches),
    )
    return RunMachine(
        config,
        directories,
        stores,
        witness,
        _monitor(config, stores, devices),
        tracer,
        mover,
        drive,
        batches is not None
        and all(_NATIVE_INSTANTS in store.capabilities for store in stores.by_tier.values()),
        _data_path(stores.by_tier, batches),
    )


def _data_path(stores: Mapping[Tier, Store], batches: BatchMover | None) -> str:
    """Return what moves the bytes of storage, as it is with whatever is around its store; and if it
    is Python, why."""
    if batches is None:
        return f"python: {native.library()}"
    refused = {tier: why for tier, store in stores.items() if (why := batches.refusal(store))}
    if Tier.NVME in refused:
        return f"python: {refused[Tier.NVME]}"
    return "; ".join(["native", *(f"python from and to {tier.label}" for tier in refused)])


def _open_native(
    batches: BatchMover, config: Config, threads: int, pools: Iterable[BufferPool]
) -> None:
    """Open what native transfers by so many threads need."""
    batches.transfers.open_crew()
    if _uses_rings(config):
        take_rings(batches.transfers, threads, *pools)


def _open_tracer(devices: Sequence[str], closing: ExitStack) -> "Tracer":
    """Open the tracer of the block layer; `closing` ends it."""
    from kv_cache.bench.tracing import Tracer  # seldom wanted, and with signals of Linux

    tracer = Tracer(devices)
    closing.push(tracer)
    return tracer


def _prefetchers(config: Config) -> int:
    """Count the threads for prefetches, which should not wait for what is written."""
    policies = config.policies
    return 0 if policies.prefetch == "none" else policies.prefetch_in_flight


def _monitor(config: Config, stores: RunStores, devices: Sequence[str]) -> MachineMonitor:
    cards = range(config.tiers.num_gpus)
    gpu = any(isinstance(store, GpuStore) for store in stores.by_tier.values())
    return MachineMonitor(devices, gpu_used_bytes(cards) if gpu else None)


def _prepare_thread(config: Config, batches: BatchMover | None) -> None:
    """Do what a thread needs before its first operation, so that none is timed with it."""
    if batches is not None and _uses_rings(config):
        batches.transfers.open_ring()


def _uses_rings(config: Config) -> bool:
    return "uring" in (config.io.engine, config.io.write_engine)
