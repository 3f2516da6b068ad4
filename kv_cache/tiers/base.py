"""The store seam: where the bytes of copies live.

The caller guarantees:
 1. A copy is created once (`create`), opened only after its sink was committed, deleted once, and
    never opened again after that; it is not deleted while a tap of it is open.
 2. Offsets and lengths are whole pages, and buffers come from a `BufferPool`.
 3. Every sink ends with `commit` or `abort`; every tap with `close`. Neither is used by two
    threads at once; different sinks and taps are.
The store guarantees:
 4. After `commit` the copy is complete, and durable where `Capability.DURABLE` is declared.
 5. After `abort`, or after an error of `create`, nothing of the copy is left.
 6. What goes wrong in the storage is a `StoreError` with a short stable reason; what goes wrong
    in the program is any other exception.
 7. `read` fills the whole buffer or raises.
 8. `engine` names what really moved the bytes of this sink or tap; `removal` what a delete does.
 9. `steps` of a sink or tap lists its operations on metadata, so far, with their length: they are
    part of the time that its calls took. `spans` says where on files its bytes are; empty where
    they are in none.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Flag, auto
from typing import Any, NamedTuple, Protocol, TypeVar

from kv_cache.core.effect import VANISHED, CopyRef, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier

FREE = "free"
"""The removal of a store that only notes what is free: no device is asked."""


class Capability(Flag):
    """What a store declares, checked before a run starts."""

    NONE = 0
    DIRECT = auto()  # bypasses the page cache
    DURABLE = auto()  # committed data survives power loss
    EMULATED = auto()  # in place of hardware that is not there
    DATA = auto()  # keeps the bytes (the null store does not)
    POSITIONAL = auto()  # positional calls may move them, to and from the spans of taps and sinks
    AT_ONCE = auto()  # and those of a batch, in one call, at the same time
    READ_RINGS = auto()  # reads go through an io_uring
    WRITE_RINGS = auto()  # writes do
    WHOLE = auto()  # positional calls are all that an operation needs, but for those of `place`
    PLACED = auto()  # without taps and sinks: it is a `PlacedStore`
    FOUND_AT_ONCE = auto()  # and all of a batch are found together: `places`
    NOWHERE = auto()  # and are not moved at all: a rehearsal does all but the system calls
    MEMORY = auto()  # spans have no file: their offsets are addresses


RINGS = Capability.READ_RINGS | Capability.WRITE_RINGS


class Span(NamedTuple):
    """A piece of an open file."""

    fd: int
    offset: int
    length: int


class Steps(list[MetadataStep]):
    """Operations on metadata, as they are done."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        yield
        self.append(MetadataStep(name, time.monotonic_ns() - began_ns))


class Sink(Protocol):
    engine: str

    @property
    def steps(self) -> Sequence[MetadataStep]: ...

    @property
    def spans(self) -> Sequence[Span]: ...

    def write(self, offset: int, data: memoryview) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class Tap(Protocol):
    engine: str

    @property
    def steps(self) -> Sequence[MetadataStep]: ...

    @property
    def spans(self) -> Sequence[Span]: ...

    def read(self, offset: int, into: memoryview) -> None: ...

    def close(self) -> None: ...


class Store(Protocol):
    tier: Tier
    capabilities: Capability
    removal: str

    def create(self, ref: CopyRef) -> Sink: ...

    def open(self, ref: CopyRef) -> Tap: ...

    def delete(self, ref: CopyRef) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        """Return what the result says about this store."""

    def close(self) -> None:
        """Give memory and descriptors back. Files are removed by the owner of the directory."""


NEW_MODE = 0o600
"""Of a file that is made."""


class Names(NamedTuple):
    """What becomes of a file that one object has to itself, for those who open and close it
    themselves."""

    directory: int  # an open one, that names are relative to
    name: bytes
    flags: int  # of open(2)
    sync: bool  # when it is written
    complete: bytes | None  # what it is called from then on, when it is written
    engine: str
    offset: int = 0  # of the object in its file
    keep: bool = False  # when it is written it stays open, for `synced_with`
    steps: Sequence[MetadataStep] = ()


