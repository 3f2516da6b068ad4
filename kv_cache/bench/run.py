"""One real run: populate, warm up, measure, drain, close.

`RealRun` owns what a run takes from the machine (threads, memory, the cache directory) and gives
all of it back, also when it is interrupted. It prints nothing and writes no result.
"""

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from kv_cache.bench.bucket import RunPrefix, check_bucket
from kv_cache.bench.cache_dir import (
    CacheDir,
    check_cache_dir,
    check_space,
    free_bytes,
    nearest_existing,
    obtainable_bytes,
)
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.counters import device_of
from kv_cache.bench.drive import Drive
from kv_cache.bench.fill import Filled, check_fill, fill
from kv_cache.bench.memory import check_ram, check_ram_of_ranks
from kv_cache.bench.monitor import MachineMonitor, gpu_used_bytes
from kv_cache.bench.pulse import Pulse
from kv_cache.bench.sizing import ram_parts, real_gpu
from kv_cache.bench.sweep import Removed
from kv_cache.bench.tracing import Tracer
from kv_cache.bench.transfer import Mover, Verify
from kv_cache.bench.waits import answered
from kv_cache.bench.witness import Witness
from kv_cache.cache.manager import TierSpec
from kv_cache.config.build import (
    BACKGROUND_THREADS,
    Load,
    build_control,
    build_intake,
    build_world,
    endless,
    policy_facts,
    tier_facts,
    workers,
)
from kv_cache.config.places import Place, place_of, storage_places
from kv_cache.config.root import Config
from kv_cache.core.effect import OpDone
from kv_cache.core.errors import NoAnswerError, PlaceError, StoreError
from kv_cache.core.kinds import Cause, OpKind, Phase, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.core.units import (
    MIB,
    NS_PER_MS,
    NS_PER_S,
    PAGE_BYTES,
    gib_to_bytes,
    ns_to_ms,
    s_to_ns,
)
from kv_cache.lifecycle import populate
from kv_cache.metrics.histogram import supported
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.recorder import Edges, Failure, Recorder
from kv_cache.metrics.slo import Promise
from kv_cache.metrics.steady import Round, proof
from kv_cache.metrics.summary import Flows
from kv_cache.metrics.window import Latency, OnLatencies, Totals, Window
from kv_cache.schedule.autoscale import decision_row
from kv_cache.schedule.control import Watch
from kv_cache.schedule.intake import OnArrival, nobody
from kv_cache.tiers.base import Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.gpu import GpuStore, find_devices
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.null import RehearsalStore
from kv_cache.tiers.nvme import NvmeStore, Striped, open_storage, uring
from kv_cache.tiers.objects import ObjectPlace
from kv_cache.tiers.payload import Payload
from kv_cache.workload.digest import schedule_digest

SWITCH_INTERVAL_S = 0.0001  # the default of 5 ms shows in every short operation: decision 0009
_SHORTEST_NS = NS_PER_MS  # less than this is no window
_NOT_YET_NS = 2**62  # later than any run: an edge that is not known yet
PAYLOAD_OBJECTS = 64  # whose pages are looked at after the run
_TICK_S = 0.2
_ROUNDS_DRAIN_S = 60.0  # for requests of the rounds to end, at least
_GRACE_S = 2.0  # of the drain when a signal ends the run: launchers kill 5 s after it

T = TypeVar("T")
Tick = Callable[["RealRun"], None]


class Together(Protocol):
    """What a run that is one of several has to know and do (`cli/crew`)."""

    @property
    def siblings(self) -> Sequence[int]:
        """Processes of the others on this machine."""

    def wait(self, stop: threading.Event, look: Callable[[], None]) -> None:
        """The run is ready. Return at the instant at which all open, or after `stop`; `look` now
        and then, but not just before."""

    def opened(self, ago_ns: int) -> None:
        """So long ago the first arrival was let in."""


log = logging.getLogger("kv_cache")


