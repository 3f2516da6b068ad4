"""Hits of the policies beside those of libcachesim (the library of the authors of S3-FIFO and
SIEVE) on the real Mooncake slice: blocks of one size, as many as the capacity says.

Skipped where `libcachesim` (0.3.5) or the trace is not there. The counts that it gave are kept
here, so that ours are held against them even where it cannot be installed.
"""

import json
from collections.abc import Sequence

import pytest

from kv_cache.policy.eviction import EVICTION, Item
from tests.traces import shared_trace

CAPACITIES = (1000, 9971, 40000)

THEIRS: dict[str, tuple[str, tuple[int, int, int]]] = {
    "lru": ("LRU", (6615, 31657, 51900)),
    "fifo": ("FIFO", (6474, 28507, 48876)),
    "lfu": ("LFU", (7408, 25597, 50503)),
    "clock": ("Clock", (6668, 31894, 51185)),
    "arc": ("ARC", (7836, 32383, 50685)),
    "s3-fifo": ("S3FIFO", (8224, 28289, 43457)),
    "sieve": ("Sieve", (7408, 25597, 50503)),
}
"""Name there, and hits at each capacity. That LFU and SIEVE agree is no mistake: on this slice
neither evicts a block that was hit, and both evict the others in the order in which they came."""


@pytest.fixture(scope="module")
def blocks() -> list[int]:
    path = shared_trace("mooncake_conversation_6000.jsonl")
    with path.open() as lines:
        return [block for line in lines for block in json.loads(line)["hash_ids"]]


def hits(name: str, capacity: int, blocks: Sequence[int]) -> int:
    policy = EVICTION[name](capacity)
    copies: dict[int, int] = {}
    contents: dict[int, int] = {}
    found = 0
    for number, block in enumerate(blocks):
        copy_id = copies.get(block)
        if copy_id is not None:
            found += 1
            policy.hit(copy_id)
            continue
        key = block.to_bytes(16, "little")
        policy.expect(key)
        if len(policy) >= capacity:
            victim = next(policy.victims())
            policy.remove(victim, evicted=True)
            del copies[contents.pop(victim)]
        policy.insert(Item(number, key, 1))
        copies[block], contents[number] = number, block
    return found


@pytest.mark.parametrize("name", THEIRS)
def test_as_many_blocks_hit_as_in_libcachesim(name: str, blocks: list[int]) -> None:
    seen = tuple(hits(name, capacity, blocks) for capacity in CAPACITIES)
    assert seen == THEIRS[name][1]


@pytest.mark.parametrize("name", THEIRS)
def test_libcachesim_still_counts_what_is_written_here(name: str, blocks: list[int]) -> None:
    theirs = pytest.importorskip("libcachesim", reason="pip install libcachesim==0.3.5")
    kind, wanted = THEIRS[name]
    seen = []
    for capacity in CAPACITIES:
        cache = getattr(theirs, kind)(capacity, hashpower=18)
        request = theirs.Request()
        request.obj_size = 1
        count = 0
        for block in blocks:
            request.obj_id = block + 1
            count += cache.get(request)
        seen.append(count)
    assert tuple(seen) == wanted
