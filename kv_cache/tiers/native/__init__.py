"""Transfers of many pieces of files in one call, without the interpreter lock (`transfers.c`).

The library is made by `building.py`, and named after its source, so that one of another version is
never loaded. Where it is not there, `load` says why, and stores are read and written by their taps
and sinks, in Python.
"""

import ctypes
import errno
import functools
import os
import struct
import threading
import time
from collections.abc import Sequence
from enum import IntFlag
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kv_cache.tiers.native.building import library_path

MOST_DEPTH = 128
"""Pieces of a call that are in flight at a time, at most."""


SMALL_BYTES = 4096
"""Of a file that `read_files` reads: the kernel tells so much of a process in one call."""


class Does(IntFlag):
    """What is done with a piece, as in `transfers.c`."""

    READ = 0
    WRITE = 1
    STAMPED = 2  # a write is stamped first, the stamps of a read are looked at
    NOISE = 4  # and so is all between them
    NOWHERE = 8  # all of it but the system calls: a read finds what it looks for
    OPEN = 16  # steps of a file that the object has to itself
    SYNC = 32
    CLOSE = 64
    RENAME = 128
    SECTORS = 256  # the stamps are in every 512 bytes, and not in every page
    MEMORY = 512  # `offset` is an address: bytes are copied from there, or to there
    KEEP = 1024  # in place of closing: `nbytes` of what became of it is the open descriptor


STEPS = int(Does.OPEN | Does.SYNC | Does.CLOSE | Does.RENAME)


class Piece(NamedTuple):
    """Pieces of one object follow each other, and after a failure its rest is left out. The bases
    are the stamps of its first page, or sector."""

    object: int
    does: int
    fd: int
    offset: int
    nbytes: int
    address: int
    base0: int
    base1: int
    base2: int


def address_of(name: bytes) -> int:
    """Return where the bytes of a name are, a zero behind them, as long as it is kept."""
    return ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p).value or 0


class Moved(NamedTuple):
    """What became of a piece: instants of the monotonic clock around its system calls (0 if there
    were none), and how long it was stamped and verified. `error` is an errno, or one of those
    below 0."""

    began_ns: int
    ended_ns: int
    host_ns: int
    nbytes: int
    error: int


SHORT, WRONG, ABORTED, LEFT_OUT = -1, -2, -3, -4

_ASKED, _MOVED = "5q4Q", "5q"
_ROW = struct.Struct(f"={_ASKED}{_MOVED}")
_ASKED_FIELDS, _FIELDS = len(Piece._fields), len(Piece._fields + Moved._fields)
_DOES_AT = Piece._fields.index("does")
_NBYTES_AT = _ASKED_FIELDS + Moved._fields.index("nbytes")
_BEGAN = struct.Struct("=q")

ROW = np.dtype(
    [
        *((name, np.int64) for name in ("object", "does", "fd", "offset", "nbytes")),
        ("address", np.uint64), ("bases", np.uint64, 3),
        *((name, np.int64) for name in ("began_ns", "ended_ns", "host_ns", "moved", "error")),
    ]
)  # fmt: skip
"""The same row for tables that numpy makes: a `Piece`, then a `Moved`."""

_RESULT_AT = _ROW.size - struct.calcsize(f"={_MOVED}")


@functools.cache
def _table_of(count: int) -> struct.Struct:
    return struct.Struct("=" + f"{_ASKED}{8 * len(Moved._fields)}x" * count)


class PieceTable:
    """The rows of one call; what is done can be read while it is done."""

    def __init__(self, pieces: Sequence[tuple[int, ...]]) -> None:
        """Each is the values of a `Piece`."""
        self.count = len(pieces)
        self.rows = bytearray(_ROW.size * len(pieces))
        self._values = memoryview(self.rows).cast("q")
        _table_of(self.count).pack_into(self.rows, 0, *chain.from_iterable(pieces))

    @property
    def address(self) -> Any:
        """Of the rows. (An array of their length would be of a type of its own.)"""
        return ctypes.byref(ctypes.c_char.from_buffer(self.rows))

    def began_ns(self, number: int) -> int:
        """Return when the work at a piece began, by the monotonic clock; 0 before."""
        began_ns: int = _BEGAN.unpack_from(self.rows, number * _ROW.size + _RESULT_AT)[0]
        return began_ns

    def goes_on_since_ns(self, first: int, end: int) -> int:
        """Return when the work at such rows began; 0 before, and when all of them are over."""
        return 0 if self.are_over(first, end) else self.began_ns(first)

    def are_over(self, first: int, end: int) -> bool:
        """Return whether each of such rows has ended, or was left out."""
        return all(
            moved.ended_ns or (moved.error and not moved.began_ns)
            for _, moved in map(self.row, range(first, end))
        )

    def moved_bytes(self) -> int:
        """Return how many bytes have been moved so far; steps move none."""
        does = self._values[_DOES_AT::_FIELDS].tolist()
        moved: list[int] = self._values[_NBYTES_AT::_FIELDS].tolist()
        if not any(map(STEPS.__and__, does)):
            return sum(moved)
        return sum([nbytes for done, nbytes in zip(does, moved, strict=True) if not done & STEPS])

    def columns(self) -> list[list[int]]:
        """Return what became of all pieces, by the fields of `Moved`."""
        values = self._values
        return [values[at::_FIELDS].tolist() for at in range(_ASKED_FIELDS, _FIELDS)]

    def row(self, number: int) -> tuple[Piece, Moved]:
        values = _ROW.unpack_from(self.rows, number * _ROW.size)
        return Piece._make(values[:_ASKED_FIELDS]), Moved._make(values[_ASKED_FIELDS:])

    def fail(self, error: int) -> None:
        """Nothing was done, for that reason."""
        for at in range(_FIELDS - 1, len(self._values), _FIELDS):
            self._values[at] = error

    def moved(self) -> list[Moved]:
        return list(map(Moved._make, zip(*self.columns(), strict=True)))


