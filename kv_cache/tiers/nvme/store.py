"""Storage as a tier: a layout (what is a file) times engines (how bytes get there and back), with
a rule when they must be on the device."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.tiers import native
from kv_cache.tiers.base import Capability, Names, Place, Sink, Span, Steps, Tap, store_errors
from kv_cache.tiers.file_options import FSYNC_BATCH
from kv_cache.tiers.nvme import uring
from kv_cache.tiers.nvme.engines import Engine, Region
from kv_cache.tiers.nvme.layouts import Arena, FilePerObject, Layout, Spans, close_all


class Syncer:
    """`never`; `object`: before an object is complete; `batch`: every few objects at once, so
    that the last few of a run are only on the device when the store is closed."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.flushes = policy == "object"  # an fsync writes back what was stored through mappings
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int]] = []  # copies, and descriptors of our own

    def commit(self, ref: CopyRef, spans: Spans, steps: Steps) -> None:
        fds = list(dict.fromkeys(span.fd for span in spans))
        if self._policy == "object":
            with steps.timed("fsync"):
                for fd in fds:
                    os.fsync(fd)
        elif self._policy == "batch":
            with self._lock:
                for fd in fds:
                    self._waiting.append((ref.copy_id, os.dup(fd)))
                if len({copy_id for copy_id, _ in self._waiting}) < FSYNC_BATCH:
                    return
                due, self._waiting = self._waiting, []
            with steps.timed("fsync"):
                _sync([fd for _, fd in due])

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
        files = {(s.st_dev, s.st_ino): fd for fd in fds for s in (os.fstat(fd),)}
        for fd in files.values():
            try:
                os.fsync(fd)
            except OSError as error:
                failed = failed or error
    finally:
        close_all(fds)
    if failed is not None:
        raise failed


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
        self.capabilities = reader.capabilities & writer.capabilities
        if fsync == "object":
            self.capabilities |= Capability.DURABLE
        self._files = layout if isinstance(layout, FilePerObject) else None
        self._arena = layout if isinstance(layout, Arena) else None
        if Capability.POSITIONAL in self.capabilities:
            files = self._files is not None and not self._uses_rings
            if files or layout.whole:
                self.capabilities |= Capability.PLACED
            if (layout.whole and fsync != "object") or (files and fsync != "batch"):
                # Else a call of Python's belongs to each object, and its threads make them.
                self.capabilities |= Capability.AT_ONCE | Capability.WHOLE
            if self._arena is not None and fsync == "never" and not self._uses_rings:
                self.capabilities |= Capability.FOUND_AT_ONCE

    def create(self, ref: CopyRef) -> Sink:
        return _FileSink(ref, self._layout, self._writer, self._syncer)

    def open(self, ref: CopyRef) -> Tap:
        return _FileTap(ref, self._layout, self._reader)

    def place(self, ref: CopyRef, *, writes: bool) -> Names | Place | None:
        if writes and self._fsync == "batch":
            return None
        engine, sync = self._writer if writes else self._reader, self._fsync == "object"
        if self._files is not None:
            flags, synced = engine.open_flags, writes and sync
            return self._files.names(ref, engine.name, flags, writes=writes, sync=synced)
        if writes and sync:
            return None
        steps, layout = Steps(), self._layout
        with store_errors():
            if writes:
                spans = layout.create(ref, engine.open_flags, steps, allocate=False)
            else:
                spans = layout.open(ref, engine.open_flags, steps)
        return Place(spans, steps, engine.name)

    def places(self, refs: Sequence[CopyRef], *, writes: bool) -> Sequence[Place | StoreError]:
        assert self._arena is not None, "files are found one by one"
        engine = self._writer if writes else self._reader
        with store_errors():
            return self._arena.places(refs, engine, writes=writes)

    def give_up(self, ref: CopyRef) -> None:
        with store_errors():
            if self._files is not None:
                self._files.give_up(ref)
            else:
                self._layout.delete(ref)

    def delete(self, ref: CopyRef) -> None:
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
            "data_path": self._data_path(),
            **self._layout.describe(),
            "fsync": self._fsync,
            "emulated": False,
            **({"registered_buffers": self._registers()} if self._uses_rings else {}),
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

    def _data_path(self) -> str:
        """Return what moves the bytes, and if it is Python, why."""
        if Capability.POSITIONAL not in self.capabilities:
            return f"python: {self._reader.name} is not moved by positional calls"
        library = native.library()
        return f"python: {library}" if isinstance(library, str) else "native"

    def _registers(self) -> bool:
        """Return whether rings take the buffers as registered; native ones do not."""
        return self._data_path() != "native" and uring.registered()

    @property
    def _uses_rings(self) -> bool:
        return "uring" in (self._reader.name, self._writer.name)


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
