"""Measure a device alone in a minute or two, and keep the numbers as a profile.

The profile is written once everything has been measured. The cache directory is left as it was,
also after Ctrl-C.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.bench.cache_dir import CacheDir, obtainable_bytes
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.memory import check_ram
from kv_cache.bench.path_checks import check_cache_dir, nearest_existing
from kv_cache.bench.probe import BUFFER_BYTES, Probed, ProbePlan, StorageProbe
from kv_cache.bench.probe_cells import objects_needed
from kv_cache.bench.probe_native import NATIVE_BYTES
from kv_cache.bench.progress import SILENT, Bar, Progress
from kv_cache.bench.stillness import ANSWER_S, answered
from kv_cache.config.profile import HEADER, Cell, Profile, profile_text
from kv_cache.config.schema import number_with_unit, opt, same_option, show
from kv_cache.config.sections import TiersConfig
from kv_cache.core.errors import ConfigError, NoAnswerError, PlaceError
from kv_cache.core.exits import Exit
from kv_cache.core.units import GIB, MIB, PAGE_BYTES, SECTOR_BYTES, human_bytes
from kv_cache.files.environment import Reader, captured, filesystem
from kv_cache.files.keep import Kept, keep
from kv_cache.files.reading import require_replaceable
from kv_cache.metrics.intervals import mean_interval
from kv_cache.metrics.passport import findings_below
from kv_cache.tiers import native
from kv_cache.tiers.file_options import FSYNC, LAYOUTS
from kv_cache.tiers.objects import is_object_url

_DEFAULT_GIB = 6.0
_LEAST_BYTES, _MOST_BYTES = SECTOR_BYTES, GIB  # of an object
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_FILL_SHARE = 0.9  # of the free space, at most
_ENOUGH = 0.05  # a difference that is worth a note

Environment = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DriveOptions:
    """What is measured of each drive."""

    reclaim: str | None = same_option(TiersConfig, "reclaim")
    size_gib: float | None = opt(
        None, f"Data on the device; if not given, {_DEFAULT_GIB:g}, or 90 % of what is free",
        unit="GiB", above=0, high=2**20, flag="--size-gib", metavar="G",
    )  # fmt: skip
    seconds: float = opt(
        90.0, "Time aimed at for all of it", unit="s", low=1, high=86_400, flag="--seconds",
        metavar="S",
    )  # fmt: skip
    read_shares: tuple[float, ...] = opt(
        (0.5,), "Shares of reads among writes; all reads and all writes are always measured",
        low=0.01, high=0.99, flag="--read-shares", metavar="LIST",
    )  # fmt: skip
    layout: str = opt(
        "arena", "How objects lie in files, as run --layout: with file or bucket, the time of a "
        "write includes creating and naming files", choices=LAYOUTS, flag="--layout",
    )  # fmt: skip
    fsync: str = opt(
        "never", "When a write is waited for, as run --fsync", choices=FSYNC, flag="--fsync"
    )
    sizes: tuple[str, ...] = opt(
        ("256KiB", "2MiB", "8MiB", "32MiB", "80MiB"),
        "Object sizes, 512 to 1GiB each, as 512,4KiB,2MiB; without a unit they are bytes",
        flag="--sizes", metavar="LIST",
    )  # fmt: skip
    sizes_mib: tuple[float, ...] | None = opt(
        None, "The former name of --sizes, in MiB", unit="MiB", low=_LEAST_BYTES / MIB,
        high=_MOST_BYTES / MIB, flag="--sizes-mib", metavar="LIST", rare=True,
    )  # fmt: skip
    concurrency: tuple[int, ...] = opt(
        (1, 4, 16), "Operations in flight; 1 is always measured", low=1, high=256,
        flag="--concurrency", metavar="LIST",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(DriveOptions):
    """Which device is measured, and where its profile goes."""

    cache_dir: str = opt(
        "-", "Directory on the device to be measured; made and removed if it is not there",
        flag="--cache-dir", metavar="DIR", required=True,
    )  # fmt: skip
    profile: str | None = opt(
        None, "Where the profile is written; if not given, ./profile-<device>-<date>.yaml",
        flag="--profile", metavar="PATH",
    )  # fmt: skip
    dry_run: bool = opt(
        False, "Check everything, print what would be done, and do nothing", flag="--dry-run"
    )


class ProbeJob(Struct, frozen=True, kw_only=True):
    """A checked probe: the directory, what is measured there, and the file of its profile."""

    directory: Path
    plan: ProbePlan
    environment: Environment
    output: Path

    @property
    def device(self) -> str:
        """The device's name, else the kind of file system."""
        return _device(self.environment)


class DriveProbe(Struct, frozen=True, kw_only=True):
    """What a probe measured, and where its profile is.

    Without a profile nothing could be measured, or a signal came.
    """

    probed: Probed
    profile: Profile | None
    left: tuple[str, ...]  # paths that could not be removed
    kept: Kept | None

    @property
    def end(self) -> Exit:
        """What it means for the exit code."""
        if self.kept is None:
            return Exit.EARLY
        return self.kept.code or (Exit.EARLY if self.probed.failures else Exit.DONE)


