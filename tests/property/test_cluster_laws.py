"""The laws of a simulated cluster over scenarios drawn at random from all of its settings.

The laws themselves are in kv_cache/sim/cluster/laws.py, which every run asks; here they are asked
after every few events. What one run alone cannot show is compared here: other capacities, other
seeds, other processes, limits between settings.
"""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from kv_cache.config.scenario import VICTIMS, Scenario
from kv_cache.config.scenario_rules import block_sizes
from kv_cache.sim.cluster.compute import make_compute
from kv_cache.sim.cluster.facts import first_token_parts
from kv_cache.sim.cluster.laws import AT_END, LAWS
from kv_cache.sim.cluster.outcome import ClusterOutcome, EventBytes
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest, RequestSource
from kv_cache.sim.cluster.simulate import simulate
from kv_cache.sim.cluster.sources import build_source
from tests.cluster import (
    Plain,
    gib,
    mixed_for_each_other,
    random_values,
    scenario_of,
    serve,
    with_admission,
    with_newer_rules,
)

BATCHES, BATCH = 10, 42
FEW_BATCHES = 2  # of them, where it is not nightly


class Turns:
    """A source that is watched: each turn comes after the end of the one before it, each request
    ends once, and ends are told in the order of time."""

    def __init__(self, source: RequestSource) -> None:
        self._source = source
        self._alive: dict[int, ClusterRequest] = {}
        self._ends: dict[tuple[int, int], int] = {}
        self._last_ns = 0

    def first(self) -> Iterator[ClusterRequest]:
        for request in self._source.first():
            yield self._begun(request)

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        assert self._alive.pop(request.number) is request, "a request ended that was not alive"
        assert self._last_ns <= ended_ns, "ends are told out of order"
        self._last_ns = self._ends[request.session, request.turn] = ended_ns
        return [
            self._begun(new) for new in self._source.after(request, ended_ns, answered=answered)
        ]

    def _begun(self, request: ClusterRequest) -> ClusterRequest:
        assert request.number not in self._alive
        if request.turn:
            ended_ns = self._ends[request.session, request.turn - 1]
            assert request.arrival_ns >= ended_ns, "a turn began before the one before it ended"
        self._alive[request.number] = request
        return request


def served(
    scenario: Scenario, moved: list[tuple[str, EventBytes]] | None = None
) -> tuple[ClusterOutcome, list[tuple[int, str, int, int]]]:
    """With the log that the run told, and in `moved` the kinds of events that had bytes."""
    events: list[tuple[int, str, int, int]] = []

    def hear(
        at_ns: int, kind: str, number: int, where: int, some: EventBytes | None = None, /
    ) -> None:
        if number >= 0:
            events.append((at_ns, kind, number, where))
        if some is not None and moved is not None:
            moved.append((kind, some))

    chain = PrefixChain()
    source = Turns(build_source(scenario, chain))
    return simulate(scenario, source, chain, on_event=hear), events


