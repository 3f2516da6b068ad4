"""One real run: populate, warm up, measure, drain, close.

`RealRun` owns what a run takes from the machine (threads, memory, the cache directory) and gives
all of it back, also when it is interrupted. It prints nothing and writes no result.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType
from typing import Any, Self

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.drive import Drive
from kv_cache.bench.memory import check_ram
from kv_cache.bench.place import (
    CacheDir,
    check_cache_dir,
    check_space,
    nearest_existing,
    obtainable_bytes,
)
from kv_cache.bench.transfer import Mover, Verify
from kv_cache.bench.witness import Witness
from kv_cache.cache.manager import TierSpec
from kv_cache.config.build import Load, build_intake, build_world, tier_facts, workers
from kv_cache.config.root import Config
from kv_cache.core.effect import OpDone
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import MIB, NS_PER_S, PAGE_BYTES, gib_to_bytes, s_to_ns
from kv_cache.lifecycle import populate
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import Edges, Failure, Recorder
from kv_cache.metrics.summary import Flows
from kv_cache.tiers.base import Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.gpu import GpuStore, find_devices
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.null import RehearsalStore
from kv_cache.tiers.nvme import NvmeStore, Striped, open_storage, uring
from kv_cache.tiers.payload import Payload
from kv_cache.workload.digest import schedule_digest

FREE_SHARE = 0.95  # of the free space, when no capacity is given (the reference's rule)
BACKGROUND_THREADS = 8  # that store what was written behind, and populate
SWITCH_INTERVAL_S = 0.0001  # the default of 5 ms shows in every short operation: decision 0009
PAYLOAD_OBJECTS = 64  # whose pages are looked at after the run
_TICK_S = 0.2
_GRACE_S = 2.0  # of the drain when a signal ends the run: launchers kill 5 s after it

Tick = Callable[["RealRun"], None]

log = logging.getLogger("kv_cache")


def drive_capacities(config: Config, directories: Sequence[Path]) -> list[int]:
    """Bytes that each drive of the storage tier may hold; refuses more than there is space for.
    Directories on one file system share what is free there."""
    on = [os.stat(nearest_existing(directory)).st_dev for directory in directories]
    wanted = gib_to_bytes(config.tiers.storage_capacity_gib)
    if not wanted:
        free = [_free_share(directory) for directory in directories]
        return [_pages(n // on.count(place)) for n, place in zip(free, on, strict=True)]
    each = _pages(wanted // len(directories))
    capacities = [wanted - each * (len(directories) - 1), *[each] * (len(directories) - 1)]
    for directory, place in zip(directories, on, strict=True):
        here = (n for n, other in zip(capacities, on, strict=True) if other == place)
        check_space(directory, sum(here))
    return capacities


def _pages(nbytes: int) -> int:
    return nbytes // PAGE_BYTES * PAGE_BYTES


def _free_share(directory: Path) -> int:
    capacity = _pages(int(obtainable_bytes(directory) * FREE_SHARE))
    if capacity < MIB:
        raise PlaceError(
            f"cache directory {directory}: the file system is full; give another --cache-dir"
        )
    return capacity


def storage_directories(config: Config) -> tuple[Path, ...]:
    """Where the storage tier will be: as given, or below the system's temporary directory."""
    given = config.tiers.cache_dir
    return (Path(gettempdir()),) if given is None else tuple(Path(name) for name in given)


def check_places(config: Config) -> int:
    """Everything that can be known to fail before anything is written; the storage capacity."""
    directories = storage_directories(config)
    _check_apart(directories)
    if config.tiers.cache_dir is not None:
        for directory in directories:
            check_cache_dir(directory)
    capacity = sum(drive_capacities(config, directories))
    gpu = gib_to_bytes(config.tiers.gpu_mem_gib) * config.tiers.num_gpus
    emulated = gpu if gpu and not _real_gpu(config) else 0
    pool = (config.io.load_buffers + config.io.store_buffers) * config.io.buffer_mib * MIB
    check_ram(
        {
            "cpu tier": gib_to_bytes(config.tiers.cpu_mem_gib),
            "gpu tier (emulated in RAM)": emulated,
            "buffers": pool,
        }
    )
    return capacity


