"""Storage as a tier: a layout (what is a file) times engines (how bytes get there and back), with
a rule when they must be on the device."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kv_cache.core.effect import CopyRef, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import (
    RINGS,
    Capability,
    Names,
    Place,
    Sink,
    Span,
    Steps,
    Tap,
    Unsynced,
    place_each,
    store_errors,
)
from kv_cache.tiers.file_options import FSYNC_BATCH
from kv_cache.tiers.nvme.engines import Engine, Region
from kv_cache.tiers.nvme.layouts import Arena, Layout, Spans, close_all, files_of


class Syncer:
    """`never`; `object`: before an object is complete; `batch`: every few objects at once, so
    that the last few of a run are only on the device when the store is closed."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.flushes = policy == "object"  # an fsync writes back what was stored through mappings
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int]] = []  # copies, and descriptors of our own

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        if self._policy == "object":
            for fd in files_of(spans):
                with steps.timed("fsync"):
                    os.fsync(fd)
        elif self._policy == "batch":
            due = self.collect(ref, map(os.dup, files_of(spans)))
            if due:
                with steps.timed("fsync"):
                    _sync(due)

    def collect(self, ref: CopyRef, fds: Iterable[int]) -> list[int]:
        """Note that a copy was written, in files of which `fds` are the store's from now on; return
        the descriptors of all whose turn has come, which are the caller's then."""
        with self._lock:
            for fd in fds:
                self._waiting.append((ref.copy_id, fd))
            if len({copy_id for copy_id, _ in self._waiting}) < FSYNC_BATCH:
                return []
            due, self._waiting = self._waiting, []
        return [fd for _, fd in due]

    def forget(self, ref: CopyRef) -> None:
        """A copy goes: it is not needed on the device, and an open file would keep its space."""
        if self._policy != "batch":
            return
        with self._lock:
            gone = [fd for copy_id, fd in self._waiting if copy_id == ref.copy_id]
            self._waiting = [one for one in self._waiting if one[0] != ref.copy_id]
        close_all(gone)

    def flush(self) -> None:
        with self._lock:
            due, self._waiting = self._waiting, []
        _sync([fd for _, fd in due])


def _sync(fds: list[int]) -> None:
    """Sync each file once, and close all descriptors, whatever happens; then raise the first
    OSError."""
    failed: OSError | None = None
    try:
        for fd in _distinct(fds):
            try:
                os.fsync(fd)
            except OSError as error:
                failed = failed or error
    finally:
        close_all(fds)
    if failed is not None:
        raise failed


def _distinct(fds: Iterable[int]) -> list[int]:
    """Return a descriptor of each file."""
    return list({(s.st_dev, s.st_ino): fd for fd in fds for s in (os.fstat(fd),)}.values())


class NvmeStore:
    """Objects in files below a directory that the caller owns and removes."""

    tier = Tier.NVME

    def __init__(
        self, layout: Layout, reader: Engine, writer: Engine, *, fsync: str, note: str | None = None
    ) -> None:
        self._layout = layout
        self._reader = reader
        self._writer = writer
        self._fsync = fsync
        self._syncer = Syncer(fsync)
        self._note = note
        self.removal = layout.removal
        self.capabilities = reader.capabilities & writer.capabilities & ~RINGS
        self.capabilities |= reader.capabilities & Capability.READ_RINGS
        self.capabilities |= writer.capabilities & Capability.WRITE_RINGS
        if fsync == "object":
            self.capabilities |= Capability.DURABLE
        self._arena = layout if isinstance(layout, Arena) else None
        if Capability.POSITIONAL in self.capabilities and (layout.whole or not self._uses_rings):
            # A ring opens no files.
            self.capabilities |= Capability.PLACED | Capability.AT_ONCE | Capability.WHOLE
            if fsync != "batch":
                self.capabilities |= Capability.FOUND_AT_ONCE

    def create(self, ref: CopyRef) -> Sink:
        return _FileSink(ref, self._layout, self._writer, self._syncer)

    def open(self, ref: CopyRef) -> Tap:
        return _FileTap(ref, self._layout, self._reader)

    def place(self, ref: CopyRef, *, writes: bool) -> Names | Place:
        engine, layout = self._writer if writes else self._reader, self._layout
        flags, steps = engine.open_flags, Steps()
        with store_errors():
            names = layout.names(ref, engine.name, flags, writes=writes, fsync=self._fsync)
            if names is not None:
                return names
            if not writes:
                return Place(layout.open(ref, flags, steps), steps, engine.name)
            spans = layout.create(ref, flags, steps, allocate=False)
        sync = files_of(spans) if self._fsync == "object" else ()
        keep, ends = self._fsync == "batch", not layout.whole
        return Place(spans, steps, engine.name, sync, keep, ends)

    def places(
        self, refs: Sequence[CopyRef], *, writes: bool
    ) -> Sequence[Place | Names | StoreError]:
        if self._arena is None:
            return place_each(partial(self.place, writes=writes), refs)
        engine, sync = self._writer if writes else self._reader, self._fsync == "object"
        with store_errors():
            return self._arena.places(refs, engine, writes=writes, sync=sync and writes)

    def synced_with(self, ref: CopyRef, spans: Sequence[Span], fd: int | None) -> Unsynced | None:
        with store_errors():
            fds = map(os.dup, files_of(spans)) if fd is None else (fd,)
            due = self._syncer.collect(ref, fds)
            return Unsynced(_distinct(due), due) if due else None

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        return self._layout.end_writes(refs)

    def complete(self, ref: CopyRef, spans: Sequence[Span]) -> Sequence[MetadataStep]:
        steps = Steps()
        with store_errors():
            self._layout.commit(ref, tuple(spans), steps)
        return steps

    def give_up(self, ref: CopyRef, spans: Sequence[Span]) -> None:
        with store_errors():
            try:
                self._syncer.forget(ref)
            finally:
                self._layout.abort(ref, tuple(spans))

    def delete(self, ref: CopyRef) -> None:
        if self._arena is not None and self._fsync != "batch":
            self._arena.delete(ref)  # which asks the system for nothing
            return
        with store_errors():
            try:
                self._syncer.forget(ref)
            finally:
                self._layout.delete(ref)

    def describe(self) -> Mapping[str, Any]:
        return {
            "engine": self._reader.name,
            "write_engine": self._writer.name,
            "engine_note": self._note,
            **self._layout.describe(),
            "fsync": self._fsync,
            "emulated": False,
        }

    def flush(self) -> None:
        """Wait until what a batch has collected is on the device. Raises StoreError."""
        with store_errors():
            self._syncer.flush()

    def close(self) -> None:
        with store_errors():
            try:
                self._syncer.flush()
            finally:
                self._layout.close()

    @property
    def _uses_rings(self) -> bool:
        return bool(self.capabilities & RINGS)


