"""Storage of a rehearsal: all that a store does but the calls of the system.

For what native transfers move: they are told to leave their calls out, and reads find what is
looked for (`Capability.NOWHERE`). Descriptors are of no use, so that none is read or written.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_cache.core.effect import CopyRef
from kv_cache.tiers.base import Capability, Names, Span, Steps, call_nothing
from kv_cache.tiers.nvme.engines import ENGINES, Direct, Engine
from kv_cache.tiers.nvme.layouts import Arena, FilePerObject, Layout, Root, Spans, arena_files
from kv_cache.tiers.nvme.store import NvmeStore, Syncer


def rehearsed_storage(
    capacity_bytes: int,
    *,
    layout: str,
    engine: str,
    write_engine: str | None = None,
    fsync: str = "never",
    rename: bool = True,
) -> NvmeStore | None:
    """Return a store that keeps nothing in place of `open_storage`'s; None where bytes are not
    moved by positional calls."""
    reader, writer = (_Nowhere(_engine(name)) for name in (engine, write_engine or engine))
    if Capability.POSITIONAL not in reader.capabilities & writer.capabilities:
        return None
    files: Layout
    if layout == "arena":
        nothing = [Path(os.devnull)] * arena_files(capacity_bytes)
        files = Arena(Path("/"), capacity_bytes, {_Nowhere.open_flags}, nothing)
    else:
        files = _NoFiles(rename=rename) if layout == "file" else _NoBuckets()
    return _Rehearsed(files, reader, writer, fsync=fsync)


def _engine(name: str) -> Engine:
    return ENGINES["direct" if name == "auto" else name]()


class _Nowhere(Direct):
    """`of`, moving nothing."""

    open_flags = Direct.open_flags | getattr(os, "O_PATH", 0)  # nothing may be read or written

    def __init__(self, of: Engine) -> None:
        self.name, self.capabilities = of.name, of.capabilities | Capability.NOWHERE


class _Rehearsed(NvmeStore):
    """Waits for no device either."""

    def __init__(self, layout: Layout, reader: Engine, writer: Engine, *, fsync: str) -> None:
        super().__init__(layout, reader, writer, fsync=fsync)
        self._syncer = Syncer("never")

    def synced_with(self, ref: CopyRef, spans: Sequence[Span], fd: int | None) -> None:
        return None


class _NoBuckets:
    """Files that are neither made nor found; of many objects each, so that few open one."""

    name = "bucket"
    removal = "punch"
    whole = False

    def names(
        self, ref: CopyRef, engine: str, flags: int, *, writes: bool, fsync: str
    ) -> Names | None:
        return None if writes else Names(-1, b"", flags, False, None, engine)

    def create(self, ref: CopyRef, flags: int, steps: Steps, *, allocate: bool) -> Spans:
        with steps.timed("allocate"):
            return (Span(-1, 0, ref.nbytes),)

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        pass

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        return ()

    def abort(self, ref: CopyRef, spans: Spans) -> None:
        pass

    def open(self, ref: CopyRef, flags: int, steps: Steps) -> Spans:
        _call(steps, "open")
        call_nothing()  # fstat
        return (Span(-1, 0, ref.nbytes),)

    def release(self, spans: Spans, steps: Steps) -> None:
        _call(steps, "close")

    def delete(self, ref: CopyRef) -> None:
        call_nothing()

    def describe(self) -> Mapping[str, Any]:
        return {"layout": self.name}

    def close(self) -> None:
        pass


class _NoFiles(_NoBuckets, FilePerObject):
    """A file an object, with names for those who would open files themselves."""

    name = FilePerObject.name
    removal = FilePerObject.removal
    end_writes = FilePerObject.end_writes

    def __init__(self, *, rename: bool) -> None:
        self._rename = rename
        self._root = Root(Path("/"))

    def create(self, ref: CopyRef, flags: int, steps: Steps, *, allocate: bool) -> Spans:
        _call(steps, "create")
        return (Span(-1, 0, ref.nbytes),)

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        _call(steps, "close")
        if self._rename:
            _call(steps, "rename")

    def names(self, ref: CopyRef, engine: str, flags: int, *, writes: bool, fsync: str) -> Names:
        return FilePerObject.names(self, ref, engine, flags, writes=writes, fsync=fsync)

    def close(self) -> None:
        self._root.close()


def _call(steps: Steps, name: str) -> None:
    with steps.timed(name):
        call_nothing()
