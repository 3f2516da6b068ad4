"""What is written: unique, incompressible, reproducible, and nearly free.

Generating noise at device speed would cost a core for every few GB/s and be the bottleneck
itself. So every buffer of the store pool keeps its noise, made once from the seed, and only a
stamp in each 4 KiB page changes: 16 bytes at its head, 8 at its tail. A stamp is

    word(page) = base + page * odd constant      (mod 2^64, for each of three words)

with `base` hashed from (seed, key, version) and `page` counted from the object's start. Within an
object no two pages can agree; between objects two 64-bit words would have to collide at once. So
no 4 KiB page of a run equals another, a compressor finds nothing in a page, and any page can be
checked alone: wrong key, stale version, wrong place, torn (head without tail) and missing data
all show in the stamp. What is not whole pages (objects of 512 bytes, say) has the same stamp in
each sector of 512 bytes, counted from the object's start, in place of one in each page.

Below the page, noise comes again. So that a compressor whose window is longer than a buffer does
not find it there, noise comes in `TINTS` variants (a constant is added to each word). A buffer
takes one at its first use and keeps it for good; the buffers of an object take turns where the
pool has one of the wanted tint free, so that its noise mostly repeats only after `TINTS` buffers.
What is smaller than 1 MiB begins at a place of the noise that follows from the identity of the
data, or behind another such piece, so that many small objects side by side have nothing in common
either. Reduction that looks
below the page and that far back (delta coding of similar blocks) can still find it.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_cache.core.effect import CopyRef
from kv_cache.core.seed import Seed
from kv_cache.core.units import PAGE_BYTES, SECTOR_BYTES, round_up
from kv_cache.tiers.buffers import Buffer

Words = npt.NDArray[np.uint64]

_STEPS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd, so injective
_THREE_WORDS = struct.Struct("<3Q")
_WORDS = (0, 1, -1)  # where in a page, or sector, the three words are
_TINT = 0xD6E8FEB86659FD93
_PLAIN = 2  # a word of a page, or sector, that is no stamp
_FARTHEST = 256  # pages of a small piece's place; a large one stays where huge pages begin
_STEP = 128  # pages compared at a time, so that what is left of them stays in the cache

TINTS = 4
_ADDED = frozenset(tint * _TINT % 2**64 for tint in range(TINTS))
MISMATCH = "verification-failed"


def stamped_bytes(nbytes: int) -> int:
    """Return from stamp to stamp of an object of `nbytes`: a page, or a sector if it is not whole
    pages."""
    return SECTOR_BYTES if nbytes % PAGE_BYTES else PAGE_BYTES


class Payload:
    """The bytes of every copy of a run, in pieces of at most `buffer_bytes`."""

    def __init__(self, seed: Seed, buffer_bytes: int) -> None:
        self._salted = hashlib.blake2b(digest_size=24, key=seed.bits(32))
        self._buffer_bytes = buffer_bytes
        noise = np.random.Generator(np.random.SFC64(seed.integer()))
        flat = np.frombuffer(noise.bytes(buffer_bytes), np.uint64)
        self._noise = flat.reshape(-1, PAGE_BYTES // 8)
        self._last: tuple[tuple[bytes, int], tuple[int, ...]] = ((b"", 0), ())
        self._places: dict[int, dict[int, int]] = {}
        numbers = np.arange(buffer_bytes // SECTOR_BYTES, dtype=np.uint64)
        self._ramps = tuple(numbers * np.uint64(step) for step in _STEPS)

    @property
    def noise(self) -> Words:
        """Pages of 64-bit words, of which all are made."""
        return self._noise

    def tint(self, ref: CopyRef, offset: int) -> int:
        """Return which variant of the noise a buffer for `ref` at `offset` should have, if one is
        free."""
        return self._tint(self._hashed(ref), offset)

    def bases(self, ref: CopyRef, offset: int) -> tuple[int, ...]:
        """Return the three words of the stamp of the page, or sector, of `ref` at `offset`."""
        number, hashed = offset // stamped_bytes(ref.nbytes), self._hashed(ref)
        if not number:
            return hashed
        pairs = zip(hashed, _STEPS, strict=True)
        return tuple((base + number * step) % 2**64 for base, step in pairs)

    def firsts(self, refs: Sequence[CopyRef]) -> list[tuple[int, ...]]:
        """Return the three words of the stamp of the first page, or sector, of each copy."""
        return [self._stamp_of(ref.key, ref.version) for ref in refs]

    def stamps_from(self, firsts: Words, numbers: npt.NDArray[Any]) -> Words:
        """Return the three words of each of many stamps: `numbers` pages, or sectors, after those
        of `firsts`."""
        return firsts + numbers.astype(np.uint64)[:, np.newaxis] * np.array(_STEPS, np.uint64)

    def place(self, ref: CopyRef, pages: int) -> int:
        """Return the page of a buffer at which so many pages, `ref` first, should lie."""
        return self.shift(self._hashed(ref), pages, len(self._noise))

    def room(self, pages: int, most: int) -> int:
        """Return in how many pages an object of so many has places to lie at, of `most`."""
        return min(most, pages + _FARTHEST) if pages < _FARTHEST else pages

    def shift(self, first: Sequence[int], pages: int, room: int) -> int:
        """Return the page of so much room at which an object of `pages` should lie, whose first
        stamp is given."""
        spare = min(room - pages, _FARTHEST) if pages < _FARTHEST else 0
        return first[1] % (spare + 1)

    def fill(self, buffer: Buffer, pages: int, tint: int) -> None:
        """Make sure that the first pages hold noise, in the tint that the buffer has for good: this
        one if it holds none yet."""
        first = buffer.filled_pages
        if not first:
            buffer.tint = tint
        if first < pages:
            noise = self._noise[first:pages]
            np.add(noise, _word(buffer.tint * _TINT), out=buffer.words[first:pages])
            buffer.filled_pages = pages

    def stamp(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int) -> memoryview:
        """Make the `nbytes` of `ref` at `offset` (whole buffers) somewhere in `buffer`: the answer
        says where. Nearly free once the buffer has been used.
        """
        pages, hashed = round_up(nbytes, PAGE_BYTES) // PAGE_BYTES, self._hashed(ref)
        shift, apart = self.shift(hashed, pages, len(self._noise)), stamped_bytes(ref.nbytes)
        self.fill(buffer, shift + pages, self._tint(hashed, offset))
        begin = shift * PAGE_BYTES
        words = _units(buffer.words, apart)[begin // apart : (begin + nbytes) // apart]
        for word, stamps in self._stamps(len(words), self.bases(ref, offset)):
            words[:, word] = stamps
        if apart != PAGE_BYTES:  # some of its noise is gone, where a page has no stamp
            buffer.filled_pages = shift
        return buffer.view[begin : begin + nbytes]

    def matches(self, buffer: Buffer, ref: CopyRef, offset: int, nbytes: int, full: bool) -> bool:
        """Return whether the first `nbytes` are those of `ref` at `offset`; `full` compares every
        byte."""
        apart = stamped_bytes(ref.nbytes)
        words = _units(buffer.words, apart)[: nbytes // apart]
        return self._has_stamps(words, ref, offset) and (not full or self._is_noise(words))

    def matches_page(self, page: bytes, ref: CopyRef, offset: int) -> bool:
        """Return whether a page has the stamps of `ref` at `offset`."""
        words = np.frombuffer(page, np.uint64).reshape(-1, stamped_bytes(ref.nbytes) // 8)
        return self._has_stamps(words, ref, offset)

    def _has_stamps(self, words: Words, ref: CopyRef, offset: int) -> bool:
        return all(
            np.array_equal(words[:, word], stamps)
            for word, stamps in self._stamps(len(words), self.bases(ref, offset))
        )

    def _is_noise(self, words: Words) -> bool:
        """Return whether all but the stamps is right: noise of pages, or sectors, in a row taken
        away, one tint must be left of all."""
        noise = _units(self._noise, 8 * words.shape[1])
        places = self._places.get(words.shape[1])
        if places is None:
            places = {int(word): at for at, word in enumerate(noise[:, _PLAIN])}
            self._places[words.shape[1]] = places
        plain = int(words[0, _PLAIN])
        for added in _ADDED:
            shift = places.get((plain - added) % 2**64)
            if shift is not None and shift + len(words) <= len(noise):
                return self._has_added(words, noise[shift : shift + len(words)], added)
        return False

    def _has_added(self, words: Words, noise: Words, added: int) -> bool:
        scratch = np.empty((_STEP, words.shape[1]), np.uint64)
        for start in range(0, len(words), _STEP):
            read = words[start : start + _STEP]
            left = scratch[: len(read)]
            np.subtract(read, noise[start : start + len(read)], out=left)
            left[:, _WORDS] = _word(added)
            if not (left == _word(added)).all():
                return False
        return True

    def _stamps(self, count: int, bases: tuple[int, ...]) -> Iterator[tuple[int, Words]]:
        """Return the place and the values of each of the three words."""
        for word, ramp, base in zip(_WORDS, self._ramps, bases, strict=True):
            yield word, ramp[:count] + _word(base)

    def _hashed(self, ref: CopyRef) -> tuple[int, ...]:
        name = ref.key, ref.version
        last, hashed = self._last  # asked for the same copy several times in a row
        if last != name:
            hashed = self._stamp_of(*name)
            self._last = (name, hashed)
        return hashed

    def _stamp_of(self, key: bytes, version: int) -> tuple[int, ...]:
        hashed = self._salted.copy()
        hashed.update(key + version.to_bytes(8, "little"))
        return _THREE_WORDS.unpack(hashed.digest())

    def _tint(self, hashed: tuple[int, ...], offset: int) -> int:
        return (hashed[0] + offset // self._buffer_bytes) % TINTS


def _units(words: Words, nbytes: int) -> Words:
    """Return the same words in rows of so many bytes."""
    return words.reshape(-1, nbytes // 8)


def _word(value: int) -> np.uint64:
    return np.uint64(value % 2**64)
