"""The numbers of a result that `trials`, `compare` and reports look at: one list, in which each has
its name, unit and place in the section `kv_cache`.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import fmean, median
from typing import Any

from msgspec import Struct

from kv_cache.core.bounded import LARGEST
from kv_cache.core.format import figures
from kv_cache.core.kinds import Qos
from kv_cache.core.units import AT_LEAST, GIB
from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.intervals import (
    CONFIDENCE,
    Interval,
    bounded_interval,
    coefficient_of_variation,
    geometric_mean,
)
from kv_cache.result.paths import list_at, number_at

HIGHER, LOWER = "higher", "lower"

Json = Mapping[str, Any]


class Metric(Struct, frozen=True, kw_only=True):
    """One number of a result.

    `value` takes it from the section `kv_cache` of a result, `batch` from some windows of its
    series; both give None if it is not known. Values of which one is less than
    `resolution` (a share) above the other are not distinguishable, however often they are measured.
    """

    name: str
    unit: str
    better: str
    value: Callable[[Json], float | None]
    batch: Callable[[Sequence[Json]], float | None] | None = None
    label: str
    shown_unit: str
    scale: float = 1.0  # of the unit in one of the unit shown
    most: float = inf  # 1 of a share; nothing here is below 0
    resolution: float = 0.0
    path: str | None = None  # of a percentile, beside which a section lists its lower bounds

    def at_least(self, section: Json) -> bool:
        """Return whether a section's value is a lower bound."""
        where, _, percentile = (self.path or "").rpartition(".")
        return percentile in list_at(section, f"{where}.at_least")

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean of several runs: the geometric mean, as `compare` takes it; of shares the
        arithmetic one."""
        return geometric_mean(values) if self.most == inf else fmean(values)

    def shown(self, value: float | None, at_least: bool = False) -> str:
        """Return a value in the unit for people, marked if it is a lower bound."""
        text = figures(None if value is None else value / self.scale)
        return f"{AT_LEAST}{text}" if at_least else text


# --- what is looked at -----------------------------------------------------------------------


def spread(
    values: Sequence[float],
    mean: Callable[[Sequence[float]], float] = fmean,
    most: float = inf,
) -> dict[str, Any]:
    """Return how far repeated measurements agree; none of them can be above `most`."""
    interval = bounded_interval(values, CONFIDENCE, most)
    return {
        "values": list(values),
        "median": median(values),
        "mean": mean(values),
        "interval": ends(interval),
        "coefficient_of_variation": coefficient_of_variation(values),
        "min": min(values),
        "max": max(values),
    }


def over_runs(
    metric: Metric, values: Sequence[float | None], at_least: bool
) -> dict[str, Any] | None:
    """Return a metric of several runs, None if no run has it. One that lacks it has null among the
    values. Where one is `at_least` its value, so are median and mean, and have no interval."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "unit": metric.unit,
        "better": metric.better,
        **spread(known, metric.mean, metric.most),
        "values": list(values),
        **({**_UNKNOWN_SPREAD, "at_least": True} if at_least else {}),
    }


_UNKNOWN_SPREAD = {"interval": None, "coefficient_of_variation": None}


def ends(interval: Interval | None) -> dict[str, float] | None:
    """Return an interval as documents have it. None if it reaches beyond any number that they may
    have: two values that differ tenfold say nothing of their mean."""
    return interval._asdict() if interval is not None and interval.high <= LARGEST else None


def _if_any(path: str, count: str) -> Callable[[Json], float | None]:
    """Return the number at `path`, if the one at `count` says that there was something: a result
    has 0 for the percentiles of nothing."""
    return lambda section: number_at(section, path) if number_at(section, count) else None


def _each_second(path: str) -> Callable[[Json], float | None]:
    def value(section: Json) -> float | None:
        summed = number_at(section, f"{path}_per_second")  # of ranks, whose rates add up
        if summed is not None:
            return summed
        amount, seconds = number_at(section, path), number_at(section, "window_s")
        return None if amount is None or not seconds else amount / seconds

    return value


def _storage_rate(*kinds: str) -> Callable[[Json], float | None]:
    def value(section: Json) -> float | None:
        rates = [number_at(section, f"tiers.storage.{kind}.bytes_per_second") for kind in kinds]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    return value


