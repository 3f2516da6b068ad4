"""The most hits that any policy could have had in a place, of what was asked of it in one run.

Routing, prefetch and latency decide what a place is asked for, and follow from what was evicted
before. So a run's accesses are its own, and MIN on them bounds the hits of this run alone. Each
place notes its events in order: a block came, or was asked for. To be found, a block must have lain
there since its last event; of all such spans as many are kept as fit, which is done by giving up
the one that ends last whenever there are too many (Belady, IBM Systems Journal 5(2), 1966). A block
that was asked for counts as there from then on, found or not, and a block behind a gap may be
found: the policy of the run could do neither, so that the bound is no lower than its hits.
"""

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.prefix_match import PrefixPart
from kv_cache.sim.cluster.segments import BlockPool, event_of


def note_asked(
    tiers: Sequence[BlockPool],
    path: Sequence[int],
    chain: PrefixChain,
    most: int,
    parts: Sequence[PrefixPart],
    *,
    counted: bool,
) -> None:
    """Note in each place of an instance what it is asked for of a prompt's first `most` blocks:
    those that no faster place has. `parts` were found, without a gap from the first block on."""
    matched = sum(part.end - part.start for part in parts)
    missed = []
    for node in path:
        depth = chain.depth[node]
        start, end = max(0, matched - depth), min(chain.blocks[node], most - depth)
        if start < end:
            missed.append((node, start, end))
    for tier, pool in enumerate(tiers):
        events = pool.events
        assert events is not None
        here = [(part.node, part.start, part.end) for part in parts if part.tier >= tier]
        for node, start, end in (*here, *missed):
            first = event_of(node, start) + counted
            events.extend(range(first, first + 2 * (end - start), 2))


def most_hits(events: "array[int]", capacity: int) -> int:
    """Return the hits of MIN in a place of `capacity` blocks: of its events that count."""
    codes = np.frombuffer(events, np.int64)
    blocks, counts = codes >> 1, (codes & 1).astype(np.bool_)
    order = np.argsort(blocks, kind="stable")
    again = blocks[order[1:]] == blocks[order[:-1]]
    ends = np.zeros(len(codes), np.int64)  # of the span that begins with an event; 0: no use
    ends[order[:-1][again]] = order[1:][again]
    ends[~counts[ends]] = 0
    kept = bytearray(len(codes))
    there = hits = 0
    latest: list[int] = []  # ends of spans, negative
    for now in np.flatnonzero((ends > 0) | counts).tolist():
        if kept[now]:
            hits += 1
            there -= 1
        end = int(ends[now])
        if not end:
            continue
        kept[end] = True
        heappush(latest, -end)
        there += 1
        while there > capacity:
            last = -heappop(latest)
            if kept[last]:
                kept[last] = False
                there -= 1
    return hits