def drive_capacities(config: Config, places: Sequence[Place]) -> list[int]:
    """Bytes that each drive of the storage tier may hold; refuses more than there is space for.
    Directories on one file system share what is free there; buckets have no end."""
    directories = [place for place in places if isinstance(place, Path)]
    if not directories:
        return _shares(gib_to_bytes(config.tiers.storage_capacity_gib), len(places))
    on = [os.stat(nearest_existing(directory)).st_dev for directory in directories]
    wanted = gib_to_bytes(config.tiers.storage_capacity_gib)
    if not wanted:
        free = [_free_bytes(directory, config) for directory in directories]
        return [_pages(n // on.count(place)) for n, place in zip(free, on, strict=True)]
    capacities = _shares(wanted, len(directories))
    for directory, place in zip(directories, on, strict=True):
        here = (n for n, other in zip(capacities, on, strict=True) if other == place)
        check_space(directory, sum(here), config.tiers.reclaim)
    return capacities


def room_wanted(config: Config) -> list[dict[str, Any]]:
    """What is wanted in each directory of the storage tier, in plain values that runs which begin
    together can add up: each by itself only knows that there is room for one. Nothing where a run
    takes its share of what is free."""
    directories = [place for place in storage_places(config) if isinstance(place, Path)]
    wanted = gib_to_bytes(config.tiers.storage_capacity_gib)
    if not wanted or not directories:
        return []
    found = []
    for directory, capacity in zip(directories, _shares(wanted, len(directories)), strict=True):
        free = free_bytes(directory)
        found.append(
            {
                "directory": str(directory),
                "device": os.stat(nearest_existing(directory)).st_dev,
                "wanted_bytes": capacity,
                "free_bytes": free,
                "dead_bytes": max(0, obtainable_bytes(directory, config.tiers.reclaim) - free),
            }
        )
    return found


def _shares(wanted: int, drives: int) -> list[int]:
    """The first takes what is left over."""
    each = _pages(wanted // drives)
    return [wanted - each * (drives - 1), *[each] * (drives - 1)]


def _pages(nbytes: int) -> int:
    return nbytes // PAGE_BYTES * PAGE_BYTES


def _free_bytes(directory: Path, config: Config) -> int:
    obtainable = obtainable_bytes(directory, config.tiers.reclaim)
    capacity = _pages(int(obtainable * config.tiers.free_share))
    if capacity < MIB:
        raise PlaceError(
            f"cache directory {directory}: the file system is full; give another --cache-dir"
        )
    return capacity


def check_places(config: Config, ranks_here: int = 1) -> int:
    """Everything that can be known to fail before anything is written; the storage capacity.
    `ranks_here`: how many runs like this one begin on this machine at the same time."""
    places = storage_places(config)
    _check_apart(places)
    directories = [place for place in places if isinstance(place, Path)]
    if config.tiers.cache_dir is not None:
        for directory in directories:
            check_cache_dir(directory)
    for place in places:
        if isinstance(place, ObjectPlace):
            check_bucket(place)
    capacities = drive_capacities(config, places)
    capacity = sum(capacities)
    if config.precondition.enabled:
        check_fill(gib_to_bytes(config.precondition.size_gib), capacities, directories)
    parts = ram_parts(config)
    check_ram(parts)
    check_ram_of_ranks(parts, ranks_here)
    return capacity


def fill_drives(
    config: Config, seed: int, stop: threading.Event, progress: Callable[[int], None]
) -> Filled:
    """The workload-independent half of preconditioning, in run directories that are gone again
    when it returns: the storage tier may take all the room for itself. Raises PlaceError."""
    with ExitStack() as taken:
        answer_s = config.run.answer_s
        places = ", ".join(map(str, storage_places(config)))
        opened = answered(
            f"opening the cache directory {places}",
            lambda: _cache_dirs(config, f"seed {seed}"),
            answer_s,
        )
        drives = [d for d in opened if isinstance(d, CacheDir)]
        for drive in drives:
            what = f"removing the cache files in {drive.path}"
            taken.callback(answered, what, partial(_close_drive, drive), answer_s)
        paths = [drive.path for drive in drives]
        try:
            return fill(
                [drive.objects for drive in drives],
                drive_capacities(config, paths),
                seed=Seed(seed).child("fill"),
                stop=stop,
                size_bytes=gib_to_bytes(config.precondition.size_gib),
                threads=config.precondition.threads,
                progress=progress,
                answer_s=answer_s,
            )
        except NoAnswerError:
            taken.pop_all()  # nothing more is asked of storage
            raise


def _close_drive(drive: CacheDir) -> None:
    drive.close().told()


def _cache_dirs(config: Config, run: str) -> list[CacheDir | RunPrefix]:
    if config.tiers.cache_dir is None:
        return [CacheDir.temporary(run=run)]
    made: list[CacheDir | RunPrefix] = []
    reclaim = config.tiers.reclaim
    try:
        for name in config.tiers.cache_dir:
            place = place_of(config, name)
            made.append(
                CacheDir(place, run=run, reclaim=reclaim)
                if isinstance(place, Path)
                else RunPrefix(place, run=run, reclaim=reclaim)
            )
    except BaseException:
        for drive in made:
            drive.close(keep=False)
        raise
    return made


def _check_apart(places: Sequence[Place]) -> None:
    paths = [os.path.realpath(p) if isinstance(p, Path) else str(p) for p in places]
    for path in paths:
        if paths.count(path) > 1:
            raise PlaceError(f"--cache-dir {path} is given twice; give each drive's directory once")


def _round_of(windows: Sequence[Window]) -> Round:
    """A p95 is the median of the windows', as percentiles do not add up, where the round has enough
    operations for one."""
    sides = {
        kind: [w.ops[Tier.NVME, kind] for w in windows if (Tier.NVME, kind) in w.ops]
        for kind in (OpKind.READ, OpKind.WRITE)
    }
    p95 = {kind: _median_p95_ms([ops.latency for ops in seen]) for kind, seen in sides.items()}
    return Round(
        seconds=sum(window.seconds for window in windows),
        read_bytes=sum(ops.bytes for ops in sides[OpKind.READ]),
        write_bytes=sum(ops.bytes for ops in sides[OpKind.WRITE]),
        read_p95_ms=p95[OpKind.READ],
        write_p95_ms=p95[OpKind.WRITE],
        completed=sum(window.completed for window in windows),
    )


def _median_p95_ms(latencies: Sequence[Latency]) -> float | None:
    seen = [each.rank95_ns for each in latencies if each.rank95_ns is not None]
    enough = supported(sum(each.count for each in latencies), 95)
    return ns_to_ms(median(seen)) if enough and seen else None


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
        on_arrival: OnArrival = nobody,
        wrap: Callable[[Store], Store] = lambda store: store,
        rehearse: bool = False,
        filled: Filled | None = None,
        rounds: Load | None = None,
        promises: Sequence[Promise] | None = None,
        watch: Watch | None = None,
        on_latencies: OnLatencies | None = None,
        together: Together | None = None,
    ) -> None:
        """`wrap` puts something around each store; `rehearse` runs on storage that keeps nothing
        and takes no time, with all the rest as it is. `filled` is what was done to the drives
        before, `rounds` the load of the preconditioning, endless and under other names.
        `on_arrival` as in `Intake`, but not of these rounds; `promises` and `watch` as in
        `build_control`; `together` where this is one of several runs."""
        self._together = together
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
        self._cache_dirs: list[CacheDir | RunPrefix] = []
        self.left_behind: tuple[str, ...] = ()
        """What could not be removed, each with its reason; known once the run is left."""
        self._drives: list[NvmeStore] = []
        self._switch_interval_s = sys.getswitchinterval()
        self._abort = threading.Event()
        self._pulse = Pulse()
        self._silence: str | None = None  # what storage did not answer: it is asked nothing more
        self._unanswered: Mapping[str, Any] | None = None
        self.clock = MonotonicClock()
        self.phase = "starting"
        self.signals = Signals()
        self._meter, self._control = build_control(config, promises, watch)
        self._meter.on_latencies = on_latencies
        self.recorder = Recorder(Edges(), self._meter)
        self.intake = self.serving = build_intake(config, load, on_arrival)
        self._rounds = None if rounds is None else build_intake(endless(config), rounds)
        self._preconditioning = None if filled is None else {"fill": filled.to_json()}
        self._tick_ns = s_to_ns(config.monitor.tick_s)
        self._next_cut_ns: int | None = None
        self._enough = False  # the control has seen all that it needs
        self.latest: Window | None = None
        self._recent: list[Window] = []  # of the round that goes on
        self.rounds: Sequence[Round] = ()
        self._traced: Mapping[str, Any] | None = None
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
        """Raises NoAnswerError where storage did not answer, now or before."""
        self._give_back()
        if error is None and self._silence is not None:
            raise NoAnswerError(
                f"{self._silence}; process {os.getpid()} is left with it, and cache files stay in "
                f"{self._places()}"
            )

    def _places(self) -> str:
        return ", ".join(map(str, self.directories or storage_places(self._config)))

    @property
    def directories(self) -> list[Place]:
        """Where the storage tier really is."""
        return [cache_dir.path for cache_dir in self._cache_dirs]

    def _take(self) -> None:
        config = self._config
        places = ", ".join(map(str, storage_places(config)))
        self._cache_dirs += self._answered(
            f"opening the cache directory {places}",
            lambda: _cache_dirs(config, f"seed {self._seed}"),
        )
        size = config.io.buffer_mib * MIB
        payload = Payload(Seed(self._seed).child("payload"), size)
        loads = BufferPool(config.io.load_buffers, size)
        stored = BufferPool(config.io.store_buffers, size)
        for spec in self._specs:
            self._stores[spec.tier] = self._wrap(self._store(spec, (loads, stored)))
        self._pools = (loads, stored)
        uring.register([loads.memory, stored.memory])
        objects = [drive.objects for drive in self._cache_dirs if isinstance(drive, CacheDir)]
        self._witness = Witness(
            config.passport,
            objects,
            self.clock,
            siblings=() if self._together is None else self._together.siblings,
            servers=[d.path.url for d in self._cache_dirs if isinstance(d, RunPrefix)],
            pulse=self._pulse,
        )
        devices = [device for path in objects if (device := device_of(path)) is not None]
        self._monitor = self._machine_monitor(devices)
        self._tracer = Tracer(devices) if config.monitor.latency_tracing else None
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
            pulse=self._pulse,
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
            background=BACKGROUND_THREADS + self._prefetchers(),
            on_record=self._on_record,
            on_op=self._on_op,
            prepare=self._prepare_thread,
        )

    def _prefetchers(self) -> int:
        """Threads for what is brought up ahead, which should not wait for what is written."""
        given = self._config.policies
        return 0 if given.prefetch == "none" else given.prefetch_in_flight

    def _machine_monitor(self, devices: Sequence[str]) -> MachineMonitor:
        cards = range(self._config.tiers.num_gpus)
        gpu = any(isinstance(store, GpuStore) for store in self._stores.values())
        return MachineMonitor(devices, gpu_used_bytes(cards) if gpu else None)

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

    def _drive_store(self, cache_dir: CacheDir | RunPrefix, capacity: int) -> Store:
        if isinstance(cache_dir, RunPrefix):
            return cache_dir.store(self._abort.is_set)
        io = self._config.io
        store = self._answered(
            f"making files in {cache_dir.path}",
            lambda: open_storage(
                cache_dir.objects,
                capacity_bytes=capacity,
                layout=io.layout,
                engine=io.engine,
                write_engine=io.write_engine,
                fsync=self._config.fsync(),
                rename=io.rename,
            ),
        )
        self._drives.append(store)
        return store

    def _gpu_store(self, capacity: int, pools: tuple[BufferPool, BufferPool]) -> Store:
        if not real_gpu(self._config):
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
                last.callback(self._release, cache_dir)
            for store in stores.values():
                last.callback(self._close, store)
            if (tracer := self.__dict__.get("_tracer")) is not None:
                last.push(tracer)
            if "_drive" in self.__dict__:
                self._join()  # before what its threads work on is closed and removed
            for holder in ("_pools", "_drive"):  # of the buffers: their memory goes back now
                self.__dict__.pop(holder, None)
            uring.register([])

    def _leftovers(self) -> Mapping[str, Any] | None:
        """What the opening removed of dead runs, and what it could not."""
        drives = [drive for drive in self._cache_dirs if isinstance(drive, CacheDir)]
        found = sum((drive.leftovers for drive in drives), Removed())
        return None if found == Removed() else found.to_json()

    def _release(self, cache_dir: CacheDir | RunPrefix) -> None:
        keep = self._config.tiers.keep_cache
        if self._silence is None:
            with suppress(NoAnswerError):
                removed = self._answered(
                    f"removing the cache files in {cache_dir.path}",
                    lambda: cache_dir.close(keep=keep),
                )
                self.left_behind += removed.told().left

    def _close(self, store: Store) -> None:
        """What storage has to say now is too late for the result, and no reason to leave files."""
        if self._silence is not None:
            return
        try:
            self._answered(f"closing files in {self._places()}", store.close)
        except StoreError as error:
            log.error("storage could not be closed: %s", error)
        except NoAnswerError:
            return

    def _join(self) -> None:
        """Wait for operations that a signal has left behind."""
        if self._drive.left and self._silence is None:
            held = len(self._pulse.waiting(self.clock.now_ns()))
            seconds = self._config.run.answer_s
            log.warning(
                "%d operations on %s are waited for until none has moved for %g s "
                "(run.answer_s)", held, self._places(), seconds,
            )  # fmt: skip
        self._drive.join(self._no_answer)

    # --- storage that does not answer ------------------------------------------------------

    def _answered(self, what: str, call: Callable[[], T]) -> T:
        """As `answered`; that there was no answer is kept in mind."""
        try:
            return answered(what, call, self._config.run.answer_s)
        except NoAnswerError:
            self._fell_silent(what, [])
            raise

    def _no_answer(self) -> bool:
        """Whether storage has let all operations that it holds stand still for too long."""
        if self._silence is not None:
            return True
        waiting = self._pulse.waiting(self.clock.now_ns())
        ages_ns = [age_ns for _, age_ns in waiting]
        if not ages_ns or min(ages_ns) < s_to_ns(self._config.run.answer_s):
            return False
        held = f"{len(waiting)} operations on {self._places()}"
        oldest_s = max(ages_ns) / NS_PER_S
        self._fell_silent(f"{held} have stood still for up to {oldest_s:.0f} s", waiting)
        return True

    def _fell_silent(self, what: str, waiting: Sequence[tuple[OpKind, int]]) -> None:
        seconds = "" if waiting else f" has stood still for {self._config.run.answer_s:g} s"
        self._silence = f"the device did not answer: {what}{seconds}"
        self._unanswered = {
            "what": what,
            "pid": os.getpid(),
            "directories": [str(place) for place in self.directories],
            "operations": [
                {"operation": kind.value, "still_s": round(age_ns / NS_PER_S, 3)}
                for kind, age_ns in waiting
            ],
        }

    def _end_without_answer(self) -> bool:
        """Where nothing else ends a wait: the run is over once storage does not answer."""
        if not self._no_answer():
            return False
        self._drive.fail(NoAnswerError(self._silence))
        return True

    # --- the run ---------------------------------------------------------------------------

    def execute(self, tick: Tick, *, measure: bool = True) -> RunOutcome:
        """All phases; without `measure`, those before the warm-up. `tick` is called a few times a
        second, to show progress."""
        config, edges = self._config, self.recorder.edges
        digest = schedule_digest(self._load.source.plan(), config.run.max_requests)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.collect()
        gc.freeze()  # else a collection of all that was there before stops every thread for 40 ms
        self.phase = "allocate"
        tick(self)
        for arena in self._arenas:
            arena.touch(self._stop.is_set)
        self._answered(f"writing a trial file in {self._places()}", self._witness.begin)
        try:
            self._next_cut_ns = self.clock.now_ns() + self._tick_ns
            self._drive.start()
            self._populate(tick)
            edges.populate_end_ns = self.clock.now_ns()
            self._cut()
            self._run_rounds(tick)
            if measure:
                self._measure(tick)
            else:
                edges.measure_start_ns = edges.measure_end_ns = self.clock.now_ns()
            self.phase = "drain"
            self._drive.close()
            self._drain(tick)
        except BaseException:
            self._abort.set()  # else who waits for what is ended now waits for ever
            raise
        finally:
            self._drive.stop(self._stop.is_set, self._no_answer)
            self._witness.stop()
            gc.unfreeze()
            sys.setswitchinterval(self._switch_interval_s)
        self._cut()
        self._end_tracing()
        self.phase = "check"
        tick(self)
        self._look_back()
        self.phase = "done"
        return self._outcome(digest.sha256, digest.requests)

    def _measure(self, tick: Tick) -> None:
        """Warm-up and window."""
        config, edges = self._config, self.recorder.edges
        self._begin_tracing()
        self._wait_for_others(tick)
        edges.measure_start_ns = self.clock.now_ns() + s_to_ns(config.run.warmup_s)
        opened_ns = self._drive.open()
        if self._together is not None:
            self._together.opened(self.clock.now_ns() - opened_ns)
        self.phase = "warmup"
        self._wait(edges.measure_start_ns, tick)
        self._cut()
        self._witness.open_window()
        self.phase = "measure"
        window_s = config.window_s()
        end_ns = None if window_s is None else edges.measure_start_ns + s_to_ns(window_s)
        edges.measure_end_ns = end_ns  # what ends later is the drain's from now on
        self._wait(end_ns, tick)
        now_ns = self.clock.now_ns()
        edges.measure_end_ns = now_ns if end_ns is None else min(now_ns, end_ns)
        edges.measure_start_ns = min(edges.measure_start_ns, edges.measure_end_ns)
        self._cut(last=True)
        self._witness.close_window()

    def _wait_for_others(self, tick: Tick) -> None:
        """So long the windows are those of a warm-up in which nobody asks."""
        if self._together is None:
            return
        self.phase, self.recorder.edges.measure_start_ns = "waiting", _NOT_YET_NS

        def look() -> None:
            self._cut_when_due()
            tick(self)

        self._together.wait(self._stop, look)

    # --- windows ---------------------------------------------------------------------------

    def _cut(self, *, last: bool = False) -> None:
        """A window ends: let the control see it, and do what it says, unless it was the `last`.
        A window is of the phase that it lies in for the most part."""
        if self.clock.now_ns() - self._meter.start_ns < _SHORTEST_NS:
            return
        bins, gauges = self._drive.take()
        self._next_cut_ns = bins.end_ns + self._tick_ns
        phase = self.recorder.edges.phase_of((bins.start_ns + bins.end_ns) // 2)
        window = self._meter.read(bins, phase, gauges, self._monitor.sample())
        if phase is Phase.PRECONDITION:
            self._recent.append(window)
        orders = self._control.see(window, last=last)
        self.latest = self._control.latest
        if orders.users is not None:
            self.resize(orders.users)
        self._enough = self._enough or orders.stop

    def resize(self, users: int) -> None:
        """So many users from now on, and the workers that serve them."""
        self._drive.resize(workers(self._config, users), users)

    def _cut_when_due(self, until_ns: int | None = None) -> None:
        """Unless the window would end at `until_ns` anyway, and leave a scrap before it."""
        now_ns = self.clock.now_ns()
        if self._next_cut_ns is None or now_ns < self._next_cut_ns:
            return
        if until_ns is None or until_ns - now_ns > self._tick_ns // 2:
            self._cut()

    def _wait(self, until_ns: int | None, tick: Tick) -> None:
        """Until an instant, the end of all requests, a death, a signal, or until it is enough."""
        while not self._stop.is_set() and not self._enough:
            due_s = ((self._next_cut_ns or 0) - self.clock.now_ns()) / NS_PER_S
            if self._drive.wait(until_ns, min(_TICK_S, due_s) if due_s > 0 else _TICK_S):
                return
            if (
                until_ns is None or self.phase == Phase.PRECONDITION
            ) and self._end_without_answer():
                return
            self._cut_when_due(until_ns)
            tick(self)

    def _rounds_until_steady(self, tick: Tick) -> dict[str, Any]:
        config, rounds = self._config, list[Round]()
        judged: Mapping[str, Any] | None = None
        thresholds = config.passport.thresholds()
        open_loop = config.has_schedule(sessions=self._load.sessions)
        while len(rounds) < config.precondition.max_rounds and not self._stop.is_set():
            begin_ns = self.clock.now_ns()
            self._recent.clear()
            self._wait(begin_ns + s_to_ns(config.precondition.round_s), tick)
            self._cut()
            rounds.append(_round_of(self._recent))
            self.rounds = rounds
            judged = proof(
                rounds,
                open_loop=open_loop,
                most_range=thresholds.most_round_range,
                most_change=thresholds.most_round_change,
            )
            if self._drive.ended or (judged is not None and judged["steady"]):
                break
        return {
            "rounds": [each.row(number) for number, each in enumerate(rounds, 1)],
            "proof": judged,
            "open_loop": open_loop,
        }

    # --- tracing of the block layer: from the first arrival to the end of the drain ----------

    def _begin_tracing(self) -> None:
        if self._tracer is None or self._stop.is_set():
            return
        self.phase = "attach"
        reason = self._tracer.start()
        if reason is not None:
            log.warning("--enable-latency-tracing: %s", reason)

    def _end_tracing(self) -> None:
        """Whoever stopped us does not wait until bpftrace has printed."""
        if self._tracer is None:
            return
        with self._tracer:
            if not self._stop.is_set():
                traced = self._tracer.stop()
                self._traced = {"keys": traced.reference_keys(), "section": traced.section()}

    # --- before anything is measured -------------------------------------------------------

    def _populate(self, tick: Tick) -> None:
        self.phase = "populate"
        lives = (populate(blocks, self.world) for blocks in self._load.populate)

        def look() -> None:
            self._end_without_answer()
            self._cut_when_due()
            tick(self)

        self._drive.populate(lives, self._stop, look)

    def _run_rounds(self, tick: Tick) -> None:
        """The very workload under other names, round by round, until its speed is steady."""
        if self._rounds is None:
            return
        edges, self.phase, self.serving = self.recorder.edges, "precondition", self._rounds
        edges.precondition_end_ns = None
        edges.measure_start_ns = _NOT_YET_NS
        self._drive.switch(self._rounds, told=False)
        self._drive.open()
        self._cut()
        self._preconditioning = {**(self._preconditioning or {}), **self._rounds_until_steady(tick)}
        self._drive.close()
        late_ns = self.clock.now_ns() + s_to_ns(max(_ROUNDS_DRAIN_S, self._config.run.drain_s))
        while not self._stop.is_set() and not self._drive.wait(late_ns, _TICK_S):
            self._cut_when_due()
            tick(self)
        if not self._stop.is_set() and not self._drive.ended:
            self._drive.fail(TimeoutError("requests of the preconditioning did not end"))
        ended = not self._stop.is_set() and self._drive.death is None
        if ended:  # else what still runs goes on being the rounds'
            edges.precondition_end_ns = self.clock.now_ns()
            self._drive.switch(self.intake, told=True)
        self._cut()
        self.serving = self.intake

    def _look_back(self) -> None:
        """Let the kernel's counters catch up, then read a sample of what was written."""
        flows = Flows(self.recorder.flows)
        read, written = (flows.all_bytes(Tier.NVME, kind) for kind in (OpKind.READ, OpKind.WRITE))
        if not self._stop.is_set():  # whoever stopped us does not wait for a device
            self._ask(f"flushing files in {self._places()}", self._flush)
        self._witness.settle(read, written, self._stop.is_set)
        if self._drive.death is not None:
            return
        refs = self.world.cache.sample(Tier.NVME, PAYLOAD_OBJECTS)
        seed = Seed(self._seed).child("payload-sample")
        if not self._rehearse:
            store, stopped = self._stores[Tier.NVME], self._stop.is_set
            self._ask(
                f"reading a sample of {self._places()}",
                lambda: self._witness.examine_payload(store, refs, seed, stopped),
            )

    def _ask(self, what: str, call: Callable[[], None]) -> None:
        """Call, unless storage does not answer."""
        if self._silence is None:
            with suppress(NoAnswerError):
                self._answered(what, call)

    def _flush(self) -> None:
        """What a batch still waits for; where it fails, objects that are complete are not on the
        device, which is a failed operation."""
        for drive in self._drives:
            try:
                drive.flush()
            except StoreError as error:
                lost = Failure(Tier.NVME, OpKind.WRITE, Cause.PREFILL, error.reason)
                self.recorder.failures[lost] += 1

    def _drain(self, tick: Tick) -> None:
        """Let requests in flight finish for a while, then end them at their next buffer."""
        grace_s = _GRACE_S if self._stop.is_set() else self._config.run.drain_s
        deadline_ns = self.clock.now_ns() + s_to_ns(grace_s)
        stopped = self._stop.is_set()
        while not self._drive.wait(deadline_ns, _TICK_S):
            self._cut_when_due()
            tick(self)
            if self._stop.is_set() and not stopped:
                stopped, deadline_ns = True, self.clock.now_ns() + s_to_ns(_GRACE_S)
        if not self._drive.ended:
            self._abort.set()

    def _outcome(self, sha256: str, requests: int) -> RunOutcome:
        death = self._drive.death
        if death is None and self._silence is None:
            self._check_books()
        return RunOutcome(
            driver="real-io",
            recorder=self.recorder,
            submitted=self.intake.submitted,
            longest_queue=self.intake.longest_queue,
            offered_forgotten=self.intake.offered.forgotten,
            tiers=tier_facts(self.world, {t: s.describe() for t, s in self._stores.items()}),
            dropped_last_copies=self.world.cache.dropped_last_copies,
            dropped_stores=self.world.dropped_stores,
            lost_bytes=self.world.cache.lost_bytes,
            policies=policy_facts(self._config, self.world),
            schedule_sha256=sha256,
            schedule_requests=requests,
            workload=self._load.source.describe(),
            seed=self._seed,
            started_unix_s=self.clock.started_unix_s,
            death=self._silence or (death and f"{type(death).__name__}: {death}") or None,
            unanswered=self._unanswered,
            kernel=self._witness.kernel,
            witness={**self._witness.evidence(), "gaps": self._gaps()},
            series=self._control.series,
            promises=[str(promise) for promise in self._meter.promises],
            initial_users=self._config.run.num_users if self._config.autoscaler.enabled else None,
            decisions=[decision_row(decision) for decision in self._control.decisions],
            standing=self._control.standing,
            preconditioning=self._preconditioning,
            tracing=self._traced,
            buffers=self._buffer_facts(),
            cpu_count=os.cpu_count(),
            leftovers=self._leftovers(),
            kept_in=", ".join(map(str, self.directories))
            if self._config.tiers.keep_cache
            else None,
        )

    def _gaps(self) -> Mapping[str, Any]:
        edges = self.recorder.edges
        return self._witness.gaps(edges.measure_start_ns, edges.measure_end_ns or 0)

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
    def totals(self) -> Totals:
        """Requests up to the latest window."""
        return self._meter.totals

    def storage_bytes(self, kind: OpKind) -> int:
        """Moved so far, in all phases; read without the driver's lock."""
        return Flows(dict(self.recorder.flows)).all_bytes(Tier.NVME, kind)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the measured window so far."""
        edges = self.recorder.edges
        return max(0, self.clock.now_ns() - edges.measure_start_ns) / NS_PER_S
