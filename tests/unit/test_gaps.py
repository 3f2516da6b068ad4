"""Gaps: what is one, and which rule speaks of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.gaps import (
    LATE_NS,
    LEAST_NS,
    Gap,
    Silence,
    Stillness,
    find_gaps,
    gap_rows,
)
from kv_cache.metrics.judging import Status
from kv_cache.metrics.rules.gaps import gaps, stood_still

S = 1_000_000_000
TICK = S // 10


def looks(*moves_s: float, until_s: float = 60, skip: tuple[float, float] = (0, 0)) -> Stillness:
    """Ten looks a second at a counter that moved at these instants; none within `skip`."""
    stillness = Stillness()
    for at in range(0, round(until_s * S) + 1, TICK):
        if not skip[0] * S < at < skip[1] * S:
            stillness.look(at, sum(move * S <= at for move in moves_s))
    return stillness


def found(silences: list[tuple[float, float]], seen: Stillness) -> list[tuple[float, float]]:
    """Begin and end in seconds, in a window from 0 to 60 s."""
    told = [Silence(round(begin * S), round(end * S)) for begin, end in silences]
    return [(g.start_ns / S, g.end_ns / S) for g in find_gaps(told, seen.stretches(), 0, 60 * S)]


def test_a_gap_is_as_long_as_the_calls_say_and_not_as_the_looks() -> None:
    assert found([(10.03, 15.07)], looks(10.01, 15.06)) == [(10.03, 15.07)]


def test_bytes_that_moved_meanwhile_end_a_gap_and_begin_another() -> None:
    assert found([(10.03, 15.07)], looks(10.01, 12.05, 15.06)) == [(10.03, 12.0), (12.1, 15.07)]


def test_a_device_that_moves_bytes_all_the_time_has_no_gap() -> None:
    """One call of many requests takes long, and the device is at work."""
    assert found([(10, 20)], looks(*(0.3 * n for n in range(200)))) == []


def test_what_no_look_saw_is_no_gap() -> None:
    """The whole process was stopped: the harness's lag, which V25 tells."""
    assert found([(10.03, 13.07)], looks(10.01, skip=(10.05, 13.05))) == []


def test_a_gap_beside_late_looks_is_what_was_seen_of_it() -> None:
    assert found([(10.03, 20.07)], looks(10.01, skip=(12, 15))) == [(10.03, 12.0), (15.0, 20.07)]


def test_without_a_counter_the_calls_alone_tell() -> None:
    stillness = Stillness()
    for at in range(0, 60 * S, TICK):
        stillness.look(at, None)
    assert found([(10.03, 15.07)], stillness) == [(10.03, 15.07)]


def test_a_gap_ends_with_the_window_and_begins_with_it() -> None:
    assert found([(-3, 2), (55, 70)], looks(until_s=80)) == [(0.0, 2.0), (55.0, 60.0)]


def test_a_silence_that_two_threads_tell_counts_once() -> None:
    assert found([(10.0, 15.0), (10.0, 15.000001)], looks()) == [(10.0, 15.0)]


MOVES = st.lists(st.floats(0, 60), max_size=8)
SPANS = st.lists(st.tuples(st.floats(0, 60), st.floats(0, 20)), max_size=6)


@given(MOVES, SPANS)
def test_every_gap_lies_in_a_silence_and_in_the_window_and_is_long_enough(
    moves: list[float], spans: list[tuple[float, float]]
) -> None:
    silences = [Silence(round(at * S), round((at + length) * S)) for at, length in spans]
    gone = find_gaps(silences, looks(*moves, until_s=90).stretches(), 0, 60 * S)
    for gap in gone:
        assert gap.length_ns >= LEAST_NS
        assert 0 <= gap.start_ns < gap.end_ns <= 60 * S
        assert any(s.start_ns <= gap.start_ns and gap.end_ns <= s.end_ns for s in silences)
        inside = (gap.start_ns + LATE_NS, gap.end_ns - LATE_NS)
        assert not any(inside[0] < move * S < inside[1] for move in moves)


def test_a_result_lists_gaps_in_order_from_the_window_on() -> None:
    rows = gap_rows([Gap(9 * S, 11 * S), Gap(3 * S, 8 * S)], 2 * S)
    assert rows == [{"at_s": 1.0, "seconds": 5.0}, {"at_s": 7.0, "seconds": 2.0}]


# --- the rule --------------------------------------------------------------------------------


def evidence(*lengths: float, call_ms: float = 5, window_s: float = 60, **more: Any) -> Evidence:
    rows = [{"at_s": 5.0 * n, "seconds": length} for n, length in enumerate(lengths)]
    seen = {"counted": True, "found": rows, "read_call_ms": call_ms, "write_call_ms": None, **more}
    return Evidence({"gaps": seen, "completeness": {"window_s": window_s}})


CASES = {
    "no gap": (evidence(), Status.PASS, "0.0 s"),
    "one of the window's 2 %": (evidence(1.1), Status.PASS, "1.1 s"),
    "an 8 s hang of 60": (evidence(8.0), Status.SUSPECT, "8.0 s from 0.0 s on"),
    "two short ones add up": (evidence(1.0, 1.0, window_s=20), Status.SUSPECT, "2.0 s (10.0 %"),
    "many are not all listed": (evidence(*[2.0] * 5), Status.SUSPECT, "and 2 more"),
    "calls that take so long": (evidence(*[1.5] * 30, call_ms=1400), Status.PASS, "0.0 s"),
    "a slow device hangs": (evidence(9.0, call_ms=1400), Status.SUSPECT, "9.0 s"),
    "no counter, slow calls": (evidence(4.0, call_ms=300, counted=False), Status.PASS, "tell"),
    "no counter, a hang": (evidence(9.0, call_ms=300, counted=False), Status.SUSPECT, "tell"),
    "not looked": (Evidence({"completeness": {"window_s": 1}}), Status.NOT_JUDGED, "not looked at"),
    "no window": (evidence(9.0, window_s=0), Status.NOT_APPLICABLE, "nothing was measured"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_gaps_of_over_two_percent_of_the_window_are_suspect(case: str) -> None:
    seen, status, words = CASES[case]
    (look,) = gaps(seen, Thresholds())
    assert look.status is status, look
    assert words in look.message
    assert stood_still(seen, Thresholds()) is (status is Status.SUSPECT)
