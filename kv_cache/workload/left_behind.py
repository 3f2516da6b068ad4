"""What requests that were answered before have left in a cache."""

from collections.abc import Iterable
from math import inf

from kv_cache.core.block import Block, Key
from kv_cache.core.request import Request
from kv_cache.workload.prepopulated import FILL_SHARE


def left_behind(
    requests: Iterable[Request], capacity_bytes: int | None
) -> tuple[tuple[Block, ...], ...]:
    """Return the blocks that were asked for latest, the oldest of them first, as many as fit: what
    is left of a load in a cache that forgets what nobody asked for longest. None where no block
    would have been found in it again."""
    room = inf if capacity_bytes is None else capacity_bytes * FILL_SHARE
    latest: dict[Key, Block] = {}
    held, hits = 0, 0
    for request in requests:
        for block in request.blocks:
            if latest.pop(block.key, None) is None:
                held += block.stored_bytes
            else:
                hits += 1
            latest[block.key] = block
            while held > room:
                oldest = latest.pop(next(iter(latest)))
                held -= oldest.stored_bytes
    return tuple((block,) for block in latest.values()) if hits else ()
