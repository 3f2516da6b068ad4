"""What an instance can reach: its own HBM and the pools below, the fastest first.

A prefix is used as far as it goes without a gap, each part from the fastest pool that has it. It
must never decide who computes: it finds, and moves content between pools.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.segments import BlockExtent, BlockPool, Segment


class PrefixPart(NamedTuple):
    """Blocks [start, end) of a node, from `pool`; `tier` is its position in the stack."""

    tier: int
    pool: BlockPool
    segment: Segment
    node: int
    start: int
    end: int


def match(
    tiers: Sequence[BlockPool], path: Sequence[int], chain: PrefixChain, most: int
) -> list[PrefixPart]:
    """Return the longest prefix of at most `most` blocks. Of HBM also what is under way there."""
    parts: list[PrefixPart] = []
    blocks = chain.blocks
    for node in path:
        end = min(blocks[node], most)
        at = 0
        while at < end:
            for tier, pool in enumerate(tiers):
                segment = pool.find(node, at)
                if segment is not None and (segment.ready or not tier):
                    break
            else:
                return parts
            upto = min(segment.end, end)
            if tier:
                upto = _before_faster(tiers[:tier], node, at, upto)
            parts.append(PrefixPart(tier, pool, segment, node, at, upto))
            at = upto
        most -= end
        if most <= 0:
            break
    return parts


def _before_faster(faster: Sequence[BlockPool], node: int, at: int, upto: int) -> int:
    """Find where in (at, upto] a faster pool continues."""
    for tier, pool in enumerate(faster):
        for segment in pool.segments_of(node):
            if at < segment.start < upto and (segment.ready or not tier):
                upto = segment.start
    return upto


def missing(
    pool: BlockPool, path: Sequence[int], chain: PrefixChain, depth: int
) -> list[BlockExtent]:
    """List the extents of a sequence, down to `depth` blocks, that a pool lacks: the last first, so
    that what is stored first is the first to go."""
    extents: list[BlockExtent] = []
    for node in reversed(path):
        end = min(chain.blocks[node], depth - chain.depth[node])
        if end > 0:
            extents += reversed(pool.missing(node, 0, end))
    return extents


def unpin(parts: Sequence[PrefixPart]) -> None:
    """Let go of parts that were pinned."""
    for part in parts:
        part.pool.unpin(part.segment)


def is_ready(part: PrefixPart) -> bool:
    """Whether the state of a part is there, not on its way."""
    return part.segment.ready
