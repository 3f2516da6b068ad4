"""The only counter of bytes in a tier.

`used` is what physically exists or is being written, from before the first byte is written until
after the delete has ended. `held` is free space that plans have claimed. Always:

    used + held <= limit          (so capacity holds at every instant, in-flight bytes included)

A plan that frees space takes what it freed into its own claim, so that no other plan takes it
between the delete and the write.
"""

from msgspec import Struct


class Claim(Struct, eq=False):
    """Space that one plan needs in one tier; `held` of it is already there."""

    need: int
    held: int = 0

    @property
    def complete(self) -> bool:
        return self.held >= self.need


class Ledger:
    """Bytes of one tier. `capacity` None is unlimited (virtual time only)."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.used = 0
        self.held = 0
        self.stranded = 0  # part of `used`: a delete failed, so the bytes may still be there
        self.peak = 0

    def free(self, limit: int | None) -> int | None:
        """Return the bytes that can be claimed now under `limit` (at most the capacity); None = no
        limit."""
        return None if limit is None else max(0, limit - self.used - self.held)

    def claim(self, need: int, held: int) -> Claim:
        self.held += held
        return Claim(need=need, held=held)

    def begin(self, nbytes: int, claim: Claim) -> None:
        """Bytes begin to exist, out of `claim`."""
        assert claim.held >= nbytes, "a write began without the space for it"
        claim.held -= nbytes
        claim.need -= nbytes
        self.held -= nbytes
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        assert self.capacity is None or self.used <= self.capacity, "a tier is over its capacity"

    def end(self, nbytes: int, claim: Claim | None = None) -> None:
        """Bytes have ceased to exist; `claim` takes what it still needs of them."""
        self.used -= nbytes
        assert self.used >= 0, "more bytes were freed than there were"
        if claim is not None:
            taken = min(nbytes, claim.need - claim.held)
            claim.held += taken
            self.held += taken

    def strand(self, nbytes: int) -> None:
        """A delete failed: the bytes stay counted for ever."""
        self.stranded += nbytes

    def release(self, claim: Claim) -> None:
        """Give up what is left of a claim."""
        self.held -= claim.held
        claim.need = claim.held = 0
