"""What is written: unique, incompressible, reproducible, and nearly free.

Generating noise at device speed would cost a core for every few GB/s and be the bottleneck
itself. So every buffer of the store pool holds the same noise for ever, made once from the seed,
and only a stamp in each 4 KiB page changes: 16 bytes at its head, 8 at its tail. A stamp is

    word(page) = base + page * odd constant      (mod 2^64, for each of three words)

with `base` hashed from (seed, key, version) and `page` counted from the object's start. Within an
object no two pages can agree; between objects two 64-bit words would have to collide at once. So
no 4 KiB page of a run equals another, a compressor finds nothing in a page, and any page can be
checked alone: wrong key, stale version, wrong place, torn (head without tail) and missing data
all show in the stamp.
"""

import hashlib
import struct

import numpy as np

from kv_cache.core.effect import CopyRef
from kv_cache.core.seed import Seed
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.buffers import Buffer, Bytes

_STEPS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd, so injective
_WORDS = (0, 1, PAGE_BYTES // 8 - 1)  # where in a page the three words stand

MISMATCH = "verification-failed"


class Payload:
    """The bytes of every copy of a run; `buffer_bytes` is the period of the noise."""

    def __init__(self, seed: Seed, buffer_bytes: int) -> None:
        self._salt = seed.bits(32)
        noise = np.random.Generator(np.random.SFC64(seed.integer()))
        self._noise: Bytes = np.frombuffer(noise.bytes(buffer_bytes), np.uint8)
        pages = np.arange(buffer_bytes // PAGE_BYTES, dtype=np.uint64)
        self._ramps = tuple(pages * np.uint64(step) for step in _STEPS)
        self._noise_words = self._noise.view(np.uint64).reshape(-1, PAGE_BYTES // 8)

    def fill(self, buffer: Buffer) -> None:
        """Make a buffer of the store pool; `stamp` then changes it for each use."""
        buffer.array[:] = self._noise

    def stamp(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int) -> None:
        """Let the first `nbytes` of `buffer` be those of `ref` at `offset` (whole buffers)."""
        pages = nbytes // PAGE_BYTES
        words = buffer.words
        for word, ramp, base in zip(_WORDS, self._ramps, self._bases(ref, offset), strict=True):
            np.add(ramp[:pages], base, out=words[:pages, word])

    def matches(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int, full: bool) -> bool:
        """Whether the first `nbytes` are those of `ref` at `offset`; `full` compares every byte."""
        pages = nbytes // PAGE_BYTES
        words = buffer.words
        for word, ramp, base in zip(_WORDS, self._ramps, self._bases(ref, offset), strict=True):
            if not np.array_equal(words[:pages, word], ramp[:pages] + base):
                return False
        if not full:
            return True
        between = slice(_WORDS[1] + 1, _WORDS[2])
        return np.array_equal(words[:pages, between], self._noise_words[:pages, between])

    def _bases(self, ref: CopyRef, offset: int) -> list[np.uint64]:
        page = offset // PAGE_BYTES
        name = ref.key + struct.pack("<Q", ref.version)
        digest = hashlib.blake2b(name, digest_size=24, key=self._salt).digest()
        hashed = struct.unpack("<3Q", digest)
        return [
            np.uint64((base + page * step) % 2**64)
            for base, step in zip(hashed, _STEPS, strict=True)
        ]
