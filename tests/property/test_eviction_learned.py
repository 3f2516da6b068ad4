"""The learned policy: what it knows, what it learns from, and that it really decides."""

import random
import statistics
from collections.abc import Sequence
from math import log1p

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.policy.eviction import EVICTION, Eviction, Item
from kv_cache.policy.eviction.histories import FEATURES, Histories
from kv_cache.policy.eviction.learned import BATCH, NEVER, Learned

pytest.importorskip("lightgbm", reason="the extra `learned` is not installed")


def replay(policy: Eviction, capacity: int, contents: Sequence[int]) -> tuple[int, list[int]]:
    """Hits, and the contents that left, in order."""
    copies: dict[int, int] = {}
    held: dict[int, int] = {}
    hits, gone = 0, []
    for number, content in enumerate(contents):
        if content in copies:
            hits += 1
            policy.hit(copies[content])
            continue
        if len(copies) >= capacity:
            victim = next(policy.victims())
            policy.remove(victim, evicted=True)
            gone.append(held.pop(victim))
            del copies[gone[-1]]
        policy.insert(Item(number, content.to_bytes(16, "little"), 1))
        copies[content], held[number] = number, content
    return hits, gone


LOOP = [number % 300 for number in range(6000)]


def test_a_loop_that_lru_always_misses_is_learned() -> None:
    assert replay(EVICTION["lru"](200), 200, LOOP)[0] == 0
    learned = Learned(200)
    hits, gone = replay(learned, 200, LOOP)
    assert hits > len(LOOP) / 4, "the best there is, with 200 of 300, are two thirds"
    notes = learned.notes()
    assert notes["trainings"] >= 1
    assert 0 < notes["unlike_lru"] <= notes["consulted"] < len(gone)


def test_scans_push_out_less_of_what_is_used_again() -> None:
    rng = random.Random(3)
    contents: list[int] = []
    for scan in range(60):
        contents += [rng.randrange(400) for _ in range(100)]
        contents += range(1000 + 100 * scan, 1100 + 100 * scan)
    lru, _ = replay(EVICTION["lru"](250), 250, contents)
    learned, _ = replay(Learned(250), 250, contents)
    assert learned > 1.2 * lru


def test_without_a_model_it_is_lru() -> None:
    rng = random.Random(4)
    contents = [rng.randrange(60) for _ in range(900)]
    assert replay(Learned(40), 40, contents) == replay(EVICTION["lru"](40), 40, contents)


def test_the_same_accesses_evict_the_same() -> None:
    first, second = Learned(200), Learned(200)
    assert replay(first, 200, LOOP[:4000]) == replay(second, 200, LOOP[:4000])
    assert first.notes() == second.notes()


def test_what_never_came_back_is_a_lesson_too() -> None:
    learned = Learned(100)
    replay(learned, 100, range(2000))
    assert learned.lessons
    assert {after for _, after in learned.lessons} == {log1p(NEVER)}


def test_what_it_remembers_is_bounded() -> None:
    learned = Learned(64)
    replay(learned, 64, range(5000))
    assert learned.known <= 2 * max(64, BATCH)


@settings(max_examples=30, deadline=None)
@given(
    gaps=st.lists(st.lists(st.integers(1, 5000), max_size=12), min_size=1, max_size=80),
    wait=st.integers(0, 1000),
)
def test_features_are_what_their_names_say(gaps: list[list[int]], wait: int) -> None:
    """Row n is used at n, and after each of its gaps."""
    histories = Histories()
    rows, uses = [], []
    for number, own in enumerate(gaps):
        row = histories.take(depth=number)
        at = [number + sum(own[:end]) for end in range(len(own) + 1)]
        for now in at:
            histories.use(row, now)
        rows.append(row)
        uses.append(at)
    now = max(at[-1] for at in uses) + wait
    for number, (line, at, own) in enumerate(
        zip(histories.features(rows, now).tolist(), uses, gaps, strict=True)
    ):
        seen = dict(zip(FEATURES, line, strict=True))
        some = own or [0]
        assert seen == pytest.approx({
            "recency": log1p(now - at[-1]),
            "uses": log1p(len(at)),
            "mean_interval": log1p(statistics.fmean(some)),
            "std_interval": log1p(statistics.pstdev(some)),
            "least_interval": log1p(min(some)),
            "most_interval": log1p(max(some)),
            "uses_by_horizon": len(at) / 1000,
            "depth": number,
        }, abs=1e-4)  # fmt: skip


def test_a_row_that_was_given_back_starts_anew() -> None:
    histories = Histories()
    row = histories.take(3)
    for now in (5, 9, 200):
        histories.use(row, now)
    histories.give_back(row)
    assert histories.take(1) == row
    histories.use(row, 300)
    assert histories.features([row], 300).tolist() == [[0, log1p(1), 0, 0, 0, 0, 0.001, 1]]
