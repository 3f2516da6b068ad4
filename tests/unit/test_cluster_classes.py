"""Classes of requests: who is of which, what each is served, who is next."""

from collections import Counter
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import ConfigError
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.facts import facts
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.sources.marks import ClassDraws, LengthErrors
from kv_cache.sim.cluster.waiting_queue import FairQueue
from tests.cluster import Plain, gib, scenario_of, serve

CLOSED: Plain = {
    "model": {"kv_bytes_per_token": 1, "block_tokens": 16},
    "workload": {
        "source": "poisson", "requests": 4000, "concurrency": 60, "prompt_tokens": (10, 100),
        "output_tokens": (10, 100),
    },
    "instances": {"gpu": {"compute": "rate", "prefill_tokens_per_s": 1e6,
                          "decode_tokens_per_s": 1000.0}},
    "scheduler": {"max_num_seqs": 4},
}  # fmt: skip


def flight(number: int, kind: int, prompt: int, output: int) -> Flight:
    made = Flight(ClusterRequest(number, number, 0, 0, prompt, output), (), 0, True)
    made.kind = kind
    return made


SIZES = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=40, max_size=40)


@given(sizes=SIZES, weights=st.tuples(*[st.sampled_from((0.5, 1.0, 3.0, 10.0))] * 2))
def test_classes_that_always_wait_are_served_by_their_weights(
    sizes: list[tuple[int, int]], weights: tuple[float, float]
) -> None:
    queue = FairQueue(weights)
    for number, (prompt, output) in enumerate(sizes):
        queue.add(flight(number, number % 2, prompt, output), first=False)
    most = max((p + o) / weights[n % 2] for n, (p, o) in enumerate(sizes))
    served, left = [0.0, 0.0], Counter({0: 20, 1: 20})
    while all(left.values()):
        head = queue.head()
        assert head is not None
        queue.pop()
        served[head.kind] += (head.target + head.request.output_tokens) / weights[head.kind]
        left[head.kind] -= 1
        assert abs(served[0] - served[1]) <= most * (1 + 1e-9)


def test_a_class_that_comes_back_has_saved_nothing_up() -> None:
    queue = FairQueue((1.0, 1.0))
    for number in range(10):
        queue.add(flight(number, 0, 50, 50), first=False)
        queue.pop()
    for number in range(10, 20):
        queue.add(flight(number, number % 2, 50, 50), first=False)
    order = []
    while (head := queue.head()) is not None:
        order.append(head.kind)
        queue.pop()
    assert order == [0, 1] * 5
    returned = flight(20, 1, 9, 9)
    queue.add(flight(21, 0, 1, 1), first=False)
    queue.add(returned, first=True)
    assert (queue.head(), len(queue), len(list(queue.every()))) == (returned, 2, 2)
    queue.withdraw(returned)
    assert [f.request.number for f in queue.every()] == [21]


def test_all_requests_of_a_session_are_of_one_class_drawn_by_the_shares() -> None:
    one, other = (ClassDraws((1.0, 3.0), Seed(5).child("classes")) for _ in range(2))
    kinds = [one.of(session) for session in range(4000)]
    assert kinds == list(reversed([other.of(session) for session in reversed(range(4000))]))
    assert kinds.count(1) == pytest.approx(3000, abs=120)


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_who_always_asks_is_served_by_weight_and_the_sums_are_those_of_all(weight: float) -> None:
    values = {
        **CLOSED,
        "classes": {"a": {"share": 1}, "b": {"share": 1, "weight": weight}},
        "scheduler": {"max_num_seqs": 4, "order": "fair"},
    }
    values["workload"] = CLOSED["workload"] | {"concurrency": 0, "rate_per_s": 1e6}
    found = serve(scenario_of(values))
    requests = found.requests
    early = requests.kind[:1500]  # both wait
    had = [0, 0]
    for kind, prompt, output in zip(early, requests.prompt_tokens, requests.output_tokens,
                                    strict=False):  # fmt: skip
        had[kind] += prompt + output
    assert had[1] / had[0] == pytest.approx(weight, rel=0.02)
    told = facts(found)["classes"]
    assert sum(row["finished"] for row in told.values()) == 4000
    assert sum(row["arrived"] for row in told.values()) == 4000
    assert sum(row["token_share"] for row in told.values()) == pytest.approx(1)


