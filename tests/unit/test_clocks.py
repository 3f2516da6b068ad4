"""How far apart two clocks are, from messages there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.clocks import Exchange, offset_of

instants = st.integers(min_value=0, max_value=2**62)
spans = st.integers(min_value=0, max_value=10**10)
offsets = st.integers(min_value=-(2**62), max_value=2**62)
ways = st.lists(st.tuples(instants, spans, spans), min_size=1, max_size=20)


def exchanges(ways: list[tuple[int, int, int]], offset_ns: int) -> list[Exchange]:
    """Of a clock that is so far ahead: each way there and back takes its time."""
    return [
        Exchange(sent_ns=sent, theirs_ns=sent + there + offset_ns, back_ns=sent + there + back)
        for sent, there, back in ways
    ]


@given(ways, offsets)
def test_the_offset_is_never_off_by_more_than_its_error(
    ways: list[tuple[int, int, int]], offset_ns: int
) -> None:
    found = offset_of(exchanges(ways, offset_ns))
    assert abs(found.offset_ns - offset_ns) <= found.error_ns


@given(ways, offsets)
def test_the_error_is_half_the_shortest_way(
    ways: list[tuple[int, int, int]], offset_ns: int
) -> None:
    found = offset_of(exchanges(ways, offset_ns))
    shortest_ns = min(there + back for _, there, back in ways)
    assert found.error_ns == -(-shortest_ns // 2)


@given(ways, offsets, offsets)
def test_setting_a_clock_moves_the_offset_and_nothing_else(
    ways: list[tuple[int, int, int]], offset_ns: int, ahead_ns: int
) -> None:
    before = offset_of(exchanges(ways, offset_ns))
    after = offset_of(exchanges(ways, offset_ns + ahead_ns))
    assert after.offset_ns - before.offset_ns == ahead_ns
    assert after.error_ns == before.error_ns


@given(spans, instants, offsets)
def test_ways_of_equal_length_tell_the_offset_exactly(
    way_ns: int, sent_ns: int, offset_ns: int
) -> None:
    assert offset_of(exchanges([(sent_ns, way_ns, way_ns)], offset_ns)).offset_ns == offset_ns


def test_without_an_exchange_there_is_no_offset() -> None:
    with pytest.raises(ValueError):
        offset_of([])
