"""What a stream of requests reuses, when it comes and how long it is."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from statistics import fmean, pstdev, pvariance
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kv_cache.core.block import Block, content_key
from kv_cache.core.kinds import Qos
from kv_cache.core.request import Request
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import bucket_of
from kv_cache.workload import reuse as module
from kv_cache.workload.distribution import QUANTILES, Times, buckets_of, spread_of
from kv_cache.workload.reuse import (
    FIRST,
    NEVER_AGAIN,
    Reuse,
    ReuseFigures,
    StackDistances,
    greater_before,
)
from kv_cache.workload.stats import Arrivals, Sessions, Stream

SIZE = 1000


def request(*names: object, at_s: float = 0, **said: Any) -> Request:
    """One that asks for the blocks of these names, of 16 tokens each."""
    told: dict[str, Any] = {
        "request_id": 0, "intended_ns": round(at_s * NS_PER_S), "user": "u", "conversation": "c",
        "turn": 1, "qos": Qos.BATCH, "priority": 1, "prompt_tokens": 1, "output_tokens": 1,
        "blocks": tuple(Block(content_key(str(name)), 16, SIZE) for name in names),
    }  # fmt: skip
    return Request(**(told | said))


def looked_at(requests: Iterable[Request], **options: Any) -> ReuseFigures:
    reuse = Reuse(**options)
    for each in requests:
        reuse.add(each)
    return reuse.figures()


# --- stack distances ---


def distances_by_a_list(stream: Sequence[int]) -> list[int]:
    """Mattson's stack as he describes it: a list, the last asked for first."""
    stack: list[object] = []
    found = []
    for block in stream:
        name: object = object() if block == NEVER_AGAIN else block
        found.append(stack.index(name) if name in stack else FIRST)
        if name in stack:
            stack.remove(name)
        stack.insert(0, name)
    return found


def hits_of_lru(stream: Sequence[int], capacity: int) -> int:
    kept: OrderedDict[object, None] = OrderedDict()
    hits = 0
    for block in stream:
        name: object = object() if block == NEVER_AGAIN else block
        hits += name in kept
        kept[name] = None
        kept.move_to_end(name)
        if len(kept) > capacity:
            kept.popitem(last=False)
    return hits


@st.composite
def streams(draw: st.DrawFn) -> list[int]:
    """Blocks numbered in the order in which they first appear, some of them asked for once."""
    names = draw(st.lists(st.one_of(st.just("once"), st.integers(0, 12)), max_size=80))
    numbers: dict[object, int] = {}
    return [NEVER_AGAIN if n == "once" else numbers.setdefault(n, len(numbers)) for n in names]


@given(streams(), st.lists(st.integers(1, 30), min_size=1))
def test_distances_are_those_of_the_stack_however_the_stream_is_cut(
    stream: list[int], lengths: list[int]
) -> None:
    stack, found, at = StackDistances(), [], 0
    while at < len(stream):
        for length in lengths:
            found += stack.add(np.array(stream[at : at + length], np.int64)).tolist()
            at += length
    assert found == distances_by_a_list(stream)


@given(streams(), st.integers(0, 15))
def test_one_walk_tells_the_hits_of_an_lru_cache_of_every_size(
    stream: list[int], capacity: int
) -> None:
    stack = StackDistances()
    stack.add(np.array(stream, np.int64))
    assert stack.hits(capacity) == (hits_of_lru(stream, capacity) if capacity else 0)


@given(st.permutations(range(37)))
def test_greater_entries_before_each_are_counted(entries: list[int]) -> None:
    found = greater_before(np.array(entries))
    assert found.tolist() == [sum(e > x for e in entries[:i]) for i, x in enumerate(entries)]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_smallest_permutations_are_counted_too(count: int) -> None:
    assert greater_before(np.arange(count)[::-1].copy()).tolist() == list(range(count))


# --- reuse ---


def test_hits_are_counted_in_blocks_tokens_and_leading_blocks() -> None:
    found = looked_at([request("a", "b", "c"), request("a", "x", "c", "d", tail_tokens=10)])
    assert (found.references, found.unique_blocks, found.hits) == (7, 5, 2)
    assert found.prefix_hits == 1
    assert found.token_hit_ratio == 2 * 16 / (7 * 16 + 10)
    assert (found.bytes_referenced, found.footprint_bytes) == (7 * SIZE, 5 * SIZE)


def test_what_is_asked_for_once_takes_room_and_is_never_found() -> None:
    stream = [request("a"), request("x", "y", once=True), request("x", "a", once=False)]
    found = looked_at(stream)
    assert (found.hits, found.unique_blocks, found.never_again) == (1, 4, 2)
    assert found.distance_blocks is not None
    assert found.distance_blocks.most == 3  # x, y and the other x lie in between