# --- checking --------------------------------------------------------------------------------


def checked(options: ProbeOptions) -> ProbeJob:
    """Return the probe that the options describe. Creates nothing. Raises UsageError."""
    if is_object_url(options.cache_dir):
        raise ConfigError(
            "--cache-dir s3://…: probe measures a device of this machine, and an object store is "
            "not one; give a directory, or measure the store with run"
        )
    directory = Path(options.cache_dir)
    plan = checked_plan(options, directory)
    environment = captured(directory)
    output = _unused_name(environment) if options.profile is None else Path(options.profile)
    require_replaceable(output, HEADER, "--profile")
    return ProbeJob(directory=directory, plan=plan, environment=environment, output=output)


def checked_plan(options: DriveOptions, directory: Path) -> ProbePlan:
    """Return what is measured of the drive below a directory. Raises UsageError."""
    check_cache_dir(directory)
    kind = filesystem(Reader(), directory)["type"]
    if kind in _IN_MEMORY:
        raise PlaceError(
            f"cache directory {directory}: it is in memory ({kind}), where no device accounts for "
            "what is moved; name a directory on the device to be measured"
        )
    library = native.library()
    plan = ProbePlan(
        sizes=_sizes(options),
        concurrencies=tuple(sorted({1, *options.concurrency})),
        data_bytes=_data_bytes(options.size_gib, directory, options.reclaim),
        seconds=options.seconds,
        layout=options.layout,
        reclaim=options.reclaim,
        fsync=options.fsync,
        shares=tuple(sorted(set(options.read_shares))),
        native=not isinstance(library, str),
    )
    for nbytes in plan.sizes:
        if nbytes % PAGE_BYTES and not plan.in_native_code(nbytes):
            why = "with --layout arena and --fsync never alone" if plan.native else library
            raise ConfigError(
                f"--sizes: objects of {nbytes} B, which are not whole pages of 4 KiB, are measured "
                f"by native code ({why}); give multiples of 4 KiB, or change that"
            )
    smallest = objects_needed(1) * max(plan.sizes)
    if plan.data_bytes < smallest:
        raise ConfigError(
            f"--size-gib {plan.data_bytes / GIB:.3g}: objects of {human_bytes(max(plan.sizes))} "
            f"need {human_bytes(smallest)} of data at least, and {human_bytes(plan.least_bytes)} "
            f"at concurrency {max(plan.concurrencies)}; give more, or smaller --sizes"
        )
    check_ram(
        {"buffers": plan.memory_bytes()},
        way_out="lower --concurrency, or give --sizes of at "
        f"most {human_bytes(NATIVE_BYTES)}, which need less for each operation in flight",
    )
    return plan


def _sizes(options: DriveOptions) -> tuple[int, ...]:
    """Return the sizes of objects, in order. Raises ConfigError."""
    if options.sizes_mib is None:
        words = [word.strip() for text in options.sizes for word in text.split(",")]
        return tuple(sorted({_whole_bytes(_bytes_of(word), word, "--sizes") for word in words}))
    if options.sizes != type(options)().sizes:
        raise ConfigError("--sizes-mib is the former name of --sizes; give --sizes alone")
    return tuple(
        sorted({_whole_bytes(x * MIB, f"{x:g} MiB", "--sizes-mib") for x in options.sizes_mib})
    )


def _bytes_of(word: str) -> int:
    """Return `512` or `4KiB` in bytes."""
    plain = word.isascii() and word.isdigit() and len(word) < 20
    nbytes = int(word) if plain else number_with_unit(word, "B", int)
    if nbytes is None or not _LEAST_BYTES <= nbytes <= _MOST_BYTES:
        raise ConfigError(
            f"--sizes has {show(word)} in it; it must be a list of whole bytes or of numbers with "
            "KiB, MiB or GiB, 512 to 1GiB each, such as 512,4KiB,2MiB"
        )
    return int(nbytes)


def _whole_bytes(nbytes: float, word: str, flag: str) -> int:
    unit = SECTOR_BYTES if nbytes <= NATIVE_BYTES else PAGE_BYTES
    if nbytes % unit:
        nearest = max(1, round(nbytes / unit)) * unit
        instead = f"{nearest / MIB:g}" if flag == "--sizes-mib" else f"{nearest}"
        larger = f" above {human_bytes(NATIVE_BYTES)}" if unit == PAGE_BYTES else ""
        raise ConfigError(
            f"{flag}: {word} is not a multiple of {human_bytes(unit)}, which direct I/O of objects"
            f"{larger} needs; {instead} would be"
        )
    return int(nbytes)


def _data_bytes(size_gib: float | None, directory: Path, reclaim: str | None) -> int:
    free = int(obtainable_bytes(directory, reclaim) * _FILL_SHARE)
    if size_gib is None:
        return min(int(_DEFAULT_GIB * GIB), free)
    wanted = int(size_gib * GIB)
    if wanted > free:
        raise PlaceError(
            f"cache directory {directory}: --size-gib {size_gib:g} is more than 90 % of the free "
            f"space; {math.floor(free / GIB * 100) / 100:g} would fit"
        )
    return wanted


