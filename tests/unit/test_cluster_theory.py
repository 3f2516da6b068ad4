"""The whole engine against queueing theory: systems that it realises exactly, and their formulas.

Where a formula asks for an arrival rate or a mean service, it gets that of the sample, so that what
is left is the chance of the waiting alone: all means are met within 1 %.
"""

from heapq import heappop, heappush
from itertools import pairwise
from math import exp, factorial, lgamma, log

import pytest

from kv_cache.sim.cluster.outcome import ClusterOutcome, Requests
from tests.cluster import Plain, scenario_of, serve

MS = 1e6
REQUESTS = 30_000
FREE: Plain = {"prefill_tokens_per_s": 1e12}
"""Prompts of a token that take no time, so that an answer of N tokens is a service of N - 1."""


def run(
    work: Plain, gpu: Plain, seqs: int, *, requests: int, seed: int = 7, **more: Plain
) -> ClusterOutcome:
    values: Plain = {
        "seed": seed,
        "model": {"kv_bytes_per_token": 1, "block_tokens": 16},
        "workload": {"source": "poisson", "requests": requests, "prompt_tokens": (1, 1)} | work,
        "instances": {"gpu": {"compute": "rate"} | gpu},
        "scheduler": {"max_num_seqs": seqs, "reservation": "reserve-full"}
        | more.pop("scheduler", {}),
        "watch": {"check_every": 100_000, "series_points": 2},
        **more,
    }
    return serve(scenario_of(values))


def mean(values: "list[float]") -> float:
    return sum(values) / len(values)


def by_number(requests: Requests) -> list[tuple[int, int, int]]:
    """Arrival, end and tokens of each, in order of arrival."""
    rows = zip(
        requests.number, requests.arrival_ns, requests.e2e_ns, requests.output_tokens, strict=True
    )
    return [(arrival, arrival + e2e, tokens) for _, arrival, e2e, tokens in sorted(rows)]


def rate(rows: list[tuple[int, int, int]]) -> float:
    """Arrivals per ns."""
    return (len(rows) - 1) / (rows[-1][0] - rows[0][0])


def test_one_sequence_at_a_time_is_m_m_1_and_lindleys_recursion_to_the_nanosecond() -> None:
    """Answers of 1000 tokens in the mean, geometric, are exponential services of 1 s; load 0.5."""
    work = {"rate_per_s": 0.5, "output_tokens": (1000, 1000), "output_law": "exponential"}
    gpu = FREE | {"decode_tokens_per_s": 1000.0}
    rows = by_number(run(work, gpu, 1, requests=REQUESTS).requests)
    end = 0
    for arrival, ended, tokens in rows:
        end = max(end, arrival) + (tokens - 1) * 1_000_000
        assert abs(ended - end) <= 1, "a service began late, or took too long"
        end = ended
    services = [(tokens - 1) * MS for _, _, tokens in rows]
    load = rate(rows) * mean(services)
    times = [float(ended - arrival) for arrival, ended, _ in rows]
    square = mean([s * s for s in services])
    waiting = rate(rows) * square / (2 * (1 - load))  # Pollaczek and Khinchine, of the sample
    assert mean(times) == pytest.approx(mean(services) + waiting, rel=0.01)
    assert mean(times) == pytest.approx(mean(services) / (1 - load), rel=0.01)


CLASSES: Plain = {"low": {"share": 2, "priority": 0}, "high": {"share": 1, "priority": 5}}


def by_class(requests: Requests) -> list[list[tuple[int, int, int]]]:
    """Arrival, end and time of service of each request of the low class, and of the high one."""
    rows: list[list[tuple[int, int, int]]] = [[], []]
    columns = zip(
        requests.arrival_ns, requests.e2e_ns, requests.output_tokens, requests.kind, strict=True
    )
    for arrival, e2e, tokens, kind in columns:
        rows[kind].append((arrival, arrival + e2e, (tokens - 1) * 1_000_000))
    return [sorted(some) for some in rows]


