"""Places of a cluster that do not take everything: who is asked, who leaves, who goes on down."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kv_cache.core.block import Key
from kv_cache.policy.admission import Admission, Candidate
from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.cluster.cluster import Cluster
from kv_cache.sim.cluster.event_loop import Loop
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from kv_cache.sim.cluster.prefix_match import match
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.segments import BlockExtent, BlockPool, TierWatch, become_ready, blocks_of
from tests.cluster import Plain, gib, scenario_of, serve
from tests.unit.test_cluster_by_hand import rates
from tests.unit.test_cluster_engine import BLOCK, OneByOne, one_instance, ran

# --- one place -----------------------------------------------------------------------------------


class Coin(Admission):
    """Compares, tosses a coin, and keeps who was taken against whom."""

    compares = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.taken: list[tuple[Key, Sequence[Key]]] = []
        self.decisions: list[tuple[Key, bool]] = []

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        if self._rng.random() < 0.4:
            return "tails"
        self.taken.append((candidate.key, rivals))
        return None

    def offered(self, candidate: Candidate, *, admitted: bool) -> None:
        self.decisions.append((candidate.key, admitted))


def keys(runs: Sequence[BlockExtent]) -> list[Key]:
    """Block by block, as a place names them."""
    return [(r.node << 24 | at + 1).to_bytes(8, "little") for r in runs for at in range(*r[1:])]


@pytest.mark.parametrize("eviction", sorted(set(EVICTION) - {"learned"}))
def test_who_was_compared_is_who_leaves_and_every_decision_is_told_once(eviction: str) -> None:
    rng, chain = random.Random(eviction), PrefixChain()
    coin = Coin(rng)
    pool = BlockPool(1, 0, 0, 40, 1000, chain, EVICTION[eviction], TierWatch(Loop()), coin)
    nodes = [chain.fresh(ROOT, rng.randint(1, 12)) for _ in range(30)]
    came = left = 0
    for _ in range(600):
        for segment in pool.segments:
            if rng.random() < 0.2:
                pool.hit(segment)
        node = rng.choice(nodes)
        for run in pool.missing(node, 0, chain.blocks[node]):
            coin.taken.clear()
            coin.decisions.clear()
            free, without_room = max(0, pool.capacity - pool.cached), pool.not_stored
            taken, others = pool.offer(run)
            assert sorted(keys([run])) == sorted(keys([*taken, *others]))
            assert [key for key, _ in coin.taken] == keys(taken)
            assert not any(rivals for _, rivals in coin.taken[:free])
            assert all(len(rivals) == 1 for _, rivals in coin.taken[free:])
            without_room = pool.not_stored - without_room
            refused = keys(others)[: len(keys(others)) - without_room]
            found = pool.take_in(taken)
            assert found is not None, "there is room for what was compared"
            segments, evicted = found
            told = [(key, False) for key in refused] + [(key, True) for key in keys(taken)]
            assert coin.decisions == told
            rivals = [key for _, some in coin.taken for key in some]
            assert sorted(rivals) == sorted(keys(evicted)), "somebody else left"
            came, left = came + blocks_of(taken), left + blocks_of(evicted)
            for segment in segments:
                become_ready(segment)
                if rng.random() < 0.5:
                    pool.unpin(segment)
            pool.check()
        if pool.pinned > 35:
            for segment in [segment for segment in pool.segments if segment.pins][:6]:
                pool.unpin(segment)
    assert came == pool.stored == pool.admitted
    assert came > left > 200
    assert pool.refused["tails"] > 200
    assert pool.not_stored, "a place that is all in use was never met"


# --- tiers ---------------------------------------------------------------------------------------


def tiered(dram: Plain, nvme: Plain | None = None, hbm: int = 8) -> Plain:
    """An instance of 8 blocks above 16 of DRAM (and a large drive)."""
    tiers: Plain = {"dram": {"capacity_gib": gib(16, BLOCK)} | dram}
    if nvme is not None:
        tiers["nvme"] = {"capacity_gib": gib(1000, BLOCK)} | nvme
    return one_instance(hbm) | {"instances": {"gpu": rates(hbm)}, "tiers": tiers}


def asks_of(chain: PrefixChain, names: str, blocks: int = 4) -> list[ClusterRequest]:
    """One after the other, each letter a prompt of so many whole blocks of its own."""
    leaves = [chain.named(ROOT, name, blocks) for name in names]
    return [
        ClusterRequest(n, n, 0, 0, blocks * BLOCK + 1, 1, leaf) for n, leaf in enumerate(leaves)
    ]


def pools(cluster: Cluster) -> dict[str, BlockPool]:
    return {tier: pool for (tier, _), pool in cluster.storage.pools.items()}


def depths(pool: BlockPool) -> set[int]:
    return {pool.chain.depth[p.node] + at for p in pool.segments for at in range(p.start, p.end)}


def test_what_a_tier_does_not_take_goes_on_down_and_what_none_takes_is_dropped() -> None:
    chain = PrefixChain()
    shallow = {"admission": "depth", "admission_max_depth": 1}
    deeper = {"admission": "depth", "admission_max_depth": 3}
    cluster, _ = ran(tiered(shallow, deeper), asks_of(chain, "abcdef"), chain)
    at = pools(cluster)
    assert depths(at["dram"]) == {0}
    assert depths(at["nvme"]) == {1, 2}
    # A prompt has room for 8 - 5 blocks beside it: those of four have left, and the last of one.
    assert at["hbm"].evicted == 17
    assert (at["dram"].stored, at["nvme"].stored) == (4, 8)
    assert at["dram"].refused == {"too-deep": 13}
    assert at["nvme"].refused == {"too-deep": 5}
    assert (at["hbm"].dropped, at["dram"].dropped) == (5, 0)


def test_what_is_too_large_never_comes() -> None:
    chain = PrefixChain()
    small = {"admission": "size", "admission_max_mib": 0.001}
    cluster, found = ran(tiered(small), asks_of(chain, "abcdabcd"), chain)
    at = pools(cluster)
    assert (at["dram"].stored, at["dram"].admitted) == (0, 0)
    assert at["dram"].refused["too-large"] == at["hbm"].evicted == at["hbm"].dropped
    assert not any(found.values())


def test_on_the_second_hit_comes_what_is_offered_for_the_second_time() -> None:
    chain = PrefixChain()
    second = {"admission": "second-hit"}
    cluster, found = ran(tiered(second), asks_of(chain, "abcabca"), chain)
    assert [found[n] for n in range(6)] == [0] * 6
    assert found[6] == 4, "it has left HBM twice"
    assert pools(cluster)["dram"].refused == {"first-time": 3 * 4}


def test_by_frequency_a_tier_hears_of_what_is_used_above_it() -> None:
    """What was asked for again in HBM is worth a place below; what was computed once is not."""
    chain = PrefixChain()
    often = {"admission": "frequency", "admission_floor": 2}
    cluster, found = ran(tiered(often), asks_of(chain, "aaabcda"), chain)
    assert found[6] == 4, "it is brought back from DRAM"
    at = pools(cluster)
    assert {segment.node for segment in at["dram"].segments} == {chain.named(ROOT, "a", 4)}
    assert at["dram"].refused["infrequent"] > 0


def test_by_frequency_nobody_leaves_for_what_was_used_less() -> None:
    chain = PrefixChain()
    often = {"admission": "frequency"}
    kept = "aaabbbcccddd"  # fills DRAM once it has left HBM
    cluster, _ = ran(tiered(often), asks_of(chain, kept + "eeefff" + "ghijklmnop"), chain)
    here = {segment.node for segment in pools(cluster)["dram"].segments}
    assert here == {chain.named(ROOT, name, 4) for name in "abcd"}


def test_a_prefetch_asks_as_well() -> None:
    """What DRAM does not take is not brought up to it, but loaded from the drive when needed."""
    chain = PrefixChain()
    shallow = {"admission": "depth", "admission_max_depth": 1}
    values = tiered(shallow, {})
    values["tiers"]["prefetch"] = "on-arrival"
    cluster, found = ran(values, asks_of(chain, "abcdefghia"), chain)
    assert found[9] == 4
    assert depths(pools(cluster)["dram"]) == {0}
    assert cluster.storage.prefetched["dram"] <= 1


def test_what_finds_no_room_goes_on_down_as_what_is_refused_does() -> None:
    chain = PrefixChain()
    often = {"admission": "frequency"}
    cluster = Cluster(scenario_of(tiered(often, {})), OneByOne([]), chain)
    hbm, dram, nvme = cluster.instance(0).tiers
    held = dram.take_in([BlockExtent(chain.fresh(ROOT, 16), 0, 16)])
    assert held is not None
    wanted = BlockExtent(chain.fresh(ROOT, 4), 0, 4)
    for _ in range(3):
        cluster.storage.used(hbm, [wanted])
    cluster.storage.evicted(hbm, [wanted])
    assert (dram.not_stored, hbm.dropped) == (4, 0)
    assert nvme.missing(*wanted) == []


def test_what_is_written_through_goes_on_from_tier_to_tier() -> None:
    """It crosses the instance's link once; a tier without room is passed by."""
    for blocks, in_dram in ((16, 4), (2, 0)):
        chain = PrefixChain()
        values = tiered({"capacity_gib": gib(blocks, BLOCK)}, {})
        values["tiers"]["write_policy"] = "through"
        cluster = Cluster(scenario_of(values), OneByOne([]), chain)
        hbm, dram, nvme = cluster.instance(0).tiers
        run = BlockExtent(chain.fresh(ROOT, 4), 0, 4)
        cluster.storage.stored(hbm, [run])
        assert (dram.stored, nvme.stored) == (in_dram, 4 - in_dram)
        while cluster.loop.run(100):
            pass
        assert (dram.stored, nvme.stored, hbm.dropped) == (in_dram, 4, 0)
        assert nvme.missing(*run) == []
        moved = {link.family: sum(link.bytes.values()) for link in cluster.topology.links()}
        assert moved["pcie"] == moved["device:nvme:write"] == 4 * cluster.block_bytes


