"""Decode-only: every request reads one of the objects that were stored before the run.

The reference's rule: ten objects of 2048 tokens for each user. As many as fit the tiers are made;
which one a request reads is drawn from the seed and the request's name.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kv_cache.core.block import Block, content_key
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import Mapped

OBJECT_TOKENS = 2048
OBJECTS_PER_USER = 10
FILL_SHARE = 0.9  # of all tiers together, so that reading starts with everything resident


def objects_to_populate(
    geometry: Geometry, users: int, capacity_bytes: int | None
) -> tuple[tuple[Block, ...], ...]:
    """Return the objects, each as its blocks: as many as wanted, or as `capacity_bytes` (to which
    the tiers may be filled, all together) can hold."""
    size = geometry.block_tokens or OBJECT_TOKENS
    per_object = max(1, OBJECT_TOKENS // size)
    nbytes = per_object * geometry.block(b"", size).stored_bytes
    count = users * OBJECTS_PER_USER
    if capacity_bytes is not None:
        count = min(count, int(capacity_bytes * FILL_SHARE) // max(1, nbytes))
    return tuple(
        tuple(
            geometry.block(content_key("prepopulated", number, part), size)
            for part in range(per_object)
        )
        for number in range(max(1, count))
    )


class Prepopulated(Mapped):
    """`source`, with its requests' blocks replaced by prepopulated ones."""

    def __init__(
        self, source: Source, objects: tuple[tuple[Block, ...], ...], seed: Seed, wanted: int
    ) -> None:
        super().__init__(source)
        self._objects = objects
        self._seed = seed
        self._wanted = wanted

    def describe(self) -> Mapping[str, Any]:
        return {
            **super().describe(),
            "prepopulated_objects": len(self._objects),
            "prepopulated_objects_wanted": self._wanted,
            "prepopulated_object_tokens": sum(b.tokens for b in self._objects[0]),
        }

    def _change(self, request: Request) -> Request:
        name = (request.user, request.conversation, request.turn)
        chosen = self._seed.child(*name).integer() % len(self._objects)
        blocks = self._objects[chosen]
        return replace(
            request,
            blocks=blocks,
            prompt_tokens=sum(b.tokens for b in blocks),
            shared=0,
            new_from=0,
            tail_tokens=0,
        )
