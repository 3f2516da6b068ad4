"""Is the payload what a KV cache looks like to a drive: incompressible and without repeats?

Drives and file systems that compress or deduplicate make zeros and repeated blocks fast; so a
sample of the pages that are really on the storage is examined, not the generator's promise.
"""

import zlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_cache.core.units import PAGE_BYTES

MOST_PAGES = 1024
"""What follows in the sample is left alone: 1024 pages cost about 0.1 s of CPU."""

_LEVEL = 1


def examine(pages: Iterable[bytes | bytearray | memoryview]) -> dict[str, Any]:
    """Return the section `payload` of a passport's evidence, of a sample of pages of 4096 bytes.

    `entropy_bits_per_byte` is the mean of the pages' (7.95 for random bytes: 4096 of them do not
    fill 256 values evenly), `compressed_ratio` what zlib level 1 makes of the whole sample (1.0
    for random bytes), `duplicate_share` of pages that came before, byte for byte, zeros included.
    """
    sample = [bytes(page) for page in islice(pages, MOST_PAGES)]
    assert all(len(page) == PAGE_BYTES for page in sample), "a sample is of whole pages"
    count = len(sample)
    if not count:
        keys = ("entropy_bits_per_byte", "compressed_ratio", "duplicate_share", "zero_share")
        return {"pages": 0} | dict.fromkeys(keys)
    return {
        "pages": count,
        "entropy_bits_per_byte": float(np.mean([entropy_bits(page) for page in sample])),
        "compressed_ratio": compressed_ratio(sample),
        "duplicate_share": 1 - len(set(sample)) / count,  # a set goes by their hashes
        "zero_share": sample.count(bytes(PAGE_BYTES)) / count,
    }


def entropy_bits(data: bytes) -> float:
    """Compute Shannon's entropy of the bytes' frequencies: 0 to 8 bits for each byte."""
    counts: npt.NDArray[np.int64] = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    shares = counts[counts > 0] / len(data)
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # no negative zero


def compressed_ratio(pages: Iterable[bytes]) -> float:
    """Compute compressed size over size."""
    whole = b"".join(pages)
    return len(zlib.compress(whole, _LEVEL)) / len(whole)
