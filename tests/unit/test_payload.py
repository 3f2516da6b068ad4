"""The payload: no two pages alike, nothing to compress, and whatever goes wrong is seen."""

import hashlib
import importlib.util
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB, PAGE_BYTES, SECTOR_BYTES
from kv_cache.tiers.buffers import Buffer, BufferPool, aligned_bytes
from kv_cache.tiers.payload import Payload

BUFFER = 64 * KIB
PAGES = BUFFER // PAGE_BYTES
STAMP_BYTES = [*range(16), *range(PAGE_BYTES - 8, PAGE_BYTES)]

keys = st.binary(min_size=16, max_size=16)
versions = st.integers(0, 2**64 - 1)
offsets = st.integers(0, 2**26).map(lambda buffers: buffers * BUFFER)

PAYLOAD = Payload(Seed(7).child("payload"), BUFFER)


def ref(key: bytes = b"k" * 16, version: int = 0, nbytes: int = BUFFER) -> CopyRef:
    return CopyRef(1, key, Tier.NVME, nbytes, version)


def fresh(nbytes: int = BUFFER) -> Buffer:
    return Buffer(aligned_bytes(nbytes))


def stamped(copy: CopyRef, offset: int = 0) -> Buffer:
    buffer = fresh()
    PAYLOAD.stamp(buffer, copy, offset, BUFFER)
    return buffer


def loaded(payload: Payload, copy: CopyRef, offset: int, nbytes: int) -> Buffer:
    """A buffer as it is after a load: the bytes stand at its beginning."""
    made, buffer = Buffer(aligned_bytes(300 * PAGE_BYTES)), fresh(300 * PAGE_BYTES)
    buffer.view[:nbytes] = payload.stamp(made, copy, offset, nbytes)
    return buffer


def objects(seed: int, buffer_bytes: int, buffers: int, copies: list[CopyRef]) -> Iterator[bytes]:
    """The bytes of copies, buffer by buffer, as one thread writes them from a pool."""
    payload = Payload(Seed(seed), buffer_bytes)
    pool = BufferPool(buffers, buffer_bytes)
    for copy in copies:
        for offset in range(0, copy.nbytes, buffer_bytes):
            buffer = pool.take(payload.tint(copy, offset))
            n = min(buffer_bytes, copy.nbytes - offset)
            yield bytes(payload.stamp(buffer, copy, offset, n))
            pool.give(buffer)


# --- unique --------------------------------------------------------------------------------------


def test_no_page_of_64_mib_equals_another() -> None:
    copies = [
        ref(content_key("object", number), version, 3 * MIB + 5 * PAGE_BYTES)
        for number in range(8)
        for version in range(3)
    ]
    digests = set()
    pages = 0
    for chunk in objects(1, MIB, 4, copies):
        for start in range(0, len(chunk), PAGE_BYTES):
            digests.add(hashlib.blake2b(chunk[start : start + PAGE_BYTES]).digest())
            pages += 1
    assert pages * PAGE_BYTES > 64 * MIB
    assert len(digests) == pages


@given(st.lists(st.tuples(keys, versions, offsets), min_size=2, max_size=6, unique=True))
def test_pages_of_different_keys_versions_and_positions_differ(
    places: list[tuple[bytes, int, int]],
) -> None:
    pages = set()
    for key, version, offset in places:
        buffer = stamped(ref(key, version), offset)
        pages |= {bytes(buffer.view[i : i + PAGE_BYTES]) for i in range(0, BUFFER, PAGE_BYTES)}
    assert len(pages) == len(places) * PAGES


def test_pages_differ_also_where_the_same_buffer_is_used_again() -> None:
    buffer = fresh()
    seen = set()
    for number in range(50):
        PAYLOAD.stamp(buffer, ref(content_key(number)), 0, BUFFER)
        seen |= {bytes(buffer.view[i : i + PAGE_BYTES]) for i in range(0, BUFFER, PAGE_BYTES)}
    assert len(seen) == 50 * PAGES


# --- incompressible ------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_bytes", [MIB, 4 * MIB])
def test_zlib_finds_nothing(buffer_bytes: int) -> None:
    data = b"".join(objects(2, buffer_bytes, 4, [ref(nbytes=2 * buffer_bytes)]))
    assert len(zlib.compress(data, 6)) >= 0.99 * len(data)


