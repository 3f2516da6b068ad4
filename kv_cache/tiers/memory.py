"""RAM as a tier: one buffer, allocated and touched before the run. Also used instead of a GPU where
there is none, and says so."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from kv_cache.core.effect import VANISHED, CopyRef, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.core.units import MIB, PAGE_BYTES
from kv_cache.tiers.base import FREE, Capability, Place, Span, place_each
from kv_cache.tiers.buffers import aligned_bytes
from kv_cache.tiers.extents import Allocation, Extent, Extents

_TOUCH_BYTES = 64 * MIB


class ArenaStore(ABC):
    """What stores with one big buffer share: which extents belong to which copy."""

    engine: str
    removal = FREE

    def __init__(self, regions: list[int]) -> None:
        self._extents = Extents(regions)
        self._objects: dict[int, Allocation] = {}

    def spans(self, extents: Sequence[Extent]) -> Sequence[Span]:
        """Return where the bytes are, for who may copy them itself."""
        return ()

    def kept(self) -> object:
        """Return the memory that the spans are in."""
        return None

    @abstractmethod
    def copy_in(self, at: int, data: memoryview) -> None: ...

    @abstractmethod
    def copy_out(self, at: int, into: memoryview) -> None: ...

    def create(self, ref: CopyRef) -> "_ArenaObject":
        return _ArenaObject(self, ref, self._take(ref))

    def open(self, ref: CopyRef) -> "_ArenaObject":
        return _ArenaObject(self, ref, self._find(ref))

    def _take(self, ref: CopyRef) -> Allocation:
        room = self._extents.take(ref.nbytes)
        assert room is not None, "more was taken than the ledger can have promised"
        self._objects[ref.copy_id] = room
        return room

    def _find(self, ref: CopyRef) -> Allocation:
        room = self._objects.get(ref.copy_id)
        if room is None:
            raise StoreError(VANISHED, f"copy {ref.copy_id} is not in the buffer")
        return room

    def delete(self, ref: CopyRef) -> None:
        room = self._objects.pop(ref.copy_id, None)
        if room is None:
            raise StoreError(VANISHED, f"copy {ref.copy_id} is not in the buffer")
        self._extents.give(room)


def parts(extents: Sequence[Extent], offset: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """(place in the buffer, place in the caller's data, length) for a range of an object."""
    done = 0
    for start, length in extents:
        if offset >= length:
            offset -= length
            continue
        part = min(length - offset, nbytes - done)
        yield start + offset, done, part
        done += part
        offset = 0
        if done == nbytes:
            return
    if done < nbytes:
        raise StoreError("short-read", f"{nbytes - done} bytes are beyond the object's end")


class MemoryStore(ArenaStore):
    """A tier of `capacity` bytes in host RAM."""

    def __init__(self, tier: Tier, capacity: int, *, emulated: bool = False) -> None:
        super().__init__([capacity])
        self.tier = tier
        self.capacity = capacity
        self.engine = "emulated-in-ram" if emulated else "ram"
        self.capabilities = Capability.DATA | Capability.MEMORY
        self.capabilities |= Capability.POSITIONAL | Capability.WHOLE
        self.capabilities |= Capability.PLACED | Capability.FOUND_AT_ONCE
        if emulated:
            self.capabilities |= Capability.EMULATED
        self._arena = aligned_bytes(capacity)
        self._address: int = self._arena.ctypes.data

    def place(self, ref: CopyRef, *, writes: bool) -> Place:
        room = self._take(ref) if writes else self._find(ref)
        if room.seen_as is None:
            room.seen_as = self.spans(room.extents)
        return Place(room.seen_as, (), self.engine, memory=self._arena)

    def places(self, refs: Sequence[CopyRef], *, writes: bool) -> Sequence[Place | StoreError]:
        return place_each(partial(self.place, writes=writes), refs)

    def synced_with(self, ref: CopyRef, spans: Sequence[Span], fd: int | None) -> None:
        return None

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        return ()

    def complete(self, ref: CopyRef, spans: Sequence[Span]) -> Sequence[MetadataStep]:
        return ()

    def give_up(self, ref: CopyRef, spans: Sequence[Span]) -> None:
        self.delete(ref)

    def touch(self, stopped: Callable[[], bool]) -> None:
        """Have every page now, so that the run measures copies and not page faults; may take a
        while, and is given up when `stopped`."""
        for start in range(0, self.capacity, _TOUCH_BYTES):
            if stopped():
                return
            self._arena[start : start + _TOUCH_BYTES : PAGE_BYTES] = 0xA5

    def spans(self, extents: Sequence[Extent]) -> Sequence[Span]:
        return tuple(Span(-1, self._address + start, length) for start, length in extents)

    def kept(self) -> object:
        return self._arena

    def copy_in(self, at: int, data: memoryview) -> None:
        self._arena[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def copy_out(self, at: int, into: memoryview) -> None:
        np.frombuffer(into, np.uint8)[:] = self._arena[at : at + len(into)]

    def describe(self) -> Mapping[str, Any]:
        return {
            "engine": self.engine,
            "capacity_bytes": self.capacity,
            "emulated": Capability.EMULATED in self.capabilities,
        }

    def close(self) -> None:
        self._arena = aligned_bytes(0)


class _ArenaObject:
    """A sink or a tap; which one is the caller's business."""

    steps: Sequence[MetadataStep] = ()

    def __init__(self, store: ArenaStore, ref: CopyRef, room: Allocation) -> None:
        self.engine = store.engine
        self.spans = store.spans(room.extents)
        self._kept = store.kept()  # as long as somebody may copy from there
        self._store = store
        self._ref = ref
        self._extents = room.extents

    def write(self, offset: int, data: memoryview) -> None:
        for at, place, length in parts(self._extents, offset, len(data)):
            self._store.copy_in(at, data[place : place + length])

    def read(self, offset: int, into: memoryview) -> None:
        for at, place, length in parts(self._extents, offset, len(into)):
            self._store.copy_out(at, into[place : place + length])

    def commit(self) -> None:
        pass

    def abort(self) -> None:
        self._store.delete(self._ref)

    def close(self) -> None:
        pass
