"""Several drives as one tier: an object lies whole on one of them, chosen by its key."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from operator import and_
from typing import Any, cast

from kv_cache.core.effect import CopyRef, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import (
    Names,
    Place,
    PlacedStore,
    Sink,
    Span,
    Store,
    Tap,
    Unsynced,
    place_each,
)


class Striped:
    """`stores` with as many bytes each. A drive that is full gives its objects to the one with
    most room. That one takes the object also where it is larger than what is left of its share:
    the caller only guarantees that there is room on all drives together, and what is left on each
    would otherwise never add up to an object. (An arena has no more than its share.)"""

    tier = Tier.NVME

    def __init__(self, stores: Sequence[Store], capacities: Sequence[int]) -> None:
        self._stores = tuple(stores)
        self._free = list(capacities)
        self._drive: dict[int, int] = {}
        self._lock = threading.Lock()
        self.removal = stores[0].removal
        self.capabilities = reduce(and_, (store.capabilities for store in stores))

    def create(self, ref: CopyRef) -> Sink:
        drive = self._claim(ref)
        try:
            return _DriveSink(self._stores[drive].create(ref), self, ref)
        except BaseException:
            self.give_back(ref)
            raise

    def open(self, ref: CopyRef) -> Tap:
        return self._stores[self._of(ref)].open(ref)

    def place(self, ref: CopyRef, *, writes: bool) -> Names | Place:
        if not writes:
            return self._placed(self._of(ref)).place(ref, writes=False)
        try:
            return self._placed(self._claim(ref)).place(ref, writes=True)
        except BaseException:
            self.give_back(ref)
            raise

    def places(
        self, refs: Sequence[CopyRef], *, writes: bool
    ) -> Sequence[Place | Names | StoreError]:
        return place_each(partial(self.place, writes=writes), refs)

    def synced_with(self, ref: CopyRef, spans: Sequence[Span], fd: int | None) -> Unsynced | None:
        return self._placed(self._of(ref)).synced_with(ref, spans, fd)

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        return [left for ref in refs for left in self._placed(self._of(ref)).end_writes((ref,))]

    def complete(self, ref: CopyRef, spans: Sequence[Span]) -> Sequence[MetadataStep]:
        return self._placed(self._of(ref)).complete(ref, spans)

    def give_up(self, ref: CopyRef, spans: Sequence[Span]) -> None:
        try:
            self._placed(self._of(ref)).give_up(ref, spans)
        finally:
            self.give_back(ref)

    def delete(self, ref: CopyRef) -> None:
        try:
            self._stores[self._of(ref)].delete(ref)
        except StoreError as error:
            if error.reason == "vanished":  # gone is gone: its bytes are free
                self.give_back(ref)
            raise
        self.give_back(ref)

    def describe(self) -> Mapping[str, Any]:
        drives = [dict(store.describe()) for store in self._stores]
        names = sorted({drive["engine"] for drive in drives})
        notes = [drive["engine_note"] for drive in drives if drive["engine_note"]]
        return {
            **drives[0],
            "engine": "+".join(names),
            "engine_note": notes[0] if notes else None,
            "drives": drives,
        }

    def close(self) -> None:
        with ExitStack() as closing:
            for store in self._stores:
                closing.callback(store.close)

    def give_back(self, ref: CopyRef) -> None:
        with self._lock:
            drive = self._drive.pop(ref.copy_id, None)
            if drive is not None:
                self._free[drive] += ref.nbytes

    def _of(self, ref: CopyRef) -> int:
        drive = self._drive.get(ref.copy_id)
        if drive is None:
            raise StoreError("vanished", f"copy {ref.copy_id} is on no drive")
        return drive

    def _placed(self, drive: int) -> PlacedStore:
        return cast("PlacedStore", self._stores[drive])

    def _claim(self, ref: CopyRef) -> int:
        with self._lock:
            drive = int.from_bytes(ref.key[:8], "little") % len(self._stores)
            if self._free[drive] < ref.nbytes:
                drive = max(range(len(self._free)), key=self._free.__getitem__)
            self._free[drive] -= ref.nbytes
            self._drive[ref.copy_id] = drive
            return drive


class _DriveSink:
    """A drive's sink whose bytes are given back when it is aborted."""

    def __init__(self, sink: Sink, owner: Striped, ref: CopyRef) -> None:
        self.engine = sink.engine
        self.steps, self.spans = sink.steps, sink.spans
        self._owner = owner
        self._ref = ref
        self._sink = sink
        self.write = sink.write
        self.commit = sink.commit

    def abort(self) -> None:
        try:
            self._sink.abort()
        finally:
            self._owner.give_back(self._ref)
