"""The windows that a result keeps of a run of any length."""

from kv_cache.core.kinds import Phase
from kv_cache.metrics.window import Gauges, Meter, Series

TICK_NS = 1_000_000
GAUGES = Gauges(
    users=1, workers=1, in_flight=0, queued=0, oldest_queued_ns=0, behind=0, submitted=1
)


def ticks(series: Series, count: int, phase: Phase = Phase.MEASURE, begin: int = 0) -> None:
    meter = Meter()
    meter.read(meter.take(begin * TICK_NS), phase, GAUGES)
    for tick in range(begin, begin + count):
        series.add(meter.read(meter.take((tick + 1) * TICK_NS), phase, GAUGES))
        assert len(series.windows) <= 100


def test_a_series_of_any_length_is_bounded_and_its_windows_are_of_about_one_length() -> None:
    series = Series(longest=100)
    ticks(series, 20_000)
    lengths = [round((w.end_ns - w.start_ns) / TICK_NS) for w in series.windows]
    assert sum(lengths) == 20_000
    assert series.together == 256
    assert all(length <= series.together for length in lengths)
    short = [length for length in lengths if length < series.together // 2]
    assert len(short) <= 8, "one for each time that all were put together"


def test_windows_of_two_phases_are_never_joined() -> None:
    series = Series(longest=100)
    ticks(series, 5000, Phase.WARMUP)
    ticks(series, 5000, Phase.MEASURE, begin=5000)
    assert [w.phase for w in series.windows] == sorted(
        (w.phase for w in series.windows), reverse=True
    )
    warm = [w for w in series.windows if w.phase is Phase.WARMUP]
    assert round(warm[-1].end_ns / TICK_NS) == 5000