@pytest.mark.skipif(importlib.util.find_spec("zstandard") is None, reason="needs zstandard")
@pytest.mark.parametrize("buffer_bytes", [MIB, 4 * MIB])
@pytest.mark.parametrize("long_window", [False, True])
def test_zstd_finds_nothing_in_an_object_of_several_buffers(
    buffer_bytes: int, long_window: bool
) -> None:
    import zstandard

    data = b"".join(objects(3, buffer_bytes, 4, [ref(nbytes=4 * buffer_bytes - PAGE_BYTES)]))
    parameters = (
        zstandard.ZstdCompressionParameters.from_level(3, window_log=27, enable_ldm=True)
        if long_window
        else zstandard.ZstdCompressionParameters.from_level(3)
    )
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(data)
    assert len(packed) >= 0.99 * len(data)


def test_bytes_are_spread_evenly() -> None:
    data = np.frombuffer(b"".join(objects(4, MIB, 2, [ref(nbytes=4 * MIB)])), np.uint8)
    shares = np.bincount(data, minlength=256) / len(data)
    entropy = -float((shares * np.log2(shares)).sum())
    assert entropy > 7.999


# --- reproducible --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes() -> None:
    copies = [ref(content_key("a"), 3, 5 * BUFFER), ref(content_key("b"), 0, PAGE_BYTES)]
    first = list(objects(5, BUFFER, 3, copies))
    assert list(objects(5, BUFFER, 3, copies)) == first
    assert not set(first) & set(objects(6, BUFFER, 3, copies))


@pytest.mark.parametrize("buffers", [1, 3, 20])
def test_whatever_buffer_was_free_every_byte_is_recognised(buffers: int) -> None:
    copies = [ref(content_key(number), number, 9 * BUFFER) for number in range(5)]
    chunks = objects(5, BUFFER, buffers, copies)
    payload, buffer = Payload(Seed(5), BUFFER), fresh()
    for copy in copies:
        for offset in range(0, copy.nbytes, BUFFER):
            buffer.view[:] = next(chunks)
            assert payload.matches(buffer, copy, offset, BUFFER, full=True)


def test_a_buffer_makes_its_noise_once() -> None:
    buffer = fresh()
    copies = [ref(content_key(number)) for number in range(20)]
    assert len({PAYLOAD.tint(copy, 0) for copy in copies}) > 1
    PAYLOAD.stamp(buffer, copies[0], 0, BUFFER)
    noise, tint = buffer.words[:, 100].copy(), buffer.tint
    for copy in copies:
        PAYLOAD.stamp(buffer, copy, 0, BUFFER)
        assert buffer.tint == tint
        assert np.array_equal(buffer.words[:, 100], noise)