class Unsynced(NamedTuple):
    """Files to sync together: a descriptor of each, and all those to close afterwards."""

    files: Sequence[int]
    fds: Sequence[int]


class Place(NamedTuple):
    """Where an object's bytes are, in files that are open as long as their store."""

    spans: Sequence[Span]
    steps: Sequence[MetadataStep]  # that it took to find it
    engine: str
    sync: Sequence[int] = ()  # descriptors, when it is written
    keep: bool = False  # when it is written, `synced_with`
    ends: bool = False  # a write by `complete`
    memory: object = None  # that spans without a file are in, kept as long as this is


class PlacedStore(Store, Protocol):
    """A store whose objects can be had without taps and sinks."""

    def place(self, ref: CopyRef, *, writes: bool) -> Names | Place:
        """Return how to write or read a copy. Raises StoreError."""

    def places(
        self, refs: Sequence[CopyRef], *, writes: bool
    ) -> Sequence[Place | Names | StoreError]:
        """Return how to write or read each copy, or why it cannot be: of a store that is
        `FOUND_AT_ONCE`."""

    def synced_with(self, ref: CopyRef, spans: Sequence[Span], fd: int | None) -> Unsynced | None:
        """Note that a copy was written, in a file that is open as `fd`, which is the store's from
        now on, or in those of `spans`; return what is to be synced now."""

    def end_writes(self, refs: Sequence[CopyRef]) -> Sequence[CopyRef]:
        """End the writes of those copies for which that takes no steps; return the others."""

    def complete(self, ref: CopyRef, spans: Sequence[Span]) -> Sequence[MetadataStep]:
        """End the write of a copy, if it has not ended; return the steps that it took."""

    def give_up(self, ref: CopyRef, spans: Sequence[Span]) -> None:
        """Remove what was written of a copy, in `spans` or under its names."""


_Placed = TypeVar("_Placed", Place, Place | Names)


def place_each(
    place: Callable[[CopyRef], _Placed], refs: Sequence[CopyRef]
) -> Sequence[_Placed | StoreError]:
    """Return what `place` says of each copy, or why it cannot."""
    placed: list[_Placed | StoreError] = []
    for ref in refs:
        try:
            placed.append(place(ref))
        except StoreError as error:
            placed.append(error)
    return placed


def call_nothing() -> None:
    """Make a call of the system that waits for nothing, as a rehearsal does in place of one that
    might: it gives the interpreter lock away, and what a thread waits for until it has it again is
    a part of what the client costs. (A sleep of 0 s takes 50 us, which the kernel may be late.)"""
    os.stat("/")


_REASONS = {
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-space",
    errno.EIO: "io-error",
    errno.ENOENT: VANISHED,
    errno.EROFS: "read-only",
    errno.EACCES: "permission-denied",
    errno.EPERM: "permission-denied",
    errno.EMFILE: "too-many-open-files",
    errno.ENFILE: "too-many-open-files",
}


def reason_of(error: OSError) -> str:
    """Return a short stable word for an operating system error."""
    number = error.errno or 0
    return _REASONS.get(number) or errno.errorcode.get(number, "os-error").lower()


def store_error(error: OSError, moved_bytes: int = 0) -> StoreError:
    """Return what the operating system refused as a value of the storage under test."""
    return StoreError(reason_of(error), os.strerror(error.errno or 0), moved_bytes)


class _StoreErrors:
    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise store_error(error) from error


_STORE_ERRORS = _StoreErrors()  # keeps nothing, so that one is enough; a generator takes 1 us


def store_errors() -> _StoreErrors:
    """Turn operating system errors into values of the storage under test."""
    return _STORE_ERRORS
