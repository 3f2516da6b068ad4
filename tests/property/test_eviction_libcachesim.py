"""Hits of the policies beside those of libcachesim (the library of the authors of S3-FIFO and
SIEVE) on the real Mooncake slice: blocks of one size, as many as the capacity says.

The counts that it gave are kept here, so that ours are held against them even where its wheel
(0.3.5, of the tests' environment) does not go.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from kv_cache.policy.eviction import EVICTION, Item
from tests.traces import real_trace

CAPACITIES = (1000, 9971, 40000)

THEIRS: dict[str, tuple[str, tuple[int, int, int]]] = {
    "lru": ("LRU", (6615, 31657, 51900)),
    "fifo": ("FIFO", (6474, 28507, 48876)),
    "lfu": ("LFU", (7408, 25597, 50503)),
    "clock": ("Clock", (6668, 31894, 51185)),
    "arc": ("ARC", (7836, 32383, 50685)),
    "s3-fifo": ("S3FIFO", (8224, 28289, 43457)),
    "sieve": ("Sieve", (7408, 25597, 50503)),
    "gdsf": ("GDSF", (6668, 31616, 51289)),
}
"""Name there, and hits at each capacity. That LFU and SIEVE agree is no mistake: on this slice
neither evicts a block that was hit, and both evict the others in the order in which they came."""

GDSF = (6668, 31611, 51290)
"""Ours. There a block comes before room is made for it, so that its height counts from the victim
before its own; here room is made first, and it counts from its own victim's."""


@pytest.fixture(scope="module")
def blocks() -> list[int]:
    path = real_trace("mooncake_conversation_6000.jsonl")
    with path.open() as lines:
        return [block for line in lines for block in json.loads(line)["hash_ids"]]


class Seen(NamedTuple):
    hits: int
    wronged: int  # evictions of a block that was hit


def replay(name: str, capacity: int, blocks: Sequence[int], *, room_first: bool = True) -> Seen:
    """`room_first`: a block comes when another has gone, as in our caches; otherwise it comes
    first, and may be the one that goes."""
    policy = EVICTION[name](capacity)
    copies: dict[int, int] = {}
    contents: dict[int, int] = {}
    hit: set[int] = set()
    found = wronged = 0
    for number, block in enumerate(blocks):
        copy_id = copies.get(block)
        if copy_id is not None:
            found += 1
            hit.add(copy_id)
            policy.hit(copy_id)
            continue
        key = block.to_bytes(16, "little")
        policy.expect(key)
        copies[block], contents[number] = number, block
        if not room_first:
            policy.insert(Item(number, key, 1))
        if len(copies) > capacity:
            victim = next(policy.victims())
            policy.remove(victim, evicted=True)
            wronged += victim in hit
            del copies[contents.pop(victim)]
        if room_first:
            policy.insert(Item(number, key, 1))
    return Seen(found, wronged)


def hits(name: str, blocks: Sequence[int], *, room_first: bool = True) -> tuple[int, ...]:
    return tuple(replay(name, c, blocks, room_first=room_first).hits for c in CAPACITIES)


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "gdsf"])
def test_as_many_blocks_hit_as_in_libcachesim(name: str, blocks: list[int]) -> None:
    assert hits(name, blocks) == THEIRS[name][1]


def test_gdsf_differs_only_by_when_a_block_comes(blocks: list[int]) -> None:
    assert hits("gdsf", blocks, room_first=False) == THEIRS["gdsf"][1]
    assert hits("gdsf", blocks) == GDSF


@pytest.mark.parametrize("name", ["lfu", "sieve"])
def test_neither_lfu_nor_sieve_evicts_a_block_that_was_hit(name: str, blocks: list[int]) -> None:
    for capacity in CAPACITIES:
        assert replay(name, capacity, blocks).wronged == 0


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