def _check_apart(directories: Sequence[Path]) -> None:
    paths = [os.path.realpath(directory) for directory in directories]
    for path in paths:
        if paths.count(path) > 1:
            raise PlaceError(f"--cache-dir {path} is given twice; give each drive's directory once")


def _real_gpu(config: Config) -> bool:
    if config.tiers.gpu == "emulated":
        return False
    devices, why = find_devices(config.tiers.num_gpus)
    if not devices and config.tiers.gpu == "cuda":
        raise PlaceError(
            f"--gpu cuda: {why}; use --gpu emulated, or --gpu-mem-gb 0 for no GPU tier"
        )
    return bool(devices)


def _close(store: Store) -> None:
    """What storage has to say now is too late for the result, and no reason to leave files."""
    try:
        store.close()
    except StoreError as error:
        log.error("storage could not be closed: %s", error)


class RealRun:
    """A run with real bytes. Enter it to allocate, `execute` it once, leave it to clean up."""

    def __init__(
        self,
        config: Config,
        load: Load,
        specs: tuple[TierSpec, ...],
        seed: int,
        *,
        stop: threading.Event,
        on_record: Callable[[RequestRecord], None],
        on_op: Callable[[OpDone], None],
        wrap: Callable[[Store], Store] = lambda store: store,
        rehearse: bool = False,
    ) -> None:
        """`wrap` puts something around each store; `rehearse` runs on storage that keeps nothing
        and takes no time, with all the rest as it is."""
        self._rehearse = rehearse
        self._config = config
        self._load = load
        self._specs = specs
        self._seed = seed
        self._stop = stop
        self._on_record = on_record
        self._on_op = on_op
        self._wrap = wrap
        self._stores: dict[Tier, Store] = {}
        self._arenas: list[MemoryStore] = []
        self._cache_dirs: list[CacheDir] = []
        self._drives: list[NvmeStore] = []
        self._switch_interval_s = sys.getswitchinterval()
        self._abort = threading.Event()
        self.clock = MonotonicClock()
        self.phase = "starting"
        self.signals = Signals()
        self.recorder = Recorder(Edges())
        self.intake = build_intake(config, load.source)
        self.world = build_world(config, specs, self.signals)

    # --- what is taken, and given back -----------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._take()
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    @property
    def directories(self) -> list[Path]:
        """Where the storage tier really is."""
        return [cache_dir.path for cache_dir in self._cache_dirs]

    def _take(self) -> None:
        config = self._config
        name = f"seed {self._seed}"
        if config.tiers.cache_dir is None:
            self._cache_dirs.append(CacheDir.temporary(run=name))
        for directory in config.tiers.cache_dir or ():
            self._cache_dirs.append(CacheDir(Path(directory), run=name))
        size = config.io.buffer_mib * MIB
        payload = Payload(Seed(self._seed).child("payload"), size)
        loads = BufferPool(config.io.load_buffers, size)
        stored = BufferPool(config.io.store_buffers, size)
        for spec in self._specs:
            self._stores[spec.tier] = self._wrap(self._store(spec, (loads, stored)))
        self._pools = (loads, stored)
        uring.register([loads.memory, stored.memory])
        objects = [cache_dir.objects for cache_dir in self._cache_dirs]
        self._witness = Witness(config.passport, objects, self.clock)
        mover = Mover(
            self._stores,
            payload,
            loads,
            stored,
            self.clock,
            Verify(config.io.verify),
            self._abort,
            page_cache=self._witness.page_cache,
            rehearse=self._rehearse,
        )
        self._drive = Drive(
            self.world,
            self.intake,
            self.recorder,
            mover,
            self.clock,
            self.signals,
            self._abort,
            workers=workers(config),
            io_threads=config.io.threads,
            background=BACKGROUND_THREADS,
            on_record=self._on_record,
            on_op=self._on_op,
            prepare=self._prepare_thread,
        )

    def _prepare_thread(self) -> None:
        """What a thread needs before its first operation, so that none is timed with it."""
        if "uring" in (self._config.io.engine, self._config.io.write_engine):
            uring.prepare()

    def _store(self, spec: TierSpec, pools: tuple[BufferPool, BufferPool]) -> Store:
        capacity = spec.capacity_bytes
        assert capacity is not None, "real tiers have a capacity"
        match spec.tier:
            case Tier.CPU:
                return self._arena(MemoryStore(Tier.CPU, capacity))
            case Tier.GPU:
                return self._gpu_store(capacity, pools)
            case Tier.NVME:
                return RehearsalStore(Tier.NVME) if self._rehearse else self._storage(capacity)

    def _storage(self, capacity: int) -> Store:
        """One store for each drive."""
        alone = len(self._cache_dirs) == 1
        shares = [capacity] if alone else drive_capacities(self._config, self.directories)
        stores: list[Store] = []
        try:
            for cache_dir, share in zip(self._cache_dirs, shares, strict=True):
                stores.append(self._drive_store(cache_dir, share))
        except BaseException:
            for store in stores:
                store.close()
            raise
        return stores[0] if alone else Striped(stores, shares)

    def _drive_store(self, cache_dir: CacheDir, capacity: int) -> Store:
        io = self._config.io
        store = open_storage(
            cache_dir.objects,
            capacity_bytes=capacity,
            layout=io.layout,
            engine=io.engine,
            write_engine=io.write_engine,
            fsync=self._config.fsync(),
            rename=io.rename,
        )
        self._drives.append(store)
        return store

    def _gpu_store(self, capacity: int, pools: tuple[BufferPool, BufferPool]) -> Store:
        if not _real_gpu(self._config):
            return self._arena(MemoryStore(Tier.GPU, capacity, emulated=True))
        makers, library = find_devices(self._config.tiers.num_gpus)
        store = GpuStore(
            [make() for make in makers],
            capacity // len(makers),
            library,
            self._config.gpu_backend.memory_fraction,
        )
        for pool in pools:
            store.pin(pool.memory)
        return store

    def _arena(self, store: MemoryStore) -> MemoryStore:
        self._arenas.append(store)
        return store

    def _give_back(self) -> None:
        """Everything, also where a part of it fails."""
        sys.setswitchinterval(self._switch_interval_s)
        stores, self._stores = self._stores, {}
        with ExitStack() as last:
            for cache_dir in self._cache_dirs:
                last.callback(cache_dir.close, keep=self._config.tiers.keep_cache)
            for store in stores.values():
                last.callback(_close, store)
            if "_drive" in self.__dict__:
                self._drive.join()  # before what its threads work on is closed and removed
            for holder in ("_pools", "_drive"):  # of the buffers: their memory goes back now
                self.__dict__.pop(holder, None)
            uring.register([])

    # --- the run ---------------------------------------------------------------------------

    def execute(self, tick: Tick) -> RunOutcome:
        """All phases. `tick` is called a few times a second, to show progress."""
        config, edges = self._config, self.recorder.edges
        digest = schedule_digest(self._load.source.plan(), config.run.max_requests)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.phase = "allocate"
        for arena in self._arenas:
            arena.touch(self._stop.is_set)
        self._witness.begin()
        self._drive.start()
        try:
            self._populate(tick)
            edges.populate_end_ns = self.clock.now_ns()
            edges.measure_start_ns = edges.populate_end_ns + s_to_ns(config.run.warmup_s)
            self._drive.open()
            self.phase = "warmup"
            self._wait(edges.measure_start_ns, tick)
            self._witness.open_window()
            self.phase = "measure"
            window_s = config.window_s()
            end_ns = None if window_s is None else edges.measure_start_ns + s_to_ns(window_s)
            edges.measure_end_ns = end_ns  # what ends later is the drain's from now on
            self._wait(end_ns, tick)
            now_ns = self.clock.now_ns()
            edges.measure_end_ns = now_ns if end_ns is None else min(now_ns, end_ns)
            edges.measure_start_ns = min(edges.measure_start_ns, edges.measure_end_ns)
            self._witness.close_window()
            self.phase = "drain"
            self._drive.close()
            self._drain(tick)
        finally:
            self._drive.stop(self._stop.is_set)
            self._witness.stop()
            sys.setswitchinterval(self._switch_interval_s)
        self.phase = "check"
        self._look_back()
        self.phase = "done"
        return self._outcome(digest.sha256, digest.requests)

    def _look_back(self) -> None:
        """Let the kernel's counters catch up, then read a sample of what was written."""
        flows = Flows(self.recorder.flows)
        read, written = (flows.all_bytes(Tier.NVME, kind) for kind in (OpKind.READ, OpKind.WRITE))
        if not self._stop.is_set():  # whoever stopped us does not wait for a device
            self._flush()
        self._witness.settle(read, written, self._stop.is_set)
        if self._drive.death is not None:
            return
        refs = self.world.cache.sample(Tier.NVME, PAYLOAD_OBJECTS)
        seed = Seed(self._seed).child("payload-sample")
        if not self._rehearse:
            store = self._stores[Tier.NVME]
            self._witness.examine_payload(store, refs, seed, self._stop.is_set)

    def _flush(self) -> None:
        """What a batch still waits for; where it fails, objects that are complete are not on the
        device, which is a failed operation."""
        for drive in self._drives:
            try:
                drive.flush()
            except StoreError as error:
                lost = Failure(Tier.NVME, OpKind.WRITE, Cause.PREFILL, error.reason)
                self.recorder.failures[lost] += 1

    def _populate(self, tick: Tick) -> None:
        self.phase = "populate"
        lives = (populate(blocks, self.world) for blocks in self._load.populate)
        self._drive.populate(lives, self._stop, lambda: tick(self))

    def _wait(self, until_ns: int | None, tick: Tick) -> None:
        """Until an instant, the end of all requests, a death or a signal."""
        while not self._stop.is_set() and not self._drive.wait(until_ns, _TICK_S):
            tick(self)

    def _drain(self, tick: Tick) -> None:
        """Let requests in flight finish for a while, then end them at their next buffer."""
        grace_s = _GRACE_S if self._stop.is_set() else self._config.run.drain_s
        deadline_ns = self.clock.now_ns() + s_to_ns(grace_s)
        stopped = self._stop.is_set()
        while not self._drive.wait(deadline_ns, _TICK_S):
            tick(self)
            if self._stop.is_set() and not stopped:
                stopped, deadline_ns = True, self.clock.now_ns() + s_to_ns(_GRACE_S)
        if not self._drive.ended:
            self._abort.set()

    def _outcome(self, sha256: str, requests: int) -> RunOutcome:
        death = self._drive.death
        if death is None:
            self._check_books()
        return RunOutcome(
            driver="real-io",
            recorder=self.recorder,
            submitted=self.intake.submitted,
            longest_queue=self.intake.longest_queue,
            tiers=tier_facts(self.world, {t: s.describe() for t, s in self._stores.items()}),
            dropped_last_copies=self.world.cache.dropped_last_copies,
            dropped_stores=self.world.dropped_stores,
            lost_bytes=self.world.cache.lost_bytes,
            schedule_sha256=sha256,
            schedule_requests=requests,
            workload=self._load.source.describe(),
            seed=self._seed,
            started_unix_s=self.clock.started_unix_s,
            death=None if death is None else f"{type(death).__name__}: {death}",
            kernel=self._witness.kernel,
            witness=self._witness.evidence(),
            buffers=self._buffer_facts(),
            cpu_count=os.cpu_count(),
            kept_in=", ".join(map(str, self.directories))
            if self._config.tiers.keep_cache
            else None,
        )

    def _check_books(self) -> None:
        """At idle every law of the cache must hold; a run that broke one is not a result."""
        if not self._abort.is_set():
            self.world.cache.check()

    def _buffer_facts(self) -> Mapping[str, Any]:
        loads, stored = self._pools
        return {
            "buffer_bytes": loads.buffer_bytes,
            "load_buffers": loads.count,
            "store_buffers": stored.count,
            "bytes": (loads.count + stored.count) * loads.buffer_bytes,
        }

    # --- for whoever watches ---------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds of the measured window so far."""
        edges = self.recorder.edges
        return max(0, self.clock.now_ns() - edges.measure_start_ns) / NS_PER_S