def _batch_rate(*paths: str) -> Callable[[Sequence[Json]], float | None]:
    """Return the function that adds counts of windows over their seconds. A window does not have
    the names of what it had none of."""

    def value(windows: Sequence[Json]) -> float | None:
        seconds = sum(length_s(window) for window in windows)
        amount = sum(number_at(window, path) or 0.0 for window in windows for path in paths)
        return amount / seconds if seconds > 0 else None

    return value


def _batch_median(path: str) -> Callable[[Sequence[Json]], float | None]:
    """Return the median of the windows' own percentiles: those of a batch as a whole are not
    known."""

    def value(windows: Sequence[Json]) -> float | None:
        metrics = [number_at(window, path) for window in windows]
        known = [number for number in metrics if number is not None]
        return median(known) if known else None

    return value


def length_s(window: Json) -> float:
    """Return the seconds of one row of a result's series."""
    start, end = number_at(window, "start_s"), number_at(window, "end_s")
    return 0.0 if start is None or end is None else max(0.0, end - start)


def _bandwidth(name: str, label: str, *kinds: str) -> Metric:
    return Metric(
        name=name,
        unit="bytes/s",
        better=HIGHER,
        value=_storage_rate(*kinds),
        batch=_batch_rate(*(f"tiers.storage.{kind}.bytes" for kind in kinds)),
        label=label,
        shown_unit="GiB/s",
        scale=GIB,
    )


def _rate(name: str, label: str, counted: str, in_window: str, unit: str) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        better=HIGHER,
        value=_each_second(counted),
        batch=_batch_rate(in_window),
        label=label,
        shown_unit=unit,
    )


def _latency(name: str, label: str, path: str, count: str, in_window: str | None) -> Metric:
    return Metric(
        name=name,
        unit="ms",
        better=LOWER,
        value=_if_any(path, count),
        batch=None if in_window is None else _batch_median(in_window),
        label=label,
        shown_unit="ms",
        resolution=2 * RELATIVE_ERROR,  # one of each side
        path=path,
    )


def _device(kind: str, percentile: str) -> Metric:
    where = f"tiers.storage.{kind}"
    return _latency(
        f"storage.{kind}.device_ms.{percentile}",
        f"storage {kind} device {percentile}",
        f"{where}.device_ms.{percentile}",
        f"{where}.operations",
        f"{where}.{percentile}_ms",
    )


def _request(latency: str, label: str, percentile: str, qos: str | None = None) -> Metric:
    """Return the metric of a latency. Windows have the latencies of each class, and none of all of
    them."""
    who = "" if qos is None else f"{qos}."
    where = f"measured.{qos or 'all'}"
    return _latency(
        f"{who}{latency}_ms.{percentile}",
        f"{label} {percentile}{'' if qos is None else f' {qos}'}",
        f"{where}.{latency}_ms.{percentile}",
        f"{where}.histogram_{latency}.count",
        None if qos is None else f"classes.{qos}.{latency}_ms.{percentile}_ms",
    )


_PERCENTILES = ("p50", "p95", "p99")
_DONE, _TOKENS = "measured.all.completed", "measured.all.output_tokens"

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _bandwidth("storage.bytes_per_second", "storage read + write", "read", "write"),
        _bandwidth("storage.read.bytes_per_second", "storage read", "read"),
        _bandwidth("storage.write.bytes_per_second", "storage write", "write"),
        *(_device("read", p) for p in _PERCENTILES),
        *(_device("write", p) for p in _PERCENTILES),
        _rate("requests_per_second", "requests", _DONE, "completed", "1/s"),
        _rate("output_tokens_per_second", "output tokens", _TOKENS, "output_tokens", "1/s"),
        *(_request("ttft", "TTFT", p) for p in ("p50", "p95")),
        *(_request("response", "response", p) for p in _PERCENTILES),
        *(_request("response", "response", p, q.value) for q in Qos for p in _PERCENTILES),
        Metric(
            name="hit_ratio",
            unit="share",
            better=HIGHER,
            value=_if_any("reuse.reuse_hit_ratio", "reuse.looked_up"),
            label="hit ratio",
            shown_unit="%",
            scale=0.01,
            most=1.0,
        ),
    )
}

HEADLINES = ("storage.bytes_per_second", "requests_per_second")
"""The first that every trial has above 0 is what trials are held against each other by."""
