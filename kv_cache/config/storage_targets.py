"""Where the storage tier is: directories, or prefixes of buckets; and what an object store leaves
no room for."""

import os
from pathlib import Path
from tempfile import gettempdir

from kv_cache.config.root import Config
from kv_cache.core.mounts import MEMORY_FILESYSTEMS, mount_of, parse_mounts
from kv_cache.core.units import MIB
from kv_cache.tiers.objects.account import endpoint_of, region_of
from kv_cache.tiers.objects.place import ObjectPlace, is_object_url, parse_url

Place = Path | ObjectPlace


def on_objects(config: Config) -> bool:
    """Whether storage is an object store."""
    return any(is_object_url(name) for name in config.tiers.cache_dir or ())


def storage_places(config: Config) -> tuple[Place, ...]:
    """Where the storage tier will be: as given, or below the `temporary_place` (where also virtual
    time is, as it does no I/O). Raises ConfigError."""
    given = config.tiers.cache_dir
    if given is None or (config.run.virtual_time and on_objects(config)):
        return (temporary_place(),)
    return tuple(place_of(config, name) for name in given)


def temporary_place() -> Path:
    """The system's directory for temporary files. Where that is in RAM, as on Debian 13 and Fedora,
    and the user has not named it, /var/tmp: a run would measure no drive."""
    usual, kept = Path(gettempdir()), Path("/var/tmp")
    if "TMPDIR" in os.environ or not _in_memory(usual) or not os.access(kept, os.W_OK | os.X_OK):
        return usual
    return kept


def _in_memory(directory: Path) -> bool:
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mount = mount_of(os.path.realpath(directory), number, mounts)
    return mount is not None and mount.kind in MEMORY_FILESYSTEMS


def place_of(config: Config, name: str) -> Place:
    if not is_object_url(name):
        return Path(name)
    url, told = parse_url(name), config.s3
    return ObjectPlace(
        bucket=url.bucket,
        prefix=url.prefix,
        endpoint=endpoint_of(told.endpoint, os.environ),
        region=region_of(told.region, os.environ),
        part_bytes=told.part_mib * MIB,
        part_concurrency=told.part_concurrency,
        timeout_s=told.timeout_s,
        retries=told.retries,
    )
