"""Saturation: the largest of three pressures, over the latest windows, with hysteresis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind, Phase, Tier
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.metrics.window import Gauges, Latency, OpWindow, SaturationLevel, Window
from kv_cache.schedule.saturation import (
    QUEUE,
    READS,
    WRITES,
    Saturation,
    SaturationRules,
)

IDLE = SaturationLevel(0.0, None, saturated=False)


def operations(p95_ms: float) -> OpWindow:
    ns = p95_ms * NS_PER_MS
    latency = Latency(
        count=10, p50_ns=None, p95_ns=None, p99_ns=None, highest_ns=int(ns), rank95_ns=ns
    )
    return OpWindow(operations=10, failed=0, bytes=0, calls=10, latency=latency)


def window(
    *, read_ms: float | None = None, write_ms: float | None = None, queued: int = 0
) -> Window:
    seen = {OpKind.READ: read_ms, OpKind.WRITE: write_ms}
    return Window(
        start_ns=0,
        end_ns=NS_PER_S,
        phase=Phase.MEASURE,
        gauges=Gauges(
            users=1,
            workers=1,
            in_flight=0,
            queued=queued,
            oldest_queued_ns=0,
            behind=0,
            submitted=0,
        ),
        submitted=0,
        ops={(Tier.NVME, kind): operations(ms) for kind, ms in seen.items() if ms is not None},
        classes={},
    )


def saturation(**rules: float) -> Saturation:
    return Saturation(SaturationRules(**rules))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "level", "by"),
    [
        (window(read_ms=80), 0.8, READS),
        (window(write_ms=80), 1.6, WRITES),
        (window(queued=250), 2.5, QUEUE),
        (window(read_ms=50, write_ms=30, queued=40), 0.6, WRITES),
    ],
)
def test_the_level_is_the_largest_pressure(seen: Window, level: float, by: str) -> None:
    state = saturation().see(seen)
    assert state.level == pytest.approx(level)
    assert state.by == by
    assert state.saturated == (level >= 1)


def test_nothing_to_do_is_a_level_of_0_by_nobody() -> None:
    assert saturation().see(window()) == IDLE


def test_memory_tiers_do_not_count() -> None:
    seen = window()
    slow = Window(
        start_ns=0,
        end_ns=NS_PER_S,
        phase=seen.phase,
        gauges=seen.gauges,
        submitted=0,
        ops={(Tier.CPU, OpKind.READ): operations(1000)},
        classes={},
    )
    assert saturation().see(slow) == IDLE


def test_one_odd_window_does_not_matter() -> None:
    storage = saturation()
    for _ in range(3):
        storage.see(window(read_ms=10))
    assert not storage.see(window(read_ms=5000)).saturated


def test_it_begins_at_1_and_ends_below_the_release_level() -> None:
    storage = saturation(history_windows=1)
    levels = (99, 100, 90, 80, 79, 99, 100)
    states = [storage.see(window(read_ms=ms)).saturated for ms in levels]
    assert states == [False, True, True, True, False, False, True]


def test_a_signal_that_is_not_seen_any_more_is_forgotten() -> None:
    storage = saturation(history_windows=3)
    assert storage.see(window(read_ms=500)).by == READS
    for _ in range(2):
        assert storage.see(window(write_ms=10)).by == READS
    state = storage.see(window(write_ms=10))
    assert state.level == pytest.approx(0.2)
    assert (state.by, state.saturated) == (WRITES, False)


def test_after_a_change_of_the_load_only_new_windows_count() -> None:
    storage = saturation()
    for _ in range(10):
        storage.see(window(queued=1000))
    storage.reset()
    assert storage.see(window(queued=90)).saturated is False


def test_limits_are_rules() -> None:
    rules = {"read_p95_limit_ns": 10 * NS_PER_MS, "queued_limit": 4}
    assert saturation(**rules).see(window(read_ms=8, queued=2)).level == pytest.approx(0.8)


@pytest.mark.parametrize("rules", [{"queued_limit": 0}, {"history_windows": 0}])
def test_rules_that_make_no_sense_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        saturation(**rules)


def test_a_level_names_its_signal() -> None:
    assert saturation().see(window(queued=100)) == SaturationLevel(1.0, QUEUE, saturated=True)


pressures = st.one_of(st.none(), st.floats(0, 1000))


@given(st.lists(st.tuples(pressures, pressures, st.integers(0, 500)), min_size=1, max_size=30))
def test_the_state_follows_from_the_level_and_the_state_before(
    seen: list[tuple[float | None, float | None, int]],
) -> None:
    storage, before = saturation(), False
    for read_ms, write_ms, queued in seen:
        state = storage.see(window(read_ms=read_ms, write_ms=write_ms, queued=queued))
        assert state.level >= 0
        assert state.saturated == (state.level >= 1 or (before and state.level >= 0.8))
        assert (state.by is None) == (state.level == 0)
        before = state.saturated
