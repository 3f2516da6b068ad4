"""What is written: unique, incompressible, reproducible, and nearly free.

Generating noise at device speed would cost a core for every few GB/s and be the bottleneck
itself. So every buffer of the store pool keeps its noise, made once from the seed, and only a
stamp in each 4 KiB page changes: 16 bytes at its head, 8 at its tail. A stamp is

    word(page) = base + page * odd constant      (mod 2^64, for each of three words)

with `base` hashed from (seed, key, version) and `page` counted from the object's start. Within an
object no two pages can agree; between objects two 64-bit words would have to collide at once. So
no 4 KiB page of a run equals another, a compressor finds nothing in a page, and any page can be
checked alone: wrong key, stale version, wrong place, torn (head without tail) and missing data
all show in the stamp.

Below the page, noise comes again. So that a compressor whose window is longer than a buffer does
not find it there, noise comes in `TINTS` variants (a constant is added to each word), and the
buffers of an object take turns: its noise repeats only after `TINTS` buffers. Which variant a
buffer must have follows from the identity of its data, so the bytes depend on nothing else; the
pool hands out a buffer that has it already, where one is free, and otherwise it is made anew.
Reduction that looks below the page and that far back (delta coding of similar blocks) can still
find it.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kv_cache.core.effect import CopyRef
from kv_cache.core.seed import Seed
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.buffers import Buffer

Words = npt.NDArray[np.uint64]

_STEPS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd, so injective
_WORDS = (0, 1, PAGE_BYTES // 8 - 1)  # where in a page the three words stand
_TINT = 0xD6E8FEB86659FD93
_STEP = 128  # pages compared at a time, so that what is left of them stays in the cache

TINTS = 4
MISMATCH = "verification-failed"


class _Identity(NamedTuple):
    """What the bytes at one place of one copy are made from."""

    bases: tuple[int, ...]
    tint: int


class Payload:
    """The bytes of every copy of a run, in pieces of at most `buffer_bytes`."""

    def __init__(self, seed: Seed, buffer_bytes: int) -> None:
        self._salt = seed.bits(32)
        self._buffer_bytes = buffer_bytes
        noise = np.random.Generator(np.random.SFC64(seed.integer()))
        flat = np.frombuffer(noise.bytes(buffer_bytes), np.uint64)
        self._noise = flat.reshape(-1, PAGE_BYTES // 8)
        pages = np.arange(buffer_bytes // PAGE_BYTES, dtype=np.uint64)
        self._ramps = tuple(pages * np.uint64(step) for step in _STEPS)

    def tint(self, ref: CopyRef, offset: int) -> int:
        """Which variant of the noise the buffer for `ref` at `offset` has."""
        return self._identity(ref, offset).tint

    def stamp(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int) -> None:
        """Let the first `nbytes` of `buffer` be those of `ref` at `offset` (whole buffers).

        Nearly free where the buffer was last used with the same tint.
        """
        bases, tint = self._identity(ref, offset)
        pages = nbytes // PAGE_BYTES
        self._fill(buffer, tint, pages)
        words = buffer.words[:pages]
        for word, stamps in self._stamps(pages, bases):
            words[:, word] = stamps

    def matches(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int, full: bool) -> bool:
        """Whether the first `nbytes` are those of `ref` at `offset`; `full` compares every byte."""
        words = buffer.words[: nbytes // PAGE_BYTES]
        bases, tint = self._identity(ref, offset)
        for word, stamps in self._stamps(len(words), bases):
            if not np.array_equal(words[:, word], stamps):
                return False
        return not full or self._is_noise(words, tint)

    def _fill(self, buffer: Buffer, tint: int, pages: int) -> None:
        """Make sure that the first pages hold the noise of a tint."""
        if buffer.tint != tint:
            buffer.tint, buffer.filled_pages = tint, 0
        first = buffer.filled_pages
        if first < pages:
            noise = self._noise[first:pages]
            np.add(noise, _word(tint * _TINT), out=buffer.words[first:pages])
            buffer.filled_pages = pages

    def _is_noise(self, words: Words, tint: int) -> bool:
        """Whether all but the stamps is right: noise taken away, the tint alone must be left."""
        added = _word(tint * _TINT)
        scratch = np.empty((_STEP, words.shape[1]), np.uint64)
        for start in range(0, len(words), _STEP):
            read = words[start : start + _STEP]
            left = scratch[: len(read)]
            np.subtract(read, self._noise[start : start + len(read)], out=left)
            left[:, _WORDS] = added
            if not (left == added).all():
                return False
        return True

    def _stamps(self, pages: int, bases: tuple[int, ...]) -> Iterator[tuple[int, Words]]:
        """The place and the values of each of the three words."""
        for word, ramp, base in zip(_WORDS, self._ramps, bases, strict=True):
            yield word, ramp[:pages] + _word(base)

    def _identity(self, ref: CopyRef, offset: int) -> _Identity:
        page = offset // PAGE_BYTES
        name = ref.key + struct.pack("<Q", ref.version)
        digest = hashlib.blake2b(name, digest_size=24, key=self._salt).digest()
        hashed = struct.unpack("<3Q", digest)
        tint = (hashed[0] + offset // self._buffer_bytes) % TINTS
        bases = tuple(base + page * step for base, step in zip(hashed, _STEPS, strict=True))
        return _Identity(bases, tint)


def _word(value: int) -> np.uint64:
    return np.uint64(value % 2**64)
