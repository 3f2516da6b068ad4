"""Storage as a tier: a layout (what is a file) times an I/O engine (how bytes get there)."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from kv_cache.core.errors import PlaceError
from kv_cache.tiers.nvme import uring
from kv_cache.tiers.nvme.engines import ENGINES, choose_engine, direct_block_bytes
from kv_cache.tiers.nvme.layouts import Arena, Buckets, FilePerObject, Layout
from kv_cache.tiers.nvme.store import NvmeStore
from kv_cache.tiers.nvme.striped import Striped

__all__ = [
    "ENGINES",
    "NvmeStore",
    "Striped",
    "choose_engine",
    "direct_block_bytes",
    "open_storage",
    "uring",
]


def open_storage(
    root: Path,
    *,
    capacity_bytes: int,
    layout: str = "file",
    engine: str = "auto",
    write_engine: str | None = None,
    fsync: str = "never",
    rename: bool = True,
    arena_files: Sequence[Path] | None = None,
) -> NvmeStore:
    """Return a store of at most `capacity_bytes` below the existing directory `root`.

    `write_engine` (the reads' where it is None) for connectors that write otherwise than they
    read. `rename`: files of layout `file` are written under a temporary name. `arena_files` are
    existing files or block devices that the arena uses instead of new files; of a device, `root`
    is its node. Raises PlaceError.
    """
    try:
        reader, note = choose_engine(engine, root)
        writer, also = (reader, None) if write_engine is None else choose_engine(write_engine, root)
        flags = {reader.open_flags, writer.open_flags}
        return NvmeStore(
            _layout(layout, root, capacity_bytes, flags, rename, arena_files),
            reader,
            writer,
            fsync=fsync,
            note=note or also,
        )
    except OSError as error:
        raise PlaceError(
            f"cache directory {root}: it cannot be prepared ({os.strerror(error.errno or 0)}); "
            "name another --cache-dir"
        ) from error


def _layout(
    name: str,
    root: Path,
    capacity_bytes: int,
    flags: Collection[int],
    rename: bool,
    arena_files: Sequence[Path] | None,
) -> Layout:
    if name == "arena":
        return Arena(root, capacity_bytes, flags, arena_files)
    if name == "bucket":
        return Buckets(root)
    return FilePerObject(root, rename=rename)
