"""Hits of the policies beside those of libcachesim (the library of the authors of S3-FIFO and
SIEVE) on the real Mooncake slice: blocks of one size, as many as the capacity says.

The counts that it gave are kept here, so that ours are held against them even where its wheel
(0.3.5, of the tests' environment) does not go.
"""

import json
from functools import cache
from typing import NamedTuple

import pytest

from kv_cache.policy.eviction import EVICTION, Item
from tests.covering import by_day
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
    "mq": ("MQ", (11778, 33785, 51766)),
    "gdsf": ("GDSF", (6668, 31616, 51289)),
}
"""Name there, and hits at each capacity. That LFU and SIEVE agree is no mistake: on this slice
neither evicts a block that was hit, and both evict the others in the order in which they came."""

GDSF = (6668, 31611, 51290)
"""Ours. There a block comes before room is made for it, so that its height counts from the victim
before its own; here room is made first, and it counts from its own victim's."""


COUNTED = {
    f"{name}-{capacity}": (name, capacity, hits)
    for name, (_, counts) in THEIRS.items()
    for capacity, hits in zip(CAPACITIES, counts, strict=True)
}
ONE_OF_EACH = [
    f"{name}-{CAPACITIES[number % len(CAPACITIES)]}" for number, name in enumerate(THEIRS)
]
"""Each policy at one capacity, and each capacity; at night each policy at each."""

each_count = pytest.mark.parametrize(
    ("name", "capacity", "wanted"), by_day(COUNTED, [*ONE_OF_EACH, "gdsf-9971"])
)


@pytest.fixture(scope="module")
def blocks() -> tuple[int, ...]:
    path = real_trace("mooncake_conversation_6000.jsonl")
    with path.open() as lines:
        return tuple(block for line in lines for block in json.loads(line)["hash_ids"])


class Seen(NamedTuple):
    hits: int
    wronged: int  # evictions of a block that was hit


@cache
def replay(name: str, capacity: int, blocks: tuple[int, ...], *, room_first: bool = True) -> Seen:
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


@each_count
def test_as_many_blocks_hit_as_in_libcachesim(
    name: str, capacity: int, wanted: int, blocks: tuple[int, ...]
) -> None:
    """GDSF differs only by when a block comes."""
    assert replay(name, capacity, blocks, room_first=name != "gdsf").hits == wanted
    if name == "gdsf":
        assert replay(name, capacity, blocks).hits == GDSF[CAPACITIES.index(capacity)]


@pytest.mark.parametrize(
    ("name", "capacity"),
    by_day(
        {f"{name}-{room}": (name, room) for name in ("lfu", "sieve") for room in CAPACITIES},
        ONE_OF_EACH,
    ),
)
def test_neither_lfu_nor_sieve_evicts_a_block_that_was_hit(
    name: str, capacity: int, blocks: tuple[int, ...]
) -> None:
    assert replay(name, capacity, blocks).wronged == 0


@each_count
def test_libcachesim_still_counts_what_is_written_here(
    name: str, capacity: int, wanted: int, blocks: tuple[int, ...]
) -> None:
    theirs = pytest.importorskip("libcachesim", reason="pip install libcachesim==0.3.5")
    policy, request = getattr(theirs, THEIRS[name][0])(capacity, hashpower=18), theirs.Request()
    request.obj_size, count = 1, 0
    for block in blocks:
        request.obj_id = block + 1
        count += policy.get(request)
    assert count == wanted
