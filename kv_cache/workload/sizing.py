"""From tokens to blocks: the geometry of one run."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_cache.core.block import Block, Key, content_key
from kv_cache.core.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """`block_tokens` 0 means one object for each turn. Sizes are one rank's share, in bytes."""

    model: ModelShape
    tensor_parallel: int
    block_tokens: int

    def block(self, key: Key, tokens: int) -> Block:
        return Block(key, tokens, self.model.object_bytes(tokens, self.tensor_parallel))

    def stream(self, name: Sequence[str | int], first: int, count: int) -> tuple[Block, ...]:
        """Blocks `first` to `first + count` of a token stream that only ever grows."""
        return tuple(
            self.block(content_key(*name, index), self.block_tokens)
            for index in range(first, first + count)
        )
