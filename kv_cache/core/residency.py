"""Blocks that lie in a cache or a tier in fewer bits: more of them fit, and each hit has to be
widened.

Only room and bytes are looked at. What fewer bits do to a model's answers is no matter of caching
and is not told here; what widening costs is never known here either: it is what the caller says,
with its source, or nothing at all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_cache.core.errors import ConfigError, did_you_mean

BITS: Mapping[str, int] = {"fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "int2": 2}
SCALED_BITS = 8
"""Types of so many bits and fewer have scales."""
SCALE_BYTES = 4
"""Of a group of elements: a scale and a zero point of 16 bits each (KIVI, arXiv 2402.02750)."""

_PART = re.compile(r"(\d*)([a-z]+\d+)")


def parts_of(text: str) -> list[tuple[int, str]]:
    """Read how a block is held: `int4`, or `4fp16+28int4` where 4 of 32 equal parts, as layers or
    groups of heads, are held otherwise than the rest. Raises ValueError for what is neither."""
    parts = []
    for part in text.split("+"):
        match = _PART.fullmatch(part)
        if match is None or match[1] == "0" or not (match[1] or part == text):
            raise ValueError(text)
        parts.append((int(match[1] or 1), match[2]))
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """How blocks lie in the cache: all of one type, or parts of each in several (`parts_of`).
    `group` elements share scales, in types of 8 bits and fewer; 0 = no scales lie with the blocks.
    `costs_ns` is what widening one stored byte of a type takes, where somebody says."""

    name: str
    group: int = 0
    costs_ns: Mapping[str, float] = field(default_factory=dict)

    def nbytes(self, logical: int, own_bits: int) -> int:
        """Return the bytes in the cache of a block that has `logical` bytes in elements of
        `own_bits`."""
        elements, parts = logical * 8 // own_bits, parts_of(self.name)
        whole = sum(count for count, _ in parts)
        nbytes = upto = counted = 0
        for count, name in parts:
            upto += count
            some = elements * upto // whole - counted
            counted = counted + some
            nbytes = nbytes + self._bytes(some, BITS[name])
        return nbytes

    def _bytes(self, elements: int, bits: int) -> int:
        groups = -(-elements // self.group) if self.group and bits <= SCALED_BITS else 0
        return -(-elements * bits // 8) + groups * SCALE_BYTES

    @property
    def bits(self) -> float:
        """Bits of an element, on average."""
        parts = parts_of(self.name)
        return sum(count * BITS[name] for count, name in parts) / sum(count for count, _ in parts)

    @property
    def scaled(self) -> bool:
        """Whether any part has scales."""
        return any(BITS[name] <= SCALED_BITS for _, name in parts_of(self.name))

    @property
    def cost_ns(self) -> float | None:
        """What widening one stored byte takes; None where nobody says it of any part."""
        if not self.costs_ns:
            return None
        stored = [(count * BITS[name], name) for count, name in parts_of(self.name)]
        if all(name not in self.costs_ns for _, name in stored):
            return None
        cost = sum(bits * self.costs_ns.get(name, 0.0) for bits, name in stored)
        return cost / sum(bits for bits, _ in stored)

    def seconds(self, loaded_bytes: int) -> float | None:
        """Time that widening so many stored bytes takes."""
        cost_ns = self.cost_ns
        return None if cost_ns is None else loaded_bytes * cost_ns / 1e9


def read_residency(
    name: str, where: str, *, group: int = 0, costs_ns: Mapping[str, float] | None = None
) -> Residency:
    """Raises ConfigError, which names `where`, for what is neither a type nor parts of several."""
    try:
        parts = parts_of(name)
    except ValueError:
        raise ConfigError(
            f"{where}: {name!r} is neither a type ({', '.join(BITS)}) nor parts of several; give "
            "them as 4fp16+28int4"
        ) from None
    for _, of in parts:
        if of not in BITS:
            raise ConfigError(f"{where}: {of!r} is not a type.{did_you_mean(of, BITS)}")
    return Residency(name=name, group=group, costs_ns=costs_ns or {})
