"""May a run take place here? Its storage is checked before anything is written.

The functions only look; they raise `PlaceError` and create nothing.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from kv_cache.bench.cache_dir import obtainable_bytes
from kv_cache.bench.fill import check_fill
from kv_cache.bench.linux import require_linux
from kv_cache.bench.memory import check_ram, check_ram_of_ranks
from kv_cache.bench.path_checks import (
    check_cache_dir,
    device_number,
    free_bytes,
    is_block_device,
)
from kv_cache.bench.raw_device import check_raw_device
from kv_cache.bench.run_prefix import check_bucket
from kv_cache.bench.tier_sizes import ram_parts
from kv_cache.config.root import Config
from kv_cache.config.sections import TiersConfig
from kv_cache.config.storage_targets import Place, storage_places
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, MIB, gib_to_bytes, human_bytes, whole_pages
from kv_cache.tiers.objects import ObjectPlace


def check_places(config: Config, ranks_here: int = 1) -> int:
    """Check everything that can be known to fail before anything is written, and return the bytes
    of the storage tier. `ranks_here`: how many runs like this one begin on this machine at the
    same time. Raises UsageError."""
    require_linux()
    places = storage_places(config)
    _check_apart(places)
    directories = [place for place in places if isinstance(place, Path)]
    if config.tiers.cache_dir is not None:
        check = check_cache_dir if config.tiers.erase_device is None else check_raw_device
        for directory in directories:
            check(directory)
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


def _check_apart(places: Sequence[Place]) -> None:
    paths = [os.path.realpath(p) if isinstance(p, Path) else str(p) for p in places]
    for path in paths:
        if paths.count(path) > 1:
            raise PlaceError(f"--cache-dir {path} is given twice; give each drive's directory once")


def drive_capacities(config: Config, places: Sequence[Place]) -> list[int]:
    """Compute the bytes that each drive of the storage tier may hold. Directories on one file
    system share what is free there; buckets have no end. Raises PlaceError for more than there is
    space for."""
    directories = [place for place in places if isinstance(place, Path)]
    capacity = config.tiers.storage_bytes
    if not directories:
        return _shares(capacity or 0, len(places))
    devices = [device_number(directory) for directory in directories]
    if capacity is None:
        free = [_share_of_free(directory, config.tiers) for directory in directories]
        return [whole_pages(n // devices.count(at)) for n, at in zip(free, devices, strict=True)]
    capacities = _shares(capacity, len(directories))
    for directory, device in zip(directories, devices, strict=True):
        here = (n for n, other in zip(capacities, devices, strict=True) if other == device)
        check_space(directory, sum(here), config.tiers)
    return capacities


def check_space(path: Path, wanted_bytes: int, tiers: TiersConfig) -> None:
    """Refuse a run that wants more than is free below `path`, or will be when it begins."""
    free = obtainable_bytes(path, tiers.reclaim)
    if wanted_bytes <= free:
        return
    fits_gib = int(tiers.share_of_free(free) / GIB * 100) / 100
    # 0 is not offered: to the option it means "what is free", which would be next to nothing.
    fit = f"--storage-capacity-gb {fits_gib:g} would fit" if fits_gib else "nothing would fit"
    raise PlaceError(
        f"cache directory {path}: the run wants {human_bytes(wanted_bytes)} there, but "
        f"{human_bytes(free)} are free; {fit}, or name a larger place with --cache-dir"
    )


def wanted_space(config: Config) -> list[dict[str, str | int]]:
    """List the bytes wanted in each directory of the storage tier, in plain values that runs which
    begin together can add up: each by itself only knows that there is room for one. Empty if the
    run takes its share of what is free."""
    directories = [place for place in storage_places(config) if isinstance(place, Path)]
    capacity = config.tiers.storage_bytes
    if capacity is None or not directories:
        return []
    capacities = _shares(capacity, len(directories))
    return [_row(*pair, config.tiers) for pair in zip(directories, capacities, strict=True)]


def _row(directory: Path, wanted_bytes: int, tiers: TiersConfig) -> dict[str, str | int]:
    free = free_bytes(directory)
    return {
        "directory": str(directory),
        "device": device_number(directory),
        "wanted_bytes": wanted_bytes,
        "free_bytes": free,
        "dead_bytes": max(0, obtainable_bytes(directory, tiers.reclaim) - free),
    }


def _shares(nbytes: int, drives: int) -> list[int]:
    """Divide into whole pages; the first drive takes what is left over."""
    each = whole_pages(nbytes // drives)
    return [nbytes - each * (drives - 1), *[each] * (drives - 1)]


def _share_of_free(directory: Path, tiers: TiersConfig) -> int:
    free, raw = obtainable_bytes(directory, tiers.reclaim), is_block_device(directory)
    capacity = whole_pages(free) if raw else tiers.share_of_free(free)  # no file system needs any
    if capacity < MIB:
        what = f"the device has only {free} bytes" if raw else "the file system is full"
        raise PlaceError(f"cache directory {directory}: {what}; give another --cache-dir")
    return capacity
