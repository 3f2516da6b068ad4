"""Stores around stores. `Faulty` proves that errors are handled: it breaks what it is told to."""

from collections.abc import Callable, Mapping
from typing import Any

from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import OpKind
from kv_cache.tiers.base import Sink, Store, Tap

Fault = Callable[[OpKind, CopyRef], str | None]
"""Names the reason for which an operation shall fail, `"flip"` (a read returns one wrong bit), or
None to let it pass. Called once for each operation."""

FLIP = "flip"


class Faulty:
    """`store`, with the faults that `fault` decides on."""

    def __init__(self, store: Store, fault: Fault) -> None:
        self._store = store
        self._fault = fault
        self.tier = store.tier
        self.capabilities = store.capabilities

    def create(self, ref: CopyRef) -> Sink:
        reason = self._fault(OpKind.WRITE, ref)
        sink = self._store.create(ref)
        return sink if reason is None else _FaultySink(sink, reason)

    def open(self, ref: CopyRef) -> Tap:
        reason = self._fault(OpKind.READ, ref)
        if reason is not None and reason != FLIP:
            raise StoreError(reason, "injected")
        tap = self._store.open(ref)
        return tap if reason is None else _FlippingTap(tap)

    def delete(self, ref: CopyRef) -> None:
        reason = self._fault(OpKind.DELETE, ref)
        if reason is not None:
            raise StoreError(reason, "injected")
        self._store.delete(ref)

    def describe(self) -> Mapping[str, Any]:
        return {**self._store.describe(), "faulty": True}

    def close(self) -> None:
        self._store.close()


class _FaultySink:
    """Takes the data and fails at the end, as a full or failing disk does."""

    def __init__(self, sink: Sink, reason: str) -> None:
        self.engine = sink.engine
        self._sink = sink
        self._reason = reason

    def write(self, offset: int, data: memoryview) -> None:
        self._sink.write(offset, data)

    def commit(self) -> None:
        raise StoreError(self._reason, "injected")

    def abort(self) -> None:
        self._sink.abort()


class _FlippingTap:
    def __init__(self, tap: Tap) -> None:
        self.engine = tap.engine
        self._tap = tap

    def read(self, offset: int, into: memoryview) -> None:
        self._tap.read(offset, into)
        into[3] ^= 0x10

    def close(self) -> None:
        self._tap.close()