def test_a_higher_class_waits_for_the_service_under_way_alone() -> None:
    """M/M/1 with priorities, to the nanosecond and by Cobham's formula (Operations Research 2(1),
    1954): a wait of R / (1 - load of the high), and R / (1 - load of the high) (1 - load)."""
    work = {"rate_per_s": 0.6, "output_tokens": (1000, 1000), "output_law": "exponential"}
    gpu = FREE | {"decode_tokens_per_s": 1000.0}
    found = run(work, gpu, 1, requests=REQUESTS, classes=CLASSES, scheduler={"order": "priority"})
    low, high = by_class(found.requests)
    asked = [sorted((a, s, e) for a, e, s in some) for some in (low, high)]
    end, places = 0, [0, 0]
    while any(place < len(some) for place, some in zip(places, asked, strict=True)):
        heads = [some[p][0] if p < len(some) else 1 << 62
                 for p, some in zip(places, asked, strict=True)]  # fmt: skip
        end = max(end, min(heads))
        kind = 1 if heads[1] <= end else 0
        _, service, ended = asked[kind][places[kind]]
        places[kind] += 1
        end += service
        assert abs(ended - end) <= 1, "somebody was served out of turn"
        end = ended
    every = low + high
    services = [float(s) for _, _, s in every]
    arrivals = len(every) / (max(a for a, _, _ in every) - min(a for a, _, _ in every))
    left = arrivals * mean([s * s for s in services]) / 2
    load = arrivals * mean(services)
    load_high = load * sum(s for *_, s in high) / sum(services)
    waits = [mean([float(e - a - s) for a, e, s in some]) for some in (low, high)]
    assert waits[1] == pytest.approx(left / (1 - load_high), rel=0.03)
    assert waits[0] == pytest.approx(left / (1 - load_high) / (1 - load), rel=0.03)


