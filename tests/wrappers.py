"""Stores around stores: `Faulty` breaks what it is set to, to prove that errors are handled;
`Throttled` is as slow as it is set."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kv_cache.core.effect import CopyRef, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import NS_PER_S, PAGE_BYTES
from kv_cache.tiers.base import Capability, Sink, Span, Store, Tap
from kv_cache.tiers.buffers import Bytes, aligned_bytes

FLIP = "flip"
"""One wrong bit in what a call moves."""
TORN = "torn"
"""A page of which the first half is new and the second half is nothing, in what a call moves."""
SWAPPED = "swapped"
"""Two pages that have changed places, in what a call moves (of two pages or more)."""
LOST = "lost"
"""A write that is acknowledged, and of which the medium only gets the last page: what was at the
place before is there still."""


class Stall(NamedTuple):
    """The operation answers so much later."""

    duration_ns: int


Fault = Callable[[OpKind, CopyRef], str | Stall | None]
"""What shall happen to an operation: a `Stall`, one of the words above (to a read's data on its
way, or to what a write leaves on the medium), any other reason to fail for, or None to let it
pass. Called once for each operation. Writes fail when they are committed."""


class Around:
    """A store that passes everything on; a subclass says what differs."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.tier = store.tier
        self.capabilities = store.capabilities & ~Capability.POSITIONAL
        self.removal = store.removal

    def create(self, ref: CopyRef) -> Sink:
        return self.inner.create(ref)

    def open(self, ref: CopyRef) -> Tap:
        return self.inner.open(ref)

    def delete(self, ref: CopyRef) -> None:
        self.inner.delete(ref)

    def describe(self) -> Mapping[str, Any]:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()


class SinkAround:
    """A sink that passes everything on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.engine = sink.engine

    @property
    def steps(self) -> Sequence[MetadataStep]:
        return self._sink.steps

    @property
    def spans(self) -> Sequence[Span]:
        return self._sink.spans

    def write(self, offset: int, data: memoryview) -> None:
        self._sink.write(offset, data)

    def commit(self) -> None:
        self._sink.commit()

    def abort(self) -> None:
        self._sink.abort()


class TapAround:
    """A tap that passes everything on."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.engine = tap.engine

    @property
    def steps(self) -> Sequence[MetadataStep]:
        return self._tap.steps

    @property
    def spans(self) -> Sequence[Span]:
        return self._tap.spans

    def read(self, offset: int, into: memoryview) -> None:
        self._tap.read(offset, into)

    def close(self) -> None:
        self._tap.close()


class Faulty(Around):
    """`store`, with the faults that `fault` decides on."""

    def __init__(self, store: Store, fault: Fault) -> None:
        super().__init__(store)
        self._fault = fault

    def create(self, ref: CopyRef) -> Sink:
        fault = _stalled(self._fault(OpKind.WRITE, ref))
        sink = self.inner.create(ref)
        if fault is None:
            return sink
        if fault == LOST:
            return _LosingSink(sink, ref.nbytes)
        spoil = _SPOILS.get(fault)
        return _FailingSink(sink, fault) if spoil is None else _SpoilingSink(sink, spoil)

    def open(self, ref: CopyRef) -> Tap:
        fault = _stalled(self._fault(OpKind.READ, ref))
        spoil = _SPOILS.get(fault or "")
        if fault is not None and spoil is None:
            raise StoreError(fault, "injected")
        tap = self.inner.open(ref)
        return tap if spoil is None else _SpoilingTap(tap, spoil)

    def delete(self, ref: CopyRef) -> None:
        fault = _stalled(self._fault(OpKind.DELETE, ref))
        if fault is not None:
            raise StoreError(fault, "injected")
        self.inner.delete(ref)

    def describe(self) -> Mapping[str, Any]:
        return {**self.inner.describe(), "faulty": True}