def test_pauses_of_low_decodes_shorten_what_the_high_wait_and_lose_nobody() -> None:
    """With memory for few; paused ones are computed again, or come back from DRAM. The same for
    those that wait in a central queue."""
    base = {
        **CLOSED,
        "classes": {"low": {"share": 3}, "high": {"priority": 1}},
        "instances": {"gpu": CLOSED["instances"]["gpu"] | {"hbm_gib": gib(40, 16, 1)}},
        "tiers": {"dram": {"capacity_gib": gib(400, 16, 1)}},
    }
    queues = {}
    each: dict[str, Plain] = {
        "fcfs": {},
        "first": {"order": "priority"},
        "pause": {"order": "priority", "pause_lower": True},
        "swap": {"order": "priority", "pause_lower": True, "preemption": "swap"},
        "lowest": {"order": "priority", "pause_lower": True, "victim": "lowest-priority"},
        "central": {"order": "priority", "queue": "central"},
        "central-pause": {"order": "priority", "pause_lower": True, "queue": "central"},
    }
    for name, rules in each.items():
        values = {**base, "scheduler": {"max_num_seqs": 4, **rules}}
        found = serve(scenario_of(values))
        assert found.requests.finished == 4000
        queues[name] = facts(found)["classes"]["high"]["queue_ms"]["mean"]
    assert queues["first"] < queues["fcfs"] / 2
    assert max(queues["pause"], queues["swap"], queues["lowest"]) < queues["first"] / 2
    assert queues["central-pause"] < queues["central"] / 2


@pytest.mark.parametrize("rules", [{"order": "fair"}, {"order": "priority"},
                                   {"victim": "lowest-priority"}])  # fmt: skip
def test_a_rule_of_classes_without_classes_is_refused(rules: Plain) -> None:
    with pytest.raises(ConfigError, match="there are no classes; give some"):
        scenario_of({"instances": {"gpu": {}}, "scheduler": rules})


# --- expected lengths ----------------------------------------------------------------------------


@pytest.mark.parametrize("cv", [0.3, 1.0])
def test_errors_of_expected_lengths_have_mean_1_and_their_variation(cv: float) -> None:
    errors = LengthErrors(cv, Seed(3).child("length-errors"))
    factors = [errors.of(number) for number in range(20_000)]
    assert fmean(factors) == pytest.approx(1, abs=0.03)
    assert stdev(factors) == pytest.approx(cv, rel=0.1)


def test_the_worse_lengths_are_known_the_less_does_shortest_first_gain() -> None:
    """One sequence at a time under load: from lengths that are known towards first come, first
    served; factors of 20 and more still tell the longest from the shortest."""
    work = {
        "source": "poisson", "requests": 6000, "rate_per_s": 8, "prompt_tokens": (1, 1),
        "output_tokens": (100, 100), "output_law": "exponential",
    }  # fmt: skip
    waits = []
    for rules in (
        {"order": "sjf"}, {"order": "sjf", "length_error_cv": 1.0},
        {"order": "sjf", "length_error_cv": 100.0}, {"order": "fcfs"},
    ):  # fmt: skip
        values = {**CLOSED, "workload": work, "scheduler": {"max_num_seqs": 1, **rules}}
        waits.append(fmean(serve(scenario_of(values)).requests.queue_ns))
    known, guessed, unknown, in_turn = waits
    assert known < guessed < unknown
    assert known < 0.6 * in_turn
    assert unknown > 0.7 * in_turn


def test_an_instance_is_as_loaded_as_is_expected() -> None:
    """Routers count what is expected, and take as much away again when it is over."""
    values = {
        **CLOSED,
        "topology": {"instances_per_node": 3},
        "instances": {"gpu": CLOSED["instances"]["gpu"] | {"count": 3}},
        "router": {"kind": "least-loaded"},
    }
    exact, off = (
        list(serve(scenario_of(values | {"scheduler": {"length_error_cv": cv}})).requests.instance)
        for cv in (0.0, 2.0)
    )
    assert exact != off