class _Regions:
    """The pieces of an object, one after the other."""

    def __init__(self, spans: Spans, engine: Engine, *, writable: bool) -> None:
        self._parts: list[tuple[int, Span, Region]] = []
        self._length = 0
        try:
            for span in spans:
                region = engine.region(span, writable=writable)
                self._parts.append((self._length, span, region))
                self._length += span.length
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, into: memoryview) -> None:
        for region, within, begin, end in self._pieces(offset, len(into)):
            region.read(within, into[begin:end])

    def write(self, offset: int, data: memoryview) -> None:
        for region, within, begin, end in self._pieces(offset, len(data)):
            region.write(within, data[begin:end])

    def flush(self) -> None:
        for _, _, region in self._parts:
            region.flush()

    def close(self) -> None:
        parts, self._parts, self._length = self._parts, [], 0
        for _, _, region in parts:
            region.close()

    def _pieces(self, offset: int, nbytes: int) -> Sequence[tuple[Region, int, int, int]]:
        """(region, offset in it, begin and end in the caller's data) of a range of the object."""
        assert 0 <= offset <= offset + nbytes <= self._length, "beyond the object, or after its end"
        if len(self._parts) == 1:
            return ((self._parts[0][2], offset, 0, nbytes),)
        spans = []
        for at, span, region in self._parts:
            begin, end = max(offset, at), min(offset + nbytes, at + span.length)
            if begin < end:
                spans.append((region, begin - at, begin - offset, end - offset))
        return spans


class _FileSink:
    """Writes one object; what the operating system refuses is an error of the storage."""

    def __init__(self, ref: CopyRef, layout: Layout, engine: Engine, syncer: Syncer) -> None:
        self.engine = engine.name
        self.steps = Steps()
        self._ref = ref
        self._layout = layout
        self._syncer = syncer
        with store_errors():
            self.spans: Spans = layout.create(
                ref, engine.open_flags, self.steps, allocate=engine.writes_need_space
            )
            try:
                self._regions = _Regions(self.spans, engine, writable=True)
            except BaseException:
                layout.abort(ref, self.spans)
                raise

    def write(self, offset: int, data: memoryview) -> None:
        with store_errors():
            self._regions.write(offset, data)

    def commit(self) -> None:
        with store_errors():
            if self._syncer.flushes:
                self._regions.flush()
            self._syncer.commit(self._ref, self.spans, self.steps)
            self._regions.close()
            self._layout.commit(self._ref, self.spans, self.steps)

    def abort(self) -> None:
        self._regions.close()
        try:
            with store_errors():
                try:
                    self._syncer.forget(self._ref)
                finally:
                    self._layout.abort(self._ref, self.spans)
        except StoreError as error:
            if error.reason != "vanished":  # something else removed it: nothing is left, as wanted
                raise


class _FileTap:
    def __init__(self, ref: CopyRef, layout: Layout, engine: Engine) -> None:
        self.engine = engine.name
        self.steps = Steps()
        self._layout = layout
        self._engine = engine
        self._regions: _Regions | None = None  # what is read by positional calls needs none
        with store_errors():
            self.spans: Spans = layout.open(ref, engine.open_flags, self.steps)
            try:
                if Capability.POSITIONAL not in engine.capabilities:
                    self._regions = _Regions(self.spans, engine, writable=False)
            except BaseException:
                layout.release(self.spans, self.steps)
                raise

    def read(self, offset: int, into: memoryview) -> None:
        with store_errors():
            if self._regions is None:
                self._regions = _Regions(self.spans, self._engine, writable=False)
            self._regions.read(offset, into)

    def close(self) -> None:
        spans, self.spans = self.spans, ()
        if spans:
            if self._regions is not None:
                self._regions.close()
            with store_errors():
                self._layout.release(spans, self.steps)
