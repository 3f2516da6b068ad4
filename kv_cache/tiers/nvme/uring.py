"""Reads and writes through io_uring: one ring a thread, a chunk as a batch of requests.

The rings are the native transfers' (`tiers/native`). A run's bytes go to them by tables of many
objects (`bench/batches.py`); here is how one tap or sink is read and written by itself.
"""

import ctypes
import functools

import numpy as np

from kv_cache.core.errors import StoreError
from kv_cache.core.units import MIB
from kv_cache.tiers import native
from kv_cache.tiers.base import Span, store_error
from kv_cache.tiers.native import AbortFlag, Does, Piece, PieceTable, Transfers

PIECE_BYTES = 2 * MIB  # of a request; a huge page
DEPTH = 64

_NEVER = AbortFlag()


def uring_missing() -> str | None:
    """Return why io_uring cannot be used here; None if it can."""
    library = native.library()
    if isinstance(library, str):
        return f"its bytes are moved by native code, and {library}; or use direct"
    refusal = _transfers(library).ring_refusal()
    return None if refusal is None else f"the kernel refuses io_uring ({refusal}); use direct"


@functools.cache
def _transfers(library: ctypes.CDLL) -> Transfers:
    return Transfers(library, np.empty((0, 1), np.uint64), depth=DEPTH)


class UringRegion:
    """A span, by batches of positional requests; short ones are asked for again."""

    def __init__(self, span: Span) -> None:
        library = native.library()
        assert not isinstance(library, str), library
        self._span, self._transfers = span, _transfers(library)

    def read(self, offset: int, into: memoryview) -> None:
        self._transfer(offset, into, Does.READ, "truncated")

    def write(self, offset: int, data: memoryview) -> None:
        self._transfer(offset, data, Does.WRITE, "short-write")

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _transfer(self, offset: int, data: memoryview, does: Does, short: str) -> None:
        at, address = self._span.offset + offset, np.frombuffer(data, np.uint8).ctypes.data
        pieces = [
            Piece(0, does, self._span.fd, at + begin, nbytes, address + begin, 0, 0, 0)
            for begin in range(0, len(data), PIECE_BYTES)
            for nbytes in (min(PIECE_BYTES, len(data) - begin),)
        ]
        moved = self._transfers.run_at_once(PieceTable(pieces), _NEVER, DEPTH)
        nbytes = sum(piece.nbytes for piece in moved)
        error = next((piece.error for piece in moved if piece.error), 0)  # others may be left out
        if error == native.SHORT:
            raise StoreError(short, "the file ends before its object does", nbytes)
        if error:
            raise store_error(OSError(error, ""), nbytes)
