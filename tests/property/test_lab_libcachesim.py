"""The lab beside libcachesim on the real Mooncake slice: the same hits by the way that the lab
takes (its own fast caches, and its seam to the policies of the tiers), and the same optimum.

Belady's own count is skipped where `libcachesim` (0.3.5) is not."""

import json

import numpy as np
import pytest

from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses, accesses_of
from kv_cache.lab.study import MIN, replay, study
from kv_cache.lab.variants import Named, PolicyVariant
from tests.property.test_eviction_libcachesim import CAPACITIES, GDSF, each_count
from tests.traces import real_trace

BELADY = (28833, 52821, 52821)
NEVER = 2**63 - 1


@pytest.fixture(scope="module")
def blocks() -> list[int]:
    path = real_trace("mooncake_conversation_6000.jsonl")
    with path.open() as lines:
        return [block for line in lines for block in json.loads(line)["hash_ids"]]


@pytest.fixture(scope="module")
def asked(blocks: list[int]) -> Accesses:
    """Of one byte each."""
    return accesses_of(blocks, np.ones(max(blocks) + 1, np.int64))


@each_count
def test_the_lab_finds_what_libcachesim_counts(
    name: str, capacity: int, wanted: int, asked: Accesses
) -> None:
    seen = replay(asked, PolicyVariant(Named(name)), capacity, seed=Seed(1)).hits
    assert seen == (GDSF[CAPACITIES.index(capacity)] if name == "gdsf" else wanted)


def test_min_is_the_optimum_that_libcachesim_counts(asked: Accesses) -> None:
    found = study(asked, [], CAPACITIES, seed=Seed(1))
    assert [row.policy for row in found.rows] == [MIN] * len(CAPACITIES)
    assert tuple(row.blocks.hits for row in found.rows) == BELADY
    assert found.unlimited.blocks.hits == 52821


def test_libcachesim_still_counts_that_optimum(blocks: list[int]) -> None:
    theirs = pytest.importorskip("libcachesim", reason="pip install libcachesim==0.3.5")
    ahead: dict[int, int] = {}
    uses = []
    for place in range(len(blocks) - 1, -1, -1):
        uses.append(ahead.get(blocks[place], NEVER))
        ahead[blocks[place]] = place
    uses.reverse()
    seen = []
    for capacity in CAPACITIES:
        cache, request = theirs.Belady(capacity, hashpower=18), theirs.Request()
        request.obj_size, count = 1, 0
        for block, use in zip(blocks, uses, strict=True):
            request.obj_id, request.next_access_vtime = block + 1, use
            count += cache.get(request)
        seen.append(count)
    assert tuple(seen) == BELADY
