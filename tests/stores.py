"""Stores of every kind, and objects to put into them."""

import functools
import itertools
import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, PAGE_BYTES
from kv_cache.tiers.base import Sink, Store, Tap
from kv_cache.tiers.buffers import Buffer, BufferPool
from kv_cache.tiers.file_options import FSYNC, LAYOUTS
from kv_cache.tiers.nvme import ENGINES, NvmeStore, Striped, open_storage, uring
from kv_cache.tiers.nvme.layouts import Arena, Buckets, FilePerObject
from kv_cache.tiers.objects import Client, ObjectStore
from kv_cache.tiers.payload import Payload
from tests import s3server
from tests.wrappers import Faulty, Throttled

BUFFER = 64 * KIB
CAPACITY = 300 * PAGE_BYTES
BUCKET = 100 * PAGE_BYTES  # and a file of an arena
PAYLOAD = Payload(Seed(1), BUFFER)
POOL = BufferPool(40, BUFFER)
COPY_IDS = itertools.count(0xFA)

_PART_OF_A_PAGE = 100  # capacities are not whole pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A store in files, by its settings."""

    layout: str
    engine: str
    write_engine: str | None = None
    fsync: str = "never"
    rename: bool = True
    drives: int = 1
    wrap: Callable[[Store], Store] = lambda store: store

    @property
    def name(self) -> str:
        words = [self.layout, self.engine]
        words += [f"{self.write_engine} writes"] * (self.write_engine is not None)
        words += [f"fsync {self.fsync}"] * (self.fsync != "never")
        words += ["no rename"] * (not self.rename) + [f"{self.drives} drives"] * (self.drives > 1)
        return ", ".join(words)

    @property
    def engines(self) -> tuple[str, str]:
        """What reads and what writes."""
        return self.engine, self.write_engine or self.engine

    def open(self, root: Path, capacity: int = CAPACITY, *, refuse: bool = False) -> Store:
        """Skips the test where there is no such engine here, or lets that be refused."""
        if "uring" in self.engines and (missing := uring.uring_missing()) is not None:
            pytest.skip(missing)
        if self.drives == 1:
            return self.wrap(self._drive(root, capacity, refuse))
        roots = [root / f"drive-{number}" for number in range(self.drives)]
        stores = []
        for each in roots:
            each.mkdir(exist_ok=True)
            stores.append(self._drive(each, capacity, refuse))
        return self.wrap(Striped(stores, [capacity] * self.drives))

    def _drive(self, root: Path, capacity: int, refuse: bool) -> NvmeStore:
        try:
            return open_storage(
                root,
                capacity_bytes=capacity + _PART_OF_A_PAGE,
                layout=self.layout,
                engine=self.engine,
                write_engine=self.write_engine,
                fsync=self.fsync,
                rename=self.rename,
            )
        except PlaceError as refused:
            if refuse:
                raise
            pytest.skip(str(refused))


def no_fault(kind: OpKind, ref: CopyRef) -> str | None:
    return None


def _named(kinds: Iterable[Kind], prefix: str = "") -> dict[str, Kind]:
    return {prefix + kind.name: kind for kind in kinds}


_throttled = functools.partial(Throttled, bytes_per_second=10e9, latency_ns=1000)

PLAIN = _named(Kind(layout=layout, engine=engine) for layout in LAYOUTS for engine in ENGINES)
SYNCED = _named(
    Kind(layout=layout, engine=engine, fsync=fsync)
    for layout in LAYOUTS
    for engine in ENGINES
    for fsync in FSYNC
    if fsync != "never"
)
MIXED_ENGINES = _named(
    Kind(layout=layout, engine=reads, write_engine=writes)
    for layout in LAYOUTS
    for reads, writes in (("buffered", "direct"), ("direct", "mmap"), ("uring", "buffered"))
)
NO_RENAME = _named([Kind(layout="file", engine="mmap", write_engine="uring", rename=False)])
DRIVES = _named(
    [
        Kind(layout="file", engine="direct", drives=2),
        Kind(layout="arena", engine="mmap", drives=2),
        Kind(layout="bucket", engine="buffered", drives=2),
    ]
)
WRAPPED = _named([Kind(layout="file", engine="mmap", wrap=_throttled)], "throttled ") | _named(
    [Kind(layout="bucket", engine="direct", wrap=lambda store: Faulty(store, no_fault))], "faulty "
)


