"""May a run take place here? Its storage is checked before anything is written.

The functions only look; they raise `PlaceError` and create nothing.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kv_cache.bench.bucket import check_bucket
from kv_cache.bench.cache_dir import (
    check_cache_dir,
    check_space,
    free_bytes,
    nearest_existing,
    obtainable_bytes,
)
from kv_cache.bench.fill import check_fill
from kv_cache.bench.memory import check_ram, check_ram_of_ranks
from kv_cache.bench.sizing import ram_parts
from kv_cache.config.root import Config
from kv_cache.config.storage_targets import Place, storage_places
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import MIB, PAGE_BYTES, gib_to_bytes
from kv_cache.tiers.objects import ObjectPlace


def check_places(config: Config, ranks_here: int = 1) -> int:
    """Check everything that can be known to fail before anything is written, and return the bytes
    of the storage tier. `ranks_here`: how many runs like this one begin on this machine at the
    same time. Raises PlaceError."""
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
    """List the bytes wanted in each directory of the storage tier, in plain values that runs which
    begin together can add up: each by itself only knows that there is room for one. Empty if the
    run takes its share of what is free."""
    directories = [place for place in storage_places(config) if isinstance(place, Path)]
    wanted = gib_to_bytes(config.tiers.storage_capacity_gib)
    if not wanted or not directories:
        return []
    rows = []
    for directory, capacity in zip(directories, _shares(wanted, len(directories)), strict=True):
        free = free_bytes(directory)
        rows.append(
            {
                "directory": str(directory),
                "device": os.stat(nearest_existing(directory)).st_dev,
                "wanted_bytes": capacity,
                "free_bytes": free,
                "dead_bytes": max(0, obtainable_bytes(directory, config.tiers.reclaim) - free),
            }
        )
    return rows


def _shares(wanted: int, drives: int) -> list[int]:
    """Divide into whole pages; the first drive takes what is left over."""
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