# --- all laws, everywhere ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch, marks=[pytest.mark.nightly] if batch >= FEW_BATCHES else [])
        for batch in range(BATCHES)
    ],
)
def test_every_law_holds_in_scenarios_drawn_at_random(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        values = with_newer_rules(with_admission(random_values(seed), seed), seed)
        scenario = scenario_of(values)
        moved: list[tuple[str, EventBytes]] = []
        outcome, events = served(scenario, moved)
        assert all(outcome.checks[law] for law in (*LAWS, *AT_END)), "a law was not asked"
        every_request_ends_once(outcome, events)
        times_are_in_order(outcome)
        no_token_comes_before_its_computation(outcome, events)
        parts_add_up(outcome)
        first_token_parts_are_those_of_the_log(outcome, events)
        levels_are_those_of_the_log(outcome, events)
        bytes_of_the_log_are_those_of_links_and_places(outcome, moved)
        min_finds_no_less(outcome)


@pytest.mark.parametrize("victim", VICTIMS)
def test_mixed_instances_that_decode_for_each_other_never_wait_for_each_other(
    victim: str,
) -> None:
    """Little memory: with a hand-over that waits for it, seeds 216 and 288 never end."""
    sent = declined = preempted = 0
    for seed in range(200, 290):
        values = mixed_for_each_other(seed)
        values["scheduler"]["victim"] = victim
        values["classes"] = {"a": {"priority": 0}, "b": {"priority": seed % 2}}
        if seed % 3 and victim == "lowest-priority":
            values["scheduler"] |= {"order": "priority", "pause_lower": True}
        outcome, events = served(scenario_of(values))
        every_request_ends_once(outcome, events)
        parts_add_up(outcome)
        first_token_parts_are_those_of_the_log(outcome, events)
        levels_are_those_of_the_log(outcome, events)
        sent += outcome.requests.handoffs
        declined += outcome.requests.handoffs_declined
        preempted += outcome.requests.preemptions
    assert min(sent, declined, preempted) > 50, "nothing that could go wrong has come about"


def test_retries_and_who_gives_the_last_token_are_those_of_the_log() -> None:
    """Sequences that lose their memory begin again elsewhere: at seed 125 one has its last token
    from that, and needs no memory where it would have decoded."""
    taken = 0
    for seed in (*range(20), 125):
        values = with_newer_rules(random_values(seed), seed)
        values["workload"]["warmup_requests"] = 0
        values["scheduler"] |= {"preemption": "abort", "max_retries": 2, "max_queue": 0}
        outcome, events = served(scenario_of(values))
        routed = Counter(number for _, kind, number, _ in events if kind == "route")
        assert sum(routed.values()) - len(routed) == outcome.requests.retries_taken
        last = {number: where for _, kind, number, where in events if kind == "finish"}
        requests = outcome.requests
        assert {*zip(requests.number, requests.decoder, strict=True)} == {*last.items()}
        taken += requests.retries_taken
    assert taken


@pytest.mark.parametrize("seed", [6812, 7783, 8293, 8802])
def test_what_went_wrong_once_goes_well(seed: int) -> None:
    """Swapped sequences that took turns for ever, without a step between; a prefix that was
    evicted under leaf-first while what lay behind it was in use."""
    served(scenario_of(random_values(seed)))


def every_request_ends_once(
    outcome: ClusterOutcome, events: list[tuple[int, str, int, int]]
) -> None:
    ends = [number for _, kind, number, _ in events if kind in ("finish", "reject", "abort")]
    asked = outcome.scenario.workload.drawn_requests
    assert sorted(ends) == list(range(asked)), "not every request ended once"
    requests = outcome.requests
    ended = requests.finished + requests.rejected.total() + requests.aborted.total()
    assert requests.arrived == ended == asked


def times_are_in_order(outcome: ClusterOutcome) -> None:
    requests = outcome.requests
    for queue, ttft, e2e, tpot, tokens in zip(
        requests.queue_ns, requests.ttft_ns, requests.e2e_ns, requests.tpot_ns,
        requests.output_tokens, strict=True,
    ):  # fmt: skip
        assert 0 <= queue <= ttft <= e2e
        assert tpot == (-1 if tokens == 1 else (e2e - ttft) // (tokens - 1))


def min_finds_no_less(outcome: ClusterOutcome) -> None:
    for tier in outcome.tiers:
        if tier.most_hits is not None:
            assert outcome.blocks.hits[tier.name] <= tier.most_hits <= outcome.blocks.looked_up


def bytes_of_the_log_are_those_of_links_and_places(
    outcome: ClusterOutcome, moved: Sequence[tuple[str, EventBytes]]
) -> None:
    """Links and places count from the first measured request on, the log from the first."""
    if outcome.scenario.workload.warmup_requests:
        return
    logged, evicted = Counter[str](), Counter[str]()
    for kind, (tier, _, nbytes) in moved:
        logged[kind] += nbytes
        if kind == "evict":
            evicted[tier] += nbytes
    sizes = block_sizes(outcome.scenario)
    assert evicted == {t.name: t.evicted * sizes[t.name] for t in outcome.tiers if t.evicted}
    for cause in ("load", "swap-in", "prefetch"):
        read = [x.bytes_by_cause[cause] for x in outcome.links if x.kind.endswith(":read")]
        assert logged[cause] == sum(read), cause
    for cause in ("offload", "prefetch-offload", "write-through", "swap-out"):
        wrote = [x.bytes_by_cause[cause] for x in outcome.links if x.kind.endswith(":write")]
        assert logged[cause] == sum(wrote), cause


def no_token_comes_before_its_computation(
    outcome: ClusterOutcome, events: list[tuple[int, str, int, int]]
) -> None:
    """TTFT is at least the wait and the prefill of what was not found, at the peak and alone."""
    scenario, requests = outcome.scenario, outcome.requests
    preempted = {number for _, kind, number, _ in events if kind == "preempt"}
    for at, number in enumerate(requests.number):
        if number in preempted:
            continue
        group = scenario.instances[outcome.instances.group[requests.instance[at]]]
        compute = make_compute(group, scenario.model, 1)
        hit = requests.hit_tokens[at]
        assert hit < requests.prompt_tokens[at]
        least = requests.queue_ns[at] + compute.prefill_ns(requests.prompt_tokens[at] - hit, hit)
        assert requests.ttft_ns[at] >= least - 1, f"request {number} is faster than its prefill"


def parts_add_up(outcome: ClusterOutcome) -> None:
    instances, requests = outcome.instances, outcome.requests
    assert outcome.blocks.hit <= outcome.blocks.looked_up
    assert requests.measured_finished == len(requests.number) <= requests.measured_arrived
    assert sum(instances.preemptions) == requests.preemptions
    for peak, capacity in zip(instances.peak_blocks, instances.capacity_blocks, strict=True):
        assert peak <= capacity
    for tier in outcome.tiers:
        ends = tier.prefetch_useful + tier.prefetch_late + tier.prefetch_wasted
        carried_over = outcome.scenario.workload.warmup_requests > 0
        assert carried_over or ends <= tier.prefetched, "a block that was brought up ended twice"
    if not outcome.scenario.workload.warmup_requests:
        assert sum(instances.finished) == requests.finished
    for link in outcome.links:
        assert all(nbytes >= 0 for nbytes in link.bytes_by_cause.values())
        assert link.busiest_ns <= outcome.ended_ns or link.bytes_by_cause.total()


def first_token_parts_are_those_of_the_log(
    outcome: ClusterOutcome, events: list[tuple[int, str, int, int]]
) -> None:
    """Of each request: what the log says of it, and the sum of the parts."""
    at: dict[tuple[int, str], int] = {}
    for at_ns, kind, number, _ in events:
        at.setdefault((number, kind), at_ns)
    requests, parts = outcome.requests, first_token_parts(outcome.requests)
    sums = sum(parts.values(), start=np.zeros(len(requests.number), np.int64))
    for place, number in enumerate(requests.number):
        part = {name: int(values[place]) for name, values in parts.items()}
        whole, tokens = requests.ttft_with_transfer_ns[place], requests.output_tokens[place]
        assert min(part.values()) >= 0
        assert sums[place] == whole
        assert part["queue"] == at[number, "admit"] - at[number, "arrival"]
        first_ns = at[number, "first-token"] - at[number, "arrival"]
        assert part["queue"] + part["load"] + part["prefill"] == first_ns
        assert part["load"] == 0 or requests.hit_tokens[place] or (number, "preempt") in at
        if tokens == 1:
            assert whole == first_ns
        elif (number, "preempt") not in at:
            assert (
                part["decode_queue"] + part["transfer"]
                == at[number, "decode"] - at[number, "first-token"]
            )
        if tokens == 2:
            assert whole == requests.e2e_ns[place]
        assert whole <= requests.e2e_ns[place]
        movement, chunk = requests.movement_ns[place], requests.first_chunk_ns[place]
        assert -1 <= chunk <= movement
        assert (movement >= 0) <= (requests.instance[place] != requests.decoder[place]) or (
            number, "preempt"
        ) in at  # fmt: skip


def levels_are_those_of_the_log(
    outcome: ClusterOutcome, events: list[tuple[int, str, int, int]]
) -> None:
    """Where each request is between its events, integrated, and the most at a time. The log does
    not say when swapped state is back, or what is computed again elsewhere."""
    goes = {
        "arrival": "waiting", "preempt": "waiting", "decode": "decoding",
        "finish": "", "reject": "", "abort": "",
    }  # fmt: skip
    where: dict[int, str] = {}
    ready = set[int]()  # there is memory where they decode
    area, present, most = Counter[str](), Counter[str](), Counter[str]()
    last_ns = 0
    for at_ns, kind, number, _ in events:
        if at_ns > last_ns:
            for name, count in present.items():
                area[name] += count * (at_ns - last_ns)
                most[name] = max(most[name], count)
            last_ns = at_ns
        before = where.get(number, "")
        after = goes.get(kind, before)
        if kind == "first-token":
            after = "transferring" if number in ready else "decode_queue"
        elif kind == "admit" and before == "waiting":
            after = "prefilling"
            ready.discard(number)
        elif kind == "admit":
            ready.add(number)
            after = "transferring" if before == "decode_queue" else before
        elif kind == "swap-in" or (kind == "route" and outcome.requests.retries_taken):
            return
        present[before] -= 1
        present[after] += 1
        where[number] = after
    for name in ("waiting", "prefilling", "decode_queue", "transferring", "decoding"):
        assert outcome.levels[name] == (area[name], most[name]), name


# --- determinism ---------------------------------------------------------------------------------


def digest(seeds: Sequence[int]) -> str:
    """Of the event logs of some scenarios."""
    found = hashlib.sha256()
    for seed in seeds:
        _, events = served(scenario_of(random_values(seed)))
        found.update(repr(events).encode())
    return found.hexdigest()


SEEDS = range(1000, 1008)


def test_a_seed_gives_the_same_events_in_every_process() -> None:
    code = f"from tests.property.test_cluster_laws import *; print(digest({list(SEEDS)}))"
    hash_seed = next(seed for seed in ("4711", "0") if os.environ.get("PYTHONHASHSEED") != seed)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(SEEDS)


def test_without_jitter_the_networks_seed_changes_nothing() -> None:
    """Equal requests at once, so that nothing else is drawn."""

    def outcome(seed: int, cv: float) -> list[int]:
        dram = {"capacity_gib": gib(500, 16), "scope": "device", "read_gbytes_per_s": 0.01}
        tiers = {"overlap_load": False, "dram": dram}
        values = small(network={"jitter_cv": cv}, tiers=tiers, seed=seed)
        return list(serve(scenario_of(values)).requests.ttft_ns)

    assert outcome(1, 0.0) == outcome(2, 0.0)
    assert outcome(1, 1.0) != outcome(2, 1.0)


# --- bounds and limits ---------------------------------------------------------------------------


def small(**changed: Plain | int) -> Plain:
    """One instance, one tier below it, requests at once, of fixed lengths: sessions that come back
    for what was evicted meanwhile."""
    values: Plain = {
        "model": {"kv_bytes_per_token": 1000, "block_tokens": 16},
        "workload": {
            "requests": 60, "rate_per_s": 0.0, "turns": (5, 5), "think_s": (0.01, 0.01),
            "system_prompts": 3, "system_tokens": 40, "context_tokens": 100,
            "prompt_tokens": (50, 50), "output_tokens": (20, 20), "prompt_law": "fixed",
            "output_law": "fixed",
        },
        "instances": {"gpu": {"hbm_gib": gib(60, 16), "compute": "rate"}},
        "tiers": {"dram": {"capacity_gib": gib(500, 16), "scope": "device"}},
        "topology": {"instances_per_node": 1},
        "scheduler": {"max_num_seqs": 4},
        "watch": {"check_every": 10},
    }  # fmt: skip
    for section, keys in changed.items():
        if isinstance(keys, dict):
            values[section] = values.get(section, {}) | keys
        else:
            values[section] = keys
    return values


def reuse(**changed: Plain | int) -> Plain:
    """Sessions over shared documents, one request at a time and without time."""
    return small(
        workload={
            "requests": 300, "concurrency": 1, "turns": (1, 4), "documents": 12,
            "documents_per_session": 2, "context_tokens": 300, "prompt_law": "uniform",
            "prompt_tokens": (1, 60), "think_s": (0.0, 0.0), "rate_per_s": 10.0,
        },
        scheduler={"reservation": "reserve-full"},
        **changed,
    )  # fmt: skip


def hits(values: Plain) -> int:
    return serve(scenario_of(values)).blocks.hit


def test_hits_of_lru_do_not_fall_with_the_capacity_and_end_at_the_ceiling() -> None:
    """One instance, HBM alone: Mattson's stack property, over whole prefixes."""
    found = []
    for blocks in (45, 60, 80, 110, 160, 300, 700, 5000):
        group = {"hbm_gib": gib(blocks, 16), "compute": "none"}
        outcome = serve(scenario_of(reuse(instances={"gpu": group}, tiers={"dram": {}})))
        assert outcome.requests.finished == 300
        found.append(outcome.blocks.hit)
    assert found == sorted(found)
    assert found[0] < found[-1] == outcome.blocks.ceiling < outcome.blocks.looked_up


def test_a_tier_of_no_capacity_is_no_tier() -> None:
    with_none = reuse(tiers={"dram": {"capacity_gib": 0.0, "read_latency_us": 1e6}})
    without = reuse(tiers={"dram": {}})
    assert list(serve(scenario_of(with_none)).requests.ttft_ns) == list(
        serve(scenario_of(without)).requests.ttft_ns
    )


def test_a_lower_tier_adds_hits_and_never_takes_any_one_request_at_a_time() -> None:
    alone = hits(reuse(tiers={"dram": {}}))
    below = hits(reuse())
    assert alone < below


SINGLES: Plain = {
    "source": "poisson", "requests": 40, "concurrency": 1, "prompt_tokens": (1, 300),
    "output_tokens": (1, 60),
}  # fmt: skip
GPU: Plain = {"hbm_gib": gib(60, 16), "compute": "rate"}


@pytest.mark.parametrize("transfer", ["push", "pull", "on-demand"])
def test_separate_roles_with_free_transfers_are_one_mixed_instance(transfer: str) -> None:
    """The exact limit: one request at a time, nothing shared, a link of 10^18 bytes/s without
    latency. A transfer takes the 1 ns that it is rounded up to."""
    values = small()
    values["workload"] = SINGLES
    mixed = serve(scenario_of(values)).requests
    values |= {
        "instances": {"p": GPU | {"role": "prefill"}, "d": GPU | {"role": "decode"}},
        "topology": {"instances_per_node": 2},
        "network": {"nvlink": {"gbytes_per_s": 1e9, "latency_us": 0.0}},
        "separation": {"transfer": transfer, "chunk_blocks": 10**6, "pipelined": False},
    }
    apart = serve(scenario_of(values)).requests
    assert mixed.prompt_tokens == apart.prompt_tokens
    assert mixed.ttft_ns == apart.ttft_ns
    for one, two, tokens in zip(mixed.e2e_ns, apart.e2e_ns, mixed.output_tokens, strict=True):
        assert two - one == (1 if tokens > 1 else 0)


def test_where_the_instances_stand_is_nothing_to_one_that_is_alone() -> None:
    """One node of many, or the only one: the same numbers, as long as it uses nobody's memory."""
    alone = served(scenario_of(small()))[1]
    top = {"racks": 3, "nodes_per_rack": 4, "instances_per_node": 8}
    assert served(scenario_of(small(topology=top)))[1] == alone


def test_instances_that_get_nothing_change_nothing() -> None:
    """One session after the other: whoever has it keeps it, so the others stay idle."""
    router = {"kind": "session-affinity"}
    work = {"requests": 5, "turns": (5, 5)}
    one = serve(scenario_of(small(workload=work, router=router)))
    group = {"gpu": GPU | {"count": 6}}
    many = serve(
        scenario_of(
            small(workload=work, router=router, instances=group, topology={"instances_per_node": 6})
        )
    )
    assert many.requests.ttft_ns == one.requests.ttft_ns
    assert sum(1 for n in many.instances.requests if n) == 1


@pytest.mark.parametrize(
    ("prefetch", "blocks", "think_s"), [("on-arrival", 90, 0.5), ("next-in-session", 150, 2.0)]
)
def test_prefetching_over_free_links_never_raises_the_mean_latency(
    prefetch: str, blocks: int, think_s: float
) -> None:
    """Reads from afar take 5 ms each, however many go on; near ones take nothing. One sequence at
    a time: beside each other they share a computer, and who is early may be in the way."""
    free = {"read_gbytes_per_s": 1e9, "write_gbytes_per_s": 1e9, "write_latency_us": 0.0}
    tiers = {
        "dram": free | {"capacity_gib": gib(blocks, 16), "scope": "device", "read_latency_us": 0.0},
        "nvme": free | {"capacity_gib": gib(9000, 16), "read_latency_us": 5000.0},
        "overlap_load": False,
    }
    network = {"pcie": {"gbytes_per_s": 1e9, "latency_us": 0.0}}

    def outcome(kind: str) -> ClusterOutcome:
        work = {"think_s": (think_s, think_s)}
        rules = {"max_num_seqs": 1, "reservation": "reserve-full"}
        values = small(
            tiers=tiers | {"prefetch": kind}, network=network, workload=work, scheduler=rules
        )
        return serve(scenario_of(values))

    without, found = outcome("none"), outcome(prefetch)
    assert sum(tier.prefetched for tier in found.tiers) > 0
    assert found.requests.finished == without.requests.finished
    assert sum(found.requests.ttft_ns) < sum(without.requests.ttft_ns)
    assert found.tiers[1].prefetch_useful > 0 == without.tiers[1].prefetched


def test_what_is_brought_up_shortly_before_a_turn_is_still_there_and_half_way_is_not() -> None:
    """Near memory holds the sessions of half a minute, and a pause takes twice that."""
    work: Plain = {
        "requests": 800, "warmup_requests": 80, "rate_per_s": 1.0, "think_s": (10.0, 120.0),
    }  # fmt: skip

    def outcome(kind: str, at: float) -> ClusterOutcome:
        far: Plain = {"dram": {"capacity_gib": 64.0}, "nvme": {"capacity_gib": 1024.0}}
        values: Plain = {
            "workload": work, "instances": {"gpu": {"count": 4, "hbm_gib": 16.0}},
            "router": {"kind": "session-affinity"},
            "tiers": far | {"prefetch": kind, "prefetch_at": at},
        }  # fmt: skip
        return serve(scenario_of(values))

    without, early, late = (
        outcome("none", 0.5),
        *(outcome("next-in-session", a) for a in (0.5, 0.9)),
    )
    assert early.tiers[1].prefetch_useful < 0.1 * early.tiers[1].prefetched
    assert late.tiers[1].prefetch_useful > 0.9 * late.tiers[1].prefetched
    waited = [sum(found.requests.ttft_ns) for found in (late, without, early)]
    assert waited == sorted(waited)
    assert waited[0] < 0.9 * waited[1]


def test_what_can_never_fit_is_rejected_with_the_reason_and_the_rest_is_served() -> None:
    values = small()
    values["workload"] = SINGLES | {"prompt_tokens": (1, 60 * 16 * 2)}
    outcome = serve(scenario_of(values))
    rejected = outcome.requests.rejected
    assert set(rejected) == {"larger-than-hbm"}
    assert rejected.total() + outcome.requests.finished == 40
    most = 60 * 16
    for prompt, output in zip(
        outcome.requests.prompt_tokens, outcome.requests.output_tokens, strict=True
    ):
        assert prompt + output - 1 <= most


def test_the_warm_up_is_in_no_number_but_the_conservation_of_requests() -> None:
    """One request at a time, measured from the 10th on."""
    values = small()
    values["workload"] = SINGLES
    whole = serve(scenario_of(values))
    values["workload"] = SINGLES | {"warmup_requests": 10}
    warm = serve(scenario_of(values))
    assert warm.requests.finished == whole.requests.finished == 40
    assert warm.requests.measured_finished == 30 == len(warm.requests.ttft_ns)
    pairs = dict(zip(whole.requests.number, whole.requests.ttft_ns, strict=True))
    for number, ttft_ns in zip(warm.requests.number, warm.requests.ttft_ns, strict=True):
        assert number >= 10
        assert pairs[number] == ttft_ns
    assert sum(warm.instances.decode_tokens) == sum(warm.requests.output_tokens)
    assert sum(warm.instances.prefill_tokens) == sum(warm.requests.prompt_tokens)
