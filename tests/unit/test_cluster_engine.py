"""The engine against plain models of it: block by block, step by step, and figures known before."""

import json
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.config.scenario import InstanceSection, ModelSection
from kv_cache.config.scenario_rules import parameters
from kv_cache.core.errors import BrokenLawError
from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.cluster.cluster import Cluster
from kv_cache.sim.cluster.compute import ComputeModel, Rates, Roofline, make_compute, pairs_of
from kv_cache.sim.cluster.event_loop import Loop
from kv_cache.sim.cluster.fleet import Loads
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.laws import Log
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.segments import BlockPool, TierWatch
from kv_cache.sim.cluster.simulate import simulate
from kv_cache.sim.cluster.sources import build_source
from tests.cluster import Plain, gib, random_values, scenario_of, serve
from tests.traces import real_trace

BLOCK = 16


class OneByOne:
    """Requests that each wait for the end of the one before."""

    def __init__(self, requests: Sequence[ClusterRequest]) -> None:
        self._asks = iter(requests)

    def first(self) -> Iterator[ClusterRequest]:
        yield from (request for request in [next(self._asks, None)] if request is not None)

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        following = next(self._asks, None)
        return () if following is None else (following._replace(arrival_ns=ended_ns),)


class PlainLru:
    """Every block by itself; where several were used at once, the last of them is the first to
    go."""

    def __init__(self, chain: PrefixChain, capacity: int, block: int) -> None:
        self._chain = chain
        self._block = block
        self.capacity = capacity
        self.blocks: OrderedDict[tuple[int, int], None] = OrderedDict()

    def serve(self, request: ClusterRequest) -> int:
        """The blocks that are found; -1: it is too large."""
        need = -(-(request.prompt_tokens + request.output_tokens - 1) // self._block)
        if need > self.capacity:
            return -1
        prompt = self._of(request.leaf)
        found = 0
        for key in prompt[: (request.prompt_tokens - 1) // self._block]:
            if key not in self.blocks:
                break
            found += 1
        used = prompt[:found]
        self._make_room(need - found, set(used))
        for key in reversed(used):
            self.blocks.move_to_end(key)
        for key in reversed(prompt[found:]):  # behind a gap: the copy that is here is used
            if key in self.blocks:
                self.blocks.move_to_end(key)
        self._store(prompt)
        if request.answer_leaf >= 0:
            self._store(self._of(request.answer_leaf))
        return found

    def _of(self, leaf: int) -> list[tuple[int, int]]:
        path = self._chain.path(leaf)
        return [(node, at) for node in path for at in range(self._chain.blocks[node])]

    def _make_room(self, blocks: int, used: set[tuple[int, int]]) -> None:
        free = self.capacity - len(self.blocks)
        for key in list(self.blocks):
            if free >= blocks:
                return
            if key not in used:
                del self.blocks[key]
                free += 1

    def _store(self, keys: list[tuple[int, int]]) -> None:
        for key in reversed(keys):
            if key not in self.blocks:
                self.blocks[key] = None


def one_instance(blocks: int, block: int = BLOCK, eviction: str = "lru") -> Plain:
    return {
        "model": {"kv_bytes_per_token": 1000, "block_tokens": block},
        "workload": {"source": "poisson", "requests": 10**6},
        "instances": {"gpu": {"hbm_gib": gib(blocks, block), "compute": "none"}},
        "tiers": {"hbm_eviction": eviction},
        "scheduler": {"reservation": "reserve-full"},
        "watch": {"check_every": 1000, "series_points": 2},
    }


def ran(
    values: Plain, requests: Sequence[ClusterRequest], chain: PrefixChain
) -> tuple[Cluster, dict[int, int]]:
    """One request at a time; and what each one that finished found, in blocks."""
    cluster = Cluster(scenario_of(values), OneByOne(requests), chain)
    flights: list[Flight] = []
    cluster.on_finish = flights.append
    cluster.begin()
    while cluster.loop.run(100_000):
        pass
    return cluster, {f.request.number: f.hit_tokens // cluster.block_tokens for f in flights}


def residents(cluster: Cluster) -> set[tuple[int, int]]:
    pool = cluster.instance(0).pool
    return {
        (segment.node, at) for segment in pool.segments for at in range(segment.start, segment.end)
    }


@st.composite
def sessions(draw: st.DrawFn) -> tuple[PrefixChain, list[ClusterRequest]]:
    """A tree of content, and prompts that end anywhere in it, some behind answers of others. No
    prompt ends with a block, so that none of its whole blocks is left out."""
    chain, requests = PrefixChain(), list[ClusterRequest]()
    leaves = [ROOT]
    for number in range(draw(st.integers(1, 40))):
        leaf = draw(st.sampled_from(leaves))
        for _ in range(draw(st.integers(0, 2))):
            name = draw(st.integers(0, 3))
            leaf = chain.named(leaf, name, (name + leaf) % 4)
        tokens = chain.end(leaf) * BLOCK + draw(st.integers(1, BLOCK - 1))
        output = draw(st.integers(1, 40))
        answer = -1
        if draw(st.booleans()):
            blocks = (tokens + output - 1) // BLOCK - chain.end(leaf)
            answer = chain.fresh(leaf, blocks)
        leaves += [leaf, answer] if answer >= 0 else [leaf]
        requests.append(ClusterRequest(number, number, 0, 0, tokens, output, leaf, answer))
    return chain, requests


@settings(max_examples=150, deadline=None)
@given(sessions(), st.integers(3, 40))
def test_runs_of_pieces_are_lru_block_by_block(
    case: tuple[PrefixChain, list[ClusterRequest]], blocks: int
) -> None:
    chain, requests = case
    cluster, found = ran(one_instance(blocks), requests, chain)
    plain = PlainLru(chain, blocks, BLOCK)
    for request in requests:
        assert found.get(request.number, -1) == plain.serve(request)
    assert residents(cluster) == set(plain.blocks)


@pytest.mark.parametrize("eviction", sorted(EVICTION))
def test_without_shortage_every_policy_finds_all_that_came_before(eviction: str) -> None:
    chain = PrefixChain()
    requests = []
    leaf = ROOT
    for number in range(30):
        leaf = chain.fresh(leaf, 2)
        tokens = BLOCK * chain.end(leaf) + 1
        requests.append(ClusterRequest(number, 0, number, 0, tokens, 1, leaf))
    _, found = ran(one_instance(100, eviction=eviction), requests, chain)
    assert found == {number: 2 * number for number in range(30)}


# --- a trace that is known -----------------------------------------------------------------------


def mooncake(chain: PrefixChain, *, whole: bool, rows: int = 6000) -> list[ClusterRequest]:
    """The first requests; `whole`: as if the last, partial block of a prompt were whole, and
    one more token asked."""
    path = real_trace("mooncake_conversation_6000.jsonl")
    requests = []
    for number, line in enumerate(path.read_text().splitlines()[:rows]):
        row: dict[str, Any] = json.loads(line)
        hashes, tokens = row["hash_ids"], row["input_length"]
        if whole:
            tokens = 512 * len(hashes) + 1
        leaf = ROOT
        for name in hashes[: tokens // 512]:
            leaf = chain.named(leaf, name, 1)
        requests.append(ClusterRequest(number, number, 0, 0, tokens, 1, leaf))
    return requests


def test_unlimited_hbm_finds_what_the_benchmark_finds_in_the_mooncake_trace() -> None:
    """52,821 of 152,537 blocks, partial ones and all. An engine shares whole blocks alone (146,550
    of them), so 45 of the hits are of blocks that it can not share."""
    for whole, looked_up, hits in ((True, 152_537, 52_821), (False, 146_550, 52_776)):
        chain = PrefixChain()
        requests = mooncake(chain, whole=whole)
        cluster, found = ran(one_instance(200_000, 512), requests, chain)
        blocks = cluster.counts.blocks
        assert blocks.looked_up == looked_up
        assert sum(found.values()) == blocks.hits["hbm"] == blocks.ceiling == hits


def test_lru_finds_in_the_mooncake_trace_what_it_finds_block_by_block() -> None:
    chain = PrefixChain()
    requests = mooncake(chain, whole=False, rows=1500)
    for blocks in (1000, 5000):
        cluster, found = ran(one_instance(blocks, 512), requests, chain)
        plain = PlainLru(chain, blocks, 512)
        assert [found.get(request.number, -1) for request in requests] == [
            plain.serve(request) for request in requests
        ]
        assert residents(cluster) == set(plain.blocks)


# --- steps ---------------------------------------------------------------------------------------

RATES = Rates(3.7, 1234.5, 17.3)
ROOFLINES = st.builds(
    Roofline,
    flop_token=st.floats(1, 1e4), flop_pair=st.floats(0, 10), byte_weights=st.floats(0, 1e5),
    byte_token=st.floats(0, 10), shared_token=st.floats(0, 10), overhead=st.floats(0, 1e4),
    token_ns=st.just(0.0), byte_experts=st.floats(0, 1e6), spared=st.floats(0, 1),
)  # fmt: skip


@given(st.one_of(st.just(RATES), ROOFLINES), st.integers(1, 50), st.integers(0, 10**5), st.data())
def test_a_run_of_decode_steps_is_the_sum_of_its_steps(
    compute: ComputeModel, sequences: int, context: int, data: st.DataObject
) -> None:
    is_the_sum_of_its_steps(compute, sequences, context, data.draw(st.integers(1, 300)))


def test_lines_that_cross_beyond_all_numbers_are_added_up_as_well() -> None:
    hardly = Roofline(
        flop_token=1.0, flop_pair=2.3e-311, byte_weights=2.0, byte_token=0.0, shared_token=0.0,
        overhead=0.0, token_ns=0.0,
    )  # fmt: skip
    is_the_sum_of_its_steps(hardly, 1, 0, 300)


def is_the_sum_of_its_steps(
    compute: ComputeModel, sequences: int, context: int, steps: int
) -> None:
    """Each step is rounded up by less than 1 ns, the run once."""
    alone = sum(compute.step_ns(0, 0, 0, sequences, context + i * sequences) for i in range(steps))
    assert -2 <= alone - compute.run_ns(sequences, context, steps) <= steps + alone * 1e-9


@pytest.mark.parametrize(
    ("model", "total", "experts", "chosen"),
    [
        (ModelSection(name="qwen3-30b-a3b"), 30.5, 128, 8),
        (ModelSection(name="deepseek-v3"), 671.0, 256, 8),
        (ModelSection(name="llama3.1-8b", params_billion=5, total_params_billion=40), 40.0, 8, 1),
    ],
)
def test_a_step_of_a_mixture_of_experts_reads_those_that_its_tokens_pass_through(
    model: ModelSection, total: float, experts: int, chosen: int
) -> None:
    """One token reads what is active, a few hundred nearly all that memory holds: by drawing."""
    section = InstanceSection(tflops=1e6, hbm_gbytes_per_s=1000, flops_share=1.0, bytes_share=1.0)
    compute, active = make_compute(section, model, 256), parameters(model).active_billion
    each = (total - active) / (experts - chosen)
    rng = random.Random(7)
    for tokens in (1, 2, 16, 64, 256):
        met = [
            len({e for _ in range(tokens) for e in rng.sample(range(experts), chosen)})
            for _ in range(200)
        ]
        billion = active + (fmean(met) - chosen) * each
        read_ms = compute.step_ns(0, 0, 0, tokens, 0) / 1e6
        assert read_ms == pytest.approx(billion * 2, rel=0.02)


@given(st.integers(0, 1000), st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_chunks_of_a_prompt_have_the_pairs_of_the_whole(before: int, chunks: list[int]) -> None:
    at, pairs = before, 0
    for chunk in chunks:
        pairs += pairs_of(at, chunk)
        at += chunk
    assert pairs == pairs_of(before, sum(chunks))


def _one_step(self: Instance, steps: int, fitting: Callable[..., int] = Instance._fitting) -> int:
    return min(1, fitting(self, steps))


@pytest.mark.parametrize("seed", range(60))
def test_many_steps_as_one_event_end_when_they_end_step_by_step(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All settings drawn at random, but rates of whole ns, so that nothing is rounded, and no
    transfers, whose instants could tie with those of steps. Where answers grow into memory that
    is not reserved, nothing is shared: who waits for memory is let in when a batch changes, not
    when the growth of others happens to evict what it would have used."""
    values = random_values(5000 + seed)
    values["workload"] |= {"warmup_requests": 0}
    if values["scheduler"]["reservation"] != "reserve-full":
        values["workload"] |= {"source": "poisson"}
    values["tiers"] = {"hbm_eviction": values["tiers"]["hbm_eviction"]}
    values["scheduler"] |= {"preemption": "recompute"}
    values["instances"] = {
        name: group | {
            "role": "mixed", "compute": "rate", "prefill_tokens_per_s": 1e6,
            "decode_tokens_per_s": 1e4, "step_overhead_us": 3.0,
        }
        for name, group in values["instances"].items()
    }  # fmt: skip
    fast = serve(scenario_of(values))
    monkeypatch.setattr(Instance, "_fitting", _one_step)
    slow = serve(scenario_of(values))
    assert fast.requests.number == slow.requests.number
    assert fast.requests.ttft_ns == slow.requests.ttft_ns
    assert fast.requests.e2e_ns == slow.requests.e2e_ns
    assert fast.requests.hit_tokens == slow.requests.hit_tokens
    assert fast.requests.preemptions == slow.requests.preemptions
    assert fast.instances.busy_ns == slow.instances.busy_ns
    assert fast.concurrency_ns == slow.concurrency_ns


# --- what was wrong once -------------------------------------------------------------------------


def apart(**changed: Plain) -> Plain:
    """One that prefills at 1 us a token, one that decodes at 1 ms a token of all together."""
    gpu = {
        "hbm_gib": gib(10_000, BLOCK), "compute": "rate", "prefill_tokens_per_s": 1e6,
        "decode_tokens_per_s": 1000.0,
    }  # fmt: skip
    values: Plain = {
        "model": {"kv_bytes_per_token": 1000, "block_tokens": BLOCK},
        "workload": {
            "source": "poisson", "requests": 30, "rate_per_s": 50.0, "prompt_tokens": (10, 500),
            "output_tokens": (2, 300),
        },
        "instances": {"p": gpu | {"role": "prefill"}, "d": gpu | {"role": "decode"}},
        "scheduler": {"max_num_seqs": 4},
        "watch": {"check_every": 10},
    }  # fmt: skip
    for section, keys in changed.items():
        values[section] = values.get(section, {}) | keys
    return values


def test_who_comes_while_steps_are_under_way_gets_no_token_of_them() -> None:
    requests = serve(scenario_of(apart())).requests
    assert min(requests.tpot_ns) >= 1_000_000


def test_every_prompt_crosses_to_the_decode_side_once() -> None:
    outcome = serve(scenario_of(apart()))
    assert outcome.requests.preemptions == 0
    (link,) = outcome.links
    assert link.bytes_by_cause == {"pd-transfer": 1000 * sum(outcome.requests.prompt_tokens)}


@pytest.mark.parametrize("transfer", ["push", "pull", "on-demand"])
def test_nobody_but_who_prefills_prefills_whoever_has_the_prefix(transfer: str) -> None:
    work = {
        "source": "sessions", "turns": (4, 4), "system_prompts": 1, "system_tokens": 64,
        "context_tokens": 0,
    }  # fmt: skip
    values = apart(
        workload=work,
        router={"kind": "prefix-aware", "decode": "prefix-aware"},
        separation={"transfer": transfer},
    )
    outcome = serve(scenario_of(values))
    prefilled = dict(zip(outcome.instances.role, outcome.instances.prefill_tokens, strict=True))
    assert prefilled["decode"] == 0 < prefilled["prefill"]
    assert set(outcome.requests.instance) == {0}


def test_the_least_loaded_is_found_after_somebody_was_chosen_and_got_nothing() -> None:
    loads = Loads([0, 1], 2)
    for _ in range(5):
        loads.choose(loads.least(1)[0])
    assert loads.least(2) == [1, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.booleans()), max_size=30),
    st.permutations(range(8)),
)
def test_the_least_loaded_of_some_is_the_one_of_the_least_key(
    changes: list[tuple[int, int, bool]], members: list[int]
) -> None:
    loads = Loads(range(8), 8)
    for instance, work, chosen in changes:
        loads.add(instance, work, 0)
        if chosen:
            loads.choose(instance)
    assert loads.least_of(members[:5]) == min(members[:5], key=loads.key)


def test_holders_that_left_leave_no_places_behind() -> None:
    """Each look at the first holder goes over the empty places before it."""
    watch, chain = TierWatch(Loop()), PrefixChain()
    pools = [BlockPool(0, at, 0, 1, 1, chain, EVICTION["lru"], watch) for at in range(2000)]
    for pool in pools:
        watch.came(pool, 7)
    for pool in pools[:1990]:
        watch.went(pool, 7)
    assert list(watch.holders[7]) == list(range(1990, 2000))
    assert sys.getsizeof(watch.holders[7]) < sys.getsizeof(dict.fromkeys(range(100)))
    for pool in pools[1990:]:
        watch.went(pool, 7)
    assert not watch.holders


def test_queues_that_are_full_reject_and_the_rest_is_served() -> None:
    values = apart(scheduler={"max_num_seqs": 1, "max_queue": 1}, router={"kind": "least-loaded"})
    values["instances"] = {"gpu": values["instances"]["p"] | {"role": "mixed", "count": 2}}
    requests = serve(scenario_of(values)).requests
    assert set(requests.rejected) == {"queue-full"}
    assert requests.finished + requests.rejected["queue-full"] == 30


@pytest.mark.parametrize("transfer", ["push", "pull", "on-demand"])
@pytest.mark.parametrize("reservation", ["on-demand", "reserve-prompt", "reserve-full"])
def test_prefill_and_decode_never_wait_for_each_others_memory(
    transfer: str, reservation: str
) -> None:
    """Two mixed instances beside separate ones, all with memory for little more than a sequence."""
    values = apart(
        workload={"rate_per_s": 0.0, "output_tokens": (2, 100)},
        scheduler={"reservation": reservation, "order": "sjf"},
        separation={"transfer": transfer},
        tiers={"overlap_load": False},
    )
    gpu = values["instances"]["p"] | {"hbm_gib": gib(45, BLOCK), "count": 2}
    values["instances"] = {role: gpu | {"role": role} for role in ("prefill", "mixed", "decode")}
    assert serve(scenario_of(values)).requests.finished == 30


# --- laws that are broken ------------------------------------------------------------------------


def test_a_broken_law_ends_the_run_with_its_name_and_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that forgets what a request owns."""
    take = Instance._take_prompt

    def forgetful(self: Instance, flight: Flight) -> bool:
        taken = take(self, flight)
        if taken and flight.hold is not None:
            flight.hold.private += 1
        return taken

    monkeypatch.setattr(Instance, "_take_prompt", forgetful)
    values = one_instance(100) | {"seed": 4711}
    values["workload"] = {"source": "poisson", "requests": 5, "prompt_tokens": (9, 9)}
    values["instances"]["gpu"]["compute"] = "rate"
    values["watch"] = {"check_every": 1}
    with pytest.raises(BrokenLawError, match=r"seed 4711: the law of capacity is broken at \d+ ns"):
        serve(scenario_of(values))


def test_the_log_knows_a_request_that_ends_twice() -> None:
    log = Log()
    hear = log.hear
    for kind in ("arrival", "route", "admit", "first-token", "finish"):
        hear(5, kind, 1, 0)
    log.over()
    with pytest.raises(AssertionError, match="after its end"):
        hear(6, "finish", 1, 0)
    with pytest.raises(AssertionError, match="goes back"):
        hear(4, "arrival", 2, 0)
    with pytest.raises(AssertionError, match="without admit"):
        hear(6, "first-token", 3, 0)


def test_a_check_that_has_much_to_recount_is_made_more_seldom() -> None:
    values: Plain = {
        "model": {"kv_bytes_per_token": 1000, "block_tokens": BLOCK},
        "workload": {"source": "poisson", "requests": 8_000},
        "instances": {"gpu": {"count": 2_000, "hbm_gib": gib(1_000, BLOCK), "compute": "none"}},
        "topology": {"racks": 25, "nodes_per_rack": 10, "instances_per_node": 8},
        "router": {"kind": "round-robin"},
    }
    scenario, chain = scenario_of(values), PrefixChain()
    outcome = simulate(scenario, build_source(scenario, chain), chain)
    at_its_end = 1
    assert outcome.requests.finished == 8_000
    assert 1 <= outcome.checks["capacity"] - at_its_end <= outcome.events // 20_000
