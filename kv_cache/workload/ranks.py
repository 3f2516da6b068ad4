"""Tensor parallelism with all its ranks: each block is as many objects as there are ranks.

Each rank keeps the state of its own heads, and connectors store each rank's share under its
own name (vLLM `_r<rank>`, SGLang HiCache one file a rank). A block is of use when all its ranks'
objects are there. The objects are in the sequence one after the other, the last rank's at the
end of each block, and the block's tokens are counted with that one: where a prefix is looked up,
a block of which one rank's object is missing counts no tokens, and the prefix ends there.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from kv_cache.core.block import Block, content_key, salted_key
from kv_cache.core.kinds import Lookup
from kv_cache.core.model import ModelShape
from kv_cache.core.request import Request
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import Mapped


class Ranks:
    """`count` ranks; `models` by the name that a request has, "" where it has none."""

    def __init__(self, count: int, models: Mapping[str, ModelShape]) -> None:
        self._models = models
        self._salts = tuple(content_key("rank", rank) for rank in range(count))

    def objects(self, model: str) -> int:
        """Return how many objects one block becomes."""
        return self._models[model].rank_objects(len(self._salts))

    def blocks(self, blocks: Iterable[Block], model: str) -> tuple[Block, ...]:
        """Return the ranks' objects of whole blocks."""
        shape, count = self._models[model], self.objects(model)
        if count == 1:
            return tuple(blocks)
        return tuple(
            Block(
                salted_key(block.key, salt),
                block.tokens if rank == count - 1 else 0,
                shape.rank_bytes(block.nbytes, count),
                block.objects,
            )
            for block in blocks
            for rank, salt in enumerate(self._salts)
        )

    def facts(self) -> dict[str, Any]:
        return {"ranks": len(self._salts)}


class Ranked(Mapped):
    """`source`, with each block as the objects of all ranks. An operation that a trace names moves
    one object, and stays as it is."""

    def __init__(self, source: Source, ranks: Ranks) -> None:
        super().__init__(source)
        self._ranks = ranks

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), **self._ranks.facts()}

    def _change(self, request: Request) -> Request:
        if request.lookup is Lookup.OPERATION:
            return request
        count = self._ranks.objects(request.model)
        return replace(
            request,
            blocks=self._ranks.blocks(request.blocks, request.model),
            shared=request.shared * count,
            new_from=request.new_from * count,
        )