class Throttled(Around):
    """`store` behind a link of a set rate (bytes/s) that reads and writes of all threads share, and
    that takes `latency_ns` for each call. A link that was idle has no credit.

    What the store itself takes is part of a call's time, not added to it.
    """

    def __init__(
        self,
        store: Store,
        *,
        bytes_per_second: float,
        latency_ns: int = 0,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(store)
        self._link = _Link(bytes_per_second, latency_ns, now_ns, sleep_s)

    def create(self, ref: CopyRef) -> Sink:
        return _ThrottledSink(self.inner.create(ref), self._link)

    def open(self, ref: CopyRef) -> Tap:
        return _ThrottledTap(self.inner.open(ref), self._link)

    def describe(self) -> Mapping[str, Any]:
        link = self._link
        limits = {"bytes_per_second": link.bytes_per_second, "latency_ns": link.latency_ns}
        return {**self.inner.describe(), "throttled": limits}


# --- faults --------------------------------------------------------------------------------


def _stalled(fault: str | Stall | None) -> str | None:
    """Wait for a stall to be over; return what is left of the fault then."""
    if isinstance(fault, Stall):
        time.sleep(fault.duration_ns / NS_PER_S)
        return None
    return fault


def _flip(data: Bytes) -> None:
    data[3] ^= 0x10


def _tear(data: Bytes) -> None:
    data[PAGE_BYTES // 2 : PAGE_BYTES] = 0


def _swap(data: Bytes) -> None:
    if len(data) > PAGE_BYTES:
        pages = data.reshape(-1, PAGE_BYTES)
        pages[[0, -1]] = pages[[-1, 0]]


_SPOILS: Mapping[str, Callable[[Bytes], None]] = {FLIP: _flip, TORN: _tear, SWAPPED: _swap}


class _FailingSink(SinkAround):
    """Takes the data and fails at the end, as a full or failing disk does."""

    def __init__(self, sink: Sink, reason: str) -> None:
        super().__init__(sink)
        self._reason = reason

    def commit(self) -> None:
        raise StoreError(self._reason, "injected")


class _SpoilingSink(SinkAround):
    def __init__(self, sink: Sink, spoil: Callable[[Bytes], None]) -> None:
        super().__init__(sink)
        self._spoil = spoil

    def write(self, offset: int, data: memoryview) -> None:
        spoiled = aligned_bytes(len(data))  # the caller's buffer is not ours to change
        spoiled[:] = np.frombuffer(data, np.uint8)
        self._spoil(spoiled)
        self._sink.write(offset, spoiled.data)


class _LosingSink(SinkAround):
    def __init__(self, sink: Sink, nbytes: int) -> None:
        super().__init__(sink)
        self._last = nbytes - PAGE_BYTES

    def write(self, offset: int, data: memoryview) -> None:
        if offset <= self._last < offset + len(data):
            self._sink.write(self._last, data[self._last - offset :])


class _SpoilingTap(TapAround):
    def __init__(self, tap: Tap, spoil: Callable[[Bytes], None]) -> None:
        super().__init__(tap)
        self._spoil = spoil

    def read(self, offset: int, into: memoryview) -> None:
        self._tap.read(offset, into)
        self._spoil(np.frombuffer(into, np.uint8))


# --- the limit -----------------------------------------------------------------------------


class _Link:
    """Says when the last byte of each transfer has passed."""

    def __init__(
        self,
        bytes_per_second: float,
        latency_ns: int,
        now_ns: Callable[[], int],
        sleep_s: Callable[[float], None],
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self.latency_ns = latency_ns
        self._now_ns = now_ns
        self._sleep_s = sleep_s
        self._free_ns = 0
        self._lock = threading.Lock()

    def begin(self, nbytes: int) -> int:
        """Return the instant at which a transfer that begins now may end."""
        with self._lock:
            begin_ns = max(self._free_ns, self._now_ns())
            self._free_ns = begin_ns + round(nbytes * NS_PER_S / self.bytes_per_second)
            return self._free_ns + self.latency_ns

    def end(self, at_ns: int) -> None:
        """Wait until then."""
        left_ns = at_ns - self._now_ns()
        if left_ns > 0:
            self._sleep_s(left_ns / NS_PER_S)


class _ThrottledSink(SinkAround):
    def __init__(self, sink: Sink, link: _Link) -> None:
        super().__init__(sink)
        self._link = link

    def write(self, offset: int, data: memoryview) -> None:
        end_ns = self._link.begin(len(data))
        self._sink.write(offset, data)
        self._link.end(end_ns)


class _ThrottledTap(TapAround):
    def __init__(self, tap: Tap, link: _Link) -> None:
        super().__init__(tap)
        self._link = link

    def read(self, offset: int, into: memoryview) -> None:
        end_ns = self._link.begin(len(into))
        self._tap.read(offset, into)
        self._link.end(end_ns)