def _objects(**settings: int) -> Callable[[Path], Store]:
    def opened(root: Path) -> Store:
        place = s3server.shared().place(f"contract/{next(COPY_IDS)}", **settings)
        client = Client(place)
        try:
            assert list(client.list(place.prefix)) == []  # the library's own threads, descriptors
        except StoreError as error:
            error.add_note((s3server.shared().root / "weed.log").read_text()[-4000:])
            raise
        return ObjectStore(client, "kv-cache-runs/contract")

    return opened


OBJECTS: dict[str, Callable[[Path], Store]] = {
    "s3": _objects(),
}
KINDS = PLAIN | SYNCED | MIXED_ENGINES | NO_RENAME | DRIVES | WRAPPED


# --- objects -------------------------------------------------------------------------------


def copy(nbytes: int, version: int = 0) -> CopyRef:
    number = next(COPY_IDS)
    return CopyRef(number, content_key(number), Tier.NVME, nbytes, version)


@contextmanager
def borrowed() -> Iterator[Buffer]:
    buffer = POOL.take()
    try:
        yield buffer
    finally:
        buffer.filled_pages = 0  # what was read into it is not the payload's
        POOL.give(buffer)


def put(sink: Sink, ref: CopyRef, upto: int | None = None) -> None:
    """Write the first `upto` bytes of the copy (or all), buffer by buffer."""
    for offset in range(0, ref.nbytes if upto is None else upto, BUFFER):
        n = min(BUFFER, ref.nbytes - offset)
        with borrowed() as buffer:
            sink.write(offset, PAYLOAD.stamp(buffer, ref, offset, n))


def is_right(tap: Tap, ref: CopyRef) -> bool:
    """Every byte, and none beyond."""
    right = []
    for offset in range(0, ref.nbytes, BUFFER):
        n = min(BUFFER, ref.nbytes - offset)
        with borrowed() as buffer:
            buffer.array[:] = 0x3C
            tap.read(offset, buffer.view[:n])
            right.append(PAYLOAD.matches(buffer, ref, offset, n, full=True))
            right.append(bool((buffer.array[n:] == 0x3C).all()))
    return all(right)


def stored(store: Store, nbytes: int) -> CopyRef:
    ref = copy(nbytes)
    store_as(store, ref)
    return ref


def store_as(store: Store, ref: CopyRef) -> None:
    sink = store.create(ref)
    try:
        put(sink, ref)
        sink.commit()
    except BaseException:
        sink.abort()
        raise


def read_back(store: Store, ref: CopyRef) -> bool:
    tap = store.open(ref)
    try:
        return is_right(tap, ref)
    finally:
        tap.close()


# --- what happens --------------------------------------------------------------------------


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as failed:
        call()
    return failed.value.reason


def outcome(call: Callable[[], object]) -> str:
    """`fine`, or the reason why not."""
    try:
        call()
    except StoreError as error:
        return error.reason
    return "fine"


def open_descriptors() -> int:
    """Without sockets, which a library of an object store opens and closes as it likes, also after
    the store is gone."""
    return sum(1 for name in os.listdir("/proc/self/fd") if not _is_socket(name))


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except FileNotFoundError:  # of the listing itself
        return True


def kept_descriptors(store: Store) -> int:
    """What a store keeps open between calls: its directory, files that wait for a batch's fsync, an
    arena, a bucket that is being filled."""
    if isinstance(store, Striped):
        return sum(kept_descriptors(drive) for drive in store._stores)
    if isinstance(store, Faulty | Throttled):
        return kept_descriptors(store.inner)
    if not isinstance(store, NvmeStore):
        return 0
    layout, waiting = store._layout, len(store._syncer._waiting)
    if isinstance(layout, Arena):
        return waiting + sum(map(len, layout._fds.values()))
    assert isinstance(layout, FilePerObject | Buckets)
    filled = isinstance(layout, Buckets) and layout._current is not None
    return waiting + filled + (layout._root._fd >= 0)


@contextmanager
def real_disk(wanted: Path) -> Iterator[Path]:
    """`wanted`, if it is on a file system of a device (one in memory would hide what is not
    aligned), else a directory beside this file."""
    if os.major(wanted.stat().st_dev):
        yield wanted
        return
    with TemporaryDirectory(prefix=".test-disk-", dir=Path(__file__).parent) as path:
        yield Path(path)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let the process open only `count` more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probes: list[int] = []
    while len(probes) < count + 1:  # numbers below the limit may be free in the middle
        probes.append(os.open("/dev/null", os.O_RDONLY))
    for probe in probes:
        os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(probes), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def mounted(path: Path, kind: str, options: str = "rw") -> Iterator[Path]:
    done = subprocess.run(
        ["mount", "-t", kind, "-o", options, "kv-test", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a {kind} of its own: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