def test_a_conversation_finds_only_what_it_asked_for_itself() -> None:
    one, two = (request("a", "b", conversation=name) for name in ("one", "two"))
    found = looked_at([one, two, two, one], by_conversation=True)
    assert (found.hits, found.own_hits) == (6, 4)
    assert looked_at([one, two]).own_hits is None


def test_a_block_twice_in_one_request_is_a_hit_there() -> None:
    assert looked_at([request("a", "a")]).hits == 1


@pytest.mark.parametrize("batch", [1, 3, 1 << 16])
def test_figures_do_not_depend_on_how_many_references_are_looked_at_together(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = list(some_stream())
    whole = looked_at(stream)
    monkeypatch.setattr(module, "_LEAST_BATCH", batch)
    assert looked_at(stream) == whole


def some_stream() -> Iterator[Request]:
    for step in range(400):
        names = [f"b{(step * step + i) % 97}" for i in range(step % 5)]
        yield request(*names, at_s=step * 1.5, once=step % 7 == 3)


def test_the_rooms_are_shares_of_the_unique_blocks_and_the_curve_ends_without_limit() -> None:
    found = looked_at(some_stream())
    wanted = [int(found.unique_blocks * share) for share in (0.05, 0.10, 0.25)]
    assert [room.blocks for room in found.lru] == wanted
    last = found.lru_curve[-1]
    assert (last.blocks, last.hits, last.nbytes) == (
        found.unique_blocks, found.hits, found.footprint_bytes,
    )  # fmt: skip
    hits = [room.hits for room in found.lru_curve]
    assert hits == sorted(hits)


def working_set_second_by_second(stream: Sequence[Request], window_s: int, end_s: int) -> float:
    """The mean of what was asked for in the last `window_s`, looked at in the middle of each
    second."""
    sizes = []
    for second in range(end_s):
        now = (second + 0.5) * NS_PER_S
        inside = (r for r in stream if now - window_s * NS_PER_S < r.intended_ns <= now)
        sizes.append(len({block.key for each in inside for block in each.blocks}))
    return fmean(sizes)


def test_working_sets_are_the_mean_of_what_was_asked_for_lately() -> None:
    stream = []
    for step in range(200):
        once = step % 5 == 0
        names = [f"once{step}"] if once else [f"b{(step * 7) % 31}", f"b{step % 3}"]
        stream.append(request(*names, at_s=step, once=once))
    found = looked_at(stream)
    assert [row.window_s for row in found.working_sets] == [60]
    wanted = working_set_second_by_second(stream, 60, 199)
    assert found.working_sets[0].blocks == pytest.approx(wanted)
    assert found.working_sets[0].nbytes == pytest.approx(wanted * SIZE)


def test_the_growth_has_few_rows_and_ends_with_the_last_request() -> None:
    found = looked_at(request(n % 1500, at_s=n) for n in range(3000))
    assert len(found.growth) <= 513
    last = found.growth[-1]
    assert (last.at_s, last.requests, last.unique_blocks) == (2999, 3000, 1500)
    times = [row.at_s for row in found.growth]
    assert times == sorted(times)


def test_reuse_times_are_told_in_seconds() -> None:
    found = looked_at([request("a", at_s=5), request("a", at_s=8), request("a", at_s=15)])
    assert found.time_s is not None
    assert (found.time_s.count, found.time_s.total) == (2, 10)
    assert (found.time_s.least, found.time_s.most) == (3, 7)


def test_nothing_gives_figures_without_ratios() -> None:
    found = looked_at([])
    assert found.hit_ratio is None
    assert found.distance_blocks is None
    assert not found.lru_curve


# --- arrivals, sessions, tokens ---


@given(st.lists(st.integers(0, 5 * NS_PER_S), min_size=2, max_size=60))
def test_rate_and_variation_are_those_of_the_gaps(gaps: list[int]) -> None:
    arrivals, at_ns = Arrivals(), 7
    arrivals.add(at_ns)
    for gap in gaps:
        at_ns += gap
        arrivals.add(at_ns)
    found = arrivals.figures()
    assert found.span_s == pytest.approx(sum(gaps) / NS_PER_S)
    assert sum(found.bins) == len(gaps) + 1
    if sum(gaps):
        assert found.per_s == pytest.approx(len(gaps) / (sum(gaps) / NS_PER_S))
        assert found.gap_cv == pytest.approx(pstdev(gaps) / fmean(gaps), abs=1e-9)
    else:
        assert (found.per_s, found.gap_cv) == (None, None)


def test_dispersion_is_the_variance_of_counts_over_their_mean() -> None:
    arrivals, counts = Arrivals(), [3, 0, 1, 0, 0, 7, 2, 2]
    for second, count in enumerate(counts):
        for _ in range(count):
            arrivals.add(second * NS_PER_S)
    arrivals.add(len(counts) * NS_PER_S)
    found = arrivals.figures().dispersion[0]
    assert (found.window_s, found.windows) == (1, len(counts))
    assert found.index == pytest.approx(pvariance(counts) / fmean(counts))


def test_bins_are_few_however_long_the_time_is() -> None:
    arrivals = Arrivals()
    for hour in range(0, 24 * 365, 5):
        arrivals.add(hour * 3600 * NS_PER_S)
    found = arrivals.figures()
    assert len(found.bins) <= 400
    assert sum(found.bins) == 24 * 365 // 5
    assert found.bin_s % 3600 == 0


def test_sessions_have_turns_and_steps() -> None:
    sessions = Sessions()
    for name, at_s in (("a", 0), ("b", 1), ("a", 4), ("a", 6), ("c", 6)):
        sessions.add(request(conversation=name, at_s=at_s))
    found = sessions.figures()
    assert found is not None
    assert (found.sessions, found.one_turn) == (3, 2)
    assert found.turns is not None
    assert (found.turns.most, found.turns.total) == (3, 5)
    assert found.step_s is not None
    assert (found.step_s.least, found.step_s.most) == (2, 4)
    assert Sessions().figures() is None


def test_tokens_are_counted_exactly() -> None:
    stream = Stream()
    for prompt in (5, 1, 9, 9, 100):
        stream.add(request("a", prompt_tokens=prompt, output_tokens=0, model="m"))
    found = stream.figures()
    told = found.tokens.prompt
    assert told is not None
    assert (told.total, told.p50, told.p99, told.most) == (124, 9, 100, 100)
    assert found.models == [("m", 5)]


# --- spreads ---


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=300))
def test_percentiles_are_values_at_the_rank(values: list[int]) -> None:
    found = spread_of({v: values.count(v) for v in values})
    assert found is not None
    ordered = sorted(values)
    for percent in (50, 90, 95, 99):
        rank = -(-percent * len(values) // 100)
        assert getattr(found, f"p{percent}") == ordered[rank - 1]
    assert (found.total, found.least, found.most) == (sum(values), ordered[0], ordered[-1])
    assert len(found.quantiles) == len(QUANTILES)


@given(st.lists(st.integers(0, 2**53), min_size=1))
def test_times_have_the_buckets_of_a_histogram(values: list[int]) -> None:
    assert buckets_of(np.array(values, np.int64)).tolist() == [bucket_of(v) for v in values]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=300))
