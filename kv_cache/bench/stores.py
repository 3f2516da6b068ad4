"""The storage of a run is opened, and closed again: cache directories, a store a tier, buffers.

What is opened puts its closing on an `ExitStack` at once, so that whatever fails later, all of it
is given back, the last first.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from kv_cache.bench.cache_dir import CacheDir
from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.fill import Filled, fill
from kv_cache.bench.raw_device import RawDevice
from kv_cache.bench.removal import Removed
from kv_cache.bench.run_plan import RunPlan
from kv_cache.bench.run_prefix import RunPrefix
from kv_cache.bench.storage_answers import StorageAnswers
from kv_cache.bench.storage_room import drive_capacities
from kv_cache.bench.tier_sizes import real_gpu
from kv_cache.cache.limits import TierSpec
from kv_cache.config.root import Config
from kv_cache.config.storage_targets import place_of
from kv_cache.core.errors import NoAnswerError, StoreError
from kv_cache.core.kinds import Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, gib_to_bytes
from kv_cache.tiers import native
from kv_cache.tiers.base import Store
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.gpu import GpuStore, find_devices
from kv_cache.tiers.memory import MemoryStore
from kv_cache.tiers.native import AbortFlag
from kv_cache.tiers.null import RehearsalStore
from kv_cache.tiers.nvme import NvmeStore, Striped, open_storage
from kv_cache.tiers.nvme.rehearsal import rehearsed_storage

Wrap = Callable[[Store], Store]
Drive = CacheDir | RawDevice | RunPrefix

log = logging.getLogger("kv_cache")


class RunDirectories(Struct, frozen=True):
    """The cache directories, devices and prefixes of a run, one a drive. `left_behind` is what
    could not be removed, each with its reason; known once they are closed."""

    drives: Sequence[Drive]
    left_behind: list[str]

    @property
    def local(self) -> list[CacheDir | RawDevice]:
        return [drive for drive in self.drives if not isinstance(drive, RunPrefix)]

    @property
    def servers(self) -> list[str]:
        return [drive.path.url for drive in self.drives if isinstance(drive, RunPrefix)]

    @property
    def removed(self) -> Removed:
        """What the opening removed of dead runs, and what it could not."""
        return sum((drive.leftovers for drive in self.local), Removed())


class RunStores(Struct, frozen=True):
    """A store for each tier; `nvme` and `arenas` are those among them that are of files and of
    memory. Loads and stores of blocks have buffers of their own."""

    by_tier: Mapping[Tier, Store]
    nvme: Sequence[NvmeStore]
    arenas: Sequence[MemoryStore]
    load_buffers: BufferPool
    store_buffers: BufferPool


def open_directories(
    config: Config, seed: int, answers: StorageAnswers, closing: ExitStack, *, keep: bool
) -> RunDirectories:
    """Open the cache directories of a run; `closing` removes its files, or leaves them if `keep`.
    Raises PlaceError and NoAnswerError."""
    directories = RunDirectories(
        answers.call(
            f"opening the cache directory {answers.places}",
            lambda: _cache_dirs(config, f"seed {seed}"),
        ),
        [],
    )
    for drive in directories.drives:
        closing.callback(_release, drive, keep, directories, answers)
    answers.directories += [drive.path for drive in directories.drives]
    return directories


def _release(
    drive: Drive, keep: bool, directories: RunDirectories, answers: StorageAnswers
) -> None:
    if answers.silence is None:
        with suppress(NoAnswerError):
            removed = answers.call(
                f"removing the cache files in {drive.path}", lambda: drive.close(keep=keep)
            )
            removed.log_left()
            directories.left_behind.extend(removed.left)


def open_stores(
    plan: RunPlan, directories: RunDirectories, answers: StorageAnswers, opening: "Opening"
) -> RunStores:
    """Open a store for each tier, with `opening.wrap` around it."""
    return _Opener(plan, directories, answers, opening).open()


class Opening(Struct, frozen=True):
    """`abort` ends operations at their next buffer; `closing` takes what is to be closed."""

    abort: AbortFlag
    closing: ExitStack
    wrap: Wrap


class _Opener:
    def __init__(
        self, plan: RunPlan, directories: RunDirectories, answers: StorageAnswers, opening: Opening
    ) -> None:
        self._config, self._plan = plan.config, plan
        self._drives = directories.drives
        self._answers = answers
        self._opening = opening
        size = plan.config.io.buffer_mib * MIB
        self._load_buffers = BufferPool(plan.config.io.load_buffers, size)
        self._store_buffers = BufferPool(plan.config.io.store_buffers, size)
        self._nvme: list[NvmeStore] = []
        self._arenas: list[MemoryStore] = []

    def open(self) -> RunStores:
        closing, stores = self._opening.closing, dict[Tier, Store]()
        for spec in self._plan.specs:
            store = stores[spec.tier] = self._opening.wrap(self._store(spec))
            closing.callback(_close, store, self._answers)
        return RunStores(stores, self._nvme, self._arenas, self._load_buffers, self._store_buffers)

    def _store(self, spec: TierSpec) -> Store:
        capacity = spec.capacity_bytes
        assert capacity is not None, "real tiers have a capacity"
        match spec.tier:
            case Tier.CPU:
                return self._arena(MemoryStore(Tier.CPU, capacity))
            case Tier.GPU:
                return self._gpu_store(capacity)
            case Tier.NVME:
                return self._rehearsed(capacity) if self._plan.rehearse else self._storage(capacity)

    def _rehearsed(self, capacity: int) -> Store:
        """Open what takes no time: as the storage is where native transfers move its bytes."""
        if isinstance(native.library(), str):
            return RehearsalStore(Tier.NVME)
        io = self._config.io
        return rehearsed_storage(
            capacity,
            layout=io.layout,
            engine=io.engine,
            write_engine=io.write_engine,
            fsync=self._config.fsync(),
            rename=io.rename,
        ) or RehearsalStore(Tier.NVME)

    def _storage(self, capacity: int) -> Store:
        """Open one store for each drive."""
        alone = len(self._drives) == 1
        paths = [drive.path for drive in self._drives]
        shares = [capacity] if alone else drive_capacities(self._config, paths)
        stores: list[Store] = []
        try:
            for drive, share in zip(self._drives, shares, strict=True):
                stores.append(self._drive_store(drive, share))
        except BaseException:
            for store in stores:
                store.close()
            raise
        return stores[0] if alone else Striped(stores, shares)

    def _drive_store(self, drive: Drive, capacity: int) -> Store:
        if isinstance(drive, RunPrefix):
            return drive.store(self._opening.abort.is_set)
        io = self._config.io
        store = self._answers.call(
            f"making files in {drive.path}",
            lambda: open_storage(
                drive.objects,
                capacity_bytes=capacity,
                layout=io.layout,
                engine=io.engine,
                write_engine=io.write_engine,
                fsync=self._config.fsync(),
                rename=io.rename,
                arena_files=[drive.objects] if isinstance(drive, RawDevice) else None,
            ),
        )
        self._nvme.append(store)
        return store

    def _gpu_store(self, capacity: int) -> Store:
        if not real_gpu(self._config):
            return self._arena(MemoryStore(Tier.GPU, capacity, emulated=True))
        makers, library = find_devices(self._config.tiers.num_gpus)
        store = GpuStore(
            [make() for make in makers],
            capacity // len(makers),
            library,
            self._config.gpu_backend.memory_fraction,
        )
        for pool in (self._load_buffers, self._store_buffers):
            store.pin(pool.memory)
        return store

    def _arena(self, store: MemoryStore) -> MemoryStore:
        self._arenas.append(store)
        return store


def _close(store: Store, answers: StorageAnswers) -> None:
    """Close a store. What storage has to say now is too late for the result, and no reason to
    leave files."""
    if answers.silence is not None:
        return
    try:
        answers.call(f"closing files in {answers.places}", store.close)
    except StoreError as error:
        log.error("storage could not be closed: %s", error)
    except NoAnswerError:
        return


def fill_drives(
    config: Config, seed: int, stop: threading.Event, progress: Callable[[int], None]
) -> Filled:
    """Do the workload-independent half of preconditioning, in run directories that are gone again
    when it returns: the storage tier may take all the room for itself. Raises PlaceError and
    NoAnswerError."""
    answers = StorageAnswers(config, MonotonicClock())
    try:
        with ExitStack() as closing:
            drives = open_directories(config, seed, answers, closing, keep=False).local
            try:
                return fill(
                    [drive.objects for drive in drives],
                    drive_capacities(config, [drive.path for drive in drives]),
                    seed=Seed(seed).child("fill"),
                    stop=stop,
                    size_bytes=gib_to_bytes(config.precondition.size_gib),
                    threads=config.precondition.threads,
                    progress=progress,
                    answer_s=config.run.answer_s,
                )
            except NoAnswerError:
                closing.pop_all()  # nothing more is asked of storage
                raise
    finally:
        answers.raise_if_silent()


def _cache_dirs(config: Config, run: str) -> list[Drive]:
    if config.tiers.cache_dir is None:
        return [CacheDir.temporary(run=run)]
    if config.tiers.erase_device is not None:
        return [RawDevice(Path(config.tiers.erase_device))]
    drives: list[Drive] = []
    reclaim = config.tiers.reclaim
    try:
        for name in config.tiers.cache_dir:
            place = place_of(config, name)
            drives.append(
                CacheDir(place, run=run, reclaim=reclaim)
                if isinstance(place, Path)
                else RunPrefix(place, run=run, reclaim=reclaim)
            )
    except BaseException:
        for drive in drives:
            drive.close(keep=False)
        raise
    return drives
