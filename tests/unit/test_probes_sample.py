"""What kind of data is on the storage."""

from itertools import repeat

import numpy as np
import pytest

from kv_cache.bench.probes.payload_pages import MOST_PAGES, compressed_ratio, entropy_bits, examine
from kv_cache.core.units import PAGE_BYTES

ZERO = bytes(PAGE_BYTES)
EVEN = bytes(range(256)) * (PAGE_BYTES // 256)


def random_pages(count: int) -> list[bytes]:
    generator = np.random.Generator(np.random.SFC64(7))
    return [generator.bytes(PAGE_BYTES) for _ in range(count)]


def test_random_pages_are_incompressible_and_unique() -> None:
    found = examine(random_pages(256))
    assert found["pages"] == 256
    assert 7.9 < found["entropy_bits_per_byte"] < 8
    assert 1.0 < found["compressed_ratio"] < 1.01
    assert found["duplicate_share"] == 0
    assert found["zero_share"] == 0


def test_zeros_are_seen_as_zeros_duplicates_and_compressible() -> None:
    found = examine([ZERO] * 100)
    assert found["entropy_bits_per_byte"] == 0
    assert found["compressed_ratio"] < 0.01
    assert found["duplicate_share"] == 0.99
    assert found["zero_share"] == 1


def test_one_random_page_repeated_is_seen_as_duplicates() -> None:
    found = examine(random_pages(1) * 64)
    assert found["duplicate_share"] == 1 - 1 / 64
    assert found["entropy_bits_per_byte"] > 7.9
    assert found["compressed_ratio"] < 0.1


def test_duplicates_that_zlib_cannot_reach_are_still_seen() -> None:
    """Its window is 32 KiB; a repeat that lies farther away compresses nothing."""
    found = examine(random_pages(64) * 2)
    assert found["compressed_ratio"] > 1
    assert found["duplicate_share"] == 0.5


def test_the_share_of_zero_pages_in_a_mixture() -> None:
    assert examine([ZERO, *random_pages(3)])["zero_share"] == 0.25


def test_entropy_is_shannons() -> None:
    assert entropy_bits(EVEN) == 8
    assert entropy_bits(b"ab" * 100) == 1
    assert entropy_bits(ZERO) == 0


def test_low_entropy_without_repeats_is_seen() -> None:
    """Random digits: no two pages alike, but half of each byte says nothing."""
    generator = np.random.Generator(np.random.SFC64(7))
    pages = [generator.integers(0, 16, PAGE_BYTES, np.uint8).tobytes() for _ in range(16)]
    found = examine(pages)
    assert found["duplicate_share"] == 0
    assert 3.9 < found["entropy_bits_per_byte"] <= 4
    assert compressed_ratio(pages) < 0.65


def test_views_of_buffers_are_pages_as_well() -> None:
    buffer = bytearray(b"".join(random_pages(2)))
    views = [memoryview(buffer)[:PAGE_BYTES], memoryview(buffer)[PAGE_BYTES:]]
    assert examine(views) == examine([bytes(view) for view in views])


def test_no_pages_give_nulls() -> None:
    found = examine([])
    assert found.pop("pages") == 0
    assert set(found.values()) == {None}


def test_an_endless_sample_ends() -> None:
    assert examine(repeat(ZERO))["pages"] == MOST_PAGES


def test_half_a_page_is_a_mistake_of_the_program() -> None:
    with pytest.raises(AssertionError, match="whole pages"):
        examine([ZERO[:100]])