class AbortFlag(threading.Event):
    """An event that a call outside the interpreter sees as well."""

    def __init__(self) -> None:
        super().__init__()
        self.word = ctypes.c_int32(0)

    def set(self) -> None:
        self.word.value = 1
        super().set()

    def clear(self) -> None:
        self.word.value = 0
        super().clear()


class _Opened:
    """What the library has opened: an io_uring of one thread (`ring`), or threads that help any
    (`crew`)."""

    def __init__(self, library: ctypes.CDLL, kind: str, size: int) -> None:
        """Raises OSError where the kernel refuses it."""
        self.handle = ctypes.c_void_p()
        self._close = library[f"kv_{kind}_close"]
        self._close.argtypes = (ctypes.c_void_p,)
        error = library[f"kv_{kind}_open"](size, ctypes.byref(self.handle))
        if error:
            raise OSError(error, os.strerror(error))

    def __del__(self) -> None:
        handle, self.handle = self.handle, ctypes.c_void_p()
        if handle:
            self._close(handle)


class _Noise(ctypes.Structure):
    _fields_ = (("words", ctypes.c_void_p), ("pages", ctypes.c_int64))


class _HeldPart(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


_MOST_HELD = 1 << 30  # by one part (io_uring_register(2))
_TRIES, _AGAIN_S = 50, 0.02


class Transfers:
    """Moves pieces between memory and files, for any number of threads."""

    def __init__(
        self, library: ctypes.CDLL, noise: npt.NDArray[np.uint64], *, depth: int = 1
    ) -> None:
        """`noise` has the pages that pieces are made of. Of a call at most `depth` pieces are in
        flight at a time."""
        self._library = library
        self._pages = noise  # kept, as the library is given its address
        self._noise = ctypes.byref(_Noise(noise.ctypes.data, len(noise)))
        self._local, self._lock = threading.local(), threading.Lock()
        self._helpers: _Opened | None = None
        self._memory: list[_HeldPart] = []
        self.not_held: str | None = None
        """Why the kernel does not hold the memory for each ring; None while it does."""
        self.depth = min(depth, MOST_DEPTH)

    def hold(self, *memory: npt.NDArray[np.uint8]) -> None:
        """Have rings that are made from now on hold the pages of this memory, so that transfers
        from and to it find them at once (`IORING_REGISTER_BUFFERS`). Where the kernel refuses it,
        as beyond RLIMIT_MEMLOCK, they look for them each time."""
        self._memory = [
            _HeldPart(array.ctypes.data + begin, min(_MOST_HELD, array.nbytes - begin))
            for array in memory
            for begin in range(0, array.nbytes, _MOST_HELD)
        ]

    def run(self, table: PieceTable, abort: AbortFlag) -> list[Moved]:
        """Transfer all pieces one by one, by pread and pwrite, until `abort` is set; return what
        became of each, in their order."""
        word = ctypes.byref(abort.word)
        self._library.kv_transfer(table.address, table.count, word, self._noise)
        return table.moved()

    def work_off(self, rows: npt.NDArray[np.void], abort: AbortFlag, depth: int = 0) -> None:
        """As `run`, of a table of `ROW` without gaps, which is filled in and can be read meanwhile;
        with a `depth` through this thread's io_uring, so many at a time. Raises OSError where there
        can be no ring, or one fails."""
        assert rows.dtype == ROW
        assert rows.flags.c_contiguous
        word, at, count = ctypes.byref(abort.word), rows.ctypes.data, len(rows)
        if depth:
            self._through_ring(self._ring(), at, count, depth, word)
        else:
            self._library.kv_transfer(at, count, word, self._noise)

    def share_out(self, table: PieceTable, abort: AbortFlag, *, apart: int, slots: int) -> None:
        """As `run`, with the help of `depth` - 1 threads, which all callers share. Rows have the
        addresses of the first of `slots` places in memory, `apart` bytes from each other: each
        thread has one of them for all its objects, so that stamps must be as far apart in all.
        Raises OSError where there can be no such threads."""
        self._library.kv_transfer_by_crew(
            self._crew().handle, table.address, table.count, apart, slots,
            ctypes.byref(abort.word), self._noise,
        )  # fmt: skip

    def run_at_once(self, table: PieceTable, abort: AbortFlag, depth: int) -> list[Moved]:
        """As `run`, through a ring."""
        self.through_ring(table, abort, depth)
        return table.moved()

    def through_ring(self, table: PieceTable, abort: AbortFlag, depth: int) -> None:
        """Transfer all pieces through this thread's io_uring, `depth` at a time. Where there can be
        no ring, that is the error of each. Raises OSError where one fails; nothing of it is in
        flight then."""
        try:
            ring = self._ring()
        except OSError as error:
            table.fail(error.errno or errno.EIO)
            return
        word = ctypes.byref(abort.word)
        self._through_ring(ring, table.address, table.count, depth, word)

    def _through_ring(self, ring: _Opened, at: Any, count: int, depth: int, word: Any) -> None:
        noise = self._noise
        failed = self._library.kv_transfer_many(ring.handle, at, count, depth, word, noise)
        if failed:
            self._local.ring = None  # it is gone
            raise OSError(failed, os.strerror(failed))

    def ring_refusal(self) -> str | None:
        """Return why the kernel allows no io_uring, or does not know its reads and writes (Linux
        5.6), by letting some bytes go to nowhere; None if it does."""
        data = ctypes.create_string_buffer(8)
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            piece = Piece(0, Does.WRITE, fd, 0, 8, ctypes.addressof(data), 0, 0, 0)
            error = self.run_at_once(PieceTable([piece]), AbortFlag(), 1)[0].error
            return os.strerror(error) if error else None
        finally:
            os.close(fd)

    def try_rings(self, count: int) -> None:
        """Open so many rings at a time, and close them. Raises OSError where there is no room."""
        opened = [_Opened(self._library, "ring", self.depth) for _ in range(count)]
        del opened

    def open_ring(self) -> None:
        """Make this thread's ring now, so that no transfer waits for it; where there can be none,
        each transfer says so."""
        for _ in range(_TRIES):
            try:
                self._ring()
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    return
                time.sleep(_AGAIN_S)  # what closed rings had is given back a little later
            else:
                return

    def open_crew(self) -> None:
        """Start the threads that help now, so that a run without them is refused before it begins.
        Raises OSError; RuntimeError, as Python does, where the system starts no more threads."""
        try:
            self._crew()
        except BlockingIOError as error:
            raise RuntimeError("can't start new thread") from error

    def _crew(self) -> _Opened:
        with self._lock:
            if self._helpers is None:
                self._helpers = _Opened(self._library, "crew", self.depth - 1)
        return self._helpers

    def _ring(self) -> _Opened:
        """Return this thread's ring, which goes with it."""
        ring: _Opened | None = getattr(self._local, "ring", None)
        if ring is None:
            ring = self._local.ring = _Opened(self._library, "ring", self.depth)
            if self._memory:
                parts = (_HeldPart * len(self._memory))(*self._memory)
                refused = self._library.kv_ring_hold(ring.handle, parts, len(parts))
                self.not_held = os.strerror(refused) if refused else self.not_held
        return ring


def wake_up(loaded: ctypes.CDLL, interval_ns: int, count: int) -> list[int]:
    """Return by how much so many instants were missed, `interval_ns` apart, by a thread that has no
    business with the interpreter meanwhile; more of them where the last wake-up came so late that
    it passed others."""
    late_ns = (ctypes.c_int64 * count)()
    loaded.kv_wake_up(interval_ns, count, late_ns)
    return [*late_ns, *range(late_ns[-1] - interval_ns, 0, -interval_ns)]


def read_files(loaded: ctypes.CDLL, paths: Sequence[str]) -> list[bytes | None]:
    """Return what is in files of less than `SMALL_BYTES`, None of those that cannot be read, by a
    thread that asks for the interpreter's lock once and not several times a file."""
    into = bytearray(SMALL_BYTES * len(paths))
    lengths = (ctypes.c_int64 * len(paths))()
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    place = (ctypes.c_char * len(into)).from_buffer(into)
    loaded.kv_read_files(names, len(paths), place, SMALL_BYTES, lengths)
    starts = range(0, len(into), SMALL_BYTES)
    return [
        None if length < 0 else bytes(into[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]


@functools.cache
def library() -> ctypes.CDLL | str:
    """Return the library, or why there is none."""
    path = library_path()
    if not path.exists():
        return f"{path.name} was not built: python -m kv_cache.tiers.native"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded ({error})"
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    loaded.kv_transfer.argtypes = (pointer, number, pointer, pointer)
    loaded.kv_wake_up.argtypes = (number, number, pointer)
    loaded.kv_read_files.argtypes = (ctypes.c_char_p, number, pointer, number, pointer)
    loaded.kv_transfer_by_crew.argtypes = (pointer, pointer, *(number,) * 3, pointer, pointer)
    loaded.kv_ring_hold.argtypes = (pointer, pointer, ctypes.c_uint)
    loaded.kv_transfer_many.argtypes = (pointer, pointer, number, number, pointer, pointer)
    return loaded
