"""The capacity search against queues whose limit is known exactly (`queues.py`): at the service
times of KV objects, with SLOs near the unloaded latency and far from it."""

import numpy as np
import pytest

from kv_cache.schedule.capacity import CapacityAnswer, Ended
from tests.simulation.queues import Queue, Slow, holds, searched

CELLS = [
    Queue(service_s=service, constant=constant, far=far)
    for service in (0.001, 0.02, 0.1, 0.4)
    for constant in (True, False)
    for far in (1.2, 20)
]
FAST = Queue(service_s=0.001, constant=False, far=6.676)  # T = 20 ms
KV = Queue(service_s=0.0139, constant=True, far=500 / 13.9)
"""4.13 MB from a device of 311 MB/s within 500 ms: the case in which one bad moment decided it."""


def test_the_models_limits_are_where_their_share_over_is_what_is_allowed() -> None:
    dice = np.random.default_rng(1)
    assert FAST.capacity == pytest.approx(850.2, abs=0.1)
    for queue in (FAST, Queue(service_s=0.001, constant=True, far=20)):
        arrived, left = queue.responses(queue.capacity, dice, seconds=4000)
        assert (left - arrived > queue.limit_s).mean() == pytest.approx(0.05, rel=0.1)


def held(cells: list[Queue], seeds: range) -> dict[Queue, int]:
    return {
        queue: sum(holds(searched(queue, seed), queue.capacity) for seed in seeds)
        for queue in cells
    }


@pytest.mark.timeout(900)
def test_intervals_hold_the_limit_at_all_service_times() -> None:
    """Four seeds of each of 16 cells: of 64 intervals that hold it with 95 %, at least 58 do in 95
    of 100 draws. Before, at 100 and 400 ms, far SLOs: 1 of 10."""
    counts = held(CELLS, range(4))
    assert sum(counts.values()) >= 58, counts


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_over_100_seeds_a_cell_intervals_hold_the_limit_as_often_as_they_say() -> None:
    counts = held(CELLS, range(100))
    assert sum(counts.values()) >= 0.935 * 1600, counts
    assert min(counts.values()) >= 88, counts


def test_where_requests_are_many_the_capacity_is_found_within_5_percent() -> None:
    for queue in (FAST, Queue(service_s=0.001, constant=True, far=20)):
        answers = [searched(queue, seed, first=400) for seed in range(20)]
        near = [abs(answer.load / queue.capacity - 1) <= 0.05 for answer in answers]
        assert sum(near) >= 19
        assert max(answer.probes for answer in answers) <= 12
        assert sum(answer.confirmed for answer in answers) >= 19
        assert float(np.median([_width(answer, queue) for answer in answers])) < 0.15


def _width(answer: CapacityAnswer, queue: Queue) -> float:
    return ((answer.high or 1e9) - answer.low) / queue.capacity


@pytest.mark.parametrize("first", [8.0, pytest.param(100.0, marks=pytest.mark.nightly), 17_000.0])
def test_a_first_guess_far_off_is_made_good(first: float) -> None:
    answers = [searched(FAST, seed, first=first) for seed in range(20)]
    assert sum(abs(answer.load / FAST.capacity - 1) <= 0.05 for answer in answers) >= 18
    assert sum(holds(answer, FAST.capacity) for answer in answers) >= 18
    assert max(answer.probes for answer in answers) <= 12
    assert sum(answer.ended is Ended.LIMIT for answer in answers) >= 18


@pytest.mark.parametrize("bad", [1, 2, 4, 6])
def test_a_bad_moment_in_one_probe_does_not_decide_the_capacity(bad: int) -> None:
    """Service takes three times as long for 8 s of one probe. Before, in the first: 0.55 of the
    truth in 40 of 40 seeds, and no interval that held it, 45 % of them confirmed."""
    slow = Slow(from_s=12, until_s=20, factor=3)
    answers = [searched(KV, s, first=40, slow_probe=bad, slow=slow) for s in range(10)]
    assert sum(holds(answer, KV.capacity) for answer in answers) >= 8
    assert float(np.median([answer.load for answer in answers])) >= 0.93 * KV.capacity


def test_a_load_that_passed_far_below_does_not_widen_the_interval() -> None:
    """Nothing between passed: the last probe was just above the limit. Before, the interval began
    at the load that had, 0.49 of 1 - utilisation wide, though 0.11 was known."""
    queue = Queue(service_s=0.001, constant=False, far=20)
    answer = searched(queue, 3, probe_s=600, resolution=0.005)
    assert holds(answer, queue.capacity)
    assert answer.high is not None
    assert (answer.high - answer.low) / (1 / queue.service_s - queue.capacity) < 0.15
    assert answer.low <= answer.load < answer.high


def test_a_search_that_stays_wide_says_how_long_it_would_take_to_be_narrow() -> None:
    queue = Queue(service_s=0.1, constant=False, far=1.2)
    answer = searched(queue, 1)
    assert not answer.confirmed
    assert answer.seconds_to_narrow is not None
    assert answer.seconds_to_narrow > 12 * 60
    assert "would make its interval 3 % wide" in answer.reason
