"""One file an object, in 256 sharded directories, named by the copy's id alone: no key, user or
dataset text ever becomes part of a path."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import Capability, Sink, Tap, store_errors
from kv_cache.tiers.nvme.engines import Engine

SHARDS = 256


class FileStore:
    """Objects below `root`, which the caller owns and removes."""

    tier = Tier.NVME

    def __init__(self, root: Path, engine: Engine, *, fsync: bool, note: str | None = None) -> None:
        self._root = root
        self._engine = engine
        self._fsync = fsync
        self._note = note
        self.capabilities = engine.capabilities
        if fsync:
            self.capabilities |= Capability.DURABLE
        for shard in range(SHARDS):
            (root / f"{shard:02x}").mkdir(exist_ok=True)

    def create(self, ref: CopyRef) -> Sink:
        with store_errors():
            return _Guarded(self._engine.create(self._path(ref), ref.nbytes, fsync=self._fsync))

    def open(self, ref: CopyRef) -> Tap:
        with store_errors():
            return _GuardedTap(self._engine.open(self._path(ref), ref.nbytes))

    def delete(self, ref: CopyRef) -> None:
        with store_errors():
            os.unlink(self._path(ref))

    def describe(self) -> Mapping[str, Any]:
        return {
            "engine": self._engine.name,
            "engine_note": self._note,
            "layout": "file",
            "fsync": self._fsync,
            "emulated": False,
        }

    def close(self) -> None:
        pass

    def _path(self, ref: CopyRef) -> str:
        return f"{self._root}/{ref.copy_id % SHARDS:02x}/{ref.copy_id:016x}.kv"


class _Guarded:
    """A sink whose operating system errors are errors of the storage under test."""

    def __init__(self, sink: Sink) -> None:
        self.engine = sink.engine
        self._sink = sink

    def write(self, offset: int, data: memoryview) -> None:
        with store_errors():
            self._sink.write(offset, data)

    def commit(self) -> None:
        with store_errors():
            self._sink.commit()

    def abort(self) -> None:
        try:
            with store_errors():
                self._sink.abort()
        except StoreError as error:
            if error.reason != "vanished":  # somebody else removed it: nothing is left, as wanted
                raise


class _GuardedTap:
    def __init__(self, tap: Tap) -> None:
        self.engine = tap.engine
        self._tap = tap

    def read(self, offset: int, into: memoryview) -> None:
        with store_errors():
            self._tap.read(offset, into)

    def close(self) -> None:
        with store_errors():
            self._tap.close()