def test_times_are_within_a_part_in_five_hundred(values: list[int]) -> None:
    times = Times()
    for value in values[: len(values) // 2]:
        times.add(value)
    times.add_all(np.array(values[len(values) // 2 :], np.int64))
    found = times.spread(1)
    assert found is not None
    ordered = sorted(values)
    for percent in (50, 90, 95, 99):
        exact = ordered[-(-percent * len(values) // 100) - 1]
        assert getattr(found, f"p{percent}") == pytest.approx(exact, rel=1 / 500, abs=1)
    assert (found.count, found.total) == (len(values), sum(values))
    assert (found.least, found.most) == (float(ordered[0]), float(ordered[-1]))
    assert sum(times.counted().values()) == len(values)


def test_no_times_have_no_spread() -> None:
    assert Times().spread(1) is None
    assert spread_of({}) is None


def test_the_coefficient_of_variation_of_a_poisson_stream_is_near_one() -> None:
    rng = np.random.default_rng(1)
    arrivals, at_ns = Arrivals(), 0
    for gap in rng.exponential(NS_PER_S, 20_000):
        at_ns += round(gap)
        arrivals.add(at_ns)
    found = arrivals.figures()
    assert found.gap_cv == pytest.approx(1, abs=0.03)
    assert all(abs(each.index - 1) < 5 * sqrt(2 / each.windows) for each in found.dispersion)


def test_a_time_that_goes_back_counts_as_the_one_before_it() -> None:
    stream = [request("a", at_s=10), request("a", at_s=4), request("a", at_s=12)]
    assert looked_at(stream) == looked_at(
        [stream[0], replace(stream[1], intended_ns=10 * NS_PER_S), stream[2]]
    )
