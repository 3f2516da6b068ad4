"""What requests that were answered before have left in a cache."""

from collections.abc import Iterable

from kv_cache.core.block import Block
from kv_cache.core.request import Request
from kv_cache.core.units import PAGE_BYTES, round_up
from kv_cache.workload.prepopulated import FILL_SHARE


def left_behind(
    requests: Iterable[Request], capacity_bytes: int | None
) -> tuple[tuple[Block, ...], ...]:
    """Return the blocks that were asked for latest, the oldest of them first, as many as fit: what
    is left of a load in a cache that forgets what nobody asked for longest. None where no block was
    asked for twice, as nothing would be found again."""
    latest: dict[bytes, Block] = {}
    repeated = False
    for request in requests:
        for block in request.blocks:
            repeated |= latest.pop(block.key, None) is not None
            latest[block.key] = block
    if not repeated:
        return ()
    room = float("inf") if capacity_bytes is None else capacity_bytes * FILL_SHARE
    kept: list[tuple[Block, ...]] = []
    for block in reversed(latest.values()):
        room -= round_up(block.nbytes, PAGE_BYTES)
        if room < 0:
            break
        kept.append((block,))
    return tuple(reversed(kept))
