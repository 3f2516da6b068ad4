"""The only source of chance. Every component gets a child seed named after itself.

Named children (not a shared stream) make a draw independent of the order in which components
draw, of threads, and of which features are on: user 7 asks the same on every machine. Derivation
is BLAKE2b over the path, and `random.Random` is specified to give the same numbers everywhere.
"""

import hashlib
import random

from msgspec import Struct


class Seed(Struct, frozen=True):
    """A value and the path of names that led here."""

    value: int
    path: tuple[str, ...] = ()

    def child(self, *names: str | int) -> "Seed":
        return Seed(self.value, (*self.path, *(str(n) for n in names)))

    def bits(self, nbytes: int = 16) -> bytes:
        """`nbytes` (at most 64) of this seed's own, unrelated to any other path's."""
        text = "\x1f".join((str(self.value), *self.path)).encode()
        return hashlib.blake2b(text, digest_size=nbytes).digest()

    def integer(self) -> int:
        return int.from_bytes(self.bits(), "little")

    def share(self) -> float:
        """Return a number from 0 to 1 (excluded), to be held against a probability."""
        return (self.integer() >> 75) / 2**53

    def rng(self) -> random.Random:
        """Return a fresh generator, always starting at the same point."""
        return random.Random(self.integer())


def fresh_seed() -> int:
    """Return a seed for a run that names none (32 bits, as the reference accepts); it is
    recorded."""
    return random.SystemRandom().randrange(2**32)
