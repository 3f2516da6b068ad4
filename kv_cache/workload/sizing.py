"""From tokens to blocks: the geometry of one run."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from kv_cache.core.block import Block, Key, numbered_keys, of_block
from kv_cache.core.model import ModelShape


class Geometry(Struct, frozen=True, kw_only=True):
    """`block_tokens` 0 means one object for each turn: then layers with a sliding window count
    only its end. Sizes are one rank's share, in bytes. `layerwise`: a tier keeps what belongs
    together as one object for each layer."""

    model: ModelShape
    tensor_parallel: int
    block_tokens: int
    layerwise: bool = False

    @property
    def objects(self) -> int:
        return self.model.num_layers if self.layerwise else 1

    def nbytes(self, tokens: int) -> int:
        """Return the bytes of one object of `tokens` tokens."""
        return self.model.object_bytes(tokens, self.tensor_parallel, turn=not self.block_tokens)

    def block(self, key: Key, tokens: int) -> Block:
        return Block(key, tokens, self.nbytes(tokens), self.objects)

    def stream(self, name: Sequence[str | int], first: int, count: int) -> tuple[Block, ...]:
        """Return blocks `first` to `first + count` of a token stream that only ever grows."""
        return self.blocks(numbered_keys(name, range(first, first + count)), self.block_tokens)

    def blocks(self, keys: Iterable[Key], tokens: int) -> tuple[Block, ...]:
        """Return blocks of as many tokens each."""
        nbytes, objects = self.nbytes(tokens), self.objects
        return tuple([of_block((key, tokens, nbytes, objects)) for key in keys])