def _unused_name(environment: Environment) -> Path:
    """Return a name for the profile that no file has yet."""
    stem = f"profile-{_device(environment).replace('/', '-')}-{datetime.now():%Y%m%d}"
    path, number = Path(f"{stem}.yaml"), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}.yaml")
    return path


def _device(environment: Environment) -> str:
    name = environment["device"]["name"] or environment["filesystem"]["type"] or "unknown"
    return str(name)


# --- measuring -------------------------------------------------------------------------------


def probe(
    job: ProbeJob, *, stop: Interrupts | None = None, progress: Progress = SILENT
) -> DriveProbe:
    """Measure a device as checked, and write its profile unless `stop` ended it. Raises
    NoAnswerError if the device does not answer."""
    caught = stop or Interrupts()
    began_s, started = time.monotonic(), datetime.now(UTC)
    opening = partial(CacheDir, job.directory, run="probe", reclaim=job.plan.reclaim)
    place = answered(f"opening the cache directory {job.directory}", opening, ANSWER_S)
    try:
        probed = _probed(place, job.plan, caught, progress)
    except NoAnswerError:  # nothing more is asked of it
        raise
    except BaseException:
        place.close()
        raise
    removed = answered(f"removing the cache files in {job.directory}", place.close, ANSWER_S)
    left = tuple(map(str, (*removed.foreign, *removed.failed)))
    if caught.came or not probed.cells:
        return DriveProbe(probed=probed, profile=None, left=left, kept=None)
    facts = _facts(job, probed, started, time.monotonic() - began_s)
    profile = Profile(
        name=str(job.output), cells=tuple(probed.cells), bursts=tuple(probed.bursts), facts=facts
    )
    kept = keep(job.output, profile_text(profile).encode(), "profile")
    return DriveProbe(probed=probed, profile=profile, left=left, kept=kept)


def _probed(place: CacheDir, plan: ProbePlan, stop: Interrupts, progress: Progress) -> Probed:
    with progress.bar(total=1.0) as bar:
        tick = partial(_tick, bar)
        make = partial(StorageProbe, place.objects, plan, stop=stop.stop, tick=tick)
        with answered(f"making files in {place.path}", make, ANSWER_S) as storage:
            return storage.run()


def _tick(bar: Bar, share: float, what: str) -> None:
    bar.to(share)
    bar.note(what)


# --- what the profile says of it -------------------------------------------------------------


def _facts(job: ProbeJob, probed: Probed, started: datetime, wall_s: float) -> dict[str, Any]:
    environment = job.environment
    mount = {k: v for k, v in environment["filesystem"].items() if k != "free_bytes"}
    return {
        "program_version": __version__,
        "measured_utc": started.isoformat(timespec="seconds"),
        "cache_dir": str(nearest_existing(job.directory)),
        "device": dict(environment["device"]),
        "filesystem": mount,
        "stack": dict(environment["drives"][0]["stack"]),
        "kernel": environment["os"]["kernel"],
        "io": {
            **probed.store,
            "verify": "stamps",
            "buffer_bytes": BUFFER_BYTES,
            "block_bytes": probed.block_bytes,
        },
        "probe": {
            "data_bytes": job.plan.capacity_bytes,
            "wall_seconds": round(wall_s, 1),
            "verified_objects": probed.verified_objects,
            "failed_operations": probed.failures,
            "seed": job.plan.seed,
        },
        "counted": dict(probed.counted),
        "notes": list(_notes(probed, environment)),
        "refused": [asdict(cell) for cell in probed.refused],
    }


def _notes(probed: Probed, environment: Environment) -> Iterator[str]:
    """Yield what a reader should know before the numbers."""
    device, counted = environment["device"], probed.counted
    if device["name"] is None:
        yield f"no device accounts for what was moved: {device['reason']}"
    yield from findings_below(environment["drives"][0]["stack"])
    for kind in ("read", "write"):
        claimed, process = counted[f"claimed_{kind}_bytes"], counted[f"process_{kind}_bytes"]
        if claimed and process is not None and abs(process / claimed - 1) > _ENOUGH:
            yield (
                f"the kernel counted {100 * process / claimed:.1f} % of the bytes of the "
                f"{kind}s for this process: they were not all moved by a block device"
            )
    yield from repeated_reads(probed.cells)


def repeated_reads(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield whether data that was read before came at another rate, if sizes and concurrencies
    agree on it: on a device that others use too single ones differ by chance."""
    rates: dict[tuple[int, int], dict[bool, float]] = {}
    for cell in cells:
        if cell.read_share == 1:
            point = rates.setdefault((cell.object_bytes, cell.concurrency), {})
            point[cell.repeated] = cell.bytes_per_second
    ratios = [math.log(both[True] / both[False]) for both in rates.values() if len(both) == 2]
    interval = mean_interval(ratios)
    if interval is None:
        return
    low, high = map(math.exp, interval)
    if low > 1 + _ENOUGH:
        why = "a cache below this machine holds it"
    elif high < 1 - _ENOUGH:
        why = "the device is not steady"
    else:
        return
    yield f"data that was read before came at {low:.2f} to {high:.2f} times the rate: {why}"