def test_a_tier_that_is_written_through_takes_everything() -> None:
    """The option is not read then, and may stand beside variants that read it."""
    chain = PrefixChain()
    values = tiered({}, {})
    values["tiers"]["write_policy"] = "through"
    scenario = scenario_of(values)
    dram = replace(scenario.tiers.dram, admission="depth", admission_max_depth=1)
    scenario = replace(scenario, tiers=replace(scenario.tiers, dram=dram))
    cluster = Cluster(scenario, OneByOne([]), chain)
    hbm, dram_place, nvme = cluster.instance(0).tiers
    run = BlockExtent(chain.fresh(ROOT, 4), 0, 4)
    cluster.storage.stored(hbm, [run])
    assert (dram_place.stored, nvme.stored, hbm.dropped) == (4, 0, 0)


SINGLE = {
    "source": "sessions", "requests": 60, "rate_per_s": 4, "turns": (1, 1), "context_tokens": 0,
    "documents": 0, "system_prompts": 0, "tool_sets": 0, "prompt_tokens": (64, 128),
}  # fmt: skip


def admitted(values: Plain) -> tuple[int, int]:
    """What a large DRAM takes that wants to have seen two uses, and preemptions."""
    tiers = {"dram": {"capacity_gib": 1, "admission": "frequency", "admission_floor": 2}}
    outcome = serve(scenario_of({"model": MODEL, "tiers": tiers} | values))
    [_, dram] = outcome.tiers
    assert dram.admitted + dram.not_admitted["infrequent"] > 100
    assert outcome.blocks.hit == 0
    return dram.admitted, outcome.requests.preemptions


