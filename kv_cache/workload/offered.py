"""How much reuse a workload offers: the hits of a cache without limits.

A hit ratio says nothing by itself. It is at most what was offered, and the difference is what the
cache did not keep, had not stored yet, or could not read.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from kv_cache.core.block import Block
from kv_cache.core.kinds import Lookup
from kv_cache.core.request import Request

MOST_REMEMBERED = 2_000_000
"""Blocks that are remembered (about 0.3 GB); beyond it the ones asked for longest ago are
forgotten, and what was offered is a lower bound."""


class Offered:
    """Counts of each request, in the order in which they come, what was asked for before.

    What every pass over a trace names anew is forgotten with the pass behind it. What is there
    before the first request, and shared prompts, stay.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._stays: set[int] = set()
        self._seen: dict[int, None] = {}  # the last asked for at the end
        self._before: dict[int, None] = {}  # of the pass before this one
        self._cycle = 0
        self.forgotten = 0

    def add(self, blocks: Iterable[Block]) -> None:
        """Add blocks that are there before the first request."""
        self._stays.update(map(_short, blocks))

    def see(self, request: Request) -> Request:
        """Return `request` with `offered_blocks` and `offered_tokens`."""
        if request.once:
            return request
        if request.cycle > self._cycle:
            self._cycle = request.cycle
            self._before, self._seen = self._seen, {}
        if request.lookup is Lookup.OPERATION:
            return self._operation(request)
        blocks = tokens = 0
        for place, (block, filled) in enumerate(
            zip(request.blocks, request.tokens_in_blocks, strict=True)
        ):
            if self._remember(_short(block), stays=place < request.shared):
                blocks += 1
                tokens += filled
        if not blocks:
            return request
        return replace(request, offered_blocks=blocks, offered_tokens=tokens)

    def _operation(self, request: Request) -> Request:
        """Count an operation of an I/O trace: only what was written can be read, a write looks for
        nothing, and a read stores nothing."""
        (block,) = request.blocks
        if not request.new_from:
            self._remember(_short(block), stays=False)
            return request
        if _short(block) not in self._seen:
            return request
        return replace(request, offered_blocks=1, offered_tokens=block.tokens)

    def _remember(self, name: int, *, stays: bool) -> bool:
        """Return whether it was known."""
        if name in self._stays:
            return True
        seen = self._seen
        known = name in seen
        if known:
            del seen[name]
        elif name in self._before:
            known = True
            del self._before[name]
        if stays:
            self._stays.add(name)
            return known
        seen[name] = None
        if len(seen) > self._most:
            del seen[next(iter(seen))]
            self.forgotten += 1
        return known


def _short(block: Block) -> int:
    """Return 64 of the key's bits: two of a million blocks share them once in 37 million runs."""
    return int.from_bytes(block.key[:8], "little")