def test_a_higher_class_that_pauses_lower_ones_is_served_as_if_it_were_alone() -> None:
    """But for the step of 1 ms that is under way; the lower one goes on where it was, as computing
    it again takes no time here."""
    work = {"rate_per_s": 0.5, "output_tokens": (1000, 1000), "output_law": "exponential"}
    gpu = FREE | {"decode_tokens_per_s": 1000.0}
    rules = {"order": "priority", "pause_lower": True, "reservation": "reserve-prompt"}
    found = run(work, gpu, 1, requests=REQUESTS // 3, classes=CLASSES, scheduler=rules)
    low, high = by_class(found.requests)
    end = 0
    for arrival, ended, service in high:
        end = max(end, arrival) + service
        assert 0 <= ended - end <= 1_000_001, "it waited for more than a step"
        end = ended
    assert found.requests.preemptions > 500
    work_left, before = 0, 0
    for arrival, _, service in sorted(low + high):
        work_left = max(0, work_left - (arrival - before)) + service
        before = arrival
    last = max(e for _, e, _ in low + high)
    assert abs(last - before - work_left) <= 10_000_000, "work was lost, or done twice"


def test_a_central_queue_gives_the_higher_class_every_instance_as_if_it_were_alone() -> None:
    """M/M/2 of the higher class, whatever the lower one has begun, but for the step under way."""
    work = {"rate_per_s": 1.6, "output_tokens": (1000, 1000), "output_law": "exponential"}
    gpu = FREE | {"decode_tokens_per_s": 1000.0, "count": 2}
    rules = {"order": "priority", "pause_lower": True, "reservation": "reserve-prompt",
             "queue": "central"}  # fmt: skip
    found = run(work, gpu, 1, requests=REQUESTS // 3, classes=CLASSES, scheduler=rules)
    high = by_class(found.requests)[1]
    free = [0, 0]
    for arrival, ended, service in high:
        end = max(heappop(free), arrival) + service
        assert 0 <= ended - end <= 1_000_001, "it waited for more than a step"
        heappush(free, ended)
    assert found.requests.preemptions > 500


STEP_MS = 1.0
MEMORY_BOUND: Plain = {
    "compute": "roofline", "tflops": 1e9, "bytes_share": 1.0, "flops_share": 1.0,
    "hbm_gbytes_per_s": 8.03 * 2 / (STEP_MS / 1e3),
}  # fmt: skip
"""A step reads all weights, in 1 ms, and nothing else counts: sequences do not share it."""


def erlang_c(servers: int, offered: float) -> float:
    """The chance to wait in M/M/c."""
    top = offered**servers / factorial(servers) * servers / (servers - offered)
    return top / (sum(offered**k / factorial(k) for k in range(servers)) + top)


def test_sequences_that_do_not_share_a_step_are_the_servers_of_m_m_c() -> None:
    """4 of them, answers of 1000 steps in the mean, load 0.6. A step that is under way delays who
    comes by half a step in the mean."""
    work = {"rate_per_s": 2.4, "output_tokens": (1000, 1000), "output_law": "exponential"}
    rows = by_number(run(work, MEMORY_BOUND, 4, requests=REQUESTS).requests)
    service = mean([tokens * STEP_MS * MS for _, _, tokens in rows])
    free = [0.0] * 4
    for arrival, ended, tokens in rows:
        end = max(heappop(free), arrival) + tokens * STEP_MS * MS
        heappush(free, end)
        assert -1 <= (ended - end) / MS <= 2, "a server was idle, or two shared one"
    offered = rate(rows) * service
    waiting = erlang_c(4, offered) * service / (4 - offered)
    times = mean([float(ended - arrival) for arrival, ended, _ in rows])
    assert times == pytest.approx(service + waiting, rel=0.01)


def m_d_c_waiting(servers: int, offered: float) -> float:
    """Mean wait of M/D/c in services (Crommelin, POEE J. 25, 1932)."""
    total = 0.0
    for i in range(1, 400):
        a, first = i * offered, i * servers
        terms = [exp(j * log(a) - a - lgamma(j + 1)) for j in range(first, first + 400)]
        total += sum(terms) - servers / offered * sum(terms[1:])
    return total


@pytest.mark.nightly
def test_equal_answers_in_steps_that_are_not_shared_are_m_d_c() -> None:
    assert m_d_c_waiting(1, 0.5) == pytest.approx(0.5)  # rho / 2 (1 - rho)
    work = {"rate_per_s": 2.8, "output_tokens": (1000, 1000), "output_law": "fixed"}
    rows = by_number(run(work, MEMORY_BOUND, 4, requests=40_000).requests)
    service = 1000 * STEP_MS * MS
    waiting = m_d_c_waiting(4, rate(rows) * service) * service
    times = mean([float(ended - arrival) for arrival, ended, _ in rows])
    assert times == pytest.approx(service + waiting, rel=0.01)


@pytest.mark.parametrize("law", ["fixed", pytest.param("exponential", marks=pytest.mark.nightly)])
def test_a_rate_that_sequences_share_is_processor_sharing(law: str) -> None:
    """M/G/1-PS: the mean time is E[S] / (1 - load) whatever the law of S; load 0.5."""
    work = {"rate_per_s": 1.0, "output_tokens": (500, 500), "output_law": law}
    gpu = FREE | {"decode_tokens_per_s": 1000.0}
    rows = by_number(run(work, gpu, 2000, requests=REQUESTS).requests)
    service = mean([(tokens - 1) * MS for _, _, tokens in rows])
    times = mean([float(ended - arrival) for arrival, ended, _ in rows])
    assert times == pytest.approx(service / (1 - rate(rows) * service), rel=0.01)


def test_users_who_think_and_one_server_are_the_closed_network_of_mean_value_analysis() -> None:
    """Reiser and Lavenberg (J. ACM 27(2), 1980): 6 users think 4 s in the mean, however that is
    drawn, and are served 1 s."""
    work = {
        "concurrency": 6, "think_s": (0.0, 8.0), "output_tokens": (1000, 1000),
        "output_law": "exponential",
    }  # fmt: skip
    gpu = FREE | {"decode_tokens_per_s": 1000.0}
    outcome = run(work, gpu, 1, requests=REQUESTS)
    rows = by_number(outcome.requests)
    service = mean([(tokens - 1) * MS for _, _, tokens in rows])
    queue = response = 0.0
    for users in range(1, 7):
        response = service * (1 + queue)
        queue = users * response / (response + 4000 * MS)
    times = mean([float(ended - arrival) for arrival, ended, _ in rows])
    assert times == pytest.approx(response, rel=0.01)
    throughput = len(rows) / outcome.ended_ns
    assert throughput == pytest.approx(6 / (response + 4000 * MS), rel=0.01)
    assert sum(outcome.instances.busy_ns) / outcome.ended_ns == pytest.approx(
        throughput * service, rel=1e-6
    )


def test_littles_law_holds_exactly() -> None:
    """The integral of requests in the system over time is the sum of the times they spent there."""
    work = {"rate_per_s": 1.5, "output_tokens": (1, 1000), "output_law": "uniform"}
    outcome = run(work, FREE | {"decode_tokens_per_s": 1000.0}, 8, requests=5000)
    edges = [(arrival, 1) for arrival, _, _ in by_number(outcome.requests)]
    edges += [(end, -1) for _, end, _ in by_number(outcome.requests)]
    there = area = 0
    for (at, change), (then, _) in pairwise(sorted(edges)):
        there += change
        area += there * (then - at)
    assert area == outcome.concurrency_ns == sum(outcome.requests.e2e_ns)
