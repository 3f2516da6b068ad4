"""What all caches of one sequence share: made once, and only where a cache needs it."""

from array import array
from functools import cached_property

from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses, Contents, Ints, next_uses


class SharedState:
    """`seed` is that of caches which leave what they evict to chance."""

    def __init__(self, accesses: Accesses, seed: Seed) -> None:
        self.accesses = accesses
        self.seed = seed

    @cached_property
    def sequence(self) -> "array[int]":
        """The block of each access."""
        return array("q", self.accesses.blocks.tobytes())

    @cached_property
    def sizes(self) -> "array[int]":
        """The bytes of each block."""
        return array("q", self.accesses.sizes.tobytes())

    @cached_property
    def uses(self) -> Ints:
        """Positions at which the block of each access is accessed next."""
        return next_uses(self.accesses.blocks)

    @cached_property
    def contents(self) -> Contents:
        return self.accesses.contents()
