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
not find it there, noise comes in `TINTS` variants (a constant is added to each word). A buffer
takes one at its first use and keeps it for good; the buffers of an object take turns where the
pool has one of the wanted tint free, so that its noise mostly repeats only after `TINTS` buffers.
What is smaller than 1 MiB begins at a place of the noise that follows from the identity of the
data, so that many small objects side by side have nothing in common either. Reduction that looks
below the page and that far back (delta coding of similar blocks) can still find it.
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
_WORDS = (0, 1, PAGE_BYTES // 8 - 1)  # where in a page the three words are
_TINT = 0xD6E8FEB86659FD93
_PLAIN = 2  # a word of a page that is no stamp
_FARTHEST = 256  # pages of a small piece's place; a large one stays where huge pages begin
_STEP = 128  # pages compared at a time, so that what is left of them stays in the cache

TINTS = 4
_ADDED = frozenset(tint * _TINT % 2**64 for tint in range(TINTS))
MISMATCH = "verification-failed"


class _Identity(NamedTuple):
    """What the bytes at one place of one copy are made from."""

    bases: tuple[int, ...]
    tint: int
    shift: int


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
        """Return which variant of the noise a buffer for `ref` at `offset` should have, if one is
        free."""
        return self._identity(ref, offset, 0).tint

    def stamp(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int) -> memoryview:
        """Make the `nbytes` of `ref` at `offset` (whole buffers) somewhere in `buffer`: the answer
        says where. Nearly free once the buffer has been used.
        """
        pages = nbytes // PAGE_BYTES
        bases, tint, shift = self._identity(ref, offset, pages)
        if not buffer.filled_pages:
            buffer.tint = tint
        self._fill(buffer, shift + pages)
        words = buffer.words[shift : shift + pages]
        for word, stamps in self._stamps(pages, bases):
            words[:, word] = stamps
        return buffer.view[shift * PAGE_BYTES : shift * PAGE_BYTES + nbytes]

    def matches(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int, full: bool) -> bool:
        """Return whether the first `nbytes` are those of `ref` at `offset`; `full` compares every
        byte."""
        words = buffer.words[: nbytes // PAGE_BYTES]
        bases, _, shift = self._identity(ref, offset, len(words))
        for word, stamps in self._stamps(len(words), bases):
            if not np.array_equal(words[:, word], stamps):
                return False
        return not full or self._is_noise(words, shift)

    def _fill(self, buffer: Buffer, pages: int) -> None:
        """Make sure that the first pages hold noise, in the tint that the buffer has for good."""
        first = buffer.filled_pages
        if first < pages:
            noise = self._noise[first:pages]
            np.add(noise, _word(buffer.tint * _TINT), out=buffer.words[first:pages])
            buffer.filled_pages = pages

    def _is_noise(self, words: Words, shift: int) -> bool:
        """Return whether all but the stamps is right: noise taken away, one tint must be left of
        all."""
        tint = (int(words[0, _PLAIN]) - int(self._noise[shift, _PLAIN])) % 2**64
        if tint not in _ADDED:
            return False
        added = np.uint64(tint)
        scratch = np.empty((_STEP, words.shape[1]), np.uint64)
        for start in range(0, len(words), _STEP):
            read = words[start : start + _STEP]
            left = scratch[: len(read)]
            first = shift + start
            np.subtract(read, self._noise[first : first + len(read)], out=left)
            left[:, _WORDS] = added
            if not (left == added).all():
                return False
        return True

    def _stamps(self, pages: int, bases: tuple[int, ...]) -> Iterator[tuple[int, Words]]:
        """Return the place and the values of each of the three words."""
        for word, ramp, base in zip(_WORDS, self._ramps, bases, strict=True):
            yield word, ramp[:pages] + _word(base)

    def _identity(self, ref: CopyRef, offset: int, pages: int) -> _Identity:
        page = offset // PAGE_BYTES
        name = ref.key + struct.pack("<Q", ref.version)
        digest = hashlib.blake2b(name, digest_size=24, key=self._salt).digest()
        hashed = struct.unpack("<3Q", digest)
        tint = (hashed[0] + offset // self._buffer_bytes) % TINTS
        bases = tuple(base + page * step for base, step in zip(hashed, _STEPS, strict=True))
        room = min(len(self._noise) - pages, _FARTHEST) if pages < _FARTHEST else 0
        shift = hashed[1] % (room + 1)
        return _Identity(bases, tint, shift)


def _word(value: int) -> np.uint64:
    return np.uint64(value % 2**64)