def test_a_piece_put_together_of_two_buffers_is_seen_in_full() -> None:
    one, other = fresh(), fresh()
    first = next(c for c in map(ref, map(content_key, range(99))) if PAYLOAD.tint(c, 0) == 0)
    second = next(c for c in map(ref, map(content_key, range(99))) if PAYLOAD.tint(c, 0) == 1)
    PAYLOAD.stamp(one, first, 0, BUFFER)
    PAYLOAD.stamp(other, second, 0, BUFFER)
    PAYLOAD.stamp(other, first, 0, BUFFER)
    assert PAYLOAD.matches(other, first, 0, BUFFER, full=True)
    one.words[PAGES // 2 :] = other.words[PAGES // 2 :]
    assert PAYLOAD.matches(one, first, 0, BUFFER, full=False)
    assert not PAYLOAD.matches(one, first, 0, BUFFER, full=True)


@given(keys, versions, offsets)
def test_a_second_payload_of_the_same_seed_recognises_every_byte(
    key: bytes, version: int, offset: int
) -> None:
    buffer = fresh()
    Payload(Seed(8), BUFFER).stamp(buffer, ref(key, version), offset, BUFFER)
    assert Payload(Seed(8), BUFFER).matches(buffer, ref(key, version), offset, BUFFER, True)
    assert not Payload(Seed(9), BUFFER).matches(buffer, ref(key, version), offset, BUFFER, False)


# --- what goes wrong is seen ---------------------------------------------------------------------


def seen(buffer: Buffer, copy: CopyRef, offset: int = 0, nbytes: int = BUFFER) -> bool:
    """Whether a check by stamps sees damage; one of every byte must see it as well."""
    by_stamps = not PAYLOAD.matches(buffer, copy, offset, nbytes, full=False)
    in_full = not PAYLOAD.matches(buffer, copy, offset, nbytes, full=True)
    assert in_full or not by_stamps
    return by_stamps


@given(keys, versions, offsets, st.integers(1, PAGES))
def test_what_was_written_is_right(key: bytes, version: int, offset: int, pages: int) -> None:
    nbytes = pages * PAGE_BYTES
    buffer = loaded(PAYLOAD, ref(key, version), offset, nbytes)
    assert not seen(buffer, ref(key, version), offset, nbytes)
    buffer.array[nbytes:] = 0  # beyond the end nothing is looked at
    assert PAYLOAD.matches(buffer, ref(key, version), offset, nbytes, full=True)


@given(keys, keys, versions, versions)
def test_another_key_or_version_is_seen(key: bytes, other: bytes, old: int, new: int) -> None:
    buffer = stamped(ref(key, old))
    if key != other:
        assert seen(buffer, ref(other, old))
    if old != new:
        assert seen(buffer, ref(key, new))


def test_a_stale_version_in_a_single_page_is_seen_wherever_it_is() -> None:
    old = stamped(ref(version=1))
    for page in range(PAGES):
        buffer = stamped(ref(version=2))
        buffer.words[page] = old.words[page]
        assert seen(buffer, ref(version=2))


@given(st.integers(1, PAGES - 1))
def test_shifted_pages_are_seen(by: int) -> None:
    buffer = stamped(ref())
    buffer.words[:] = np.roll(buffer.words, by, axis=0)
    assert seen(buffer, ref())


def test_a_buffer_of_another_offset_is_seen() -> None:
    buffer = stamped(ref(), 3 * BUFFER)
    for offset in (0, BUFFER, 2 * BUFFER, 4 * BUFFER):
        assert seen(buffer, ref(), offset)


@given(st.lists(st.integers(0, PAGES - 1), min_size=2, max_size=2, unique=True))
def test_swapped_pages_are_seen(two: list[int]) -> None:
    buffer = stamped(ref())
    buffer.words[two] = buffer.words[two[::-1]]
    assert seen(buffer, ref())


@given(st.integers(0, PAGES - 1), st.integers(1, 7), st.booleans())
def test_a_torn_page_is_seen(page: int, sectors: int, same_buffer: bool) -> None:
    """Its first sectors are of the new object, the rest are what was there before."""
    new, old = ref(version=2), ref(version=1)
    buffer = stamped(old)
    before = stamped(old).words[page].copy() if not same_buffer else buffer.words[page].copy()
    PAYLOAD.stamp(buffer, new, 0, BUFFER)
    start = sectors * 64
    buffer.words[page, start:] = before[start:]
    assert seen(buffer, new)


@given(st.integers(0, PAGES - 1))
def test_an_object_cut_short_and_filled_with_zeros_is_seen(pages: int) -> None:
    buffer = stamped(ref())
    buffer.words[pages:] = 0
    assert seen(buffer, ref())


@pytest.mark.parametrize("page", [0, PAGES - 1])
def test_each_flipped_bit_of_a_stamp_is_seen(page: int) -> None:
    buffer = stamped(ref())
    for byte in STAMP_BYTES:
        for bit in range(8):
            buffer.array[page * PAGE_BYTES + byte] ^= 1 << bit
            assert seen(buffer, ref()), (byte, bit)
            buffer.array[page * PAGE_BYTES + byte] ^= 1 << bit
    assert not seen(buffer, ref())


@given(st.integers(0, BUFFER - 1), st.integers(0, 7))
@settings(max_examples=400)
def test_in_full_each_flipped_bit_is_seen(byte: int, bit: int) -> None:
    buffer = stamped(ref())
    buffer.array[byte] ^= 1 << bit
    assert not PAYLOAD.matches(buffer, ref(), 0, BUFFER, full=True)


def _zeros(buffer: Buffer) -> None:
    buffer.array[:] = 0


def _ones(buffer: Buffer) -> None:
    buffer.array[:] = 0xFF


def _noise(buffer: Buffer) -> None:
    Payload(Seed(99), BUFFER).stamp(buffer, ref(b"z" * 16), 0, BUFFER)


@pytest.mark.parametrize("damage", [_zeros, _ones, _noise])
def test_data_that_never_arrived_is_seen(damage: Callable[[Buffer], None]) -> None:
    buffer = stamped(ref())
    damage(buffer)
    assert seen(buffer, ref())
    assert seen(buffer, ref(), nbytes=PAGE_BYTES)


def test_a_buffer_smaller_than_the_compared_step_and_a_partial_last_step_are_checked() -> None:
    payload = Payload(Seed(11), 300 * PAGE_BYTES)
    for pages in (1, 127, 128, 129, 299, 300):
        nbytes = pages * PAGE_BYTES
        buffer = loaded(payload, ref(), 0, nbytes)
        assert payload.matches(buffer, ref(), 0, nbytes, full=True)
        buffer.array[nbytes - 9] ^= 1
        assert not payload.matches(buffer, ref(), 0, nbytes, full=True)
        buffer.array[nbytes - 9] ^= 1


def test_small_objects_side_by_side_do_not_compress() -> None:
    copies = [ref(content_key("small", n), 0, 10 * PAGE_BYTES) for n in range(100)]
    data = b"".join(objects(3, MIB, 4, copies))
    assert len(zlib.compress(data, 1)) > 0.97 * len(data)


# --- objects that are not whole pages ------------------------------------------------------------

sectors = st.integers(1, 40).filter(lambda count: count % 8)


@given(keys, versions, sectors)
def test_what_is_not_whole_pages_has_a_stamp_in_each_sector(
    key: bytes, version: int, count: int
) -> None:
    copy = ref(key, version, count * SECTOR_BYTES)
    buffer = loaded(PAYLOAD, copy, 0, copy.nbytes)
    assert not seen(buffer, copy, 0, copy.nbytes)
    for sector in range(count):
        bases = PAYLOAD.bases(copy, sector * SECTOR_BYTES)
        words = buffer.array[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES].view(np.uint64)
        assert tuple(int(words[at]) for at in (0, 1, 63)) == bases
    assert seen(buffer, ref(key, version + 1, copy.nbytes), 0, copy.nbytes)


@given(sectors, st.data())
def test_a_flipped_bit_in_any_sector_is_seen_in_full_and_in_a_stamp_always(
    count: int, data: st.DataObject
) -> None:
    copy = ref(nbytes=count * SECTOR_BYTES)
    buffer = loaded(PAYLOAD, copy, 0, copy.nbytes)
    byte = data.draw(st.integers(0, copy.nbytes - 1))
    buffer.array[byte] ^= 1 << data.draw(st.integers(0, 7))
    of_stamp = byte % SECTOR_BYTES < 16 or byte % SECTOR_BYTES >= SECTOR_BYTES - 8
    assert seen(buffer, copy, 0, copy.nbytes) == of_stamp
    assert not PAYLOAD.matches(buffer, copy, 0, copy.nbytes, full=True)


def test_a_buffer_that_had_sectors_holds_noise_again_for_pages() -> None:
    buffer = fresh()
    PAYLOAD.stamp(buffer, ref(nbytes=7 * SECTOR_BYTES), 0, 7 * SECTOR_BYTES)
    PAYLOAD.stamp(buffer, ref(), 0, BUFFER)
    assert PAYLOAD.matches(buffer, ref(), 0, BUFFER, full=True)


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=9))
def test_the_stamps_of_many_places_are_those_of_each(numbers: list[int]) -> None:
    copies = [ref(version=0, nbytes=MIB), ref(version=1, nbytes=MIB)]
    of = np.arange(len(numbers)) % 2
    firsts = np.array(PAYLOAD.firsts(copies), np.uint64)
    many = PAYLOAD.stamps_from(firsts[of], np.array(numbers, np.uint64))
    each = [PAYLOAD.bases(copies[i % 2], n * PAGE_BYTES) for i, n in enumerate(numbers)]
    assert [tuple(map(int, row)) for row in many] == each
