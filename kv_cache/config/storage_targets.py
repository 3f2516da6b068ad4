"""Where the storage tier is: directories, or prefixes of buckets; and what an object store leaves
no room for."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from kv_cache.core.errors import ConfigError
from kv_cache.core.mounts import MEMORY_FILESYSTEMS, mount_of, parse_mounts
from kv_cache.core.units import MIB
from kv_cache.tiers.objects.account import endpoint_of, region_of
from kv_cache.tiers.objects.place import ObjectPlace, is_object_url, parse_url

if TYPE_CHECKING:
    from kv_cache.config.root import Config

Place = Path | ObjectPlace


def on_objects(config: "Config") -> bool:
    """Whether storage is an object store."""
    return any(is_object_url(name) for name in config.tiers.cache_dir or ())


def storage_places(config: "Config") -> tuple[Place, ...]:
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


def place_of(config: "Config", name: str) -> Place:
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


def check_places(config: "Config") -> None:
    """Raise ConfigError where the places, or what is to be done there, make no sense."""
    if config.s3.endpoint is not None:
        endpoint_of(config.s3.endpoint, {})
    urls = [name for name in config.tiers.cache_dir or () if is_object_url(name)]
    for url in urls:
        parse_url(url)
    if not urls:
        return
    if len(urls) < len(config.tiers.cache_dir or ()):
        raise ConfigError(
            "tiers.cache_dir (--cache-dir) has directories and object stores, whose bytes go "
            "different ways: one run measures one kind of storage; give only one of them"
        )
    for said, is_asked, why in _for_devices(config):
        if is_asked:
            raise ConfigError(f"{said} and --cache-dir {urls[0]}: {why}; leave one of them out")
    if config.tiers.storage_bytes is None and not config.run.virtual_time:
        raise ConfigError(
            f"--cache-dir {urls[0]}: a bucket has no free space to take a share of; say with "
            "tiers.storage_capacity_gib (--storage-capacity-gb) how much the cache may keep there"
        )


def _for_devices(config: "Config") -> Iterator[tuple[str, bool, str]]:
    """Options that mean a device or files: how they are named, whether they were given, and why
    they mean nothing here."""
    io = config.io
    files = "that is about files, and objects are none"
    device = "that is about a device of this machine, and an object store is none"
    yield f"--personality {io.personality}", io.personality is not None, files
    yield f"--layout {io.layout}", io.layout != "file", files
    yield f"--io-engine {io.engine}", io.engine != "auto", files
    yield f"io.write_engine {io.write_engine}", io.write_engine is not None, files
    yield (
        "precondition.enabled (--precondition)",
        config.precondition.enabled,
        ("a drive is filled until it is no longer fresh, and an object store is no drive"),
    )
    yield "--enable-latency-tracing", config.monitor.latency_tracing, device
    yield "--fio-export", config.output.fio_export is not None, device


def place_warnings(config: "Config") -> Iterator[str]:
    """Options that have no effect on the places that are given."""
    from kv_cache.config.sections import S3Config

    if not on_objects(config):
        if config.s3 != S3Config():
            yield "section s3 (--s3-...): no effect without --cache-dir s3://bucket/prefix"
        return
    if config.io.fsync is not None:
        yield (
            f"io.fsync (--fsync) is {config.io.fsync!r}: no effect on an object store, whose "
            "answer to a write says that it is complete"
        )
    if not config.io.rename:
        yield "io.rename: no effect on an object store, where an object appears when it is whole"