MODEL = {"kv_bytes_per_token": 1000, "block_tokens": BLOCK}


@pytest.mark.parametrize("roles", [("mixed", "mixed"), ("prefill", "decode")])
def test_what_is_sent_to_who_decodes_was_computed_once(roles: tuple[str, str]) -> None:
    values = {
        "workload": SINGLE | {"output_tokens": (1, 8)},
        "topology": {"instances_per_node": 2},
        "instances": {str(n): rates(24) | {"role": role} for n, role in enumerate(roles)},
    }
    assert admitted(values) == (0, 0)


def test_a_prefetch_under_way_that_begins_within_what_is_asked_for_is_late() -> None:
    """The drive has six blocks; of these DRAM takes the last four, which it knows."""
    chain = PrefixChain()
    node = chain.fresh(ROOT, 6)
    values = tiered({"admission": "second-hit", "write_gbytes_per_s": 0.001}, {})
    values["tiers"]["prefetch"] = "on-arrival"
    cluster = Cluster(scenario_of(values), OneByOne([]), chain)
    instance = cluster.instance(0)
    _, dram, nvme = instance.tiers
    segment = nvme.add(BlockExtent(node, 0, 6), ready=True, pinned=False)
    dram.offer(BlockExtent(node, 2, 6))
    cluster.storage.prefetch(instance.tiers, (node,), 0)
    [coming] = dram.segments_of(node)
    assert (coming.start, coming.end, coming.fetched) == (2, 6, True)
    [part] = match(instance.tiers, (node,), chain, 6)
    assert part.segment is segment
    cluster._moves.note_late(instance, part)
    assert cluster.counts.prefetch_late == {"dram": 4}
    assert not coming.fetched
