"""Blocks that lie in the cache in fewer bits: more of them fit, and each hit has to be widened.

Only room and bytes are looked at. What fewer bits do to a model's answers is no matter of caching
and is not told here; what widening costs is never known here either: it is what the caller says,
with its source, or nothing at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kv_cache.lab.accesses import Ints

BITS: Mapping[str, int] = {"fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "int2": 2}
SCALED_BITS = 8
"""Types of so many bits and fewer have scales."""
SCALE_BYTES = 4
"""Of a group of elements: a scale and a zero point of 16 bits each (KIVI, arXiv 2402.02750)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """How blocks lie in the cache. `group` elements share scales, in types of 8 bits and fewer; 0 =
    no scales lie with the blocks. `cost_ns` is what widening one stored byte takes; None where
    nobody says."""

    name: str
    group: int = 0
    cost_ns: float | None = None

    def sizes(self, logical: Ints, own_bits: int) -> Ints:
        """Return the bytes of blocks in the cache that have `logical` bytes in elements of
        `own_bits`."""
        bits = BITS[self.name]
        elements = logical * 8 // own_bits
        groups = -(-elements // self.group) if self.group and bits <= SCALED_BITS else 0 * elements
        nbytes: Ints = -(-elements * bits // 8) + groups * SCALE_BYTES
        return nbytes

    def seconds(self, loaded_bytes: int) -> float | None:
        """Time that widening so many stored bytes takes."""
        return None if self.cost_ns is None else loaded_bytes * self.cost_ns / 1e9
