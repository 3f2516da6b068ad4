"""Small cases of the cluster whose figures can be computed by hand, and input that has none."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kv_cache.config.profile import Cell, Profile, Service
from kv_cache.core.errors import ConfigError
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.cluster import Cluster
from kv_cache.sim.cluster.event_loop import ENDS
from kv_cache.sim.cluster.facts import facts, first_token_parts
from kv_cache.sim.cluster.hardware_models import PLAIN, HardwareModels
from kv_cache.sim.cluster.outcome import ClusterOutcome, EventBytes, OnEvent
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.simulate import simulate
from kv_cache.sim.cluster.sources.marks import ClassDraws
from kv_cache.sim.profile_model import ProfileModel
from tests.cluster import Plain, gib, scenario_of, serve

BLOCK, MS, S = 16, 10**6, 10**9


class Known:
    """Requests at their instants, whatever becomes of them."""

    def __init__(self, requests: Sequence[ClusterRequest]) -> None:
        self._asks = requests

    def first(self) -> Iterator[ClusterRequest]:
        return iter(self._asks)

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        return ()


def request(
    number: int, at_ns: int, prompt: int, output: int = 1, leaf: int = ROOT
) -> ClusterRequest:
    return ClusterRequest(number, number, 0, at_ns, prompt, output, leaf, -1)


def rates(blocks: int = 1000, **more: Any) -> Plain:
    """1 ms for a token of a prompt, 10 ms for one of an answer."""
    return {
        "hbm_gib": gib(blocks, BLOCK),
        "compute": "rate",
        "prefill_tokens_per_s": 1000,
        "decode_tokens_per_s": 100,
        **more,
    }


def ran(
    values: Mapping[str, Any],
    requests: Sequence[ClusterRequest],
    chain: PrefixChain | None = None,
    hardware: HardwareModels = PLAIN,
    on_event: OnEvent | None = None,
) -> ClusterOutcome:
    """Tokens of 1,000 bytes, blocks of 16."""
    scenario = scenario_of(
        {
            "model": {"kv_bytes_per_token": 1000, "block_tokens": BLOCK},
            "workload": {"source": "poisson", "requests": 100},
            **values,
        }
    )
    return simulate(
        scenario, Known(requests), chain or PrefixChain(), hardware=hardware, on_event=on_event
    )


# --- the model ---------------------------------------------------------------------------------


def test_a_model_from_a_file_is_served_as_the_built_in_one(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,'
        ' "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"}'
    )
    found = []
    for name in ("llama3.1-8b", str(file)):
        values = {
            "model": {"name": name, "params_billion": 8},
            "workload": {"requests": 8},
            "instances": {"gpu": {}},
        }
        found.append(serve(scenario_of(values)))
    assert found[0].requests.e2e_ns == found[1].requests.e2e_ns
    assert len(found[0].requests.e2e_ns) == 8


# --- times that are none -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"instances": {"gpu": {"tflops": 1e-9}}},
        {"instances": {"gpu": {"tflops": 1e-300, "flops_share": 1e-300}}},
        {"instances": {"gpu": {"compute": "rate", "decode_tokens_per_s": 1e-308}}},
        {"workload": {"rate_per_s": 1e-300}},
        {"network": {"pcie": {"gbytes_per_s": 1e-300}}},
        {"network": {"pcie": {"gbytes_per_s": 1e-300}, "discipline": "fair-share"}},
    ],
)
def test_what_takes_longer_than_virtual_time_has_is_refused_in_one_sentence(values: Plain) -> None:
    base: Plain = {
        "workload": {"requests": 12, "context_tokens": 512, "think_s": [1, 1]},
        "instances": {"gpu": {"hbm_gib": 0.2}},
        "tiers": {"dram": {"capacity_gib": 4}},
    }
    for name, section in values.items():
        base[name] = {**base.get(name, {}), **section}
    with pytest.raises(ConfigError, match="longer than the 292 years") as refused:
        serve(scenario_of(base))
    assert "\n" not in str(refused.value)


# --- memory --------------------------------------------------------------------------------------


def separate(prefill: int, decode: int, reservation: str) -> Plain:
    return {
        "instances": {
            "p": rates(prefill, role="prefill"),
            "d": rates(decode, role="decode"),
        },
        "scheduler": {"reservation": reservation},
    }


@pytest.mark.parametrize("reservation", ["reserve-full", "reserve-prompt", "on-demand"])
def test_who_only_prefills_needs_memory_for_the_prompt_alone(reservation: str) -> None:
    """4 blocks of prompt, 4 of answer: 4 are enough where it prefills, 8 where it decodes."""
    one = [request(0, 0, 64, 65)]
    assert ran(separate(4, 8, reservation), one).requests.finished == 1
    for prefill, decode in ((3, 8), (4, 7)):
        found = ran(separate(prefill, decode, reservation), one)
        assert found.requests.rejected == {"larger-than-hbm": 1}


def test_a_request_that_is_rejected_has_missed_all_of_its_blocks() -> None:
    chain = PrefixChain()
    long, short = chain.fresh(ROOT, 20), chain.fresh(ROOT, 4)
    requests = [
        request(n, n * S, *size) for n, size in enumerate([(320, 1, long), (64, 1, short)] * 2)
    ]
    found = ran({"instances": {"gpu": rates(8)}}, requests, chain)
    assert found.requests.rejected == {"larger-than-hbm": 2}
    assert (found.blocks.looked_up, found.blocks.ceiling) == (48, 19 + 3)
    assert found.blocks.hit == 3


def test_a_request_that_comes_back_after_preemption_is_one_request() -> None:
    """Two answers of 40 tokens grow out of 10 blocks."""
    found = ran({"instances": {"gpu": rates(10)}}, [request(0, 0, 64, 40), request(1, 0, 64, 40)])
    assert found.requests.preemptions == 1
    assert list(found.instances.requests) == [2]


@pytest.mark.parametrize(("victim", "preempted"), [("youngest", 4), ("oldest", 2),
                                                   ("least-recent", 3)])  # fmt: skip
def test_who_loses_its_memory_is_chosen_by_the_rule(victim: str, preempted: int) -> None:
    """The first of three waits for what was evicted to a slow tier, so that it is the last to
    decode; they have 13 blocks of 18, and need one each every 16 tokens."""
    chain = PrefixChain()
    asked, other = chain.fresh(ROOT, 4), chain.fresh(ROOT, 17)
    requests = [
        request(0, 0, 65, 1, asked), request(1, S, 273, 1, other),
        request(2, 10 * S, 65, 60, asked), request(3, 10 * S, 64, 60), request(4, 10 * S, 64, 60),
    ]  # fmt: skip
    values: Plain = {
        "instances": {"gpu": rates(18)},
        "scheduler": {"victim": victim},
        "tiers": {"dram": {"capacity_gib": gib(40, BLOCK), "read_latency_us": 300_000}},
    }
    lost: list[tuple[int, int]] = []

    def hear(_: int, kind: str, number: int, __: int, moved: EventBytes | None = None, /) -> None:
        if kind == "preempt" and moved is not None:
            lost.append((number, moved.nbytes))

    found = ran(values, requests, chain, on_event=hear)
    assert lost[0] == (preempted, 6 * 16_000)
    assert found.requests.finished == 5


def test_hits_in_a_shared_pool_are_of_others_if_the_finder_did_not_put_them_there() -> None:
    """Two instances in turns: the first one's prompt goes to the node's DRAM, where the second and
    then the first find its four blocks."""
    chain = PrefixChain()
    asked, other = chain.fresh(ROOT, 4), [chain.fresh(ROOT, 7) for _ in range(3)]
    leaves = [asked, other[0], other[1], asked, other[2], asked]
    requests = [
        request(n, n * S, 16 * chain.blocks[leaf] + 1, 1, leaf) for n, leaf in enumerate(leaves)
    ]
    values: Plain = {
        "topology": {"instances_per_node": 2},
        "instances": {name: rates(8) for name in ("first", "second")},
        "router": {"kind": "round-robin"},
        "tiers": {"dram": {"capacity_gib": gib(100, BLOCK)}},
    }
    found = ran(values, requests, chain)
    assert list(found.requests.instance) == [0, 1, 0, 1, 0, 1]
    assert found.blocks.hits == {"dram": 4, "hbm": 4}
    assert found.blocks.from_others == 4


# --- transfers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("separation", "scheduler", "sent_us", "chunk_us", "all_us"),
    [
        ({"transfer": "push", "pipelined": False}, {}, 256 + 30, 256 + 30, 256 + 30),
        ({"transfer": "pull"}, {}, 30 + 256 + 30, 256 + 30, 256 + 30),
        (
            {"transfer": "on-demand", "chunk_blocks": 4}, {}, 4 * (30 + 64 + 30), 64 + 30,
            4 * (30 + 64 + 30) - 30,
        ),
        (
            {"transfer": "push"}, {"max_num_batched_tokens": 64}, 64 + 30, 64 + 30,
            3 * 64 * 1000 + 64 + 30,
        ),
    ],
)  # fmt: skip
def test_a_prompt_takes_latencies_once_and_its_bytes_over_the_slowest_link(
    separation: Plain, scheduler: Plain, sent_us: int, chunk_us: int, all_us: int
) -> None:
    """256 tokens of 1 kB over 1 GB/s; pcie 5, nic 10, nic 10, pcie 5 us; then two tokens."""
    values: Plain = {
        **separate(1000, 1000, "reserve-prompt"),
        "topology": {"nodes_per_rack": 2, "instances_per_node": 1},
        "network": {
            "nic": {"gbytes_per_s": 1, "latency_us": 10},
            "pcie": {"gbytes_per_s": 100, "latency_us": 5},
        },
        "separation": separation,
    }
    values["scheduler"] |= scheduler
    found = ran(values, [request(0, 0, 256, 3)])
    assert list(found.requests.ttft_ns) == [256 * MS]
    assert list(found.requests.e2e_ns) == [256 * MS + sent_us * 1000 + 20 * MS]
    assert list(found.requests.ttft_with_transfer_ns) == [256 * MS + sent_us * 1000 + 10 * MS]
    parts = {name: int(part[0]) for name, part in first_token_parts(found.requests).items()}
    assert parts == {
        "queue": 0, "load": 0, "prefill": 256 * MS, "decode_queue": 0, "transfer": sent_us * 1000,
        "first_decode_step": 10 * MS,
    }  # fmt: skip
    assert list(found.requests.first_chunk_ns) == [chunk_us * 1000]
    assert list(found.requests.movement_ns) == [all_us * 1000]
    assert facts(found)["links"]["nic"]["bytes_by_cause"] == {"pd-transfer": 2 * 256_000}


UNLIKE: Plain = {
    "a": rates(prefill_tokens_per_s=40_000, decode_tokens_per_s=20),
    "b": rates(prefill_tokens_per_s=4000, decode_tokens_per_s=100),
}
"""One prefills ten times as fast, the other decodes five times as fast."""


def test_each_request_is_decoded_where_that_costs_least() -> None:
    """As fast as with roles that are set by hand; at home nothing is sent, and it is slower."""
    asked = [request(n, 2 * n * S, 400, 100) for n in range(50)]
    roles = {
        name: {**UNLIKE[name], "role": role}
        for name, role in (("a", "prefill"), ("b", "decode"))
    }  # fmt: skip
    by_hand = ran({"instances": roles}, asked)
    anew = ran({"instances": UNLIKE, "router": {"decode": "cheapest"}}, asked)
    home = ran({"instances": UNLIKE}, asked)
    assert anew.requests.e2e_ns == by_hand.requests.e2e_ns
    assert min(home.requests.e2e_ns) > max(anew.requests.e2e_ns)
    counts = facts(anew)["requests"]
    assert (counts["handoffs"], counts["decoded_elsewhere"]) == (50, 50)
    assert facts(home)["requests"]["handoffs"] == 0


@pytest.mark.parametrize("role", ["mixed", "decode"])
def test_an_idle_instance_that_is_faster_is_looked_at_beside_two_that_are_not(role: str) -> None:
    slow = {**rates(prefill_tokens_per_s=100, decode_tokens_per_s=10), "role": role, "count": 2}
    groups: Plain = {"slow": slow, "fast": {**rates(), "role": role}}
    if role == "decode":
        groups["first"] = {**rates(), "role": "prefill"}
    rules = {"kind": "prefix-aware", "decode": "prefix-aware"}
    found = ran({"instances": groups, "router": rules}, [request(0, 0, 100, 11)])
    assert found.requests.e2e_ns[0] == pytest.approx(200 * MS, rel=0.01)


def test_a_request_is_decoded_at_home_where_the_other_has_no_room_or_is_too_far() -> None:
    """The fast decoder is full with what it has prefilled itself; over a slow link it does not
    pay."""
    small = {"instances": {**UNLIKE, "b": {**UNLIKE["b"], "hbm_gib": gib(40, BLOCK)}}}
    cheapest: Plain = {"router": {"decode": "cheapest"}}
    both = [request(n, 0, 400, 100) for n in range(3)]
    found = ran({**small, **cheapest}, both)
    assert found.requests.finished == 3
    assert found.requests.handoffs_declined > 0
    one = [request(0, 0, 400, 100)]
    far = ran(
        {
            "instances": UNLIKE,
            **cheapest,
            "network": {"nvlink": {"gbytes_per_s": 0}, "pcie": {"gbytes_per_s": 1e-5}},
        },
        one,
    )
    near = ran({"instances": UNLIKE, **cheapest}, one)
    assert (far.requests.handoffs, near.requests.handoffs) == (0, 1)


def test_a_central_queue_gives_the_first_to_whoever_has_a_place_first() -> None:
    """Three at once for two instances of one place each; the router would give the third one to
    the first, which is busy for longer."""
    values: Plain = {
        "instances": {"gpu": {**rates(max_num_seqs=1), "count": 2}},
        "router": {"kind": "round-robin"},
    }
    asked = [request(0, 0, 1600), request(1, 0, 160), request(2, 0, 160)]
    each = ran(values, asked)
    central = ran({**values, "scheduler": {"queue": "central"}}, asked)
    third = central.requests.number.index(2)
    assert central.requests.instance[third] == 1
    assert central.requests.queue_ns[third] == 160 * MS
    assert each.requests.queue_ns[each.requests.number.index(2)] == 1600 * MS
    assert facts(central)["requests"]["longest_central_queue"] == 1
    assert facts(ran({**values, "scheduler": {"queue": "central"}}, asked[:2]))["requests"][
        "longest_central_queue"
    ] == 0  # fmt: skip
    limited = ran({**values, "scheduler": {"queue": "central", "max_queue": 1}},
                  [*asked, request(3, 0, 160)])  # fmt: skip
    assert limited.requests.rejected == {"queue-full": 1}


def test_a_central_queue_of_one_instance_is_as_good_as_its_own() -> None:
    """Of three prompts at once each begins as soon as the one before it is computed, while that is
    still being sent to where it decodes."""
    values: Plain = {
        "instances": {"a": rates(max_num_seqs=1, role="prefill"), "b": rates(role="decode")},
        "network": {"nvlink": {"gbytes_per_s": 1e-5}, "pcie": {"gbytes_per_s": 0}},
    }
    asked = [request(n, 0, 160, 10) for n in range(3)]
    own, central = (
        ran({**values, "scheduler": {"queue": queue}}, asked).requests
        for queue in ("instance", "central")
    )
    assert list(central.queue_ns) == list(own.queue_ns) == [0, 160 * MS, 320 * MS]


def test_a_central_queue_gives_the_room_that_a_shared_prefix_leaves() -> None:
    """Of 24 blocks the first takes 11, ten of them a prefix that the second, of 12, finds in use:
    when that begins there is room for the 5 of the third, which there was not beside all 12."""
    chain = PrefixChain()
    prefix = chain.fresh(ROOT, 10)
    asked = [
        request(0, 0, 176, 100, chain.grown(prefix, 11)),
        request(1, 177 * MS, 192, 100, chain.grown(prefix, 12)),
        request(2, 178 * MS, 80, 10),
    ]
    own, central = (
        ran({"instances": {"gpu": rates(24)}, "scheduler": {"queue": queue}}, asked, chain).requests
        for queue in ("instance", "central")
    )
    waits = [dict(zip(each.number, each.queue_ns, strict=True)) for each in (own, central)]
    assert waits == [{0: 0, 1: 9 * MS, 2: 8 * MS}] * 2


def test_a_central_queue_pauses_the_lowest_class_wherever_it_runs() -> None:
    """Two instances of one place each decode for the middle class and for the lowest when two of
    the highest come, and a third that nobody has a place for."""
    priorities = (1, 0, 2)
    draws = ClassDraws((1, 1, 1), Seed(0).child("classes"))
    of_each = [[s for s in range(50) if draws.of(s) == kind] for kind in range(3)]
    sessions = (of_each[0][0], of_each[1][0], *of_each[2][:3])
    asked = [
        ClusterRequest(n, session, 0, at * MS, prompt, output, ROOT, -1)
        for n, (session, at, prompt, output) in enumerate(
            zip(sessions, (0, 1, 505, 506, 507), (16, 16, 160, 160, 160), (100, 100, 1, 1, 1),
                strict=True)
        )
    ]  # fmt: skip
    values: Plain = {
        "seed": 0,
        "instances": {"gpu": {**rates(max_num_seqs=1), "count": 2}},
        "router": {"kind": "round-robin"},
        "classes": {f"c{priority}": {"priority": priority} for priority in priorities},
        "scheduler": {"queue": "central", "order": "priority", "pause_lower": True},
    }
    found = ran(values, asked).requests
    row = {number: place for place, number in enumerate(found.number)}
    homes = [found.instance[row[n]] for n in range(5)]
    assert homes[2] == homes[1] != homes[0] == homes[3]
    assert [found.queue_ns[row[n]] < 10 * MS for n in range(5)] == [True] * 4 + [False]
    assert (found.preemptions, found.finished) == (2, 5)


@pytest.mark.parametrize(("queue", "pause", "rejected"), [
    ("instance", False, 3), ("central", False, 3), ("instance", True, 1), ("central", True, 1),
])  # fmt: skip
def test_who_waits_of_a_paused_class_fills_no_queue_of_a_higher_one(
    queue: str, pause: bool, rejected: int
) -> None:
    """One place and a queue of one, both of the low class; three of the high one come: the first
    takes the place, the second waits, the third finds that."""
    draws = ClassDraws((1, 1), Seed(0).child("classes"))
    low, high = ([s for s in range(50) if draws.of(s) == kind] for kind in range(2))
    asked = [
        ClusterRequest(n, session, 0, at * MS, 16, 100 if n < 2 else 1, ROOT, -1)
        for n, (session, at) in enumerate(
            zip([*low[:2], *high[:3]], (0, 1, 100, 112, 113), strict=True)
        )
    ]
    values: Plain = {
        "seed": 0,
        "instances": {"gpu": rates(max_num_seqs=1)},
        "classes": {"low": {"priority": 0}, "high": {"priority": 1}},
        "scheduler": {"queue": queue, "order": "priority", "pause_lower": pause, "max_queue": 1},
    }
    found = ran(values, asked).requests
    assert found.rejected == {"queue-full": rejected}
    assert (found.class_arrived[1], found.finished) == (3, 5 - rejected)


@pytest.mark.parametrize(("most", "rejected"), [(0, 1), (1, 0)])
def test_a_request_whose_queue_is_full_is_given_to_another_instance(
    most: int, rejected: int
) -> None:
    """The first instance serves one and has one that waits; the second has nothing to do."""
    values: Plain = {
        "instances": {"gpu": {**rates(max_num_seqs=1), "count": 2}},
        "router": {"kind": "round-robin"},
        "scheduler": {"max_queue": 1, "max_retries": most},
    }
    asked = [request(n, n * 100 * MS, 1600 if n == 0 else 16) for n in range(5)]
    found = facts(ran(values, asked))["requests"]
    assert found["rejected"] == rejected
    assert found["retries"] == found["retries_taken"] == most


@pytest.mark.parametrize(("most", "aborted"), [(0, 1), (1, 0)])
def test_a_request_that_loses_its_memory_begins_again_at_another_instance(
    most: int, aborted: int
) -> None:
    """Two of one session, whose answers of 40 tokens do not both fit into 10 blocks."""
    values: Plain = {
        "instances": {"gpu": {**rates(10), "count": 2}},
        "router": {"kind": "session-affinity"},
        "scheduler": {"preemption": "abort", "max_retries": most},
    }
    asked = [request(n, 0, 64, 40)._replace(session=0) for n in range(2)]
    found = ran(values, asked)
    assert found.requests.aborted.total() == aborted
    assert found.requests.retries_taken == most
    assert list(found.instances.requests) == ([2, 1] if most else [2, 0])
    assert list(found.instances.finished) == ([1, 1] if most else [1, 0])


def test_least_connections_counts_requests_and_not_their_work() -> None:
    """A long one at the first, two short ones: the third goes to neither by work, but where one
    has ended."""
    values: Plain = {"instances": {"gpu": {**rates(), "count": 2}}}
    asked = [
        request(0, 0, 1600, 1),
        request(1, 1, 160, 9),
        request(2, 2, 16, 1),
        request(3, 3, 16, 1),
    ]
    by_kind = {
        kind: dict(zip(found.requests.number, found.requests.instance, strict=True))
        for kind in ("least-loaded", "least-connections")
        for found in [ran({**values, "router": {"kind": kind}}, asked)]
    }
    assert by_kind["least-loaded"] == {0: 0, 1: 1, 2: 1, 3: 1}
    assert by_kind["least-connections"] == {0: 0, 1: 1, 2: 0, 3: 1}


def test_levels_are_means_over_time_and_each_instance_may_have_its_series() -> None:
    """100 ms of prefill in 7 blocks, then 9 tokens of 10 ms, on both instances at once; a third
    that waits for one of them is in the central queue for as long. The series has a point each
    60 ms, or the first and the last alone; the two that wait for no time are none that wait."""
    values: Plain = {
        "instances": {"gpu": {**rates(max_num_seqs=1), "count": 2}},
        "scheduler": {"queue": "central"},
        "watch": {"series_interval_ms": 60, "series_per_instance": True},
    }
    found = ran(values, [request(n, 0, 100, 10) for n in range(3)])
    levels, columns = facts(found)["levels"], found.series.columns
    means = {name: level["mean"] for name, level in levels.items()}
    assert means == {
        "waiting": pytest.approx(0.5), "central_queue": pytest.approx(0.5), "decode_queue": 0,
        "transferring": 0, "prefilling": pytest.approx(300 / 380),
        "decoding": pytest.approx(270 / 380), "hbm_blocks": pytest.approx(1.5 * 7),
    }  # fmt: skip
    most = {"waiting": 1, "central_queue": 1, "prefilling": 2, "transferring": 0, "decoding": 2}
    most |= {"decode_queue": 0, "hbm_blocks": 14}
    seldom = {**values, "watch": {"series_interval_ms": 10_000}}
    for each in (found, ran(seldom, [request(n, 0, 100, 10) for n in range(3)])):
        assert {name: level["max"] for name, level in facts(each)["levels"].items()} == most
    for name in ("waiting", "decoding", "hbm_blocks"):
        both = zip(
            columns[f"{name}.0"], columns[f"{name}.1"], columns["central_queue"], strict=True
        )
        of_all = [sum(each[: 2 + (name == "waiting")]) for each in both]
        assert of_all == list(columns[name]), name


def test_a_series_begins_with_those_who_begin_at_once() -> None:
    """Two on one instance of one place: as it is at 0, behind what happens then."""
    values: Plain = {"instances": {"gpu": rates(max_num_seqs=1)}}
    columns = ran(values, [request(n, 0, 100, 10) for n in range(2)]).series.columns
    assert (columns["at_ns"][0], columns["waiting"][0], columns["prefilling"][0]) == (0, 1, 1)


def test_who_waits_for_memory_where_it_decodes_is_not_being_transferred() -> None:
    """Two prompts of 160 ms, one after the other, 160 ms of the network each, 9 tokens of 10 ms,
    and memory for one: the other one waits for the 90 ms of its answer."""
    values: Plain = {
        **separate(1000, 12, "reserve-prompt"),
        "network": {"nvlink": {"gbytes_per_s": 1e-3, "latency_us": 0}, "pcie": {"gbytes_per_s": 0}},
        "separation": {"transfer": "pull"},
    }
    found = ran(values, [request(n, 0, 160, 10) for n in range(2)])
    levels = facts(found)["levels"]
    assert {
        name: (round(level["mean"] * found.ended_ns / MS), level["max"])
        for name, level in levels.items()
        if name != "hbm_blocks"
    } == {
        "waiting": (160, 1), "central_queue": (0, 0), "prefilling": (320, 1),
        "decode_queue": (90, 1), "transferring": (320, 1), "decoding": (180, 1),
    }  # fmt: skip


@pytest.mark.parametrize(("most_ms", "good"), [(265, 0), (267, 1)])
def test_goodput_keeps_the_limit_that_a_scenario_names_with_the_transfer(
    most_ms: int, good: int
) -> None:
    """256 ms of prefill, 0.3 of the network, 10 of the first step."""
    values: Plain = {
        **separate(1000, 1000, "reserve-prompt"),
        "network": {"nvlink": {"gbytes_per_s": 1, "latency_us": 10}},
        "separation": {"transfer": "pull"},
        "slo": {"ttft_ms": 257, "ttft_with_transfer_ms": most_ms},
    }
    found = ran(values, [request(0, 0, 256, 3)])
    assert found.requests.good == good
    assert facts(found)["goodput"]["slo"] == {"ttft_ms": 257, "ttft_with_transfer_ms": most_ms}


@pytest.mark.parametrize(
    ("overlap", "held", "loaded_ms"),
    [
        (True, {}, 90 - 16),
        (False, {}, 90),
        (True, {"residency": "int8"}, 45 - 16),
        (False, {"residency": "int8", "dequant": {"int8": 1000}}, 45 + 48),
    ],
)
def test_the_first_token_waits_for_loads_as_long_as_nothing_is_computed(
    overlap: bool, held: Plain, loaded_ms: int
) -> None:
    """Of 112 tokens 96 are in host memory, which reads 1 MB/s; the 16 others take 16 ms. In half
    of the bits half of the bytes are read, and widened then."""
    chain = PrefixChain()
    leaf = chain.fresh(ROOT, 6)
    values: Plain = {
        "instances": {"gpu": rates(12)},
        "network": {"pcie": {"gbytes_per_s": 1000, "latency_us": 0}},
        "tiers": {
            "overlap_load": overlap,
            "dram": {
                "capacity_gib": gib(500, BLOCK), "read_gbytes_per_s": 96 / 90 / 1000,
                "read_latency_us": 0, **held,
            },
        },
    }  # fmt: skip
    other = chain.fresh(ROOT, 12)
    asked = [
        request(0, 0, 112, 1, leaf),
        request(1, S, 192, 1, other),
        request(2, 9 * S, 112, 1, leaf),
    ]
    found = ran(values, asked, chain)
    assert found.requests.hit_tokens[2] == 96
    assert round(found.requests.load_ns[2] / MS) == loaded_ms


@pytest.mark.parametrize(
    ("held", "nbytes", "room", "widening_ns"),
    [
        ({}, 80_000, 100, 0),
        ({"residency": "int4", "dequant": {"int4": 10}}, 20_000, 400, 200_000),
        ({"residency": "int8", "quant_group": 64}, 5 * (8000 + 125 * 4), 188, 0),
        ({"residency": "1fp16+3int4"}, 5 * (4000 + 3000), 228, 0),
    ],
)
def test_what_is_swapped_comes_back_over_the_device_and_the_bus(
    held: Plain, nbytes: int, room: int, widening_ns: int
) -> None:
    """The second of two answers gives 5 blocks up when the first needs its 7th, and comes back when
    that has ended: 80 us at 1 GB/s, 100 us of the device and 5 of the bus; then 24 tokens. In fewer
    bits there are fewer bytes, more room, and what widening takes."""
    values: Plain = {
        "instances": {"gpu": rates(10)},
        "scheduler": {"preemption": "swap"},
        "network": {"pcie": {"gbytes_per_s": 2, "latency_us": 5}},
        "tiers": {
            "dram": {
                "capacity_gib": gib(100, BLOCK),
                "read_gbytes_per_s": 1,
                "write_gbytes_per_s": 1,
                "read_latency_us": 100,
                **held,
            }
        },
    }
    found = ran(values, [request(0, 0, 64, 40), request(1, 0, 64, 40)])
    first, second = found.requests.e2e_ns
    assert second == first + nbytes + 105_000 + widening_ns + 24 * 10 * MS
    assert found.tiers[1].capacity_blocks == room
    moved = facts(found)["links"]
    assert moved["device:dram:read"]["bytes_by_cause"] == {"swap-in": nbytes}
    assert moved["device:dram:write"]["bytes_by_cause"] == {"swap-out": nbytes}


# --- prefetching ---------------------------------------------------------------------------------


def prefetching(
    busy_ms: int, on_event: OnEvent | None = None, *, dram: str | None = None,
    nvme: str | None = None, widening: Mapping[str, float] = MappingProxyType({}),
) -> ClusterOutcome:  # fmt: skip
    """A prompt of 4 blocks lies on a slow drive (16 ms a block) when it is asked for again, behind
    another one that takes `busy_ms`."""
    chain = PrefixChain()
    asked = chain.named(chain.named(ROOT, "a", 2), "b", 2)
    others = [chain.fresh(ROOT, 7) for _ in range(2)]
    requests = [
        request(0, 0, 65, 1, asked),
        *(request(n, n * S, 113, 1, leaf) for n, leaf in enumerate(others, 1)),
        request(3, 3 * S, busy_ms),
        request(4, 3 * S + MS, 65, 1, asked),
    ]
    fast = {"read_gbytes_per_s": 1, "write_gbytes_per_s": 1}
    none = {"read_latency_us": 0, "write_latency_us": 0}
    values: Plain = {
        "instances": {"gpu": rates(8)},
        "scheduler": {"max_num_seqs": 1},
        "network": {"pcie": {"gbytes_per_s": 1000, "latency_us": 0}},
        "tiers": {
            "dram": {
                "capacity_gib": gib(8, BLOCK) / (2 if dram else 1),
                **fast,
                **none,
                "residency": dram,
            },
            "nvme": {
                "capacity_gib": gib(100, BLOCK),
                **fast,
                **none,
                "read_gbytes_per_s": 0.001,
                "residency": nvme,
                "dequant": dict(widening),
            },
            "prefetch": "on-arrival",
            "overlap_load": False,
        },
    }
    return ran(values, requests, chain, on_event=on_event)


def test_a_prefetch_in_time_is_useful_and_one_under_way_is_late_for_all_of_its_blocks() -> None:
    in_time, late = prefetching(100), prefetching(20)
    assert in_time.requests.ttft_ns[-1] == 99 * MS + 64_000 + MS  # wait, dram, the last token
    assert late.requests.ttft_ns[-1] == (64 + 64 + 1) * MS  # behind it on the same drive
    useful, missed = in_time.tiers[1], late.tiers[1]
    assert (useful.prefetched, useful.prefetch_useful, useful.prefetch_late) == (4, 4, 0)
    assert (missed.prefetched, missed.prefetch_useful, missed.prefetch_late) == (4, 0, 4)


def test_a_prefetch_reads_the_bits_of_where_it_comes_from_and_writes_those_of_where_it_goes() -> (
    None
):
    """Four blocks of 16,000 bytes, in a quarter of them on the drive and in half in DRAM."""
    found = prefetching(100, dram="fp8", nvme="int4")
    assert found.requests.ttft_ns[-1] == 99 * MS + 32_000 + MS
    moved = facts(found)["links"]
    assert moved["device:nvme:read"]["bytes_by_cause"] == {"prefetch": 16_000}
    assert moved["device:dram:write"]["bytes_by_cause"]["prefetch"] == 32_000
    assert moved["device:dram:read"]["bytes_by_cause"] == {"load": 32_000}


@pytest.mark.parametrize(("dram", "useful"), [("int8", 4), ("fp8", 0)])
def test_a_prefetch_into_another_type_of_as_many_bits_is_widened_on_its_way(
    dram: str, useful: int
) -> None:
    """Four blocks of 8,000 bytes take 32 ms to read, and as long to widen: the prompt is asked for
    after 50."""
    found = prefetching(50, dram=dram, nvme="int8", widening={"int8": 1000})
    assert found.tiers[1].prefetch_useful == useful
    assert found.tiers[1].prefetch_late == 4 - useful


def test_a_prefetch_into_hbm_needs_one_tier_below_and_leaves_room_to_who_runs() -> None:
    """Four blocks lie in DRAM, 16 ms each, behind a prompt that takes 100 or 20 ms; where that
    leaves room for two of them, two come."""
    found = {}
    for hbm, busy_ms in ((16, 100), (16, 20), (9, 100)):
        chain = PrefixChain()
        asked = chain.fresh(ROOT, 4)
        others = [chain.fresh(ROOT, hbm - 1) for _ in range(2)]
        requests = [
            request(0, 0, 65, 1, asked),
            *(request(n, n * S, 16 * hbm - 15, 1, leaf) for n, leaf in enumerate(others, 1)),
            request(3, 4 * S, busy_ms),
            request(4, 4 * S + MS, 65, 1, asked),
        ]
        fast = {"read_gbytes_per_s": 0.001, "write_gbytes_per_s": 1, "read_latency_us": 0}
        values: Plain = {
            "instances": {"gpu": rates(hbm)},
            "scheduler": {"max_num_seqs": 1},
            "network": {"pcie": {"gbytes_per_s": 1000, "latency_us": 0}},
            "tiers": {
                "dram": {"capacity_gib": gib(100, BLOCK), **fast},
                "prefetch": "on-arrival", "prefetch_into": "hbm", "overlap_load": False,
            },
        }  # fmt: skip
        outcome = ran(values, requests, chain)
        hbm_tier = outcome.tiers[0]
        found[hbm, busy_ms] = (
            outcome.requests.ttft_ns[-1] / MS, hbm_tier.prefetched, hbm_tier.prefetch_useful,
            hbm_tier.prefetch_late,
        )  # fmt: skip
    assert found == {
        (16, 100): (99 + 1, 4, 4, 0),
        (16, 20): (64 + 1, 4, 0, 4),
        (9, 100): (99 + 32 + 1, 2, 2, 0),
    }


def test_who_waits_for_memory_that_a_prefetch_holds_is_let_in_when_it_is_there() -> None:
    """A cluster that sleeps until a prefetch ends: its owner is rejected by nobody, and waits."""
    chain = PrefixChain()
    asked, other, third = (chain.fresh(ROOT, n) for n in (4, 7, 6))
    requests = [
        request(0, 0, 65, 1, asked), request(1, S, 113, 1, other),
        request(2, 2 * S, 97, 1, third),
    ]  # fmt: skip
    values: Plain = {
        "model": {"kv_bytes_per_token": 1000, "block_tokens": BLOCK},
        "workload": {"source": "poisson", "requests": 100},
        "instances": {"gpu": rates(8)},
        "tiers": {
            "dram": {"capacity_gib": gib(100, BLOCK), "read_latency_us": 500_000},
            "prefetch": "on-arrival", "prefetch_into": "hbm",
        },
    }  # fmt: skip
    cluster = Cluster(scenario_of(values), Known(requests), chain)
    cluster.loop.at(2 * S - MS, ENDS, lambda _: cluster._prefetch_next((0, asked)))
    cluster.begin()
    while cluster.loop.run(100):
        pass
    assert cluster.counts.requests.finished == 3
    assert cluster.loop.now_ns > 2 * S + 499 * MS


def test_what_a_prefetch_drives_out_is_charged_to_it() -> None:
    """Each of the 4 blocks that come up drives one down that is not there yet."""
    found = facts(prefetching(100))
    moved = {kind: link["bytes_by_cause"] for kind, link in found["links"].items()}
    assert moved["device:nvme:read"] == {"prefetch": 64_000}
    assert moved["device:dram:write"]["prefetch"] == 64_000
    down = moved["device:nvme:write"]
    assert down["prefetch-offload"] + down["offload"] == found["tiers"]["nvme"]["stored"] * 16_000
    assert down["prefetch-offload"] == 64_000


# --- measured devices --------------------------------------------------------------------------


def test_a_measured_device_is_not_busier_than_it_can_be() -> None:
    """Four instances load 4 blocks each, 10 ms a block, and compute for 1 ms."""
    service = Service(operations=9, mean_us=10_000, p50_us=10_000, p99_us=10_000)
    cells = tuple(
        Cell(
            object_bytes=BLOCK * 1000, concurrency=depth, read_share=share,
            bytes_per_second=1e9, in_flight=depth, reads=service if share else None,
            writes=service if share < 1 else None,
        )
        for depth in (1, 4)
        for share in (0.0, 1.0)
    )  # fmt: skip
    chain = PrefixChain()
    leaves = [chain.fresh(ROOT, 4) for _ in range(5)]
    requests = [request(n, n * S, 65, 1, leaf) for n, leaf in enumerate(leaves)]
    requests += [request(5 + n, 10 * S, 65, 1, leaf) for n, leaf in enumerate(leaves[:4])]
    values: Plain = {
        "workload": {"source": "poisson", "requests": 100, "warmup_requests": 5},
        "instances": {"gpu": rates(5, count=4)},
        "router": {"kind": "round-robin"},
        "tiers": {
            "nvme": {"capacity_gib": gib(80, BLOCK), "profile": "p.json"},
            "write_policy": "through",
            "overlap_load": False,
        },
        "network": {"pcie": {"gbytes_per_s": 10**9, "latency_us": 0}},
    }
    devices = {"nvme": ProfileModel(Profile(name="p", cells=cells))}
    found = ran(values, requests, chain, HardwareModels(devices=devices))
    told = facts(found)["links"]["device:nvme:read"]
    assert (told["servers"], told["transfers"]) == (4, 4)
    assert told["utilisation"] == pytest.approx(4 * 40 / (4 * 41), rel=1e-6)


# --- the event log -------------------------------------------------------------------------------


def test_the_reference_names_the_events_that_there_are() -> None:
    reference = Path(__file__).parents[2] / "docs" / "reference" / "sim.md"
    (line,) = [t for t in reference.read_text().splitlines() if "Events: " in t]
    named = set(line.partition("Events: ")[2].partition(".")[0].split(", "))
    seen = set[str]()
    swapping: Plain = {"instances": {"gpu": rates(10)}, "scheduler": {"preemption": "swap"}}
    dram = {"capacity_gib": gib(80, BLOCK)}
    kinds: list[Plain] = [
        {**swapping, "tiers": {"dram": dram, "write_policy": "through"}},
        separate(10, 1000, "on-demand"),
        {"instances": {"gpu": rates(10)}, "scheduler": {"preemption": "abort"}},
        {"instances": {"gpu": rates(3)}},
        {"instances": {"gpu": rates(8)}, "tiers": {"dram": dram}},
    ]
    for values in kinds:
        chain = PrefixChain()
        leaves = [chain.fresh(ROOT, 4) for _ in range(2)]
        requests = [request(n, n * MS, 64, 40, leaves[n % 2]) for n in range(6)]
        requests += [request(n, n * S, 65, 1, leaves[n % 2]) for n in range(6, 12)]
        scenario = scenario_of(
            {
                "model": {"kv_bytes_per_token": 1000, "block_tokens": BLOCK},
                "workload": {"source": "poisson", "requests": 100},
                **values,
            }
        )
        simulate(scenario, Known(requests), chain, on_event=lambda _, kind, *__: seen.add(kind))
    prefetching(20, lambda _, kind, *__: seen.add(kind))
    assert seen == named
