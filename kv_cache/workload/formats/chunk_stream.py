"""Bytes that come in chunks, as a file that can be read."""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO


class ChunkStream(io.RawIOBase):
    """`chunks`, which are made from `source`; closing the stream closes that."""

    def __init__(self, chunks: Iterator[bytes], source: BinaryIO) -> None:
        self._chunks = chunks
        self._source = source
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()
