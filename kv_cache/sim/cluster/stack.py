"""What an instance can reach: its own HBM and the places below, the fastest first.

A prefix is used as far as it goes without a gap, each part from the fastest place that has it. It
must never decide who computes: it finds, and moves content between places.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kv_cache.sim.cluster.chain import Chain
from kv_cache.sim.cluster.pieces import Piece, Place, Run


class Part(NamedTuple):
    """Blocks [start, end) of a node, from `place`; `tier` is its position in the stack."""

    tier: int
    place: Place
    piece: Piece
    node: int
    start: int
    end: int


def match(tiers: Sequence[Place], path: Sequence[int], chain: Chain, most: int) -> list[Part]:
    """The longest prefix of at most `most` blocks. Of HBM also what is under way there."""
    parts: list[Part] = []
    blocks = chain.blocks
    for node in path:
        end = min(blocks[node], most)
        at = 0
        while at < end:
            for tier, place in enumerate(tiers):
                piece = place.find(node, at)
                if piece is not None and (piece.ready or not tier):
                    break
            else:
                return parts
            upto = min(piece.end, end)
            if tier:
                upto = _before_faster(tiers[:tier], node, at, upto)
            parts.append(Part(tier, place, piece, node, at, upto))
            at = upto
        most -= end
        if most <= 0:
            break
    return parts


def _before_faster(faster: Sequence[Place], node: int, at: int, upto: int) -> int:
    """Where in (at, upto] a faster place goes on."""
    for tier, place in enumerate(faster):
        for piece in place.pieces_of(node):
            if at < piece.start < upto and (piece.ready or not tier):
                upto = piece.start
    return upto


def held(place: Place, path: Sequence[int], chain: Chain, most: int) -> int:
    """Blocks of the longest prefix that one place has."""
    total = 0
    blocks = chain.blocks
    for node in path:
        end = min(blocks[node], most - total)
        at = 0
        while at < end:
            piece = place.find(node, at)
            if piece is None:
                return total + at
            at = piece.end if piece.end < end else end
        total += end
        if total >= most:
            break
    return total


def missing(place: Place, path: Sequence[int], chain: Chain, depth: int) -> list[Run]:
    """The runs of a sequence, down to `depth` blocks, that a place has not: the last first, so that
    what is stored first is the first to go."""
    runs: list[Run] = []
    for node in reversed(path):
        end = min(chain.blocks[node], depth - chain.depth[node])
        if end > 0:
            runs += reversed(place.missing(node, 0, end))
    return runs
