"""What is asked for, as numbers: a sequence of block accesses, parted into requests.

Whatever it is read from, it is read once. Blocks are numbered from 0 in the order in which they
first appear, so that arrays can serve as tables and a first access is one with a number that was
not there before. A sequence must never depend on the values of keys, only on which are equal.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kv_cache.core.block import KEY_BYTES, Key
from kv_cache.core.request import Request
from kv_cache.core.residency import Residency

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

BATCHES = 30
"""Stretches of a sequence, of as many accesses each, that are also counted each for itself."""
NO_PARENT = -1
"""In place of the block before one that is the first of its request: below every block."""
_PART = 1 << 16  # accesses that are made into Python numbers together


def held_sizes(sizes: Ints, residency: Residency, own_bits: int) -> Ints:
    """Return the bytes in the cache of blocks that have `sizes` in elements of `own_bits`."""
    each, places = np.unique(sizes, return_inverse=True)
    return np.array([residency.nbytes(n, own_bits) for n in each.tolist()], np.int64)[places]


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for what is computed once
class Accesses:
    """`blocks` is the block of each access, `begins` the first access of each request that asks for
    any; `sizes` are the bytes of each block and `tokens` what it holds (None: not known)."""

    blocks: Ints
    begins: Ints
    sizes: Ints
    tokens: Ints | None = None

    @property
    def lookups(self) -> int:
        return len(self.blocks)

    @property
    def requests(self) -> int:
        return len(self.begins)

    @property
    def unique(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of all accesses."""
        return int(self.sizes[self.blocks].sum())

    @property
    def working_set_bytes(self) -> int:
        """Bytes of all blocks, each once."""
        return int(self.sizes.sum())

    @cached_property
    def size(self) -> int | None:
        """Bytes of a block where all have the same; None where they differ or there are none."""
        if not len(self.sizes) or int(self.sizes.min()) != int(self.sizes.max()):
            return None
        return int(self.sizes[0])

    @cached_property
    def cost(self) -> int | None:
        """Tokens of a block where all have as many, 0 where nobody knows; None where they
        differ."""
        if self.tokens is None or not len(self.tokens):
            return 0
        return int(self.tokens[0]) if int(self.tokens.min()) == int(self.tokens.max()) else None

    @property
    def alone(self) -> bool:
        """Whether each request asks for one block: then a prefix is a block."""
        return self.requests == self.lookups

    @property
    def stretches(self) -> Ints:
        """Return of which of the `BATCHES` stretches each request is."""
        return self.begins * BATCHES // max(1, self.lookups)

    def first(self) -> Flags:
        """Return which accesses are the first of their block: misses of every cache that begins
        empty."""
        seen = np.maximum.accumulate(self.blocks)
        return np.concatenate((np.ones(min(1, len(seen)), bool), seen[1:] > seen[:-1]))

    def sized(self, sizes: Ints) -> "Accesses":
        """Return these accesses with other sizes."""
        return replace(self, sizes=sizes)

    def contents(self) -> "Contents":
        """Describe each block to policies. Its position is that of its first access."""
        firsts = np.flatnonzero(self.first())
        requests = np.searchsorted(self.begins, firsts, side="right") - 1
        depths = firsts - self.begins[requests]
        before = self.blocks[np.maximum(firsts - 1, 0)]
        tokens = np.zeros(self.unique, np.int64) if self.tokens is None else self.tokens
        return Contents(
            keys=[number.to_bytes(KEY_BYTES, "little") for number in range(self.unique)],
            tokens=_numbers(tokens),
            depths=_numbers(depths),
            parents=_numbers(np.where(depths > 0, before, NO_PARENT)),
        )

    def parts(self) -> Iterator["AccessPart"]:
        """Runs of whole requests, in order."""
        ends, stretches = np.append(self.begins[1:], self.lookups), self.stretches
        edges = np.flatnonzero(np.diff(stretches, prepend=NO_PARENT))
        row = 0
        while row < self.requests:
            begin = int(self.begins[row])
            after = max(row + 1, int(np.searchsorted(ends, begin + _PART, side="right")))
            end = int(ends[after - 1])
            numbers = self.blocks[begin:end]
            first, last = np.searchsorted(edges, (row + 1, after))
            changes = np.concatenate(((row,), edges[first:last]))
            yield AccessPart(
                begin=begin,
                numbers=numbers,
                blocks=numbers.tolist(),
                begins=self.begins[row:after] - begin,
                ends=ends[row:after] - begin,
                stretches=stretches[changes],
                stretch_begins=self.begins[changes] - begin,
            )
            row = after


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessPart:
    """Some whole requests. Places count from `begin`, the first access; `blocks` are the `numbers`,
    as Python has them; `begins` and `ends` are of each request, and `stretch_begins` of each of the
    `stretches` that it is of."""

    begin: int
    numbers: Ints
    blocks: list[int]
    begins: Ints
    ends: Ints
    stretches: Ints
    stretch_begins: Ints

    def requests(self) -> Iterator[tuple[int, int]]:
        """Where each request begins and ends."""
        return zip(self.begins.tolist(), self.ends.tolist(), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """Of each block: what a policy of the real tiers is told of a copy. Keys are
    not those of the trace, and as different. `parents` are blocks, or `NO_PARENT`."""

    keys: list[Key]
    tokens: "array[int]"
    depths: "array[int]"
    parents: "array[int]"


def gathered(requests: Iterable[Request]) -> Accesses:
    """Return the accesses of requests in their order. A block that nobody asks for again
    (`Request.once`) is one of its own; the size of a block is that of its first access."""
    numbers: dict[Key, int] = {}
    blocks, begins, sizes, tokens = (array("q") for _ in range(4))
    for request in requests:
        if not request.blocks:
            continue
        begins.append(len(blocks))
        if request.once:
            blocks.extend(range(len(sizes), len(sizes) + len(request.blocks)))
            sizes.extend(block.nbytes for block in request.blocks)
            tokens.extend(block.tokens for block in request.blocks)
            continue
        for key, held, nbytes, _ in request.blocks:
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(sizes)
                sizes.append(nbytes)
                tokens.append(held)
            blocks.append(number)
    return Accesses(
        blocks=_ints(blocks), begins=_ints(begins), sizes=_ints(sizes), tokens=_ints(tokens)
    )


def accesses_of(names: Iterable[int], sizes: Ints) -> Accesses:
    """Accesses of one block each; `sizes` are those of each name."""
    numbers = np.fromiter(names, np.int64)
    unique, first, of = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(unique), np.int64)
    number[order] = np.arange(len(unique))
    return Accesses(
        blocks=number[of.reshape(-1)], begins=np.arange(len(numbers)), sizes=sizes[unique[order]]
    )


def next_uses(blocks: Ints) -> Ints:
    """Find where the block of each access is accessed next; the length if it never is."""
    order = np.argsort(blocks, kind="stable")
    ordered = blocks[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    uses = np.full(len(blocks), len(blocks), np.int64)
    uses[order[again]] = order[again + 1]
    return uses


def _ints(values: "array[int]") -> Ints:
    return np.array(values, np.int64)


def _numbers(values: Ints) -> "array[int]":
    return array("q", values.astype(np.int64, copy=False).tobytes())
